/* Rows that are merged with another axis: exporters normalise the heads of queries and keys as [B, 4 T, D], where an
 * axis counts neither rows nor heads. Before chunks are made, such an axis is parted into [B, T, 4, D].
 *
 * Algorithm: a reshape that merges them gives the parted form, in which what works on each element, or on each
 * row of the last axis, is done; a further reshape of the same elements takes either form. Whatever else reads the
 * merged form keeps it, and is named later. */
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

/* The attribute that says which axis n works along, if that is the last one of its rows; NULL: it does not. */
static const kva_attr_field *axis_of_rows(const kva_node *n) {
  const kva_attr_field *axis = n->attrs ? kva_attrs_find(n->op->attrs, "axis", strlen("axis")) : NULL;
  bool last = n->op->row_dims && n->op->row_dims(n) + 1 == (int)kva_operand_type(n, 0)->rank;
  return last && axis && axis->kind == KVA_ATTR_INT ? axis : NULL;
}

/* n's attributes for one axis more: the last one is counted from the end. */
static const void *attrs_of(const parting *p, const kva_node *n) {
  const kva_attr_field *axis = axis_of_rows(n);
  if (!axis) return n->attrs;
  char *attrs = kva_arena_memdup(p->m->arena, n->attrs, n->op->attrs->size);
  *(int64_t *)(void *)(attrs + axis->offset) = -1;
  return attrs;
}

/* Whether n, which reads v, may read the parted form: it does the same everywhere along the axis. */
static bool ignores_axis(const parting *p, const kva_node *n, const kva_value *v) {
  uint32_t behind = v->type->rank - 1 - p->axis;
  bool by_rows = behind > 0 && kva_operand(n, 0) == v && axis_of_rows(n);
  if (n->n_results != 1 || n->n_graphs || (!by_rows && !(n->op->traits & KVA_ELEMENTWISE))) return false;
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
  kva_node *again = kva_build_node(&b, n->op->id, n->n_operands, operands, 1, attrs_of(p, n));
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
