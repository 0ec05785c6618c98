#!/usr/bin/env bash
# Documents of one sequence (models/lm.kv, `separator`) do not see each other: their logits are those that they have
# alone. Without a separator they are not.
. "$(dirname "$0")/support.sh"

tokens() { # tokens FILE TOKEN...
  python3 - "$@" <<'PY'
import struct, sys
tokens = [int(t) for t in sys.argv[2:]]
head = "{'descr': '<i4', 'fortran_order': False, 'shape': (1, %d), }" % len(tokens)
head += " " * (-(11 + len(head)) % 64) + "\n"
open(sys.argv[1], "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H%ds%di" % (len(head), len(tokens)), len(head), head.encode(), *tokens))
PY
}
apart() { # apart PACKED FIRST SECOND: the largest difference, in parts of the largest value
  python3 - "$@" <<'PY'
import struct, sys
def read(path):
    data = open(path, "rb").read()
    start = 10 + struct.unpack_from("<H", data, 8)[0]
    return struct.unpack("<%df" % ((len(data) - start) // 4), data[start:])
packed, first, second = map(read, sys.argv[1:])
assert len(packed) == len(first) + len(second) and max(packed) - min(packed) > 0.1
print(max(abs(x - y) for x, y in zip(packed, first + second)) / max(map(abs, packed)))
PY
}
first=(5 9 2 30 11 7 0) second=(8 8 31 2 5 9 4 12 0)
tokens "$work/packed.npy" "${first[@]}" "${second[@]}"
tokens "$work/first.npy" "${first[@]}"
tokens "$work/second.npy" "${second[@]}"

difference() { # difference OPTIONS...
  for part in packed first second; do
    mkdir -p "$work/$part"
    expect 0 run models/lm.kv -D vocab=33 -D d=64 -D heads=2 -D ffn=48 -i "$work/$part.npy" -o "$work/$part" "$@"
  done
  apart "$work/packed/logits.npy" "$work/first/logits.npy" "$work/second/logits.npy"
}
for device in cpu ptxsim; do
  found=$(difference -D separator=0 --device $device)
  awk -v x="$found" 'BEGIN { exit !(x < 1e-5) }' || fail "$device: documents see each other: $found"
done
found=$(difference)
awk -v x="$found" 'BEGIN { exit !(x > 1e-3) }' || fail "without a separator documents see each other, but: $found"
