"""Kvasir: compiles, runs and trains ONNX and .kv models in this process.

    model = kvasir.load("model.onnx")
    y = model(x)

    trained = kvasir.train("model.onnx", batches, loss="cross_entropy", steps=100, rate=1e-3)
    trained.save("trained.safetensors")

    session = kvasir.InferenceSession("model.onnx")  # with ONNX Runtime's methods
    session.run(None, {"x": x})

Inputs are NumPy arrays or anything with DLPack in host memory; results are NumPy arrays, which have DLPack themselves.
"""

from ._library import Error, KvasirWarning, version as __version__
from ._model import Model, Port, Trainer, load, train, trainer
from ._onnxruntime import ExecutionMode, GraphOptimizationLevel, InferenceSession, ModelMetadata, NodeArg, RunOptions
from ._onnxruntime import SessionOptions, get_all_providers, get_available_providers, get_device
from ._onnxruntime import set_default_logger_severity

__all__ = ["Error", "ExecutionMode", "GraphOptimizationLevel", "InferenceSession", "KvasirWarning", "Model",
           "ModelMetadata", "NodeArg", "Port", "RunOptions", "SessionOptions", "Trainer", "get_all_providers",
           "get_available_providers", "get_device", "load", "set_default_logger_severity", "train", "trainer",
           "__version__"]
