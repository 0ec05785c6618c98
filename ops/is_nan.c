/* is_nan: y = whether x is NaN. Exact. */
#include "ops/elementwise.h"

#include <math.h>

static double is_nan_f(double x) {
  return isnan(x);
}
KVA_UNARY_OP(is_nan, isnan, is_nan_f, NULL)
