/* Functions of the graph IR executed as PTX on the simulator: a kva_executor (tools/verify/cases.h). */
#ifndef KVA_TESTS_SUPPORT_PTX_H
#define KVA_TESTS_SUPPORT_PTX_H

#include "codegen/codegen.h"
#include "runtime/ptxsim/ptxsim.h"
#include "tools/verify/cases.h"

typedef struct ptx_run {
  const char *arch;
  kva_pool *pool;          /* blocks in parallel; NULL: in order */
  bool lazy;               /* asynchronous copies land at the wait that covers them */
  bool in_place;           /* result 0 of every node lies where operand 0 does */
  const char *unsupported; /* out: why a kernel has no code or does not load; lives in `reason` */
  char reason[160];
  uint32_t kernels, launches; /* out, added up */
  uint32_t maps;              /* out, of the last kernel */
  kva_ptx_counters counters;  /* out, of the last launch */
} ptx_run;

/* user: a ptx_run. Every buffer is a range of its own, exactly as long as its elements. Findings are failures. */
kva_status ptx_execute(void *user, kva_module *m, kva_function *f, const kva_wide *const *inputs, kva_wide **outputs,
                       kva_diag *diag);

#endif
