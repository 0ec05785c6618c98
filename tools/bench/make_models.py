"""Makes ONNX files of known models with random weights: python3 tools/bench/make_models.py FOLDER NAME...

A name is a model, or one node: a convolution as conv-CHANNELSxHEIGHTxWIDTH-FILTERSxHEIGHTxWIDTH-STRIDE-GROUPS, or a product with
quantised weights (MatMulNBits) as nbits-DEPTHxCOLUMNS-BITS-BLOCK-ACCURACY_LEVEL. Models need pip's
torch, torchvision, timm and transformers, those with 8 bits onnxruntime, all of them numpy and onnx. Axis `batch`, and
`length` of texts, are symbolic. A file that is there is kept. `bench models`, `conv` and `nbits` call this.
"""
import argparse
import pathlib
import re
import sys
import tempfile
import warnings

import numpy
import onnx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "models"))
import export  # noqa: E402

IMAGE = "x:f:B,3,224,224"
TEXT = "input_ids:1000:B,S attention_mask:2:B,S"


def torchvision(name):
    return lambda: (export.make_torchvision(name), IMAGE)


def timm(name):
    return lambda: (export.make_timm(name), IMAGE)


def transformers(model, configuration, **settings):
    return lambda: (export.make_transformers(None, model, configuration, settings), TEXT)


MODELS = {
    **{name: torchvision(name) for name in ("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0",
                                            "densenet121", "shufflenet_v2_x1_0", "convnext_tiny")},
    "vit_small": timm("vit_small_patch16_224"),
    "bert_base": transformers("BertModel", "BertConfig"),
    "gpt2": transformers("GPT2LMHeadModel", "GPT2Config"),
    "llama": transformers("LlamaForCausalLM", "LlamaConfig", vocab_size=32000, hidden_size=768, intermediate_size=2048,
                          num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4),
}


class Images:
    """What activations' ranges are taken from."""

    def __init__(self, n):
        self.generator, self.left = numpy.random.default_rng(0), n

    def get_next(self):
        self.left -= 1
        return {"x": self.generator.standard_normal((1, 3, 224, 224), dtype=numpy.float32)} if self.left >= 0 else None


def quantize_static(source, path):
    """QuantizeLinear and DequantizeLinear around all operators, a scale for each filter."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        folded = pathlib.Path(folder, "folded.onnx")
        quant_pre_process(source, folded, skip_symbolic_shape=True)
        quantization.quantize_static(folded, path, Images(2), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
                                     activation_type=quantization.QuantType.QUInt8,
                                     weight_type=quantization.QuantType.QInt8)


def quantize_dynamic(source, path):
    """Weights have 8 bits; activations are quantised where products read them."""
    from onnxruntime import quantization

    quantization.quantize_dynamic(source, path, weight_type=quantization.QuantType.QInt8)


QUANTIZED = {"resnet50_qdq": ("resnet50", quantize_static), "bert_base_dynamic": ("bert_base", quantize_dynamic)}
KNOWN = (*MODELS, *QUANTIZED)


def make_conv(numbers, path):
    """One convolution, padded so that stride 1 keeps the extents."""
    c, h, w, m, kh, kw, stride, group = numbers
    shape = (m, c // group, kh, kw)
    filters = numpy.random.default_rng(0).standard_normal(shape, dtype=numpy.float32) / numpy.prod(shape[1:])
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], group=group, strides=[stride, stride],
                                 pads=[kh // 2, kw // 2, kh // 2, kw // 2])
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", c, h, w])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    save_node(node, x, y, {"w": filters.astype(numpy.float32)}, path)


def make_nbits(numbers, path):
    """One product with weights in a few bits, without zero points."""
    depth, columns, bits, block, level = numbers
    random, blocks = numpy.random.default_rng(0), depth // block
    codes = random.integers(0, 256, (columns, blocks, block * bits // 8), dtype=numpy.uint8)
    scales = random.random(columns * blocks, dtype=numpy.float32) / depth
    node = onnx.helper.make_node("MatMulNBits", ["x", "codes", "scales"], ["y"], domain="com.microsoft", K=depth, N=columns,
                                 bits=bits, block_size=block, accuracy_level=level)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", depth])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", columns])
    save_node(node, x, y, {"codes": codes, "scales": scales}, path)


def save_node(node, x, y, constants, path):
    graph = onnx.helper.make_graph([node], node.op_type, [x], [y],
                                   [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


NODES = ((r"conv-(\d+)x(\d+)x(\d+)-(\d+)x(\d+)x(\d+)-(\d+)-(\d+)", make_conv),
         (r"nbits-(\d+)x(\d+)-(\d+)-(\d+)-(\d+)", make_nbits))


def make_model(name, path):
    model, inputs = MODELS[name]()
    inputs = export.parse_inputs(inputs)
    names = [name for name, _, _ in inputs]
    is_text = names != ["x"]
    module = export.module_of(model, names if is_text else [], first=is_text)
    export.export_torch(module, inputs, "s", True, path)


def make(name, path):
    node = next(((found, make_node) for pattern, make_node in NODES if (found := re.fullmatch(pattern, name))), None)
    if not node and name not in KNOWN:
        sys.exit(f"make_models.py: no model is called {name}; there are {', '.join(KNOWN)}, conv-... and nbits-...")
    if name in QUANTIZED:
        source, quantize = QUANTIZED[name]
        require(source, path.parent)
    print(f"making {path}", file=sys.stderr, flush=True)
    part = path.with_suffix(".part")
    if node:
        found, make_node = node
        make_node([int(n) for n in found.groups()], part)
    elif name in QUANTIZED:
        quantize(path.with_name(f"{source}.onnx"), part)
    else:
        make_model(name, part)
    part.rename(path)


def require(name, folder):
    path = folder / f"{name}.onnx"
    if not path.exists():
        make(name, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(KNOWN) + ", conv-..., nbits-...")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    for name in options.names:
        require(name, options.folder)


if __name__ == "__main__":
    sys.exit(main())
