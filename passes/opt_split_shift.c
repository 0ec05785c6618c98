/* The weight gradient of a KV shift on a GPU sums over the batch, rows and channels. The kernel of the input gradient,
 * which reads the same operands, also computes its sums over blocks of rows (codegen/kernels/nv/shift), which are then
 * added. */
#include "ops/kv_shift.h"
#include "passes/passes_internal.h"

enum { SEGMENTS = 3 };

/* Whether the shift uses options that the joint operator lacks: past, left_pad. */
static bool has_options(const kva_node *n) {
  return kva_operand(n, 2) || kva_operand(n, 4);
}

static bool is_zero_boundary(const char *name) {
  return !name || !strcmp(name, "zero");
}

/* Whether x is defined before `at`. */
static bool is_before(const kva_value *x, const kva_node *at) {
  return !x->def || x->def->graph != at->graph || kva_comes_before(x->def, at);
}

/* Whether n, a weight gradient, and `in` are gradients of the same shift. */
static bool is_pair(const kva_node *n, const kva_node *in) {
  if (!kva_is(in, KVA_OP_kv_shift_input_grad) || in->graph != n->graph || has_options(in)) return false;
  const kva_kv_shift_weight_grad_attrs *a = n->attrs;
  const kva_kv_shift_input_grad_attrs *b = in->attrs;
  const kva_type *w = kva_operand_type(in, 1);
  if (in->operands[0].value != n->operands[1].value || in->results[1].uses || w->rank != 2) return false;
  if (kva_operand(n, SEGMENTS) != kva_operand(in, SEGMENTS)) return false;
  return is_zero_boundary(b->boundary) && a->time_axis == b->time_axis && w->dims[1] == a->weight_shape.v[1] &&
         is_before(n->operands[0].value, in);
}

/* The input gradient that belongs to the weight gradient n; NULL: none. */
static kva_node *partner_of(const kva_node *n) {
  const kva_kv_shift_weight_grad_attrs *a = n->attrs;
  int64_t taps;
  if (!kva_is(n, KVA_OP_kv_shift_weight_grad) || has_options(n) || !is_zero_boundary(a->boundary)) return NULL;
  if (a->weight_shape.n != 2 || !kva_expr_is_const(a->weight_shape.v[1], &taps) || taps > KVA_SHIFT_GRADS_TAPS)
    return NULL;
  for (const kva_use *u = n->operands[1].value->uses; u; u = u->next)
    if (is_pair(n, u->user)) return u->user;
  return NULL;
}

static void join(kva_module *m, kva_node *n, kva_node *in) {
  KVA_ASSERT(n->graph == in->graph && !in->results[1].uses);
  const kva_kv_shift_weight_grad_attrs *a = n->attrs;
  kva_builder b = kva_builder_before(m, in);
  kva_kv_shift_grads_attrs attrs = {.time_axis = a->time_axis};
  kva_value *operands[] = {in->operands[0].value, in->operands[1].value, n->operands[0].value,
                           kva_operand(n, SEGMENTS)};
  kva_node *both = kva_build_node(&b, KVA_OP_kv_shift_grads, operands[3] ? 4 : 3, operands, 2, &attrs);
  kva_value *dw = kva_reduce(&b, KVA_OP_reduce_sum, &both->results[1], 2, (int64_t[]){0, 1}, false);
  both->results[0].name = in->results[0].name;
  kva_value_replace_all_uses(&in->results[0], &both->results[0]);
  kva_value_replace_all_uses(&n->results[0], kva_reshape_like(&b, dw, n->results[0].type));
  kva_node_remove(n);
  kva_node_remove(in);
}

bool kva_split_shift_grads(kva_module *m, kva_graph *g) {
  bool changed = false;
  for (kva_node *n = g->last, *in; n;) {
    in = partner_of(n);
    if (in) join(m, n, in);
    changed |= in != NULL;
    n = in ? g->last : n->prev;
  }
  return changed;
}
