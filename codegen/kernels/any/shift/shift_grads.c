/* kv_shift_grads: loops over elements of dx and, for each block of rows and head, of dw. */
#include "codegen/kernels/any/shift/shift_grads.h"

/* ---- one element ------------------------------------------------------------------------------------------------- */

/* Element of dy `by` rows after at.t. *out_counts: that row is in the same document; NULL: always. known: the row
 * exists. */
static kva_kval dy_element(const kva_shift_grads *g, kva_shift_at at, int64_t by, bool known, kva_kval *out_counts) {
  const kva_expr *row = at.t;
  at.t = kva_expr_addi(g->c, row, by);
  kva_kval counts = known ? NULL : kva_k_index_lt(g->kb, at.t, g->s.T);
  if (!known) at.t = kva_expr_min(g->c, at.t, kva_expr_addi(g->c, g->s.T, -1));
  if (by) counts = kva_k_and(g->kb, counts, kva_shift_same_segment(g->l, &g->s, at.b, row, at.t, NULL));
  *out_counts = counts;
  return kva_shift_operand(g->l, &g->s, KVA_SHIFT_GRADS_DY, at, NULL);
}

/* What does not count is left out, not multiplied by zero: weights and x may be infinite. */
static kva_kval where_counts(const kva_shift_grads *g, kva_kval counts, kva_kval x, kva_kval otherwise) {
  return counts ? kva_k_select(g->kb, counts, x, otherwise) : x;
}

void kva_shift_grads_store_dx(const kva_shift_grads *g, kva_shift_at at, int64_t after) {
  kva_kval sum = NULL, counts;
  for (int64_t j = 0; j < g->s.window; j++) {
    kva_kval w = kva_shift_weight(g->l, &g->s, at, kva_shift_grads_num(g, j), NULL),
             dy = dy_element(g, at, j, j <= after, &counts);
    sum = sum ? where_counts(g, counts, kva_k_op(g->kb, KVA_K_fma, w, dy, sum), sum) : kva_k2(g->kb, KVA_K_mul, w, dy);
  }
  const kva_expr *idx[4] = {at.b, NULL, NULL, at.d};
  idx[g->s.time] = at.t;
  idx[g->s.head] = at.h;
  g->l->store(g->l, g->s.n, 0, idx, sum);
}

kva_kval kva_shift_grads_summand(const kva_shift_grads *g, kva_shift_at at, int64_t j, int64_t after) {
  kva_kval counts, dy = dy_element(g, at, j, j <= after, &counts);
  kva_kval product = kva_k2(g->kb, KVA_K_mul, dy, kva_shift_operand(g->l, &g->s, KVA_SHIFT_GRADS_X, at, NULL));
  return where_counts(g, counts, product, kva_k_const(g->kb, product->dtype, 0));
}

void kva_shift_grads_store_dw(const kva_shift_grads *g, int64_t j, kva_kval sum) {
  g->l->store(g->l, g->s.n, 1, (const kva_expr *[]){g->at.b, g->block, g->at.h, kva_shift_grads_num(g, j)}, sum);
}

const kva_expr *kva_shift_grads_rows(const kva_shift_grads *g) {
  return kva_expr_min(g->c, kva_shift_grads_num(g, KVA_SHIFT_GRADS_ROWS), kva_expr_sub(g->c, g->s.T, g->first));
}

const kva_expr *kva_shift_grads_blocks(const kva_shift_grads *g) {
  return kva_expr_ceildiv(g->c, g->s.T, kva_shift_grads_num(g, KVA_SHIFT_GRADS_ROWS));
}

kva_shift_grads kva_shift_grads_of(kva_lower *l, const kva_node *n) {
  return (kva_shift_grads){.l = l,
                           .kb = l->kb,
                           .c = l->kb->exprs,
                           .s = kva_shift_grads_get(n),
                           .type = kva_k_compute_type(n->results[1].type->dtype)};
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

static kva_kloop *map(kva_shift_grads *g, const kva_expr *extent, const kva_expr **out_var) {
  kva_kloop *l = kva_k_loop_begin(g->kb, KVA_K_PARALLEL, extent, "i");
  *out_var = l->var;
  return l;
}

static void all_dx(kva_shift_grads *g) {
  bool by_time = g->s.time == 1;
  kva_kloop *b = map(g, g->s.B, &g->at.b), *outer = map(g, by_time ? g->s.T : g->s.H, by_time ? &g->at.t : &g->at.h);
  kva_kloop *inner = map(g, by_time ? g->s.H : g->s.T, by_time ? &g->at.h : &g->at.t), *d = map(g, g->s.D, &g->at.d);
  kva_shift_grads_store_dx(g, g->at, 0);
  kva_k_loop_end(g->kb, d);
  kva_k_loop_end(g->kb, inner);
  kva_k_loop_end(g->kb, outer);
  kva_k_loop_end(g->kb, b);
}

/* dw of all taps for a block of rows and a head. */
static void store_block(kva_shift_grads *g) {
  kva_kb *kb = g->kb;
  kva_kval *sums = KVA_NEW_ARRAY(kb->arena, kva_kval, g->s.window), zero = kva_k_const(kb, g->type, 0);
  kva_kloop *row = kva_k_loop_begin(kb, KVA_K_SERIAL, kva_shift_grads_rows(g), "r");
  kva_kloop *d = kva_k_loop_begin(kb, KVA_K_SERIAL, g->s.D, "d");
  g->at.t = kva_expr_add(g->c, g->first, row->var);
  g->at.d = d->var;
  for (int64_t j = 0; j < g->s.window; j++)
    sums[j] = kva_k_reduce(kb, d, KVA_COMBINE_ADD, zero, kva_shift_grads_summand(g, g->at, j, 0));
  kva_k_loop_end(kb, d);
  for (int64_t j = 0; j < g->s.window; j++) sums[j] = kva_k_reduce(kb, row, KVA_COMBINE_ADD, zero, sums[j]);
  kva_k_loop_end(kb, row);
  for (int64_t j = 0; j < g->s.window; j++) kva_shift_grads_store_dw(g, j, sums[j]);
}

static void all_dw(kva_shift_grads *g) {
  kva_kloop *b = map(g, g->s.B, &g->at.b), *block = map(g, kva_shift_grads_blocks(g), &g->block),
            *h = map(g, g->s.H, &g->at.h);
  g->first = kva_expr_muli(g->c, g->block, KVA_SHIFT_GRADS_ROWS);
  store_block(g);
  kva_k_loop_end(g->kb, h);
  kva_k_loop_end(g->kb, block);
  kva_k_loop_end(g->kb, b);
}

void kva_shift_grads_emit(kva_lower *l, const kva_node *n) {
  kva_shift_grads g = kva_shift_grads_of(l, n);
  all_dx(&g);
  all_dw(&g);
}
