/* Algebraic simplification.
 *
 * What: local rewrites that never grow the graph: neutral elements, no-op movement, chains of equal movements,
 * transposes into matrix products. Exact: result bits do not change, except for -0 + 0 (x + 0 -> x keeps -0).
 *
 * Algorithm: one forward sweep. Each rule inspects one node and its operands and returns a replacement value. Requires:
 * SSA order. Breaks: nothing; leaves dead nodes to dce.
 *
 * Why functions per operator, not patterns: these rules compare types and attributes rather than structure. The
 * patterns_*.def files hold the structural ones. */
#include "passes/passes_internal.h"

typedef kva_value *(*rule_fn)(kva_builder *b, kva_node *n);

static kva_value *x_of(const kva_node *n) {
  return kva_operand(n, 0);
}
static kva_value *y_of(const kva_node *n) {
  return kva_operand(n, 1);
}
static bool same_type(const kva_node *n, const kva_value *v) {
  return n->results[0].type == v->type;
}

/* Whether v is one throughout, including a scalar that still is to be broadcast. */
static bool is_ones(const kva_value *v) {
  const kva_node *expand = kva_def_if(v, KVA_OP_expand);
  return kva_is_splat(expand ? kva_operand(expand, 0) : v, 1);
}

static kva_value *simplify_add(kva_builder *b, kva_node *n) {
  if (same_type(n, x_of(n)) && kva_is_splat(y_of(n), 0)) return x_of(n);
  if (same_type(n, y_of(n)) && kva_is_splat(x_of(n), 0)) return y_of(n);
  kva_node *negated = kva_def_if(y_of(n), KVA_OP_neg);
  return negated ? kva_sub(b, x_of(n), x_of(negated)) : NULL;
}

static kva_value *simplify_sub(kva_builder *b, kva_node *n) {
  (void)b;
  return same_type(n, x_of(n)) && kva_is_splat(y_of(n), 0) ? x_of(n) : NULL;
}

static kva_value *simplify_mul(kva_builder *b, kva_node *n) {
  (void)b;
  if (same_type(n, x_of(n)) && is_ones(y_of(n))) return x_of(n);
  if (same_type(n, y_of(n)) && is_ones(x_of(n))) return y_of(n);
  return NULL;
}

static kva_value *simplify_div(kva_builder *b, kva_node *n) {
  (void)b;
  return same_type(n, x_of(n)) && is_ones(y_of(n)) ? x_of(n) : NULL;
}

/* Masks that show everything give way to others, whose shapes may be smaller. */
static kva_value *simplify_and(kva_builder *b, kva_node *n) {
  if (is_ones(y_of(n))) return kva_expand_like(b, x_of(n), n->results[0].type);
  return is_ones(x_of(n)) ? kva_expand_like(b, y_of(n), n->results[0].type) : NULL;
}

static kva_value *simplify_neg(kva_builder *b, kva_node *n) {
  (void)b;
  kva_node *inner = kva_def_if(x_of(n), KVA_OP_neg);
  return inner ? x_of(inner) : NULL;
}

/* pow with common exponents: x^1, x^2, x^-1 (float). */
static kva_value *simplify_pow(kva_builder *b, kva_node *n) {
  double e;
  if (!same_type(n, x_of(n)) || !kva_splat_value(y_of(n), &e)) return NULL;
  if (e == 1) return x_of(n);
  if (e == 2) return kva_mul(b, x_of(n), x_of(n));
  if (!kva_dtype_is_float(x_of(n)->type->dtype)) return NULL;
  return e == -1 ? kva_build1(b, KVA_OP_reciprocal, x_of(n)) : NULL;
}

static kva_value *simplify_where(kva_builder *b, kva_node *n) {
  (void)b;
  double c;
  if (!kva_splat_value(x_of(n), &c)) return NULL;
  kva_value *taken = kva_operand(n, c != 0 ? 1 : 2);
  return same_type(n, taken) ? taken : NULL;
}

static kva_value *simplify_same_type(kva_builder *b, kva_node *n) {
  (void)b;
  return same_type(n, x_of(n)) ? x_of(n) : NULL;
}

/* A cast to a wider float and back is exact. */
static kva_value *simplify_cast(kva_builder *b, kva_node *n) {
  kva_node *inner = kva_def_if(x_of(n), KVA_OP_cast);
  bool widened = inner && same_type(n, x_of(inner)) && x_of(n)->type->dtype == KVA_F32 &&
                 (n->results[0].type->dtype == KVA_BF16 || n->results[0].type->dtype == KVA_F16);
  return widened ? x_of(inner) : simplify_same_type(b, n);
}

static int64_t perm_at(const kva_node *n, int64_t d) {
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  return perm.n ? perm.v[d] : (int64_t)n->results[0].type->rank - 1 - d; /* default: reversed */
}

static kva_value *simplify_transpose(kva_builder *b, kva_node *n) {
  uint32_t rank = n->results[0].type->rank;
  kva_node *inner = kva_def_if(x_of(n), KVA_OP_transpose);
  int64_t perm[KVA_MAX_RANK];
  bool identity = true;
  for (uint32_t d = 0; d < rank; d++) {
    perm[d] = inner ? perm_at(inner, perm_at(n, d)) : perm_at(n, d);
    identity &= perm[d] == (int64_t)d;
  }
  if (identity) return inner ? x_of(inner) : x_of(n);
  return inner ? kva_transpose(b, x_of(inner), perm) : NULL;
}

/* Whether the transpose only swaps the last two axes. */
static bool swaps_last_two(const kva_node *n) {
  uint32_t rank = n->results[0].type->rank;
  if (rank < 2 || perm_at(n, rank - 1) != rank - 2 || perm_at(n, rank - 2) != rank - 1) return false;
  for (uint32_t d = 0; d + 2 < rank; d++)
    if (perm_at(n, d) != d) return false;
  return true;
}

/* A transpose of matrices between two reshapes, which only merge and split what numbers the matrices, comes last: so
 * PyTorch transposes keys of rank 4. */
static kva_value *reshape_before_transpose(kva_builder *b, const kva_node *n) {
  kva_node *t = kva_def_if(x_of(n), KVA_OP_transpose);
  const kva_type *from = x_of(n)->type, *to = n->results[0].type;
  if (!t || !kva_def_if(x_of(t), KVA_OP_reshape) || !swaps_last_two(t) || to->rank < 2) return NULL;
  kva_dim rows = from->dims[from->rank - 2], columns = from->dims[from->rank - 1], dims[KVA_MAX_RANK];
  if (to->dims[to->rank - 2] != rows || to->dims[to->rank - 1] != columns) return NULL;
  int64_t perm[KVA_MAX_RANK];
  for (uint32_t d = 0; d < to->rank; d++) dims[d] = to->dims[d], perm[d] = d;
  dims[to->rank - 2] = columns, dims[to->rank - 1] = rows;
  perm[to->rank - 2] = to->rank - 1, perm[to->rank - 1] = to->rank - 2;
  return kva_transpose(b, kva_reshape(b, x_of(t), to->rank, dims), perm);
}

/* The product that v is, or that a row of numbers is added to, *out_added; NULL: none, or it has other users. */
static kva_node *product_of_rows(const kva_value *v, kva_value **out_added) {
  const kva_node *add = kva_def_if(v, KVA_OP_add);
  *out_added = NULL;
  for (uint32_t i = 0; add && i < 2; i++) {
    kva_node *n = kva_def_if(kva_operand(add, i), KVA_OP_matmul);
    if (!n || kva_operand_type(add, 1 - i)->rank > 1 || kva_value_use_count(&n->results[0]) != 1) continue;
    *out_added = kva_operand(add, 1 - i);
    return n;
  }
  return kva_def_if(v, KVA_OP_matmul);
}

/* reshape(reshape(x) @ w + c), where the rows of x are merged before the product and split again after it, as PyTorch's
 * addmm needs them, is x @ w + c. */
static kva_value *split_rows_again(kva_builder *b, const kva_node *n) {
  kva_value *v = x_of(n), *added;
  const kva_type *to = n->results[0].type;
  kva_node *product = product_of_rows(v, &added);
  kva_node *merged = product ? kva_def_if(x_of(product), KVA_OP_reshape) : NULL;
  if (!merged || v->type->rank != 2 || to->rank < 2 || kva_value_use_count(v) != 1) return NULL;
  kva_value *x = x_of(merged);
  uint32_t last = to->rank - 1;
  if (x->type->rank < to->rank || ((const kva_matmul_attrs *)product->attrs)->transpose_a) return NULL;
  if (to->dims[last] != v->type->dims[1]) return NULL;
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < last; d++)
    if ((dims[d] = to->dims[d]) != x->type->dims[d]) return NULL;
  dims[last] = x_of(product)->type->dims[1]; /* what is merged behind the rows, as heads are, stays merged */
  x = kva_reshape(b, x, to->rank, dims);
  kva_value *y = kva_build(b, KVA_OP_matmul, 2, (kva_value *[]){x, y_of(product)}, product->attrs);
  return added ? kva_add(b, y, added) : y;
}

static kva_value *simplify_reshape(kva_builder *b, kva_node *n) {
  if (same_type(n, x_of(n))) return x_of(n);
  kva_node *inner = kva_def_if(x_of(n), KVA_OP_reshape);
  if (inner) return kva_reshape_like(b, x_of(inner), n->results[0].type);
  kva_value *v = split_rows_again(b, n);
  return v ? v : reshape_before_transpose(b, n);
}

static kva_value *simplify_expand(kva_builder *b, kva_node *n) {
  if (same_type(n, x_of(n))) return x_of(n);
  kva_node *inner = kva_def_if(x_of(n), KVA_OP_expand);
  return inner && x_of(inner)->type->rank == n->results[0].type->rank
             ? kva_expand_like(b, x_of(inner), n->results[0].type)
             : NULL;
}

/* Numbers along one axis alone, where another one's extent is not known: they are constants then. */
static kva_value *simplify_iota(kva_builder *b, kva_node *n) {
  kva_iota_attrs a = *(const kva_iota_attrs *)n->attrs;
  const kva_type *t = n->results[0].type;
  kva_dim shape[KVA_MAX_RANK];
  int64_t extent;
  if (a.axis < 0) a.axis += t->rank;
  if (kva_type_is_static(t) || !kva_expr_is_const(t->dims[a.axis], &extent)) return NULL;
  for (uint32_t i = 0; i < t->rank; i++) shape[i] = i == a.axis ? t->dims[i] : kva_expr_const(b->m->exprs, 1);
  a.shape = (kva_dims){t->rank, shape};
  return kva_expand_like(b, kva_build(b, KVA_OP_iota, 0, NULL, &a), t);
}

/* Parts of no elements are left out, such as the empty cache of a first step. */
static kva_value *simplify_concat(kva_builder *b, kva_node *n) {
  int64_t axis = ((const kva_concat_attrs *)n->attrs)->axis;
  uint32_t at = (uint32_t)(axis < 0 ? axis + n->results[0].type->rank : axis), empty = 0, kept = 0;
  if (n->n_operands == 1) return x_of(n);
  for (uint32_t i = 0; i < n->n_operands; i++) empty += kva_expr_is(kva_operand_type(n, i)->dims[at], 0);
  if (!empty || empty == n->n_operands) return NULL;
  kva_value **parts = KVA_NEW_ARRAY(b->m->arena, kva_value *, n->n_operands - empty);
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (!kva_expr_is(kva_operand_type(n, i)->dims[at], 0)) parts[kept++] = kva_operand(n, i);
  return kept == 1 ? parts[0] : kva_build(b, KVA_OP_concat, kept, parts, n->attrs);
}

/* An extent by its number. */
static kva_value *simplify_gather(kva_builder *b, kva_node *n) {
  const kva_node *dims = kva_def_if(x_of(n), KVA_OP_dims);
  double at;
  if (!dims || n->results[0].type->rank || !kva_splat_value(y_of(n), &at)) return NULL;
  kva_dims values = ((const kva_dims_attrs *)dims->attrs)->values;
  if (at < 0) at += values.n;
  return at >= 0 && at < values.n ? kva_dim_scalar(b, n->results[0].type->dtype, values.v[(uint32_t)at]) : NULL;
}

static kva_value *simplify_pad(kva_builder *b, kva_node *n) {
  const kva_pad_attrs *a = n->attrs;
  for (uint32_t d = 0; d < a->before.n; d++)
    if (!kva_expr_is(a->before.v[d], 0) || !kva_expr_is(a->after.v[d], 0)) return NULL;
  return simplify_same_type(b, n);
}

static kva_value *simplify_slice(kva_builder *b, kva_node *n) {
  const kva_slice_attrs *a = n->attrs;
  for (uint32_t d = 0; d < a->starts.n; d++)
    if (!kva_expr_is(a->starts.v[d], 0) || (a->steps.n && a->steps.v[d] != 1)) return NULL;
  return simplify_same_type(b, n);
}

/* A reduction over axes of extent 1 is its operand. (No axes given: all of them.) */
static kva_value *simplify_reduce(kva_builder *b, kva_node *n) {
  const kva_reduce_attrs *a = n->attrs;
  const kva_type *x = x_of(n)->type;
  for (uint32_t i = 0; i < (a->axes.n ? a->axes.n : x->rank); i++) {
    int64_t axis = a->axes.n ? a->axes.v[i] : i;
    if (!kva_expr_is(x->dims[axis < 0 ? axis + x->rank : axis], 1)) return NULL;
  }
  return kva_reshape_like(b, x_of(n), n->results[0].type);
}

static kva_value *simplify_matmul(kva_builder *b, kva_node *n) {
  kva_matmul_attrs a = *(const kva_matmul_attrs *)n->attrs;
  kva_node *tx = kva_def_if(x_of(n), KVA_OP_transpose), *ty = kva_def_if(y_of(n), KVA_OP_transpose);
  if (tx && !swaps_last_two(tx)) tx = NULL;
  if (ty && !swaps_last_two(ty)) ty = NULL;
  if (!tx && !ty) return NULL;
  a.transpose_a ^= tx != NULL;
  a.transpose_b ^= ty != NULL;
  return kva_build(b, KVA_OP_matmul, 2, (kva_value *[]){tx ? x_of(tx) : x_of(n), ty ? x_of(ty) : y_of(n)}, &a);
}

static rule_fn rule_for(const kva_node *n) {
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_add: return simplify_add;
  case KVA_OP_sub: return simplify_sub;
  case KVA_OP_mul: return simplify_mul;
  case KVA_OP_div: return simplify_div;
  case KVA_OP_neg: return simplify_neg;
  case KVA_OP_logical_and: return simplify_and;
  case KVA_OP_gather: return simplify_gather;
  case KVA_OP_pow: return simplify_pow;
  case KVA_OP_where: return simplify_where;
  case KVA_OP_cast: return simplify_cast;
  case KVA_OP_reshape: return simplify_reshape;
  case KVA_OP_transpose: return simplify_transpose;
  case KVA_OP_expand: return simplify_expand;
  case KVA_OP_iota: return simplify_iota;
  case KVA_OP_concat: return simplify_concat;
  case KVA_OP_pad: return simplify_pad;
  case KVA_OP_slice: return simplify_slice;
  case KVA_OP_reduce_sum:
  case KVA_OP_reduce_mean:
  case KVA_OP_reduce_max:
  case KVA_OP_reduce_min:
  case KVA_OP_reduce_prod: return simplify_reduce;
  case KVA_OP_matmul: return simplify_matmul;
  default: return NULL; /* most operators have no rule */
  }
}

static kva_status simplify_graph(kva_module *m, kva_graph *g, const kva_pass_options *o, bool *changed) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    rule_fn rule = rule_for(n);
    if (!n->n_results || !n->results[0].uses) continue;
    if (!kva_may_change(o)) return KVA_OK;
    kva_builder b = kva_builder_before(m, n);
    kva_node *prev = n->prev;
    kva_value *v = kva_simplify_uniform(&b, n);
    if (!v && rule) v = rule(&b, n);
    if (b.failed) return KVA_INVALID;
    if (!v) continue;
    next = prev ? prev->next : g->first; /* rules may apply to the new nodes, too */
    KVA_ASSERT(v->type == n->results[0].type);
    kva_value_replace_all_uses(&n->results[0], v);
    kva_count_change(o, n, NULL, changed);
  }
  return KVA_OK;
}

kva_status kva_opt_simplify(kva_module *m, const kva_pass_options *o, bool *changed) {
  return kva_visit_graphs(m, simplify_graph, o, changed);
}
