/* atan: y = arctan x in [-pi/2, pi/2]. Gradient: g / (1 + x^2).
 * Tolerance 8: polynomial after reduction by a quotient. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(atan, atan, atan, NULL)
KVA_UNARY_VJP(atan, kva_div(b, g, kva_add(b, KVA_NUM(1), kva_mul(b, x, x))))
