/* The training run shared by the packing and the checking machine. */
#include "tools/gpucheck/format.h"

kva_status gpu_training(kva_train_options *out, kva_data_source *out_data, kva_diag *diag) {
  *out = (kva_train_options){.steps = GPU_TRAIN_STEPS,
                             .batch = GPU_TRAIN_BATCH,
                             .schedule = {.kind = KVA_SCHEDULE_WARMUP, .lr = GPU_TRAIN_RATE, .warmup = 4}};
  const kva_data_arg pool = {"pool", GPU_TRAIN_POOL};
  return kva_data_create("induction", 1, &pool, GPU_TRAIN_VOCAB, diag, out_data);
}
