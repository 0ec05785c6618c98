/* Transpositions: y[p, q] = f(x[q, p], ...). Threads along q have coalesced stores but strided loads. So a block takes
 * a square tile of both loops and transposes it in shared memory. The tile's pitch is one word more than its side, so
 * that neither accesses by row nor by column have bank conflicts:
 *
 *   for each r < 32, a warp    for each c < 32, a lane    tile[r, c] = x[r, c]      (r along q, c along p)
 *   barrier
 *   for each r < 32, a warp    for each c < 32, a lane    y[r, c] = f(tile[c, r])   (r along p, c along q) */
#include "codegen/schedule_gpu.h"

enum { SIDE = 32, WORD = 4, MAX_TILES = 4, SHORT_SIDE = 8, MAX_NEST = 32 };

typedef struct transposition {
  kva_kernel *k;
  uint32_t n;
  kva_kloop **nest;
  kva_kloop *p, *q; /* q: the leaf */
  uint32_t n_tiled;
  kva_kinstr *tiled[MAX_TILES]; /* loads with stride 1 along p and another stride along q */
  bool ok;
} transposition;

static bool moves_by(kva_kernel *k, const kva_expr *x, const kva_kloop *l, int64_t by) {
  const kva_expr *coefficient, *rest;
  return kva_expr_affine(k->exprs, x, l->var, &coefficient, &rest) && kva_expr_is(coefficient, by);
}

static kva_kloop *unit_loop(const transposition *t, const kva_expr *x) {
  for (uint32_t d = 0; d + 1 < t->n; d++)
    if (moves_by(t->k, x, t->nest[d], 1)) return t->nest[d];
  return NULL;
}

static void look(void *user, kva_kinstr *i) {
  transposition *t = user;
  bool memory = i->op == KVA_K_LOAD || i->op == KVA_K_STORE;
  if (i->op == KVA_K_LOOP || i->op == KVA_K_IF || i->op == KVA_K_BARRIER) t->ok = false;
  if (!memory || moves_by(t->k, i->index, t->q, 0) || moves_by(t->k, i->index, t->q, 1)) return;
  kva_kloop *p = i->op == KVA_K_LOAD ? unit_loop(t, i->index) : NULL;
  bool plain = p && !i->n_args && !i->buf->written && kva_dtype_bits(i->buf->dtype) >= 8;
  if (!plain || (t->p && t->p != p) || t->n_tiled == MAX_TILES) {
    t->ok = false;
    return;
  }
  t->p = p;
  t->tiled[t->n_tiled++] = i;
}

static bool is_long(const kva_kloop *l) {
  int64_t n;
  return !kva_expr_is_const(l->extent, &n) || n >= SHORT_SIDE;
}

/* Splits l by tiles: returns an unlinked, empty loop over the tiles; l's variable is the position within one. */
static kva_kloop *split_by_tiles(transposition *t, kva_kloop *l) {
  KVA_ASSERT(l->kind == KVA_K_PARALLEL && !l->carries.len);
  kva_expr_ctx *c = t->k->exprs;
  const kva_expr *side = kva_expr_const(c, SIDE);
  kva_kloop *squares = kva_k_loop_create(t->k, KVA_K_PARALLEL, kva_expr_ceildiv(c, l->extent, side), "square");
  const kva_expr *first = kva_expr_mul(c, squares->var, side), *at = kva_expr_add(c, first, l->var);
  bool whole = kva_expr_is(kva_expr_mod(c, l->extent, side), 0);
  const kva_expr *within = whole ? side : kva_expr_min(c, side, kva_expr_sub(c, l->extent, first));
  kva_k_replace_index(t->k, 1, &l->var, &at);
  l->extent = within;
  return squares;
}

static kva_kloop *thread_loop(kva_kernel *k, const kva_expr *extent, uint32_t subgroup) {
  kva_kloop *l = kva_k_loop_create(k, KVA_K_THREAD, extent, subgroup > 1 ? "line" : "lane");
  l->subgroup = subgroup;
  return l;
}

/* Elements from row to row: one word more than the side, so that rows of narrow types stay aligned to words. */
static int64_t pitch_of(kva_dtype dtype) {
  KVA_ASSERT(kva_dtype_bits(dtype) >= 8);
  int bytes = kva_dtype_bits(dtype) / 8;
  return SIDE + (bytes < WORD ? WORD / bytes : 1);
}

static kva_kbuf *tile_create(kva_kernel *k, kva_dtype dtype) {
  return kva_sched_shared(k, "tile", dtype, SIDE * pitch_of(dtype));
}

static const kva_expr *tile_index(kva_kernel *k, const kva_kbuf *tile, const kva_expr *row, const kva_expr *column) {
  return kva_expr_add(k->exprs, kva_expr_muli(k->exprs, row, pitch_of(tile->dtype)), column);
}

/* The first half of the algorithm: fills the tiles. The loads that it replaces read the tiles from now on. */
static void load_tiles(transposition *t, kva_kregion *to) {
  kva_kernel *k = t->k;
  kva_kloop *line = thread_loop(k, t->q->extent, SIDE), *lane = thread_loop(k, t->p->extent, 1);
  const kva_expr *from[] = {t->q->var, t->p->var}, *vars[] = {line->var, lane->var};
  kva_k_insert(to, NULL, line->instr);
  kva_k_insert(line->body, NULL, lane->instr);
  for (uint32_t i = 0; i < t->n_tiled; i++) {
    kva_kinstr *use = t->tiled[i], *load = kva_k_instr_create(k, KVA_K_LOAD, use->dtype),
               *store = kva_k_instr_create(k, KVA_K_STORE, KVA_DTYPE_NONE);
    load->buf = use->buf;
    load->index = kva_expr_substitute(k->exprs, use->index, 2, from, vars);
    store->buf = use->buf = tile_create(k, load->buf->dtype);
    store->index = tile_index(k, use->buf, line->var, lane->var);
    store->args[store->n_args++] = load;
    use->index = tile_index(k, use->buf, t->q->var, t->p->var);
    kva_k_insert(lane->body, NULL, load);
    kva_k_insert(lane->body, NULL, store);
  }
  kva_k_insert(to, NULL, kva_k_instr_create(k, KVA_K_BARRIER, KVA_DTYPE_NONE));
}

/* The second half: the nest's own body. */
static void store_results(transposition *t, kva_kregion *to) {
  kva_k_unlink(t->q->instr);
  while (t->p->body->first) kva_k_unlink(t->p->body->first);
  t->p->kind = t->q->kind = KVA_K_THREAD;
  t->p->subgroup = SIDE;
  kva_k_insert(t->p->body, NULL, t->q->instr);
  kva_k_insert(to, NULL, t->p->instr);
}

static void rewrite(transposition *t) {
  kva_kernel *k = t->k;
  kva_kloop *rows[MAX_NEST + 1], *order[MAX_NEST + 1], *across = split_by_tiles(t, t->p),
                                                       *down = split_by_tiles(t, t->q);
  uint32_t n = 0;
  for (uint32_t d = 0; d < t->n; d++)
    if (t->nest[d] != t->p && t->nest[d] != t->q) order[n++] = t->nest[d];
  rows[0] = across;
  memcpy(rows + 1, order, n * sizeof *order);
  order[n++] = across;
  rows[n] = order[n] = down;
  kva_kinstr *nest = t->nest[0]->instr;
  kva_k_insert(nest->region, nest, across->instr);
  kva_k_unlink(nest);
  if (t->p->instr != nest) kva_k_unlink(t->p->instr);
  load_tiles(t, down->body);
  store_results(t, down->body);
  kva_sched_grid(k, n + 1, rows, order, kva_expr_const(k->exprs, 1));
}

bool kva_sched_transpose(kva_kernel *k, uint32_t n, kva_kloop **nest) {
  transposition t = {.k = k, .n = n, .nest = nest, .q = nest[n - 1], .ok = n >= 2 && n <= MAX_NEST};
  if (t.ok) kva_k_each_instr_in(t.q->body, look, &t);
  if (!t.ok || !t.n_tiled || !is_long(t.p) || !is_long(t.q) || !kva_sched_is_rectangular(k, n, nest)) return false;
  rewrite(&t);
  return true;
}
