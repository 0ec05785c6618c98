/* Cross-entropy: -log_softmax(x)[target] along the last axis, where the target's column is picked by
 *
 *   gather_elements(log_softmax(x), target)          take_along_axis
 *   sum(onehot(target) * log_softmax(x))             onehot: [target == iota], as a factor or in where
 *
 * The root of the match is the pick, or a minus around it; the rest of the loss (mean, masks) is left alone. Targets
 * outside the classes keep their meaning: gather counts negative ones from the end, and a one-hot row of zeros gives a
 * loss of 0. */
#include "ops/check.h"
#include "passes/raise.h"
#include "passes/raise_index.h"

typedef struct pick {
  kva_node *log_softmax;
  kva_value *targets; /* one per row, in any shape with that many elements */
  bool one_hot;
} pick;

/* Whether v is a log_softmax along its last axis without other uses. */
static bool set_log_softmax(pick *p, const kva_value *v) {
  kva_node *n = kva_def_if(v, KVA_OP_log_softmax);
  uint32_t rank = v->type->rank;
  if (!n || kva_value_use_count(v) != 1) return false;
  if (kva_axis(((const kva_log_softmax_attrs *)n->attrs)->axis, rank) != rank - 1) return false;
  p->log_softmax = n;
  return true;
}

/* Whether t has x's extents except for a last one of 1. */
static bool is_column(const kva_type *t, const kva_type *x) {
  return t->rank == x->rank && !memcmp(t->dims, x->dims, (x->rank - 1) * sizeof *x->dims) &&
         kva_expr_is(t->dims[t->rank - 1], 1);
}

static bool pick_by_gather(const kva_node *n, pick *p) {
  const kva_gather_elements_attrs *a = n->attrs;
  if (!set_log_softmax(p, kva_operand(n, 0))) return false;
  const kva_type *x = kva_operand_type(n, 0);
  p->targets = kva_operand(n, 1);
  return kva_axis(a->axis, x->rank) == x->rank - 1 && is_column(p->targets->type, x);
}

/* Whether v is equal(targets[.., 1], iota along the last axis) with x's shape. */
static bool set_one_hot(kva_expr_ctx *c, pick *p, const kva_value *v) {
  kva_node *cast = kva_def_if(v, KVA_OP_cast), *equal = kva_def_if(cast ? kva_operand(cast, 0) : v, KVA_OP_equal);
  const kva_type *x = kva_operand_type(p->log_softmax, 0);
  for (uint32_t i = 0; equal && i < 2; i++) {
    kva_line line, wanted = {.c = {1}, .base = kva_expr_const(c, 0)};
    kva_value *targets = kva_operand(equal, 1 - i);
    if (!is_column(targets->type, x) || !kva_line_of(c, kva_operand(equal, i), &line)) continue;
    if (kva_operand_type(equal, i)->dims[kva_operand_type(equal, i)->rank - 1] != x->dims[x->rank - 1]) continue;
    if (memcmp(line.c, wanted.c, sizeof line.c) || line.base != wanted.base) continue;
    p->targets = targets;
    p->one_hot = true;
    return kva_dtype_is_int(targets->type->dtype);
  }
  return false;
}

static bool pick_by_sum(kva_expr_ctx *c, const kva_node *n, pick *p) {
  kva_ints axes = ((const kva_reduce_sum_attrs *)n->attrs)->axes;
  const kva_node *product = kva_operand(n, 0)->def;
  uint32_t rank = kva_operand_type(n, 0)->rank;
  if (axes.n != 1 || kva_axis(axes.v[0], rank) != rank - 1 || !product) return false;
  if (kva_is(product, KVA_OP_where) && kva_is_splat(kva_operand(product, 2), 0))
    return set_log_softmax(p, kva_operand(product, 1)) && set_one_hot(c, p, kva_operand(product, 0));
  if (!kva_is(product, KVA_OP_mul)) return false;
  for (uint32_t i = 0; i < 2; i++)
    if (set_log_softmax(p, kva_operand(product, i)) && set_one_hot(c, p, kva_operand(product, 1 - i))) return true;
  return false;
}

static bool find_pick(kva_expr_ctx *c, const kva_value *v, pick *p) {
  const kva_node *n = v->def;
  if (!n || kva_value_use_count(v) != 1) return false;
  if (kva_is(n, KVA_OP_gather_elements)) return pick_by_gather(n, p);
  return kva_is(n, KVA_OP_reduce_sum) && pick_by_sum(c, n, p);
}

/* Targets in the form that cross_entropy takes: in [0, C), or -1 for a loss of 0. */
static kva_value *class_numbers(kva_builder *b, const pick *p, kva_dim classes) {
  const kva_type *x = kva_operand_type(p->log_softmax, 0);
  kva_value *t = kva_reshape(b, p->targets, x->rank - 1, x->dims), *zero = kva_scalar_like(b, t, 0);
  kva_value *count = kva_dim_scalar(b, t->type->dtype, classes);
  if (!p->one_hot) return kva_build3(b, KVA_OP_where, kva_build2(b, KVA_OP_less, t, zero), kva_add(b, t, count), t);
  kva_value *known = kva_build2(b, KVA_OP_logical_and, kva_build2(b, KVA_OP_less_equal, zero, t),
                                kva_build2(b, KVA_OP_less, t, count));
  return kva_build3(b, KVA_OP_where, known, t, kva_scalar_like(b, t, -1));
}

kva_value *kva_raise_cross_entropy(kva_builder *b) {
  kva_node *root = b->before;
  kva_value *y = kva_result(root, 0);
  pick p = {0};
  bool minus = kva_is(root, KVA_OP_neg);
  if (minus) {
    kva_value *v = kva_operand(root, 0);
    kva_node *reshape = kva_def_if(v, KVA_OP_reshape);
    if (!find_pick(b->m->exprs, reshape ? kva_operand(reshape, 0) : v, &p)) return NULL;
  } else if (kva_is(root, KVA_OP_gather_elements)) {
    if (!pick_by_gather(root, &p)) return NULL;
  } else if (!kva_is(root, KVA_OP_reduce_sum) || !pick_by_sum(b->m->exprs, root, &p)) {
    return NULL;
  }
  kva_value *x = kva_operand(p.log_softmax, 0);
  if (kva_dtype_is_unsigned(p.targets->type->dtype)) return NULL; /* cannot represent -1 */
  kva_attempt attempt = kva_attempt_begin(b);
  kva_value *operands[2] = {x, class_numbers(b, &p, x->type->dims[x->type->rank - 1])};
  kva_cross_entropy_attrs attrs = {.ignore_index = -1};
  kva_value *loss = kva_cast(b, kva_build(b, KVA_OP_cross_entropy, 2, operands, &attrs), y->type->dtype);
  if (!minus) loss = kva_neg(b, loss);
  return kva_attempt_end(b, attempt, kva_reshape_like(b, loss, y->type));
}
