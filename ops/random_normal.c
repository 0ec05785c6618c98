/* random_normal(seed, step): standard normal floats of the given shape by Box and Muller's method,
 *
 *   sqrt(-2 log u0) * cos(2 pi u1)
 *
 * with u0, u1 uniform in (0, 1) from words 0 and 1 of the element's block; see random.h.
 * Tolerance 16: logarithm and cosine (4 each), the latter at an argument up to 2 pi with a rounding of its own. */
#include "ops/random.h"

#include <math.h>

KVA_OP_FUNCTIONS(random_normal)

static const double two_pi = 6.283185307179586477;

kva_status kva_random_normal_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_random_normal_attrs *a = n->attrs;
  return kva_random_infer(m, n, a->shape, a->dtype, out_types);
}

kva_status kva_random_normal_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                 kva_ref_tensor *const *out) {
  (void)r;
  const kva_random_normal_attrs *a = n->attrs;
  for (int64_t i = 0; i < out[0]->n; i++) {
    kva_philox words = kva_random_words(in, a->stream, i);
    out[0]->f[i] = sqrt(-2 * log(kva_uniform01(words.v[0]))) * cos(two_pi * kva_uniform01(words.v[1]));
  }
  return KVA_OK;
}

kva_kval kva_random_normal_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_random_normal_attrs *a = n->attrs;
  kva_kb *kb = l->kb;
  kva_random_kvals words = kva_random_lower(l, n, a->stream, idx);
  kva_kval u0 = kva_random_uniform01(l, words.v[0], a->dtype), u1 = kva_random_uniform01(l, words.v[1], a->dtype);
  kva_kval minus_two = kva_k_const(kb, u0->dtype, -2), turn = kva_k_const(kb, u1->dtype, two_pi);
  kva_kval radius = kva_k1(kb, KVA_K_sqrt, kva_k2(kb, KVA_K_mul, minus_two, kva_k1(kb, KVA_K_log, u0)));
  return kva_k2(kb, KVA_K_mul, radius, kva_k1(kb, KVA_K_cos, kva_k2(kb, KVA_K_mul, turn, u1)));
}
