/* Internals of training, shared by runtime/train*.c. */
#ifndef KVA_RUNTIME_TRAIN_H
#define KVA_RUNTIME_TRAIN_H

#include "runtime/checkpoint.h"

/* A program and the tensors of its calls: data inputs first, then scalars. */
typedef struct kva_train_call {
  int program;
  const kva_program *p;
  int n_data, n_scalars, loss; /* loss: index of an output; -1: none */
  kva_tensor *batch;           /* data inputs with the rows of all micro-batches; owned */
  kva_tensor *inputs;          /* data inputs of the current micro-batch, which point into `batch`, then the scalars */
  kva_tensor *outputs;
  const char **names; /* of outputs */
  double *values;
} kva_train_call;

typedef struct kva_train_stages kva_train_stages; /* train_stages.c */

struct kva_trainer {
  kva_session *s;
  kva_data_source *data;
  kva_train_options options;
  int64_t micro_batches;
  int64_t done;
  int64_t sent; /* bytes, in steps */
  double seconds;
  bool draws;                       /* random numbers, by the number of the micro-batch */
  bool accumulates;                 /* the step is grad_step and apply_step, not train_step */
  kva_train_call step, apply, eval; /* eval: created at its first use */
  kva_train_stages *stages;         /* of the axis pipeline, which takes the place of these programs; NULL: none */
  int64_t first_pass;               /* number of a step's first micro-batch in this process, over the whole run */
  const char **names;               /* outputs of step, then of apply */
  double *values;
};

/* Finds the program and creates its tensors for `micro_batches` micro-batches of `rows` rows. Reports inputs and
 * outputs that do not fit. */
KVA_MUST_USE kva_status kva_train_call_create(const kva_trainer *t, const char *program, int n_scalars, int64_t rows,
                                              int64_t micro_batches, kva_diag *diag, kva_train_call *c);
/* The same for data inputs alone: a call that is a batch, which programs of stages take. */
KVA_MUST_USE kva_status kva_train_batch_create(const kva_trainer *t, const kva_program *p, int64_t rows,
                                               int64_t micro_batches, kva_diag *diag, kva_train_call *c);
/* Type and shape of a tensor that programs of training take or make, for micro-batches of `rows` rows; data is NULL. */
KVA_MUST_USE kva_status kva_train_shape(const kva_trainer *t, const kva_program *p, const kva_buffer_desc *b,
                                        int64_t rows, kva_diag *diag, kva_tensor *out_tensor);
/* The program whose inputs are those of the data: that of evaluations, or of their first stage; NULL: none. */
const kva_program *kva_train_data_program(const kva_artifact *a);
/* Of a tensor of one element. */
double kva_train_scalar(const kva_tensor *t);
void kva_train_call_destroy(kva_train_call *c);
void kva_train_call_clear(kva_train_call *c);
void kva_train_call_set(kva_train_call *c, int scalar, double v);
/* Rows that a program was compiled for; 0: any number. */
int64_t kva_train_pinned_rows(const kva_program *p);
/* Runs micro-batch `k` of `batch` and adds the outputs to c's values. `guarded`: stops before states change if an
 * output is not finite. */
KVA_MUST_USE kva_status kva_train_call_run(const kva_trainer *t, kva_train_call *c, int64_t k, bool guarded,
                                           kva_diag *diag);

/* train.c: the message for a step that was not made, with where the number comes from (NULL: not known). */
kva_status kva_train_not_finite(const kva_trainer *t, const char *why, double loss, double lr, kva_diag *diag);

/* ---- train_stages.c ---------------------------------------------------------------------------------------------- */

/* t->stages, where the session's programs are of stages. On failure destroy what is there. */
KVA_MUST_USE kva_status kva_train_stages_create(kva_trainer *t, kva_diag *diag);
void kva_train_stages_destroy(kva_train_stages *g);
/* A step with the batch of t->step. */
KVA_MUST_USE kva_status kva_train_stages_step(kva_trainer *t, double lr, kva_diag *diag);
/* What the last step has reported, the loss first, then outputs of updates; returns their number. */
int32_t kva_train_stages_values(const kva_train_stages *g, const char *const **out_names, const double **out_values);
/* A pass over the batch of t->eval adds what it reports in the last stage; share_evaluated gives it to all. */
KVA_MUST_USE kva_status kva_train_stages_evaluate(kva_trainer *t, kva_diag *diag);
KVA_MUST_USE kva_status kva_train_stages_share_evaluated(const kva_trainer *t, kva_diag *diag);
int32_t kva_train_stages_evaluated(kva_train_stages *g, const char *const **out_names, double **out_values);
/* Whether processes of a stage exchange data in evaluations, of any stage. */
bool kva_train_stages_collective(const kva_trainer *t);

/* ---- train_processes.c ------------------------------------------------------------------------------------------- */

/* The processes of the run; NULL: one. */
struct kva_comm *kva_train_comm(const kva_trainer *t);
/* The processes that take other rows of a batch; NULL: one does all. */
struct kva_comm *kva_train_data_comm(const kva_trainer *t);
/* Rows of a batch for each of the processes, which must be equal. */
KVA_MUST_USE kva_status kva_train_part(int64_t batch, int64_t processes, kva_diag *diag, int64_t *out_rows);
/* Around the micro-batches of a step, whose numbers depend on the rank. begin returns what end needs. done: they ran.
 */
int64_t kva_train_begin_passes(kva_trainer *t);
/* Before the passes of micro-batch k where they are not in order: random numbers are drawn by its number. */
void kva_train_set_pass(const kva_trainer *t, int64_t k);
void kva_train_end_passes(const kva_trainer *t, int64_t first, bool done);
/* Bytes that this process has sent to the others in steps; evaluations are not counted. */
int64_t kva_trainer_sent(const kva_trainer *t);
/* values become their sums over the processes. */
KVA_MUST_USE kva_status kva_train_sum(const kva_trainer *t, int32_t n, double *values, kva_diag *diag);

#endif
