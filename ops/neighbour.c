/* neighbour(x) -> y: x of the process before this one in its group, or with `next` of the one after it
 * (ops/exchange.h); zeros where there is none. Gradient: the neighbour on the other side. Exact: a copy.
 * Reference: process 0 has no process before it, and the one after it has the same x. */
#include "ops/check.h"
#include "ops/exchange.h"
#include "ops/ids.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(neighbour)

static bool is_next(const kva_node *n) {
  return ((const kva_neighbour_attrs *)n->attrs)->next;
}

kva_status kva_neighbour_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_exchange(m, n));
  KVA_TRY(kva_check_class(m, n, 0));
  out_types[0] = kva_operand_type(n, 0);
  return KVA_OK;
}

kva_status kva_neighbour_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                             kva_ref_tensor *const *out) {
  (void)r;
  bool any = is_next(n) && kva_exchange_parts(n) > 1;
  for (int64_t i = 0; any && i < out[0]->n; i++) kva_ref_copy(in[0], i, out[0], i);
  return KVA_OK;
}

kva_status kva_neighbour_vjp(kva_vjp *c, kva_node *n) {
  kva_neighbour_attrs attrs = *(const kva_neighbour_attrs *)n->attrs;
  attrs.next = !attrs.next;
  c->grad_in[0] = kva_build(c->b, KVA_OP_neighbour, 1, c->grad_out, &attrs);
  return KVA_OK;
}
