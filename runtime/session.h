/* Inside of a session: shared by the files of runtime/ that implement it, and by nothing else. */
#ifndef KVA_RUNTIME_SESSION_H
#define KVA_RUNTIME_SESSION_H

#include "runtime/base/platform.h"
#include "runtime/memory_plan.h"
#include "runtime/runtime.h"

/* A program and the plan for its last binding. Arrays are as long as the program's lists and never resized. */
typedef struct kva_program_state {
  const kva_program *desc;
  bool bound;         /* `symbols` has a plan */
  int64_t *symbols;   /* values */
  int64_t *candidate; /* values that a run asks for */
  int64_t *bytes;     /* by buffer */
  int64_t *offsets;   /* by buffer: TEMP in the session's arena, OUTPUT in `outputs` */
  int64_t *grids;     /* by step: work items */
  bool *serial;       /* by step: too little work for the pool */
  void **pointers;    /* by buffer, of the run in progress */
  void **args;        /* of the step in progress */
  kva_lifetime *lifetimes;
  int64_t temp_bytes, output_bytes;
  kva_block outputs; /* those that callers leave to the session; made when one does */
  double *seconds;   /* by step, when profiling */
  int64_t *calls;
} kva_program_state;

struct kva_session {
  const kva_artifact *artifact;
  kva_session_options options;
  kva_pool *pool;
  kva_block state_memory;
  kva_tensor *states;
  kva_block temps; /* shared: no temporary lives across runs */
  kva_program_state *programs;
  char error[512];
};

/* Checks all that execution relies on: magic, version, ranges, formulas, lifetimes. */
KVA_MUST_USE kva_status kva_artifact_check(const kva_artifact *a, kva_diag *diag);

/* Fills all states; deterministic in (seed, name, element). */
void kva_initialise_states(kva_session *s);

/* Values of p's symbols from the inputs' shapes, with every shape and type checked. */
KVA_MUST_USE kva_status kva_bind_symbols(kva_session *s, const kva_program *p, const kva_tensor *inputs,
                                         int64_t *out_symbols);

/* Sets the session's error text and returns status. */
kva_status kva_session_fail(kva_session *s, kva_status status, const char *fmt, ...) KVA_PRINTF(3, 4);

#endif
