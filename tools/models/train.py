"""Trains the corpus in Kvasir and in PyTorch: python3 tools/models/train.py FOLDER [--tool FILE] [--only PART...]

Needs what export.py needs for models of PyTorch. Each row of rows.py that TorchScript exports is exported in training
mode, without dropout, for BATCH rows, and trained by the mean squared difference of its first output to random numbers.
FOLDER/train.jsonl gets a line a model: errors of the gradients of all parameters together, in double and in float, and
times. Both are against PyTorch's gradients in double, and so are PyTorch's own in float: where many activations are close
to a kink, one of them on the other side is an error of 1e-3. Models with a line are left out, so that a run continues
where another ended. --table writes the lines as a table of Markdown.

Times are CPU seconds of a step on one thread, gradients and updates (SGD) included, medians of steps that take turns.
"""
import argparse
import copy
import json
import math
import pathlib
import sys
import tempfile
import warnings

import numpy

import export
import rows
import run

BATCH = {"B": 4, "S": 64, "T": 32}
STEP = 1e4  # a learning rate by which a gradient outweighs the rounding of its parameter
AGREE = 1e-6  # in double; attributes of ONNX, such as 1 / 6 of HardSigmoid, and some constants are floats
KINKS = 0.1  # in float, at most
LIMIT = 900  # seconds for one model


# ---- the process of one model ---------------------------------------------------------------------------------------


def models():
    """Name -> (function that makes the module, inputs) of the rows that TorchScript exports."""
    tables = [("tv", rows.TORCHVISION, export.make_torchvision, False), ("tm", rows.TIMM, export.make_timm, False),
              ("tf", rows.TRANSFORMERS, export.make_transformers, True),
              ("df", rows.DIFFUSERS, export.make_diffusers, True)]
    made = {}
    for prefix, table, make, named in tables:
        for row in table:
            inputs = [(n, e, [BATCH.get(d, d) for d in shape]) for n, e, shape in export.parse_inputs(row[-2])]

            def build(row=row, make=make, named=named, inputs=inputs):
                return export.module_of(make(*row[:-2]), [n for n, _, _ in inputs] if named else [], first=True)
            if row[-1] in ("s", "S", "sd"):
                made[f"{prefix}-{row[0]}"] = (build, inputs)
    return made


def training_mode(module):
    """Of everything but what draws random numbers."""
    for part in module.train().modules():
        for rate in ("p", "drop_prob", "dropout", "attention_dropout", "activation_dropout", "dropout_prob",
                     "layerdrop"):
            if isinstance(getattr(part, rate, None), float):
                setattr(part, rate, 0.0)
    return module


def torch_step(module, arrays, target):
    """A step of SGD with rate 0; the loss."""
    import torch
    dtype = next(module.parameters()).dtype
    inputs = [torch.from_numpy(a) for a in arrays.values()]
    inputs = [t.to(dtype) if t.is_floating_point() else t for t in inputs]
    target = torch.from_numpy(target).to(dtype)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.0)

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(module(*inputs), target)
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def gradients(module):
    return {n: p.grad.double().numpy() for n, p in module.named_parameters() if p.grad is not None}


def error_of(found, exact):
    """Of all gradients as one vector."""
    if set(exact) - set(found):
        raise KeyError(f"no gradient of {sorted(set(exact) - set(found))[:3]}")
    worst = sum(numpy.sum((found[n] - g) ** 2) for n, g in exact.items())
    return math.sqrt(worst / sum(numpy.sum(g ** 2) for g in exact.values()))


def own_trainer(model):
    import kvasir
    return kvasir.trainer(model, loss="mse", optimizer="sgd", threads=1, free_batch=False)


def own_gradients(trainer, arrays, target):
    """By name, and a function that takes a step with rate 0."""
    batch = (*[arrays[port.name] for port in trainer.train_inputs[:-1]], target)
    before = trainer.parameters()
    trainer.step(batch, rate=STEP)
    after = trainer.parameters()
    trainer.set_parameters(before)
    return {n: (before[n].astype(numpy.float64) - after[n]) / STEP for n in before}, lambda: trainer.step(batch, rate=0.0)


def written(module, inputs, arrays):
    """The model's bytes in training mode."""
    import torch
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        torch.onnx.export(copy.deepcopy(module), tuple(torch.from_numpy(a) for a in arrays.values()), path, dynamo=False,
                          opset_version=17, input_names=[n for n, _, _ in inputs], do_constant_folding=False,
                          training=torch.onnx.TrainingMode.TRAINING)
        return pathlib.Path(path).read_bytes()


def compare(name):
    """In a process of its own: losses, errors and times."""
    import torch
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    build, inputs = models()[name]
    arrays = export.values(inputs, 0)
    try:
        module = training_mode(build())
        model = written(module, inputs, arrays)
        with torch.no_grad():
            target = module(*[torch.from_numpy(a) for a in arrays.values()])
        target = numpy.random.default_rng(1).standard_normal(target.shape, dtype=numpy.float32)
        exact, peer = copy.deepcopy(module).double(), torch_step(module, arrays, target)
        torch_step(exact, arrays, target)()
        peer()
        result = {"peer_error": error_of(gradients(module), gradients(exact))}
    except Exception as error:
        return {"status": "peer", "message": (str(error).strip().splitlines() or [type(error).__name__])[0][:300]}
    wide = {n: a.astype(numpy.float64) if a.dtype == numpy.float32 else a for n, a in arrays.items()}
    try:
        wide_model = written(exact, inputs, wide)
    except Exception:  # not every operator has an exporter for double
        wide_model = None
    try:
        if wide_model:
            found, _ = own_gradients(own_trainer(wide_model), wide, target.astype(numpy.float64))
            result["double"] = error_of(found, gradients(exact))
        trainer = own_trainer(model)
        found, step = own_gradients(trainer, arrays, target)
        result["error"] = error_of(found, gradients(exact))
    except Exception as error:  # whatever Kvasir says is the result
        return {**result, "status": "refused", "message": str(error).strip()[:600]}
    result["status"] = "agrees" if result.get("double", 0) <= AGREE and result["error"] <= KINKS else "differs"
    result["seconds"] = run.take_turns({"kvasir": step, "torch": peer}, seconds=4.0)
    return result


# ---- the processes of a model ---------------------------------------------------------------------------------------


def measure_all(folder, tool, only):
    environment, results = run.environment_of(tool), folder / "train.jsonl"
    known = {r["name"] for r in run.last_results(results)}
    names = list(models())
    for name in dict.fromkeys(n for start in only for n in names if n.startswith(start) and n not in known):
        result = {"name": name, **run.compared(__file__, name, environment, LIMIT)}
        run.append(results, result)
        said = result.get("message") or f"{result.get('double', math.nan):.0e} {result['error']:.0e} ({result['peer_error']:.0e})"
        print(name, result["status"], said, {n: round(s, 4) for n, s in result.get("seconds", {}).items()}, flush=True)


# ---- the table ------------------------------------------------------------------------------------------------------


def row(r):
    seconds = run.cell(r, "seconds", "kvasir")
    errors = [run.number(r.get(key), "{:.0e}") for key in ("double", "error", "peer_error")]
    cells = [r["name"], r["status"], *errors, run.number(seconds and seconds * 1e3, "{:.1f}"),
             run.number(run.quotient(r, "kvasir", "torch"), "{:.2f}")]
    return f"| {' | '.join(cells)} |"


def table(folder):
    results = [r for r in run.last_results(folder / "train.jsonl") if r["status"] != "peer"]
    ratios = [q for r in results if (q := run.quotient(r, "kvasir", "torch"))]
    print(f"{len(results)} models: {sum(r['status'] == 'agrees' for r in results)} agree. Time against PyTorch, geometric "
          f"mean: {run.mean(ratios):.2f}; above 1: {sum(q > 1 for q in ratios)} of {len(ratios)}.")
    print("\n| model | gradients | in double | in float | PyTorch's | ms | × PyTorch |\n|---|---|---:|---:|---:|---:|---:|")
    for r in results:
        print(row(r))
    run.print_messages(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="where train.jsonl is kept")
    parser.add_argument("--tool", type=pathlib.Path, default=run.ROOT / "build/release/kvasir")
    parser.add_argument("--only", nargs="+", default=[""], help="models whose names begin with these, in this order")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--compare", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compare:
        print(json.dumps(compare(options.compare)))
    elif options.table:
        table(options.folder)
    else:
        options.folder.mkdir(parents=True, exist_ok=True)
        measure_all(options.folder, options.tool.resolve(), options.only)


if __name__ == "__main__":
    sys.exit(main())
