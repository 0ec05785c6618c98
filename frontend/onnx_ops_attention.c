/* Rules: the language-model operators. */
#include "frontend/frontend_internal.h"
#include "frontend/onnx_window.h"
#include "ops/ids.h"

#include <math.h>

kva_status kva_onnx_split_heads(kva_onnx_call *k, kva_value *x, int64_t heads, kva_value **out) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  if (heads < 1) return kva_onnx_fail(k, KVA_INVALID, "inputs of rank 3 need the number of heads");
  kva_dim h = kva_expr_const(e, heads), d = kva_expr_div(e, kva_onnx_dim(x, 2), h);
  kva_value *y = kva_reshape(k->b, x, 4, (kva_dim[]){kva_onnx_dim(x, 0), kva_onnx_dim(x, 1), h, d});
  if (k->b->failed) return KVA_INVALID;
  *out = kva_transpose(k->b, y, (int64_t[]){0, 2, 1, 3});
  return KVA_OK;
}

kva_value *kva_onnx_join_heads(kva_builder *b, kva_value *x) {
  if (b->failed) return x;
  kva_value *y = kva_transpose(b, x, (int64_t[]){0, 2, 1, 3});
  const kva_dim *d = y->type->dims;
  return kva_reshape(b, y, 3, (kva_dim[]){d[0], d[1], kva_expr_mul(b->m->exprs, d[2], d[3])});
}

kva_status kva_onnx_check_past(kva_onnx_call *k, uint32_t i) {
  if (!kva_onnx_in(k, i) != !kva_onnx_in(k, i + 1))
    return kva_onnx_fail(k, KVA_INVALID, "past_key and past_value go together");
  KVA_TRY(kva_onnx_check_rank(k, i, 4));
  return kva_onnx_check_rank(k, i + 1, 4);
}

void kva_onnx_append_past(kva_builder *b, kva_value *past_key, kva_value *past_value, kva_value **key,
                          kva_value **value, kva_dim *rows) {
  if (!past_key || b->failed || kva_expr_is(kva_onnx_dim(past_key, 2), 0)) return;
  *rows = kva_onnx_dim(past_key, 2);
  *key = kva_onnx_concat(b, past_key, *key, 2);
  *value = kva_onnx_concat(b, past_value, *value, 2);
}

/* ---- rotary ------------------------------------------------------------------------------------------------------ */

/* The table rows of every position, as [B, 1, T, R/2]. */
static kva_status rotary_table(kva_onnx_call *k, uint32_t input, kva_value **out) {
  kva_value *table = kva_onnx_in(k, input), *positions = kva_onnx_in(k, 3);
  if (positions) table = kva_onnx_gather(k->b, table, positions, 0);
  if (k->b->failed) return KVA_INVALID;
  if (table->type->rank != 3)
    return kva_onnx_fail(k, KVA_INVALID, "input %u: expected one row for each position of each sequence", input);
  *out = kva_onnx_unsqueeze(k->b, table, 1, 1);
  return KVA_OK;
}

/* A table with the extents of the other that are numbers. */
static kva_value *with_numbers_of(kva_onnx_call *k, kva_value *table, const kva_value *other) {
  kva_dim dims[KVA_MAX_RANK] = {NULL};
  for (uint32_t i = 0; i < other->type->rank; i++)
    if (kva_expr_is_const(other->type->dims[i], NULL)) dims[i] = other->type->dims[i];
  return kva_onnx_with_dims(k, table, dims, "tables of RotaryEmbedding");
}

kva_status kva_onnx_rotary_embedding(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *cos = NULL, *sin = NULL;
  bool flat = x->type->rank == 3;
  if (!flat && x->type->rank != 4)
    return kva_onnx_fail(k, KVA_INVALID, "expected rank 3 or 4, found %u", x->type->rank);
  if (flat) KVA_TRY(kva_onnx_split_heads(k, x, kva_onnx_int(k, "num_heads", 0), &x));
  KVA_TRY(rotary_table(k, 1, &cos));
  KVA_TRY(rotary_table(k, 2, &sin));
  cos = with_numbers_of(k, cos, sin), sin = with_numbers_of(k, sin, cos);
  kva_rope_attrs attrs = {.interleaved = kva_onnx_int(k, "interleaved", 0) != 0};
  kva_value *y = kva_build(k->b, KVA_OP_rope, 3, (kva_value *[]){x, cos, sin}, &attrs);
  return kva_onnx_done(k, flat ? kva_onnx_join_heads(k->b, y) : y);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { IN_MASK = 3, IN_PAST_KEY, IN_PAST_VALUE, IN_VALID_KEYS };
enum { OUT_PRESENT_KEY = 1, OUT_PRESENT_VALUE, OUT_SCORES };

typedef struct attention {
  kva_value *q, *key, *value, *mask;
  kva_attention_attrs attrs;
  bool flat;
} attention;

static kva_status read_heads(kva_onnx_call *k, attention *a) {
  int64_t q_heads = kva_onnx_int(k, "q_num_heads", 0), kv_heads = kva_onnx_int(k, "kv_num_heads", 0);
  a->q = kva_onnx_in(k, 0), a->key = kva_onnx_in(k, 1), a->value = kva_onnx_in(k, 2);
  a->flat = a->q->type->rank == 3;
  for (uint32_t i = 0; i < 3; i++)
    if (kva_onnx_in(k, i)->type->rank != (a->flat ? 3 : 4))
      return kva_onnx_fail(k, KVA_INVALID, "input %u: expected rank %d, found %u", i, a->flat ? 3 : 4,
                           kva_onnx_in(k, i)->type->rank);
  if (!a->flat) return KVA_OK;
  KVA_TRY(kva_onnx_split_heads(k, a->q, q_heads, &a->q));
  KVA_TRY(kva_onnx_split_heads(k, a->key, kv_heads, &a->key));
  return kva_onnx_split_heads(k, a->value, kv_heads, &a->value);
}

/* The cache of earlier keys and values precedes the new ones; positions are relative to its length. */
static kva_status append_past(kva_onnx_call *k, attention *a) {
  KVA_TRY(kva_onnx_check_past(k, IN_PAST_KEY));
  kva_onnx_append_past(k->b, kva_onnx_in(k, IN_PAST_KEY), kva_onnx_in(k, IN_PAST_VALUE), &a->key, &a->value,
                       &a->attrs.offset);
  kva_onnx_set_out(k, OUT_PRESENT_KEY, a->key);
  kva_onnx_set_out(k, OUT_PRESENT_VALUE, a->value);
  return k->b->failed ? KVA_INVALID : KVA_OK;
}

/* A mask for fewer keys than there are hides the others. One of a single key would do that, too, or broadcast: where
 * its extent is symbolic, it is taken not to be 1, and not to be more than there are keys. */
static kva_value *extend_mask(kva_onnx_call *k, kva_value *mask, kva_dim keys) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  uint32_t rank = mask->type->rank;
  kva_dim own = rank ? kva_onnx_dim(mask, rank - 1) : keys, none = kva_expr_const(e, 0);
  bool fewer = kva_expr_provably_less(e, own, keys), other = fewer || kva_expr_provably_less(e, keys, own);
  bool unknown = !other && k->b->assumes && !kva_expr_is_const(own, NULL);
  if (own == keys || kva_expr_is(own, 1) || (!fewer && !unknown)) return mask;
  if (unknown) {
    kva_dim several = kva_expr_min(e, keys, kva_expr_const(e, 2));
    own = kva_expr_max(e, kva_expr_min(e, own, keys), several);
    mask = kva_onnx_with_extent(k, mask, rank - 1, own, "the mask of Attention");
  }
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) before[i] = after[i] = none;
  after[rank - 1] = kva_expr_sub(e, keys, own);
  double hidden = mask->type->dtype == KVA_BOOL ? 0 : -(double)INFINITY;
  kva_pad_attrs attrs = {.before = {rank, before}, .after = {rank, after}};
  return kva_build(k->b, KVA_OP_pad, 2, (kva_value *[]){mask, kva_scalar_like(k->b, mask, hidden)}, &attrs);
}

/* Attention-24: sequence b has valid_keys[b] keys; visible is [B, 1, 1, S]. */
static kva_value *valid_mask(kva_onnx_call *k, kva_value *valid_keys, kva_dim keys) {
  kva_value *limit = kva_onnx_unsqueeze(k->b, kva_cast(k->b, valid_keys, KVA_I64), 1, 3);
  return kva_build2(k->b, KVA_OP_less, kva_onnx_ramp(k->b, KVA_I64, 4, 3, keys), limit);
}

/* Hides what `visible` does not show. */
static void hide(kva_onnx_call *k, attention *a, kva_value *visible) {
  kva_builder *b = k->b;
  kva_value *mask = a->mask;
  if (!mask)
    a->mask = visible;
  else if (mask->type->dtype == KVA_BOOL)
    a->mask = kva_build2(b, KVA_OP_logical_and, visible, mask);
  else
    a->mask = kva_onnx_where(b, visible, mask, kva_scalar_like(b, mask, -(double)INFINITY));
}

static kva_status read_mask(kva_onnx_call *k, attention *a) {
  kva_builder *b = k->b;
  kva_dim keys = kva_onnx_dim(a->key, 2);
  kva_value *mask = kva_onnx_in(k, IN_MASK), *valid = kva_onnx_in(k, IN_VALID_KEYS);
  if (mask) mask = extend_mask(k, mask, keys);
  if (mask && mask->type->dtype != KVA_BOOL) mask = kva_cast(b, mask, a->q->type->dtype);
  a->mask = mask;
  if (!valid) return KVA_OK;
  KVA_TRY(kva_onnx_check_vector(k, valid, "nonpad_kv_seqlen"));
  hide(k, a, valid_mask(k, valid, keys));
  return KVA_OK;
}

/* The last opsets let a query at position p see only the keys from p - left to p + right; -1: all on that side. */
static kva_status read_window(kva_onnx_call *k, int64_t *left, int64_t *right) {
  *left = kva_onnx_int(k, "left_window_size", -1);
  *right = kva_onnx_int(k, "right_window_size", -1);
  if (*left >= -1 && *right >= -1) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "windows of %lld and %lld keys; expected -1 (all) or more", (long long)*left,
                       (long long)*right);
}

/* Places of the queries among the keys. Lengths put the last query at each sequence's last key. [T, 1] or [B, 1, T, 1]
 */
static kva_value *query_places(kva_onnx_call *k, const attention *a) {
  kva_builder *b = k->b;
  kva_dim rows = kva_onnx_dim(a->q, 2);
  kva_value *row = kva_onnx_ramp(b, KVA_I64, 2, 0, rows), *valid = kva_onnx_in(k, IN_VALID_KEYS);
  if (a->attrs.offset) return kva_add(b, row, kva_dim_scalar(b, KVA_I64, a->attrs.offset));
  if (!valid) return row;
  kva_value *first = kva_sub(b, kva_cast(b, valid, KVA_I64), kva_dim_scalar(b, KVA_I64, rows));
  return kva_add(b, row, kva_onnx_unsqueeze(b, first, 1, 3));
}

/* Whether a query sees a key, by its window. NULL: it sees all. */
static kva_value *window_mask(kva_onnx_call *k, const attention *a, int64_t left, int64_t right) {
  kva_builder *b = k->b;
  if (left < 0 && right < 0) return NULL;
  kva_value *row = query_places(k, a), *seen = NULL;
  kva_value *key = kva_onnx_ramp(b, KVA_I64, 2, 1, kva_onnx_dim(a->key, 2));
  if (left >= 0) {
    kva_value *first = kva_sub(b, row, kva_scalar_like(b, row, (double)left));
    seen = kva_build2(b, KVA_OP_less_equal, first, key);
  }
  if (right < 0) return seen;
  kva_value *last = kva_add(b, row, kva_scalar_like(b, row, (double)right));
  kva_value *before = kva_build2(b, KVA_OP_less_equal, key, last);
  return seen ? kva_build2(b, KVA_OP_logical_and, seen, before) : before;
}

/* The mask, including causality, as added floats, for the scores output. */
static kva_value *additive_mask(kva_onnx_call *k, const attention *a, kva_value *scores) {
  kva_builder *b = k->b;
  kva_value *zero = kva_scalar_like(b, scores, 0), *hidden = kva_scalar_like(b, scores, -(double)INFINITY);
  kva_value *mask = a->mask;
  if (mask && mask->type->dtype == KVA_BOOL) mask = kva_onnx_where(b, mask, zero, hidden);
  if (!a->attrs.causal) return mask;
  kva_value *row = kva_onnx_ramp(b, KVA_I64, 2, 0, kva_onnx_dim(a->q, 2));
  if (a->attrs.offset) row = kva_add(b, row, kva_dim_scalar(b, KVA_I64, a->attrs.offset));
  kva_value *future = kva_build2(b, KVA_OP_less, row, kva_onnx_ramp(b, KVA_I64, 2, 1, kva_onnx_dim(a->key, 2)));
  kva_value *causal = kva_onnx_where(b, future, hidden, zero);
  return mask ? kva_add(b, mask, causal) : causal;
}

/* x[B, H, ..] with y[B, Hkv, ..] (transposed or not) as [B, Hkv, group, ..] with [B, Hkv, 1, ..]: y is not repeated. */
static kva_value *product_of_heads(kva_builder *b, kva_value *x, kva_value *y, bool transpose) {
  kva_expr_ctx *e = b->m->exprs;
  if (b->failed) return x;
  const kva_dim *p = x->type->dims, *q = y->type->dims;
  kva_dim group = kva_expr_div(e, p[1], q[1]), one = kva_expr_const(e, 1);
  kva_value *x5 = kva_reshape(b, x, 5, (kva_dim[]){p[0], q[1], group, p[2], p[3]});
  kva_value *y5 = kva_reshape(b, y, 5, (kva_dim[]){q[0], q[1], one, q[2], q[3]});
  kva_dim shape[4] = {p[0], p[1], p[2], q[transpose ? 2 : 3]};
  return kva_reshape(b, kva_matmul(b, x5, y5, false, transpose), 4, shape);
}

static kva_value *raw_scores(kva_onnx_call *k, const attention *a) {
  kva_builder *b = k->b;
  const kva_dim *q = a->q->type->dims;
  kva_value *s = product_of_heads(b, a->q, a->key, true);
  int64_t d;
  if (a->attrs.scale != 0) return kva_mul(b, s, kva_scalar_like(b, s, a->attrs.scale));
  if (kva_expr_is_const(q[3], &d)) return kva_mul(b, s, kva_scalar_like(b, s, 1 / sqrt((double)d)));
  return kva_div(b, s, kva_build1(b, KVA_OP_sqrt, kva_dim_scalar(b, s->type->dtype, q[3])));
}

/* Softmax; a row without any key is 0, as its result is. */
static kva_value *probabilities(kva_builder *b, kva_value *scores) {
  const kva_reduce_max_attrs row = {.axes = {1, (const int64_t[]){-1}}, .keepdims = true};
  kva_value *largest = kva_build(b, KVA_OP_reduce_max, 1, &scores, &row);
  kva_value *empty = kva_build2(b, KVA_OP_equal, largest, kva_scalar_like(b, scores, -(double)INFINITY));
  kva_value *p = kva_build(b, KVA_OP_softmax, 1, &scores, &(kva_softmax_attrs){.axis = -1});
  return kva_onnx_where(b, empty, kva_scalar_like(b, scores, 0), p);
}

/* qk_matmul_output: raw scores (0), after the soft cap (1), after masks (2), after softmax (3). */
static kva_value *scores_output(kva_onnx_call *k, const attention *a, int64_t mode) {
  kva_builder *b = k->b;
  kva_value *s = raw_scores(k, a);
  if (mode >= 1 && a->attrs.softcap > 0) {
    kva_value *cap = kva_scalar_like(b, s, a->attrs.softcap);
    s = kva_mul(b, kva_build1(b, KVA_OP_tanh, kva_div(b, s, cap)), cap);
  }
  kva_value *mask = mode >= 2 ? additive_mask(k, a, s) : NULL;
  if (mask) s = kva_add(b, s, mask);
  return mode >= 3 ? probabilities(b, s) : s;
}

/* Softmax is computed in float, or all of it in double for doubles and where the model asks for that. */
static kva_status apply_precision(kva_onnx_call *k, attention *a) {
  int64_t t = kva_onnx_int(k, "softmax_precision", KVA_F32);
  if (t == KVA_F32 || t == KVA_F16 || t == KVA_BF16) return KVA_OK;
  if (t != KVA_F64) return kva_onnx_fail(k, KVA_INVALID, "softmax_precision %lld is no float type", (long long)t);
  a->q = kva_cast(k->b, a->q, KVA_F64);
  a->key = kva_cast(k->b, a->key, KVA_F64);
  a->value = kva_cast(k->b, a->value, KVA_F64);
  return KVA_OK;
}

static bool has_known_heads(const attention *a) {
  return kva_expr_is_const(kva_onnx_dim(a->q, 3), NULL) && kva_expr_is_const(kva_onnx_dim(a->value, 3), NULL);
}

/* The result: one operator, or written out, in float, where the size of a head is symbolic, which kernels cannot take.
 */
static kva_value *attend(kva_onnx_call *k, attention *a) {
  kva_value *in[] = {a->q, a->key, a->value, a->mask};
  if (has_known_heads(a)) return kva_build(k->b, KVA_OP_attention, a->mask ? 4 : 3, in, &a->attrs);
  kva_dtype t = a->q->type->dtype == KVA_F64 ? KVA_F64 : KVA_F32;
  a->q = kva_cast(k->b, a->q, t);
  a->key = kva_cast(k->b, a->key, t);
  if (a->mask && a->mask->type->dtype != KVA_BOOL) a->mask = kva_cast(k->b, a->mask, t);
  return product_of_heads(k->b, scores_output(k, a, 3), kva_cast(k->b, a->value, t), false);
}

kva_status kva_onnx_attention(kva_onnx_call *k) {
  int64_t left, right;
  kva_dtype t = kva_onnx_in(k, 0)->type->dtype;
  attention a = {.attrs = {.causal = kva_onnx_int(k, "is_causal", 0) != 0,
                           .scale = kva_onnx_float(k, "scale", 0),
                           .softcap = kva_onnx_float(k, "softcap", 0)}};
  KVA_TRY(read_heads(k, &a));
  KVA_TRY(append_past(k, &a));
  KVA_TRY(apply_precision(k, &a));
  KVA_TRY(read_mask(k, &a));
  KVA_TRY(read_window(k, &left, &right));
  if (k->b->failed) return KVA_INVALID;
  if (a.attrs.causal && kva_onnx_in(k, IN_VALID_KEYS))
    a.attrs.causal = false, right = 0; /* places differ by sequence */
  kva_value *window = window_mask(k, &a, left, right);
  if (window) hide(k, &a, window);
  if (kva_onnx_wants(k, OUT_SCORES)) {
    kva_value *scores = scores_output(k, &a, kva_onnx_int(k, "qk_matmul_output_mode", 0));
    kva_onnx_set_out(k, OUT_SCORES, kva_cast(k->b, scores, t));
  }
  kva_value *y = kva_cast(k->b, attend(k, &a), t);
  return kva_onnx_done(k, a.flat ? kva_onnx_join_heads(k->b, y) : y);
}

/* ---- modified attention ------------------------------------------------------------------------------------------ */

/* x through the sub-graph of an attribute, which keeps type and shape; x itself without one. */
static kva_status modify(kva_onnx_call *k, const char *name, kva_value **x) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, name);
  if (!a) return KVA_OK;
  const kva_onnx_subgraph *g = a->kind == KVA_ONNX_GRAPH ? a->graph : NULL;
  if (!g || g->n_inputs != 1 || g->n_outputs != 1)
    return kva_onnx_fail(k, KVA_INVALID, "attribute '%s' is not a graph of one input and one output", name);
  kva_value *in = *x;
  KVA_TRY(g->build(k->c, g, &in, x));
  if ((*x)->type == in->type) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "'%s' changes the type or the shape of its input", name);
}

/* softmax(score_mod(scale q k^T)) v, with prob_mod on the probabilities. */
kva_status kva_onnx_flex_attention(kva_onnx_call *k) {
  kva_builder *b = k->b;
  attention a = {.q = kva_onnx_in(k, 0),
                 .key = kva_onnx_in(k, 1),
                 .value = kva_onnx_in(k, 2),
                 .attrs = {.scale = kva_onnx_float(k, "scale", 0)}};
  kva_dtype t = a.q->type->dtype, wide = t == KVA_F64 ? t : KVA_F32;
  int64_t precision = kva_onnx_int(k, "softmax_precision", wide);
  for (uint32_t i = 0; i < 3; i++)
    if (kva_onnx_in(k, i)->type->rank != 4) return kva_onnx_fail(k, KVA_INVALID, "input %u: expected rank 4", i);
  if (precision <= 0 || precision >= KVA_DTYPE_COUNT || !kva_dtype_is_float((kva_dtype)precision))
    return kva_onnx_fail(k, KVA_INVALID, "softmax_precision %lld is no float type", (long long)precision);
  kva_value *s = kva_cast(b, raw_scores(k, &a), (kva_dtype)precision);
  KVA_TRY(modify(k, "score_mod", &s));
  s = kva_build(b, KVA_OP_softmax, 1, &s, &(kva_softmax_attrs){.axis = -1});
  KVA_TRY(modify(k, "prob_mod", &s));
  kva_value *y = product_of_heads(b, s, kva_cast(b, a.value, (kva_dtype)precision), false);
  return kva_onnx_done(k, kva_cast(b, y, t));
}

/* ---- shifts ------------------------------------------------------------------------------------------------------ */

static kva_status check_causal_conv(kva_onnx_call *k, const char **activation) {
  kva_value *x = kva_onnx_in(k, 0), *w = kva_onnx_in(k, 1), *past = kva_onnx_in(k, 3);
  *activation = kva_onnx_string(k, "activation", "none");
  bool known = !strcmp(*activation, "none") || !strcmp(*activation, "silu") || !strcmp(*activation, "swish");
  if (!known) return kva_onnx_fail(k, KVA_INVALID, "attribute 'activation': '%s'", *activation);
  if (x->type->rank != 3 || w->type->rank != 3 || (past && past->type->rank != 3))
    return kva_onnx_fail(k, KVA_INVALID, "expected inputs of rank 3 [batch, channels, length]");
  return KVA_OK;
}

/* The same where the number of taps is known at run time only. */
static kva_status causal_conv_free(kva_onnx_call *k, kva_value *w, kva_value **y) {
  static const int64_t one = 1;
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = kva_onnx_in(k, 0), *past = kva_onnx_in(k, 3);
  kva_dim none = kva_expr_const(e, 0), kept = kva_expr_addi(e, kva_onnx_dim(w, 2), -1), length = kva_onnx_dim(x, 2);
  kva_dim state[3] = {kva_onnx_dim(x, 0), kva_onnx_dim(x, 1), kept};
  if (past) past = kva_onnx_with_dims(k, past, state, "the past of CausalConvWithState");
  x = past ? kva_onnx_concat(b, past, x, 2) : kva_onnx_pad_spatial(k, x, NULL, &kept, &none);
  if (b->failed) return KVA_INVALID;
  KVA_TRY(kva_onnx_correlate(k, x, w, kva_onnx_dim(w, 0), &one, &one, y));
  kva_onnx_set_out(k, 1, kva_onnx_slice(b, x, 2, length, kept));
  return KVA_OK;
}

/* A depthwise causal convolution is a KV shift whose heads are the channels: x[B, C, L, 1]; tap j of the shift is tap
 * k-1-j of the convolution. Both have the same state, the last k-1 inputs. */
static kva_status shift_rows(kva_onnx_call *k, kva_value *w, kva_value **y) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = kva_onnx_in(k, 0), *past = kva_onnx_in(k, 3);
  kva_dim taps = kva_onnx_dim(w, 2), starts[2] = {kva_expr_const(e, 0), kva_expr_addi(e, taps, -1)};
  kva_dim shape[2] = {kva_onnx_dim(w, 0), taps};
  w = kva_reshape(b, w, 2, shape);
  kva_dim state[3] = {kva_onnx_dim(x, 0), kva_onnx_dim(x, 1), starts[1]};
  if (past) past = kva_onnx_with_dims(k, past, state, "the past of CausalConvWithState");
  kva_slice_attrs reverse = {.starts = {2, starts}, .shape = {2, shape}, .steps = {2, (const int64_t[]){1, -1}}};
  w = kva_build(b, KVA_OP_slice, 1, &w, &reverse);
  kva_value *in[] = {kva_onnx_unsqueeze(b, x, 3, 1), w, past ? kva_onnx_unsqueeze(b, past, 3, 1) : NULL};
  kva_kv_shift_attrs attrs = {.time_axis = 2};
  kva_node *shift = kva_build_node(b, KVA_OP_kv_shift, past ? 3 : 2, in, 2, &attrs);
  if (b->failed) return KVA_INVALID;
  kva_onnx_set_out(k, 1, kva_reshape(b, kva_result(shift, 1), 3, kva_result(shift, 1)->type->dims));
  *y = kva_reshape_like(b, kva_result(shift, 0), x->type);
  return KVA_OK;
}

kva_status kva_onnx_causal_conv(kva_onnx_call *k) {
  kva_builder *b = k->b;
  const char *activation;
  KVA_TRY(check_causal_conv(k, &activation));
  kva_value *w = kva_onnx_in(k, 1), *bias = kva_onnx_in(k, 2), *y = NULL;
  kva_dim extents[3] = {kva_onnx_dim(kva_onnx_in(k, 0), 1), kva_expr_const(kva_onnx_exprs(k), 1), NULL};
  w = kva_onnx_with_dims(k, w, extents, "weights of CausalConvWithState");
  if (!kva_expr_is(kva_onnx_dim(w, 1), 1)) return kva_onnx_fail(k, KVA_INVALID, "expected weights of [C, 1, k]");
  bool known = kva_expr_is_const(kva_onnx_dim(w, 2), NULL);
  KVA_TRY(known ? shift_rows(k, w, &y) : causal_conv_free(k, w, &y));
  if (bias) y = kva_add(b, y, kva_onnx_unsqueeze(b, bias, 1, 1));
  return kva_onnx_done(k, strcmp(activation, "none") ? kva_build1(b, KVA_OP_silu, y) : y);
}
