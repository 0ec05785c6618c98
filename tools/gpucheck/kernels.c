#include "tools/gpucheck/kernels.h"

#define PRODUCT(type, result, a, b, c, attributes)                                  \
  "model product (" type "[" a "] a, " type "[" b "] b) => (" result "[" c "] c) {" \
  "  c = kv.matmul <" attributes "> (a, b)"                                         \
  "}"
#define FEW_ROWS(type)    PRODUCT(type, type, "M, K", "K, N", "M, N", "to = " type)
#define FEW_ROWS_NT(type) PRODUCT(type, type, "M, K", "N, K", "M, N", "transpose_b = true, to = " type)
#define GEMM              PRODUCT("bfloat16", "bfloat16", "M, K", "K, N", "M, N", "to = bfloat16")
#define GEMM_BIAS                                                                             \
  "model gemm (bfloat16[M, K] a, bfloat16[N, K] b, bfloat16[N] bias) => (bfloat16[M, N] c) {" \
  "  c = kv.relu(kv.matmul <transpose_b = true> (a, b) + bias)"                               \
  "}"
/* G: heads of keys and values. Of documents, rows see those of their own number alone. */
#define QKV "bfloat16[B, H, T, D] q, bfloat16[B, G, T, D] k, bfloat16[B, G, T, D] v"
#define ATTENTION(attributes)                               \
  "model attention (" QKV ") => (bfloat16[B, H, T, D] y) {" \
  "  y, lse = kv.attention <" attributes "> (q, k, v)"      \
  "}"
#define SAME "  same = kv.reshape <shape = [B, 1, T, 1]> (document) == kv.reshape <shape = [B, 1, 1, T]> (document)"
#define ATTENTION_OF_DOCUMENTS                                                         \
  "model attention (" QKV ", int32[B, T] document) => (bfloat16[B, H, T, D] y) {" SAME \
  "  y, lse = kv.attention <causal = true> (q, k, v, same)"                            \
  "}"
#define GIVEN     "float[B, H, T] delta, float[B, H, T] lse, bfloat16[B, H, T, D] dy"
#define GRADIENTS "(bfloat16[B, H, T, D] dq, bfloat16[B, G, T, D] dk, bfloat16[B, G, T, D] dv)"
#define ATTENTION_GRADIENTS(attributes)                                            \
  "model gradients (" QKV ", " GIVEN ") => " GRADIENTS " {"                        \
  "  dq = kv.attention_grad_q <" attributes "> (q, k, v, , , delta, lse, dy)"      \
  "  dk, dv = kv.attention_grad_kv <" attributes "> (q, k, v, , , delta, lse, dy)" \
  "}"
#define ATTENTION_GRADIENTS_OF_DOCUMENTS                                               \
  "model gradients (" QKV ", int32[B, T] document, " GIVEN ") => " GRADIENTS " {" SAME \
  "  dq = kv.attention_grad_q <causal = true> (q, k, v, same, , delta, lse, dy)"       \
  "  dk, dv = kv.attention_grad_kv <causal = true> (q, k, v, same, , delta, lse, dy)"  \
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
#define SWIGLU   "model swiglu (bfloat16[R, C] g, bfloat16[R, C] u) => (bfloat16[R, C] y) { y = kv.silu(g) * u }"
#define NEGATION "model copy (bfloat16[R, C] x) => (bfloat16[R, C] y) { y = kv.neg(x) }"
#define SOFTMAX  "model rows (float[R, C] x) => (float[R, C] y) { y = kv.softmax <axis = -1> (x) }"

#define CUBE(n) (2.0 * (n) * (n) * (n))
/* Full and partial tiles of the large blocks; also small blocks. */
#define SOME_TILES "M=136 N=520 K=160"
#define ODD_TILES  "M=70 N=96 K=88"
/* 64 blocks of 128 x 128: warpgroups multiply from 60 on. The last of the ragged ones are partial. */
#define MANY_TILES   "M=1024 N=1024 K=320"
#define RAGGED_TILES "M=1037 N=1096 K=200"
#define ODD_EXTENTS  "M=1037 N=1091 K=203"
/* b h t t d, two products, of which causal attention needs half; gradients are counted as five, as elsewhere */
#define ATTENTION_FLOPS(b, h, t, d) (4.0 * (b) * (h) * (t) * (t) * (d))

/* Of decoding: m rows, n columns, depth k. What stays in the second-level cache between launches is read from there. */
#define DECODES(title, text, m, n, k, size, units, ...)                                                              \
  {                                                                                                                  \
    .name = "few rows " title, .model = text, .small = "M=" #m " N=136 K=328", .large = "M=" #m " N=" #n " K=" #k,   \
    .bytes = (size)*1.0 * ((n)*1.0 * (k) + (m)*1.0 * ((n) + (k))), .tolerance = units, .oracle = gpu_oracle_product, \
    .form = {                                                                                                        \
      __VA_ARGS__                                                                                                    \
    }                                                                                                                \
  }
#define CHECKED(title, text, pins, units, function, ...)                                                         \
  {                                                                                                              \
    .name = title, .model = text, .large = pins, .tolerance = units, .oracle = function, .form = { __VA_ARGS__ } \
  }
/* Float results show the tensor cores' sums, which are not rounded as those of float units; narrow types have 4 units
 * at most (KVA_NARROW_UNITS). Names of forms: the first letter is a's, T: transposed. */
#define PRODUCT_UNITS 256
#define FLOAT_UNITS   64
#define FORMS(type, result)                                                                                            \
  CHECKED("product NN " type " -> " result, PRODUCT(type, result, "M, K", "K, N", "M, N", "to = " result), MANY_TILES, \
          PRODUCT_UNITS, gpu_oracle_product, 0),                                                                       \
      CHECKED("product NT " type " -> " result,                                                                        \
              PRODUCT(type, result, "M, K", "N, K", "M, N", "transpose_b = true, to = " result), MANY_TILES,           \
              PRODUCT_UNITS, gpu_oracle_product, .transpose_b = true),                                                 \
      CHECKED("product TN " type " -> " result,                                                                        \
              PRODUCT(type, result, "K, M", "K, N", "M, N", "transpose_a = true, to = " result), MANY_TILES,           \
              PRODUCT_UNITS, gpu_oracle_product, .transpose_a = true)
#define ATTENDS(title, attributes, pins, ...)                                                                          \
  CHECKED("attention " title, ATTENTION(attributes), pins, 8, gpu_oracle_attention, __VA_ARGS__),                      \
      CHECKED("attention gradients " title, ATTENTION_GRADIENTS(attributes), pins, 16, gpu_oracle_attention_gradients, \
              __VA_ARGS__)
#define ATTENDS_DOCUMENTS(title, pins)                                                               \
  CHECKED("attention " title, ATTENTION_OF_DOCUMENTS, pins, 8, gpu_oracle_attention, .causal = true, \
          .documents = true),                                                                        \
      CHECKED("attention gradients " title, ATTENTION_GRADIENTS_OF_DOCUMENTS, pins, 16,              \
              gpu_oracle_attention_gradients, .causal = true, .documents = true)

const gpu_kernel gpu_kernels[] = {
    /* what the machine can do, first */
    {.name = "copy 16384 x 8192",
     .model = NEGATION,
     .small = "R=7 C=200",
     .large = "R=16384 C=8192",
     .bytes = 2.0 * 2 * 16384 * 8192,
     .tolerance = 4,
     .oracle = gpu_oracle_negation,
     .ceiling = true},
    {.name = "launch of 32 x 64",
     .model = NEGATION,
     .large = "R=32 C=64",
     .bytes = 2.0 * 2 * 32 * 64,
     .tolerance = 4,
     .oracle = gpu_oracle_negation,
     .ceiling = true},
    {.name = "library gemm 8192",
     .model = GEMM,
     .small = ODD_TILES,
     .large = "M=8192 N=8192 K=8192",
     .flops = CUBE(8192),
     .tolerance = 4,
     .oracle = gpu_oracle_product,
     .library = true,
     .ceiling = true},

    /* checked: forms of products, with enough blocks for warpgroups */
    FORMS("bfloat16", "bfloat16"),
    FORMS("bfloat16", "float"),
    FORMS("float16", "float16"),
    CHECKED("product ragged", GEMM, RAGGED_TILES, 4, gpu_oracle_product, 0),
    CHECKED("product of odd extents", GEMM, ODD_EXTENTS, 4, gpu_oracle_product, 0),
    CHECKED("product ragged TN bf16 -> float",
            PRODUCT("bfloat16", "float", "K, M", "K, N", "M, N", "transpose_a = true, to = float"),
            "M=1032 N=1096 K=203", PRODUCT_UNITS, gpu_oracle_product, .transpose_a = true),
    CHECKED("product batched", PRODUCT("bfloat16", "bfloat16", "B, M, K", "B, K, N", "B, M, N", "to = bfloat16"),
            "B=5 M=520 N=392 K=192", 4, gpu_oracle_product, 0),
    CHECKED("product with one b for the batch",
            PRODUCT("bfloat16", "bfloat16", "B, M, K", "K, N", "B, M, N", "to = bfloat16"), "B=5 M=520 N=392 K=192", 4,
            gpu_oracle_product, 0),
    CHECKED("product with one a for the batch",
            PRODUCT("bfloat16", "bfloat16", "M, K", "B, K, N", "B, M, N", "to = bfloat16"), "B=5 M=520 N=392 K=192", 4,
            gpu_oracle_product, 0),
    CHECKED("few rows, odd addresses, float", FEW_ROWS("float"), "M=5 N=1037 K=777", FLOAT_UNITS, gpu_oracle_product,
            0),
    CHECKED("few rows, odd addresses, NT float", FEW_ROWS_NT("float"), "M=7 N=1037 K=777", FLOAT_UNITS,
            gpu_oracle_product, .transpose_b = true),
    CHECKED("few rows, batched", PRODUCT("bfloat16", "bfloat16", "B, M, K", "B, K, N", "B, M, N", "to = bfloat16"),
            "B=5 M=16 N=392 K=192", 4, gpu_oracle_product, 0),
    CHECKED("few rows, TN float", PRODUCT("float", "float", "K, M", "K, N", "M, N", "transpose_a = true, to = float"),
            "M=12 N=1096 K=1030", FLOAT_UNITS, gpu_oracle_product, .transpose_a = true),
    CHECKED("product bias relu", GEMM_BIAS, "M=1037 N=1096 K=328", 4, gpu_oracle_bias_relu, .transpose_b = true),

    /* checked: attention and its gradients */
    ATTENDS("causal 70, heads of 64", "causal = true", "B=2 H=3 G=3 T=70 D=64", .causal = true),
    ATTENDS("causal 70, heads of 128", "causal = true", "B=2 H=3 G=3 T=70 D=128", .causal = true),
    ATTENDS("causal 257, heads of 64", "causal = true", "B=2 H=3 G=3 T=257 D=64", .causal = true),
    ATTENDS("causal 257, heads of 128", "causal = true", "B=2 H=3 G=3 T=257 D=128", .causal = true),
    ATTENDS("full 257, heads of 128", "causal = false", "B=2 H=3 G=3 T=257 D=128", 0),
    ATTENDS("causal 2048, heads of 64", "causal = true", "B=1 H=3 G=3 T=2048 D=64", .causal = true),
    ATTENDS("causal 2048, heads of 128", "causal = true", "B=1 H=3 G=3 T=2048 D=128", .causal = true),
    ATTENDS("full 2048, heads of 128", "causal = false", "B=1 H=2 G=2 T=2048 D=128", 0),
    ATTENDS("grouped 257, heads of 64", "causal = true", "B=2 H=6 G=2 T=257 D=64", .causal = true),
    ATTENDS("grouped 2048, heads of 128", "causal = true", "B=1 H=6 G=2 T=2048 D=128", .causal = true),
    ATTENDS("window 100 of 257, heads of 128", "causal = true, window = 100", "B=2 H=3 G=3 T=257 D=128", .causal = true,
            .window = 100),
    ATTENDS("window 300 of 2048, heads of 64", "causal = true, window = 300", "B=1 H=3 G=3 T=2048 D=64", .causal = true,
            .window = 300),
    ATTENDS_DOCUMENTS("documents 257, heads of 64", "B=2 H=3 G=3 T=257 D=64"),
    ATTENDS_DOCUMENTS("documents 2048, heads of 128", "B=1 H=3 G=3 T=2048 D=128"),

    /* timed */
    {.name = "gemm 4096",
     .model = GEMM,
     .small = SOME_TILES,
     .large = "M=4096 N=4096 K=4096",
     .flops = CUBE(4096),
     .tolerance = 4,
     .oracle = gpu_oracle_product},
    {.name = "gemm 8192",
     .model = GEMM,
     .small = ODD_TILES,
     .large = "M=8192 N=8192 K=8192",
     .flops = CUBE(8192),
     .tolerance = 4,
     .oracle = gpu_oracle_product},
    {.name = "gemm 8192 x 5504 x 2048",
     .model = GEMM,
     .large = "M=8192 N=5504 K=2048",
     .flops = 2.0 * 8192 * 5504 * 2048,
     .tolerance = 4,
     .oracle = gpu_oracle_product},
    {.name = "gemm TN 2048 x 5504 x 8192 float",
     .model = PRODUCT("bfloat16", "float", "K, M", "K, N", "M, N", "transpose_a = true, to = float"),
     .large = "M=2048 N=5504 K=8192",
     .flops = 2.0 * 8192 * 5504 * 2048,
     .tolerance = PRODUCT_UNITS,
     .oracle = gpu_oracle_product,
     .form = {.transpose_a = true}},
    {.name = "gemm bias relu 4096",
     .model = GEMM_BIAS,
     .small = SOME_TILES,
     .large = "M=4096 N=4096 K=4096",
     .flops = CUBE(4096),
     .tolerance = 4,
     .oracle = gpu_oracle_bias_relu,
     .form = {.transpose_b = true}},
    DECODES("1 x 3072 x 768 float", FEW_ROWS("float"), 1, 3072, 768, 4, FLOAT_UNITS, 0),
    DECODES("16 x 3072 x 768 float", FEW_ROWS("float"), 16, 3072, 768, 4, FLOAT_UNITS, 0),
    DECODES("1 x 5504 x 2048 float", FEW_ROWS("float"), 1, 5504, 2048, 4, FLOAT_UNITS, 0),
    DECODES("1 x 5504 x 2048", FEW_ROWS("bfloat16"), 1, 5504, 2048, 2, 4, 0),
    DECODES("1 x 768 x 3072 float", FEW_ROWS("float"), 1, 768, 3072, 4, FLOAT_UNITS, 0),
    DECODES("16 x 768 x 3072 float", FEW_ROWS("float"), 16, 768, 3072, 4, FLOAT_UNITS, 0),
    DECODES("8 x 5504 x 2048 float", FEW_ROWS("float"), 8, 5504, 2048, 4, FLOAT_UNITS, 0),
    DECODES("16 x 5504 x 2048 float", FEW_ROWS("float"), 16, 5504, 2048, 4, FLOAT_UNITS, 0),
    DECODES("2 x 5504 x 2048", FEW_ROWS("bfloat16"), 2, 5504, 2048, 2, 4, 0),
    DECODES("4 x 5504 x 2048", FEW_ROWS("bfloat16"), 4, 5504, 2048, 2, 4, 0),
    DECODES("16 x 5504 x 2048", FEW_ROWS("bfloat16"), 16, 5504, 2048, 2, 4, 0),
    DECODES("NT 1 x 50257 x 768 float", FEW_ROWS_NT("float"), 1, 50257, 768, 4, FLOAT_UNITS, .transpose_b = true),
    DECODES("NT 16 x 50257 x 768 float", FEW_ROWS_NT("float"), 16, 50257, 768, 4, FLOAT_UNITS, .transpose_b = true),
    DECODES("NT 1 x 50257 x 2048", FEW_ROWS_NT("bfloat16"), 1, 50257, 2048, 2, 4, .transpose_b = true),
    DECODES("NT 4 x 50257 x 2048", FEW_ROWS_NT("bfloat16"), 4, 50257, 2048, 2, 4, .transpose_b = true),
    {.name = "library gemm 4096",
     .model = GEMM,
     .small = ODD_TILES,
     .large = "M=4096 N=4096 K=4096",
     .flops = CUBE(4096),
     .tolerance = 4,
     .oracle = gpu_oracle_product,
     .library = true},
    {.name = "attention causal 4096",
     .model = ATTENTION("causal = true"),
     .small = "B=1 H=2 G=2 T=70 D=64",
     .large = "B=4 H=16 G=16 T=4096 D=128",
     .flops = ATTENTION_FLOPS(4, 16, 4096, 128) / 2,
     .tolerance = 8,
     .oracle = gpu_oracle_attention,
     .form = {.causal = true}},
    {.name = "attention causal 8192",
     .model = ATTENTION("causal = true"),
     .large = "B=2 H=16 G=16 T=8192 D=128",
     .flops = ATTENTION_FLOPS(2, 16, 8192, 128) / 2,
     .tolerance = 8,
     .oracle = gpu_oracle_attention,
     .form = {.causal = true}},
    {.name = "attention full 4096",
     .model = ATTENTION("causal = false"),
     .small = "B=1 H=2 G=2 T=70 D=64",
     .large = "B=4 H=16 G=16 T=4096 D=128",
     .flops = ATTENTION_FLOPS(4, 16, 4096, 128),
     .tolerance = 8,
     .oracle = gpu_oracle_attention},
    {.name = "attention gradients causal 4096",
     .model = ATTENTION_GRADIENTS("causal = true"),
     .small = "B=1 H=2 G=2 T=70 D=64",
     .large = "B=4 H=16 G=16 T=4096 D=128",
     .flops = 2.5 * ATTENTION_FLOPS(4, 16, 4096, 128) / 2,
     .tolerance = 16,
     .oracle = gpu_oracle_attention_gradients,
     .form = {.causal = true}},
    {.name = "attention gradients causal 8192",
     .model = ATTENTION_GRADIENTS("causal = true"),
     .large = "B=2 H=16 G=16 T=8192 D=128",
     .flops = 2.5 * ATTENTION_FLOPS(2, 16, 8192, 128) / 2,
     .tolerance = 16,
     .oracle = gpu_oracle_attention_gradients,
     .form = {.causal = true}},
    {.name = "shift rope 16384",
     .model = SHIFT_ROPE,
     .small = "B=2 T=37 H=2 D=64 P=32",
     .large = "B=8 T=2048 H=16 D=128 P=64",
     .bytes = 2.0 * 2 * 8 * 2048 * 16 * 128,
     .tolerance = 4,
     .oracle = gpu_oracle_shift_rope},
    {.name = "rms norm 16384 x 4096",
     .model = RMS_NORM,
     .small = "R=7 C=200",
     .large = "R=16384 C=4096",
     .bytes = 2.0 * 2 * 16384 * 4096,
     .tolerance = 4,
     .oracle = gpu_oracle_rms_norm},
    {.name = "rms norm gradients 16384 x 2048",
     .model = RMS_NORM_GRADIENTS,
     .small = "R=300 C=200",
     .large = "R=16384 C=2048",
     .bytes = 3.0 * 2 * 16384 * 2048,
     .tolerance = 16,
     .oracle = gpu_oracle_rms_norm_gradients},
    {.name = "swiglu 16384 x 4096",
     .model = SWIGLU,
     .small = "R=7 C=200",
     .large = "R=16384 C=4096",
     .bytes = 3.0 * 2 * 16384 * 4096,
     .tolerance = 4,
     .oracle = gpu_oracle_swiglu},
    {.name = "softmax 8192 x 8192",
     .model = SOFTMAX,
     .small = "R=7 C=200",
     .large = "R=8192 C=8192",
     .bytes = 2.0 * 4 * 8192 * 8192,
     .tolerance = 64,
     .oracle = gpu_oracle_softmax},
    {.name = "softmax 8192 x 8191",
     .model = SOFTMAX,
     .small = "R=7 C=777",
     .large = "R=8192 C=8191",
     .bytes = 2.0 * 4 * 8192 * 8191,
     .tolerance = 64,
     .oracle = gpu_oracle_softmax},
    {.name = "softmax 4096 x 32000",
     .model = SOFTMAX,
     .small = "R=3 C=9000",
     .large = "R=4096 C=32000",
     .bytes = 2.0 * 4 * 4096 * 32000,
     .tolerance = 64,
     .oracle = gpu_oracle_softmax},
    {.name = "softmax 2048 x 128256",
     .model = SOFTMAX,
     .small = "R=5 C=131072",
     .large = "R=2048 C=128256",
     .bytes = 2.0 * 4 * 2048 * 128256,
     .tolerance = 64,
     .oracle = gpu_oracle_softmax},
};
const int gpu_n_kernels = sizeof gpu_kernels / sizeof *gpu_kernels;
