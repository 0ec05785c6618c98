/* Pass simplify for kvasir_broken, a tool that is wrong on purpose: tests/e2e/test_bisect.sh finds out where. After the
 * right rules, by KVA_BREAK:
 *
 *   ir      a product gets a type that its operands do not have
 *   result  x * 2 becomes x + 3 */
#define kva_opt_simplify right_simplify
#include "passes/opt_simplify.c"
#undef kva_opt_simplify

#include <stdlib.h>

kva_status kva_opt_simplify(kva_module *m, const kva_pass_options *o, bool *changed);

static void break_type(kva_module *m, kva_node *n, const kva_pass_options *o, bool *changed) {
  if (n->results[0].type->rank == 0) return;
  n->results[0].type = kva_type_scalar(m, n->results[0].type->dtype);
  kva_count_change(o, n, "a wrong type", changed);
}

static void break_result(kva_module *m, kva_node *n, const kva_pass_options *o, bool *changed) {
  if (!n->results[0].uses || !kva_is_splat(y_of(n), 2)) return;
  kva_builder b = kva_builder_before(m, n);
  kva_value_replace_all_uses(&n->results[0], kva_add(&b, x_of(n), kva_scalar_like(&b, x_of(n), 3)));
  kva_count_change(o, n, "x * 2 is x + 3", changed);
}

kva_status kva_opt_simplify(kva_module *m, const kva_pass_options *o, bool *changed) {
  const char *how = getenv("KVA_BREAK");
  KVA_TRY(right_simplify(m, o, changed));
  if (!how) return KVA_OK;
  for (kva_node *n = m->functions.data[0]->graph->first, *next; n; n = next) {
    next = n->next;
    if (!kva_is(n, KVA_OP_mul) || !kva_may_change(o)) continue;
    if (!strcmp(how, "ir"))
      break_type(m, n, o, changed);
    else if (!strcmp(how, "result"))
      break_result(m, n, o, changed);
  }
  return KVA_OK;
}
