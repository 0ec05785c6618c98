/* Graph to graph. pipeline.c is the table of contents of the compiler; every pass is one file named like its function.
 *
 * A pass reports progress through *changed; run twice, the second run changes nothing. */
#ifndef KVA_PASSES_PASSES_H
#define KVA_PASSES_PASSES_H

#include "ir/plan.h"
#include "ir/target.h"
#include "ops/build.h"

/* What a training step is made of. */
typedef enum kva_train_programs {
  KVA_TRAIN_WHOLE,         /* "train_step": gradients and updates */
  KVA_TRAIN_MICRO_BATCHES, /* "grad_step", which adds up gradients, and "apply_step", which updates by them */
  KVA_TRAIN_BOTH,
} kva_train_programs;

typedef struct kva_pass_options {
  bool verify;             /* verify after every pass (default in debug builds) */
  bool reparse;            /* print, parse and compare after every pass (tests) */
  const char *print_after; /* name of a pass, or "all" */
  FILE *print_to;
  bool timing;
  kva_train_programs train;
  bool adjustable;   /* weight decay and clipping, where the train block has them, are states that a run may set:
                        "train.weight_decay", "train.clip"; else constants */
  kva_dtype compute; /* KVA_BF16 or KVA_F16: kva_prepare rewrites float to mixed precision; NONE: as the model says */
  const kva_target *target; /* split, fuse; borrowed. NULL: any CPU */
  kva_status (*reparse_fn)(const char *text, kva_module **out, kva_diag *diag); /* the frontend's parser, for reparse */
} kva_pass_options;

/* The pipelines. After kva_optimize a module is clean and raised; kva_make_training adds functions "eval" and
 * "train_step" (or those of options->train) from function "loss"; kva_prepare sets the precision, fuses and leaves only
 * nodes that a plan can run. */
KVA_MUST_USE kva_status kva_optimize(kva_module *m, const kva_pass_options *options);
KVA_MUST_USE kva_status kva_make_training(kva_module *m, const kva_pass_options *options);
KVA_MUST_USE kva_status kva_prepare(kva_module *m, const kva_pass_options *options);

/* Whether print_after knows this name ("all" apart). */
bool kva_pass_exists(const char *name);

/* Whether the target is a GPU. */
static inline bool kva_for_gpu(const kva_pass_options *o) {
  return o->target && o->target->kind == KVA_TARGET_GPU;
}

/* Single passes over every function of m. */
typedef kva_status (*kva_pass)(kva_module *m, bool *changed);
kva_status kva_opt_fold(kva_module *m, bool *changed);     /* constants by the reference evaluator */
kva_status kva_opt_simplify(kva_module *m, bool *changed); /* algebra: local rewrites that shrink */
kva_status kva_opt_cse(kva_module *m, bool *changed);
kva_status kva_opt_dce(kva_module *m, bool *changed);
kva_status kva_opt_control(kva_module *m, bool *changed);   /* known branches and trip counts, unused results */
kva_status kva_raise(kva_module *m, bool *changed);         /* patterns as data: passes/patterns_*.def */
kva_status kva_opt_splat(kva_module *m, bool *changed);     /* large uniform constants are filled once a session */
kva_status kva_precision(kva_module *m, kva_dtype compute); /* products in bfloat16 or float16 */
/* Those that ask for the target: a second pass over memory costs more on a GPU than on a CPU. */
kva_status kva_opt_split(kva_module *m, const kva_pass_options *options, bool *changed); /* long sums in two steps */
kva_status kva_fuse(kva_module *m, const kva_pass_options *options, bool *changed); /* nodes become kv.kernel nodes */

/* Gradients of scalar `loss` with respect to the states it reads, built at the end of f's graph (before return).
 * grads[state id] or NULL. */
KVA_MUST_USE kva_status kva_autodiff(kva_module *m, kva_function *f, kva_value *loss, kva_value **grads);

/* Buffers and steps of a fused function. */
KVA_MUST_USE kva_status kva_plan(kva_module *m, kva_function *f, kva_arena *arena, kva_memory_plan **out_plan);

#endif
