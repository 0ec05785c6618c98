#!/usr/bin/env python3
"""Makes shift_*.onnx: PyTorch exports of one attention block with KV shift in several spellings, for
tests/e2e/test_torch_export.sh. Needs torch, onnx and onnxscript. The block is the paper's (arXiv 2411.19574, appendix F):
projections, shift of K and V before rotary positions, causal softmax attention, output projection. Weights are seeded and
the expected output is stored beside each model."""
import math
import os

import numpy as np
import onnx
import torch
import torch.nn as nn
import torch.nn.functional as F

HEADS, KV_HEADS, HEAD, T = 4, 2, 8, 12
D = HEADS * HEAD


def shift_unfold(x, w):
    """Pad, unfold, multiply, sum: x [B,T,H,D], w [H,2] with the previous row's weight first."""
    padded = F.pad(x, (0, 0, 0, 0, 1, 0))
    return (padded.unfold(1, 2, 1) * w[None, None, :, None, :]).sum(-1)


def shift_conv(x, w):
    """Depth-wise causal convolution over time, weights tied across a head."""
    b, t, h, d = x.shape
    kernel = w.repeat_interleave(d, 0).unsqueeze(1)
    flat = x.permute(0, 2, 3, 1).reshape(b, h * d, t)
    y = F.conv1d(flat, kernel, padding=1, groups=h * d)[:, :, :t]
    return y.reshape(b, h, d, t).permute(0, 3, 1, 2)


def shift_concat(x, w):
    """A row of zeros in front, the last row dropped."""
    previous = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return w[:, 0].view(1, 1, -1, 1) * previous + w[:, 1].view(1, 1, -1, 1) * x


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


class Block(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift
        self.q = nn.Linear(D, D, bias=False)
        self.k = nn.Linear(D, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(D, KV_HEADS * HEAD, bias=False)
        self.o = nn.Linear(D, D, bias=False)
        self.k_shift = nn.Parameter(torch.rand(KV_HEADS, 2))
        self.v_shift = nn.Parameter(torch.rand(KV_HEADS, 2))
        angle = torch.outer(torch.arange(T).float(), 1e4 ** (-torch.arange(0, HEAD, 2).float() / HEAD))
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1))

    def rope(self, x):
        return x * self.cos + rotate_half(x) * self.sin

    def forward(self, x):
        b = x.shape[0]
        q = self.q(x).view(b, T, HEADS, HEAD).transpose(1, 2)
        k = self.shift(self.k(x).view(b, T, KV_HEADS, HEAD), self.k_shift).transpose(1, 2)
        v = self.shift(self.v(x).view(b, T, KV_HEADS, HEAD), self.v_shift).transpose(1, 2)
        q, k = self.rope(q), self.rope(k)
        k = k.repeat_interleave(HEADS // KV_HEADS, 1)
        v = v.repeat_interleave(HEADS // KV_HEADS, 1)
        scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(HEAD)) + self.mask
        y = torch.softmax(scores, -1) @ v
        return self.o(y.transpose(1, 2).reshape(b, T, D))


def strip(path):
    """Leaves the graph alone: source places of the machine that exported it are nobody's business."""
    model = onnx.load(path)
    del model.metadata_props[:]
    for item in [model.graph, *model.graph.node, *model.graph.initializer, *model.graph.value_info, *model.graph.input,
                 *model.graph.output]:
        item.ClearField("doc_string")
        item.ClearField("metadata_props")
    onnx.save(model, path)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for name, shift in [("unfold", shift_unfold), ("conv", shift_conv), ("concat", shift_concat)]:
        torch.manual_seed(0)
        block = Block(shift).eval()
        x = torch.randn(2, T, D)
        stem = os.path.join(here, "shift_" + name)
        torch.onnx.export(block, (x,), stem + ".onnx", input_names=["x"], output_names=["y"], external_data=False,
                          opset_version=18)
        strip(stem + ".onnx")
        np.save(stem + "_x.npy", x.numpy())
        np.save(stem + "_y.npy", block(x).detach().numpy())


if __name__ == "__main__":
    main()
