"""whole.py A B: two checkpoints, each one file or a folder of shards, have the same position and the same bits of the same whole
tensors. whole.py --join A FILE: writes the whole tensors of A. Reads by docs/scale.md alone."""
import json
import math
import os
import struct
import sys


def read(path):
    raw = open(path, "rb").read()
    length, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        tensors[name] = (t["dtype"], t["shape"], raw[8 + length + begin:8 + length + end])
    return metadata, tensors


def assemble(division, shards, mesh, name):
    """The whole tensor from the pieces in the shards."""
    shape, *fields = division.split()
    shape = [int(n) for n in shape.split(",")]
    axis, slices, part = (int(f.split("=")[1]) for f in fields)
    dtype, _, first = shards[0][name]
    width = {"F32": 4, "F64": 8, "I64": 8, "BF16": 2}[dtype]
    n = math.prod(shape)
    run = math.prod(shape[axis + 1:]) * shape[axis] // slices * width if slices else n * width
    of_slices = []
    step = mesh["pipeline"] * mesh["tensor"]
    for s in range(slices or 1):
        data = b"".join(shards[d * step + s][name][2] for d in range(mesh["data"] if part else 1))
        assert len(data) == n * width // (slices or 1), (name, len(data))
        of_slices.append(data)
    whole = b"".join(data[at:at + run] for at in range(0, len(of_slices[0]), run) for data in of_slices)
    return dtype, shape, whole


def load(path):
    if not os.path.isdir(path):
        return read(path)
    index, none = read(path + "/index.safetensors")
    mesh = {k: int(v) for k, v in (axis.split("=") for axis in index["kvasir.mesh"].split(","))}
    assert not none and index["kvasir.format"] == ("4" if "pipeline" in mesh else "3"), path
    stages = mesh.setdefault("pipeline", 1)
    n = mesh["data"] * stages * mesh["tensor"]
    names = ["shard-%05d-of-%05d.safetensors" % (i, n) for i in range(n)]
    assert sorted(os.listdir(path)) == ["index.safetensors"] + names, os.listdir(path)
    shards = [read(path + "/" + name)[1] for name in names]
    first = shards[:stages * mesh["tensor"]:mesh["tensor"]]
    tensors = {name: tensor for shard in first for name, tensor in shard.items()}
    assert len(tensors) == sum(len(shard) for shard in first), "a tensor of several stages"
    for key, division in index.items():
        if key.startswith("kvasir.divided."):
            name = key[len("kvasir.divided."):]
            stage = next(s for s, shard in enumerate(first) if name in shard)
            tensors[name] = assemble(division, shards[stage * mesh["tensor"]:], mesh, name)
    return index, tensors


def join(path, out):
    header, data = {}, b""
    for name, (dtype, shape, raw) in sorted(load(path)[1].items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    open(out, "wb").write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    if sys.argv[1] == "--join":
        sys.exit(join(*sys.argv[2:]))
    (a, x), (b, y) = load(sys.argv[1]), load(sys.argv[2])
    form = ("kvasir.format", "kvasir.sum", "kvasir.mesh", "kvasir.sums")
    position = lambda m: {k: v for k, v in m.items() if k not in form and not k.startswith("kvasir.divided.")}
    assert position(a) == position(b), (position(a), position(b))
    assert sorted(x) == sorted(y) and len(x) > 0, set(x) ^ set(y)
    differ = [name for name in x if x[name] != y[name]]
    assert not differ, "bits differ: %s" % ", ".join(differ)
