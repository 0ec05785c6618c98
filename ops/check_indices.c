/* check_indices(indices, limits) -> the indices, all of which were found in range. limits holds low and high for each
 * extent that the node `user` indexes, from axis `axis` on: an index i of the extent must satisfy low <= i < high. With
 * more than one extent the last axis of the indices numbers them. With `ignores`, a last element of limits is allowed,
 * too. It is a call of the runtime (runtime/call_check_indices.c), which ends the run with a message: kernels cannot.
 * passes/check_indices.c makes it. Exact: a copy. */
#include "ops/check.h"
#include "ops/element.h"

KVA_OP_FUNCTIONS(check_indices)

kva_status kva_check_indices_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *limits = kva_operand_type(n, 1);
  int64_t length;
  KVA_TRY(kva_check_int(m, n, 0));
  KVA_TRY(kva_check_rank(m, n, 1, 1));
  if (limits->dtype != KVA_I64 || !kva_expr_is_const(limits->dims[0], &length) || length < 2)
    return kva_operand_error(m, n, 1, "expected a list of int64, low and high for each extent");
  out_types[0] = kva_operand_type(n, 0);
  return KVA_OK;
}

kva_status kva_check_indices_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                 kva_ref_tensor *const *out) {
  const kva_check_indices_attrs *a = n->attrs;
  const kva_ref_tensor *limits = in[1];
  int64_t extents = limits->n / 2;
  for (int64_t i = 0; i < in[0]->n; i++) {
    int64_t v = in[0]->i[i], k = i % extents;
    bool ignored = a->ignores && v == limits->i[limits->n - 1];
    if (!ignored && (v < limits->i[2 * k] || v >= limits->i[2 * k + 1]))
      return kva_error(r->diag, &n->loc, "kv.%s: index %lld is not in [%lld, %lld)", a->user ? a->user : n->op->name,
                       (long long)v, (long long)limits->i[2 * k], (long long)limits->i[2 * k + 1]);
    out[0]->i[i] = v;
  }
  return KVA_OK;
}
