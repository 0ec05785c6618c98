/* Language-model operators in ONNX primitives: the bodies of ai.kvasir::KVShift, Rope and Attention. */
#include "frontend/onnx_export.h"
#include "ops/attention.h"

#include <math.h>

/* ---- rotary embedding -------------------------------------------------------------------------------------------- */

/* Channels [a, b) by `step` of the last axis. */
static const char *channels(kva_export *e, const char *x, int64_t a, int64_t b, int64_t step) {
  return kva_export_slice(e, x, -1, a, b, step);
}

/* Joins the two rotated halves, side by side or interleaved. */
static const char *join_pairs(kva_export *e, const kva_type *t, const char *first, const char *second, bool interleaved,
                              int64_t rotated) {
  if (!interleaved) return kva_export_concat(e, 2, (const char *[]){first, second}, -1);
  int64_t last = -1;
  const char *pair[] = {kva_export_unsqueeze(e, first, 1, &last), kva_export_unsqueeze(e, second, 1, &last)};
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t i = 0; i < t->rank; i++) dims[i] = t->dims[i];
  dims[t->rank - 1] = kva_expr_const(e->m->exprs, rotated);
  return kva_export_reshape(e, kva_export_concat(e, 2, pair, -1), t->rank, dims);
}

kva_status kva_export_rope(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  bool interleaved = ((const kva_rope_attrs *)n->attrs)->interleaved;
  const kva_type *x_type = kva_operand(n, 0)->type, *table = kva_operand(n, 1)->type;
  int64_t half, width;
  if (!kva_expr_is_const(table->dims[table->rank - 1], &half) ||
      !kva_expr_is_const(x_type->dims[x_type->rank - 1], &width))
    return kva_export_unsupported(e, n, "the number of channels is symbolic");
  const char *x = kva_export_in(e, n, 0), *cos = kva_export_in(e, n, 1);
  const char *sin = kva_export_in(e, n, 2);
  if (table->dtype != x_type->dtype) {
    cos = kva_export_cast(e, cos, x_type->dtype);
    sin = kva_export_cast(e, sin, x_type->dtype);
  }
  const char *a = interleaved ? channels(e, x, 0, 2 * half, 2) : channels(e, x, 0, half, 1);
  const char *b = interleaved ? channels(e, x, 1, 2 * half, 2) : channels(e, x, half, 2 * half, 1);
  const char *first = kva_export_2(e, "Sub", kva_export_2(e, "Mul", a, cos), kva_export_2(e, "Mul", b, sin));
  const char *second = kva_export_2(e, "Add", kva_export_2(e, "Mul", b, cos), kva_export_2(e, "Mul", a, sin));
  const char *y = join_pairs(e, x_type, first, second, interleaved, 2 * half);
  if (!y) return KVA_UNSUPPORTED;
  if (2 * half < width) y = kva_export_concat(e, 2, (const char *[]){y, channels(e, x, 2 * half, width, 1)}, -1);
  kva_export_set(e, n, 0, y);
  return KVA_OK;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct attention {
  const kva_node *n;
  const kva_attention_attrs *a;
  const kva_type *q, *key, *value;
  kva_dtype t;      /* arithmetic type */
  kva_dim group;    /* query heads per key head */
  const char *rows; /* positions t + offset, int64[T, 1]; built at the first use */
  const char *keys; /* int64[S] */
} attention;

static const char *ramp(kva_export *e, kva_dim n) {
  const char *extent = kva_export_dims(e, 1, &n);
  if (!extent) return NULL;
  return kva_export_3(e, "Range", kva_export_scalar(e, KVA_I64, 0), kva_export_reshape(e, extent, 0, NULL),
                      kva_export_scalar(e, KVA_I64, 1));
}

static bool make_positions(kva_export *e, attention *x) {
  int64_t last = -1;
  const char *rows = ramp(e, x->q->dims[2]), *keys = ramp(e, x->key->dims[2]);
  const char *offset = x->a->offset ? kva_export_dims(e, 1, &x->a->offset) : NULL;
  if (!rows || !keys || (x->a->offset && !offset)) return false;
  if (offset) rows = kva_export_2(e, "Add", rows, offset);
  x->rows = kva_export_unsqueeze(e, rows, 1, &last);
  x->keys = keys;
  return true;
}

/* Heads [B, Hkv * group, rows, width] as [B, Hkv, group, rows, width], so that one key head broadcasts over its
 * group. */
static const char *grouped(kva_export *e, const char *x, const kva_type *t, kva_dim kv_heads, kva_dim group) {
  return kva_export_reshape(e, x, 5, (kva_dim[]){t->dims[0], kv_heads, group, t->dims[2], t->dims[3]});
}

static const char *operand_as(kva_export *e, const kva_node *n, uint32_t i, kva_dtype t) {
  const char *name = kva_export_in(e, n, i);
  return kva_operand(n, i)->type->dtype == t ? name : kva_export_cast(e, name, t);
}

static const char *raw_scores(kva_export *e, const attention *x) {
  kva_dim one = kva_expr_const(e->m->exprs, 1), kv_heads = x->key->dims[1];
  const char *q = grouped(e, operand_as(e, x->n, 0, x->t), x->q, kv_heads, x->group);
  const char *k = grouped(e, operand_as(e, x->n, 1, x->t), x->key, kv_heads, one);
  if (!q || !k) return NULL;
  kva_pb_node *transposed = kva_export_node(e, "Transpose", 1, &k, NULL);
  kva_export_ints(e, transposed, "perm", (kva_ints){5, (const int64_t[]){0, 1, 2, 4, 3}});
  const char *s = kva_export_2(e, "MatMul", q, kva_export_out(transposed));
  int64_t width = 1;
  (void)kva_expr_is_const(x->q->dims[3], &width);
  double scale = x->a->scale != 0 ? x->a->scale : 1 / sqrt((double)width);
  s = kva_export_2(e, "Mul", s, kva_export_scalar(e, x->t, scale));
  kva_dim dims[4] = {x->q->dims[0], x->q->dims[1], x->q->dims[2], x->key->dims[2]};
  return kva_export_reshape(e, s, 4, dims);
}

static const char *soft_cap(kva_export *e, const attention *x, const char *s) {
  if (x->a->softcap <= 0) return s;
  const char *cap = kva_export_scalar(e, x->t, x->a->softcap);
  return kva_export_2(e, "Mul", kva_export_1(e, "Tanh", kva_export_2(e, "Div", s, cap)), cap);
}

/* - slope_h |t + offset - s| */
static const char *add_slopes(kva_export *e, const attention *x, const char *s) {
  if (!kva_operand(x->n, 4)) return s;
  const char *distance = kva_export_1(e, "Abs", kva_export_2(e, "Sub", x->rows, x->keys));
  const char *slopes = kva_export_unsqueeze(e, operand_as(e, x->n, 4, x->t), 2, (const int64_t[]){1, 2});
  return kva_export_2(e, "Sub", s, kva_export_2(e, "Mul", slopes, kva_export_cast(e, distance, x->t)));
}

static const char *hide(kva_export *e, const attention *x, const char *visible, const char *s) {
  return kva_export_3(e, "Where", visible, s, kva_export_scalar(e, x->t, -(double)INFINITY));
}

/* Scores with slopes and masks. */
static const char *masked(kva_export *e, const attention *x, const char *s) {
  const kva_value *mask = kva_operand(x->n, 3);
  s = add_slopes(e, x, s);
  if (mask && mask->type->dtype == KVA_BOOL)
    s = hide(e, x, kva_export_in(e, x->n, 3), s);
  else if (mask)
    s = kva_export_2(e, "Add", s, operand_as(e, x->n, 3, x->t));
  if (x->a->causal) s = hide(e, x, kva_export_2(e, "LessOrEqual", x->keys, x->rows), s);
  if (x->a->window <= 0) return s;
  const char *window = kva_export_scalar(e, KVA_I64, (double)x->a->window);
  const char *first = kva_export_2(e, "Sub", x->rows, window);
  s = hide(e, x, kva_export_2(e, "Greater", x->keys, first), s);
  return x->a->causal ? s : hide(e, x, kva_export_2(e, "LessOrEqual", x->keys, x->rows), s);
}

/* Rows without visible keys are 0 / 0 after softmax; they become 0. */
static const char *probabilities(kva_export *e, const attention *x, const char *s) {
  kva_pb_node *softmax = kva_export_node(e, "Softmax", 1, &s, NULL);
  kva_export_int(e, softmax, "axis", -1);
  const char *p = kva_export_out(softmax);
  return kva_export_3(e, "Where", kva_export_1(e, "IsNaN", p), kva_export_scalar(e, x->t, 0), p);
}

static const char *weighted_values(kva_export *e, const attention *x, const char *p) {
  kva_dim one = kva_expr_const(e->m->exprs, 1), kv_heads = x->key->dims[1];
  kva_dim dims[5] = {x->q->dims[0], kv_heads, x->group, x->q->dims[2], x->key->dims[2]};
  p = kva_export_reshape(e, p, 5, dims);
  const char *v = grouped(e, operand_as(e, x->n, 2, x->t), x->value, kv_heads, one);
  if (!p || !v) return NULL;
  kva_dim out[4] = {x->q->dims[0], x->q->dims[1], x->q->dims[2], x->value->dims[3]};
  return kva_export_reshape(e, kva_export_2(e, "MatMul", p, v), 4, out);
}

static attention attention_of(kva_export *e, const kva_node *n) {
  attention x = {.n = n,
                 .a = n->attrs,
                 .q = kva_operand(n, 0)->type,
                 .key = kva_operand(n, 1)->type,
                 .value = kva_operand(n, 2)->type};
  x.t = x.q->dtype == KVA_F64 ? KVA_F64 : KVA_F32;
  x.group = kva_expr_div(e->m->exprs, x.q->dims[1], x.key->dims[1]);
  return x;
}

kva_status kva_export_attention(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  attention x = attention_of(e, n);
  bool needs_positions = x.a->causal || x.a->window > 0 || kva_operand(n, 4);
  if (needs_positions && !make_positions(e, &x)) return KVA_UNSUPPORTED;
  const char *s = raw_scores(e, &x);
  if (!s) return KVA_UNSUPPORTED;
  s = masked(e, &x, soft_cap(e, &x, s));
  const char *y = weighted_values(e, &x, probabilities(e, &x, s));
  if (!y) return KVA_UNSUPPORTED;
  kva_export_set(e, n, 0, x.q->dtype == x.t ? y : kva_export_cast(e, y, x.q->dtype));
  int64_t last = -1;
  if (n->results[1].uses) kva_export_set(e, n, 1, kva_export_reduce(e, "ReduceLogSumExp", s, 1, &last, false));
  return KVA_OK;
}

/* Attention of opset 24 over whole caches. It gets all masks as one of added floats: what it has attributes for, other
 * versions of runtimes align otherwise where a cache holds earlier rows. */
kva_status kva_export_attention_cached(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const int64_t by_sequence[] = {1, 2, 3};
  attention x = attention_of(e, n);
  if (n->n_operands > KVA_ATTENTION_PAGES) return kva_export_unsupported(e, n, "caches in pages have no ONNX form");
  if (e->opset < KVA_EXPORT_OPSET_CACHES) return kva_export_unsupported(e, n, "caches need opset 24");
  if (!make_positions(e, &x)) return KVA_UNSUPPORTED;
  const char *position = kva_export_in(e, n, KVA_ATTENTION_POSITION);
  const char *valid = kva_export_2(e, "Add", position, kva_export_dims(e, 1, &x.q->dims[2]));
  x.rows = kva_export_2(e, "Add", x.rows, kva_export_unsqueeze(e, position, 3, by_sequence));
  const char *mask = masked(e, &x, kva_export_scalar(e, x.t, 0));
  if (x.q->dtype != x.t) mask = kva_export_cast(e, mask, x.q->dtype);
  const char *in[] = {kva_export_in(e, n, 0), kva_export_in(e, n, 1), kva_export_in(e, n, 2), mask, NULL, NULL, valid};
  kva_pb_node *p = kva_export_node(e, "Attention", 7, in, NULL);
  if (x.a->scale != 0) kva_export_float(e, p, "scale", x.a->scale);
  if (x.a->softcap > 0) kva_export_float(e, p, "softcap", x.a->softcap);
  return kva_export_done(e, n, kva_export_out(p));
}

/* ---- KV shift ---------------------------------------------------------------------------------------------------- */

typedef struct shift {
  const kva_node *n;
  int64_t time, window;
  uint32_t weight_rank;
  bool keep, edge;
  kva_dtype t; /* arithmetic type */
  /* Booleans and documents, [B, rows]; NULL where all rows are of one document, or none is padding. */
  const char *segments, *padded_segments; /* of x, and with those of the rows before it */
  const char *inside, *padded_inside;     /* rows that are no padding */
  const char *first;                      /* the first row that is none */
} shift;

/* The window - 1 rows that precede x. */
static const char *rows_before(kva_export *e, const shift *f, const char *x) {
  if (kva_operand(f->n, 2)) return operand_as(e, f->n, 2, f->t);
  int64_t rows = f->window - 1;
  if (f->edge) {
    const char *first = kva_export_slice(e, x, f->time, 0, 1, 1);
    const char **copies = KVA_NEW_ARRAY(e->arena, const char *, rows);
    for (int64_t i = 0; i < rows; i++) copies[i] = first;
    return kva_export_concat(e, (uint32_t)rows, copies, f->time);
  }
  const char *shape = kva_export_1(e, "Shape", x);
  const char *head = kva_export_slice(e, shape, 0, 0, f->time, 1);
  const char *tail = kva_export_slice(e, shape, 0, f->time + 1, INT64_MAX, 1);
  const char *parts[] = {head, kva_export_i64(e, rows), tail};
  const char *zeros = kva_export_1(e, "ConstantOfShape", kva_export_concat(e, 3, parts, 0));
  return f->t == KVA_F32 ? zeros : kva_export_cast(e, zeros, f->t);
}

/* Weight of tap j, shaped to broadcast to x. */
static const char *tap_weight(kva_export *e, const shift *f, const char *w, int64_t j) {
  if (f->weight_rank == 4) {
    w = kva_export_slice(e, w, 3, j, j + 1, 1);
    if (f->time == 2) return w;
    kva_pb_node *n = kva_export_node(e, "Transpose", 1, &w, NULL);
    kva_export_ints(e, n, "perm", (kva_ints){4, (const int64_t[]){0, 2, 1, 3}});
    return kva_export_out(n);
  }
  w = kva_export_slice(e, w, 1, j, j + 1, 1);
  if (f->weight_rank == 3) return f->time == 2 ? w : kva_export_2(e, "Squeeze", w, kva_export_i64(e, 1));
  int64_t last = -1;
  return f->time == 2 ? kva_export_unsqueeze(e, w, 1, &last) : w;
}

static const char *tap_rows(kva_export *e, const shift *f, const char *padded, int64_t j) {
  return kva_export_slice(e, padded, f->time, f->window - 1 - j, j ? -j : INT64_MAX, 1);
}

/* x where `mask`, [B, rows] or [B, 1], holds, else y. */
static const char *where(kva_export *e, const shift *f, const char *mask, const char *x, const char *y) {
  const int64_t by_time[] = {2, 3}, by_head[] = {1, 3};
  return kva_export_3(e, "Where", kva_export_unsqueeze(e, mask, 2, f->time == 1 ? by_time : by_head), x, y);
}

static const char *only_where(kva_export *e, const shift *f, const char *mask, const char *x) {
  return mask ? where(e, f, mask, x, kva_export_scalar(e, f->t, 0)) : x;
}

/* Rows before x are of the document of its first row. */
static void find_segments(kva_export *e, shift *f) {
  f->segments = f->padded_segments = kva_export_in(e, f->n, 3);
  if (f->window == 1) return;
  const int64_t pads[] = {0, f->window - 1, 0, 0};
  kva_pb_node *pad = kva_export_node(e, "Pad", 2, (const char *[]){f->segments, kva_export_i64s(e, 4, pads)}, NULL);
  kva_export_string(e, pad, "mode", "edge");
  f->padded_segments = kva_export_out(pad);
}

/* Rows before x are no padding if they are given. */
static bool find_padding(kva_export *e, shift *f) {
  int64_t last = -1;
  const char *rows = ramp(e, kva_operand(f->n, 0)->type->dims[f->time]), *zero = kva_export_scalar(e, KVA_I64, 0);
  if (!rows) return false;
  const char *start = kva_export_2(e, "Max", kva_export_cast(e, kva_export_in(e, f->n, 4), KVA_I64), zero);
  start = kva_export_unsqueeze(e, start, 1, &last);
  f->inside = f->padded_inside = kva_export_2(e, "GreaterOrEqual", rows, start);
  f->first = kva_export_2(e, "Equal", rows, start);
  if (f->window == 1) return true;
  int64_t *before = KVA_NEW_ARRAY(e->arena, int64_t, f->window);
  for (int64_t i = 0; i < f->window - 1; i++) before[i] = i + 1 - f->window;
  rows = kva_export_concat(e, 2, (const char *[]){kva_export_i64s(e, (uint32_t)f->window - 1, before), rows}, 0);
  f->padded_inside = kva_export_2(e, "GreaterOrEqual", rows, start);
  if (kva_operand(f->n, 2))
    f->padded_inside = kva_export_2(e, "Or", f->padded_inside, kva_export_2(e, "Less", rows, zero));
  return true;
}

/* Which of the rows that tap j reads are of the document of the row that reads them; NULL: all. */
static const char *same_document(kva_export *e, const shift *f, int64_t j) {
  if (!f->segments || !j) return NULL;
  const char *read = kva_export_slice(e, f->padded_segments, 1, f->window - 1 - j, -j, 1);
  return kva_export_2(e, "Equal", read, f->segments);
}

/* The first row of a sequence passes unmixed. */
static const char *keep_first(kva_export *e, const shift *f, const char *x, const char *y) {
  if (f->first) return where(e, f, f->first, x, y);
  const char *parts[] = {kva_export_slice(e, x, f->time, 0, 1, 1), kva_export_slice(e, y, f->time, 1, INT64_MAX, 1)};
  return kva_export_concat(e, 2, parts, f->time);
}

/* The rows that the next chunk takes as its past: what the last row reads. */
static const char *next_past(kva_export *e, const shift *f, const char *padded) {
  int64_t begin = f->window > 1 ? 1 - f->window : INT64_MAX;
  const char *state = kva_export_slice(e, padded, f->time, begin, INT64_MAX, 1), *same = NULL, *inside = NULL;
  if (f->segments)
    same = kva_export_2(e, "Equal", kva_export_slice(e, f->padded_segments, 1, begin, INT64_MAX, 1),
                        kva_export_slice(e, f->segments, 1, -1, INT64_MAX, 1));
  if (f->inside) inside = kva_export_slice(e, f->inside, 1, -1, INT64_MAX, 1);
  return only_where(e, f, inside, only_where(e, f, same, state));
}

static void write_shift(kva_export *e, const shift *f) {
  const char *x = operand_as(e, f->n, 0, f->t), *w = operand_as(e, f->n, 1, f->t), *y = NULL;
  const char *padded = x;
  if (f->window > 1) padded = kva_export_concat(e, 2, (const char *[]){rows_before(e, f, x), x}, f->time);
  padded = only_where(e, f, f->padded_inside, padded);
  for (int64_t j = 0; j < f->window; j++) {
    const char *rows = only_where(e, f, same_document(e, f, j), tap_rows(e, f, padded, j));
    const char *term = kva_export_2(e, "Mul", tap_weight(e, f, w, j), rows);
    y = y ? kva_export_2(e, "Add", y, term) : term;
  }
  if (f->keep && !kva_operand(f->n, 2)) y = keep_first(e, f, x, y);
  y = only_where(e, f, f->inside, y);
  kva_dtype t = f->n->results[0].type->dtype;
  kva_export_set(e, f->n, 0, t == f->t ? y : kva_export_cast(e, y, t));
  if (!f->n->results[1].uses) return;
  const char *state = next_past(e, f, padded);
  kva_export_set(e, f->n, 1, t == f->t ? state : kva_export_cast(e, state, t));
}

/* ---- KV shift as a depthwise convolution ------------------------------------------------------------------------ */

static const char *transposed(kva_export *e, const char *x, int64_t rank, const int64_t *perm) {
  kva_pb_node *n = kva_export_node(e, "Transpose", 1, &x, NULL);
  kva_export_ints(e, n, "perm", (kva_ints){(uint32_t)rank, perm});
  return kva_export_out(n);
}

static const char *shaped(kva_export *e, const char *x, uint32_t rank, const int64_t *shape) {
  return kva_export_2(e, "Reshape", x, kva_export_i64s(e, rank, shape));
}

/* Rows before the first are zero or given, and every channel has one weight for each tap. */
static bool is_convolution(const shift *f, int64_t *heads, int64_t *size) {
  const kva_value *x = kva_operand(f->n, 0);
  if (f->window < 2 || f->weight_rank == 4 || f->segments || f->first) return false;
  if (!kva_operand(f->n, 2) && (f->keep || f->edge)) return false;
  return kva_expr_is_const(x->type->dims[f->time == 1 ? 2 : 1], heads) && kva_expr_is_const(x->type->dims[3], size);
}

/* [B, .., D] as [B, channels, rows], and back. */
static const char *as_channels(kva_export *e, const shift *f, const char *x, int64_t channels) {
  const int64_t by_time[] = {0, 2, 3, 1}, by_head[] = {0, 1, 3, 2}, shape[] = {0, channels, -1};
  return shaped(e, transposed(e, x, 4, f->time == 1 ? by_time : by_head), 3, shape);
}

static const char *as_heads(kva_export *e, const shift *f, const char *x, int64_t heads, int64_t size) {
  const int64_t by_time[] = {0, 3, 1, 2}, by_head[] = {0, 1, 3, 2}, shape[] = {0, heads, size, -1};
  return transposed(e, shaped(e, x, 4, shape), 4, f->time == 1 ? by_time : by_head);
}

/* [H, W] or [H, W, D] as [channels, 1, W], with the taps in the order of the rows that they read. */
static const char *kernel(kva_export *e, const shift *f, int64_t heads, int64_t size) {
  const int64_t shape[] = {heads, size, f->window}, last = -1, perm[] = {0, 2, 1}, out[] = {heads * size, 1, f->window};
  const char *w = operand_as(e, f->n, 1, f->t);
  if (f->weight_rank == 3)
    w = transposed(e, w, 3, perm);
  else
    w = kva_export_2(e, "Expand", kva_export_unsqueeze(e, w, 1, (const int64_t[]){1}), kva_export_i64s(e, 3, shape));
  return kva_export_slice(e, shaped(e, w, 3, out), last, -1, INT64_MIN, -1);
}

static void write_convolution(kva_export *e, const shift *f, int64_t heads, int64_t size) {
  kva_dtype t = f->n->results[0].type->dtype;
  const char *past = kva_operand(f->n, 2) ? as_channels(e, f, operand_as(e, f->n, 2, f->t), heads * size) : NULL;
  const char *x = as_channels(e, f, operand_as(e, f->n, 0, f->t), heads * size);
  kva_pb_node *p =
      kva_export_node(e, "CausalConvWithState", 4, (const char *[]){x, kernel(e, f, heads, size), NULL, past}, NULL);
  const char *state = kva_export_fresh(e, "t");
  kva_export_add_output(e, p, state);
  const char *y = as_heads(e, f, kva_export_out(p), heads, size);
  kva_export_set(e, f->n, 0, t == f->t ? y : kva_export_cast(e, y, t));
  if (!f->n->results[1].uses) return;
  state = as_heads(e, f, state, heads, size);
  kva_export_set(e, f->n, 1, t == f->t ? state : kva_export_cast(e, state, t));
}

kva_status kva_export_kv_shift(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_kv_shift_attrs *a = n->attrs;
  const kva_type *w = kva_operand(n, 1)->type;
  const char *boundary = a->boundary ? a->boundary : "zero";
  shift f = {.n = n,
             .time = a->time_axis,
             .weight_rank = w->rank,
             .keep = !strcmp(boundary, "keep"),
             .edge = !strcmp(boundary, "edge"),
             .t = kva_operand(n, 0)->type->dtype == KVA_F64 ? KVA_F64 : KVA_F32};
  if (f.edge && kva_operand(n, 4))
    return kva_export_unsupported(e, n, "left padding before a first row that is repeated has no ONNX form");
  if (!kva_expr_is_const(w->dims[w->rank == 4 ? 3 : 1], &f.window))
    return kva_export_unsupported(e, n, "its window is symbolic");
  if (kva_operand(n, 3)) find_segments(e, &f);
  if (kva_operand(n, 4) && !find_padding(e, &f)) return KVA_UNSUPPORTED;
  int64_t heads, size;
  if (e->opset >= KVA_EXPORT_OPSET_SHIFT && is_convolution(&f, &heads, &size))
    write_convolution(e, &f, heads, size);
  else
    write_shift(e, &f);
  return KVA_OK;
}
