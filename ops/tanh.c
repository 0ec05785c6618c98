/* tanh: y = (e^x - e^-x) / (e^x + e^-x). Gradient: g (1 - y^2).
 * Tolerance 4: a rational polynomial kernel. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(tanh, tanh, tanh, NULL)
KVA_UNARY_VJP(tanh, kva_mul(b, g, kva_sub(b, KVA_NUM(1), kva_mul(b, r, r))))
