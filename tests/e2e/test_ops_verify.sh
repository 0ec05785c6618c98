#!/usr/bin/env bash
# kvasir ops --verify: the table of one operator, its counts, JSON, exit codes.
. "$(dirname "$0")/support.sh"

expect 0 ops --verify --op softmax
grep -qE '^operator +compiled, error +gradient, error +compiled gradient +types$' "$work/out" || fail "no heading"
row=$(grep -E '^softmax ' "$work/out") || fail "no row"
read -r _ compiled error gradients gradient_error backward backward_error types <<<"$row"
[ "${compiled%/*}" = "${compiled#*/}" ] && [ "${compiled%/*}" -ge 20 ] || fail "compiled cases: $compiled"
[ "${gradients%/*}" = "${gradients#*/}" ] && [ "${gradients%/*}" -ge 3 ] || fail "gradient cases: $gradients"
[ "$backward" = "$gradients" ] || fail "compiled gradients: $backward"
[ "$types" = "f32 f64 f16 bf16" ] || fail "types: $types"
awk -v e="$error" -v g="$gradient_error" -v b="$backward_error" \
  'BEGIN { exit !(e > 0 && e <= 1 && g > 0 && g <= 1e-6 && b > 0 && b <= 1) }' ||
  fail "errors: $error $gradient_error $backward_error"
[ "$(tail -n 1 "$work/out")" = "$((${compiled%/*} + 2 * ${gradients%/*})) passed, 0 failed, 0 skipped" ] || fail "closing line"
[ "$(grep -cE '^[a-z_]+ +[0-9]+/' "$work/out")" = 1 ] || fail "more than one operator"

expect 0 ops --verify --op add --json --threads 1 --random 1
python3 - "$work/out" <<'PY' || fail "ops --verify --json"
import json, sys
report = json.load(open(sys.argv[1]))
(add,) = report["operators"]
assert add["name"] == "add" and add["types"] == "f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64", add
assert add["compiled"] == add["compiled_passed"] > 50 and add["compiled_error"] <= 1, add
assert report["target"] == "host" and report["launches"] == 0, report
assert add["compiled_gradients"] == add["compiled_gradients_passed"] == add["gradients"], add
assert report["passed"] == add["compiled"] + 2 * add["gradients"] and report["failed"] == report["skipped"] == 0, report
PY

expect 0 ops --verify --op state_read
says "0 passed, 0 failed, 1 skipped"

# A GPU's code on the simulator; nothing runs elsewhere.
for arch in sm_80 sm_90a; do
  expect 0 ops --verify --op rms_norm --random 1 --device ptxsim --target "$arch"
  grep -qE "^[1-9][0-9]+ kernels ran on ptxsim \($arch\); 0 cases had no code, 0 nodes ran on the CPU instead$" "$work/out" ||
    fail "no line about the device"
  grep -qE '^[1-9][0-9]+ passed, 0 failed, 0 skipped$' "$work/out" || fail "on $arch"
done
expect 0 ops --verify --op share --random 0 --device ptxsim
says "kv.share <> float[N=7,3]: skipped: its gradient exchanges values between processes, and ptxsim has one"
says " passed, 0 failed, 4 skipped"
expect 2 ops --verify --op add --target sm_80
says "--target sm_80 is for --device ptxsim"
expect 2 ops --verify --op add --device cuda
says "tools/gpu-check"
expect 2 ops --device ptxsim
says "are for --verify"

expect 2 ops --verify --op nothing
says "no operator is called 'nothing'"
expect 2 ops --verify --random -1
expect 2 ops --op add
says "--verify"

expect 0 ops
says "kvasir ops --verify"
