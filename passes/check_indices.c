/* Indices are checked while a program runs.
 *
 * What: every operator with a row fact `indexing` reads its indices through a kv.check_indices, a call of the runtime
 * that ends the run where one is out of range; without it compiled code clamps. Algorithm: one sweep over all graphs;
 * operators of a graph that share indices and bounds share the check (a lookup and its gradient). Constants that were
 * checked when their node was made need none. Requires: nothing. Breaks: fusion of what computes indices. Why not in
 * kernels: an index may be recomputed there for many elements, and a kernel cannot fail. Why so late: the passes before
 * see the same graph with and without it. */
#include "passes/passes_internal.h"
#include "ops/index.h"

static kva_dims limits_of(kva_module *m, const kva_indexing *x) {
  kva_dim *v = KVA_NEW_ARRAY(m->arena, kva_dim, 2 * KVA_MAX_RANK + 1);
  uint32_t n = 0;
  for (uint32_t k = 0; k < x->n; k++, n += 2) kva_index_range(m->exprs, x, k, &v[n], &v[n + 1]);
  if (x->has_ignored) v[n++] = kva_expr_const(m->exprs, x->ignored);
  return (kva_dims){n, v};
}

static bool all_constant(kva_dims d) {
  for (uint32_t i = 0; i < d.n; i++)
    if (!kva_expr_is_const(d.v[i], NULL)) return false;
  return true;
}

static bool has_limits(const kva_node *check, kva_dims limits) {
  const kva_node *source = kva_operand(check, 1)->def;
  if (!source || !kva_is(source, KVA_OP_dims)) return false;
  kva_dims found = ((const kva_dims_attrs *)source->attrs)->values;
  if (found.n != limits.n) return false;
  for (uint32_t i = 0; i < found.n; i++)
    if (found.v[i] != limits.v[i]) return false;
  return true;
}

/* An earlier check of these indices in g. */
static kva_node *find_check(const kva_graph *g, const kva_value *indices, kva_dims limits) {
  for (const kva_use *u = indices->uses; u; u = u->next)
    if (kva_is(u->user, KVA_OP_check_indices) && u->user->graph == g && has_limits(u->user, limits)) return u->user;
  return NULL;
}

/* "gather y": what a message calls n. */
static const char *name_of(kva_module *m, const kva_node *n) {
  const char *name = n->loc.node ? n->loc.node : n->results[0].name;
  return name ? kva_arena_printf(m->arena, "%s %s", n->op->name, name) : n->op->name;
}

static kva_value *make_check(kva_module *m, kva_node *n, const kva_indexing *x, kva_dims limits) {
  kva_builder b = kva_builder_before(m, n);
  kva_value *bounds = kva_build(&b, KVA_OP_dims, 0, NULL, &(kva_dims_attrs){.values = limits});
  kva_check_indices_attrs attrs = {.user = name_of(m, n), .axis = x->axis, .ignores = x->has_ignored};
  return kva_build(&b, KVA_OP_check_indices, 2, (kva_value *[]){kva_operand(n, x->operand), bounds}, &attrs);
}

static kva_status check_graph(kva_module *m, kva_graph *g, const kva_pass_options *o, bool *changed) {
  (void)o;
  for (kva_node *n = g->first; n; n = n->next) {
    if (!n->op->indexing) continue;
    kva_indexing x = {0};
    n->op->indexing(n, &x);
    kva_value *indices = kva_operand(n, x.operand);
    kva_dims limits = limits_of(m, &x);
    bool known = kva_constant_of(indices) && all_constant(limits);
    if (known || (indices->def && kva_is(indices->def, KVA_OP_check_indices))) continue;
    kva_node *earlier = find_check(g, indices, limits);
    kva_node_set_operand(n, x.operand, earlier ? kva_result(earlier, 0) : make_check(m, n, &x, limits));
    *changed = true;
  }
  return KVA_OK;
}

kva_status kva_check_indices(kva_module *m, const kva_pass_options *o, bool *changed) {
  return kva_visit_graphs(m, check_graph, o, changed);
}
