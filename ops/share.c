/* share(x) -> x: a value that is the same in the `parts` processes of a group, for the work of each on its slice of
 * other values. Gradient: the sum of what flows back in all of them, all_reduce (ops/exchange.h). Exact.
 * passes/partition.c makes it, and removes it after differentiation. */
#include "ops/elementwise.h"
#include "ops/exchange.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/partition.h"

KVA_OP_FUNCTIONS(share)

kva_status kva_share_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_exchange(m, n));
  KVA_TRY(kva_check_class(m, n, 0));
  out_types[0] = kva_operand_type(n, 0);
  return KVA_OK;
}

static double same_f(double x) {
  return x;
}
static int64_t same_i(int64_t x) {
  return x;
}
KVA_UNARY_REF(share, same_f, same_i)
KVA_UNARY_LOWER(share, x)

kva_status kva_share_vjp(kva_vjp *c, kva_node *n) {
  kva_all_reduce_attrs attrs = {.parts = kva_exchange_parts(n), .stride = kva_exchange_stride(n)};
  c->grad_in[0] = kva_result(kva_build_node(c->b, KVA_OP_all_reduce, 1, c->grad_out, 1, &attrs), 0);
  return KVA_OK;
}

bool kva_share_partition(kva_partition *p, const kva_node *n) {
  return kva_partition_alike(p, n, 0);
}
