/* Launches shared on a GPU: kernels of little work that do the same to different tensors become one, each as a nest of
 * its own. A training step has hundreds of them, such as the sums of squares of all gradients, and a launch takes
 * longer than their work.
 *
 * What: of the groups that fusion has made, one joins a later one of the same operators, with equal rows, if nobody
 * reads its results before the later one runs. So the kernel runs where the last of its groups would, and nothing is
 * computed earlier than before. Results are small, and operands are small or needed later anyway: what is kept longer
 * is little. A nest's code depends on its own shapes alone, and so do the bits of its results.
 *
 * Algorithm: from the last group to the first, each takes in those before it, nearest first. The groups of second steps
 * are joined before those of first steps, which they read, are looked at. */
#include "ops/reduce_common.h"
#include "passes/fuse_internal.h"

enum {
  MAX_TOGETHER = 16,       /* kernels in one; a block looks for its own among so many */
  MAX_RESULT = 1 << 16,    /* elements */
  MAX_KEPT_BYTES = 1 << 20 /* of an operand that nothing else reads later */
};

static bool is_at_most(const kva_type *t, int64_t most, int64_t unit) {
  int64_t n = unit, extent;
  for (uint32_t d = 0; d < t->rank && n <= most; d++) {
    if (!kva_expr_is_const(t->dims[d], &extent)) return false;
    n *= extent;
  }
  return n <= most;
}

/* Where the step that node n becomes part of runs. */
static uint32_t step_of(const fuse *f, const kva_node *n) {
  const group *g = info(f, n)->group;
  return info(f, g ? g->nodes[0] : n)->position;
}

static bool is_read_after(const fuse *f, const kva_value *v, uint32_t position) {
  for (const kva_use *u = v->uses; u; u = u->next)
    if (u->user->graph != v->graph || step_of(f, u->user) > position) return true;
  return false;
}

static bool is_read_before(const fuse *f, const kva_value *v, const group *g, uint32_t position) {
  for (const kva_use *u = v->uses; u; u = u->next)
    if (!in_group(f, u->user, g) && (u->user->graph != v->graph || step_of(f, u->user) <= position)) return true;
  return false;
}

static bool is_light(const group *g) {
  if (!g->n_nodes || g->tile || g->n_nodes > MAX_GROUP / 2) return false;
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    const kva_node *n = g->nodes[k];
    if (n->op->traits & KVA_UPDATES || kva_is(n, KVA_OP_partial_sum) || n->n_results != 1) return false;
  }
  const kva_node *root = g->nodes[0];
  if (is_at_most(root->results[0].type, 1, 1) && !kva_reduces_few(root)) return false; /* no nest */
  return is_at_most(root->results[0].type, MAX_RESULT, 1);
}

/* The same operators, over rows of the same length. */
static bool are_alike(const group *a, const group *b) {
  if (a->n_nodes != b->n_nodes || a->domain->rank != b->domain->rank || a->row_rank != b->row_rank) return false;
  uint32_t rank = a->domain->rank;
  for (uint32_t k = 0; k < a->n_nodes; k++)
    if (a->nodes[k]->op != b->nodes[k]->op ||
        a->nodes[k]->results[0].type->dtype != b->nodes[k]->results[0].type->dtype)
      return false;
  return !rank || a->domain->dims[rank - 1] == b->domain->dims[rank - 1];
}

/* Costs little if it is read later. States are not: they may be written by then. */
static bool is_kept(const kva_value *v) {
  if (!v->def) return true;
  return !kva_is(v->def, KVA_OP_state_read) &&
         is_at_most(v->type, MAX_KEPT_BYTES, (kva_dtype_bits(v->type->dtype) + 7) / 8);
}

/* May what n, of g, makes and reads wait for a kernel at this position? */
static bool may_wait(const fuse *f, const kva_node *n, const group *g, uint32_t position) {
  if (is_read_before(f, &n->results[0], g, position)) return false;
  bool stored = kva_fuse_used_outside(f, n, g);
  if (stored && !is_at_most(n->results[0].type, MAX_RESULT, 1)) return false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    if (!v || in_group(f, v->def, g) || is_kept(v) || is_read_after(f, v, position)) continue;
    return false;
  }
  return true;
}

static bool may_join_later(const fuse *f, const group *g, const group *later) {
  uint32_t position = info(f, later->nodes[0])->position;
  if (!kva_fuse_same_segment(f, g->nodes[0], later)) return false;
  for (uint32_t k = 0; k < g->n_nodes; k++)
    if (!may_wait(f, g->nodes[k], g, position)) return false;
  return true;
}

/* g's nodes join `later`, unless a path leads out of that and back. */
static bool join_later(fuse *f, group *g, group *later) {
  group before = *later;
  later->limit = UINT32_MAX;
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    info(f, g->nodes[k])->group = later;
    later->nodes[later->n_nodes++] = g->nodes[k];
  }
  if (g->lowest < later->lowest) later->lowest = g->lowest;
  bool cycle = kva_fuse_has_cycle(f, later);
  if (cycle) *later = before;
  for (uint32_t k = 0; cycle && k < g->n_nodes; k++) info(f, g->nodes[k])->group = g;
  if (!cycle) g->n_nodes = 0;
  return !cycle;
}

void kva_fuse_together(fuse *f) {
  KVA_VEC(group *) light = {0};
  for (uint32_t i = 0; i < f->groups.len; i++)
    if (is_light(f->groups.data[i])) KVA_PUSH(f->scratch, &light, f->groups.data[i]);
  for (uint32_t i = 0; i < light.len; i++) {
    group *later = light.data[i];
    const group pattern = *later;
    for (uint32_t k = i + 1, n = 1; later->n_nodes && k < light.len && n < MAX_TOGETHER; k++) {
      group *g = light.data[k];
      if (later->n_nodes + pattern.n_nodes > MAX_GROUP) break;
      if (g->n_nodes && are_alike(g, &pattern) && may_join_later(f, g, later)) n += join_later(f, g, later);
    }
  }
}
