/* acos: y = arccos x in [0, pi]; NaN outside [-1, 1]. Gradient: -g / sqrt((1 - x) (1 + x)).
 * Tolerance 8: polynomial of a square root near the ends. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_UNARY_OP(acos, acos, acos, NULL)
KVA_UNARY_VJP(acos, kva_neg(b, kva_div(b, g,
                                       kva_build1(b, KVA_OP_sqrt,
                                                  kva_mul(b, kva_sub(b, KVA_NUM(1), x), kva_add(b, KVA_NUM(1), x))))))
