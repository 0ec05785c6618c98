/* cosh: y = (e^x + e^-x) / 2. Gradient: g sinh x.
 * Tolerance 8: composed from two exponentials. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_UNARY_OP(cosh, cosh, cosh, NULL)
KVA_UNARY_VJP(cosh, kva_mul(b, g, kva_build1(b, KVA_OP_sinh, x)))
