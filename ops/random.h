/* Shared by the random operators. Element i of stream k at (seed, step) is a function of these four numbers only:
 * Philox 4x32-10 with counter (i, step) and key seed ^ (k * 0x9E3779B97F4A7C15). The bits are the same on every device
 * and for any number of threads. */
#ifndef KVA_OPS_RANDOM_H
#define KVA_OPS_RANDOM_H

#include "ops/build.h"

/* Operands: int64 scalars seed and step. */
KVA_MUST_USE kva_status kva_random_infer(kva_module *m, const kva_node *n, kva_dims shape, kva_dtype dtype,
                                         const kva_type **out_types);
kva_philox kva_random_words(const kva_ref_tensor *const *in, int64_t stream, int64_t i);
/* The words of result element idx, as u32. */
typedef struct kva_random_kvals {
  kva_kval v[4];
} kva_random_kvals;
kva_random_kvals kva_random_lower(kva_lower *l, const kva_node *n, int64_t stream, const kva_expr *const *idx);
/* kva_uniform01 as kernel code, in the arithmetic of dtype. */
kva_kval kva_random_uniform01(kva_lower *l, kva_kval word, kva_dtype dtype);

#endif
