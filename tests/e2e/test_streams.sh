#!/usr/bin/env bash
# Standard streams of every verb and of built executables: output that cannot be written is exit 1 with a message, a
# reader that goes away causes no message, and no file gets the number of a closed descriptor.
. "$(dirname "$0")/support.sh"

small=(-D d=16 -D hidden=32 -D vocab=64)
run="${small[*]} --pin B=2 --pin T=5"
train="--steps 3 --eval-every 0"
printf '%s\n' 'Some text.' >"$work/text"
printf '%s\n' '.version 8.3' '.target sm_80' '.address_size 64' '.entry nothing() { ret; }' >"$work/nothing.ptx"
"$KVASIR" data "$work/text" -o "$work/text.tok" >"$work/out"
"$KVASIR" train models/mlp.kv "${small[@]}" --steps 1 --checkpoint "$work/weights" >"$work/out"
weights=$work/weights/step-0000000001.safetensors
lm="models/lm.kv -D vocab=257 -D ctx=16 -D layers=1 -D d=16"

relu_case "$work/case"

# Commands that print something: the help of every verb, and what the verbs are for.
"$KVASIR" --help >"$work/out"
mapfile -t commands < <(sed -n 's/^  \([a-z][a-z]*\) .*/\1 --help/p' "$work/out")
[ "${#commands[@]}" -ge 12 ] || fail "the overview lists ${#commands[@]} verbs"
commands+=(--help --version
  "run models/mlp.kv $run" "train models/mlp.kv ${small[*]} $train" "train models/mlp.kv ${small[*]} $train --json"
  "check models/mlp.kv" "show models/mlp.kv --stage=graph" "show models/mlp.kv --stage=ptx --arch sm_80" "opt --list"
  "data info $work/text.tok" "ops" "ptxsim $work/nothing.ptx" "doctor" "conform $work/case"
  "opt models/mlp.kv ${small[*]} --passes=fold" "data $work/text -o $work/again.tok" "data decode $work/text.tok"
  "generate $lm --prompt a --tokens 3" "eval $lm --data $work/text.tok" "experiment --list"
  "quantize models/mlp.kv ${small[*]} --weights $weights -o $work/packed.safetensors")
programs=("${commands[@]/#/$KVASIR }")
if command -v cc >/dev/null; then
  expect 0 build models/mlp.kv "${small[@]}" --exe -o "$work/model"
  expect 0 build models/mlp.kv "${small[@]}" --train --exe -o "$work/trainer"
  programs+=("$work/model --pin B=2 --pin T=5" "$work/model --help" "$work/trainer $train" "$work/trainer $train --json"
    "$work/trainer --help")
fi

gone() { # gone default|ignored PROGRAM...: standard output is a pipe that nobody reads; what SIGPIPE does
  python3 - "$@" <<'PY'
import os, subprocess, sys
read, write = os.pipe()
os.close(read)
result = subprocess.run(sys.argv[2:], stdout=write, stderr=subprocess.PIPE, restore_signals=sys.argv[1] == "default")
sys.stdout.write(result.stderr.decode())
sys.exit(result.returncode if result.returncode >= 0 else 128 - result.returncode)
PY
}

for text in "${programs[@]}"; do
  read -ra program <<<"$text"
  code=0
  "${program[@]}" >/dev/full 2>"$work/out" || code=$?
  [ "$code" -eq 1 ] || fail "exit code $code of $text >/dev/full"
  [ -s "$work/out" ] || fail "no message of $text >/dev/full"
  "${program[@]}" <&- >&- 2>&- || fail "$text with closed descriptors"
  code=0
  gone default "${program[@]}" >"$work/out" || code=$?
  expected=141
  [[ $text != *"$train"* && $text != *" generate $lm"* ]] || expected=4 # what ends by a signal: test_interrupt.sh
  [ "$code" -eq "$expected" ] && [ ! -s "$work/out" ] || fail "exit code $code of $text without a reader"
done

# The message names program and reason; an exit code that is not 0 stays.
"$KVASIR" --version 2>"$work/out" >/dev/full || true
says "kvasir: standard output is incomplete: No space left on device"
code=0
"$KVASIR" dance >/dev/full 2>"$work/out" || code=$?
[ "$code" -eq 2 ] || fail "exit code $code of a wrong verb"

# Verbs that print nothing write a file alone.
printf '{"step": 1, "loss": 1}\n' >"$work/metrics.jsonl"
for text in "export models/mlp.kv ${small[*]}" "build models/mlp.kv ${small[*]} -c" "report $work/metrics.jsonl"; do
  read -ra arguments <<<"$text"
  "$KVASIR" "${arguments[@]}" -o "$work/file.html" >"$work/out" || fail "$text"
  [ ! -s "$work/out" ] || fail "$text prints"
  expect 1 "${arguments[@]}" -o /dev/full
  [ -s "$work/out" ] || fail "no message of $text -o /dev/full"
done

# Where SIGPIPE is ignored the lost output is exit 1, without a message.
for text in --version ops "show models/mlp.kv --stage=ptx --arch sm_80"; do
  read -ra arguments <<<"$text"
  code=0
  gone ignored "$KVASIR" "${arguments[@]}" >"$work/out" || code=$?
  [ "$code" -eq 1 ] && [ ! -s "$work/out" ] || fail "exit code $code of $text without a reader, SIGPIPE ignored"
done

# Files that are written with closed descriptors hold what they should.
trainers=("$KVASIR train models/mlp.kv ${small[*]}")
[ ! -x "$work/trainer" ] || trainers+=("$work/trainer")
for trainer in "${trainers[@]}"; do
  rm -rf "$work/metrics" "$work/saved"
  $trainer --steps 3 --metrics "$work/metrics" --checkpoint "$work/saved" <&- >&- 2>&- || fail "training with closed descriptors"
  python3 -c 'import json, sys; assert [json.loads(l)["step"] for l in open(sys.argv[1])] == [1, 2, 3, 3]' "$work/metrics" ||
    fail "the metrics of $trainer"
  ls "$work/saved" >"$work/out"
  says step-0000000003.safetensors
done
mkdir "$work/open" "$work/closed"
read -ra run <<<"$run"
"$KVASIR" run models/mlp.kv "${run[@]}" -o "$work/open" >"$work/out"
"$KVASIR" run models/mlp.kv "${run[@]}" -o "$work/closed" <&- >&- 2>&- || fail "run with closed descriptors"
cmp "$work/open/logits.npy" "$work/closed/logits.npy" || fail "run with closed descriptors writes something else"
