#!/usr/bin/env bash
# Checkpoints in the reference package of safetensors and back: what it reads is what the file says, and a file that it
# has written again trains on with the same bits. The Python for it is $KVASIR_PYTHON, else that of the benchmarks, else
# python3.
. "$(dirname "$0")/support.sh"

python=
for candidate in ${KVASIR_PYTHON:-build/bench-venv/bin/python python3}; do
  if "$candidate" -c 'import numpy, safetensors.numpy' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "SKIP: no Python with numpy and safetensors (set KVASIR_PYTHON to one)"
  exit 77
fi

train() {
  expect 0 train models/mlp.kv -D d=16 -D hidden=32 -D vocab=64 --data ngram:pairs=40,length=32 --batch 8 \
    --eval-every 0 "$@"
}
train --steps 20 --checkpoint "$work/a" --checkpoint-every 10
"$python" - "$work" <<'PY' || fail "the reference package"
import json, struct, sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

path = f"{sys.argv[1]}/a/step-0000000010.safetensors"
data = open(path, "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
tensors = load_file(path)
with safe_open(path, "np") as f:
    metadata = f.metadata()
assert metadata == header["__metadata__"] and metadata["kvasir.step"] == "10", metadata
assert set(tensors) == set(header) - {"__metadata__"} and {"embed", "embed.m", "embed.v", "train.step"} <= set(tensors)
assert tensors["train.step"] == 10 and tensors["train.step"].dtype == np.int64
for name, t in tensors.items():
    begin, end = header[name]["data_offsets"]
    assert list(t.shape) == header[name]["shape"] and t.tobytes() == data[8 + n + begin:8 + n + end], name
    assert begin % t.itemsize == 0, name
save_file(dict(reversed(tensors.items())), f"{sys.argv[1]}/again.safetensors", metadata=metadata)
PY
train --steps 20 --checkpoint "$work/b" --resume="$work/again.safetensors"
cmp "$work/a/step-0000000020.safetensors" "$work/b/step-0000000020.safetensors" ||
  fail "a run from the reference package's file differs"
