/* Internals of device cuda, shared by runtime/cuda/ and device_cuda.c. */
#ifndef KVA_RUNTIME_CUDA_CUDA_H
#define KVA_RUNTIME_CUDA_CUDA_H

#include "runtime/cuda/api.h"
#include "runtime/device.h"

/* Pinned memory that host copies go through: a ring of slots. A slot is free again once its event has completed. */
enum { CUDA_SLOTS = 4, CUDA_SLOT_BYTES = 1 << 20 };
typedef struct cuda_slot {
  void *host;
  cu_event done;
  bool busy; /* a copy to the device may still read it */
} cuda_slot;

typedef struct cuda_recordings cuda_recordings;
typedef struct cuda_blas cuda_blas;
typedef struct cuda_peers cuda_peers;

typedef struct cuda_device {
  kva_device base;
  kva_cuda_api api;
  cu_device device;
  cu_context context;
  cu_stream stream;
  char arch[16]; /* compute capability: "sm_90" */
  const kva_artifact *artifact;
  cu_module module;
  int32_t format;          /* kva_code_format of the module */
  cu_function *functions;  /* indexed by kernel */
  kva_kernel_facts *facts; /* likewise */
  uint32_t *most_blocks;   /* likewise: of a cooperative launch */
  void **params;           /* of the current launch; sized for the kernel with the most */
  cu_tensor_map *maps;     /* likewise */
  cuda_slot slots[CUDA_SLOTS];
  int next_slot;
  cu_event *marks;
  int32_t n_marks;
  cuda_recordings *recordings; /* NULL: disabled */
  cuda_blas *blas;             /* NULL: the artefact has no GEMM steps */
  cuda_peers *peers;           /* NULL: the host exchanges what processes exchange */
  kva_text error;
} cuda_device;

/* Sets the device's error text unless `result` is success. `what` names the call or its purpose. */
kva_status kva_cuda_check(cuda_device *d, cu_result result, const char *what);
kva_status kva_cuda_fail(cuda_device *d, kva_status status, const char *fmt, ...) KVA_PRINTF(3, 4);
/* Makes the context current in the calling thread and clears the last error. Every entry point calls this first. */
kva_status kva_cuda_enter(cuda_device *d);

static inline cu_pointer kva_cuda_address(const void *p) {
  return (cu_pointer)(uintptr_t)p;
}

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */

kva_status kva_cuda_create_slots(cuda_device *d);
void kva_cuda_destroy_slots(cuda_device *d);
kva_status kva_cuda_allocate(kva_device *d, int64_t bytes, kva_block *out_block);
void kva_cuda_free(kva_device *d, kva_block *block);
kva_status kva_cuda_copy_in(kva_device *d, void *to, const void *from, int64_t bytes);
kva_status kva_cuda_copy_out(kva_device *d, void *to, const void *from, int64_t bytes);
kva_status kva_cuda_copy(kva_device *d, void *to, const void *from, int64_t bytes);

/* ---- module.c: the artefact's code ------------------------------------------------------------------------------- */

kva_status kva_cuda_load(kva_device *d, const kva_artifact *a, kva_diag *diag);
kva_status kva_cuda_launch(kva_device *d, const kva_device_launch *launch);
void kva_cuda_facts(const kva_device *d, int32_t kernel, kva_kernel_facts *out);

/* ---- record.c: whole runs as CUDA graphs ------------------------------------------------------------------------- */

cuda_recordings *kva_cuda_recordings_create(void); /* NULL: no memory */
void kva_cuda_recordings_destroy(cuda_device *d);
bool kva_cuda_is_capturing(const cuda_device *d);
kva_status kva_cuda_begin(kva_device *d, const kva_device_run *run, bool *out_done);
kva_status kva_cuda_end(kva_device *d, const kva_device_run *run, bool failed);

/* ---- gemm.c ------------------------------------------------------------------------------------------------------ */

KVA_MUST_USE kva_status kva_cuda_blas_create(cuda_device *d, kva_diag *diag);
void kva_cuda_blas_destroy(cuda_device *d);
bool kva_cuda_supports(const kva_device *d, int32_t call);
kva_status kva_cuda_call(kva_device *d, const kva_device_call *call); /* KVA_CALL_GEMM */

/* ---- nccl.c: exchange between processes -------------------------------------------------------------------------- */

kva_status kva_cuda_join(kva_device *d, kva_comm *comm, kva_diag *diag);
void kva_cuda_peers_destroy(cuda_device *d);
bool kva_cuda_exchanges(const kva_device *d, const kva_program *p, const kva_step_desc *step);
kva_status kva_cuda_exchange(kva_device *d, kva_comm *group, const kva_device_call *call, int32_t number);
kva_status kva_cuda_await(kva_device *d, int32_t number);
kva_status kva_cuda_exchanged(kva_device *d, int32_t number, double *out_seconds);

#endif
