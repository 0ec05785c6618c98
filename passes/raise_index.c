/* Recognises index tensors that are affine functions of their own indices. */
#include "passes/raise_index.h"

#include <math.h>

enum { LINE_LIMIT = 1 << 16 }; /* largest constant that is inspected, in elements */

/* x as an integer that a double holds exactly, as all beside it. */
static bool is_whole(double x, int64_t *out) {
  if (!(fabs(x) < 0x1p53)) return false; /* NaN, too */
  *out = (int64_t)x;
  return (double)*out == x;
}

static bool element_of(const kva_tensor_data *t, int64_t i, int64_t *out) {
  if (kva_dtype_is_float(t->dtype)) return is_whole(kva_load_f64(t->dtype, t->data, i), out);
  *out = kva_load_i64(t->dtype, t->data, i);
  return *out > INT32_MIN && *out < INT32_MAX; /* positions; and sums of their products do not overflow */
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static kva_line constant_line(kva_expr_ctx *c, int64_t base) {
  return (kva_line){.base = kva_expr_const(c, base)};
}

/* Derives the progression from the first two elements along each axis, then checks all elements. */
static bool line_of_constant(kva_expr_ctx *c, const kva_tensor_data *t, kva_line *out) {
  int64_t n = kva_tensor_elements(t), stride = 1, at[KVA_MAX_RANK] = {0};
  if (t->rank > KVA_MAX_RANK || n < 1 || n > LINE_LIMIT || t->dtype == KVA_STRING || t->dtype == KVA_BOOL) return false;
  int64_t first, next;
  if (!element_of(t, 0, &first)) return false;
  *out = constant_line(c, first);
  for (uint32_t k = t->rank; k-- > 0; stride *= t->dims[k]) {
    if (t->dims[k] < 2) continue;
    if (!element_of(t, stride, &next)) return false;
    out->c[t->rank - 1 - k] = next - first;
  }
  for (int64_t i = 0; i < n; i++, kva_next_index(t->rank, t->dims, at)) {
    int64_t want = first;
    for (uint32_t k = 0; k < t->rank; k++) want += out->c[t->rank - 1 - k] * at[k];
    if (!element_of(t, i, &next) || next != want) return false;
  }
  return true;
}

/* line *= factor */
static bool scale(kva_expr_ctx *c, int64_t factor, kva_line *line) {
  for (int k = 0; k < KVA_MAX_RANK; k++)
    if (__builtin_mul_overflow(line->c[k], factor, &line->c[k])) return false;
  line->base = kva_expr_muli(c, line->base, factor);
  return true;
}

/* line += other */
static bool add(kva_expr_ctx *c, const kva_line *other, kva_line *line) {
  for (int k = 0; k < KVA_MAX_RANK; k++)
    if (__builtin_add_overflow(line->c[k], other->c[k], &line->c[k])) return false;
  line->base = kva_expr_add(c, line->base, other->base);
  return true;
}

/* No element is known to be below 0, wherever the line ends. */
static bool is_natural(kva_expr_ctx *c, const kva_line *line) {
  for (int k = 0; k < KVA_MAX_RANK; k++)
    if (line->c[k] < 0) return false;
  return kva_expr_provably_le(c, kva_expr_const(c, 0), line->base);
}

/* Whether elements of type t hold what arithmetic on positions gives: fewer bits may not hold every position, and below
 * 0 types without sign wrap. Where extents are known, folding has made a constant of the node. */
static bool holds(kva_expr_ctx *c, kva_dtype t, const kva_line *line) {
  return kva_dtype_bits(t) >= 32 && (!kva_dtype_is_unsigned(t) || is_natural(c, line));
}

static bool line_of_sum(kva_expr_ctx *c, const kva_node *n, int64_t sign, kva_line *out) {
  kva_line y;
  return kva_line_of(c, kva_operand(n, 0), out) && kva_line_of(c, kva_operand(n, 1), &y) && scale(c, sign, &y) &&
         add(c, &y, out);
}

static bool line_of_product(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  for (uint32_t i = 0; i < 2; i++) {
    double x;
    int64_t factor;
    if (!kva_splat_value(kva_operand(n, i), &x) || !is_whole(x, &factor)) continue;
    return kva_line_of(c, kva_operand(n, 1 - i), out) && scale(c, factor, out);
  }
  return false;
}

/* A reshape that only inserts or removes axes of extent 1. */
static bool move_by_reshape(const kva_type *x, const kva_type *y, kva_line *line) {
  kva_line inner = *line;
  memset(line->c, 0, sizeof line->c);
  uint32_t i = 0, k = 0;
  for (;;) {
    while (i < x->rank && kva_expr_is(x->dims[x->rank - 1 - i], 1)) i++;
    while (k < y->rank && kva_expr_is(y->dims[y->rank - 1 - k], 1)) k++;
    if (i == x->rank || k == y->rank) return i == x->rank && k == y->rank;
    if (x->dims[x->rank - 1 - i] != y->dims[y->rank - 1 - k]) return false;
    line->c[k++] = inner.c[i++];
  }
}

static void move_by_slice(kva_expr_ctx *c, const kva_node *n, kva_line *line) {
  const kva_slice_attrs *a = n->attrs;
  for (uint32_t k = 0; k < a->starts.n; k++) {
    int64_t *coefficient = &line->c[a->starts.n - 1 - k];
    line->base = kva_expr_add(c, line->base, kva_expr_muli(c, a->starts.v[k], *coefficient));
    *coefficient *= a->steps.n ? a->steps.v[k] : 1;
  }
}

static void move_by_transpose(const kva_node *n, kva_line *line) {
  const kva_transpose_attrs *a = n->attrs;
  kva_line inner = *line;
  uint32_t rank = a->perm.n;
  for (uint32_t k = 0; k < rank; k++) line->c[rank - 1 - k] = inner.c[rank - 1 - a->perm.v[k]];
}

static bool move_by(kva_expr_ctx *c, const kva_node *n, kva_line *line) {
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_expand: return true;
  case KVA_OP_reshape: return move_by_reshape(kva_operand_type(n, 0), n->results[0].type, line);
  case KVA_OP_slice: move_by_slice(c, n, line); return true;
  case KVA_OP_transpose: move_by_transpose(n, line); return true;
  default: return false;
  }
}

/* A broadcast axis has coefficient 0. */
static void forget_single(const kva_type *t, kva_line *line) {
  for (uint32_t k = 0; k < t->rank; k++)
    if (kva_expr_is(t->dims[k], 1)) line->c[t->rank - 1 - k] = 0;
}

bool kva_line_move(kva_expr_ctx *c, const kva_node *n, kva_line *line) {
  if (!move_by(c, n, line)) return false;
  forget_single(n->results[0].type, line);
  return true;
}

static bool line_of_negation(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  return kva_line_of(c, kva_operand(n, 0), out) && scale(c, -1, out);
}

static bool line_of_iota(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  const kva_iota_attrs *a = n->attrs;
  *out = constant_line(c, 0);
  out->c[a->shape.n - 1 - (a->axis < 0 ? a->axis + a->shape.n : a->axis)] = 1;
  return true;
}

static bool line_of_dims(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  const kva_dims_attrs *a = n->attrs;
  *out = constant_line(c, 0);
  if (a->values.n == 1) out->base = a->values.v[0];
  return a->values.n == 1;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static bool same_line(const kva_line *x, const kva_line *y) {
  return x->base == y->base && !memcmp(x->c, y->c, sizeof x->c);
}

/* The extent of operand i along `axis`. min(n, 1), of a first row that is sliced out, is 1 if the rest of the result
 * are n rows: without any there is no result. */
static kva_dim piece_extent(kva_expr_ctx *c, const kva_node *n, uint32_t i, uint32_t axis) {
  kva_dim e = kva_operand_type(n, i)->dims[axis], one = kva_expr_const(c, 1);
  if (e->kind != KVA_EXPR_MIN || (e->a != one && e->b != one)) return e;
  kva_dim rows = e->a == one ? e->b : e->a;
  for (uint32_t k = 0; k < n->n_operands; k++)
    if (k != i && kva_operand_type(n, k)->dims[axis] != rows) return e;
  return one;
}

/* Every piece begins where the one before it would go on. */
static bool line_of_concat(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  int64_t given = ((const kva_concat_attrs *)n->attrs)->axis;
  uint32_t rank = n->results[0].type->rank, axis = (uint32_t)(given < 0 ? given + rank : given);
  kva_dim first = kva_expr_const(c, 0);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_line piece;
    if (!kva_line_of(c, kva_operand(n, i), &piece)) return false;
    kva_dim before = kva_expr_muli(c, first, piece.c[rank - 1 - axis]);
    piece.base = kva_expr_sub(c, piece.base, before);
    if (i && !same_line(&piece, out)) return false;
    *out = piece;
    first = kva_expr_add(c, first, piece_extent(c, n, i, axis));
  }
  return n->n_operands > 0;
}

/* Adds what component k of the indices, operand k of their concatenation, does to the line. Negative indices would
 * count from the end. */
static bool add_component(kva_expr_ctx *c, const kva_node *indices, uint32_t k, int64_t factor, kva_line *out) {
  const kva_type *t = kva_operand_type(indices, k);
  kva_line x;
  if (!kva_expr_is(t->dims[t->rank - 1], 1) || !kva_line_of(c, kva_operand(indices, k), &x)) return false;
  if (!is_natural(c, &x) || !scale(c, factor, &x)) return false;
  memmove(x.c, x.c + 1, sizeof x.c - sizeof *x.c); /* the last axis is that of components */
  x.c[KVA_MAX_RANK - 1] = 0;
  return add(c, &x, out);
}

/* Elements of a line, chosen by indices that are lines. */
static bool line_of_gather_nd(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  const kva_node *indices = kva_operand(n, 1)->def;
  uint32_t rank = kva_operand_type(n, 0)->rank, last = kva_operand_type(n, 1)->rank - 1;
  kva_line x;
  if (((const kva_gather_nd_attrs *)n->attrs)->batch_dims || !kva_line_of(c, kva_operand(n, 0), &x)) return false;
  *out = (kva_line){.base = x.base};
  if (!indices || !kva_is(indices, KVA_OP_concat) || indices->n_operands != rank) return false;
  int64_t axis = ((const kva_concat_attrs *)indices->attrs)->axis;
  if (axis != -1 && axis != (int64_t)last) return false;
  for (uint32_t k = 0; k < rank; k++)
    if (x.c[rank - 1 - k] && !add_component(c, indices, k, x.c[rank - 1 - k], out)) return false;
  return true;
}

/* ---- numbers that are the same everywhere ------------------------------------------------------------------------ */

bool kva_line_is_constant(const kva_line *line, int64_t *out) {
  for (uint32_t k = 0; k < KVA_MAX_RANK; k++)
    if (line->c[k]) return false;
  return kva_expr_is_const(line->base, out);
}

bool kva_line_of_comparison(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  if (!line_of_sum(c, n, -1, out)) return false;
  if (kva_is(n, KVA_OP_less)) out->base = kva_expr_addi(c, out->base, 1); /* x - y < 0: x - y + 1 <= 0 */
  return true;
}

static bool line_of_truth(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  int64_t x;
  if (!kva_line_of_comparison(c, n, out) || !kva_line_is_constant(out, &x)) return false;
  *out = constant_line(c, kva_is(n, KVA_OP_equal) ? x == 0 : x <= 0);
  return true;
}

static bool line_of_not(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  int64_t x;
  if (!kva_line_of(c, kva_operand(n, 0), out) || !kva_line_is_constant(out, &x)) return false;
  *out = constant_line(c, !x);
  return true;
}

static bool line_of_zeros(kva_expr_ctx *c, const kva_value *v, kva_line *out) {
  int64_t x;
  return kva_line_of(c, v, out) && kva_line_is_constant(out, &x) && x == 0;
}

/* The line of a node that computes positions. */
static bool line_of_arithmetic(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_iota: return line_of_iota(c, n, out);
  case KVA_OP_dims: return line_of_dims(c, n, out);
  case KVA_OP_add: return line_of_sum(c, n, 1, out);
  case KVA_OP_sub: return line_of_sum(c, n, -1, out);
  case KVA_OP_mul: return line_of_product(c, n, out);
  case KVA_OP_neg: return line_of_negation(c, n, out);
  case KVA_OP_cast: return kva_line_of(c, kva_operand(n, 0), out);
  default: return false;
  }
}

static bool line_of_node(kva_expr_ctx *c, const kva_node *n, kva_line *out) {
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_constant: return line_of_constant(c, kva_constant_of(&n->results[0]), out);
  case KVA_OP_iota:
  case KVA_OP_dims:
  case KVA_OP_add:
  case KVA_OP_sub:
  case KVA_OP_mul:
  case KVA_OP_neg:
  case KVA_OP_cast: return line_of_arithmetic(c, n, out) && holds(c, n->results[0].type->dtype, out);
  case KVA_OP_concat: return line_of_concat(c, n, out);
  case KVA_OP_gather_nd: return line_of_gather_nd(c, n, out);
  case KVA_OP_assume: return kva_line_of(c, kva_operand(n, 0), out);
  case KVA_OP_equal:
  case KVA_OP_less:
  case KVA_OP_less_equal: return line_of_truth(c, n, out);
  case KVA_OP_logical_not: return line_of_not(c, n, out);
  case KVA_OP_cumsum: return line_of_zeros(c, kva_operand(n, 0), out);
  case KVA_OP_expand:
  case KVA_OP_reshape:
  case KVA_OP_slice:
  case KVA_OP_transpose: return kva_line_of(c, kva_operand(n, 0), out) && kva_line_move(c, n, out);
  default: return false;
  }
}

bool kva_line_of(kva_expr_ctx *c, const kva_value *v, kva_line *out) {
  if (!v->def || v->type->rank > KVA_MAX_RANK || !line_of_node(c, v->def, out)) return false;
  forget_single(v->type, out);
  return true;
}
