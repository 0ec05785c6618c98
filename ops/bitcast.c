/* bitcast: the bits of x read as dtype `to` of the same width (floats from 16 bits, integers from 8 bits, bool as
 * uint8). Exact, except for the payload of 16-bit NaNs. */
#include "ops/elementwise.h"

KVA_OP_FUNCTIONS(bitcast)

static bool supported(kva_dtype t) {
  return t == KVA_BOOL || (kva_dtype_is_int(t) && kva_dtype_bits(t) >= 8) ||
         (kva_dtype_is_float(t) && kva_dtype_bits(t) >= 16);
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

kva_status kva_bitcast_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r, (void)n;
  const kva_ref_tensor *x = in[0];
  kva_ref_tensor *y = out[0];
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

/* ---- 16-bit floats: held as float, so integer arithmetic converts their bits ------------------------------------- */

enum { F32_INFINITY = 0x7F800000, F16_INFINITY = 0x7C00 };

static kva_kval u32(kva_kb *b, int64_t v) {
  return kva_k_const_i(b, KVA_U32, v);
}

/* bits >> dropped, rounded to nearest even. */
static kva_kval round_bits(kva_kb *b, kva_kval bits, int dropped) {
  kva_kval odd = kva_k2(b, KVA_K_and, kva_k2(b, KVA_K_shr, bits, u32(b, dropped)), u32(b, 1));
  kva_kval half = kva_k2(b, KVA_K_add, odd, u32(b, (1 << (dropped - 1)) - 1));
  return kva_k2(b, KVA_K_shr, kva_k2(b, KVA_K_add, bits, half), u32(b, dropped));
}

/* Subnormals: adding 0.5, whose last place equals theirs, lets the adder round. */
static kva_kval f16_magnitude(kva_kb *b, kva_kval magnitude) {
  kva_kval code = round_bits(b, kva_k2(b, KVA_K_sub, magnitude, u32(b, (int64_t)112 << 23)), 13);
  code = kva_k2(b, KVA_K_min, code, u32(b, F16_INFINITY));
  kva_kval half = kva_k_const_f(b, KVA_F32, 0.5),
           sum = kva_k2(b, KVA_K_add, kva_k_bitcast(b, magnitude, KVA_F32), half);
  kva_kval small = kva_k2(b, KVA_K_sub, kva_k_bitcast(b, sum, KVA_U32), kva_k_bitcast(b, half, KVA_U32));
  return kva_k_select(b, kva_k2(b, KVA_K_lt, magnitude, u32(b, (int64_t)113 << 23)), small, code);
}

/* The bits of x rounded to 16-bit float type t, as uint16. */
static kva_kval to_bits16(kva_kb *b, kva_kval x, kva_dtype t) {
  kva_kval bits = kva_k_bitcast(b, x, KVA_U32), magnitude = kva_k2(b, KVA_K_and, bits, u32(b, INT32_MAX));
  kva_kval sign = kva_k2(b, KVA_K_shr, kva_k2(b, KVA_K_xor, bits, magnitude), u32(b, 16));
  kva_kval code = t == KVA_F16 ? f16_magnitude(b, magnitude) : round_bits(b, magnitude, 16);
  kva_kval nan = u32(b, t == KVA_F16 ? 0x7E00 : 0x7FC0);
  code = kva_k_select(b, kva_k2(b, KVA_K_lt, u32(b, F32_INFINITY), magnitude), nan, code);
  return kva_k_convert(b, kva_k2(b, KVA_K_or, code, sign), KVA_U16);
}

/* The inverse: uint16 to float. An exact multiplication by 2^112 rebiases the exponent of float16. */
static kva_kval from_bits16(kva_kb *b, kva_kval x, kva_dtype t) {
  kva_kval code = kva_k_convert(b, x, KVA_U32);
  if (t == KVA_BF16) return kva_k_bitcast(b, kva_k2(b, KVA_K_shl, code, u32(b, 16)), KVA_F32);
  kva_kval magnitude = kva_k2(b, KVA_K_and, code, u32(b, INT16_MAX));
  kva_kval sign = kva_k2(b, KVA_K_shl, kva_k2(b, KVA_K_xor, code, magnitude), u32(b, 16));
  kva_kval mantissa = kva_k2(b, KVA_K_shl, magnitude, u32(b, 13));
  kva_kval scaled = kva_k2(b, KVA_K_mul, kva_k_bitcast(b, mantissa, KVA_F32), kva_k_const_f(b, KVA_F32, 0x1p112));
  kva_kval special = kva_k2(b, KVA_K_or, mantissa, u32(b, F32_INFINITY));
  kva_kval finite = kva_k2(b, KVA_K_lt, magnitude, u32(b, F16_INFINITY));
  kva_kval bits = kva_k_select(b, finite, kva_k_bitcast(b, scaled, KVA_U32), special);
  return kva_k_bitcast(b, kva_k2(b, KVA_K_or, bits, sign), KVA_F32);
}

static bool is_float16(kva_dtype t) {
  return kva_dtype_is_float(t) && kva_dtype_bits(t) == 16;
}

static kva_kval lower_bitcast(kva_kb *b, kva_kval x, kva_dtype from, kva_dtype to) {
  if (from == to) return x;
  if (is_float16(from)) x = to_bits16(b, x, from);
  if (is_float16(to)) return from_bits16(b, kva_k_convert(b, x, KVA_U16), to);
  if (to == KVA_BOOL) return x->dtype == KVA_BOOL ? x : kva_k2(b, KVA_K_ne, x, KVA_KNUM(0));
  if (x->dtype == KVA_BOOL) return kva_k_convert(b, x, to);
  return kva_k_bitcast(b, x, to);
}
KVA_UNARY_LOWER(bitcast, lower_bitcast(b, x, kva_operand_type(n, 0)->dtype, ((const kva_bitcast_attrs *)n->attrs)->to))
