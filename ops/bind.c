/* bind: defines `symbol` as the value of the operand, an int64 scalar.
 *
 * Types and attributes of later nodes may use the symbol, so sizes may depend on data. The value must not be negative,
 * nor exceed `bound`, if given: an expression over symbols defined earlier. Violations are run-time errors. The
 * verifier (ir/verify_symbols.c) checks that no earlier node uses the symbol; passes keep the order. */
#include "ops/control.h"

KVA_OP_FUNCTIONS(bind)

kva_status kva_bind_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  (void)out_types;
  const kva_bind_attrs *a = n->attrs;
  if (a->symbol.n != 1) return kva_error(m->diag, &n->loc, "kv.bind: expected one symbol, found %u", a->symbol.n);
  KVA_TRY(kva_check_scalar(m, n, 0, KVA_I64));
  if (a->bound && kva_expr_uses(a->bound, a->symbol.v[0]))
    return kva_error(m->diag, &n->loc, "kv.bind: the bound uses the symbol itself");
  return kva_check_binds(m, n);
}
