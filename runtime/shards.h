/* The tensors of a checkpoint, which are in one safetensors file or in a folder of them.
 *
 * A folder is written where processes have slices and parts of states, or states of a stage. Each process that has
 * elements of its own writes a file, a shard: shard-00000-of-00004.safetensors, ... Shard 0, or those of the stages
 * with places 0 together, have a tensor for every state, whole or its elements of it; the others have those of divided
 * states alone. Elements of a slice keep its shape; those of a part are a vector. index.safetensors has no tensors. Its
 * metadata are those of a checkpoint (checkpoint.h), and kvasir.mesh          "data=2,tensor=2": shard = place on data
 * * tensor + place on tensor; an axis that divides no state counts as 1. In format 4 "data=2,pipeline=2,tensor=2", and
 * shard = (place on data * pipeline + stage) * tensor + place on tensor: a state is in the shards of one stage
 *   kvasir.sums          of the tensors in each shard
 *   kvasir.divided.NAME  "64,128 axis=1 slices=2 part=2048": the whole shape, in so many slices along an axis (0: in
 *                        none), and the elements of a part of a slice (0: slices have no parts)
 * Metadata of a shard are format, model and step of the checkpoint, and which shard it is. */
#ifndef KVA_RUNTIME_SHARDS_H
#define KVA_RUNTIME_SHARDS_H

#include "runtime/safetensors.h"

#define KVA_SHARDS_INDEX   "index.safetensors"
#define KVA_SHARDS_PREFIX  "shard-"
#define KVA_SHARDS_MESH    "kvasir.mesh"
#define KVA_SHARDS_SUMS    "kvasir.sums"
#define KVA_SHARDS_DIVIDED "kvasir.divided."
#define KVA_SHARD_PLACE    "kvasir.shard" /* in a shard: "3 of 4" */
#define KVA_FORMAT_KEY     "kvasir.format"
#define KVA_MODEL_KEY      "kvasir.model"
#define KVA_STEP_KEY       "kvasir.step"
enum { KVA_SHARDS_FORMAT = 3, KVA_STAGES_FORMAT = 4 }; /* of the index and of shards */

typedef struct kva_shards kva_shards;

/* Whether the path is a folder with an index. */
bool kva_shards_is(const char *path);
/* Opens a folder, or any safetensors file. A folder that is no whole checkpoint is KVA_DAMAGED. Shards but the first
 * are opened when they are read. */
KVA_MUST_USE kva_status kva_shards_open(const char *path, kva_diag *diag, kva_shards **out_shards);
void kva_shards_close(kva_shards *f);
/* The file whose metadata are the checkpoint's: the index, or the only file. */
const kva_safetensors *kva_shards_head(const kva_shards *f);
/* Number of shards; 0: it is one file. */
int64_t kva_shards_number(const kva_shards *f);

int64_t kva_shards_count(const kva_shards *f);
/* Tensor i in order of names; returns its name. The shape is that of the whole tensor; data is NULL. */
const char *kva_shards_at(const kva_shards *f, int64_t i, kva_tensor *out_tensor);
/* The tensor of this name; -1: there is none. */
int64_t kva_shards_find(const kva_shards *f, const char *name);
/* Copies elements [first, first + n) of tensor i, which must exist. to NULL: opens the files that have them, after
 * which copying cannot fail. */
KVA_MUST_USE kva_status kva_shards_copy(kva_shards *f, int64_t i, int64_t first, int64_t n, void *to, kva_diag *diag);
/* The whole tensor i; data is borrowed from f and read-only. */
KVA_MUST_USE kva_status kva_shards_whole(kva_shards *f, int64_t i, kva_diag *diag, kva_tensor *out_tensor);
/* Its pages need not stay in memory: who still reads it causes them to be read again. */
void kva_shards_release(kva_shards *f, int64_t i);

/* Whether shard i belongs to this checkpoint and is undamaged. */
KVA_MUST_USE kva_status kva_shards_check(kva_shards *f, int64_t shard, kva_diag *diag);
KVA_MUST_USE kva_status kva_shards_check_all(kva_shards *f, kva_diag *diag);
/* Of what the index has beside the metadata of every checkpoint; chained (sum.h). */
uint64_t kva_shards_sum(const kva_shards *f, uint64_t sum);

/* ---- for the writer ---------------------------------------------------------------------------------------------- */

/* Path of a shard; the caller frees it. NULL: no memory. */
char *kva_shards_path(const char *folder, int64_t shard, int64_t n);
/* The value of kvasir.divided.NAME. */
void kva_shards_print(const kva_state_desc *d, kva_text *out);

#endif
