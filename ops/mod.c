/* mod: z = x - y q, where q is x / y rounded down (z has the sign of y, a float also as zero), or with `fmod` rounded
 * toward zero (z has the sign of x). Integers: y = 0 gives 0. Gradients: g and -g q, with q held constant. Tolerance 1:
 * the remainder itself is exact, the correction of its sign one rounding. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/shape_values.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(mod)

static double mod_f(double x, double y) {
  double r = fmod(x, y);
  if (r == 0) return copysign(0, y);
  return (r < 0) != (y < 0) ? r + y : r;
}
static int64_t rem_i(int64_t x, int64_t y) {
  return y == 0 || y == -1 ? 0 : x % y;
}
static int64_t mod_i(int64_t x, int64_t y) {
  int64_t r = rem_i(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static int64_t rem_u(int64_t x, int64_t y) {
  return y ? (int64_t)((uint64_t)x % (uint64_t)y) : 0;
}

kva_status kva_mod_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  bool c_style = ((const kva_mod_attrs *)n->attrs)->fmod;
  int64_t (*integer)(int64_t, int64_t) = in[0]->dtype == KVA_U64 ? rem_u : c_style ? rem_i : mod_i;
  kva_ref_map2(in[0], in[1], out[0], c_style ? fmod : mod_f, integer);
  return KVA_OK;
}

/* q = (x - z) / y, an integer up to rounding. */
static kva_value *quotient(kva_builder *b, kva_value *x, kva_value *y, kva_value *z) {
  return kva_build1(b, KVA_OP_round, kva_div(b, kva_sub(b, x, z), y));
}
KVA_BINARY_VJP(mod, g, kva_neg(b, kva_mul(b, g, quotient(b, x, y, r))))

static kva_kval lower_mod(kva_kb *b, kva_kval x, kva_kval y, bool c_style) {
  kva_kval r = kva_k2(b, KVA_K_rem, x, y);
  if (c_style || kva_dtype_is_unsigned(x->dtype)) return r;
  kva_kval zero = KVA_KNUM(0);
  kva_kval signs_differ = kva_k2(b, KVA_K_xor, kva_k2(b, KVA_K_lt, r, zero), kva_k2(b, KVA_K_lt, y, zero));
  kva_kval correct = kva_k2(b, KVA_K_and, kva_k2(b, KVA_K_ne, r, zero), signs_differ);
  if (kva_dtype_is_float(x->dtype)) {
    kva_kval signed_zero = kva_k_select(b, kva_k2(b, KVA_K_lt, y, zero), KVA_KNUM(-0.0), zero);
    r = kva_k_select(b, kva_k2(b, KVA_K_eq, r, zero), signed_zero, r);
  }
  return kva_k_select(b, correct, kva_k2(b, KVA_K_add, r, y), r);
}
KVA_BINARY_LOWER(mod, lower_mod(b, x, y, ((const kva_mod_attrs *)n->attrs)->fmod))

static kva_dim remainder_of(kva_expr_ctx *c, kva_dim a, kva_dim b) {
  return kva_shape_value_divides(b) ? kva_expr_mod(c, a, b) : NULL;
}

bool kva_mod_shape_values(kva_shape_values *v, const kva_node *n) {
  if (((const kva_mod_attrs *)n->attrs)->fmod) return false;
  return kva_shape_values_map2(v, n, remainder_of);
}
