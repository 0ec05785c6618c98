/* Random cases of contraction, windows, norms and language models. */
#include "tools/verify/random.h"
#include "ops/ids.h"

#define EXTENTS(...) ((kva_extents){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})

/* Usually small; sometimes 0. */
static int64_t extent(kva_random *r) {
  static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 9, 13};
  return sizes[kva_random_int(r, 0, 7)];
}

/* ---- contraction ------------------------------------------------------------------------------------------------- */

static kva_extents matrix(kva_random *r, kva_extents batch, int64_t rows, int64_t columns, int transposed) {
  for (uint32_t d = 0; d < batch.rank; d++)
    if (kva_random_chance(r, 4)) batch.v[d] = 1;
  if (kva_random_chance(r, 3)) batch.rank = 0;
  return kva_extents_join(batch, transposed ? EXTENTS(columns, rows) : EXTENTS(rows, columns));
}

/* Every fourth case is large enough for several tiles. */
static void random_matmul(kva_random *r) {
  bool large = r->number % 4 == 3;
  int64_t m = large ? kva_random_int(r, 30, 70) : extent(r), n = large ? kva_random_int(r, 30, 70) : extent(r);
  int64_t k = large ? kva_random_int(r, 30, 70) : extent(r);
  int transpose_a = (int)kva_random_int(r, 0, 1), transpose_b = (int)kva_random_int(r, 0, 1);
  kva_extents batch = {.rank = (uint32_t)kva_random_int(r, 0, large ? 0 : 2), .v = {2, 3}};
  kva_random_operand(r, matrix(r, batch, m, k, transpose_a));
  kva_random_operand(r, matrix(r, batch, k, n, transpose_b));
  r->c->no_gradient = large;
  kva_random_attrs(r, "transpose_a=%d; transpose_b=%d", transpose_a, transpose_b);
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

typedef struct window {
  kva_extents in, out, kernel, strides, dilations, pads;
} window;

/* One or two spatial axes that the window fits. */
static window random_window(kva_random *r) {
  uint32_t rank = (uint32_t)kva_random_int(r, 1, 2);
  kva_extents each = {.rank = rank}, ends = {.rank = 2 * rank};
  window w = {each, each, each, each, each, ends};
  for (uint32_t d = 0; d < rank; d++) {
    w.kernel.v[d] = kva_random_int(r, 1, 3);
    w.strides.v[d] = kva_random_int(r, 1, 3);
    w.dilations.v[d] = kva_random_int(r, 1, 2);
    w.pads.v[d] = kva_random_int(r, 0, w.kernel.v[d] - 1);
    w.pads.v[rank + d] = kva_random_int(r, 0, w.kernel.v[d] - 1);
    int64_t span = (w.kernel.v[d] - 1) * w.dilations.v[d] + 1, pads = w.pads.v[d] + w.pads.v[rank + d];
    w.in.v[d] = span + kva_random_int(r, 0, 5);
    w.out.v[d] = (w.in.v[d] + pads - span) / w.strides.v[d] + 1;
  }
  return w;
}

static const char *window_attrs(kva_random *r, const window *w) {
  return kva_arena_printf(r->arena, "strides=%s; dilations=%s; pads=%s", kva_extents_text(r, w->strides),
                          kva_extents_text(r, w->dilations), kva_extents_text(r, w->pads));
}

static kva_extents image(int64_t n, int64_t channels, kva_extents spatial) {
  return kva_extents_join(EXTENTS(n, channels), spatial);
}

static void random_conv(kva_random *r) {
  window w = random_window(r);
  int64_t n = kva_random_int(r, 0, 2), group = kva_random_int(r, 1, 3), c = kva_random_int(r, 1, 3);
  int64_t m = kva_random_int(r, 1, 3);
  kva_extents x = image(n, c * group, w.in), kernel = image(m * group, c, w.kernel), y = image(n, m * group, w.out);
  bool input_grad = kva_random_has_attr(r, "spatial"), weight_grad = kva_random_has_attr(r, "kernel");
  kva_random_operand(r, input_grad ? y : x);
  kva_random_operand(r, weight_grad ? y : kernel);
  const char *attrs = kva_arena_printf(r->arena, "%s; group=%lld", window_attrs(r, &w), (long long)group);
  if (input_grad) attrs = kva_arena_printf(r->arena, "%s; spatial=%s", attrs, kva_extents_text(r, w.in));
  if (weight_grad) attrs = kva_arena_printf(r->arena, "%s; kernel=%s", attrs, kva_extents_text(r, w.kernel));
  r->c->attrs = attrs;
}

static void random_pool(kva_random *r) {
  bool grad = kva_random_has_attr(r, "spatial");
  window w = random_window(r);
  int64_t n = kva_random_int(r, 0, 2), c = kva_random_int(r, 1, 3);
  kva_random_operand(r, image(n, c, grad ? w.out : w.in));
  const char *kernel = kva_extents_text(r, w.kernel), *spatial = kva_extents_text(r, w.in);
  r->c->attrs = kva_arena_printf(r->arena, "%s; kernel=%s%s%s", window_attrs(r, &w), kernel, grad ? "; spatial=" : "",
                                 grad ? spatial : "");
}

/* ---- norms and losses -------------------------------------------------------------------------------------------- */

/* rms_norm, layer_norm: scale and bias over the normalised axes. */
static void random_norm(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, 4, true);
  uint32_t axis = (uint32_t)kva_random_int(r, 0, x.rank - 1);
  kva_extents scale = kva_extents_part(&x, axis, x.rank);
  kva_random_operand(r, x);
  kva_random_operand(r, scale);
  if (kva_ops.ops[r->c->op]->max_operands > 2 && kva_random_chance(r, 2)) kva_random_operand(r, scale);
  kva_random_attrs(r, "axis=%u; eps=0.01", axis); /* rows of one element: with a small eps differences are too coarse */
}

static void random_batch_norm(kva_random *r) {
  kva_extents x = kva_random_extents(r, 2, 4, true), channels = kva_extents_part(&x, 1, 2);
  kva_random_operand(r, x);
  for (int i = 0; i < 3; i++) kva_random_operand(r, channels);
  kva_case_operand *variance = kva_random_operand(r, channels);
  variance->lo = 0.1, variance->hi = 2;
}

static void random_cross_entropy(kva_random *r) {
  kva_extents x = kva_random_extents(r, 1, 4, false);
  kva_random_operand(r, x);
  kva_case_operand *targets = kva_random_operand(r, kva_extents_part(&x, 0, x.rank - 1));
  targets->dtype = kva_random_chance(r, 2) ? KVA_I32 : KVA_I64;
  targets->lo = -1; /* ignored */
  targets->hi = (double)x.v[x.rank - 1] - 1;
  if (x.v[x.rank - 1] == 1) targets->hi = 0;
}

/* ---- language models --------------------------------------------------------------------------------------------- */

/* kv_shift and its gradients: x, then weights or, for theirs, the second factor; past. */
static void random_kv_shift(kva_random *r) {
  static const char *const boundaries[] = {"zero", "keep", "edge"};
  int64_t B = kva_random_int(r, 1, 2), T = kva_random_int(r, 1, 7), H = kva_random_int(r, 1, 3),
          D = kva_random_int(r, 1, 5);
  int64_t W = kva_random_int(r, 1, 4);
  int time_axis = (int)kva_random_int(r, 1, 2);
  kva_extents weights[] = {EXTENTS(H, W), EXTENTS(H, W, D), EXTENTS(B, H, T, W)};
  kva_extents w = weights[kva_random_int(r, 0, 2)], x = EXTENTS(B, H, T, D), past = EXTENTS(B, H, W - 1, D);
  if (time_axis == 1) x = EXTENTS(B, T, H, D), past = EXTENTS(B, W - 1, H, D);
  bool weight_grad = kva_random_has_attr(r, "weight_shape");
  kva_random_operand(r, x);
  kva_random_operand(r, weight_grad ? x : w);
  if (kva_random_chance(r, 2)) kva_random_operand(r, past);
  const char *shape = weight_grad ? kva_arena_printf(r->arena, "; weight_shape=%s", kva_extents_text(r, w)) : "";
  kva_random_attrs(r, "time_axis=%d; boundary=%s%s", time_axis, boundaries[kva_random_int(r, 0, 2)], shape);
}

static void random_shift_grads(kva_random *r) {
  int64_t B = kva_random_int(r, 1, 2), T = kva_random_int(r, 1, 19), H = kva_random_int(r, 1, 3),
          D = kva_random_int(r, 1, 5);
  int time_axis = (int)kva_random_int(r, 1, 2);
  kva_extents x = EXTENTS(B, time_axis == 1 ? T : H, time_axis == 1 ? H : T, D);
  kva_random_operand(r, x);
  kva_random_operand(r, EXTENTS(H, kva_random_int(r, 1, 4)));
  kva_random_operand(r, x);
  if (kva_random_chance(r, 3)) {
    kva_case_operand *segments = kva_random_operand(r, EXTENTS(B, T));
    segments->dtype = KVA_I32;
    segments->hi = 1;
  }
  kva_random_attrs(r, "time_axis=%d", time_axis);
}

static void random_rope(kva_random *r) {
  int64_t B = extent(r) % 3, T = extent(r), half = kva_random_int(r, 1, 4), more = kva_random_int(r, 0, 3);
  kva_extents table = kva_random_chance(r, 2) ? EXTENTS(T, half) : EXTENTS(B, 1, T, half);
  kva_random_operand(r, EXTENTS(B, kva_random_int(r, 1, 3), T, 2 * half + more));
  for (int i = 0; i < 2; i++) kva_random_operand(r, table)->constant = true;
  kva_random_attrs(r, "interleaved=%d", (int)kva_random_int(r, 0, 1));
}

static void random_attention(kva_random *r) {
  bool large = r->number % 4 == 3;
  int64_t B = kva_random_int(r, 1, 2), kv_heads = kva_random_int(r, 1, 2), group = kva_random_int(r, 1, 2);
  int64_t T = large ? kva_random_int(r, 20, 50) : extent(r), S = large ? kva_random_int(r, 20, 50) : extent(r);
  int64_t D = large ? 32 : kva_random_int(r, 1, 5), Dv = large ? 24 : kva_random_int(r, 1, 5);
  kva_random_operand(r, EXTENTS(B, kv_heads * group, T, D));
  kva_random_operand(r, EXTENTS(B, kv_heads, S, D));
  kva_random_operand(r, EXTENTS(B, kv_heads, S, Dv));
  r->c->first_result = true;
  r->c->no_gradient = large;
  kva_random_attrs(r, "causal=%d; offset=%lld; window=%d", (int)kva_random_int(r, 0, 1),
                   (long long)(S - T > 0 ? S - T : 0), (int)kva_random_int(r, 0, 3));
}

static void random_numbers(kva_random *r) {
  static const kva_dtype dtypes[] = {KVA_F32, KVA_F64, KVA_F16, KVA_BF16};
  for (int i = 0; i < 2; i++) {
    kva_case_operand *o = kva_random_operand(r, (kva_extents){0});
    o->dtype = KVA_I64;
    o->lo = i ? 0 : -1e15;
    o->hi = i ? 1e6 : 1e15;
  }
  kva_random_attrs(r, "shape=%s; dtype=%s; stream=%d", kva_extents_text(r, kva_random_extents(r, 0, 3, true)),
                   kva_dtype_name(dtypes[r->number % 4]), (int)kva_random_int(r, -2, 9));
}

static void random_dequantize(kva_random *r) {
  static const kva_dtype dtypes[] = {KVA_I8, KVA_U8, KVA_I4, KVA_U4, KVA_I16};
  kva_dtype dtype = dtypes[r->number % 5];
  kva_extents q = kva_random_extents(r, 1, KVA_RANDOM_RANK, true), scale = q;
  int64_t axis = kva_random_int(r, 0, (int64_t)q.rank - 1), block = kva_random_int(r, 0, 4);
  if (block)
    scale.v[axis] = (q.v[axis] + block - 1) / block;
  else
    scale = kva_random_chance(r, 2) ? EXTENTS(q.v[axis]) : (kva_extents){0};
  kva_case_operand *codes = kva_random_operand(r, q);
  codes->dtype = dtype;
  codes->hi = 7;
  kva_random_operand(r, scale);
  if (kva_random_chance(r, 2)) {
    kva_case_operand *zero = kva_random_operand(r, scale);
    zero->dtype = dtype;
    zero->hi = 7;
  }
  kva_random_attrs(r, "axis=%d; block=%d", (int)axis, (int)block);
}

/* Results of whole words: a GPU's atomic stores of packed elements are of words. */
static void random_unpack(kva_random *r) {
  static const kva_dtype dtypes[] = {KVA_I4, KVA_U4, KVA_I2, KVA_U2};
  kva_dtype to = dtypes[r->number % 4];
  int64_t extent = kva_random_int(r, 1, 40), per = 32 / kva_dtype_bits(to), words = (extent + per - 1) / per;
  bool first = kva_random_chance(r, 2);
  kva_case_operand *x = kva_random_operand(r, first ? EXTENTS(words, 16) : EXTENTS(16, words));
  x->dtype = KVA_U32;
  x->hi = UINT32_MAX;
  kva_random_attrs(r, "axis=%d; extent=%d; to=%s; by_bytes=%d", first ? 0 : -1, (int)extent, kva_dtype_name(to),
                   kva_random_chance(r, 2));
}

static const kva_random_fn generators[KVA_OP_COUNT] = {
    [KVA_OP_matmul] = random_matmul,
    [KVA_OP_conv] = random_conv,
    [KVA_OP_conv_input_grad] = random_conv,
    [KVA_OP_conv_weight_grad] = random_conv,
    [KVA_OP_max_pool] = random_pool,
    [KVA_OP_avg_pool] = random_pool,
    [KVA_OP_avg_pool_grad] = random_pool,
    [KVA_OP_rms_norm] = random_norm,
    [KVA_OP_layer_norm] = random_norm,
    [KVA_OP_batch_norm] = random_batch_norm,
    [KVA_OP_cross_entropy] = random_cross_entropy,
    [KVA_OP_kv_shift] = random_kv_shift,
    [KVA_OP_kv_shift_input_grad] = random_kv_shift,
    [KVA_OP_kv_shift_weight_grad] = random_kv_shift,
    [KVA_OP_kv_shift_grads] = random_shift_grads,
    [KVA_OP_rope] = random_rope,
    [KVA_OP_attention] = random_attention,
    [KVA_OP_dequantize] = random_dequantize,
    [KVA_OP_unpack] = random_unpack,
    [KVA_OP_random_uniform] = random_numbers,
    [KVA_OP_random_normal] = random_numbers,
};

kva_random_fn kva_random_nn(kva_op_id op) {
  return generators[op];
}
