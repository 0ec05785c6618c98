/* The case list of operators and what runs it. A case is data: an operator, attributes as text, operands as shapes and
 * ranges. The same list checks the reference's gradients against finite differences and, through an executor, compiled
 * code against the reference.
 *
 *   {.op = KVA_OP_concat, .attrs = "axis=1", .in = {{"B=2,3"}, {"B=2,1", -1, 1}}},
 *
 * A shape lists extents: `4`, or `B=2`, the symbol B bound to 2 (a later `B` alone means the same). "" is a scalar, "-"
 * an operand left out. Attributes are `name=value; ...` with the values of their kinds: lists with commas, dims as sums
 * of products of integers and symbols, dtypes and strings as words, bools as 0 or 1. */
#ifndef KVA_TESTS_OP_CASES_H
#define KVA_TESTS_OP_CASES_H

#include "ops/build.h"

enum { OP_CASE_OPERANDS = 8 };

typedef struct op_operand {
  const char *shape;  /* NULL ends the list */
  double lo, hi;      /* range of random values; both 0: [-2, 2], integers [-9, 9] or [0, 9] */
  kva_dtype dtype;    /* NONE: the case's */
  const char *values; /* instead of random ones: a list, repeated as needed; may hold nan and inf */
  bool constant;      /* the rule gives no gradient for it, by contract: none is asked for */
} op_operand;

typedef struct op_case {
  kva_op_id op;
  const char *attrs;
  op_operand in[OP_CASE_OPERANDS];
  kva_dtype dtype;  /* NONE: float */
  bool no_gradient; /* the values sit where the operator has none (kinks, duplicate indices), or take no dtype double */
  bool first_result; /* gradients flow through result 0 only, by contract */
} op_case;

typedef struct op_table {
  const op_case *cases;
  uint32_t n;
} op_table;
extern const op_table op_cases_core; /* elementwise, reductions, scans, movement */
extern const op_table op_cases_nn;   /* contraction, windows, rows, language models, optimisers */

/* Runs f on inputs; outputs malloc'd wide tensors. The reference, or compiled code. */
typedef kva_status (*op_executor)(void *user, kva_module *m, kva_function *f, const kva_wide *const *inputs,
                                  kva_wide **outputs, kva_diag *diag);
kva_status op_run_reference(void *user, kva_module *m, kva_function *f, const kva_wide *const *inputs,
                            kva_wide **outputs, kva_diag *diag);

/* The operator as a function of its operands, and values for them. */
typedef struct op_built {
  kva_diag *diag;
  kva_module *m;
  kva_function *f;
  kva_node *node;
  uint32_t n_inputs, n_outputs;
  kva_wide *inputs[OP_CASE_OPERANDS];
} op_built;
/* dtype NONE: the case's own; else that instead of it. A failure stays in built->diag (and frees nothing: always call
 * op_built_free). */
kva_status op_build(const op_case *c, kva_dtype dtype, op_built *built);
void op_built_free(op_built *built);
/* Attributes text as the operator's struct, in m's arena; NULL when it is malformed. */
void *op_attrs(kva_module *m, kva_op_id op, const char *text);

/* Name, shapes and dtype of a case, for messages. Static storage. */
const char *op_case_name(const op_case *c, kva_dtype dtype);
/* Spacing of floats of type t at 1. */
double op_epsilon(kva_dtype t);

/* Each prints what is wrong to stderr and returns false. Executor against reference, within the row's tolerance: */
bool op_check_executor(const op_case *c, kva_dtype dtype, op_executor run, void *user);
/* The operator's vjp against central differences, both on the reference in double; true without a check where the
 * row has no rule or the case says no_gradient. */
bool op_check_gradient(const op_case *c);

#endif
