/* Statistics of a planned function; nothing is allocated or compiled. */
#ifndef KVA_TOOLS_DRIVER_SUMMARY_H
#define KVA_TOOLS_DRIVER_SUMMARY_H

#include "tools/driver/driver.h"

/* Bytes that a process exchanges with the others of a mesh. */
typedef struct kva_exchanged {
  int64_t summed;   /* of tensors that are added up */
  int64_t gathered; /* of tensors that are made of what other processes have */
  int64_t each;     /* sent by a process for both: with neighbours on both sides */
  int64_t sent;     /* by process 0 */
  int rounds;       /* in which each process sends to all others: 2 for a sum that all get; 0: to its neighbour alone */
} kva_exchanged;

/* Symbols have the extents of kva_assumed_extent. */
typedef struct kva_summary {
  kva_plan_bytes bytes;     /* without `of` */
  int64_t temp_peak_bytes;  /* arena after packing by lifetime */
  int64_t gradient_bytes;   /* of temporaries: what updates of parameters read */
  double contraction_flops; /* per call: matrix products, convolutions, attention (a multiply-add counts as two) */
  int64_t tokens;           /* elements of input 0 if that is an integer tensor, else 0 */
  int64_t steps, distinct_kernels;
  kva_exchanged exchanged;
} kva_summary;

KVA_MUST_USE kva_status kva_summarize(kva_module *m, const kva_memory_plan *plan, kva_summary *out_summary);
/* Bytes of a plan's temporaries in memory that they share, placed as the runtime places them. */
KVA_MUST_USE kva_status kva_plan_peak(const kva_memory_plan *plan, const kva_plan_bytes *bytes, kva_arena *scratch,
                                      int64_t *out_bytes);
/* The plan of a program of c, which has the same steps; NULL: none has. */
const kva_memory_plan *kva_plan_of_program(const kva_compiled *c, const kva_program *p);
/* contraction_flops of one step of the plan; 0 for steps without a contraction. */
double kva_plan_step_flops(kva_module *m, const kva_memory_plan *plan, uint32_t step);
/* What a node exchanges; 0 for other nodes. */
KVA_MUST_USE kva_status kva_exchanged_bytes(kva_module *m, const kva_node *n, kva_exchanged *out);
void kva_summary_print(const kva_memory_plan *plan, const kva_summary *s, FILE *out);
/* The same as a JSON object: parameters, contraction_flops, tokens, steps, distinct_kernels, bytes by category. */
void kva_summary_print_json(const kva_summary *s, FILE *out);

/* Prints the summaries of all functions of a planned module, confirmed for cg's target. */
KVA_MUST_USE kva_status kva_print_plans(const kva_codegen *cg, kva_module *m, FILE *out);
/* One JSON object: an object for each function, by its name; see kva_summary_print_json. With stages also "pipeline",
 * an object for each. */
KVA_MUST_USE kva_status kva_print_plans_json(const kva_codegen *cg, kva_module *m, FILE *out);
/* What the stages of the axis pipeline have, keep and send; without stages nothing. The module must be planned. */
KVA_MUST_USE kva_status kva_print_stages(kva_module *m, FILE *out);
KVA_MUST_USE kva_status kva_print_stages_json(kva_module *m, FILE *out);
/* Prints one plan with its buffers, their lifetimes and the operands of every step. */
KVA_MUST_USE kva_status kva_print_plan(kva_module *m, const kva_memory_plan *plan, FILE *out);
/* The scheduled kernel IR of every step of a planned module. */
KVA_MUST_USE kva_status kva_print_kernels(kva_codegen *cg, kva_arena *arena, kva_module *m, kva_text *out);
/* Adds every kernel to cg, each with the symbols that it uses. */
KVA_MUST_USE kva_status kva_add_kernels(kva_codegen *cg, kva_arena *arena, kva_module *m);

#endif
