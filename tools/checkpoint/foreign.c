/* Opening and closing; tensors by name. */
#include "runtime/shards.h"
#include "tools/checkpoint/checkpoint.h"

#include <stdlib.h>

static const char gguf_magic[] = {'G', 'G', 'U', 'F'};

static bool begins_like_gguf(const char *path) {
  kva_diag *ignored = kva_diag_create();
  kva_file file;
  bool yes = kva_file_map(path, ignored, &file) == KVA_OK && file.size >= sizeof gguf_magic &&
             !memcmp(file.data, gguf_magic, sizeof gguf_magic);
  kva_file_unmap(&file);
  kva_diag_destroy(ignored);
  return yes;
}

bool kva_foreign_is(const char *path) {
  return (kva_is_folder(path) && !kva_shards_is(path)) || begins_like_gguf(path);
}

kva_foreign *kva_foreign_create(const char *path, const char *format) {
  kva_arena *arena = kva_arena_create();
  kva_foreign *f = KVA_NEW(arena, kva_foreign);
  *f = (kva_foreign){.path = kva_arena_strdup(arena, path), .format = format, .arena = arena};
  f->by_name = kva_map_create(arena);
  return f;
}

int64_t kva_foreign_elements(const kva_foreign_tensor *t) {
  int64_t n = 1;
  for (int32_t d = 0; d < t->rank; d++)
    if (!kva_mul_size(n, t->dims[d], &n)) return -1;
  return n;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const kva_foreign_tensor *)a)->name, ((const kva_foreign_tensor *)b)->name);
}

kva_status kva_foreign_index(kva_foreign *f, kva_diag *diag) {
  if (f->tensors.len) qsort(f->tensors.data, f->tensors.len, sizeof *f->tensors.data, by_name);
  for (uint32_t i = 0; i < f->tensors.len; i++) {
    kva_foreign_tensor *t = &f->tensors.data[i];
    if (kva_foreign_find(f, t->name))
      return kva_error(diag, &(kva_loc){.file = f->path}, "there are two tensors '%.200s'", t->name);
    kva_map_set_str(f->by_name, t->name, t);
  }
  return KVA_OK;
}

const kva_foreign_tensor *kva_foreign_find(const kva_foreign *f, const char *name) {
  return kva_map_get_str(f->by_name, name);
}

const kva_foreign_tensor *kva_foreign_resolve(const kva_foreign *f, const kva_names *names, const char *name) {
  const kva_foreign_tensor *t = kva_foreign_find(f, name);
  size_t n = names->prefix ? strlen(names->prefix) : 0;
  return t || !n || strncmp(name, names->prefix, n) ? t : kva_foreign_find(f, name + n);
}

static kva_status read_gguf(kva_foreign *f, kva_diag *diag) {
  kva_foreign_file file = {.name = f->path};
  KVA_TRY(kva_file_map(f->path, diag, &file.map));
  KVA_PUSH(f->arena, &f->files, file);
  return kva_gguf_parse(f, file.map.data, file.map.size, diag);
}

kva_status kva_foreign_open(const char *path, kva_diag *diag, kva_foreign **out) {
  bool folder = kva_is_folder(path);
  kva_foreign *f = kva_foreign_create(path, folder ? "huggingface" : "gguf");
  kva_status status = folder ? kva_folder_read(f, diag) : read_gguf(f, diag);
  if (status != KVA_OK) {
    kva_foreign_close(f);
    f = NULL;
  }
  *out = f;
  return status;
}

void kva_foreign_close(kva_foreign *f) {
  if (!f) return;
  for (uint32_t i = 0; i < f->files.len; i++) {
    kva_file_unmap(&f->files.data[i].map);
    kva_safetensors_close(f->files.data[i].tensors);
  }
  json_decref(f->config);
  kva_arena_destroy(f->arena);
}

kva_status kva_foreign_names(const kva_foreign *f, const kva_module *m, const char *model, kva_diag *diag,
                             const kva_names **out) {
  *out = kva_names_find(m, f->format);
  if (*out) return KVA_OK;
  return kva_error(diag, &(kva_loc){.file = model},
                   "has no names for %s, which it needs: a block `checkpoint %s { ... }`", f->path, f->format);
}
