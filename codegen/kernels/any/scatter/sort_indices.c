/* sort_indices: a key's place is the number of smaller ones. */
#include "codegen/kernels/any/scatter/sort_indices.h"
#include "codegen/kernels/any/scatter/scatter.h"
#include "ops/index.h"
#include "ops/shape.h"

kva_sorting kva_sorting_of(kva_lower *l, const kva_node *n) {
  kva_sorting s = {.l = l, .b = l->kb, .e = l->kb->exprs, .n = n, .s = kva_sort_indices_of(l->kb->exprs, n)};
  s.keys = kva_scatter_result(l, n, 0);
  s.bounds = kva_scatter_result(l, n, 1);
  return s;
}

const kva_expr *kva_sorting_key_place(const kva_sorting *s, const kva_expr *chunk, const kva_expr *i) {
  return kva_expr_add(s->e, kva_expr_muli(s->e, chunk, s->s.chunk), i);
}

const kva_expr *kva_sorting_first_key(const kva_sorting *s, const kva_expr *b) {
  return kva_expr_muli(s->e, kva_expr_mul(s->e, b, s->s.each), s->s.chunk);
}

void kva_sorting_store_bound(const kva_sorting *s, const kva_expr *chunk, const kva_expr *owner, kva_kval below) {
  const kva_expr *row = kva_expr_mul(s->e, chunk, kva_expr_addi(s->e, s->s.owners, 1));
  kva_k_store(s->b, s->bounds, kva_expr_add(s->e, row, owner), below);
}

kva_kval kva_sorting_key_at(const kva_sorting *s, const kva_expr *chunk, const kva_expr *i) {
  const kva_expr *position = kva_sorting_key_place(s, chunk, i), *at[KVA_MAX_RANK];
  const kva_type *indices = kva_operand_type(s->n, 0);
  kva_kval exists = kva_k_index_lt(s->b, position, s->s.positions), guard = kva_k_guard_begin(s->b, exists);
  kva_shape_split(s->e, indices->rank, indices->dims, position, at);
  const kva_expr *v = kva_index_lower(s->l, s->n, 0, at, s->s.rows);
  kva_k_guard_end(s->b, guard);
  const kva_expr *row = kva_expr_mul(s->e, kva_expr_mod(s->e, v, s->s.owners), s->s.each);
  row = kva_expr_add(s->e, row, kva_expr_div(s->e, v, s->s.owners));
  kva_kval key = kva_k_index(s->b, kva_expr_add(s->e, kva_expr_muli(s->e, row, s->s.chunk), i));
  return kva_k_select(s->b, exists, key,
                      kva_k_index(s->b, kva_expr_add(s->e, kva_sorting_first_key(s, s->s.owners), i)));
}

/* Keys of the chunk below `limit`. */
static kva_kval count_below(const kva_sorting *s, const kva_expr *chunk, kva_kval limit) {
  kva_kval zero = kva_k_const_i(s->b, KVA_I64, 0), one = kva_k_const_i(s->b, KVA_I64, 1);
  kva_kloop *other = kva_k_loop_begin(s->b, KVA_K_SERIAL, kva_sorting_num(s, s->s.chunk), "j");
  kva_kval below = kva_k2(s->b, KVA_K_lt, kva_sorting_key_at(s, chunk, other->var), limit);
  kva_kval sum = kva_k_reduce(s->b, other, KVA_COMBINE_ADD, zero, kva_k_select(s->b, below, one, zero));
  kva_k_loop_end(s->b, other);
  return sum;
}

static void by_counting(const kva_sorting *s) {
  kva_kloop *chunk = kva_k_loop_begin(s->b, KVA_K_PARALLEL, s->s.chunks, "chunk");
  kva_kloop *i = kva_k_loop_begin(s->b, KVA_K_PARALLEL, kva_sorting_num(s, s->s.chunk), "i");
  kva_kval key = kva_sorting_key_at(s, chunk->var, i->var), place = count_below(s, chunk->var, key);
  kva_k_store(s->b, s->keys, kva_sorting_key_place(s, chunk->var, kva_k_symbol(s->b, place)), key);
  kva_k_loop_end(s->b, i);
  kva_kloop *owner = kva_k_loop_begin(s->b, KVA_K_PARALLEL, kva_expr_addi(s->e, s->s.owners, 1), "owner");
  kva_kval limit = kva_k_index(s->b, kva_sorting_first_key(s, owner->var));
  kva_sorting_store_bound(s, chunk->var, owner->var, count_below(s, chunk->var, limit));
  kva_k_loop_end(s->b, owner);
  kva_k_loop_end(s->b, chunk);
}

void kva_sort_indices_emit(kva_lower *l, const kva_node *n) {
  kva_sorting s = kva_sorting_of(l, n);
  by_counting(&s);
}
