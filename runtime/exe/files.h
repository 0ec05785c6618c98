/* A program run on files: for `kvasir run` and for executables made by `kvasir build`. */
#ifndef KVA_RUNTIME_EXE_FILES_H
#define KVA_RUNTIME_EXE_FILES_H

#include "runtime/exe/options.h"
#include "runtime/runtime.h"

typedef struct kva_run_request {
  const kva_strings *files; /* "name=file", or in order: .npy, or for a known shape the elements alone */
  int n_dims;               /* values of shape symbols, for inputs that have no .npy file to tell them */
  const kva_symbol_value *dims;
  uint64_t seed;          /* of inputs without a file: floats in (-1, 1), integers 0 or 1 */
  int64_t repeat;         /* runs; the time of the best is printed when there are several */
  const char *output_dir; /* where outputs go as <name>.npy; NULL: nowhere */
} kva_run_request;

/* Reads or makes the inputs, runs, prints a line for every output, writes them. */
KVA_MUST_USE kva_status kva_run_files(kva_session *s, int program, const kva_run_request *request, kva_diag *diag);

#endif
