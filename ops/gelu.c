/* gelu: y = x P(x) with the normal distribution function P(x) = (1 + erf(x / sqrt 2)) / 2, or with `tanh` its
 * approximation (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks and Gimpel 2016).
 * Gradient: g (P + x P'), P' = e^(-x^2/2) / sqrt(2 pi), or (1 - tanh^2 u) u' / 2.
 * Tolerance 8: one polynomial kernel and four roundings; for x << 0 relative to |x|, because 1 + erf cancels. */
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

static kva_kval lower_p(kva_kb *b, kva_kval x, bool approximate) {
  if (!approximate) return kva_k1(b, KVA_K_erf, kva_k2(b, KVA_K_mul, x, KVA_KNUM(sqrt_half)));
  kva_kval square = kva_k2(b, KVA_K_mul, x, x);
  kva_kval factor = kva_k2(b, KVA_K_add, KVA_KNUM(1), kva_k2(b, KVA_K_mul, KVA_KNUM(cubic), square));
  return kva_k1(b, KVA_K_tanh, kva_k2(b, KVA_K_mul, kva_k2(b, KVA_K_mul, KVA_KNUM(sqrt_2_over_pi), x), factor));
}
KVA_UNARY_LOWER(gelu, kva_k2(b, KVA_K_mul, kva_k2(b, KVA_K_mul, KVA_KNUM(0.5), x),
                             kva_k2(b, KVA_K_add, KVA_KNUM(1), lower_p(b, x, is_tanh(n)))))
