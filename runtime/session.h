/* Inside of a session: shared by the files of runtime/ that implement it, and by nothing else. */
#ifndef KVA_RUNTIME_SESSION_H
#define KVA_RUNTIME_SESSION_H

#include "runtime/base/platform.h"
#include "runtime/device.h"
#include "runtime/memory_plan.h"
#include "runtime/runtime.h"
#include "runtime/weights.h"

enum {
  KVA_UNBOUND = -1,    /* value of a symbol that has none yet */
  KVA_NO_SEGMENT = -1, /* of symbols that only other programs bind */
};

/* Steps up to one that gives symbols values; see segments.c. */
typedef struct kva_segment {
  int32_t first_step;
  bool planned;
  int64_t *symbols; /* values that it was planned for */
  int64_t bytes;    /* of the arena */
  kva_block block;  /* the arena; of segment 0 of what callers run it is kva_session.temps */
} kva_segment;

/* A program and the plan for its last binding. Arrays are as long as the program's lists and never resized. */
typedef struct kva_program_state {
  const kva_program *desc;
  int64_t *symbols;            /* values; of the run in progress, or the last one */
  int64_t *candidate;          /* for trial */
  int32_t n_segments, segment; /* segment: in progress */
  kva_segment *segments;
  int32_t *symbol_segments; /* by symbol: from where it has a value, or KVA_NO_SEGMENT */
  int32_t *buffer_segments; /* by buffer: where its size is known */
  int64_t *bytes;           /* by buffer */
  int64_t *offsets;         /* by buffer: TEMP in its segment's arena, OUTPUT in `outputs`, or its segment's arena from
                               segment 1 on; on a device with memory of its own INPUT in `outputs`, CONST in `constants` */
  int64_t *grids;           /* by step: work items */
  bool *serial;             /* by step: too little work for the pool */
  int64_t *sizes;           /* of the formulas in steps' descriptors */
  int32_t *sizes_at;        /* by step: where its own begin */
  void **pointers;          /* by buffer, of the run in progress */
  void **args;              /* of the step in progress */
  void **staged;            /* its arguments in host memory, where the host does what a device cannot */
  kva_lifetime *lifetimes, **order;
  int64_t output_bytes, constant_bytes;
  int32_t commit;         /* the first step that changes states after what kva_watches_output names is known */
  kva_block outputs;      /* on the device: those that callers leave to the session; made when one does */
  kva_block constants;    /* on a device with memory of its own */
  kva_block iteration;    /* the body of a loop: its number */
  kva_block *collected;   /* the body of a loop: by result, rows of a number that is not known */
  kva_block host_outputs; /* copies of them, of a device with memory of its own */
  double *seconds;        /* by step, when profiling */
  int64_t *calls;
} kva_program_state;

struct kva_session {
  const kva_artifact *artifact;
  kva_weights *weights; /* owner of the tables where constants come from a file; else NULL */
  kva_session_options options;
  kva_pool *pool;
  kva_device *device;
  kva_block state_memory; /* of the host */
  kva_tensor *states;
  kva_block device_states; /* the same on a device with memory of its own */
  bool host_states;        /* there: state_memory may be newer */
  bool device_newer;       /* there: device_states may be newer */
  kva_block temps;         /* shared: no temporary lives across runs */
  kva_block staging;       /* of the host: arguments of calls that the device leaves to it */
  kva_program_state *programs;
  bool guarded; /* a run stops before `commit` when a watched output is not finite */
  char error[2048];
};

/* Checks all that execution relies on: magic, version, ranges, formulas, lifetimes. */
KVA_MUST_USE kva_status kva_artifact_check(const kva_artifact *a, kva_diag *diag);

/* Its part for steps that depend on data, once all tables are there. */
KVA_MUST_USE kva_status kva_artifact_check_control(const kva_artifact *a, kva_diag *diag);

/* Fills all states; deterministic in (seed, name, element). */
void kva_initialise_states(kva_session *s);

/* Values of p's symbols from the inputs' shapes, with every shape and type checked. */
KVA_MUST_USE kva_status kva_bind_symbols(kva_session *s, const kva_program_state *sp, const kva_tensor *inputs,
                                         int64_t *out_symbols);

/* Runs one step with the addresses of the run in progress; steps in order, from kva_session_rewind on. */
KVA_MUST_USE kva_status kva_session_step(kva_session *s, kva_program_state *sp, int32_t index);
KVA_MUST_USE kva_status kva_session_rewind(kva_session *s, kva_program_state *sp);
/* All steps of an internal program, whose addresses and first segment are set. Does not wait for the device. */
KVA_MUST_USE kva_status kva_run_internal(kva_session *s, kva_program_state *sp);
/* With the symbols that have values: plans segment 0; addresses of its arena, of states and constants. The others are
 * NULL. */
KVA_MUST_USE kva_status kva_program_start(kva_session *s, kva_program_state *sp);

/* ---- segments.c -------------------------------------------------------------------------------------------------- */

/* Symbol number `index` that a step binds; -1: it binds no more. */
int32_t kva_step_binds(const kva_step_desc *step, int32_t index);
/* The segment from which each symbol of a program has a value, or KVA_NO_SEGMENT; returns the number of segments. */
int32_t kva_symbol_segments(const kva_artifact *a, const kva_program *p, int32_t *out_segments);
int32_t kva_formula_segment(const kva_formula *f, const int32_t *symbol_segments);
int32_t kva_buffer_segment(const kva_buffer_desc *b, const int32_t *symbol_segments);
/* Plans a segment unless it is planned for these symbols; memory and addresses of what becomes known in it. */
KVA_MUST_USE kva_status kva_segment_enter(kva_session *s, kva_program_state *sp, int32_t segment);
bool kva_eval_dims(const kva_buffer_desc *b, const int64_t *symbols, kva_tensor *t);
kva_status kva_bad_size(kva_session *s, const kva_program *p, const char *what, int32_t index, const char *name);

/* ---- control.c --------------------------------------------------------------------------------------------------- */

KVA_MUST_USE kva_status kva_run_bind(kva_session *s, kva_program_state *sp, int32_t index);
KVA_MUST_USE kva_status kva_run_branch(kva_session *s, kva_program_state *sp, int32_t index);
KVA_MUST_USE kva_status kva_run_loop(kva_session *s, kva_program_state *sp, int32_t index);

/* ---- finite.c: training steps with a loss that is not finite change no parameter --------------------------------- */

/* The buffers that a step writes are args[*out_first], ...; how many. */
int32_t kva_step_writes(const kva_step_desc *step, int32_t *out_first);
kva_output_role kva_output_role_of(const kva_program *p, int32_t output);
/* The output that is the loss; -1: none. */
int32_t kva_loss_output(const kva_program *p);
/* Loss and norm of its gradient. */
bool kva_watches_output(const kva_program *p, int32_t output);
/* sp->commit of a program; n_steps where no state is written after the watched outputs. */
int32_t kva_commit_step(const kva_program *p);
/* Whether the watched outputs of the run in progress are finite. */
bool kva_outputs_finite(const kva_program_state *sp);
/* After a run that such an output stopped: runs its steps again, `all` or those before `commit`, looks at all that each
 * writes, and says where the first value comes from that is not finite. Memory of the host only. */
void kva_explain_not_finite(kva_session *s, int program, bool all, kva_text *out);

/* ---- transfer.c: devices with memory of their own ---------------------------------------------------------------- */

/* A program's inputs, constants and outputs on the device, for the sizes that were bound; constants are copied. */
KVA_MUST_USE kva_status kva_transfer_plan(kva_session *s, kva_program_state *sp);
/* Before the steps: states and inputs to the device, addresses of buffers; after them: outputs to the host. */
KVA_MUST_USE kva_status kva_transfer_in(kva_session *s, kva_program_state *sp, const kva_tensor *inputs);
KVA_MUST_USE kva_status kva_transfer_out(kva_session *s, kva_program_state *sp, kva_tensor *outputs);
/* Makes the host's states current, for a caller who may write them. */
KVA_MUST_USE kva_status kva_transfer_states(kva_session *s);

/* Makes a block of the device at least `bytes` long; `what` is for the message. */
KVA_MUST_USE kva_status kva_session_grow(kva_session *s, const kva_program *p, const char *what, kva_block *block,
                                         int64_t bytes);
/* Fills in an output's type and shape. */
KVA_MUST_USE kva_status kva_session_output(kva_session *s, const kva_program_state *sp, int32_t index, kva_tensor *out);
/* Where a state lies on a device with memory of its own. */
void *kva_device_state(const kva_session *s, int32_t index);
kva_status kva_step_error(kva_session *s, const kva_program *p, int32_t index, kva_status status);
/* Sets the session's error text from the device's. */
kva_status kva_session_device_error(kva_session *s, kva_status status, const kva_program *p, const char *what);

/* Sets the session's error text and returns status. */
kva_status kva_session_fail(kva_session *s, kva_status status, const char *fmt, ...) KVA_PRINTF(3, 4);

#endif
