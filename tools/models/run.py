"""Runs the corpus in Kvasir and in ONNX Runtime: python3 tools/models/run.py FOLDER [--tool FILE] [--only PART]

Needs pip's numpy and onnxruntime. For each NAME.onnx of the folder, smallest first, FOLDER/results.jsonl gets a line:
what `kvasir check` and the run said, the largest error relative to the largest output, times, peak memory. Errors are
against ONNX Runtime without its optimisations of graphs, times against it with them. Models with a line are left out,
so that a run continues where another ended. --table writes the lines as a table of Markdown.

Times are CPU seconds on one thread, medians of runs that take turns; a symbolic model takes turns with its static twin.
Memory is the peak of whole processes, compiler included.
"""
import argparse
import functools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 600  # seconds for one model
AGREE = 1e-5


def runs_of(path):
    """The inputs of each run, by name."""
    with numpy.load(path.with_suffix(".npz")) as file:
        arrays = {tuple(key.split("/", 1)): value for key, value in file.items()}
    runs = [{n: v for (r, n), v in arrays.items() if r == str(run)} for run in range(2)]
    return [inputs for inputs in runs if inputs]


# ---- the process of one model ---------------------------------------------------------------------------------------


def ort_session(path, as_written=False):
    """as_written: without the rewriting of graphs, some of which rounds quantised values elsewhere than the model does."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def kvasir_session(path):
    import kvasir
    options = kvasir.SessionOptions()
    options.intra_op_num_threads = 1
    return kvasir.InferenceSession(str(path), options)


def difference(found, expected):
    """The largest difference relative to the largest expected value; infinity where shapes or kinds differ."""
    if found.shape != expected.shape:
        return math.inf
    if expected.size == 0 or expected.dtype.kind in "OU":
        return 0.0 if numpy.array_equal(found, expected) else math.inf
    a, b = found.astype(numpy.float64), expected.astype(numpy.float64)
    same = (a == b) | (numpy.isnan(a) & numpy.isnan(b))
    if same.all():
        return 0.0
    scale = numpy.abs(b[numpy.isfinite(b)]).max(initial=0.0)
    worst = numpy.abs(a - b)[~same].max()
    return math.inf if not numpy.isfinite(worst) or scale == 0 else float(worst / scale)


def take_turns(steps, seconds=2.0):
    """Median CPU seconds of each step, of three to nine rounds. Short ones are repeated for a round."""
    times = {name: [] for name in steps}
    start = time.process_time()
    for taken in range(9):
        if taken >= 3 and time.process_time() - start > seconds:
            break
        for name, step in steps.items():
            before = time.process_time()
            count = 0
            while count == 0 or time.process_time() - before < 0.005:
                step()
                count += 1
            times[name].append((time.process_time() - before) / count)
    return {name: statistics.median(values) for name, values in times.items()}


def compare(path):
    """In a process of its own: errors and times."""
    import kvasir
    result = {}
    try:
        peer = ort_session(path, as_written=True)
        expected = [peer.run(None, run) for run in runs_of(path)]
        ort = ort_session(path)
    except Exception as error:
        return {"status": "peer", "message": str(error).strip().splitlines()[0][:300]}
    try:
        before = time.process_time()
        session = kvasir_session(path)
        result["compile"] = time.process_time() - before
        names = [port.name for port in session.get_inputs()]
        runs = [{n: v for n, v in run.items() if n in names} for run in runs_of(path)]
        found = [session.run(None, run) for run in runs]
    except Exception as error:  # whatever Kvasir says is the result
        return {**result, "status": "refused", "message": str(error).strip().replace(f"{path}: ", "")[:600]}
    errors = [difference(a, b) for fs, es in zip(found, expected) for a, b in zip(fs, es)]
    result["error"] = max(errors, default=0.0)
    result["status"] = "agrees" if result["error"] <= AGREE else "differs"
    sessions = {"kvasir": session, "ort": ort}
    twin = path.with_name(re.sub(r"y\.onnx$", ".onnx", path.name))
    if twin != path and twin.exists():
        try:
            sessions["static"] = kvasir_session(twin)
        except kvasir.Error:
            pass
    result["seconds"] = take_turns({name: functools.partial(s.run, None, runs[0]) for name, s in sessions.items()})
    return result


def run_peer(path):
    """In a process of its own, for its peak memory: one run of ONNX Runtime."""
    session = ort_session(path)
    session.run(None, runs_of(path)[0])
    return {}


# ---- the processes of a model ---------------------------------------------------------------------------------------


def peak_of(arguments, environment):
    """(exit code, peak resident bytes, error output) of a program."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return process.returncode, usage.ru_maxrss * 1024, errors.read()


def memory(path, tool, environment):
    with tempfile.TemporaryDirectory() as folder:
        arguments = [tool, "run", path, "--threads", "1"]
        for k, (name, value) in enumerate(runs_of(path)[0].items()):
            numpy.save(f"{folder}/{k}.npy", value)
            arguments += ["--input", f"{name}={folder}/{k}.npy"]
        code, own, _ = peak_of(arguments, environment)
    peer_code, peer, _ = peak_of([sys.executable, __file__, "--peer", path], environment)
    return {"memory": {"kvasir": own if code == 0 else None, "ort": peer if peer_code == 0 else None}}


def environment_of(tool):
    return {**os.environ, "KVASIR_CACHE": "off", "KVASIR_LIBRARY": str(tool.parent / "libkvasir.so"),
            "PYTHONPATH": str(ROOT / "tools/python")}


def compared(script, model, environment, limit):
    """What `script --compare MODEL` prints, or how it ended."""
    try:
        done = subprocess.run([sys.executable, script, "--compare", model], capture_output=True, text=True,
                              env=environment, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "message": f"more than {limit} s"}
    if done.returncode:
        return {"status": "crash", "message": f"exit code {done.returncode}: " + done.stderr.strip()[-300:]}
    return json.loads(done.stdout.splitlines()[-1])


def measure(path, tool, environment):
    checked = subprocess.run([tool, "check", path], capture_output=True, text=True, env=environment)
    result = {"name": path.stem, "bytes": path.stat().st_size, "check": checked.returncode}
    result.update(compared(__file__, path, environment, LIMIT))
    if "seconds" in result:
        result.update(memory(path, tool, environment))
    return result


def last_results(path):
    """The last line of each model, by name."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    last = {r["name"]: r for r in lines}
    return [last[name] for name in sorted(last)]


def append(path, result):
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")


def measure_all(folder, tool, only):
    environment, results = environment_of(tool), folder / "results.jsonl"
    known = {r["name"] for r in last_results(results)}
    models = [p for p in folder.glob(f"{only}*.onnx") if p.stem not in known and p.with_suffix(".npz").exists()]
    for path in sorted(models, key=lambda p: p.stat().st_size):
        result = measure(path, tool, environment)
        append(results, result)
        print(result["name"], result["status"], result.get("message", result.get("error")), flush=True)


# ---- the table ------------------------------------------------------------------------------------------------------


def cell(result, *keys):
    value = result
    for key in keys:
        value = (value or {}).get(key)
    return value


def quotient(result, a, b):
    x, y = cell(result, "seconds", a), cell(result, "seconds", b)
    return x / y if x and y else None


def mean(ratios):
    return math.exp(statistics.fmean(math.log(r) for r in ratios)) if ratios else math.nan


def number(value, text):
    return "" if value is None else text.format(value)


def row(r):
    own, peer = cell(r, "memory", "kvasir"), cell(r, "memory", "ort")
    seconds = cell(r, "seconds", "kvasir")
    cells = [r["name"], r["status"], number(cell(r, "error"), "{:.0e}"), number(seconds and seconds * 1e3, "{:.2f}"),
             number(quotient(r, "kvasir", "ort"), "{:.2f}"), number(quotient(r, "kvasir", "static"), "{:.2f}"),
             number(own and own / 1e6, "{:.0f}"), number(peer and peer / 1e6, "{:.0f}")]
    return f"| {' | '.join(cells)} |"


def architecture(name):
    """Of a model or of what the quantiser made of it."""
    return re.sub("^q-", "", re.sub("-(qdq|qop|dynamic)$", "", name)).removesuffix("y").removesuffix("-s").removesuffix("-d")


def summary(results):
    ran = [r for r in results if "error" in r]
    peers, twins = [[q for r in ran if (q := quotient(r, "kvasir", b))] for b in ("ort", "static")]
    yield f"{len(results)} models of {len({architecture(r['name']) for r in results})} architectures."
    yield f"{len(ran)} run, {sum(r['status'] == 'agrees' for r in ran)} agree to {AGREE} of the largest output."
    yield f"Time against ONNX Runtime, geometric mean: {mean(peers):.2f}; above 2: {sum(q > 2 for q in peers)} of {len(peers)}."
    worst = max(twins, default=math.nan)
    yield f"Symbolic against static, geometric mean: {mean(twins):.2f}; worst: {worst:.2f}, of {len(twins)}."


def print_messages(results):
    print()
    for r in results:
        if "message" in r:
            print(f"- {r['name']}: {' '.join(r['message'].split())}")


def table(folder):
    results = last_results(folder / "results.jsonl")
    print("\n".join(summary([r for r in results if r["status"] != "peer"])))
    print("\n| model | result | error | ms | × ONNX Runtime | × static | MB | MB of ONNX Runtime |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for r in results:
        print(row(r))
    print_messages(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="what export.py made")
    parser.add_argument("--tool", type=pathlib.Path, default=ROOT / "build/release/kvasir")
    parser.add_argument("--only", default="", help="models whose name begins with this")
    parser.add_argument("--table", action="store_true")
    for part in ("--compare", "--peer"):
        parser.add_argument(part, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compare or options.peer:
        print(json.dumps((compare if options.compare else run_peer)(options.folder)))
    elif options.table:
        table(options.folder)
    else:
        measure_all(options.folder, options.tool.resolve(), options.only)


if __name__ == "__main__":
    sys.exit(main())
