"""Trains the KV-shift language model of models/lm.kv and models/induction.kv in PyTorch eager; prints one JSON object.

The fastest eager operators that PyTorch has: scaled_dot_product_attention, fused rms_norm where there is one, fused
AdamW. Batches are made before the clock starts. Targets are the tokens one further on; with --data induction only some
count, and every step gives two accuracies beside the loss, as in the demo.
"""
import argparse
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, self.scale.shape, self.scale, self.eps)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.scale


class Shift(nn.Module):
    """y[t] = current * x[t] + previous * x[t - 1] over [B, T, H, D]."""

    def __init__(self, heads):
        super().__init__()
        self.current = nn.Parameter(torch.rand(heads, 1))
        self.previous = nn.Parameter(1 - self.current.detach())

    def forward(self, x):
        before = F.pad(x[:, :-1], (0, 0, 0, 0, 1, 0))
        return torch.addcmul(self.current * x, self.previous, before)


def rotate(x, cos, sin):
    """x: [B, H, T, D]; sin has its first half negated."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.width = o.heads, o.d // o.heads
        self.norm1, self.norm2 = RMSNorm(o.d), RMSNorm(o.d)
        self.q, self.k, self.v, self.out = (nn.Linear(o.d, o.d, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(o.d, o.ffn, bias=False), nn.Linear(o.d, o.ffn, bias=False)
        self.down = nn.Linear(o.ffn, o.d, bias=False)
        self.shift_k, self.shift_v = (Shift(o.heads) if o.shift else nn.Identity() for _ in range(2))

    def attention(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = (linear(x).view(b, t, self.heads, self.width) for linear in (self.q, self.k, self.v))
        k, v = self.shift_k(k).transpose(1, 2), self.shift_v(v).transpose(1, 2)
        q, k = rotate(q.transpose(1, 2), cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed = nn.Embedding(o.vocab, o.d)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm, self.unembed = RMSNorm(o.d), nn.Linear(o.d, o.vocab, bias=False)
        pairs = torch.arange(0, o.d // o.heads, 2) / (o.d // o.heads)
        angle = torch.outer(torch.arange(o.ctx).float(), o.rope_base ** -pairs)
        self.register_buffer("cos", torch.cat([angle.cos(), angle.cos()], -1))
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], -1))
        for name, p in self.named_parameters():
            if p.dim() == 2 and not name.endswith(("current", "previous")):
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * o.layers) if last else 0.02)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.unembed(self.norm(x))


def batches(o, n):
    out = []
    for _ in range(n):
        tokens = torch.randint(o.vocab, (o.batch, o.ctx + 1))
        targets = tokens[:, 1:].clone()
        if o.data == "induction":  # which positions count does not matter for time
            targets[torch.rand(targets.shape) < 0.5] = -1
        first = torch.rand(targets.shape) < 1 / o.ctx if o.data == "induction" else None
        out.append((tokens[:, :-1].contiguous(), targets, first))
    return out


def optimizer(model):
    decay = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.endswith(("current", "previous"))]
    others = [p for p in model.parameters() if all(p is not q for q in decay)]
    groups = [dict(params=decay, weight_decay=0.1), dict(params=others, weight_decay=0.0)]
    try:
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    except (TypeError, RuntimeError):  # no fused CPU version before torch 2.4
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))


@torch.no_grad()
def accuracies(logits, targets, first):
    right = logits.argmax(-1) == targets
    return (right & first).sum() / first.sum(), right.sum() / (targets != -1).sum()


def step(model, adam, tokens, targets, first):
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    adam.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    if first is not None:
        accuracies(logits, targets, first)
    return loss.item()


def options():
    p = argparse.ArgumentParser(description=__doc__)
    sizes = dict(vocab=8000, d=256, layers=2, heads=4, ffn=704, ctx=256, batch=8, steps=20, threads=1)
    for name, value in sizes.items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--rope-base", type=float, default=1e5)
    p.add_argument("--data", choices=["random", "induction"], default="random")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--no-shift", dest="shift", action="store_false")
    return p.parse_args()


def main():
    o = options()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    model = Model(o)
    adam, data = optimizer(model), batches(o, min(o.steps, 16))
    if o.compile:
        model.compile()
    seconds, losses = [], []
    for i in range(o.steps):
        start = time.perf_counter()
        losses.append(step(model, adam, *data[i % len(data)]))
        seconds.append(time.perf_counter() - start)
    version = "torch " + torch.__version__ + (" with torch.compile" if o.compile else "")
    print(json.dumps({"version": version, "seconds": seconds, "first_loss": losses[0]}))


if __name__ == "__main__":
    main()
