/* unpack: x holds words of 32 bits, each of which has 4 elements of 8 bits, 8 of 4 or 16 of 2 that follow each other
 * along `axis`, the first one lowest. Along it y has `extent` elements, of the integer type `to` that has the bits of
 * an element. by_bytes: they follow each other from byte to byte, first the lowest ones of the four bytes, so that a
 * mask leaves four steps, each in a byte.
 *
 * A packed tensor keeps elements of one row in a word; so do the words here, of one column: elements of a row are then
 * in words that follow each other, which vectors load. Exact: moves bits. No gradient: integers. */
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/incremental.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(unpack)

enum { WORD_BITS = 32, BYTES = 4 };

static uint32_t axis_of(const kva_node *n) {
  return kva_axis(((const kva_unpack_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
}

static int64_t per_word(const kva_node *n) {
  return WORD_BITS / kva_dtype_bits(((const kva_unpack_attrs *)n->attrs)->to);
}

kva_status kva_unpack_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_unpack_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  uint32_t axis;
  kva_dim dims[KVA_MAX_RANK];
  KVA_TRY(kva_normalize_axis(m, n, a->axis, x->rank, &axis));
  if (!kva_dtype_is_int(a->to) || kva_dtype_bits(a->to) > 8)
    return kva_error(m->diag, &n->loc, "kv.unpack: expected an integer type of 8, 4 or 2 bits as result, found %s",
                     kva_dtype_name(a->to));
  if (x->dtype != KVA_U32) return kva_operand_error(m, n, 0, "expected uint32, found %s", kva_dtype_name(x->dtype));
  if (!a->extent) return kva_error(m->diag, &n->loc, "kv.unpack: attribute extent is missing");
  kva_dim words = kva_expr_ceildiv(m->exprs, a->extent, kva_expr_const(m->exprs, per_word(n)));
  memcpy(dims, x->dims, sizeof *dims * x->rank);
  if (words != dims[axis]) return kva_operand_error(m, n, 0, "axis %u has not as many words as the extent needs", axis);
  dims[axis] = a->extent;
  out_types[0] = kva_type_tensor(m, a->to, x->rank, dims);
  return KVA_OK;
}

/* Where in a word element i of it lies. */
static int64_t bit_of(const kva_node *n, int64_t i) {
  int64_t per = per_word(n), bits = WORD_BITS / per;
  return ((const kva_unpack_attrs *)n->attrs)->by_bytes ? i % BYTES * 8 + i / BYTES * bits : i * bits;
}

kva_status kva_unpack_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  kva_ref_tensor *y = out[0];
  int64_t idx[KVA_MAX_RANK] = {0}, per = per_word(n);
  uint32_t axis = axis_of(n);
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    int64_t at[KVA_MAX_RANK];
    memcpy(at, idx, sizeof at);
    at[axis] /= per;
    y->i[i] = kva_wrap_i64(y->dtype, in[0]->i[kva_ref_offset(in[0], at)] >> bit_of(n, idx[axis] % per));
  }
  return KVA_OK;
}

static const kva_expr *bit_at(kva_kb *b, const kva_node *n, const kva_expr *i) {
  int64_t bits = WORD_BITS / per_word(n);
  if (!((const kva_unpack_attrs *)n->attrs)->by_bytes) return kva_expr_muli(b->exprs, i, bits);
  const kva_expr *bytes = kva_expr_const(b->exprs, BYTES);
  const kva_expr *byte = kva_expr_mod(b->exprs, i, bytes), *of_byte = kva_expr_div(b->exprs, i, bytes);
  return kva_expr_add(b->exprs, kva_expr_muli(b->exprs, byte, 8), kva_expr_muli(b->exprs, of_byte, bits));
}

static kva_kval lower_word(kva_lower *l, const kva_node *n, const kva_expr *const *idx, kva_dtype word) {
  uint32_t axis = axis_of(n);
  const kva_expr *at[KVA_MAX_RANK];
  memcpy(at, idx, sizeof *at * kva_operand_type(n, 0)->rank);
  at[axis] = kva_expr_div(l->kb->exprs, idx[axis], kva_expr_const(l->kb->exprs, per_word(n)));
  return kva_k_convert(l->kb, l->operand(l, n, 0, at), word);
}

/* Of a word by bytes: a shift to the lowest bits of each byte, and a mask. */
kva_kval kva_unpack_lower_bytes(kva_lower *l, const kva_node *n, const kva_expr *const *idx) {
  enum { IN_EACH_BYTE = 0x01010101 };
  kva_kb *b = l->kb;
  int64_t per = per_word(n), bits = WORD_BITS / per;
  kva_kval word = lower_word(l, n, idx, KVA_U32);
  KVA_ASSERT(((const kva_unpack_attrs *)n->attrs)->by_bytes && kva_dtype_is_unsigned(n->results[0].type->dtype));
  if (per > BYTES) {
    const kva_expr *bit = bit_at(b, n, kva_expr_mod(b->exprs, idx[axis_of(n)], kva_expr_const(b->exprs, per)));
    word = kva_k2(b, KVA_K_shr, word, kva_k_convert(b, kva_k_index(b, bit), KVA_U32));
    word = kva_k2(b, KVA_K_and, word, kva_k_const_i(b, KVA_U32, IN_EACH_BYTE * ((1 << bits) - 1)));
  }
  return kva_k_convert(b, word, KVA_I32);
}

/* Shifts move the element to the top of the word and, with its sign, back to the bottom. */
kva_kval kva_unpack_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_kb *b = l->kb;
  uint32_t axis = axis_of(n);
  int64_t per = per_word(n), bits = WORD_BITS / per;
  bool is_unsigned = kva_dtype_is_unsigned(n->results[0].type->dtype);
  kva_dtype word = is_unsigned ? KVA_U32 : KVA_I32;
  const kva_expr *bit = bit_at(b, n, kva_expr_mod(b->exprs, idx[axis], kva_expr_const(b->exprs, per)));
  const kva_expr *above = kva_expr_sub(b->exprs, kva_expr_const(b->exprs, WORD_BITS - bits), bit);
  kva_kval x = lower_word(l, n, idx, word);
  x = kva_k2(b, KVA_K_shl, x, kva_k_convert(b, kva_k_index(b, above), word));
  x = kva_k2(b, KVA_K_shr, x, kva_k_const_i(b, word, WORD_BITS - bits));
  return kva_k_convert(b, x, kva_k_compute_type(n->results[0].type->dtype));
}

int kva_unpack_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)operand;
  return axis == axis_of(n) ? KVA_MIXED : (int)axis;
}
