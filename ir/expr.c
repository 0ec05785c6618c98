/* Expressions: context, interning, symbols, and constructors of atoms that need no simplification.
 *
 * Every expression exists once: `kva_expr_intern` looks it up by kind and parts. Parts are interned already, so
 * comparing them is comparing pointers. Ids grow with creation: a part has a smaller id than the whole, and an extent a
 * smaller id than its loop variable, on which the prover relies. */
#include "ir/expr_internal.h"
#include "runtime/base/platform.h"

#include <inttypes.h>
#include <stdlib.h>

static uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

const void *kva_expr_table_find(const kva_expr_table *t, uint64_t hash, bool (*same)(const void *item, const void *key),
                                const void *key) {
  if (!t->cap) return NULL;
  for (uint32_t i = (uint32_t)hash & (t->cap - 1); t->items[i]; i = (i + 1) & (t->cap - 1)) {
    if (t->hashes[i] == hash && same(t->items[i], key)) return t->items[i];
  }
  return NULL;
}

static void table_put(kva_expr_table *t, uint64_t hash, const void *item) {
  KVA_ASSERT(t->len < t->cap); /* a free place ends each search */
  uint32_t i = (uint32_t)hash & (t->cap - 1);
  while (t->items[i]) i = (i + 1) & (t->cap - 1);
  t->hashes[i] = hash;
  t->items[i] = item;
}

void kva_expr_table_add(kva_arena *arena, kva_expr_table *t, uint64_t hash, const void *item) {
  if (2 * (t->len + 1) > t->cap) {
    kva_expr_table old = *t;
    t->cap = old.cap ? 2 * old.cap : 64;
    t->hashes = KVA_NEW_ARRAY(arena, uint64_t, t->cap);
    t->items = KVA_NEW_ARRAY(arena, const void *, t->cap);
    for (uint32_t i = 0; i < old.cap; i++) {
      if (old.items[i]) table_put(t, old.hashes[i], old.items[i]);
    }
    kva_pages_release(old.hashes, old.cap * sizeof *old.hashes);
    kva_pages_release(old.items, old.cap * sizeof *old.items);
  }
  table_put(t, hash, item);
  t->len++;
}

/* ---- interning --------------------------------------------------------------------------------------------------- */

static uint64_t intern_hash(const kva_expr *e) {
  uint64_t h = mix(e->kind + 1, (uint64_t)e->constant);
  for (uint32_t i = 0; i < e->n_terms; i++) {
    h = mix(mix(h, (uint64_t)e->terms[i].coefficient), (uint64_t)(uintptr_t)e->terms[i].factors);
  }
  if (e->a) h = mix(mix(h, e->a->id), e->b->id);
  return h;
}

static bool same_expr(const void *item, const void *key) {
  const kva_expr *x = item, *y = key;
  if (x->kind != y->kind || x->constant != y->constant || x->n_terms != y->n_terms || x->a != y->a || x->b != y->b) {
    return false;
  }
  for (uint32_t i = 0; i < x->n_terms; i++) {
    if (x->terms[i].coefficient != y->terms[i].coefficient || x->terms[i].factors != y->terms[i].factors) return false;
  }
  return x->kind != KVA_EXPR_SYMBOL;
}

/* n->symbols becomes the longest list of a part; what is not in it waits for join_symbols. */
static void add_symbols(kva_expr_ctx *c, kva_expr_node *n, const kva_expr *part) {
  const kva_expr_node *p = kva_expr_node_of(part);
  if (!p->n_symbols || p->symbols == n->symbols) return;
  bool longer = p->n_symbols > n->n_symbols;
  const kva_expr *const *waits = longer ? n->symbols : p->symbols;
  uint32_t n_waits = longer ? n->n_symbols : p->n_symbols;
  for (uint32_t i = 0; i < n_waits; i++) KVA_PUSH(c->arena, &c->waiting, waits[i]);
  if (!longer) return;
  n->symbols = p->symbols;
  n->n_symbols = p->n_symbols;
}

static int compare_ids(const void *left, const void *right) {
  const kva_expr *const *a = left, *const *b = right;
  return ((*a)->id > (*b)->id) - ((*a)->id < (*b)->id);
}

/* The union of n's list and what waits, sorted; n's own list if that is the union. */
static void join_symbols(kva_expr_ctx *c, kva_expr_node *n) {
  if (!c->waiting.len) return;
  for (uint32_t i = 0; i < n->n_symbols; i++) KVA_PUSH(c->arena, &c->waiting, n->symbols[i]);
  const kva_expr **all = c->waiting.data;
  uint32_t len = 0;
  qsort(all, c->waiting.len, sizeof *all, compare_ids);
  for (uint32_t i = 0; i < c->waiting.len; i++)
    if (!len || all[len - 1] != all[i]) all[len++] = all[i];
  c->waiting.len = 0;
  if (len == n->n_symbols) return;
  n->symbols = kva_arena_memdup(c->arena, all, len * sizeof *all);
  n->n_symbols = len;
}

static void account_part(kva_expr_ctx *c, kva_expr_node *n, const kva_expr *part) {
  const kva_expr_node *p = kva_expr_node_of(part);
  add_symbols(c, n, part);
  n->size += p->size;
  uint32_t depth = p->depth + (n->e.kind != KVA_EXPR_SUM);
  if (n->depth < depth) n->depth = depth;
  if (n->size > KVA_EXPR_MAX_SIZE) n->size = KVA_EXPR_MAX_SIZE + 1; /* cannot wrap */
}

static void account_parts(kva_expr_ctx *c, kva_expr_node *n) {
  n->size = 1;
  for (uint32_t t = 0; t < n->e.n_terms; t++) {
    for (uint32_t f = 0; f < n->e.terms[t].n_factors; f++) account_part(c, n, n->e.terms[t].factors[f]);
  }
  if (n->e.a) {
    account_part(c, n, n->e.a);
    account_part(c, n, n->e.b);
  }
  join_symbols(c, n);
}

const kva_expr *kva_expr_intern(kva_expr_ctx *c, const kva_expr *e) {
  uint64_t hash = intern_hash(e);
  const kva_expr *found = kva_expr_table_find(&c->exprs, hash, same_expr, e);
  if (found) return found;
  kva_expr_node *n = KVA_NEW(c->arena, kva_expr_node);
  n->e = *e;
  account_parts(c, n);
  if (n->size > KVA_EXPR_MAX_SIZE || n->depth > KVA_EXPR_MAX_DEPTH) return c->overflow;
  if (e->n_terms) n->e.terms = kva_arena_memdup(c->arena, e->terms, e->n_terms * sizeof *e->terms);
  KVA_ASSERT(!e->a || (e->a->id < c->all.len && e->b->id < c->all.len)); /* parts are older */
  n->e.id = c->all.len;
  KVA_PUSH(c->arena, &c->all, (const kva_expr *)&n->e);
  kva_expr_bounds(&n->e, &n->lo, &n->hi);
  if (e->kind == KVA_EXPR_SYMBOL) {
    const kva_expr **self = KVA_NEW(c->arena, const kva_expr *);
    *self = &n->e;
    n->symbols = self;
    n->n_symbols = 1;
    return &n->e;
  }
  kva_expr_table_add(c->arena, &c->exprs, hash, n);
  return &n->e;
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

kva_expr_ctx *kva_expr_ctx_create(kva_arena *arena) {
  kva_expr_ctx *c = KVA_NEW(arena, kva_expr_ctx);
  c->arena = arena;
  c->symbols = kva_map_create(arena);
  c->overflow = kva_expr_intern(c, &(kva_expr){.kind = KVA_EXPR_OVERFLOW});
  return c;
}

static const kva_expr *clone_expr(kva_expr_ctx *to, const kva_expr *e) {
  kva_expr copy = *e;
  if (e->kind == KVA_EXPR_SYMBOL) {
    return kva_expr_fresh(to, e->name, e->lo, e->extent ? to->all.data[e->extent->id] : NULL);
  }
  if (e->a) copy.a = to->all.data[e->a->id], copy.b = to->all.data[e->b->id];
  if (!e->n_terms) return kva_expr_intern(to, &copy);
  kva_expr_term *terms = KVA_NEW_ARRAY(to->arena, kva_expr_term, e->n_terms);
  for (uint32_t i = 0; i < e->n_terms; i++) {
    const kva_expr_term *t = &e->terms[i];
    const kva_expr *factors[KVA_EXPR_MAX_DEGREE];
    for (uint32_t f = 0; f < t->n_factors; f++) factors[f] = to->all.data[t->factors[f]->id];
    terms[i] = *t;
    terms[i].factors = kva_expr_monomial(to, t->n_factors, factors);
  }
  copy.terms = terms;
  return kva_expr_intern(to, &copy);
}

kva_expr_ctx *kva_expr_ctx_clone(const kva_expr_ctx *c, kva_arena *arena) {
  kva_expr_ctx *to = kva_expr_ctx_create(arena);
  for (uint32_t id = to->all.len; id < c->all.len; id++) {
    const kva_expr *copy = clone_expr(to, c->all.data[id]);
    KVA_ASSERT(copy->id == id);
  }
  for (uint32_t i = 0; i < kva_map_len(c->symbols); i++) {
    const kva_expr *e = kva_map_value_at(c->symbols, i);
    kva_map_set_str(to->symbols, e->name, (void *)(uintptr_t)to->all.data[e->id]);
  }
  return to;
}

/* Commutative parts are summed: their order depends on ids. */
uint64_t kva_expr_hash(const kva_expr *e, uint64_t (*symbol_hash)(void *user, const kva_expr *symbol), void *user) {
  if (e->kind == KVA_EXPR_SYMBOL) return mix(KVA_EXPR_SYMBOL, symbol_hash(user, e));
  uint64_t h = mix(e->kind, (uint64_t)e->constant), parts = 0;
  for (uint32_t i = 0; i < e->n_terms; i++) {
    uint64_t product = 0;
    for (uint32_t f = 0; f < e->terms[i].n_factors; f++) {
      product += kva_expr_hash(e->terms[i].factors[f], symbol_hash, user);
    }
    parts += mix(product, (uint64_t)e->terms[i].coefficient);
  }
  if (!e->a) return mix(h, parts);
  uint64_t a = kva_expr_hash(e->a, symbol_hash, user), b = kva_expr_hash(e->b, symbol_hash, user);
  bool commutative = e->kind == KVA_EXPR_MIN || e->kind == KVA_EXPR_MAX;
  return commutative ? mix(h, a + b) : mix(mix(h, a), b);
}

const kva_expr *kva_expr_const(kva_expr_ctx *c, int64_t v) {
  return kva_expr_intern(c, &(kva_expr){.kind = KVA_EXPR_SUM, .constant = v});
}

const kva_expr *kva_expr_fresh(kva_expr_ctx *c, const char *name, int64_t lo, const kva_expr *extent) {
  kva_expr e = {.kind = KVA_EXPR_SYMBOL, .name = kva_arena_strdup(c->arena, name), .lo = lo, .extent = extent};
  if (extent && kva_expr_is_overflow(extent)) return c->overflow;
  return kva_expr_intern(c, &e);
}

const kva_expr *kva_expr_symbol(kva_expr_ctx *c, const char *name) {
  const kva_expr *e = kva_map_get_str(c->symbols, name);
  if (e) return e;
  e = kva_expr_fresh(c, name, 0, NULL);
  kva_map_set_str(c->symbols, name, (void *)(uintptr_t)e);
  return e;
}

const kva_expr *kva_expr_new_symbol(kva_expr_ctx *c, const char *name) {
  const char *free_name = name;
  for (uint32_t i = 2; kva_map_get_str(c->symbols, free_name); i++)
    free_name = kva_arena_printf(c->arena, "%s_%" PRIu32, name, i);
  return kva_expr_symbol(c, free_name);
}

bool kva_expr_is_const(const kva_expr *e, int64_t *out_v) {
  if (e->kind != KVA_EXPR_SUM || e->n_terms) return false;
  if (out_v) *out_v = e->constant;
  return true;
}

bool kva_expr_is(const kva_expr *e, int64_t v) {
  return e->kind == KVA_EXPR_SUM && !e->n_terms && e->constant == v;
}

bool kva_expr_lower_bound(const kva_expr *e, int64_t *out_lo) {
  int64_t lo = kva_expr_lo(e);
  if (lo == INT64_MIN) return false;
  *out_lo = lo;
  return true;
}

bool kva_expr_upper_bound(const kva_expr *e, int64_t *out_hi) {
  int64_t hi = kva_expr_hi(e);
  if (hi == INT64_MAX) return false;
  *out_hi = hi;
  return true;
}

bool kva_expr_uses(const kva_expr *e, const kva_expr *symbol) {
  const kva_expr_node *n = kva_expr_node_of(e);
  for (uint32_t i = 0; i < n->n_symbols; i++) {
    if (n->symbols[i] == symbol) return true;
  }
  return false;
}

void kva_expr_each_symbol(const kva_expr *e, void (*visit)(void *user, const kva_expr *symbol), void *user) {
  const kva_expr_node *n = kva_expr_node_of(e);
  for (uint32_t i = 0; i < n->n_symbols; i++) visit(user, n->symbols[i]);
}
