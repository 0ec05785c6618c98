/* Sub-graphs. An ONNX sub-graph sees the names around it, an internal one only its inputs. It is first built with
 * operands from outside, which then become inputs. */
#include "frontend/onnx_region.h"
#include "ops/ids.h"

enum { SMALL_BYTES = 512 };

typedef KVA_VEC(kva_value *) value_list;

kva_region kva_region_open(kva_onnx_call *k) {
  kva_region r = {.graph = kva_graph_create(k->b->m, NULL), .outer = k->b->graph};
  k->b->graph = r.graph;
  return r;
}

void kva_region_close(kva_onnx_call *k, const kva_region *r, uint32_t n_outputs, kva_value *const *outputs) {
  kva_build_node(k->b, KVA_OP_return, n_outputs, outputs, 0, NULL);
  k->b->graph = r->outer;
}

void kva_region_discard(kva_onnx_call *k, const kva_region *r) {
  while (r->graph->last) kva_node_remove(r->graph->last);
  k->b->graph = r->outer;
}

/* ---- captured values --------------------------------------------------------------------------------------------- */

static bool contains(const value_list *list, const kva_value *v) {
  for (uint32_t i = 0; i < list->len; i++)
    if (list->data[i] == v) return true;
  return false;
}

/* Small ones are structure (axes, shapes, numbers). Large ones are weights, which stay where training finds them. */
static bool is_small_constant(const kva_value *v) {
  return v->def && kva_is(v->def, KVA_OP_constant) &&
         ((const kva_constant_attrs *)v->def->attrs)->value->bytes <= SMALL_BYTES;
}

static kva_value *constant_inside(kva_graph *g, const kva_node *constant) {
  kva_node *copy = kva_node_create(g, g->first, constant->op, 0, NULL, 1, constant->attrs, constant->loc);
  copy->results[0].type = constant->results[0].type;
  copy->results[0].name = constant->results[0].name;
  return &copy->results[0];
}

static void replace_uses_in(kva_graph *g, kva_value *from, kva_value *to) {
  for (kva_use *u = from->uses, *next; u; u = next) {
    next = u->next;
    if (u->user->graph == g) kva_node_set_operand(u->user, u->index, to);
  }
}

/* Nested sub-graphs are already closed, so their nodes' operands include everything they use. */
static void find_outer_values(kva_onnx_call *k, kva_graph *g, value_list *out) {
  for (kva_node *n = g->first; n; n = n->next)
    for (uint32_t i = 0; i < n->n_operands; i++) {
      kva_value *v = kva_operand(n, i);
      if (!v || v->graph == g) continue;
      if (is_small_constant(v))
        replace_uses_in(g, v, constant_inside(g, v->def));
      else if (!contains(out, v))
        KVA_PUSH(k->c->arena, out, v);
    }
}

kva_node *kva_region_node(kva_onnx_call *k, kva_op_id op, uint32_t n_regions, const kva_region *regions,
                          uint32_t n_operands, kva_value *const *operands, uint32_t n_results, void *attrs) {
  value_list in = {0}, captured = {0};
  for (uint32_t i = 0; i < n_operands; i++) KVA_PUSH(k->c->arena, &in, operands[i]);
  for (uint32_t i = 0; i < n_regions; i++) find_outer_values(k, regions[i].graph, &captured);
  for (uint32_t i = 0; i < captured.len; i++) KVA_PUSH(k->c->arena, &in, captured.data[i]);
  for (uint32_t r = 0; r < n_regions; r++)
    for (uint32_t i = 0; i < captured.len; i++) {
      kva_value *v = captured.data[i];
      replace_uses_in(regions[r].graph, v, kva_graph_add_input(regions[r].graph, v->type, v->name));
    }
  kva_node *n =
      kva_node_create(k->b->graph, k->b->before, kva_ops.ops[op], in.len, in.data, n_results, attrs, k->b->loc);
  for (uint32_t r = 0; r < n_regions; r++) kva_node_add_graph(n, regions[r].graph);
  return n;
}

kva_status kva_region_infer(kva_onnx_call *k, kva_node *n) {
  const kva_type **types = KVA_NEW_ARRAY(k->c->arena, const kva_type *, n->n_results + 1);
  kva_status status = n->op->infer(k->b->m, n, types);
  for (uint32_t i = 0; i < n->n_results; i++)
    n->results[i].type = status ? kva_type_scalar(k->b->m, KVA_F32) : types[i];
  return status;
}
