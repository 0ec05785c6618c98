#!/usr/bin/env python3
"""Training speed of a program made by `kvasir build --train --exe` beside `kvasir train`: they run the same kernels.

    tools/bench/trainer.py                    the small language model on 10 MB of the machine's own texts

Both train from the same seed on the same file, the same CPUs and threads, without evaluation, output to files; whole
processes take turns. Of every process the first steps are left out; tokens/s are those of its median step, from the
times in --metrics, which the run itself takes. CPU ms a step: user and system time of a whole process less that of one
with few steps, so without compiler and start; others on the machine hardly change it. A process during which others
used more than 5 % of the machine is repeated (measure.py). Last the losses of both are compared: equal, or the tool
fails.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

from measure import Patience, Samples, environment, quiet, run_program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKENS, SKIPPED, SHORT = 8 * 256, 5, 6  # tokens a step; steps that warm up; steps of the short processes
TEXTS = ("/usr/share/common-licenses", "/usr/share/doc")


class Program:
    def __init__(self, name, argv):
        self.name, self.argv = name, argv
        self.rate, self.best, self.cpu = Samples(), Samples(), Samples()
        self.losses = None

    def run(self, args, steps, work):
        """One process: seconds of its steps, CPU seconds, losses."""
        metrics = f"{work}/metrics.jsonl"
        argv = [*self.argv, "--steps", str(steps), "--threads", str(args.threads), "--eval-every", "0", "--metrics",
                metrics]
        _, cpu, _ = run_program(argv, args.threads, environment())
        with open(metrics, encoding="ascii") as f:
            lines = [json.loads(line) for line in f]
        ends = [line["seconds"] for line in lines]
        return [b - a for a, b in zip(ends, ends[1:])], cpu, [line["loss"] for line in lines]

    def sample(self, args, work, patience):
        def take():
            short, long = self.run(args, SHORT, work), self.run(args, args.steps, work)
            return (short, long), short[1] + long[1]

        (short, long), disturbed = quiet(take, patience)
        seconds = long[0][SKIPPED:]
        self.rate.add((TOKENS / statistics.median(seconds), disturbed))
        self.best.add((TOKENS / min(seconds), disturbed))
        self.cpu.add((1e3 * (long[1] - short[1]) / (args.steps - SHORT), disturbed))
        self.losses = long[2]


def prepare(args, work):
    model = [os.path.join(ROOT, "models/lm.kv"), "-D", "preset=small", "-D", "vocab=257"]
    data, trainer = f"{work}/text.tok", f"{work}/trainer"
    run_program([args.kvasir, "data", *TEXTS, "--limit", "10M", "-o", data], 1, environment())
    run_program([args.kvasir, "build", *model, "--train", "--exe", "-o", trainer], 1, environment())
    source = ["--data", f"tokens:{data},length=256", "--seed", "1"]
    return [Program("trainer", [trainer, *source]), Program("kvasir train", [args.kvasir, "train", *model, *source])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for other programs in all")
    parser.add_argument("--kvasir", default=os.path.join(ROOT, "build/release/kvasir"))
    args = parser.parse_args()
    patience = Patience(args.patience)
    with tempfile.TemporaryDirectory() as work:
        programs = prepare(args, work)
        for i in range(args.rounds):
            for program in programs if i % 2 else reversed(programs):
                program.sample(args, work, patience)
    print("| program | tokens/s, median step | best step | CPU ms a step |\n|---|---:|---:|---:|")
    for p in programs:
        print(f"| {p.name} | {p.rate.median():.0f} | {max(p.best.values()):.0f} | {p.cpu.median():.1f} |")
    a, b = programs
    print(f"\ntrainer / kvasir train: median {a.rate.median() / b.rate.median():.3f}, best "
          f"{max(a.best.values()) / max(b.best.values()):.3f}, CPU time {b.cpu.median() / a.cpu.median():.3f}; "
          f"{a.rate.disturbed() + b.rate.disturbed()} of {2 * args.rounds} samples disturbed by other programs")
    if a.losses != b.losses:
        print("trainer.py: the losses differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
