/* Pass incremental: "prefill", which is decode with results of the last row alone. Reading a prompt needs no others,
 * and the product with the vocabulary is a large part of a small model.
 *
 * A node each of whose rows reads the same row of its operands is made again for one row, as long as no state depends
 * on it: state needs all rows. Where that ends, the last row is sliced out. What was computed for all rows before is
 * dead code then: in the last layer, everything after attention. Bits stay, since rows do not depend on how many there
 * are. */
#include "passes/incremental.h"

typedef struct last_rows {
  kva_chunks *p;
  kva_builder *b;
  bool *needed;     /* by id of a value: in all rows */
  kva_value **made; /* by id: its last row */
} last_rows;

static bool is_needed(const last_rows *l, const kva_node *n) {
  for (uint32_t i = 0; i < n->n_results; i++)
    if (l->needed[n->results[i].id]) return true;
  return false;
}

static void mark_needed(last_rows *l, const kva_node *end, uint32_t own) {
  for (uint32_t i = own; i < end->n_operands; i++) l->needed[kva_operand(end, i)->id] = true;
  for (const kva_node *n = end->prev; n; n = n->prev)
    for (uint32_t i = 0; is_needed(l, n) && i < n->n_operands; i++)
      if (kva_operand(n, i)) l->needed[kva_operand(n, i)->id] = true;
}

static uint32_t time_axis(const last_rows *l, const kva_value *v) {
  uint32_t axis = 0;
  while (v->type->dims[axis] != l->p->c.time) axis++;
  return axis;
}

static kva_value *last_row(last_rows *l, kva_value *v);

/* The operands for the last row; false: it is made of more than that of each. */
static bool last_operands(last_rows *l, const kva_node *n, uint32_t axis, kva_value **out) {
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = kva_operand(n, i);
    int source = v ? kva_source_axis(n, i, axis) : KVA_SAME_FOR_ALL;
    uint32_t rows = v ? kva_time_axes(l->p, v) : 0;
    if (source == KVA_MIXED || rows > 1 || (source >= 0 && !kva_is_time(&l->p->c, v, (uint32_t)source))) return false;
    if (source < 0 && rows) return false;
    out[i] = v;
  }
  return true;
}

/* NULL: n is not made row by row. */
static kva_value *made_again(last_rows *l, const kva_node *n, uint32_t axis) {
  kva_value **in = KVA_NEW_ARRAY(l->p->c.scratch, kva_value *, n->n_operands + 1);
  if (n->n_results != 1 || n->n_graphs || is_needed(l, n) || !n->n_operands) return NULL;
  if (kva_counting_attribute(l->p, n) || !last_operands(l, n, axis, in)) return NULL;
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (in[i] && kva_time_axes(l->p, in[i])) in[i] = last_row(l, in[i]);
  return kva_build(l->b, n->op->id, n->n_operands, in,
                   kva_resized_shape(l->p->c.scratch, n, axis, kva_expr_const(l->b->m->exprs, 1)));
}

static kva_value *last_row(last_rows *l, kva_value *v) {
  kva_value **made = &l->made[v->id];
  if (*made) return *made;
  uint32_t axis = time_axis(l, v);
  kva_dim one = kva_expr_const(l->b->m->exprs, 1), last = kva_expr_addi(l->b->m->exprs, l->p->c.time, -1);
  if (v->def) *made = made_again(l, v->def, axis);
  if (!*made) *made = kva_slice_rows(l->b, v, axis, last, one);
  return *made;
}

kva_function *kva_add_prefill(kva_chunks *p, const kva_function *decode, uint32_t own_outputs) {
  kva_module *m = p->c.b->m;
  kva_function *f = kva_function_clone(m, decode, "prefill");
  kva_node *end = f->graph->last;
  kva_builder b = {.m = m, .graph = f->graph, .before = end, .loc = f->loc};
  last_rows l = {.p = p,
                 .b = &b,
                 .needed = KVA_NEW_ARRAY(p->c.scratch, bool, m->next_value_id),
                 .made = KVA_NEW_ARRAY(p->c.scratch, kva_value *, m->next_value_id)};
  mark_needed(&l, end, own_outputs);
  for (uint32_t i = 0; i < own_outputs; i++)
    if (kva_time_axes(p, kva_operand(end, i)) == 1) kva_node_set_operand(end, i, last_row(&l, kva_operand(end, i)));
  return f;
}
