/* The table of hand-written kernels, expanded from kernels.def, and the walk over it. */
#include "codegen/kernels/kernels.h"
#include "ops/ids.h"

static const kva_kernel_row rows[] = {
#define KERNEL(op, name, kinds, refuses, emit) {KVA_OP_##op, #name, kinds, refuses, emit},
#include "codegen/kernels/kernels.def"
#undef KERNEL
};

const char *kva_kernel_takes_all(kva_lower *l, const kva_node *n) {
  (void)l, (void)n;
  return NULL;
}

kva_kernel_choice kva_kernel_choose(kva_lower *l, const kva_node *n) {
  kva_kernel_choice choice = {0};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const kva_kernel_row *row = &rows[i];
    if (!kva_is(n, row->op) || !(row->kinds & 1u << l->target->kind)) continue;
    const char *reason = row->refuses(l, n);
    if (!reason) {
      choice.row = row;
      return choice;
    }
    KVA_ASSERT(choice.n_refused < KVA_MAX_REFUSALS);
    choice.refused[choice.n_refused] = row;
    choice.reasons[choice.n_refused++] = reason;
  }
  return choice;
}

void kva_nest_begin(kva_lower *l, kva_kloop_kind kind, uint32_t n, const kva_dim *extents, kva_kloop **out_loops,
                    const kva_expr **out_vars) {
  for (uint32_t k = 0; k < n; k++) {
    out_loops[k] = kva_k_loop_begin(l->kb, kind, extents[k], "i");
    out_vars[k] = out_loops[k]->var;
  }
}

void kva_nest_end(kva_lower *l, uint32_t n, kva_kloop *const *loops) {
  for (uint32_t k = n; k-- > 0;) kva_k_loop_end(l->kb, loops[k]);
}
