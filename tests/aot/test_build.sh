#!/usr/bin/env bash
# kvasir build: forms, texts, executables that agree with `kvasir run`, rebuilds, usage errors.
. "$(dirname "$0")/../e2e/support.sh"
. "$(dirname "$0")/support.sh"

# An executable: explains itself, gives the same bits, in any folder and environment.
tokens "$work/tokens" 2 17
mkdir "$work/a" "$work/b"
expect 0 build models/lm.kv -D preset=small --exe -o "$work/lm"
"$work/lm" --help >"$work/out"
says "Language model with KV shifting attention"
says "int32[B, T]"
says "float[B, T, 8000]"
says "--pin SYMBOL=N"
expect 0 run models/lm.kv -D preset=small --input "$work/tokens.npy" -o "$work/a"
(cd / && env -i "$work/lm" --input "tokens=$work/tokens.npy" -o "$work/b" >/dev/null)
same "$work/a/logits.npy" "$work/b/logits.npy"
rm "$work/b/logits.npy"
"$work/lm" --input "$work/tokens.raw" --pin B=2 --pin T=17 -o "$work/b" --threads 1 >/dev/null
same "$work/a/logits.npy" "$work/b/logits.npy"
code=0
"$work/lm" 2>"$work/out" || code=$?
[ "$code" -eq 1 ] || fail "an input without shape: exit code $code"
says "--pin"
# pins CODE PIN...: with the file of 2 rows of 17 tokens.
pins() {
  local code=0
  "$work/lm" --input "$work/tokens.npy" "${@:2}" >"$work/out" 2>&1 || code=$?
  [ "$code" -eq "$1" ] || fail "${*:2}: exit code $code, expected $1"
}
pins 0 --pin B=2 --pin T=3 --pin T=17
pins 1 --pin t=17
says "pin t: the model has no such symbol; it has: B, T"
pins 1 --pin B=2 --pin T=16
says "dimension 1 of input 'tokens' must be 16, found 17"

# An input is one line of the help, whatever it is called.
printf '%s\n' 'model m (float[2] "a\nb") => (float[2] y) { y = kv.relu("a\nb") }' >"$work/odd.kv"
expect 0 build "$work/odd.kv" --exe -o "$work/odd"
"$work/odd" --help >"$work/out"
says 'input   a\x0ab               float[2]'

# Weights in a file of their own, found beside the executable; a wrong one is noticed.
mkdir "$work/w"
expect 0 build models/lm.kv -D preset=small --exe --weights "$work/w/lm.safetensors" -o "$work/w/lm"
[ "$(stat -c %s "$work/w/lm")" -lt 1000000 ] || fail "the executable holds the weights all the same"
(cd / && "$work/w/lm" --input "$work/tokens.npy" -o "$work/b" >/dev/null)
same "$work/a/logits.npy" "$work/b/logits.npy"
expect 0 build models/lm.kv -D preset=small --seed 7 --exe --weights "$work/other.safetensors" -o "$work/w/other"
code=0
"$work/w/other" --input "$work/tokens.npy" --weights "$work/w/lm.safetensors" >"$work/out" 2>&1 || code=$?
[ "$code" -eq 1 ] || fail "weights of another seed: exit code $code"
says "not the file that was written with the model"
code=0
"$work/lm" --input "$work/tokens.npy" --weights "$work/w/lm.safetensors" >"$work/out" 2>&1 || code=$?
[ "$code" -eq 1 ] || fail "weights for a model that has its own: exit code $code"
says "has its own inside"
echo 'model twice (float[N] x) => (float[N] y) { y = x + x }' >"$work/twice.kv"
expect 0 build "$work/twice.kv" --exe --weights "$work/w/none.safetensors" -o "$work/w/twice"
"$work/w/twice" --pin N=4 >"$work/out" 2>&1 || fail "a model without weights, built with a file of them"
mv "$work/w/lm.safetensors" "$work/w/gone"
code=0
"$work/w/lm" --input "$work/tokens.npy" >"$work/out" 2>&1 || code=$?
[ "$code" -eq 1 ] || fail "without its weights: exit code $code"

# Equal bytes from different folders, and under other names of files; nothing is taken from a cache.
uncached() { KVASIR_CACHE=off expect "$@"; }
for form in -c --static --shared --exe; do
  mkdir -p "$work/x$form/deep" "$work/y$form"
  uncached 0 build models/mlp.kv $form -o "$work/x$form/deep/mlp.out"
  cp models/mlp.kv "$work/y$form/mlp.kv"
  (cd "$work/y$form" && KVASIR_CACHE=off "$KVASIR" build mlp.kv $form -o mlp.out) || fail "build $form in another folder"
  same "$work/x$form/deep/mlp.out" "$work/y$form/mlp.out"
  grep -aqF "$work" "$work/y$form/mlp.out" && fail "$form: the folder's name is in the file"
done
same "$work/x-c/deep/mlp.h" "$work/y-c/mlp.h"

# A link stays one, and what it leads to is written.
cp "$work/x--exe/deep/mlp.out" "$work/mlp"
ln -s mlp "$work/link"
ln -s /dev/null "$work/null"
for name in link null; do
  expect 0 build models/mlp.kv -D d=16 --exe -o "$work/$name"
  [ -L "$work/$name" ] || fail "build -o replaces the link $name"
done
cmp -s "$work/x--exe/deep/mlp.out" "$work/mlp" && fail "not written through the link"
"$work/link" --help >"$work/out" || fail "an executable written through a link"

# Objects: own names only.
nm -g --defined-only "$work/x-c/deep/mlp.out" | awk '{ print $3 }' | sort >"$work/out"
printf '%s\n' mlp_artifact mlp_create mlp_destroy mlp_error mlp_forward mlp_forward_arena | cmp -s - "$work/out" ||
  fail "symbols of an object"
expect 0 build models/mlp.kv -c --prefix other --train -o "$work/other.o"
nm -g --defined-only "$work/other.o" >"$work/out"
says "other_train_step"

# The header is C and C++ by itself.
printf '#include "mlp.h"\nint main(void) { mlp_dims d = {2, 3}; return mlp_forward_logits_bytes(&d) != 2 * 3 * 256 * 4; }\n' \
  >"$work/use.c"
cc -std=c99 -Wall -Wextra -Werror -pedantic -I "$work/x-c/deep" -o "$work/use" "$work/use.c" && "$work/use" || fail "the header in C"
if command -v c++ >/dev/null; then
  c++ -x c++ -Wall -Werror -I "$work/x-c/deep" -fsyntax-only "$work/use.c" || fail "the header in C++"
fi

# So it is with any names: they become distinct members, which are no words of either language, and end no comment.
cat >"$work/names.onnx" <<'ONNX'
<ir_version: 8, opset_import: ["" : 17]>
"n */ int injected; /* m" (float[N] "a/b:0", float[N] "a_b_0", float["not"] "co-await", float[N] x, float[N] "NULL")
  => (float[N] "a.b.0", float["not"] "_Bool", float[N] x, float[N] "typename") {
  "a.b.0" = Add("a/b:0", "a_b_0")
  "_Bool" = Neg("co-await")
  "typename" = Neg("NULL")
}
ONNX
expect 0 build "$work/names.onnx" -c -o "$work/names.o"
cat >"$work/names.c" <<'C'
#include "names.h"
int injected(void) { return 0; }
int main(void) {
  names_dims d = {.N = 2, .not_ = 3};
  names_forward_in in = {.a_b_0 = 0, .a_b_0_2 = 0, .co_await_ = 0, .x = 0, .NULL_ = 0};
  names_forward_out out = {.a_b_0_3 = 0, ._Bool_ = 0, .x_2 = 0, .typename_ = 0};
  (void)in, (void)out;
  return names_forward_x_2_bytes(&d) + names_forward__Bool__bytes(&d) != 8 + 12;
}
C
for compiler in "cc -std=c17" "cc -x c++ -std=c++20"; do
  $compiler -Wall -Wextra -Werror -pedantic -I "$work" -fsyntax-only "$work/names.c" >"$work/out" 2>&1 || fail "names with $compiler"
done

# Sizes divide as in the model: remainders have the divisor's sign, and nothing divides by 0.
cat >"$work/padded.kv" <<'KV'
padded (float[T] x, float[N * T] z) => (float[T + mod(-T, 4)] y, float[floordiv(N, T)] w) {
  y = kv.pad <before = [0], after = [mod(-T, 4)]> (x)
  w = kv.expand <shape = [floordiv(N, T)]> (kv.reduce_sum <axes = [0], keepdims = false> (z))
}
KV
expect 0 build "$work/padded.kv" -c -o "$work/padded.o"
cat >"$work/use.c" <<'C'
#include "mlp.h"
#include "padded.h"
int main(void) {
  padded_dims d = {.T = 5, .N = 7}, none = {.T = 0, .N = 7};
  return padded_forward_y_bytes(&d) != 8 * 4 || padded_forward_w_bytes(&d) != 4 || padded_forward_w_bytes(&none) != 0;
}
C
cc -std=c99 -Wall -Wextra -Werror -pedantic -I "$work" -I "$work/x-c/deep" -o "$work/use" "$work/use.c" && "$work/use" ||
  fail "sizes of padded rows in the header"

# No instruction above the level that was asked for.
if command -v objdump >/dev/null; then
  for level in x86-64-v2 x86-64-v3; do
    expect 0 build models/lm.kv -D preset=small -c --target $level -o "$work/$level.o"
    objdump -d "$work/$level.o" | cut -f3- >"$work/$level.s"
    grep -qE '^(mulps|vfmadd|vmulps)' "$work/$level.s" || fail "$level: no arithmetic found"
    grep -m1 -E '%zmm|\{%k|%[xy]mm(1[6-9]|2[0-9]|3[01])' "$work/$level.s" && fail "$level has AVX-512 instructions"
  done
  grep -m1 -E '%ymm|^v[a-z]' "$work/x86-64-v2.s" && fail "x86-64-v2 has AVX instructions"
fi

# The graph is prepared for the CPU that is built for: a panel has two vectors of filters, of 16 lanes or 4.
cat >"$work/conv.kv" <<'KV'
main (float[1, 32, 9, 9] x) => (float[1, 32, 9, 9] y) {
  w = kv.reshape <shape = [32, 32, 5, 5]> (kv.iota <shape = [25600], dtype = float> ())
  y = kv.conv <pads = [2, 2, 2, 2]> (x, w)
}
KV
for target in "x86-64-v4:float[1, 5, 5, 32, 32]" "x86-64-v2:float[4, 5, 5, 32, 8]"; do
  expect 0 build "$work/conv.kv" --emit=ir --target "${target%%:*}" -o "$work/conv.txt"
  grep -F "${target#*:}" "$work/conv.txt" >/dev/null || fail "filters for ${target%%:*}"
done

# The lowest level lacks fused multiply-add and half floats; the numbers are the same to rounding.
mkdir "$work/v2"
expect 0 build models/lm.kv -D preset=small --exe --target x86-64-v2 -o "$work/lm-v2"
"$work/lm-v2" --input "$work/tokens.npy" -o "$work/v2" >/dev/null
close "$work/a/logits.npy" "$work/v2/logits.npy" 2e-5 || fail "x86-64-v2 gives other numbers"
printf '%s\n' 'model half (float16[N] x, double[N] z) => (float16[N] y, double[N] w) {' '  y = kv.exp(x)' \
  '  w = kv.erf(kv.tanh(kv.exp(z)))' '}' >"$work/half.kv"
expect 0 build "$work/half.kv" --exe --target x86-64-v2 -o "$work/half"
"$work/half" --pin N=100 >"$work/half.out" || fail "functions of libm"
expect 0 run "$work/half.kv" --pin N=100
cmp -s "$work/out" "$work/half.out" || fail "halves and doubles on x86-64-v2"

# Products round twice there, in place of FMAs in double.
echo 'model product (float[64, 64] a, float[64, 64] b) => (float[64, 64] y) { y = kv.matmul (a, b) }' >"$work/product.kv"
expect 0 build "$work/product.kv" --emit=asm --target x86-64-v2 -o "$work/product.s"
grep -F mulps "$work/product.s" >/dev/null || fail "a product for x86-64-v2 without mulps"
grep -F cvtps2pd "$work/product.s" >/dev/null && fail "a product for x86-64-v2 goes through double"

# A program says what its CPU lacks. No CPU has both AMX and SSE4a.
refused=0
for cpu in sapphirerapids znver4; do
  expect 0 build models/mlp.kv --pin B=1 --pin T=4 --exe --target $cpu -o "$work/$cpu"
  "$work/$cpu" >"$work/out" 2>"$work/err" && continue
  grep -F "does not run on this machine, which has no " "$work/err" >/dev/null || fail "$cpu: no reason"
  refused=$((refused + 1))
done
[ $refused != 0 ] || fail "no program is refused"

# Products of bytes, in vectors whose instruction AVX-VNNI encodes: not every CPU with AVX-512 VNNI has that.
echo 'model bytes (uint8[32, 64] x, int8[64, 24] w) => (int32[32, 24] y) { y = kv.matmul <to = int32> (x, w) }' >"$work/bytes.kv"
expect 0 run "$work/bytes.kv"
mv "$work/out" "$work/bytes.out"
for cpu in alderlake znver5; do
  expect 0 build "$work/bytes.kv" --exe --target $cpu -o "$work/$cpu"
  "$work/$cpu" >"$work/out" 2>"$work/err" && cmp -s "$work/out" "$work/bytes.out" && continue
  grep -F "does not run on this machine, which has no " "$work/err" >/dev/null || fail "$cpu: no reason"
done

# Texts, alone and for several targets.
for kind in ir kernel llvm asm header plan; do
  expect 0 build models/mlp.kv --emit=$kind -o "$work/text"
  [ -s "$work/text" ] || fail "--emit=$kind is empty"
done
expect 0 build models/mlp.kv --emit=plan,header -c -o "$work/all.o"
grep -q 'temporaries, peak' "$work/all.plan" && grep -q 'mlp_forward_in' "$work/all.h" || fail "texts beside an object"
expect 0 build models/mlp.kv --emit=ptx --target sm_80,sm_90a -o "$work/gpu.ptx"
grep -q 'target sm_80' "$work/gpu.sm_80.ptx" && grep -q 'target sm_90a' "$work/gpu.sm_90a.ptx" || fail "PTX for two targets"
expect 0 build models/mlp.kv --target sm_80 -c -o "$work/gpu.o"
grep -aq "visible .entry" "$work/gpu.o" || fail "PTX in an object"

# Code for several GPUs in one file, equal in every folder; the constants are there once.
for folder in a b; do
  uncached 0 build models/mlp.kv --target sm_80,sm_90a -c -o "$work/$folder/both.o"
done
same "$work/a/both.o" "$work/b/both.o"
[ "$(grep -ac '^.target sm_80' "$work/a/both.o")" = 1 ] && [ "$(grep -ac '^.target sm_90a' "$work/a/both.o")" = 1 ] ||
  fail "PTX for two targets in an object"
sizes=($(stat -c %s "$work/gpu.o" "$work/a/both.o"))
expect 0 build models/mlp.kv --target sm_80 --emit=ptx -o "$work/alone.ptx"
[ "${sizes[1]}" -lt $((sizes[0] + 8 * $(stat -c %s "$work/alone.ptx"))) ] || fail "parameters are in the object twice"

# Tables of a GPU's code are complete: with the simulator linked in they give the CPU's numbers.
libraries=$(dirname "$KVASIR")
if [ -f "$libraries/libkva_runtime.a" ] && ! grep -aq __asan_init "$libraries/libkva_runtime.a"; then
  mkdir "$work/cpu"
  cc -O1 -I . -o "$work/load" tests/aot/load.c -ldl
  # As in deployed runtimes, there are no functions of libraries.
  cc -shared -fPIC -I . -D_GNU_SOURCE -DKVA_DEPLOYED=1 -o "$work/gpu.so" "$work/gpu.o" runtime/call_external.c \
    "$libraries/libkva_runtime.a" "$libraries/libkva_base.a" -lm -pthread
  DEVICE=ptxsim "$work/load" "$work/gpu.so" mlp "$work/tokens.raw" "$work/gpu.raw" $((2 * 17 * 256 * 4)) 2 17 ||
    fail "GPU code from an object"
  expect 0 run models/mlp.kv --input "$work/tokens.npy" -o "$work/cpu"
  head -c 128 "$work/cpu/logits.npy" | cat - "$work/gpu.raw" >"$work/gpu.npy"
  close "$work/cpu/logits.npy" "$work/gpu.npy" 2e-5 || fail "GPU code from an object gives other numbers"
fi

# Machine code by ptxas, where there is one: in files of its own, and beside the PTX.
if command -v ptxas >/dev/null || [ -x /usr/local/cuda/bin/ptxas ]; then
  for folder in a b; do
    uncached 0 build models/mlp.kv --emit=cubin --target sm_80,sm_90a -o "$work/$folder/gpu.cubin"
    uncached 0 build models/mlp.kv --cubin --target sm_80,sm_90a -c -o "$work/$folder/cubin.o"
  done
  for arch in sm_80 sm_90a; do
    [ "$(head -c 4 "$work/a/gpu.$arch.cubin" | tail -c 3)" = ELF ] || fail "--emit=cubin for $arch"
    same "$work/a/gpu.$arch.cubin" "$work/b/gpu.$arch.cubin"
  done
  same "$work/a/cubin.o" "$work/b/cubin.o"
  grep -aq '^.target sm_80' "$work/a/cubin.o" || fail "--cubin leaves the PTX out"
  python3 -c 'import sys
o, *cubins = (open(p, "rb").read() for p in sys.argv[1:])
assert all(c in o for c in cubins)' "$work/a/cubin.o" "$work"/a/gpu.sm_*.cubin || fail "--cubin"
fi

# What the machine lacks, and wrong usage.
code=0
PATH=/nowhere "$KVASIR" build models/mlp.kv --shared -o "$work/no.so" 2>"$work/out" || code=$?
[ "$code" -eq 3 ] || fail "without a compiler: exit code $code"
says "Install a C compiler"
code=0
KVASIR_PTXAS=/nowhere/ptxas "$KVASIR" build models/mlp.kv --emit=cubin --target sm_80 -o "$work/no.cubin" 2>"$work/out" || code=$?
[ "$code" -eq 3 ] || fail "without ptxas: exit code $code"
says "install the CUDA toolkit"
[ ! -e "$work/no.cubin" ] || fail "a cubin without ptxas"
PATH=/nowhere "$KVASIR" build models/mlp.kv -c -o "$work/alone.o" || fail "-c needs no compiler"
expect 3 build models/mlp.kv --exe --runtime "$work" -o "$work/no"
says "libkvasir-rt.a"
expect 2 build models/mlp.kv
expect 2 build models/mlp.kv -c --shared -o "$work/no"
expect 2 build models/mlp.kv --emit=binary -o "$work/no"
expect 2 build models/mlp.kv --prefix 1a -o "$work/no"
expect 2 build models/mlp.kv --prefix kva -o "$work/no"
expect 2 build models/mlp.kv --target sm_80,native -c -o "$work/no"
expect 2 build models/mlp.kv --cubin -c -o "$work/no"
says "--target sm_80"
expect 1 build models/mlp.kv --target z80 -c -o "$work/no"
says "x86-64-v3"
expect 1 build models/mlp.kv --target sparc-linux-gnu -c -o "$work/no"
[ ! -e "$work/no" ] || fail "a failed build left a file"
expect 1 build models/mlp.kv -c -o "$work/no.h"
says "the header would be written there"
for name in no.o no.h; do
  expect 1 build models/mlp.kv -c --weights "$work/$name" -o "$work/no.o"
  says "--weights $work/$name: another file"
done
expect 1 build models/mlp.kv -c --emit=ir,asm -o "$work/no.s"
says "the text of --emit=asm would be written there, too"
expect 1 build models/mlp.kv -c --target sm_80,sm_90a --emit=ptx --weights "$work/no.sm_90a.ptx" -o "$work/no.o"
says "no.sm_90a.ptx: another file"
[ ! -e "$work/no.s" ] && [ ! -e "$work/no.ir" ] && [ ! -e "$work/no.h" ] && [ ! -e "$work/no.o" ] || fail "a build with two files of one name left one"

# Builds for GPUs alone have the graph of GPUs: small updates share kernels.
expect 0 build models/mlp.kv --train --target sm_80 --emit=ptx -o "$work/gpu.ptx"
updates=$(awk '/\.entry/ { name = $3 } /\.param .*_param_[0-9]+,?$/ && name ~ /adamw/ { n[name]++ } END { for (k in n) if (n[k] > most) most = n[k]; print most + 0 }' "$work/gpu.ptx")
[ "$updates" -gt 12 ] || fail "every update of a GPU is a kernel of its own: $updates parameters at most"
