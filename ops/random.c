/* Implements random.h. */
#include "ops/random.h"
#include "ops/check.h"
#include "ops/shape.h"

#define STREAM_FACTOR                                                                            \
  UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio: spreads small stream numbers over the key \
                                */
enum { ROUNDS = 10 };

kva_status kva_random_infer(kva_module *m, const kva_node *n, kva_dims shape, kva_dtype dtype,
                            const kva_type **out_types) {
  for (uint32_t i = 0; i < 2; i++) {
    KVA_TRY(kva_check_int(m, n, i));
    KVA_TRY(kva_check_rank(m, n, i, 0));
  }
  if (!kva_dtype_is_float(dtype)) {
    return kva_error(m->diag, &n->loc, "%s: dtype must be a float type, found %s", n->op->name, kva_dtype_name(dtype));
  }
  if (shape.n > KVA_MAX_RANK) {
    return kva_error(m->diag, &n->loc, "%s: rank %u is more than the %d supported", n->op->name, shape.n, KVA_MAX_RANK);
  }
  out_types[0] = kva_type_tensor(m, dtype, shape.n, shape.v);
  return KVA_OK;
}

kva_philox kva_random_words(const kva_ref_tensor *const *in, int64_t stream, int64_t i) {
  uint64_t key = (uint64_t)in[0]->i[0] ^ ((uint64_t)stream * STREAM_FACTOR);
  return kva_philox4x32((uint64_t)i, (uint64_t)in[1]->i[0], key);
}

typedef struct halves {
  kva_kval lo, hi;
} halves;

static halves split(kva_kb *kb, kva_kval i64) {
  kva_kval bits = kva_k_convert(kb, i64, KVA_U64);
  kva_kval high = kva_k2(kb, KVA_K_shr, bits, kva_k_const_i(kb, KVA_U64, 32));
  return (halves){kva_k_convert(kb, bits, KVA_U32), kva_k_convert(kb, high, KVA_U32)};
}

static kva_kval scalar(kva_lower *l, const kva_node *n, uint32_t operand) {
  const kva_expr *none[1] = {NULL};
  return kva_k_convert(l->kb, l->operand(l, n, operand, none), KVA_I64);
}

static kva_kval mixed(kva_kb *kb, kva_kval product_hi, kva_kval word, kva_kval key) {
  return kva_k2(kb, KVA_K_xor, kva_k2(kb, KVA_K_xor, product_hi, word), key);
}

/* Emits the rounds of runtime/base/philox.c operation by operation. */
kva_random_kvals kva_random_lower(kva_lower *l, const kva_node *n, int64_t stream, const kva_expr *const *idx) {
  kva_kb *kb = l->kb;
  kva_kval stream_bits = kva_k_const_i(kb, KVA_I64, (int64_t)((uint64_t)stream * STREAM_FACTOR));
  halves key = split(kb, kva_k2(kb, KVA_K_xor, scalar(l, n, 0), stream_bits));
  const kva_type *t = n->results[0].type;
  const kva_expr *i = kva_shape_linear(kb->exprs, t->rank, t->dims, idx);
  halves low = split(kb, kva_k_index(kb, i)), high = split(kb, scalar(l, n, 1));
  kva_kval c[4] = {low.lo, low.hi, high.lo, high.hi};
  kva_kval m0 = kva_k_const_i(kb, KVA_U32, 0xD2511F53), m1 = kva_k_const_i(kb, KVA_U32, 0xCD9E8D57);
  for (int round = 0; round < ROUNDS; round++) {
    kva_kval a_hi = kva_k2(kb, KVA_K_mulhi, m0, c[0]), a_lo = kva_k2(kb, KVA_K_mul, m0, c[0]);
    kva_kval b_hi = kva_k2(kb, KVA_K_mulhi, m1, c[2]), b_lo = kva_k2(kb, KVA_K_mul, m1, c[2]);
    c[0] = mixed(kb, b_hi, c[1], key.lo);
    c[1] = b_lo;
    c[2] = mixed(kb, a_hi, c[3], key.hi);
    c[3] = a_lo;
    key.lo = kva_k2(kb, KVA_K_add, key.lo, kva_k_const_i(kb, KVA_U32, 0x9E3779B9));
    key.hi = kva_k2(kb, KVA_K_add, key.hi, kva_k_const_i(kb, KVA_U32, 0xBB67AE85));
  }
  return (kva_random_kvals){{c[0], c[1], c[2], c[3]}};
}

kva_kval kva_random_uniform01(kva_lower *l, kva_kval word, kva_dtype dtype) {
  kva_dtype t = kva_k_compute_type(dtype);
  kva_kval top = kva_k2(l->kb, KVA_K_shr, word, kva_k_const_i(l->kb, KVA_U32, 9));
  kva_kval middle = kva_k2(l->kb, KVA_K_add, kva_k_convert(l->kb, top, t), kva_k_const(l->kb, t, 0.5));
  return kva_k2(l->kb, KVA_K_mul, middle, kva_k_const(l->kb, t, 0x1p-23));
}
