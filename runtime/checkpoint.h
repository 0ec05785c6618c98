/* Checkpoints: safetensors files with all that a run needs to continue bit for bit.
 *
 * Tensors: every parameter, moment and counter, by its name (not caches: gradients are zero between steps). Metadata
 * "kvasir.*": format, model hash, sum of the data, and the fields of kva_checkpoint as text. Generators have no state
 * of their own: they are functions of (seed, step). The same state and position give the same bytes. */
#ifndef KVA_RUNTIME_CHECKPOINT_H
#define KVA_RUNTIME_CHECKPOINT_H

#include "runtime/runtime.h"

typedef struct kva_checkpoint {
  int64_t step; /* done; also the position in the data */
  int64_t steps, batch, micro_batch;
  uint64_t seed, data_id;
  kva_schedule schedule;
  double weight_decay, clip; /* 0: not adjustable */
} kva_checkpoint;

/* Of names, kinds, types and shapes of the tensors that checkpoints hold. */
uint64_t kva_model_hash(const kva_artifact *a);

KVA_MUST_USE kva_status kva_checkpoint_write(const char *path, kva_session *s, const kva_checkpoint *c, kva_diag *diag);
/* Sets the session's states. The file is checked whole before anything changes: format, model (the message names the
 * first tensor that differs), sum of the data. */
KVA_MUST_USE kva_status kva_checkpoint_read(const char *path, kva_session *s, kva_diag *diag, kva_checkpoint *out);
/* Warns of every difference that makes the run another one than that which was saved. */
void kva_checkpoint_compare(const char *path, const kva_checkpoint *saved, const kva_checkpoint *own, kva_diag *diag);

/* ---- folders of checkpoints: step-0000000100.safetensors, ... ---------------------------------------------------- */

/* Path of a step's checkpoint; free() it. NULL: no memory. */
char *kva_checkpoint_path(const char *folder, int64_t step);
/* Steps of the checkpoints in a folder, ascending; free() *out_steps. Other files, temporary ones too, are no
 * checkpoints; a folder that does not exist has none. */
KVA_MUST_USE kva_status kva_checkpoint_list(const char *folder, kva_diag *diag, int64_t *out_n, int64_t **out_steps);
/* Makes the folder where there is none and removes temporary files that processes left which are no more. */
KVA_MUST_USE kva_status kva_checkpoint_prepare(const char *folder, kva_diag *diag);
/* Removes all but the last `keep`. */
KVA_MUST_USE kva_status kva_checkpoint_prune(const char *folder, int64_t keep, kva_diag *diag);

#endif
