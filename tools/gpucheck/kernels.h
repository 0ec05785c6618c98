/* Kernels with which a GPU is checked and timed. A new kernel is a row of the table. */
#ifndef KVA_TOOLS_GPUCHECK_KERNELS_H
#define KVA_TOOLS_GPUCHECK_KERNELS_H

#include <stdbool.h>

typedef struct gpu_kernel {
  const char *name; /* also the peer's name in peer.py */
  const char *model;
  const char *small, *large; /* pins of the model's symbols: "M=64 K=96"; large: what is timed */
  double flops, bytes;       /* of the large one; 0: not what it is measured by */
  double tolerance;          /* units of the result's type at the largest result */
  bool library;              /* matrix products by the device's library */
} gpu_kernel;

extern const gpu_kernel gpu_kernels[];
extern const int gpu_n_kernels;

#endif
