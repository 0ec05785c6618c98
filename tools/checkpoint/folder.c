/* Hugging Face folders: config.json; model.safetensors, or the shards of model.safetensors.index.json. */
#include "tools/checkpoint/checkpoint.h"

#include <unistd.h>

static const char index_name[] = "model.safetensors.index.json", single_name[] = "model.safetensors";

static const char *in_folder(const kva_foreign *f, const char *name) {
  return kva_arena_printf(f->arena, "%s/%s", f->path, name);
}

static bool exists(const kva_foreign *f, const char *name) {
  return access(in_folder(f, name), F_OK) == 0;
}

static kva_status read_json(kva_foreign *f, const char *name, kva_diag *diag, json_t **out) {
  const char *path = in_folder(f, name);
  kva_file file;
  json_error_t error;
  KVA_TRY(kva_file_map(path, diag, &file));
  *out = file.size ? json_loadb(file.data, file.size, JSON_REJECT_DUPLICATES, &error) : NULL;
  bool empty = !file.size;
  kva_file_unmap(&file);
  if (json_is_object(*out)) return KVA_OK;
  kva_loc loc = {.file = path};
  if (*out || empty) {
    json_decref(*out);
    *out = NULL;
    return kva_error(diag, &loc, "expected a JSON object");
  }
  loc.line = error.line > 0 ? (uint32_t)error.line : 0;
  loc.column = error.column > 0 ? (uint32_t)error.column : 0;
  return kva_error(diag, &loc, "is no JSON: %s", error.text);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static void add_tensor(kva_foreign *f, uint32_t file, const char *name, const kva_tensor *t) {
  kva_foreign_tensor own = {.name = kva_arena_strdup(f->arena, name),
                            .packing = kva_packing_of_dtype(t->dtype),
                            .dtype = t->dtype,
                            .rank = t->rank,
                            .data = t->data,
                            .file = file};
  memcpy(own.dims, t->dims, sizeof own.dims);
  KVA_PUSH(f->arena, &f->tensors, own);
}

static kva_status read_shard(kva_foreign *f, const char *name, kva_diag *diag) {
  kva_foreign_file file = {.name = kva_arena_strdup(f->arena, name)};
  KVA_TRY(kva_safetensors_open(in_folder(f, name), diag, &file.tensors));
  KVA_PUSH(f->arena, &f->files, file);
  for (int64_t i = 0; i < kva_safetensors_count(file.tensors); i++) {
    kva_tensor t;
    const char *tensor = kva_safetensors_at(file.tensors, i, &t);
    add_tensor(f, f->files.len - 1, tensor, &t);
  }
  return KVA_OK;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

static bool has_file(const kva_foreign *f, const char *name) {
  for (uint32_t i = 0; i < f->files.len; i++)
    if (!strcmp(f->files.data[i].name, name)) return true;
  return false;
}

static kva_status read_shards(kva_foreign *f, const json_t *map, kva_diag *diag) {
  const char *tensor;
  json_t *value;
  kva_loc loc = {.file = in_folder(f, index_name)};
  json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
    const char *shard = json_string_value(value);
    if (!shard || !*shard || strchr(shard, '/') || !strcmp(shard, ".."))
      return kva_error(diag, &loc, "tensor '%.200s' should be in a file of the folder, found '%.200s'", tensor,
                       shard ? shard : "no name");
    if (!has_file(f, shard)) KVA_TRY(read_shard(f, shard, diag));
  }
  return KVA_OK;
}

static kva_status check_index(const kva_foreign *f, const json_t *map, kva_diag *diag) {
  const char *tensor;
  json_t *value;
  kva_loc loc = {.file = in_folder(f, index_name)};
  kva_status status = KVA_OK;
  json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
    const kva_foreign_tensor *t = kva_foreign_find(f, tensor);
    if (t && !strcmp(f->files.data[t->file].name, json_string_value(value))) continue;
    status = kva_error(diag, &loc, "tensor '%.200s' should be in %s, and is not", tensor, json_string_value(value));
  }
  return status;
}

static kva_status read_by_index(kva_foreign *f, kva_diag *diag) {
  json_t *index;
  KVA_TRY(read_json(f, index_name, diag, &index));
  const json_t *map = json_object_get(index, "weight_map");
  kva_status status = KVA_OK;
  if (!json_is_object(map))
    status = kva_error(diag, &(kva_loc){.file = in_folder(f, index_name)}, "has no object \"weight_map\"");
  if (status == KVA_OK) status = read_shards(f, map, diag);
  if (status == KVA_OK) status = kva_foreign_index(f, diag);
  if (status == KVA_OK) status = check_index(f, map, diag);
  json_decref(index);
  return status;
}

kva_status kva_folder_read(kva_foreign *f, kva_diag *diag) {
  kva_loc loc = {.file = f->path};
  if (!exists(f, "config.json"))
    return kva_error(diag, &loc, "expected a folder of a model, with config.json, found none");
  KVA_TRY(read_json(f, "config.json", diag, &f->config));
  if (exists(f, index_name)) return read_by_index(f, diag);
  if (!exists(f, single_name))
    return kva_error(diag, &loc, "has neither %s nor %s; other files of weights are not read", single_name, index_name);
  KVA_TRY(read_shard(f, single_name, diag));
  return kva_foreign_index(f, diag);
}
