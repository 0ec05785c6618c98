/* all_gather(x) -> y[shape]: the tensor that each of the `parts` processes of a mesh has a part of, in all of them
 * (ops/exchange.h). Gradient: the sum over the processes, in parts, since each process computes with the whole tensor.
 * Exact: a copy. Reference: all parts are that of process 0. */
#include "ops/check.h"
#include "ops/exchange.h"
#include "ops/ids.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(all_gather)

kva_status kva_all_gather_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_all_gather_attrs *a = n->attrs;
  KVA_TRY(kva_check_exchange(m, n));
  KVA_TRY(kva_check_class(m, n, 0));
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
  kva_reduce_scatter_attrs attrs = {.parts = kva_exchange_parts(n)};
  c->grad_in[0] = kva_build(c->b, KVA_OP_reduce_scatter, 1, c->grad_out, &attrs);
  return KVA_OK;
}
