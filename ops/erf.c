/* erf: y = 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x. Gradient: g 2/sqrt(pi) e^(-x^2).
 * Tolerance 4: polynomial kernels. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_UNARY_OP(erf, erf, erf, NULL)
KVA_UNARY_VJP(erf, kva_mul(b, kva_mul(b, g, KVA_NUM(1.12837916709551257390)),
                           kva_build1(b, KVA_OP_exp, kva_neg(b, kva_mul(b, x, x)))))
