/* Splits long reductions, concatenations of many operands, and softmax along inner axes into steps.
 *
 * What: a sum (maximum, minimum) over all axes of a large tensor, or over several leading ones, has few results, and so
 * its kernel occupies few cores or blocks. The last of the axes is therefore reduced first, to many partial results,
 * which are then reduced. The shape alone determines the order of additions.
 *
 * A concatenation is a selection for each operand in one kernel, and a compiler's time grows faster than its kernel.
 * One of many operands becomes one of concatenations.
 *
 * The maximum and the sum of a softmax are computed for every element anew, unless elements of one row follow each
 * other. So along another axis than the last they become results of their own; the exponential is computed twice, not
 * stored.
 *
 * On a GPU, column sums are also split, by blocks of rows, and gradients of gather sort their indices first.
 *
 * Algorithm: one sweep. Sums of narrow floats keep partial results in float, so that they round once. Requires:
 * nothing. Breaks: nothing. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/gather_grad.h"
#include "ops/partial_sum.h"
#include "ops/shape.h"
#include "passes/passes_internal.h"

enum {
  LONG = 1 << 16,
  LONG_ROW = 256,
  MAX_PARTS = 64, /* operands of a concatenation */
  /* column sums on a GPU */
  BLOCKS = 2, /* per multiprocessor */
  MANY_ROWS = 256,
  MIN_COLUMNS = 64,
  MAX_COLUMNS = 8192, /* a block's registers and shared memory hold a row */
  /* With fewer rows, the traffic of a block's partial sums, or of the weights that every subgroup reads, would exceed
   * some 3 % of the traffic of the rows. */
  BLOCK_ROWS = 64,
  SUBGROUP_ROWS = 16,
};

static bool is_splittable(const kva_node *n) {
  return kva_is(n, KVA_OP_reduce_sum) || kva_is(n, KVA_OP_reduce_max) || kva_is(n, KVA_OP_reduce_min);
}

/* Collects the reduced axes in ascending order; returns their number. */
static uint32_t axes_of(const kva_node *n, int64_t *axes) {
  const kva_reduce_attrs *a = n->attrs;
  uint32_t rank = kva_operand_type(n, 0)->rank, len = 0;
  for (uint32_t d = 0; d < rank; d++) {
    bool reduced = !a->axes.n;
    for (uint32_t i = 0; i < a->axes.n; i++) reduced |= a->axes.v[i] == d || a->axes.v[i] + rank == d;
    if (reduced) axes[len++] = d;
  }
  return len;
}

/* Unknown extents count as long, since they are usually the batch's. */
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

/* Replaces n's result by x, cast and reshaped to its type. */
static void finish(kva_builder *b, kva_node *n, kva_value *x) {
  KVA_ASSERT(n->n_results == 1 && x != &n->results[0]);
  const kva_type *t = n->results[0].type;
  x = kva_reshape_like(b, kva_cast(b, x, t->dtype), t);
  x->name = n->results[0].name;
  kva_value_replace_all_uses(&n->results[0], x);
  kva_node_remove(n);
}

static bool meets_element_code(const kva_value *x) {
  bool meets = x->def && (x->def->op->traits & KVA_ELEMENTWISE);
  for (const kva_use *u = x->uses; u; u = u->next) meets |= (u->user->op->traits & KVA_ELEMENTWISE) != 0;
  return meets;
}

static int64_t rows_of_block(int64_t columns) {
  KVA_ASSERT(columns > 0 && columns <= MAX_COLUMNS);
  int64_t rows = KVA_PARTIAL_BLOCK / kva_partial_subgroup(columns) * SUBGROUP_ROWS;
  return rows < BLOCK_ROWS ? BLOCK_ROWS : rows;
}

/* Column sums of a value that element code computes or reads. The kernel of that code also adds up blocks of rows
 * (ops/partial_sum.h, passes/fuse_siblings.c); a second reduction adds the blocks. */
static bool split_columns(kva_module *m, const kva_target *target, kva_node *n) {
  int64_t axes[KVA_MAX_RANK], columns = 1, extent = 0;
  kva_value *x = n->operands[0].value;
  uint32_t n_axes = axes_of(n, axes), rank = x->type->rank;
  bool leading = n_axes < rank && axes[n_axes - 1] == (int64_t)n_axes - 1;
  if (!kva_is(n, KVA_OP_reduce_sum) || !meets_element_code(x) || !leading || !kva_dtype_is_float(x->type->dtype))
    return false;
  for (uint32_t d = n_axes; d < rank; d++) {
    if (!kva_expr_is_const(x->type->dims[d], &extent)) return false;
    columns *= extent;
  }
  bool many = is_at_least(kva_shape_product(m->exprs, n_axes, x->type->dims), MANY_ROWS);
  if (!many || columns < MIN_COLUMNS || columns > MAX_COLUMNS) return false;
  kva_builder b = kva_builder_before(m, n);
  kva_dtype dtype = x->type->dtype;
  kva_partial_sum_attrs attrs = {n_axes, rows_of_block(columns), BLOCKS * target->multiprocessors};
  if (kva_dtype_bits(dtype) < 32) x = kva_cast(&b, x, KVA_F32);
  x = kva_build(&b, KVA_OP_partial_sum, 1, &x, &attrs);
  finish(&b, n, kva_reduce(&b, KVA_OP_reduce_sum, x, 1, (int64_t[]){0}, false));
  return true;
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
  finish(&b, n, kva_reduce(&b, op, x, n_axes - 1, axes, false));
  return true;
}

/* Groups of MAX_PARTS operands, of which there may be too many again. */
static bool split_concat(kva_module *m, kva_node *n) {
  uint32_t n_parts = (n->n_operands + MAX_PARTS - 1) / MAX_PARTS;
  kva_value *operands[MAX_PARTS];
  if (n_parts < 2) return false;
  kva_builder b = kva_builder_before(m, n);
  kva_value **parts = KVA_NEW_ARRAY(m->arena, kva_value *, n_parts);
  for (uint32_t p = 0; p < n_parts; p++) {
    uint32_t first = p * MAX_PARTS, count = n->n_operands - first < MAX_PARTS ? n->n_operands - first : MAX_PARTS;
    for (uint32_t i = 0; i < count; i++) operands[i] = kva_operand(n, first + i);
    parts[p] = kva_build(&b, KVA_OP_concat, count, operands, n->attrs);
  }
  finish(&b, n, kva_build(&b, KVA_OP_concat, n_parts, parts, n->attrs));
  return true;
}

/* Elements of a row along `axis` do not follow each other. */
static bool is_strided(const kva_type *t, uint32_t axis) {
  bool strided = false;
  for (uint32_t d = axis + 1; d < t->rank; d++) strided |= !kva_expr_is(t->dims[d], 1);
  return strided;
}

/* exp(x - max) / sum(exp(x - max)), and x - max - log(sum(exp(x - max))), which rounds once if x is narrow. */
static bool split_softmax(kva_module *m, kva_node *n) {
  bool is_log = kva_is(n, KVA_OP_log_softmax);
  int64_t along =
      is_log ? ((const kva_log_softmax_attrs *)n->attrs)->axis : ((const kva_softmax_attrs *)n->attrs)->axis;
  kva_value *x = n->operands[0].value;
  int64_t axis = kva_axis(along, x->type->rank);
  if (!is_strided(x->type, (uint32_t)axis)) return false;
  kva_builder b = kva_builder_before(m, n);
  x = kva_widen(&b, x);
  x = kva_sub(&b, x, kva_reduce(&b, KVA_OP_reduce_max, x, 1, &axis, true));
  kva_value *e = kva_build(&b, KVA_OP_exp, 1, &x, NULL);
  kva_value *sum = kva_reduce(&b, KVA_OP_reduce_sum, e, 1, &axis, true);
  if (is_log) {
    finish(&b, n, kva_sub(&b, x, kva_build(&b, KVA_OP_log, 1, &sum, NULL)));
    return true;
  }
  e = kva_build(&b, KVA_OP_exp, 1, &x, NULL);
  finish(&b, n, kva_mul(&b, e, kva_build(&b, KVA_OP_reciprocal, 1, &sum, NULL)));
  return true;
}

static bool split_node(kva_module *m, const kva_pass_options *options, kva_node *n) {
  if (kva_is(n, KVA_OP_concat)) return split_concat(m, n);
  if (kva_is(n, KVA_OP_softmax) || kva_is(n, KVA_OP_log_softmax)) return split_softmax(m, n);
  if (!is_splittable(n)) return false;
  return (kva_for_gpu(options) && split_columns(m, options->target, n)) || split(m, n);
}

static void split_graph(kva_module *m, const kva_pass_options *options, kva_graph *g, bool *changed) {
  for (kva_node *n = g->first, *next; n; n = next) {
    kva_node *before = n->prev;
    next = n->next;
    if (!split_node(m, options, n)) continue;
    *changed = true;
    next = before ? before->next : g->first; /* the second step may be long, too */
  }
}

kva_status kva_opt_split(kva_module *m, const kva_pass_options *options, bool *changed) {
  kva_arena *scratch = kva_arena_create();
  kva_graphs graphs = kva_program_graphs(m, scratch);
  for (uint32_t i = 0; kva_for_gpu(options) && i < graphs.len; i++) {
    *changed |= kva_split_shift_grads(m, graphs.data[i]);
    *changed |= kva_gather_grads_sort(m, graphs.data[i], options->target->multiprocessors);
  }
  for (uint32_t i = 0; i < graphs.len; i++) split_graph(m, options, graphs.data[i], changed);
  kva_arena_destroy(scratch);
  return KVA_OK;
}
