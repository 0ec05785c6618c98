/* The known GPU architectures.
 *
 * PTX for an architecture also runs on every later one, unless its name ends in "a". So a row holds what all of those
 * GPUs have. `shared_bytes` is that of the GPU that the architecture is named after. `row_bytes` is that of the GPU
 * with the least, minus room for other buffers. `multiprocessors` is the largest number, 132: on a smaller GPU excess
 * blocks wait, and sums over blocks have the same order on all GPUs. */
#include "ir/target.h"

enum { SINCE_90 = KVA_TARGET_TENSOR_MAPS | KVA_TARGET_STORE_MATRIX | KVA_TARGET_CLUSTERS };

#define ROW(name, FEATURES, SHARED, ROW_BYTES)                                                                      \
  {                                                                                                                 \
    .kind = KVA_TARGET_GPU, .description = name, .arch = name, .features = KVA_TARGET_FMA | (FEATURES),             \
    .vector_bytes = 16, .vector_registers = 16, .subgroup_width = 32, .multiprocessors = 132, .registers = 1 << 16, \
    .shared_bytes = (SHARED) << 10, .row_bytes = (ROW_BYTES) << 10, .generated_rows = 16, .generated_rows_16 = 2    \
  }
static const kva_target rows[] = {ROW("sm_80", 0, 163, 92), ROW("sm_86", 0, 99, 92), ROW("sm_89", 0, 99, 92),
                                  ROW("sm_90", SINCE_90, 99, 92),
                                  ROW("sm_90a", SINCE_90 | KVA_TARGET_WARPGROUP_MMA, 227, 208)};
#undef ROW

const kva_target *kva_target_gpus(uint32_t *out_n) {
  *out_n = sizeof rows / sizeof *rows;
  return rows;
}

const kva_target *kva_target_gpu(const char *arch) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (!strcmp(rows[i].arch, arch)) return &rows[i];
  return NULL;
}
