/* Checkpoints: safetensors files with everything that a run needs to continue bit for bit. Where processes have slices
 * or parts of states it is a folder of such files (shards.h), of which each process writes its own.
 *
 * Tensors: every parameter, moment and counter under its name. Caches are not saved: gradients are zero between steps.
 * Metadata "kvasir.*": format, model hash, the fields of kva_checkpoint as text, and a sum over these and over names,
 * types, shapes and data of the tensors. Generators have no state; they are functions of (seed, step). Equal state and
 * position give equal bytes. */
#ifndef KVA_RUNTIME_CHECKPOINT_H
#define KVA_RUNTIME_CHECKPOINT_H

#include "runtime/shards.h"

typedef struct kva_checkpoint {
  int64_t step; /* steps done; also the position in the data */
  int64_t steps, batch, micro_batch;
  uint64_t seed, data_id;
  kva_schedule schedule;
  double weight_decay, clip; /* 0: not adjustable */
} kva_checkpoint;

/* Hash of the names, kinds, types and shapes of the tensors that checkpoints hold. */
uint64_t kva_model_hash(const kva_artifact *a);

/* Whether files have types for all that checkpoints of the artefact hold: KVA_UNSUPPORTED otherwise. */
KVA_MUST_USE kva_status kva_checkpoint_possible(const kva_artifact *a, kva_diag *diag);

/* Both are called by all processes of the session, with the same path, and have the same status in all.
 *
 * A file or folder of this name stays until the new one is complete. */
KVA_MUST_USE kva_status kva_checkpoint_write(const char *path, kva_session *s, const kva_checkpoint *c, kva_diag *diag);
/* Sets the session's states: each process reads its own elements, whatever mesh wrote them. Checks everything before it
 * changes anything: format, sums (of a shard in one process), model (the message names the first tensor that differs).
 * KVA_DAMAGED: it is no whole checkpoint, so an earlier one may do; KVA_INVALID: it is another model's. */
KVA_MUST_USE kva_status kva_checkpoint_read(const char *path, kva_session *s, kva_diag *diag, kva_checkpoint *out);
/* Whether a file or folder is a checkpoint of Kvasir, by its metadata, before there is a session to read it into. */
KVA_MUST_USE kva_status kva_checkpoint_check(const char *path, kva_diag *diag);
/* Whether what is in an open file or folder has the sum that is in its metadata. KVA_OK where that cannot be told: for
 * a file of another program, and for format 1, whose sum needs the session. */
KVA_MUST_USE kva_status kva_checkpoint_check_sums(kva_shards *f, const char *path, kva_diag *diag);
/* Warns of every difference that makes the continued run deviate from the saved one. */
void kva_checkpoint_compare(const char *path, const kva_checkpoint *saved, const kva_checkpoint *own, kva_diag *diag);

/* ---- folders of checkpoints: step-0000000100.safetensors, or the folder step-0000000100, ... ----------------------
 */

/* Whether checkpoints of this artefact are folders: its processes divide states. */
bool kva_checkpoint_in_shards(const kva_artifact *a);
/* Path of a step's checkpoint to write; the caller frees it. NULL: no memory. */
char *kva_checkpoint_path(const char *folder, int64_t step, bool in_shards);
/* Path of the one that is there; a file where both are. */
char *kva_checkpoint_find(const char *folder, int64_t step);
/* The best state of a run: DIR/best.safetensors, or the folder DIR/best. */
char *kva_checkpoint_best(const char *folder, bool in_shards);
/* Steps of the checkpoints in a folder, ascending; the caller frees *out_steps. Other files, temporary ones included,
 * are ignored. A missing folder has no checkpoints. */
KVA_MUST_USE kva_status kva_checkpoint_list(const char *folder, kva_diag *diag, int64_t *out_n, int64_t **out_steps);
/* Creates the folder if it is missing, and removes temporary files and folders of processes that no longer run. */
KVA_MUST_USE kva_status kva_checkpoint_prepare(const char *folder, kva_diag *diag);
/* Renames a step's checkpoint to its name with ".damaged": it is a checkpoint no more. */
KVA_MUST_USE kva_status kva_checkpoint_set_aside(const char *folder, int64_t step, kva_diag *diag);
/* Removes a checkpoint in one or several files, if it is there. At no moment is a part of one left under its name. */
KVA_MUST_USE kva_status kva_checkpoint_remove(const char *path, kva_diag *diag);
/* Removes the files of a checkpoint from a folder, then the folder. */
KVA_MUST_USE kva_status kva_checkpoint_remove_folder(const char *path, kva_diag *diag);
/* Locks the folder, which must exist, against other processes: file ".lock" in it says who holds it. The lock ends with
 * kva_checkpoint_unlock or with the process. If another process holds it: KVA_INVALID, with its number, host and since
 * when. Where the file system has no locks: a warning, and *out_lock is -1. */
KVA_MUST_USE kva_status kva_checkpoint_lock(const char *folder, kva_diag *diag, int *out_lock);
/* The same for a folder of another kind; `use` begins the message, as "another trainer saves its checkpoints here". */
KVA_MUST_USE kva_status kva_folder_lock(const char *folder, const char *use, kva_diag *diag, int *out_lock);
void kva_checkpoint_unlock(int lock); /* ignores -1 */
/* Removes all but the newest `keep` checkpoints. */
KVA_MUST_USE kva_status kva_checkpoint_prune(const char *folder, int64_t keep, kva_diag *diag);

#endif
