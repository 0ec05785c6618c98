/* bitcast: the bits of x read as dtype `to` of the same width (float, double, integers from 8 bits, bool as uint8).
 * Exact. */
#include "ops/elementwise.h"

static bool supported(kva_dtype t) {
  return t == KVA_BOOL || (kva_dtype_is_int(t) && kva_dtype_bits(t) >= 8) || t == KVA_F32 || t == KVA_F64;
}

kva_status kva_bitcast_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  kva_dtype from = kva_operand_type(n, 0)->dtype, to = ((const kva_bitcast_attrs *)n->attrs)->to;
  if (kva_dtype_bits(from) != kva_dtype_bits(to))
    return kva_operand_error(m, n, 0, "expected a dtype as wide as %s (%d bits), found %s", kva_dtype_name(to),
                             kva_dtype_bits(to), kva_dtype_name(from));
  if (!supported(from) || !supported(to))
    return kva_fail(m->diag, KVA_UNSUPPORTED, &n->loc, "kv.bitcast: %s to %s is not supported", kva_dtype_name(from),
                    kva_dtype_name(to));
  out_types[0] = kva_type_with_dtype(m, kva_operand_type(n, 0), to);
  return KVA_OK;
}

kva_status kva_bitcast_ref(kva_ref *r, const kva_node *n, const kva_wide *const *in, kva_wide *const *out) {
  (void)r, (void)n;
  const kva_wide *x = in[0];
  kva_wide *y = out[0];
  for (int64_t i = 0; i < y->n; i++) {
    uint64_t bits = 0;
    if (x->f)
      kva_store_f64(x->dtype, &bits, 0, x->f[i]);
    else
      kva_store_i64(x->dtype, &bits, 0, x->i[i]);
    if (y->f)
      y->f[i] = kva_load_f64(y->dtype, &bits, 0);
    else
      y->i[i] = kva_load_i64(y->dtype, &bits, 0);
  }
  return KVA_OK;
}

static kva_kval lower_bitcast(kva_kb *b, kva_kval x, kva_dtype to) {
  if (to == KVA_BOOL) return x->dtype == KVA_BOOL ? x : kva_k2(b, KVA_K_ne, x, KVA_KNUM(0));
  if (x->dtype == KVA_BOOL) return kva_k_convert(b, x, to);
  return kva_k_bitcast(b, x, to);
}
KVA_UNARY_LOWER(bitcast, lower_bitcast(b, x, ((const kva_bitcast_attrs *)n->attrs)->to))
