/* bit_shift: z = x shifted by y bits, left or right. Zeros are shifted in, but from the left of a signed number its
 * sign: a shift to the right divides by 2^y and rounds down. Shifts by the width or more, and by negative amounts,
 * shift all bits out: what is left is 0, or all bits the sign. Exact. */
#include "ops/elementwise.h"

KVA_ELEMENTWISE_INFER(bit_shift)

kva_status kva_bit_shift_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                             kva_ref_tensor *const *out) {
  (void)r;
  bool left = ((const kva_bit_shift_attrs *)n->attrs)->left;
  const kva_ref_tensor *x = in[0], *y = in[1];
  int bits = kva_dtype_bits(x->dtype);
  bool keeps_sign = !left && !kva_dtype_is_unsigned(x->dtype);
  uint64_t mask = UINT64_MAX >> (64 - bits);
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < out[0]->n; i++, kva_next_index(out[0]->rank, out[0]->dims, idx)) {
    int64_t v = x->i[kva_ref_broadcast_offset(x, out[0]->rank, idx)];
    uint64_t by = (uint64_t)y->i[kva_ref_broadcast_offset(y, out[0]->rank, idx)], u = (uint64_t)v & mask;
    if (keeps_sign)
      out[0]->i[i] = v >> (by < 63 ? by : 63);
    else if (by < (uint64_t)bits)
      out[0]->i[i] = (int64_t)(left ? u << by : u >> by);
  }
  return KVA_OK;
}

static kva_dtype unsigned_of(kva_dtype t) {
  switch (t) {
  case KVA_I8: return KVA_U8;
  case KVA_I16: return KVA_U16;
  case KVA_I32: return KVA_U32;
  case KVA_I64: return KVA_U64;
  default: return t;
  }
}

static kva_kval lower_shift(kva_kb *b, kva_kval x, kva_kval y, int bits, bool left) {
  kva_dtype t = x->dtype, u = unsigned_of(t);
  if (!left && t != u) return kva_k2(b, KVA_K_shr, x, y);
  kva_kval v = kva_k_bitcast(b, x, u), by = kva_k_bitcast(b, y, u);
  if (bits < kva_dtype_bits(u)) v = kva_k2(b, KVA_K_and, v, kva_k_const_i(b, u, (1 << bits) - 1));
  kva_kval inside = kva_k2(b, KVA_K_lt, by, kva_k_const_i(b, u, bits));
  kva_kval safe = kva_k_select(b, inside, by, kva_k_const_i(b, u, 0));
  kva_kval shifted = kva_k2(b, left ? KVA_K_shl : KVA_K_shr, v, safe);
  return kva_k_bitcast(b, kva_k_select(b, inside, shifted, kva_k_const_i(b, u, 0)), t);
}
KVA_BINARY_LOWER(bit_shift, lower_shift(b, x, y, kva_dtype_bits(kva_operand_type(n, 0)->dtype),
                                        ((const kva_bit_shift_attrs *)n->attrs)->left))
