#!/usr/bin/env bash
# Layers of images whose tensors exceed the caches run image by image: the values of a batch are those of its images
# run alone, whatever the threads, and in an executable; temporaries take less, and profile shows the steps inside.
. "$(dirname "$0")/support.sh"
cat >"$work/net.kv" <<'KV'
main (float[B, 3, 160, 160] x) => (float[B, 16] y, float[B, 16, 80, 80] z) {
  u = kv.reshape <shape = [16, 3, 3, 3]> (kv.sin(kv.iota <shape = [432], dtype = float> () * 0.7))
  d = kv.reshape <shape = [16, 1, 3, 3]> (kv.sin(kv.iota <shape = [144], dtype = float> () * 1.1))
  v = kv.reshape <shape = [64, 16, 1, 1]> (kv.sin(kv.iota <shape = [1024], dtype = float> () * 1.3))
  e = kv.reshape <shape = [64, 1, 3, 3]> (kv.sin(kv.iota <shape = [576], dtype = float> () * 1.7))
  w = kv.reshape <shape = [16, 64, 1, 1]> (kv.sin(kv.iota <shape = [1024], dtype = float> () * 1.9))
  a = kv.relu(kv.conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, u))
  b = kv.relu(kv.conv <pads = [1, 1, 1, 1], group = 16> (a, d))
  c = kv.relu(kv.conv(b, v))
  f = kv.relu(kv.conv <pads = [1, 1, 1, 1], group = 64> (c, e))
  z = kv.conv(f, w) * 0.1 + a
  y = kv.reduce_mean <axes = [2, 3], keepdims = false> (z)
}
KV
python3 - "$work" <<'PY'
import struct, sys
def write(name, images):
    header = (b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 3, 160, 160), }" % len(images)).ljust(117) + b"\n"
    with open(f"{sys.argv[1]}/{name}.npy", "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"".join(images))
images = [struct.pack("<76800f", *((i * (37 + 2 * n) % 101 - 50) / 25 for i in range(76800))) for n in range(16)]
write("x", images)
write("last", images[-1:])
PY

expect 0 profile "$work/net.kv" --pin B=16 --repeat 2 --json
python3 - "$work/out" <<'PY' || fail "the profile of a batch"
import json, sys
p = json.load(open(sys.argv[1]))
assert any(s["nodes"].startswith("loop") for s in p["steps"]), "no loop"
assert {s["calls"] for s in p["steps"]} == {1, 16}, p["steps"]
assert sum(s["flops"] for s in p["steps"]) == 16 * 2 * 6400 * (16 * 27 + 16 * 9 + 64 * 16 + 64 * 9 + 16 * 64), p["steps"]
assert p["memory"]["temporaries"] < 4 * 6400 * 64 * 16, p["memory"] # one of the widest tensors of the batch
PY
expect 0 run "$work/net.kv" --pin B=16 -i "x=$work/x.npy" --threads 1 -o "$work/one"
expect 0 run "$work/net.kv" --pin B=16 -i "x=$work/x.npy" --threads 3 -o "$work/three"
expect 0 run "$work/net.kv" -i "x=$work/last.npy" -o "$work/alone"
expect 0 run "$work/net.kv" -i "x=$work/x.npy" -o "$work/any"
for name in y z; do
  cmp "$work/one/$name.npy" "$work/three/$name.npy" || fail "$name depends on the threads"
  cmp "$work/one/$name.npy" "$work/any/$name.npy" || fail "$name: a batch whose size the input tells"
  cmp <(tail -c 64 "$work/one/$name.npy") <(tail -c 64 "$work/alone/$name.npy") || fail "$name: the last image"
done
expect 0 diff "$work/net.kv" --pin B=16 -i "x=$work/x.npy"
says ", 0 beyond the tolerance"
expect 0 build "$work/net.kv" --exe --pin B=16 -o "$work/net"
mkdir "$work/exe"
"$work/net" --input "x=$work/x.npy" -o "$work/exe" >/dev/null
cmp "$work/one/z.npy" "$work/exe/z.npy" || fail "an executable computes otherwise"
