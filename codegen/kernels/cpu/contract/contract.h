/* Shared by the kernels of contractions on CPUs. */
#ifndef KVA_KERNELS_CPU_CONTRACT_CONTRACT_H
#define KVA_KERNELS_CPU_CONTRACT_CONTRACT_H

#include "codegen/kernels/any/contract/contraction.h"

/* Why c has no tile kernel: see kva_kernel_row. */
const char *kva_contract_refuses(const kva_contraction *c);

#endif
