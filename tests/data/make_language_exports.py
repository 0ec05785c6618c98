#!/usr/bin/env python3
"""Makes lm_*.onnx: PyTorch exports of small language models of transformers, with random weights, for
tests/e2e/test_torch_generate.sh; lm_*.txt is a prompt with the 24 bytes that PyTorch finds most probable behind it. Needs
torch, transformers, onnx and onnxscript. Tokens are bytes; embeddings of others than letters are small, so that texts are
of letters."""
import os

import torch
import transformers

from make_shift_exports import strip

PROMPT = b"the cat sat on "
LLAMA = dict(vocab_size=257, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=256, eos_token_id=256)


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits


def draw_weights(model):
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.5)
        rows = model.get_output_embeddings().weight
        rows[:97] *= 0.05
        rows[123:] *= 0.05


def models():
    gpt2 = transformers.GPT2Config(vocab_size=257, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=256,
                                   eos_token_id=256)
    yield "gpt2", transformers.GPT2LMHeadModel(gpt2), "sdpa"
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)), "sdpa"
    mistral = transformers.MistralConfig(**LLAMA, sliding_window=8)
    yield "mistral", transformers.MistralForCausalLM(mistral), "eager"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    torch.manual_seed(0)
    for name, model, attention in models():
        model.set_attn_implementation(attention)
        draw_weights(model)
        wrapped = Logits(model).eval()
        stem = os.path.join(here, "lm_" + name)
        shapes = {"tokens": {0: torch.export.Dim("B", max=64), 1: torch.export.Dim("T", min=2, max=60)}}
        torch.onnx.export(wrapped, (torch.randint(0, 257, (2, 11)),), stem + ".onnx", input_names=["tokens"],
                          output_names=["logits"], dynamic_shapes=shapes, dynamo=True, external_data=False)
        strip(stem + ".onnx")
        text = list(PROMPT)
        with torch.no_grad():
            for _ in range(24):
                text.append(int(wrapped(torch.tensor([text]))[0, -1].argmax()))
        with open(stem + ".txt", "wb") as file:
            file.write(bytes(text) + b"\n")


if __name__ == "__main__":
    main()
