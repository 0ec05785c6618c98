"""Fails allocations of a program, one a run: each run must end with a message and exit code 1 or 3, or as if nothing had
happened.

usage: each.py PRELOAD RUNS FOLDER PROGRAM...

Of the N allocations RUNS are chosen evenly (all: each of them). Runs are in FOLDER, which is emptied before each; what a
run that succeeds leaves there must be what the run without failures left."""
import hashlib, os, pathlib, re, shutil, signal, subprocess, sys

preload, runs, folder, program = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4:]
count_file = folder.with_suffix(".count")


def run(at):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    env = dict(os.environ, LD_PRELOAD=preload, KVA_FAIL_COUNT=str(count_file), KVA_FAIL_AT=str(at),
               ASAN_OPTIONS="verify_asan_link_order=0:exitcode=99:" + os.environ.get("ASAN_OPTIONS", ""))
    try:
        r = subprocess.run(program, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    except subprocess.TimeoutExpired as e:
        return "hangs", e.stderr or b"", b""
    return r.returncode, r.stderr, r.stdout


def left(out):
    """What a run printed and wrote, without times."""
    def plain(data):
        return re.sub(rb'"seconds": [^,}]*|[0-9.]+ s\b.*|[0-9.]+ steps/s.*', b"", data)
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".html" and p.name != ".lock")
    return [plain(out)] + [(p.name, hashlib.sha256(plain(p.read_bytes())).hexdigest()) for p in files]


code, err, out = run(0)
if code:
    sys.exit(f"without failures: exit code {code}: {err.decode(errors='replace')}")
expected, n = left(out), int(count_file.read_text())
step = 1 if runs == "all" else max(1, n / int(runs))
chosen = sorted({min(n, int(1 + i * step)) for i in range(int(n / step))})
print(f"{n} allocations, {len(chosen)} of them fail: {' '.join(program)}")
wrong, codes = 0, {}
for at in chosen:
    code, err, out = run(at)
    codes[code] = codes.get(code, 0) + 1
    text = err.decode(errors="replace")
    problem = None
    if code == 0:
        problem = None if left(out) == expected else "succeeds with another result"
    elif code not in (1, 3):
        problem = "hangs" if code == "hangs" else signal.Signals(-code).name if code < 0 else f"exit code {code}"
    elif not text.strip():
        problem = f"exit code {code} without a message"
    if "Sanitizer" in text or "runtime error" in text:
        # A new thread's own bookkeeping takes memory, too: the sanitizer ends the process where the C library has none.
        problem = None if "pthread_getattr_np" in text else "sanitizer"
    if problem:
        wrong += 1
        if wrong <= int(os.environ.get("KVA_FAIL_SHOW", "5")):
            print(f"allocation {at}: {problem}: {text[:int(os.environ.get('KVA_FAIL_TEXT', '400'))]}", flush=True)
print(f"exit codes {codes}, {wrong} wrong")
sys.exit(wrong > 0)
