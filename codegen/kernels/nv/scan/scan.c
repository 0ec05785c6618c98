/* Running sums and products along contiguous rows, by subgroups of a GPU's threads: a warp for each row, or a block for
 * long ones. A thread holds `width` consecutive elements, up to 16 bytes; the subgroup's threads together hold a chunk
 * of the row. With t_i the sum of the elements of the i-th thread in the scan's direction and s the sum of earlier
 * chunks,
 *
 *   y[i, u] = s + (t_0 + ... + t_{i-1}) + x[i, 0] + ... + x[i, u],    s' = s + t_0 + ... + t_{subgroup-1}
 *
 * The sums over threads follow Hillis and Steele (1986): in the step for d = 1, 2, 4, ... every thread adds the value
 * of the thread d before it. They go through shared memory, in two alternating halves, so that a step needs one
 * barrier. The row's length determines the order of additions. */
#include "codegen/kernels/kernels.h"
#include "ops/check.h"
#include "ops/shape.h"

enum { WARP = 32, BLOCK = 256, ACCESS_BITS = 128, LONG_ROW = 4096 };

typedef struct scan {
  kva_lower *l;
  const kva_node *n;
  kva_kb *kb;
  kva_kop op;
  kva_kval neutral;
  const kva_scan_attrs *attrs;
  kva_dim length;
  int64_t width, subgroup;
  const kva_expr *row;    /* of the block's rows */
  const kva_expr *thread; /* in the order of the scan */
  const kva_expr *idx[KVA_MAX_RANK];
  kva_kbuf *x, *totals;
} scan;

static const kva_expr *num(const scan *s, int64_t v) {
  return kva_expr_const(s->kb->exprs, v);
}

static uint32_t last_axis(const scan *s) {
  return kva_operand_type(s->n, 0)->rank - 1;
}

/* A thread's elements in a chunk form whole accesses, or there are none. */
static int64_t width_of(const scan *s) {
  int bits = kva_dtype_bits(kva_operand_type(s->n, 0)->dtype);
  int64_t width = bits < 8 ? 1 : ACCESS_BITS / bits;
  while (!kva_expr_is(kva_expr_mod(s->kb->exprs, s->length, num(s, width)), 0)) width /= 2;
  return width;
}

static void barrier(const scan *s) {
  kva_k_intrinsic(
      s->kb, &(kva_kintrinsic){.op = s->subgroup == WARP ? KVA_TILE_subgroup_barrier : KVA_TILE_block_barrier}, NULL);
}

/* ---- over threads ------------------------------------------------------------------------------------------------ */

static const kva_expr *slot(const scan *s, int64_t half, const kva_expr *thread) {
  const kva_expr *at = kva_expr_add(s->kb->exprs, kva_expr_muli(s->kb->exprs, s->row, s->subgroup), thread);
  return kva_expr_addi(s->kb->exprs, at, half * BLOCK);
}

/* v of the thread `distance` before this one; `none` if there is no such thread. */
static kva_kval from_before(const scan *s, int64_t half, int64_t distance, kva_kval v, kva_kval none, bool add) {
  kva_expr_ctx *c = s->kb->exprs;
  kva_k_store(s->kb, s->totals, slot(s, half, s->thread), v);
  barrier(s);
  const kva_expr *before = kva_expr_max(c, num(s, 0), kva_expr_addi(c, s->thread, -distance));
  kva_kval other = kva_k_load(s->kb, s->totals, slot(s, half, before));
  if (add) other = kva_k2(s->kb, s->op, other, v);
  return kva_k_select(s->kb, kva_k_index_le(s->kb, num(s, distance), s->thread), other, none);
}

/* The sum of v over the threads before this one, and over all. */
static kva_kval sum_threads(const scan *s, kva_kval v, kva_kval *out_all) {
  int64_t half = 0;
  for (int64_t d = 1; d < s->subgroup; d *= 2, half ^= 1) v = from_before(s, half, d, v, v, true);
  v = from_before(s, half, 1, v, s->neutral, false);
  *out_all = kva_k_load(s->kb, s->totals, slot(s, half, num(s, s->subgroup - 1)));
  barrier(s);
  return v;
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------- */

/* Sets idx to element u, in scan order, of a thread whose elements of the chunk start at `first`. */
static void point_at(scan *s, const kva_expr *first, int64_t u) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *at = kva_expr_addi(c, first, u);
  bool reverse = s->attrs->reverse;
  s->idx[last_axis(s)] = reverse ? kva_expr_sub(c, kva_expr_addi(c, s->length, -1), at) : at;
}

/* if (this thread has elements); NULL: all threads have. */
static kva_kinstr *if_any(const scan *s, const kva_expr *first) {
  if (kva_expr_is(kva_expr_mod(s->kb->exprs, s->length, num(s, s->width * s->subgroup)), 0)) return NULL;
  return kva_k_if_begin(s->kb, kva_k_index_lt(s->kb, first, s->length));
}

static kva_kval load_elements(scan *s, const kva_expr *first) {
  kva_kval sum = s->neutral;
  for (int64_t u = 0; u < s->width; u++) kva_k_store(s->kb, s->x, num(s, u), s->neutral);
  kva_kinstr *branch = if_any(s, first);
  for (int64_t u = 0; u < s->width; u++) {
    point_at(s, first, u);
    kva_k_store(s->kb, s->x, num(s, u), s->l->operand(s->l, s->n, 0, s->idx));
  }
  if (branch) kva_k_if_end(s->kb, branch);
  for (int64_t u = 0; u < s->width; u++) sum = kva_k2(s->kb, s->op, sum, kva_k_load(s->kb, s->x, num(s, u)));
  return sum;
}

static void store_results(scan *s, const kva_expr *first, kva_kval sum) {
  kva_kinstr *branch = if_any(s, first);
  for (int64_t u = 0; u < s->width; u++) {
    kva_kval next = kva_k2(s->kb, s->op, sum, kva_k_load(s->kb, s->x, num(s, u)));
    point_at(s, first, u);
    s->l->store(s->l, s->n, 0, s->idx, s->attrs->exclusive ? sum : next);
    sum = next;
  }
  if (branch) kva_k_if_end(s->kb, branch);
}

static void scan_row(scan *s) {
  kva_kb *kb = s->kb;
  kva_expr_ctx *c = kb->exprs;
  kva_kloop *chunk =
      kva_k_loop_begin(kb, KVA_K_SERIAL, kva_expr_ceildiv(c, s->length, num(s, s->width * s->subgroup)), "c");
  kva_kval before = kva_k_carry(kb, chunk, s->neutral), all;
  const kva_expr *number = kva_expr_add(c, kva_expr_muli(c, chunk->var, s->subgroup), s->thread);
  const kva_expr *first = kva_expr_muli(c, number, s->width);
  kva_kval ahead = sum_threads(s, load_elements(s, first), &all);
  store_results(s, first, kva_k2(kb, s->op, before, ahead));
  kva_k_carry_next(kb, chunk, before, kva_k2(kb, s->op, before, all));
  kva_k_loop_end(kb, chunk);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void scan_rows(scan *s) {
  kva_kb *kb = s->kb;
  kva_expr_ctx *c = kb->exprs;
  int64_t subgroups = BLOCK / s->subgroup;
  const kva_expr *rows = kva_shape_product(c, last_axis(s), kva_operand_type(s->n, 0)->dims), *each = num(s, subgroups);
  kva_kloop *grid = kva_k_loop_begin(kb, KVA_K_GRID, kva_expr_ceildiv(c, rows, each), "item"), *row = NULL;
  const kva_expr *first = kva_expr_muli(c, grid->var, subgroups);
  s->row = num(s, 0);
  if (subgroups > 1) {
    row = kva_k_loop_begin(kb, KVA_K_THREAD, kva_expr_min(c, each, kva_expr_sub(c, rows, first)), "row");
    row->subgroup = (uint32_t)s->subgroup;
    s->row = row->var;
  }
  kva_shape_split(c, last_axis(s), kva_operand_type(s->n, 0)->dims, kva_expr_add(c, first, s->row), s->idx);
  kva_kloop *thread = kva_k_loop_begin(kb, KVA_K_THREAD, num(s, s->subgroup), "thread");
  s->thread = thread->var;
  scan_row(s);
  kva_k_loop_end(kb, thread);
  if (row) kva_k_loop_end(kb, row);
  kva_k_loop_end(kb, grid);
}

const char *kva_nv_scan_refuses(kva_lower *l, const kva_node *n) {
  (void)l;
  const kva_cumsum_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  int64_t length;
  if (kva_axis(a->axis, x->rank) != x->rank - 1) return "not along the last axis";
  return kva_expr_is_const(x->dims[x->rank - 1], &length) && length < WARP ? "rows shorter than a warp" : NULL;
}

static void emit(kva_lower *l, const kva_node *n, bool product) {
  const kva_type *x = kva_operand_type(n, 0);
  scan s = {.l = l, .n = n, .kb = l->kb, .op = product ? KVA_K_mul : KVA_K_add, .attrs = n->attrs};
  kva_dtype dtype = kva_k_compute_type(x->dtype);
  int64_t known = 0;
  s.length = x->dims[last_axis(&s)];
  kva_expr_is_const(s.length, &known);
  s.neutral = kva_k_const(s.kb, dtype, product);
  s.subgroup = known >= LONG_ROW ? BLOCK : WARP;
  s.width = width_of(&s);
  s.x = kva_k_local(s.kb, "x", dtype, s.width);
  s.totals = kva_k_shared(s.kb, "totals", dtype, 2 * BLOCK);
  s.kb->kernel->threads = BLOCK;
  s.kb->kernel->blocks = 2; /* register pressure is low */
  scan_rows(&s);
}

void kva_nv_cumsum_emit(kva_lower *l, const kva_node *n) {
  emit(l, n, false);
}

void kva_nv_cumprod_emit(kva_lower *l, const kva_node *n) {
  emit(l, n, true);
}
