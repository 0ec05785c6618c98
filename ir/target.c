/* The known GPU architectures.
 *
 * PTX for an architecture runs on every later one, too, but where its name ends in "a". So a row holds what all of
 * those GPUs have: `shared_bytes` of the GPU that the architecture is named after, `row_bytes` of the one that has
 * least, some room for other buffers left out. `multiprocessors` is that of the largest, 132: what a smaller GPU has
 * too many of waits, and sums over blocks have one order on all of them. */
#include "ir/target.h"

#define ROW(name, FEATURES, SHARED, ROW_BYTES)                                                                      \
  {                                                                                                                 \
    .kind = KVA_TARGET_GPU, .description = name, .arch = name, .features = KVA_TARGET_FMA | (FEATURES),             \
    .vector_bytes = 16, .vector_registers = 16, .subgroup_width = 32, .multiprocessors = 132, .registers = 1 << 16, \
    .shared_bytes = (SHARED) << 10, .row_bytes = (ROW_BYTES) << 10                                                  \
  }
static const kva_target rows[] = {
    ROW("sm_80", 0, 163, 92), ROW("sm_86", 0, 99, 92), ROW("sm_89", 0, 99, 92),
    ROW("sm_90", KVA_TARGET_TENSOR_MAPS | KVA_TARGET_STORE_MATRIX, 99, 92),
    ROW("sm_90a", KVA_TARGET_TENSOR_MAPS | KVA_TARGET_WARPGROUP_MMA | KVA_TARGET_STORE_MATRIX, 227, 208)};
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
