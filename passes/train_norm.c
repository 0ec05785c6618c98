/* Batch normalisation in training steps: a part of pass train.
 *
 * What: batch_norm with `training` takes mean and variance of its batch, and its running statistics move towards these:
 * parameters become buffers, which have no gradient and are saved since they are written. Those that several nodes
 * share move once for each, in order. Requires: to run before differentiation, which goes through the statistics of
 * the batch; a state is written once, at the end. */
#include "passes/passes_internal.h"
#include "ops/batch_norm.h"

static kva_value *without_casts(kva_value *v) {
  while (kva_def_if(v, KVA_OP_cast)) v = kva_operand(v->def, 0);
  return v;
}

/* latest: state -> its value after the nodes so far. */
static void follow(kva_builder *b, kva_map *latest, kva_value *operand, kva_value *current, double momentum) {
  kva_value *read = without_casts(operand);
  kva_state *s = read->def ? kva_state_read_by(read->def) : NULL;
  if (!s) return;
  s->kind = KVA_STATE_BUFFER;
  kva_value *running = kva_map_get(latest, &s, sizeof s);
  running = kva_running_statistic(b, running ? running : read, current, momentum);
  kva_map_set(latest, &s, sizeof s, running);
}

static kva_status take_batch(kva_module *m, kva_node *n, kva_map *latest) {
  kva_batch_norm_attrs attrs = *(const kva_batch_norm_attrs *)n->attrs;
  kva_builder b = kva_builder_before(m, n);
  kva_value *operands[5];
  for (uint32_t i = 0; i < 5; i++) operands[i] = kva_operand(n, i);
  kva_batch_statistics(&b, operands[KVA_NORM_X], &operands[KVA_NORM_MEAN], &operands[KVA_NORM_VAR]);
  for (uint32_t i = KVA_NORM_MEAN; i <= KVA_NORM_VAR; i++)
    follow(&b, latest, kva_operand(n, i), operands[i], attrs.momentum);
  attrs.training = false;
  kva_value *y = kva_build(&b, KVA_OP_batch_norm, 5, operands, &attrs);
  if (b.failed) return KVA_INVALID;
  kva_value_replace_all_uses(&n->results[0], y);
  kva_node_remove(n);
  return KVA_OK;
}

static bool trains(const kva_node *n) {
  return kva_is(n, KVA_OP_batch_norm) && ((const kva_batch_norm_attrs *)n->attrs)->training;
}

static kva_status refuse(kva_module *m, const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next) {
    if (trains(n))
      return kva_fail(m->diag, KVA_UNSUPPORTED, &n->loc,
                      "batch_norm with training=true in a branch or loop: its statistics cannot be kept");
    for (uint32_t i = 0; i < n->n_graphs; i++) KVA_TRY(refuse(m, n->graphs[i]));
  }
  return KVA_OK;
}

kva_status kva_train_norms(kva_module *m, kva_graph *g) {
  kva_arena *scratch = kva_arena_create();
  kva_map *latest = kva_map_create(scratch);
  kva_status status = KVA_OK;
  for (kva_node *n = g->first, *next; n && !status; n = next) {
    next = n->next;
    for (uint32_t i = 0; i < n->n_graphs && !status; i++) status = refuse(m, n->graphs[i]);
    if (!status && trains(n)) status = take_batch(m, n, latest);
  }
  kva_builder b = kva_builder_before(m, g->last);
  for (uint32_t i = 0; i < m->states.len && !status; i++) {
    kva_value *v = kva_map_get(latest, &m->states.data[i], sizeof m->states.data[i]);
    if (v) kva_build_node(&b, KVA_OP_state_write, 1, &v, 0, &(kva_state_write_attrs){.state = m->states.data[i]});
  }
  kva_arena_destroy(scratch);
  return b.failed ? KVA_INVALID : status;
}
