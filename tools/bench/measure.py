"""Fair samples on a machine that others may use: quiet moments, programs that take turns, medians.

A sample is disturbed when programs other than the measured one used more than 5 % of the machine while it ran. It is
then repeated, TRIES times in all at most, and the least disturbed one is kept. Those still disturbed count only when
there are no others.
"""
import json
import os
import statistics
import subprocess
import time

TRIES = 4
TICK = os.sysconf("SC_CLK_TCK")
CPUS = os.cpu_count()


def environment(**more):
    """The environment without variables that change the speed of somebody's BLAS."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_", "OMP_", "MKL_", "KMP_"))}
    return {**kept, "KVASIR_CACHE": "off", **more}  # peak memory is with the compiler


def choose_cpus(n):
    """n CPUs that this process may use, one per core as long as there are cores."""
    first, rest, seen = [], [], set()
    for cpu in sorted(os.sched_getaffinity(0), reverse=True):  # interrupts tend to go to low numbers
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as f:
                core = f.read()
        except OSError:
            core = str(cpu)
        (rest if core in seen else first).append(cpu)
        seen.add(core)
    return (first + rest)[:n]


# ---- quiet moments --------------------------------------------------------------------------------------------------


def idle_seconds():
    """Idle time of all CPUs since boot; time stolen by the host does not count as idle."""
    with open("/proc/stat", encoding="ascii") as f:
        fields = f.readline().split()
    return (int(fields[4]) + int(fields[5])) / TICK


def process_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Window:
    """How much CPU time others use between creation and `others()`."""

    def __init__(self):
        self.start, self.idle = time.monotonic(), idle_seconds()

    def others(self, own):
        """CPU seconds of others, and whether they disturbed; below 30 ms the clocks are too coarse to tell."""
        wall = time.monotonic() - self.start
        used = max(0.0, CPUS * wall - (idle_seconds() - self.idle) - own)
        return used, used > max(0.03, 0.05 * CPUS * wall)


class Patience:
    """Seconds that a whole benchmark may spend on waiting for others; when they are used up, nothing is repeated."""

    def __init__(self, seconds):
        self.left = seconds

    def wait_until_idle(self):
        while self.left > 0:
            window = Window()
            time.sleep(0.2)
            if not window.others(0.0)[1]:
                return
            self.left -= 0.2


def quiet(take, patience, tries=TRIES):
    """take() gives (value, CPU seconds of its own). Returns (value, disturbed) of the best try."""
    best = None
    for i in range(tries):
        if i:
            patience.wait_until_idle()
        window = Window()
        value, own = take()
        used, disturbed = window.others(own)
        if best is None or used < best[0]:
            best = used, value, disturbed
        if not disturbed or patience.left <= 0:
            break
    return best[1], best[2]


# ---- programs -------------------------------------------------------------------------------------------------------


class Unavailable(Exception):
    """A program that cannot be measured, with the reason."""


class Worker:
    """A program that speaks the protocol of serve.h."""

    def __init__(self, argv, threads, env):
        cpus = choose_cpus(threads)
        try:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                            text=True, env=env, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        except OSError as error:
            raise Unavailable(f"{argv[0]}: {error.strerror}") from None
        self.ready = self.read()
        self.errors = [case.get("error") for case in self.ready["cases"]]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            words = self.process.stderr.read().strip().splitlines()
            raise Unavailable(words[-1] if words else f"{self.process.args[0]} ended with {self.process.wait()}")
        return json.loads(line)

    def sample(self, case, seconds, patience):
        def take():
            before = process_seconds(self.process.pid)
            self.process.stdin.write(f"{case} {seconds}\n")
            self.process.stdin.flush()
            value = self.read()["seconds"]
            return value, process_seconds(self.process.pid) - before

        return quiet(take, patience)

    def close(self):
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()
        self.process.wait()


def run_program(argv, threads, env):
    """Runs a program to its end: (standard output, CPU seconds, peak resident bytes)."""
    cpus = choose_cpus(threads)
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   env=env, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    except OSError as error:
        raise Unavailable(f"{argv[0]}: {error.strerror}") from None
    output = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        words = output.strip().splitlines()
        raise Unavailable(words[-1] if words else f"{argv[0]} ended with {process.returncode}")
    return output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


class Samples:
    """Values of one thing over the rounds, as `quiet` gives them."""

    def __init__(self):
        self.taken = []

    def add(self, sample):
        self.taken.append(sample)

    def values(self):
        """Those taken in quiet; all of them when there are none such."""
        return [value for value, disturbed in self.taken if not disturbed] or [value for value, _ in self.taken]

    def median(self):
        return statistics.median(self.values()) if self.taken else None

    def spread(self, of=lambda value: value):
        """Half of the distance between the quartiles of of(value), as a share of the median."""
        values = sorted(of(value) for value in self.values())
        if len(values) < 3:
            return (values[-1] - values[0]) / 2 / statistics.median(values)
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return (high - low) / 2 / middle

    def disturbed(self):
        return sum(disturbed for _, disturbed in self.taken)
