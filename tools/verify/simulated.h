/* Functions of the graph IR executed as PTX on the simulator: a kva_executor (tools/verify/cases.h). */
#ifndef KVA_TOOLS_VERIFY_SIMULATED_H
#define KVA_TOOLS_VERIFY_SIMULATED_H

#include "codegen/codegen.h"
#include "runtime/ptxsim/ptxsim.h"
#include "tools/verify/cases.h"

typedef struct kva_ptx_traffic {
  uint64_t load_sectors, store_sectors;  /* of 32 bytes */
  uint64_t wavefronts, ideal_wavefronts; /* of shared memory */
  uint64_t instructions;                 /* of threads */
} kva_ptx_traffic;

enum { KVA_PTX_UNWRITTEN = 0xA5, KVA_PTX_MAX_RESULTS = 8 };

/* A successful launch, for repeating it. */
typedef struct kva_ptx_step {
  const char *text, *kernel; /* of the module; the kernel's name */
  const kva_ptx_memory *memory;
  kva_ptx_dim3 grid, block;
  uint32_t dynamic_bytes, n_params, n_results;
  bool cooperative; /* the launch */
  const void *const *params;
  size_t operand_bytes; /* each operand counted once */
  struct {
    void *data;
    size_t bytes;
  } results[KVA_PTX_MAX_RESULTS]; /* initially filled with KVA_PTX_UNWRITTEN */
} kva_ptx_step;

typedef struct kva_ptx_run {
  const char *arch;
  kva_pool *pool;                /* blocks in parallel; NULL: in order */
  bool lazy;                     /* asynchronous copies land at the wait that covers them */
  bool in_place;                 /* result 0 of every node shares memory with operand 0 */
  bool alias_views;              /* as in a plan: a reshape aliases its operand and has no kernel */
  const struct kva_cache *cache; /* kva_target_options.cache */
  uint32_t kernels, launches;    /* out, added up */
  uint32_t maps;                 /* out, of the last kernel */
  kva_ptx_counters counters;     /* out, of the last launch */
  kva_ptx_traffic traffic;       /* out, added up */
  void (*visit)(void *user, const kva_ptx_step *step); /* called after each launch, or NULL; must not change results */
  void (*visit_text)(void *user, const char *ptx);     /* called with each function's PTX, or NULL */
  void *visitor;                                       /* their user */
  bool (*skips)(const char *kernel);                   /* kernels to skip: their results are zeros; or NULL */
} kva_ptx_run;

/* user: a kva_ptx_run. Every buffer is a separate range of exactly its size. Findings are failures. */
kva_status kva_run_ptx(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                       kva_ref_tensor **outputs, kva_diag *diag);

#endif
