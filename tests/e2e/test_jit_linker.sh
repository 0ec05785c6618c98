#!/usr/bin/env bash
# A bf16 training step of the 1.5B preset's layers through nvJitLink, a compiler of PTX that ignores setmaxnreg: what
# comes of kernels whose PTX is shipped alone, at worst. As with ptxas (test_assembler.sh), no products of warpgroups are
# serialised, attention's included, and no kernel needs more than 64 bytes of stack; by 13.0 the gradient of keys and
# values needs 112. Heads are as many as keys' heads, and four times as many, whose gradients walk several heads.
. "$(dirname "$0")/support.sh"
[ -z "${KVASIR_SANITIZED:-}" ] || { echo "SKIP: the linker's report is the same without sanitizers"; exit 77; }
command -v python3 >/dev/null || { echo "SKIP: no python3" && exit 77; }
library=$("$KVASIR" doctor --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["nvjitlink"]["path"] or "")')
[ -n "$library" ] || { echo "SKIP: no libnvJitLink (CUDA toolkit, or nvidia-nvjitlink of the Python in VIRTUAL_ENV)" && exit 77; }

# name, least number of kernels, arguments
check() {
  expect 0 build models/lm.kv -D preset=1.5B "${@:3}" --train --precision bf16 --target sm_90a --emit=ptx -o "$work/$1.ptx"
  python3 - "$library" "$work/$1.ptx" "$2" >"$work/out" 2>&1 <<'PY' || fail "the JIT linker's code is worse than ptxas's"
import ctypes, re, sys

link = ctypes.CDLL(sys.argv[1])
handle = ctypes.c_void_p()
options = (ctypes.c_char_p * 2)(b"-arch=sm_90a", b"-verbose")
text = open(sys.argv[2], "rb").read() + b"\0"
assert link.nvJitLinkCreate(ctypes.byref(handle), 2, options) == 0
assert link.nvJitLinkAddData(handle, 2, text, ctypes.c_size_t(len(text)), b"step") == 0  # 2: PTX
assert link.nvJitLinkComplete(handle) == 0
size = ctypes.c_size_t()
link.nvJitLinkGetInfoLogSize(handle, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value + 1)
link.nvJitLinkGetInfoLog(handle, log)
log = log.value.decode()

bad = [x for x in re.findall(r"\((C75\d\d)\)([^\n]*)", log) if "C7504" <= x[0] <= "C7515"]
stacks = re.findall(r"Function properties for '?(\w+)'?[^\n]*\n[^\n]*?(\d+) bytes stack", log)
major, minor = ctypes.c_uint(), ctypes.c_uint()
assert link.nvJitLinkVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
older = (major.value, minor.value) < (13, 5)
limits = [(name, int(stack), 112 if older and "attention_grad_kv" in name else 64) for name, stack in stacks]
bad += [(name, f"{stack} bytes of stack") for name, stack, limit in limits if stack > limit]
attention = sum("_attention" in name for name, _ in stacks)
print(len(stacks), "kernels,", attention, "of attention;", bad)
sys.exit(bool(bad) or len(stacks) < int(sys.argv[3]) or attention < 4)
PY
}

check equal 60 -D layers=2 --pin B=4 --pin T=2048
check grouped 40 -D layers=1 -D kv_heads=4 --pin B=4 --pin T=2048
