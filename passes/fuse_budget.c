/* The budget of a group. Fusion costs nothing where every element of a producer is computed about once, at a simple
 * index. Views that compose (reshape, transpose, reshape), concatenations of concatenations and gathers of gathers read
 * their producers at an index that is a long expression, or at many indices, and each further one multiplies the code.
 *
 * What: a group in which elements move is lowered on trial, to count instructions and nodes of index expressions.
 * Beyond the budget it keeps only the nodes that joined first; the others are stored, by groups of their own.
 *
 * Algorithm: bisection over the number of nodes. A trial pulls elements of the outputs like codegen/lower.c, in plain
 * loops, and ends where the budget does, so that its time is bounded, too. Results of a whole-kernel operator are
 * loaded; its operands are pulled by loops of their own. */
#include "ops/lower.h"
#include "ops/shape.h"
#include "passes/fuse_internal.h"

enum {
  MAX_INSTRUCTIONS = 512, /* of the kernel IR, a node of a load's index counting as one; elementwise groups have 200 */
  MAX_INDEX = 128,        /* nodes of one index; what a head's split and merge leaves has 10 */
  MIN_MOVES = 2,          /* nodes that move elements: one alone cannot be worth a trial */
};

typedef struct trial {
  kva_lower l; /* first member: the callback gets its address */
  kva_arena *arena;
  const fuse *f;
  const group *g;
  uint32_t n_nodes; /* as if only this many had joined */
  kva_map *bufs, *memo;
  uint32_t index_nodes;
  bool over;
} trial;

static bool is_member(const trial *t, const kva_node *n) {
  return in_group(t->f, n, t->g) && info(t->f, n)->order < t->n_nodes;
}

static bool is_computed(const trial *t, const kva_value *v) {
  return is_member(t, v->def) && kva_fuse_role(v->def) != ROLE_TILE;
}

static bool escapes(const trial *t, const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next)
    if (!is_member(t, u->user) || kva_fuse_role(u->user) == ROLE_TILE) return true;
  return false;
}

static kva_kval load(trial *t, const kva_value *v, const kva_expr *const *idx) {
  kva_kbuf *buf = kva_map_get(t->bufs, &v, sizeof v);
  KVA_ASSERT(buf);
  const kva_expr *index = kva_shape_linear(t->l.kb->exprs, v->type->rank, v->type->dims, idx);
  t->index_nodes += kva_expr_size(index);
  return kva_k_load(t->l.kb, buf, index);
}

static void check_budget(trial *t, uint32_t n, const kva_expr *const *idx) {
  t->over |= t->l.kb->kernel->next_id + t->index_nodes > MAX_INSTRUCTIONS;
  for (uint32_t d = 0; d < n; d++) t->over |= kva_expr_size(idx[d]) > MAX_INDEX;
}

/* As in codegen/lower.c: a value is computed once for each index and guard. */
typedef struct memo_key {
  const kva_value *value;
  kva_kval guard;
  const kva_expr *idx[KVA_MAX_RANK];
} memo_key;

static kva_kval element(trial *t, const kva_value *v, const kva_expr *const *idx) {
  kva_kb *b = t->l.kb;
  check_budget(t, v->type->rank, idx);
  if (t->over) return kva_k_const(b, kva_k_compute_type(v->type->dtype), 0);
  if (!is_computed(t, v)) return load(t, v, idx);
  memo_key key = {.value = v, .guard = b->pred};
  for (uint32_t d = 0; d < v->type->rank; d++) key.idx[d] = idx[d];
  kva_kval known = kva_map_get(t->memo, &key, sizeof key);
  if (known && known->region && kva_k_encloses(known->region, b->region)) return known;
  kva_kval made = v->def->op->lower(&t->l, v->def, v->index, idx);
  kva_map_set(t->memo, &key, sizeof key, made);
  return made;
}

static kva_kval operand(kva_lower *l, const kva_node *n, uint32_t i, const kva_expr *const *idx) {
  return element((trial *)(void *)l, n->operands[i].value, idx);
}

static void add_buffer(trial *t, const kva_value *v) {
  if (kva_map_get(t->bufs, &v, sizeof v)) return;
  kva_dim extent = kva_shape_product(t->l.kb->exprs, v->type->rank, v->type->dims);
  kva_map_set(t->bufs, &v, sizeof v, kva_k_param(t->l.kb, "x", v->type->dtype, extent));
}

/* Parameters for what the members read from others and for what they store. */
static void add_buffers(trial *t) {
  for (uint32_t k = 0; k < t->n_nodes; k++) {
    const kva_node *n = t->g->nodes[k];
    for (uint32_t i = 0; i < n->n_operands; i++)
      if (n->operands[i].value) add_buffer(t, n->operands[i].value);
    for (uint32_t r = 0; r < n->n_results; r++) add_buffer(t, &n->results[r]);
  }
}

static bool is_empty(const kva_type *t) {
  for (uint32_t d = 0; d < t->rank; d++)
    if (kva_expr_is(t->dims[d], 0)) return true;
  return false;
}

/* Stores v and what follows it in the list with the same shape, in one nest. */
static void store_shape(trial *t, uint32_t n, const kva_value **values) {
  kva_kb *b = t->l.kb;
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  const kva_type *type = values[0]->type;
  for (uint32_t d = 0; d < type->rank; d++) {
    loops[d] = kva_k_loop_begin(b, KVA_K_PARALLEL, type->dims[d], "i");
    idx[d] = kva_expr_is(type->dims[d], 1) ? kva_expr_const(b->exprs, 0) : loops[d]->var;
  }
  for (uint32_t i = 0; i < n; i++) {
    if (!values[i] || !kva_type_same_shape(values[i]->type, type)) continue;
    kva_kbuf *buf = kva_map_get(t->bufs, &values[i], sizeof values[i]);
    kva_k_store(b, buf, kva_shape_linear(b->exprs, type->rank, type->dims, idx), element(t, values[i], idx));
    if (i) values[i] = NULL;
  }
  for (uint32_t d = type->rank; d-- > 0;) kva_k_loop_end(b, loops[d]);
}

/* The group's first n nodes as a kernel: is it within the budget? */
static bool fits(const fuse *f, const group *g, uint32_t n) {
  kva_arena *arena = kva_arena_create();
  kva_kernel *kernel = kva_kernel_create(arena, f->m->exprs, "trial");
  trial t = {.l = {.kb = kva_kb_create(kernel), .module = f->m, .target = f->options->target, .operand = operand},
             .arena = arena,
             .f = f,
             .g = g,
             .n_nodes = n,
             .bufs = kva_map_create(arena),
             .memo = kva_map_create(arena)};
  KVA_VEC(const kva_value *) stored = {0};
  for (uint32_t k = 0; k < n; k++)
    for (uint32_t r = 0; r < g->nodes[k]->n_results; r++) {
      const kva_value *v = &g->nodes[k]->results[r];
      if (is_computed(&t, v) && escapes(&t, v) && !is_empty(v->type)) KVA_PUSH(arena, &stored, v);
    }
  add_buffers(&t);
  for (uint32_t i = 0; i < stored.len && !t.over; i++)
    if (stored.data[i]) store_shape(&t, stored.len - i, stored.data + i);
  check_budget(&t, 0, NULL);
  kva_arena_destroy(arena);
  return !t.over;
}

static uint32_t count_moves(const group *g) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    role r = kva_fuse_role(g->nodes[k]);
    n += r != ROLE_TILE && r != ROLE_ROW && !(g->nodes[k]->op->traits & KVA_ELEMENTWISE);
  }
  return n;
}

void kva_fuse_keep_budget(fuse *f, group *g) {
  if (count_moves(g) < MIN_MOVES || fits(f, g, g->n_nodes)) return;
  uint32_t fitting = 1, beyond = g->n_nodes; /* one node alone is what it is */
  while (beyond - fitting > 1) {
    uint32_t middle = (fitting + beyond) / 2;
    if (fits(f, g, middle))
      fitting = middle;
    else
      beyond = middle;
  }
  kva_fuse_shrink(f, g, fitting);
  while (g->n_nodes > 1 && kva_fuse_has_cycle(f, g)) kva_fuse_shrink(f, g, g->n_nodes - 1);
}
