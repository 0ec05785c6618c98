#!/usr/bin/env bash
# Sourced by the scripts of this folder, after tests/e2e/support.sh: models, inputs, comparison.

cc=$(command -v cc || true)
[ -n "$cc" ] || { echo "SKIP: no C compiler to link with"; exit 77; }

# tokens FILE ROWS COLUMNS: int32 as FILE.npy and, without header, FILE.raw.
tokens() {
  python3 - "$@" <<'PY'
import struct, sys
path, rows, columns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
head = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d, %d), }" % (rows, columns)
head += " " * (-(len(head) + 11) % 64) + "\n"
data = b"".join(struct.pack("<i", i * 37 % 250) for i in range(rows * columns))
open(path + ".npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)
open(path + ".raw", "wb").write(data)
PY
}

# raw NPY OUT: the elements alone.
raw() {
  python3 -c 'import struct, sys
d = open(sys.argv[1], "rb").read()
open(sys.argv[2], "wb").write(d[10 + struct.unpack("<H", d[8:10])[0]:])' "$@"
}

# close A B TOLERANCE: .npy files of floats.
close() {
  python3 - "$@" <<'PY'
import array, struct, sys
def load(path):
    d = open(path, "rb").read()
    return array.array("f", d[10 + struct.unpack("<H", d[8:10])[0]:])
a, b = load(sys.argv[1]), load(sys.argv[2])
assert len(a) == len(b) > 0
worst = max(abs(x - y) for x, y in zip(a, b))
assert worst <= float(sys.argv[3]), worst
PY
}

same() { cmp -s "$1" "$2" || fail "$1 and $2 differ"; }

# The light models of the ONNX suite: its folder in $suite, or empty.
find_suite() {
  local archive=../shared/onnx-suite-1.22.0.tar.xz
  suite=${KVASIR_ONNX_SUITE:-}
  if [ -z "$suite" ] && [ -f "$archive" ]; then
    tar xJf "$archive" -C "$work" data/light
    suite=$work/data
  elif [ -z "$suite" ]; then
    suite=$(python3 -c 'import onnx, os
if onnx.__version__ == "1.22.0": print(os.path.join(os.path.dirname(onnx.__file__), "backend/test/data"))' 2>/dev/null || true)
  fi
  [ -f "$suite/light/light_resnet50.onnx" ] || suite=
}

# with_library PROGRAM: runs a program, built without sanitizers, on libkvasir.so, which may have been built with them.
with_library() {
  if [ -z "${KVASIR_SANITIZED:-}" ]; then
    "$@"
  else
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 "$@"
  fi
}

# need_aarch64: skips where programs for aarch64 are not linked or run.
need_aarch64() {
  local tool
  for tool in aarch64-linux-gnu-gcc aarch64-linux-gnu-ar qemu-aarch64; do
    command -v $tool >/dev/null || { echo "SKIP: no $tool (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)"; exit 77; }
  done
}

# for_aarch64 PREFIX SOURCE...: objects PREFIX-<source>.o, as a deployed runtime has them.
for_aarch64() {
  local prefix=$1
  shift
  printf '%s\n' "$@" | grep -v ptxsim | xargs -P 2 -I {} sh -c \
    "aarch64-linux-gnu-gcc -std=c17 -O0 -fPIC -D_GNU_SOURCE -DKVA_DEPLOYED=1 -DKVA_VERSION='\"\"' -ffp-contract=off -I . -c \
      -o '$prefix-'\$(echo {} | tr / -).o {}" || fail "compiling for aarch64"
}

# on_aarch64 CPU PROGRAM...: runs it on the CPU that qemu calls so ("max": all that it knows).
on_aarch64() { qemu-aarch64 -cpu "$1" -L /usr/aarch64-linux-gnu "${@:2}"; }
