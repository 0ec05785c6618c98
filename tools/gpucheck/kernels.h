/* Kernels with which a GPU is checked and timed. A new kernel is a row of the table. */
#ifndef KVA_TOOLS_GPUCHECK_KERNELS_H
#define KVA_TOOLS_GPUCHECK_KERNELS_H

#include "tools/gpucheck/oracle.h"

typedef struct gpu_kernel {
  const char *name; /* also the peer's name in peer.py */
  const char *model;
  const char *small, *large; /* pins of the model's symbols: "M=64 K=96"; NULL: no such case */
  double flops, bytes;       /* of the large size, which is timed then; both 0: it is checked alone */
  double tolerance;          /* units of the result's type, at the terms of the result */
  gpu_oracle oracle;
  gpu_form form;
  bool library; /* the device's library computes matrix products */
  bool ceiling; /* timed in phase A: what the machine can do */
} gpu_kernel;

extern const gpu_kernel gpu_kernels[];
extern const int gpu_n_kernels;

#endif
