/* Updates of optimisers. They stay element by element over their own operands, so that the planner can prove that they
 * may be written in place.
 *
 * On a GPU small ones share a kernel, each as a nest of its own, because a launch takes longer than their work. Large
 * ones do not: gradients would be kept until the last of a kernel is there. */
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

/* n joins with its producers if that makes no cycle. */
static bool join_update(fuse *f, group *g, kva_node *n) {
  group before = *g;
  kva_fuse_add(f, g, n);
  join_producers(f, g, n, false);
  if (!kva_fuse_has_cycle(f, g)) return true;
  kva_fuse_restore(f, g, &before);
  return false;
}

void kva_fuse_grow_updates(fuse *f, group *g) {
  kva_node *root = g->nodes[0];
  bool small = is_small_update(f, root);
  uint32_t updates = 1;
  join_producers(f, g, root, !small);
  for (kva_node *n = small ? root->prev : NULL; n && updates < MAX_UPDATES; n = n->prev) {
    if (g->n_nodes + PER_UPDATE > MAX_GROUP) return;
    if (!info(f, n)->group && kva_fuse_same_segment(f, n, g) && is_small_update(f, n)) updates += join_update(f, g, n);
  }
}
