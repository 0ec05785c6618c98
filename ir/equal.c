/* Structural equality of nodes. Values correspond in order of first mention, as they are numbered by hash.c; symbols
 * and states must be the same ones. */
#include "ir/ir_internal.h"

/* Pairs of values, one of each node, by either of them. */
typedef struct pairing {
  kva_map *right_of, *left_of;
} pairing;

static bool paired(pairing *p, const kva_value *left, const kva_value *right) {
  if (!left || !right) return left == right;
  const kva_value *known_right = kva_map_get(p->right_of, &left, sizeof left);
  const kva_value *known_left = kva_map_get(p->left_of, &right, sizeof right);
  if (known_right || known_left) return known_right == right && known_left == left;
  if (left->type != right->type) return false;
  kva_map_set(p->right_of, &left, sizeof left, (void *)right);
  kva_map_set(p->left_of, &right, sizeof right, (void *)left);
  return true;
}

static bool equal_graphs(pairing *p, const kva_graph *left, const kva_graph *right);

static bool equal_nodes(pairing *p, const kva_node *left, const kva_node *right) {
  if (left->op != right->op || left->n_operands != right->n_operands || left->n_results != right->n_results ||
      left->n_graphs != right->n_graphs || !left->attrs != !right->attrs) {
    return false;
  }
  if (left->attrs && !kva_attrs_equal(left->op->attrs, left->attrs, right->attrs)) return false;
  for (uint32_t i = 0; i < left->n_operands; i++)
    if (!paired(p, left->operands[i].value, right->operands[i].value)) return false;
  for (uint32_t i = 0; i < left->n_results; i++)
    if (!paired(p, &left->results[i], &right->results[i])) return false;
  for (uint32_t i = 0; i < left->n_graphs; i++)
    if (!equal_graphs(p, left->graphs[i], right->graphs[i])) return false;
  return true;
}

static bool equal_graphs(pairing *p, const kva_graph *left, const kva_graph *right) {
  if (left->inputs.len != right->inputs.len) return false;
  for (uint32_t i = 0; i < left->inputs.len; i++)
    if (!paired(p, left->inputs.data[i], right->inputs.data[i])) return false;
  const kva_node *l = left->first, *r = right->first;
  for (; l && r; l = l->next, r = r->next)
    if (!equal_nodes(p, l, r)) return false;
  return l == r;
}

bool kva_node_equal(const kva_node *left, const kva_node *right) {
  kva_arena *scratch = kva_arena_create();
  pairing p = {kva_map_create(scratch), kva_map_create(scratch)};
  bool equal = equal_nodes(&p, left, right);
  kva_arena_destroy(scratch);
  return equal;
}
