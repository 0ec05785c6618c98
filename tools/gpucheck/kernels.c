#include "tools/gpucheck/kernels.h"

#define GEMM "model gemm (bfloat16[M, K] a, bfloat16[K, N] b) => (bfloat16[M, N] c) { c = a @ b }"
#define GEMM_BIAS                                                                             \
  "model gemm (bfloat16[M, K] a, bfloat16[N, K] b, bfloat16[N] bias) => (bfloat16[M, N] c) {" \
  "  c = kv.relu(kv.matmul <transpose_b = true> (a, b) + bias)"                               \
  "}"
#define ATTENTION(causal)                                                                    \
  "model attention (bfloat16[B, H, T, D] q, bfloat16[B, H, T, D] k, bfloat16[B, H, T, D] v)" \
  " => (bfloat16[B, H, T, D] y) { y, lse = kv.attention <causal = " causal "> (q, k, v) }"
#define ATTENTION_GRADIENTS(causal)                                                          \
  "model gradients (bfloat16[B, H, T, D] q, bfloat16[B, H, T, D] k, bfloat16[B, H, T, D] v," \
  " float[B, H, T] delta, float[B, H, T] lse, bfloat16[B, H, T, D] dy)"                      \
  " => (bfloat16[B, H, T, D] dq, bfloat16[B, H, T, D] dk, bfloat16[B, H, T, D] dv) {"        \
  "  dq = kv.attention_grad_q <causal = " causal "> (q, k, v, , , delta, lse, dy)"           \
  "  dk, dv = kv.attention_grad_kv <causal = " causal "> (q, k, v, , , delta, lse, dy)"      \
  "}"
#define SHIFT_ROPE                                                                                          \
  "model shift (bfloat16[B, T, H, D] x, bfloat16[H, 2] w, float[T, P] angle) => (bfloat16[B, H, T, D] y) {" \
  "  s, last = kv.kv_shift <time_axis = 1> (x, w)"                                                          \
  "  a = kv.cast <to = bfloat16> (kv.cos(angle))"                                                           \
  "  b = kv.cast <to = bfloat16> (kv.sin(angle))"                                                           \
  "  y = kv.rope(kv.transpose <perm = [0, 2, 1, 3]> (s), a, b)"                                             \
  "}"
#define RMS_NORM \
  "model norm (bfloat16[R, C] x, bfloat16[C] w) => (bfloat16[R, C] y) { y = kv.rms_norm <eps = 1e-5> (x, w) }"
#define RMS_NORM_GRADIENTS                                                                                     \
  "model gradients (bfloat16[R, C] x, bfloat16[R, C] dy, bfloat16[C] w) => (bfloat16[R, C] dx, float[C] dw) {" \
  "  a = kv.cast <to = float> (x)"                                                                             \
  "  g = kv.cast <to = float> (dy)"                                                                            \
  "  s = kv.cast <to = float> (w) * g"                                                                         \
  "  i = kv.reciprocal(kv.sqrt(kv.reduce_mean <axes = [1]> (a * a) + 1e-5))"                                   \
  "  n = a * i"                                                                                                \
  "  dx = kv.cast <to = bfloat16> (i * (s - n * kv.reduce_mean <axes = [1]> (s * n)))"                         \
  "  dw = kv.reduce_sum <axes = [0], keepdims = false> (g * n)"                                                \
  "}"
#define SWIGLU  "model swiglu (bfloat16[R, C] g, bfloat16[R, C] u) => (bfloat16[R, C] y) { y = kv.silu(g) * u }"
#define SOFTMAX "model rows (float[R, C] x) => (float[R, C] y) { y = kv.softmax <axis = -1> (x) }"

#define CUBE(n) (2.0 * (n) * (n) * (n))
/* Full and partial tiles of the large blocks; also small blocks. */
#define SOME_TILES "M=136 N=520 K=160"
#define ODD_TILES  "M=70 N=96 K=88"
/* b h t t d, two products, of which causal attention needs half; gradients are counted as five, as elsewhere */
#define ATTENTION_FLOPS(b, h, t, d) (4.0 * (b) * (h) * (t) * (t) * (d))

const gpu_kernel gpu_kernels[] = {
    {"gemm 4096", GEMM, SOME_TILES, "M=4096 N=4096 K=4096", CUBE(4096), 0, 4, false},
    {"gemm 8192", GEMM, ODD_TILES, "M=8192 N=8192 K=8192", CUBE(8192), 0, 4, false},
    {"gemm bias relu 4096", GEMM_BIAS, SOME_TILES, "M=4096 N=4096 K=4096", CUBE(4096), 0, 4, false},
    {"library gemm 4096", GEMM, ODD_TILES, "M=4096 N=4096 K=4096", CUBE(4096), 0, 4, true},
    {"library gemm 8192", GEMM, ODD_TILES, "M=8192 N=8192 K=8192", CUBE(8192), 0, 4, true},
    {"attention causal 4096", ATTENTION("true"), "B=1 H=2 T=70 D=64", "B=4 H=16 T=4096 D=128",
     ATTENTION_FLOPS(4, 16, 4096, 128) / 2, 0, 8, false},
    {"attention full 4096", ATTENTION("false"), "B=1 H=2 T=70 D=64", "B=4 H=16 T=4096 D=128",
     ATTENTION_FLOPS(4, 16, 4096, 128), 0, 8, false},
    {"attention gradients causal 4096", ATTENTION_GRADIENTS("true"), "B=1 H=2 T=70 D=64", "B=4 H=16 T=4096 D=128",
     2.5 * ATTENTION_FLOPS(4, 16, 4096, 128) / 2, 0, 16, false},
    {"shift rope 16384", SHIFT_ROPE, "B=2 T=37 H=2 D=64 P=32", "B=8 T=2048 H=16 D=128 P=64", 0,
     2.0 * 2 * 8 * 2048 * 16 * 128, 4, false},
    {"rms norm 16384 x 4096", RMS_NORM, "R=7 C=200", "R=16384 C=4096", 0, 2.0 * 2 * 16384 * 4096, 4, false},
    {"rms norm gradients 16384 x 2048", RMS_NORM_GRADIENTS, "R=300 C=200", "R=16384 C=2048", 0, 3.0 * 2 * 16384 * 2048,
     16, false},
    {"swiglu 16384 x 4096", SWIGLU, "R=7 C=200", "R=16384 C=4096", 0, 3.0 * 2 * 16384 * 4096, 4, false},
    {"softmax 8192 x 8192", SOFTMAX, "R=7 C=200", "R=8192 C=8192", 0, 2.0 * 4 * 8192 * 8192, 64, false},
    {"softmax 8192 x 8191", SOFTMAX, "R=7 C=777", "R=8192 C=8191", 0, 2.0 * 4 * 8192 * 8191, 64, false},
    {"softmax 4096 x 32000", SOFTMAX, "R=3 C=9000", "R=4096 C=32000", 0, 2.0 * 4 * 4096 * 32000, 64, false},
    {"softmax 2048 x 128256", SOFTMAX, "R=5 C=131072", "R=2048 C=128256", 0, 2.0 * 4 * 2048 * 128256, 64, false},
};
const int gpu_n_kernels = sizeof gpu_kernels / sizeof *gpu_kernels;
