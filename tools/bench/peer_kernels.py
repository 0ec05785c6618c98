"""The cases of kernels.c in PyTorch eager, each with the fewest calls that PyTorch has for it.

Usage: peer_kernels.py THREADS CASE...
"""
import sys

import torch
import torch.nn.functional as F

from peer_serve import serve


def tensor(k, *shape):
    """Input number k, with the values of kernels.c."""
    n = 1
    for extent in shape:
        n *= extent
    h = (torch.arange(n, dtype=torch.int64) + 1000003 * k) & 0xFFFFFFFF
    h = (h * 2654435761) & 0xFFFFFFFF
    return ((h >> 16).float() / 65536 - 0.5).view(shape)


def matmul(numbers, layout="NN", batch="1", dtype=torch.float32):
    m, n, k = numbers
    b = [int(batch)] if int(batch) > 1 else []
    x = tensor(0, *b, k, m).to(dtype).transpose(-1, -2) if layout[0] == "T" else tensor(0, *b, m, k).to(dtype)
    y = tensor(1, *b, n, k).to(dtype).transpose(-1, -2) if layout[1] == "T" else tensor(1, *b, k, n).to(dtype)
    out = torch.empty(*b, m, n, dtype=dtype)
    product = torch.bmm if b else torch.mm
    return lambda: product(x, y, out=out)


bf16x3 = matmul  # a product of floats, whatever Kvasir makes of it


def bf16(numbers, layout="NN", batch="1"):
    return matmul(numbers, layout, batch, torch.bfloat16)


def add(numbers):
    x, y = tensor(0, *numbers), tensor(1, *numbers)
    out = torch.empty_like(x)
    return lambda: torch.add(x, y, out=out)


def swiglu(numbers):
    x, y = tensor(0, *numbers), tensor(1, *numbers)
    out = torch.empty_like(x)
    return lambda: torch.mul(F.silu(x), y, out=out)


def softmax(numbers):
    x = tensor(0, *numbers)
    out = torch.empty_like(x)
    return lambda: torch.softmax(x, -1, out=out)


def rms_norm(numbers):
    x, scale = tensor(0, *numbers), tensor(1, numbers[1])
    return lambda: F.rms_norm(x, (numbers[1],), scale, 1e-5)


def shift_rope(numbers):
    b, t, h, d = numbers
    x, w = tensor(0, b, t, h, d), tensor(1, h, 2)
    cos, sin = tensor(2, t, d // 2), tensor(3, t, d // 2)
    now, before = w[:, :1], w[:, 1:]
    cos2, sin2 = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def call():
        y = now * x
        y[:, 1:].addcmul_(before, x[:, :-1])
        y = y.transpose(1, 2)
        return torch.addcmul(y * cos2, y.roll(d // 2, -1), sin2).contiguous()

    return call


def prepare(text):
    kind, dims, *rest = text.split(":")
    call = globals()[kind]([int(n) for n in dims.split("x")], *rest)
    with torch.no_grad():
        return call, call().double().abs().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    with torch.inference_mode():
        serve("torch " + torch.__version__, sys.argv[2:], prepare)
