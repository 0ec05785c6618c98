/* Updates of optimisers. They stay element by element over their own operands, so that the planner can prove that they
 * may be written in place.
 *
 * On a GPU small ones share a kernel, each as a nest of its own, because a launch takes longer than their work. Large
 * ones do not: gradients would be kept until the last of a kernel is there. A parameter's copy for products, which is
 * rounded from it, is written by its update. */
#include "passes/fuse_internal.h"

enum {
  MAX_UPDATES = 8, /* a kernel has some seven buffers for each */
  PER_UPDATE = 4,  /* nodes, as a guess: rescaling, clipping */
  SMALL = 1 << 19  /* elements: AdamW in float moves 14 MiB, about as long as a launch takes the host */
};

static void join_producers(fuse *f, group *g, const kva_node *update, bool alone) {
  g->domain = update->results[0].type;
  for (uint32_t i = 0; i < update->n_operands; i++) {
    kva_node *p = update->operands[i].value ? update->operands[i].value->def : NULL;
    if (!p || p->graph != update->graph || info(f, p)->group || !(p->op->traits & KVA_ELEMENTWISE)) continue;
    if ((alone || !kva_fuse_used_outside(f, p, g)) && kva_fuse_may_join(f, p, g)) kva_fuse_add(f, g, p);
  }
}

static bool is_small_update(const fuse *f, const kva_node *n) {
  const kva_type *t = n->results[0].type;
  int64_t size = 1, extent;
  if (!kva_for_gpu(f->options) || !(n->op->traits & KVA_UPDATES)) return false;
  for (uint32_t d = 0; d < t->rank; d++) {
    if (!kva_expr_is_const(t->dims[d], &extent) || extent > SMALL) return false;
    size *= extent;
  }
  return size <= SMALL;
}

/* A cast of an update's result that a state keeps: a parameter's copy (passes/copies.c). */
static bool is_copy(const kva_node *n) {
  const kva_use *u = n->n_results == 1 ? n->results[0].uses : NULL;
  return kva_is(n, KVA_OP_cast) && u && !u->next && u->user->op->traits & KVA_WRITES_STATE;
}

kva_node *kva_fuse_update_of(const fuse *f, kva_node *n) {
  if (n->op->traits & KVA_UPDATES) return n;
  kva_node *def = kva_for_gpu(f->options) && is_copy(n) ? kva_operand(n, 0)->def : NULL;
  return def && def->op->traits & KVA_UPDATES && !info(f, def)->group && def->graph == n->graph ? def : NULL;
}

/* Copies first: what reads is there before what it reads. */
static void add_update(fuse *f, group *g, kva_node *update) {
  for (const kva_use *u = update->results[0].uses; u; u = u->next)
    if (kva_for_gpu(f->options) && !info(f, u->user)->group && is_copy(u->user)) kva_fuse_add(f, g, u->user);
  if (!info(f, update)->group) kva_fuse_add(f, g, update);
}

/* n joins with its producers if that makes no cycle. */
static bool join_update(fuse *f, group *g, kva_node *n) {
  group before = *g;
  add_update(f, g, n);
  join_producers(f, g, n, false);
  if (!kva_fuse_has_cycle(f, g)) return true;
  kva_fuse_restore(f, g, &before);
  return false;
}

void kva_fuse_grow_updates(fuse *f, group *g) {
  kva_node *root = kva_fuse_update_of(f, g->nodes[0]);
  add_update(f, g, root);
  bool small = is_small_update(f, root);
  uint32_t updates = 1;
  join_producers(f, g, root, !small);
  for (kva_node *n = small ? root->prev : NULL; n && updates < MAX_UPDATES; n = n->prev) {
    if (g->n_nodes + PER_UPDATE > MAX_GROUP) return;
    if (!info(f, n)->group && kva_fuse_same_segment(f, n, g) && is_small_update(f, n)) updates += join_update(f, g, n);
  }
}
