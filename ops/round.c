/* round: y = the integer nearest to x, ties to the even one (ONNX Round). Gradient: zero.
 * Exact. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(round, round, rint, NULL)
