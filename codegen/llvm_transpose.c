/* Loads of a block of a matrix, transposed. In a VECTOR loop over rows, an UNROLL loop over as many consecutive columns
 * as there are lanes would gather each column. Instead every row is loaded as a vector before the loop, and shuffles
 * transpose the block: n log2(n) of them for n x n elements, where n gathers read n elements each. Elements of 16 bits
 * become floats first.
 *
 * The steps, for n lanes: two interleave within groups of four elements, which are 128 bits, so x86 needs no indices;
 * they transpose every 4 x 4 block. The others sort the groups: each takes the even ones of two vectors, and the odd
 * ones. */
#include "codegen/llvm_internal.h"

enum { MOST = KVA_MAX_COLUMNS, QUAD = 4 };

/* ---- shuffles ---------------------------------------------------------------------------------------------------- */

typedef struct block {
  kva_emit *e;
  unsigned n;
  LLVMValueRef rows[MOST];
} block;

/* Element k of both vectors together, for each of n elements. */
static LLVMValueRef pick(const block *b, LLVMValueRef x, LLVMValueRef y, const unsigned *elements) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(b->e->ctx);
  LLVMValueRef mask[MOST];
  for (unsigned k = 0; k < b->n; k++) mask[k] = LLVMConstInt(i32, elements[k], false);
  return LLVMBuildShuffleVector(b->e->b, x, y, LLVMConstVector(mask, b->n), "");
}

/* x0 y0 x1 y1 of every group of four; half = 1: x2 y2 x3 y3. */
static LLVMValueRef interleave(const block *b, LLVMValueRef x, LLVMValueRef y, unsigned half) {
  unsigned elements[MOST];
  for (unsigned k = 0; k < b->n; k++) elements[k] = k / QUAD * QUAD + k % QUAD / 2 + 2 * half + (k % 2 ? b->n : 0);
  return pick(b, x, y, elements);
}

/* Every other group of four of x, then of y; odd = 1: the others. */
static LLVMValueRef every_other_group(const block *b, LLVMValueRef x, LLVMValueRef y, unsigned odd) {
  unsigned elements[MOST];
  for (unsigned k = 0; k < b->n; k++) elements[k] = (2 * (k / QUAD) + odd) * QUAD + k % QUAD;
  return pick(b, x, y, elements);
}

static void interleave_rows(block *b) {
  LLVMValueRef in[MOST];
  memcpy(in, b->rows, sizeof in);
  for (unsigned quad = 0; quad < b->n; quad += QUAD) {
    for (unsigned i = 0; i < 2; i++) {
      LLVMValueRef x = in[quad + i], y = in[quad + i + 2];
      b->rows[quad + 2 * i] = interleave(b, x, y, 0);
      b->rows[quad + 2 * i + 1] = interleave(b, x, y, 1);
    }
  }
}

static void sort_groups(block *b) {
  LLVMValueRef in[MOST];
  memcpy(in, b->rows, sizeof in);
  for (unsigned i = 0; i < b->n / 2; i++) {
    unsigned pair = i / QUAD * 2 * QUAD + i % QUAD;
    b->rows[i] = every_other_group(b, in[pair], in[pair + QUAD], 0);
    b->rows[b->n / 2 + i] = every_other_group(b, in[pair], in[pair + QUAD], 1);
  }
}

static void transpose(block *b) {
  interleave_rows(b);
  interleave_rows(b);
  for (unsigned groups = b->n / QUAD; groups > 1; groups /= 2) sort_groups(b);
}

/* ---- loads ------------------------------------------------------------------------------------------------------- */

typedef struct search {
  const kva_emit *e;
  const kva_kloop *l;
  bool inside;
} search;

static void look(void *user, const kva_expr *symbol) {
  search *s = user;
  const kva_kregion *r = symbol == s->l->var ? NULL : kva_k_symbol_region(s->e->k, symbol);
  s->inside |= r && kva_k_encloses(s->l->body, r);
}

/* The rounds of l read what buf held before them. */
static bool is_constant_in(const kva_kbuf *buf, const kva_kloop *l) {
  if (buf->space == KVA_K_PARAM) return !buf->written;
  for (const kva_kinstr *i = l->body->first; i; i = i->next) {
    if (i->op == KVA_K_STORE && i->buf == buf) return false;
    if (i->op == KVA_K_INTRINSIC || i->op == KVA_K_LOOP || i->op == KVA_K_IF) return false;
  }
  return buf->space == KVA_K_LOCAL;
}

/* Elements from row to row if the load reads a block: lanes are rows, rounds of l consecutive columns. Else 0. */
static int64_t row_stride(const kva_emit *e, const kva_kinstr *i, const kva_kloop *l) {
  const kva_expr *step, *rest;
  bool constant = i->op == KVA_K_LOAD && !i->n_args && is_constant_in(i->buf, l);
  if (!constant) return 0;
  kva_dtype t = i->buf->dtype;
  if (kva_dtype_bits(t) != 32 && t != KVA_F16 && t != KVA_BF16) return 0;
  search s = {e, l, false};
  kva_expr_each_symbol(i->index, look, &s);
  if (s.inside || !kva_expr_affine(e->k->exprs, i->index, l->var, &step, &rest) || !kva_expr_is(step, 1)) return 0;
  int64_t stride = kva_ll_expr_stride(e, i->index);
  return stride >= (int64_t)e->lanes.n ? stride : 0;
}

static kva_columns load_block(kva_emit *e, const kva_kinstr *i, int64_t stride) {
  block b = {.e = e, .n = e->lanes.n};
  LLVMValueRef first = kva_ll_expr(e, i->index);
  for (unsigned r = 0; r < b.n; r++) {
    LLVMValueRef at = LLVMBuildNSWAdd(e->b, first, kva_ll_i64(e, r * stride), "");
    b.rows[r] = kva_ll_from_storage(e, i->buf->dtype, kva_ll_vector_at(e, i, at));
  }
  transpose(&b);
  kva_columns c = {.load = i};
  memcpy(c.values, b.rows, sizeof c.values);
  return c;
}

void kva_ll_load_blocks(kva_emit *e, const kva_kloop *l) {
  unsigned n = e->lanes.n;
  bool square = n >= QUAD && n <= MOST && !(n & (n - 1)) && kva_expr_is(l->extent, n);
  if (!square || e->lanes.mask || kva_ll_is_gpu(e)) return;
  kva_ll_bind(e, l->var, kva_ll_i64(e, 0));
  for (const kva_kinstr *i = l->body->first; i; i = i->next) {
    int64_t stride = row_stride(e, i, l);
    if (stride) KVA_PUSH(e->scratch, &e->columns, load_block(e, i, stride));
  }
}

LLVMValueRef kva_ll_next_column(kva_emit *e, const kva_kinstr *load) {
  for (uint32_t k = e->columns.len; k-- > 0;) {
    kva_columns *c = &e->columns.data[k];
    if (c->load == load) return c->values[c->next++];
  }
  return NULL;
}
