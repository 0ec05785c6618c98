/* Element types of safetensors, and the writer. */
#include "runtime/safetensors.h"

#include "runtime/base/platform.h"

#include <stdlib.h>

static const struct {
  kva_dtype dtype;
  const char *name;
} types[] = {
    {KVA_BOOL, "BOOL"},      {KVA_U8, "U8"},   {KVA_I8, "I8"},   {KVA_F8E5M2, "F8_E5M2"}, {KVA_F8E4M3FN, "F8_E4M3"},
    {KVA_F8E8M0, "F8_E8M0"}, {KVA_I16, "I16"}, {KVA_U16, "U16"}, {KVA_F16, "F16"},        {KVA_BF16, "BF16"},
    {KVA_I32, "I32"},        {KVA_U32, "U32"}, {KVA_F32, "F32"}, {KVA_C64, "C64"},        {KVA_F64, "F64"},
    {KVA_I64, "I64"},        {KVA_U64, "U64"},
};
enum { N_TYPES = sizeof types / sizeof *types, HEADER_ALIGNMENT = 8 };

const char *kva_safetensors_dtype_name(kva_dtype t) {
  for (int i = 0; i < N_TYPES; i++)
    if (types[i].dtype == t) return types[i].name;
  return NULL;
}

kva_dtype kva_safetensors_dtype(const char *name, size_t size) {
  for (int i = 0; i < N_TYPES; i++)
    if (strlen(types[i].name) == size && !memcmp(types[i].name, name, size)) return types[i].dtype;
  return KVA_DTYPE_NONE;
}

static int by_size_and_name(const void *a, const void *b) {
  const kva_named_tensor *x = *(const kva_named_tensor *const *)a, *y = *(const kva_named_tensor *const *)b;
  int difference = kva_dtype_bits(y->tensor.dtype) - kva_dtype_bits(x->tensor.dtype);
  return difference ? difference : strcmp(x->name, y->name);
}

static kva_status add_tensor(kva_text *header, const kva_named_tensor *t, int64_t *offset, const kva_loc *loc,
                             kva_diag *diag) {
  const char *type = kva_safetensors_dtype_name(t->tensor.dtype);
  if (!type)
    return kva_fail(diag, KVA_UNSUPPORTED, loc, "a safetensors file cannot hold tensor '%s' of type %s", t->name,
                    kva_dtype_name(t->tensor.dtype));
  int64_t bytes = kva_tensor_bytes(&t->tensor), end;
  if (bytes < 0 || !kva_add_size(*offset, bytes, &end))
    return kva_error(diag, loc, "tensor '%s' is too large to address", t->name);
  kva_text_add_quoted(header, t->name);
  kva_text_add(header, ":{\"dtype\":\"%s\",\"shape\":[", type);
  for (int32_t d = 0; d < t->tensor.rank; d++)
    kva_text_add(header, "%s%lld", d ? "," : "", (long long)t->tensor.dims[d]);
  kva_text_add(header, "],\"data_offsets\":[%lld,%lld]}", (long long)*offset, (long long)end);
  *offset = end;
  return KVA_OK;
}

static void add_metadata(kva_text *header, int n, const kva_metadata *metadata) {
  kva_text_add(header, "\"__metadata__\":{");
  for (int i = 0; i < n; i++) {
    if (i) kva_text_add(header, ",");
    kva_text_add_quoted(header, metadata[i].key);
    kva_text_add(header, ":");
    kva_text_add_quoted(header, metadata[i].value);
  }
  kva_text_add(header, "}");
}

static kva_status make_header(int64_t n, const kva_named_tensor *const *order, int n_metadata,
                              const kva_metadata *metadata, const kva_loc *loc, kva_diag *diag, kva_text *header) {
  int64_t offset = 0;
  kva_text_add(header, "{");
  if (n_metadata) add_metadata(header, n_metadata, metadata);
  for (int64_t i = 0; i < n; i++) {
    if (i || n_metadata) kva_text_add(header, ",");
    KVA_TRY(add_tensor(header, order[i], &offset, loc, diag));
  }
  kva_text_add(header, "}");
  while (header->len % HEADER_ALIGNMENT && !header->cut) kva_text_add(header, " ");
  if (header->cut) return kva_fail(diag, KVA_NO_MEMORY, loc, "no memory for a header of %lld tensors", (long long)n);
  if (header->len <= KVA_SAFETENSORS_MAX_HEADER) return KVA_OK;
  return kva_fail(diag, KVA_UNSUPPORTED, loc, "the names of %lld tensors need a header of more than %d bytes",
                  (long long)n, KVA_SAFETENSORS_MAX_HEADER);
}

static kva_status write_file(const char *path, int64_t n, const kva_named_tensor *const *order, const kva_text *header,
                             kva_diag *diag) {
  kva_loc loc = {.file = path};
  kva_file_part *parts = calloc((size_t)n + 2, sizeof *parts);
  if (!parts || n > INT32_MAX - 2) {
    free(parts);
    return kva_fail(diag, KVA_NO_MEMORY, &loc, "no memory for a table of %lld tensors", (long long)n);
  }
  unsigned char length[8];
  for (int i = 0; i < 8; i++) length[i] = (unsigned char)(header->len >> 8 * i);
  parts[0] = (kva_file_part){length, sizeof length};
  parts[1] = (kva_file_part){header->data, header->len};
  for (int64_t i = 0; i < n; i++)
    parts[2 + i] = (kva_file_part){order[i]->tensor.data, (size_t)kva_tensor_bytes(&order[i]->tensor)};
  kva_status status = kva_file_write_parts(path, (int)n + 2, parts, diag);
  free(parts);
  return status;
}

kva_status kva_safetensors_write(const char *path, int64_t n_tensors, const kva_named_tensor *tensors, int n_metadata,
                                 const kva_metadata *metadata, kva_diag *diag) {
  kva_loc loc = {.file = path};
  const kva_named_tensor **order = calloc((size_t)n_tensors + 1, sizeof *order);
  if (!order) return kva_fail(diag, KVA_NO_MEMORY, &loc, "no memory for a table of %lld tensors", (long long)n_tensors);
  for (int64_t i = 0; i < n_tensors; i++) order[i] = &tensors[i];
  qsort(order, (size_t)n_tensors, sizeof *order, by_size_and_name);
  kva_text header = {0};
  kva_status status = make_header(n_tensors, order, n_metadata, metadata, &loc, diag, &header);
  if (status == KVA_OK) status = write_file(path, n_tensors, order, &header, diag);
  kva_text_free(&header);
  free(order);
  return status;
}
