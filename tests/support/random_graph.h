/* Random functions: small graphs of elementwise, movement, reduction, row, matrix and shift operators over inputs and
 * states, the same for the same seed. Values stay moderate, so that evaluations in double agree to many digits. */
#ifndef KVA_TESTS_SUPPORT_RANDOM_GRAPH_H
#define KVA_TESTS_SUPPORT_RANDOM_GRAPH_H

#include "tests/support/evaluate.h"

typedef struct random_graph_options {
  uint64_t seed;
  kva_dtype dtype;
  uint32_t nodes;  /* operators drawn; each may build a few nodes */
  bool states;     /* reads and writes states (their shapes are constant; without, extents may be symbols) */
  bool parameters; /* states are trained parameters, the function is "loss" with one scalar output, and the module has a
                    * train block */
  bool control;    /* if, loop and bind, too */
  const char *optimizer; /* of the train block */
  double clip;
} random_graph_options;

extern const eval_size random_graph_sizes[];

kva_module *random_graph(const random_graph_options *options, kva_diag *diag);

#endif
