#!/usr/bin/env bash
# tools/bench/bench --compare: what became slower beyond noise, on made-up results; nothing is measured.
. "$(dirname "$0")/support.sh"

python3 -B - <<'PY' || fail "comparison of results"
import sys

sys.path.insert(0, "tools/bench")
from measure import Samples
from report import losses, refusal


def result(*rows, cpu="a CPU"):
    return {"heading": {"benchmark": "gemm", "cpu": cpu, "threads": 1}, "rows": list(rows)}


def case(name, seconds, ratio, spread=0.01):
    return {"case": name, "kvasir_seconds": seconds, "ratio": ratio, "spread": spread}


def slower(now, then):
    return [(label, round(change, 3)) for label, change, _ in losses(result(*now), result(*then))]


# By the ratio where both have a peer: the machine was slower, Kvasir was not.
assert slower([case("a", 2.0, 1.0)], [case("a", 1.0, 1.0)]) == []
assert slower([case("a", 1.0, 0.8)], [case("a", 1.0, 1.0)]) == [("a", 0.8)]
# By time where one has none, and of rows that both have.
assert slower([case("a", 2.0, None), case("b", 9.0, None)], [case("a", 1.0, 1.0)]) == [("a", 0.5)]
assert slower([{"weights": "4 bits", "token_seconds": 2.0, "ratio": 3.0}],
              [{"weights": "4 bits", "token_seconds": 1.0, "ratio": 3.0}]) == [("4 bits", 0.5)]
assert slower([{"file": "f16", "tokens_per_second": 5.0}], [{"file": "f16", "tokens_per_second": 10.0}]) == [("f16", 0.5)]
# Within the noise of either run.
assert slower([case("a", 1.0, 0.9, 0.04)], [case("a", 1.0, 1.0, 0.04)]) == []
assert slower([case("a", 1.0, 0.98, 0.0)], [case("a", 1.0, 1.0, 0.0)]) == []
# The peer's own rows are not Kvasir's loss.
assert slower([{"program": "PyTorch", "step_seconds": 2.0}], [{"program": "PyTorch", "step_seconds": 1.0}]) == []
# Other machines are not compared.
here = result()["heading"]
assert refusal(here, None) and refusal(here, result(cpu="another")) and not refusal(here, result())

samples = Samples()
for value in (1.0, 1.1, 1.2, 5.0, 1.0):
    samples.add((value, value == 5.0))  # a disturbed one
assert 0.04 < samples.spread() < 0.06, samples.spread()
PY

# What cannot be compared is refused before anything is measured.
refused() { # refused FILE TEXT
  local code=0
  python3 -B tools/bench/bench gemm --compare "$work/$1" --build /absent >"$work/out" 2>&1 || code=$?
  [ "$code" -eq 2 ] || fail "--compare $1: exit code $code"
  says "bench: --compare: $2"
}
refused absent.json '[Errno 2] No such file'
printf '{"heading": {"benchmark": "gemm", "cpu": "none", "threads": 1}, "rows": []}\n' >"$work/then.json"
refused then.json 'gemm: cpu: '
printf '{"rows": []}\n' >"$work/other.json"
refused other.json "'heading'"
