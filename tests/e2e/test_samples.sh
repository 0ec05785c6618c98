#!/usr/bin/env bash
# kvasir train --sample-every: texts of the model as it is at that step, which are those of generate; training keeps its bits;
# what cannot be sampled is refused before the first step.
. "$(dirname "$0")/support.sh"

for _ in $(seq 400); do printf 'the cat sat on the mat. '; done >"$work/text"
expect 0 data "$work/text" -o "$work/text.tok"
size=(-D vocab=257 -D d=32 -D ffn=48 -D heads=2 -D layers=1)
train() { # train CODE ARGUMENTS...
  expect "$1" train models/lm.kv "${size[@]}" -D lr=1e-2 --data "tokens:$work/text.tok,length=48" --seed 3 "${@:2}"
}
train 0 --steps 80 --checkpoint "$work/plain"
train 0 --steps 80 --checkpoint "$work/sampled" --checkpoint-every 40 --sample-every 40 --sample-prompt 'the cat ' \
  --samples "$work/samples.jsonl"
cmp -s "$work/plain/step-0000000080.safetensors" "$work/sampled/step-0000000080.safetensors" ||
  fail "samples change the training"
for step in 40 80; do
  expect 0 generate models/lm.kv "${size[@]}" --weights "$work/sampled/step-00000000$step.safetensors" --prompt 'the cat ' \
    --tokens 64 --temperature 0.8 --seed 3 --json
  mv "$work/out" "$work/at$step"
done
python3 - "$work" <<'PY' || fail "samples: $(cat "$work/samples.jsonl")"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/samples.jsonl")]
assert [r["step"] for r in rows] == [40, 80], rows
for r in rows:
    assert r["prompt"] == "the cat " and r["sample"] == json.load(open("%s/at%d" % (sys.argv[1], r["step"])))["text"], r
PY

# On standard output, each variant its own; a resumed run goes on in the file.
train 0 --steps 2 --sample-every 1 --variant 'a:shift=false' --variant 'b'
[ "$(grep -c '^{"step":[12],"prompt":"\\n","sample":"' "$work/out")" = 4 ] || fail "not two texts of two variants"
train 0 --steps 120 --checkpoint "$work/sampled" --resume --sample-every 40 --samples "$work/samples.jsonl"
[ "$(grep -c '^{"step":120' "$work/samples.jsonl")" = 1 ] && [ "$(wc -l <"$work/samples.jsonl")" = 3 ] || fail "resumed"

# A run that is refused leaves the file as it is; one that goes on from an earlier step writes the later lines again.
train 1 --steps 80 --checkpoint "$work/sampled" --sample-every 40 --samples "$work/samples.jsonl"
says 'there are checkpoints already'
[ "$(wc -l <"$work/samples.jsonl")" = 3 ] || fail "a refused run changes the samples"
train 0 --steps 120 --checkpoint "$work/again" --resume="$work/sampled/step-0000000080.safetensors" --sample-every 40 \
  --samples "$work/samples.jsonl"
[ "$(grep -o '"step":[0-9]*' "$work/samples.jsonl" | tr '\n' ' ')" = '"step":40 "step":80 "step":120 ' ] ||
  fail "resumed at step 80: $(cat "$work/samples.jsonl")"
train 0 --steps 1 --sample-every 1 --samples "$work/samples.jsonl"
[ "$(grep -o '"step":[0-9]*' "$work/samples.jsonl" | tr '\n' ' ')" = '"step":1 ' ] || fail "a new run: $(cat "$work/samples.jsonl")"
train 0 --steps 1 --sample-every 1 --samples /dev/null

train 2 --sample-prompt x
says 'are for --sample-every N'
train 1 --steps 2 --sample-every 1 --sample-prompt ''
says 'expected at least one token'
train 1 --steps 2 --sample-every 1 --samples "$work/none/x"
says 'cannot be written'
expect 0 export models/lm.kv "${size[@]}" -o "$work/lm.onnx"
expect 1 train "$work/lm.onnx" --loss cross_entropy --train '*' --data "tokens:$work/text.tok,length=48" --steps 2 --sample-every 1
says 'of the training is none of the model that continues texts'
