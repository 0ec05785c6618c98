/* Masks: comparisons of index tensors are analysed symbolically, constants by comparing their elements. */
#include "passes/raise_mask.h"
#include "passes/match.h"

enum { MASK_LIMIT = 1 << 22 }; /* largest constant that is inspected, in elements */

/* A mask that is true (or 1) where line <= 0, with `equal` where line == 0; with `negated`, the complement. */
typedef struct predicate {
  kva_line line;
  bool equal, negated;
} predicate;

static double element_of(const kva_tensor_data *t, int64_t i) {
  KVA_ASSERT(i >= 0);
  return kva_dtype_is_float(t->dtype) ? kva_load_f64(t->dtype, t->data, i) : (double)kva_load_i64(t->dtype, t->data, i);
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

/* A constant matrix in which key s is visible to query t exactly if t + lower < s <= t + upper. */
typedef struct band {
  bool has_upper, has_lower;
  int64_t upper, lower;
} band;

/* 1 visible, 0 hidden, -1 neither. */
static int is_visible(double x, kva_mask_kind kind) {
  if (kind == KVA_MASK_ADDED) return x == 0 ? 1 : x <= KVA_HIDDEN_SCORE ? 0 : -1;
  return (x != 0) == (kind == KVA_MASK_VISIBLE);
}

/* Derives bounds from a row's first and last visible elements. Those at the border of the matrix determine none. */
static bool fit_row(const kva_tensor_data *t, kva_mask_kind kind, int64_t row, int64_t columns, band *b) {
  int64_t first = -1, last = -1;
  for (int64_t s = 0; s < columns; s++) {
    int seen = is_visible(element_of(t, row * columns + s), kind);
    if (seen < 0) return false;
    if (!seen) continue;
    if (first < 0) first = s;
    last = s;
  }
  if (last < 0) return false;
  if (last + 1 < columns && !b->has_upper) b->has_upper = true, b->upper = last - row;
  if (first > 0 && !b->has_lower) b->has_lower = true, b->lower = first - 1 - row;
  return true;
}

static bool band_of_constant(const kva_tensor_data *t, kva_mask_kind kind, band *out) {
  if (t->rank < 2 || t->dtype == KVA_STRING) return false;
  int64_t rows = t->dims[t->rank - 2], columns = t->dims[t->rank - 1], n = kva_tensor_elements(t);
  *out = (band){0};
  if (n != rows * columns || n < 1 || n > MASK_LIMIT) return false;
  for (int64_t r = 0; r < rows; r++)
    if (!fit_row(t, kind, r, columns, out)) return false;
  for (int64_t i = 0; i < n; i++) {
    int64_t d = i % columns - i / columns;
    bool seen = (!out->has_upper || d <= out->upper) && (!out->has_lower || d > out->lower);
    if (seen != (is_visible(element_of(t, i), kind) == 1)) return false;
  }
  return true;
}

/* A constant with a single bound, as a predicate for "visible", which can then be sliced. */
static bool triangle_of_constant(kva_expr_ctx *c, const kva_tensor_data *t, kva_mask_kind kind, predicate *out) {
  band b;
  if (!band_of_constant(t, kind, &b) || b.has_upper == b.has_lower) return false;
  *out = (predicate){.line = {.c = {1, -1}, .base = kva_expr_const(c, b.has_upper ? -b.upper : -b.lower)},
                     .negated = b.has_lower};
  return t->dims[t->rank - 2] > 1 && t->dims[t->rank - 1] > 1;
}

static bool is_number(const kva_value *v, double want) {
  double x;
  return kva_number_of(v, &x) && x == want;
}

/* ---- predicates -------------------------------------------------------------------------------------------------- */

static bool predicate_of(kva_expr_ctx *c, const kva_value *v, predicate *out);

static bool negated_of(kva_expr_ctx *c, const kva_value *v, predicate *out) {
  if (!predicate_of(c, v, out)) return false;
  out->negated = !out->negated;
  return true;
}

static bool predicate_of_comparison(kva_expr_ctx *c, const kva_node *n, predicate *out) {
  *out = (predicate){.equal = kva_is(n, KVA_OP_equal)};
  return kva_line_of_comparison(c, n, &out->line);
}

/* where(mask, 1, 0) and where(mask, 0, 1). */
static bool predicate_of_where(kva_expr_ctx *c, const kva_node *n, predicate *out) {
  if (is_number(kva_operand(n, 1), 1) && is_number(kva_operand(n, 2), 0))
    return predicate_of(c, kva_operand(n, 0), out);
  return is_number(kva_operand(n, 1), 0) && is_number(kva_operand(n, 2), 1) && negated_of(c, kva_operand(n, 0), out);
}

static bool predicate_of(kva_expr_ctx *c, const kva_value *v, predicate *out) {
  const kva_node *n = v->def;
  if (!n) return false;
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_constant:
    return v->type->dtype == KVA_BOOL && triangle_of_constant(c, kva_constant_of(v), KVA_MASK_VISIBLE, out);
  case KVA_OP_less:
  case KVA_OP_less_equal:
  case KVA_OP_equal: return predicate_of_comparison(c, n, out);
  case KVA_OP_cast: return kva_operand_type(n, 0)->dtype == KVA_BOOL && predicate_of(c, kva_operand(n, 0), out);
  case KVA_OP_where: return predicate_of_where(c, n, out);
  case KVA_OP_logical_not: return negated_of(c, kva_operand(n, 0), out);
  case KVA_OP_sub: return is_number(kva_operand(n, 0), 1) && negated_of(c, kva_operand(n, 1), out); /* 1 - mask */
  default:
    return kva_line_move(c, n, &(kva_line){.base = kva_expr_const(c, 0)}) && predicate_of(c, kva_operand(n, 0), out) &&
           kva_line_move(c, n, &out->line);
  }
}

static bool hides(const kva_value *v) {
  double x;
  return kva_number_of(v, &x) && x <= KVA_HIDDEN_SCORE;
}

/* A float mask added to scores, as a predicate for "visible". */
static bool predicate_of_added(kva_expr_ctx *c, const kva_value *v, predicate *out) {
  const kva_node *n = v->def;
  if (!n || !kva_dtype_is_float(v->type->dtype)) return false;
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_constant: return triangle_of_constant(c, kva_constant_of(v), KVA_MASK_ADDED, out);
  case KVA_OP_cast: return predicate_of_added(c, kva_operand(n, 0), out);
  case KVA_OP_where:
    if (is_number(kva_operand(n, 1), 0) && hides(kva_operand(n, 2))) return predicate_of(c, kva_operand(n, 0), out);
    if (!hides(kva_operand(n, 1))) return false;
    /* where(mask, -inf, 0); also Trilu of a constant, where(mask, 0, -inf), negated */
    return is_number(kva_operand(n, 2), 0) && negated_of(c, kva_operand(n, 0), out);
  case KVA_OP_mul:
    for (uint32_t i = 0; i < 2; i++)
      if (hides(kva_operand(n, i))) return negated_of(c, kva_operand(n, 1 - i), out);
    return false;
  default:
    return kva_line_move(c, n, &(kva_line){.base = kva_expr_const(c, 0)}) &&
           predicate_of_added(c, kva_operand(n, 0), out) && kva_line_move(c, n, &out->line);
  }
}

/* ---- the first rows ---------------------------------------------------------------------------------------------- */

static bool head_of_constant(const kva_tensor_data *t, uint32_t axis, int64_t *out_rows, bool *out_first) {
  if (axis >= t->rank || kva_tensor_elements(t) > MASK_LIMIT || t->dtype == KVA_STRING) return false;
  for (uint32_t k = 0; k < t->rank; k++)
    if (k != t->rank - 1 - axis && t->dims[k] != 1) return false;
  int64_t n = t->dims[t->rank - 1 - axis], rows = 0;
  if (n < 2) return false;
  double first = element_of(t, 0);
  if (first != 0 && first != 1) return false;
  while (rows < n && element_of(t, rows) == first) rows++;
  for (int64_t i = rows; i < n; i++)
    if (element_of(t, i) != 1 - first) return false;
  *out_rows = rows;
  *out_first = first != 0;
  return true;
}

bool kva_head_mask(kva_expr_ctx *c, const kva_value *v, uint32_t axis, int64_t *out_rows, bool *out_first) {
  const kva_tensor_data *t = kva_constant_of(v);
  if (t) return head_of_constant(t, axis, out_rows, out_first);
  predicate p;
  int64_t base;
  if (!predicate_of(c, v, &p) || !kva_expr_is_const(p.line.base, &base)) return false;
  for (uint32_t k = 0; k < KVA_MAX_RANK; k++)
    if (p.line.c[k] != 0 && k != axis) return false;
  int64_t slope = p.line.c[axis];
  if (slope != 1 && slope != -1) return false;
  /* i + base <= 0: the first 1 - base rows. -i + base <= 0: all but the first base rows. +-i + base == 0: row 0. */
  if (p.equal && base != 0) return false;
  *out_rows = p.equal ? 1 : slope == 1 ? 1 - base : base;
  *out_first = (p.equal || slope == 1) != p.negated;
  return *out_rows >= 0;
}

/* ---- visibility -------------------------------------------------------------------------------------------------- */

static bool merge(kva_visibility *io, kva_dim upper, kva_dim lower) {
  if ((upper && io->upper && upper != io->upper) || (lower && io->lower && lower != io->lower)) return false;
  if (upper) io->upper = upper;
  if (lower) io->lower = lower;
  return true;
}

static bool merge_predicate(kva_expr_ctx *c, const predicate *p, kva_visibility *io) {
  const kva_line *l = &p->line;
  int64_t everywhere;
  if (kva_line_is_constant(l, &everywhere)) return (p->equal ? everywhere == 0 : everywhere <= 0) != p->negated;
  if (p->equal || l->c[0] * l->c[1] != -1) return false;
  for (uint32_t k = 2; k < KVA_MAX_RANK; k++)
    if (l->c[k]) return false;
  kva_dim minus = kva_expr_muli(c, l->base, -1);
  /* s - t + base <= 0 is s <= t - base. t - s + base <= 0 is s > t + base - 1. Negation swaps the kinds of bound. */
  kva_dim bound = l->c[0] == 1 ? minus : kva_expr_addi(c, l->base, -1);
  bool is_upper = (l->c[0] == 1) != p->negated;
  return merge(io, is_upper ? bound : NULL, is_upper ? NULL : bound);
}

/* Merges the bounds of both operands of a conjunction or a sum. */
static bool merge_both(kva_expr_ctx *c, const kva_node *n, kva_mask_kind kind, const kva_dim plane[2],
                       kva_visibility *io) {
  kva_visibility both = *io;
  for (uint32_t i = 0; i < 2; i++)
    if (!kva_visibility_of(c, kva_operand(n, i), kind, plane, &both)) return false;
  *io = both;
  return true;
}

static bool merge_constant(kva_expr_ctx *c, const kva_value *v, kva_mask_kind kind, const kva_dim plane[2],
                           kva_visibility *io) {
  band b;
  const kva_type *t = v->type;
  double x;
  if (kva_splat_value(v, &x) && is_visible(x, kind) == 1) return true;
  if (t->rank < 2 || t->dims[t->rank - 2] != plane[0] || t->dims[t->rank - 1] != plane[1]) return false;
  if (!band_of_constant(kva_constant_of(v), kind, &b)) return false;
  return merge(io, b.has_upper ? kva_expr_const(c, b.upper) : NULL, b.has_lower ? kva_expr_const(c, b.lower) : NULL);
}

static bool visibility_of_condition(kva_expr_ctx *c, const kva_node *n, kva_mask_kind kind, const kva_dim plane[2],
                                    kva_visibility *io) {
  predicate p;
  bool visible = kind == KVA_MASK_VISIBLE;
  if (kva_is(n, visible ? KVA_OP_logical_and : KVA_OP_logical_or)) return merge_both(c, n, kind, plane, io);
  if (kva_is(n, KVA_OP_logical_not))
    return kva_visibility_of(c, kva_operand(n, 0), visible ? KVA_MASK_HIDDEN : KVA_MASK_VISIBLE, plane, io);
  if (!predicate_of(c, &n->results[0], &p)) return false;
  p.negated ^= !visible;
  return merge_predicate(c, &p, io);
}

/* A single predicate, or where(cond, 0, hidden) with a compound condition. */
static bool visibility_of_added(kva_expr_ctx *c, const kva_node *n, const kva_dim plane[2], kva_visibility *io) {
  predicate p;
  if (kva_is(n, KVA_OP_add)) return merge_both(c, n, KVA_MASK_ADDED, plane, io);
  if (predicate_of_added(c, &n->results[0], &p)) return merge_predicate(c, &p, io);
  if (!kva_is(n, KVA_OP_where)) return false;
  bool straight = is_number(kva_operand(n, 1), 0) && hides(kva_operand(n, 2));
  bool turned = is_number(kva_operand(n, 2), 0) && hides(kva_operand(n, 1));
  kva_mask_kind kind = straight ? KVA_MASK_VISIBLE : KVA_MASK_HIDDEN;
  return (straight || turned) && kva_visibility_of(c, kva_operand(n, 0), kind, plane, io);
}

bool kva_visibility_of(kva_expr_ctx *c, const kva_value *v, kva_mask_kind kind, const kva_dim plane[2],
                       kva_visibility *io) {
  if (!v->def) return false;
  if (kva_constant_of(v)) return merge_constant(c, v, kind, plane, io);
  return kind == KVA_MASK_ADDED ? visibility_of_added(c, v->def, plane, io)
                                : visibility_of_condition(c, v->def, kind, plane, io);
}
