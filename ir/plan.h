/* The memory plan: data that passes/plan.c makes and codegen turns into an artefact. A step runs one top-level node of
 * a planned function; every tensor value has a buffer. */
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

typedef struct kva_plan_step {
  kva_node *node; /* a node to lower to a kernel; NULL: copy */
  uint32_t n_args;
  const int32_t *args; /* buffers: node's distinct operands in order of first use, then results; copy: to, from */
} kva_plan_step;

typedef struct kva_memory_plan {
  kva_function *function;
  KVA_VEC(kva_plan_buffer) buffers;
  KVA_VEC(kva_plan_step) steps;
  KVA_VEC(int32_t) inputs;
  KVA_VEC(int32_t) outputs;
} kva_memory_plan;

/* A step whose result has the buffer of one of its operands (a state that it reads and writes) is a proposal, which the
 * step's scheduled kernel must confirm (kva_kernel_in_place). Where it does not, this gives argument `arg` of the step,
 * a result, a temporary of its own and inserts a copy from it after the step. */
void kva_plan_separate(kva_memory_plan *p, kva_arena *arena, uint32_t step, uint32_t arg);

#endif
