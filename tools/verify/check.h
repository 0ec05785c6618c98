/* What the checks of compiled code and of gradients share. */
#ifndef KVA_TOOLS_VERIFY_CHECK_H
#define KVA_TOOLS_VERIFY_CHECK_H

#include "tools/verify/cases.h"

#include <math.h>

/* Adds the case, `what` and the diagnostics (may be NULL) to the message; returns false. */
bool kva_check_fail(kva_check *check, const kva_case *c, kva_dtype dtype, const char *what, const kva_diag *diag);
/* Largest finite magnitude; 0 of integers. */
double kva_check_largest(const kva_wide *w);

#endif
