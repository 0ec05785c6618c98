#!/usr/bin/env python3
"""make_gguf.py FOLDER: a Llama of 134 million random parameters as f32.gguf, f16.gguf, q8_0.gguf and q4_0.gguf, and a
tokenizer.json whose tokens are letters. Needs numpy and gguf."""
import json
import os
import string
import sys

import gguf
import numpy as np
from gguf.quants import quantize

WIDTH, LAYERS, HEADS, FFN, VOCAB, CONTEXT = 768, 12, 12, 2048, 32000, 1024
FORMS = ("F32", "F16", "Q8_0", "Q4_0")


def matrices():
    yield "token_embd", VOCAB, WIDTH
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{i}.{name}", WIDTH, WIDTH
        yield f"blk.{i}.ffn_gate", FFN, WIDTH
        yield f"blk.{i}.ffn_up", FFN, WIDTH
        yield f"blk.{i}.ffn_down", WIDTH, FFN
    yield "output", VOCAB, WIDTH


def norms():
    for i in range(LAYERS):
        yield f"blk.{i}.attn_norm"
        yield f"blk.{i}.ffn_norm"
    yield "output_norm"


def write(path, form, values):
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(HEADS)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(WIDTH // HEADS)
    w.add_vocab_size(VOCAB)
    w.add_tokenizer_model("none")
    kind = gguf.GGMLQuantizationType[form]
    for name, value in values.items():
        packs = value.ndim == 2 and form != "F32"
        w.add_tensor(name + ".weight", quantize(value, kind) if packs else value, raw_dtype=kind if packs else None)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_tokenizer(path):
    letters = string.ascii_lowercase
    vocabulary = {**{c: i for i, c in enumerate(letters)}, **{f"{i}": i for i in range(len(letters), VOCAB)}}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "added_tokens": [], "model": model}, f)


def main():
    random = np.random.default_rng(0)
    values = {name: random.normal(0, 0.02, (rows, columns)).astype(np.float32) for name, rows, columns in matrices()}
    values.update((name, np.ones(WIDTH, np.float32)) for name in norms())
    for form in FORMS:
        write(os.path.join(sys.argv[1], form.lower() + ".gguf"), form, values)
    write_tokenizer(os.path.join(sys.argv[1], "tokenizer.json"))


main()
