/* The runtime executes artefacts. No LLVM, no protobuf; depends on libc, libm, pthread.
 *
 * Threads: one thread at a time uses a session; several sessions may share a pool one after the other. A program's
 * temporaries share one arena, sized when shapes are bound; no step allocates. */
#ifndef KVA_RUNTIME_RUNTIME_H
#define KVA_RUNTIME_RUNTIME_H

#include "runtime/abi.h"
#include "runtime/base/base.h"

/* A dense row-major tensor; `data` is borrowed. */
typedef struct kva_tensor {
  kva_dtype dtype;
  int32_t rank;
  int64_t dims[KVA_ABI_MAX_RANK];
  void *data;
} kva_tensor;
/* Bytes of a tensor's data; -1 on overflow. */
int64_t kva_tensor_bytes(const kva_tensor *t);

/* A function that steps of an artefact call by name. It takes arguments in host memory and writes the last of them. */
typedef struct kva_host_function {
  const char *name;
  kva_status (*run)(void *user, int n_args, const kva_tensor *args);
  void *user;
} kva_host_function;

typedef struct kva_session_options {
  int threads;         /* 0: all */
  uint64_t seed;       /* of initialisers; default 0 */
  bool profile;        /* collect time per step */
  const char *device;  /* "cpu" (NULL), or "ptxsim": runs code for NVIDIA GPUs on a simulator, whose findings (accesses
                          out of bounds, races, ...) fail the run */
  const char *weights; /* safetensors file with constants that the artefact does not contain; NULL if it has all */
  bool sleep;          /* threads never spin between steps */
  bool borrow_states;  /* initial values that the artefact holds and no program writes are read where they lie, if the
                          device has no memory of its own; the caller must not write such states */
  const kva_allocator *allocator; /* from here on as in kva_context_options; they must outlive the session */
  const kva_parallel *parallel;
  void *arena;
  int64_t arena_bytes;
  int n_functions;
  const kva_host_function *functions;
  struct kva_comm *comm; /* borrowed: the processes of the run (comm.h), as many as the artefact was compiled for; NULL:
                            this one alone */
} kva_session_options;
/* Programs that callers may run: the first ones. Those that only steps run come after them. */
int32_t kva_artifact_programs(const kva_artifact *a);
/* Processes that an artefact was compiled for: its sums over them need as many. */
int32_t kva_artifact_processes(const kva_artifact *a);
/* The GPU architecture of an artefact's code ("sm_80"); NULL: functions of the CPU. */
const char *kva_artifact_arch(const kva_artifact *a);
/* Whether sessions can run on the device: KVA_INVALID if unknown, KVA_MISSING if "cuda" is unavailable. *out_arch is
 * the default architecture to compile for; NULL: a CPU. */
KVA_MUST_USE kva_status kva_device_check(const char *name, kva_diag *diag, const char **out_arch);

/* States (parameters, moments, counters) and the memory plans of an artefact's programs. Creation initialises all
 * states. An artefact for another kind of device is an error. */
typedef struct kva_session kva_session;
KVA_MUST_USE kva_status kva_session_create(const kva_artifact *artifact, const kva_session_options *options,
                                           kva_diag *diag, kva_session **out_session);
void kva_session_destroy(kva_session *s);

const kva_artifact *kva_session_artifact(const kva_session *s);
int kva_session_program(const kva_session *s, const char *name); /* -1: none of that name */
const kva_program *kva_session_program_desc(const kva_session *s, int program);

/* Runs a program; inputs and outputs in the program's order. Input shapes bind the symbols; contradictions are errors
 * that name input, dimension and symbol. A changed binding re-plans memory once. outputs[i].data: the caller's memory
 * of the right size, or NULL, which is replaced by a pointer to the session's memory, valid until the next run of this
 * program; an output that replaces an input (kva_program.outputs) is written there, and its data is NULL or the
 * input's. Dimensions of outputs are always filled in. */
KVA_MUST_USE kva_status kva_session_run(kva_session *s, int program, const kva_tensor *inputs, kva_tensor *outputs);
/* Why the last kva_session_run failed; "" after a success. */
const char *kva_session_error(const kva_session *s);

/* Values of the symbols of a program in its last run, in its order, those that steps found among them. Valid until its
 * next run. */
const int64_t *kva_session_symbols(const kva_session *s, int program);

/* The tensor of a state: borrowed, writable and current until the next run, also on a device with its own memory.
 * false: no such state, or the device failed. */
bool kva_session_state(kva_session *s, const char *name, kva_tensor *out_tensor);
int kva_session_state_count(const kva_session *s);
const kva_state_desc *kva_session_state_desc(kva_session *s, int i, kva_tensor *out_tensor);

/* Bytes of memory for the last binding of a program. */
typedef struct kva_memory_report {
  int64_t params, moments, other_state, temps, inputs, outputs, constants;
} kva_memory_report;
void kva_session_memory(const kva_session *s, int program, kva_memory_report *out);

/* Bytes of temporaries that are live in each step of a program, for the last binding; kva_session_memory reports the
 * arena. Writes at most n values; returns the number of steps, 0 before the first run. */
int kva_session_timeline(const kva_session *s, int program, int n, int64_t *out_bytes);
/* Bytes of all arguments of a step for the last binding: the minimum it must read and write. */
int64_t kva_session_step_bytes(const kva_session *s, int program, int step);

/* Time per step since creation, with options.profile. seconds[i] and calls[i] belong to step i. Returns the number of
 * steps. */
int kva_session_profile(const kva_session *s, int program, const double **out_seconds, const int64_t **out_calls);

/* A kernel as the device loaded it: registers and local memory of a thread, shared memory of a block. Local memory
 * holds what found no register: beyond a few bytes the kernel is slow. */
typedef struct kva_kernel_facts {
  const char *name; /* the artefact's */
  int code;         /* kva_code_format: what was loaded */
  int registers, threads;
  int64_t local_bytes, shared_bytes;
} kva_kernel_facts;
int kva_session_kernels(const kva_session *s);
/* Kernel `index`, from 0 up. false: the device does not tell; only cuda does. */
bool kva_session_kernel(const kva_session *s, int index, kva_kernel_facts *out);

/* Measures runs of a program that follow each other without a wait, on inputs that are copied to the device once: for
 * about `seconds` to warm up, then n times that long. out_seconds[i]: the mean of a run in part i, by the device's
 * clock where it has one. Outputs, and the session's error, are as after kva_session_run. */
KVA_MUST_USE kva_status kva_session_time(kva_session *s, int program, const kva_tensor *inputs, kva_tensor *outputs,
                                         double seconds, int n, double *out_seconds);

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* A source of batches: fills tensors, which the trainer allocates in order of the training program's data inputs. Must
 * be a pure function of (seed, step), so that a resumed run sees the same data. */
typedef struct kva_data_source {
  const char *name;
  uint64_t id; /* identifies the content: equal for equal files and arguments; resumed runs compare it */
  kva_status (*fill)(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                     kva_diag *diag);
  void (*destroy)(void *self);
  void *self;
} kva_data_source;

/* Built-in generators: "induction" (arguments pool = 48, all = 0), "ngram" (pairs = 200, all = 0), "hop" (hops = 4,
 * letters = 4, all = 0), "igsm" (ops = 4, test = 5, mod = 5, all = 0), "random" (all = 0). They fill one to three int32
 * or int64 tensors [B, T]: tokens; targets, the expected token at positions that count towards the loss (all = 1: the
 * next token everywhere), else -1; first, the target at the first position that counts, else -1. Unknown names or
 * arguments are errors that list the known ones. */
typedef struct kva_data_arg {
  const char *name;
  double value;
} kva_data_arg;
KVA_MUST_USE kva_status kva_data_create(const char *name, int n_args, const kva_data_arg *args, int64_t vocab,
                                        kva_diag *diag, kva_data_source *out_source);

/* Where batches come from, as one line of text: KIND[:ITEM,ITEM,...]. An item is FILE or NAME=VALUE.
 *
 *   induction, ngram, hop, igsm, random   with their arguments: "induction:pool=48,length=64"
 *   tokens:FILE[,FILE...]       token files (runtime/tokens.h): tokens [B, T] and, if there is a second input, the next
 *                               tokens, from windows of T + 1 tokens
 *   npy:INPUT=FILE,...          a .npy file for every data input of the program; rows along the first dimension
 *   safetensors:FILE            likewise, from one file with tensors of the inputs' names
 *
 * Every kind takes length=T, the length of sequences. Kinds that read files take eval=X (0.05), the fraction of the
 * rows, at the end, that is used for evaluation only; of token files with at least 1 / X documents, or with
 * split=documents, those documents whose hash is below X (split=end: the end again). The other rows are shuffled again
 * for every epoch, by `seed`.
 *
 * Several sources with semicolons between them are a mixture: each row of a batch is of one of them, as often as its
 * weight=X (1) says in every 4096 rows. File names cannot contain commas and semicolons. */
typedef struct kva_data_range { /* of an integer input that the model uses as an index, such as labels */
  bool known, has_ignored;
  int64_t low, high, ignored; /* from low to high - 1, or ignored */
} kva_data_range;
typedef struct kva_data_options {
  int64_t vocab;                /* of the model's logits; 0: unknown */
  int n_inputs;                 /* data inputs of the train program, in order */
  const char *const *inputs;    /* their names */
  const kva_data_range *ranges; /* of their values, which are checked when a batch is filled; NULL: not known */
  int rank, world; /* this process fills the rank-th of `world` equal parts of every batch, but whole batches
                      for evaluation; world 0: 1 */
} kva_data_options;
KVA_MUST_USE kva_status kva_data_open(const char *spec, const kva_data_options *options, kva_diag *diag,
                                      kva_data_source *out_source);
/* The argument length=T of such a text; 0: absent. */
int64_t kva_data_length(const char *spec);

typedef enum kva_schedule_kind {
  KVA_SCHEDULE_CONSTANT,
  KVA_SCHEDULE_WARMUP,
  KVA_SCHEDULE_COSINE,
  KVA_SCHEDULE_LINEAR
} kva_schedule_kind;
typedef struct kva_schedule {
  kva_schedule_kind kind;
  double lr, final_ratio;
  int64_t warmup, total;
} kva_schedule;
/* Learning rate at `step`, which counts from 1. WARMUP: linear to lr over `warmup` steps, then constant. COSINE and
 * LINEAR: then down to lr * final_ratio at `total`. */
double kva_schedule_at(const kva_schedule *s, int64_t step);

/* A value for a shape symbol ("T" = 64). */
typedef struct kva_symbol_value {
  const char *name;
  int64_t value;
} kva_symbol_value;

typedef struct kva_trainer kva_trainer;
typedef struct kva_train_event {
  int64_t step, steps;
  bool evaluation;
  double seconds; /* since start, training only */
  double lr;
  int n;
  const char *const *names;
  const double *values;
} kva_train_event;

typedef struct kva_train_options {
  int64_t steps;
  int64_t batch;       /* rows of an optimiser step, of all processes together; each takes an equal part */
  int64_t micro_batch; /* rows of a micro-batch, a divisor of batch; 0: what the program was compiled for, else batch. A
                          step's gradient is the mean of its micro-batches' gradients, added in order of rows: its bits
                          depend on micro_batch, and on batch only through the number of micro-batches */
  int64_t eval_every, eval_batches; /* 0: never */
  kva_schedule schedule;
  const double *weight_decay, *clip; /* NULL: as the model was compiled; else it must have been compiled with them; clip
                                        0: none. Borrowed during creation */
  uint64_t seed;
  int64_t done;                    /* steps done before this run: a resumed run continues with done + 1 */
  int n_symbols;                   /* values of the data inputs' symbols other than "B", which is `batch` */
  const kva_symbol_value *symbols; /* borrowed as long as a trainer of these options lives */
  /* Called after every step and evaluation; values of an evaluation are means over its batches. Returning false stops
   * the run after the current step. names/values: loss first, then the program's other scalar outputs. */
  bool (*progress)(void *user, const kva_train_event *event);
  /* NULL, or called after every step and its evaluation, for saving. `last`: the run ends here. */
  kva_status (*after_step)(void *user, kva_trainer *t, bool last, kva_diag *diag);
  /* NULL, or asked before every batch of an evaluation, which false ends without an event, and the run with it. Several
   * processes, which all run equally many batches, do not ask. */
  bool (*goes_on)(void *user);
  void *user;
} kva_train_options;

/* A training run, step by step. A step calls program "train_step" (data inputs..., lr), or, if it has several
 * micro-batches, "grad_step" (data inputs...) for each and then "apply_step" (scale, lr). An evaluation calls "eval"
 * (data inputs...). Their outputs are scalars. Data inputs' symbols other than the batch size must be pinned or bound
 * by `symbols`. Access parameters in place through kva_session_state. */
/* options are copied, except for the symbols. Only kva_trainer_run and kva_train use `progress`, `steps` and intervals.
 */
KVA_MUST_USE kva_status kva_trainer_create(kva_session *s, const kva_train_options *options, kva_diag *diag,
                                           kva_trainer **out_trainer);
void kva_trainer_destroy(kva_trainer *t);
/* Sets the source of batches; borrowed. */
void kva_trainer_bind(kva_trainer *t, kva_data_source *data);
/* Runs the next step, or an evaluation, whose values are means over eval_batches batches. *out_event is valid until the
 * next call; out_event may be NULL. A loss or gradient norm that is not finite is KVA_NOT_FINITE: the message names the
 * plan's step that produced the first such value, and parameters, moments and counters are as before the step.
 * KVA_INTERRUPTED, without a message: `goes_on` ended the evaluation. */
KVA_MUST_USE kva_status kva_trainer_step(kva_trainer *t, kva_diag *diag, kva_train_event *out_event);
KVA_MUST_USE kva_status kva_trainer_evaluate(kva_trainer *t, kva_diag *diag, kva_train_event *out_event);
/* Whether a run evaluates the state that the trainer has: behind its last step, and every eval_every steps. */
bool kva_trainer_is_due(const kva_trainer *t);
/* Number of steps done, including those before a loaded checkpoint. */
int64_t kva_trainer_done(const kva_trainer *t);
/* Seed of data order and dropout; loading a checkpoint replaces it. */
uint64_t kva_trainer_seed(const kva_trainer *t);
/* A checkpoint: a safetensors file of all parameters, moments and counters with the position of the run (checkpoint.h);
 * a folder of such files where the session's processes divide states. Saving keeps the old one until the new one is on
 * disk. A failed load changes nothing; the checkpoint must come from a model with the same tensors. After loading,
 * training continues bit for bit. In a session of several processes all call them, with the same path. */
KVA_MUST_USE kva_status kva_trainer_save(kva_trainer *t, const char *path, kva_diag *diag);
KVA_MUST_USE kva_status kva_trainer_load(kva_trainer *t, const char *path, kva_diag *diag);

/* For sessions with several processes, of which all call it: fails where a state is not the same in all, and names it.
 * In one process it does nothing. */
KVA_MUST_USE kva_status kva_trainer_compare(kva_trainer *t, kva_diag *diag);

/* Runs all remaining steps. */
KVA_MUST_USE kva_status kva_trainer_run(kva_trainer *t, kva_diag *diag);
/* Creates a trainer, binds the data, runs and destroys it. */
KVA_MUST_USE kva_status kva_train(kva_session *s, kva_data_source *data, const kva_train_options *options,
                                  kva_diag *diag);

#endif
