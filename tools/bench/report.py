"""What was measured, as a table or as JSON, and what became slower since an earlier run."""
import json
import os
import platform
import time


def cpu_model():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            for line in f:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def heading(name, o, versions):
    return {"benchmark": name, "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "cpu": cpu_model(),
            "cpus": os.cpu_count(), "threads": o.threads, "gemm": o.gemm, "math": o.math, "kv_cache": o.kv_cache, "rounds": o.rounds,
            "system": platform.platform(), "versions": versions}


# ---- comparing ------------------------------------------------------------------------------------------------------

LEAST_LOSS = 0.03  # what counts as slower beyond the spreads of both runs


def label_of(row):
    return next((row[key] for key in ("case", "weights", "file", "program") if key in row), None)


def peer_ratio(row):
    return None if "token_seconds" in row else row.get("ratio")  # of decode it is the ratio to float


def own_speed(row):
    """Calls, steps or tokens a second."""
    seconds = row.get("kvasir_seconds") or row.get("step_seconds") or row.get("token_seconds")
    return 1 / seconds if seconds else row.get("tokens_per_second")


def read_earlier(path):
    """Results by name of the benchmark; the last of each counts."""
    with open(path, encoding="utf-8") as file:
        results = [json.loads(line) for line in file if line.startswith("{")]
    return {r["heading"]["benchmark"]: r for r in results}


def refusal(now, earlier):
    """Why what has this heading cannot be compared with an earlier result; None: it can."""
    if not earlier:
        return "the file has no such benchmark"
    defaults = {"gemm": "generated", "math": "exact", "kv_cache": "f32"}  # of older files
    for key in ("cpu", "threads", *defaults):
        is_now, then = (heading.get(key, defaults.get(key)) for heading in (now, earlier["heading"]))
        if is_now != then:
            return f"{key}: {is_now}, in the file {then}"
    return None


def losses(result, earlier):
    """(label, speed relative to the earlier run, noise) of the rows that became slower beyond noise. Where both runs had a
    peer, ratios to it are compared: minutes differ less for these than for times."""
    known = {label_of(row): row for row in earlier["rows"]}
    for row in result["rows"]:
        then = known.get(label_of(row))
        if not then or row.get("program") == "PyTorch":
            continue
        speed = peer_ratio if peer_ratio(row) and peer_ratio(then) else own_speed
        if not speed(row) or not speed(then):
            continue
        change, noise = speed(row) / speed(then), row.get("spread", 0) + then.get("spread", 0)
        if change < 1 - LEAST_LOSS - noise:
            yield label_of(row), change, noise


# ---- tables ---------------------------------------------------------------------------------------------------------


def number(v):
    if v is None:
        return "-"
    if isinstance(v, str):
        return v
    digits = 0 if abs(v) >= 1000 else 1 if abs(v) >= 100 else 2
    return f"{v:.{digits}f}"


def table(columns, rows):
    cells = [columns] + [[number(v) for v in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = []
    for i, row in enumerate(cells):
        padded = [cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths))]
        lines.append("| " + " | ".join(padded) + " |")
        if i == 0:
            lines.append("|" + "|".join("-" * (w + 1) + ("-" if k == 0 else ":") for k, w in enumerate(widths)) + "|")
    return "\n".join(lines)


def show(result, columns, rows, as_json):
    """Prints a result (heading, `rows` as dicts, `notes`) with the given columns of its table."""
    if as_json:
        print(json.dumps(result))
        return
    h = result["heading"]
    machine = f"{h['cpu']}, {h['threads']} of {h['cpus']} CPUs"
    print(f"{h['benchmark']}: {h['date']}, {machine}, median of {h['rounds']} rounds")
    print("versions: " + ", ".join(h["versions"]) + "\n")
    print(table(columns, rows))
    for note in result["notes"]:
        print("note: " + note)
    print()
