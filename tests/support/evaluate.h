/* Whole functions with state, evaluated by the reference and by compiled code: for tests that a transformation keeps
 * the meaning of a module. Inputs and states get values that depend on their names alone, so that every stage of a
 * module sees the same. Failures end the test with a message. */
#ifndef KVA_TESTS_SUPPORT_EVALUATE_H
#define KVA_TESTS_SUPPORT_EVALUATE_H

#include "tools/driver/driver.h"

/* Extents of shape symbols. */
typedef struct eval_size {
  const char *name; /* NULL ends a list */
  int64_t size;
} eval_size;

/* What a function returned and left in the states. */
typedef struct evaluated {
  uint32_t n_outputs, n_states;
  kva_ref_tensor **outputs, **states; /* states by id; NULL: the function does not touch it */
} evaluated;

/* Integers of inputs lie in [0, EVAL_INTEGERS), so that they may be tokens, targets or indices. */
enum { EVAL_INTEGERS = 3 };

evaluated evaluate_reference(kva_module *m, kva_function *f, const eval_size *sizes);
/* The same from other values of states: states[id], or NULL for the usual one. */
evaluated evaluate_reference_from(kva_module *m, kva_function *f, const eval_size *sizes,
                                  const kva_ref_tensor *const *states);
/* The same with a function that sees every value, and may change its elements. */
evaluated evaluate_reference_traced(kva_module *m, kva_function *f, const eval_size *sizes, kva_ref_trace trace,
                                    void *user);
/* Program `f->name` of a compiled module, through a session; f is the function of the compiled module. A GPU's code
 * runs on the simulator. */
evaluated evaluate_compiled(const kva_compiled *c, kva_function *f, const eval_size *sizes);
/* The same where the program may refuse the sizes (KVA_INVALID, printed): *out is valid at KVA_OK alone. */
kva_status evaluate_compiled_or_refuse(const kva_compiled *c, kva_function *f, const eval_size *sizes, evaluated *out);
void evaluated_free(evaluated *e);

/* Initial value of a state, and the value of an input (as it would be for an input of that name). */
kva_ref_tensor *eval_state(const kva_state *s);
kva_ref_tensor *eval_input(const kva_value *v, const eval_size *sizes);

/* Floats may differ by tolerance times the largest magnitude of their tensor (at least 1), integers not at all. Only
 * states that `expected` touches are compared. False: prints what differs. */
bool evaluated_equal(const char *what, const kva_module *m, const evaluated *expected, const evaluated *found,
                     double tolerance);

#endif
