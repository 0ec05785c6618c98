/* unpack: x holds words of 32 bits, each of which has 4 elements of 8 bits, 8 of 4 or 16 of 2 that follow each other
 * along `axis`, the first one lowest. Along it y has `extent` elements, of the integer type `to` that has the bits of
 * an element.
 *
 * A packed tensor keeps elements of one row in a word; so do the words here, of one column: elements of a row are then
 * in words that follow each other, which vectors load. Exact: moves bits. No gradient: integers. */
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/incremental.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(unpack)

enum { WORD_BITS = 32 };

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

kva_status kva_unpack_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  kva_ref_tensor *y = out[0];
  int64_t idx[KVA_MAX_RANK] = {0}, per = per_word(n), bits = WORD_BITS / per;
  uint32_t axis = axis_of(n);
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    int64_t at[KVA_MAX_RANK];
    memcpy(at, idx, sizeof at);
    at[axis] /= per;
    y->i[i] = kva_wrap_i64(y->dtype, in[0]->i[kva_ref_offset(in[0], at)] >> (idx[axis] % per * bits));
  }
  return KVA_OK;
}

/* Shifts move the element to the top of the word and, with its sign, back to the bottom. */
kva_kval kva_unpack_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_kb *b = l->kb;
  uint32_t axis = axis_of(n), rank = kva_operand_type(n, 0)->rank;
  int64_t per = per_word(n), bits = WORD_BITS / per;
  bool is_unsigned = kva_dtype_is_unsigned(n->results[0].type->dtype);
  kva_dtype word = is_unsigned ? KVA_U32 : KVA_I32;
  const kva_expr *at[KVA_MAX_RANK], *count = kva_expr_const(b->exprs, per);
  memcpy(at, idx, sizeof *at * rank);
  at[axis] = kva_expr_div(b->exprs, idx[axis], count);
  const kva_expr *above = kva_expr_muli(b->exprs, kva_expr_mod(b->exprs, idx[axis], count), -bits);
  above = kva_expr_addi(b->exprs, above, WORD_BITS - bits);
  kva_kval x = kva_k_convert(b, l->operand(l, n, 0, at), word);
  x = kva_k2(b, KVA_K_shl, x, kva_k_convert(b, kva_k_index(b, above), word));
  x = kva_k2(b, KVA_K_shr, x, kva_k_const_i(b, word, WORD_BITS - bits));
  return kva_k_convert(b, x, kva_k_compute_type(n->results[0].type->dtype));
}

int kva_unpack_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)operand;
  return axis == axis_of(n) ? KVA_MIXED : (int)axis;
}
