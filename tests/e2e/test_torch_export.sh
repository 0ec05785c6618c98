#!/usr/bin/env bash
# PyTorch exports of a KV shift block in three spellings (tests/data/make_shift_exports.py) import, become KVShift, rotary
# embedding and attention, and give PyTorch's numbers.
set -euo pipefail
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

count() { { grep -o "kv\.$1 \|kv\.$1(" "$out/graph" || true; } | wc -l; }

expect() { # expect OPERATOR NUMBER
  local found
  found=$(count "$1")
  [ "$found" -eq "$2" ] || { echo "$model: kv.$1 occurs $found times, expected $2"; exit 1; }
}

for model in unfold conv concat; do
  "$KVASIR" check "tests/data/shift_$model.onnx" >/dev/null
  "$KVASIR" show "tests/data/shift_$model.onnx" --stage=graph >"$out/graph"
  expect kv_shift 2
  expect rope 2
  expect attention 1
  expect softmax 0
  expect conv 0
  expect pad 0
  "$KVASIR" run "tests/data/shift_$model.onnx" -i "tests/data/shift_${model}_x.npy" -o "$out" >/dev/null
  python3 - "$out/y.npy" "tests/data/shift_${model}_y.npy" <<'PY'
import struct
import sys


def read(path):
    data = open(path, "rb").read()
    header = struct.unpack("<H", data[8:10])[0]
    values = data[10 + header:]
    return struct.unpack("<%df" % (len(values) // 4), values)


a, b = read(sys.argv[1]), read(sys.argv[2])
worst = max(abs(x - y) for x, y in zip(a, b))
assert len(a) == len(b) == 2 * 12 * 32, (len(a), len(b))
assert worst < 1e-5, worst
PY
done
