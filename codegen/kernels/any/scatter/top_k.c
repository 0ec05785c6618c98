/* top_k. On a CPU a work item takes a row: the result holds a heap of positions, whose root comes last in the order;
 * elements that come before the root replace it, and the heap is sorted in the end: n + k log k steps for most rows, n
 * log k at worst. On a GPU a thread for each element counts those before it. */
#include "codegen/kernels/any/scatter/scatter.h"
#include "ops/check.h"
#include "ops/shape.h"

enum { MAX_LEVELS = 40 };

typedef struct top {
  kva_lower *l;
  const kva_node *n;
  kva_kb *b;
  kva_expr_ctx *e;
  const kva_top_k_attrs *a;
  uint32_t axis, rank;
  kva_kbuf *result;
  const kva_expr *idx[KVA_MAX_RANK]; /* of the row; that of the axis is not used */
  kva_dim extent, count;
  const kva_expr *levels; /* of the heap below its root */
} top;

/* An element of x and its position along the axis. */
typedef struct entry {
  kva_kval at, key;
} entry;

static top top_of(kva_lower *l, const kva_node *n) {
  const kva_type *x = kva_operand_type(n, 0);
  top t = {.l = l, .n = n, .b = l->kb, .e = l->kb->exprs, .a = n->attrs, .rank = x->rank};
  t.axis = kva_axis(t.a->axis, t.rank);
  t.result = kva_scatter_result(l, n, 0);
  t.extent = x->dims[t.axis];
  t.count = t.a->count;
  return t;
}

static const kva_expr *num(const top *t, int64_t v) {
  return kva_expr_const(t->e, v);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static kva_kval is_greater(const top *t, kva_kval x, kva_kval y) {
  kva_kval greater = kva_k2(t->b, KVA_K_lt, y, x);
  if (!kva_dtype_is_float(x->dtype)) return greater;
  kva_kval number = kva_k1(t->b, KVA_K_not, kva_k1(t->b, KVA_K_isnan, y));
  return kva_k2(t->b, KVA_K_or, greater, kva_k2(t->b, KVA_K_and, kva_k1(t->b, KVA_K_isnan, x), number));
}

/* x comes before y by its value alone. */
static kva_kval is_better(const top *t, const entry *x, const entry *y) {
  return t->a->smallest ? is_greater(t, y->key, x->key) : is_greater(t, x->key, y->key);
}

static kva_kval is_before(const top *t, const entry *x, const entry *y) {
  kva_kval left = kva_k2(t->b, KVA_K_lt, x->at, y->at), worse = is_better(t, y, x);
  kva_kval tie = kva_k2(t->b, KVA_K_and, left, kva_k1(t->b, KVA_K_not, worse));
  return kva_k2(t->b, KVA_K_or, is_better(t, x, y), tie);
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

/* The element of the row at a position, 0 where that does not exist. */
static entry element(const top *t, const kva_expr *at) {
  const kva_expr *idx[KVA_MAX_RANK];
  memcpy(idx, t->idx, sizeof idx);
  idx[t->axis] = at;
  kva_kval outer = kva_k_guard_begin(t->b, kva_k_index_lt(t->b, at, t->extent));
  entry x = {kva_k_index(t->b, at), t->l->operand(t->l, t->n, 0, idx)};
  kva_k_guard_end(t->b, outer);
  return x;
}

static const kva_expr *place(const top *t, const kva_expr *i) {
  const kva_expr *idx[KVA_MAX_RANK];
  memcpy(idx, t->idx, sizeof idx);
  idx[t->axis] = i;
  return kva_shape_linear(t->e, t->rank, t->n->results[0].type->dims, idx);
}

static entry held(const top *t, const kva_expr *i) {
  return element(t, kva_k_symbol(t->b, kva_k_load(t->b, t->result, place(t, i))));
}

static void hold(const top *t, const kva_expr *i, const entry *x) {
  kva_k_store(t->b, t->result, place(t, i), x->at);
}

/* ---- the heap ---------------------------------------------------------------------------------------------------- */

/* One step down from `at`: the child that comes last moves up if x comes before it. Returns where x may be put. */
static kva_kval sift_level(const top *t, kva_kval at, const entry *x, const kva_expr *n) {
  kva_kb *b = t->b;
  const kva_expr *here = kva_k_symbol(b, at), *left = kva_expr_addi(t->e, kva_expr_muli(t->e, here, 2), 1);
  const kva_expr *right = kva_expr_addi(t->e, left, 1);
  kva_kval has_left = kva_k_index_lt(b, left, n), has_right = kva_k_index_lt(b, right, n);
  kva_kval outer = kva_k_guard_begin(b, has_left);
  entry l = held(t, left);
  kva_k_guard_end(b, outer);
  outer = kva_k_guard_begin(b, has_right);
  entry r = held(t, right);
  kva_k_guard_end(b, outer);
  kva_kval turn = kva_k_and(b, has_right, is_before(t, &l, &r));
  entry child = {kva_k_select(b, turn, r.at, l.at), kva_k_select(b, turn, r.key, l.key)};
  kva_kval moves = kva_k_and(b, has_left, is_before(t, x, &child));
  outer = kva_k_guard_begin(b, moves);
  hold(t, here, &child);
  kva_k_guard_end(b, outer);
  kva_kval next = kva_k_select(b, turn, kva_k_index(b, right), kva_k_index(b, left));
  return kva_k_select(b, moves, next, at);
}

/* Puts x at `start` or below, in a heap of n. */
static void sift(const top *t, const kva_expr *start, const entry *x, const kva_expr *n) {
  kva_kloop *level = kva_k_loop_begin(t->b, KVA_K_SERIAL, t->levels, "level");
  kva_kval at = kva_k_carry(t->b, level, kva_k_index(t->b, start));
  kva_k_carry_next(t->b, level, at, sift_level(t, at, x, n));
  kva_kval end = kva_k_carry_result(t->b, level, at);
  kva_k_loop_end(t->b, level);
  hold(t, kva_k_symbol(t->b, end), x);
}

static void build_heap(const top *t) {
  kva_kloop *i = kva_k_loop_begin(t->b, KVA_K_SERIAL, t->count, "i");
  hold(t, i->var, &(entry){.at = kva_k_index(t->b, i->var)});
  kva_k_loop_end(t->b, i);
  const kva_expr *parents = kva_expr_div(t->e, t->count, num(t, 2));
  kva_kloop *p = kva_k_loop_begin(t->b, KVA_K_SERIAL, parents, "p");
  const kva_expr *at = kva_expr_sub(t->e, kva_expr_addi(t->e, parents, -1), p->var);
  entry x = held(t, at);
  sift(t, at, &x, t->count);
  kva_k_loop_end(t->b, p);
}

/* Elements behind the first `count`: of equal ones the earlier stays. */
static void replace_roots(const top *t) {
  const kva_expr *some = kva_expr_min(t->e, num(t, 1), t->count);
  const kva_expr *rest = kva_expr_max(t->e, num(t, 0), kva_expr_sub(t->e, t->extent, t->count));
  kva_kloop *i = kva_k_loop_begin(t->b, KVA_K_SERIAL, kva_expr_mul(t->e, some, rest), "i");
  entry x = element(t, kva_expr_add(t->e, t->count, i->var)), root = held(t, num(t, 0));
  kva_kinstr *branch = kva_k_if_begin(t->b, is_better(t, &x, &root));
  sift(t, num(t, 0), &x, t->count);
  kva_k_if_end(t->b, branch);
  kva_k_loop_end(t->b, i);
}

/* The root goes behind the rest of the heap, again and again. */
static void sort_heap(const top *t) {
  const kva_expr *last = kva_expr_sub(t->e, t->count, kva_expr_min(t->e, num(t, 1), t->count));
  kva_kloop *i = kva_k_loop_begin(t->b, KVA_K_SERIAL, last, "i");
  const kva_expr *end = kva_expr_sub(t->e, last, i->var);
  entry x = held(t, end), root = held(t, num(t, 0));
  hold(t, end, &root);
  sift(t, num(t, 0), &x, end);
  kva_k_loop_end(t->b, i);
}

/* floor(log2(n)), 0 for 0. */
static const kva_expr *log2_of(const top *t, const kva_expr *n) {
  const kva_expr *sum = num(t, 0);
  for (int64_t bit = 1; bit < MAX_LEVELS; bit++) {
    const kva_expr *above = kva_expr_div(t->e, n, num(t, (int64_t)1 << bit));
    sum = kva_expr_add(t->e, sum, kva_expr_min(t->e, num(t, 1), above));
  }
  return sum;
}

void kva_top_k_heap_emit(kva_lower *l, const kva_node *n) {
  top t = top_of(l, n);
  kva_dim rows[KVA_MAX_RANK];
  memcpy(rows, kva_operand_type(n, 0)->dims, sizeof *rows * t.rank);
  rows[t.axis] = num(&t, 1);
  kva_kloop *g = kva_k_loop_begin(t.b, KVA_K_GRID, kva_shape_product(t.e, t.rank, rows), "item");
  kva_shape_split(t.e, t.rank, rows, g->var, t.idx);
  t.levels = kva_k_name(t.b, log2_of(&t, t.count), num(&t, MAX_LEVELS));
  build_heap(&t);
  replace_roots(&t);
  sort_heap(&t);
  kva_k_loop_end(t.b, g);
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static kva_kval count_before(const top *t, const entry *x) {
  kva_kval zero = kva_k_const_i(t->b, KVA_I64, 0), one = kva_k_const_i(t->b, KVA_I64, 1);
  kva_kloop *other = kva_k_loop_begin(t->b, KVA_K_SERIAL, t->extent, "j");
  entry y = element(t, other->var);
  kva_kval sum = kva_k_reduce(t->b, other, KVA_COMBINE_ADD, zero, kva_k_select(t->b, is_before(t, &y, x), one, zero));
  kva_k_loop_end(t->b, other);
  return sum;
}

void kva_top_k_ranks_emit(kva_lower *l, const kva_node *n) {
  top t = top_of(l, n);
  kva_kloop *loops[KVA_MAX_RANK];
  kva_nest_begin(l, KVA_K_PARALLEL, t.rank, kva_operand_type(n, 0)->dims, loops, t.idx);
  entry x = element(&t, t.idx[t.axis]);
  const kva_expr *rank = kva_k_symbol(t.b, count_before(&t, &x));
  kva_kval outer = kva_k_guard_begin(t.b, kva_k_index_lt(t.b, rank, t.count));
  hold(&t, rank, &x);
  kva_k_guard_end(t.b, outer);
  kva_nest_end(l, t.rank, loops);
}
