/* exp: y = e^x. Gradient: g y.
 * Tolerance 4: polynomial kernels, within 2 ulp on the whole range, plus the rounding of x times the derivative. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(exp, exp, exp, NULL)
KVA_UNARY_VJP(exp, kva_mul(b, g, r))
