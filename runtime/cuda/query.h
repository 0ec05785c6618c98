/* What a machine offers for device cuda: for `kvasir doctor`, and to choose what to compile for. */
#ifndef KVA_RUNTIME_CUDA_QUERY_H
#define KVA_RUNTIME_CUDA_QUERY_H

#include "runtime/base/base.h"

enum { KVA_GPU_MOST = 16 };

typedef struct kva_gpu {
  char name[128];
  int major, minor; /* compute capability */
  int multiprocessors;
  int64_t memory;     /* bytes */
  const char *target; /* what Kvasir compiles for it: "sm_90a"; NULL: too old */
} kva_gpu;

typedef struct kva_gpu_report {
  int driver; /* the newest CUDA that it serves: 12040 is 12.4; 0: no driver */
  int n_gpus;
  kva_gpu gpus[KVA_GPU_MOST]; /* the first is the one that device cuda uses */
  size_t blas;                /* cuBLASLt's version, 130000 and so on; 0: none */
  char blas_path[256];
  char driver_error[512], blas_error[512]; /* why not; "" where there is one */
} kva_gpu_report;

void kva_gpu_query(kva_gpu_report *out);

/* Newest PTX version that a driver of this CUDA version takes, 83 is 8.3; 0: unknown, too old for Kvasir. */
int kva_gpu_ptx_version(int driver);

/* KVA_MISSING with the reason when there is no cuBLASLt for device cuda. *out_path: where it is; static storage or the
 * environment's. */
KVA_MUST_USE kva_status kva_gpu_find_blas(kva_diag *diag, const char **out_path);

/* KVA_MISSING with the reason when device cuda cannot run here. *out_arch: what to compile for. */
KVA_MUST_USE kva_status kva_gpu_probe(kva_diag *diag, const char **out_arch);

#endif
