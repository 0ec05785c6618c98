/* The tiled kernel of matmul for CPUs: register tiles of explicit vectors over packed panels of b.
 *
 * A work item makes a block of `block_rows` x `panel` elements of c. For every slice of `depth` along k it packs its panel of
 * b (contiguous, padded with zeros at the edge), then for every tile of `tile_rows` rows runs
 *
 *   acc[r][j] += a[r][k] * packed[k][j]        r unrolled, j in vectors, k serial
 *
 * with the accumulators in registers: (tile_rows + 1) * vectors + 1 of them fit the register file. Between slices the
 * accumulators rest in a local block; after the last one the block goes through the fused epilogue to memory. Every element
 * is one sum in the order of k, whatever the thread count.
 *
 * Choice of the tile (facts: full rate needs ten or more independent accumulators; wide panels read b less often): the
 * widest panel that wastes least of N. Packing costs one pass over b per block of rows, so blocks are as tall as still gives
 * every core several items. */
#include "ops/matmul.h"

enum { MAX_DEPTH = 384, MAX_BLOCK_ROWS = 256, MIN_BLOCK_ROWS = 32, WANTED_ITEMS = 12 };

typedef struct tiling {
  int64_t vectors, panel, tile_rows, block_rows, depth; /* panel and depth in elements */
} tiling;

/* Rows for 1..4 vectors: 28 accumulators at most of 32 registers; half of that with 16. */
static int64_t rows_for(int64_t vectors, int64_t registers) {
  static const int64_t with_32[] = {0, 14, 14, 8, 6}, with_16[] = {0, 8, 6, 4, 2};
  return registers >= 32 ? with_32[vectors] : with_16[vectors];
}

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

static int64_t choose_vectors(kva_dim N, int64_t lanes, int64_t widest) {
  int64_t n, best = widest, least = INT64_MAX;
  if (!kva_expr_is_const(N, &n)) return widest;
  for (int64_t v = widest; v >= 1; v--) {
    int64_t waste = round_up(n, v * lanes) - n;
    if (waste < least) least = waste, best = v;
  }
  return best;
}

static tiling choose_tiling(const kva_lower *l, kva_dtype dtype, kva_dim rows, kva_dim N, kva_dim K, kva_dim batch) {
  int64_t lanes = dtype == KVA_F64 ? l->vector_lanes_f32 / 2 : l->vector_lanes_f32;
  if (lanes < 1) lanes = 1;
  int64_t registers = l->vector_lanes_f32 >= 16 ? 32 : 16, m, n, k, b;
  tiling t = {.vectors = choose_vectors(N, lanes, registers >= 32 ? 4 : 3)};
  t.panel = t.vectors * lanes;
  t.tile_rows = rows_for(t.vectors, registers);
  t.block_rows = MAX_BLOCK_ROWS;
  if (kva_expr_is_const(rows, &m) && kva_expr_is_const(N, &n) && kva_expr_is_const(batch, &b)) {
    while (t.block_rows > MIN_BLOCK_ROWS &&
           b * ((m + t.block_rows - 1) / t.block_rows) * ((n + t.panel - 1) / t.panel) < WANTED_ITEMS)
      t.block_rows /= 2;
    if (m < t.block_rows) t.block_rows = m > 0 ? m : 1;
  }
  t.block_rows = round_up(t.block_rows, t.tile_rows);
  t.depth = MAX_DEPTH;
  if (kva_expr_is_const(K, &k)) {
    int64_t slices = (k + MAX_DEPTH - 1) / MAX_DEPTH;
    t.depth = slices > 0 ? (k + slices - 1) / slices : 1;
  }
  return t;
}

/* ---- where elements lie --------------------------------------------------------------------------------------------------- */

typedef struct tile {
  kva_lower *l;
  kva_kb *kb;
  const kva_node *n;
  kva_matmul_shape s;
  tiling t;
  kva_dtype type;       /* of the accumulators */
  bool rows_collapsed;  /* b is one matrix: all leading dims of a are rows */
  kva_dim rows;
  const kva_expr *batch; /* index over the batch dims of c; 0 when collapsed */
  const kva_expr *row0, *col0;
  kva_kbuf *packed, *acc, *block;
} tile;

static const kva_expr *num(const tile *x, int64_t v) { return kva_expr_const(x->kb->exprs, v); }
static const kva_expr *plus(const tile *x, const kva_expr *a, const kva_expr *b) { return kva_expr_add(x->kb->exprs, a, b); }
static const kva_expr *times(const tile *x, const kva_expr *a, int64_t v) { return kva_expr_muli(x->kb->exprs, a, v); }

/* Splits a flat index over the first `n` dims of the result. */
static void unflatten(const tile *x, const kva_expr *flat, uint32_t n, const kva_expr **idx) {
  const kva_type *c = x->n->results[0].type;
  for (uint32_t d = n; d-- > 0;) {
    idx[d] = d == 0 ? flat : kva_expr_mod(x->kb->exprs, flat, c->dims[d]);
    if (d) flat = kva_expr_div(x->kb->exprs, flat, c->dims[d]);
  }
}

static void result_index(const tile *x, const kva_expr *row, const kva_expr *column, const kva_expr **idx) {
  uint32_t rank = x->n->results[0].type->rank;
  if (x->rows_collapsed) unflatten(x, row, rank - 1, idx);
  else unflatten(x, x->batch, rank - 2, idx);
  if (!x->rows_collapsed) idx[rank - 2] = row;
  idx[rank - 1] = column;
}

/* Element (row, k) of a or (k, column) of b, as rows x columns of the logical matrix. */
static kva_kval element(const tile *x, uint32_t operand, const kva_expr *row, const kva_expr *column, bool transposed) {
  const kva_type *t = kva_operand_type(x->n, operand);
  uint32_t rank = x->n->results[0].type->rank, skipped = rank - t->rank;
  const kva_expr *c[KVA_MAX_RANK] = {0}, *idx[KVA_MAX_RANK];
  result_index(x, operand == 0 ? row : num(x, 0), num(x, 0), c);
  for (uint32_t d = 0; d + 2 < t->rank; d++) idx[d] = kva_expr_is(t->dims[d], 1) ? num(x, 0) : c[skipped + d];
  bool collapsed_a = operand == 0 && x->rows_collapsed;
  idx[t->rank - 2] = transposed ? column : collapsed_a ? c[rank - 2] : row;
  idx[t->rank - 1] = transposed ? row : column;
  return kva_k_convert(x->kb, x->l->operand(x->l, x->n, operand, idx), x->type);
}

/* ---- the pieces of a work item ---------------------------------------------------------------------------------------------- */

static void pack_panel(const tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slice, "k");
  kva_kloop *j = kva_k_loop_begin(x->kb, x->s.transpose_b ? KVA_K_SERIAL : KVA_K_VECTOR, num(x, x->t.panel), "j");
  const kva_expr *column = plus(x, x->col0, j->var);
  kva_kval inside = kva_k_index_lt(x->kb, column, x->s.N);
  kva_kval outer = kva_k_guard_begin(x->kb, inside);
  kva_kval v = element(x, 1, plus(x, k0, k->var), column, x->s.transpose_b);
  kva_k_guard_end(x->kb, outer);
  v = kva_k_select(x->kb, inside, v, kva_k_const(x->kb, x->type, 0));
  kva_k_store(x->kb, x->packed, plus(x, times(x, k->var, x->t.panel), j->var), v);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, k);
}

/* for r unrolled, j in vectors: body */
typedef void (*tile_body)(const tile *x, const kva_expr *r, const kva_expr *j, const void *user);
static void over_tile(const tile *x, tile_body body, const void *user) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_UNROLL, num(x, x->t.tile_rows), "r");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->t.panel), "j");
  body(x, r->var, j->var, user);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, r);
}

static const kva_expr *acc_at(const tile *x, const kva_expr *r, const kva_expr *j) {
  return plus(x, times(x, r, x->t.panel), j);
}
static const kva_expr *block_at(const tile *x, const kva_expr *first_row, const kva_expr *r, const kva_expr *j) {
  return plus(x, times(x, plus(x, first_row, r), x->t.panel), j);
}

typedef struct step {
  const kva_expr *first_row, *k, *k0;
} step;

static void load_acc(const tile *x, const kva_expr *r, const kva_expr *j, const void *user) {
  const step *s = user;
  kva_k_store(x->kb, x->acc, acc_at(x, r, j), kva_k_load(x->kb, x->block, block_at(x, s->first_row, r, j)));
}

static void save_acc(const tile *x, const kva_expr *r, const kva_expr *j, const void *user) {
  const step *s = user;
  kva_k_store(x->kb, x->block, block_at(x, s->first_row, r, j), kva_k_load(x->kb, x->acc, acc_at(x, r, j)));
}

/* Rows past the edge read the last row instead; their sums are never stored. */
static void multiply_add(const tile *x, const kva_expr *r, const kva_expr *j, const void *user) {
  const step *s = user;
  kva_expr_ctx *c = x->kb->exprs;
  const kva_expr *row = plus(x, plus(x, x->row0, s->first_row), r);
  if (!kva_expr_provably_less(c, row, x->rows)) row = kva_expr_min(c, row, kva_expr_addi(c, x->rows, -1));
  kva_kval a = element(x, 0, row, plus(x, s->k0, s->k), x->s.transpose_a);
  kva_kval b = kva_k_load(x->kb, x->packed, plus(x, times(x, s->k, x->t.panel), j));
  kva_kval acc = kva_k_load(x->kb, x->acc, acc_at(x, r, j));
  kva_k_store(x->kb, x->acc, acc_at(x, r, j), kva_k_op(x->kb, KVA_K_fma, a, b, acc));
}

static void multiply_slice(const tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, x->t.block_rows / x->t.tile_rows), "i");
  step s = {.first_row = times(x, i->var, x->t.tile_rows), .k0 = k0};
  over_tile(x, load_acc, &s);
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slice, "k");
  s.k = k->var;
  over_tile(x, multiply_add, &s);
  kva_k_loop_end(x->kb, k);
  over_tile(x, save_acc, &s);
  kva_k_loop_end(x->kb, i);
}

static void clear_block(const tile *x) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, x->t.block_rows), "i");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->t.panel), "j");
  kva_k_store(x->kb, x->block, acc_at(x, i->var, j->var), kva_k_const(x->kb, x->type, 0));
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, i);
}

static void store_block(const tile *x) {
  kva_expr_ctx *c = x->kb->exprs;
  const kva_expr *n_rows = kva_expr_min(c, num(x, x->t.block_rows), kva_expr_sub(c, x->rows, x->row0));
  const kva_expr *n_columns = kva_expr_min(c, num(x, x->t.panel), kva_expr_sub(c, x->s.N, x->col0));
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n_rows, "i");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, n_columns, "j");
  const kva_expr *idx[KVA_MAX_RANK];
  result_index(x, plus(x, x->row0, i->var), plus(x, x->col0, j->var), idx);
  x->l->store(x->l, x->n, 0, idx, kva_k_load(x->kb, x->block, acc_at(x, i->var, j->var)));
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, i);
}

static void over_depth(const tile *x) {
  kva_expr_ctx *c = x->kb->exprs;
  int64_t k;
  if (kva_expr_is_const(x->s.K, &k) && k <= x->t.depth) {
    pack_panel(x, num(x, 0), x->s.K);
    multiply_slice(x, num(x, 0), x->s.K);
    return;
  }
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_ceildiv(c, x->s.K, num(x, x->t.depth)), "s");
  const kva_expr *k0 = times(x, s->var, x->t.depth);
  const kva_expr *slice = kva_expr_min(c, num(x, x->t.depth), kva_expr_sub(c, x->s.K, k0));
  pack_panel(x, k0, slice);
  multiply_slice(x, k0, slice);
  kva_k_loop_end(x->kb, s);
}

/* Work item -> (batch, panel, block of rows), rows fastest: neighbours share the panel of b. */
static void place_item(tile *x, const kva_expr *item, const kva_expr *row_blocks, const kva_expr *panels) {
  kva_expr_ctx *c = x->kb->exprs;
  x->row0 = times(x, kva_expr_mod(c, item, row_blocks), x->t.block_rows);
  const kva_expr *rest = kva_expr_div(c, item, row_blocks);
  x->col0 = times(x, kva_expr_mod(c, rest, panels), x->t.panel);
  x->batch = kva_expr_div(c, rest, panels);
}

void kva_matmul_tile_kernel(kva_lower *l, const kva_node *n) {
  const kva_type *type = n->results[0].type, *b_type = kva_operand_type(n, 1);
  kva_expr_ctx *c = l->kb->exprs;
  tile x = {.l = l, .kb = l->kb, .n = n, .s = kva_matmul_get(n), .type = kva_k_compute_type(type->dtype)};
  x.rows_collapsed = b_type->rank == 2 && !x.s.transpose_a;
  x.rows = x.s.M;
  const kva_expr *batch = kva_expr_const(c, 1);
  for (uint32_t d = 0; d + 2 < type->rank; d++) {
    if (x.rows_collapsed) x.rows = kva_expr_mul(c, x.rows, type->dims[d]);
    else batch = kva_expr_mul(c, batch, type->dims[d]);
  }
  x.t = choose_tiling(l, x.type, x.rows, x.s.N, x.s.K, batch);
  x.packed = kva_k_local(l->kb, "packed", x.type, x.t.depth * x.t.panel);
  x.block = kva_k_local(l->kb, "block", x.type, x.t.block_rows * x.t.panel);
  x.acc = kva_k_local(l->kb, "acc", x.type, x.t.tile_rows * x.t.panel);
  const kva_expr *row_blocks = kva_expr_ceildiv(c, x.rows, num(&x, x.t.block_rows));
  const kva_expr *panels = kva_expr_ceildiv(c, x.s.N, num(&x, x.t.panel));
  const kva_expr *items = kva_expr_mul(c, kva_expr_mul(c, row_blocks, panels), batch);
  kva_kloop *g = kva_k_loop_begin(l->kb, KVA_K_GRID, items, "item");
  place_item(&x, g->var, row_blocks, panels);
  clear_block(&x);
  over_depth(&x);
  store_block(&x);
  kva_k_loop_end(l->kb, g);
}
