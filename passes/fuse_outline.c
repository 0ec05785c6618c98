/* Outlining of the groups that fuse.c made: each becomes a kv.kernel node whose sub-graph holds its nodes. */
#include "passes/fuse_internal.h"

#include <stdlib.h>

bool kva_fuse_is_scalar_constant(const kva_node *n) {
  const kva_tensor_data *t = kva_constant_of(&n->results[0]);
  bool one = t != NULL;
  for (uint32_t d = 0; one && d < t->rank; d++) one = t->dims[d] == 1;
  return one;
}

/* ---- outlining --------------------------------------------------------------------------------------------------- */

static int by_position(const void *a, const void *b, void *user) {
  const fuse *f = user;
  uint32_t x = info(f, *(kva_node *const *)a)->position, y = info(f, *(kva_node *const *)b)->position;
  return x < y ? -1 : x > y;
}

/* A topological order of the group's nodes: definitions before uses. Copies share their original's position, and an
 * original never reads its own copy, so position alone orders them. */
static void sort_group(fuse *f, group *g) {
  qsort_r(g->nodes, g->n_nodes, sizeof *g->nodes, by_position, f);
}

typedef struct outline {
  KVA_VEC(kva_value *) inputs, outputs;
} outline;

static bool contains(kva_value *const *values, uint32_t n, const kva_value *v) {
  for (uint32_t i = 0; i < n; i++)
    if (values[i] == v) return true;
  return false;
}

static void find_interface(fuse *f, const group *g, outline *o) {
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    kva_node *n = g->nodes[k];
    for (uint32_t i = 0; i < n->n_operands; i++) {
      kva_value *v = n->operands[i].value;
      if (!v || in_group(f, v->def, g) || (v->def && kva_fuse_is_scalar_constant(v->def))) continue;
      if (!contains(o->inputs.data, o->inputs.len, v)) KVA_PUSH(f->scratch, &o->inputs, v);
    }
    for (uint32_t r = 0; r < n->n_results; r++) {
      bool escapes = false;
      for (const kva_use *u = n->results[r].uses; u && !escapes; u = u->next) escapes = !in_group(f, u->user, g);
      if (escapes) KVA_PUSH(f->scratch, &o->outputs, &n->results[r]);
    }
  }
}

static const char *group_name(fuse *f, const group *g) {
  KVA_ASSERT(g->n_nodes);
  const kva_node *root = g->tile ? g->tile : g->nodes[g->n_nodes - 1];
  for (uint32_t k = 0; k < g->n_nodes; k++)
    if (g->nodes[k]->op->traits & KVA_UPDATES) root = g->nodes[k];
  return kva_arena_printf(f->m->arena, g->n_nodes == 1 ? "%s" : "%s_%u", root->op->name, g->n_nodes);
}

static void fill_body(fuse *f, const group *g, const outline *o, kva_graph *body) {
  kva_value **values = f->values;
  for (uint32_t i = 0; i < o->inputs.len; i++)
    values[o->inputs.data[i]->id] = kva_graph_add_input(body, o->inputs.data[i]->type, o->inputs.data[i]->name);
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    kva_node *n = g->nodes[k];
    kva_value **in = KVA_NEW_ARRAY(f->scratch, kva_value *, n->n_operands + 1);
    for (uint32_t i = 0; i < n->n_operands; i++) {
      kva_value *v = n->operands[i].value;
      if (v && !values[v->id]) { /* a scalar constant: copied in */
        KVA_ASSERT(v->def && kva_fuse_is_scalar_constant(v->def));
        kva_node *c = kva_node_create(body, NULL, v->def->op, 0, NULL, 1, v->def->attrs, v->def->loc);
        c->results[0].type = v->type;
        values[v->id] = &c->results[0];
      }
      in[i] = v ? values[v->id] : NULL;
    }
    kva_node *copy = kva_node_create(body, NULL, n->op, n->n_operands, in, n->n_results, n->attrs, n->loc);
    for (uint32_t r = 0; r < n->n_results; r++) {
      copy->results[r].type = n->results[r].type;
      copy->results[r].name = n->results[r].name;
      values[n->results[r].id] = &copy->results[r];
    }
  }
}

static void forget_copies(fuse *f, const group *g, const outline *o) {
  for (uint32_t i = 0; i < o->inputs.len; i++) f->values[o->inputs.data[i]->id] = NULL;
  for (uint32_t k = 0; k < g->n_nodes; k++) {
    const kva_node *n = g->nodes[k];
    for (uint32_t i = 0; i < n->n_operands; i++)
      if (n->operands[i].value) f->values[n->operands[i].value->id] = NULL;
    for (uint32_t r = 0; r < n->n_results; r++) f->values[n->results[r].id] = NULL;
  }
}

void kva_fuse_outline(fuse *f, group *g) {
  kva_module *m = f->m;
  sort_group(f, g);
  outline o = {0};
  find_interface(f, g, &o);
  kva_node *root = g->nodes[g->n_nodes - 1];
  kva_kernel_attrs *attrs = KVA_NEW(m->arena, kva_kernel_attrs);
  attrs->name = group_name(f, g);
  kva_node *kernel =
      kva_node_create(root->graph, root, KVA_OP(kernel), o.inputs.len, o.inputs.data, o.outputs.len, attrs, root->loc);
  kva_graph *body = kva_graph_create(m, kernel);
  fill_body(f, g, &o, body);
  kva_value **results = KVA_NEW_ARRAY(f->scratch, kva_value *, o.outputs.len + 1);
  for (uint32_t i = 0; i < o.outputs.len; i++) {
    results[i] = f->values[o.outputs.data[i]->id];
    KVA_ASSERT(results[i] && results[i]->type == o.outputs.data[i]->type);
    kernel->results[i].type = o.outputs.data[i]->type;
    kernel->results[i].name = o.outputs.data[i]->name;
  }
  kva_node_create(body, NULL, KVA_OP(return ), o.outputs.len, results, 0, NULL, root->loc);
  KVA_ASSERT(o.outputs.len); /* a group that nobody reads is not opened */
  for (uint32_t i = 0; i < o.outputs.len; i++) kva_value_replace_all_uses(o.outputs.data[i], &kernel->results[i]);
  forget_copies(f, g, &o);
  for (uint32_t k = g->n_nodes; k-- > 0;) kva_node_remove(g->nodes[k]);
}

/* ---- restoring order --------------------------------------------------------------------------------------------- */

/* A group stands where its root stood, but a further output of it may be read before. Puts the nodes of a graph back in
 * SSA order: repeatedly moves a node after the last definition it needs, keeping the order otherwise. */
void kva_fuse_restore_order(fuse *f, kva_graph *g) {
  uint32_t n = 0;
  for (kva_node *k = g->first; k; k = k->next) n++;
  kva_node **order = KVA_NEW_ARRAY(f->scratch, kva_node *, n);
  bool *done = KVA_NEW_ARRAY(f->scratch, bool, f->m->next_node_id);
  KVA_VEC(kva_node *) stack = {0};
  uint32_t len = 0;
  for (kva_node *start = g->first; start; start = start->next) {
    KVA_PUSH(f->scratch, &stack, start);
    while (stack.len) {
      kva_node *top = stack.data[stack.len - 1];
      bool ready = true;
      for (uint32_t i = 0; i < top->n_operands && !done[top->id]; i++) {
        kva_node *def = top->operands[i].value ? top->operands[i].value->def : NULL;
        if (!def || def->graph != g || done[def->id]) continue;
        KVA_PUSH(f->scratch, &stack, def);
        ready = false;
      }
      if (!ready) continue;
      stack.len--;
      if (done[top->id]) continue;
      done[top->id] = true;
      order[len++] = top;
    }
  }
  for (uint32_t i = len - 1; i-- > 0;) kva_node_move_before(order[i], order[i + 1]); /* the return node stays last */
}
