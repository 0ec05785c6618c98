/* Loop rewriting for schedules: merging, splitting, and making the grid. Each is a change of index variables that the
 * expression algebra checks; no rewrite matches the code inside. */
#include "codegen/schedule_internal.h"

void kva_sched_move(kva_kregion *from, kva_kregion *to) {
  KVA_ASSERT(from != to && !kva_k_encloses(from, to));
  while (from->first) {
    kva_kinstr *i = from->first;
    kva_k_unlink(i);
    kva_k_insert(to, NULL, i);
  }
}

kva_kloop *kva_sched_inner(const kva_kloop *l) {
  const kva_kinstr *only = l->body->first;
  if (!only || only->next || only->op != KVA_K_LOOP || only->loop->kind != l->kind) return NULL;
  return only->loop->carries.len ? NULL : only->loop;
}

typedef struct store_count {
  const kva_kbuf *buf;
  uint32_t n;
} store_count;

static void count_store(void *user, kva_kinstr *i) {
  store_count *c = user;
  c->n += i->op == KVA_K_STORE && i->buf == c->buf;
}

bool kva_sched_is_ordered(const kva_kernel *k, const kva_kbuf *buf) {
  store_count stores = {.buf = buf};
  if (!buf || !buf->written) return false;
  kva_k_each_instr(k, count_store, &stores);
  return buf->read || stores.n > 1;
}

static void find_value(void *user, const kva_expr *symbol) {
  const void **search = user; /* kernel, region, found */
  if (kva_k_symbol_region(search[0], symbol) == search[1]) search[2] = symbol;
}

kva_kloop *kva_sched_sole_map(const kva_kernel *k, const kva_kloop *l) {
  kva_kloop *inner = NULL;
  for (const kva_kinstr *i = l->body->first; i; i = i->next) {
    bool effect = i->op == KVA_K_STORE || i->op == KVA_K_IF || i->op == KVA_K_BARRIER || i->op == KVA_K_CARRY;
    if (effect || inner || (i->op == KVA_K_LOAD && kva_sched_is_ordered(k, i->buf))) return NULL;
    if (i->op == KVA_K_LOOP) inner = i->loop;
  }
  if (!inner || inner->kind != KVA_K_PARALLEL || inner->carries.len) return NULL;
  const void *search[] = {k, l->body, NULL};
  kva_expr_each_symbol(inner->extent, find_value, search);
  return search[2] ? NULL : inner;
}

void kva_sched_sink(kva_kloop *l) {
  kva_kloop *inner = NULL;
  for (const kva_kinstr *i = l->body->first; i; i = i->next)
    if (i->op == KVA_K_LOOP) inner = i->loop;
  KVA_ASSERT(inner);
  kva_kinstr *before = inner->body->first;
  while (l->body->first != inner->instr) {
    kva_kinstr *pure = l->body->first;
    kva_k_unlink(pure);
    kva_k_insert(inner->body, before, pure);
  }
}

/* Keeps loops that carry values: their results are the initial values. */
void kva_sched_drop_empty(kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL, *next; i; i = next) {
    next = i->next;
    bool empty = i->op == KVA_K_LOOP && kva_expr_is(i->loop->extent, 0) && !i->loop->carries.len;
    if (empty) kva_k_unlink(i);
    if (empty) continue;
    if (i->op == KVA_K_LOOP) kva_sched_drop_empty(i->loop->body);
    kva_sched_drop_empty(i->then);
    kva_sched_drop_empty(i->orelse);
  }
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

typedef struct merge {
  kva_expr_ctx *exprs;
  const kva_expr *i, *j, *n, *f; /* outer and inner variable, inner extent, the new variable f = i*n + j */
  bool possible, rewrite;
} merge;

/* x with i*n + j replaced by f; NULL if i and j appear in another form. */
static const kva_expr *merged(const merge *m, const kva_expr *x) {
  if (!kva_expr_uses(x, m->i) && !kva_expr_uses(x, m->j)) return x;
  const kva_expr *ci, *cj, *without_i, *rest;
  if (!kva_expr_affine(m->exprs, x, m->i, &ci, &without_i)) return NULL;
  if (!kva_expr_affine(m->exprs, without_i, m->j, &cj, &rest)) return NULL;
  if (kva_expr_uses(ci, m->j) || ci != kva_expr_mul(m->exprs, cj, m->n)) return NULL;
  return kva_expr_add(m->exprs, rest, kva_expr_mul(m->exprs, cj, m->f));
}

static void merge_instr(void *user, kva_kinstr *i) {
  merge *m = user;
  const kva_expr **x = i->op == KVA_K_LOOP ? &i->loop->extent : &i->index;
  if (!*x || !m->possible) return;
  const kva_expr *y = merged(m, *x);
  if (!y)
    m->possible = false;
  else if (m->rewrite)
    *x = y;
}

/* Replaces outer by the merged loop; NULL if an index would need a division. */
static kva_kloop *merge_loops(kva_kernel *k, kva_kloop *outer, kva_kloop *inner) {
  KVA_ASSERT(inner->instr->region == outer->body && inner->kind == outer->kind && !inner->carries.len);
  if (kva_expr_uses(inner->extent, outer->var)) return NULL;
  merge m = {k->exprs, outer->var, inner->var, inner->extent, outer->var, true, false};
  kva_k_each_instr_in(inner->body, merge_instr, &m);
  if (!m.possible) return NULL;
  const kva_expr *extent = kva_expr_mul(k->exprs, outer->extent, inner->extent);
  kva_kloop *l = kva_k_loop_create(k, outer->kind, extent, inner->var->name);
  m.f = l->var;
  m.rewrite = true;
  kva_k_each_instr_in(inner->body, merge_instr, &m);
  kva_k_insert(outer->instr->region, outer->instr, l->instr);
  kva_sched_move(inner->body, l->body);
  kva_k_unlink(outer->instr);
  return l;
}

bool kva_sched_rejoin(kva_kernel *k, kva_kregion *r, kva_kloop *outer, kva_kloop *inner, const kva_expr *f,
                      bool divide) {
  merge m = {k->exprs, outer->var, inner->var, inner->extent, f, true, false};
  kva_k_each_instr_in(r, merge_instr, &m);
  if (!m.possible && !divide) return false;
  if (m.possible) {
    m.rewrite = true;
    kva_k_each_instr_in(r, merge_instr, &m);
    return true;
  }
  const kva_expr *from[] = {outer->var, inner->var};
  const kva_expr *to[] = {kva_expr_div(k->exprs, f, inner->extent), kva_expr_mod(k->exprs, f, inner->extent)};
  kva_k_replace_index(k, 2, from, to);
  return true;
}

/* Innermost loops first; a merged loop may merge again with the one around it. */
static void collapse_loop(kva_kernel *k, kva_kloop *l) {
  kva_sched_collapse(k, l->body);
  if (l->kind != KVA_K_PARALLEL) return;
  kva_kloop *inner = kva_sched_inner(l);
  if (inner) merge_loops(k, l, inner);
}

void kva_sched_collapse(kva_kernel *k, kva_kregion *r) {
  for (kva_kinstr *i = r->first, *next; i; i = next) {
    next = i->next;
    if (i->op == KVA_K_LOOP) collapse_loop(k, i->loop);
  }
}

/* ---- splitting --------------------------------------------------------------------------------------------------- */

static const kva_expr *at_most(kva_kernel *k, const kva_expr *s, const kva_expr *block, const kva_expr *n) {
  if (kva_expr_is(kva_expr_mod(k->exprs, n, s), 0)) return s;
  return kva_expr_min(k->exprs, s, kva_expr_sub(k->exprs, n, kva_expr_mul(k->exprs, block, s)));
}

kva_kloop *kva_sched_split(kva_kernel *k, kva_kloop *l, int64_t size) {
  KVA_ASSERT(size > 0 && !l->carries.len && l->instr->region);
  const kva_expr *s = kva_expr_const(k->exprs, size);
  kva_kloop *blocks = kva_k_loop_create(k, KVA_K_PARALLEL, kva_expr_ceildiv(k->exprs, l->extent, s), "block");
  kva_kloop *within = kva_k_loop_create(k, l->kind, at_most(k, s, blocks->var, l->extent), l->var->name);
  within->width = l->width;
  kva_k_insert(l->instr->region, l->instr, blocks->instr);
  kva_k_insert(blocks->body, NULL, within->instr);
  kva_sched_move(l->body, within->body);
  kva_k_unlink(l->instr);
  const kva_expr *i = kva_expr_add(k->exprs, kva_expr_mul(k->exprs, blocks->var, s), within->var);
  kva_k_replace_index(k, 1, &l->var, &i);
  return blocks;
}

/* ---- grid -------------------------------------------------------------------------------------------------------- */

/* Delinearises f into the variables of the rows; the last varies fastest. */
static void unravel(kva_kernel *k, uint32_t n, kva_kloop *const *rows, const kva_expr *f) {
  KVA_ASSERT(n > 0);
  const kva_expr **from = KVA_NEW_ARRAY(k->arena, const kva_expr *, n),
                 **to = KVA_NEW_ARRAY(k->arena, const kva_expr *, n);
  for (uint32_t d = n; d-- > 0;) {
    from[d] = rows[d]->var;
    to[d] = d ? kva_expr_mod(k->exprs, f, rows[d]->extent) : f;
    f = kva_expr_div(k->exprs, f, rows[d]->extent);
  }
  kva_k_replace_index(k, n, from, to);
}

const kva_expr *kva_sched_count(kva_kernel *k, uint32_t n, kva_kloop *const *rows) {
  KVA_ASSERT(n > 0);
  const kva_expr *total = rows[0]->extent;
  for (uint32_t d = 1; d < n; d++) total = kva_expr_mul(k->exprs, total, rows[d]->extent);
  return total;
}

kva_kloop *kva_sched_grid(kva_kernel *k, uint32_t n, kva_kloop *const *rows, kva_kloop *const *order,
                          const kva_expr *size) {
  for (uint32_t d = 0; d < n; d++) KVA_ASSERT(!rows[d]->carries.len);
  kva_expr_ctx *c = k->exprs;
  const kva_expr *total = kva_sched_count(k, n, rows);
  kva_kloop *grid = kva_k_loop_create(k, KVA_K_GRID, kva_expr_ceildiv(c, total, size), "item"), *row = NULL;
  const kva_expr *f = grid->var;
  kva_k_insert(rows[0]->instr->region, rows[0]->instr, grid->instr);
  if (!kva_expr_is(size, 1)) {
    row = kva_k_loop_create(k, KVA_K_SERIAL, at_most(k, size, grid->var, total), "row");
    kva_k_insert(grid->body, NULL, row->instr);
    f = kva_expr_add(c, kva_expr_mul(c, grid->var, size), row->var);
  }
  kva_sched_move(rows[n - 1]->body, row ? row->body : grid->body);
  kva_k_unlink(rows[0]->instr);
  unravel(k, n, order, f);
  return grid;
}
