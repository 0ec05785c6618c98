#!/usr/bin/env python3
"""Makes lm_cached.onnx and lm_grouped.onnx: a small Qwen 3 of transformers with random weights whose graph keeps a cache, as
PyTorch exports it and as ONNX Runtime's model builder writes it (GroupQueryAttention), for
tests/e2e/test_torch_generate.sh; lm_cached.txt is a prompt with the 24 bytes that PyTorch finds most probable behind it,
which are the same for both. Needs torch, transformers, tokenizers, onnx, onnxscript and onnxruntime-genai."""
import os
import subprocess
import sys
import tempfile

import onnx
import tokenizers
import torch
import transformers

from make_language_exports import LLAMA, PROMPT, draw_weights
from make_shift_exports import strip

LAYERS, HEADS, SIZE = 2, 2, 16


class Cached(torch.nn.Module):
    """Logits and caches from tokens, a mask, positions and the caches of keys and values before."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, mask, positions, *past):
        cache = transformers.DynamicCache()
        for i in range(LAYERS):
            cache.update(past[2 * i], past[2 * i + 1], i)
        result = self.model(input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache)
        return result.logits, *(x for layer in result.past_key_values.layers for x in (layer.keys, layer.values))


def make_model():
    torch.manual_seed(0)
    config = transformers.Qwen3Config(**LLAMA, head_dim=SIZE)
    model = transformers.Qwen3ForCausalLM(config).eval()
    draw_weights(model)
    return model


def export_torch(model, path):
    batch, rows, past = 2, 3, 4
    inputs = (torch.randint(0, 257, (batch, rows)), torch.ones(batch, past + rows, dtype=torch.int64),
              torch.arange(past, past + rows).expand(batch, rows).contiguous(),
              *(torch.zeros(batch, HEADS, past, SIZE) for _ in range(2 * LAYERS)))
    parts = [f"{i}.{part}" for i in range(LAYERS) for part in ("key", "value")]
    free = torch.export.Dim.DYNAMIC
    flat, cache = {0: free, 1: free}, {0: free, 2: free}
    torch.onnx.export(Cached(model), inputs, path, dynamo=True, external_data=False,
                      input_names=["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{p}" for p in parts)],
                      output_names=["logits", *(f"present.{p}" for p in parts)],
                      dynamic_shapes=(flat, flat, flat, (cache,) * (2 * LAYERS)))
    strip(path)


def export_grouped(model, path):
    with tempfile.TemporaryDirectory() as folder:
        words = {chr(i): i for i in range(257)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[]))
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        model.save_pretrained(folder)
        out = os.path.join(folder, "out")
        subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", folder, "-o", out, "-p", "fp32",
                        "-e", "cpu", "-c", os.path.join(folder, "cache")], check=True)
        onnx.save(onnx.load(os.path.join(out, "model.onnx")), path)
    strip(path)


def main():
    stem = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lm_")
    model = make_model()
    text = list(PROMPT)
    with torch.no_grad():
        for _ in range(24):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    with open(stem + "cached.txt", "wb") as file:
        file.write(bytes(text) + b"\n")
    export_torch(model, stem + "cached.onnx")
    export_grouped(model, stem + "grouped.onnx")


if __name__ == "__main__":
    main()
