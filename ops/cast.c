/* cast: y = x in dtype `to`. Float to float rounds to nearest even; to float8 and narrower, large values saturate, or
 * with saturate = 0 become infinity or NaN. Float to integer truncates toward zero and saturates; NaN gives 0. Integer
 * to integer wraps; to bool is x != 0. Casts round inside fused kernels, too, except those with `may_stay_wide`, which
 * round when the value is stored: mixed precision makes them. Gradient: cast back, between floats; else none.
 * Tolerance 1: one rounding. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

#include <math.h>

KVA_OP_FUNCTIONS(cast)

static bool castable(kva_dtype t) {
  return kva_dtype_is_float(t) || kva_dtype_is_int(t) || t == KVA_BOOL;
}

kva_status kva_cast_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_class(m, n, 0));
  kva_dtype to = ((const kva_cast_attrs *)n->attrs)->to;
  if (!castable(to))
    return kva_fail(m->diag, KVA_UNSUPPORTED, &n->loc, "kv.cast: to %s is not supported; expected a number or bool",
                    kva_dtype_name(to));
  out_types[0] = kva_type_with_dtype(m, kva_operand_type(n, 0), to);
  return KVA_OK;
}

static int64_t saturated(kva_dtype to, double v) {
  int bits = kva_dtype_bits(to);
  bool is_unsigned = kva_dtype_is_unsigned(to);
  double hi = ldexp(1, is_unsigned ? bits : bits - 1), lo = is_unsigned ? 0 : -hi;
  if (isnan(v)) return 0;
  v = trunc(v);
  if (v < lo) return is_unsigned ? 0 : (int64_t)lo;
  if (v >= hi) return (int64_t)(UINT64_MAX >> (64 - bits + (is_unsigned ? 0 : 1)));
  return is_unsigned ? (int64_t)(uint64_t)v : (int64_t)v;
}

static double round_to(kva_dtype to, double v, bool saturate) {
  uint64_t storage = 0;
  kva_store_f64_as(to, &storage, 0, v, saturate, KVA_E8M0_UP);
  return kva_load_f64(to, &storage, 0);
}

kva_status kva_cast_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_cast_attrs *a = n->attrs;
  const kva_ref_tensor *x = in[0];
  kva_ref_tensor *y = out[0];
  for (int64_t i = 0; i < y->n; i++) {
    if (y->f && x->f)
      y->f[i] = round_to(a->to, x->f[i], a->saturate);
    else if (y->f)
      y->f[i] = round_to(a->to, x->dtype == KVA_U64 ? (double)(uint64_t)x->i[i] : (double)x->i[i], a->saturate);
    else if (a->to == KVA_BOOL)
      y->i[i] = kva_ref_tensor_get(x, i) != 0;
    else
      y->i[i] = x->f ? saturated(a->to, x->f[i]) : x->i[i];
  }
  return KVA_OK;
}

kva_status kva_cast_vjp(kva_vjp *c, kva_node *n) {
  kva_dtype from = kva_operand_type(n, 0)->dtype;
  if (kva_dtype_is_float(from) && kva_dtype_is_float(n->results[0].type->dtype))
    c->grad_in[0] = kva_cast(c->b, c->grad_out[0], from);
  return KVA_OK;
}

/* Integers narrower than a byte are computed in bytes; wraps v to their range. */
static kva_kval lower_narrow_int(kva_kb *b, kva_kval v, kva_dtype to) {
  kva_dtype t = kva_k_compute_type(to);
  int bits = kva_dtype_bits(to);
  if (kva_dtype_is_float(v->dtype)) {
    double hi = ldexp(1, kva_dtype_is_unsigned(to) ? bits : bits - 1), lo = kva_dtype_is_unsigned(to) ? 0 : -hi;
    v = kva_k2(b, KVA_K_max, v, kva_k_const_f(b, v->dtype, lo));
    return kva_k_convert(b, kva_k2(b, KVA_K_min, v, kva_k_const_f(b, v->dtype, hi - 1)), t);
  }
  v = kva_k_convert(b, v, t);
  if (kva_dtype_is_unsigned(to)) return kva_k2(b, KVA_K_and, v, kva_k_const_i(b, t, (1 << bits) - 1));
  kva_kval shift = kva_k_const_i(b, t, kva_dtype_bits(t) - bits);
  return kva_k2(b, KVA_K_shr, kva_k2(b, KVA_K_shl, v, shift), shift);
}

/* The smallest magnitude that overflows float8 type `to`, after rounding to nearest even; 0: none does. */
static double first_overflow(kva_dtype to) {
  switch (to) {
  case KVA_F8E4M3FN: return (double)nextafterf(464, 465); /* the tie 464 goes to 448 */
  case KVA_F8E4M3FNUZ: return 248;
  case KVA_F8E5M2: return 61440;
  case KVA_F8E5M2FNUZ: return 61440;
  default: return 0;
  }
}

/* Stores saturate finite numbers, so overflowing values become NaN or, for float8e5m2, infinite beforehand. */
static kva_kval lower_unsaturated(kva_kb *b, kva_kval v, kva_dtype to) {
  double limit = first_overflow(to);
  if (limit == 0) return v;
  kva_kval inside = kva_k2(b, KVA_K_lt, kva_k1(b, KVA_K_abs, v), kva_k_const_f(b, v->dtype, limit));
  kva_kval infinity = kva_k_const_f(b, v->dtype, (double)INFINITY), nan = kva_k_const_f(b, v->dtype, (double)NAN);
  return kva_k_select(b, inside, v, to == KVA_F8E5M2 ? kva_k2(b, KVA_K_mul, v, infinity) : nan);
}

/* Stores keep infinities of float8e5m2. */
static kva_kval lower_saturated(kva_kb *b, kva_kval v, kva_dtype to) {
  if (to != KVA_F8E5M2) return v;
  kva_kval most = kva_k_const_f(b, v->dtype, 57344), least = kva_k_const_f(b, v->dtype, -57344);
  return kva_k2(b, KVA_K_max, kva_k2(b, KVA_K_min, v, most), least);
}

static kva_kval lower_cast(kva_kb *b, kva_kval x, const kva_cast_attrs *a) {
  if (a->to == KVA_BOOL) return x->dtype == KVA_BOOL ? x : kva_k2(b, KVA_K_ne, x, KVA_KNUM(0));
  if (kva_dtype_is_int(a->to) && kva_dtype_bits(a->to) < 8) return lower_narrow_int(b, x, a->to);
  kva_kval v = kva_k_convert(b, x, kva_k_compute_type(a->to));
  v = a->saturate ? lower_saturated(b, v, a->to) : lower_unsaturated(b, v, a->to);
  return kva_dtype_is_float(a->to) && !a->may_stay_wide ? kva_k_narrow(b, v, a->to) : v;
}
KVA_UNARY_LOWER(cast, lower_cast(b, x, n->attrs))

/* Narrower integers could wrap. */
bool kva_cast_shape_values(kva_shape_values *v, const kva_node *n) {
  kva_dtype from = kva_operand_type(n, 0)->dtype, to = n->results[0].type->dtype;
  bool wide = to == KVA_I64 || to == KVA_I32 || to == KVA_U64 || to == KVA_U32;
  return wide && (kva_dtype_is_int(from) || from == KVA_BOOL) && kva_shape_values_same(v, n);
}
