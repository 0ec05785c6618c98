/* Sums over the processes of a mesh.
 *
 * What: in a function of training, the gradients and what it reports become sums over all processes, by kv.all_reduce.
 * Each process takes an equal part of the batch, so the mean over the parts of a gradient is the gradient of the batch;
 * pass train divides. Loss and metrics become means here, in double as the runtime's means over micro-batches are, so
 * that all processes see the same numbers and a loss that is not finite stops them at the same step.
 * Algorithm: gradients in order of the nodes that compute them are cut into buckets, which travel together; a bucket's
 * node stands right after its last gradient. With mesh.zero a large gradient becomes a part of the sum instead, by
 * kv.reduce_scatter right after the gradient, since each process updates a part (passes/shard_states.c). Requires: to
 * be run by pass train, which knows the gradients; a forward pass that writes no state, as each process would write its
 * own. Breaks: nothing. Why not after training is made: there a gradient is a value like any other. */
#include "passes/passes_internal.h"

#include <stdlib.h>

enum { BUCKET = 4 << 20 }; /* bytes: much more than a message's latency is worth */

typedef struct gradient {
  kva_value *value;
  uint32_t state, place; /* place: of the node that computes it, from 1 up; 0: an input */
} gradient;

static int earlier_first(const void *a, const void *b) {
  const gradient *x = a, *y = b;
  if (x->place != y->place) return x->place < y->place ? -1 : 1;
  if (x->value->index != y->value->index) return x->value->index < y->value->index ? -1 : 1;
  return x->state < y->state ? -1 : x->state > y->state;
}

kva_status kva_check_forward_states(kva_module *m, const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next)
    if (n->op->traits & KVA_WRITES_STATE)
      return kva_error(m->diag, &n->loc,
                       "the forward pass writes state '%s' (running statistics, a counter), of which each process of a "
                       "mesh would have its own; train this model in one process",
                       ((const kva_state_write_attrs *)n->attrs)->state->name);
  return KVA_OK;
}

/* By node id: 1, 2, ... in order of nodes. */
static uint32_t *number_nodes(const kva_module *m, const kva_graph *g) {
  uint32_t *places = KVA_NEW_ARRAY(m->arena, uint32_t, m->next_node_id + 1), next = 1;
  for (const kva_node *n = g->first; n; n = n->next) places[n->id] = next++;
  return places;
}

static uint32_t place_of(const uint32_t *places, const kva_value *v) {
  return v->def ? places[v->def->id] : 0;
}

static kva_builder builder_behind(kva_module *m, const kva_graph *g, const kva_value *v) {
  return kva_builder_before(m, v->def ? v->def->next : g->first);
}

static kva_node *build_sum(kva_builder *b, uint32_t n, kva_value *const *values, const kva_mesh *mesh) {
  kva_all_reduce_attrs attrs = {.parts = mesh->data, .stride = kva_mesh_group(mesh)};
  return kva_build_node(b, KVA_OP_all_reduce, n, values, n, &attrs);
}

/* ---- loss and metrics -------------------------------------------------------------------------------------------- */

static bool is_reported(const kva_function *f, uint32_t output) {
  kva_result_role role = f->output_roles ? f->output_roles[output] : KVA_RESULT_VALUE;
  return role == KVA_RESULT_LOSS || role == KVA_RESULT_METRIC;
}

static bool average_outputs(kva_module *m, kva_function *f, const uint32_t *places, const kva_mesh *mesh) {
  uint32_t n = 0, count = kva_graph_output_count(f->graph);
  kva_value **values = KVA_NEW_ARRAY(m->arena, kva_value *, count + 1), *last = NULL;
  for (uint32_t i = 0; i < count; i++) {
    kva_value *v = kva_graph_output(f->graph, i);
    if (!is_reported(f, i)) continue;
    if (!last || place_of(places, v) > place_of(places, last)) last = v;
    values[n++] = v;
  }
  if (!n) return true;
  kva_builder b = builder_behind(m, f->graph, last);
  for (uint32_t i = 0; i < n; i++) values[i] = kva_cast(&b, values[i], KVA_F64);
  kva_node *sum = build_sum(&b, n, values, mesh);
  for (uint32_t i = 0, k = 0; i < count && !b.failed; i++)
    if (is_reported(f, i))
      kva_node_set_operand(f->graph->last, i,
                           kva_div(&b, kva_result(sum, k++), kva_const_scalar(&b, KVA_F64, (double)mesh->data)));
  return !b.failed;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(kva_module *m, const kva_value *v) {
  int64_t n, bytes;
  bool known = kva_expr_is_const(kva_type_elements(m, v->type), &n) && kva_dtype_bytes(v->type->dtype, n, &bytes);
  return known ? bytes : BUCKET;
}

/* What is a part is a sum already. */
static bool is_bucketed(kva_module *m, const kva_pass_options *o, uint32_t i) {
  const kva_gradients *q = o->gradients;
  const kva_state *s = m->states.data[i];
  return q->of[i] && !o->only_parts && !kva_is_part(s, q->of[i]) && !kva_in_parts(m, s, o);
}

static bool scatter_gradients(kva_module *m, const kva_pass_options *o) {
  const kva_gradients *q = o->gradients;
  for (uint32_t i = 0; q->of && i < m->train->first_state; i++) {
    kva_state *s = m->states.data[i];
    if (!q->of[i] || kva_is_part(s, q->of[i]) || !kva_in_parts(m, s, o)) continue;
    kva_builder b = builder_behind(m, q->function->graph, q->of[i]);
    kva_reduce_scatter_attrs attrs = {.parts = o->mesh.data, .stride = kva_mesh_group(&o->mesh)};
    q->of[i] = kva_build(&b, KVA_OP_reduce_scatter, 1, &q->of[i], &attrs);
    if (b.failed) return false;
  }
  return true;
}

static gradient *list_gradients(kva_module *m, const kva_pass_options *o, const uint32_t *places, uint32_t *out_n) {
  const kva_gradients *q = o->gradients;
  gradient *all = KVA_NEW_ARRAY(m->arena, gradient, m->states.len + 1);
  *out_n = 0;
  for (uint32_t i = 0; q->of && i < m->train->first_state; i++)
    if (is_bucketed(m, o, i)) all[(*out_n)++] = (gradient){q->of[i], i, place_of(places, q->of[i])};
  qsort(all, *out_n, sizeof *all, earlier_first);
  return all;
}

/* The end of the bucket that begins at `begin`. */
static uint32_t bucket_end(kva_module *m, uint32_t n, const gradient *all, uint32_t begin) {
  int64_t bytes = 0;
  uint32_t end = begin;
  while (end < n && bytes < BUCKET && all[end].value->type->dtype == all[begin].value->type->dtype)
    bytes += bytes_of(m, all[end++].value);
  return end;
}

/* States may share a gradient. */
static bool sum_bucket(kva_module *m, const kva_gradients *q, uint32_t n, const gradient *bucket,
                       const kva_mesh *mesh) {
  kva_value **values = KVA_NEW_ARRAY(m->arena, kva_value *, n);
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; i++)
    if (!i || bucket[i].value != bucket[i - 1].value) values[count++] = bucket[i].value;
  kva_builder b = builder_behind(m, q->function->graph, bucket[n - 1].value);
  kva_node *sum = build_sum(&b, count, values, mesh);
  for (uint32_t i = 0, k = 0; i < n && !b.failed; i++) {
    k += i && bucket[i].value != bucket[i - 1].value;
    q->of[bucket[i].state] = kva_result(sum, k);
  }
  return !b.failed;
}

static bool sum_gradients(kva_module *m, const kva_pass_options *o, const uint32_t *places) {
  uint32_t n;
  gradient *all = list_gradients(m, o, places, &n);
  for (uint32_t begin = 0, end; begin < n; begin = end) {
    end = bucket_end(m, n, all, begin);
    if (!sum_bucket(m, o->gradients, end - begin, all + begin, &o->mesh)) return false;
  }
  return true;
}

kva_status kva_shard(kva_module *m, const kva_pass_options *options, bool *changed) {
  const kva_gradients *q = options->gradients;
  if (!q) return kva_error(m->diag, NULL, "pass shard works inside of pass train: --passes=train --mesh data=2");
  KVA_TRY(kva_check_forward_states(m, q->function->graph));
  uint32_t *places = number_nodes(m, q->function->graph);
  bool done = average_outputs(m, q->function, places, &options->mesh) && sum_gradients(m, options, places) &&
              scatter_gradients(m, options);
  *changed = true;
  return done ? KVA_OK : KVA_INVALID;
}
