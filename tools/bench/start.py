#!/usr/bin/env python3
"""Start-up: CPU time of a whole process that loads a compiled model and gives its first output.

    tools/bench/start.py                          the small language model
    tools/bench/start.py light_resnet50.onnx ...  and further models, whose shapes are fixed

Builds executables with `kvasir build --exe` and runs each in turn, one thread, inputs made up; the files are in the
page cache. Prints the median of user and system time together, and of the time on the clock.
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def build(kvasir, model, options, out):
    subprocess.run([kvasir, "build", model, "--exe", "-o", out, *options], check=True)


def measure(command):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--kvasir", default=os.path.join(ROOT, "build/release/kvasir"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        cases = [("lm.kv small, T=16", os.path.join(ROOT, "models/lm.kv"), ["-D", "preset=small"],
                  ["--pin", "B=1", "--pin", "T=16"])]
        cases += [(os.path.basename(m), m, [], []) for m in args.models]
        commands, samples = [], []
        for i, (_, model, options, arguments) in enumerate(cases):
            build(args.kvasir, model, options, f"{work}/{i}")
            commands.append([f"{work}/{i}", "--threads", "1", *arguments])
            samples.append([])
        for _ in range(args.rounds + 1):
            for command, times in zip(commands, samples):
                times.append(measure(command))
        print("| model | CPU ms | clock ms | file MiB |\n|---|---:|---:|---:|")
        for i, (case, times) in enumerate(zip(cases, samples)):
            cpu, wall = (1e3 * statistics.median(t[k] for t in times[1:]) for k in (0, 1))
            print(f"| {case[0]} | {cpu:.1f} | {wall:.1f} | {os.path.getsize(f'{work}/{i}') / 2**20:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
