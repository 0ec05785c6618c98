"""Runs the cases of cases.txt: hostile input through the tool, as a user would give it.

    == name
    $ arguments of kvasir                {T}: a fresh folder with the models of onnx_models.py
    = exit code                          several where it depends on the machine
    > text that must stand in the output (any number)
    | line of {T}/case.kv                (any number)

A case passes when the exit code is the expected one, every text is there, nothing reports an internal fault or a
sanitizer finding, and it ends within the time limit. Then bytes of valid models are cut and changed: whatever comes of
that, the tool must not crash. Arguments select cases by name."""
import os
import pathlib
import random
import resource
import shlex
import subprocess
import sys
import tempfile
import time

import onnx_models

HERE = pathlib.Path(__file__).parent
TOOL = os.environ["KVASIR"]
TIME_LIMIT = 30
FAULTS = ("ERROR: AddressSanitizer", "LeakSanitizer", "runtime error:", "internal error", "does not hold")
SANITIZED = b"__asan_init" in pathlib.Path(TOOL).read_bytes()
MEMORY_LIMIT = 8 << 30  # of address space: no input may make the tool take the machine's memory


class Case:
    def __init__(self, name):
        self.name, self.arguments, self.codes, self.texts, self.lines = name, None, [], [], []


def read_cases(path):
    cases = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        mark, rest = line[:2].strip(), line[2:].lstrip(" ") if line[:2] == "==" else line[2:]
        if mark == "==":
            cases.append(Case(rest))
        elif mark == "$":
            cases[-1].arguments = rest
        elif mark == "=":
            cases[-1].codes = [int(code) for code in rest.split()]
        elif mark == ">":
            cases[-1].texts.append(rest)
        elif mark == "|":
            cases[-1].lines.append(rest)
        elif mark and mark[0] != "#":
            sys.exit("%s:%d: a line begins with ==, $, =, >, | or #" % (path, number))
    return cases


def limit_memory():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))


def run(arguments, folder):
    """(exit code, output); the code is "time" after the time limit and negative for a signal."""
    environment = dict(os.environ, KVASIR_CACHE="off", UBSAN_OPTIONS="exitcode=98",
                       ASAN_OPTIONS="exitcode=99:allocator_may_return_null=1:" + os.environ.get("ASAN_OPTIONS", ""))
    try:
        done = subprocess.run([TOOL] + arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=TIME_LIMIT, preexec_fn=limit_memory, env=environment)
        return done.returncode, done.stdout.decode(errors="replace").replace(str(folder) + "/", "")
    except subprocess.TimeoutExpired as error:
        return "time", (error.stdout or b"").decode(errors="replace")


def faults(code, output):
    found = [line for line in output.splitlines() if any(f in line for f in FAULTS)]
    if code == "time":
        found.append("takes longer than %d s" % TIME_LIMIT)
    elif code < 0 or code > 3:
        found.append("exit code %d" % code)
    return found


def problems(case, folder):
    if case.lines:
        (folder / "case.kv").write_text("\n".join(case.lines) + "\n")
    code, output = run(shlex.split(case.arguments.replace("{T}", str(folder))), folder)
    found = faults(code, output)
    if code not in case.codes:
        found.append("exit code %s, expected %s" % (code, " or ".join(map(str, case.codes))))
    if any(ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160 for c in output):
        found.append("prints a control character")
    found += ["does not say: " + text for text in case.texts if text not in output]
    return found + ["output: " + line[:300] for line in output.splitlines()[:12]] if found else []


def make_folder(folder):
    for name, build in vars(onnx_models).items():
        if name.startswith("model_"):
            (folder / (name[6:] + ".onnx")).write_bytes(build())
    (folder / "folder").mkdir()
    (folder / "twelve.bin").write_bytes(b"aaaabbbbcccc")
    (folder / "link.bin").symlink_to("/etc/passwd")
    (folder / "empty").write_bytes(b"")
    (folder / "zeros").write_bytes(b"\0" * 4096)
    (folder / "noise").write_bytes(random.Random(1).randbytes(4096))
    (folder / "unreadable.onnx").write_bytes(b"x")
    (folder / "unreadable.onnx").chmod(0)
    (folder / "readonly").mkdir(mode=0o555)
    write_tensors(folder)
    write_long_texts(folder)
    write_loops(folder)


def npy(header, data, version=b"\x01\x00", length=None):
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + (len(text) if length is None else length).to_bytes(2, "little") + text + data


def write_tensors(folder):
    good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    files = {
        "good": npy(good, b"\0" * 24),
        "magic": b"not numpy at all",
        "empty": b"",
        "cut_header": npy(good, b"")[:20],
        "cut_data": npy(good, b"\0" * 20),
        "long_data": npy(good, b"\0" * 28),
        "length": npy(good, b"\0" * 24, length=65535),
        "descr": npy(good.replace("<f4", "<x9"), b"\0" * 24),
        "object": npy(good.replace("<f4", "|O"), b"\0" * 48),
        "double": npy(good.replace("<f4", "<f8"), b"\0" * 48),
        "shape": npy(good.replace("(2, 3)", "(3, 2)"), b"\0" * 24),
        "rank": npy(good.replace("(2, 3)", "(6,)"), b"\0" * 24),
        "huge": npy(good.replace("(2, 3)", "(4611686018427387904, 4)"), b"\0" * 24),
        "overflow": npy(good.replace("(2, 3)", "(99999999999999999999, 4)"), b"\0" * 24),
        "negative": npy(good.replace("(2, 3)", "(-2, -3)"), b"\0" * 24),
        "dictionary": npy("[1, 2, 3]", b"\0" * 24),
        "version": npy(good, b"\0" * 24, version=b"\x09\x00"),
    }
    for name, data in files.items():
        (folder / (name + ".npy")).write_bytes(data)


def write_long_texts(folder):
    texts = {
        "parentheses": "y = " + "(" * 100000 + "x" + ")" * 100000,
        "minus": "y = " + "-" * 100000 + "x",
        "sum": "y = x" + " + x" * 100000,
        "blocks": "if true { " * 100000 + "y = x" + " }" * 100000,
        "list": "y = kv.relu <a = " + "[" * 100000 + "1" + "]" * 100000 + "> (x)",
        "name": "y = " + "n" * 1000000,
        "string": "y = kv.relu <a = \"" + "s" * 1000000 + "\"> (x)",
    }
    for name, text in texts.items():
        (folder / ("long_" + name + ".kv")).write_text("model m (float[2] x) => (float[2] y) {\n  " + text + "\n}\n")
    (folder / "long_chain.kv").write_text("model m (float[2] x) => (float[2] y) {\n  y = x\n" +
                                          "  y = kv.relu(y)\n" * 20000 + "}\n")
    (folder / "long_calls.kv").write_text("model m (float[2] x) => (float[2] y) {\n  y = x\n" + "  y = f(y)\n" * 20000 +
                                          "}\ndef f (x) {\n  param float[2] w ~ ones\n  return x * w\n}\n")


def write_loops(folder):
    head = ".version 8.3\n.target sm_80\n.address_size 64\n"
    (folder / "endless.ptx").write_text(head + ".visible .entry k(.param .u64 p) { L: bra L; ret; }\n")
    (folder / "slow.ptx").write_text(head + ".visible .entry k() { .reg .b32 %r<2>; .reg .pred %p<2>; mov.u32 %r1, 0;\n"
                                     "L: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000; @%p1 bra L; ret; }\n")


def mutate(folder):
    """Deterministic: the same cuts and changes every time."""
    generator, found = random.Random(7), []
    for name in ("valid", "symbolic", "add_shapes", "external_offset", "function_arity"):
        data = (folder / (name + ".onnx")).read_bytes()
        copies = [data[:len(data) * i // 12] for i in range(12)]
        for _ in range(28):
            changed = bytearray(data)
            for _ in range(generator.randint(1, 4)):
                changed[generator.randrange(len(changed))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
            copies.append(bytes(changed))
        for i, copy in enumerate(copies):
            path = folder / "mutated.onnx"
            path.write_bytes(copy)
            code, output = run(["check", str(path)], folder)
            found += ["%s, change %d: %s (bytes %s)" % (name, i, f, copy.hex()) for f in faults(code, output)]
    return found


def main():
    failed = ran = 0
    chosen = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        make_folder(folder)
        for case in read_cases(HERE / "cases.txt"):
            if chosen and not any(text in case.name for text in chosen):
                continue
            start = time.monotonic()
            found = problems(case, folder)
            seconds = time.monotonic() - start
            ran += 1
            failed += bool(found)
            if found or seconds > 5:
                print("%s %s (%.1f s)" % ("FAIL" if found else "slow", case.name, seconds), *found, sep="\n     ", flush=True)
        if not chosen:
            found = mutate(folder)
            failed += bool(found)
            print(*found, sep="\n")
    print("%d cases, %d failed" % (ran, failed))
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
