#!/usr/bin/env bash
# kvasir train --keep-best: best.safetensors is the state of the lowest evaluation loss, also where a run was interrupted
# in between, with mixed data; perplexity; metrics as CSV.
. "$(dirname "$0")/support.sh"

for _ in $(seq 40); do printf 'the cat sat on the mat. '; done >"$work/cat"
head -c 4000 LICENSE >"$work/licence"
expect 0 data "$work/cat" -o "$work/cat.tok"
expect 0 data "$work/licence" -o "$work/licence.tok"
train() { # train CODE NAME ARGUMENTS...
  expect "$1" train models/lm.kv -D vocab=257 -D d=16 -D ffn=24 -D heads=2 -D layers=1 -D lr=0.1 --batch 4 --eval-every 5 \
    --eval-batches 2 --keep 0 --checkpoint-every 20 --data "tokens:$work/cat.tok,length=16,weight=0.7" \
    --data "tokens:$work/licence.tok,length=16,weight=0.3,split=end" --checkpoint "$work/$2" --metrics "$work/$2.$ending" "${@:3}"
}
ending=jsonl
train 0 whole --steps 60 --keep-best
says "eval perplexity"
cp "$work/whole/step-0000000040.safetensors" "$work/at40"
step=$(python3 - "$work/whole.jsonl" <<'PY'
import json, math, sys
evals = [json.loads(line) for line in open(sys.argv[1]) if '"eval"' in line]
for e in evals:
    assert abs(e["metrics"]["perplexity"] - math.exp(e["loss"])) < 1e-9 * math.exp(e["loss"]), e
print(min(evals, key=lambda e: e["loss"])["step"])
PY
) || fail "perplexity"
# A perplexity of the train block's own is the only one.
sed 's/^  optimizer = AdamW/  metric perplexity = 2 * loss\n&/' models/lm.kv >"$work/own.kv"
expect 0 train "$work/own.kv" -D vocab=9 -D d=8 -D ffn=8 -D heads=1 -D layers=1 -D ctx=4 --steps 1 --metrics "$work/own.jsonl"
[ "$(grep '"eval"' "$work/own.jsonl" | grep -o '"perplexity"' | wc -l)" -eq 1 ] || fail "two perplexities: $(cat "$work/own.jsonl")"
python3 - "$work/whole/best.safetensors" "$step" <<'PY' || fail "best.safetensors is not of the lowest evaluation loss"
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
metadata = json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])["__metadata__"]
assert metadata["kvasir.step"] == sys.argv[2], (metadata, sys.argv)
PY

# Interrupted after 25 steps, where it saves; after 40, with a later best state left over.
train 0 parts --steps 25 --keep-best
train 0 parts --steps 60 --keep-best --resume
cmp "$work/whole/best.safetensors" "$work/parts/best.safetensors" || fail "resumed at 25: another best state"
cmp "$work/whole/step-0000000060.safetensors" "$work/parts/step-0000000060.safetensors" || fail "resumed mixture: other bits"
rm "$work"/parts/step-*
cp "$work/at40" "$work/parts/step-0000000040.safetensors"
train 0 parts --steps 60 --keep-best --resume
cmp "$work/whole/best.safetensors" "$work/parts/best.safetensors" || fail "resumed at 40: another best state"
head -c 100 "$work/whole/best.safetensors" >"$work/parts/best.safetensors"
train 0 parts --steps 65 --keep-best --resume
says "the next evaluation is the best one"

# CSV: the same values, also where a run goes on.
ending=csv
train 0 one --steps 20
train 0 two --steps 12 --checkpoint-every 5
rm "$work/two/step-0000000012.safetensors"
train 0 two --steps 20 --resume
python3 - "$work" <<'PY' || fail "CSV"
import csv, json, sys
read = lambda name: [r for r in csv.DictReader(open(sys.argv[1] + name, newline="")) if r["name"] != "seconds"]
one, two = read("/one.csv"), read("/two.csv")
assert [r for r in one if r["event"] != "shift"] == [r for r in two if r["event"] != "shift"], "resumed"
steps = [json.loads(line) for line in open(sys.argv[1] + "/whole.jsonl")]
for event in "step", "eval":
    a = [(r["step"], float(r["value"])) for r in one if r["event"] == event and r["name"] == "loss"]
    b = [(str(s["step"]), s["loss"]) for s in steps if s["event"] == event and s["step"] <= 20]
    assert a == b and a, (event, a, b)
assert {r["name"] for r in one if r["event"] == "eval"} == {"loss", "perplexity", "lr"}, one[:3]
assert any(r["event"] == "shift" and r["name"].endswith("k_current") for r in one)
PY

expect 2 train models/lm.kv --keep-best
says "--keep-best needs a folder"
expect 2 train models/lm.kv --keep-best --checkpoint "$work/x" --eval-every 0
says "--keep-best needs evaluations"
