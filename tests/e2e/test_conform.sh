#!/usr/bin/env bash
# The official ONNX suite of the newest opset, compiled: every case does what tests/onnx/expected.txt says.
. "$(dirname "$0")/support.sh"
. "$(dirname "$0")/suite_28.sh"
expected=tests/onnx/expected.txt

# Groups of cases, by folder and first letter; the parts of a run share them. Every case is in one.
groups=(/simple/) # real/ names models, which are elsewhere
for letter in {a..z}; do groups+=("/node/test_$letter"); done
[ -z "$(ls "$suite" | grep -vxE 'node|simple|real')" ] && [ -z "$(ls "$suite/node" | grep -v '^test_[a-z]')" ] || fail "other names"
# Sanitizers see a share of the cases, which they slow down.
[ -z "${KVASIR_SANITIZED:-}" ] || groups=(/node/test_r)

for i in "${!groups[@]}"; do
  in_part "$i" || continue
  compgen -G "$suite${groups[i]}*" >/dev/null || continue # no case begins with this letter
  expect 0 conform "$suite" --filter "${groups[i]}" --expected "$expected"
  tail -1 "$work/out"
done
in_part 1 || exit 0

# A case beside the list, and one that is listed but passes, are unexpected.
printf 'skip test_relu it passes\n' >"$work/wrong.txt"
expect 1 conform "$suite" --filter node/test_relu --expected "$work/wrong.txt"
says "UNEXPECTED pass"
expect 1 conform "$suite" --filter node/test_dft_inverse --expected "$work/wrong.txt"
says "UNEXPECTED FAIL"
printf 'pass test_relu\n' >"$work/wrong.txt"
expect 1 conform "$suite" --filter node/test_relu --expected "$work/wrong.txt"
says 'line 1: expected `skip NAME reason`'

# A folder without cases is an error also beside others.
expect 2 conform "$suite/node/test_relu" "$work/nowhere"
says "$work/nowhere: no case found there"
expect 2 conform "$suite/node/test_relu" --filter nothing
says "no case found with --filter"

# A case is one line, whatever it is called.
odd=$work/odd$'\n'name
relu_case "$odd"
cp "$odd/test_data_set_0/input_0.pb" "$odd/test_data_set_0/output_0.pb"
expect 1 conform "$odd"
grep -qx "FAIL $work/odd.x0aname: .*" "$work/out" || fail "a name breaks the line"

# What a list says of no case is told, but not of one that a filter leaves out.
printf '%s\n' 'FAIL test_mispelt it is' >"$work/wrong.txt"
expect 1 conform "$odd" --expected "$work/wrong.txt"
says "wrong.txt lists test_mispelt, which is no case here"
expect 1 conform "$odd" --expected "$work/wrong.txt" --filter odd
! grep -q mispelt "$work/out" || fail "a case outside of the filter is missed"

# The outputs of several cases have the same names.
expect 2 conform "$suite" --filter node/test_r -o "$work/outputs"
says "--output is for one case"
[ ! -e "$work/outputs" ] || fail "a refused command made a folder"
expect 0 conform "$suite/node/test_relu" -o "$work/outputs"
[ -s "$work/outputs/output_0.pb" ] || fail "no output of a case"
