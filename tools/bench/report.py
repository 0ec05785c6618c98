"""What was measured, as a table or as JSON."""
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
            "cpus": os.cpu_count(), "threads": o.threads, "rounds": o.rounds, "system": platform.platform(),
            "versions": versions}


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
