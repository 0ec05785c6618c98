/* sinh: y = (e^x - e^-x) / 2. Gradient: g cosh x.
 * Tolerance 8: composed from exponentials; a polynomial near 0, where they cancel. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_UNARY_OP(sinh, sinh, sinh, NULL)
KVA_UNARY_VJP(sinh, kva_mul(b, g, kva_build1(b, KVA_OP_cosh, x)))
