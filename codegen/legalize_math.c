/* Expands mathematical functions on f32 into arithmetic: straight-line code without branches or tables, which runs in
 * lanes of any width on any target and fuses with the code around it.
 *
 * Largest errors found, in units in the last place (tests/codegen/test_math.c, all binades): exp 1.0, log 0.8, sin cos
 * 1.5, tan 3.1, asin 2.2, acos 1.1, atan 1.3, sinh 1.5, cosh 1.4, tanh 2.3, erf 1.0, expm1 1.5; asinh acosh atanh log1p
 * pow 0.51 (through f64). Polynomials are minimax fits made for this file (Remez exchange on the weighted error,
 * coefficients rounded to f32). Infinities, NaN, signed zeros and subnormals follow C's Annex F. sin, cos
 * and tan of 2^50 and more go through a branch (codegen/llvm_angle.c). */
#include "codegen/legalize.h"

static kva_kval link(kva_mb *b, kva_kinstr *i) {
  KVA_ASSERT(b->at->region);
  kva_k_insert(b->at->region, b->at, i);
  return i;
}

kva_kval kva_mb_op(kva_mb *b, kva_kop op, uint32_t n, kva_kval x, kva_kval y, kva_kval z) {
  KVA_ASSERT(n == kva_kop_arity(op));
  kva_dtype operand = op == KVA_K_select ? y->dtype : x->dtype;
  kva_kinstr *i = kva_k_instr_create(b->k, op, kva_kop_result_type(op, operand));
  i->n_args = n;
  i->args[0] = x;
  i->args[1] = y;
  i->args[2] = z;
  return link(b, i);
}

static kva_kval constant(kva_mb *b, kva_dtype t, double f, int64_t n) {
  kva_kinstr *i = kva_k_instr_create(b->k, KVA_K_CONST, t);
  if (kva_dtype_is_float(t))
    i->imm.f = f;
  else
    i->imm.i = n;
  return link(b, i);
}

kva_kval kva_mb_f32(kva_mb *b, double v) {
  return constant(b, KVA_F32, (float)v, 0);
}

kva_kval kva_mb_f64(kva_mb *b, double v) {
  return constant(b, KVA_F64, v, 0);
}

kva_kval kva_mb_i32(kva_mb *b, int64_t v) {
  return constant(b, KVA_I32, 0, (int32_t)v);
}

kva_kval kva_mb_i64(kva_mb *b, int64_t v) {
  return constant(b, KVA_I64, 0, v);
}

kva_kval kva_mb_cast(kva_mb *b, kva_kop op, kva_kval x, kva_dtype to) {
  KVA_ASSERT(op == KVA_K_CONVERT || (op == KVA_K_BITCAST && kva_dtype_bits(x->dtype) == kva_dtype_bits(to)));
  kva_kinstr *i = kva_k_instr_create(b->k, op, to);
  i->n_args = 1;
  i->args[0] = x;
  return link(b, i);
}

kva_kval kva_mb_poly(kva_mb *b, kva_kval x, uint32_t n, const double *c) {
  KVA_ASSERT(n > 0 && kva_dtype_is_float(x->dtype));
  kva_kval sum = constant(b, x->dtype, c[n - 1], 0);
  for (uint32_t i = n - 1; i-- > 0;) sum = mb_fma(b, sum, x, constant(b, x->dtype, c[i], 0));
  return sum;
}

kva_kval kva_mb_copy_sign(kva_mb *b, kva_kval r, kva_kval x) {
  KVA_ASSERT(r->dtype == x->dtype);
  bool wide = x->dtype == KVA_F64;
  kva_kval sign_bit = wide ? kva_mb_i64(b, INT64_MIN) : kva_mb_i32(b, INT32_MIN);
  kva_kval others = wide ? kva_mb_i64(b, INT64_MAX) : kva_mb_i32(b, INT32_MAX);
  return mb_float(b, mb_or(b, mb_and(b, mb_bits(b, r), others), mb_and(b, mb_bits(b, x), sign_bit)));
}

static kva_kval expand(kva_mb *b, const kva_kinstr *i) {
  kva_kval x = i->args[0];
  switch (i->op) {
  case KVA_K_exp: return kva_math_exp(b, x);
  case KVA_K_log: return kva_math_log(b, x);
  case KVA_K_sin: return kva_math_sin(b, x);
  case KVA_K_cos: return kva_math_cos(b, x);
  case KVA_K_tan: return kva_math_tan(b, x);
  case KVA_K_asin: return kva_math_asin(b, x);
  case KVA_K_acos: return kva_math_acos(b, x);
  case KVA_K_atan: return kva_math_atan(b, x);
  case KVA_K_sinh: return kva_math_sinh(b, x);
  case KVA_K_cosh: return kva_math_cosh(b, x);
  case KVA_K_tanh: return kva_math_tanh(b, x);
  case KVA_K_asinh: return kva_math_asinh(b, x);
  case KVA_K_acosh: return kva_math_acosh(b, x);
  case KVA_K_atanh: return kva_math_atanh(b, x);
  case KVA_K_erf: return kva_math_erf(b, x);
  case KVA_K_pow: return kva_math_pow(b, x, i->args[1]);
  case KVA_K_log1p: return kva_math_log1p(b, x);
  case KVA_K_expm1: return kva_math_expm1(b, x);
  default: return NULL;
  }
}

/* Values have no use lists: the instruction itself becomes the last one of its expansion. */
void kva_mb_become(kva_kinstr *i, kva_kinstr *last) {
  KVA_ASSERT(last->dtype == i->dtype && last->op != KVA_K_CONST);
  i->op = last->op;
  i->n_args = last->n_args;
  memcpy(i->args, last->args, sizeof i->args);
  kva_k_unlink(last);
}

static void legalize(void *user, kva_kinstr *i) {
  if (i->dtype != KVA_F32 || i->op >= KVA_K_CONST) return;
  kva_mb b = {user, i};
  kva_kinstr *last = expand(&b, i);
  if (last) kva_mb_become(i, last);
}

void kva_legalize_math(kva_kernel *k) {
  kva_k_each_instr(k, legalize, k);
}
