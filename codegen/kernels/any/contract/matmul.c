/* A matmul of floats, or of bytes of both signs by words (words.c), as a contraction (contraction.h): a single line of
 * N columns. When b is one matrix for all of a batch, the leading dims of a are rows; else they are the contraction's
 * batch. */
#include "codegen/kernels/any/contract/contraction.h"
#include "ops/codes.h"
#include "ops/matmul.h"

typedef struct product {
  kva_matmul_shape s;
  bool rows_collapsed; /* all leading dims of a are rows */
} product;

static void result_index(const kva_contraction *c, const kva_expr *batch, const kva_expr *row, const kva_expr *column,
                         const kva_expr **idx) {
  kva_expr_ctx *e = c->l->kb->exprs;
  const kva_type *t = c->n->results[0].type;
  if (((const product *)c->user)->rows_collapsed) {
    kva_contract_split(e, row, t->rank - 1, t->dims, idx);
  } else {
    kva_contract_split(e, batch, t->rank - 2, t->dims, idx);
    idx[t->rank - 2] = row;
  }
  idx[t->rank - 1] = column;
}

static kva_kval result_at(const kva_contraction *c, const kva_contract_at *at, const kva_expr **idx) {
  result_index(c, at->batch, at->row, at->position, idx);
  return NULL;
}

/* Where element (row, column) of an operand is, as the logical matrix that index `c_idx` of the result names. */
static void place(const kva_contraction *c, uint32_t operand, const kva_expr *const *c_idx, const kva_expr *row,
                  const kva_expr *column, bool transposed, const kva_expr **idx) {
  const kva_type *t = kva_operand_type(c->n, operand);
  uint32_t skipped = c->n->results[0].type->rank - t->rank;
  for (uint32_t d = 0; d + 2 < t->rank; d++) {
    idx[d] = kva_expr_is(t->dims[d], 1) ? kva_expr_const(c->l->kb->exprs, 0) : c_idx[skipped + d];
  }
  idx[t->rank - 2] = transposed ? column : row;
  idx[t->rank - 1] = transposed ? row : column;
}

static kva_kval element(const kva_contraction *c, uint32_t operand, const kva_expr *const *idx) {
  kva_kval v = c->l->operand(c->l, c->n, operand, idx);
  return kva_dtype_is_float(c->type) ? kva_k_convert(c->l->kb, v, c->type) : v;
}

static void place_a(const kva_contraction *c, const kva_contract_at *at, const kva_expr **idx) {
  const product *p = c->user;
  const kva_expr *c_idx[KVA_MAX_RANK];
  result_index(c, at->batch, at->row, at->k, c_idx);
  place(c, 0, c_idx, c_idx[c->n->results[0].type->rank - 2], at->k, p->s.transpose_a, idx);
}

static kva_kval element_a(const kva_contraction *c, const kva_contract_at *at) {
  const kva_expr *idx[KVA_MAX_RANK];
  place_a(c, at, idx);
  return element(c, 0, idx);
}

static void place_b(const kva_contraction *c, const kva_contract_at *at, const kva_expr **idx) {
  const kva_expr *c_idx[KVA_MAX_RANK];
  result_index(c, at->batch, kva_expr_const(c->l->kb->exprs, 0), at->position, c_idx);
  place(c, 1, c_idx, at->k, at->position, ((const product *)c->user)->s.transpose_b, idx);
}

static kva_kval element_b(const kva_contraction *c, const kva_contract_at *at) {
  const kva_expr *idx[KVA_MAX_RANK];
  place_b(c, at, idx);
  return element(c, 1, idx);
}

/* ---- a factor of b ----------------------------------------------------------------------------------------------- */

typedef kva_kval (*lower_part)(kva_lower *l, const kva_node *n, const kva_expr *const *idx);

static const kva_op_info *maker_of_b(const kva_contraction *c) {
  return kva_operand(c->n, 1)->def->op;
}

static kva_kval part_of_b(const kva_contraction *c, const kva_contract_at *at, lower_part lower) {
  const kva_expr *idx[KVA_MAX_RANK];
  place_b(c, at, idx);
  return lower(c->l, kva_operand(c->n, 1)->def, idx);
}

static kva_kval rest_of_b(const kva_contraction *c, const kva_contract_at *at) {
  return part_of_b(c, at, maker_of_b(c)->lower_rest);
}

static kva_kval factor_of_b(const kva_contraction *c, const kva_contract_at *at) {
  return part_of_b(c, at, maker_of_b(c)->lower_factor);
}

static kva_kval code_of_b(const kva_contraction *c, const kva_contract_at *at) {
  return part_of_b(c, at, maker_of_b(c)->lower_code);
}

static kva_kval zero_of_b(const kva_contraction *c, const kva_contract_at *at) {
  return part_of_b(c, at, maker_of_b(c)->lower_zero);
}

/* ---- bytes in blocks --------------------------------------------------------------------------------------------- */

static kva_kval part_of_a(const kva_contraction *c, const kva_contract_at *at, lower_part lower) {
  const kva_expr *idx[KVA_MAX_RANK];
  place_a(c, at, idx);
  return lower(c->l, kva_operand(c->n, 0)->def, idx);
}

/* at's step is a word: its first byte. */
static kva_contract_at first_byte(const kva_contraction *c, const kva_contract_at *at) {
  kva_contract_at byte = *at;
  byte.k = kva_expr_muli(c->l->kb->exprs, at->k, KVA_CODES_PER_WORD);
  return byte;
}

static kva_kval byte_of_a(const kva_contraction *c, const kva_contract_at *at) {
  const kva_expr *idx[KVA_MAX_RANK];
  place_a(c, at, idx);
  return kva_k_convert(c->l->kb, c->l->operand(c->l, kva_operand(c->n, 0)->def, 0, idx), KVA_I32);
}

static kva_kval word_of_a(const kva_contraction *c, const kva_contract_at *at) {
  kva_kb *b = c->l->kb;
  kva_kval word = kva_k_const(b, KVA_I32, 0);
  kva_contract_at byte = first_byte(c, at);
  for (int64_t i = 0; i < KVA_CODES_PER_WORD; i++) {
    kva_contract_at one = byte;
    one.k = kva_expr_addi(b->exprs, byte.k, i);
    word = kva_contract_put_bits(b, word, kva_contract_bits_of_byte(b, byte_of_a(c, &one)), 8 * i);
  }
  return word;
}

static kva_kval word_of_b(const kva_contraction *c, const kva_contract_at *at) {
  const kva_expr *idx[KVA_MAX_RANK];
  const kva_node *codes = kva_operand(kva_operand(c->n, 1)->def, 0)->def;
  kva_contract_at byte = first_byte(c, at);
  place_b(c, &byte, idx);
  return codes->op->lower_bytes(c->l, codes, idx);
}

static kva_kval scale_of_a(const kva_contraction *c, const kva_contract_at *at) {
  kva_contract_at byte = first_byte(c, at);
  return part_of_a(c, &byte, kva_operand(c->n, 0)->def->op->lower_factor);
}

static kva_kval scale_of_b(const kva_contraction *c, const kva_contract_at *at) {
  kva_contract_at byte = first_byte(c, at);
  return factor_of_b(c, &byte);
}

static kva_kval zero_of_bytes(const kva_contraction *c, const kva_contract_at *at) {
  kva_contract_at byte = first_byte(c, at);
  return kva_k_convert(c->l->kb, zero_of_b(c, &byte), KVA_I32);
}

/* Both factors are made in this kernel, and b lies in panels of words. */
static bool look_for_bytes(kva_contraction *c) {
  int64_t block = kva_matmul_byte_block(c->n);
  const kva_lower *l = c->l;
  if (!block || l->target->kind != KVA_TARGET_CPU || !c->panel) return false;
  if (!l->computes(l, kva_operand(c->n, 0)) || !l->computes(l, kva_operand(c->n, 1))) return false;
  if (!l->computes(l, kva_operand(kva_operand(c->n, 1)->def, 0))) return false;
  bool small = kva_dtype_bits(kva_operand_type(kva_operand(c->n, 1)->def, 0)->dtype) == 4;
  c->byte_blocks = true;
  c->b_mask = small && !kva_target_sums_bytes(l->target) ? 0x0F0F0F0F : 0;
  c->factor_block = block / KVA_CODES_PER_WORD;
  c->depth = kva_expr_div(l->kb->exprs, c->depth, kva_expr_const(l->kb->exprs, KVA_CODES_PER_WORD));
  c->a = word_of_a, c->a_byte = byte_of_a, c->b = NULL, c->b_rest = word_of_b;
  c->a_factor = scale_of_a, c->b_factor = scale_of_b, c->b_zero = zero_of_bytes;
  c->one_zero = !kva_operand_type(kva_operand(c->n, 1)->def, 2)->rank;
  return true;
}

/* Of one matrix in the type of the sums, made in this kernel. */
static void look_for_factor(kva_contraction *c) {
  const kva_value *b = kva_operand(c->n, 1);
  if (!b->def || !b->def->op->factor_block || b->type->rank != 2 || !c->l->computes(c->l, b)) return;
  if (kva_k_compute_type(b->type->dtype) != c->type) return;
  c->factor_block = b->def->op->factor_block(b->def, ((const product *)c->user)->s.transpose_b ? 1 : 0);
  c->b_rest = rest_of_b, c->b_factor = factor_of_b;
  int64_t depth;
  bool whole = c->factor_block && kva_expr_is_const(c->depth, &depth) && depth % c->factor_block == 0;
  if (whole && !c->along_depth && !c->across_rows && b->def->op->has_zero && b->def->op->has_zero(b->def))
    c->b_rest = code_of_b, c->b_zero = zero_of_b;
}

kva_contraction kva_contract_of_matmul(kva_lower *l, const kva_node *n) {
  const kva_type *type = n->results[0].type;
  const kva_expr *one = kva_expr_const(l->kb->exprs, 1);
  product *p = KVA_NEW(l->kb->arena, product);
  p->s = kva_matmul_get(n);
  p->rows_collapsed = kva_operand_type(n, 1)->rank == 2 && !p->s.transpose_a;
  kva_dim leading = one;
  for (uint32_t d = 0; d + 2 < type->rank; d++) leading = kva_expr_mul(l->kb->exprs, leading, type->dims[d]);
  kva_contraction c = {.l = l, .n = n, .user = p, .type = kva_k_compute_type(type->dtype)};
  c.batch = p->rows_collapsed ? one : leading;
  c.rows = p->rows_collapsed ? kva_expr_mul(l->kb->exprs, p->s.M, leading) : p->s.M;
  c.depth = p->s.K, c.lines = one, c.line = c.used = p->s.N;
  c.leads = c.taps = c.spread = c.stride = 1;
  c.along_depth = p->s.transpose_b, c.across_rows = p->s.transpose_a;
  const kva_value *panels = l->computes(l, kva_operand(n, 1)) ? kva_operand(n, 1) : NULL;
  c.panel = p->s.transpose_b ? 0 : kva_panel_of(panels);
  c.panel_word = kva_panel_word_of(panels);
  c.a = element_a, c.b = element_b, c.result = result_at;
  if (look_for_bytes(&c)) return c;
  look_for_factor(&c);
  kva_dtype a = kva_operand_type(n, 0)->dtype, b = kva_operand_type(n, 1)->dtype;
  c = c.type == KVA_F32 ? kva_contract_pairs(&c, a, b) : kva_contract_bytes(&c, a, b);
  return kva_contract_blocks(&c);
}
