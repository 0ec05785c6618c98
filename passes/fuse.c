/* Fusion: groups element operators into kernels.
 *
 * What: outlines groups of nodes into kv.kernel nodes whose sub-graph holds them. Lowering then pulls values through
 * the group by index, so maps, views and broadcasts inside a group cost no memory traffic.
 *
 * A group has a root, the node that gives it its iteration domain D: the result shape of an elementwise or movement
 * node, the operand shape of a reduction over trailing axes ("row reduction"). A producer joins the group of its
 * consumers when every element of it is computed once there:
 *   - element code without reduction: always, where its consumers read each element about once (movement, elementwise,
 *     reductions), or when it is cheap enough to compute again;
 *   - a row reduction over the rows of D (softmax, norms, sums): when all its consumers in the group stand at the same
 *     element of D ("aligned"), because then the builder places it in the row loop.
 * A producer with consumers elsewhere joins as a further output if it is aligned and no path leads from such a consumer
 * back into the group.
 *
 * A node beside the group may join as a sibling (fuse_siblings.c): two gradients of one product are one pass over what
 * they share. On a GPU small updates of optimisers share a kernel (fuse_updates.c).
 *
 * A tile operator (matmul, conv, attention) hands its elements to the rest of its group one by one
 * (codegen/lower_tile.c). It joins a group of element code, one to a group, when everything there that depends on it
 * reads it at the element where it stands itself, or through one reshape or transposition, and all the group's outputs
 * depend on it: the epilogue. It may be an output too. What its operands are made of joins where that costs the inner
 * loops nothing: views that keep the innermost axis, cheap elementwise code before the operand that is copied to
 * panels, and masks of attention that compare rows with columns (equal documents), which never become a matrix. Row
 * reductions and tiles never share a group.
 *
 * Convolutions with channels last (layout.c) take the transpositions around them, too. The transposition after such a
 * result, and any element code in between that nothing else reads, is never duplicated into another kernel, which would
 * read the result across memory. A window joins a transposition of that kind that follows it.
 *
 * Nodes that bind a symbol cut a graph into segments. A group lies within one, so that it stands after the nodes that
 * bind what it uses; only copies of cheap nodes come from an earlier segment. Sub-graphs of control nodes are graphs of
 * their own.
 *
 * Algorithm: nodes are visited backwards; each unclaimed node opens a group and absorbs producers, nearest first, until
 * nothing joins. Cheap nodes with several consumers are copied into each. Requires: SSA order. Breaks:
 * node order. Why not a global optimum: groups of real models are rows and chains; the greedy choice finds them, and a
 * wrong choice costs one pass over one tensor. */
#include "passes/fuse_internal.h"
#include "ops/matmul.h"

/* ---- roles ------------------------------------------------------------------------------------------------------- */

/* See kva_op_info.row_dims. Whole-tensor sums do not count: nothing is shared between elements. */
static int row_rank_of(const kva_node *n) {
  return n->op->row_dims ? n->op->row_dims(n) : -1;
}

role kva_fuse_role(const kva_node *n) {
  if (n->op->traits & KVA_TILE) return ROLE_TILE;
  if (n->op->lower_kind != KVA_LOWER_ELEMENT) return ROLE_OTHER;
  if (!(n->op->traits & KVA_REDUCES)) return ROLE_ELEMENT;
  if (row_rank_of(n) >= 0) return ROLE_ROW;
  return n->op->traits & KVA_READS_ONCE ? ROLE_SINK : ROLE_WINDOW;
}

/* ---- legality ---------------------------------------------------------------------------------------------------- */

/* `to` has the extents of `from` and ones after them: a row's value made to broadcast over the row. */
static bool appends_ones(const kva_type *from, const kva_type *to) {
  if (to->rank < from->rank) return false;
  for (uint32_t d = 0; d < to->rank; d++)
    if (d < from->rank ? to->dims[d] != from->dims[d] : !kva_expr_is(to->dims[d], 1)) return false;
  return true;
}

/* Consumer c (in the group, aligned) reads p at the element where it stands itself. */
static bool edge_keeps_alignment(const kva_node *c, const kva_value *p, const group *g) {
  if (c->op->traits & KVA_ELEMENTWISE) return p->type->rank == c->results[0].type->rank || p->type->rank == 0;
  if (kva_fuse_role(c) == ROLE_ROW) return p->type->rank == g->domain->rank;
  return kva_is(c, KVA_OP_reshape) && appends_ones(p->type, c->results[0].type);
}

bool kva_fuse_has_prefix(const kva_type *t, const kva_type *domain, uint32_t n) {
  KVA_ASSERT(t->kind == KVA_TYPE_TENSOR && domain->kind == KVA_TYPE_TENSOR);
  if (t->rank < n || domain->rank < n) return false;
  for (uint32_t d = 0; d < n; d++)
    if (t->dims[d] != domain->dims[d]) return false;
  return true;
}

/* Shape of the domain's rows, which have row_rank dims, with extent-1 tails. */
static bool is_row_shape(const kva_type *t, const group *g, uint32_t row_rank) {
  if (!kva_fuse_has_prefix(t, g->domain, row_rank)) return false;
  if (t->rank == row_rank) return true;
  if (t->rank != g->domain->rank) return false;
  for (uint32_t d = row_rank; d < t->rank; d++)
    if (!kva_expr_is(t->dims[d], 1)) return false;
  return true;
}

static bool is_domain_or_row_shape(const kva_type *t, const group *g) {
  if (t->rank == g->domain->rank && kva_fuse_has_prefix(t, g->domain, t->rank)) return true;
  return g->has_row && is_row_shape(t, g, g->row_rank);
}

static bool row_fits(const kva_node *p, const group *g) {
  int rank = row_rank_of(p);
  if (rank <= 0 || (g->has_row && (uint32_t)rank != g->row_rank)) return false;
  const kva_type *x = kva_operand_type(p, 0);
  /* Rows of p must be rows of the domain; when the result drops the row's axes the domain may be the rows alone. */
  if (!kva_fuse_has_prefix(x, g->domain, (uint32_t)rank)) return false;
  return x->rank == g->domain->rank || g->domain->rank == (uint32_t)rank;
}

/* Notes the users of n for the walk; true when one is in g. */
static bool walk_users(fuse *f, const kva_node *n, const group *g) {
  for (uint32_t r = 0; r < n->n_results; r++)
    for (const kva_use *u = n->results[r].uses; u; u = u->next) {
      node_info *user = info(f, u->user);
      if (user->group == g) return true;
      if (user->mark == f->epoch || user->position > g->limit) continue;
      user->mark = f->epoch;
      KVA_PUSH(f->scratch, &f->pending, u->user);
    }
  return false;
}

static bool walk_on(fuse *f, const kva_node *n, const group *g) {
  group *h = info(f, n)->group;
  if (!h) return walk_users(f, n, g);
  if (h->mark == f->epoch) return false;
  h->mark = f->epoch;
  for (uint32_t k = 0; k < h->n_nodes; k++)
    if (walk_users(f, h->nodes[k], g)) return true;
  return false;
}

bool kva_fuse_use_returns(fuse *f, const kva_node *p, const group *g) {
  f->epoch++;
  f->pending.len = 0;
  for (uint32_t r = 0; r < p->n_results; r++)
    for (const kva_use *u = p->results[r].uses; u; u = u->next)
      if (!in_group(f, u->user, g) && info(f, u->user)->position <= g->limit)
        KVA_PUSH(f->scratch, &f->pending, u->user);
  while (f->pending.len)
    if (walk_on(f, f->pending.data[--f->pending.len], g)) return true;
  return false;
}

typedef struct consumers {
  bool all_inside, all_aligned;
} consumers;

static consumers look_at_consumers(const fuse *f, const kva_node *p, const group *g) {
  KVA_ASSERT(p->id < f->info.len);
  consumers c = {true, true};
  for (uint32_t r = 0; r < p->n_results; r++)
    for (const kva_use *u = p->results[r].uses; u; u = u->next) {
      if (!in_group(f, u->user, g)) {
        c.all_inside = false;
        continue;
      }
      c.all_aligned &= info(f, u->user)->aligned && edge_keeps_alignment(u->user, &p->results[r], g);
    }
  return c;
}

enum { MAX_INDEX_DEPTH = 4 }; /* operations from one gather of a chain to the next */

/* Is v derived, within a few operations per step, from a chain of `gathers` dependent gathers? depth: operations in
 * which the next gather must be found. */
static bool is_found(const kva_value *v, int gathers, int depth) {
  const kva_node *n = v ? v->def : NULL;
  if (!gathers) return true;
  if (!n || !depth) return false;
  if (n->op->indexing) return is_found(kva_operand(n, 1), gathers - 1, MAX_INDEX_DEPTH);
  if (!(n->op->traits & (KVA_ELEMENTWISE | KVA_VIEW))) return false;
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (is_found(kva_operand(n, i), gathers, depth - 1)) return true;
  return false;
}

/* Gathers that lead gathers: each element waits for those before it, so that chains are cut after two. */
static bool ends_chain(const kva_value *v, const kva_use *u) {
  return kva_is(u->user, KVA_OP_gather) && u->index == 1 && is_found(v, 2, MAX_INDEX_DEPTH);
}

/* Reading p once for each element of its consumers costs about as much as reading it from memory. */
static bool reads_elements_once(const fuse *f, const kva_node *p, const group *g) {
  for (uint32_t r = 0; r < p->n_results; r++)
    for (const kva_use *u = p->results[r].uses; u; u = u->next) {
      if (!in_group(f, u->user, g)) continue;
      bool broadcast = kva_is(u->user, KVA_OP_expand) || kva_is(u->user, KVA_OP_gather) ||
                       ((u->user->op->traits & KVA_ELEMENTWISE) && p->results[r].type->rank > 0 &&
                        !is_domain_or_row_shape(p->results[r].type, g) && info(f, u->user)->aligned);
      if (broadcast && !(p->op->traits & KVA_CHEAP)) return false;
      if (ends_chain(&p->results[r], u)) return false;
    }
  return true;
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A product that stays outside of groups, for the device's library. */
static bool is_for_library(const fuse *f, const kva_node *n) {
  return f->options->target && kva_matmul_is_for_library(f->options->target, n);
}

bool kva_fuse_used_outside(const fuse *f, const kva_node *p, const group *g) {
  for (uint32_t r = 0; r < p->n_results; r++)
    for (const kva_use *u = p->results[r].uses; u; u = u->next)
      if (!in_group(f, u->user, g)) return true;
  return false;
}

/* Does result element i of n depend on element i of operand `operand` alone? */
static bool is_pointwise_in(const kva_node *n, uint32_t operand) {
  return (n->op->traits & KVA_ELEMENTWISE) || kva_in_operands(n->op->pointwise, operand);
}

/* `to` has the extents of `from` after leading ones. */
static bool same_extents(const kva_type *from, const kva_type *to) {
  if (to->rank < from->rank) return false;
  uint32_t extra = to->rank - from->rank;
  for (uint32_t d = 0; d < to->rank; d++)
    if (d < extra ? !kva_expr_is(to->dims[d], 1) : to->dims[d] != from->dims[d - extra]) return false;
  return true;
}

static bool keeps_innermost(const kva_node *n) {
  if (!kva_is(n, KVA_OP_transpose)) return false;
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  return perm.n > 0 && perm.v[perm.n - 1] == (int64_t)perm.n - 1;
}

/* Moves axis 1 after the others (last), or back from there. */
static bool moves_channels(const kva_node *n, bool last) {
  if (!kva_is(n, KVA_OP_transpose)) return false;
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  if (perm.n < 3 || perm.v[0] != 0 || perm.v[last ? perm.n - 1 : 1] != (last ? 1 : (int64_t)perm.n - 1)) return false;
  for (uint32_t d = 1; d + 1 < perm.n; d++)
    if (perm.v[last ? d : d + 1] != (int64_t)(last ? d + 1 : d)) return false;
  return true;
}

/* The tile can store its result in the order of n, a view of it. */
static bool stores_in_order(const kva_node *tile, const kva_node *n) {
  if (keeps_innermost(n)) return true;
  return tile->op->role && tile->op->role(tile, 0) == KVA_IMAGE && moves_channels(n, true);
}

/* How the nodes of a group would reach a tile that joins it: by group index the last node on the way that moves
 * elements, the tile itself, or NULL for what does not depend on it. */
typedef struct epilogue {
  const fuse *f;
  const group *g;
  const kva_node *tile;
  const kva_node *moved_by[MAX_GROUP];
} epilogue;

static const kva_node *moved_by(const epilogue *e, const kva_value *v) {
  if (!v || !v->def) return NULL;
  if (v->def == e->tile) return e->tile;
  for (uint32_t k = 0; k < e->g->n_nodes; k++)
    if (e->g->nodes[k] == v->def) return e->moved_by[k];
  return NULL;
}

/* Notes how node k depends on the tile; false: not element by element, or it is an output that does not. */
static bool follows_tile(epilogue *e, uint32_t k) {
  KVA_ASSERT(k < e->g->n_nodes && e->tile != e->g->nodes[k]);
  const kva_node *n = e->g->nodes[k], *way = NULL, *seen = NULL;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    const kva_node *here = moved_by(e, v);
    if (!here) continue;
    if ((seen && seen != here) || (v->def == e->tile && v->index > 0)) return false;
    seen = here;
    bool moves = kva_is(n, KVA_OP_reshape) || (here == e->tile && stores_in_order(e->tile, n));
    if (!moves && (!is_pointwise_in(n, i) || !same_extents(v->type, n->results[0].type))) return false;
    way = moves ? n : here;
  }
  e->moved_by[k] = way;
  return way || (k > 0 && !kva_fuse_used_outside(e->f, n, e->g));
}

static bool tile_may_join(fuse *f, const kva_node *p, const group *g) {
  const kva_node *root = g->nodes[0];
  if (is_for_library(f, p) || g->tile || g->has_row || g->n_nodes >= MAX_GROUP || kva_fuse_role(root) != ROLE_ELEMENT)
    return false;
  if (root->op->traits & KVA_ALIAS) return false; /* better in no kernel */
  epilogue e = {.f = f, .g = g, .tile = p};
  for (uint32_t k = g->n_nodes; k-- > 0;)
    if (!follows_tile(&e, k)) return false;
  return !kva_fuse_used_outside(f, p, g) || !kva_fuse_use_returns(f, p, g);
}

static tile_part part_of_operand(const kva_node *tile, uint32_t operand) {
  return tile->op->role ? (tile_part)tile->op->role(tile, operand) : PART_STREAMED;
}

/* The part that all consumers of p in the group are, or that p is an operand of; false: they differ. */
static bool part_of_consumers(const fuse *f, const kva_node *p, const group *g, tile_part *out_part) {
  bool any = false;
  for (const kva_use *u = p->results[0].uses; u; u = u->next) {
    if (!in_group(f, u->user, g)) continue;
    tile_part here = u->user == g->tile ? part_of_operand(g->tile, u->index) : info(f, u->user)->part;
    if (any && here != *out_part) return false;
    *out_part = here;
    any = true;
  }
  return any;
}

/* Values of rows or columns that broadcast to the result of elementwise code are no full operands. */
static uint32_t full_operands(const kva_node *p) {
  const kva_type *result = p->results[0].type;
  uint32_t full = 0;
  for (uint32_t i = 0; i < p->n_operands; i++) {
    const kva_value *v = p->operands[i].value;
    if (!v || !v->type->rank || (v->def && kva_fuse_is_scalar_constant(v->def))) continue;
    bool broadcasts = (p->op->traits & KVA_ELEMENTWISE) && result->rank > 1 && !same_extents(v->type, result);
    full += !broadcasts;
  }
  return full;
}

static bool all_constant(const kva_type *t) {
  for (uint32_t d = 0; d < t->rank; d++)
    if (!kva_expr_is_const(t->dims[d], NULL)) return false;
  return true;
}

/* An image of one spatial axis is turned by the same transposition to channels last and back from there: the first of
 * two makes the memory that the second one gives its tile. */
static bool is_turned_back(const kva_node *p) {
  if (p->results[0].type->rank > 3) return false;
  for (const kva_use *u = p->results[0].uses; u; u = u->next)
    if (kva_is(u->user, KVA_OP_transpose)) return true;
  return false;
}

/* Views that leave the innermost axis contiguous. A reshape divides indices, which inner loops do by constants only,
 * and lanes not at all: their axis must stay whole. A constant that is left transposed has the order in which inner
 * loops read it (opt_pack.c). */
static bool is_easy_view(const kva_node *p, tile_part part) {
  if (part == PART_IMAGE) return moves_channels(p, false) && !is_turned_back(p);
  if (part == PART_SCALARS && kva_is(p, KVA_OP_transpose) && kva_constant_of(kva_operand(p, 0))) return true;
  if (!kva_is(p, KVA_OP_reshape)) return keeps_innermost(p);
  const kva_type *from = kva_operand_type(p, 0), *to = p->results[0].type;
  if (!all_constant(from) || !all_constant(to)) return false;
  if (part == PART_SCALARS) return true;
  return from->rank > 0 && to->rank > 0 && from->dims[from->rank - 1] == to->dims[to->rank - 1];
}

/* Mixed precision rounds a product's operands once, in memory, for all products that read them. */
static bool narrows(const kva_node *p) {
  kva_dtype t = p->results[0].type->dtype;
  return kva_is(p, KVA_OP_cast) && (t == KVA_BF16 || t == KVA_F16);
}

/* The same elements in the same order, with other extents of 1, and with the last two extents of `a`, if the last one
 * is a constant, merged or not: pages of a cache. */
static bool differs_in_ones(const kva_type *a, const kva_type *b) {
  uint32_t i = 0, k = 0;
  while (true) {
    while (i < a->rank && kva_expr_is(a->dims[i], 1)) i++;
    while (k < b->rank && kva_expr_is(b->dims[k], 1)) k++;
    if (i == a->rank || k == b->rank) return i == a->rank && k == b->rank;
    bool pages = i + 2 == a->rank && k + 1 == b->rank && kva_expr_is_const(a->dims[i + 1], NULL);
    if (pages) return true;
    if (a->dims[i++] != b->dims[k++]) return false;
  }
}

/* Rows of a cache, page by page: reading them through the table costs less than all of them in order. */
static bool reads_pages(const kva_node *p) {
  const kva_node *cache = kva_is(p, KVA_OP_gather) ? kva_operand(p, 0)->def : NULL;
  return cache && cache->op->traits & KVA_UPDATES_PART;
}

/* Made of rows' and columns' values, so that computing it again for every score reads less than the mask itself. */
static bool is_mask_code(const kva_node *p) {
  if (kva_is(p, KVA_OP_reshape)) return differs_in_ones(kva_operand_type(p, 0), p->results[0].type);
  if (reads_pages(p)) return true;
  return (p->op->traits & KVA_ELEMENTWISE) && (p->op->traits & KVA_CHEAP) && full_operands(p) == 0;
}

/* The factor of a product that sums up blocks of bytes. */
static bool feeds_byte_blocks(const kva_node *p) {
  const kva_use *u = p->results[0].uses;
  return u && !u->next && u->index == 0 && kva_is(u->user, KVA_OP_matmul) && kva_matmul_byte_block(u->user);
}

/* What may be computed for each kernel that reads it. */
static bool may_feed_again(const kva_node *p, tile_part part) {
  if (part == PART_SCALARS && kva_is(p, KVA_OP_dequantize)) return feeds_byte_blocks(p);
  if (p->op->traits & KVA_UNPACKS) return part == PART_PACKED;
  return part == PART_MASK ? is_mask_code(p) : is_easy_view(p, part);
}

static bool may_feed_tile(const kva_node *p, tile_part part) {
  if (p->n_results != 1) return false;
  if (part == PART_ONCE) return true;
  if (narrows(p)) return false;
  if (may_feed_again(p, part)) return true;
  bool cheap = (p->op->traits & KVA_ELEMENTWISE) && (p->op->traits & KVA_CHEAP);
  return part == PART_PACKED && cheap && full_operands(p) <= 1;
}

/* p, which only nodes of the group read, may join those around a tile. */
static bool may_join_tile(const fuse *f, const kva_node *p, const group *g) {
  tile_part part;
  if (kva_fuse_role(p) != ROLE_ELEMENT || !part_of_consumers(f, p, g, &part)) return false;
  return part == PART_EPILOGUE ? reads_elements_once(f, p, g) : may_feed_tile(p, part);
}

/* Outside of kernels such a group shares the memory of what it reads. */
static bool is_alias(const group *g) {
  bool aliases = true;
  for (uint32_t k = 0; k < g->n_nodes; k++) aliases &= !!(g->nodes[k]->op->traits & KVA_ALIAS);
  return aliases;
}

/* What a tile makes is read transposed alone, and it can store it so. */
static bool is_left_to_tile(const fuse *f, const kva_node *p) {
  const kva_value *x = kva_is(p, KVA_OP_transpose) ? kva_operand(p, 0) : NULL;
  return x && x->def && !x->index && kva_fuse_role(x->def) == ROLE_TILE && stores_in_order(x->def, p) &&
         !x->uses->next && !is_for_library(f, x->def);
}

/* The result of a convolution whose kernel stores channels last. Elsewhere it would be read across memory. */
static bool is_image(const kva_node *p) {
  const kva_value *x = moves_channels(p, true) ? kva_operand(p, 0) : NULL;
  return x && x->def && kva_fuse_role(x->def) == ROLE_TILE && !x->uses->next && stores_in_order(x->def, p);
}

static bool holds_image(const group *g) {
  for (uint32_t k = 0; k < g->n_nodes; k++)
    if (is_image(g->nodes[k])) return true;
  return false;
}

/* p is made of such a result by element code that nothing else reads: all of it is in the convolution's kernel. */
static bool follows_image(const kva_node *p, int depth) {
  if (!(p->op->traits & KVA_ELEMENTWISE) || !depth) return false;
  for (uint32_t i = 0; i < p->n_operands; i++) {
    const kva_value *v = kva_operand(p, i);
    if (!v || !v->def || v->uses->next || !same_extents(v->type, p->results[0].type)) continue;
    if (is_image(v->def) || follows_image(v->def, depth - 1)) return true;
  }
  return false;
}

/* A window's elements in the order of p, which its kernel can store. */
static bool orders_window(const kva_node *p) {
  const kva_value *x = moves_channels(p, true) ? kva_operand(p, 0) : NULL;
  return x && x->def && !x->uses->next && kva_fuse_role(x->def) == ROLE_WINDOW;
}

bool kva_fuse_may_take(const fuse *f, const kva_use *u, const kva_node *n) {
  role r = kva_fuse_role(u->user);
  if (info(f, u->user)->group || r == ROLE_OTHER || is_for_library(f, u->user)) return false;
  if (r == ROLE_TILE) return may_feed_tile(n, part_of_operand(u->user, u->index));
  return !(u->user->op->traits & KVA_ALIAS) || !n->results[0].uses->next;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static bool may_copy(const fuse *f, const kva_node *p, const group *g);

/* p, which scales rows or columns of a tensor, need not be an output: this group takes a copy, and the groups of its
 * other readers will, too. */
static bool left_to_copies(const fuse *f, const kva_node *p, const group *g) {
  if (p->n_operands != 2 || !same_extents(p->operands[0].value->type, p->results[0].type)) return false;
  if (same_extents(p->operands[1].value->type, p->results[0].type) || !p->operands[1].value->type->rank) return false;
  if (!may_copy(f, p, g)) return false;
  for (const kva_use *u = p->results[0].uses; u; u = u->next) {
    role r = kva_fuse_role(u->user);
    bool takes = r == ROLE_ELEMENT || r == ROLE_ROW || r == ROLE_SINK;
    if (!in_group(f, u->user, g) && (!takes || info(f, u->user)->group)) return false;
  }
  return true;
}

/* Such a value is stored for all of them: whether it may join a group depends on each. */
static bool has_many_users(const kva_node *p) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < p->n_results; r++)
    for (const kva_use *u = p->results[r].uses; u && n <= MAX_USERS; u = u->next) n++;
  return n > MAX_USERS;
}

/* Codes of 8 bits that dequantize or a product reads. They are stored: a quarter of the bytes, made once, and by what
 * made their floats, so that a product before them has them as epilogue. */
static bool is_codes(const kva_node *p) {
  if (!kva_is(p, KVA_OP_cast) || kva_dtype_bits(kva_operand_type(p, 0)->dtype) <= 8) return false;
  kva_dtype t = p->results[0].type->dtype;
  if (t != KVA_U8 && t != KVA_I8) return false;
  for (const kva_use *u = p->results[0].uses; u; u = u->next)
    if (kva_is(u->user, KVA_OP_dequantize) || u->user->op->product) return true;
  return false;
}

static bool has_window(const group *g) {
  for (uint32_t k = 0; k < g->n_nodes; k++)
    if (kva_fuse_role(g->nodes[k]) == ROLE_WINDOW) return true;
  return false;
}

/* A window's elements that a transposition alone reads, each once: it may stand before element code. */
static bool window_may_join(const fuse *f, const kva_node *p, const group *g) {
  const kva_use *u = p->results[0].uses;
  if (kva_for_gpu(f->options) || g->tile || g->has_row || has_window(g) || kva_fuse_role(g->nodes[0]) != ROLE_ELEMENT)
    return false;
  for (uint32_t r = 1; r < p->n_results; r++)
    if (p->results[r].uses) return false;
  return u && !u->next && in_group(f, u->user, g) && moves_channels(u->user, true) && g->n_nodes < MAX_GROUP;
}

enum { FAR_ELEMENTS = 1 << 20 }; /* of a tensor that leaves the caches */

/* Element code alone can take the memory of a tensor that nothing reads after it (plan_in_place.c), but not with a
 * reduction of its rows, whose loops read the row before. Where that tensor leaves the caches anyway, p stays apart:
 * gradients of logits then take the logits' place. */
static bool leaves_memory(const fuse *f, const kva_node *p, const group *g) {
  const kva_value *x = kva_operand(p, 0), *y = &g->nodes[0]->results[0];
  int64_t elements = FAR_ELEMENTS;
  if (kva_for_gpu(f->options) || g->has_row || !x->def || x->def->op->lower_kind == KVA_LOWER_NONE) return false;
  if (y->type->dtype != x->type->dtype || !same_extents(y->type, x->type)) return false;
  if (kva_expr_is_const(kva_type_elements(f->m, x->type), &elements) && elements < FAR_ELEMENTS) return false;
  for (const kva_use *u = x->uses; u; u = u->next)
    if (u->user != p && !in_group(f, u->user, g)) return false;
  return true;
}

bool kva_fuse_may_join(fuse *f, const kva_node *p, const group *g) {
  KVA_ASSERT(g->n_nodes && !in_group(f, p, g));
  role r = kva_fuse_role(p);
  if (has_many_users(p) || is_codes(p)) return false;
  if (!kva_fuse_same_segment(f, p, g)) return false;
  if (r == ROLE_TILE) return tile_may_join(f, p, g);
  if (r == ROLE_WINDOW) return window_may_join(f, p, g);
  if ((r != ROLE_ELEMENT && r != ROLE_ROW) || kva_is(p, KVA_OP_partial_sum)) return false;
  if (g->n_nodes >= MAX_GROUP || p->op->traits & KVA_UPDATES) return false;
  if ((g->tile || is_alias(g)) && is_left_to_tile(f, p)) return false;
  if (is_image(p) && holds_image(g)) return false;
  if (orders_window(p) && !kva_for_gpu(f->options) && (g->tile || holds_image(g) || has_window(g))) return false;
  if (g->tile) return !kva_fuse_used_outside(f, p, g) && may_join_tile(f, p, g);
  /* A window reads each element many times, also through views: only movement may stand before it. */
  if (has_window(g) && !(p->op->traits & KVA_VIEW)) return false;
  consumers c = look_at_consumers(f, p, g);
  if (r == ROLE_ROW && (!c.all_aligned || !row_fits(p, g))) return false;
  if (r == ROLE_ELEMENT && !reads_elements_once(f, p, g)) return false;
  if (c.all_inside) return true;
  if (r == ROLE_ROW && leaves_memory(f, p, g)) return false;
  /* A further output: it must be computed in the group's own loops, and stay acyclic. Aliases need no memory. */
  if (!c.all_aligned || p->op->traits & KVA_ALIAS || is_left_to_tile(f, p) || follows_image(p, MAX_INDEX_DEPTH) ||
      kva_fuse_role(g->nodes[0]) == ROLE_SINK || has_window(g))
    return false;
  for (uint32_t k = 0; k < p->n_results; k++) {
    const kva_type *t = p->results[k].type;
    bool row = r == ROLE_ROW && is_row_shape(t, g, (uint32_t)row_rank_of(p));
    if (p->results[k].uses && !row && !is_domain_or_row_shape(t, g)) return false;
  }
  return !left_to_copies(f, p, g) && !kva_fuse_use_returns(f, p, g);
}

/* A function of a product that others read, too. A GPU computes it again in less time than it takes to store it. */
static bool is_function_of_stored(const fuse *f, const kva_node *p) {
  const kva_value *x = p->n_operands == 1 ? kva_operand(p, 0) : NULL;
  return kva_for_gpu(f->options) && x && (p->op->traits & KVA_ELEMENTWISE) && x->def &&
         kva_fuse_role(x->def) == ROLE_TILE && x->uses->next;
}

/* Cheap nodes that several groups read are computed in each of them. Views and generated values always, unless a tile
 * can store them at once; arithmetic only when it reads at most one full tensor, so that traffic does not grow. Aliases
 * take no copies, which would have to be stored for them alone. */
static bool may_copy(const fuse *f, const kva_node *p, const group *g) {
  if (kva_fuse_role(p) != ROLE_ELEMENT || p->n_results != 1 || is_alias(g) || is_left_to_tile(f, p)) return false;
  if (is_codes(p) || follows_image(p, MAX_INDEX_DEPTH)) return false;
  if (!kva_for_gpu(f->options) && orders_window(p)) return false;
  if (g->n_nodes >= MAX_GROUP) return false;
  tile_part part = PART_EPILOGUE;
  if (g->tile && (has_many_users(p) || !part_of_consumers(f, p, g, &part))) return false;
  if (part == PART_MASK) return is_mask_code(p);
  if (!(p->op->traits & KVA_CHEAP) && !is_function_of_stored(f, p)) return false;
  if (has_window(g)) return p->op->traits & KVA_VIEW;
  if (part != PART_EPILOGUE) return may_feed_again(p, part);
  return p->n_operands == 0 || (p->op->traits & KVA_VIEW) || full_operands(p) <= 1;
}

/* ---- growing groups ---------------------------------------------------------------------------------------------- */

/* What the group knows of its nodes. */
static void note_member(const fuse *f, group *g, const kva_node *n) {
  int rank = row_rank_of(n);
  if (kva_fuse_role(n) == ROLE_TILE) g->tile = n;
  if (info(f, n)->position < g->lowest) g->lowest = info(f, n)->position;
  if (rank <= 0 || kva_fuse_role(n) != ROLE_ROW) return;
  g->has_row = true;
  g->row_rank = (uint32_t)rank;
}

void kva_fuse_add(fuse *f, group *g, kva_node *n) {
  KVA_ASSERT(g->n_nodes < MAX_GROUP && !info(f, n)->group);
  KVA_ASSERT(!g->n_nodes || (n->graph == g->nodes[0]->graph && kva_fuse_same_segment(f, n, g)));
  consumers c = look_at_consumers(f, n, g);
  tile_part part = PART_EPILOGUE;
  if (g->tile) part_of_consumers(f, n, g, &part);
  info(f, n)->part = part;
  info(f, n)->group = g;
  info(f, n)->aligned = g->n_nodes == 0 || c.all_aligned;
  info(f, n)->order = g->n_nodes;
  g->nodes[g->n_nodes++] = n;
  note_member(f, g, n);
  f->version++;
}

void kva_fuse_restore(fuse *f, group *g, const group *before) {
  KVA_ASSERT(before->n_nodes <= g->n_nodes && before->nodes[0] == g->nodes[0]);
  for (uint32_t k = before->n_nodes; k < g->n_nodes; k++) info(f, g->nodes[k])->group = NULL;
  *g = *before;
  f->version++;
}

void kva_fuse_shrink(fuse *f, group *g, uint32_t n) {
  KVA_ASSERT(n && n <= g->n_nodes);
  for (uint32_t k = n; k < g->n_nodes; k++) info(f, g->nodes[k])->group = NULL;
  g->n_nodes = n;
  g->tile = NULL;
  g->has_row = false;
  g->row_rank = 0;
  g->lowest = info(f, g->nodes[0])->position;
  for (uint32_t k = 0; k < n; k++) note_member(f, g, g->nodes[k]);
  f->version++;
}

/* Paths lead to higher positions, but for those through a group: it may be entered after the root and left before it.
 */
static uint32_t walk_limit(const fuse *f, const kva_node *root) {
  uint32_t limit = info(f, root)->position;
  for (uint32_t i = f->groups.len; i-- > 0 && f->groups.data[i]->lowest_so_far < limit;) {
    const group *h = f->groups.data[i];
    uint32_t highest = info(f, h->nodes[0])->position;
    if (h->lowest < limit && highest > limit) limit = highest;
  }
  return limit;
}

/* The last group has stopped growing. */
static void note_lowest(const fuse *f) {
  uint32_t n = f->groups.len;
  if (!n) return;
  group *last = f->groups.data[n - 1];
  bool lower = n > 1 && f->groups.data[n - 2]->lowest_so_far < last->lowest;
  last->lowest_so_far = lower ? f->groups.data[n - 2]->lowest_so_far : last->lowest;
}

static group *open_group(fuse *f, kva_node *root) {
  KVA_ASSERT(root->n_results && !info(f, root)->group);
  note_lowest(f);
  group *g = KVA_NEW(f->scratch, group);
  g->domain = kva_fuse_role(root) == ROLE_ROW ? kva_operand_type(root, 0) : root->results[0].type;
  g->lowest = info(f, root)->position;
  g->limit = walk_limit(f, root);
  kva_fuse_add(f, g, root);
  KVA_PUSH(f->scratch, &f->groups, g);
  return g;
}

/* Gives the group its own copy of p; other users keep the original. */
static kva_node *copy_into_group(fuse *f, kva_node *p, const group *g) {
  KVA_ASSERT(p->n_operands <= MAX_COPIED_OPERANDS && p->n_results == 1 && !info(f, p)->group);
  kva_value *operands[MAX_COPIED_OPERANDS];
  for (uint32_t i = 0; i < p->n_operands; i++) operands[i] = p->operands[i].value;
  kva_node *copy = kva_node_create(p->graph, p->next, p->op, p->n_operands, operands, 1, p->attrs, p->loc);
  copy->results[0].type = p->results[0].type;
  copy->results[0].name = p->results[0].name;
  while (f->info.len <= copy->id) KVA_PUSH(f->scratch, &f->info, (node_info){0});
  info(f, copy)->position = info(f, p)->position;
  info(f, copy)->segment = info(f, g->nodes[0])->segment;
  for (kva_use *u = p->results[0].uses, *next; u; u = next) {
    next = u->next;
    if (in_group(f, u->user, g)) kva_node_set_operand(u->user, u->index, &copy->results[0]);
  }
  return copy;
}

static kva_node *free_producer(const fuse *f, const kva_node *c, uint32_t operand) {
  kva_node *p = c->operands[operand].value ? c->operands[operand].value->def : NULL;
  return p && p->graph == c->graph && !info(f, p)->group ? p : NULL;
}

bool kva_fuse_join_producers(fuse *f, group *g) {
  bool grew = false;
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    const kva_node *c = g->nodes[k];
    for (uint32_t i = 0; i < c->n_operands; i++) {
      kva_node *p = free_producer(f, c, i);
      if (!p || info(f, p)->refused_at == f->version) continue;
      info(f, p)->refused_at = f->version;
      if (!kva_fuse_may_join(f, p, g)) continue;
      kva_fuse_add(f, g, p);
      grew = true;
    }
  }
  return grew;
}

/* The last one first: whoever else in the group would read a producer has joined or been copied by then, so that one
 * copy serves all. */
static bool copy_last_producer(fuse *f, group *g) {
  kva_node *last = NULL;
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    const kva_node *c = g->nodes[k];
    for (uint32_t i = 0; i < c->n_operands; i++) {
      kva_node *p = free_producer(f, c, i);
      if (!p || (last && info(f, p)->position <= info(f, last)->position)) continue;
      bool apart = kva_fuse_used_outside(f, p, g) || !kva_fuse_same_segment(f, p, g);
      if (p->n_operands <= MAX_COPIED_OPERANDS && apart && may_copy(f, p, g)) last = p;
    }
  }
  if (last) kva_fuse_add(f, g, copy_into_group(f, last, g));
  return last != NULL;
}

/* Results of convolutions that did not join, and what joined since, leave. */
static void leave_images(fuse *f, group *g) {
  for (uint32_t k = 1; k < g->n_nodes; k++) {
    if (!is_image(g->nodes[k]) || in_group(f, kva_operand(g->nodes[k], 0)->def, g)) continue;
    kva_fuse_shrink(f, g, k);
    while (g->n_nodes > 1 && kva_fuse_has_cycle(f, g)) kva_fuse_shrink(f, g, g->n_nodes - 1);
    return;
  }
}

static void grow(fuse *f, group *g) {
  if (kva_fuse_update_of(f, g->nodes[0])) {
    kva_fuse_grow_updates(f, g);
    return;
  }
  kva_node *sibling;
  do {
    do {
      while (kva_fuse_join_producers(f, g)) continue;
    } while (copy_last_producer(f, g));
    sibling = kva_fuse_takes_siblings(g) ? kva_fuse_find_sibling(f, g) : NULL;
    if (sibling) kva_fuse_add(f, g, sibling);
  } while (sibling || (f->sums && kva_fuse_join_sums(f, g)));
  leave_images(f, g);
  kva_fuse_keep_budget(f, g);
}

/* ---- pass -------------------------------------------------------------------------------------------------------- */

static void number_nodes(fuse *f, const kva_graph *g) {
  uint32_t position = 0, segment = 0;
  while (f->info.len < f->m->next_node_id) KVA_PUSH(f->scratch, &f->info, (node_info){0});
  for (const kva_node *n = g->first; n; n = n->next) {
    info(f, n)->position = position++;
    info(f, n)->segment = segment;
    segment += kva_node_binds(n).n > 0;
    f->sums |= kva_is(n, KVA_OP_partial_sum);
  }
}

/* Ids that outlining can make: inputs, results and constants of bodies, results of kernels. */
static uint32_t value_bound(const fuse *f, const kva_graph *g) {
  uint32_t bound = f->m->next_value_id;
  for (const kva_node *n = g->first; n; n = n->next) bound += 2 * n->n_operands + 3 * n->n_results;
  return bound;
}

/* Aliases are no steps; a tile alone is one as it is. */
static bool is_left_alone(const group *g) {
  return is_alias(g) || (g->n_nodes == 1 && g->tile);
}

static void fuse_graph(fuse *f, kva_graph *g, bool *changed) {
  number_nodes(f, g);
  for (kva_node *n = g->last; n; n = n->prev) {
    /* Not used: all its users took a copy. */
    if (info(f, n)->group || kva_fuse_role(n) == ROLE_OTHER || !kva_node_is_used(n) || is_for_library(f, n)) continue;
    grow(f, open_group(f, n));
  }
  if (kva_for_gpu(f->options)) kva_fuse_together(f);
  f->values = KVA_NEW_ARRAY(f->scratch, kva_value *, value_bound(f, g));
  for (uint32_t i = 0; i < f->groups.len; i++) {
    group *k = f->groups.data[i];
    if (is_left_alone(k)) continue;
    kva_fuse_outline(f, k);
    *changed = true;
  }
  kva_fuse_restore_order(f, g);
}

kva_status kva_fuse(kva_module *m, const kva_pass_options *options, bool *changed) {
  kva_arena *scratch = kva_arena_create();
  kva_graphs graphs = kva_program_graphs(m, scratch);
  for (uint32_t i = 0; i < graphs.len; i++) {
    fuse f = {.m = m, .scratch = kva_arena_create(), .options = options};
    fuse_graph(&f, graphs.data[i], changed);
    kva_arena_destroy(f.scratch);
  }
  kva_arena_destroy(scratch);
  bool dead = false;
  return kva_opt_dce(m, options, &dead);
}
