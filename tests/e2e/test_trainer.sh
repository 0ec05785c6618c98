#!/usr/bin/env bash
# kvasir build --train --exe: the executable documents itself, needs libc and libm alone, and gives the bits of kvasir
# train, resumed too; examples/train.c trains by the C API.
. "$(dirname "$0")/support.sh"
command -v cc >/dev/null || { echo "SKIP: no C compiler to link with"; exit 77; }
small=(-D d=16 -D hidden=32 -D vocab=64)
expect 0 build models/mlp.kv "${small[@]}" --train --exe -o "$work/trainer"
ldd "$work/trainer" | grep -vE 'linux-vdso|ld-linux|libc\.so|libm\.so' && fail "the trainer needs more than libc and libm"

"$work/trainer" --help >"$work/out" || fail "--help"
for word in --data --steps --batch --accumulate --micro-batch --lr --schedule --warmup --final-lr --seed --threads \
  --eval-every --eval-batches --checkpoint --checkpoint-every --keep --resume --metrics --report --time-limit \
  "third token of a pair" "300 steps of 32 sequences" "passes of 32 sequences"; do says "$word"; done
code=0
"$work/trainer" --stepz 3 >"$work/out" 2>&1 || code=$?
[ "$code" -eq 2 ] || fail "exit code $code of a wrong option"
says "trainer: unknown option '--stepz'"

run=(--data ngram:pairs=40,length=48 --steps 40 --eval-every 15 --eval-batches 2 --checkpoint-every 10)
bits() { sed 's/"seconds": [^,]*//' "$1"; }
expect 0 train models/mlp.kv "${small[@]}" "${run[@]}" --checkpoint "$work/a" --metrics "$work/a.jsonl"
"$work/trainer" "${run[@]}" --checkpoint "$work/b" --metrics "$work/b.jsonl" --report "$work/b.html" >"$work/out" 2>&1 ||
  fail "the trainer"
says "step 40/40"
says "report: "
grep -q "</html>" "$work/b.html" || fail "the report is cut off"
last=step-0000000040.safetensors
cmp "$work/a/$last" "$work/b/$last" || fail "the trainer's bits differ from those of kvasir train"
cmp <(bits "$work/a.jsonl") <(bits "$work/b.jsonl") || fail "the trainer's metrics differ"
mkdir "$work/c"
cp "$work/b/step-0000000030.safetensors" "$work/c"
"$work/trainer" "${run[@]}" --checkpoint "$work/c" --resume --threads 3 >"$work/out" 2>&1 || fail "--resume"
says "resumed at step 30 from"
cmp "$work/a/$last" "$work/c/$last" || fail "a resumed trainer differs"

# Compiled for passes of 32: larger batches take several, and only multiples do.
"$work/trainer" "${run[@]}" --batch 64 --checkpoint "$work/d" >"$work/out" 2>&1 || fail "--batch 64"
expect 0 train models/mlp.kv "${small[@]}" "${run[@]}" --batch 32 --accumulate 2 --checkpoint "$work/e"
cmp "$work/d/$last" "$work/e/$last" || fail "64 on the trainer differs from 2 x 32"
code=0
"$work/trainer" "${run[@]}" --batch 40 >"$work/out" 2>&1 || code=$?
[ "$code" -eq 1 ] || fail "--batch 40: exit code $code"
says "a batch of 40 rows cannot be cut into passes of 32, which the model was compiled for"

# The C API.
[ "$(wc -l <examples/train.c)" -le 60 ] || fail "examples/train.c is long"
expect 0 build models/mlp.kv --train -c -o "$work/mlp.o"
cc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -I "$work" -I . examples/train.c "$work/mlp.o" \
  "$(dirname "$KVASIR")/libkvasir-rt.a" -lm -lpthread -o "$work/train" >"$work/out" 2>&1 || fail "building examples/train.c"
"$work/train" "$work/train.safetensors" >"$work/out" 2>&1 || fail "examples/train.c"
says "step 60: loss 0.0"
says "loaded again"
