/* NumPy's .npy files: one dense tensor each. Format: numpy.lib.format, versions 1.0 to 3.0. */
#ifndef KVA_RUNTIME_NPY_H
#define KVA_RUNTIME_NPY_H

#include "runtime/runtime.h"

/* Reads a file of either byte order, in C or Fortran order. *out_tensor owns its data; free it with kva_npy_free.
 * wanted: the type that is expected (KVA_DTYPE_NONE: any). It says what elements of type V1 are, as package ml_dtypes
 * calls float8 types and those of 4 and 2 bits; where it is no such type, V1 is KVA_UNSUPPORTED. A type of 4 or 2 bits
 * is also made of the one that kva_npy_write widens it to, whose elements must fit. A file of another type is read as
 * it is. */
KVA_MUST_USE kva_status kva_npy_read(const char *path, kva_dtype wanted, kva_diag *diag, kva_tensor *out_tensor);
/* Like kva_npy_read, from memory; `path` is for messages. */
KVA_MUST_USE kva_status kva_npy_parse(const char *path, const void *data, size_t size, kva_dtype wanted, kva_diag *diag,
                                      kva_tensor *out_tensor);
/* Like kva_npy_parse, without a copy: out_tensor->data points into `data`, may be unaligned, and is read-only.
 * Big-endian elements and those in Fortran order are KVA_UNSUPPORTED. */
KVA_MUST_USE kva_status kva_npy_view(const char *path, const void *data, size_t size, kva_diag *diag,
                                     kva_tensor *out_tensor);
void kva_npy_free(kva_tensor *tensor);

/* Writes t (version 1.0), atomically. Of the types that NumPy lacks bfloat16 and float8 are written as package
 * ml_dtypes does (V2, V1), so that `numpy.load(file).view(ml_dtypes.bfloat16)` reads them; those of 4 and 2 bits are
 * widened: floats to float32, integers to int8 or uint8. Strings are KVA_UNSUPPORTED. */
KVA_MUST_USE kva_status kva_npy_write(const char *path, const kva_tensor *t, kva_diag *diag);

#endif
