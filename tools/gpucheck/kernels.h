/* Kernels with which a GPU is checked and timed. A new kernel is a row of the table. */
#ifndef KVA_TOOLS_GPUCHECK_KERNELS_H
#define KVA_TOOLS_GPUCHECK_KERNELS_H

#include <stdbool.h>

typedef struct gpu_kernel {
  const char *name; /* also the peer's name in peer.py */
  const char *model;
  const char *small, *large; /* pins of the model's symbols: "M=64 K=96"; large: the timed size */
  double flops, bytes;       /* of the large size; 0: not a measure for it */
  double tolerance;          /* units of the result's type at the largest result */
  bool library;              /* the device's library computes matrix products */
} gpu_kernel;

extern const gpu_kernel gpu_kernels[];
extern const int gpu_n_kernels;

#endif
