/* log: y = ln x; -inf at 0, NaN below. Gradient: g / x.
 * Tolerance 4: polynomial kernels, within 2 ulp away from x = 1, absolute there. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(log, log, log, NULL)
KVA_UNARY_VJP(log, kva_div(b, g, x))
