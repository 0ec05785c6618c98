/* The pipeline: what happens to a graph, in order. Each pass is a row of passes.def. */
#include "passes/passes_internal.h"
#include "passes/tune.h"

enum { MAX_ROUNDS = 8 }; /* of clean-up; real models settle after two or three */

kva_status kva_clean_up(kva_module *m, const kva_pass_options *options) {
  bool changed = true;
  for (int round = 0; changed && round < MAX_ROUNDS; round++) {
    changed = false;
    KVA_TRY(kva_run_pass(m, KVA_PASS_fold, options, &changed));
    KVA_TRY(kva_run_pass(m, KVA_PASS_simplify, options, &changed));
    KVA_TRY(kva_run_pass(m, KVA_PASS_control, options, &changed));
    KVA_TRY(kva_run_pass(m, KVA_PASS_cse, options, &changed));
    KVA_TRY(kva_run_pass(m, KVA_PASS_dce, options, &changed));
  }
  return KVA_OK;
}

kva_status kva_fine_tune(kva_module *m, const kva_pass_options *options) {
  bool changed = false;
  if (options->tune) KVA_TRY(kva_run_pass(m, KVA_PASS_tune, options, &changed));
  if (options->tune && options->tune->lora.n) KVA_TRY(kva_run_pass(m, KVA_PASS_lora, options, &changed));
  return options->loss ? kva_run_pass(m, KVA_PASS_loss, options, &changed) : KVA_OK;
}

kva_status kva_optimize(kva_module *m, const kva_pass_options *options) {
  bool raised = false;
  KVA_TRY(kva_clean_up(m, options));
  KVA_TRY(kva_run_pass(m, KVA_PASS_raise, options, &raised));
  return raised ? kva_clean_up(m, options) : KVA_OK;
}

kva_status kva_make_decode(kva_module *m, const kva_pass_options *options) {
  bool changed = false;
  KVA_TRY(kva_run_pass(m, KVA_PASS_incremental, options, &changed));
  return kva_clean_up(m, options);
}

/* After what changes types, so that a value which crosses has the type that it has in one process. */
static kva_status cut_stages(kva_module *m, const kva_pass_options *options) {
  bool changed = false;
  return options->mesh.pipeline > 1 ? kva_run_pass(m, KVA_PASS_stages, options, &changed) : KVA_OK;
}

kva_status kva_make_training(kva_module *m, const kva_pass_options *options) {
  bool changed = false;
  KVA_TRY(kva_run_pass(m, KVA_PASS_train, options, &changed));
  KVA_TRY(kva_optimize(m, options));
  return options->compute ? KVA_OK : cut_stages(m, options);
}

kva_status kva_prepare(kva_module *m, const kva_pass_options *options) {
  bool changed = false;
  if (options->compute) {
    KVA_TRY(kva_run_pass(m, KVA_PASS_splat, options, &changed));
    KVA_TRY(kva_run_pass(m, KVA_PASS_precision, options, &changed));
    KVA_TRY(kva_clean_up(m, options));
    KVA_TRY(cut_stages(m, options));
    if (kva_for_gpu(options)) KVA_TRY(kva_run_pass(m, KVA_PASS_copies, options, &changed));
  }
  if (options->check_indices) KVA_TRY(kva_run_pass(m, KVA_PASS_check_indices, options, &changed));
  bool integer = false;
  KVA_TRY(kva_run_pass(m, KVA_PASS_integer, options, &integer));
  if (integer) KVA_TRY(kva_clean_up(m, options));
  bool windows = false;
  KVA_TRY(kva_run_pass(m, KVA_PASS_windows, options, &windows));
  if (windows) KVA_TRY(kva_clean_up(m, options));
  bool moved = false;
  KVA_TRY(kva_run_pass(m, KVA_PASS_layout, options, &moved));
  if (moved) {
    KVA_TRY(kva_run_pass(m, KVA_PASS_fold, options, &changed));
    KVA_TRY(kva_run_pass(m, KVA_PASS_cse, options, &changed));
    KVA_TRY(kva_run_pass(m, KVA_PASS_dce, options, &changed));
  }
  if (!options->compute) KVA_TRY(kva_run_pass(m, KVA_PASS_splat, options, &changed));
  KVA_TRY(kva_run_pass(m, KVA_PASS_bytes, options, &changed));
  KVA_TRY(kva_run_pass(m, KVA_PASS_pack, options, &changed));
  KVA_TRY(kva_run_pass(m, KVA_PASS_split, options, &changed));
  KVA_TRY(kva_run_pass(m, KVA_PASS_join, options, &changed));
  KVA_TRY(kva_run_pass(m, KVA_PASS_batch, options, &changed));
  KVA_TRY(kva_run_pass(m, KVA_PASS_fuse, options, &changed));
  if (options->mesh.zero > 2) KVA_TRY(kva_run_pass(m, KVA_PASS_gather_again, options, &changed));
  if (options->mesh.data > 1) KVA_TRY(kva_run_pass(m, KVA_PASS_sums_late, options, &changed));
  return options->memory ? kva_run_pass(m, KVA_PASS_recompute, options, &changed) : KVA_OK;
}
