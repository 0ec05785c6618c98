/* Inside of checkpoints: what one file and a folder of shards have in common. */
#ifndef KVA_RUNTIME_CHECKPOINT_SHARDS_H
#define KVA_RUNTIME_CHECKPOINT_SHARDS_H

#include "runtime/checkpoint.h"
#include "runtime/comm.h"
#include "runtime/shards.h"

/* The metadata of every checkpoint, with the sum of their values, and the key of the whole sum, which comes last. */
typedef struct kva_checkpoint_head {
  int n;
  const kva_metadata *metadata;
  uint64_t sum;
  const char *sum_key;
} kva_checkpoint_head;

/* What this process has of a state. */
KVA_MUST_USE kva_status kva_checkpoint_state(kva_session *s, const kva_state_desc *d, kva_diag *diag,
                                             kva_named_tensor *out);
/* All processes call it. saved: states in order of names. Agreed. */
KVA_MUST_USE kva_status kva_checkpoint_write_shards(const char *path, kva_session *s, int64_t n,
                                                    const kva_state_desc *const *saved, const kva_checkpoint_head *head,
                                                    kva_diag *diag);

#endif
