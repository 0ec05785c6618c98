/* Contractions (any/contract/contraction.h) on CPUs: register tiles of explicit vectors over packed panels of b.
 *
 * A work item computes a block of `block_rows` rows x `panel` columns. For every slice of `depth` steps it packs the
 * part of b that its columns read (contiguous: for each step, lead and phase one segment of panel + reach positions),
 * then for every tile of `tile_rows` rows runs
 *
 *   acc[r][j] += a[r][k, lead, tap] * packed[k, lead, phase of tap][offset of tap + j]      r unrolled, j in vectors
 *
 * with the accumulators in registers: (tile_rows + 1) * vectors + 1 of them fit the register file. Between slices the
 * accumulators are stored in a local block; after the last slice the block goes through the fused epilogue to memory.
 * Every element is one sum in the order of (k, lead, tap), whatever the thread count. Where steps have a factor in
 * common (quantised weights), the panel is packed without it, and accumulators are added to the local block times the
 * factor.
 *
 * Choice of the tile (full rate needs ten or more independent accumulators; wide panels read b less often): the shape
 * that computes the fewest elements past the edges. Packing costs one pass over b per block of rows, so blocks are as
 * tall as possible while every core gets several items. Positions after `used` are computed and discarded; packed
 * values for positions after the last line affect only those. */
#include "codegen/kernels/cpu/contract/contract.h"

#include <math.h>

enum {
  MAX_PRODUCTS = 384, /* of a slice: a panel of 64 columns then takes 96 KiB */
  MAX_BLOCK_ROWS = 256,
  MAX_TRANSPOSED_ROWS = 512, /* transposing a panel costs more */
  MAX_PACKED_ROWS = 128,     /* of a, if it is packed, too */
  ROW_PADDING = 16,          /* keeps its steps from mapping to the same cache sets */
  TRANSPOSED_RUN = 16,
  MIN_BLOCK_ROWS = 32,
  MIN_PRODUCTS = 1 << 19, /* of an item: 2 to 4 us */
  MIN_WINDOW_ROWS = 64,   /* copying lines costs more than copying a matrix */
  WANTED_ITEMS = 12,
  MAX_PACKED = 1 << 16, /* elements */
  MAX_UNROLLED_TAPS = 8,
  SHORT_ROW = 512, /* columns */
  BLOCK_STEPS = 8, /* blocks with a factor in common are a multiple of it, which is a group of the loops for few rows */
  MAX_BLOCK = 256, /* and fit a slice */
};

typedef struct tiling {
  int64_t vectors, panel, tile_rows, block_rows, depth; /* panel in elements, depth in steps */
} tiling;

/* ---- tiling ------------------------------------------------------------------------------------------------------ */

/* Rows for 1..4 vectors: 28 accumulators at most of 32 registers; half of that with 16. */
static int64_t rows_for(int64_t vectors, int64_t registers) {
  static const int64_t with_32[] = {0, 14, 14, 8, 6}, with_16[] = {0, 8, 6, 4, 2};
  return registers >= 32 ? with_32[vectors] : with_16[vectors];
}

static int64_t round_up(int64_t x, int64_t to) {
  return (x + to - 1) / to * to;
}

static bool is_window(const kva_contraction *c) {
  return c->leads * c->taps > 1;
}

static kva_dim columns_of(const kva_contraction *c) {
  return kva_expr_mul(c->l->kb->exprs, c->lines, c->line);
}

/* Positions of a segment beyond its panel. */
static int64_t reach_of(const kva_contraction *c) {
  return (c->taps - 1) * c->spread / c->stride;
}

static int64_t phases_of(const kva_contraction *c) {
  return c->spread == 1 && c->taps < c->stride ? c->taps : c->stride;
}

static bool is_one(void *user, const kva_expr *symbol, int64_t *out_v) {
  (void)user, (void)symbol;
  *out_v = 1;
  return true;
}

/* Where columns are a multiple of a symbol, as the positions of a batch of images are: those of one. */
static int64_t choose_vectors(const kva_contraction *c, int64_t lanes, int64_t registers) {
  int64_t n, m, widest = registers >= 32 ? 4 : c->panel ? 2 : 3, best = widest, least = INT64_MAX;
  bool known = kva_expr_is_const(columns_of(c), &n);
  if (!known && (!kva_expr_eval(columns_of(c), is_one, NULL, &n) || n < lanes)) return widest;
  if (!kva_expr_is_const(c->rows, &m)) m = 0;
  for (int64_t v = widest; v >= 1; v--) {
    if (v > 1 && c->panel % (v * lanes)) continue; /* vectors would cross panels of memory */
    int64_t rows = rows_for(v, registers), made = round_up(n, v * lanes) * (m ? round_up(m, rows) : 1);
    if (made < least) least = made, best = v;
  }
  return best;
}

static int64_t choose_block_rows(const kva_contraction *c, int64_t panel) {
  int64_t rows = c->across_rows ? MAX_PACKED_ROWS : c->along_depth ? MAX_TRANSPOSED_ROWS : MAX_BLOCK_ROWS, m, n, b, k;
  int64_t least = is_window(c) || c->along_depth ? MIN_WINDOW_ROWS : MIN_BLOCK_ROWS;
  if (!kva_expr_is_const(c->rows, &m)) return rows;
  if (kva_expr_is_const(columns_of(c), &n) && kva_expr_is_const(c->batch, &b)) {
    if (!kva_expr_is_const(c->depth, &k)) k = MIN_PRODUCTS;
    while (least < rows && least * panel * k * c->leads * c->taps < MIN_PRODUCTS) least *= 2;
    while (rows > least && b * ((m + rows - 1) / rows) * ((n + panel - 1) / panel) < WANTED_ITEMS) rows /= 2;
  }
  return m < rows ? (m > 0 ? m : 1) : rows;
}

/* Rows computed, padding included, with blocks of about `block_rows` made of tiles of `tile_rows`. */
static int64_t padded_rows(int64_t m, int64_t block_rows, int64_t tile_rows) {
  int64_t block = round_up(block_rows, tile_rows);
  return (m + block - 1) / block * block;
}

/* Fewer rows per tile if that saves padding: a tile of r rows reads the panel once for r products, which costs about 1
 * / (4 r) of them. */
static int64_t choose_tile_rows(const kva_contraction *c, int64_t most, int64_t block_rows) {
  int64_t m, best = most;
  double least = INFINITY;
  if (!kva_expr_is_const(c->rows, &m)) return most;
  if (m < most) most = best = m > 0 ? m : 1;
  for (int64_t r = most; r >= 1 && 3 * r >= 2 * most; r--) {
    double cost = (double)padded_rows(m, block_rows, r) * (1 + 0.25 / (double)r);
    if (cost < least) least = cost, best = r;
  }
  return best;
}

/* A packed panel takes at most a quarter of the L2 cache. */
static int64_t products_of_slice(const kva_contraction *c, int64_t panel) {
  int64_t fit = c->l->target->l2_bytes / 4 / (panel * kva_dtype_bits(c->type) / 8);
  return fit < MAX_PRODUCTS ? fit : MAX_PRODUCTS;
}

int64_t kva_contract_block(const kva_contraction *c) {
  bool suits = !c->along_depth && c->factor_block % BLOCK_STEPS == 0 && c->factor_block <= MAX_BLOCK;
  return suits ? c->factor_block : 0;
}

static tiling choose_tiling(const kva_contraction *c) {
  int64_t lanes = kva_target_lanes(c->l->target, c->type), registers = c->l->target->vector_registers, k;
  tiling t = {.vectors = choose_vectors(c, lanes, registers)};
  t.panel = t.vectors * lanes;
  int64_t block_rows = choose_block_rows(c, t.panel);
  t.tile_rows = choose_tile_rows(c, rows_for(t.vectors, registers), block_rows);
  t.block_rows = round_up(block_rows, t.tile_rows);
  t.depth = products_of_slice(c, t.panel) / (c->leads * c->taps);
  int64_t step = c->leads * phases_of(c) * (t.panel + reach_of(c));
  if (t.depth * step > MAX_PACKED) t.depth = MAX_PACKED / step;
  if (t.depth < 1) t.depth = 1;
  if (kva_expr_is_const(c->depth, &k)) {
    int64_t slices = (k + t.depth - 1) / t.depth;
    t.depth = slices > 0 ? (k + slices - 1) / slices : 1;
  }
  if (kva_contract_block(c)) t.depth = round_up(t.depth, kva_contract_block(c));
  return t;
}

static bool fits(const kva_contraction *c) {
  return c->leads * phases_of(c) * (choose_tiling(c).panel + reach_of(c)) <= MAX_PACKED;
}

const char *kva_contract_refuses(const kva_contraction *c) {
  if (!kva_dtype_is_float(c->type) && !c->words) return "integers";
  if (c->by_elements) return "as well by elements";
  return fits(c) ? NULL : "panels larger than a stack";
}

/* ---- state of a work item ---------------------------------------------------------------------------------------- */

typedef struct tile {
  const kva_contraction *c;
  kva_kb *kb;
  kva_expr_ctx *e;
  tiling t;
  int64_t phases, segment; /* positions of a segment */
  int64_t factor_block;    /* kva_contract_block */
  kva_dim columns, row_blocks, panels;
  bool one_slice; /* the sums start at 0 in registers */
  const kva_expr *batch, *row0, *col0;
  kva_kbuf *packed, *factors, *packed_a, *acc, *block;
} tile;

static const kva_expr *num(const tile *x, int64_t v) {
  return kva_expr_const(x->e, v);
}
static const kva_expr *plus(const tile *x, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(x->e, a, b);
}
static const kva_expr *times(const tile *x, const kva_expr *a, int64_t v) {
  return kva_expr_muli(x->e, a, v);
}

static bool one_line(const tile *x) {
  return kva_expr_is(x->c->lines, 1);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

static const kva_expr *segment_at(const tile *x, const kva_expr *k, const kva_expr *lead, const kva_expr *phase) {
  const kva_expr *which = plus(x, times(x, plus(x, times(x, k, x->c->leads), lead), x->phases), phase);
  return times(x, which, x->segment);
}

typedef kva_kval (*element_fn)(const kva_contraction *c, const kva_contract_at *at);

/* An element at a column, 0 past the last one. */
static kva_kval element_or_zero(const tile *x, element_fn element, kva_contract_at *at, const kva_expr *column) {
  kva_kval inside = kva_k_index_lt(x->kb, column, x->columns);
  kva_kval outer = kva_k_guard_begin(x->kb, inside);
  at->line = num(x, 0);
  at->position = column;
  kva_kval v = element(x->c, at);
  kva_k_guard_end(x->kb, outer);
  return kva_k_select(x->kb, inside, v, kva_k_const(x->kb, x->c->type, 0));
}

/* The columns lie on one line. */
static void pack_straight(const tile *x, kva_contract_at *at, const kva_expr *base) {
  element_fn element = x->factor_block ? x->c->b_rest : x->c->b;
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->segment), "j");
  kva_k_store(x->kb, x->packed, plus(x, base, j->var), element_or_zero(x, element, at, plus(x, x->col0, j->var)));
  kva_k_loop_end(x->kb, j);
}

/* The factors of a slice, a row of the panel's columns for each block. */
static void pack_factors(const tile *x, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *blocks = kva_expr_ceildiv(x->e, slice, num(x, x->factor_block));
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, blocks, "q");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->t.panel), "j");
  kva_contract_at at = {
      .batch = x->batch, .k = plus(x, k0, times(x, q->var, x->factor_block)), .lead = num(x, 0), .phase = num(x, 0)};
  kva_kval factor = element_or_zero(x, x->c->b_factor, &at, plus(x, x->col0, j->var));
  kva_k_store(x->kb, x->factors, plus(x, times(x, q->var, x->t.panel), j->var), factor);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, q);
}

/* For each line that positions first .. end - 1 touch: the range inside it and inside its first `used` positions. */
typedef void (*stretch_body)(const tile *x, kva_contract_at *at, const kva_expr *column, const void *user);
static void over_lines(const tile *x, const kva_expr *first, const kva_expr *end, kva_dim used, kva_contract_at *at,
                       stretch_body body, const void *user) {
  kva_expr_ctx *e = x->e;
  kva_dim length = x->c->line;
  const kva_expr *first_line = kva_expr_div(e, first, length),
                 *last = kva_expr_div(e, kva_expr_addi(e, end, -1), length);
  kva_kloop *l = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_addi(e, kva_expr_sub(e, last, first_line), 1), "line");
  at->line = plus(x, first_line, l->var);
  const kva_expr *begin = kva_expr_mul(e, at->line, length);
  const kva_expr *from = kva_expr_max(e, first, begin), *to = kva_expr_min(e, end, plus(x, begin, used));
  const kva_expr *count = kva_expr_max(e, num(x, 0), kva_expr_sub(e, to, from));
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, count, "j");
  const kva_expr *column = plus(x, from, j->var);
  at->position = kva_expr_sub(e, column, begin);
  body(x, at, column, user);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, l);
}

static void pack_element(const tile *x, kva_contract_at *at, const kva_expr *column, const void *user) {
  const kva_expr *base = user;
  const kva_expr *to = plus(x, base, kva_expr_sub(x->e, column, x->col0));
  kva_k_store(x->kb, x->packed, to, x->c->b(x->c, at));
}

static void pack_lines(const tile *x, kva_contract_at *at, const kva_expr *base) {
  const kva_expr *end = kva_expr_min(x->e, kva_expr_addi(x->e, x->col0, x->segment), x->columns);
  over_lines(x, x->col0, end, x->c->line, at, pack_element, base);
}

static void pack_columns(const tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slice, "k");
  kva_kloop *lead = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, x->c->leads), "lead");
  kva_kloop *phase = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, x->phases), "phase");
  kva_contract_at at = {.batch = x->batch, .k = plus(x, k0, k->var), .lead = lead->var, .phase = phase->var};
  const kva_expr *base = segment_at(x, k->var, lead->var, phase->var);
  if (one_line(x))
    pack_straight(x, &at, base);
  else
    pack_lines(x, &at, base);
  kva_k_loop_end(x->kb, phase);
  kva_k_loop_end(x->kb, lead);
  kva_k_loop_end(x->kb, k);
}

/* One element of a transposed panel. */
static void pack_one(const tile *x, const kva_expr *k0, const kva_expr *k, const kva_expr *lead, const kva_expr *j) {
  kva_contract_at at = {.batch = x->batch, .k = plus(x, k0, k), .lead = lead, .phase = num(x, 0)};
  kva_kval v = element_or_zero(x, x->c->b, &at, plus(x, x->col0, j));
  kva_k_store(x->kb, x->packed, plus(x, segment_at(x, k, lead, num(x, 0)), j), v);
}

/* Copies `run` elements of every column from `first` on. */
static void pack_run(const tile *x, const kva_expr *k0, const kva_expr *step, const kva_expr *first, int64_t run) {
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, x->t.panel), "j");
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_UNROLL, num(x, run), "u");
  const kva_expr *at = plus(x, first, u->var), *zero = num(x, 0);
  pack_one(x, k0, step ? step : at, step ? at : zero, j->var);
  kva_k_loop_end(x->kb, u);
  kva_k_loop_end(x->kb, j);
}

/* Copies runs of columns, if memory is contiguous along the depth: along the leads of a step, or along its steps. The
 * part of the panel that the runs of all columns fill stays in L1 meanwhile. */
static void pack_transposed(const tile *x, const kva_expr *k0, const kva_expr *slice) {
  bool leads = x->c->leads > 1;
  const kva_expr *run = num(x, TRANSPOSED_RUN), *n = leads ? num(x, x->c->leads) : slice;
  kva_kloop *step = kva_k_loop_begin(x->kb, KVA_K_SERIAL, leads ? slice : num(x, 1), "step");
  const kva_expr *of_step = leads ? step->var : NULL;
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_div(x->e, n, run), "i");
  pack_run(x, k0, of_step, times(x, i->var, TRANSPOSED_RUN), TRANSPOSED_RUN);
  kva_k_loop_end(x->kb, i);
  kva_kloop *rest = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_mod(x->e, n, run), "rest");
  pack_run(x, k0, of_step, plus(x, times(x, kva_expr_div(x->e, n, run), TRANSPOSED_RUN), rest->var), 1);
  kva_k_loop_end(x->kb, rest);
  kva_k_loop_end(x->kb, step);
}

static const kva_expr *packed_a_at(const tile *x, const kva_expr *k, const kva_expr *row) {
  return plus(x, times(x, k, x->t.block_rows + ROW_PADDING), row);
}

/* The block's rows of a for a slice, if memory is contiguous along them. */
static void pack_rows(const tile *x, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *n_rows = kva_expr_min(x->e, num(x, x->t.block_rows), kva_expr_sub(x->e, x->c->rows, x->row0));
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slice, "k");
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_VECTOR, n_rows, "r");
  kva_contract_at at = {.batch = x->batch,
                        .k = plus(x, k0, k->var),
                        .lead = num(x, 0),
                        .row = plus(x, x->row0, r->var),
                        .tap = num(x, 0)};
  kva_k_store(x->kb, x->packed_a, packed_a_at(x, k->var, r->var), x->c->a(x->c, &at));
  kva_k_loop_end(x->kb, r);
  kva_k_loop_end(x->kb, k);
}

static void pack(const tile *x, const kva_expr *k0, const kva_expr *slice) {
  if (x->c->across_rows) pack_rows(x, k0, slice);
  if (x->factor_block) pack_factors(x, k0, slice);
  if (x->c->along_depth)
    pack_transposed(x, k0, slice);
  else
    pack_columns(x, k0, slice);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

typedef struct step {
  const kva_expr *first_row, *k0, *k, *lead, *tap;
  const kva_expr *q; /* block with a factor in common */
} step;

/* for r unrolled, j in vectors: body */
typedef void (*tile_body)(const tile *x, const kva_expr *r, const kva_expr *j, const step *s);
static void over_tile(const tile *x, tile_body body, const step *s) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_UNROLL, num(x, x->t.tile_rows), "r");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->t.panel), "j");
  body(x, r->var, j->var, s);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, r);
}

static const kva_expr *block_at(const tile *x, const kva_expr *row, const kva_expr *j) {
  return plus(x, times(x, row, x->t.panel), j);
}

static void clear_acc(const tile *x, const kva_expr *r, const kva_expr *j, const step *s) {
  (void)s;
  kva_k_store(x->kb, x->acc, block_at(x, r, j), kva_k_const(x->kb, x->c->type, 0));
}

static void load_acc(const tile *x, const kva_expr *r, const kva_expr *j, const step *s) {
  kva_kval v = kva_k_load(x->kb, x->block, block_at(x, plus(x, s->first_row, r), j));
  kva_k_store(x->kb, x->acc, block_at(x, r, j), v);
}

static void save_acc(const tile *x, const kva_expr *r, const kva_expr *j, const step *s) {
  kva_kval v = kva_k_load(x->kb, x->acc, block_at(x, r, j));
  kva_k_store(x->kb, x->block, block_at(x, plus(x, s->first_row, r), j), v);
}

/* Adds the sums of a block of steps times its factor. */
static void add_acc(const tile *x, const kva_expr *r, const kva_expr *j, const step *s) {
  const kva_expr *at = block_at(x, plus(x, s->first_row, r), j);
  kva_kval factor = kva_k_load(x->kb, x->factors, plus(x, times(x, s->q, x->t.panel), j));
  kva_kval sum = kva_k_load(x->kb, x->acc, block_at(x, r, j));
  kva_k_store(x->kb, x->block, at, kva_k_op(x->kb, KVA_K_fma, sum, factor, kva_k_load(x->kb, x->block, at)));
}

/* Rows past the edge read the last row instead, or whatever the panel holds; their sums are never stored. */
static kva_kval factor_a(const tile *x, const kva_expr *r, const step *s) {
  const kva_contraction *c = x->c;
  const kva_expr *in_block = plus(x, s->first_row, r), *row = plus(x, x->row0, in_block);
  if (c->across_rows) return kva_k_load(x->kb, x->packed_a, packed_a_at(x, s->k, in_block));
  if (!kva_expr_provably_less(x->e, row, c->rows)) row = kva_expr_min(x->e, row, kva_expr_addi(x->e, c->rows, -1));
  kva_contract_at at = {.batch = x->batch, .k = plus(x, s->k0, s->k), .lead = s->lead, .row = row, .tap = s->tap};
  return c->a(c, &at);
}

static void multiply_add(const tile *x, const kva_expr *r, const kva_expr *j, const step *s) {
  const kva_contraction *c = x->c;
  const kva_expr *moved = times(x, s->tap, c->spread), *stride = num(x, c->stride);
  const kva_expr *from = segment_at(x, s->k, s->lead, kva_expr_mod(x->e, moved, stride));
  kva_kval b = kva_k_load(x->kb, x->packed, plus(x, plus(x, from, kva_expr_div(x->e, moved, stride)), j));
  kva_kval acc = kva_k_load(x->kb, x->acc, block_at(x, r, j));
  kva_k_store(x->kb, x->acc, block_at(x, r, j), kva_contract_multiply(c, factor_a(x, r, s), b, acc));
}

/* n steps of the slice, from `first` on. */
static void multiply_steps(const tile *x, step *s, const kva_expr *first, const kva_expr *n) {
  kva_kloop_kind kind = x->c->taps <= MAX_UNROLLED_TAPS ? KVA_K_UNROLL : KVA_K_SERIAL;
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n, "k");
  kva_kloop *lead = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, x->c->leads), "lead");
  kva_kloop *tap = kva_k_loop_begin(x->kb, kind, num(x, x->c->taps), "tap");
  s->k = plus(x, first, k->var), s->lead = lead->var, s->tap = tap->var;
  over_tile(x, multiply_add, s);
  kva_k_loop_end(x->kb, tap);
  kva_k_loop_end(x->kb, lead);
  kva_k_loop_end(x->kb, k);
}

/* Tiles of a block. Where the number of rows is not known, only those that have some: one row costs a tile. */
static const kva_expr *tiles_of_block(const tile *x) {
  int64_t whole = x->t.block_rows / x->t.tile_rows;
  if (kva_expr_is_const(x->c->rows, NULL)) return num(x, whole);
  const kva_expr *rest = kva_expr_ceildiv(x->e, kva_expr_sub(x->e, x->c->rows, x->row0), num(x, x->t.tile_rows));
  return kva_expr_min(x->e, num(x, whole), rest);
}

/* The slice, block by block. */
static void multiply_blocks(const tile *x, step *s, const kva_expr *slice) {
  const kva_expr *steps = num(x, x->factor_block);
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_ceildiv(x->e, slice, steps), "q");
  const kva_expr *first = times(x, q->var, x->factor_block);
  s->q = q->var;
  over_tile(x, clear_acc, s);
  multiply_steps(x, s, first, kva_expr_min(x->e, steps, kva_expr_sub(x->e, slice, first)));
  over_tile(x, add_acc, s);
  kva_k_loop_end(x->kb, q);
}

static void multiply_slice(const tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, tiles_of_block(x), "i");
  step s = {.first_row = times(x, i->var, x->t.tile_rows), .k0 = k0};
  if (x->factor_block) {
    multiply_blocks(x, &s, slice);
  } else {
    over_tile(x, x->one_slice ? clear_acc : load_acc, &s);
    multiply_steps(x, &s, num(x, 0), slice);
    over_tile(x, save_acc, &s);
  }
  kva_k_loop_end(x->kb, i);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void clear_block(const tile *x) {
  const kva_expr *rows = kva_expr_muli(x->e, tiles_of_block(x), x->t.tile_rows);
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, rows, "i");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->t.panel), "j");
  kva_k_store(x->kb, x->block, block_at(x, i->var, j->var), kva_k_const(x->kb, x->c->type, 0));
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, i);
}

static void store_element(const tile *x, kva_contract_at *at, const kva_expr *column, const void *user) {
  const kva_expr *from = block_at(x, user, kva_expr_sub(x->e, column, x->col0));
  kva_contract_store(x->c, at, kva_k_load(x->kb, x->block, from));
}

static void store_block(const tile *x) {
  kva_expr_ctx *e = x->e;
  const kva_expr *n_rows = kva_expr_min(e, num(x, x->t.block_rows), kva_expr_sub(e, x->c->rows, x->row0));
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n_rows, "i");
  kva_contract_at at = {.batch = x->batch, .row = plus(x, x->row0, i->var), .line = num(x, 0)};
  if (one_line(x)) {
    const kva_expr *n = kva_expr_min(e, num(x, x->t.panel), kva_expr_sub(e, x->c->used, x->col0));
    kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, n, "j");
    at.position = plus(x, x->col0, j->var);
    store_element(x, &at, at.position, i->var);
    kva_k_loop_end(x->kb, j);
  } else {
    const kva_expr *end = kva_expr_min(e, kva_expr_addi(e, x->col0, x->t.panel), x->columns);
    over_lines(x, x->col0, end, x->c->used, &at, store_element, i->var);
  }
  kva_k_loop_end(x->kb, i);
}

static void over_depth(const tile *x) {
  if (x->one_slice) {
    pack(x, num(x, 0), x->c->depth);
    multiply_slice(x, num(x, 0), x->c->depth);
    return;
  }
  const kva_expr *slices = kva_expr_ceildiv(x->e, x->c->depth, num(x, x->t.depth));
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slices, "s");
  const kva_expr *k0 = times(x, s->var, x->t.depth);
  const kva_expr *slice = kva_expr_min(x->e, num(x, x->t.depth), kva_expr_sub(x->e, x->c->depth, k0));
  pack(x, k0, slice);
  multiply_slice(x, k0, slice);
  kva_k_loop_end(x->kb, s);
}

/* Work item -> (batch, panel, block of rows). Rows vary fastest, so that consecutive items share the panel of b. If
 * rows of the result are short, panels vary fastest: otherwise two threads write adjacent ranges of the same rows, and
 * their prefetchers contend for the cache lines. */
static void place_item(tile *x, const kva_expr *item) {
  int64_t n;
  bool short_rows = !x->c->across_rows && kva_expr_is_const(x->columns, &n) && n <= SHORT_ROW;
  const kva_expr *inner = short_rows ? x->panels : x->row_blocks, *outer = short_rows ? x->row_blocks : x->panels;
  const kva_expr *first = kva_expr_mod(x->e, item, inner), *rest = kva_expr_div(x->e, item, inner);
  const kva_expr *second = kva_expr_mod(x->e, rest, outer);
  x->row0 = times(x, short_rows ? second : first, x->t.block_rows);
  x->col0 = times(x, short_rows ? first : second, x->t.panel);
  x->batch = kva_expr_div(x->e, rest, outer);
}

const char *kva_cpu_tiles_refuses(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  return kva_contract_refuses(&c);
}

static tile tile_of(const kva_contraction *c) {
  kva_kb *kb = c->l->kb;
  tile x = {.c = c, .kb = kb, .e = kb->exprs, .t = choose_tiling(c), .phases = phases_of(c), .columns = columns_of(c)};
  x.segment = x.t.panel + reach_of(c), x.factor_block = kva_contract_block(c);
  int64_t depth;
  x.one_slice = kva_expr_is_const(c->depth, &depth) && depth <= x.t.depth;
  x.packed = kva_k_local(kb, "packed", c->type, x.t.depth * c->leads * x.phases * x.segment);
  if (x.factor_block) x.factors = kva_k_local(kb, "factors", c->type, x.t.depth / x.factor_block * x.t.panel);
  if (c->across_rows) x.packed_a = kva_k_local(kb, "packed_a", c->type, x.t.depth * (x.t.block_rows + ROW_PADDING));
  x.block = kva_k_local(kb, "block", c->type, x.t.block_rows * x.t.panel);
  x.acc = kva_k_local(kb, "acc", c->type, x.t.tile_rows * x.t.panel);
  x.row_blocks = kva_expr_ceildiv(x.e, c->rows, num(&x, x.t.block_rows));
  x.panels = kva_expr_ceildiv(x.e, x.columns, num(&x, x.t.panel));
  return x;
}

static const kva_expr *items_of(const tile *x) {
  return kva_expr_mul(x->e, kva_expr_mul(x->e, x->row_blocks, x->panels), x->c->batch);
}

static void emit_item(tile *x, const kva_expr *item) {
  const kva_contraction *c = x->c;
  place_item(x, item);
  kva_kval any = c->any ? c->any(c, &(kva_contract_at){.batch = x->batch}) : NULL;
  if (any || !x->one_slice || x->factor_block) clear_block(x);
  kva_kinstr *branch = any ? kva_k_if_begin(x->kb, any) : NULL;
  over_depth(x);
  if (branch) kva_k_if_end(x->kb, branch);
  store_block(x);
}

/* Where the number of rows is not known: items of the loops for few rows, or else of tiles. The other kind has none. */
static void emit_versions(tile *x) {
  const kva_contraction *c = x->c;
  kva_expr_ctx *e = x->e;
  const kva_expr *many = kva_expr_min(e, num(x, 1), kva_expr_div(e, c->rows, num(x, KVA_FEW_ROWS + 1)));
  const kva_expr *few_items = kva_expr_mul(e, kva_expr_sub(e, num(x, 1), many), kva_skinny_items(c));
  const kva_expr *items = kva_expr_mul(e, many, items_of(x));
  kva_kloop *g = kva_k_loop_begin(x->kb, KVA_K_GRID, kva_expr_add(e, few_items, items), "item");
  kva_kinstr *branch = kva_k_if_begin(x->kb, kva_k_index_lt(x->kb, g->var, few_items));
  kva_skinny_emit_item(c, kva_k_name(x->kb, g->var, kva_skinny_items(c)));
  kva_k_if_else(x->kb, branch);
  emit_item(x, kva_k_name(x->kb, kva_expr_sub(e, g->var, few_items), items_of(x)));
  kva_k_if_end(x->kb, branch);
  kva_k_loop_end(x->kb, g);
}

void kva_cpu_tiles_emit(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  tile x = tile_of(&c);
  if (kva_skinny_suits_unknown_rows(&c)) {
    emit_versions(&x);
    return;
  }
  kva_kloop *g = kva_k_loop_begin(l->kb, KVA_K_GRID, items_of(&x), "item");
  emit_item(&x, g->var);
  kva_k_loop_end(l->kb, g);
}
