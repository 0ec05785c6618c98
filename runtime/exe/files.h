/* Runs a program on files, for `kvasir run` and for executables made by `kvasir build`. */
#ifndef KVA_RUNTIME_EXE_FILES_H
#define KVA_RUNTIME_EXE_FILES_H

#include "runtime/exe/options.h"
#include "runtime/runtime.h"

typedef struct kva_run_request {
  const kva_strings *files; /* "name=file", or in order of the inputs: .npy, or raw elements if the shape is known */
  int n_dims;               /* values of shape symbols, for inputs whose shape no .npy file gives; files must agree */
  const kva_symbol_value *dims;
  uint64_t seed;          /* for inputs without a file: floats in (-1, 1), integers 0 or 1 */
  int64_t repeat;         /* number of runs; several print median and spread of their times */
  const char *output_dir; /* outputs are written there; NULL: not written */
  /* Reads a file whose name ends in .pb, with an ONNX TensorProto; data by malloc. NULL: such files are as others. */
  kva_status (*read_proto)(const char *path, kva_diag *diag, kva_tensor *out);
  /* Writes an output as such a file, <name>.pb; NULL: .npy, and .txt of strings. */
  kva_status (*write_proto)(const char *path, const char *name, const kva_tensor *t, kva_diag *diag);
} kva_run_request;

/* Reads or generates the inputs of a program; in: [p->n_inputs], zero, whose data the caller frees, also on failure. */
KVA_MUST_USE kva_status kva_run_inputs(const kva_program *p, const kva_run_request *request, kva_diag *diag,
                                       kva_tensor *in);
/* Reads or generates the inputs, runs the program, prints a line per output and writes the outputs. */
KVA_MUST_USE kva_status kva_run_files(kva_session *s, int program, const kva_run_request *request, kva_diag *diag);

#endif
