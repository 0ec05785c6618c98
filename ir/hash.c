/* Structural hash of a graph. Values, symbols and states are numbered in order of first mention, so names and ids do
 * not matter. */
#include "ir/expr_internal.h"
#include "ir/ir_internal.h"

typedef struct hasher {
  kva_map *numbers; /* pointer -> number + 1 */
  uint64_t hash;
} hasher;

static bool number_of(hasher *h, const void *p, uint64_t *out_number) {
  uintptr_t found = (uintptr_t)kva_map_get(h->numbers, &p, sizeof p);
  if (!found) {
    found = kva_map_len(h->numbers) + 1;
    kva_map_set(h->numbers, &p, sizeof p, (void *)found);
    *out_number = found - 1;
    return true;
  }
  *out_number = found - 1;
  return false;
}

static void add(hasher *h, uint64_t v) {
  h->hash = kva_hash(h->hash, &v, sizeof v);
}

static uint64_t symbol_number(void *user, const kva_expr *symbol) {
  uint64_t number;
  number_of(user, symbol, &number);
  return number;
}

static uint64_t type_hash(hasher *h, const kva_type *t) {
  if (!t) return 0;
  uint64_t head[4] = {t->kind, t->dtype, t->rank, t->element ? type_hash(h, t->element) : 0};
  uint64_t hash = kva_hash(0, head, sizeof head);
  for (uint32_t i = 0; i < t->rank; i++) {
    uint64_t dim = kva_expr_hash(t->dims[i], symbol_number, h);
    hash = kva_hash(hash, &dim, sizeof dim);
  }
  return hash;
}

static uint64_t state_number(void *user, const kva_state *s) {
  uint64_t number[3] = {0, s->kind, 0};
  if (number_of(user, s, &number[0])) number[2] = type_hash(user, s->type);
  return kva_hash(0, number, sizeof number);
}

static void add_value(hasher *h, const kva_value *v) {
  uint64_t number;
  if (!v) {
    add(h, UINT64_MAX);
    return;
  }
  bool is_new = number_of(h, v, &number);
  add(h, number);
  if (is_new) add(h, type_hash(h, v->type));
}

static void add_graph(hasher *h, const kva_graph *g);

static void add_node(hasher *h, const kva_node *n) {
  h->hash = kva_hash(h->hash, n->op->name, strlen(n->op->name) + 1);
  if (n->attrs)
    h->hash = kva_attrs_hash_with(n->op->attrs, n->attrs, h->hash,
                                  &(kva_attr_hasher){symbol_number, state_number, kva_tensor_hash, h});
  add(h, n->n_operands);
  for (uint32_t i = 0; i < n->n_operands; i++) add_value(h, n->operands[i].value);
  add(h, n->n_results);
  for (uint32_t i = 0; i < n->n_results; i++) add_value(h, &n->results[i]);
  add(h, n->n_graphs);
  for (uint32_t i = 0; i < n->n_graphs; i++) add_graph(h, n->graphs[i]);
}

static void add_graph(hasher *h, const kva_graph *g) {
  add(h, g->inputs.len);
  for (uint32_t i = 0; i < g->inputs.len; i++) add_value(h, g->inputs.data[i]);
  for (const kva_node *n = g->first; n; n = n->next) add_node(h, n);
}

uint64_t kva_graph_hash(const kva_graph *g) {
  kva_arena *scratch = kva_arena_create();
  hasher h = {.numbers = kva_map_create(scratch)};
  add_graph(&h, g);
  kva_arena_destroy(scratch);
  return h.hash;
}

uint64_t kva_node_hash(const kva_node *n) {
  kva_arena *scratch = kva_arena_create();
  hasher h = {.numbers = kva_map_create(scratch)};
  add_node(&h, n);
  kva_arena_destroy(scratch);
  return h.hash;
}
