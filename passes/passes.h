/* Graph to graph. pipeline.c is the table of contents of the compiler; every pass is one file named like its function.
 *
 * A pass is a row of passes.def. It reports progress through *changed; run twice, the second run changes nothing. */
#ifndef KVA_PASSES_PASSES_H
#define KVA_PASSES_PASSES_H

#include "ir/pass.h"
#include "ir/plan.h"
#include "ir/target.h"
#include "ops/build.h"

/* What a training step is made of. */
typedef enum kva_train_programs {
  KVA_TRAIN_WHOLE,         /* "train_step": gradients and updates */
  KVA_TRAIN_MICRO_BATCHES, /* "grad_step", which adds up gradients, and "apply_step", which updates by them */
  KVA_TRAIN_BOTH,
} kva_train_programs;

typedef struct kva_tune_options kva_tune_options; /* tune.h */
typedef struct kva_loss_options kva_loss_options;

/* What pass autodiff differentiates, and where the gradients go. */
typedef struct kva_gradients {
  kva_function *function;
  kva_value *loss; /* a scalar of the function */
  kva_value **of;  /* out, by state id: gradients of the trained states that the loss depends on; the others stay */
} kva_gradients;

typedef struct kva_pass_options {
  kva_pass_control *control; /* how passes run; NULL: the default. Borrowed, like all that follows */
  kva_train_programs train;
  bool adjustable;    /* weight decay and clipping, where the train block has them, are states that a run may set:
                         "train.weight_decay", "train.clip"; else constants */
  kva_dtype compute;  /* KVA_BF16 or KVA_F16: kva_prepare rewrites float to mixed precision; NONE: as the model says */
  bool check_indices; /* a run ends where an index that is data is out of range; else compiled code clamps it */
  int64_t memory;     /* recompute: bytes that a training program may take; 0: any number */
  const kva_target *target;       /* split, fuse: NULL: any CPU */
  const kva_tune_options *tune;   /* tune, lora: what the user chose */
  const kva_loss_options *loss;   /* loss */
  bool step;                      /* incremental: also functions "step" and "prefill" */
  int64_t sequences;              /* incremental, with `step`: a step of so many sequences, too; 0: of one alone */
  bool whole_caches;              /* incremental: caches are tensors of all rows of a sequence, without pages */
  kva_dtype caches;               /* incremental: KVA_F16 or KVA_BF16: the type of caches of float keys and values;
                                     NONE: that of the keys and values */
  const kva_gradients *gradients; /* autodiff: NULL: output 0 of function 0, whose gradients become outputs; shard: what
                                     pass train gives it */
  kva_mesh mesh;                  /* train, shard, stages */
  bool only_parts;                /* shard: gradients that stay whole are summed elsewhere */
} kva_pass_options;

/* The pipelines. kva_fine_tune does what options->tune and options->loss say. After kva_optimize a module is clean and
 * raised; kva_make_decode adds function "decode"; kva_make_training adds functions "eval" and "train_step" (or those of
 * options->train) from function "loss"; kva_prepare sets the precision, fuses and leaves only nodes that a plan can
 * run. */
KVA_MUST_USE kva_status kva_fine_tune(kva_module *m, const kva_pass_options *options);
KVA_MUST_USE kva_status kva_optimize(kva_module *m, const kva_pass_options *options);
KVA_MUST_USE kva_status kva_make_training(kva_module *m, const kva_pass_options *options);
KVA_MUST_USE kva_status kva_make_decode(kva_module *m, const kva_pass_options *options);
KVA_MUST_USE kva_status kva_prepare(kva_module *m, const kva_pass_options *options);
/* The part of kva_optimize that needs no patterns. */
KVA_MUST_USE kva_status kva_clean_up(kva_module *m, const kva_pass_options *options);

/* ---- the table: passes.def --------------------------------------------------------------------------------------- */

/* Whether the target is a GPU. */
static inline bool kva_for_gpu(const kva_pass_options *o) {
  return o->target && o->target->kind == KVA_TARGET_GPU;
}

typedef enum kva_graph_pass {
#define PASS(name, ...) KVA_PASS_##name,
#include "passes/passes.def"
} kva_graph_pass;

extern const kva_pass_level kva_graph_level;

/* Runs one pass; see kva_pass_run. *changed stays, or becomes true. */
KVA_MUST_USE kva_status kva_run_pass(kva_module *m, kva_graph_pass pass, const kva_pass_options *options,
                                     bool *changed);

/* Pipelines by name, for `kvasir opt`. */
typedef struct kva_graph_pipeline {
  const char *name, *help;
  kva_status (*run)(kva_module *m, const kva_pass_options *options);
} kva_graph_pipeline;
/* NULL after the last one. */
const kva_graph_pipeline *kva_graph_pipeline_at(uint32_t i);

/* The passes, over every function of m. */
#define PASS(name, function, ...) kva_status function(kva_module *m, const kva_pass_options *options, bool *changed);
#include "passes/passes.def"

/* Whether a type or an attribute of `first`, of a node after it, or in sub-graphs of these uses the symbol. */
bool kva_uses_symbol(const kva_node *first, const kva_expr *symbol);

/* Floating-point operations of the contractions of a node and its sub-graphs: of both branches, and of one iteration of
 * a loop whose number of iterations only a run knows. */
double kva_node_flops(const kva_node *n, const kva_sizes *s);

/* Buffers and steps of one fused function: what pass plan does to each, as f->plan. */
KVA_MUST_USE kva_status kva_plan(kva_module *m, kva_function *f, kva_arena *arena, kva_memory_plan **out_plan);
/* A plan as text: a line for each buffer and step. */
void kva_plan_print(const kva_memory_plan *plan, kva_text *out);

/* What the tensors of a plan take, in bytes. */
typedef struct kva_plan_bytes {
  int64_t params, moments, other_states; /* states that a process has which runs the function */
  int64_t initial;                       /* of these: states that begin with data of the model */
  int64_t constants, inputs, outputs;
  int64_t temporaries; /* without sharing memory */
  int64_t fixed;       /* all but temporaries */
  int64_t parameters;  /* elements of params */
  int64_t *of;         /* by buffer */
} kva_plan_bytes;
/* sizes NULL: what depends on a symbol counts nothing, so that all numbers are the least that they can be. `of` is from
 * the arena. */
KVA_MUST_USE kva_status kva_plan_measure(kva_module *m, const kva_memory_plan *plan, const kva_sizes *sizes,
                                         kva_arena *arena, kva_plan_bytes *out_bytes);

/* A program that takes more than it may. */
typedef struct kva_excess {
  kva_status status;                 /* what the message comes with */
  int64_t fixed, temporaries, limit; /* bytes */
  const char *whose;                 /* the limit: ", the memory of this machine", or "" */
  const char *advice;                /* what takes less */
} kva_excess;
/* Fails with a message that also names the three largest tensors of the plan. */
kva_status kva_plan_too_large(kva_module *m, const kva_memory_plan *plan, const kva_plan_bytes *b,
                              const kva_excess *excess);

/* Whether a step of the function, as in training, writes states. */
bool kva_writes_states(const kva_function *f);

#endif
