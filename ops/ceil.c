/* ceil: y = the smallest integer >= x. Gradient: zero.
 * Exact. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(ceil, ceil, ceil, NULL)
