/* Whether two tensors agree.
 *
 * A float element may be off by rtol of the largest expected one, since an error of a sum is one of its terms, and by
 * some roundings of the largest operand, because a difference of large numbers has their error. */
#include "tools/diff/diff.h"
#include "tools/verify/cases.h"

#include <math.h>

#define ROUNDINGS 16 /* of operands */
#define UNITS     4  /* of a narrow type, which compiled code rounds to once and the reference after every node */

static double largest(const kva_ref_tensor *w) {
  double m = 0;
  for (int64_t i = 0; w && w->f && i < w->n; i++)
    if (isfinite(w->f[i]) && fabs(w->f[i]) > m) m = fabs(w->f[i]);
  return m;
}

static double tolerance_of(const kva_diff_values *v, const kva_value *value, const kva_ref_tensor *expected,
                           const kva_diff_tolerance *t) {
  double operands = 0, unit = kva_case_epsilon(expected->dtype);
  for (uint32_t i = 0; value->def && i < value->def->n_operands; i++) {
    const kva_value *operand = kva_operand(value->def, i);
    if (operand) operands = fmax(operands, largest(v->of[operand->id]));
  }
  return t->atol + fmax(t->rtol, UNITS * unit) * largest(expected) + ROUNDINGS * unit * operands;
}

/* 0: equal. */
static double error_of(const kva_ref_tensor *expected, const kva_ref_tensor *found, int64_t i) {
  if (!expected->f) return expected->i[i] == found->i[i] ? 0 : INFINITY;
  double a = expected->f[i], b = found->f[i];
  if (a == b || (isnan(a) && isnan(b))) return 0;
  return isfinite(a - b) ? fabs(a - b) : INFINITY;
}

static bool same_shape(const kva_ref_tensor *a, const kva_ref_tensor *b) {
  bool same = a->dtype == b->dtype && a->rank == b->rank;
  for (uint32_t d = 0; same && d < a->rank; d++) same = a->dims[d] == b->dims[d];
  return same;
}

static void add_shape(kva_text *why, const kva_ref_tensor *w) {
  kva_text_add(why, "%s[", kva_dtype_name(w->dtype));
  for (uint32_t d = 0; d < w->rank; d++) kva_text_add(why, "%s%lld", d ? ", " : "", (long long)w->dims[d]);
  kva_text_add(why, "]");
}

bool kva_diff_agree(const kva_diff_values *v, const kva_value *value, const kva_ref_tensor *expected,
                    const kva_ref_tensor *found, const kva_diff_tolerance *tolerance, kva_text *why) {
  if (!same_shape(expected, found)) {
    kva_text_add(why, "expected ");
    add_shape(why, expected);
    kva_text_add(why, ", found ");
    add_shape(why, found);
    return false;
  }
  double allowed = expected->f ? tolerance_of(v, value, expected, tolerance) : 0, worst = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < expected->n; i++) {
    double error = error_of(expected, found, i);
    if (error <= worst) continue;
    worst = error;
    at = i;
  }
  if (worst <= allowed) return true;
  kva_text_add(why, "element %lld: expected %.9g, found %.9g", (long long)at, kva_ref_tensor_get(expected, at),
               kva_ref_tensor_get(found, at));
  if (expected->f) kva_text_add(why, ", tolerance %.3g", allowed);
  return false;
}
