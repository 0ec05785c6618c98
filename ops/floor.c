/* floor: y = the largest integer <= x. Gradient: zero.
 * Exact. */
#include "ops/elementwise.h"

#include <math.h>

KVA_UNARY_OP(floor, floor, floor, NULL)
