/* safetensors files: named tensors behind a JSON header. Format: eight bytes of header length (little endian), the
 * header, padded with spaces, then the tensors' bytes without gaps.
 *
 * The reader trusts nothing: invalid sizes or UTF-8, duplicate names, unknown types, and offsets that overlap, leave
 * gaps or lie outside the file are errors. Memory grows with the header only, and nothing recurses. */
#ifndef KVA_RUNTIME_SAFETENSORS_H
#define KVA_RUNTIME_SAFETENSORS_H

#include "runtime/runtime.h"

/* The reference implementation has the same limit. */
enum { KVA_SAFETENSORS_MAX_HEADER = 100000000 };

typedef struct kva_safetensors kva_safetensors;

/* Maps a file. Types: BOOL, U8 to U64, I8 to I64, F16, BF16, F32, F64, F8_E4M3, F8_E5M2, F8_E8M0, C64; at most
 * KVA_ABI_MAX_RANK dimensions (more are KVA_UNSUPPORTED). */
KVA_MUST_USE kva_status kva_safetensors_open(const char *path, kva_diag *diag, kva_safetensors **out_file);
/* Like kva_safetensors_open, from memory, which must outlive the result; `path` is for messages. */
KVA_MUST_USE kva_status kva_safetensors_parse(const char *path, const void *data, size_t size, kva_diag *diag,
                                              kva_safetensors **out_file);
void kva_safetensors_close(kva_safetensors *file);

int64_t kva_safetensors_count(const kva_safetensors *file);
/* Tensor i in order of names; returns its name. The data are borrowed from the file, read-only and aligned to their
 * elements. */
const char *kva_safetensors_at(const kva_safetensors *file, int64_t i, kva_tensor *out_tensor);
/* The pages of its data need not stay in memory: who still reads them causes them to be read again. */
void kva_safetensors_release(const kva_safetensors *file, int64_t i);
/* Where tensor i begins in the file's data, which follow the header, in bytes. */
int64_t kva_safetensors_offset(const kva_safetensors *file, int64_t i);
bool kva_safetensors_find(const kva_safetensors *file, const char *name, kva_tensor *out_tensor);
/* A value of "__metadata__"; NULL: no such key. */
const char *kva_safetensors_metadata(const kva_safetensors *file, const char *key);

typedef struct kva_named_tensor {
  const char *name;
  kva_tensor tensor;
} kva_named_tensor;
typedef struct kva_metadata {
  const char *key, *value;
} kva_metadata;
/* Writes a file atomically (kva_file_write). Metadata keep the given order. Tensors are sorted by element size, largest
 * first, so that all are aligned, then by name. Types that the format lacks are KVA_UNSUPPORTED. */
KVA_MUST_USE kva_status kva_safetensors_write(const char *path, int64_t n_tensors, const kva_named_tensor *tensors,
                                              int n_metadata, const kva_metadata *metadata, kva_diag *diag);

/* The format's name of a type, and the type of a name; NULL or KVA_DTYPE_NONE if there is none. */
const char *kva_safetensors_dtype_name(kva_dtype t);
kva_dtype kva_safetensors_dtype(const char *name, size_t size);

#endif
