/* Contractions of elements of 8 bits: four steps of the depth are one, whose factors are words and whose product is
 * dot4 of the kernel IR. Kernels that do not look into elements, but for their product, need not know. */
#include "codegen/kernels/any/contract/contraction.h"

enum { BYTES = 4 };

typedef kva_kval (*element_fn)(const kva_contraction *c, const kva_contract_at *at);

/* The element as the lowest byte of a word. */
static kva_kval byte_at(const kva_contraction *bytes, element_fn element, const kva_contract_at *at) {
  kva_kb *b = bytes->l->kb;
  return kva_k_convert(b, kva_k_convert(b, element(bytes, at), KVA_U8), KVA_I32);
}

/* The same, 0 past the end of the depth. */
static kva_kval byte_or_zero(const kva_contraction *bytes, element_fn element, const kva_contract_at *at) {
  kva_kb *b = bytes->l->kb;
  if (kva_expr_provably_less(b->exprs, at->k, bytes->depth)) return byte_at(bytes, element, at);
  kva_kval inside = kva_k_index_lt(b, at->k, bytes->depth), outer = kva_k_guard_begin(b, inside);
  kva_kval v = byte_at(bytes, element, at);
  kva_k_guard_end(b, outer);
  return kva_k_select(b, inside, v, kva_k_const(b, KVA_I32, 0));
}

/* Four elements that follow each other in memory become one load of a word (LLVM combines such loads). */
static kva_kval word(const kva_contraction *c, element_fn element, const kva_contract_at *at) {
  const kva_contraction *bytes = c->user;
  kva_kb *b = c->l->kb;
  kva_kval v = kva_k_const(b, KVA_I32, 0);
  for (int64_t i = 0; i < BYTES; i++) {
    kva_contract_at one = *at;
    one.k = kva_expr_addi(b->exprs, kva_expr_muli(b->exprs, at->k, BYTES), i);
    kva_kval byte = byte_or_zero(bytes, element, &one);
    v = kva_k2(b, KVA_K_or, v, kva_k2(b, KVA_K_shl, byte, kva_k_const_i(b, KVA_I32, 8 * i)));
  }
  return v;
}

static kva_kval word_a(const kva_contraction *c, const kva_contract_at *at) {
  return word(c, ((const kva_contraction *)c->user)->a, at);
}

static kva_kval word_b(const kva_contraction *c, const kva_contract_at *at) {
  return word(c, ((const kva_contraction *)c->user)->b, at);
}

static kva_kval any_of(const kva_contraction *c, const kva_contract_at *at) {
  const kva_contraction *bytes = c->user;
  return bytes->any(bytes, at);
}

static kva_kval result_of(const kva_contraction *c, const kva_contract_at *at, const kva_expr **out_index) {
  const kva_contraction *bytes = c->user;
  return bytes->result(bytes, at, out_index);
}

static kva_contraction by_words(const kva_contraction *c, bool b_unsigned) {
  kva_contraction *bytes = KVA_NEW(c->l->kb->arena, kva_contraction), words = *c;
  *bytes = *c;
  kva_expr_ctx *e = c->l->kb->exprs;
  words.user = bytes, words.words = true, words.b_unsigned = b_unsigned;
  words.depth = kva_expr_ceildiv(e, c->depth, kva_expr_const(e, BYTES));
  words.a = word_a, words.b = word_b;
  words.any = c->any ? any_of : NULL, words.result = c->result ? result_of : NULL;
  return words;
}

kva_contraction kva_contract_bytes(const kva_contraction *c, kva_dtype a, kva_dtype b) {
  bool sums = c->type == KVA_I32, first = a == KVA_U8 && b == KVA_I8, second = a == KVA_I8 && b == KVA_U8;
  return sums && (first || second) ? by_words(c, second) : *c;
}
