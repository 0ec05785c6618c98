"""peer.py RESULTS REPORT: what PyTorch and its libraries need for the kernels that kva_gpu_check times, and for a
training step of a model of that size. Adds a line of JSON to RESULTS and a row of a table to REPORT for each. Names are
those of tools/gpucheck/kernels.c. Needs torch with CUDA."""
import json
import signal
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

PARTS, PART_SECONDS, LIMIT = 5, 0.1, 60  # as kva_gpu_check measures


def rand(*shape, dtype=torch.bfloat16):
    return (torch.rand(*shape, device="cuda", dtype=torch.float32) * 2 - 1).to(dtype)


def part(f, runs):
    """Milliseconds of one of `runs` runs without a wait."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(runs):
        f()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / runs


def milliseconds(f):
    part(f, 2)
    runs = max(1, int(PART_SECONDS * 1e3 / part(f, 2)))
    part(f, runs)
    return sorted(part(f, runs) for _ in range(PARTS))[PARTS // 2]


def gemm_of(rows, columns, depth, dtype=torch.bfloat16, transposed=False):
    a = rand(rows, depth, dtype=dtype)
    b = rand(columns, depth, dtype=dtype).t() if transposed else rand(depth, columns, dtype=dtype)
    return lambda: a @ b


def gemm(n):
    return gemm_of(n, n, n)


def copy_of(x):
    y = torch.empty_like(x)
    return lambda: torch.neg(x, out=y)


def gemm_bias_relu(n):
    a, w, bias = rand(n, n), rand(n, n), rand(n)
    return torch.compile(lambda: F.relu(F.linear(a, w, bias)))


def gemm_of_weights(rows, columns, depth):
    a, b = rand(depth, rows), rand(depth, columns)
    if "out_dtype" in (torch.mm.__doc__ or ""):
        return lambda: torch.mm(a.t(), b, out_dtype=torch.float32)
    return lambda: a.t() @ b


def attention(causal, backend, shape=(4, 16, 4096, 128)):
    q, k, v = (rand(*shape) for _ in range(3))

    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def attention_gradients(backend, shape=(4, 16, 4096, 128)):
    q, k, v = (rand(*shape).requires_grad_() for _ in range(3))
    dy = rand(*shape)
    with torch.enable_grad(), sdpa_kernel(backend):
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


def steps_of(batch):
    """A compiled training step of the 1.5B preset of models/lm.kv, products in bfloat16."""
    import torch.nn as nn
    from types import SimpleNamespace

    from peer_train import Model, optimizer

    o = SimpleNamespace(vocab=36000, d=2048, layers=28, heads=16, ffn=5504, ctx=2048, rope_base=1e5, shift=True)
    with torch.device("cuda"):
        model = Model(o)
    adam, compiled = optimizer(model), torch.compile(model)
    tokens = torch.randint(o.vocab, (batch, o.ctx + 1), device="cuda")

    def run():
        with torch.enable_grad():
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(compiled(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            adam.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()

    return run


CUDNN, FLASH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
LONG = (2, 16, 8192, 128)
PEERS = [
    ("gemm 4096", "cuBLAS", lambda: gemm(4096)),
    ("gemm 8192", "cuBLAS", lambda: gemm(8192)),
    ("gemm 8192 x 5504 x 2048", "cuBLAS", lambda: gemm_of(8192, 5504, 2048)),
    ("gemm TN 2048 x 5504 x 8192 float", "cuBLAS", lambda: gemm_of_weights(2048, 5504, 8192)),
    ("gemm bias relu 4096", "torch.compile", lambda: gemm_bias_relu(4096)),
    ("few rows 1 x 3072 x 768 float", "cuBLAS", lambda: gemm_of(1, 3072, 768, torch.float32)),
    ("few rows 16 x 3072 x 768 float", "cuBLAS", lambda: gemm_of(16, 3072, 768, torch.float32)),
    ("few rows 1 x 5504 x 2048 float", "cuBLAS", lambda: gemm_of(1, 5504, 2048, torch.float32)),
    ("few rows 1 x 5504 x 2048", "cuBLAS", lambda: gemm_of(1, 5504, 2048)),
    ("few rows 1 x 768 x 3072 float", "cuBLAS", lambda: gemm_of(1, 768, 3072, torch.float32)),
    ("few rows 16 x 768 x 3072 float", "cuBLAS", lambda: gemm_of(16, 768, 3072, torch.float32)),
    ("few rows 8 x 5504 x 2048 float", "cuBLAS", lambda: gemm_of(8, 5504, 2048, torch.float32)),
    ("few rows 16 x 5504 x 2048 float", "cuBLAS", lambda: gemm_of(16, 5504, 2048, torch.float32)),
    ("few rows 2 x 5504 x 2048", "cuBLAS", lambda: gemm_of(2, 5504, 2048)),
    ("few rows 4 x 5504 x 2048", "cuBLAS", lambda: gemm_of(4, 5504, 2048)),
    ("few rows 16 x 5504 x 2048", "cuBLAS", lambda: gemm_of(16, 5504, 2048)),
    ("few rows NT 1 x 50257 x 768 float", "cuBLAS", lambda: gemm_of(1, 50257, 768, torch.float32, True)),
    ("few rows NT 16 x 50257 x 768 float", "cuBLAS", lambda: gemm_of(16, 50257, 768, torch.float32, True)),
    ("few rows NT 1 x 50257 x 2048", "cuBLAS", lambda: gemm_of(1, 50257, 2048, transposed=True)),
    ("few rows NT 4 x 50257 x 2048", "cuBLAS", lambda: gemm_of(4, 50257, 2048, transposed=True)),
    ("attention causal 4096", "SDPA, cuDNN", lambda: attention(True, CUDNN)),
    ("attention causal 4096", "SDPA, flash", lambda: attention(True, FLASH)),
    ("attention causal 8192", "SDPA, cuDNN", lambda: attention(True, CUDNN, LONG)),
    ("attention full 4096", "SDPA, cuDNN", lambda: attention(False, CUDNN)),
    ("attention gradients causal 4096", "SDPA, cuDNN", lambda: attention_gradients(CUDNN)),
    ("attention gradients causal 4096", "SDPA, flash", lambda: attention_gradients(FLASH)),
    ("attention gradients causal 8192", "SDPA, cuDNN", lambda: attention_gradients(CUDNN, LONG)),
    ("copy 16384 x 8192", "torch", lambda: copy_of(rand(16384, 8192))),
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
    ("step of 1.5B, 8192 tokens", "torch.compile", lambda: steps_of(4)),
]

def too_long(*_):
    raise TimeoutError("no time left for it")


def main(results, report):
    if not torch.cuda.is_available():
        sys.exit("peer.py: torch finds no GPU")
    version = f"torch {torch.__version__}, {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    signal.signal(signal.SIGALRM, too_long)
    with open(results, "a") as lines, open(report, "a") as table:
        table.write(f"\n## phase D, {time.strftime('%Y-%m-%d')}\n\n{version}\n\n| name | by | ms |\n|---|---|---|\n")
        for name, who, make in PEERS:
            outcome = {"name": name, "by": who, "version": version}
            try:
                signal.alarm(LIMIT * 4 if name.startswith("step") else LIMIT)
                with torch.no_grad():
                    outcome["ms"] = milliseconds(make())
            except Exception as error:  # one peer that cannot run does not hide the others
                outcome["error"] = str(error)[:1000]
            signal.alarm(0)
            print(json.dumps(outcome), file=lines, flush=True)
            print(f"| {name} | {who} | {outcome.get('ms', 'failed')} |", file=table, flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
