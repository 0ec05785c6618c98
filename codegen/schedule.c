#include "codegen/codegen.h"
void kva_codegen_schedule_cpu(kva_kernel *k, const kva_target *target) { (void)k; (void)target; }
const kva_expr *kva_codegen_grid(const kva_kernel *k) { return kva_expr_const(k->exprs, 1); }
