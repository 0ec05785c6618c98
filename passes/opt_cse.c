/* Common subexpression elimination.
 *
 * What: a pure node equal to an earlier one of the same graph (operator, attributes, operands) is replaced by it. Two
 * reads of one state merge when no write of that state stands between them.
 * Algorithm: one forward sweep with a hash table of the nodes seen; operands were already merged, so equality is by
 * pointer. Requires: SSA order. Breaks: nothing.
 * Why not across sub-graphs: an inner node may run zero times or often; hoisting is another pass's decision. */
#include "passes/passes_internal.h"

typedef struct cse_entry {
  kva_node *node;
  struct cse_entry *next;
} cse_entry;

static uint64_t node_hash(const kva_node *n) {
  uint64_t h = kva_hash(0, &n->op->id, sizeof n->op->id);
  if (n->op->attrs) h = kva_attrs_hash(n->op->attrs, n->attrs, h);
  for (uint32_t i = 0; i < n->n_operands; i++) h = kva_hash(h, &n->operands[i].value, sizeof(kva_value *));
  return h;
}

static bool nodes_equal(const kva_node *a, const kva_node *b) {
  if (a->op != b->op || a->n_operands != b->n_operands || a->n_results != b->n_results) return false;
  for (uint32_t i = 0; i < a->n_operands; i++)
    if (a->operands[i].value != b->operands[i].value) return false;
  for (uint32_t r = 0; r < a->n_results; r++)
    if (a->results[r].type != b->results[r].type) return false;
  return !a->op->attrs || kva_attrs_equal(a->op->attrs, a->attrs, b->attrs);
}

static void forget_reads(cse_entry **table, uint32_t size, const kva_state *state) {
  for (uint32_t i = 0; i < size; i++)
    for (cse_entry **link = &table[i]; *link;) {
      const kva_node *n = (*link)->node;
      bool stale = kva_is(n, KVA_OP_state_read) && ((const kva_state_read_attrs *)n->attrs)->state == state;
      if (stale) *link = (*link)->next;
      else link = &(*link)->next;
    }
}

static void merge(kva_node *into, kva_node *n) {
  for (uint32_t r = 0; r < n->n_results; r++) kva_value_replace_all_uses(&n->results[r], &into->results[r]);
  kva_node_remove(n);
}

static void sweep(kva_graph *g, kva_arena *scratch, bool *changed) {
  enum { SIZE = 4096 };
  cse_entry **table = KVA_NEW_ARRAY(scratch, cse_entry *, SIZE);
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    for (uint32_t i = 0; i < n->n_graphs; i++) sweep(n->graphs[i], scratch, changed);
    if (kva_is(n, KVA_OP_state_write)) forget_reads(table, SIZE, ((kva_state_write_attrs *)n->attrs)->state);
    if (!kva_node_is_pure(n) && !kva_is(n, KVA_OP_state_read)) continue;
    uint32_t slot = (uint32_t)(node_hash(n) % SIZE);
    cse_entry *e = table[slot];
    while (e && !nodes_equal(e->node, n)) e = e->next;
    if (e) {
      merge(e->node, n);
      *changed = true;
      continue;
    }
    e = KVA_NEW(scratch, cse_entry);
    *e = (cse_entry){n, table[slot]};
    table[slot] = e;
  }
}

kva_status kva_opt_cse(kva_module *m, bool *changed) {
  kva_arena *scratch = kva_arena_create();
  for (uint32_t f = 0; f < m->functions.len; f++) sweep(m->functions.data[f]->graph, scratch, changed);
  kva_arena_destroy(scratch);
  return KVA_OK;
}
