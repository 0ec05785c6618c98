/* Shared by the schedule_gpu*.c files. */
#ifndef KVA_CODEGEN_SCHEDULE_GPU_H
#define KVA_CODEGEN_SCHEDULE_GPU_H

#include "codegen/schedule_internal.h"

/* Consecutive iterations of l that a thread may take as lanes: as many as 16 bytes of the widest type hold, where every
 * access of its straight-line body is consecutive and aligned; else 1. */
uint32_t kva_sched_width(kva_kernel *k, const kva_kloop *l);

/* Directly nested reductions become one over all iterations; returns the loop that stands for l. divide: also where
 * indices then need divisions. */
kva_kloop *kva_sched_merge_reductions(kva_kernel *k, kva_kloop *l, bool divide);

#endif
