/* Parameters and other states of a session: access, files. */
#include "runtime/safetensors.h"
#include "runtime/shards.h"
#include "tools/library/session.h"

size_t kvasir_session_state_count(const kvasir_session *s) {
  return s ? (size_t)kva_session_state_count(s->s) : 0;
}

const char *kvasir_session_state(kvasir_session *s, size_t i, kvasir_state_kind *out_kind, kvasir_tensor *out_tensor) {
  static const kvasir_state_kind kinds[] = {[KVA_ROLE_PARAMETER] = KVASIR_PARAMETER,
                                            [KVA_ROLE_MOMENT] = KVASIR_MOMENT,
                                            [KVA_ROLE_BUFFER] = KVASIR_BUFFER,
                                            [KVA_ROLE_CACHE] = KVASIR_CACHE};
  kva_tensor t;
  if (i >= kvasir_session_state_count(s)) return NULL;
  const kva_state_desc *d = kva_session_state_desc(s->s, (int)i, &t);
  if (out_kind) *out_kind = kinds[d->role];
  if (out_tensor) *out_tensor = kva_public_tensor(&t);
  return t.data || !d->bytes ? d->name : NULL;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

typedef struct file_job {
  kvasir_session *s;
  const char *path;
} file_job;

static kva_status check_job(const file_job *j, kva_diag *diag) {
  if (j->s && j->path) return KVA_OK;
  return kva_error(diag, NULL, "the %s is a null pointer", j->s ? "path" : "session");
}

static kva_status no_state(const kvasir_session *s, kva_diag *diag) {
  return kva_fail(diag, KVA_IO, NULL, "states cannot be copied from the device: %s", kva_session_error(s->s));
}

static kva_status write_states(const file_job *j, kva_arena *arena, kva_diag *diag) {
  kva_session *s = j->s->s;
  int n = kva_session_state_count(s), saved = 0;
  kva_named_tensor *tensors = KVA_NEW_ARRAY(arena, kva_named_tensor, n + 1);
  for (int i = 0; i < n; i++) {
    kva_named_tensor t;
    const kva_state_desc *d = kva_session_state_desc(s, i, &t.tensor);
    t.name = d->name;
    if (!t.tensor.data && d->bytes) return no_state(j->s, diag);
    if (d->role != KVA_ROLE_CACHE) tensors[saved++] = t;
  }
  if (!saved)
    return kva_error(diag, NULL,
                     "there are no states to save: the program was compiled for inference, so that its "
                     "parameters are constants");
  const char *model = kva_session_artifact(s)->model;
  const kva_metadata metadata[] = {{"model", model ? model : ""}};
  return kva_safetensors_write(j->path, saved, tensors, 1, metadata, diag);
}

static kva_status save(void *job, kva_diag *diag) {
  const file_job *j = job;
  KVA_TRY(check_job(j, diag));
  kva_arena *arena = kva_arena_create();
  kva_status status = write_states(j, arena, diag);
  kva_arena_destroy(arena);
  return status;
}

kvasir_status kvasir_session_save(kvasir_session *s, const char *path, kvasir_messages **out_messages) {
  file_job j = {s, path};
  return kva_library_call(save, &j, out_messages);
}

static bool equal_shape(const kva_tensor *a, const kva_tensor *b) {
  return a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->dims, b->dims, sizeof *a->dims * (size_t)a->rank);
}

/* Before anything changes. */
static kva_status check_states(const file_job *j, kva_shards *file, kva_diag *diag) {
  kva_loc loc = {.file = j->path};
  int64_t found = 0;
  for (int i = 0; i < kva_session_state_count(j->s->s); i++) {
    kva_tensor own, t;
    const kva_state_desc *d = kva_session_state_desc(j->s->s, i, &own);
    int64_t at = kva_shards_find(file, d->name);
    if (!own.data && d->bytes) return no_state(j->s, diag);
    if (at < 0) {
      if (d->role != KVA_ROLE_PARAMETER) continue;
      return kva_error(diag, &loc, "there is no tensor '%s', a parameter of the model", d->name);
    }
    found++;
    (void)kva_shards_at(file, at, &t);
    if (!equal_shape(&own, &t))
      return kva_error(diag, &loc, "tensor '%s' has another type or other dimensions than the model's", d->name);
    KVA_TRY(kva_shards_copy(file, at, 0, kva_state_elements(d), NULL, diag));
  }
  return found ? KVA_OK : kva_error(diag, &loc, "none of its tensors has the name of a state of the program");
}

/* The state that counts them; a file of another program need not have it. */
static void count_steps(kvasir_session *s) {
  kva_tensor steps;
  if (kva_session_state(s->s, "train.step", &steps) && steps.rank == 0 && steps.dtype == KVA_I64)
    s->steps = *(const int64_t *)steps.data;
}

static kva_status load(void *job, kva_diag *diag) {
  const file_job *j = job;
  kva_shards *file;
  KVA_TRY(check_job(j, diag));
  KVA_TRY(kva_shards_open(j->path, diag, &file));
  kva_status status = kva_shards_check_all(file, diag);
  if (!status) status = check_states(j, file, diag);
  for (int i = 0; !status && i < kva_session_state_count(j->s->s); i++) {
    kva_tensor own;
    const kva_state_desc *d = kva_session_state_desc(j->s->s, i, &own);
    int64_t at = kva_shards_find(file, d->name);
    if (d->bytes && at >= 0) status = kva_shards_copy(file, at, 0, kva_state_elements(d), own.data, diag);
  }
  kva_shards_close(file);
  if (!status) count_steps(j->s);
  return status;
}

kvasir_status kvasir_session_load(kvasir_session *s, const char *path, kvasir_messages **out_messages) {
  file_job j = {s, path};
  return kva_library_call(load, &j, out_messages);
}
