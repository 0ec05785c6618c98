#!/usr/bin/env bash
# kvasir train: a short induction run learns, writes metrics and a report, and gives the same bits every time.
. "$(dirname "$0")/support.sh"
size=(-D d=16 -D heads=2 -D ffn=32 -D vocab=64 -D pool=24 -D length=32 -D lr=1e-2)

train() { # train NAME ARGUMENTS...
  expect 0 train models/induction.kv "${size[@]}" --batch 16 --steps 400 --eval-every 100 --eval-batches 8 \
    --metrics "$work/$1.jsonl" "${@:2}"
}

train one --threads 1 --report "$work/report.html"
says "step 400/400"
says "K current"
says "report: $work/report.html"
python3 - "$work/one.jsonl" <<'PY' || fail "metrics"
import json, math, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
steps = [l for l in lines if l["event"] == "step"]
evals = [l for l in lines if l["event"] == "eval"]
assert [l["step"] for l in steps] == list(range(1, 401)), len(steps)
assert [l["step"] for l in evals] == [100, 200, 300, 400], evals
for l in steps + evals:
    assert math.isfinite(l["loss"]) and set(l["metrics"]) >= {"accuracy", "repeats"}, l
assert all(a["seconds"] <= b["seconds"] for a, b in zip(steps, steps[1:]))
assert abs(steps[0]["loss"] - math.log(64)) < 0.2, steps[0]["loss"]   # uniform over the vocabulary at first
assert evals[-1]["loss"] < evals[0]["loss"] - 0.3, [e["loss"] for e in evals]
assert sum(l["loss"] for l in steps[-10:]) < sum(l["loss"] for l in steps[:10]) - 5
PY

python3 - "$work/report.html" <<'PY' || fail "report"
import html.parser, sys
text = open(sys.argv[1], encoding="utf-8").read()
class Checker(html.parser.HTMLParser):
    stack, void, tags = [], {"meta", "br", "link", "hr", "img", "input"}, set()
    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in self.void: self.stack.append(tag)
        assert not any(name in ("src", "href") and "//" in (value or "") for name, value in attrs), "loads from elsewhere"
    def handle_startendtag(self, tag, attrs): self.tags.add(tag)
    def handle_endtag(self, tag):
        assert self.stack and self.stack.pop() == tag, tag
checker = Checker()
checker.feed(text)
assert not checker.stack and {"svg", "table"} <= checker.tags, (checker.stack, checker.tags)
assert "models/induction.kv" in text and "attention.0" in text
PY

# The same bits: again, with two threads, as JSON on standard output; others with another seed.
bits() { sed 's/"seconds": [^,}]*//' "$1"; }
same() { cmp -s <(bits "$work/one.jsonl") <(bits "$1") || fail "$2"; }
train again --threads 1
same "$work/again.jsonl" "two runs differ"
train two --threads 2
same "$work/two.jsonl" "1 and 2 threads differ"
"$KVASIR" train models/induction.kv "${size[@]}" --batch 16 --steps 400 --eval-every 100 --eval-batches 8 --json \
  >"$work/json" 2>"$work/out" || fail "train --json"
same "$work/json" "--json differs from --metrics"
train other --seed 1
! cmp -s <(bits "$work/one.jsonl") <(bits "$work/other.jsonl") || fail "another seed gives the same bits"

# Variants share one report.
expect 0 train models/induction.kv "${size[@]}" --steps 5 --batch 4 --eval-every 0 --report "$work/v.html" \
  --metrics "$work/v.jsonl" --variant "KV shift" --variant "vanilla:shift_k=false,shift_v=false,lr=0.5"
for text in vanilla induction: "4 sequences" "learning rate" "after 100 steps of warm-up" threads f32 "learning rate, vanilla" "<code>0.5<"; do
  grep -qF -- "$text" "$work/v.html" || fail "the report lacks '$text'"
done
steps_of() { grep -c '"event": "step"' "$1"; }
[ "$(steps_of "$work/v-0.jsonl")" -eq 5 ] && [ "$(steps_of "$work/v-1.jsonl")" -eq 5 ] || fail "metrics of the variants"
[ "$(grep -c '"event": "shift"' "$work/v-0.jsonl")" -eq 2 ] || fail "a run with shifts ends with the weights of its heads"

# The commas of a list do not end a setting.
cat >"$work/list.kv" <<'KV'
model list <layers = [1, 2], gain = 1.0> (float[B, 4] x) => (float[B, 4] y) {
  param float[4, 4] w ~ normal(0.5)
  y = x @ w * gain
  if contains(layers, 3) {
    y = y * 0
  }
}

train list (float[B, 4] target) {
  loss = kv.reduce_mean <keepdims = false> (y + 0 * target)
  steps = 1
}
KV
python3 - "$work/list.npy" <<'PY'
import sys
header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }".ljust(117) + "\n"
open(sys.argv[1], "wb").write(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes([0, 0, 128, 63] * 16))
PY
expect 0 train "$work/list.kv" --data "npy:x=$work/list.npy,target=$work/list.npy,eval=0" --batch 4 --eval-every 0 \
  --metrics "$work/list.jsonl" --variant a --variant "b:layers=[1, 3],gain=2"
grep -q '"loss": -\?0.0,' "$work/list-1.jsonl" || fail "a list of a variant"
! grep -q '"loss": -\?0.0,' "$work/list-0.jsonl" || fail "the list of another variant"

# A point in a folder's name is not that of the file's.
mkdir "$work/v.d"
expect 0 train models/induction.kv "${size[@]}" --steps 1 --batch 4 --eval-every 0 --metrics "$work/v.d/m" --variant a --variant b
[ "$(ls "$work/v.d" | tr '\n' ' ')" = "m-0 m-1 " ] || fail "metrics of variants: $(ls "$work/v.d")"

# --json is the process's own standard output: behind what a file has, every variant, samples in order, beside --metrics;
# no other line is there.
echo '{"before": 0}' >"$work/appended"
"$KVASIR" train models/induction.kv "${size[@]}" --steps 3 --batch 4 --eval-every 0 --json --metrics "$work/both.jsonl" \
  --report "$work/both.html" --variant a --variant b >>"$work/appended" 2>"$work/out" || fail "--json appended"
python3 - "$work/appended" <<'PY' || fail "--json at the end of a file: $(cat "$work/appended")"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert lines[0] == {"before": 0}, lines[0]
assert [l["step"] for l in lines[1:] if l["event"] == "step"] == [1, 2, 3, 1, 2, 3], lines
PY
cmp -s <(tail -n +2 "$work/appended") <(cat "$work/both-0.jsonl" "$work/both-1.jsonl") || fail "--json leaves --metrics out"
for _ in $(seq 40); do printf 'the cat sat on the mat. '; done >"$work/text"
expect 0 data "$work/text" -o "$work/text.tok"
"$KVASIR" train models/lm.kv -D vocab=257 -D d=16 -D ffn=16 -D heads=2 -D layers=1 --data "tokens:$work/text.tok,length=48" \
  --batch 2 --steps 2 --eval-every 0 --sample-every 1 --json >"$work/sampled" 2>"$work/out" || fail "samples beside --json"
[ "$(cut -c 1-10 "$work/sampled" | head -4 | tr '\n' ' ')" = '{"step": 1 {"step":1, {"step": 2 {"step":2, ' ] ||
  fail "--json and samples: $(cat "$work/sampled")"
python3 - "$KVASIR" <<'PY' || fail "--json to a socket"
import json, socket, subprocess, sys
ours, theirs = socket.socketpair()
subprocess.run([sys.argv[1], "train", "models/mlp.kv", "--steps", "1", "--batch", "1", "--eval-every", "0", "--json"],
               stdout=theirs, check=True)
theirs.close()
assert json.loads(ours.makefile().readline())["step"] == 1
PY

# A dry run says what the same options would do, and trains nothing.
expect 0 train models/induction.kv "${size[@]}" --batch 16 --micro-batch 4 --steps 7 --threads 1 --dry-run --metrics "$work/dry.jsonl"
says "16 sequences, 4 at a time"
says "program grad_step"
[ ! -e "$work/dry.jsonl" ] || fail "a dry run trains"
expect 0 train models/induction.kv "${size[@]}" --batch 16 --steps 7 --precision bf16 --dry-run --json
python3 - "$work/out" <<'PY' || fail "the plan as JSON"
import json, sys
dry = json.load(open(sys.argv[1]))
config, plan = dry["config"], dry["plan"]["train_step"]
assert config["data"] == "induction:pool=24,length=32" and config["steps"] == "7" and config["precision"] == "bf16", config
assert plan["tokens"] == 16 * 32 and plan["bytes"]["total"] > plan["bytes"]["parameters"] == 4 * plan["parameters"], plan
PY

# A profile is of the program that ran: one micro-batch that is the whole batch is a step in one call.
for rows in 4 8; do
  expect 0 train models/mlp.kv --steps 1 --batch 8 --micro-batch "$rows" --eval-every 0 --profile
  grep -qE 'bytes held: parameters [1-9][0-9]*, moments [1-9]' "$work/out" || fail "micro-batches of $rows rows have no profile"
done
