/* Basic blocks and immediate post-dominators: the points where the lanes of a divergent branch reconverge. Dominance on
 * the reversed graph after Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm (2001). The virtual exit, block
 * n, succeeds every exit. Blocks that reach no exit (endless loops) have it as post-dominator.
 *
 * An `exit` is no such exit where the kernel has a path to a `ret`: LLVM puts it where control cannot be, as behind a
 * switch over all values. Lanes that take it are gone, and the others meet as if it were not there. */
#include "runtime/ptxsim/program.h"

#include <string.h>

typedef struct graph {
  const kva_ptx_kernel *k;
  kva_arena *arena;
  bool exits;             /* `exit` succeeds a block, too */
  uint32_t n;             /* number of blocks; block n is the virtual exit */
  uint32_t *block;        /* by instruction */
  uint32_t *first, *last; /* by block */
  uint32_t *pred_start, *preds;
  uint32_t *order, n_order; /* post-order of the reversed graph, from the exit */
  uint32_t *position;       /* in `order`, by block; PTX_NONE: not reached */
  uint32_t *idom, pending;  /* pending: of the current block */
} graph;

static bool ends_block(const ptx_ins *i) {
  return i->op == PTX_OP_BRANCH || i->op == PTX_OP_BRANCH_TABLE || i->op == PTX_OP_EXIT;
}

static void find_blocks(graph *g) {
  const kva_ptx_kernel *k = g->k;
  uint8_t *leads = kva_arena_alloc(g->arena, k->n_ins + 1);
  leads[0] = 1;
  for (uint32_t p = 0; p < k->n_ins; p++) {
    const ptx_ins *i = &k->ins[p];
    if (ends_block(i)) leads[p + 1] = 1;
    if (i->op == PTX_OP_BRANCH) leads[i->target] = 1;
    for (int64_t t = 0; i->op == PTX_OP_BRANCH_TABLE && t < i->imm; t++) leads[i->list[t]] = 1;
  }
  for (uint32_t p = 0; p < k->n_ins; p++) {
    if (leads[p]) g->first[g->n++] = p;
    g->block[p] = g->n - 1;
    g->last[g->n - 1] = p;
  }
}

/* Calls fn for every successor of a block. */
static void successors(const graph *g, uint32_t b, void (*fn)(graph *g, uint32_t from, uint32_t to), graph *out) {
  const ptx_ins *i = &g->k->ins[g->last[b]];
  bool falls = !ends_block(i) || i->guard != PTX_NONE;
  if (i->op == PTX_OP_BRANCH) fn(out, b, g->block[i->target]);
  for (int64_t t = 0; i->op == PTX_OP_BRANCH_TABLE && t < i->imm; t++) fn(out, b, g->block[i->list[t]]);
  if (i->op == PTX_OP_EXIT && (g->exits || !i->flag)) fn(out, b, g->n);
  if (falls) fn(out, b, b + 1);
}

static void count_edge(graph *g, uint32_t from, uint32_t to) {
  (void)from;
  g->pred_start[to + 1]++;
}
static void add_edge(graph *g, uint32_t from, uint32_t to) {
  g->preds[g->pred_start[to]++] = from;
}

/* Predecessors of all blocks in one array. Filling advances the starts, which are shifted back afterwards. */
static void find_predecessors(graph *g) {
  g->pred_start = KVA_NEW_ARRAY(g->arena, uint32_t, g->n + 3);
  for (uint32_t b = 0; b < g->n; b++) successors(g, b, count_edge, g);
  for (uint32_t b = 0; b <= g->n; b++) g->pred_start[b + 1] += g->pred_start[b];
  g->preds = KVA_NEW_ARRAY(g->arena, uint32_t, g->pred_start[g->n + 1] + 1);
  for (uint32_t b = 0; b < g->n; b++) successors(g, b, add_edge, g);
  memmove(g->pred_start + 1, g->pred_start, (g->n + 1) * sizeof *g->pred_start);
  g->pred_start[0] = 0;
}

/* Depth-first search against the edges with an explicit stack of (block, next predecessor). */
static void visit(graph *g, uint32_t root, uint32_t *stack, uint8_t *seen) {
  uint32_t depth = 0;
  stack[0] = root;
  stack[1] = g->pred_start[root];
  seen[root] = 1;
  for (depth = 1; depth;) {
    uint32_t b = stack[2 * depth - 2], *next = &stack[2 * depth - 1];
    if (*next == g->pred_start[b + 1]) {
      g->position[b] = g->n_order;
      g->order[g->n_order++] = b;
      depth--;
      continue;
    }
    uint32_t p = g->preds[(*next)++];
    if (seen[p]) continue;
    seen[p] = 1;
    stack[2 * depth] = p;
    stack[2 * depth + 1] = g->pred_start[p];
    depth++;
  }
}

/* Blocks that reach no exit are not in the order, so the exit becomes their post-dominator. */
static void find_order(graph *g) {
  uint8_t *seen = kva_arena_alloc(g->arena, g->n + 1);
  uint32_t *stack = KVA_NEW_ARRAY(g->arena, uint32_t, 2 * (g->n + 2));
  memset(g->position, 0xff, (g->n + 1) * sizeof *g->position);
  g->n_order = 0;
  visit(g, g->n, stack, seen);
}

static void walk(graph *g, bool exits) {
  g->exits = exits;
  find_predecessors(g);
  find_order(g);
}

static uint32_t intersect(const graph *g, uint32_t a, uint32_t b) {
  while (a != b) {
    while (g->position[a] < g->position[b]) a = g->idom[a];
    while (g->position[b] < g->position[a]) b = g->idom[b];
  }
  return a;
}

/* Folds a successor into the post-dominator of `from`. */
static void meet(graph *g, uint32_t from, uint32_t to) {
  if (g->position[to] == PTX_NONE || g->idom[to] == PTX_NONE) return;
  (void)from;
  g->pending = g->pending == PTX_NONE ? to : intersect(g, g->pending, to);
}

static void find_post_dominators(graph *g) {
  memset(g->idom, 0xff, (g->n + 1) * sizeof *g->idom);
  g->idom[g->n] = g->n;
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t k = g->n_order; k-- > 0;) {
      uint32_t b = g->order[k], before = g->idom[b];
      if (b == g->n) continue;
      g->pending = PTX_NONE;
      successors(g, b, meet, g);
      if (g->pending != PTX_NONE) g->idom[b] = g->pending;
      changed |= g->idom[b] != before;
    }
  }
}

void kva_ptx_build_cfg(kva_ptx_kernel *k, kva_arena *arena) {
  graph g = {.k = k, .arena = arena};
  g.block = KVA_NEW_ARRAY(arena, uint32_t, k->n_ins);
  g.first = KVA_NEW_ARRAY(arena, uint32_t, k->n_ins);
  g.last = KVA_NEW_ARRAY(arena, uint32_t, k->n_ins);
  find_blocks(&g);
  g.order = KVA_NEW_ARRAY(arena, uint32_t, g.n + 1);
  g.position = KVA_NEW_ARRAY(arena, uint32_t, g.n + 1);
  g.idom = KVA_NEW_ARRAY(arena, uint32_t, g.n + 1);
  walk(&g, false);
  if (g.position[0] == PTX_NONE) walk(&g, true);
  find_post_dominators(&g);
  for (uint32_t b = 0; b < g.n; b++) {
    ptx_ins *i = &k->ins[g.last[b]];
    if (i->op != PTX_OP_BRANCH && i->op != PTX_OP_BRANCH_TABLE) continue;
    uint32_t meets = g.idom[b];
    i->reconverge = meets == PTX_NONE || meets == g.n ? k->n_ins : g.first[meets];
  }
}
