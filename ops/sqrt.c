/* sqrt: y = sqrt(x); NaN for x < 0. Gradient: g / (2 y), infinite at x = 0.
 * Tolerance 1: correctly rounded on every target; the operand of a fused kernel may carry extra bits. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(sqrt, sqrt, sqrt, NULL)
KVA_UNARY_VJP(sqrt, kva_div(b, g, kva_mul(b, KVA_NUM(2), r)))
