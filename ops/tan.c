/* tan: y = tan x (radians). Gradient: g (1 + y^2).
 * Tolerance 8: a quotient of two polynomial kernels. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(tan, tan, tan, NULL)
KVA_UNARY_VJP(tan, kva_mul(b, g, kva_add(b, KVA_NUM(1), kva_mul(b, r, r))))
