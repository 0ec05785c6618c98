/* Weights from safetensors files. */
#include "tools/driver/trained.h"
#include "passes/tune.h"
#include "runtime/safetensors.h"

typedef struct source {
  const kva_safetensors *file;
  kva_arena *arena;
  kva_tensor last; /* that was given */
} source;

/* Pages of the tensor before need not stay in memory: who still reads it causes them to be read again. */
static const kva_tensor_data *find(void *user, const char *name) {
  source *s = user;
  kva_tensor t;
  if (!kva_safetensors_find(s->file, name, &t)) return NULL;
  if (s->last.data && s->last.data != t.data) kva_pages_release(s->last.data, (size_t)kva_tensor_bytes(&s->last));
  s->last = t;
  kva_tensor_data *data = KVA_NEW(s->arena, kva_tensor_data);
  *data = (kva_tensor_data){.dtype = t.dtype, .rank = (uint32_t)t.rank, .data = t.data, .bytes = kva_tensor_bytes(&t)};
  data->dims = kva_arena_memdup(s->arena, t.dims, sizeof t.dims);
  return data;
}

/* Parameters missing from the file would keep random values. */
static kva_status check_complete(const kva_module *m, const kva_safetensors *file, const char *path, kva_diag *diag) {
  kva_loc loc = {.file = path};
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    kva_tensor t;
    if (s->kind == KVA_STATE_PARAM && !kva_safetensors_find(file, s->name, &t))
      return kva_error(diag, &loc,
                       "there is no tensor '%s', a parameter of '%s'; is the model the one that was trained, "
                       "with the same -D?",
                       s->name, m->name);
  }
  return KVA_OK;
}

kva_status kva_load_weights(kva_module *m, const char *path, kva_diag *diag) {
  kva_safetensors *file;
  int64_t used = 0;
  kva_loc loc = {.file = path};
  KVA_TRY(kva_safetensors_open(path, diag, &file));
  source s = {.file = file, .arena = kva_arena_create()};
  kva_status status = check_complete(m, file, path, diag);
  if (!status) status = kva_set_weights(m, find, &s, &used);
  if (!status && !used)
    status = kva_error(diag, &loc, "none of its %lld tensors has the name of a parameter or constant of '%s'",
                       (long long)kva_safetensors_count(file), m->name);
  kva_arena_destroy(s.arena);
  kva_safetensors_close(file);
  return status;
}
