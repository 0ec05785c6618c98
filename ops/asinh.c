/* asinh: y = ln(x + sqrt(x^2 + 1)). Gradient: g / sqrt(x^2 + 1).
 * Tolerance 8: composed from log1p and a square root. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_UNARY_OP(asinh, asinh, asinh, NULL)
KVA_UNARY_VJP(asinh, kva_div(b, g, kva_build1(b, KVA_OP_sqrt, kva_add(b, kva_mul(b, x, x), KVA_NUM(1)))))
