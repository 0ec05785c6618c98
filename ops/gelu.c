/* gelu: y = x P(x) with the normal distribution function P(x) = (1 + erf(x / sqrt 2)) / 2, or with `tanh` its
 * approximation (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks and Gimpel 2016).
 * Gradient: g (P + x P'), P' = e^(-x^2/2) / sqrt(2 pi), or (1 - tanh^2 u) u' / 2.
 * Tolerance 8: an exponential of a polynomial, a sum, a product or quotient; for x << 0 relative to |x|, where P is
 * small. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

static const double sqrt_half = 0.70710678118654752440, inv_sqrt_2pi = 0.39894228040143267794;
static const double sqrt_2_over_pi = 0.79788456080286535588, cubic = 0.044715;

KVA_ELEMENTWISE_INFER(gelu)

static double gelu_erf(double x) {
  return 0.5 * x * (1 + erf(x * sqrt_half));
}
static double gelu_tanh(double x) {
  return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + cubic * x * x * x)));
}

static bool is_tanh(const kva_node *n) {
  return ((const kva_gelu_attrs *)n->attrs)->tanh;
}

kva_status kva_gelu_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  kva_ref_map1(in[0], out[0], is_tanh(n) ? gelu_tanh : gelu_erf, NULL);
  return KVA_OK;
}

static kva_value *slope_erf(kva_builder *b, kva_value *x) {
  kva_value *e = kva_build1(b, KVA_OP_erf, kva_mul(b, x, KVA_NUM(sqrt_half)));
  kva_value *p = kva_mul(b, KVA_NUM(0.5), kva_add(b, KVA_NUM(1), e));
  kva_value *density = kva_build1(b, KVA_OP_exp, kva_mul(b, KVA_NUM(-0.5), kva_mul(b, x, x)));
  return kva_add(b, p, kva_mul(b, kva_mul(b, x, KVA_NUM(inv_sqrt_2pi)), density));
}

static kva_value *slope_tanh(kva_builder *b, kva_value *x) {
  kva_value *xx = kva_mul(b, x, x);
  kva_value *u =
      kva_mul(b, kva_mul(b, KVA_NUM(sqrt_2_over_pi), x), kva_add(b, KVA_NUM(1), kva_mul(b, KVA_NUM(cubic), xx)));
  kva_value *t = kva_build1(b, KVA_OP_tanh, u);
  kva_value *du = kva_mul(b, KVA_NUM(sqrt_2_over_pi), kva_add(b, KVA_NUM(1), kva_mul(b, KVA_NUM(3 * cubic), xx)));
  kva_value *dt = kva_mul(b, kva_sub(b, KVA_NUM(1), kva_mul(b, t, t)), du);
  return kva_mul(b, KVA_NUM(0.5), kva_add(b, kva_add(b, KVA_NUM(1), t), kva_mul(b, x, dt)));
}
KVA_UNARY_VJP(gelu, kva_mul(b, g, is_tanh(n) ? slope_tanh(b, x) : slope_erf(b, x)))

/* log P(-a) for a >= 0, lowest power first. P errs by 0.17 of 2^-24, plus the exponential's rounding; from 5.2 on,
 * where it is below 1e-7, it only falls as fast as it should or faster. */
static const double log_tail[] = {-0.693147182,    -0.797885716,    -0.318296582,   -0.0363937095,  0.00490434188,
                                  -0.000101108868, -0.000126532294, 2.67697596e-05, -1.92142102e-06};

/* P(x) for floats: about half as many instructions as by erf (`kvasir show --stage=asm`). */
static kva_kval lower_p_f32(kva_kb *b, kva_kval x) {
  kva_kval a = kva_k1(b, KVA_K_abs, x), exponent = NULL;
  for (size_t i = sizeof log_tail / sizeof *log_tail; i-- > 0;)
    exponent = exponent ? kva_k_op(b, KVA_K_fma, exponent, a, KVA_KNUM(log_tail[i])) : KVA_KNUM(log_tail[i]);
  kva_kval tail = kva_k1(b, KVA_K_exp, exponent), rest = kva_k2(b, KVA_K_sub, KVA_KNUM(1), tail);
  return kva_k_op(b, KVA_K_select, kva_k2(b, KVA_K_lt, x, KVA_KNUM(0)), tail, rest);
}

static kva_kval lower_erf(kva_kb *b, kva_kval x) {
  if (x->dtype == KVA_F32) return kva_k2(b, KVA_K_mul, x, lower_p_f32(b, x));
  kva_kval e = kva_k1(b, KVA_K_erf, kva_k2(b, KVA_K_mul, x, KVA_KNUM(sqrt_half)));
  return kva_k2(b, KVA_K_mul, kva_k2(b, KVA_K_mul, KVA_KNUM(0.5), x), kva_k2(b, KVA_K_add, KVA_KNUM(1), e));
}

/* x / (1 + e^-2u) */
static kva_kval lower_tanh(kva_kb *b, kva_kval x) {
  kva_kval square = kva_k2(b, KVA_K_mul, x, x), factor = KVA_KNUM(-2 * sqrt_2_over_pi);
  factor = kva_k_op(b, KVA_K_fma, square, KVA_KNUM(-2 * sqrt_2_over_pi * cubic), factor);
  kva_kval e = kva_k1(b, KVA_K_exp, kva_k2(b, KVA_K_mul, x, factor));
  return kva_k2(b, KVA_K_div, x, kva_k2(b, KVA_K_add, KVA_KNUM(1), e));
}
KVA_UNARY_LOWER(gelu, is_tanh(n) ? lower_tanh(b, x) : lower_erf(b, x))
