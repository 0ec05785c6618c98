/* random_uniform(seed, step): floats uniform in (0, 1) of the given shape; see random.h for the generator. Word 0 of
 * the element's block gives 23 random bits.
 * Tolerance 1: exact in float and wider, one rounding to narrower types. */
#include "ops/random.h"

KVA_OP_FUNCTIONS(random_uniform)

kva_status kva_random_uniform_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_random_uniform_attrs *a = n->attrs;
  return kva_random_infer(m, n, a->shape, a->dtype, out_types);
}

kva_status kva_random_uniform_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                  kva_ref_tensor *const *out) {
  (void)r;
  const kva_random_uniform_attrs *a = n->attrs;
  for (int64_t i = 0; i < out[0]->n; i++) out[0]->f[i] = kva_uniform01(kva_random_words(in, a->stream, i).v[0]);
  return KVA_OK;
}

kva_kval kva_random_uniform_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_random_uniform_attrs *a = n->attrs;
  return kva_random_uniform01(l, kva_random_lower(l, n, a->stream, idx).v[0], a->dtype);
}
