#!/usr/bin/env bash
# kvasir train --tensorboard: records with right sums hold the values of the metrics; TensorBoard's own reader agrees, where
# it is installed.
. "$(dirname "$0")/support.sh"

train() { # train ARGUMENTS...
  expect 0 train models/lm.kv -D vocab=257 -D d=16 -D ffn=24 -D heads=2 -D layers=1 --data random:length=16 --batch 2 \
    --eval-every 2 --eval-batches 1 --checkpoint "$work/run" --metrics "$work/run.jsonl" --tensorboard "$work/board" "$@"
}
train --steps 4
train --steps 6 --resume
cat >"$work/check.py" <<'PY'
import glob, json, struct, sys
work = sys.argv[1]

def crc(data):
    c = 0xFFFFFFFF
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF

assert crc(b"123456789") == 0xE3069283
def masked(data):
    c = crc(data)
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF

def fields(data):
    at = 0
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        else:
            n = {1: 8, 5: 4}.get(kind) or varint()
            yield key >> 3, data[at:at + n]
            at += n

points, starts = {}, []
for path in sorted(glob.glob(work + "/board/events.out.tfevents.*")):
    raw, at, first = open(path, "rb").read(), 0, True
    while at < len(raw):
        n, of_length = struct.unpack_from("<QI", raw, at)
        data = raw[at + 12:at + 12 + n]
        assert of_length == masked(raw[at:at + 8]) and struct.unpack_from("<I", raw, at + 12 + n)[0] == masked(data)
        at += 16 + n
        event = dict(fields(data))
        assert struct.unpack("<d", event[1])[0] > 1.6e9
        assert not first or event[3] == b"brain.Event:2"
        first = False
        if 7 in event:
            starts.append((event[2], dict(fields(event[7]))))
        for _, value in fields(event.get(5, b"")):
            value = dict(fields(value))
            points[value[1].decode(), event[2]] = struct.unpack("<f", value[2])[0]
assert starts == [(5, {1: 1})], starts
expected = {}
for line in open(work + "/run.jsonl"):
    e = json.loads(line)
    if e["event"] not in ("step", "eval"):
        continue
    side = "eval" if e["event"] == "eval" else "train"
    values = dict(e["metrics"], loss=e["loss"])
    if side == "train":
        values["lr"] = e["lr"]
    for name, value in values.items():
        expected["%s/%s" % (side, name), e["step"]] = struct.unpack("<f", struct.pack("<f", value))[0]
assert points == expected and ("eval/perplexity", 6) in points, (points, expected)
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("SKIP: the part with TensorBoard's own reader: no Python package tensorboard")
    sys.exit()
board = EventAccumulator(work + "/board", size_guidance={"scalars": 0})
board.Reload()
read = {(tag, s.step): s.value for tag in board.Tags()["scalars"] for s in board.Scalars(tag)}
assert read == expected, (read, expected)
PY
python3 "$work/check.py" "$work" || fail "event files"

train_two() { "$KVASIR" train models/lm.kv -D vocab=257 -D d=16 -D ffn=24 -D heads=2 -D layers=1 --data random:length=16 --batch 2 --steps 1 "$@"; }
train_two --tensorboard "$work/two" --variant a --variant b >"$work/out" 2>&1 || fail "variants"
[ -d "$work/two-0" ] && [ -d "$work/two-1" ] || fail "folders of variants"
! train_two --tensorboard /dev/null/x >"$work/out" 2>&1 || fail "a folder that cannot be made"
says "cannot make the folder"
