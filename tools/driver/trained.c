/* Weights from safetensors files, and from checkpoints in several. */
#include "tools/driver/trained.h"
#include "ops/ids.h"
#include "ops/optimizer.h"
#include "passes/tune.h"
#include "runtime/checkpoint.h"
#include "runtime/shards.h"

typedef struct source {
  kva_shards *file;
  kva_arena *arena;
  bool *asked;  /* by tensor: the model has a use for its name */
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
  s->asked[at] = true;
  if (s->last >= 0 && s->last != at) kva_shards_release(s->file, s->last);
  s->last = at;
  s->status = kva_shards_whole(s->file, at, s->diag, &t);
  if (s->status != KVA_OK) return NULL;
  kva_tensor_data *data = KVA_NEW(s->arena, kva_tensor_data);
  *data = (kva_tensor_data){.dtype = t.dtype, .rank = (uint32_t)t.rank, .data = t.data, .bytes = kva_tensor_bytes(&t)};
  data->dims = kva_arena_memdup(s->arena, t.dims, sizeof t.dims);
  return data;
}

static void add_name(kva_text *names, const char *name) {
  kva_text_add(names, "%s'%.200s'", names->len ? ", " : "", name);
}

/* An error with the names, if there are any, which are freed. */
static kva_status report_names(kva_text *names, const char *what, const kva_module *m, const char *path,
                               kva_diag *diag) {
  kva_status status = KVA_OK;
  if (names->len)
    status =
        kva_error(diag, &(kva_loc){.file = path},
                  "%s '%s': %s; is the model the one that was trained, with the same -D?", what, m->name, names->data);
  kva_text_free(names);
  return status;
}

/* Parameters missing from the file would keep random values. */
static kva_status check_complete(const kva_module *m, const kva_shards *file, const char *path, kva_diag *diag) {
  kva_text missing = {0};
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    if (s->kind == KVA_STATE_PARAM && kva_shards_find(file, s->name) < 0) add_name(&missing, s->name);
  }
  return report_names(&missing, "there is no tensor for these parameters of", m, path, diag);
}

/* A moment of what the file has, too, or a counter or setting of the training (passes/train.c). */
static bool is_of_training(const source *s, const char *name) {
  const char *dot = strrchr(name, '.'), *optimizers[KVA_OP_COUNT];
  if (!strncmp(name, "train.", 6)) return true;
  if (!dot || kva_shards_find(s->file, kva_arena_strndup(s->arena, name, (size_t)(dot - name))) < 0) return false;
  for (uint32_t n = kva_optimizer_names(optimizers), i = 0; i < n; i++) {
    const kva_op_info *op = kva_optimizer_find(optimizers[i]);
    for (uint32_t k = 0; k + 1 < (uint32_t)op->n_results; k++)
      if (!strcmp(dot + 1, op->moments[k])) return true;
  }
  return false;
}

static bool has_parameters(const kva_module *m) {
  for (uint32_t i = 0; i < m->states.len; i++)
    if (m->states.data[i]->kind == KVA_STATE_PARAM) return true;
  return false;
}

/* What a model has no use for belongs to another one, as by -D layers=2 instead of 1. Files of another program for an
 * ONNX model may have more: an export leaves out what inference does not need. */
static kva_status check_surplus(const source *s, const kva_module *m, const char *path) {
  kva_text surplus = {0};
  bool own = kva_safetensors_metadata(kva_shards_head(s->file), KVA_FORMAT_KEY);
  if (!own && !has_parameters(m)) return KVA_OK;
  for (int64_t i = 0; i < kva_shards_count(s->file); i++) {
    kva_tensor t;
    const char *name = kva_shards_at(s->file, i, &t);
    bool known = s->asked[i] || kva_module_find_state(m, name) || is_of_training(s, name);
    if (!known) add_name(&surplus, name);
  }
  return report_names(&surplus, "there are tensors that belong to no parameter or constant of", m, path, s->diag);
}

/* Sums read every page; those of moments are not needed again. */
static kva_status check_sums(kva_shards *file, const char *path, kva_diag *diag) {
  kva_status status = kva_checkpoint_check_sums(file, path, diag);
  for (int64_t i = 0; i < kva_shards_count(file) && status == KVA_OK; i++) kva_shards_release(file, i);
  return status;
}

kva_status kva_load_weights(kva_module *m, const char *path, kva_diag *diag) {
  kva_shards *file;
  int64_t used = 0;
  kva_loc loc = {.file = path};
  KVA_TRY(kva_shards_open(path, diag, &file));
  source s = {.file = file, .arena = kva_arena_create(), .last = -1, .diag = diag};
  s.asked = KVA_NEW_ARRAY(s.arena, bool, kva_shards_count(file) + 1);
  kva_status status = check_sums(file, path, diag);
  if (!status) status = check_complete(m, file, path, diag);
  if (!status) status = kva_set_weights(m, find, &s, &used);
  if (!status) status = s.status;
  if (!status && !used)
    status = kva_error(diag, &loc, "none of its %lld tensors has the name of a parameter or constant of '%s'",
                       (long long)kva_shards_count(file), m->name);
  if (!status) status = check_surplus(&s, m, path);
  kva_arena_destroy(s.arena);
  kva_shards_close(file);
  return status;
}
