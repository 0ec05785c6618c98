/* Batcher's bitonic network (1968) for 2^stages elements, in the form in which all comparisons have the same direction:
 * stage s makes sorted runs of 2^(s+1) from pairs of runs. Its first step compares element i with i xor (2^(s+1) - 1),
 * its mirror image in the run, and step k = 1, ..., s with i xor 2^(s-k); the lower place keeps the smaller.
 *
 * Each thread computes its own element from two in the other half of memory. So a step has one barrier, and 32 adjacent
 * threads read 32 adjacent elements in another order, without bank conflicts. */
#include "codegen/kernels/nv/gather/sort.h"

static const kva_expr *power(kva_kb *b, const kva_expr *exponent) {
  kva_kval one = kva_k_const_i(b, KVA_I64, 1);
  return kva_k_symbol(b, kva_k2(b, KVA_K_shl, one, kva_k_index(b, exponent)));
}

kva_gpu_list kva_gpu_list_begin(kva_kb *b, kva_kbuf *buf, int64_t half, const kva_expr *count) {
  kva_kval one = kva_k_const_i(b, KVA_I64, 1), zero = kva_k_const_i(b, KVA_I64, 0), stages = zero;
  for (int64_t n = 1; n < half; n *= 2) {
    kva_kval more = kva_k_index_lt(b, kva_expr_const(b->exprs, n), count);
    stages = kva_k2(b, KVA_K_add, stages, kva_k_select(b, more, one, zero));
  }
  return (kva_gpu_list){buf, half, kva_k_symbol(b, stages), kva_expr_const(b->exprs, 0)};
}

const kva_expr *kva_gpu_list_length(kva_kb *b, const kva_gpu_list *list) {
  return power(b, list->stages);
}

/* The bits in which elements' numbers differ from those of their partners. */
static kva_kval mask_of(kva_kb *b, const kva_expr *stage, const kva_expr *step) {
  const kva_expr *mirror = kva_expr_addi(b->exprs, power(b, kva_expr_addi(b->exprs, stage, 1)), -1);
  kva_kval first = kva_k_index_le(b, step, kva_expr_const(b->exprs, 0));
  kva_kval bit = kva_k_index(b, power(b, kva_expr_sub(b->exprs, stage, step)));
  return kva_k_convert(b, kva_k_select(b, first, kva_k_index(b, mirror), bit), KVA_I32);
}

static void compare(kva_kb *b, const kva_gpu_list *list, kva_kval mask, const kva_expr *from, const kva_expr *to) {
  kva_expr_ctx *e = b->exprs;
  kva_kloop *i = kva_k_loop_begin(b, KVA_K_THREAD, kva_gpu_list_length(b, list), "i");
  kva_kval here = kva_k_convert(b, kva_k_index(b, i->var), KVA_I32), there = kva_k2(b, KVA_K_xor, here, mask);
  const kva_expr *partner = kva_k_symbol(b, there);
  kva_kval x = kva_k_load(b, list->buf, kva_expr_add(e, from, i->var));
  kva_kval y = kva_k_load(b, list->buf, kva_expr_add(e, from, partner));
  kva_kval lower = kva_k2(b, KVA_K_lt, here, there);
  kva_kval kept = kva_k_select(b, lower, kva_k2(b, KVA_K_min, x, y), kva_k2(b, KVA_K_max, x, y));
  kva_k_store(b, list->buf, kva_expr_add(e, to, i->var), kept);
  kva_k_loop_end(b, i);
}

/* Returns the half that holds the elements afterwards. */
static kva_kval each_step(kva_kb *b, const kva_gpu_list *list, const kva_expr *stage, kva_kval first) {
  kva_kloop *step = kva_k_loop_begin(b, KVA_K_SERIAL, kva_expr_addi(b->exprs, stage, 1), "step");
  kva_kval from = kva_k_carry(b, step, first), to = kva_k2(b, KVA_K_sub, kva_k_const_i(b, KVA_I64, list->half), from);
  compare(b, list, mask_of(b, stage, step->var), kva_k_symbol(b, from), kva_k_symbol(b, to));
  kva_k_barrier(b);
  kva_k_carry_next(b, step, from, to);
  kva_k_loop_end(b, step);
  return kva_k_carry_result(b, step, from);
}

void kva_gpu_list_sort(kva_kb *b, kva_gpu_list *list) {
  kva_k_barrier(b);
  kva_kloop *stage = kva_k_loop_begin(b, KVA_K_SERIAL, list->stages, "stage");
  kva_kval first = kva_k_carry(b, stage, kva_k_index(b, list->first));
  kva_k_carry_next(b, stage, first, each_step(b, list, stage->var, first));
  kva_k_loop_end(b, stage);
  list->first = kva_k_symbol(b, kva_k_carry_result(b, stage, first));
}

bool kva_gpu_list_moves(int64_t n) {
  int64_t stages = 0;
  while (n > 1 << stages) stages++;
  return stages * (stages + 1) / 2 % 2 == 1;
}

static kva_kval one_if_below(kva_kb *b, const kva_gpu_list *list, const kva_expr *at, kva_kval limit, kva_kval one) {
  kva_kval x = kva_k_load(b, list->buf, kva_expr_add(b->exprs, list->first, at));
  return kva_k_select(b, kva_k2(b, KVA_K_lt, x, limit), one, kva_k_const_i(b, KVA_I64, 0));
}

kva_kval kva_gpu_list_below(kva_kb *b, const kva_gpu_list *list, const kva_expr *limit) {
  kva_expr_ctx *e = b->exprs;
  kva_kval value = kva_k_convert(b, kva_k_index(b, limit), list->buf->dtype);
  kva_kloop *step = kva_k_loop_begin(b, KVA_K_SERIAL, list->stages, "step");
  kva_kval below = kva_k_carry(b, step, kva_k_const_i(b, KVA_I64, 0));
  const kva_expr *part = power(b, kva_expr_addi(e, kva_expr_sub(e, list->stages, step->var), -1));
  const kva_expr *last = kva_expr_addi(e, kva_expr_add(e, kva_k_symbol(b, below), part), -1);
  kva_kval more = one_if_below(b, list, last, value, kva_k_index(b, part));
  kva_k_carry_next(b, step, below, kva_k2(b, KVA_K_add, below, more));
  kva_k_loop_end(b, step);
  kva_kval result = kva_k_carry_result(b, step, below);
  kva_kval one = kva_k_const_i(b, KVA_I64, 1);
  return kva_k2(b, KVA_K_add, result, one_if_below(b, list, kva_k_symbol(b, result), value, one));
}
