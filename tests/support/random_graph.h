/* Random functions: small graphs over inputs and states, the same for the same seed or bytes. Values stay moderate, so
 * that evaluations in double agree to many digits. */
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
  /* Operators and types of the whole table, many inputs, deep chains of movement, extents 0 and 1; not with parameters,
   * since not all of it has gradients. */
  bool wide;
  const eval_size *sizes; /* of the symbols B and T, with wide also N; NULL: random_graph_sizes */
  /* Decide in place of the seed, and the graph ends with them at the latest: for fuzzers, which change the graph by
   * changing bytes. NULL: none. */
  const uint8_t *bytes;
  size_t n_bytes;
} random_graph_options;

extern const eval_size random_graph_sizes[];

/* Which values every evaluator computes to the bit: inputs, integers, and what movement, choice and casts make of such
 * values. Zero-initialise with an arena. Only these may go where a little difference makes a large one. */
typedef struct random_exact {
  kva_arena *arena;
  KVA_VEC(uint8_t) known; /* by value id: 0 not known yet, 1 exact, 2 not */
} random_exact;
bool random_is_exact(random_exact *e, const kva_value *v);

kva_module *random_graph(const random_graph_options *options, kva_diag *diag);

#endif
