/* Long sums in two steps.
 *
 * What: a sum (maximum, minimum) over all axes of a large tensor, or over several leading ones, leaves few results, and
 * a kernel whose results are few occupies few cores or blocks. So the last of the axes is reduced first, which gives
 * many partial results, and those then. The order of additions is fixed by the shape alone.
 *
 * Algorithm: one sweep. Sums of narrow floats take their partial results in float, so that one rounding stays one.
 * Requires: nothing. Breaks: nothing. */
#include "passes/passes_internal.h"

enum { LONG = 1 << 16, LONG_ROW = 256 };

static bool is_splittable(const kva_node *n) {
  return kva_is(n, KVA_OP_reduce_sum) || kva_is(n, KVA_OP_reduce_max) || kva_is(n, KVA_OP_reduce_min);
}

/* The reduced axes, ascending. */
static uint32_t axes_of(const kva_node *n, int64_t *axes) {
  const kva_reduce_sum_attrs *a = n->attrs;
  uint32_t rank = kva_operand_type(n, 0)->rank, len = 0;
  for (uint32_t d = 0; d < rank; d++) {
    bool reduced = !a->axes.n;
    for (uint32_t i = 0; i < a->axes.n; i++) reduced |= a->axes.v[i] == d || a->axes.v[i] + rank == d;
    if (reduced) axes[len++] = d;
  }
  return len;
}

/* Extents that are not known count as long where they are the batch's. */
static bool is_at_least(const kva_expr *x, int64_t n) {
  int64_t v;
  return !kva_expr_is_const(x, &v) || v >= n;
}

static bool is_worth_it(kva_module *m, const kva_type *t, uint32_t n, const int64_t *axes) {
  if (n < 2 || axes[0] != 0 || axes[n - 1] != (int64_t)n - 1 || !is_at_least(kva_type_elements(m, t), LONG))
    return false;
  int64_t last;
  bool row = n == t->rank && kva_expr_is_const(t->dims[n - 1], &last) && last >= LONG_ROW;
  return row || (n < t->rank && is_at_least(t->dims[0], 2) && is_at_least(t->dims[n - 1], 2));
}

static bool split(kva_module *m, kva_node *n) {
  int64_t axes[KVA_MAX_RANK];
  kva_value *x = n->operands[0].value;
  uint32_t n_axes = axes_of(n, axes);
  if (!is_worth_it(m, x->type, n_axes, axes)) return false;
  kva_builder b = kva_builder_before(m, n);
  kva_dtype dtype = x->type->dtype;
  bool narrow = kva_is(n, KVA_OP_reduce_sum) && kva_dtype_is_float(dtype) && kva_dtype_bits(dtype) < 32;
  kva_op_id op = (kva_op_id)n->op->id;
  if (narrow) x = kva_cast(&b, x, KVA_F32);
  x = kva_reduce(&b, op, x, 1, &axes[n_axes - 1], false);
  x = kva_cast(&b, kva_reduce(&b, op, x, n_axes - 1, axes, false), dtype);
  x = kva_reshape_like(&b, x, n->results[0].type);
  x->name = n->results[0].name;
  kva_value_replace_all_uses(&n->results[0], x);
  kva_node_remove(n);
  return true;
}

kva_status kva_opt_split(kva_module *m, bool *changed) {
  for (uint32_t f = 0; f < m->functions.len; f++)
    for (kva_node *n = m->functions.data[f]->graph->first, *next; n; n = next) {
      kva_node *before = n->prev;
      next = n->next;
      if (!is_splittable(n) || !split(m, n)) continue;
      *changed = true;
      next = before ? before->next : m->functions.data[f]->graph->first; /* the second step may be long, too */
    }
  return KVA_OK;
}
