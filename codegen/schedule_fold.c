/* Folding in copies of code in which more is known of indices than in the original: a comparison has one outcome, what
 * it guards is there or not. Whoever copies walks the copy in order and replaces operands as it goes. */
#include "codegen/schedule_internal.h"

static const kva_expr *index_of(kva_kernel *k, const kva_kinstr *v) {
  if (v->op == KVA_K_INDEX) return v->index;
  return v->op == KVA_K_CONST && v->dtype == KVA_I64 ? kva_expr_const(k->exprs, v->imm.i) : NULL;
}

bool kva_sched_compares(kva_kernel *k, const kva_kinstr *i, const kva_expr **out_x, const kva_expr **out_y) {
  if (i->op != KVA_K_lt && i->op != KVA_K_le) return false;
  *out_x = index_of(k, i->args[0]);
  *out_y = index_of(k, i->args[1]);
  return *out_x && *out_y;
}

void kva_sched_become_constant(kva_kinstr *i, int64_t v) {
  i->op = KVA_K_CONST;
  i->n_args = 0;
  memset(i->args, 0, sizeof i->args);
  i->index = NULL;
  i->buf = NULL;
  i->imm.i = v; /* all bits 0 is the number 0 of floats, too */
}

static bool is_known(const kva_kinstr *v, bool value) {
  return v->op == KVA_K_CONST && v->dtype == KVA_BOOL && (v->imm.i != 0) == value;
}

void kva_sched_fold_predicate(kva_kinstr *i) {
  if (i->op != KVA_K_LOAD || !i->n_args) return;
  if (is_known(i->args[0], false)) kva_sched_become_constant(i, 0);
  if (i->n_args && is_known(i->args[0], true)) i->args[--i->n_args] = NULL;
}

kva_kinstr *kva_sched_same_operand(const kva_kinstr *i) {
  if (i->op == KVA_K_select && is_known(i->args[0], true)) return i->args[1];
  if (i->op == KVA_K_select && is_known(i->args[0], false)) return i->args[2];
  if (i->op != KVA_K_and || i->dtype != KVA_BOOL) return NULL;
  for (uint32_t a = 0; a < 2; a++) {
    if (is_known(i->args[a], false)) return i->args[a];
    if (is_known(i->args[a], true)) return i->args[1 - a];
  }
  return NULL;
}
