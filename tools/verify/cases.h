/* Cases of operators and what runs them. A case is data: an operator, attributes as text, operands as shapes and
 * ranges. The same cases check the reference's gradients against finite differences and, through an executor, compiled
 * code against the reference.
 *
 *   {.op = KVA_OP_concat, .attrs = "axis=1", .in = {{"B=2,3"}, {"B=2,1", -1, 1}}},
 *
 * A shape lists extents: `4`, or `B=2`, the symbol B bound to 2 (a later `B` alone means the same). "" is a scalar, "-"
 * an operand left out. Attributes are `name=value; ...` with the values of their kinds: lists with commas, dims as sums
 * of products of integers and symbols, dtypes and strings as words, bools as 0 or 1. */
#ifndef KVA_TOOLS_VERIFY_CASES_H
#define KVA_TOOLS_VERIFY_CASES_H

#include "ops/build.h"

enum { KVA_CASE_OPERANDS = 8 };

typedef struct kva_case_operand {
  const char *shape;  /* NULL ends the list */
  double lo, hi;      /* range of random values; both 0: [-2, 2], integers [-9, 9] or [0, 9] */
  kva_dtype dtype;    /* NONE: the case's */
  const char *values; /* explicit values: a list, repeated as needed; may contain nan and inf */
  bool constant;      /* the rule gives no gradient for it, by contract */
} kva_case_operand;

typedef struct kva_case {
  kva_op_id op;
  const char *attrs;
  kva_case_operand in[KVA_CASE_OPERANDS];
  kva_dtype dtype;  /* NONE: float */
  bool no_gradient; /* the values sit where the operator has none (kinks, duplicate indices), or take no dtype double */
  bool first_result; /* gradients flow through result 0 only, by contract */
} kva_case;

/* ---- the lists --------------------------------------------------------------------------------------------------- */

typedef struct kva_case_table {
  const kva_case *cases;
  uint32_t n;
} kva_case_table;
extern const kva_case_table kva_cases_core; /* elementwise, reductions, scans, movement */
extern const kva_case_table kva_cases_nn;   /* contraction, windows, rows, language models, optimisers */

/* A set of dtypes: bit (1 << dtype). */
typedef uint32_t kva_dtype_set;
static inline bool kva_dtype_in(kva_dtype_set set, kva_dtype t) {
  return set >> t & 1;
}
/* Dtypes that operand 0 of an operator may have, except storage-only ones (float8, four bits and less). Empty if the
 * row names no class. */
kva_dtype_set kva_case_op_dtypes(kva_op_id op);
/* Dtypes in which a case runs; {NONE} if the operator's row names no class or the case all its operands' dtypes, so the
 * case decides. Explicit values and ranges restrict a case to floats or to integers; a case with neither runs in all.
 */
kva_dtype_set kva_case_dtypes(const kva_case *c);

/* Generates random shapes, axes and attributes for an operator in one dtype: number 0, 1, ... of a deterministic
 * sequence with odd sizes, size 1, size 0 where allowed, and broadcasting. Strings live in `arena`. False: the operator
 * has no generator. */
bool kva_case_random(kva_arena *arena, kva_op_id op, kva_dtype dtype, uint32_t number, kva_case *out_case);
/* As many numbers as go through all that the generator varies in a fixed order. */
uint32_t kva_case_random_least(kva_op_id op);

/* ---- building and running ---------------------------------------------------------------------------------------- */

/* Runs f on inputs; outputs are reference tensors from malloc. Either the reference or compiled code. */
typedef kva_status (*kva_executor)(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                                   kva_ref_tensor **outputs, kva_diag *diag);
kva_status kva_run_reference(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                             kva_ref_tensor **outputs, kva_diag *diag);

/* The operator as a function of its operands, and values for them. */
typedef struct kva_case_built {
  kva_diag *diag;
  kva_module *m;
  kva_function *f;
  kva_node *node;
  uint32_t n_inputs, n_outputs;
  kva_ref_tensor *inputs[KVA_CASE_OPERANDS];
} kva_case_built;
/* dtype: replaces the case's; NONE keeps it. A failure is stored in built->diag and frees nothing: always call
 * kva_case_free. */
kva_status kva_case_build(const kva_case *c, kva_dtype dtype, kva_case_built *built);
/* The same without values: n_inputs is 0, and extents cost no memory. */
kva_status kva_case_build_graph(const kva_case *c, kva_dtype dtype, kva_case_built *built);
void kva_case_free(kva_case_built *built);
/* Parses attributes into the operator's struct, in m's arena; NULL if they are malformed. */
void *kva_case_attrs(kva_module *m, kva_op_id op, const char *text);
/* Adds name, attributes, types and shapes, for messages. */
void kva_case_describe(const kva_case *c, kva_dtype dtype, kva_text *text);
/* Uniform in (0, 1), a function of its arguments. */
double kva_case_uniform(uint64_t element, uint64_t stream);

/* ---- checking ---------------------------------------------------------------------------------------------------- */

/* The failure and the error of the worst element. Zero-initialise; free the text. */
typedef struct kva_check {
  kva_text message; /* empty: passed */
  double error;     /* executor: in units of the tolerance (exact operators: 0 or infinite); gradient: relative to the
                       largest element of that operand's gradient, at least 1e-3 */
  kva_dtype dtype;  /* of result 0 */
  bool unsupported; /* the executor has no code for it; the message says why */
  bool exchanges;   /* a gradient: a node of it exchanges values with other processes */
} kva_check;

/* Executor against reference, within the row's tolerance. */
bool kva_case_check(const kva_case *c, kva_dtype dtype, kva_executor run, void *user, kva_check *check);
/* Compares the operator's vjp with central differences, both on the reference in double. */
bool kva_case_check_gradient(const kva_case *c, kva_check *check);
/* Compares the vjp's graph in float: executor against reference. The tolerance is the sum of its operators'
 * tolerances. */
bool kva_case_check_backward(const kva_case *c, kva_executor run, void *user, kva_check *check);
/* Whether the two gradient checks apply: there is a rule, and values for which it holds. */
bool kva_case_has_gradient(const kva_case *c);
/* Largest relative error of a gradient. */
#define KVA_GRADIENT_TOLERANCE 1e-6
/* Spacing of the type's values at 1. */
double kva_case_epsilon(kva_dtype t);
/* Maximum difference, at 1, of a result with an error of `units` in the last place of float or double. Narrower types
 * are computed in float and rounded when stored, independently of the length of a sum: a few units at most. */
double kva_case_tolerance(double units, kva_dtype result);
#define KVA_NARROW_UNITS 2.0

#endif
