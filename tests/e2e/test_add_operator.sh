#!/usr/bin/env bash
# An operator added by the steps of ops/README.md, in a copy of the sources and in the files that the steps name: mish.
# It fuses, has a gradient, is exported and imported again, is narrow under --precision bf16 where silu is, and runs on
# cpu and ptxsim. A row without its entry for ONNX, or without a gradient and the reason for it, does not compile.
# Objects that include no edited file are those of the build that is tested.
. "$(dirname "$0")/support.sh"
[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: the tool that it builds has no sanitizers"; exit 77; }
for tool in cmake ninja cc; do
  command -v "$tool" >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
# Paths under $work do not enter the compiler cache's keys.
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=true
mkdir "$work/tree"
built=$(cd "$(dirname "$KVASIR")" && pwd)
[ -f "$built/build.ninja" ] || { echo "SKIP: $built was not built by ninja"; exit 77; }
cp -r CMakeLists.txt CMakePresets.json LICENSE codegen examples frontend ir models ops passes runtime tests tools "$work/tree"
cd "$work/tree"

# edit FILE SED-SCRIPT: the step must be in the README, and change something.
edited=()
edit() {
  local family; family=$(sed "s/_[a-z]*\.c$/_*.c/" <<<"$1")
  grep -qF -e "${1#ops/}" -e "$family" ops/README.md || fail "ops/README.md does not name $1"
  sed -i.before "$2" "$1"
  ! cmp -s "$1" "$1.before" || fail "the step changes nothing in $1"
  edited+=("$1")
}

# ---- the steps, but for the entry of the export
edit ops/ops.def '/^OP(silu,/a OP(mish, 1, 1, 1, ACT | KVA_FLOAT, PLAIN, RULE, ELEMENT, 16)'
cat >ops/mish.c <<'C'
/* mish: y = x tanh(softplus(x)). Gradient: with t = tanh(softplus(x)), g (t + x (1 - t^2) sigmoid(x)).
 * Tolerance 16: the roundings of softplus, a hyperbolic tangent, a product. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(mish)

static double mish_f(double x) {
  return x * tanh((x < 0 ? 0 : x) + log1p(exp(-fabs(x))));
}
KVA_UNARY_REF(mish, mish_f, NULL)

static kva_value *mish_slope(kva_builder *b, kva_value *x) {
  kva_value *t = kva_build1(b, KVA_OP_tanh, kva_build1(b, KVA_OP_softplus, x));
  kva_value *rest = kva_mul(b, kva_sub(b, KVA_NUM(1), kva_mul(b, t, t)), kva_build1(b, KVA_OP_sigmoid, x));
  return kva_add(b, t, kva_mul(b, x, rest));
}
KVA_UNARY_VJP(mish, kva_mul(b, g, mish_slope(b, x)))

static kva_kval lower_mish(kva_kb *b, kva_kval x) {
  kva_kval decay = kva_k1(b, KVA_K_exp, kva_k1(b, KVA_K_neg, kva_k1(b, KVA_K_abs, x)));
  kva_kval softplus = kva_k2(b, KVA_K_add, kva_k2(b, KVA_K_max, x, KVA_KNUM(0)), kva_k1(b, KVA_K_log1p, decay));
  return kva_k2(b, KVA_K_mul, x, kva_k1(b, KVA_K_tanh, softplus));
}
KVA_UNARY_LOWER(mish, lower_mish(b, x))
C
edit tools/verify/cases_core.c '/^    UNARY(silu,/a UNARY(mish, -6, 6), {.op = KVA_OP_mish, .in = {{"1", -3, 3}}}, {.op = KVA_OP_mish, .in = {{"0,3"}}},'
edit frontend/onnx_ops.def 's/^ONNX_OP(Mish, .*/ONNX_OP(Mish, 18, MAX, 1, 1, 1, unary, KVA_OP_mish)/'
edit frontend/onnx_ops_activation.c '/^kva_status kva_onnx_mish/,/^}/d'

# ---- what does not compile
cmake -S . -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0 >"$work/out" 2>&1 || fail "cmake"
build() { ninja -C "$work/build" "$@" >"$work/log" 2>&1 || { grep -E -A8 "error|FAILED" "$work/log" >"$work/out"; return 1; }; }
object() { echo "CMakeFiles/kva_${1%%/*}.dir/$1.o"; }
! build "$(object frontend/onnx_export_ops.c)" || fail "compiles without an entry in onnx_export.def"
says row_of_mish
edit frontend/onnx_export.def '/^EXPORT(silu,/a EXPORT(mish, NODE("Mish"))'
sed -i.whole '/^OP(cumprod,/s/NONE("[^"]*")/NONE/' ops/ops.def
! build "$(object ops/ops.c)" || fail "compiles without a reason why there is no gradient"
mv ops/ops.def.whole ops/ops.def

# ---- what it does
# The tool's objects that depend on an edited file, from their folder.
changed() {
  ninja -C "$built" -t deps | awk -v files="/($(IFS="|" && echo "${edited[*]}"))$" '
    /^[^ ]/ { object = substr($1, 1, length($1) - 1) }
    object ~ "^CMakeFiles/kva_" && $1 ~ files { print object }' | sort -u
}
mapfile -t objects < <(changed)
[ ${#objects[@]} -gt 100 ] || fail "only ${#objects[@]} objects depend on ${edited[*]}"
objects+=("$(object ops/mish.c)")
build "${objects[@]}" || fail "the build"
link=$(ninja -C "$built" -t commands -s kvasir)
for object in "${objects[@]}"; do link=${link/ $object / }; done
KVASIR=$work/kvasir
(cd "$built" && eval "${link/ -o kvasir / ${objects[*]/#/$work/build/} -o $KVASIR }") >"$work/out" 2>&1 || fail "the link"
expect 0 ops --verify --op mish
says mish
expect 0 ops --verify --op mish --device ptxsim --target sm_80
expect 0 ops --json
python3 - "$work/out" <<'PY' || fail "kvasir ops says something else of mish than of silu"
import json, sys
rows = {row["name"]: row for row in json.load(open(sys.argv[1]))}
drop = "name", "tolerance"
mish, silu = ({k: v for k, v in rows[name].items() if k not in drop} for name in ("mish", "silu"))
assert mish == silu, (mish, silu)
PY

for name in mish silu; do
  sed "s/kv\.relu/kv.$name/" models/mlp.kv >"$work/$name.kv"
  for precision in f32 bf16; do
    expect 0 show "$work/$name.kv" --precision $precision --stage=fused
    sed 's/mish/silu/g' "$work/out" >"$work/$name.$precision"
  done
done
cmp -s "$work/mish.f32" "$work/silu.f32" || fail "mish fuses otherwise than silu"
cmp -s "$work/mish.bf16" "$work/silu.bf16" || fail "bf16 casts mish otherwise than silu"
! cmp -s "$work/mish.bf16" "$work/mish.f32" || fail "bf16 changes nothing"
grep -q '^    .*kv.silu' "$work/mish.f32" || fail "mish is in no kernel"
expect 0 train "$work/mish.kv" --steps 2 --batch 4 --precision bf16

expect 0 export "$work/mish.kv" -o "$work/mish.onnx"
expect 0 check "$work/mish.onnx"
says Mish
expect 0 show "$work/mish.onnx" --stage=source
grep -q ' = kv.mish (' "$work/out" || fail "the exported activation does not come back as mish"
