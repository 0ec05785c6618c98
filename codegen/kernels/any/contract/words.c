/* Contractions by words: some steps of the depth are one, whose factors are words and whose product is one instruction.
 * Words are four elements of 8 bits, multiplied by dot4 of the kernel IR, or two bf16, by dot2. Kernels that do not
 * look into elements, but for their product, need not know. */
#include "codegen/kernels/any/contract/contraction.h"
#include "ir/dialect_amx.h"
#include "ops/codes.h"
#include "ops/matmul.h"

/* What `user` of a contraction by words is. */
typedef struct packing {
  kva_contraction elements; /* that words are made of */
  int64_t n, bits;          /* of them in a word; of one */
} packing;

typedef kva_kval (*element_fn)(const kva_contraction *c, const kva_contract_at *at);

/* The bits of a float, which may be wider than bf16 where the kernel computes it. */
static kva_kval bf16_bits(kva_kb *b, kva_kval v) {
  kva_kval bits = kva_k_bitcast(b, kva_k_narrow(b, v, KVA_BF16), KVA_U32);
  return kva_k_bitcast(b, kva_k2(b, KVA_K_shr, bits, kva_k_const_i(b, KVA_U32, 16)), KVA_I32);
}

kva_kval kva_contract_bits_of_byte(kva_kb *b, kva_kval v) {
  return kva_k_convert(b, kva_k_convert(b, v, KVA_U8), KVA_I32);
}

kva_kval kva_contract_put_bits(kva_kb *b, kva_kval word, kva_kval bits, int64_t at) {
  return kva_k2(b, KVA_K_or, word, kva_k2(b, KVA_K_shl, bits, kva_k_const_i(b, KVA_I32, at)));
}

/* The element in the lowest bits of a word. */
static kva_kval bits_at(const packing *p, element_fn element, const kva_contract_at *at) {
  kva_kb *b = p->elements.l->kb;
  kva_kval v = element(&p->elements, at);
  return kva_dtype_is_float(p->elements.type) ? bf16_bits(b, v) : kva_contract_bits_of_byte(b, v);
}

/* The same, 0 past the end of the depth. */
static kva_kval bits_or_zero(const packing *p, element_fn element, const kva_contract_at *at) {
  kva_kb *b = p->elements.l->kb;
  if (kva_expr_provably_less(b->exprs, at->k, p->elements.depth)) return bits_at(p, element, at);
  kva_kval inside = kva_k_index_lt(b, at->k, p->elements.depth), outer = kva_k_guard_begin(b, inside);
  kva_kval v = bits_at(p, element, at);
  kva_k_guard_end(b, outer);
  return kva_k_select(b, inside, v, kva_k_const(b, KVA_I32, 0));
}

static kva_kval word(const kva_contraction *c, element_fn element, const kva_contract_at *at) {
  const packing *p = c->user;
  kva_kb *b = c->l->kb;
  kva_kval v = kva_k_const(b, KVA_I32, 0);
  for (int64_t i = 0; i < p->n; i++) {
    kva_contract_at one = *at;
    one.k = kva_expr_addi(b->exprs, kva_expr_muli(b->exprs, at->k, p->n), i);
    v = kva_contract_put_bits(b, v, bits_or_zero(p, element, &one), p->bits * i);
  }
  return kva_k_bitcast(b, v, c->type);
}

static kva_kval word_a(const kva_contraction *c, const kva_contract_at *at) {
  return word(c, ((const packing *)c->user)->elements.a, at);
}

static kva_kval word_b(const kva_contraction *c, const kva_contract_at *at) {
  return word(c, ((const packing *)c->user)->elements.b, at);
}

static kva_kval any_of(const kva_contraction *c, const kva_contract_at *at) {
  const packing *p = c->user;
  return p->elements.any(&p->elements, at);
}

static kva_kval result_of(const kva_contraction *c, const kva_contract_at *at, const kva_expr **out_index) {
  const packing *p = c->user;
  return p->elements.result(&p->elements, at, out_index);
}

static kva_contraction by_words(const kva_contraction *c, kva_dtype a, kva_dtype b) {
  int64_t bits = kva_dtype_bits(a), n = 32 / bits;
  packing *p = KVA_NEW(c->l->kb->arena, packing);
  kva_contraction words = *c;
  *p = (packing){*c, n, bits};
  kva_expr_ctx *e = c->l->kb->exprs;
  words.user = p, words.words = &p->elements;
  words.a_type = a, words.b_type = b;
  words.depth = kva_expr_ceildiv(e, c->depth, kva_expr_const(e, n));
  words.a = word_a, words.b = word_b;
  words.any = c->any ? any_of : NULL, words.result = c->result ? result_of : NULL;
  return words;
}

kva_contraction kva_contract_bytes(const kva_contraction *c, kva_dtype a, kva_dtype b) {
  if (c->type != KVA_I32 || !kva_are_of_both_signs(a, b)) return *c;
  kva_contraction words = by_words(c, a, b);
  words.b_unsigned = b == KVA_U8;
  return words;
}

/* Where the depth is not known, each step would ask whether its second element exists. Where it is contiguous and rows
 * are few, memory is what takes time, and vectors would be taken apart to lanes that are pairs. */
kva_contraction kva_contract_pairs(const kva_contraction *c, kva_dtype a, kva_dtype b) {
  bool bf16 = c->type == KVA_F32 && a == KVA_BF16 && b == KVA_BF16;
  bool few = c->along_depth && !kva_contract_has_rows(c, KVA_FEW_ROWS + 1);
  if (!bf16 || few || c->factor_block || !kva_expr_is_const(c->depth, NULL)) return *c;
  kva_contraction words = by_words(c, a, b);
  bool pays = kva_target_has(c->l->target, KVA_TARGET_DOT2) || kva_contract_blocks(&words).amx;
  return pays ? words : *c;
}

int64_t kva_contract_amx_depth(const kva_contraction *c) {
  return c->words ? KVA_AMX_WORDS : 2 * KVA_AMX_WORDS;
}

kva_contraction kva_contract_blocks(const kva_contraction *c) {
  int64_t depth, columns;
  kva_contraction blocks = *c;
  bool matrix = c->leads * c->taps == 1 && kva_expr_is(c->lines, 1) && !c->factor_block;
  bool wide = !kva_expr_is_const(c->line, &columns) || columns >= KVA_AMX_BLOCK;
  bool elements = c->words || (c->type == KVA_F32 && c->l->target->bf16x3_gemm);
  blocks.amx = kva_target_has(c->l->target, KVA_TARGET_AMX) && elements && matrix && wide &&
               kva_expr_is_const(c->depth, &depth) && depth % kva_contract_amx_depth(c) == 0 &&
               kva_contract_has_rows(c, KVA_AMX_BLOCK);
  return blocks;
}
