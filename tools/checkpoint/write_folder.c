/* Writes Hugging Face folders: the headers and buffers of the files that were read, with new data of parameters. So
 * names, types, shapes, order and metadata stay, and unchanged values give equal bytes. */
#include "tools/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct writer {
  const kva_module *m;
  const kva_foreign *f;
  const kva_names *names;
  const char *folder;
  kva_arena *scratch;
  kva_map *sources; /* tensor -> source * */
  kva_diag *diag;
} writer;

typedef struct source {
  const kva_state *state;
  const kva_naming *row;
} source;

/* ---- what each tensor is made of --------------------------------------------------------------------------------- */

static kva_status note_sources(writer *w) {
  for (uint32_t i = 0; i < w->m->states.len; i++) {
    source s = {.state = w->m->states.data[i]};
    if (s.state->kind != KVA_STATE_PARAM) continue;
    const char *tensor = kva_names_tensor(w->names, s.state->name, w->scratch, &s.row);
    if (!s.state->data || s.state->init != KVA_INIT_DATA)
      return kva_error(w->diag, NULL, "parameter '%s' has no value: give --weights", s.state->name);
    const kva_foreign_tensor *t = tensor ? kva_foreign_resolve(w->f, w->names, tensor) : NULL;
    if (t && s.row->kind != KVA_NAMING_ROW_NORMS)
      kva_map_set_str(w->sources, t->name, kva_arena_memdup(w->scratch, &s, sizeof s));
  }
  return KVA_OK;
}

static kva_status encode(const writer *w, const kva_foreign_tensor *t, unsigned char *out) {
  const source *s = kva_map_get_str(w->sources, t->name);
  int64_t n = kva_foreign_elements(t);
  if (!s && kva_names_is_buffer(w->names, t->name)) return KVA_OK; /* as it was */
  if (!s)
    return kva_error(w->diag, &(kva_loc){.file = w->f->path},
                     "no parameter is tensor '%.200s', so it cannot be written", t->name);
  if (!t->packing)
    return kva_error(w->diag, &(kva_loc){.file = w->f->path},
                     "tensor '%.200s' is of type %s; those written are F32, F16 or BF16", t->name,
                     kva_dtype_name(t->dtype));
  int64_t columns = t->rank ? t->dims[t->rank - 1] : 1, rows = columns ? n / columns : 0;
  if (t->rank == 1 && s->row->pairs) rows = n, columns = 1;
  float *row = malloc((size_t)(columns + 1) * sizeof *row);
  if (!row) return kva_fail(w->diag, KVA_NO_MEMORY, NULL, "no memory for a row of tensor '%.200s'", t->name);
  for (int64_t r = 0; r < rows; r++) {
    kva_foreign_rows(s->row, s->state->data, r, 1, row);
    t->packing->encode(row, columns, out + r * columns * t->packing->bytes);
  }
  free(row);
  return KVA_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static const char *path_of(const writer *w, const char *folder, const char *name) {
  return kva_arena_printf(w->scratch, "%s/%s", folder, name);
}

static size_t header_size(const kva_file *file) {
  const unsigned char *bytes = file->data;
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | bytes[i];
  return 8 + (size_t)length; /* the file was parsed before */
}

static kva_status fill_shard(const writer *w, uint32_t file, const kva_file *old, unsigned char *copy) {
  const kva_safetensors *s = w->f->files.data[file].tensors;
  size_t header = header_size(old);
  memcpy(copy, old->data, old->size);
  for (int64_t i = 0; i < kva_safetensors_count(s); i++) {
    const kva_foreign_tensor *t = kva_foreign_find(w->f, kva_safetensors_at(s, i, NULL));
    KVA_TRY(encode(w, t, copy + header + kva_safetensors_offset(s, i)));
  }
  return KVA_OK;
}

static kva_status write_shard(const writer *w, uint32_t file) {
  const char *name = w->f->files.data[file].name;
  kva_file old;
  KVA_TRY(kva_file_map(path_of(w, w->f->path, name), w->diag, &old));
  unsigned char *copy = malloc(old.size);
  kva_status status = copy ? fill_shard(w, file, &old, copy)
                           : kva_fail(w->diag, KVA_NO_MEMORY, NULL, "no memory for the content of %s", name);
  if (status == KVA_OK) status = kva_file_write(path_of(w, w->folder, name), copy, old.size, w->diag);
  free(copy);
  kva_file_unmap(&old);
  return status;
}

static bool is_copied(const char *name) {
  static const char *const ends[] = {".json", ".jinja", ".model", ".txt"};
  size_t n = strlen(name);
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    size_t k = strlen(ends[i]);
    if (n > k && !strcmp(name + n - k, ends[i])) return true;
  }
  return false;
}

static kva_status copy_file(const writer *w, const char *name) {
  kva_file file;
  KVA_TRY(kva_file_map(path_of(w, w->f->path, name), w->diag, &file));
  kva_status status = kva_file_write(path_of(w, w->folder, name), file.data, file.size, w->diag);
  kva_file_unmap(&file);
  return status;
}

static kva_status copy_files(const writer *w) {
  DIR *dir = opendir(w->f->path);
  if (!dir) return kva_fail(w->diag, KVA_IO, &(kva_loc){.file = w->f->path}, "cannot list it: %s", strerror(errno));
  kva_status status = KVA_OK;
  for (struct dirent *e; status == KVA_OK && (e = readdir(dir));)
    if (is_copied(e->d_name)) status = copy_file(w, e->d_name);
  closedir(dir);
  return status;
}

static kva_status make_folder(const writer *w) {
  kva_loc loc = {.file = w->folder};
  struct stat own, other;
  KVA_TRY(kva_folder_make(w->folder, 0777, w->diag));
  bool same =
      !stat(w->folder, &own) && !stat(w->f->path, &other) && own.st_dev == other.st_dev && own.st_ino == other.st_ino;
  return same ? kva_error(w->diag, &loc, "is the folder that the model comes from; give another") : KVA_OK;
}

static kva_status write(writer *w) {
  KVA_TRY(note_sources(w));
  KVA_TRY(make_folder(w));
  for (uint32_t i = 0; i < w->f->files.len; i++) KVA_TRY(write_shard(w, i));
  return copy_files(w);
}

kva_status kva_folder_write(const kva_module *m, const kva_foreign *f, const kva_names *names, const char *folder,
                            kva_diag *diag) {
  writer w = {.m = m, .f = f, .names = names, .folder = folder, .scratch = kva_arena_create(), .diag = diag};
  w.sources = kva_map_create(w.scratch);
  kva_status status = write(&w);
  kva_arena_destroy(w.scratch);
  return status;
}
