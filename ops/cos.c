/* cos: y = cos x (radians). Gradient: -g sin x.
 * Tolerance 4: polynomial kernels after range reduction; near zeros of cosine the error is absolute, of 1. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_UNARY_OP(cos, cos, cos, NULL)
KVA_UNARY_VJP(cos, kva_neg(b, kva_mul(b, g, kva_build1(b, KVA_OP_sin, x))))
