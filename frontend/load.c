/* Loads a model according to its content. */
#include "frontend/frontend_internal.h"

/* Text contains no control characters except white space. An ONNX protobuf has some near its start, in the tags and
 * lengths of its first fields. */
bool kva_file_is_text(const kva_file *file) {
  enum { LOOK = 4096 };
  const unsigned char *data = file->data;
  for (size_t i = 0; i < file->size && i < LOOK; i++) {
    bool white = data[i] >= '\t' && data[i] <= '\r';
    if (data[i] < 0x20 && !white) return false;
  }
  return true;
}

static kva_status load_mapped(kva_file *file, const char *path, const kva_load_options *options, kva_diag *diag,
                              kva_module **out_module) {
  if (!kva_file_is_text(file)) return kva_import_onnx(file, path, options, diag, out_module);
  kva_arena *arena = kva_arena_create();
  char *text = kva_arena_strndup(arena, file->data, file->size);
  kva_status status = strlen(text) == file->size
                          ? kva_load_text(text, path, options, diag, out_module)
                          : kva_error(diag, &(kva_loc){.file = path}, "a text with a zero byte in it is not a model");
  kva_arena_destroy(arena);
  return status;
}

kva_status kva_load_bytes(const void *data, size_t size, const char *name, const kva_load_options *options,
                          kva_diag *diag, kva_module **out_module) {
  kva_load_options own = options ? *options : (kva_load_options){0};
  own.in_memory = true;
  *out_module = NULL;
  return load_mapped(&(kva_file){data, size}, name, &own, diag, out_module);
}

kva_status kva_load_model(const char *path, const kva_load_options *options, kva_diag *diag, kva_module **out_module) {
  kva_file file;
  *out_module = NULL;
  KVA_TRY(kva_file_map(path, diag, &file));
  kva_status status = load_mapped(&file, path, options, diag, out_module);
  kva_file_unmap(&file);
  return status;
}
