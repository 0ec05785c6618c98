/* Parameters' copies in the type of products, on a GPU.
 *
 * What: a product of mixed precision reads a parameter's rounding, which every run made of the parameter in float. A
 * parameter that some program updates gets a state for its rounding instead, initialised from it ("copy"). All programs
 * read that, and what writes the parameter rounds and writes it, too, in the update's own kernel (fuse_updates.c). The
 * runtime makes copies again after a caller may have modified the parameter.
 *
 * A training step so reads and writes 6 bytes a weight less and launches no kernel for it. Memory stays: roundings live
 * from the forward to the backward pass anyway.
 *
 * Requires: pass precision, whose casts these are, and clean-up: one read of a state in a function. Breaks: nothing.
 * Why not on a CPU: roundings are made where products pack their factors. Why not without updates: inference would
 * keep both. */
#include "passes/passes_internal.h"

enum { MIN_ELEMENTS = 1 << 14 };

typedef struct copies {
  kva_module *m;
  kva_dtype narrow;
  bool *updated;     /* by state id: a function writes it */
  bool *refused;     /* ... and a sub-graph does */
  kva_state **copy;  /* by state id; NULL: none */
  kva_value **value; /* by state id: its copy as the function at hand reads it, or NULL */
} copies;

static kva_state *state_written(const kva_node *n) {
  return kva_is(n, KVA_OP_state_write) ? ((const kva_state_write_attrs *)n->attrs)->state : NULL;
}

/* The state whose rounding to the products' type n is; NULL: none. */
static kva_state *state_rounded(const copies *c, const kva_node *n) {
  if (!kva_is(n, KVA_OP_cast) || n->results[0].type->dtype != c->narrow) return NULL;
  const kva_node *read = n->operands[0].value->def;
  kva_state *s = read ? kva_state_read_by(read) : NULL;
  return s && s->kind == KVA_STATE_PARAM && s->type->dtype == KVA_F32 ? s : NULL;
}

static bool feeds_product(const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next) {
    if (u->user->op->traits & KVA_TILE) return true;
    if (u->user->op->traits & KVA_VIEW && feeds_product(&u->user->results[0])) return true;
  }
  return false;
}

static bool is_large(const copies *c, const kva_state *s) {
  int64_t elements;
  return kva_expr_is_const(kva_type_elements(c->m, s->type), &elements) && elements >= MIN_ELEMENTS;
}

static void note_writes(copies *c, const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next) {
    const kva_state *s = state_written(n);
    if (s) *(g->owner ? &c->refused[s->id] : &c->updated[s->id]) = true;
  }
}

static kva_state *copy_of(copies *c, kva_state *s) {
  if (c->copy[s->id]) return c->copy[s->id];
  const char *name = kva_arena_printf(c->m->arena, "%s.%s", s->name, kva_dtype_name(c->narrow));
  if (kva_module_find_state(c->m, name)) return NULL; /* the model's own */
  kva_state *copy =
      kva_state_create(c->m, name, kva_type_tensor(c->m, c->narrow, s->type->rank, s->type->dims), KVA_STATE_CACHE);
  copy->init = KVA_INIT_COPY;
  copy->of = s;
  copy->stages = s->stages;
  copy->loc = s->loc;
  return c->copy[s->id] = copy;
}

static void read_copy(copies *c, kva_node *n) {
  kva_state *s = state_rounded(c, n);
  if (!s || !c->updated[s->id] || c->refused[s->id] || !is_large(c, s) || !feeds_product(&n->results[0])) return;
  kva_state *copy = copy_of(c, s);
  if (!copy) return;
  kva_builder b = kva_builder_before(c->m, n);
  kva_value **read = &c->value[s->id];
  if (!*read) *read = kva_read_state(&b, copy);
  kva_value_replace_all_uses(&n->results[0], *read);
  kva_node_remove(n);
}

static void write_copy(copies *c, kva_node *n) {
  const kva_state *s = state_written(n);
  if (!s || !c->copy[s->id]) return;
  kva_builder b = kva_builder_before(c->m, n);
  kva_value *v = kva_operand(n, 0);
  v = kva_build(&b, KVA_OP_cast, 1, &v, &(kva_cast_attrs){.to = c->narrow, .saturate = true});
  kva_build_node(&b, KVA_OP_state_write, 1, &v, 0, &(kva_state_write_attrs){.state = c->copy[s->id]});
}

static void each_node(copies *c, void (*visit)(copies *c, kva_node *n)) {
  for (uint32_t f = 0; f < c->m->functions.len; f++) {
    memset(c->value, 0, c->m->states.len * sizeof *c->value);
    for (kva_node *n = c->m->functions.data[f]->graph->first, *next; n; n = next) {
      next = n->next;
      visit(c, n);
    }
  }
}

kva_status kva_copy_parameters(kva_module *m, const kva_pass_options *o, bool *changed) {
  uint32_t n = m->states.len, before = m->next_node_id;
  if (!o->compute || !kva_for_gpu(o)) return KVA_OK;
  kva_arena *scratch = kva_arena_create();
  copies c = {.m = m, .narrow = o->compute};
  c.updated = KVA_NEW_ARRAY(scratch, bool, n + 1), c.refused = KVA_NEW_ARRAY(scratch, bool, n + 1);
  c.copy = KVA_NEW_ARRAY(scratch, kva_state *, 2 * n + 1), c.value = KVA_NEW_ARRAY(scratch, kva_value *, 2 * n + 1);
  kva_graphs graphs = kva_program_graphs(m, scratch);
  for (uint32_t i = 0; i < graphs.len; i++) note_writes(&c, graphs.data[i]);
  each_node(&c, read_copy);
  each_node(&c, write_copy);
  kva_arena_destroy(scratch);
  *changed = m->next_node_id != before;
  return KVA_OK;
}
