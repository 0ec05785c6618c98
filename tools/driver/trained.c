/* Weights from safetensors files, and from checkpoints in several. */
#include "tools/driver/trained.h"
#include "passes/tune.h"
#include "runtime/shards.h"

typedef struct source {
  kva_shards *file;
  kva_arena *arena;
  int64_t last; /* tensor that was given; -1: none */
  kva_diag *diag;
  kva_status status;
} source;

/* Pages of the tensor before need not stay in memory. */
static const kva_tensor_data *find(void *user, const char *name) {
  source *s = user;
  kva_tensor t;
  int64_t at = kva_shards_find(s->file, name);
  if (at < 0 || s->status != KVA_OK) return NULL;
  if (s->last >= 0 && s->last != at) kva_shards_release(s->file, s->last);
  s->last = at;
  s->status = kva_shards_whole(s->file, at, s->diag, &t);
  if (s->status != KVA_OK) return NULL;
  kva_tensor_data *data = KVA_NEW(s->arena, kva_tensor_data);
  *data = (kva_tensor_data){.dtype = t.dtype, .rank = (uint32_t)t.rank, .data = t.data, .bytes = kva_tensor_bytes(&t)};
  data->dims = kva_arena_memdup(s->arena, t.dims, sizeof t.dims);
  return data;
}

/* Parameters missing from the file would keep random values. */
static kva_status check_complete(const kva_module *m, const kva_shards *file, const char *path, kva_diag *diag) {
  kva_loc loc = {.file = path};
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    if (s->kind == KVA_STATE_PARAM && kva_shards_find(file, s->name) < 0)
      return kva_error(diag, &loc,
                       "there is no tensor '%s', a parameter of '%s'; is the model the one that was trained, "
                       "with the same -D?",
                       s->name, m->name);
  }
  return KVA_OK;
}

kva_status kva_load_weights(kva_module *m, const char *path, kva_diag *diag) {
  kva_shards *file;
  int64_t used = 0;
  kva_loc loc = {.file = path};
  KVA_TRY(kva_shards_open(path, diag, &file));
  source s = {.file = file, .arena = kva_arena_create(), .last = -1, .diag = diag};
  kva_status status = kva_shards_check_all(file, diag);
  if (!status) status = check_complete(m, file, path, diag);
  if (!status) status = kva_set_weights(m, find, &s, &used);
  if (!status) status = s.status;
  if (!status && !used)
    status = kva_error(diag, &loc, "none of its %lld tensors has the name of a parameter or constant of '%s'",
                       (long long)kva_shards_count(file), m->name);
  kva_arena_destroy(s.arena);
  kva_shards_close(file);
  return status;
}
