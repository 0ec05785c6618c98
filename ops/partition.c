/* See partition.h. */
#include "ops/partition.h"
#include "ops/ids.h"

#include <stdarg.h>

bool kva_divides(const kva_partition *p, kva_dim extent, kva_dim *out_each) {
  int64_t n;
  if (!kva_expr_is_const(extent, &n) || n % p->parts || !n) return false;
  *out_each = kva_expr_const(p->b->m->exprs, n / p->parts);
  return true;
}

kva_value *kva_own_index(kva_partition *p) {
  kva_process_index_attrs attrs = {.parts = p->parts, .stride = p->stride};
  if (!p->index) p->index = kva_build(p->b, KVA_OP_process_index, 0, NULL, &attrs);
  return p->index;
}

kva_value *kva_sum_over_processes(kva_partition *p, kva_value *addend) {
  kva_all_reduce_attrs attrs = {.parts = p->parts, .stride = p->stride};
  return kva_result(kva_build_node(p->b, KVA_OP_all_reduce, 1, &addend, 1, &attrs), 0);
}

kva_value *kva_stack_processes(kva_partition *p, kva_value *x) {
  kva_all_gather_attrs attrs = {.parts = p->parts, .stride = p->stride, .stacks = true};
  return kva_build(p->b, KVA_OP_all_gather, 1, &x, &attrs);
}

kva_value *kva_previous_process(kva_partition *p, kva_value *x) {
  kva_neighbour_attrs attrs = {.parts = p->parts, .stride = p->stride};
  return kva_build(p->b, KVA_OP_neighbour, 1, &x, &attrs);
}

bool kva_partition_alike(kva_partition *p, const kva_node *n, int added) {
  if (n->n_operands != 1 || n->n_results != 1) return false;
  int axis = kva_split_axis(p, n, 0);
  kva_value *x = kva_slice_operand(p, n, 0, (uint32_t)axis);
  p->results[0] = kva_result(kva_build_node(p->b, (kva_op_id)n->op->id, 1, &x, 1, n->attrs), 0);
  p->axes[0] = axis + added;
  return true;
}

/* [parts, .., n, ..] -> [.., parts, n, ..] -> [.., parts n, ..] */
static kva_value *join(kva_partition *p, kva_value *x, uint32_t axis) {
  kva_value *stack = kva_stack_processes(p, x);
  uint32_t rank = x->type->rank;
  int64_t perm[KVA_MAX_RANK];
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) {
    perm[i < axis ? i : i + 1] = i + 1;
    dims[i] = x->type->dims[i];
  }
  perm[axis] = 0;
  dims[axis] = kva_expr_mul(p->b->m->exprs, dims[axis], kva_expr_const(p->b->m->exprs, p->parts));
  return p->b->failed ? x : kva_reshape(p->b, kva_transpose(p->b, stack, perm), rank, dims);
}

/* [.., parts n, ..] -> [.., parts, n, ..] -> [.., n, ..] */
kva_value *kva_cut_slice(kva_partition *p, kva_value *x, uint32_t axis) {
  kva_dim dims[KVA_MAX_RANK + 1], each;
  uint32_t rank = x->type->rank;
  if (p->b->failed) return x;
  KVA_ASSERT(rank < KVA_MAX_RANK && kva_divides(p, x->type->dims[axis], &each));
  for (uint32_t i = 0; i < rank; i++) dims[i < axis ? i : i + 1] = x->type->dims[i];
  dims[axis] = kva_expr_const(p->b->m->exprs, p->parts);
  dims[axis + 1] = each;
  kva_value *in[2] = {kva_reshape(p->b, x, rank + 1, dims), kva_own_index(p)};
  return kva_build(p->b, KVA_OP_gather, 2, in, &(kva_gather_attrs){.axis = axis});
}

/* What has no gradient need not be shared. */
static bool may_have_gradient(const kva_value *v) {
  return kva_dtype_is_float(v->type->dtype) && !(v->def && kva_is(v->def, KVA_OP_constant));
}

static kva_value *whole(kva_partition *p, kva_partitioned *v) {
  if (!v->whole) v->whole = join(p, v->slice, (uint32_t)v->axis);
  return v->whole;
}

static kva_value *shared(kva_partition *p, kva_partitioned *v) {
  kva_share_attrs attrs = {.parts = p->parts, .stride = p->stride};
  kva_value *x = whole(p, v);
  if (!v->shared) v->shared = may_have_gradient(x) ? kva_build(p->b, KVA_OP_share, 1, &x, &attrs) : x;
  return v->shared;
}

kva_value *kva_whole_operand(kva_partition *p, const kva_node *n, uint32_t i) {
  return kva_operand(n, i) ? whole(p, kva_partitioned_operand(p, n, i)) : NULL;
}

kva_value *kva_shared_operand(kva_partition *p, const kva_node *n, uint32_t i) {
  return kva_operand(n, i) ? shared(p, kva_partitioned_operand(p, n, i)) : NULL;
}

kva_value *kva_slice_operand(kva_partition *p, const kva_node *n, uint32_t i, uint32_t axis) {
  if (!kva_operand(n, i)) return NULL;
  kva_partitioned *v = kva_partitioned_operand(p, n, i);
  if (v->slice && v->axis == (int)axis) return v->slice;
  kva_value *slice = kva_cut_slice(p, shared(p, v), axis);
  if (!v->slice) v->slice = slice, v->axis = (int)axis;
  return slice;
}

void kva_refuse_partition(kva_partition *p, const kva_node *n, uint32_t i, const char *fmt, ...) {
  const kva_partitioned *v = kva_partitioned_operand(p, n, i);
  char why[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  const kva_value *x = kva_operand(n, i);
  const char *name = v && v->origin ? v->origin->name : x && x->name ? x->name : "?";
  kva_error(p->b->m->diag, &n->loc, "%s '%s' cannot be divided among %lld processes: kv.%s %s",
            v && v->origin ? "parameter" : "value", name, (long long)p->parts, n->op->name, why);
  p->b->failed = true;
}
