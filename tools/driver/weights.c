/* Moves large constants of an artefact to a separate file: see runtime/weights.h. */
#include "tools/driver/build.h"

#include "runtime/safetensors.h"

#include <unistd.h>

enum { STORED_BYTES = 4096 }; /* smaller constants stay in the object */

typedef struct collector {
  kva_arena *arena;
  kva_map *names; /* by address */
  KVA_VEC(kva_named_tensor) tensors;
} collector;

/* Only shapes and types that the format supports. */
static bool to_tensor(const kva_buffer_desc *b, kva_tensor *out) {
  if (b->kind != KVA_BUFFER_CONST || !b->data || !kva_safetensors_dtype_name((kva_dtype)b->dtype)) return false;
  *out = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank, .data = (void *)(uintptr_t)b->data};
  for (int32_t d = 0; d < b->rank; d++) {
    const kva_formula *f = &b->dims[d];
    if (f->n != 1 || f->words[0].op != KVA_FORMULA_CONST) return false;
    out->dims[d] = f->words[0].arg;
  }
  return kva_tensor_bytes(out) >= STORED_BYTES;
}

/* The tensor's name; equal for a constant shared by several programs. */
static const char *name_of(collector *c, const kva_buffer_desc *b, const kva_tensor *t) {
  const char *known = kva_map_get(c->names, &b->data, sizeof b->data);
  if (known) return known;
  uint64_t hash = kva_hash(0, t->data, (size_t)kva_tensor_bytes(t));
  const char *name = kva_arena_printf(c->arena, "%u.%s:%016llx", c->tensors.len, b->name ? b->name : "constant",
                                      (unsigned long long)hash);
  kva_map_set(c->names, &b->data, sizeof b->data, (void *)(uintptr_t)name);
  kva_named_tensor entry = {name, *t};
  KVA_PUSH(c->arena, &c->tensors, entry);
  return name;
}

static void collect(collector *c, kva_program *p) {
  kva_buffer_desc *buffers = kva_arena_memdup(c->arena, p->buffers, sizeof *buffers * (size_t)p->n_buffers);
  for (int32_t i = 0; i < p->n_buffers; i++) {
    kva_tensor t;
    if (!to_tensor(&buffers[i], &t)) continue;
    buffers[i].name = name_of(c, &buffers[i], &t);
    buffers[i].data = NULL;
  }
  p->buffers = buffers;
}

static const char written_key[] = "kvasir.weights";

/* Refuses to overwrite a checkpoint that was probably meant for reading (--from). */
static kva_status check_own(const char *path, kva_diag *diag) {
  if (access(path, F_OK) != 0) return KVA_OK;
  kva_diag *ignored = kva_diag_create();
  kva_safetensors *file;
  bool own = kva_safetensors_open(path, ignored, &file) == KVA_OK;
  if (own) {
    own = kva_safetensors_metadata(file, written_key);
    kva_safetensors_close(file);
  }
  kva_diag_destroy(ignored);
  if (own) return KVA_OK;
  return kva_error(diag, &(kva_loc){.file = path},
                   "--weights writes here, and this file was not written by kvasir build; give another name, or remove "
                   "it (--from FILE reads trained values)");
}

kva_status kva_move_weights(kva_artifact *a, const char *path, kva_arena *arena, kva_diag *diag) {
  collector c = {.arena = arena, .names = kva_map_create(arena)};
  kva_program *programs = kva_arena_memdup(arena, a->programs, sizeof *programs * (size_t)a->n_programs);
  for (int32_t i = 0; i < a->n_programs; i++) collect(&c, &programs[i]);
  a->programs = programs;
  const kva_metadata metadata[] = {{"model", a->model ? a->model : ""}, {written_key, "1"}};
  KVA_TRY(check_own(path, diag));
  return kva_safetensors_write(path, c.tensors.len, c.tensors.data, 2, metadata, diag);
}
