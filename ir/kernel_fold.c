/* Constant folding of kernel arithmetic. Folds only operations with a unique result. f32 is computed in double and
 * rounded again, which is exact for + - * / sqrt (53 >= 2*24 + 2 bits: Figueroa, "When is double rounding innocuous?",
 * 1995). */
#include "ir/kernel_fold.h"

#include <math.h>

static double min_f(double a, double b) {
  if (isnan(a) || isnan(b)) return NAN;
  return a < b ? a : b;
}

static double max_f(double a, double b) {
  if (isnan(a) || isnan(b)) return NAN;
  return a > b ? a : b;
}

static bool arith_f(kva_kop op, kva_dtype t, double a, double b, double c, double *out) {
  switch (op) {
  case KVA_K_add: *out = a + b; return true;
  case KVA_K_sub: *out = a - b; return true;
  case KVA_K_mul: *out = a * b; return true;
  case KVA_K_div: *out = a / b; return true;
  case KVA_K_rem: *out = fmod(a, b); return true;
  case KVA_K_min: *out = min_f(a, b); return true;
  case KVA_K_max: *out = max_f(a, b); return true;
  case KVA_K_fma: *out = t == KVA_F64 ? fma(a, b, c) : (double)fmaf((float)a, (float)b, (float)c); return true;
  case KVA_K_neg: *out = -a; return true;
  case KVA_K_abs: *out = fabs(a); return true;
  case KVA_K_floor: *out = floor(a); return true;
  case KVA_K_ceil: *out = ceil(a); return true;
  case KVA_K_round: *out = rint(a); return true;
  case KVA_K_trunc: *out = trunc(a); return true;
  case KVA_K_sqrt: *out = sqrt(a); return true;
  case KVA_K_scalef: *out = a * exp2(b - KVA_K_ROUNDER); return fabs(b - KVA_K_ROUNDER) <= 250;
  default: return false;
  }
}

static bool compare_f(kva_kop op, double a, double b, int64_t *out) {
  switch (op) {
  case KVA_K_eq: *out = a == b; return true;
  case KVA_K_ne: *out = a != b; return true;
  case KVA_K_lt: *out = a < b; return true;
  case KVA_K_le: *out = a <= b; return true;
  case KVA_K_isnan: *out = isnan(a); return true;
  default: return false;
  }
}

static bool less(kva_dtype t, int64_t a, int64_t b) {
  return kva_dtype_is_unsigned(t) ? (uint64_t)a < (uint64_t)b : a < b;
}

static int64_t div_i(kva_dtype t, int64_t a, int64_t b) {
  if (!b) return 0;
  if (kva_dtype_is_unsigned(t)) return (int64_t)((uint64_t)a / (uint64_t)b);
  return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

static int64_t rem_i(kva_dtype t, int64_t a, int64_t b) {
  if (!b) return 0;
  if (kva_dtype_is_unsigned(t)) return (int64_t)((uint64_t)a % (uint64_t)b);
  return b == -1 ? 0 : a % b;
}

static bool shift_i(kva_kop op, kva_dtype t, int64_t a, int64_t b, int64_t *out) {
  if (b < 0 || b >= kva_dtype_bits(t)) return false;
  bool is_logical = kva_dtype_is_unsigned(t);
  *out = op == KVA_K_shl ? (int64_t)((uint64_t)a << b) : is_logical ? (int64_t)((uint64_t)a >> b) : a >> b;
  return true;
}

/* Of a, b and c only the low 32 bits count. */
static int64_t dot4_i(uint64_t a, uint64_t b, uint64_t c) {
  for (int bit = 0; bit < 32; bit += 8) c += (uint64_t)((int64_t)(uint8_t)(a >> bit) * (int8_t)(b >> bit));
  return (int64_t)c;
}

/* Result before wrapping to t. Values of narrow types are kept sign or zero extended. */
static bool arith_i(kva_kop op, kva_dtype t, int64_t a, int64_t b, int64_t c, int64_t *out) {
  uint64_t x = (uint64_t)a, y = (uint64_t)b;
  switch (op) {
  case KVA_K_add: *out = (int64_t)(x + y); return true;
  case KVA_K_sub: *out = (int64_t)(x - y); return true;
  case KVA_K_mul: *out = (int64_t)(x * y); return true;
  case KVA_K_div: *out = div_i(t, a, b); return true;
  case KVA_K_rem: *out = rem_i(t, a, b); return true;
  case KVA_K_min: *out = less(t, b, a) ? b : a; return true;
  case KVA_K_max: *out = less(t, a, b) ? b : a; return true;
  case KVA_K_fma: *out = (int64_t)(x * y + (uint64_t)c); return true;
  case KVA_K_neg: *out = (int64_t)(0 - x); return true;
  case KVA_K_abs: *out = less(t, a, 0) ? (int64_t)(0 - x) : a; return true;
  case KVA_K_floor:
  case KVA_K_ceil:
  case KVA_K_round:
  case KVA_K_trunc: *out = a; return true;
  case KVA_K_and: *out = a & b; return true;
  case KVA_K_or: *out = a | b; return true;
  case KVA_K_xor: *out = a ^ b; return true;
  case KVA_K_not: *out = t == KVA_BOOL ? !a : ~a; return true;
  case KVA_K_shl:
  case KVA_K_shr: return shift_i(op, t, a, b, out);
  case KVA_K_dot4: *out = dot4_i(x, y, (uint64_t)c); return t == KVA_I32;
  case KVA_K_mulhi: *out = (int64_t)(x * y >> 32); return t == KVA_U32;
  case KVA_K_eq: *out = a == b; return true;
  case KVA_K_ne: *out = a != b; return true;
  case KVA_K_lt: *out = less(t, a, b); return true;
  case KVA_K_le: *out = !less(t, b, a); return true;
  case KVA_K_isnan: *out = 0; return true;
  default: return false;
  }
}

bool kva_kfold_arith(kva_kop op, kva_dtype t, const kva_kconst *args, kva_kconst *out) {
  if (op == KVA_K_select) {
    *out = args[0].i ? args[1] : args[2];
    return true;
  }
  if (!kva_dtype_is_float(t)) {
    if (!arith_i(op, t, args[0].i, args[1].i, args[2].i, &out->i)) return false;
    out->i = kva_wrap_i64(kva_kop_result_type(op, t), out->i);
    return true;
  }
  if (compare_f(op, args[0].f, args[1].f, &out->i)) return true;
  if (!arith_f(op, t, args[0].f, args[1].f, args[2].f, &out->f)) return false;
  out->f = kva_round_f64(t, out->f);
  return true;
}

static int64_t saturate(kva_dtype t, double v) {
  int bits = kva_dtype_bits(t);
  bool is_unsigned = kva_dtype_is_unsigned(t);
  if (isnan(v)) return 0;
  double hi = ldexp(1, is_unsigned ? bits : bits - 1), lo = is_unsigned ? 0 : -hi;
  if (v <= lo) return is_unsigned ? 0 : (int64_t)(UINT64_MAX << (bits - 1));
  if (v >= hi) return kva_wrap_i64(t, (int64_t)(UINT64_MAX >> (is_unsigned ? 64 - bits : 65 - bits)));
  return is_unsigned ? (int64_t)(uint64_t)v : (int64_t)v;
}

static double int_to_float(kva_dtype from, kva_dtype to, int64_t v) {
  if (from == KVA_U64) return to == KVA_F64 ? (double)(uint64_t)v : (double)(float)(uint64_t)v;
  return to == KVA_F64 ? (double)v : (double)(float)v;
}

kva_kconst kva_kfold_convert(kva_dtype from, kva_dtype to, kva_kconst v) {
  bool from_float = kva_dtype_is_float(from), to_float = kva_dtype_is_float(to);
  if (to == KVA_BOOL) return (kva_kconst){.i = from_float ? v.f != 0 : v.i != 0};
  if (to_float) return (kva_kconst){.f = kva_round_f64(to, from_float ? v.f : int_to_float(from, to, v.i))};
  return (kva_kconst){.i = from_float ? saturate(to, v.f) : kva_wrap_i64(to, v.i)};
}

kva_kconst kva_kfold_bitcast(kva_dtype from, kva_dtype to, kva_kconst v) {
  uint64_t bytes = 0;
  if (kva_dtype_is_float(from)) kva_store_f64(from, &bytes, 0, v.f);
  if (!kva_dtype_is_float(from)) kva_store_i64(from, &bytes, 0, v.i);
  if (kva_dtype_is_float(to)) return (kva_kconst){.f = kva_load_f64(to, &bytes, 0)};
  return (kva_kconst){.i = kva_load_i64(to, &bytes, 0)};
}
