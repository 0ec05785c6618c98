#!/usr/bin/env bash
# kvasir profile: every step of a run and of a training step, as a table, JSON, a trace and a page.
. "$(dirname "$0")/support.sh"

cat >"$work/check.py" <<'PY'
"""check.py JSON TRACE PAGE FLOPS: the steps of one profile agree with each other, and with the products' operations."""
import json, sys
profile, trace, page = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), open(sys.argv[3]).read()
steps = profile["steps"]
assert profile["runs"] == 5 and profile["low"] <= profile["seconds"] <= profile["high"], profile
assert all(s["seconds"] >= 0 and s["bytes"] > 0 and s["nodes"] and s["nodes"] == s["nodes"].strip() for s in steps), steps
assert sum(s["flops"] for s in steps) == float(sys.argv[4]), sum(s["flops"] for s in steps)
assert profile["machine"]["flops"] > 1e8 and profile["machine"]["bytes"] > 1e8, profile["machine"]
assert max(s["temporaries"] for s in steps) <= profile["memory"]["temporaries"], profile["memory"]
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert [e["name"] for e in events] == [s["nodes"] for s in steps]
assert all(a["ts"] + a["dur"] <= b["ts"] + 0.002 for a, b in zip(events, events[1:])), events
for text in ("Rate of products by intensity", "Bytes in use over the steps", "Time by step", "<svg"):
    assert text in page, text
PY

cat >"$work/two.kv" <<'KV'
model two (float[B, 64] x) => (float[B, 32] y) {
  param float[64, 128] v ~ normal(0.1)
  param float[128, 32] w ~ normal(0.1)
  y = kv.relu(x @ v) @ w
}
KV

# 8 rows: two products, two operations a multiply-add.
expect 0 profile "$work/two.kv" --pin B=8 --repeat 5 --json --trace "$work/t.json" -o "$work/p.html"
python3 -B "$work/check.py" "$work/out" "$work/t.json" "$work/p.html" $((2 * 8 * (64 * 128 + 128 * 32))) ||
  fail "the profile of a run"

expect 0 profile "$work/two.kv" --pin B=8 --repeat 5 --top 1
grep -q 'this machine (.*GFLOP/s of multiply-adds' "$work/out" || fail "no line on the machine"
grep -q '100 %\|[0-9] %.*matmul' "$work/out" || fail "no row of a product"
grep -q '1 kinds of steps more' "$work/out" || fail "--top 1 prints other than one row of two"

# A training step leaves its parameters as they are: any number of runs has a finite loss.
expect 0 profile models/mlp.kv --train --pin B=8 --pin T=8 --repeat 50 --json
python3 -c 'import json, sys; p = json.load(open(sys.argv[1])); assert p["program"] == "train_step" and p["memory"]["moments"] > 0, p' \
  "$work/out" || fail "the profile of a training step"

# Operations of sizes that only the input tells are not guessed.
python3 -c 'import struct, sys
h = repr({"descr": "<f4", "fortran_order": False, "shape": (3, 64)}).encode(); h += b" " * (-(len(h) + 11) % 64) + b"\n"
open(sys.argv[1], "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(h)) + h + bytes(4 * 3 * 64))' "$work/x.npy"
expect 0 profile "$work/two.kv" --input "x=$work/x.npy" --repeat 2 --json
python3 -c 'import json, sys; assert all(s["flops"] == 0 for s in json.load(open(sys.argv[1]))["steps"])' "$work/out" ||
  fail "operations of unknown sizes"

expect 2 profile
expect 1 profile "$work/two.kv"
grep -q -- '--pin' "$work/out" || fail "no word of --pin"
