/* The training runs shared by the packing and the checking machine. */
#include "tools/gpucheck/format.h"

/* The second one has products of 60 blocks and more, forward and backward: those of warpgroups. */
const gpu_training_run gpu_trainings[] = {
    {"induction",
     "models/induction.kv",
     "d=16 heads=2 ffn=32 vocab=64 pool=24",
     "B=4 T=32",
     false,
     10,
     4,
     64,
     24,
     1e-2,
     2e-2,
     {"sm_80", "sm_90a"},
     'A'},
    {"lm of warpgroups, bf16",
     "models/lm.kv",
     "vocab=2048 d=256 layers=1 heads=2 ffn=1024",
     "B=8 T=128",
     true,
     8,
     8,
     2048,
     512,
     1e-3,
     3e-2,
     {"sm_90a"},
     'C'},
};
const int gpu_n_trainings = sizeof gpu_trainings / sizeof *gpu_trainings;

kva_status gpu_training(int index, kva_train_options *out, kva_data_source *out_data, kva_diag *diag) {
  const gpu_training_run *r = &gpu_trainings[index];
  *out = (kva_train_options){
      .steps = r->steps, .batch = r->batch, .schedule = {.kind = KVA_SCHEDULE_WARMUP, .lr = r->rate, .warmup = 4}};
  const kva_data_arg pool = {"pool", (double)r->pool};
  return kva_data_create("induction", 1, &pool, r->vocab, diag, out_data);
}
