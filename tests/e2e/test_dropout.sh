#!/usr/bin/env bash
# Dropout: random in the training step, by seed and step, the identity elsewhere; a model with it still learns.
. "$(dirname "$0")/support.sh"

sed 's/(kv.relu(x))/(kv.dropout <ratio = 0.25> (kv.relu(x)))/' models/mlp.kv >"$work/mlp.kv"
grep -q dropout "$work/mlp.kv" || fail "the model has no dropout"

expect 0 show "$work/mlp.kv" --train --stage=graph
[ "$(grep -c random_uniform "$work/out")" -eq 1 ] || fail "expected one random node, in train_step"
[ "$(grep -c 'kv.dropout' "$work/out")" -eq 2 ] || fail "expected dropout in main and eval"

losses() { # losses NAME ARGUMENTS...: the losses of a run's steps
  expect 0 train "$work/mlp.kv" --steps 60 --eval-every 0 --metrics "$work/$1.jsonl" "${@:2}"
  sed 's/.*"loss": \([^,]*\),.*/\1/' "$work/$1.jsonl" >"$work/$1"
}
losses one --threads 1
losses two --threads 2
losses other --seed 1
cmp "$work/one" "$work/two" || fail "results depend on the number of threads"
! cmp -s "$work/one" "$work/other" || fail "the seed changes nothing"
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < 0.7 * first) }' "$work/one" || fail "the loss does not fall"

# In several micro-batches every one has its own; a resumed run goes on with them.
passes() { expect 0 train "$work/mlp.kv" --steps 12 --eval-every 0 --checkpoint "$work/$1" --checkpoint-every 5 "${@:2}"; }
passes four --batch 8 --accumulate 4 --threads 1
passes whole --batch 32 --micro-batch 8 --threads 2
cmp "$work"/four/*12.safetensors "$work"/whole/*12.safetensors || fail "4 x 8 differs from 32 in micro-batches of 8"
rm "$work"/whole/*12.safetensors
passes whole --batch 32 --micro-batch 8 --resume
says "resumed at step 10"
cmp "$work"/four/*12.safetensors "$work"/whole/*12.safetensors || fail "a resumed run differs"

# A run whose steps were one micro-batch goes on with several, and back: all count what has drawn.
passes once --batch 8
rm "$work"/once/*12.safetensors
passes once --batch 8 --accumulate 2 --resume
says "resumed at step 10"
rm "$work"/once/*12.safetensors
passes once --batch 8 --resume
passes straight --batch 8
cmp "$work"/once/*12.safetensors "$work"/straight/*12.safetensors || fail "a run that went on otherwise from its step differs"

# Decoding has none.
size=(-D vocab=257 -D d=16 -D heads=1 -D ffn=16 -D layers=1 -D ctx=32)
for dropout in 0 0.1; do
  expect 0 generate models/lm.kv "${size[@]}" -D dropout=$dropout --prompt Kv --tokens 6 --temperature 0
  cp "$work/out" "$work/dropout.$dropout"
done
cmp "$work/dropout.0" "$work/dropout.0.1" || fail "decoding drops"

sed -i 's/ratio = 0.25/ratio = 1/' "$work/mlp.kv"
expect 1 check "$work/mlp.kv"
says "expected 0 <= ratio < 1, found 1"
