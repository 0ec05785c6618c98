#!/usr/bin/env bash
# Products with constants take another kernel than those with states (passes/layout_products.c), and give the same bits.
# Einsum is products of matrices.
. "$(dirname "$0")/support.sh"

# compare ROWS OF X, OF Z, DEPTH, COLUMNS: parameters of the .kv model are states, of the ONNX model constants.
compare() {
  local dir=$work/$1-$2
  mkdir "$dir"
  cat >"$dir/m.kv" <<KV
model m (float[3, $1, $3] x, float[$2, $3] z) => (float[3, $1, $4] y, float[$2, $4] u) {
  param float[$3, $4] w ~ normal(0.1)
  y = kv.tanh(kv.matmul(x, w) * 0.1)
  u = kv.matmul(z, w)
}
KV
  expect 0 export "$dir/m.kv" --seed 5 -o "$dir/m.onnx"
  expect 0 run "$dir/m.kv" --seed 5 -o "$dir/state"
  expect 0 run "$dir/m.onnx" --seed 5 --threads 1 -o "$dir/one"
  expect 0 run "$dir/m.onnx" --seed 5 --threads 3 -o "$dir/three"
  for name in y u; do
    cmp "$dir/state/$name.npy" "$dir/one/$name.npy" || fail "$name of $* differs"
    cmp "$dir/one/$name.npy" "$dir/three/$name.npy" || fail "$name of $* depends on the threads"
  done
  expect 0 profile "$dir/m.onnx" --repeat 3
  [ "$(grep -c ' conv' "$work/out")" = 2 ] || fail "the products of $* are no convolutions"
  expect 0 diff "$dir/m.onnx"
  says ", 0 beyond the tolerance"
}

compare 50 130 80 200
# Few tiles of a matrix that the second cache does not hold; its last panel is not whole, a row of x is a page long.
compare 3 9 1024 1000
compare 4 15 640 1600
compare 9 31 512 2000
compare 11 64 3072 96

# compare_unknown TYPE DEPTH COLUMNS ROWS...: tiles and the loops for few rows read constants in panels, bytes in words of
# four steps. Products whose number of rows an input tells give the bits of those with states, and of those with as many
# rows as the model says.
compare_unknown() {
  local dir=$work/unknown-$1-$2-$3 type=$1 depth=$2
  local result=float weights=float spread=0.1 product='kv.tanh(kv.matmul(x, w) * 0.1)' input=u
  if [ "$type" = uint8 ]; then
    result=int32 weights=int8 spread=40 product='kv.matmul <to = int32> (x, w)' input='kv.cast <to = uint8> (kv.abs(u) * 60)'
  fi
  mkdir "$dir"
  printf 'model m (%s[M, %s] x) => (%s[M, %s] y) {\n  param %s[%s, %s] w ~ normal(%s)\n  y = %s\n}\n' \
    "$type" "$depth" "$result" "$3" "$weights" "$depth" "$3" "$spread" "$product" >"$dir/m.kv"
  expect 0 export "$dir/m.kv" --seed 5 -o "$dir/m.onnx"
  expect 0 opt "$dir/m.onnx" --passes=optimize,prepare
  [ "$type" = uint8 ] || says "kv.join_panels" # bytes: where one instruction multiplies words
  shift 3
  for rows in "$@"; do
    printf 'model x (float[%s, %s] u) => (%s[%s, %s] y) {\n  y = %s\n}\n' \
      "$rows" "$depth" "$type" "$rows" "$depth" "$input" >"$dir/x.kv"
    expect 0 run "$dir/x.kv" --seed "$rows" -o "$dir/x"
    expect 0 run "$dir/m.kv" --seed 5 -i "x=$dir/x/y.npy" -o "$dir/state"
    expect 0 run "$dir/m.onnx" -i "x=$dir/x/y.npy" --threads 1 -o "$dir/one"
    expect 0 run "$dir/m.onnx" -i "x=$dir/x/y.npy" --threads 3 -o "$dir/three"
    expect 0 run "$dir/m.onnx" -i "x=$dir/x/y.npy" --pin "M=$rows" -o "$dir/pinned"
    for other in one three pinned; do
      cmp "$dir/state/y.npy" "$dir/$other/y.npy" || fail "$rows rows of depth $depth differ: $type, $other"
    done
  done
}

compare_unknown float 80 256 1 2 7 8 9 50
# Several slices of the depth; the last panel is not whole.
compare_unknown float 3000 1000 5 13 70
compare_unknown uint8 80 256 1 2 7 8 9 50
compare_unknown uint8 3000 1000 5 13 70

# fetches PREFETCHES A, B, RESULT ATTRIBUTES: which factors have lines fetched ahead of packing, up to their ends: "a", "b",
# "ab" or "". Results are the reference's.
fetches() {
  printf 'model m (float[%s] a, float[%s] b) => (float[%s] y) {\n  y = kv.matmul <%s> (a, b)\n}\n' \
    "$2" "$3" "$4" "$5" >"$work/fetch.kv"
  expect 0 show "$work/fetch.kv" --stage=kernels
  found=$(sed -n 's/^ *prefetch \([ab]\)\[.*/\1/p' "$work/out" | sort -u | tr -d '\n')
  [ "$found" = "$1" ] || fail "<$5> of $2 and $3 fetches '$found', not '$1'"
  expect 0 diff "$work/fetch.kv"
  says ", 0 beyond the tolerance"
}

fetches ab 2,2500,250 2,2500,310 2,250,310 'transpose_a = true'
fetches b 2,70,1100 2,1030,1100 2,70,1030 'transpose_b = true'
fetches b 1100,70 1030,1100 70,1030 'transpose_a = true, transpose_b = true'
fetches '' 70,1100 1100,1030 70,1030 'transpose_a = false'
fetches '' 60,50 60,70 50,70 'transpose_a = true' # in the caches

# Einsum multiplies from left to right: two operands that share a summed label are a product of matrices.
cat >"$work/chain.kv" <<'KV'
model chain (float[2, 3] x, float[3, 2] y, float[2] z) => (float[2] v, float[2, 2] w) {
  v = Einsum <equation = "ij,jk,k->i"> (x, y, z)
  w = Einsum <equation = "...j,kj->k..."> (x, x)
}
KV
python3 - "$work" <<'PY' || fail "inputs"
import struct, sys
for name, values in ("x", (1, 2, 3, 4, 5, 6)), ("y", (1, 0, 2, 1, 0, 3)), ("z", (2, -1)):
    open(f"{sys.argv[1]}/{name}", "wb").write(struct.pack(f"<{len(values)}f", *values))
PY
expect 0 run "$work/chain.kv" -i x="$work/x" -i y="$work/y" -i z="$work/z"
says "[-1, 5]"
says "[14, 32, 32, 77]"
expect 0 show "$work/chain.kv" --stage=graph
[ "$(grep -c 'kv.matmul' "$work/out")" = 2 ] || fail "Einsum multiplies element by element"
cat >"$work/attention.kv" <<'KV'
model attention (float[2, 4, 24, 8] q, float[2, 4, 24, 8] k, float[2, 4, 24, 8] v) => (float[2, 4, 24, 8] y) {
  p = Softmax(Einsum <equation = "bhid,bhjd->bhij"> (q, k) * 0.25)
  y = Einsum <equation = "bhij,bhjd->bhid"> (p, v)
}
KV
expect 0 show "$work/attention.kv" --stage=fused
says "kv.attention"
expect 0 diff "$work/attention.kv"

# The gradients of an attention are the same sums in one kernel and in two, where the scale is a power of two.
gradients() {
  cat >"$work/gradients.kv" <<KV
model gradients (float[2, 4, 150, 16] q, float[2, 2, 97, 16] k, float[2, 2, 97, 32] v, float[2, 4, 150] delta, float[2, 4, 150, 32] dy) => (float[2, 4, 150, 16] a, float[2, 2, 97, 16] b, float[2, 2, 97, 32] c, float[2, 4, 150, 16] d, float[2, 2, 97, 16] e, float[2, 2, 97, 32] f) {
  y, lse = kv.attention <$1> (q, k, v)
  a = kv.attention_grad_q <$1> (q, k, v, , , delta, lse, dy)
  b, c = kv.attention_grad_kv <$1> (q, k, v, , , delta, lse, dy)
  d, e, f = kv.attention_grad <$1> (q, k, v, , , delta, lse, dy)
}
KV
  expect 0 run "$work/gradients.kv" -o "$work/gradients"
  for pair in a:d b:e c:f; do
    cmp "$work/gradients/${pair%:*}.npy" "$work/gradients/${pair#*:}.npy" || fail "<$1>: ${pair%:*} and ${pair#*:} differ"
  done
}
gradients 'causal = false'
gradients 'causal = true, offset = -37'
gradients 'causal = true, offset = 20, window = 45, softcap = 5.0'

# Constants that folding made go into panels like those of a file.
cat >"$work/folded.kv" <<'KV'
model folded (float[B, 96] x) => (float[B, 320] y) {
  param float[320, 96] w ~ normal(0.1)
  y = kv.matmul <transpose_b = true> (x, w)
}
KV
expect 0 export "$work/folded.kv" -o "$work/folded.onnx"
expect 0 show "$work/folded.onnx" --stage=fused
says "kv.join_panels"
for rows in 1 3 6 7 8 9; do
  expect 0 diff "$work/folded.onnx" --pin B=$rows
done
