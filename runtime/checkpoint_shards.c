/* Writes a checkpoint as a folder of shards (shards.h). Every process writes its own file into a folder with a
 * temporary name. When all are on disk, process 0 writes the index and renames the folder, so it has its name when it
 * is complete and not before. Whole states need no memory beside those of the processes. */
#include "runtime/checkpoint_shards.h"

#include "runtime/base/platform.h"
#include "runtime/session.h"
#include "runtime/sum.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct writer {
  kva_session *s;
  kva_comm *comm;
  const char *path;
  char *folder; /* the temporary one */
  int64_t n;
  const kva_state_desc *const *saved;
  const kva_checkpoint_head *head;
  int64_t data, stages, tensor; /* axes of the shards' mesh */
  int64_t shard;                /* of this process; -1: it writes none */
  kva_named_tensor *own;        /* what it writes */
  int64_t *sums;                /* by rank */
  kva_metadata *metadata;       /* of the index */
  kva_text *divisions;          /* keys and values in it */
} writer;

/* ---- who writes what --------------------------------------------------------------------------------------------- */

/* An axis along which no state is divided has one place in the shards' mesh. */
static void find_mesh(writer *w) {
  kva_comm_mesh mesh = kva_artifact_mesh(kva_session_artifact(w->s));
  kva_comm_mesh place = w->comm ? kva_comm_place(w->comm, kva_comm_rank(w->comm)) : (kva_comm_mesh){0};
  w->data = w->stages = w->tensor = 1;
  for (int64_t i = 0; i < w->n; i++) {
    if (w->saved[i]->parts) w->data = mesh.data;
    if (w->saved[i]->stages) w->stages = mesh.pipeline;
    if (w->saved[i]->slices) w->tensor = mesh.tensor;
  }
  bool writes = !place.sequence && place.data < w->data && place.pipeline < w->stages && place.tensor < w->tensor;
  w->shard = writes ? (place.data * w->stages + place.pipeline) * w->tensor + place.tensor : -1;
}

static int64_t count_shards(const writer *w) {
  return w->data * w->stages * w->tensor;
}

static int rank_of(const writer *w, int64_t shard) {
  kva_comm_mesh mesh = kva_artifact_mesh(kva_session_artifact(w->s));
  int64_t stage = shard / w->tensor, tensor = shard % w->tensor, data = stage / w->stages;
  return (int)((data * mesh.pipeline + stage % w->stages) * mesh.sequence * mesh.tensor + tensor);
}

/* Of the processes that have the same elements the one with the first places writes them. */
static bool gives(const writer *w, const kva_state_desc *d) {
  int64_t stage = w->shard / w->tensor, tensor = w->shard % w->tensor, data = stage / w->stages, first = 0;
  while (d->stages && !(d->stages >> first & 1)) first++;
  return (d->slices || !tensor) && (d->parts || !data) && stage % w->stages == first;
}

/* Returns the number of tensors in this process's shard. */
static kva_status list_own(const writer *w, kva_diag *diag, int64_t *out_n) {
  for (int64_t i = *out_n = 0; i < w->n; i++) {
    const kva_state_desc *d = w->saved[i];
    if (!gives(w, d)) continue;
    kva_named_tensor *t = &w->own[(*out_n)++];
    KVA_TRY(kva_checkpoint_state(w->s, d, diag, t));
    if (d->parts) t->tensor.dims[0] = kva_state_share_of(d, w->comm, kva_comm_rank(w->comm)).n;
  }
  return KVA_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static const char *value_of(const kva_checkpoint_head *head, const char *key) {
  for (int i = 0; i < head->n; i++)
    if (!strcmp(head->metadata[i].key, key)) return head->metadata[i].value;
  return "";
}

static kva_status write_shard(const writer *w, kva_diag *diag, int64_t *out_sum) {
  int64_t n;
  uint64_t sum = 0;
  char place[48];
  if (w->shard < 0) return KVA_OK;
  if (access(w->folder, F_OK))
    return kva_fail(diag, KVA_IO, &(kva_loc){.file = w->folder},
                    "%s does not see this folder, which process 0 made: checkpoints need a file system that all "
                    "processes share",
                    kva_comm_name(w->comm));
  KVA_TRY(list_own(w, diag, &n));
  for (int64_t i = 0; i < n; i++) sum = kva_sum_tensor(sum, w->own[i].name, &w->own[i].tensor);
  memcpy(out_sum, &sum, sizeof sum);
  snprintf(place, sizeof place, "%" PRId64 " of %" PRId64, w->shard, count_shards(w));
  const kva_metadata metadata[] = {{KVA_FORMAT_KEY, value_of(w->head, KVA_FORMAT_KEY)},
                                   {KVA_MODEL_KEY, value_of(w->head, KVA_MODEL_KEY)},
                                   {KVA_STEP_KEY, value_of(w->head, KVA_STEP_KEY)},
                                   {KVA_SHARD_PLACE, place}};
  char *path = kva_shards_path(w->folder, w->shard, count_shards(w));
  kva_status status = path ? kva_safetensors_write(path, n, w->own, 4, metadata, diag) : KVA_NO_MEMORY;
  free(path);
  return status;
}

/* Adds the divided states; *sum is chained by the division of every state, as a reader does. */
static bool add_divisions(const writer *w, int *n, uint64_t *sum) {
  for (int64_t i = 0; i < w->n; i++) {
    kva_text *key = &w->divisions[2 * i], *value = key + 1;
    kva_text_add(key, KVA_SHARDS_DIVIDED "%s", w->saved[i]->name);
    if (kva_state_is_divided(w->saved[i])) kva_shards_print(w->saved[i], value);
    if (key->cut || value->cut) return false;
    *sum = kva_sum_text(*sum, value->data ? value->data : "");
    if (value->data) w->metadata[(*n)++] = (kva_metadata){key->data, value->data};
  }
  return true;
}

static kva_status write_index(const writer *w, kva_diag *diag) {
  char mesh[64], sum_text[20], *path = NULL;
  kva_text sums = {0};
  int n = w->head->n;
  if (w->stages > 1)
    snprintf(mesh, sizeof mesh, "data=%" PRId64 ",pipeline=%" PRId64 ",tensor=%" PRId64, w->data, w->stages, w->tensor);
  else
    snprintf(mesh, sizeof mesh, "data=%" PRId64 ",tensor=%" PRId64, w->data, w->tensor);
  for (int64_t i = 0; i < count_shards(w); i++)
    kva_text_add(&sums, "%s%016" PRIx64, i ? " " : "", (uint64_t)w->sums[rank_of(w, i)]);
  memcpy(w->metadata, w->head->metadata, (size_t)n * sizeof *w->metadata);
  w->metadata[n++] = (kva_metadata){KVA_SHARDS_MESH, mesh};
  w->metadata[n++] = (kva_metadata){KVA_SHARDS_SUMS, sums.data};
  uint64_t sum = kva_sum_text(kva_sum_text(w->head->sum, mesh), sums.cut ? "" : sums.data);
  bool made = !sums.cut && add_divisions(w, &n, &sum);
  snprintf(sum_text, sizeof sum_text, "%016" PRIx64, sum);
  w->metadata[n++] = (kva_metadata){w->head->sum_key, sum_text};
  made = made && asprintf(&path, "%s/" KVA_SHARDS_INDEX, w->folder) >= 0;
  kva_status status = made ? kva_safetensors_write(path, 0, NULL, n, w->metadata, diag) : KVA_NO_MEMORY;
  kva_text_free(&sums);
  if (made) free(path);
  return status;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

/* Process 0's part: a new folder. */
static kva_status make_folder(writer *w, kva_diag *diag) {
  w->folder = kva_file_unfinished(w->path);
  if (!w->folder) return KVA_NO_MEMORY;
  KVA_TRY(kva_checkpoint_remove_folder(w->folder, diag));
  if (!mkdir(w->folder, 0777)) return KVA_OK;
  return kva_fail(diag, KVA_IO, &(kva_loc){.file = w->folder}, "cannot make this folder: %s", strerror(errno));
}

/* All know process 0's name of it. */
static kva_status share_name(writer *w, kva_diag *diag) {
  kva_text name = {0};
  if (w->folder) kva_text_add(&name, "%s", w->folder);
  kva_status status = kva_comm_broadcast_text(w->comm, 0, &name);
  if (status != KVA_OK) status = kva_fail(diag, status, NULL, "%s", kva_comm_error(w->comm));
  if (status == KVA_OK && !w->folder && !(w->folder = strdup(name.data ? name.data : ""))) status = KVA_NO_MEMORY;
  kva_text_free(&name);
  return status;
}

/* Process 0's part, after all shards are on disk. What had the name before has the temporary one then. */
static kva_status finish(const writer *w, kva_diag *diag) {
  KVA_TRY(write_index(w, diag));
  return kva_folder_replace(w->folder, w->path, diag);
}

static bool allocate(writer *w) {
  w->own = calloc((size_t)w->n + 1, sizeof *w->own);
  w->sums = calloc((size_t)kva_comm_size(w->comm), sizeof *w->sums);
  w->metadata = calloc((size_t)(w->head->n + w->n + 3), sizeof *w->metadata);
  w->divisions = calloc((size_t)(2 * w->n + 1), sizeof *w->divisions);
  return w->own && w->sums && w->metadata && w->divisions;
}

static void release(writer *w) {
  for (int64_t i = 0; w->divisions && i < 2 * w->n; i++) kva_text_free(&w->divisions[i]);
  free(w->divisions);
  free(w->metadata);
  free(w->sums);
  free(w->own);
  free(w->folder);
}

static kva_status gather_sums(const writer *w, int64_t own, kva_diag *diag) {
  int64_t bytes = (int64_t)sizeof own;
  w->sums[0] = own;
  if (!w->comm) return KVA_OK;
  kva_status status = kva_comm_all_gather(w->comm, bytes, bytes * kva_comm_size(w->comm), &own, w->sums);
  return status == KVA_OK ? KVA_OK : kva_fail(diag, status, NULL, "%s", kva_comm_error(w->comm));
}

static kva_status write_all(writer *w, kva_diag *diag) {
  int64_t sum = 0;
  bool first = !kva_comm_rank(w->comm);
  kva_status status = allocate(w) ? KVA_OK : KVA_NO_MEMORY;
  if (status == KVA_OK && first) status = make_folder(w, diag);
  KVA_TRY(kva_comm_agree(w->comm, status, diag));
  status = share_name(w, diag);
  if (status == KVA_OK) status = write_shard(w, diag, &sum);
  KVA_TRY(kva_comm_agree(w->comm, status, diag));
  KVA_TRY(gather_sums(w, sum, diag));
  return kva_comm_agree(w->comm, first ? finish(w, diag) : KVA_OK, diag);
}

kva_status kva_checkpoint_write_shards(const char *path, kva_session *s, int64_t n, const kva_state_desc *const *saved,
                                       const kva_checkpoint_head *head, kva_diag *diag) {
  writer w = {.s = s, .comm = s->options.comm, .path = path, .n = n, .saved = saved, .head = head};
  find_mesh(&w);
  kva_status status = write_all(&w, diag);
  if (!kva_comm_rank(w.comm) && w.folder && kva_checkpoint_remove_folder(w.folder, NULL) != KVA_OK)
    kva_warn(diag, &(kva_loc){.file = w.folder}, "this left-over cannot be removed");
  release(&w);
  return status;
}
