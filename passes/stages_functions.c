/* Functions of stages: copies of a function with what other stages compute as inputs. See stages.c. */
#include "passes/stages.h"

/* A function to make. Arrays by value id. */
typedef struct part {
  const char *name;
  uint32_t stage;
  bool backward;
  bool *wanted; /* by those that run after it */
  bool *in;     /* inputs: of other functions */
  bool *needed; /* by node id: it is computed here */
  bool *again;  /* of a backward pass, by node id: of its forward pass, computed from what that keeps */
} part;

static part *new_parts(const kva_module *m, kva_arena *scratch, int64_t n) {
  part *parts = KVA_NEW_ARRAY(scratch, part, n + 1);
  for (int64_t i = 0; i < n; i++) {
    parts[i].wanted = KVA_NEW_ARRAY(scratch, bool, m->next_value_id + 1);
    parts[i].in = KVA_NEW_ARRAY(scratch, bool, m->next_value_id + 1);
    parts[i].needed = KVA_NEW_ARRAY(scratch, bool, m->next_node_id + 1);
    parts[i].again = KVA_NEW_ARRAY(scratch, bool, m->next_node_id + 1);
  }
  return parts;
}

/* ---- what a function computes ------------------------------------------------------------------------------------ */

static bool is_own(const kva_stage_map *s, const part *p, const kva_node *n) {
  int stage = s->of[n->id];
  return stage == KVA_ANY_STAGE || p->again[n->id] || (stage == (int)p->stage && s->forward[n->id] != p->backward);
}

/* v is computed here, or an input of the whole function, or one of this part. */
static void want(const kva_stage_map *s, part *p, const kva_value *v) {
  if (!v || !v->def) return;
  if (is_own(s, p, v->def))
    p->needed[v->def->id] = true;
  else
    p->in[v->id] = true;
}

static bool writes_here(const kva_stage_map *s, const part *p, const kva_node *n) {
  return kva_state_written_by(n) && p->backward && is_own(s, p, n);
}

static bool returns_here(const kva_stage_map *s, const part *p) {
  return !p->backward && p->stage + 1 == s->n;
}

/* One sweep from the end: users stand after what they use. */
static void find_needed(const kva_stage_map *s, part *p) {
  for (const kva_node *n = s->graph->last; n; n = n->prev) {
    for (uint32_t r = 0; r < n->n_results; r++)
      if (p->wanted[n->results[r].id]) want(s, p, &n->results[r]);
    bool root = n == s->graph->last ? returns_here(s, p) : writes_here(s, p, n);
    if (!root && !p->needed[n->id]) continue;
    for (uint32_t i = 0; i < n->n_operands; i++) want(s, p, kva_operand(n, i));
  }
}

/* What the backward pass reads of its forward pass and can compute without products from what else it reads is not
 * kept: half and more of the memory, for little work. */
static void compute_again(const kva_stage_map *s, part *p) {
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    bool again = s->of[n->id] == (int)p->stage && s->forward[n->id] && !(n->op->traits & KVA_EXCHANGES);
    for (uint32_t i = 0; again && i < n->n_operands; i++) {
      const kva_value *v = kva_operand(n, i);
      again = !v || !v->def || p->in[v->id] || s->of[v->def->id] == KVA_ANY_STAGE || p->again[v->def->id];
    }
    p->again[n->id] = again && !kva_stages_has_products(s, n);
  }
  memset(p->in, 0, (s->m->next_value_id + 1) * sizeof *p->in);
  memset(p->needed, 0, (s->m->next_node_id + 1) * sizeof *p->needed);
  find_needed(s, p);
}

/* The part that gives p the value: the stage before it, in the backward pass the one after it, or its own forward
 * pass. */
static part *giver(const kva_stage_map *s, part *parts, const part *p, const kva_node *def) {
  part *forward = parts + p->stage, *backward = parts + s->n + p->stage;
  if (!p->backward) return forward - 1;
  return s->forward[def->id] && s->of[def->id] <= (int)p->stage ? forward : backward + 1;
}

static void ask(const kva_stage_map *s, part *parts, const part *p) {
  for (const kva_node *n = s->graph->first; n; n = n->next)
    for (uint32_t r = 0; r < n->n_results; r++)
      if (p->in[n->results[r].id]) giver(s, parts, p, n)->wanted[n->results[r].id] = true;
}

/* ---- the copy ---------------------------------------------------------------------------------------------------- */

static const char *name_of(kva_module *m, const kva_value *v) {
  return kva_arena_printf(m->arena, "value.%u", v->id);
}

/* Outputs of a copy, with names and roles. */
typedef struct outputs {
  uint32_t n;
  kva_value **values;
  const char **names;
  kva_result_role *roles;
} outputs;

static outputs new_outputs(kva_module *m, uint32_t most) {
  return (outputs){0, KVA_NEW_ARRAY(m->arena, kva_value *, most + 1), KVA_NEW_ARRAY(m->arena, const char *, most + 1),
                   KVA_NEW_ARRAY(m->arena, kva_result_role, most + 1)};
}

static void add_output(outputs *o, kva_value *v, const char *name, kva_result_role role) {
  o->values[o->n] = v;
  o->names[o->n] = name;
  o->roles[o->n++] = role;
}

static void add_own_outputs(outputs *o, const kva_function *f) {
  for (uint32_t i = 0; i < kva_graph_output_count(f->graph); i++)
    add_output(o, kva_graph_output(f->graph, i), f->output_names[i],
               f->output_roles ? f->output_roles[i] : KVA_RESULT_VALUE);
}

static uint32_t count_values(const kva_graph *g) {
  uint32_t n = 0;
  for (const kva_node *k = g->first; k; k = k->next) n += k->n_results + k->n_operands;
  return n;
}

/* keeps: by node id of the original, the writes that stay. */
typedef struct copier {
  kva_module *m;
  const kva_function *from;
  const bool *in, *out; /* by value id */
  const bool *keeps;    /* by node id */
  bool returns;         /* the outputs of the original, too */
} copier;

static kva_function *copy_part(const copier *c, const char *name, uint32_t stage) {
  kva_function *f = kva_function_clone(c->m, c->from, name);
  outputs o = new_outputs(c->m, count_values(c->from->graph));
  bool changed = false;
  f->stage = stage + 1;
  if (c->returns) add_own_outputs(&o, f);
  kva_node *end = f->graph->last, *k = f->graph->first;
  for (const kva_node *n = c->from->graph->first; n; n = n->next, k = k->next)
    for (uint32_t r = 0; r < n->n_results; r++) {
      const kva_value *v = &n->results[r];
      if (c->out[v->id] && !c->in[v->id]) add_output(&o, &k->results[r], name_of(c->m, v), KVA_RESULT_VALUE);
    }
  kva_node *ret = kva_node_create(f->graph, end, end->op, o.n, o.values, 0, NULL, end->loc);
  kva_node_remove(end);
  f->output_names = o.names;
  f->output_roles = o.roles;
  k = f->graph->first;
  for (const kva_node *n = c->from->graph->first; k != ret; n = n->next) {
    kva_node *next = k->next;
    for (uint32_t r = 0; r < n->n_results; r++)
      if (c->in[n->results[r].id])
        kva_value_replace_all_uses(&k->results[r],
                                   kva_graph_add_input(f->graph, k->results[r].type, name_of(c->m, &n->results[r])));
    if (kva_state_written_by(n) && !c->keeps[n->id]) kva_node_remove(k);
    k = next;
  }
  kva_remove_dead(f->graph, &changed);
  return f;
}

static void drop_function(kva_module *m, const kva_function *f) {
  uint32_t i = 0;
  while (m->functions.data[i] != f) i++;
  m->functions.len--;
  memmove(m->functions.data + i, m->functions.data + i + 1, (m->functions.len - i) * sizeof *m->functions.data);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static void make_part(const kva_stage_map *s, const part *p, const kva_function *f) {
  bool *keeps = KVA_NEW_ARRAY(s->scratch, bool, s->m->next_node_id + 1);
  for (const kva_node *n = s->graph->first; n; n = n->next) keeps[n->id] = writes_here(s, p, n);
  const copier c = {.m = s->m, .from = f, .in = p->in, .out = p->wanted, .keeps = keeps, .returns = returns_here(s, p)};
  (void)copy_part(&c, kva_arena_printf(s->m->arena, "%s.%u", p->name, p->stage), p->stage);
}

/* A function says what it needs of those that run before it, so the last one comes first. */
void kva_stages_split_passes(kva_stage_map *s, kva_function *f) {
  uint32_t n = (uint32_t)s->n;
  part *parts = new_parts(s->m, s->scratch, 2 * s->n);
  for (uint32_t i = 0; i < 2 * n; i++) {
    parts[i].stage = i % n;
    parts[i].backward = i >= n;
    parts[i].name = i < n ? "forward" : "backward";
  }
  for (uint32_t i = 0; i < 2 * n; i++) {
    part *p = i < n ? &parts[n + i] : &parts[2 * n - 1 - i];
    find_needed(s, p);
    if (p->backward) compute_again(s, p);
    ask(s, parts, p);
  }
  for (uint32_t i = 0; i < 2 * n; i++) make_part(s, &parts[i], f);
  drop_function(s->m, f);
}

void kva_stages_split_eval(kva_stage_map *s, kva_function *f) {
  part *parts = new_parts(s->m, s->scratch, s->n);
  for (uint32_t i = (uint32_t)s->n; i--;) {
    parts[i].stage = i;
    parts[i].name = "eval";
    find_needed(s, &parts[i]);
    ask(s, parts, &parts[i]);
  }
  for (uint32_t i = 0; i < s->n; i++) make_part(s, &parts[i], f);
  drop_function(s->m, f);
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

/* Nodes of apply_step by the stages whose gradients they depend on, and by those whose states depend on them: one bit
 * each. What depends on one stage and is used by several (the squares of its gradients) is computed by norm, which
 * gives it to all; what depends on several and is used by several (their norm) is computed by every stage, in the order
 * of one process; the rest is the stage's own. */
typedef struct updater {
  kva_module *m;
  kva_function *f;
  kva_arena *scratch;
  uint32_t n;
  uint32_t *from, *to; /* by node id */
  bool *shared;        /* by value id: norm gives it to all */
} updater;

static uint32_t bit_of(const kva_state *s, const int *owner) {
  const kva_state *p = s->kind == KVA_STATE_PARAM ? s : s->of;
  return p && owner[p->id] != KVA_ANY_STAGE ? 1u << owner[p->id] : 0;
}

static bool is_one(uint32_t set) {
  return set && !(set & (set - 1));
}

static bool mixes_stages(const updater *u, const kva_node *n) {
  return kva_is(n, KVA_OP_all_reduce) && n->n_operands > 1 && u->from[n->id] && !is_one(u->from[n->id]);
}

/* The sums of one stage's gradients, which travelled with others'. */
static void sum_apart(updater *u, kva_node *n, uint32_t stage) {
  kva_value **values = KVA_NEW_ARRAY(u->scratch, kva_value *, n->n_operands);
  uint32_t count = 0;
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (u->from[kva_operand(n, i)->def->id] == 1u << stage) values[count++] = kva_operand(n, i);
  if (!count) return;
  kva_builder b = kva_builder_before(u->m, n);
  kva_node *sum = kva_build_node(&b, KVA_OP_all_reduce, count, values, count, n->attrs);
  KVA_ASSERT(!b.failed);
  for (uint32_t i = 0, k = 0; i < n->n_operands; i++)
    if (u->from[kva_operand(n, i)->def->id] == 1u << stage)
      kva_value_replace_all_uses(&n->results[i], kva_result(sum, k++));
}

/* Sums over the axis data are of gradients of one stage. */
static void separate_sums(updater *u) {
  for (kva_node *n = u->f->graph->first, *next; n; n = next) {
    next = n->next;
    if (!mixes_stages(u, n)) continue;
    for (uint32_t i = 0; i < u->n; i++) sum_apart(u, n, i);
    kva_node_remove(n);
  }
}

static void find_stages(updater *u, const int *owner) {
  u->from = KVA_NEW_ARRAY(u->scratch, uint32_t, u->m->next_node_id + 1);
  u->to = KVA_NEW_ARRAY(u->scratch, uint32_t, u->m->next_node_id + 1);
  for (const kva_node *n = u->f->graph->first; n; n = n->next) {
    if (kva_state_read_by(n)) u->from[n->id] = bit_of(kva_state_read_by(n), owner);
    for (uint32_t i = 0; i < n->n_operands; i++)
      if (kva_operand(n, i) && kva_operand(n, i)->def) u->from[n->id] |= u->from[kva_operand(n, i)->def->id];
  }
  uint32_t all = (1u << u->n) - 1;
  for (const kva_node *n = u->f->graph->last; n; n = n->prev) {
    if (n == u->f->graph->last) u->to[n->id] = all;
    if (kva_state_written_by(n)) {
      uint32_t bit = bit_of(kva_state_written_by(n), owner);
      u->to[n->id] = bit ? bit : all;
    }
    for (uint32_t i = 0; i < n->n_operands; i++)
      if (kva_operand(n, i) && kva_operand(n, i)->def) u->to[kva_operand(n, i)->def->id] |= u->to[n->id];
  }
}

/* It depends on one stage, and others use it. */
static bool is_given(const updater *u, const kva_node *n) {
  return is_one(u->from[n->id]) && (u->to[n->id] & ~u->from[n->id]);
}

/* Several stages, or an output, use a value of one stage. */
static void find_shared(updater *u) {
  u->shared = KVA_NEW_ARRAY(u->scratch, bool, u->m->next_value_id + 1);
  for (const kva_node *n = u->f->graph->first; n; n = n->next) {
    bool of_all = n == u->f->graph->last || (!is_one(u->from[n->id]) && !is_one(u->to[n->id]));
    for (uint32_t i = 0; of_all && i < n->n_operands; i++) {
      const kva_value *v = kva_operand(n, i);
      if (v && v->def && is_given(u, v->def)) u->shared[v->id] = true;
    }
  }
}

/* What apply of a stage computes, and what it gets of norm: values of all, and sums over processes that its own norm
 * has made. */
static void find_update(const updater *u, uint32_t stage, part *p) {
  for (const kva_node *n = u->f->graph->last; n; n = n->prev) {
    bool writes = kva_state_written_by(n) && (u->to[n->id] >> stage & 1);
    if (n != u->f->graph->last && !writes && !p->needed[n->id]) continue;
    for (uint32_t i = 0; i < n->n_operands; i++) {
      const kva_value *v = kva_operand(n, i);
      if (!v || !v->def) continue;
      bool made = u->shared[v->id] || (is_given(u, v->def) && v->def->op->traits & KVA_EXCHANGES);
      *(made ? &p->in[v->id] : &p->needed[v->def->id]) = true;
    }
  }
}

static void make_update(const updater *u, uint32_t stage, const part *p) {
  kva_module *m = u->m;
  bool *keeps = KVA_NEW_ARRAY(u->scratch, bool, m->next_node_id + 1);
  bool *none = KVA_NEW_ARRAY(u->scratch, bool, m->next_value_id + 1);
  bool *out = KVA_NEW_ARRAY(u->scratch, bool, m->next_value_id + 1), any = false;
  for (const kva_node *n = u->f->graph->first; n; n = n->next)
    for (uint32_t r = 0; r < n->n_results; r++)
      any |= out[n->results[r].id] = p->in[n->results[r].id] && u->from[n->id] == 1u << stage;
  copier c = {.m = m, .from = u->f, .in = none, .out = out, .keeps = keeps};
  if (any) (void)copy_part(&c, kva_arena_printf(m->arena, "norm.%u", stage), stage);
  bool *writes = KVA_NEW_ARRAY(u->scratch, bool, m->next_node_id + 1);
  for (const kva_node *n = u->f->graph->first; n; n = n->next)
    writes[n->id] = kva_state_written_by(n) && (u->to[n->id] >> stage & 1);
  c = (copier){.m = m, .from = u->f, .in = p->in, .out = none, .keeps = writes, .returns = true};
  (void)copy_part(&c, kva_arena_printf(m->arena, "apply.%u", stage), stage);
}

void kva_stages_split_updates(kva_module *m, kva_function *f, int64_t n, const int *owner, kva_arena *scratch) {
  updater u = {.m = m, .f = f, .scratch = scratch, .n = (uint32_t)n};
  find_stages(&u, owner);
  separate_sums(&u);
  find_stages(&u, owner);
  find_shared(&u);
  part *parts = new_parts(m, scratch, n);
  for (uint32_t i = 0; i < u.n; i++) find_update(&u, i, &parts[i]);
  for (uint32_t i = 0; i < u.n; i++) make_update(&u, i, &parts[i]);
  drop_function(m, f);
}
