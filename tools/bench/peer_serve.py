"""The serving side of a peer: the protocol of tools/bench/serve.h, spoken by programs in Python."""
import json
import sys
import time


def sample(call, seconds):
    start = time.perf_counter()
    call()  # warm-up
    chunk = max(1, int(0.1 * seconds / max(time.perf_counter() - start, 1e-9)))
    calls, wall = 0, 0.0
    cpu, start = time.process_time(), time.perf_counter()
    while wall < seconds:
        for _ in range(chunk):
            call()
        calls += chunk
        wall = time.perf_counter() - start
        if calls == chunk:
            chunk = max(1, int(0.1 * seconds / (wall / calls)))
    return {"seconds": wall / calls, "calls": calls, "wall": wall, "cpu": time.process_time() - cpu}


def serve(version, texts, prepare):
    """prepare(text) gives (call, check): what to time, and the mean magnitude of its result."""
    calls, described = [], []
    for text in texts:
        entry = {"case": text}
        try:
            call, entry["check"] = prepare(text)
        except Exception as error:  # whatever the peer cannot do is one row without a number
            call, entry["error"] = None, str(error).splitlines()[0]
        calls.append(call)
        described.append(entry)
    print(json.dumps({"ready": True, "version": version, "cases": described}), flush=True)
    for line in sys.stdin:
        case, seconds = line.split()
        print(json.dumps(sample(calls[int(case)], float(seconds))), flush=True)
