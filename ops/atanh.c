/* atanh: y = ln((1 + x) / (1 - x)) / 2 on [-1, 1]. Gradient: g / ((1 - x) (1 + x)).
 * Tolerance 8: composed from log1p and a quotient. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(atanh, atanh, atanh, NULL)
KVA_UNARY_VJP(atanh, kva_div(b, g, kva_mul(b, kva_sub(b, KVA_NUM(1), x), kva_add(b, KVA_NUM(1), x))))
