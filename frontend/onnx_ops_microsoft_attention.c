/* Rules of domain com.microsoft: attention, as ONNX Runtime's optimiser and the model builder of its generative library
 * write it. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

typedef struct attention {
  kva_value *q, *key, *value; /* [B, H, T, D] and, of the new rows, [B, Hkv, S, D] */
  kva_value *bias;            /* what is added to the scores, or NULL */
  kva_attention_attrs attrs;
} attention;

static kva_value *attend(kva_onnx_call *k, const attention *a) {
  kva_value *in[] = {a->q, a->key, a->value, a->bias};
  return kva_onnx_join_heads(k->b, kva_build(k->b, KVA_OP_attention, a->bias ? 4 : 3, in, &a->attrs));
}

/* Columns [start, start + n) of the last axis. */
static kva_value *columns(kva_onnx_call *k, kva_value *x, kva_dim start, kva_dim n) {
  return k->b->failed ? x : kva_onnx_slice(k->b, x, x->type->rank - 1, start, n);
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* v[B] as [B, 1, 1, 1] in int64. */
static kva_value *for_sequences(kva_onnx_call *k, kva_value *v) {
  return kva_onnx_unsqueeze(k->b, kva_cast(k->b, v, KVA_I64), 1, 3);
}

static kva_value *key_numbers(kva_onnx_call *k, const attention *a) {
  return kva_onnx_ramp(k->b, KVA_I64, 4, 3, kva_onnx_dim(a->key, 2));
}

/* Keys before the end of each sequence; ends[B], or the ends followed by the first keys: [2 B]. */
static kva_status shown_by_ends(kva_onnx_call *k, const attention *a, kva_value *ends, kva_value **out) {
  kva_builder *b = k->b;
  kva_dim batch = kva_onnx_dim(a->q, 0), n = kva_onnx_dim(ends, 0);
  bool both = n != batch && n == kva_expr_muli(kva_onnx_exprs(k), batch, 2);
  kva_value *last = both ? kva_onnx_slice(b, ends, 0, kva_expr_const(kva_onnx_exprs(k), 0), batch) : ends;
  last = kva_onnx_with_extent(k, last, 0, batch, "lengths of the keys");
  *out = kva_build2(b, KVA_OP_less, key_numbers(k, a), for_sequences(k, last));
  if (!both) return KVA_OK;
  kva_value *first = for_sequences(k, kva_onnx_slice(b, ends, 0, batch, batch));
  *out = kva_build2(b, KVA_OP_logical_and, *out, kva_build2(b, KVA_OP_less_equal, first, key_numbers(k, a)));
  return KVA_OK;
}

/* Which keys the mask shows: bool that broadcasts to [B, 1, T, S]. Flags are [B, S] or [B, T, S]. */
static kva_status shown_keys(kva_onnx_call *k, const attention *a, kva_value *mask, kva_value **out) {
  uint32_t rank = mask->type->rank;
  if (rank == 1) return shown_by_ends(k, a, mask, out);
  if (rank != 2 && rank != 3)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "a mask of rank %u; expected lengths or flags of rank 2 or 3", rank);
  kva_dim dims[3] = {kva_onnx_dim(a->q, 0), kva_onnx_dim(a->q, 2), kva_onnx_dim(a->key, 2)};
  if (rank == 2) dims[1] = dims[2];
  mask = kva_onnx_unsqueeze(k->b, kva_onnx_with_dims(k, mask, dims, "the mask of attention"), 1, 4 - rank);
  *out = kva_build2(k->b, KVA_OP_less, kva_scalar_like(k->b, mask, 0), mask);
  return KVA_OK;
}

/* Adds mask_filter_value to the scores of keys that `mask` does not show. It is finite, so that a row without any key
 * has the softmax of its scores. */
static kva_status add_mask(kva_onnx_call *k, attention *a, kva_value *mask) {
  kva_builder *b = k->b;
  kva_value *shown = NULL;
  double hidden = kva_onnx_float(k, "mask_filter_value", -10000);
  if (!mask) return KVA_OK;
  KVA_TRY(shown_keys(k, a, mask, &shown));
  kva_value *added = kva_onnx_where(b, shown, kva_scalar_like(b, a->q, 0), kva_scalar_like(b, a->q, hidden));
  a->bias = a->bias ? kva_add(b, a->bias, added) : added;
  return KVA_OK;
}

/* What is added to the scores: [B or 1, H or 1, T, S]. */
static kva_status read_bias(kva_onnx_call *k, attention *a, uint32_t input) {
  a->bias = kva_onnx_in(k, input);
  kva_dim dims[4] = {kva_onnx_dim(a->q, 0), NULL, kva_onnx_dim(a->q, 2), NULL};
  KVA_TRY(kva_onnx_check_rank(k, input, 4));
  if (!a->bias) return KVA_OK;
  if (kva_expr_is_const(kva_onnx_dim(a->bias, 0), NULL)) dims[0] = NULL;
  a->bias = kva_onnx_with_dims(k, a->bias, dims, "the bias of the scores of attention");
  return KVA_OK;
}

static kva_status refuse_inputs(kva_onnx_call *k, uint32_t first, const char *const *names, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (kva_onnx_in(k, first + i)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "input %u (%s)", first + i, names[i]);
  return KVA_OK;
}

static kva_status refuse_flags(kva_onnx_call *k, const char *const *names, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (kva_onnx_int(k, names[i], 0)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "attribute '%s'", names[i]);
  return KVA_OK;
}

/* ---- MultiHeadAttention ------------------------------------------------------------------------------------------ */

enum { IN_BIAS = 3, IN_PADDING, IN_SCORES, IN_PAST_KEY, IN_PAST_VALUE, IN_PAST_LENGTH };

/* x + bias[start ..], where the bias of the projections of queries, keys and values is one vector. */
static kva_value *biased(kva_onnx_call *k, kva_value *x, kva_dim start) {
  kva_value *bias = kva_onnx_in(k, IN_BIAS);
  if (!bias || k->b->failed) return x;
  return kva_add(k->b, x, kva_onnx_slice(k->b, bias, 0, start, kva_onnx_dim(x, 2)));
}

/* Part `at` of x [B, S, H, parts, D] as [B, S, H * D]. */
static kva_value *unpack(kva_onnx_call *k, kva_value *x, int64_t at) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  const kva_dim *d = x->type->dims;
  kva_value *part = kva_onnx_slice(k->b, x, 3, kva_expr_const(e, at), kva_expr_const(e, 1));
  return kva_reshape(k->b, part, 3, (kva_dim[]){d[0], d[1], kva_expr_mul(e, d[2], d[4])});
}

/* Queries, keys and values of rank 3, from one tensor, two or three. */
static kva_status read_rows(kva_onnx_call *k, attention *a) {
  a->q = kva_onnx_in(k, 0), a->key = kva_onnx_in(k, 1), a->value = kva_onnx_in(k, 2);
  if (a->q->type->rank == 5 && !a->key && !a->value) {
    kva_value *packed = a->q;
    a->q = unpack(k, packed, 0), a->key = unpack(k, packed, 1), a->value = unpack(k, packed, 2);
  } else if (a->key && a->key->type->rank == 5 && !a->value) {
    kva_value *packed = a->key;
    a->key = unpack(k, packed, 0), a->value = unpack(k, packed, 1);
  }
  if (k->b->failed) return KVA_INVALID;
  if (a->q->type->rank != 3 || !a->key || !a->value || a->key->type->rank != a->value->type->rank)
    return kva_onnx_fail(k, KVA_INVALID, "expected queries [B, T, H * D], with keys and values of one rank, or packed");
  if (a->key->type->rank == 3 || a->key->type->rank == 4) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "expected keys of rank 3, 4 or 5, found %u", a->key->type->rank);
}

static kva_status split_rows(kva_onnx_call *k, attention *a) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  int64_t heads = kva_onnx_int(k, "num_heads", 0);
  kva_dim second = kva_onnx_dim(a->q, 2), none = kva_expr_const(e, 0);
  bool of_heads = a->key->type->rank == 4; /* keys and values of another sequence, projected before */
  KVA_TRY(kva_onnx_split_heads(k, biased(k, a->q, none), heads, &a->q));
  if (of_heads) return KVA_OK;
  kva_dim third = kva_expr_add(e, second, kva_onnx_dim(a->key, 2));
  KVA_TRY(kva_onnx_split_heads(k, biased(k, a->key, second), heads, &a->key));
  return kva_onnx_split_heads(k, biased(k, a->value, third), heads, &a->value);
}

kva_status kva_onnx_multi_head_attention(kva_onnx_call *k) {
  static const char *const unknown[] = {"past_sequence_length", "cache_indirection"};
  attention a = {
      .attrs = {.scale = kva_onnx_float(k, "scale", 0), .causal = kva_onnx_int(k, "unidirectional", 0) != 0}};
  KVA_TRY(refuse_inputs(k, IN_PAST_LENGTH, unknown, 2));
  KVA_TRY(kva_onnx_check_past(k, IN_PAST_KEY));
  KVA_TRY(read_rows(k, &a));
  KVA_TRY(split_rows(k, &a));
  kva_onnx_append_past(k->b, kva_onnx_in(k, IN_PAST_KEY), kva_onnx_in(k, IN_PAST_VALUE), &a.key, &a.value,
                       &a.attrs.offset);
  if (k->b->failed) return KVA_INVALID;
  KVA_TRY(read_bias(k, &a, IN_SCORES));
  KVA_TRY(add_mask(k, &a, kva_onnx_in(k, IN_PADDING)));
  kva_onnx_set_out(k, 1, a.key);
  kva_onnx_set_out(k, 2, a.value);
  return kva_onnx_done(k, attend(k, &a));
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* Half `at` of past [2, B, H, P, D]. */
static kva_value *half_of(kva_onnx_call *k, kva_value *past, int64_t at) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *half = kva_onnx_slice(k->b, past, 0, kva_expr_const(e, at), kva_expr_const(e, 1));
  return kva_reshape(k->b, half, 4, past->type->dims + 1);
}

/* Projected queries, keys and values lie side by side in `rows` [B, T, sum of widths]. */
static kva_status split_projections(kva_onnx_call *k, kva_value *rows, attention *a) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_ints widths = kva_onnx_ints(k, "qkv_hidden_sizes");
  int64_t heads = kva_onnx_int(k, "num_heads", 0);
  kva_dim start = kva_expr_const(e, 0), all = kva_onnx_dim(rows, 2);
  kva_value **parts[3] = {&a->q, &a->key, &a->value};
  if (widths.n && widths.n != 3) return kva_onnx_fail(k, KVA_INVALID, "qkv_hidden_sizes: expected three numbers");
  for (uint32_t i = 0; i < 3; i++) {
    kva_dim width = widths.n ? kva_expr_const(e, widths.v[i]) : kva_expr_div(e, all, kva_expr_const(e, 3));
    KVA_TRY(kva_onnx_split_heads(k, columns(k, rows, start, width), heads, parts[i]));
    start = kva_expr_add(e, start, width);
  }
  return KVA_OK;
}

/* Attention over projected rows; inputs `mask`, `past` and `scores` are numbers of inputs. */
static kva_status attend_projected(kva_onnx_call *k, kva_value *rows, uint32_t mask, uint32_t past, uint32_t scores) {
  static const char *const unknown[] = {"do_rotary", "past_present_share_buffer"};
  kva_builder *b = k->b;
  kva_value *state = kva_onnx_in(k, past);
  attention a = {
      .attrs = {.scale = kva_onnx_float(k, "scale", 0), .causal = kva_onnx_int(k, "unidirectional", 0) != 0}};
  KVA_TRY(refuse_flags(k, unknown, 2));
  if (rows->type->rank != 3) return kva_onnx_fail(k, KVA_INVALID, "expected an input of rank 3");
  KVA_TRY(kva_onnx_check_rank(k, past, 5));
  KVA_TRY(split_projections(k, rows, &a));
  if (state) kva_onnx_append_past(b, half_of(k, state, 0), half_of(k, state, 1), &a.key, &a.value, &a.attrs.offset);
  if (b->failed) return KVA_INVALID;
  if (scores) KVA_TRY(read_bias(k, &a, scores));
  KVA_TRY(add_mask(k, &a, kva_onnx_in(k, mask)));
  if (kva_onnx_wants(k, 1))
    kva_onnx_set_out(k, 1,
                     kva_onnx_concat(b, kva_onnx_unsqueeze(b, a.key, 0, 1), kva_onnx_unsqueeze(b, a.value, 0, 1), 0));
  return kva_onnx_done(k, attend(k, &a));
}

/* Attention with the projection of queries, keys and values in front. */
kva_status kva_onnx_projected_attention(kva_onnx_call *k) {
  static const char *const unknown[] = {"past_sequence_length"};
  kva_value *bias = kva_onnx_in(k, 2), *rows = kva_matmul(k->b, kva_onnx_in(k, 0), kva_onnx_in(k, 1), false, false);
  KVA_TRY(refuse_inputs(k, 6, unknown, 1));
  if (bias) rows = kva_add(k->b, rows, bias);
  if (k->b->failed) return KVA_INVALID;
  return attend_projected(k, rows, 3, 4, 5);
}

/* The same of codes: input, weights, bias, their scales, mask, their zero points, past. */
kva_status kva_onnx_quantized_attention(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *w = kva_onnx_in(k, 1);
  if (x->type->rank != 3 || w->type->rank != 2)
    return kva_onnx_fail(k, KVA_INVALID, "expected an input of rank 3 and weights of rank 2");
  kva_value *rows = kva_onnx_integer_product(b, x, kva_onnx_in(k, 6), w, kva_onnx_in(k, 7));
  kva_value *scale = kva_mul(b, kva_onnx_in(k, 3), kva_onnx_in(k, 4));
  rows = kva_mul(b, kva_cast(b, rows, scale->type->dtype), scale);
  rows = kva_add(b, rows, kva_onnx_in(k, 2));
  if (b->failed) return KVA_INVALID;
  return attend_projected(k, rows, 5, 8, 0);
}

/* ---- rotary ------------------------------------------------------------------------------------------------------ */

/* x [B, H, T, D] turned by rows of the tables; positions [B, T] or [1, T]. */
static kva_value *rotate(kva_onnx_call *k, kva_value *x, kva_value *const tables[2], kva_value *positions,
                         bool interleaved) {
  kva_value *in[3] = {x};
  for (uint32_t i = 0; i < 2; i++)
    in[1 + i] = kva_onnx_unsqueeze(k->b, kva_onnx_gather(k->b, tables[i], positions, 0), 1, 1);
  return kva_build(k->b, KVA_OP_rope, 3, in, &(kva_rope_attrs){.interleaved = interleaved});
}

/* Positions of T rows from a first one: [1] or [B, 1] plus 0, 1, ... */
static kva_value *rows_from(kva_onnx_call *k, kva_value *first, kva_dim rows) {
  return kva_add(k->b, kva_cast(k->b, first, KVA_I64), kva_onnx_ramp(k->b, KVA_I64, 2, 1, rows));
}

/* The heads of rows [B, T, H * D]: how many num_heads says, or as many as have the size that the tables turn. */
static kva_status heads_of_rows(kva_onnx_call *k, const kva_value *x, const kva_value *table, int64_t *out) {
  int64_t width = 0, pairs = 0;
  *out = kva_onnx_int(k, "num_heads", 0);
  if (*out > 0) return KVA_OK;
  bool known = kva_expr_is_const(kva_onnx_dim(x, 2), &width) && kva_expr_is_const(kva_onnx_dim(table, 1), &pairs);
  if (!known || pairs < 1 || width % (2 * pairs))
    return kva_onnx_fail(k, KVA_INVALID, "inputs of rank 3 need num_heads");
  *out = width / (2 * pairs);
  return KVA_OK;
}

kva_status kva_onnx_microsoft_rotary(kva_onnx_call *k) {
  static const char *const unknown[] = {"is_packed_batching"};
  kva_value *x = kva_onnx_in(k, 0), *positions = kva_onnx_in(k, 1), *tables[] = {kva_onnx_in(k, 2), kva_onnx_in(k, 3)};
  bool flat = x->type->rank == 3;
  int64_t heads;
  KVA_TRY(refuse_flags(k, unknown, 1));
  if (kva_onnx_float(k, "scale", 1) != 1) return kva_onnx_fail(k, KVA_UNSUPPORTED, "attribute 'scale'");
  if ((!flat && x->type->rank != 4) || tables[0]->type->rank != 2 || tables[1]->type->rank != 2)
    return kva_onnx_fail(k, KVA_INVALID, "expected an input of rank 3 or 4 and tables of rank 2");
  if (flat) KVA_TRY(heads_of_rows(k, x, tables[0], &heads));
  if (flat) KVA_TRY(kva_onnx_split_heads(k, x, heads, &x));
  if (k->b->failed) return KVA_INVALID;
  kva_dim dims[2] = {kva_onnx_dim(x, 0), kva_onnx_dim(x, 2)};
  bool one = positions->type->rank == 1; /* of the first row */
  if (!one) KVA_TRY(kva_onnx_check_rank(k, 1, 2));
  positions =
      one ? rows_from(k, positions, dims[1]) : kva_onnx_with_dims(k, positions, dims, "positions of RotaryEmbedding");
  kva_value *y = rotate(k, x, tables, positions, kva_onnx_int(k, "interleaved", 0) != 0);
  return kva_onnx_done(k, flat ? kva_onnx_join_heads(k->b, y) : y);
}

/* ---- GroupQueryAttention ----------------------------------------------------------------------------------------- */

enum {
  GQA_PAST_KEY = 3,
  GQA_PAST_VALUE,
  GQA_LAST_KEY,
  GQA_TOTAL,
  GQA_COS,
  GQA_SIN,
  GQA_POSITIONS,
  GQA_BIAS,
  GQA_SINK,
  GQA_Q_NORM = 14,
  GQA_K_NORM,
  GQA_LENGTHS
};

/* The types of quantised caches, by key and value. */
static kva_status check_cache_types(kva_onnx_call *k) {
  static const char *const names[] = {"k_quant_type", "v_quant_type"};
  for (uint32_t i = 0; i < 2; i++)
    if (strcmp(kva_onnx_string(k, names[i], "NONE"), "NONE") != 0)
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "attribute '%s': quantised caches", names[i]);
  (void)kva_onnx_int(k, "kv_cache_bit_width", 0); /* of those */
  return KVA_OK;
}

/* What changes results and is not done here. */
static kva_status check_grouped(kva_onnx_call *k) {
  static const char *const inputs[] = {"head_sink", "k_scale", "v_scale"}, *const lengths[] = {"query_seqlens"};
  static const char *const flags[] = {"smooth_softmax", "qk_output"};
  if (!kva_onnx_in(k, GQA_LAST_KEY) || !kva_onnx_in(k, GQA_TOTAL))
    return kva_onnx_fail(k, KVA_INVALID, "expected seqlens_k and total_sequence_length");
  KVA_TRY(refuse_inputs(k, GQA_SINK, inputs, 3));
  KVA_TRY(refuse_inputs(k, GQA_LENGTHS, lengths, 1));
  KVA_TRY(refuse_flags(k, flags, 2));
  KVA_TRY(check_cache_types(k));
  if (!kva_onnx_int(k, "causal", 1)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "attribute 'causal' of 0");
  KVA_TRY(kva_onnx_check_past(k, GQA_PAST_KEY));
  KVA_TRY(kva_onnx_check_rank(k, GQA_POSITIONS, 2));
  for (uint32_t i = 0; i < 3; i++) KVA_TRY(kva_onnx_check_rank(k, i, 3));
  return kva_onnx_check_vector(k, kva_onnx_in(k, GQA_LAST_KEY), "seqlens_k");
}

/* Queries, keys and values of heads; all three are in the first input where the others are left out. */
static kva_status read_groups(kva_onnx_call *k, attention *a) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  int64_t heads = kva_onnx_int(k, "num_heads", 0), kv_heads = kva_onnx_int(k, "kv_num_heads", 0);
  a->q = kva_onnx_in(k, 0), a->key = kva_onnx_in(k, 1), a->value = kva_onnx_in(k, 2);
  if (!a->key != !a->value || heads < 1 || kv_heads < 1)
    return kva_onnx_fail(k, KVA_INVALID, "expected num_heads and kv_num_heads, and keys with values or neither");
  if (!a->key) {
    kva_value *packed = a->q;
    kva_dim size = kva_expr_div(e, kva_onnx_dim(packed, 2), kva_expr_const(e, heads + 2 * kv_heads));
    kva_dim second = kva_expr_muli(e, size, heads), width = kva_expr_muli(e, size, kv_heads);
    a->q = columns(k, packed, kva_expr_const(e, 0), second);
    a->key = columns(k, packed, second, width);
    a->value = columns(k, packed, kva_expr_add(e, second, width), width);
  }
  KVA_TRY(kva_onnx_split_heads(k, a->q, heads, &a->q));
  KVA_TRY(kva_onnx_split_heads(k, a->key, kv_heads, &a->key));
  KVA_TRY(kva_onnx_split_heads(k, a->value, kv_heads, &a->value));
  return k->b->failed ? KVA_INVALID : KVA_OK;
}

/* Heads of queries and keys by their root mean squares, where weights are given. */
static void norm_groups(kva_onnx_call *k, attention *a) {
  double eps = kva_onnx_float(k, "qk_norm_epsilon", 1e-6);
  kva_rms_norm_attrs of_q = {.axis = -1, .eps = kva_onnx_float(k, "q_norm_epsilon", eps)};
  kva_rms_norm_attrs of_key = {.axis = -1, .eps = kva_onnx_float(k, "k_norm_epsilon", eps)};
  kva_value *q = kva_onnx_in(k, GQA_Q_NORM), *key = kva_onnx_in(k, GQA_K_NORM);
  if (q) a->q = kva_build(k->b, KVA_OP_rms_norm, 2, (kva_value *[]){a->q, q}, &of_q);
  if (key) a->key = kva_build(k->b, KVA_OP_rms_norm, 2, (kva_value *[]){a->key, key}, &of_key);
}

/* Rows of every sequence, the new ones included: one more than the number of its last key. */
static kva_value *lengths_of(kva_onnx_call *k, const attention *a) {
  kva_value *last = kva_onnx_with_extent(k, kva_onnx_in(k, GQA_LAST_KEY), 0, kva_onnx_dim(a->q, 0), "seqlens_k");
  last = kva_cast(k->b, last, KVA_I64);
  return kva_add(k->b, last, kva_scalar_like(k->b, last, 1));
}

/* Rows that every sequence had before: without the new ones, and at least 0, where some of these are padding. */
static kva_value *rows_before(kva_onnx_call *k, const attention *a, kva_value *lengths) {
  kva_builder *b = k->b;
  kva_value *before = kva_sub(b, lengths, kva_dim_scalar(b, KVA_I64, kva_onnx_dim(a->q, 2)));
  return kva_build2(b, KVA_OP_max, before, kva_scalar_like(b, before, 0));
}

/* `before`: rows of every sequence that precede the new ones; NULL: none. */
static kva_status rotate_groups(kva_onnx_call *k, attention *a, kva_value *before) {
  kva_value *tables[] = {kva_onnx_in(k, GQA_COS), kva_onnx_in(k, GQA_SIN)}, *positions = kva_onnx_in(k, GQA_POSITIONS);
  bool interleaved = kva_onnx_int(k, "rotary_interleaved", 0) != 0;
  kva_dim dims[2] = {kva_onnx_dim(a->q, 0), kva_onnx_dim(a->q, 2)};
  if (!kva_onnx_int(k, "do_rotary", 0)) return KVA_OK;
  if (!tables[0] || !tables[1]) return kva_onnx_fail(k, KVA_INVALID, "do_rotary needs cos_cache and sin_cache");
  if (positions)
    positions = kva_onnx_with_dims(k, positions, dims, "positions of GroupQueryAttention");
  else
    positions = before ? rows_from(k, kva_onnx_unsqueeze(k->b, before, 1, 1), dims[1])
                       : kva_onnx_ramp(k->b, KVA_I64, 2, 1, dims[1]);
  a->q = rotate(k, a->q, tables, positions, interleaved);
  a->key = rotate(k, a->key, tables, positions, interleaved);
  return KVA_OK;
}

/* x with zeros behind it along `axis`, up to `extent`. */
static kva_value *pad_to(kva_onnx_call *k, kva_value *x, uint32_t axis, kva_dim extent) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim none = kva_expr_const(e, 0), before[4] = {none, none, none, none}, after[4] = {none, none, none, none};
  if (k->b->failed) return x;
  after[axis] = kva_expr_sub(e, extent, kva_onnx_dim(x, axis));
  kva_pad_attrs attrs = {.before = {4, before}, .after = {4, after}};
  if (kva_expr_is(after[axis], 0)) return x;
  return kva_build(k->b, KVA_OP_pad, 2, (kva_value *[]){x, kva_scalar_like(k->b, x, 0)}, &attrs);
}

/* A cache with room for `rows`: that of `past` or an empty one, with the new rows x from number first[b] on. */
static kva_value *extend_cache(kva_onnx_call *k, kva_value *past, kva_value *x, kva_value *first, kva_dim rows) {
  kva_builder *b = k->b;
  if (b->failed) return x;
  const kva_dim *d = x->type->dims;
  kva_value *zero = kva_scalar_like(b, x, 0);
  kva_value *cache = past ? kva_onnx_with_dims(k, past, (kva_dim[]){d[0], d[1], NULL, d[3]}, "the past of attention")
                          : kva_expand(b, zero, 4, (kva_dim[]){d[0], d[1], rows, d[3]});
  cache = pad_to(k, cache, 2, rows);
  return kva_build(b, KVA_OP_cache_append, 3, (kva_value *[]){cache, x, first}, &(kva_cache_append_attrs){.axis = 2});
}

/* Causal attention over caches, in which every sequence has its new rows from number first[b] on. */
static kva_value *attend_cached(kva_onnx_call *k, const attention *a, kva_value *first) {
  kva_attention_cached_attrs attrs = {
      .causal = true, .scale = a->attrs.scale, .softcap = a->attrs.softcap, .window = a->attrs.window};
  kva_value *in[] = {a->q, a->key, a->value, a->bias, NULL, first};
  return kva_onnx_join_heads(k->b, kva_build(k->b, KVA_OP_attention_cached, 6, in, &attrs));
}

/* Attention of whole texts: no rows came before, and none is padding. */
static kva_status attend_whole(kva_onnx_call *k, attention *a) {
  a->attrs.causal = true;
  kva_onnx_set_out(k, 1, a->key);
  kva_onnx_set_out(k, 2, a->value);
  return kva_onnx_done(k, attend(k, a));
}

/* A cache that grows to total_sequence_length rows. */
static kva_status attend_growing(kva_onnx_call *k, attention *a, kva_value *before) {
  kva_value *past_key = kva_onnx_in(k, GQA_PAST_KEY), *past_value = kva_onnx_in(k, GQA_PAST_VALUE);
  kva_dims total;
  KVA_TRY(kva_onnx_need_dims(k, GQA_TOTAL, "total_sequence_length", &total));
  if (total.n != 1) return kva_onnx_fail(k, KVA_INVALID, "total_sequence_length: expected one number");
  kva_dim rows = kva_expr_max(kva_onnx_exprs(k), total.v[0], kva_onnx_dim(past_key ? past_key : a->key, 2));
  a->key = extend_cache(k, past_key, a->key, before, rows);
  a->value = extend_cache(k, past_value, a->value, before, rows);
  if (a->bias) a->bias = pad_to(k, a->bias, 3, rows); /* no query sees the others */
  kva_onnx_set_out(k, 1, a->key);
  kva_onnx_set_out(k, 2, a->value);
  return kva_onnx_done(k, attend_cached(k, a, before));
}

/* ---- caches as large as the window ------------------------------------------------------------------------------- */

/* How many of the last rows a cache of `capacity` rows keeps of a sequence of `length`: all, or that many less a
 * multiple of g = capacity - window + 1, so that rows move up once in g steps:
 *
 *   length <= capacity ? length : length - g ceil((length - capacity) / g) */
static kva_value *kept_rows(kva_onnx_call *k, kva_value *length, kva_dim capacity, int64_t window) {
  kva_builder *b = k->b;
  kva_dim step = kva_expr_addi(kva_onnx_exprs(k), capacity, 1 - window);
  kva_value *g = kva_dim_scalar(b, KVA_I64, step), *c = kva_dim_scalar(b, KVA_I64, capacity);
  kva_value *over = kva_sub(b, length, c), *zero = kva_scalar_like(b, length, 0), *one = kva_scalar_like(b, length, 1);
  over = kva_build2(b, KVA_OP_max, over, zero);
  kva_value *steps = kva_div(b, kva_sub(b, kva_add(b, over, g), one), g);
  return kva_sub(b, length, kva_mul(b, steps, g));
}

/* Rows [start[b], start[b] + rows) of x [B, H, T, D]; those past its end are any. */
static kva_value *rows_of(kva_onnx_call *k, kva_value *x, kva_value *start, kva_dim rows) {
  kva_builder *b = k->b;
  if (b->failed) return x;
  const kva_dim *d = x->type->dims;
  kva_dim shape[4] = {d[0], d[1], rows, d[3]};
  kva_value *last = kva_dim_scalar(b, KVA_I64, kva_expr_addi(kva_onnx_exprs(k), d[2], -1));
  kva_value *index = kva_add(b, kva_onnx_unsqueeze(b, start, 1, 3), kva_onnx_ramp(b, KVA_I64, 4, 2, rows));
  index = kva_expand(b, kva_build2(b, KVA_OP_min, index, last), 4, shape);
  return kva_build(b, KVA_OP_gather_elements, 2, (kva_value *[]){x, index}, &(kva_gather_elements_attrs){.axis = 2});
}

/* Rows of a cache of the last rows, which are at least as many as the window has. */
static kva_status read_capacity(kva_onnx_call *k, const attention *a, kva_value **past_key, kva_dim *out) {
  int64_t rows, window = a->attrs.window;
  *past_key = kva_onnx_in(k, GQA_PAST_KEY);
  if (!*past_key || window < 1 || a->bias)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "sliding_window_cache without a past and a window, or with a bias");
  kva_dim own = kva_onnx_dim(*past_key, 2), least = kva_expr_const(kva_onnx_exprs(k), window);
  if (kva_expr_is_const(own, &rows) && rows < window)
    return kva_onnx_fail(k, KVA_INVALID, "a cache of %lld rows for a window of %lld", (long long)rows,
                         (long long)window);
  *out = kva_expr_max(kva_onnx_exprs(k), own, least);
  *past_key = kva_onnx_with_extent(k, *past_key, 2, *out, "a cache as large as its window");
  return KVA_OK;
}

/* The new rows are put behind the kept ones, which all queries see, and then the rows that stay move to the front. */
static kva_status attend_sliding(kva_onnx_call *k, attention *a, kva_value *lengths, kva_value *before) {
  kva_builder *b = k->b;
  kva_value *past_key = NULL, *past_value = kva_onnx_in(k, GQA_PAST_VALUE);
  kva_dim capacity = NULL;
  KVA_TRY(read_capacity(k, a, &past_key, &capacity));
  kva_dim rows = kva_expr_add(kva_onnx_exprs(k), capacity, kva_onnx_dim(a->q, 2));
  kva_value *first = kept_rows(k, before, capacity, a->attrs.window);
  kva_value *kept = kept_rows(k, lengths, capacity, a->attrs.window);
  kva_value *end = kva_add(b, first, kva_sub(b, lengths, before)), *start = kva_sub(b, end, kept);
  past_value = kva_onnx_with_extent(k, past_value, 2, capacity, "a cache as large as its window");
  a->key = extend_cache(k, past_key, a->key, first, rows);
  a->value = extend_cache(k, past_value, a->value, first, rows);
  kva_onnx_set_out(k, 1, rows_of(k, a->key, start, capacity));
  kva_onnx_set_out(k, 2, rows_of(k, a->value, start, capacity));
  return kva_onnx_done(k, attend_cached(k, a, first));
}

/* Attention of new rows over a cache, which they are written to. Sequence b has seqlens_k[b] + 1 keys with them. */
kva_status kva_onnx_group_query_attention(kva_onnx_call *k) {
  int64_t window = kva_onnx_int(k, "local_window_size", -1);
  bool sliding = kva_onnx_int(k, "sliding_window_cache", 0) != 0;
  KVA_TRY(check_grouped(k));
  attention a = {.attrs = {.scale = kva_onnx_float(k, "scale", 0),
                           .softcap = kva_onnx_float(k, "softcap", 0),
                           .window = window > 0 ? window : 0}};
  KVA_TRY(read_groups(k, &a));
  norm_groups(k, &a);
  if (k->b->failed) return KVA_INVALID;
  KVA_TRY(read_bias(k, &a, GQA_BIAS));
  if (k->c->whole_texts) {
    KVA_TRY(rotate_groups(k, &a, NULL));
    return attend_whole(k, &a);
  }
  kva_value *lengths = lengths_of(k, &a), *before = rows_before(k, &a, lengths);
  KVA_TRY(rotate_groups(k, &a, before));
  return sliding ? attend_sliding(k, &a, lengths, before) : attend_growing(k, &a, before);
}
