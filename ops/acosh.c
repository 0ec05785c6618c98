/* acosh: y = ln(x + sqrt(x^2 - 1)) for x >= 1; NaN below. Gradient: g / sqrt((x - 1) (x + 1)).
 * Tolerance 8: composed from log1p and a square root. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_UNARY_OP(acosh, acosh, acosh, NULL)
KVA_UNARY_VJP(acosh,
              kva_div(b, g,
                      kva_build1(b, KVA_OP_sqrt, kva_mul(b, kva_sub(b, x, KVA_NUM(1)), kva_add(b, x, KVA_NUM(1))))))
