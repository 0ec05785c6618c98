/* Internals of a session, for the files of runtime/ that implement it only. */
#ifndef KVA_RUNTIME_SESSION_H
#define KVA_RUNTIME_SESSION_H

#include "runtime/base/platform.h"
#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/memory_plan.h"
#include "runtime/runtime.h"
#include "runtime/weights.h"

enum {
  KVA_UNBOUND = -1,    /* value of a symbol without a value */
  KVA_NO_SEGMENT = -1, /* segment of symbols that only other programs bind */
};

/* The steps up to one that binds symbols; see segments.c. */
typedef struct kva_segment {
  int32_t first_step;
  bool planned;
  int64_t *symbols; /* the values it was planned for */
  int64_t bytes;    /* of the arena */
  kva_block block;  /* the arena; segment 0 of a program that callers run uses kva_session.temps */
} kva_segment;

/* An exchange between processes, of a step that only starts it or of one that waits. */
typedef struct kva_exchange {
  kva_comm_job job;
  kva_device_call call;
  void **args; /* call.args */
  kva_comm *comm;
} kva_exchange;

/* A program and the plan for its last binding. Arrays have the length of the program's lists and are never resized. */
typedef struct kva_program_state {
  const kva_program *desc;
  int64_t *symbols;            /* values in the current or the last run */
  int64_t *candidate;          /* tentative values */
  int32_t n_segments, segment; /* segment: the current one */
  kva_segment *segments;
  int32_t *symbol_segments; /* by symbol: the first segment in which it has a value, or KVA_NO_SEGMENT */
  int32_t *buffer_segments; /* by buffer: the segment in which its size is known */
  int64_t *bytes;           /* by buffer */
  int64_t *offsets;  /* by buffer: TEMP in its segment's arena; OUTPUT in `outputs`, from segment 1 on in its segment's
                        arena; on a device with its own memory INPUT in `outputs`, CONST in `constants` */
  int64_t *grids;    /* by step: work items */
  bool *serial;      /* by step: too little work for the pool */
  int64_t *sizes;    /* values of the formulas in steps' descriptors */
  int32_t *sizes_at; /* by step: index of its first size */
  void **pointers;   /* by buffer, for the current run */
  void **args;       /* for the current step */
  void **staged;     /* arguments in host memory of a step that the host performs for the device */
  kva_lifetime *lifetimes, **order;
  bool *resident; /* by buffer: an input that the caller keeps on the device */
  int64_t output_bytes, constant_bytes;
  int32_t commit;          /* first step that changes states after the watched outputs (finite.c) are known */
  kva_block outputs;       /* on the device: outputs left to the session; allocated on demand */
  kva_block constants;     /* on a device with its own memory */
  kva_block iteration;     /* body of a loop: the iteration number */
  kva_block *collected;    /* body of a loop: rows by result, if their number is unknown */
  kva_block host_outputs;  /* host copies of outputs, for a device with its own memory */
  kva_exchange *exchanges; /* of the steps that only start one, in order */
  void **exchange_args;
  double *seconds; /* by step, with profiling */
  int64_t *calls;
} kva_program_state;

struct kva_session {
  const kva_artifact *artifact;
  kva_weights *weights; /* owner of the tables if constants come from a file; else NULL */
  kva_session_options options;
  kva_pool *pool;
  kva_device *device;
  kva_block state_memory; /* in host memory */
  kva_tensor *states;
  kva_block device_states; /* copies on a device with its own memory */
  bool host_states;        /* then: state_memory may be newer */
  bool states_lent;        /* a caller may have written states since the last run, whose copies are older then */
  bool device_newer;       /* then: device_states may be newer */
  kva_block *resident;     /* memory of the device that callers keep inputs in */
  int32_t n_resident;
  kva_block temps;   /* shared by all programs: no temporary lives across runs */
  bool exchanges;    /* the device takes part in exchanges between processes itself */
  kva_block staging; /* in host memory: arguments of calls that the host performs for the device */
  kva_program_state *programs;
  int32_t stage;                    /* of this process on the axis pipeline */
  bool guarded;                     /* runs stop before `commit` if a watched output is not finite */
  kva_arena *string_memory;         /* of `strings`; NULL: no step has met a string */
  struct kva_string_table *strings; /* of the last run (runtime/base/external.h) */
  char error[2048];
};

/* Whether this process has the state; data of others is NULL. */
static inline bool kva_session_holds(const kva_session *s, int32_t state) {
  uint32_t stages = s->artifact->states[state].stages;
  return !stages || stages >> s->stage & 1;
}

/* Checks everything that execution relies on: magic, version, ranges, formulas, lifetimes. */
KVA_MUST_USE kva_status kva_artifact_check(const kva_artifact *a, kva_diag *diag);

/* The part of kva_artifact_check for data-dependent steps; all tables must be checked before. */
KVA_MUST_USE kva_status kva_artifact_check_control(const kva_artifact *a, kva_diag *diag);

/* Fills all states; deterministic in (seed, name, element). */
void kva_initialise_states(kva_session *s);
/* Before a run: copies (KVA_STATE_INIT_COPY) of states that a caller may have written. */
void kva_refresh_copies(kva_session *s);
/* Its initial values are made of state `of`. */
static inline bool kva_state_has_source(const kva_state_desc *d) {
  return d->init == KVA_STATE_INIT_ONE_MINUS || d->init == KVA_STATE_INIT_COPY;
}

/* Binds p's symbols from the inputs' shapes; checks every shape and type. */
KVA_MUST_USE kva_status kva_bind_symbols(kva_session *s, const kva_program_state *sp, const kva_tensor *inputs,
                                         int64_t *out_symbols);

/* Runs one step with the addresses of the current run. Steps run in order, starting after kva_session_rewind. */
KVA_MUST_USE kva_status kva_session_step(kva_session *s, kva_program_state *sp, int32_t index);
KVA_MUST_USE kva_status kva_session_rewind(kva_session *s, kva_program_state *sp);
/* Runs all steps of an internal program whose addresses and first segment are set. Does not wait for the device. */
KVA_MUST_USE kva_status kva_run_internal(kva_session *s, kva_program_state *sp);
/* Plans segment 0 for the symbols that have values; sets the addresses of its arena, of states and constants, and all
 * others to NULL. */
KVA_MUST_USE kva_status kva_program_start(kva_session *s, kva_program_state *sp);

/* ---- segments.c -------------------------------------------------------------------------------------------------- */

/* The `index`-th symbol that a step binds; -1: there is none. */
int32_t kva_step_binds(const kva_step_desc *step, int32_t index);
/* Computes the first segment in which each symbol of a program has a value, or KVA_NO_SEGMENT; returns the number of
 * segments. */
int32_t kva_symbol_segments(const kva_artifact *a, const kva_program *p, int32_t *out_segments);
int32_t kva_formula_segment(const kva_formula *f, const int32_t *symbol_segments);
int32_t kva_buffer_segment(const kva_buffer_desc *b, const int32_t *symbol_segments);
/* Plans a segment unless it is planned for these symbols; allocates memory and sets addresses of its buffers. */
KVA_MUST_USE kva_status kva_segment_enter(kva_session *s, kva_program_state *sp, int32_t segment);
bool kva_eval_dims(const kva_buffer_desc *b, const int64_t *symbols, kva_tensor *t);
kva_status kva_bad_size(kva_session *s, const kva_program *p, const char *what, int32_t index, const char *name);

/* ---- control.c --------------------------------------------------------------------------------------------------- */

KVA_MUST_USE kva_status kva_run_bind(kva_session *s, kva_program_state *sp, int32_t index);
KVA_MUST_USE kva_status kva_run_branch(kva_session *s, kva_program_state *sp, int32_t index);
KVA_MUST_USE kva_status kva_run_loop(kva_session *s, kva_program_state *sp, int32_t index);

/* ---- finite.c: training steps with a loss that is not finite change no parameter --------------------------------- */

/* A step writes the buffers args[*out_first], ...; returns their number. */
int32_t kva_step_writes(const kva_step_desc *step, int32_t *out_first);
/* Whether a step of the program, or of any, writes the state. */
bool kva_program_writes_state(const kva_program *p, int32_t state);
bool kva_state_is_written(const kva_artifact *a, int32_t state);
/* The index of the output that is the loss; -1: none. */
int32_t kva_loss_output(const kva_program *p);
/* sp->commit of a program; n_steps if no state is written after the watched outputs. */
int32_t kva_commit_step(const kva_program *p);
/* Whether the watched outputs of the current run are finite. */
bool kva_outputs_finite(const kva_program_state *sp);
/* After a run that stopped at a watched output: repeats its steps, `all` or those before `commit`, checks all buffers
 * that they write, and reports the origin of the first value that is not finite. Host memory only. In several processes
 * all call it, and get the same report. */
void kva_explain_not_finite(kva_session *s, int program, bool all, kva_text *out);

/* ---- state_parts.c: states that each process of a run has a slice or a part of -------------------------------------
 */

/* Type and shape of the state of all processes; data is NULL. */
void kva_state_whole(const kva_state_desc *d, kva_tensor *out_tensor);
/* Elements of a state that a process has: those from `first` on, `n` of them, of slice `slice`. */
typedef struct kva_state_share {
  int64_t slice, first, n;
} kva_state_share;
/* Of the process of this rank; and of a process by its places on the axes tensor and data. */
kva_state_share kva_state_share_of(const kva_state_desc *d, const struct kva_comm *c, int rank);
kva_state_share kva_state_share_at(const kva_state_desc *d, int64_t slice, int64_t part);
/* The place in the whole state of element i of a slice; *out_run: that many elements from there on are the slice's. */
int64_t kva_state_place(const kva_state_desc *d, int64_t slice, int64_t i, int64_t *out_run);
/* The inverse: the slice that has an element of the whole state, and which element of it that is. */
int64_t kva_state_find(const kva_state_desc *d, int64_t place, int64_t *out_slice, int64_t *out_run);

/* ---- call_exchange.c --------------------------------------------------------------------------------------------- */

/* Whether a step exchanges data with the other processes of the run, which must all come to it. */
bool kva_step_is_collective(const kva_step_desc *s);
bool kva_program_is_collective(const kva_program *p);
/* Steps that only start an exchange, and their arguments; prepare fills sp->exchanges and sp->exchange_args. */
int32_t kva_started_steps(const kva_program *p);
int32_t kva_started_args(const kva_program *p);
void kva_exchange_prepare(kva_program_state *sp);
/* Whether the device performs the exchange of this step, and that. */
bool kva_exchange_is_on_device(const kva_session *s, const kva_program *p, const kva_step_desc *step);
KVA_MUST_USE kva_status kva_exchange_on_device(kva_session *s, kva_program_state *sp, const kva_device_call *call);
/* Whether the step only starts an exchange in this session; what starts it, and the WAIT that ends it. */
bool kva_exchange_is_started(const kva_session *s, const kva_step_desc *step);
KVA_MUST_USE kva_status kva_exchange_start(kva_session *s, kva_program_state *sp, const kva_step_desc *step);
KVA_MUST_USE kva_status kva_exchange_wait(kva_session *s, kva_program_state *sp, const kva_step_desc *step);

/* ---- transfer.c: devices with their own memory ------------------------------------------------------------------- */

/* Allocates a program's inputs, constants and outputs on the device for the bound sizes; copies the constants. */
KVA_MUST_USE kva_status kva_transfer_plan(kva_session *s, kva_program_state *sp);
/* transfer_in, before the steps: copies states and inputs to the device and sets buffer addresses. transfer_out, after
 * them: copies outputs to the host. */
KVA_MUST_USE kva_status kva_transfer_in(kva_session *s, kva_program_state *sp, const kva_tensor *inputs);
KVA_MUST_USE kva_status kva_transfer_out(kva_session *s, kva_program_state *sp, kva_tensor *outputs);
/* Makes the host's copy of states current; the caller may then write them. */
KVA_MUST_USE kva_status kva_transfer_states(kva_session *s);

/* Memory of the device that a caller within the runtime keeps inputs in, which are then used in place: a tensor of
 * kva_session_run whose data lies there is not copied, nor is an output that replaces it. Its content is undefined.
 * Devices without memory of their own give the host's, zeroed. */
KVA_MUST_USE kva_status kva_resident_allocate(kva_session *s, int64_t bytes, kva_block *out_block);
void kva_resident_free(kva_session *s, kva_block *block);
/* Copies from the host, to the host (done on return), and on the device, in order with runs. */
KVA_MUST_USE kva_status kva_resident_write(kva_session *s, void *to, const void *from, size_t bytes);
KVA_MUST_USE kva_status kva_resident_read(kva_session *s, void *to, const void *from, size_t bytes);
KVA_MUST_USE kva_status kva_resident_copy(kva_session *s, void *to, const void *from, size_t bytes);
/* Notes which inputs of the run to come lie there, before memory is planned. */
void kva_resident_note(kva_session *s, kva_program_state *sp, const kva_tensor *inputs);

/* Grows a block of the device to at least `bytes`; `what` is for the message. */
KVA_MUST_USE kva_status kva_session_grow(kva_session *s, const kva_program *p, const char *what, kva_block *block,
                                         int64_t bytes);
/* Fills in an output's type and shape. */
KVA_MUST_USE kva_status kva_session_output(kva_session *s, const kva_program_state *sp, int32_t index, kva_tensor *out);
/* Address of a state on a device with its own memory. */
void *kva_device_state(const kva_session *s, int32_t index);
kva_status kva_step_error(kva_session *s, const kva_program *p, int32_t index, kva_status status);
/* Sets the session's error text from the device's. */
kva_status kva_session_device_error(kva_session *s, kva_status status, const kva_program *p, const char *what);

/* Sets the session's error text and returns status. */
kva_status kva_session_fail(kva_session *s, kva_status status, const char *fmt, ...) KVA_PRINTF(3, 4);

#endif
