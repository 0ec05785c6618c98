/* Constants from a file: copies of the programs' buffer tables whose addresses point into the mapped file. */
#include "runtime/weights.h"
#include "runtime/formula.h"
#include "runtime/safetensors.h"

#include <stdlib.h>

struct kva_weights {
  kva_artifact artifact;
  kva_program *programs;
  kva_buffer_desc **buffers; /* by program */
  kva_safetensors *file;
};

/* Constants have constant sizes. */
static int64_t bytes_of(const kva_buffer_desc *b) {
  int64_t n;
  bool fixed = b->bytes.n == 1 && b->bytes.words[0].op == KVA_FORMULA_CONST;
  return fixed && kva_formula_eval(&b->bytes, NULL, &n) ? n : 0;
}

static bool is_missing(const kva_buffer_desc *b) {
  return b->kind == KVA_BUFFER_CONST && !b->data && bytes_of(b) > 0;
}

bool kva_weights_needed(const kva_artifact *a) {
  for (int32_t i = 0; i < a->n_programs; i++)
    for (int32_t k = 0; k < a->programs[i].n_buffers; k++)
      if (is_missing(&a->programs[i].buffers[k])) return true;
  return false;
}

static kva_status attach_buffer(const kva_weights *w, const char *path, kva_buffer_desc *b, kva_diag *diag) {
  kva_loc loc = {.file = path};
  kva_tensor t;
  if (!b->name || !kva_safetensors_find(w->file, b->name, &t))
    return kva_error(diag, &loc, "has no tensor '%s': this is not the file that was written with the model",
                     b->name ? b->name : "unnamed");
  if ((int32_t)t.dtype != b->dtype || kva_tensor_bytes(&t) != bytes_of(b))
    return kva_error(diag, &loc, "tensor '%s' has another type or size than the model needs", b->name);
  b->data = t.data;
  return KVA_OK;
}

static kva_status attach_program(kva_weights *w, const char *path, int32_t index, kva_diag *diag) {
  kva_program *p = &w->programs[index];
  size_t size = (size_t)p->n_buffers * sizeof *p->buffers;
  kva_buffer_desc *buffers = w->buffers[index] = malloc(size + 1);
  if (!buffers) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the tables of the model's weights");
  if (size) memcpy(buffers, p->buffers, size);
  p->buffers = buffers;
  for (int32_t i = 0; i < p->n_buffers; i++)
    if (is_missing(&buffers[i])) KVA_TRY(attach_buffer(w, path, &buffers[i], diag));
  return KVA_OK;
}

/* A build writes a file without tensors if no constant is large. */
static kva_status check_use(const kva_weights *w, const char *path, kva_diag *diag) {
  if (kva_weights_needed(&w->artifact) || !kva_safetensors_count(w->file)) return KVA_OK;
  return kva_error(diag, NULL, "weights: %s is not read, for the model has its own inside", path);
}

static kva_status attach(kva_weights *w, const char *path, kva_diag *diag) {
  size_t n = (size_t)w->artifact.n_programs;
  w->programs = malloc(n * sizeof *w->programs + 1);
  w->buffers = calloc(n + 1, sizeof *w->buffers);
  if (!w->programs || !w->buffers) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the model's tables");
  memcpy(w->programs, w->artifact.programs, n * sizeof *w->programs);
  w->artifact.programs = w->programs;
  KVA_TRY(kva_safetensors_open(path, diag, &w->file));
  KVA_TRY(check_use(w, path, diag));
  for (int32_t i = 0; i < w->artifact.n_programs; i++) KVA_TRY(attach_program(w, path, i, diag));
  return KVA_OK;
}

kva_status kva_weights_attach(const kva_artifact *a, const char *path, kva_diag *diag, kva_weights **out_weights) {
  *out_weights = NULL;
  if (!path)
    return kva_error(diag, NULL,
                     "the model was built with its weights in a file of their own; say where it is (the "
                     "option `weights`)");
  kva_weights *w = calloc(1, sizeof *w);
  if (!w) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the model's weights");
  w->artifact = *a;
  kva_status status = attach(w, path, diag);
  if (status == KVA_OK)
    *out_weights = w;
  else
    kva_weights_destroy(w);
  return status;
}

const kva_artifact *kva_weights_artifact(const kva_weights *w) {
  return &w->artifact;
}

void kva_weights_destroy(kva_weights *w) {
  if (!w) return;
  for (int32_t i = 0; w->buffers && i < w->artifact.n_programs; i++) free(w->buffers[i]);
  free(w->buffers);
  free(w->programs);
  kva_safetensors_close(w->file);
  free(w);
}
