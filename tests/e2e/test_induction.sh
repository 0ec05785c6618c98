#!/usr/bin/env bash
# The claim itself, small: one layer of width 8 with KV shift learns the induction task, and its key shift turns to the
# previous token. Takes about half a minute.
. "$(dirname "$0")/support.sh"

expect 0 train models/induction.kv -D d=8 -D heads=1 -D ffn=16 --steps 1500 --eval-every 1500 --eval-batches 32 \
  --metrics "$work/m.jsonl"
python3 - "$work/m.jsonl" "$work/out" <<'PY' || fail "does not learn"
import json, re, sys
last = [json.loads(line) for line in open(sys.argv[1])][-1]
print(last)
assert last["event"] != "step" and last["step"] == 1500
assert last["metrics"]["accuracy"] >= 0.95, last
current, previous = map(float, re.search(r"K current (\S+) previous (\S+?),", open(sys.argv[2]).read()).groups())
assert abs(previous) > 2 * abs(current), (current, previous)
PY
