/* gather_grad on a GPU. A block owns every n-th row of the result: frequent indices, which often are neighbours,
 * go to different blocks. It takes the indices in segments, of each:
 *
 *   1. a warp makes keys (row, then position) of its share of the indices, NONE for what names no row of the block, and
 *      moves the keys to the front of its list, one after the other;
 *   2. threads put the keys of all lists in order: a key's place is the number of keys below it;
 *   3. a warp adds up the rows of g that belong to one row of the result, in registers, in the order of positions, and
 *      writes that row once; behind the first segment it adds to what is there, where there is anything to add.
 *
 * So all rows are written once, those without indices as zeros, and all of g is read once, where the indices fit into
 * one segment (8192 of them); the indices are read by every block. */
#include "ops/gather_grad.h"
#include "ops/index.h"
#include "ops/scatter_common.h"
#include "ops/shape.h"

enum {
  WARPS = 16,
  WARP = 32,
  BLOCK = WARPS * WARP,
  MOST_BLOCKS = 132, /* the multiprocessors of an H100 */
  LEAST_BLOCKS = MOST_BLOCKS / 4,
  INDEX_SHARE = 32, /* all indices are at most this part of what a block moves, if it need not be one of the fewest */
  MOST_SHARE = 512,
  MANY_ROWS = 1 << 24, /* too many for keys of 32 bits */
  NONE = -1,
  LANES = 4,
  COLUMNS = LANES * WARP,
  MOST_COLUMNS = 4 * COLUMNS /* that a warp has registers for */
};

typedef struct row_blocks {
  kva_lower *l;
  kva_kb *b;
  kva_expr_ctx *e;
  const kva_node *n;
  kva_gather_layout y;
  kva_kbuf *buf, *found, *counts, *sorted; /* result; keys and how many of them by warp; positions in order */
  int64_t share, segment;                  /* indices of a warp, of the block */
  kva_dim rows, positions, inner;          /* extents: of the axis, of all indices, of what a row holds */
  const kva_expr *outer, *blocks, *number; /* outer position; blocks for each, this one's number among them */
  const kva_expr *first;                   /* position where the segment begins */
  const kva_expr *at[KVA_MAX_RANK];        /* indices of g */
} row_blocks;

static const kva_expr *num(const row_blocks *s, int64_t v) {
  return kva_expr_const(s->e, v);
}

static kva_kval int_of(const row_blocks *s, int64_t v) {
  return kva_k_const_i(s->b, KVA_I64, v);
}

/* Where the list of warp w is: each begins in a bank of its own. */
static const kva_expr *list_of(const row_blocks *s, const kva_expr *w) {
  return kva_expr_muli(s->e, w, s->share + 1);
}

/* The row that index number i, of all of them, names. */
static const kva_expr *row_at(row_blocks *s, const kva_expr *i) {
  kva_shape_split(s->e, s->y.n_indices, kva_operand_type(s->n, 1)->dims, i, s->at + s->y.axis);
  return kva_index_lower(s->l, s->n, 1, s->at + s->y.axis, s->rows);
}

/* A warp's share, of which each lane has one in every round. */
typedef struct rounds {
  kva_kloop *lane, *round;
  const kva_expr *m; /* number in the share */
} rounds;

static rounds rounds_begin(row_blocks *s) {
  rounds r = {.lane = kva_k_loop_begin(s->b, KVA_K_THREAD, num(s, WARP), "lane")};
  r.round = kva_k_loop_begin(s->b, KVA_K_SERIAL, num(s, s->share / WARP), "round");
  r.m = kva_expr_add(s->e, r.lane->var, kva_expr_muli(s->e, r.round->var, WARP));
  return r;
}

static void rounds_end(row_blocks *s, const rounds *r) {
  kva_k_loop_end(s->b, r->round);
  kva_k_loop_end(s->b, r->lane);
}

static kva_kval reduce_rounds(row_blocks *s, const rounds *r, kva_combine combine, kva_kval none, kva_kval v) {
  v = kva_k_reduce(s->b, r->round, combine, none, v);
  kva_k_loop_end(s->b, r->round);
  v = kva_k_reduce(s->b, r->lane, combine, none, v);
  kva_k_loop_end(s->b, r->lane);
  return v;
}

static const kva_expr *place_of(const row_blocks *s, const kva_expr *w, const kva_expr *m) {
  return kva_expr_add(s->e, list_of(s, w), m);
}

static kva_kval load_key(row_blocks *s, const kva_expr *w, const kva_expr *m) {
  return kva_k_convert(s->b, kva_k_load(s->b, s->found, place_of(s, w, m)), KVA_I64);
}

/* Keys of all indices of warp w's share, NONE for those that name no row of the block; returns how many do. */
static kva_kval write_keys(row_blocks *s, const kva_expr *w) {
  kva_kb *b = s->b;
  rounds r = rounds_begin(s);
  const kva_expr *position = kva_expr_add(s->e, kva_expr_muli(s->e, w, s->share), r.m);
  const kva_expr *i = kva_expr_add(s->e, s->first, position);
  kva_kval exists = kva_k_index_lt(b, i, s->positions), guard = kva_k_guard_begin(b, exists);
  const kva_expr *row = row_at(s, i);
  kva_k_guard_end(b, guard);
  kva_kval match = kva_k_and(b, exists, kva_k_index_eq(b, kva_expr_mod(s->e, row, s->blocks), s->number));
  row = kva_expr_muli(s->e, kva_expr_div(s->e, row, s->blocks), s->segment);
  kva_kval key = kva_k_select(b, match, kva_k_index(b, kva_expr_add(s->e, row, position)), int_of(s, NONE));
  kva_k_store(b, s->found, place_of(s, w, r.m), key);
  return reduce_rounds(s, &r, KVA_COMBINE_ADD, int_of(s, 0), kva_k_select(b, match, int_of(s, 1), int_of(s, 0)));
}

/* The place of the first key in warp w's share behind place `last`. */
static kva_kval next_key(row_blocks *s, const kva_expr *w, kva_kval last) {
  kva_kb *b = s->b;
  rounds r = rounds_begin(s);
  kva_kval place = kva_k_index(b, r.m), behind = kva_k2(b, KVA_K_lt, last, place), most = int_of(s, INT64_MAX);
  kva_kval guard = kva_k_guard_begin(b, behind), key = load_key(s, w, r.m);
  kva_k_guard_end(b, guard);
  kva_kval found = kva_k_and(b, behind, kva_k2(b, KVA_K_ne, key, int_of(s, NONE)));
  return reduce_rounds(s, &r, KVA_COMBINE_MIN, most, kva_k_select(b, found, place, most));
}

static void store_first(row_blocks *s, kva_kbuf *to, const kva_expr *at, kva_kval v) {
  kva_kloop *first = kva_k_loop_begin(s->b, KVA_K_THREAD, num(s, 1), "first");
  kva_k_store(s->b, to, at, v);
  kva_k_loop_end(s->b, first);
}

static void list_matches(row_blocks *s) {
  kva_kb *b = s->b;
  kva_kloop *warp = kva_k_loop_begin(b, KVA_K_THREAD, num(s, WARPS), "warp");
  warp->team = WARP;
  kva_kval count = write_keys(s, warp->var);
  store_first(s, s->counts, warp->var, count);
  kva_k_barrier(b);
  kva_kloop *each = kva_k_loop_begin(b, KVA_K_SERIAL, kva_k_symbol(b, count), "match");
  kva_kval last = kva_k_carry(b, each, int_of(s, -1)), next = next_key(s, warp->var, last);
  kva_kval key = load_key(s, warp->var, kva_k_symbol(b, next));
  kva_k_barrier(b);
  store_first(s, s->found, place_of(s, warp->var, each->var), key);
  kva_k_carry_next(b, each, last, next);
  kva_k_loop_end(b, each);
  kva_k_loop_end(b, warp);
}

/* How many keys of warp w's list are below `limit`. */
static kva_kval count_below(row_blocks *s, const kva_expr *w, kva_kval limit) {
  kva_kb *b = s->b;
  kva_kloop *m = kva_k_loop_begin(b, KVA_K_SERIAL, kva_k_symbol(b, kva_k_load(b, s->counts, w)), "m");
  kva_kval below = kva_k2(b, KVA_K_lt, load_key(s, w, m->var), limit);
  kva_kval sum = kva_k_reduce(b, m, KVA_COMBINE_ADD, int_of(s, 0), kva_k_select(b, below, int_of(s, 1), int_of(s, 0)));
  kva_k_loop_end(b, m);
  return sum;
}

static void sort_matches(row_blocks *s) {
  kva_kb *b = s->b;
  kva_kloop *warp = kva_k_loop_begin(b, KVA_K_THREAD, num(s, WARPS), "warp");
  warp->team = WARP;
  rounds r = rounds_begin(s);
  kva_kval count = kva_k_load(b, s->counts, warp->var);
  kva_kinstr *is_match = kva_k_if_begin(b, kva_k2(b, KVA_K_lt, kva_k_index(b, r.m), count));
  kva_kval key = load_key(s, warp->var, r.m);
  kva_kloop *lists = kva_k_loop_begin(b, KVA_K_SERIAL, num(s, WARPS), "list");
  kva_kval place = kva_k_reduce(b, lists, KVA_COMBINE_ADD, int_of(s, 0), count_below(s, lists->var, key));
  kva_k_loop_end(b, lists);
  kva_k_store(b, s->sorted, kva_k_symbol(b, place), kva_k2(b, KVA_K_rem, key, int_of(s, s->segment)));
  kva_k_if_end(b, is_match);
  rounds_end(s, &r);
  kva_k_loop_end(b, warp);
}

/* Keys below that of the first position of row number `row` of the block's. */
static kva_kval keys_before(row_blocks *s, const kva_expr *row) {
  kva_kb *b = s->b;
  kva_kloop *w = kva_k_loop_begin(b, KVA_K_THREAD, num(s, WARPS), "list");
  kva_kval count = count_below(s, w->var, kva_k_index(b, kva_expr_muli(s->e, row, s->segment)));
  kva_kval sum = kva_k_reduce(b, w, KVA_COMBINE_ADD, int_of(s, 0), count);
  kva_k_loop_end(b, w);
  return sum;
}

/* Element c of g for the match at place `at`. */
static kva_kval element(row_blocks *s, const kva_expr *at, const kva_expr *c) {
  kva_kval place = kva_k_convert(s->b, kva_k_load(s->b, s->sorted, at), KVA_I64);
  const kva_expr *position = kva_expr_add(s->e, s->first, kva_k_symbol(s->b, place));
  kva_shape_split(s->e, s->y.n_indices, kva_operand_type(s->n, 1)->dims, position, s->at + s->y.axis);
  kva_shape_split(s->e, s->y.rank - 1 - s->y.axis, s->n->results[0].type->dims + s->y.axis + 1, c,
                  s->at + s->y.axis + s->y.n_indices);
  return s->l->operand(s->l, s->n, 0, s->at);
}

/* Columns from `before` on of a row of the result, whose matches are those at `start` up to `end`. */
static void write_columns(row_blocks *s, const kva_expr *row, kva_kval start, kva_kval end, const kva_expr *before,
                          const kva_expr *count, uint32_t width) {
  kva_kb *b = s->b;
  kva_kloop *lane = kva_k_loop_begin(b, KVA_K_THREAD, count, "c");
  lane->width = width;
  const kva_expr *c = kva_expr_add(s->e, before, lane->var), *from = kva_k_symbol(b, start);
  const kva_expr *to = kva_gather_grad_offset(s->e, s->outer, row, s->rows, c, s->inner);
  kva_kval guard = kva_k_guard_begin(b, kva_k_index_lt(b, num(s, 0), s->first));
  kva_kval sum = kva_k_load(b, s->buf, to);
  kva_k_guard_end(b, guard);
  kva_kloop *m = kva_k_loop_begin(b, KVA_K_SERIAL, kva_k_symbol(b, kva_k2(b, KVA_K_sub, end, start)), "m");
  m->strict_order = true;
  sum = kva_k_reduce(b, m, KVA_COMBINE_ADD, sum, element(s, kva_expr_add(s->e, from, m->var), c));
  kva_k_loop_end(b, m);
  kva_k_store(b, s->buf, to, sum);
  kva_k_loop_end(b, lane);
}

/* Columns of a row that a warp takes at once, four a lane; 0: they do not divide so. */
static int64_t columns_at_once(const row_blocks *s) {
  int64_t n, part = MOST_COLUMNS;
  if (!kva_expr_is_const(s->inner, &n)) return 0;
  while (part && n % part) part -= COLUMNS;
  return part;
}

static void write_row(row_blocks *s, const kva_expr *row, kva_kval start, kva_kval end) {
  int64_t wide = columns_at_once(s), part = wide ? wide : COLUMNS;
  kva_kloop *parts = kva_k_loop_begin(s->b, KVA_K_SERIAL, kva_expr_ceildiv(s->e, s->inner, num(s, part)), "part");
  const kva_expr *before = kva_expr_muli(s->e, parts->var, part), *left = kva_expr_sub(s->e, s->inner, before);
  const kva_expr *count = wide ? num(s, part) : kva_expr_min(s->e, num(s, part), left);
  write_columns(s, row, start, end, before, count, wide ? LANES : 1);
  kva_k_loop_end(s->b, parts);
}

static void write_rows(row_blocks *s) {
  kva_kb *b = s->b;
  const kva_expr *left = kva_expr_sub(s->e, s->rows, s->number);
  kva_kloop *r = kva_k_loop_begin(b, KVA_K_THREAD, kva_expr_ceildiv(s->e, left, s->blocks), "row");
  r->team = WARP;
  kva_kval start = keys_before(s, r->var), end = keys_before(s, kva_expr_addi(s->e, r->var, 1));
  kva_kval any = kva_k2(b, KVA_K_lt, start, end), first = kva_k_index_le(b, s->first, num(s, 0));
  kva_kinstr *needed = kva_k_if_begin(b, kva_k2(b, KVA_K_or, any, first));
  write_row(s, kva_expr_add(s->e, s->number, kva_expr_mul(s->e, r->var, s->blocks)), start, end);
  kva_k_if_end(b, needed);
  kva_k_loop_end(b, r);
}

static void each_segment(row_blocks *s) {
  kva_kb *b = s->b;
  const kva_expr *count = kva_expr_ceildiv(s->e, s->positions, num(s, s->segment));
  kva_kloop *segment = kva_k_loop_begin(b, KVA_K_SERIAL, kva_expr_max(s->e, num(s, 1), count), "segment");
  s->first = kva_expr_muli(s->e, segment->var, s->segment);
  list_matches(s);
  kva_k_barrier(b);
  sort_matches(s);
  kva_k_barrier(b);
  write_rows(s);
  if (!kva_expr_is(count, 1)) kva_k_barrier(b);
  kva_k_loop_end(b, segment);
}

/* As many as the GPU has room for, but fewer where they would mostly read indices. */
static const kva_expr *block_count(const row_blocks *s) {
  const kva_expr *moved = kva_expr_mul(s->e, kva_expr_add(s->e, s->rows, s->positions), s->inner);
  int64_t index_bits = kva_dtype_bits(kva_operand_type(s->n, 1)->dtype);
  moved = kva_expr_muli(s->e, moved, kva_dtype_bits(s->buf->dtype));
  const kva_expr *indices = kva_expr_muli(s->e, kva_expr_max(s->e, num(s, 1), s->positions), index_bits * INDEX_SHARE);
  const kva_expr *blocks = kva_expr_max(s->e, num(s, LEAST_BLOCKS), kva_expr_div(s->e, moved, indices));
  return kva_expr_min(s->e, s->rows, kva_expr_min(s->e, num(s, MOST_BLOCKS), blocks));
}

/* Room for the lists. */
static void create_lists(row_blocks *s) {
  int64_t positions, rows;
  s->share = MOST_SHARE;
  if (kva_expr_is_const(s->positions, &positions) && positions < WARPS * MOST_SHARE)
    s->share = positions > 0 ? (positions + BLOCK - 1) / BLOCK * WARP : WARP;
  s->segment = WARPS * s->share;
  bool few = kva_expr_is_const(s->rows, &rows) && rows < MANY_ROWS;
  s->found = kva_k_shared(s->b, "found", few ? KVA_I32 : KVA_I64, WARPS * (s->share + 1));
  s->sorted = kva_k_shared(s->b, "sorted", KVA_I32, s->segment);
  s->counts = kva_k_shared(s->b, "counts", KVA_I64, WARPS);
}

void kva_gather_grad_by_blocks(kva_lower *l, const kva_node *n) {
  row_blocks s = {.l = l, .b = l->kb, .e = l->kb->exprs, .n = n, .y = kva_gather_grad_layout(n)};
  const kva_type *type = n->results[0].type;
  s.buf = kva_scatter_result(l, n, 0);
  s.rows = type->dims[s.y.axis];
  s.positions = kva_shape_product(s.e, s.y.n_indices, kva_operand_type(n, 1)->dims);
  create_lists(&s);
  s.inner = kva_shape_product(s.e, s.y.rank - 1 - s.y.axis, type->dims + s.y.axis + 1);
  s.blocks = block_count(&s);
  const kva_expr *outer = kva_shape_product(s.e, s.y.axis, type->dims);
  kva_kloop *item = kva_k_loop_begin(s.b, KVA_K_GRID, kva_expr_mul(s.e, outer, s.blocks), "item");
  bool single = kva_expr_is(outer, 1);
  s.outer = single ? num(&s, 0) : kva_expr_div(s.e, item->var, s.blocks);
  s.number = single ? item->var : kva_expr_mod(s.e, item->var, s.blocks);
  s.b->kernel->threads = BLOCK;
  s.b->kernel->blocks = 1; /* as many as multiprocessors */
  kva_shape_split(s.e, s.y.axis, type->dims, s.outer, s.at);
  each_segment(&s);
  kva_k_loop_end(s.b, item);
}
