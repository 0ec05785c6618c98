/* sin: y = sin x (radians). Gradient: g cos x.
 * Tolerance 4: polynomial kernels after range reduction; near zeros of sine the error is absolute, of 1. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_UNARY_OP(sin, sin, sin, NULL)
KVA_UNARY_VJP(sin, kva_mul(b, g, kva_build1(b, KVA_OP_cos, x)))
