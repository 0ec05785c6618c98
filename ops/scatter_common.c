/* Operators that write to data-dependent positions. */
#include "ops/scatter_common.h"

#include <math.h>

kva_scatter_mode kva_scatter_mode_of(const char *reduction) {
  static const char *const names[] = {"none", "add", "mul", "max", "min"};
  if (!reduction) return KVA_SCATTER_SET;
  int i = 0;
  while (i < KVA_SCATTER_UNKNOWN && strcmp(reduction, names[i])) i++;
  return (kva_scatter_mode)i;
}

kva_status kva_scatter_check(kva_module *m, const kva_node *n, const char *reduction) {
  kva_scatter_mode mode = kva_scatter_mode_of(reduction);
  if (mode == KVA_SCATTER_UNKNOWN)
    return kva_error(m->diag, &n->loc, "kv.%s: reduction \"%s\": expected none, add, mul, max or min", n->op->name,
                     reduction);
  if (mode != KVA_SCATTER_SET && kva_operand_type(n, 0)->dtype == KVA_BOOL)
    return kva_error(m->diag, &n->loc, "kv.%s: reduction %s is not defined for bool", n->op->name, reduction);
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static double combine_f(kva_scatter_mode mode, double a, double x) {
  switch (mode) {
  case KVA_SCATTER_ADD: return a + x;
  case KVA_SCATTER_MUL: return a * x;
  case KVA_SCATTER_MAX: return isnan(a) || a > x ? a : x;
  case KVA_SCATTER_MIN: return isnan(a) || a < x ? a : x;
  default: return x;
  }
}

static int64_t combine_i(kva_scatter_mode mode, int64_t a, int64_t x, bool unsigned64) {
  bool less = unsigned64 ? (uint64_t)a < (uint64_t)x : a < x;
  switch (mode) {
  case KVA_SCATTER_ADD: return (int64_t)((uint64_t)a + (uint64_t)x);
  case KVA_SCATTER_MUL: return (int64_t)((uint64_t)a * (uint64_t)x);
  case KVA_SCATTER_MAX: return less ? x : a;
  case KVA_SCATTER_MIN: return less ? a : x;
  default: return x;
  }
}

void kva_scatter_ref(kva_scatter_mode mode, const kva_ref_tensor *x, int64_t from, kva_ref_tensor *y, int64_t to) {
  if (y->f)
    y->f[to] = kva_round_f64(y->dtype, combine_f(mode, y->f[to], x->f[from]));
  else
    y->i[to] = kva_wrap_i64(y->dtype, combine_i(mode, y->i[to], x->i[from], y->dtype == KVA_U64));
}
