/* See query_tile.h. */
#include "codegen/kernels/any/attention/query_tile.h"
#include "ops/ids.h"

#include <math.h>

static const kva_expr *num(const kva_query_tile *s, int64_t v) {
  return kva_expr_const(s->kb->exprs, v);
}
static const kva_expr *plus(const kva_query_tile *s, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(s->kb->exprs, a, b);
}

/* Vectors of a query tile: those past the edge cost as much as others, narrow tiles read the far operand more often. */
static int64_t choose_vectors(const kva_query_tile *s, int64_t lanes) {
  static const double cycles[] = {[1] = 1.12, [2] = 2.06, [4] = 4};
  int64_t extent, most = s->l->target->vector_registers >= 32 ? 4 : 2, best = most;
  double least = INFINITY;
  if (!kva_expr_is_const(s->extent, &extent)) return most;
  for (int64_t v = most; v >= 1; v /= 2) {
    double all = cycles[v] * (double)((extent + v * lanes - 1) / (v * lanes));
    if (all < least) least = all, best = v;
  }
  return best;
}

/* Register tile: 16 accumulators of 32 registers hide the latency of a multiply-add on every port. */
static void choose_sizes(kva_query_tile *s) {
  int64_t lanes = kva_target_lanes(s->l->target, s->t), vectors = choose_vectors(s, lanes);
  int64_t accumulators = s->l->target->vector_registers >= 32 ? 16 : 8;
  s->lanes = lanes;
  s->width = lanes * vectors;
  s->rows = accumulators / vectors > 8 ? 8 : accumulators / vectors;
  s->block = KVA_ATTENTION_BLOCK;
}

void kva_query_tile_start_at_position(kva_query_tile *s) {
  kva_expr_ctx *c = s->kb->exprs;
  kva_kval position = s->l->operand(s->l, s->a.n, KVA_ATTENTION_POSITION, &s->b);
  s->a.offset = kva_expr_max(c, kva_k_symbol(s->kb, position), num(s, 0));
  s->far_extent = kva_expr_min(c, s->a.S, plus(s, s->a.offset, s->a.T));
}

/* One query for each of the heads that share keys. On a GPU heads are items of their own, which are threads. */
static bool is_grouped(const kva_query_tile *s) {
  bool forward = kva_is(s->a.n, KVA_OP_attention) || kva_is(s->a.n, KVA_OP_attention_cached);
  return forward && s->l->target->kind == KVA_TARGET_CPU && kva_expr_is(s->a.T, 1) &&
         kva_expr_is_const(s->a.group, NULL);
}

kva_query_place kva_query_tile_place(const kva_query_tile *s, const kva_expr *head, const kva_expr *q) {
  if (!s->grouped) return (kva_query_place){head, q};
  return (kva_query_place){plus(s, kva_expr_mul(s->kb->exprs, s->h_kv, s->a.group), q), num(s, 0)};
}

void kva_query_tile_describe(kva_query_tile *s, kva_lower *l, const kva_node *n, kva_query_tile_kind kind) {
  bool of_keys = kind == KVA_TILES_OF_KEYS;
  *s = (kva_query_tile){.l = l, .kb = l->kb, .kind = kind, .a = kva_attention_get(n, l->kb->exprs)};
  s->extent = of_keys ? s->a.S : s->a.T;
  s->far_extent = of_keys ? s->a.T : s->a.S;
  s->t = kva_k_compute_type(kva_operand_type(n, 0)->dtype);
  s->grouped = is_grouped(s);
  if (s->grouped) s->extent = s->a.group;
  choose_sizes(s);
  s->acc = kva_k_local(l->kb, "acc", s->t, s->rows * s->width);
}

static kva_dim heads_of(const kva_query_tile *s) {
  return s->kind == KVA_TILES_OF_KEYS || s->grouped ? s->a.H_kv : s->a.H;
}

static const kva_expr *query_tiles(const kva_query_tile *s) {
  return kva_expr_ceildiv(s->kb->exprs, s->extent, num(s, s->width));
}

const kva_expr *kva_query_tile_items(const kva_query_tile *s) {
  kva_expr_ctx *c = s->kb->exprs;
  return kva_expr_mul(c, kva_expr_mul(c, query_tiles(s), heads_of(s)), s->a.B);
}

static void place_head(kva_query_tile *s, const kva_expr *item) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *head = kva_expr_mod(c, item, heads_of(s));
  s->b = kva_expr_div(c, item, heads_of(s));
  s->h = s->kind == KVA_TILES_OF_KEYS || s->grouped ? NULL : head;
  s->h_kv = s->h ? kva_expr_div(c, head, s->a.group) : head;
}

void kva_query_tile_place_item(kva_query_tile *s, const kva_expr *item) {
  kva_expr_ctx *c = s->kb->exprs;
  s->first = kva_expr_muli(c, kva_expr_mod(c, item, query_tiles(s)), s->width);
  place_head(s, kva_expr_div(c, item, query_tiles(s)));
}

kva_kloop *kva_query_tile_begin(kva_query_tile *s, kva_lower *l, const kva_node *n, kva_query_tile_kind kind) {
  kva_query_tile_describe(s, l, n, kind);
  kva_kloop *g = kva_k_loop_begin(l->kb, KVA_K_GRID, kva_query_tile_items(s), "item");
  kva_query_tile_place_item(s, g->var);
  if (kva_is(n, KVA_OP_attention_cached)) kva_query_tile_start_at_position(s);
  return g;
}

kva_kloop *kva_query_tile_begin_heads(kva_query_tile *s, kva_lower *l, const kva_node *n) {
  kva_query_tile_describe(s, l, n, KVA_TILES_OF_KEYS);
  const kva_expr *items = kva_expr_mul(l->kb->exprs, s->a.B, s->a.H_kv);
  kva_kloop *g = kva_k_loop_begin(l->kb, KVA_K_GRID, items, "item");
  place_head(s, g->var);
  return g;
}

kva_kloop *kva_query_tile_next(kva_query_tile *s) {
  kva_kloop *tile = kva_k_loop_begin(s->kb, KVA_K_SERIAL, query_tiles(s), "tile");
  s->first = kva_expr_muli(s->kb->exprs, tile->var, s->width);
  return tile;
}

/* ---- walking the far axis ---------------------------------------------------------------------------------------- */

static kva_far_loop far_begin(const kva_query_tile *s, const kva_expr *begin, const kva_expr *end) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *block = num(s, s->block), *skipped = kva_expr_div(c, begin, block);
  const kva_expr *n = kva_expr_max(c, num(s, 0), kva_expr_sub(c, kva_expr_ceildiv(c, end, block), skipped));
  kva_far_loop f = {.loop = kva_k_loop_begin(s->kb, KVA_K_SERIAL, n, "block"), .n_pieces = 1};
  f.first = kva_expr_muli(c, plus(s, skipped, f.loop->var), s->block);
  bool whole = s->l->target->kind == KVA_TARGET_GPU || kva_expr_is(kva_expr_mod(c, end, block), 0);
  f.n = whole ? block : kva_expr_min(c, block, kva_expr_sub(c, end, f.first));
  f.pieces[0] = (kva_far_piece){num(s, 0), f.n, 0, s->width};
  return f;
}

static bool is_causal(const kva_query_tile *s) {
  return s->a.attrs.causal || s->a.attrs.window > 0;
}

/* Lane i is on the diagonal at position first + i of the block. A GPU's work items have a lane each. */
static void divide(const kva_query_tile *s, kva_far_loop *f, const kva_expr *first) {
  kva_expr_ctx *c = s->kb->exprs;
  int64_t n = s->width > s->lanes ? KVA_FAR_PIECES : 1, lanes = s->width / n;
  if (!is_causal(s) || s->grouped || s->l->target->kind == KVA_TARGET_GPU) return;
  f->n_pieces = (uint32_t)n;
  for (int64_t i = 0; i < n; i++) {
    const kva_expr *begin = kva_expr_addi(c, first, i * lanes);
    begin = kva_expr_max(c, num(s, 0), kva_expr_min(c, f->n, begin));
    f->pieces[i] = (kva_far_piece){begin, f->n, 0, (i + 1) * lanes};
    if (!f->of_queries) f->pieces[i].lane = i * lanes, f->pieces[i].lanes = s->width - i * lanes;
    if (i > 0) f->pieces[i - 1].end = begin;
  }
  if (!f->of_queries) f->pieces[0].begin = num(s, 0);
}

static const kva_expr *first_position(const kva_query_tile *s) {
  return plus(s, kva_query_tile_place(s, s->h, s->first).t, s->a.offset);
}

const kva_expr *kva_query_tile_keys_end(const kva_query_tile *s) {
  kva_expr_ctx *c = s->kb->exprs;
  if (!is_causal(s)) return s->far_extent;
  return kva_expr_min(c, s->far_extent, kva_expr_addi(c, first_position(s), s->grouped ? 1 : s->width));
}

kva_far_loop kva_query_tile_keys_begin(const kva_query_tile *s) {
  kva_expr_ctx *c = s->kb->exprs;
  int64_t window = s->a.attrs.window;
  const kva_expr *begin = num(s, 0);
  if (window > 0) begin = kva_expr_max(c, begin, kva_expr_addi(c, first_position(s), 1 - window));
  kva_far_loop f = far_begin(s, begin, kva_query_tile_keys_end(s));
  divide(s, &f, kva_expr_sub(c, first_position(s), f.first));
  return f;
}

kva_far_loop kva_query_tile_queries_begin(const kva_query_tile *s) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *begin = num(s, 0), *first = kva_expr_sub(c, s->first, s->a.offset);
  if (is_causal(s)) begin = kva_expr_max(c, begin, first);
  kva_far_loop f = far_begin(s, begin, s->a.T);
  f.of_queries = true;
  divide(s, &f, kva_expr_sub(c, first, f.first));
  return f;
}

/* Pages are whole blocks (attention.c). A block that begins inside of the table has a page; numbers of pages are data
 * and may be anything. */
void kva_query_tile_turn_page(kva_query_tile *s, const kva_expr *far) {
  if (!s->a.page_rows) return;
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *number = kva_expr_div(c, far, s->a.page_rows), *idx[2] = {s->b, number};
  kva_kval page = kva_k_convert(s->kb, s->l->operand(s->l, s->a.n, KVA_ATTENTION_PAGES, idx), KVA_I64);
  const kva_expr *last = kva_expr_addi(c, kva_operand_type(s->a.n, KVA_ATTENTION_K)->dims[0], -1);
  s->page = kva_expr_max(c, num(s, 0), kva_expr_min(c, kva_k_symbol(s->kb, page), last));
  s->page_first = kva_expr_mul(c, number, s->a.page_rows);
}

kva_kbuf *kva_query_tile_matrix(const kva_query_tile *s, const char *name, int64_t rows) {
  return kva_k_local(s->kb, name, s->t, rows * s->width);
}

const kva_expr *kva_query_tile_at(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane) {
  return plus(s, kva_expr_muli(s->kb->exprs, r, s->width), lane);
}

static void each(const kva_query_tile *s, const kva_far_piece *p, kva_query_tile_body body, void *user) {
  kva_kloop *r = kva_k_loop_begin(s->kb, KVA_K_SERIAL, kva_expr_sub(s->kb->exprs, p->end, p->begin), "r");
  kva_kloop *lane = kva_k_loop_begin(s->kb, KVA_K_VECTOR, num(s, p->lanes), "lane");
  body(s, plus(s, p->begin, r->var), plus(s, num(s, p->lane), lane->var), user);
  kva_k_loop_end(s->kb, lane);
  kva_k_loop_end(s->kb, r);
}

void kva_query_tile_each(const kva_query_tile *s, int64_t rows, kva_query_tile_body body, void *user) {
  each(s, &(kva_far_piece){num(s, 0), num(s, rows), 0, s->width}, body, user);
}

void kva_query_tile_each_far(const kva_query_tile *s, const kva_far_loop *far, kva_query_tile_body body, void *user) {
  for (uint32_t i = 0; i < far->n_pieces; i++) each(s, &far->pieces[i], body, user);
}

typedef struct fill {
  kva_kbuf *m;
  kva_kval v;
} fill;

static void fill_element(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user) {
  const fill *f = user;
  kva_k_store(s->kb, f->m, kva_query_tile_at(s, r, lane), f->v);
}

void kva_query_tile_fill(const kva_query_tile *s, kva_kbuf *m, int64_t rows, double v) {
  kva_query_tile_each(s, rows, fill_element, &(fill){m, kva_query_tile_const(s, v)});
}

/* ---- between memory and query tiles ------------------------------------------------------------------------------ */

static kva_kval element(const kva_query_tile *s, uint32_t operand, const kva_expr *head, const kva_expr *at,
                        const kva_expr *d) {
  kva_kval v = s->l->operand(s->l, s->a.n, operand, (const kva_expr *[]){s->b, head, at, d});
  return kva_k_convert(s->kb, v, s->t);
}

kva_kval kva_query_tile_far(const kva_query_tile *s, uint32_t operand, const kva_expr *head, const kva_expr *at,
                            const kva_expr *d) {
  if (!s->page) return element(s, operand, head, at, d);
  const kva_expr *row = kva_expr_sub(s->kb->exprs, at, s->page_first);
  kva_kval v = s->l->operand(s->l, s->a.n, operand, (const kva_expr *[]){s->page, head, row, d});
  return kva_k_convert(s->kb, v, s->t);
}

const kva_expr *kva_query_tile_clamp_far(const kva_query_tile *s, const kva_expr *at) {
  kva_expr_ctx *c = s->kb->exprs;
  kva_dim extent = s->far_extent;
  return kva_expr_provably_less(c, at, extent) ? at : kva_expr_min(c, at, kva_expr_addi(c, extent, -1));
}

/* Mask of the query tile's lanes inside the edge. */
static const kva_expr *filled(const kva_query_tile *s) {
  kva_expr_ctx *c = s->kb->exprs;
  return kva_expr_min(c, num(s, s->width), kva_expr_sub(c, s->extent, s->first));
}

typedef struct transfer {
  kva_kbuf *m, *scale; /* scale: of a lane; may be NULL */
  uint32_t number;     /* of the operand or result */
  const kva_expr *head;
  int64_t channels;
  kva_kval factor;
} transfer;

/* Moves the element of channel d and a lane between memory and a query tile. */
typedef void (*element_body)(const kva_query_tile *s, const transfer *t, const kva_expr *lane, const kva_expr *d);

static void pack_element(const kva_query_tile *s, const transfer *t, const kva_expr *lane, const kva_expr *d) {
  kva_query_place at = kva_query_tile_place(s, t->head, plus(s, s->first, lane));
  kva_kval v = element(s, t->number, at.head, at.t, d);
  kva_k_store(s->kb, t->m, kva_query_tile_at(s, d, lane), kva_k2(s->kb, KVA_K_mul, v, t->factor));
}

static void unpack_element(const kva_query_tile *s, const transfer *t, const kva_expr *lane, const kva_expr *d) {
  kva_kval f = t->factor;
  if (t->scale) f = kva_k2(s->kb, KVA_K_mul, f, kva_k_load(s->kb, t->scale, lane));
  kva_kval v = kva_k2(s->kb, KVA_K_mul, kva_k_load(s->kb, t->m, kva_query_tile_at(s, d, lane)), f);
  kva_query_place at = kva_query_tile_place(s, t->head, plus(s, s->first, lane));
  s->l->store(s->l, s->a.n, t->number, (const kva_expr *[]){s->b, at.head, at.t, d}, v);
}

/* Squares of as many lanes as channels, which registers transpose (llvm_transpose.c): loads are along one axis, stores
 * along the other. Vectors are along lanes, or along channels. */
static void move_squares(const kva_query_tile *s, const transfer *t, element_body body, const kva_expr *squares,
                         bool by_lane) {
  kva_expr_ctx *c = s->kb->exprs;
  kva_kloop *i = kva_k_loop_begin(s->kb, KVA_K_SERIAL, squares, "i");
  kva_kloop *j = kva_k_loop_begin(s->kb, KVA_K_SERIAL, num(s, t->channels / s->lanes), "j");
  kva_kloop *vector = kva_k_loop_begin(s->kb, KVA_K_VECTOR, num(s, s->lanes), "v");
  kva_kloop *round = kva_k_loop_begin(s->kb, KVA_K_UNROLL, num(s, s->lanes), "u");
  const kva_expr *lane = by_lane ? vector->var : round->var, *d = by_lane ? round->var : vector->var;
  body(s, t, plus(s, kva_expr_muli(c, i->var, s->lanes), lane), plus(s, kva_expr_muli(c, j->var, s->lanes), d));
  kva_k_loop_end(s->kb, round);
  kva_k_loop_end(s->kb, vector);
  kva_k_loop_end(s->kb, j);
  kva_k_loop_end(s->kb, i);
}

/* Lanes inside the edge: squares, then those that fill none. */
static void move_all(const kva_query_tile *s, const transfer *t, element_body body, bool by_lane) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *lanes = filled(s), *begin = num(s, 0);
  if (s->lanes > 1 && t->channels % s->lanes == 0) {
    const kva_expr *squares = kva_expr_div(c, lanes, num(s, s->lanes));
    move_squares(s, t, body, squares, by_lane);
    begin = kva_expr_muli(c, squares, s->lanes);
  }
  kva_kloop *lane = kva_k_loop_begin(s->kb, KVA_K_SERIAL, kva_expr_sub(c, lanes, begin), "lane");
  kva_kloop *d = kva_k_loop_begin(s->kb, KVA_K_VECTOR, num(s, t->channels), "d");
  body(s, t, plus(s, begin, lane->var), d->var);
  kva_k_loop_end(s->kb, d);
  kva_k_loop_end(s->kb, lane);
}

void kva_query_tile_pack(const kva_query_tile *s, kva_kbuf *m, uint32_t operand, const kva_expr *head, int64_t channels,
                         double factor) {
  kva_query_tile_fill(s, m, channels, 0);
  transfer t = {m, NULL, operand, head, channels, kva_query_tile_const(s, factor)};
  move_all(s, &t, pack_element, true);
}

void kva_query_tile_unpack(const kva_query_tile *s, kva_kbuf *m, uint32_t result, const kva_expr *head,
                           int64_t channels, double factor, kva_kbuf *scale) {
  transfer t = {m, scale, result, head, channels, kva_query_tile_const(s, factor)};
  move_all(s, &t, unpack_element, false);
}

/* ---- the matrix product ------------------------------------------------------------------------------------------ */

static int64_t tile_rows(const kva_query_tile *s, int64_t rows) {
  int64_t r = s->rows;
  while (rows % r) r /= 2;
  return r;
}

typedef struct tile {
  const kva_query_tile_product *p;
  int64_t rows, lane, lanes;
  const kva_expr *first_row, *k;
} tile;

typedef void (*tile_body)(const kva_query_tile *s, const tile *t, const kva_expr *r, const kva_expr *lane);
static void over_tile(const kva_query_tile *s, const tile *t, tile_body body) {
  kva_kloop *r = kva_k_loop_begin(s->kb, KVA_K_UNROLL, num(s, t->rows), "r");
  kva_kloop *lane = kva_k_loop_begin(s->kb, KVA_K_VECTOR, num(s, t->lanes), "lane");
  body(s, t, r->var, plus(s, num(s, t->lane), lane->var));
  kva_k_loop_end(s->kb, lane);
  kva_k_loop_end(s->kb, r);
}

static void start_tile(const kva_query_tile *s, const tile *t, const kva_expr *r, const kva_expr *lane) {
  kva_kval v = kva_query_tile_const(s, 0);
  if (!t->p->clear) v = kva_k_load(s->kb, t->p->out, kva_query_tile_at(s, plus(s, t->first_row, r), lane));
  if (t->p->rescale) v = kva_k2(s->kb, KVA_K_mul, v, kva_k_load(s->kb, t->p->rescale, lane));
  kva_k_store(s->kb, s->acc, kva_query_tile_at(s, r, lane), v);
}

static void finish_tile(const kva_query_tile *s, const tile *t, const kva_expr *r, const kva_expr *lane) {
  kva_kval v = kva_k_load(s->kb, s->acc, kva_query_tile_at(s, r, lane));
  kva_k_store(s->kb, t->p->out, kva_query_tile_at(s, plus(s, t->first_row, r), lane), v);
}

static void multiply_add(const kva_query_tile *s, const tile *t, const kva_expr *r, const kva_expr *lane) {
  const kva_query_tile_product *p = t->p;
  const kva_expr *row = plus(s, t->first_row, r);
  const kva_expr *at = kva_query_tile_clamp_far(s, plus(s, p->far->first, p->by_row ? row : t->k));
  kva_kval x = kva_query_tile_far(s, p->operand, p->head, at, p->by_row ? t->k : row);
  kva_kval y = kva_k_load(s->kb, p->in, kva_query_tile_at(s, t->k, lane));
  kva_kval acc = kva_k_load(s->kb, s->acc, kva_query_tile_at(s, r, lane));
  kva_k_store(s->kb, s->acc, kva_query_tile_at(s, r, lane), kva_lower_multiply_add(s->l, x, y, acc));
}

/* Adds steps begin .. end to the lanes of a tile. */
static void add_steps(const kva_query_tile *s, tile *t, const kva_expr *begin, const kva_expr *end) {
  kva_kloop *k = kva_k_loop_begin(s->kb, KVA_K_SERIAL, kva_expr_sub(s->kb->exprs, end, begin), "k");
  t->k = plus(s, begin, k->var);
  over_tile(s, t, multiply_add);
  kva_k_loop_end(s->kb, k);
}

/* The first tile of a piece that begins at `at`, or of the next one: that of the row that most lanes see decides where
 * a tile belongs, which is its first one or, of queries, its last one. */
static const kva_expr *first_tile(const kva_query_tile *s, const tile *t, const kva_expr *at) {
  const kva_expr *rows = num(s, t->rows);
  bool by_last = t->p->far->of_queries && at != t->p->far->n;
  return by_last ? kva_expr_div(s->kb->exprs, at, rows) : kva_expr_ceildiv(s->kb->exprs, at, rows);
}

/* Rows are the positions of a piece, with its lanes. */
static void multiply_rows(const kva_query_tile *s, tile *t, const kva_far_piece *piece) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *begin = first_tile(s, t, piece->begin), *end = first_tile(s, t, piece->end);
  kva_kloop *i = kva_k_loop_begin(s->kb, KVA_K_SERIAL, kva_expr_sub(c, end, begin), "i");
  t->first_row = kva_expr_muli(c, plus(s, begin, i->var), t->rows);
  t->lane = piece->lane, t->lanes = piece->lanes;
  over_tile(s, t, start_tile);
  add_steps(s, t, num(s, 0), num(s, t->p->channels));
  over_tile(s, t, finish_tile);
  kva_k_loop_end(s->kb, i);
}

/* Rows are channels, with all lanes; every piece adds its positions to its lanes. */
static void multiply_channels(const kva_query_tile *s, tile *t) {
  const kva_far_loop *far = t->p->far;
  kva_kloop *i = kva_k_loop_begin(s->kb, KVA_K_SERIAL, num(s, t->p->channels / t->rows), "i");
  t->first_row = kva_expr_muli(s->kb->exprs, i->var, t->rows);
  t->lane = 0, t->lanes = s->width;
  over_tile(s, t, start_tile);
  for (uint32_t p = 0; p < far->n_pieces; p++) {
    t->lane = far->pieces[p].lane, t->lanes = far->pieces[p].lanes;
    add_steps(s, t, far->pieces[p].begin, far->pieces[p].end);
  }
  t->lane = 0, t->lanes = s->width;
  over_tile(s, t, finish_tile);
  kva_k_loop_end(s->kb, i);
}

void kva_query_tile_multiply(const kva_query_tile *s, const kva_query_tile_product *p) {
  tile t = {.p = p, .rows = tile_rows(s, p->by_row ? s->block : p->channels)};
  if (!p->by_row) {
    multiply_channels(s, &t);
    return;
  }
  for (uint32_t i = 0; i < p->far->n_pieces; i++) multiply_rows(s, &t, &p->far->pieces[i]);
}

/* ---- products of rows -------------------------------------------------------------------------------------------- */

typedef struct row_tile {
  const kva_query_tile_rows *p;
  kva_kbuf *acc;
  int64_t rows, width;                  /* of the register tile: far positions, channels */
  const kva_expr *row, *channel, *lane; /* its first row and channel; the step */
} row_tile;

/* body(i, j) for the elements of a register tile, with channels in vectors. */
typedef void (*row_tile_body)(const kva_query_tile *s, const row_tile *t, const kva_expr *i, const kva_expr *j);
static void over_rows(const kva_query_tile *s, const row_tile *t, row_tile_body body) {
  kva_kloop *i = kva_k_loop_begin(s->kb, KVA_K_UNROLL, num(s, t->rows), "i");
  kva_kloop *j = kva_k_loop_begin(s->kb, KVA_K_VECTOR, num(s, t->width), "j");
  body(s, t, i->var, j->var);
  kva_k_loop_end(s->kb, j);
  kva_k_loop_end(s->kb, i);
}

static const kva_expr *in_acc(const kva_query_tile *s, const row_tile *t, const kva_expr *i, const kva_expr *j) {
  return plus(s, kva_expr_muli(s->kb->exprs, i, t->width), j);
}

static const kva_expr *in_out(const kva_query_tile *s, const row_tile *t, const kva_expr *i, const kva_expr *j) {
  const kva_expr *row = plus(s, t->p->out_row, plus(s, t->row, i));
  return plus(s, kva_expr_muli(s->kb->exprs, row, t->p->channels), plus(s, t->channel, j));
}

static void load_row(const kva_query_tile *s, const row_tile *t, const kva_expr *i, const kva_expr *j) {
  kva_k_store(s->kb, t->acc, in_acc(s, t, i, j), kva_k_load(s->kb, t->p->out, in_out(s, t, i, j)));
}

static void store_row(const kva_query_tile *s, const row_tile *t, const kva_expr *i, const kva_expr *j) {
  kva_k_store(s->kb, t->p->out, in_out(s, t, i, j), kva_k_load(s->kb, t->acc, in_acc(s, t, i, j)));
}

static void multiply_row(const kva_query_tile *s, const row_tile *t, const kva_expr *i, const kva_expr *j) {
  const kva_expr *at = plus(s, kva_expr_muli(s->kb->exprs, t->lane, t->p->channels), plus(s, t->channel, j));
  kva_kval x = kva_k_load(s->kb, t->p->in, kva_query_tile_at(s, plus(s, t->row, i), t->lane));
  kva_kval acc = kva_k_load(s->kb, t->acc, in_acc(s, t, i, j)), y = kva_k_load(s->kb, t->p->rows, at);
  kva_k_store(s->kb, t->acc, in_acc(s, t, i, j), kva_lower_multiply_add(s->l, x, y, acc));
}

/* Register tiles of so many rows at the rows from `begin` on. */
static void add_tiles(const kva_query_tile *s, row_tile *t, const kva_far_piece *piece, const kva_expr *begin,
                      const kva_expr *tiles) {
  kva_expr_ctx *c = s->kb->exprs;
  kva_kloop *i = kva_k_loop_begin(s->kb, KVA_K_SERIAL, tiles, "i");
  kva_kloop *j = kva_k_loop_begin(s->kb, KVA_K_SERIAL, num(s, t->p->channels / t->width), "j");
  t->row = plus(s, begin, kva_expr_muli(c, i->var, t->rows)), t->channel = kva_expr_muli(c, j->var, t->width);
  over_rows(s, t, load_row);
  const kva_expr *lanes =
      kva_expr_addi(c, kva_expr_min(c, filled(s), num(s, piece->lane + piece->lanes)), -piece->lane);
  kva_kloop *lane = kva_k_loop_begin(s->kb, KVA_K_SERIAL, lanes, "lane");
  t->lane = kva_expr_addi(c, lane->var, piece->lane);
  over_rows(s, t, multiply_row);
  kva_k_loop_end(s->kb, lane);
  over_rows(s, t, store_row);
  kva_k_loop_end(s->kb, j);
  kva_k_loop_end(s->kb, i);
}

/* Vectors of channels of a register tile; channels that are no whole vectors are one tile's. */
static int64_t row_tile_width(const kva_query_tile *s, int64_t channels) {
  for (int64_t width = s->width; width >= s->lanes; width /= 2)
    if (channels % width == 0) return width;
  return channels;
}

/* A row belongs to one piece: what is left of its rows are tiles of one. */
void kva_query_tile_add_rows(const kva_query_tile *s, const kva_query_tile_rows *p) {
  kva_expr_ctx *c = s->kb->exprs;
  int64_t width = row_tile_width(s, p->channels);
  row_tile t = {.p = p, .width = width, .acc = kva_k_local(s->kb, "row_acc", s->t, s->rows * width)};
  for (uint32_t i = 0; i < p->far->n_pieces; i++) {
    const kva_far_piece *piece = &p->far->pieces[i];
    const kva_expr *n = kva_expr_sub(c, piece->end, piece->begin);
    const kva_expr *whole = kva_expr_div(c, n, num(s, s->rows)), *begin = piece->begin;
    t.rows = s->rows;
    add_tiles(s, &t, piece, begin, whole);
    t.rows = 1;
    begin = plus(s, begin, kva_expr_muli(c, whole, s->rows));
    add_tiles(s, &t, piece, begin, kva_expr_mod(c, n, num(s, s->rows)));
  }
}

void kva_query_tile_copy_rows(const kva_query_tile *s, kva_kbuf *rows, uint32_t operand, int64_t channels) {
  kva_kloop *lane = kva_k_loop_begin(s->kb, KVA_K_SERIAL, filled(s), "lane");
  kva_kloop *d = kva_k_loop_begin(s->kb, KVA_K_VECTOR, num(s, channels), "d");
  kva_kval v = element(s, operand, s->h_kv, plus(s, s->first, lane->var), d->var);
  kva_k_store(s->kb, rows, plus(s, kva_expr_muli(s->kb->exprs, lane->var, channels), d->var), v);
  kva_k_loop_end(s->kb, d);
  kva_k_loop_end(s->kb, lane);
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Lanes and blocks extend past the edges: there the mask is not read, and 0 replaces it. */
static kva_kval mask_element(const kva_query_tile *s, const kva_expr *q, const kva_expr *key) {
  const kva_type *t = kva_operand_type(s->a.n, KVA_ATTENTION_MASK);
  kva_query_place at = kva_query_tile_place(s, s->h, q);
  const kva_expr *const all[4] = {s->b, at.head, at.t, key};
  const kva_expr *idx[4];
  for (uint32_t i = 0; i < t->rank; i++) idx[i] = kva_expr_is(t->dims[i], 1) ? num(s, 0) : all[4 - t->rank + i];
  const kva_expr *queries = s->grouped ? s->a.group : s->a.T;
  kva_kval inside = kva_k_and(s->kb, kva_k_index_lt(s->kb, q, queries), kva_k_index_lt(s->kb, key, s->a.S));
  kva_kval before = kva_k_guard_begin(s->kb, inside);
  kva_kval v = s->l->operand(s->l, s->a.n, KVA_ATTENTION_MASK, idx);
  kva_k_guard_end(s->kb, before);
  return v;
}

static kva_kval add_mask(const kva_query_tile *s, const kva_expr *q, const kva_expr *key, kva_kval x) {
  kva_kval mask = mask_element(s, q, key);
  if (mask->dtype == KVA_BOOL) return kva_k_select(s->kb, mask, x, kva_query_tile_const(s, -INFINITY));
  return kva_k2(s->kb, KVA_K_add, x, kva_k_convert(s->kb, mask, s->t));
}

/* Lanes past the edge read the last head's slope. */
static kva_kval add_alibi(const kva_query_tile *s, const kva_expr *q, const kva_expr *distance, kva_kval x) {
  kva_kb *kb = s->kb;
  const kva_expr *head = kva_query_tile_place(s, s->h, q).head;
  if (s->grouped) head = kva_expr_min(kb->exprs, head, kva_expr_addi(kb->exprs, s->a.H, -1));
  kva_kval slope = kva_k_convert(kb, s->l->operand(s->l, s->a.n, KVA_ATTENTION_SLOPES, &head), s->t);
  kva_kval far = kva_k1(kb, KVA_K_abs, kva_k_convert(kb, kva_k_index(kb, distance), s->t));
  return kva_k2(kb, KVA_K_sub, x, kva_k2(kb, KVA_K_mul, slope, far));
}

/* A query at `position` sees the key; NULL: always. */
static kva_kval visible(const kva_query_tile *s, const kva_expr *position, const kva_expr *key) {
  const kva_attention_attrs *attrs = &s->a.attrs;
  kva_kval seen = kva_k_index_lt(s->kb, key, s->a.S);
  if (attrs->causal || attrs->window > 0) seen = kva_k_and(s->kb, seen, kva_k_index_le(s->kb, key, position));
  if (attrs->window <= 0) return seen;
  return kva_k_and(s->kb, seen, kva_k_index_lt(s->kb, kva_expr_addi(s->kb->exprs, position, -attrs->window), key));
}

kva_kval kva_query_tile_score(const kva_query_tile *s, const kva_expr *q, const kva_expr *key, kva_kval dot,
                              kva_kval *out_cap) {
  kva_kb *kb = s->kb;
  const kva_attention_attrs *attrs = &s->a.attrs;
  const kva_expr *position = plus(s, kva_query_tile_place(s, s->h, q).t, s->a.offset);
  kva_kval x = dot, cap = NULL;
  if (attrs->softcap > 0) {
    kva_kval bent = kva_k1(kb, KVA_K_tanh, kva_k2(kb, KVA_K_mul, x, kva_query_tile_const(s, 1 / attrs->softcap)));
    x = kva_k2(kb, KVA_K_mul, bent, kva_query_tile_const(s, attrs->softcap));
    cap = kva_k_op(kb, KVA_K_fma, kva_k1(kb, KVA_K_neg, bent), bent, kva_query_tile_const(s, 1));
  }
  if (out_cap) *out_cap = cap;
  if (kva_operand(s->a.n, KVA_ATTENTION_SLOPES)) x = add_alibi(s, q, kva_expr_sub(kb->exprs, position, key), x);
  if (kva_operand(s->a.n, KVA_ATTENTION_MASK)) x = add_mask(s, q, key, x);
  return kva_k_select(kb, visible(s, position, key), x, kva_query_tile_const(s, -INFINITY));
}

kva_kval kva_query_tile_finite_max(const kva_query_tile *s, kva_kval max) {
  kva_kval none = kva_k2(s->kb, KVA_K_eq, max, kva_query_tile_const(s, -INFINITY));
  return kva_k_select(s->kb, none, kva_query_tile_const(s, 0), max);
}

kva_kval kva_query_tile_delta(const kva_query_tile *s, const kva_expr *q) {
  kva_kval delta = s->l->operand(s->l, s->a.n, KVA_ATTENTION_DELTA, (const kva_expr *[]){s->b, s->h, q});
  return kva_k_convert(s->kb, delta, s->t);
}
