/* gather_grad on a GPU, from indices sorted in chunks (ops/sort_indices.c). A block owns every n-th row of the result.
 * It takes its keys from all chunks, where they are contiguous, as many as its shared memory holds:
 *
 *   1. the places of its keys in a group of chunks, and how many precede each chunk's;
 *   2. the keys, with the chunk's number inserted: (row, chunk, position in it), sorted
 *      (codegen/kernels/nv/gather/sort.h);
 *   3. where the keys of each of its rows begin;
 *   4. a warp adds up a part of the rows of g that belong to one row of the result, in registers, in the order of
 *      positions, and writes that part once: a frequent index keeps as many warps busy as a row has parts.
 *
 * So every row of the result is written once, those without indices as zeros; all of g is read once; and of the sorted
 * indices a block reads only its own. If a block has more keys of a group than memory holds (a window: 8192, half as
 * many of 64 bits), or there are several groups, the rest follows in the same way, and the rows that it names are read
 * and written again. */
#include "codegen/kernels/any/scatter/gather_grad.h"
#include "codegen/kernels/nv/gather/sort.h"
#include "ops/shape.h"

enum {
  WARPS = 16,
  WARP = 32,
  BLOCK = WARPS * WARP,
  LISTS_BYTES = 64 << 10, /* shared memory for keys, twice; with the rest below 96 KiB */
  MAX_GROUP = 512,        /* chunks: a million indices */
  MAX_STARTS = 4096,      /* rows of a block for which it stores where their keys begin */
  LANE_BYTES = 16,
  IN_FLIGHT = 8 /* loads of a thread */
};

typedef struct row_blocks {
  kva_lower *l;
  kva_kb *b;
  kva_expr_ctx *e;
  const kva_node *n;
  kva_gather_layout y;
  kva_sorted s;
  kva_kbuf *buf, *ends, *before;    /* result; of each chunk's keys where they begin and end; how many precede */
  kva_kbuf *starts;                 /* of each row's keys; NULL: no memory for them */
  kva_gpu_list list;                /* keys of a window */
  int64_t group, pitch, window;     /* chunks at once; from begins to ends; keys at once */
  int64_t span;                     /* of a row's keys: positions of a group or more, a power of two */
  kva_dim inner;                    /* what a row holds */
  uint32_t width;                   /* elements of it that a thread takes at once */
  const kva_expr *outer, *number;   /* outer position; this owner */
  const kva_expr *first, *chunks;   /* of the group: its first chunk, how many it has */
  const kva_expr *start, *count;    /* of the window: its first key among the group's, how many it has */
  kva_kval again;                   /* rows have been written before */
  const kva_expr *at[KVA_MAX_RANK]; /* indices of g */
} row_blocks;

static const kva_expr *num(const row_blocks *s, int64_t v) {
  return kva_expr_const(s->e, v);
}

static const kva_expr *load_index(const row_blocks *s, kva_kbuf *buf, const kva_expr *at) {
  return kva_k_symbol(s->b, kva_k_load(s->b, buf, at));
}

static const kva_expr *begin_of(const row_blocks *s, const kva_expr *chunk) {
  return load_index(s, s->ends, chunk);
}

static const kva_expr *end_of(const row_blocks *s, const kva_expr *chunk) {
  return kva_expr_max(s->e, begin_of(s, chunk), load_index(s, s->ends, kva_expr_addi(s->e, chunk, s->pitch)));
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Adjacent threads read both ends in one request. Clamps keys and bounds that no sort_indices made, so that they stay
 * in range. */
static void read_ends(row_blocks *s) {
  kva_kloop *m = kva_k_loop_begin(s->b, KVA_K_THREAD, kva_expr_muli(s->e, s->chunks, 2), "end");
  const kva_expr *two = num(s, 2), *chunk = kva_expr_div(s->e, m->var, two), *side = kva_expr_mod(s->e, m->var, two);
  const kva_expr *from[] = {kva_expr_add(s->e, s->first, chunk), kva_expr_add(s->e, s->number, side)};
  const kva_expr *end = kva_k_symbol(s->b, s->l->operand(s->l, s->n, KVA_GATHER_GRAD_BOUNDS, from));
  end = kva_expr_max(s->e, num(s, 0), kva_expr_min(s->e, num(s, s->s.chunk), end));
  kva_k_store(s->b, s->ends, kva_expr_add(s->e, kva_expr_muli(s->e, side, s->pitch), chunk), kva_k_index(s->b, end));
  kva_k_loop_end(s->b, m);
}

static void count_keys_before(row_blocks *s) {
  kva_kloop *c = kva_k_loop_begin(s->b, KVA_K_THREAD, kva_expr_addi(s->e, s->chunks, 1), "chunk");
  kva_kloop *m = kva_k_loop_begin(s->b, KVA_K_SERIAL, c->var, "m");
  kva_kval keys = kva_k_index(s->b, kva_expr_sub(s->e, end_of(s, m->var), begin_of(s, m->var)));
  kva_kval sum = kva_k_reduce(s->b, m, KVA_COMBINE_ADD, kva_k_const_i(s->b, KVA_I64, 0), keys);
  kva_k_loop_end(s->b, m);
  kva_k_store(s->b, s->before, c->var, sum);
  kva_k_loop_end(s->b, c);
}

/* The key of place `at` of a chunk's, with the chunk's number in the group. */
static kva_kval key_in_group(row_blocks *s, const kva_expr *chunk, const kva_expr *at) {
  const kva_expr *from[] = {kva_expr_add(s->e, s->first, chunk), at}, *size = num(s, s->s.chunk);
  const kva_expr *key = kva_k_symbol(s->b, s->l->operand(s->l, s->n, KVA_GATHER_GRAD_KEYS, from));
  key = kva_expr_sub(s->e, key, kva_expr_muli(s->e, kva_expr_mul(s->e, s->number, s->s.each), s->s.chunk));
  const kva_expr *row = kva_expr_muli(s->e, kva_expr_div(s->e, key, size), s->span);
  const kva_expr *position = kva_expr_add(s->e, kva_expr_muli(s->e, chunk, s->s.chunk), kva_expr_mod(s->e, key, size));
  return kva_k_index(s->b, kva_expr_add(s->e, row, position));
}

static void fill_up(row_blocks *s) {
  kva_kloop *i = kva_k_loop_begin(s->b, KVA_K_THREAD, kva_gpu_list_length(s->b, &s->list), "i");
  kva_kval guard = kva_k_guard_begin(s->b, kva_k_index_le(s->b, s->count, i->var));
  kva_dtype dtype = s->list.buf->dtype;
  kva_k_store(s->b, s->list.buf, i->var, kva_k_const_i(s->b, dtype, dtype == KVA_I32 ? INT32_MAX : INT64_MAX));
  kva_k_guard_end(s->b, guard);
  kva_k_loop_end(s->b, i);
}

/* A warp takes the part of a chunk's keys that is in the window. */
static void read_keys(row_blocks *s) {
  const kva_expr *zero = num(s, 0);
  kva_kloop *chunk = kva_k_loop_begin(s->b, KVA_K_THREAD, s->chunks, "chunk");
  chunk->subgroup = WARP;
  const kva_expr *place = kva_expr_sub(s->e, load_index(s, s->before, chunk->var), s->start);
  const kva_expr *begin = begin_of(s, chunk->var), *end = end_of(s, chunk->var);
  const kva_expr *skipped = kva_expr_max(s->e, zero, kva_expr_sub(s->e, zero, place));
  const kva_expr *stop = kva_expr_min(s->e, kva_expr_sub(s->e, end, begin), kva_expr_sub(s->e, s->count, place));
  const kva_expr *left = kva_expr_max(s->e, zero, kva_expr_sub(s->e, stop, skipped));
  kva_kloop *lane = kva_k_loop_begin(s->b, KVA_K_THREAD, left, "lane");
  const kva_expr *i = kva_expr_add(s->e, skipped, lane->var);
  kva_k_store(s->b, s->list.buf, kva_expr_add(s->e, place, i),
              key_in_group(s, chunk->var, kva_expr_add(s->e, begin, i)));
  kva_k_loop_end(s->b, lane);
  kva_k_loop_end(s->b, chunk);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Element c of g for the key at place `at`. */
static kva_kval element(row_blocks *s, const kva_expr *at, const kva_expr *c) {
  const kva_expr *key = load_index(s, s->list.buf, kva_expr_add(s->e, s->list.first, at));
  const kva_expr *position = kva_expr_mod(s->e, key, num(s, s->span));
  position = kva_expr_add(s->e, kva_expr_muli(s->e, s->first, s->s.chunk), position);
  position = kva_expr_min(s->e, position, kva_expr_addi(s->e, s->s.positions, -1));
  kva_shape_split(s->e, s->y.n_indices, kva_operand_type(s->n, 1)->dims, position, s->at + s->y.axis);
  kva_shape_split(s->e, s->y.rank - 1 - s->y.axis, s->n->results[0].type->dims + s->y.axis + 1, c,
                  s->at + s->y.axis + s->y.n_indices);
  return s->l->operand(s->l, s->n, 0, s->at);
}

/* Adds to sum the rows of g at keys `start` up to `end`, in order: several loads at once, then the remainder. */
static kva_kval add_rows(row_blocks *s, kva_kval sum, kva_kval start, kva_kval end, const kva_expr *c) {
  kva_kb *b = s->b;
  const kva_expr *from = kva_k_symbol(b, start), *n = kva_k_symbol(b, kva_k2(b, KVA_K_sub, end, start));
  const kva_expr *at_once = num(s, IN_FLIGHT), *many = kva_expr_div(s->e, n, at_once);
  kva_kloop *m = kva_k_loop_begin(b, KVA_K_SERIAL, many, "m");
  kva_kval carry = kva_k_carry(b, m, sum), next = carry, rows[IN_FLIGHT];
  const kva_expr *first = kva_expr_add(s->e, from, kva_expr_mul(s->e, m->var, at_once));
  for (int i = 0; i < IN_FLIGHT; i++) rows[i] = element(s, kva_expr_addi(s->e, first, i), c);
  for (int i = 0; i < IN_FLIGHT; i++) next = kva_k2(b, KVA_K_add, next, rows[i]);
  kva_k_carry_next(b, m, carry, next);
  kva_k_loop_end(b, m);
  sum = kva_k_carry_result(b, m, carry);
  from = kva_expr_add(s->e, from, kva_expr_mul(s->e, many, at_once));
  m = kva_k_loop_begin(b, KVA_K_SERIAL, kva_expr_mod(s->e, n, at_once), "m");
  m->strict_order = true;
  sum = kva_k_reduce(b, m, KVA_COMBINE_ADD, sum, element(s, kva_expr_add(s->e, from, m->var), c));
  kva_k_loop_end(b, m);
  return sum;
}

/* `count` columns from `before` on of a row of the result, whose keys are those at `start` up to `end`. */
static void write_columns(row_blocks *s, const kva_expr *row, kva_kval start, kva_kval end, const kva_expr *before,
                          const kva_expr *count) {
  kva_kb *b = s->b;
  kva_kloop *lane = kva_k_loop_begin(b, KVA_K_THREAD, count, "c");
  lane->width = s->width;
  const kva_expr *c = kva_expr_add(s->e, before, lane->var);
  const kva_expr *to = kva_gather_grad_offset(s->e, s->outer, row, s->s.rows, c, s->inner);
  kva_kval guard = kva_k_guard_begin(b, s->again), sum = kva_k_load(b, s->buf, to);
  kva_k_guard_end(b, guard);
  kva_k_store(b, s->buf, to, add_rows(s, sum, start, end, c));
  kva_k_loop_end(b, lane);
}

/* The number of keys of the block's rows before its row number `row`. */
static kva_kval keys_before(row_blocks *s, const kva_expr *row) {
  if (s->starts) return kva_k_convert(s->b, kva_k_load(s->b, s->starts, row), KVA_I64);
  return kva_gpu_list_below(s->b, &s->list, kva_expr_muli(s->e, row, s->span));
}

static void find_starts(row_blocks *s, const kva_expr *rows) {
  if (!s->starts) return;
  kva_kloop *r = kva_k_loop_begin(s->b, KVA_K_THREAD, kva_expr_addi(s->e, rows, 1), "row");
  kva_kval below = kva_gpu_list_below(s->b, &s->list, kva_expr_muli(s->e, r->var, s->span));
  kva_k_store(s->b, s->starts, r->var, below);
  kva_k_loop_end(s->b, r);
  kva_k_barrier(s->b);
}

/* Parts of rows, a warp each. */
static void write_rows(row_blocks *s) {
  kva_kb *b = s->b;
  const kva_expr *rows = kva_expr_ceildiv(s->e, kva_expr_sub(s->e, s->s.rows, s->number), s->s.owners);
  const kva_expr *columns = num(s, (int64_t)WARP * s->width), *parts = kva_expr_ceildiv(s->e, s->inner, columns);
  find_starts(s, rows);
  kva_kloop *part = kva_k_loop_begin(b, KVA_K_THREAD, kva_expr_mul(s->e, rows, parts), "part");
  part->subgroup = WARP;
  const kva_expr *r = kva_expr_div(s->e, part->var, parts);
  kva_kval start = keys_before(s, r), end = keys_before(s, kva_expr_addi(s->e, r, 1));
  kva_kval any = kva_k2(b, KVA_K_lt, start, end), first = kva_k1(b, KVA_K_not, s->again);
  kva_kinstr *needed = kva_k_if_begin(b, kva_k2(b, KVA_K_or, any, first));
  const kva_expr *row = kva_expr_add(s->e, s->number, kva_expr_mul(s->e, r, s->s.owners));
  const kva_expr *before = kva_expr_mul(s->e, kva_expr_mod(s->e, part->var, parts), columns);
  write_columns(s, row, start, end, before, kva_expr_min(s->e, columns, kva_expr_sub(s->e, s->inner, before)));
  kva_k_if_end(b, needed);
  kva_k_loop_end(b, part);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Without indices there is one window as well, which writes zeros. */
static const kva_expr *window_count(const row_blocks *s, const kva_expr *total) {
  if (s->span <= s->window) return num(s, 1);
  return kva_expr_max(s->e, num(s, 1), kva_expr_ceildiv(s->e, total, num(s, s->window)));
}

static void each_window(row_blocks *s, kva_kbuf *keys) {
  kva_kb *b = s->b;
  const kva_expr *total = load_index(s, s->before, s->chunks), *windows = window_count(s, total);
  kva_kloop *w = kva_k_loop_begin(b, KVA_K_SERIAL, windows, "window");
  s->start = kva_expr_muli(s->e, w->var, s->window);
  s->count = kva_expr_min(s->e, num(s, s->window), kva_expr_sub(s->e, total, s->start));
  s->again = kva_k_index_lt(b, num(s, 0), kva_expr_add(s->e, s->first, s->start));
  s->list = kva_gpu_list_begin(b, keys, s->window, s->count);
  fill_up(s);
  read_keys(s);
  kva_gpu_list_sort(b, &s->list);
  write_rows(s);
  /* Only a full window is followed by another, whose keys are written where sorting may have left this one's. */
  if (!kva_expr_is(windows, 1) && !kva_gpu_list_moves(s->window)) kva_k_barrier(b);
  kva_k_loop_end(b, w);
}

static void each_group(row_blocks *s, kva_kbuf *keys) {
  kva_kb *b = s->b;
  const kva_expr *groups = kva_expr_ceildiv(s->e, s->s.chunks, num(s, s->group));
  kva_kloop *group = kva_k_loop_begin(b, KVA_K_SERIAL, kva_expr_max(s->e, num(s, 1), groups), "group");
  s->first = kva_expr_muli(s->e, group->var, s->group);
  s->chunks = kva_expr_min(s->e, num(s, s->group), kva_expr_sub(s->e, s->s.chunks, s->first));
  read_ends(s);
  kva_k_barrier(b);
  count_keys_before(s);
  kva_k_barrier(b);
  each_window(s, keys);
  kva_k_loop_end(b, group);
}

/* Creates the shared memory; returns the keys' buffer. */
static kva_kbuf *create_lists(row_blocks *s) {
  int64_t rows, chunks;
  s->group = MAX_GROUP;
  if (kva_expr_is_const(s->s.chunks, &chunks) && chunks < MAX_GROUP) s->group = chunks > 0 ? chunks : 1;
  s->pitch =
      (s->group + WARP - 1) / WARP * WARP + WARP / 2; /* begins and ends of adjacent chunks are in different banks */
  for (s->span = s->s.chunk; s->span < s->group * s->s.chunk;) s->span *= 2;
  bool narrow = kva_expr_is_const(s->s.each, &rows) && rows < INT32_MAX / s->span;
  s->window = LISTS_BYTES / (narrow ? 8 : 16);
  if (s->window > s->span) s->window = s->span;
  s->ends = kva_k_shared(s->b, "ends", KVA_I32, 2 * s->pitch);
  s->before = kva_k_shared(s->b, "before", KVA_I32, s->group + 1);
  bool room = kva_expr_is_const(s->s.each, &rows) && rows <= MAX_STARTS;
  if (room) s->starts = kva_k_shared(s->b, "starts", KVA_I32, rows + 1);
  return kva_k_shared(s->b, "keys", narrow ? KVA_I32 : KVA_I64, 2 * s->window);
}

/* As many as fit 16 bytes, if rows are aligned to that. */
static uint32_t width_of(const row_blocks *s) {
  int64_t n, width = LANE_BYTES * 8 / kva_dtype_bits(s->buf->dtype);
  return kva_expr_is_const(s->inner, &n) && n % width == 0 ? (uint32_t)width : 1;
}

const char *kva_nv_gather_grad_refuses(kva_lower *l, const kva_node *n) {
  (void)l;
  return kva_operand(n, KVA_GATHER_GRAD_KEYS) ? NULL : "indices are not sorted";
}

void kva_nv_gather_grad_emit(kva_lower *l, const kva_node *n) {
  row_blocks s = {.l = l, .b = l->kb, .e = l->kb->exprs, .n = n, .y = kva_gather_grad_layout(n)};
  const kva_type *type = n->results[0].type;
  s.buf = kva_scatter_result(l, n, 0);
  s.s = kva_gather_grad_sorted(s.e, n);
  kva_kbuf *keys = create_lists(&s);
  s.inner = kva_shape_product(s.e, s.y.rank - 1 - s.y.axis, type->dims + s.y.axis + 1);
  s.width = width_of(&s);
  const kva_expr *outer = kva_shape_product(s.e, s.y.axis, type->dims);
  kva_kloop *item = kva_k_loop_begin(s.b, KVA_K_GRID, kva_expr_mul(s.e, outer, s.s.owners), "item");
  bool single = kva_expr_is(outer, 1);
  s.outer = single ? num(&s, 0) : kva_expr_div(s.e, item->var, s.s.owners);
  s.number = single ? item->var : kva_expr_mod(s.e, item->var, s.s.owners);
  s.b->kernel->threads = BLOCK;
  s.b->kernel->blocks = 1; /* one for each multiprocessor */
  kva_shape_split(s.e, s.y.axis, type->dims, s.outer, s.at);
  each_group(&s, keys);
  kva_k_loop_end(s.b, item);
}
