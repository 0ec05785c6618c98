/* A stand-in for libcuda, libcublasLt and libnccl over the PTX simulator, for machines without a GPU: what device cuda
 * calls, with the driver's contract enforced.
 *
 *   - Work in a stream happens as late as the contract allows: when somebody waits for it. Results that are read
 *     without waiting are not there; host memory that is reused too early sends the wrong bytes.
 *   - Device memory cannot be touched by the host: it is protected but for the moments when work runs. Freed memory
 *     never comes back; work that reaches it fails.
 *   - Parameters of a launch are copied when it is called, as many and as large as the kernel's PTX says.
 *   - Calls that the driver refuses while a stream is captured are refused.
 *
 * What the driver would not notice but is wrong (leaks, unpinned copies, use of dead handles) is told on stderr and
 * counted: fake_cuda_violations(). Environment: FAKE_CUDA_DEVICES (1), FAKE_CUDA_CAPABILITY (90), FAKE_CUDA_DRIVER
 * (12040), FAKE_CUDA_LOCAL_BYTES (what every kernel is said to have), FAKE_CUDA_INJECT (driver.c). One thread at a
 * time. */
#ifndef KVA_TESTS_FAKE_CUDA_FAKE_H
#define KVA_TESTS_FAKE_CUDA_FAKE_H

#include "runtime/cuda/api.h"
#include "runtime/ptxsim/ptxsim.h"

#define EXPORT __attribute__((visibility("default")))

/* The functions under the driver's names, declared from the table that the device calls them through. */
#define FAKE_DECLARE(name, symbol, params) EXPORT cu_result fake_##name params __asm__(symbol);
KVA_CUDA_FUNCTIONS(FAKE_DECLARE)
KVA_CUDA_OPTIONAL_FUNCTIONS(FAKE_DECLARE)
KVA_BLAS_FUNCTIONS(FAKE_DECLARE)
KVA_NCCL_FUNCTIONS(FAKE_DECLARE)
EXPORT const char *fake_ncclGetErrorString(nccl_result result) __asm__("ncclGetErrorString");
EXPORT size_t fake_cublasLtGetVersion(void) __asm__("cublasLtGetVersion");
EXPORT int fake_cuda_violations(void);
/* How often a recorded graph was launched. */
EXPORT int fake_cuda_graph_launches(void);

enum {
  ERROR_INVALID_CONTEXT = 201,
  ERROR_INVALID_HANDLE = 400,
  ERROR_NOT_READY = 600,
  ERROR_ILLEGAL_ADDRESS = 700,
  ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
  ERROR_INVALID_CLUSTER_SIZE = 912,
  ERROR_CAPTURE_UNSUPPORTED = 900,
  ERROR_CAPTURE_INVALIDATED = 901,
};

/* ---- work -------------------------------------------------------------------------------------------------------- */

typedef struct fake_function {
  const kva_ptx_kernel *kernel;
  uint32_t most_dynamic;
  struct cu_module_object *module;
} fake_function;

typedef struct fake_matrix {
  int type;
  uint64_t rows, columns;
  int64_t leading, step;
  int32_t batch;
} fake_matrix;

typedef struct fake_gemm {
  fake_matrix a, b, d;
  const void *pa, *pb;
  void *pd;
  int32_t transpose_a, transpose_b;
} fake_gemm;

typedef enum fake_op_kind {
  FAKE_COPY,
  FAKE_FILL,
  FAKE_KERNEL,
  FAKE_EVENT,
  FAKE_AWAIT,
  FAKE_GEMM,
  FAKE_TRANSFER,
} fake_op_kind;
typedef struct fake_op {
  fake_op_kind kind;
  void *to; /* COPY, FILL */
  const void *from;
  size_t bytes;
  unsigned char value;
  const fake_function *function; /* KERNEL */
  kva_ptx_dim3 grid, block;
  uint32_t dynamic;
  bool cooperative;
  unsigned char *params; /* malloc'd, each on its offset; of TRANSFER what nccl.c needs */
  cu_event event;        /* EVENT, AWAIT: of this record of it */
  uint64_t record;
  fake_gemm gemm;
} fake_op;

typedef struct fake_ops {
  fake_op *data;
  size_t n;
} fake_ops;

/* Adds to a stream, or to what it is recording. `op`'s params become the stream's. */
cu_result fake_enqueue(cu_stream stream, const fake_op *op);
/* Runs what is queued; the first failure stays the answer of all later calls. */
cu_result fake_wait(cu_stream stream);
/* Runs one operation; device memory is open. */
cu_result fake_run(const fake_op *op);

/* The error that all calls give: no context, or an earlier failure. */
cu_result fake_state(void);
cu_result fake_failure(void);
void fake_forget_failure(void); /* with the context */
bool fake_capturing(void);
void fake_invalidate_capture(void);
void fake_violation(const char *fmt, ...) KVA_PRINTF(1, 2);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

bool fake_is_device(const void *p, size_t bytes); /* inside one live allocation */
bool fake_is_pinned(const void *p, size_t bytes);
void fake_open_memory(bool open);
/* All live allocations, for a kernel. */
kva_status fake_register(kva_ptx_memory *memory);
int fake_live_blocks(void);

/* What blas.c and nccl.c do when their turn comes. */
void fake_multiply(const fake_gemm *g);
cu_result fake_transfer(const fake_op *op);
/* The GPU of the context. */
int fake_ordinal(void);

#endif
