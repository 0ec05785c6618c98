"""killed.py FIRST STEP: kills a rank of a training run with sharded checkpoints with SIGKILL, at 50 moments from its start to its
end, of which this takes number FIRST, FIRST + STEP, ... The others must end within 30 seconds with a message. The run then goes on: on the
same mesh to the bits of the run that nothing disturbed, on another one to losses within 1e-6. The command of a run is that of
test_killed.sh: $LAUNCHER, $KVASIR, and the model's options in $OPTIONS; $WORK is a folder for all."""
import filecmp
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

MOMENTS, STEPS, LIMIT = 50, 12, 30
MESHES = [("data=2,zero=1", 2), ("data=2,zero=3", 2), ("tensor=2", 2), ("data=2,tensor=2,zero=2", 4)]
work = os.environ["WORK"]


def command(folder, axes, ranks, every, *more):
    train = [os.environ["KVASIR"], "train", *shlex.split(os.environ["OPTIONS"]), "--steps", str(STEPS), "--checkpoint", folder,
             "--checkpoint-every", str(every), "--metrics", folder + ".jsonl", *more]
    if ranks == 1:
        return train + ["--micro-batch", "8"]
    return [os.environ["LAUNCHER"], "-n", str(ranks), *train, "--mesh", axes]


def run(*args):
    done = subprocess.run(command(*args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    if done.returncode:
        raise SystemExit("%s: exit code %d\n%s" % (args, done.returncode, done.stdout.decode(errors="replace")))


def losses(folder):
    events = [json.loads(line) for line in open(folder + ".jsonl")]
    return [e["loss"] for e in events if e["event"] == "step"]


def processes(folder):
    """Ranks of a run -> their processes."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            words = open("/proc/%s/cmdline" % entry, "rb").read().split(b"\0")
            if words[0] != os.environ["KVASIR"].encode() or folder.encode() not in words:
                continue
            for word in open("/proc/%s/environ" % entry, "rb").read().split(b"\0"):
                name, _, value = word.partition(b"=")
                if name in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK"):
                    found[int(value)] = int(entry)
        except (OSError, ValueError, IndexError):
            continue
    return found


def listing(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def lines(folder):
    try:
        return open(folder + ".jsonl", "rb").read().count(b"\n")
    except OSError:
        return 0


def moment(i, seconds):
    """(checkpoint interval, text, condition, wait after it) of moment i. Conditions look at what is on disk, so that they hold on
    any machine."""
    k = 1 + i * (STEPS - 2) // MOMENTS  # a step, from the first to the last but one
    temporary = "step-%010d." % k
    kind = i % 5
    if kind == 0:
        return 3, "%.3f s after its start" % (seconds * i / MOMENTS), lambda f: True, seconds * i / MOMENTS
    if kind == 1:
        return 1, "as checkpoint %d begins" % k, lambda f: any(n.startswith(temporary) for n in listing(f)), 0
    if kind == 2:
        def shards(f):
            return any(n.startswith(temporary) and listing(f + "/" + n) for n in listing(f))
        return 1, "as a shard of checkpoint %d is written" % k, shards, 0
    if kind == 3:
        return 1, "as checkpoint %d has its name" % k, lambda f: "step-%010d" % k in listing(f), 0
    return 3, "after %d lines of metrics" % k, lambda f: lines(f) >= k, 0.001 * (i % 3)


def kill(folder, axes, ranks, rank, i, seconds):
    """Starts a run and kills a rank; whether it still ran."""
    every, text, reached, wait = moment(i, seconds)
    begin = time.time()
    out = open(folder + ".out", "wb")
    mpi = subprocess.Popen(command(folder, axes, ranks, every), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    found = {}
    while len(found) < ranks and mpi.poll() is None and time.time() < begin + LIMIT:
        found = processes(folder)
    if len(found) == ranks:
        while not reached(folder) and mpi.poll() is None and time.time() < begin + 2 * LIMIT:
            pass
        time.sleep(wait)
        try:
            os.kill(found[rank], signal.SIGKILL)
        except ProcessLookupError:
            pass
    killed = time.time()
    try:
        code = mpi.wait(LIMIT)
    except subprocess.TimeoutExpired:
        # Open MPI 4.1's launcher ends all ranks, says so, and then may wait for a lock in PMIx_server_finalize for ever.
        mpi.kill()
        code = mpi.wait()
        if processes(folder):
            raise SystemExit("moment %d: the others live after %d s" % (i, LIMIT))
    after = time.time() - killed
    while processes(folder):
        if time.time() - killed > LIMIT:
            raise SystemExit("moment %d: a process lives after %d s" % (i, LIMIT))
        time.sleep(0.05)
    said = open(folder + ".out", "rb").read().decode(errors="replace")
    if code and "ignal" not in said:
        raise SystemExit("moment %d: exit code %d without a message:\n%s" % (i, code, said))
    print("moment %2d: rank %d of %s killed %s: exit code %d after %.2f s" % (i, rank, axes, text, code, after), flush=True)
    return code != 0


def same_folder(a, b):
    names = sorted(os.listdir(a))
    return names == sorted(os.listdir(b)) and filecmp.cmpfiles(a, b, names, shallow=False)[0] == names


@functools.cache
def never_killed(axes, ranks):
    folder = "%s/never-%s" % (work, axes)
    run(folder, axes, ranks, 3)
    return folder


@functools.cache
def duration(axes, ranks):
    """Of a run whose code is compiled already."""
    never_killed(axes, ranks)
    begin = time.time()
    run("%s/timed-%s" % (work, axes), axes, ranks, 3)
    return time.time() - begin


def check(i):
    axes, ranks = MESHES[i // 2 % len(MESHES)]
    reference, seconds = never_killed(axes, ranks), duration(axes, ranks) if i % 5 == 0 else 0
    last = "step-%010d" % STEPS
    folder = "%s/killed-%d" % (work, i)
    while not kill(folder, axes, ranks, i % 2, i, seconds):
        seconds *= 0.6  # it had ended: earlier
        shutil.rmtree(folder, ignore_errors=True)
        os.remove(folder + ".jsonl")
    left = [n for n in listing(folder) if n.endswith(".tmp")]
    other = folder + "-other"
    if os.path.exists(folder):
        shutil.copytree(folder, other)
    if os.path.exists(folder + ".jsonl"):
        shutil.copy(folder + ".jsonl", other + ".jsonl")
    run(folder, axes, ranks, 3, "--resume")
    if not same_folder(reference + "/" + last, folder + "/" + last):
        raise SystemExit("moment %d: a run that goes on has other bits" % i)
    if losses(folder) != losses(reference):
        raise SystemExit("moment %d: a run that goes on reports other losses" % i)
    if any(n.endswith(".tmp") for n in listing(folder)):
        raise SystemExit("moment %d: a left-over stays: %s" % (i, listing(folder)))
    run(other, *(MESHES[(i // 2 + 1 + i % 3) % len(MESHES)] if i % 4 else ("", 1)), 3, "--resume")
    a, b = losses(reference), losses(other)
    difference = max(abs(x - y) for x, y in zip(a, b))
    if len(a) != len(b) or difference > 1e-6:
        raise SystemExit("moment %d: on another mesh losses differ by %g" % (i, difference))
    for path in (folder, other):
        shutil.rmtree(path)
    return bool(left), difference


def main():
    first, step = int(sys.argv[1]), int(sys.argv[2])
    results = [check(i) for i in range(first, MOMENTS, step)]
    print("%d moments; %d left a temporary folder; losses on another mesh within %.2g" %
          (len(results), sum(left for left, _ in results), max(d for _, d in results)))


main()
