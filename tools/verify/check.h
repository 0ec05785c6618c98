/* Shared by the checks of compiled code and of gradients. */
#ifndef KVA_TOOLS_VERIFY_CHECK_H
#define KVA_TOOLS_VERIFY_CHECK_H

#include "tools/verify/cases.h"

#include <math.h>

/* Adds the case, `what` and the diagnostics (may be NULL) to the message; returns false. */
bool kva_check_fail(kva_check *check, const kva_case *c, kva_dtype dtype, const char *what, const kva_diag *diag);

/* A function of a case to compare: the operator or its gradient. */
typedef struct kva_check_run {
  const kva_case *c;
  kva_dtype dtype;
  const kva_case_built *built;
  kva_function *f; /* at most KVA_CASE_OPERANDS outputs */
  const kva_ref_tensor *const *inputs;
  double tolerance; /* in units of the dtype's epsilon, relative to the largest input or output */
} kva_check_run;
/* Executor against reference, on the same inputs. */
bool kva_check_function(const kva_check_run *r, kva_executor run, void *user, kva_check *check);
/* Largest finite magnitude; 0 of integers. */
double kva_check_largest(const kva_ref_tensor *w);

#endif
