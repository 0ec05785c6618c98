#!/usr/bin/env bash
# The claim itself, small: one layer of width 8 with KV shift learns the induction task, and its key shift turns to the
# previous token; without shift the same layer does not learn it.
. "$(dirname "$0")/support.sh"
[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: what is learnt is the same without sanitizers"; exit 77; }

train() { # train NAME ARGUMENTS...
  expect 0 train models/induction.kv -D d=8 -D heads=1 -D ffn=16 --steps 1500 --eval-every 1500 --eval-batches 32 \
    --metrics "$work/$1.jsonl" "${@:2}"
}

train vanilla -D shift_k=false -D shift_v=false
train shift
python3 - "$work" <<'PY' || fail "the learning differs from the claim"
import json, re, sys
def accuracy(name):
    last = [json.loads(line) for line in open("%s/%s.jsonl" % (sys.argv[1], name)) if '"eval"' in line][-1]
    assert last["step"] == 1500
    return last["metrics"]["accuracy"]
print("accuracy with shift %.3f, without %.3f" % (accuracy("shift"), accuracy("vanilla")))
assert accuracy("shift") >= 0.95 and accuracy("vanilla") < 0.2
current, previous = map(float, re.search(r"K current (\S+) previous (\S+?),", open(sys.argv[1] + "/out").read()).groups())
assert abs(previous) > 2 * abs(current), (current, previous)
PY
