/* all_reduce(x, ...) -> (y, ...): each y is the sum of its x over the `parts` processes of a mesh. It is a call of the
 * runtime (runtime/call_exchange.c), since kernels cannot access other processes; several operands travel together.
 * passes/shard.c and passes/partition.c make it. The reference has one process: it takes all to have the same x, so
 * y = parts x. Gradient: the identity, see ops/exchange.h. */
#include "ops/check.h"
#include "ops/exchange.h"
#include "ops/facts.h"
#include "ops/partition.h"

KVA_OP_FUNCTIONS(all_reduce)

kva_status kva_all_reduce_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_exchange(m, n));
  if (n->n_results != n->n_operands)
    return kva_error(m->diag, &n->loc, "kv.all_reduce: expected a result for each of %u operands, found %u",
                     n->n_operands, n->n_results);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (!kva_operand(n, i)) return kva_operand_error(m, n, i, "is missing");
    KVA_TRY(kva_check_class(m, n, i));
    KVA_TRY(kva_check_same_dtype(m, n, i, 0));
    out_types[i] = kva_operand_type(n, i);
  }
  return KVA_OK;
}

kva_status kva_all_reduce_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                              kva_ref_tensor *const *out) {
  (void)r;
  int64_t parts = kva_exchange_parts(n);
  for (uint32_t k = 0; k < n->n_operands; k++)
    for (int64_t i = 0; i < in[k]->n; i++) {
      if (in[k]->f)
        out[k]->f[i] = (double)parts * in[k]->f[i];
      else
        out[k]->i[i] = (int64_t)((uint64_t)parts * (uint64_t)in[k]->i[i]);
    }
  return KVA_OK;
}

kva_status kva_all_reduce_vjp(kva_vjp *c, kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands; i++) c->grad_in[i] = c->wants[i] ? c->grad_out[i] : NULL;
  return KVA_OK;
}

/* The sums, or copies, of slices are slices: exchange on another axis of the mesh. */
bool kva_all_reduce_partition(kva_partition *p, const kva_node *n) {
  return kva_partition_alike(p, n, 0);
}
