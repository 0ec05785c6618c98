"""What PyTorch needs for the kernels that kva_gpu_check times: lines `name<tab>milliseconds<tab>who` on standard
output, errors on standard error. Names are those of tools/gpucheck/kernels.c. Needs torch with CUDA."""
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

RUNS, WARM_UPS = 10, 3


def rand(*shape, dtype=torch.bfloat16):
    return (torch.rand(*shape, device="cuda", dtype=torch.float32) * 2 - 1).to(dtype)


def milliseconds(f):
    for _ in range(WARM_UPS):
        f()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(RUNS):
        f()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / RUNS


def gemm(n):
    a, b = rand(n, n), rand(n, n)
    return lambda: a @ b


def gemm_bias_relu(n):
    a, w, bias = rand(n, n), rand(n, n), rand(n)
    return torch.compile(lambda: F.relu(F.linear(a, w, bias)))


def attention(causal):
    q, k, v = (rand(4, 16, 4096, 128) for _ in range(3))

    def run():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def attention_gradients():
    q, k, v = (rand(4, 16, 4096, 128).requires_grad_() for _ in range(3))
    dy = rand(4, 16, 4096, 128)
    with torch.enable_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)


def shift_rope():
    x, w = rand(8, 2048, 16, 128), rand(16, 2)
    angle = rand(2048, 64, dtype=torch.float32)

    def run(x, w, angle):
        y = x * w[:, 0, None] + F.pad(x, (0, 0, 0, 0, 1, 0))[:, :-1] * w[:, 1, None]
        y = y.transpose(1, 2)
        cos, sin = angle.cos().to(y.dtype), angle.sin().to(y.dtype)
        a, b = y.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    compiled = torch.compile(run)
    return lambda: compiled(x, w, angle)


def rms_norm_gradients(x, dy, w):
    a, g = x.float(), dy.float()
    s = w.float() * g
    i = torch.rsqrt(a.square().mean(1, keepdim=True) + 1e-5)
    n = a * i
    return (i * (s - n * (s * n).mean(1, keepdim=True))).to(x.dtype), (g * n).sum(0)


def rows(f, *shapes, dtype=torch.bfloat16):
    tensors = [rand(*s, dtype=dtype) for s in shapes]
    compiled = torch.compile(f)
    return lambda: compiled(*tensors)


PEERS = [
    ("gemm 4096", "cuBLAS", lambda: gemm(4096)),
    ("gemm 8192", "cuBLAS", lambda: gemm(8192)),
    ("library gemm 4096", "cuBLAS", lambda: gemm(4096)),
    ("library gemm 8192", "cuBLAS", lambda: gemm(8192)),
    ("gemm bias relu 4096", "torch.compile", lambda: gemm_bias_relu(4096)),
    ("attention causal 4096", "SDPA, cuDNN", lambda: attention(True)),
    ("attention full 4096", "SDPA, cuDNN", lambda: attention(False)),
    ("attention gradients causal 4096", "SDPA, cuDNN", attention_gradients),
    ("shift rope 16384", "torch.compile", shift_rope),
    ("rms norm 16384 x 4096", "torch.compile",
     lambda: rows(lambda x, w: F.rms_norm(x, (4096,), w, 1e-5), (16384, 4096), (4096,))),
    ("rms norm gradients 16384 x 2048", "torch.compile",
     lambda: rows(rms_norm_gradients, (16384, 2048), (16384, 2048), (2048,))),
    ("swiglu 16384 x 4096", "torch.compile",
     lambda: rows(lambda g, u: F.silu(g) * u, (16384, 4096), (16384, 4096))),
    ("softmax 8192 x 8192", "torch.compile",
     lambda: rows(lambda x: F.softmax(x, -1), (8192, 8192), dtype=torch.float32)),
    ("softmax 8192 x 8191", "torch.compile",
     lambda: rows(lambda x: F.softmax(x, -1), (8192, 8191), dtype=torch.float32)),
    ("softmax 4096 x 32000", "torch.compile",
     lambda: rows(lambda x: F.softmax(x, -1), (4096, 32000), dtype=torch.float32)),
    ("softmax 2048 x 128256", "torch.compile",
     lambda: rows(lambda x: F.softmax(x, -1), (2048, 128256), dtype=torch.float32)),
]

if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("peer.py: torch finds no GPU")
    print(f"# torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name, who, make in PEERS:
        try:
            with torch.no_grad():
                print(f"{name}\t{milliseconds(make()):.4f}\t{who}", flush=True)
        except Exception as error:  # one peer that cannot run does not hide the others
            print(f"peer.py: {name}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()
