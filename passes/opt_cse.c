/* Common subexpression elimination.
 *
 * What: a pure node equal to an earlier one of the same graph (operator, attributes, operands) is replaced by it. State
 * is forwarded: a read is the value last read or written, a write that another one follows is dropped, and so is one
 * that puts back what was read. Afterwards a graph reads each state once, before it writes it, and writes it once:
 * plans rely on that, so a limit of changes leaves out merges only. Algorithm: one forward sweep with a hash table of
 * the nodes seen; operands were already merged, so equality is by pointer. Requires: SSA order. Breaks: nothing. Why
 * not across sub-graphs: an inner node may run zero times or often; hoisting is another pass's decision. */
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

static void merge(kva_node *into, kva_node *n) {
  KVA_ASSERT(into != n && into->graph && into->n_results == n->n_results);
  for (uint32_t r = 0; r < n->n_results; r++) kva_value_replace_all_uses(&n->results[r], &into->results[r]);
  kva_node_remove(n);
}

/* The content of a state at the current point of the sweep. */
typedef struct state_now {
  kva_value *value; /* NULL: not accessed so far */
  kva_value *old;   /* initial content; NULL: never read */
  kva_node *write;  /* the write of `value`; NULL: none */
} state_now;

typedef struct cse {
  kva_arena *scratch;
  state_now *states; /* indexed by state id */
  const kva_pass_options *options;
  bool changed;
} cse;

/* Reads after a write are forwarded, so nothing reads the value of an overwritten write. */
static void visit_write(cse *c, kva_node *n) {
  KVA_ASSERT(n->n_operands == 1 && !n->n_results);
  state_now *now = &c->states[((const kva_state_write_attrs *)n->attrs)->state->id];
  kva_value *v = kva_operand(n, 0);
  bool same = v == now->value;
  if (now->write && !same) {
    kva_node_remove(now->write);
    now->write = NULL;
    c->changed = true;
  }
  now->value = v;
  if (same || v == now->old) {
    kva_node_remove(n);
    c->changed = true;
  } else {
    now->write = n;
  }
}

static void visit_read(cse *c, kva_node *n) {
  KVA_ASSERT(n->n_results == 1 && !n->n_operands);
  state_now *now = &c->states[((const kva_state_read_attrs *)n->attrs)->state->id];
  if (!now->value) {
    now->value = now->old = &n->results[0];
    return;
  }
  kva_value_replace_all_uses(&n->results[0], now->value);
  kva_node_remove(n);
  c->changed = true;
}

enum { TABLE_SIZE = 4096 };

static void visit_pure(cse *c, cse_entry **table, kva_node *n) {
  cse_entry **slot = &table[node_hash(n) % TABLE_SIZE];
  cse_entry *e = *slot;
  while (e && !nodes_equal(e->node, n)) e = e->next;
  if (e) {
    if (!kva_may_change(c->options)) return;
    merge(e->node, n);
    kva_count_change(c->options, n, NULL, &c->changed);
    return;
  }
  e = KVA_NEW(c->scratch, cse_entry);
  *e = (cse_entry){n, *slot};
  *slot = e;
}

static void sweep(cse *c, kva_graph *g) {
  cse_entry **table = KVA_NEW_ARRAY(c->scratch, cse_entry *, TABLE_SIZE);
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    for (uint32_t i = 0; i < n->n_graphs; i++) sweep(c, n->graphs[i]);
    if (kva_is(n, KVA_OP_state_write))
      visit_write(c, n);
    else if (kva_is(n, KVA_OP_state_read))
      visit_read(c, n);
    else if (kva_node_is_pure(n))
      visit_pure(c, table, n);
  }
}

kva_status kva_opt_cse(kva_module *m, const kva_pass_options *o, bool *changed) {
  for (uint32_t f = 0; f < m->functions.len; f++) {
    cse c = {.scratch = kva_arena_create(), .options = o};
    c.states = KVA_NEW_ARRAY(c.scratch, state_now, m->states.len + 1);
    sweep(&c, m->functions.data[f]->graph);
    *changed |= c.changed;
    kva_arena_destroy(c.scratch);
  }
  return KVA_OK;
}
