"""Makes the corpus of exported models: python3 tools/models/export.py FOLDER [--only PART...] [--list]

Needs pip's torch (CPU), torchvision, timm, transformers, diffusers, onnx, onnxscript, onnxruntime, skl2onnx and
scikit-learn. Weights are random, so nothing is downloaded. Each model of rows.py becomes NAME.onnx and NAME.npz, its
inputs as "RUN/INPUT": run 0 has the extents of the static model, run 1 (symbolic models alone) others. What is there
is kept, so that a run continues where another ended; NAME.failed has the message of an export that failed.
"""
import argparse
import importlib
import pathlib
import sys
import traceback
import warnings

import numpy
import onnx

import rows

LETTERS = {"B": "batch", "S": "length", "T": "target_length"}


# ---- inputs ---------------------------------------------------------------------------------------------------------


def parse_inputs(text):
    """[(name, element, [extent or letter])] of a row's inputs."""
    parts = [item.split(":") for item in text.split()]
    return [(name, element, [d if d in rows.SIZES else int(d) for d in shape.split(",")])
            for name, element, shape in parts]


def values(inputs, run):
    """Arrays by name; the same ones in every process. A mask of two numbers is 1 but for the end of its last row."""
    random = numpy.random.default_rng(run)
    made = {}
    for name, element, shape in inputs:
        extents = [rows.SIZES[d][run] if isinstance(d, str) else d for d in shape]
        if element == "f":
            made[name] = random.standard_normal(extents, dtype=numpy.float32)
        elif name.endswith("attention_mask"):
            made[name] = numpy.ones(extents, dtype=numpy.int64)
            made[name][-1, -3:] = 0
        else:
            made[name] = random.integers(3, int(element), extents)
    return made


def is_dynamic(inputs):
    return any(isinstance(d, str) for _, _, shape in inputs for d in shape)


# ---- PyTorch --------------------------------------------------------------------------------------------------------


def tensors_of(value):
    import torch
    if torch.is_tensor(value):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors_of(v)] if isinstance(value, (list, tuple)) else []


def module_of(model, names, first=False):
    """A module of positional tensors that gives a tuple of tensors, or the first tensor alone."""
    import torch

    class Call(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *arguments):
            found = tensors_of(self.model(**dict(zip(names, arguments))) if names else self.model(*arguments))
            return found[0] if first else tuple(found)

    return Call().eval()


def export_torch(module, inputs, exporter, symbolic, path):
    import torch
    arguments = tuple(torch.from_numpy(v) for v in values(inputs, 1 if symbolic else 0).values())
    axes = {name: {k: LETTERS[d] for k, d in enumerate(shape) if isinstance(d, str)} for name, _, shape in inputs}
    names = [name for name, _, _ in inputs]
    options = dict(input_names=names, external_data=False, verbose=False)
    with torch.no_grad():
        if exporter == "s":
            options["dynamic_axes"] = axes if symbolic else None
            torch.onnx.export(module, arguments, path, dynamo=False, opset_version=17, **options)
        else:
            dims = {letter: torch.export.Dim(name, min=1, max=4096) for letter, name in LETTERS.items()}
            shapes = tuple({k: dims[d] for k, d in enumerate(shape) if isinstance(d, str)} for _, _, shape in inputs)
            options["dynamic_shapes"] = (shapes,) if symbolic else None
            torch.onnx.export(module, arguments, path, dynamo=True, **options)


def seeded():
    import torch
    torch.manual_seed(0)
    return torch


def make_torchvision(name):
    seeded()
    from torchvision.models import get_model
    settings = dict(weights=None)
    if name.endswith(("_resnet50", "_v3_large", "_fpn")) and name != "mobilenet_v3_large":
        settings["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        settings.update(aux_logits=False, init_weights=True)
    return get_model(name, **settings).eval()


def make_timm(name):
    seeded()
    import timm
    return timm.create_model(name, pretrained=False).eval()


def make_transformers(_, model, configuration, settings):
    seeded()
    import transformers
    made = getattr(transformers, configuration)
    known = made()
    fixed = {k for k in rows.TINY if isinstance(getattr(made, k, None), property)}
    settings = {k: v for k, v in settings.items() if k not in rows.TINY or (k not in fixed and hasattr(known, k))}
    return getattr(transformers, model)(made(**settings, use_cache=False)).eval()


def make_diffusers(_, model, settings):
    seeded()
    import diffusers
    return getattr(diffusers, model)(**settings).eval()


def torch_models(prefix, table, make, named):
    """(name of the file, function that makes it) for the rows of a table of PyTorch models."""
    for row in table:
        inputs = parse_inputs(row[-2])
        for letter in row[-1]:
            for symbolic in [False, True][:2 if letter.islower() and is_dynamic(inputs) else 1]:
                def export(path, row=row, inputs=inputs, exporter=letter.lower(), symbolic=symbolic):
                    module = module_of(make(*row[:-2]), [n for n, _, _ in inputs] if named else [], first=named)
                    export_torch(module, inputs, exporter, symbolic, path)
                    return [values(inputs, run) for run in ([0, 2] if symbolic else [0])]
                yield f"{prefix}-{row[0]}-{letter.lower()}{'y' if symbolic else ''}", export


# ---- scikit-learn and the quantiser ---------------------------------------------------------------------------------


def sklearn_models():
    for name, path_of_class, settings in rows.SKLEARN:
        def export(path, path_of_class=path_of_class, settings=settings):
            import skl2onnx
            import skl2onnx.common.data_types
            random = numpy.random.default_rng(0)
            x = random.standard_normal((300, 10)).astype(numpy.float32)
            module, made = path_of_class.split(".")
            estimator = getattr(importlib.import_module("sklearn." + module), made)(**settings)
            regression = any(word in made for word in ("Regressor", "SVR", "Ridge"))
            y = x[:, 0] * 2 + x[:, 1] if regression else (x[:, 0] + x[:, 1] > 0).astype(int) + (x[:, 2] > 1)
            estimator.fit(x, y)
            kind = skl2onnx.common.data_types.FloatTensorType([None, 10])
            options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "predict_proba") else None
            opsets = {"": 18, "ai.onnx.ml": 3}
            onnx.save(skl2onnx.to_onnx(estimator, initial_types=[("x", kind)], options=options, target_opset=opsets), path)
            return [{"x": random.standard_normal((n, 10)).astype(numpy.float32)} for n in (16, 3)]
        yield f"sk-{name}-y", export


class Calibration:
    def __init__(self, inputs):
        self.left = [inputs]

    def get_next(self):
        return self.left.pop() if self.left else None


def quantise(source, how, path):
    from onnxruntime import quantization as q
    with numpy.load(source.with_suffix(".npz")) as file:
        runs = [{k.split("/", 1)[1]: v for k, v in file.items() if k.startswith(f"{r}/")} for r in (0, 1)]
    if how == "dynamic":
        q.quantize_dynamic(source, path)
    else:
        kind = q.QuantFormat.QDQ if how == "qdq" else q.QuantFormat.QOperator
        q.quantize_static(source, path, Calibration(runs[0]), quant_format=kind, per_channel=how == "qdq")
    return [r for r in runs if r]


def quantised_models(folder):
    for source, how in rows.QUANTISED:
        def export(path, source=source, how=how):
            return quantise(folder / f"{source}.onnx", how, path)
        yield f"q-{source}-{how}", export


# ---- all of them ----------------------------------------------------------------------------------------------------


def all_models(folder):
    made = [torch_models("tv", rows.TORCHVISION, make_torchvision, False),
            torch_models("tm", rows.TIMM, make_timm, False),
            torch_models("tf", rows.TRANSFORMERS, make_transformers, True),
            torch_models("df", rows.DIFFUSERS, make_diffusers, True),
            sklearn_models(), quantised_models(folder)]
    return [model for models in made for model in models]


def export_one(name, export, folder):
    path = folder / f"{name}.onnx"
    part = folder / f"{name}.part.onnx"
    try:
        runs = export(part)
        numpy.savez(path.with_suffix(".npz"), **{f"{k}/{n}": v for k, run in enumerate(runs) for n, v in run.items()})
        part.rename(path)
        return f"{path.stat().st_size / 1e6:.1f} MB"
    except Exception as error:  # an exporter may fail in any way; the others go on
        part.unlink(missing_ok=True)
        path.with_suffix(".failed").write_text("".join(traceback.format_exception(error)))
        return f"failed: {type(error).__name__}: {str(error).strip()[:150]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=[""], help="models whose names begin with these, in this order")
    parser.add_argument("--list", action="store_true", help="name the models, make none")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    models = all_models(options.folder)
    for name, export in [m for start in options.only for m in models if m[0].startswith(start)]:
        path = options.folder / f"{name}.onnx"
        if path.exists() or path.with_suffix(".failed").exists():
            continue
        print(name, "" if options.list else export_one(name, export, options.folder), flush=True)


if __name__ == "__main__":
    sys.exit(main())
