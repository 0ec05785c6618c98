/* Gradients of a model against central differences, for `kvasir conform --grad`. */
#ifndef KVA_TOOLS_DIFFERENCES_H
#define KVA_TOOLS_DIFFERENCES_H

#include "ops/build.h"

typedef struct kva_differences {
  uint32_t slopes; /* compared */
  uint32_t inputs; /* float inputs that a gradient reaches; 0: the model is constant by its rules */
  double error;    /* worst, relative */
} kva_differences;

/* Differentiates a weighted sum of function 0's float outputs by its float inputs and compares with slopes of the
 * reference evaluator, in random directions and along single elements, everything in double. inputs: values of
 * function 0's inputs, which become double. Changes m, which has neither states nor random numbers.
 *
 * KVA_UNSUPPORTED: there is no gradient, and diag says why; KVA_INVALID: it is wrong. */
KVA_MUST_USE kva_status kva_check_differences(kva_module *m, kva_ref_tensor *const *inputs, kva_diag *diag,
                                              kva_differences *out);

#endif
