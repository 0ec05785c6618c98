/* Shared by the kernels of contractions on CPUs. */
#ifndef KVA_KERNELS_CPU_CONTRACT_CONTRACT_H
#define KVA_KERNELS_CPU_CONTRACT_CONTRACT_H

#include "codegen/kernels/any/contract/contraction.h"
#include "ops/matmul.h"

/* Why c has no tile kernel: see kva_kernel_row. */
const char *kva_contract_refuses(const kva_contraction *c);

/* c.factor_block where kernels here sum up blocks without b's factor; 0: they take b with it. */
int64_t kva_contract_block(const kva_contraction *c);

/* Loops for few rows (skinny.c) inside of another kernel, which takes them where c's rows, whose number is not known,
 * turn out to be at most KVA_FEW_ROWS. They add in the order of tiles, so which are taken does not change results. */
bool kva_skinny_suits_unknown_rows(const kva_contraction *c);
/* Their number of work items. */
const kva_expr *kva_skinny_items(const kva_contraction *c);
/* Their code for one of them. */
void kva_skinny_emit_item(const kva_contraction *c, const kva_expr *item);

#endif
