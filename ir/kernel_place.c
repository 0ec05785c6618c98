/* Placement of pure instructions. An instruction depends on the regions of its operands, of its loop variables and of
 * its value symbols. All lie on the path of open regions; the instruction goes into the deepest of them.
 *
 * Loads are pure but may fault: hoisted out of a loop with zero trip count they could access memory that does not
 * exist, such as x[t, 0] of an empty x in a loop over its empty axis. So a load, or a loop with loads in it, leaves a
 * loop only if that loop runs at least once, or if the loops that remain around the load imply that it does (the sum
 * over r < C of x[t, r] leaves a loop over c < C: where C = 0, the sum loads nothing), or if the index is provably in
 * bounds. Loads never leave an arm of an `if`. */
#include "ir/kernel_internal.h"

kva_kregion *kva_kb_symbol_region(const kva_kb *b, const kva_expr *symbol) {
  const kva_kloop *l = kva_kb_get(b->memo->symbol_loops, symbol);
  if (l) return l->body;
  const kva_kinstr *v = kva_kb_get(b->memo->symbol_values, symbol);
  return v ? v->region : b->kernel->body;
}

typedef struct region_search {
  const kva_kb *b;
  kva_kregion *region;
} region_search;

static void visit_symbol(void *user, const kva_expr *symbol) {
  region_search *s = user;
  s->region = kva_kb_deeper(s->region, kva_kb_symbol_region(s->b, symbol));
}

kva_kregion *kva_kb_expr_region(const kva_kb *b, const kva_expr *e) {
  region_search s = {b, b->kernel->body};
  kva_expr_each_symbol(e, visit_symbol, &s);
  return s.region;
}

void kva_kb_link(const kva_kb *b, kva_kregion *r, kva_kinstr *i) {
  KVA_ASSERT(kva_k_encloses(r, b->region));
  kva_kinstr *open_child = NULL;
  for (kva_kregion *c = b->region; c != r; c = c->parent) open_child = c->owner;
  kva_k_insert(r, open_child, i);
}

/* ---- hoisting ---------------------------------------------------------------------------------------------------- */

enum { MAX_CONTEXT = 32 };

/* Extents of the loops around a load after it moves; all are positive where it runs. */
typedef struct context {
  kva_expr_ctx *exprs;
  const kva_expr *extents[MAX_CONTEXT];
  uint32_t n;
} context;

static void add_loops_around(context *c, const kva_kregion *from, const kva_kregion *end) {
  for (const kva_kregion *r = from; r != end && r->owner; r = r->parent) {
    if (r->owner->op == KVA_K_LOOP && c->n < MAX_CONTEXT) c->extents[c->n++] = r->owner->loop->extent;
  }
}

static bool is_product(const kva_expr *e) {
  return e->kind == KVA_EXPR_SUM && e->n_terms == 1 && !e->constant && e->terms->coefficient > 0;
}

/* A product of symbols that are never negative is positive only if each of them is. */
static bool has_factor(const kva_expr *e, const kva_expr *symbol) {
  if (e == symbol) return true;
  if (!is_product(e)) return false;
  bool found = false;
  for (uint32_t f = 0; f < e->terms->n_factors; f++) {
    const kva_expr *factor = e->terms->factors[f];
    if (factor->kind != KVA_EXPR_SYMBOL || factor->lo < 0) return false;
    found |= factor == symbol;
  }
  return found;
}

static bool is_positive_factor(const context *c, const kva_expr *factor) {
  if (factor->kind != KVA_EXPR_SYMBOL) return false;
  for (uint32_t i = 0; i < c->n; i++) {
    if (has_factor(c->extents[i], factor)) return true;
  }
  return false;
}

static bool is_positive(const context *c, const kva_expr *e) {
  if (is_positive_factor(c, e)) return true;
  for (uint32_t i = 0; i < c->n; i++) {
    if (kva_expr_provably_le(c->exprs, c->extents[i], e)) return true;
  }
  if (!is_product(e)) return false;
  for (uint32_t f = 0; f < e->terms->n_factors; f++) {
    if (!is_positive_factor(c, e->terms->factors[f])) return false;
  }
  return true;
}

static bool is_in_bounds(kva_expr_ctx *c, const kva_kinstr *load) {
  return kva_expr_provably_le(c, kva_expr_const(c, 0), load->index) &&
         kva_expr_provably_less(c, load->index, load->buf->extent);
}

typedef struct crossing {
  const kva_khoist *hoist;
  const kva_kloop *out_of;
  bool safe;
} crossing;

static void check_load(void *user, kva_kinstr *load) {
  crossing *x = user;
  if (!x->safe || load->op != KVA_K_LOAD) return;
  context c = {.exprs = x->hoist->exprs};
  if (load->region) add_loops_around(&c, load->region, x->hoist->loop->instr->region);
  add_loops_around(&c, x->out_of->instr->region, NULL);
  x->safe = is_positive(&c, x->out_of->extent) || is_in_bounds(c.exprs, load);
}

static bool may_cross(const kva_khoist *h, const kva_kloop *out_of) {
  int64_t lo;
  if (kva_expr_lower_bound(out_of->extent, &lo) && lo >= 1) return true;
  crossing x = {h, out_of, true};
  if (h->load) check_load(&x, (kva_kinstr *)h->load);
  if (h->loop) kva_k_each_instr_in(h->loop->body, check_load, &x);
  return x.safe;
}

kva_kregion *kva_kb_hoist(const kva_khoist *h, kva_kregion *from, kva_kregion *lowest) {
  KVA_ASSERT(kva_k_encloses(lowest, from));
  if (!h->load && !h->loop) return lowest;
  for (kva_kregion *r = from; r != lowest; r = r->parent) {
    if (r->owner->op == KVA_K_IF || !may_cross(h, r->owner->loop)) return r;
  }
  return lowest;
}
