/* The memory plan, which passes/plan.c makes and codegen turns into an artefact. A step runs one top-level node of a
 * planned function; every tensor value has a buffer. */
#ifndef KVA_IR_PLAN_H
#define KVA_IR_PLAN_H

#include "ir/ir.h"

typedef enum kva_place {
  KVA_PLACE_INPUT,
  KVA_PLACE_OUTPUT,
  KVA_PLACE_STATE,
  KVA_PLACE_CONST,
  KVA_PLACE_TEMP,
} kva_place;

typedef struct kva_plan_buffer {
  kva_place place;
  const kva_type *type;
  const char *name;
  kva_state *state;            /* STATE */
  const kva_tensor_data *data; /* CONST */
  kva_result_role role;        /* OUTPUT */
  int32_t first_step, last_step;
} kva_plan_buffer;

typedef enum kva_plan_kind {
  KVA_PLAN_COPY,   /* args: to, from */
  KVA_PLAN_KERNEL, /* args: the node's distinct operands in order of first use, then results; of a call all operands */
  KVA_PLAN_BRANCH, /* if. These three: all operands that are given, then results */
  KVA_PLAN_LOOP,
  KVA_PLAN_BIND,
  KVA_PLAN_WAIT, /* args: those of an exchange between processes that an earlier step only starts; it has ended behind
                    this step */
} kva_plan_kind;

typedef struct kva_plan_step {
  kva_plan_kind kind;
  kva_node *node;    /* NULL: copy, wait */
  kva_node *started; /* WAIT: the node of the step that starts the exchange */
  uint32_t n_args;
  const int32_t *args;                 /* buffers */
  struct kva_memory_plan *programs[2]; /* BRANCH: then, else; LOOP: the body */
} kva_plan_step;

/* Of a function, or of a sub-graph that a step runs. */
typedef struct kva_memory_plan {
  kva_function *function; /* that the graph is of, or is in */
  const kva_graph *graph;
  const char *name;
  bool is_internal; /* of a sub-graph */
  KVA_VEC(kva_plan_buffer) buffers;
  KVA_VEC(kva_plan_step) steps;
  KVA_VEC(int32_t) inputs;
  KVA_VEC(int32_t) outputs;
} kva_memory_plan;

/* Sizes of a plan whose symbols are not bound yet (a kva_expr_lookup; user: the module): "B", a batch, is 1; "T" is the
 * length of the train block's data; any other symbol is 2048. */
bool kva_assumed_extent(void *module, const kva_expr *symbol, int64_t *out_extent);

/* A step whose result shares the buffer of an operand (a state that it reads and writes, a temporary that it reads
 * last) is an in-place proposal, which the step's scheduled kernel must confirm (kva_kernel_in_place). If it does not,
 * this moves argument `arg` of the step, a result, to a temporary: for good if it was in one, else a copy from there is
 * inserted after the step. */
void kva_plan_separate(kva_memory_plan *p, kva_arena *arena, uint32_t step, uint32_t arg);

/* Inserts an empty step before step `step`, or at the end: numbers of steps and lifetimes from `step` on increase by
 * one.
 */
kva_plan_step *kva_plan_insert(kva_memory_plan *p, kva_arena *arena, uint32_t step);

/* The step that starts what step `wait`, a WAIT, ends. */
int32_t kva_plan_start(const kva_memory_plan *p, uint32_t wait);

#endif
