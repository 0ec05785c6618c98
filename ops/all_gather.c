/* all_gather(x) -> y: what the `parts` processes of a group have, in all of them (ops/exchange.h). Exact: a copy.
 * Reference: all have what process 0 has.
 *
 * y[shape], the tensor that each process has a part of, x. Gradient: the sum over the processes, in parts, since each
 * process computes with the whole tensor for rows of its own.
 * With `stacks`, y[parts, ...]: x of every process, in their order; `shape` is not used. y is the same in all processes
 * and so is its adjoint, of which the gradient is this process's row. */
#include "ops/check.h"
#include "ops/exchange.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/partition.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(all_gather)

static bool stacks(const kva_node *n) {
  return ((const kva_all_gather_attrs *)n->attrs)->stacks;
}

static kva_status infer_stack(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0);
  kva_dim dims[KVA_MAX_RANK] = {kva_expr_const(m->exprs, kva_exchange_parts(n))};
  if (x->rank >= KVA_MAX_RANK)
    return kva_operand_error(m, n, 0, "has rank %u: expected %d at most", x->rank, KVA_MAX_RANK - 1);
  for (uint32_t i = 0; i < x->rank; i++) dims[i + 1] = x->dims[i];
  out_types[0] = kva_type_tensor(m, x->dtype, x->rank + 1, dims);
  return KVA_OK;
}

kva_status kva_all_gather_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_all_gather_attrs *a = n->attrs;
  KVA_TRY(kva_check_exchange(m, n));
  KVA_TRY(kva_check_class(m, n, 0));
  if (a->stacks) return infer_stack(m, n, out_types);
  if (a->shape.n > KVA_MAX_RANK)
    return kva_error(m->diag, &n->loc, "kv.all_gather: rank %u is more than the %d that Kvasir supports", a->shape.n,
                     KVA_MAX_RANK);
  const kva_type *x = kva_operand_type(n, 0);
  out_types[0] = kva_type_tensor(m, x->dtype, a->shape.n, a->shape.v);
  if (kva_part_type(m, out_types[0], a->parts) == x) return KVA_OK;
  return kva_operand_error(m, n, 0, "is no part of a tensor of that shape: expected a vector of an equal part of it");
}

kva_status kva_all_gather_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                              kva_ref_tensor *const *out) {
  (void)r, (void)n;
  for (int64_t i = 0; i < out[0]->n; i++) kva_ref_copy(in[0], i % in[0]->n, out[0], i);
  return KVA_OK;
}

kva_status kva_all_gather_vjp(kva_vjp *c, kva_node *n) {
  const kva_all_gather_attrs *a = n->attrs;
  kva_reduce_scatter_attrs sum = {.parts = a->parts, .stride = a->stride};
  kva_process_index_attrs group = {.parts = a->parts, .stride = a->stride};
  if (!stacks(n)) {
    c->grad_in[0] = kva_build(c->b, KVA_OP_reduce_scatter, 1, c->grad_out, &sum);
    return KVA_OK;
  }
  kva_value *index = kva_build(c->b, KVA_OP_process_index, 0, NULL, &group);
  c->grad_in[0] = kva_build2(c->b, KVA_OP_gather, c->grad_out[0], index);
  return KVA_OK;
}

bool kva_all_gather_partition(kva_partition *p, const kva_node *n) {
  return stacks(n) && kva_partition_alike(p, n, 1);
}
