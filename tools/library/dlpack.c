/* DLPack: tensors of other libraries, borrowed and given. */
#include "tools/library/session.h"

#include <stdlib.h>

_Static_assert(sizeof(kvasir_dl_tensor) == 48, "DLTensor");
_Static_assert(offsetof(kvasir_dl_tensor, type_code) == 20, "DLTensor.dtype");
_Static_assert(offsetof(kvasir_dl_tensor, byte_offset) == 40, "DLTensor.byte_offset");
_Static_assert(sizeof(kvasir_dl_managed) == 64, "DLManagedTensor");
_Static_assert(offsetof(kvasir_dl_versioned, tensor) == 32, "DLManagedTensorVersioned.dl_tensor");

/* DLPack's codes of kinds of types, with the width of an element. */
typedef struct type_row {
  kva_dtype type;
  uint8_t code, bits;
} type_row;
static const type_row types[] = {
    {KVA_I8, 0, 8},        {KVA_I16, 0, 16},        {KVA_I32, 0, 32},    {KVA_I64, 0, 64},        {KVA_U8, 1, 8},
    {KVA_U16, 1, 16},      {KVA_U32, 1, 32},        {KVA_U64, 1, 64},    {KVA_F16, 2, 16},        {KVA_F32, 2, 32},
    {KVA_F64, 2, 64},      {KVA_BF16, 4, 16},       {KVA_C64, 5, 64},    {KVA_C128, 5, 128},      {KVA_BOOL, 6, 8},
    {KVA_F8E4M3FN, 10, 8}, {KVA_F8E4M3FNUZ, 11, 8}, {KVA_F8E5M2, 12, 8}, {KVA_F8E5M2FNUZ, 13, 8}, {KVA_F8E8M0, 14, 8},
};
enum { N_TYPES = sizeof types / sizeof *types, HOST = 1 };

static const type_row *row_of(kva_dtype type) {
  for (size_t i = 0; i < N_TYPES; i++)
    if (types[i].type == type) return &types[i];
  return NULL;
}

static const type_row *row_of_code(const kvasir_dl_tensor *dl) {
  for (size_t i = 0; i < N_TYPES; i++)
    if (types[i].code == dl->type_code && types[i].bits == dl->type_bits && dl->type_lanes == 1) return &types[i];
  return NULL;
}

/* ---- borrowed ---------------------------------------------------------------------------------------------------- */

typedef struct import_job {
  const kvasir_dl_tensor *dl;
  kvasir_tensor *out;
} import_job;

/* Strides of dimensions of extent 1 do not matter, nor do those of a tensor without elements. */
static bool is_dense(const kvasir_dl_tensor *dl, const kva_tensor *t) {
  int64_t expected = 1;
  if (!dl->strides || kva_tensor_bytes(t) == 0) return true;
  for (int32_t d = t->rank; d-- > 0;) {
    if (t->dims[d] != 1 && dl->strides[d] != expected) return false;
    expected *= t->dims[d];
  }
  return true;
}

static kva_status import(void *job, kva_diag *diag) {
  const import_job *j = job;
  const kvasir_dl_tensor *dl = j->dl;
  if (!dl) return kva_error(diag, NULL, "the DLPack tensor is a null pointer");
  const type_row *row = row_of_code(dl);
  if (dl->device_type != HOST)
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "the DLPack tensor is on a device of type %d; copy it to the host",
                    dl->device_type);
  if (!row)
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "DLPack's type with code %d, %d bits and %d lanes is not supported",
                    dl->type_code, dl->type_bits, dl->type_lanes);
  if (dl->rank < 0 || dl->rank > KVASIR_MAX_RANK || (dl->rank && !dl->dims))
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "the DLPack tensor has %d dimensions, at most %d are supported",
                    dl->rank, KVASIR_MAX_RANK);
  kva_tensor t = {.dtype = row->type, .rank = dl->rank, .data = (char *)dl->data + dl->byte_offset};
  for (int32_t d = 0; d < dl->rank; d++) {
    if (dl->dims[d] < 0) return kva_error(diag, NULL, "dimension %d of the DLPack tensor is negative", d);
    t.dims[d] = dl->dims[d];
  }
  if (kva_tensor_bytes(&t) < 0) return kva_error(diag, NULL, "the size of the DLPack tensor overflows");
  if (!is_dense(dl, &t))
    return kva_fail(diag, KVA_UNSUPPORTED, NULL,
                    "the strides of the DLPack tensor are not those of a dense row-major one; copy it first");
  *j->out = kva_public_tensor(&t);
  return KVA_OK;
}

kvasir_status kvasir_tensor_from_dlpack(const kvasir_dl_tensor *dl, kvasir_tensor *out_tensor,
                                        kvasir_messages **out_messages) {
  if (!out_tensor) return kva_library_no_place(out_messages);
  *out_tensor = (kvasir_tensor){0};
  import_job j = {dl, out_tensor};
  return kva_library_call(import, &j, out_messages);
}

/* ---- given ------------------------------------------------------------------------------------------------------- */

enum { ALIGNMENT = 64 };

/* One allocation: the struct, the dimensions, then the elements. */
typedef struct export_block {
  kvasir_dl_managed managed;
  int64_t dims[KVASIR_MAX_RANK];
  _Alignas(ALIGNMENT) char data[];
} export_block;

static void destroy(kvasir_dl_managed *self) {
  if (self) free(self->owner);
}

typedef struct export_job {
  const kvasir_tensor *tensor;
  kvasir_dl_managed **out;
} export_job;

static kva_status export(void *job, kva_diag *diag) {
  const export_job *j = job;
  const kvasir_tensor *t = j->tensor;
  int64_t bytes = kvasir_tensor_bytes(t);
  if (bytes < 0 || (bytes && !t->data)) return kva_error(diag, NULL, "the tensor has no data, or a wrong type or size");
  const type_row *row = row_of((kva_dtype)t->type);
  if (!row) return kva_fail(diag, KVA_UNSUPPORTED, NULL, "DLPack has no type %s", kvasir_type_name(t->type));
  size_t size = (sizeof(export_block) + (size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  export_block *b = aligned_alloc(ALIGNMENT, size);
  if (!b) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a copy of %lld bytes", (long long)bytes);
  memcpy(b->dims, t->dims, sizeof b->dims);
  if (bytes) memcpy(b->data, t->data, (size_t)bytes);
  const kvasir_dl_tensor dl = {.data = b->data,
                               .device_type = HOST,
                               .rank = t->rank,
                               .type_code = row->code,
                               .type_bits = row->bits,
                               .type_lanes = 1,
                               .dims = b->dims};
  b->managed = (kvasir_dl_managed){dl, b, destroy};
  *j->out = &b->managed;
  return KVA_OK;
}

kvasir_status kvasir_tensor_to_dlpack(const kvasir_tensor *tensor, kvasir_dl_managed **out_managed,
                                      kvasir_messages **out_messages) {
  if (!out_managed) return kva_library_no_place(out_messages);
  *out_managed = NULL;
  export_job j = {tensor, out_managed};
  return kva_library_call(export, &j, out_messages);
}
