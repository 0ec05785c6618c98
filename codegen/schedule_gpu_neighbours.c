/* Straight-line code that reads neighbours: a row and the one before it (KV shifting), an element and its partner in
 * the other half of the row (rotary embeddings), angles that all heads and sequences share. One thread per element
 * would load each of them several times. So a thread takes both halves and several consecutive rows, and a block takes
 * the heads and sequences that share their angles, which are staged once for all of them (kva_kloop.stage):
 *
 *   for each block of rows c, for each PAIRS of the (head, sequence) pairs ...
 *     if the block is whole:  for each pair, a subgroup    for each j < half the row
 *                               { the body for rows c * rows + 0, 1 ... and both halves, unrolled }
 *     else:                   the same, with a loop over the remaining rows
 *
 * Where nothing is shared, each subgroup takes one block of rows. Copies of the body share common subexpressions.
 * Comparisons of indices whose outcome is known in a copy are constants there. */
#include "codegen/schedule_gpu.h"

enum {
  ROWS = 16,     /* if rows are neighbours: every 16 rows read one more */
  FREE_ROWS = 8, /* if not: enough loads in flight */
  PAIRS = 64,    /* angles are then a 128th of what a block loads and stores */
  MAX_LOOPS = 32,
  MAX_BODY = 64,
  LARGE_BODY = 40,
  ACCESS_BYTES = 16,
  HALF_BYTES = 8 /* of each half; bounds register pressure */
};

typedef struct neighbours {
  kva_kernel *k;
  uint32_t n;
  kva_kloop **nest;
  kva_kloop *leaf, *time; /* time: the loop over neighbouring rows; NULL: none */
  kva_kloop *folded[MAX_LOOPS];
  uint32_t n_folded;          /* loops that the angles do not depend on; only with time */
  int64_t rows;               /* of time, per thread */
  kva_kloop *blocks, *chunks; /* over blocks of time, over chunks of the folded loops */
  int64_t halves, half;       /* number of parts of the leaf's row, and their length */
  uint32_t width;
  kva_kinstr **copies; /* by id of an instruction of the body: its latest copy */
} neighbours;

/* Position of a copy of the body; NULL: the nest has no such loop. */
typedef struct place {
  const kva_expr *row, *lane, *pair;
  bool whole; /* in a block whose rows all exist */
} place;

/* ---- analysis ---------------------------------------------------------------------------------------------------- */

static uint32_t length_of(const kva_kregion *r) {
  uint32_t n = 0;
  for (const kva_kinstr *i = r->first; i; i = i->next) n++;
  return n;
}

static bool is_straight(const kva_kregion *r) {
  for (const kva_kinstr *i = r->first; i; i = i->next)
    if (i->op == KVA_K_LOOP || i->op == KVA_K_IF || i->op == KVA_K_BARRIER || i->op == KVA_K_CARRY) return false;
  return length_of(r) <= MAX_BODY;
}

static bool is_row_load(const neighbours *s, const kva_kinstr *i) {
  return i->op == KVA_K_LOAD && !i->buf->written && kva_expr_uses(i->index, s->leaf->var);
}

/* Two loads of the body coincide under l->var := to (halo reuse). */
static bool has_coinciding_loads(const neighbours *s, const kva_kloop *l, const kva_expr *to) {
  for (const kva_kinstr *i = s->leaf->body->first; i; i = i->next) {
    if (!is_row_load(s, i)) continue;
    const kva_expr *moved = kva_expr_substitute(s->k->exprs, i->index, 1, &l->var, &to);
    for (const kva_kinstr *o = s->leaf->body->first; o && moved != i->index; o = o->next)
      if (is_row_load(s, o) && o->buf == i->buf && o->index == moved) return true;
  }
  return false;
}

/* A load whose index varies with l but not with some other loop of the nest. */
static bool is_angle(const neighbours *s, const kva_kinstr *i, const kva_kloop *l) {
  if (!is_row_load(s, i) || !kva_expr_uses(i->index, l->var)) return false;
  for (uint32_t d = 0; d + 1 < s->n; d++)
    if (!kva_expr_uses(i->index, s->nest[d]->var)) return true;
  return false;
}

/* If there are angles along `rows`, lists the loops that no angle depends on. */
static void find_folded(neighbours *s, const kva_kloop *rows) {
  bool angles = false, used[MAX_LOOPS] = {false};
  for (const kva_kinstr *i = s->leaf->body->first; i; i = i->next) {
    if (!is_angle(s, i, rows)) continue;
    angles = true;
    for (uint32_t d = 0; d + 1 < s->n; d++) used[d] |= kva_expr_uses(i->index, s->nest[d]->var);
  }
  for (uint32_t d = 0; d + 1 < s->n && angles; d++)
    if (!used[d]) s->folded[s->n_folded++] = s->nest[d];
}

static void find_halves(neighbours *s, int64_t extent) {
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *whole = kva_expr_const(c, extent);
  s->halves = 1;
  if (extent % 2 == 0 &&
      has_coinciding_loads(s, s->leaf, kva_expr_mod(c, kva_expr_addi(c, s->leaf->var, extent / 2), whole)))
    s->halves = 2;
  s->half = extent / s->halves;
}

static void find_loops(neighbours *s) {
  for (uint32_t d = 0; d + 1 < s->n && !s->time; d++)
    if (has_coinciding_loads(s, s->nest[d], kva_expr_addi(s->k->exprs, s->nest[d]->var, 1))) s->time = s->nest[d];
  s->rows = s->time ? ROWS : FREE_ROWS;
  if (s->time) find_folded(s, s->time);
  for (uint32_t d = s->n - 1; d-- > 0 && !s->time;) {
    find_folded(s, s->nest[d]);
    if (s->n_folded) s->time = s->nest[d];
  }
}

/* Bytes of the widest element accessed along the leaf. Staged angles lie in shared memory and may be left out. */
static uint32_t widest_bytes(const neighbours *s, bool angles) {
  int bits = 8;
  for (const kva_kinstr *i = s->leaf->body->first; i; i = i->next) {
    bool access = i->op == KVA_K_LOAD || i->op == KVA_K_STORE;
    if (!access || !kva_expr_uses(i->index, s->leaf->var)) continue;
    if (!angles && s->n_folded && is_angle(s, i, s->time)) continue;
    if (kva_dtype_bits(i->buf->dtype) > bits) bits = kva_dtype_bits(i->buf->dtype);
  }
  return (uint32_t)bits / 8;
}

static bool find_subgroup(neighbours *s, int64_t threads) {
  KVA_ASSERT(s->halves >= 1 && s->half > 0);
  uint32_t bytes = widest_bytes(s, false), most = s->halves > 1 ? HALF_BYTES : ACCESS_BYTES;
  s->width = kva_sched_width(s->k, s->leaf);
  while (s->width > 1 && (s->half % s->width || s->width * bytes > most)) s->width /= 2;
  int64_t subgroup = s->half / s->width;
  return s->width > 1 && subgroup > 1 && subgroup < threads && !(subgroup & (subgroup - 1));
}

static bool find(neighbours *s, int64_t threads) {
  int64_t extent;
  if (s->n < 2 || s->n > MAX_LOOPS || !kva_expr_is_const(s->leaf->extent, &extent)) return false;
  if (!is_straight(s->leaf->body) || !kva_sched_is_rectangular(s->k, s->n, s->nest)) return false;
  find_halves(s, extent);
  find_loops(s);
  return (s->halves > 1 || s->time) && find_subgroup(s, threads);
}

/* ---- copies of the body ------------------------------------------------------------------------------------------ */

/* A lower bound of x when all rows of the block exist: x minus the rows after the block. */
static const kva_expr *at_least(const neighbours *s, const kva_expr *x) {
  KVA_ASSERT(s->time && s->blocks);
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *end = kva_expr_addi(c, kva_expr_muli(c, s->blocks->var, s->rows), s->rows);
  return kva_expr_sub(c, x, kva_expr_sub(c, s->time->extent, end));
}

static bool is_less(const neighbours *s, const kva_expr *x, const kva_expr *y, bool or_equal) {
  return or_equal ? kva_expr_provably_le(s->k->exprs, x, y) : kva_expr_provably_less(s->k->exprs, x, y);
}

/* x < y, or x <= y, in all threads. */
static bool is_certain(const neighbours *s, bool whole, const kva_expr *x, const kva_expr *y, bool or_equal) {
  return is_less(s, x, y, or_equal) || (whole && is_less(s, x, at_least(s, y), or_equal));
}

/* Folds a comparison of indices whose outcome is the same in all threads. whole: all rows of the block exist. */
static void fold_comparison(neighbours *s, kva_kinstr *i, bool whole) {
  const kva_expr *x, *y;
  if (!kva_sched_compares(s->k, i, &x, &y)) return;
  bool less = i->op == KVA_K_lt, holds = is_certain(s, whole, x, y, !less), fails = is_certain(s, whole, y, x, less);
  if (holds || fails) kva_sched_become_constant(i, holds);
}

/* An instruction of r that computes the same as i; NULL: none. */
static kva_kinstr *find_same(const kva_kregion *r, const kva_kinstr *i) {
  if (i->op == KVA_K_STORE || (i->op == KVA_K_LOAD && i->buf->written)) return NULL;
  for (kva_kinstr *o = r->first; o; o = o->next) {
    bool same = o->op == i->op && o->dtype == i->dtype && o->n_args == i->n_args && o->index == i->index &&
                o->buf == i->buf && o->imm.i == i->imm.i;
    for (uint32_t a = 0; same && a < i->n_args; a++) same = o->args[a] == i->args[a];
    if (same) return o;
  }
  return NULL;
}

/* The folded loops' variables as digits of `pair`, the last varying fastest. */
static uint32_t unfold(const neighbours *s, const kva_expr *pair, const kva_expr **from, const kva_expr **to) {
  kva_expr_ctx *c = s->k->exprs;
  for (uint32_t i = s->n_folded; i-- > 0;) {
    const kva_kloop *l = s->folded[i];
    from[i] = l->var;
    to[i] = i ? kva_expr_mod(c, pair, l->extent) : pair;
    pair = kva_expr_div(c, pair, l->extent);
  }
  return s->n_folded;
}

static void copy_body(neighbours *s, kva_kregion *to, place at, int64_t part) {
  KVA_ASSERT(at.lane && part >= 0 && part < s->halves && (!at.row || s->time));
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *from[MAX_LOOPS + 2], *with[MAX_LOOPS + 2];
  uint32_t n = at.pair ? unfold(s, at.pair, from, with) : 0;
  from[n] = s->leaf->var, with[n++] = kva_expr_addi(c, at.lane, part * s->half);
  if (at.row) from[n] = s->time->var, with[n++] = at.row;
  for (const kva_kinstr *i = s->leaf->body->first; i; i = i->next) {
    kva_kinstr *copy = kva_k_instr_create(s->k, i->op, i->dtype);
    copy->n_args = i->n_args;
    for (uint32_t a = 0; a < i->n_args; a++)
      copy->args[a] = i->args[a]->region == i->region ? s->copies[i->args[a]->id] : i->args[a];
    copy->imm = i->imm;
    copy->buf = i->buf;
    if (i->index) copy->index = kva_expr_substitute(c, i->index, n, from, with);
    fold_comparison(s, copy, at.whole);
    kva_sched_fold_predicate(copy);
    kva_kinstr *same = kva_sched_same_operand(copy);
    if (!same) same = find_same(to, copy);
    if (!same) kva_k_insert(to, NULL, copy);
    s->copies[i->id] = same ? same : copy;
  }
}

/* An unpredicated load between `first` and `end` that reads the same element as `like`. */
static kva_kinstr *find_load(kva_kinstr *first, const kva_kinstr *end, const kva_kinstr *like) {
  for (kva_kinstr *i = first; i != end; i = i->next)
    if (i->op == KVA_K_LOAD && !i->n_args && i->buf == like->buf && i->index == like->index) return i;
  return NULL;
}

static bool is_in_range(const neighbours *s, const kva_kinstr *load) {
  kva_expr_ctx *c = s->k->exprs;
  return kva_expr_provably_le(c, kva_expr_const(c, 0), load->index) &&
         kva_expr_provably_less(c, load->index, load->buf->extent);
}

/* An unpredicated load, placed before i, of the element that i reads under a predicate. Allowed if the code loads that
 * element anyway or the index is provably in range; else NULL. */
static kva_kinstr *unpredicated_load(neighbours *s, kva_kinstr *i) {
  kva_kinstr *load = find_load(i->region->first, i, i);
  if (load) return load;
  load = find_load(i->next, NULL, i);
  if (!load && !is_in_range(s, i)) return NULL;
  if (load) {
    kva_k_unlink(load);
  } else {
    load = kva_k_instr_create(s->k, KVA_K_LOAD, i->dtype);
    load->buf = i->buf;
    load->index = i->index;
  }
  kva_k_insert(i->region, i, load);
  return load;
}

/* A predicated load (a neighbour in the same document) of an element that is loaded anyway becomes a select between
 * that element and zero. */
static void share_loads(neighbours *s, kva_kregion *r) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_LOAD || !i->n_args || i->buf->written) continue;
    kva_kinstr *load = unpredicated_load(s, i);
    if (!load) continue;
    i->op = KVA_K_select;
    i->buf = NULL;
    i->index = NULL;
    i->args[1] = load;
    i->args[2] = kva_k_instr_create(s->k, KVA_K_CONST, i->dtype);
    i->n_args = 3;
    kva_k_insert(r, i, i->args[2]);
  }
}

static kva_kloop *in_loop(neighbours *s, kva_kregion *r, kva_kloop_kind kind, const kva_expr *extent,
                          const char *name) {
  kva_kloop *l = kva_k_loop_create(s->k, kind, extent, name);
  kva_k_insert(r, NULL, l->instr);
  return l;
}

static const kva_expr *pair_count(const neighbours *s) {
  return kva_sched_count(s->k, s->n_folded, s->folded);
}

/* Opens the loop over pairs, if any, and the loop over lanes; returns the body of the inner one. */
static kva_kregion *lanes_of(neighbours *s, kva_kregion *r, place *out) {
  kva_expr_ctx *c = s->k->exprs;
  if (s->n_folded) {
    const kva_expr *first = kva_expr_muli(c, s->chunks->var, PAIRS), *most = kva_expr_const(c, PAIRS);
    kva_kloop *pair = in_loop(s, r, KVA_K_THREAD, kva_expr_min(c, most, kva_expr_sub(c, pair_count(s), first)), "pair");
    pair->subgroup = (uint32_t)(s->half / s->width);
    pair->stage = true;
    out->pair = kva_expr_add(c, first, pair->var);
    r = pair->body;
  }
  kva_kloop *lane = in_loop(s, r, KVA_K_THREAD, kva_expr_const(c, s->half), s->leaf->var->name);
  lane->width = s->width;
  out->lane = lane->var;
  return lane->body;
}

static void whole_block(neighbours *s, kva_kregion *r) {
  place at = {.whole = s->time != NULL};
  r = lanes_of(s, r, &at);
  for (int64_t i = 0; i < (s->time ? s->rows : 1); i++) {
    if (s->time) at.row = kva_expr_addi(s->k->exprs, kva_expr_muli(s->k->exprs, s->blocks->var, s->rows), i);
    for (int64_t part = 0; part < s->halves; part++) copy_body(s, r, at, part);
  }
  share_loads(s, r);
}

static void rest_of_block(neighbours *s, kva_kregion *r) {
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *first = kva_expr_muli(c, s->blocks->var, s->rows);
  place at = {NULL};
  r = lanes_of(s, r, &at);
  kva_kloop *left = in_loop(s, r, KVA_K_SERIAL, kva_expr_sub(c, s->time->extent, first), "left");
  at.row = kva_expr_add(c, first, left->var);
  for (int64_t part = 0; part < s->halves; part++) copy_body(s, left->body, at, part);
}

static void body_of_block(neighbours *s, kva_kregion *r) {
  kva_expr_ctx *c = s->k->exprs;
  if (!s->time || kva_expr_is(kva_expr_mod(c, s->time->extent, kva_expr_const(c, s->rows)), 0)) {
    whole_block(s, r);
    return;
  }
  const kva_expr *end = kva_expr_addi(c, kva_expr_muli(c, s->blocks->var, s->rows), s->rows);
  kva_kinstr *test = kva_k_instr_create(s->k, KVA_K_le, KVA_BOOL),
             *branch = kva_k_instr_create(s->k, KVA_K_IF, KVA_DTYPE_NONE);
  test->args[0] = kva_sched_index_value(s->k, r, end);
  test->args[1] = kva_sched_index_value(s->k, r, s->time->extent);
  test->n_args = 2;
  kva_k_insert(r, NULL, test);
  branch->args[0] = test;
  branch->n_args = 1;
  branch->then = kva_k_region_create(s->k, branch);
  branch->orelse = kva_k_region_create(s->k, branch);
  kva_k_insert(r, NULL, branch);
  whole_block(s, branch->then);
  rest_of_block(s, branch->orelse);
}

/* ---- rewriting the nest ------------------------------------------------------------------------------------------ */

static bool is_folded(const neighbours *s, const kva_kloop *l) {
  for (uint32_t i = 0; i < s->n_folded; i++)
    if (s->folded[i] == l) return true;
  return false;
}

/* The loops of the grid; only their extents and variables are used. */
static uint32_t list_rows(neighbours *s, kva_kloop **rows) {
  uint32_t n = 0;
  for (uint32_t d = 0; d + 1 < s->n; d++)
    if (!is_folded(s, s->nest[d])) rows[n++] = s->nest[d] == s->time ? s->blocks : s->nest[d];
  if (s->n_folded) rows[n++] = s->chunks;
  return n;
}

static kva_kloop *map_create(kva_kernel *k, const kva_expr *count, int64_t each, const char *name) {
  return kva_k_loop_create(k, KVA_K_PARALLEL, kva_expr_ceildiv(k->exprs, count, kva_expr_const(k->exprs, each)), name);
}

static void rewrite(neighbours *s, int64_t threads) {
  kva_kernel *k = s->k;
  if (s->time) s->blocks = map_create(k, s->time->extent, s->rows, "block");
  if (s->n_folded) s->chunks = map_create(k, pair_count(s), PAIRS, "chunk");
  kva_kloop *rows[MAX_LOOPS];
  uint32_t n = list_rows(s, rows);
  kva_kinstr *old = s->nest[0]->instr;
  for (uint32_t d = 1; d < s->n; d++) kva_k_unlink(s->nest[d]->instr);
  if (rows[0]->instr != old) kva_k_insert(old->region, old, rows[0]->instr);
  if (rows[0]->instr != old) kva_k_unlink(old);
  body_of_block(s, rows[n - 1]->body);
  int64_t subgroup = s->half / s->width;
  kva_kloop *grid = kva_sched_grid(k, n, rows, rows, kva_expr_const(k->exprs, s->n_folded ? 1 : threads / subgroup));
  if (s->n_folded) return;
  kva_kloop *row = grid->body->first->loop;
  row->kind = KVA_K_THREAD;
  row->subgroup = (uint32_t)subgroup;
  row->stage = true;
}

bool kva_sched_neighbours(kva_kernel *k, uint32_t n, kva_kloop **nest, int64_t threads) {
  neighbours s = {.k = k, .n = n, .nest = nest, .leaf = nest[n - 1]};
  if (!find(&s, threads)) return false;
  bool wide = s.rows == ROWS && s.halves > 1 && s.width * widest_bytes(&s, true) > HALF_BYTES;
  if (wide || length_of(s.leaf->body) > LARGE_BODY)
    k->blocks = 1; /* bounds register pressure for many taps, or angles of floats */
  s.copies = KVA_NEW_ARRAY(k->arena, kva_kinstr *, k->next_id + 1);
  rewrite(&s, threads);
  return true;
}
