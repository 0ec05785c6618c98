/* A random graph through the whole compiler: passes, verified one by one, code for a CPU or a simulated GPU, a run in a
 * session, at two sizes. The reference says what is right. */
#ifndef KVA_TESTS_SUPPORT_GRAPH_CHECK_H
#define KVA_TESTS_SUPPORT_GRAPH_CHECK_H

#include "tests/support/random_graph.h"

typedef struct graph_setting {
  random_graph_options graph;
  eval_size sizes[2][4]; /* of B, T and N; the second ones are at least as large */
  kva_target_options target;
} graph_setting;

typedef enum graph_verdict { GRAPH_RIGHT, GRAPH_WRONG, GRAPH_REFUSED } graph_verdict;

/* What is not right is printed to stderr, with the graph as text. m stays the caller's. */
graph_verdict graph_check(const graph_setting *s, kva_module *m);

/* The parts. The first compiles a copy of m, and fails, too, if that takes very long. The second compares outputs of m,
 * by the reference at `sizes`, with those of compiled code, whose symbols may have other names. */
kva_status graph_compile(const graph_setting *s, kva_module *m, kva_compiled **out);
graph_verdict graph_run(const graph_setting *s, const eval_size *sizes, kva_module *m, const kva_compiled *code,
                        const eval_size *code_sizes);
void graph_print(const graph_setting *s, const eval_size *sizes, kva_module *m);

#endif
