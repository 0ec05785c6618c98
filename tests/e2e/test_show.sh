#!/usr/bin/env bash
# kvasir show: every stage of every model, and what stages promise.
. "$(dirname "$0")/support.sh"

for stage in source graph fused plan kernels llvm asm ptx; do
  expect 0 show models/mlp.kv --stage="$stage"
  [ -s "$work/out" ] || fail "stage $stage is empty"
  cp "$work/out" "$work/$stage"
  expect 0 show models/mlp.kv --stage="$stage" --train --pin B=4 --pin T=8
  expect 0 show models/mlp.kv --stage="$stage"
  cmp -s "$work/out" "$work/$stage" || fail "stage $stage: two runs differ"
done
grep -q 'kv.kernel' "$work/fused" || fail "nothing was fused"
grep -q 'define .*@' "$work/llvm" || fail "no function in the LLVM IR"
grep -q '^.visible .entry' "$work/ptx" || fail "no kernel in the PTX"
grep -q 'kernel' "$work/kernels" || fail "no kernel in the kernel IR"

# An optimizer chosen by an option has the defaults that it has in a train block.
cat >"$work/product.kv" <<'KV'
<ir_version: 10, opset_import: ["" : 17]>
product (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {1.0, 2.0}> {
  y = MatMul(x, w)
}
KV
expect 0 show "$work/product.kv" --train --loss mse --optimizer adagrad --stage=graph
says "eps = 1e-10"

# A dump reads back and shows the same.
for stage in source graph; do
  expect 0 show models/induction.kv --stage="$stage"
  grep -v '"hash"' "$work/out" >"$work/dump.kv"
  expect 0 show "$work/dump.kv" --stage=source
  cmp -s "$work/out" "$work/dump.kv" || fail "the dump of stage $stage does not read back"
done

# A symbolic batch of images takes the register tiles of one image: none is wider than its 16 positions.
cat >"$work/patches.kv" <<'KV'
model patches (float[B, 3, 64, 64] x) => (float[B, 128, 4, 4] y) {
  param float[128, 3, 16, 16] w ~ normal(1)
  y = kv.conv <strides = [16, 16]> (x, w)
}
KV
expect 0 show "$work/patches.kv" --stage=kernels --cpu x86-64-v4 --pin B=1
accumulators=$(grep 'local readwrite float acc' "$work/out") || fail "no accumulators"
expect 0 show "$work/patches.kv" --stage=kernels --cpu x86-64-v4
says "$accumulators"

# A vector's load under a condition of all lanes takes its address only where it holds: else there may be no page.
cat >"$work/joined.kv" <<'KV'
model joined (float[6, 64] x, float[2, 64] y) => (float[8, 64] z) {
  z = kv.concat <axis = 0> (kv.exp(x), kv.exp(y))
}
KV
expect 0 show "$work/joined.kv" --stage=llvm
grep -q 'select i1 %[^,]*, ptr %[^,]*, ptr @kva.zero' "$work/out" || fail "a load that is masked off may have any address"

# The training graph has the gradients' and the optimiser's nodes; the 19B plan comes from paper alone.
expect 0 show models/induction.kv --train
says "train_step"
says "kv.adamw"
expect 0 show models/lm.kv -D preset=19B --train --stage=plan
says "parameters"
awk '$1 == "parameters" && $2 > 19e9 && $2 < 20e9 { found = 1 } END { exit !found }' "$work/out" || fail "19B has other parameters"

expect 0 show models/mlp.kv --format=dot
says "digraph"
expect 0 show models/mlp.kv --print-after=dce --timing
says "// after dce"
says " ms"
expect 0 show models/mlp.kv --stage=asm --cpu x86-64-v3
! grep -q '%zmm' "$work/out" || fail "x86-64-v3 has no 512-bit registers"
expect 0 show models/mlp.kv --stage=asm --cpu x86-64-v4
grep -q '%zmm' "$work/out" || fail "x86-64-v4 uses no 512-bit register"

# Passes are those of the target: this machine's CPU, or the GPU of --stage=ptx, which joins other gradients.
expect 0 show models/induction.kv --train --pin B=32 --pin T=64 --stage=plan
says "attention_grad "
expect 0 show models/induction.kv --train --pin B=32 --pin T=64 --stage=ptx
says "kv_shift_grads"

# GPUs: the text says which one; every distinct kernel stands in it once; an unknown one is an error.
expect 0 show models/mlp.kv --stage=ptx --arch sm_90a
says ".target sm_90a"
[ "$(grep '^.visible .entry' "$work/out" | sort | uniq -d | wc -l)" = 0 ] || fail "a kernel stands in the PTX twice"
expect 0 show models/mlp.kv --stage=kernels --arch sm_80
says "threads 256"
expect 1 show models/mlp.kv --stage=ptx --arch sm_12

# Each norm's backward pass adds up the gradient of its own scale, not those of other layers.
for precision in f32 bf16; do
  expect 0 show models/lm.kv -D preset=small --precision "$precision" --train --stage=fused --arch sm_80
  awk '/kv.kernel </ { n = 0 } /kv.partial_sum/ { total++; if (++n > 1) several = 1 }
       END { exit several || total < 5 }' "$work/out" || fail "gradients of scales are not with their norms ($precision)"
done

# The plan says which hand-written kernel a step takes, and why not those before it.
expect 0 show models/mlp.kv --stage=plan --pin B=4 --pin T=8 --cpu x86-64-v3
says "tiles, not skinny: not 1 to 8 rows"
# ... where the number of rows is not known, a kernel has the loops for few rows, too.
expect 0 show models/mlp.kv --stage=kernels
says "local readwrite float sums"
expect 0 show models/mlp.kv --stage=kernels --pin B=4 --pin T=8
! grep -q sums "$work/out" || fail "a product of 32 rows has loops for few"
expect 0 show models/mlp.kv --stage=plan --arch sm_80
says "simt, not skinny: not 1 to 16 rows; wgmma: no warpgroup mma; mma: factors not of 16 bits"
expect 0 show models/mlp.kv --stage=plan --pin B=2 --pin T=8 --arch sm_80
says "matmul             skinny"
! grep -q simt "$work/out" || fail "products of 16 rows take the tiles of many"

# Tensor cores multiply all 16-bit factors, those of weight gradients with float results too.
for arch in sm_80 sm_90a; do
  expect 0 show models/lm.kv -D preset=small --precision bf16 --train --stage=plan --arch "$arch"
  ! grep -q simt "$work/out" || fail "a product of a bf16 step does without tensor cores on $arch"
done

# Plans are for the context of the preset; what is pinned is no assumption.
expect 0 show models/lm.kv -D preset=2.9B --stage=plan
says ", sizes for B=1 T=4096"
expect 0 show models/lm.kv -D preset=small --pin T=64 --stage=plan
says ", sizes for B=1"
! grep -qE 'T=|2048$' <(grep sizes "$work/out") || fail "a pinned symbol is assumed"
expect 0 show models/lm.kv -D preset=small --pin T=64 --pin B=2 --stage=plan
says ", all sizes fixed"
says "(128 tokens)"

# Sums of columns: several vectors side by side, as many as accumulators fit in registers and all cores have items.
printf '%s\n' 'model m (float[9, 1000] x) => (float[1000] y) { y = kv.reduce_sum<axes = [0], keepdims = false>(x) }' >"$work/columns.kv"
sed 's/1000/16350/g; s/9, /900, /' "$work/columns.kv" >"$work/many.kv"
sed 's/16350/160/g' "$work/many.kv" >"$work/few.kv"
expect 0 show "$work/many.kv" --stage=kernels --cpu x86-64-v4
says "width 4 {"
expect 0 show "$work/many.kv" --stage=kernels --cpu x86-64-v3
says "width 2 {"
expect 0 show "$work/few.kv" --stage=kernels --cpu x86-64-v4
! grep -q width "$work/out" || fail "too few items for 8 cores"
expect 0 diff "$work/few.kv"
expect 0 diff "$work/columns.kv"
expect 0 diff "$work/many.kv"

# A transposition moves squares of elements, where they are whole: lanes along one axis, rounds along the other.
square='model m (float[B, R, C] x) => (float[B, C, R] y) { y = kv.transpose<perm = [0, 2, 1]>(kv.abs(x)) }'
for sizes in 48,80 48,81 47,80; do
  sed "s/R/${sizes%,*}/g; s/C/${sizes#*,}/g" <<<"$square" >"$work/square.kv"
  expect 0 show "$work/square.kv" --stage=kernels --cpu x86-64-v4 --pin B=3
  grep -q 'unroll .* < 16' "$work/out" || [ "$sizes" = 48,81 ] || fail "no squares of $sizes"
  ! grep -q 'unroll .* < 16' "$work/out" || [ "$sizes" != 48,81 ] || fail "squares that are not whole"
  expect 0 diff "$work/square.kv" --pin B=3
done

# Plans as JSON; gradients are on their own line: clipping reads all of them before the first update.
expect 0 show models/lm.kv -D preset=1.5B --train --stage=plan --format=json
python3 - "$work/out" <<'EOF' || fail "the plan as JSON"
import json, sys
plans = json.load(open(sys.argv[1]))
assert list(plans) == ["main", "eval", "train_step"]
step = plans["train_step"]
assert step["tokens"] == 2048 and step["parameters"] * 4 == step["bytes"]["parameters"]
assert step["bytes"]["gradients"] == step["bytes"]["parameters"] and plans["main"]["bytes"]["gradients"] == 0
assert 2.9 < step["contraction_flops"] / plans["main"]["contraction_flops"] < 3.2
EOF
expect 2 show models/lm.kv --format=json
