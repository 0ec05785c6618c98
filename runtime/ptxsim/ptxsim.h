/* A functional simulator of PTX: runs kernels without a GPU and detects errors that a GPU does not report.
 *
 *   kva_ptx_module_create(text) -> kva_ptx_module_get_kernel(name) -> kva_ptx_memory_add(...) -> kva_ptx_launch(...)
 *
 * Global addresses are host addresses: a kernel's pointer parameter points into a range registered with
 * kva_ptx_memory_add. Any other access is out of bounds: it is reported and not performed; loads then give all ones.
 *
 * Invalid PTX is a diagnostic. An error at run time is a finding in the report, with the line of the PTX text.
 * docs/ptxsim.md lists instructions, checks and limits. */
#ifndef KVA_RUNTIME_PTXSIM_PTXSIM_H
#define KVA_RUNTIME_PTXSIM_PTXSIM_H

#include "runtime/base/base.h"

/* ---- modules ----------------------------------------------------------------------------------------------------- */

typedef struct kva_ptx_module kva_ptx_module;
typedef struct kva_ptx_kernel kva_ptx_kernel;

/* Parses `text` (`size` bytes, no NUL needed; copied). `name` is for messages. KVA_INVALID or KVA_UNSUPPORTED with
 * line, column and reason in diag; *out_module is then NULL. */
KVA_MUST_USE kva_status kva_ptx_module_create(const char *text, size_t size, const char *name, kva_diag *diag,
                                              kva_ptx_module **out_module);
void kva_ptx_module_destroy(kva_ptx_module *module);

const kva_ptx_kernel *kva_ptx_module_get_kernel(const kva_ptx_module *module, const char *name); /* NULL: none */
uint32_t kva_ptx_module_n_kernels(const kva_ptx_module *module);
const kva_ptx_kernel *kva_ptx_module_kernel_at(const kva_ptx_module *module, uint32_t i);
/* Storage of a .global or .const variable, initialised at creation and kept across launches; NULL: none. */
void *kva_ptx_module_get_global(const kva_ptx_module *module, const char *name, size_t *out_size);

typedef struct kva_ptx_param {
  const char *name;
  uint32_t size, align, offset; /* bytes */
  bool pointer;                 /* a single .u64 or .b64 */
} kva_ptx_param;

typedef struct kva_ptx_kernel_info {
  const char *name;
  uint32_t n_params;
  const kva_ptx_param *params;
  uint32_t static_shared, local; /* bytes: per CTA, per thread */
  uint32_t max_threads[3];       /* .maxntid; 0: not given */
  uint32_t required_threads[3];  /* .reqntid; 0: not given */
  uint32_t cluster[3];           /* .reqnctapercluster, in CTAs; 0: not given */
  uint32_t max_cluster;          /* .maxclusterrank; 0: not given */
  uint32_t n_instructions;
  uint32_t line; /* line of .entry */
} kva_ptx_kernel_info;
const kva_ptx_kernel_info *kva_ptx_kernel_get_info(const kva_ptx_kernel *kernel);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The ranges of host memory that kernels may access. The module's own variables are always accessible. */
typedef struct kva_ptx_memory kva_ptx_memory;
kva_ptx_memory *kva_ptx_memory_create(void);
void kva_ptx_memory_destroy(kva_ptx_memory *memory);
/* Registers [base, base + size), which must not overlap another range; `name` (copied) is for findings. KVA_INVALID on
 * an overlap or an address beyond 2^47. Size 0 is allowed and makes nothing accessible. */
KVA_MUST_USE kva_status kva_ptx_memory_add(kva_ptx_memory *memory, void *base, size_t size, bool writable,
                                           const char *name);
/* Like kva_ptx_memory_add, for undefined contents: loads of words that no kernel has written are findings. */
KVA_MUST_USE kva_status kva_ptx_memory_add_undefined(kva_ptx_memory *memory, void *base, size_t size, const char *name);

/* ---- tensor maps ------------------------------------------------------------------------------------------------- */

enum { KVA_PTXSIM_MAP_RANK = 5, KVA_PTXSIM_MAP_BYTES = 128 };
/* Like the arguments of cuTensorMapEncodeTiled, innermost dimension first. Element strides are 1. Elements outside of
 * dims read as 0 and are not stored. */
typedef struct kva_ptxsim_map {
  kva_dtype dtype;
  uint32_t rank;                         /* 1 to 5 */
  void *address;                         /* a multiple of 16 */
  uint64_t dims[KVA_PTXSIM_MAP_RANK];    /* elements, 1 to 2^32 */
  uint64_t strides[KVA_PTXSIM_MAP_RANK]; /* bytes, a multiple of 16 below 2^40; [0] is not read */
  uint32_t box[KVA_PTXSIM_MAP_RANK];     /* elements, 1 to 256; innermost extent: a multiple of 16 bytes */
  uint32_t swizzle; /* 0 (none), 32, 64, 128: bytes, then equal to the innermost extent of the box */
} kva_ptxsim_map;
/* Encodes a map for the simulator, in an encoding that differs from the hardware's. KVA_INVALID or KVA_UNSUPPORTED with
 * a message in diag. */
KVA_MUST_USE kva_status kva_ptxsim_encode_map(const kva_ptxsim_map *map, kva_diag *diag,
                                              unsigned char out[KVA_PTXSIM_MAP_BYTES]);

/* ---- launches ---------------------------------------------------------------------------------------------------- */

typedef struct kva_ptx_dim3 {
  uint32_t x, y, z;
} kva_ptx_dim3;

enum { KVA_PTX_RESIDENT = 16 /* CTAs of a cooperative launch */ };
typedef struct kva_ptx_options {
  kva_pool *pool;         /* runs CTAs in parallel; NULL: in order in the caller, which is deterministic */
  bool unchecked_shared;  /* skips checks for uninitialised reads and races of shared memory (about twice as fast there)
                           */
  bool check_global;      /* checks global memory for data races; CTAs run in order; takes some 40 bytes per granule of
                             memory, the kernel's narrowest access (at most 4 bytes) */
  bool no_counters;       /* skips sectors and bank conflicts */
  bool lazy;              /* asynchronous copies land at the wait that covers them, not at issue */
  bool cooperative;       /* a cooperative launch: all CTAs, KVA_PTX_RESIDENT at most, run at once. A kernel whose CTAs
                             wait for each other needs it */
  uint64_t schedule_seed; /* 0: warps run round robin; else in random order */
  uint64_t max_steps;     /* limit on a CTA's warp instructions, against endless loops; 0: 2^28 */
  kva_ptx_dim3 cluster;   /* the launch's attribute, in CTAs; 0: that of the kernel, or none */
  uint64_t max_total;     /* limit on the grid's; 0: 2^40. Checked where a CTA starts or has spent 2^16 */
} kva_ptx_options;

/* X(NAME, text) */
#define KVA_PTX_FINDINGS(X)                                      \
  X(GLOBAL_BOUNDS, "global access out of bounds")                \
  X(GLOBAL_READ_ONLY, "store to read-only memory")               \
  X(SHARED_BOUNDS, "shared access out of bounds")                \
  X(LOCAL_BOUNDS, "local access out of bounds")                  \
  X(PARAM_BOUNDS, "parameter access out of bounds")              \
  X(MISALIGNED, "misaligned access")                             \
  X(SHARED_UNINITIALIZED, "read of uninitialised shared memory") \
  X(SHARED_RACE, "data race on shared memory")                   \
  X(GLOBAL_UNINITIALIZED, "read of undefined global memory")     \
  X(GLOBAL_RACE, "data race on global memory")                   \
  X(ASYNC_PENDING, "pending asynchronous copy")                  \
  X(MISSING_FENCE, "missing fence")                              \
  X(IN_FLIGHT, "register of a product in flight")                \
  X(MBARRIER, "misused mbarrier")                                \
  X(TX_LEAK, "bytes expected and not received")                  \
  X(DIVERGENT_BARRIER, "barrier reached by part of a warp")      \
  X(BARRIER_COUNT, "wrong thread count of a barrier")            \
  X(CLUSTER, "shared memory of a CTA that may not run")          \
  X(DEADLOCK, "deadlock")                                        \
  X(INACTIVE_LANE, "warp instruction that needs inactive lanes") \
  X(OPERAND, "operand outside the values that are defined")      \
  X(TRAP, "trap")                                                \
  X(STEP_LIMIT, "too many instructions: endless loop?")

typedef enum kva_ptx_finding_kind {
#define KVA_PTX_FINDING_ENUM(name, text) KVA_PTX_##name,
  KVA_PTX_FINDINGS(KVA_PTX_FINDING_ENUM)
#undef KVA_PTX_FINDING_ENUM
      KVA_PTX_N_FINDINGS
} kva_ptx_finding_kind;
const char *kva_ptx_finding_name(kva_ptx_finding_kind kind);

/* The first occurrence at a line, and the number of occurrences there. */
typedef struct kva_ptx_finding {
  kva_ptx_finding_kind kind;
  uint32_t line;        /* of the PTX text */
  uint32_t other_line;  /* the other access of a race; 0: none */
  uint32_t source_line; /* line of the last .loc before it; 0: none */
  uint64_t count;
  kva_ptx_dim3 cta, thread;
  char detail[200];
} kva_ptx_finding;

/* X(NAME, text): classes of instructions */
#define KVA_PTX_CLASSES(X)                      \
  X(INTEGER, "integer")                         \
  X(FLOAT, "float")                             \
  X(SPECIAL, "special function")                \
  X(CONVERT, "convert")                         \
  X(MOVE, "move, compare, select")              \
  X(BRANCH, "branch")                           \
  X(GLOBAL, "global load, store")               \
  X(SHARED, "shared load, store")               \
  X(OTHER_MEMORY, "local, parameter, constant") \
  X(ATOMIC, "atomic")                           \
  X(WARP, "shuffle, vote")                      \
  X(BARRIER, "barrier, fence")                  \
  X(MATRIX, "matrix")                           \
  X(ASYNC, "asynchronous copy")

typedef enum kva_ptx_class {
#define KVA_PTX_CLASS_ENUM(name, text) KVA_PTX_CLASS_##name,
  KVA_PTX_CLASSES(KVA_PTX_CLASS_ENUM)
#undef KVA_PTX_CLASS_ENUM
      KVA_PTX_N_CLASSES
} kva_ptx_class;
const char *kva_ptx_class_name(kva_ptx_class c);

/* Sums over the grid. A request is one memory instruction of one warp. Bank conflicts are measured as wavefronts: the
 * passes over 32 banks of 4 bytes, at least 1 for each 128 bytes that a request moves. */
typedef struct kva_ptx_counters {
  uint64_t warp_instructions, thread_instructions;
  uint64_t warp_by_class[KVA_PTX_N_CLASSES];
  uint64_t branches, divergent_branches;
  uint64_t global_load_requests, global_load_sectors, global_load_bytes; /* sectors of 32 bytes; bytes asked for */
  uint64_t global_store_requests, global_store_sectors, global_store_bytes;
  uint64_t shared_requests, shared_wavefronts, shared_wavefronts_ideal;
  uint32_t shared_degree_max, shared_degree_max_line; /* worst wavefronts / ideal of one request */
  uint64_t matrix_flops;
} kva_ptx_counters;

typedef struct kva_ptx_report {
  uint32_t n_findings;       /* distinct (kind, line) */
  kva_ptx_finding *findings; /* sorted by line */
  kva_ptx_counters counters;
  uint32_t n_lines;          /* instructions of the kernel, for profiles: */
  uint32_t *lines;           /*   line of instruction i */
  uint64_t *warp_executions; /*   times a warp ran it */
  double seconds;
  uint64_t ctas, ctas_run; /* of the grid, and those that were started: a CTA that runs into a limit ends the launch */
} kva_ptx_report;
void kva_ptx_report_free(kva_ptx_report *report);
/* Prints findings as `name:line: kind: detail`, one per line. */
void kva_ptx_report_print_findings(const kva_ptx_report *report, const char *name, FILE *out);

/* CTAs for `items`: as many or, in a cooperative launch, whole groups of `cooperating` (kva_kernel_desc) that have
 * room; cooperating 0: it is none. */
static inline uint32_t kva_ptx_grid(int64_t items, uint32_t cooperating) {
  int64_t most = cooperating ? KVA_PTX_RESIDENT - KVA_PTX_RESIDENT % cooperating : items;
  return (uint32_t)(items < most ? items : most);
}

/* Runs the grid. params[i] points to the value of parameter i, as for cuLaunchKernel. dynamic_shared is added after the
 * kernel's static shared memory (.extern .shared arrays name it). KVA_INVALID with a message in diag if the launch
 * itself is wrong (sizes, limits). Findings are not errors: check out_report->n_findings. `options` NULL: defaults.
 * Concurrent launches of one module are allowed as far as their data are independent. */
KVA_MUST_USE kva_status kva_ptx_launch(const kva_ptx_kernel *kernel, const kva_ptx_memory *memory, kva_ptx_dim3 grid,
                                       kva_ptx_dim3 block, uint32_t dynamic_shared, const void *const *params,
                                       uint32_t n_params, const kva_ptx_options *options, kva_diag *diag,
                                       kva_ptx_report *out_report);

#endif
