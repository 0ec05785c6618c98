#!/usr/bin/env bash
# A bf16 training step of the 1.5B preset's layers through nvJitLink, a compiler of PTX that ignores setmaxnreg: what
# comes of kernels whose PTX is shipped alone, at worst. Products by warpgroups are not serialised and need no stack, nor
# does anything else but attention, which is serialised for want of registers, with a stack no larger than the limits
# here. Machine code of ptxas has none of that (test_assembler.sh).
. "$(dirname "$0")/support.sh"
command -v python3 >/dev/null || { echo "SKIP: no python3" && exit 77; }
library=$("$KVASIR" doctor --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["nvjitlink"]["path"] or "")')
[ -n "$library" ] || { echo "SKIP: no libnvJitLink (CUDA toolkit, or nvidia-nvjitlink of the Python in VIRTUAL_ENV)" && exit 77; }

expect 0 build models/lm.kv -D preset=1.5B -D layers=2 --pin B=4 --pin T=2048 --train --precision bf16 --target sm_90a \
  --emit=ptx -o "$work/step.ptx"
python3 - "$library" "$work/step.ptx" >"$work/out" 2>&1 <<'PY' || fail "the JIT linker's code is worse than it was"
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

bad = [x for x in re.findall(r"\((C75\d\d)\).*function '(\w+)'", log)
       if x[0] not in ("C7504", "C7508", "C7519") and not (x[0] == "C7512" and "_attention" in x[1])]
stacks = re.findall(r"Function properties for '?(\w+)'?[^\n]*\n[^\n]*?(\d+) bytes stack", log)
limits = {"attention_grad_kv": 544, "attention_grad_q": 104, "attention": 128}
for name, stack in stacks:
    kind = re.match(r"kva_k\d+_(attention_grad_kv|attention_grad_q|attention|)", name).group(1)
    if int(stack) > limits.get(kind, 64):
        bad.append((name, stack + " bytes of stack"))
print(len(stacks), "kernels;", bad)
sys.exit(bool(bad) or len(stacks) < 60)
PY
