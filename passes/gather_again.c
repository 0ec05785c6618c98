/* Gathering parameters twice.
 *
 * What: with `--mesh data=N,zero=3` a parameter is gathered where a function reads it (passes/shard_states.c), first in
 * the forward pass and long after in the backward pass, and would take memory in between. Each kv.all_gather of a state
 * goes right before the first step that reads it, and a further one before the next step that does so more than FAR
 * steps later. So a process holds the parameters of about one layer at a time; it sends them twice.
 * Requires: pass fuse, whose kernels are the steps. Breaks: nothing. Exact: a state is the same wherever it is read.
 * Why not in pass recompute: that needs a number of bytes and counts work, and what it drops need not be a gather. */
#include "passes/passes_internal.h"

#include <stdlib.h>

enum { FAR = 16 };

typedef struct walk {
  kva_module *m;
  uint32_t *places; /* by node id, in order of nodes */
  bool *changed;
} walk;

typedef struct reader {
  kva_node *node;
  uint32_t place;
} reader;

static int earlier_first(const void *a, const void *b) {
  const reader *x = a, *y = b;
  return x->place < y->place ? -1 : x->place > y->place;
}

static bool is_gather(const kva_node *n) {
  return kva_is(n, KVA_OP_all_gather) && kva_operand(n, 0)->def && kva_is(kva_operand(n, 0)->def, KVA_OP_state_read);
}

static reader *list_readers(walk *w, const kva_value *v, uint32_t *out_n) {
  reader *all = KVA_NEW_ARRAY(w->m->arena, reader, kva_value_use_count(v) + 1);
  *out_n = 0;
  for (const kva_use *u = v->uses; u; u = u->next) all[(*out_n)++] = (reader){u->user, w->places[u->user->id]};
  qsort(all, *out_n, sizeof *all, earlier_first);
  return all;
}

static void read_instead(kva_node *n, const kva_value *old, kva_value *v) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (n->operands[i].value == old) kva_node_set_operand(n, i, v);
}

static bool split(walk *w, kva_node *gather) {
  uint32_t n, last;
  kva_value *old = &gather->results[0], *v = old;
  const reader *all = list_readers(w, old, &n);
  if (!n) return true;
  if (gather->next != all[0].node) {
    kva_node_move_before(gather, all[0].node);
    *w->changed = true;
  }
  last = all[0].place;
  for (uint32_t i = 1; i < n; last = all[i++].place) {
    if (all[i].place > last + FAR) {
      kva_builder b = kva_builder_before(w->m, all[i].node);
      kva_value *part = kva_operand(gather, 0);
      b.loc = gather->loc;
      v = kva_build(&b, KVA_OP_all_gather, 1, &part, gather->attrs);
      if (b.failed) return false;
      *w->changed = true;
    }
    if (v != old) read_instead(all[i].node, old, v);
  }
  return true;
}

kva_status kva_gather_again(kva_module *m, const kva_pass_options *options, bool *changed) {
  (void)options;
  walk w = {m, KVA_NEW_ARRAY(m->arena, uint32_t, m->next_node_id + 1), changed};
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_graph *g = m->functions.data[i]->graph;
    uint32_t next = 1;
    KVA_VEC(kva_node *) gathers = {0};
    for (kva_node *node = g->first; node; node = node->next) {
      w.places[node->id] = next++;
      if (is_gather(node)) KVA_PUSH(m->arena, &gathers, node);
    }
    for (uint32_t k = 0; k < gathers.len; k++)
      if (!split(&w, gathers.data[k])) return KVA_INVALID;
  }
  return KVA_OK;
}
