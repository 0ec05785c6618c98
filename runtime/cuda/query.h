/* What a machine offers to device cuda, for `kvasir doctor` and for choosing the target. */
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
  int driver; /* newest CUDA version that it supports: 12040 is 12.4; 0: no driver */
  int n_gpus;
  kva_gpu gpus[KVA_GPU_MOST]; /* device cuda uses that of kva_gpu_ordinal */
  size_t blas;                /* version of cuBLASLt, such as 130000; 0: none */
  char blas_path[256];
  int nccl; /* version of NCCL, such as 21803; 0: none */
  char nccl_path[256];
  char driver_error[512], blas_error[512], nccl_error[512]; /* why it is missing; else "" */
} kva_gpu_report;

void kva_gpu_query(kva_gpu_report *out);

/* Newest PTX version that a driver of this CUDA version accepts (83 is 8.3); 0: unknown, too old for Kvasir. */
int kva_gpu_ptx_version(int driver);

/* KVA_MISSING with the reason if there is no cuBLASLt. *out_path is where it was found; static storage or the
 * environment's. */
KVA_MUST_USE kva_status kva_gpu_find_blas(kva_diag *diag, const char **out_path);

/* Bytes that are free on the GPU that device cuda uses; 0: unknown. Costs a context, unless the process has one. */
int64_t kva_gpu_available_memory(void);

/* KVA_MISSING with the reason if device cuda cannot run here. *out_arch is the architecture to compile for. */
KVA_MUST_USE kva_status kva_gpu_probe(kva_diag *diag, const char **out_arch);

/* Which of n GPUs this process uses: a launcher numbers the processes of a host (OMPI_COMM_WORLD_LOCAL_RANK and the
 * like), and they take the GPUs in turn; 0 without one. */
int kva_gpu_ordinal(int n);

#endif
