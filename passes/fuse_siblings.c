/* Siblings: nodes that join a group because they read what it reads, not because it reads them.
 *
 * A node of element code that reads one of the group's operands at the same element, and that no producer's rule would
 * reach, joins: two gradients of one product.
 *
 * Partial sums of columns (ops/partial_sum.h) add up, row by row, what element code makes of a row. Such code often
 * reads what a group of rows reads: the gradient of a norm's scale beside that of its input. Whichever of the two
 * opened the group, the other one joins with all that leads to it from a tensor that both read. Whether that makes a
 * cycle is known only when it is in; a group that has one gets its former nodes back. */
#include "ops/partial_sum.h"
#include "passes/fuse_internal.h"

enum { MAX_PATH = 8, MAX_SHARED = 96 << 10 /* bytes of a block's shared memory for sums */ };

/* No path leads from a node at or after this position to one before it. */
static uint32_t walk_floor(const fuse *f, const group *g) {
  uint32_t floor = g->lowest;
  for (bool lower = true; lower;) {
    lower = false;
    for (uint32_t i = 0; i < f->groups.len; i++) {
      const group *h = f->groups.data[i];
      if (h->lowest >= floor || info(f, h->nodes[0])->position < floor) continue;
      floor = h->lowest;
      lower = true;
    }
  }
  return floor;
}

/* Notes what n reads outside g for the walk; true when some of it is in g. */
static bool walk_operands(fuse *f, const kva_node *n, const group *g, uint32_t floor) {
  bool inside = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_node *d = n->operands[i].value ? n->operands[i].value->def : NULL;
    if (!d || d->graph != n->graph) continue;
    inside |= in_group(f, d, g);
    if (in_group(f, d, g) || info(f, d)->mark == f->epoch || info(f, d)->position < floor) continue;
    info(f, d)->mark = f->epoch;
    KVA_PUSH(f->scratch, &f->pending, d);
  }
  return inside;
}

/* Some path leads from the group over a node outside it to n. */
static bool depends_on_group(fuse *f, const kva_node *n, const group *g) {
  uint32_t floor = walk_floor(f, g);
  f->epoch++;
  f->pending.len = 0;
  walk_operands(f, n, g, floor);
  while (f->pending.len) {
    const kva_node *d = f->pending.data[--f->pending.len];
    group *h = info(f, d)->group;
    if (!h && walk_operands(f, d, g, floor)) return true;
    if (!h || h->mark == f->epoch) continue;
    h->mark = f->epoch;
    for (uint32_t k = 0; k < h->n_nodes; k++)
      if (walk_operands(f, h->nodes[k], g, floor)) return true;
  }
  return false;
}

/* Nobody who reads n will take it: n would be the root of a group. */
static bool would_be_root(const fuse *f, const kva_node *n) {
  for (const kva_use *u = n->results[0].uses; u; u = u->next)
    if (kva_fuse_may_take(f, u, n)) return false;
  return n->results[0].uses;
}

/* n reads, of what the group of a tile makes, what the tile itself does. */
static bool follows_tile(const fuse *f, const kva_node *n, const group *g) {
  bool follows = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    if (v == &g->tile->results[0])
      follows = true;
    else if (v && in_group(f, v->def, g))
      return false;
  }
  return follows;
}

/* Does n, which reads a tensor that the group reads too, compute its elements at the group's own? */
static bool may_join_as_sibling(fuse *f, const kva_node *n, const group *g) {
  if (info(f, n)->group || !kva_fuse_same_segment(f, n, g) || kva_fuse_role(n) != ROLE_ELEMENT ||
      !(n->op->traits & KVA_ELEMENTWISE) || n->op->traits & KVA_UPDATES)
    return false;
  if (n->n_results != 1 || g->n_nodes >= MAX_GROUP || !would_be_root(f, n)) return false;
  const kva_type *t = n->results[0].type;
  if (t->rank != g->domain->rank || !kva_fuse_has_prefix(t, g->domain, t->rank)) return false;
  if (g->tile && !follows_tile(f, n, g)) return false;
  return !kva_fuse_use_returns(f, n, g) && !depends_on_group(f, n, g);
}

kva_node *kva_fuse_find_sibling(fuse *f, const group *g) {
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    const kva_node *c = g->nodes[k];
    for (uint32_t i = 0; info(f, c)->aligned && i < c->n_operands; i++) {
      const kva_value *v = c->operands[i].value;
      if (!v || v->type->rank != g->domain->rank || !kva_fuse_has_prefix(v->type, g->domain, v->type->rank)) continue;
      uint32_t seen = 0;
      for (const kva_use *u = v->uses; u && seen < MAX_USERS; u = u->next, seen++)
        if (u->user->graph == c->graph && may_join_as_sibling(f, u->user, g)) return u->user;
    }
  }
  return NULL;
}

/* Groups whose results are their domain's elements one by one take in what else reads their operands that way. */
bool kva_fuse_takes_siblings(const group *g) {
  role r = kva_fuse_role(g->nodes[0]);
  return g->domain->rank > 0 && (r == ROLE_ELEMENT || r == ROLE_ROW);
}

/* ---- sums of columns --------------------------------------------------------------------------------------------- */

static bool is_sum(const kva_node *n) {
  return kva_is(n, KVA_OP_partial_sum);
}

static bool is_domain(const kva_type *t, const group *g) {
  return t->rank == g->domain->rank && kva_fuse_has_prefix(t, g->domain, t->rank);
}

/* Shared memory of a block for it. */
static int64_t bytes_of(const kva_node *sum) {
  const kva_type *t = sum->results[0].type;
  int64_t n = 1, extent;
  for (uint32_t d = 1; d < t->rank; d++) n *= kva_expr_is_const(t->dims[d], &extent) ? extent : MAX_SHARED;
  return KVA_PARTIAL_BLOCK / kva_partial_subgroup(n) * n * kva_dtype_bits(t->dtype) / 8;
}

static const kva_node *first_sum(const group *g) {
  for (uint32_t k = 0; k < g->n_nodes; k++)
    if (is_sum(g->nodes[k])) return g->nodes[k];
  return NULL;
}

/* Adds up the rows of g in the blocks that its other sums have. */
static bool sum_fits(const kva_node *n, const group *g) {
  const kva_partial_sum_attrs *a = n->attrs;
  const kva_node *first = first_sum(g);
  int64_t bytes = bytes_of(n);
  if (!is_domain(kva_operand_type(n, 0), g) || (g->has_row && g->row_rank != (uint32_t)a->leading)) return false;
  if (first && first->results[0].type->dims[0] != n->results[0].type->dims[0]) return false;
  for (uint32_t k = 0; k < g->n_nodes; k++)
    if (is_sum(g->nodes[k])) bytes += bytes_of(g->nodes[k]);
  return bytes <= MAX_SHARED;
}

static bool is_element(const fuse *f, const kva_node *n, const group *g) {
  return !info(f, n)->group && (n->op->traits & KVA_ELEMENTWISE) && n->n_results == 1 &&
         !(n->op->traits & KVA_UPDATES) && is_domain(n->results[0].type, g);
}

/* A node that v leads to and that may join: a sum, or, if the group has sums, also the root of element code. */
static kva_node *find_beside(fuse *f, const group *g, const kva_value *v, uint32_t path) {
  uint32_t seen = 0;
  for (const kva_use *u = v->uses; u && path < MAX_PATH && seen < MAX_USERS; u = u->next, seen++) {
    kva_node *n = u->user;
    if (info(f, n)->group || info(f, n)->refused_by == g || !kva_fuse_same_segment(f, n, g)) continue;
    if (is_sum(n) && sum_fits(n, g)) return n;
    if (!is_element(f, n, g)) continue;
    if (first_sum(g) && would_be_root(f, n)) return n;
    kva_node *behind = find_beside(f, g, &n->results[0], path + 1);
    if (behind) return behind;
  }
  return NULL;
}

static kva_node *find_candidate(fuse *f, const group *g) {
  kva_node *found = NULL;
  for (uint32_t k = 0; k < g->n_nodes && !found; k++) {
    const kva_node *c = g->nodes[k];
    if (!info(f, c)->aligned) continue;
    for (uint32_t r = 0; r < c->n_results && !found; r++)
      if (is_domain(c->results[r].type, g)) found = find_beside(f, g, &c->results[r], 0);
    for (uint32_t i = 0; i < c->n_operands && !found; i++) {
      const kva_value *v = c->operands[i].value;
      if (v && is_domain(v->type, g)) found = find_beside(f, g, v, 0);
    }
  }
  return found;
}

bool kva_fuse_has_cycle(fuse *f, const group *g) {
  KVA_ASSERT(g->n_nodes);
  for (uint32_t k = 0; k < g->n_nodes; k++)
    if (kva_fuse_use_returns(f, g->nodes[k], g)) return true;
  return false;
}

/* Is v a result or an operand of one of the first n nodes of g? */
static bool has_value(const fuse *f, const group *g, uint32_t n, const kva_value *v) {
  for (uint32_t k = 0; k < n; k++) {
    if (v->def == g->nodes[k]) return true;
    for (uint32_t i = 0; info(f, g->nodes[k])->aligned && i < g->nodes[k]->n_operands; i++)
      if (g->nodes[k]->operands[i].value == v) return true;
  }
  return false;
}

/* Do the nodes from number n on read a tensor that those before read or make? */
static bool meets(const fuse *f, const group *g, uint32_t n) {
  for (uint32_t k = n; k < g->n_nodes; k++)
    for (uint32_t i = 0; i < g->nodes[k]->n_operands; i++) {
      const kva_value *v = g->nodes[k]->operands[i].value;
      if (v && is_domain(v->type, g) && has_value(f, g, n, v)) return true;
    }
  return false;
}

/* n joins with what it is made of, if that has no cycle and is indeed read beside the group: what leads to n may belong
 * elsewhere, as the residual stream leads from each layer's norm to that of the next. */
static bool join_with_producers(fuse *f, group *g, kva_node *n) {
  KVA_ASSERT(kva_fuse_takes_siblings(g));
  group before = *g;
  kva_fuse_add(f, g, n);
  while (kva_fuse_join_producers(f, g)) continue;
  if (!kva_fuse_has_cycle(f, g) && meets(f, g, before.n_nodes)) return true;
  kva_fuse_restore(f, g, &before);
  info(f, n)->refused_by = g;
  return false;
}

bool kva_fuse_join_sums(fuse *f, group *g) {
  if (!kva_fuse_takes_siblings(g) || g->tile || g->n_nodes + MAX_PATH >= MAX_GROUP) return false;
  kva_node *n = find_candidate(f, g);
  while (n && !join_with_producers(f, g, n)) n = find_candidate(f, g);
  return n;
}
