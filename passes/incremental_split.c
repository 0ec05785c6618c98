/* Rows that are merged with another axis: exporters normalise the heads of queries and keys as [B, 4 T, D], where an
 * axis counts neither rows nor heads. Before chunks are made, such an axis is parted into [B, T, 4, D].
 *
 * Algorithm: a reshape that merges them gives the parted form, in which what works on each element, or on the axes
 * behind, is done; a further reshape of the same elements takes either form. Whatever else reads the merged form keeps
 * it, and is named later. */
#include "ops/ids.h"
#include "passes/incremental.h"

typedef struct parting {
  kva_module *m;
  kva_dim time;
  uint32_t axis;
  int64_t count; /* of the other axis */
} parting;

/* The one axis that counts a multiple of the rows. */
static bool find_merged(parting *p, const kva_type *t) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < t->rank; i++) {
    if (!kva_expr_uses(t->dims[i], p->time)) continue;
    bool whole = kva_expr_is_const(kva_expr_div(p->m->exprs, t->dims[i], p->time), &p->count);
    if (!whole || p->count < 2 || kva_expr_muli(p->m->exprs, p->time, p->count) != t->dims[i]) return false;
    p->axis = i;
    found++;
  }
  return found == 1 && t->rank < KVA_MAX_RANK;
}

/* n with attributes for one more axis, if it is a norm over the last one. */
typedef struct last_norm {
  bool yes;
  kva_rms_norm_attrs rms;
  kva_layer_norm_attrs layer;
} last_norm;

static last_norm norm_of(const kva_node *n) {
  bool rms = kva_is(n, KVA_OP_rms_norm);
  if (!rms && !kva_is(n, KVA_OP_layer_norm)) return (last_norm){0};
  last_norm norm = {.rms = {.axis = -1}, .layer = {.axis = -1}};
  norm.rms.eps = norm.layer.eps =
      rms ? ((const kva_rms_norm_attrs *)n->attrs)->eps : ((const kva_layer_norm_attrs *)n->attrs)->eps;
  int64_t axis = rms ? ((const kva_rms_norm_attrs *)n->attrs)->axis : ((const kva_layer_norm_attrs *)n->attrs)->axis;
  norm.yes = axis == -1 || axis + 1 == (int64_t)kva_operand_type(n, 0)->rank;
  return norm;
}

/* Whether n, which reads v, may read the parted form: it does the same everywhere along the axis. */
static bool ignores_axis(const parting *p, const kva_node *n, const kva_value *v) {
  uint32_t behind = v->type->rank - 1 - p->axis;
  bool norm = norm_of(n).yes && behind > 0 && kva_operand(n, 0) == v;
  if (n->n_results != 1 || n->n_graphs || (!norm && !(n->op->traits & KVA_ELEMENTWISE))) return false;
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i) && kva_operand(n, i) != v && kva_operand_type(n, i)->rank > behind) return false;
  return true;
}

static void part_users(const parting *p, kva_value *v, kva_value *parted);

/* n again, of the parted form of v. */
static void part_node(const parting *p, kva_node *n, const kva_value *v, kva_value *parted) {
  kva_builder b = kva_builder_before(p->m, n);
  kva_value **operands = KVA_NEW_ARRAY(p->m->arena, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) operands[i] = kva_operand(n, i) == v ? parted : kva_operand(n, i);
  last_norm norm = norm_of(n);
  const void *attrs = kva_is(n, KVA_OP_rms_norm)     ? &norm.rms
                      : kva_is(n, KVA_OP_layer_norm) ? (void *)&norm.layer
                                                     : n->attrs;
  kva_node *again = kva_build_node(&b, n->op->id, n->n_operands, operands, 1, attrs);
  if (!b.failed) part_users(p, &n->results[0], &again->results[0]);
}

static void part_users(const parting *p, kva_value *v, kva_value *parted) {
  KVA_VEC(kva_node *) users = {0};
  for (const kva_use *u = v->uses; u; u = u->next)
    if (!users.len || users.data[users.len - 1] != u->user) KVA_PUSH(p->m->arena, &users, u->user);
  for (uint32_t i = 0; i < users.len; i++) {
    kva_node *n = users.data[i];
    if (kva_is(n, KVA_OP_reshape))
      kva_node_set_operand(n, 0, parted);
    else if (ignores_axis(p, n, v))
      part_node(p, n, v, parted);
  }
}

static void part_reshape(const parting *p, kva_node *n) {
  kva_builder b = kva_builder_before(p->m, n->next);
  const kva_type *t = n->results[0].type;
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t i = 0; i < t->rank; i++) dims[i < p->axis ? i : i + 1] = t->dims[i];
  dims[p->axis] = p->time;
  dims[p->axis + 1] = kva_expr_const(p->m->exprs, p->count);
  part_users(p, &n->results[0], kva_reshape(&b, kva_operand(n, 0), t->rank + 1, dims));
}

void kva_part_merged_rows(kva_module *m, kva_graph *g, kva_dim time) {
  parting p = {.m = m, .time = time};
  bool removed = false;
  for (kva_node *n = g->first; n; n = n->next)
    if (kva_is(n, KVA_OP_reshape) && find_merged(&p, n->results[0].type)) part_reshape(&p, n);
  kva_remove_dead(g, &removed);
}
