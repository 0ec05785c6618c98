/* A training step in stages: the axis `pipeline` of a mesh.
 *
 * What: of the functions of training, grad_step becomes forward.0, backward.0, forward.1, ..., one of each for every
 * stage, eval becomes eval.0, ..., and apply_step norm.0, apply.0, ... A stage has the parameters that its functions
 * read. Values that cross are outputs of one function and inputs of the same name of another; the runtime moves them
 * (runtime/train_stages.c). The functions have the nodes of the ones that they are made of, in their order, so that a
 * run has the bits of one process with the same micro-batches.
 *
 * Algorithm: nodes that depend on inputs alone, without products, or on parameters alone belong to no stage: each stage
 * that reads them computes them. Of the others those that an output depends on are the forward pass. A cut is a place
 * in their order, so all operands of what is before it are before it. Of all ways to cut, the one is taken whose
 * slowest stage takes least: operations, bytes of parameters, and bytes that cross, in a model of costs that prefers
 * few of the latter. Each stage has a node that reads a parameter. A node of the backward pass is in the last stage
 * that has computed or received all its operands, but further down where it makes more bytes than it reads, as the
 * gradient of an embedding does; gradients are added up where the forward pass first reads the parameter. So a
 * parameter that two stages read has one sum, in the order of one process. Values between stages that are not
 * neighbours go through those in between: each process talks to two others.
 *
 * Requires: grad_step and apply_step, optimised and not fused; no sub-graphs; a forward pass that writes no state.
 * Breaks: nothing. Why not before differentiation: the backward pass of a stage would be another graph than that of the
 * same nodes in one function, with other roundings, and a parameter of two stages would have two gradients. */
#include "passes/stages.h"

#include "ir/plan.h"

/* A model of costs, in operations: what a byte of memory costs, and a byte that is sent, there and its gradient back.
 */
enum { OF_BYTE = 16, OF_SENT = 1024, BACKWARD = 3 /* forward, and products for both operands */ };

static bool is_main(const kva_stage_map *s, const kva_node *n) {
  return s->of[n->id] != KVA_ANY_STAGE;
}

static double bytes_of(kva_module *m, const kva_type *t) {
  int64_t n = 0, bytes = 0;
  bool known =
      kva_expr_eval(kva_type_elements(m, t), kva_assumed_extent, m, &n) && kva_dtype_bytes(t->dtype, n, &bytes);
  return known ? (double)bytes : 0;
}

static double result_bytes(const kva_stage_map *s, const kva_node *n) {
  double bytes = 0;
  for (uint32_t r = 0; r < n->n_results; r++) bytes += bytes_of(s->m, n->results[r].type);
  return bytes;
}

/* ---- what belongs to a stage ------------------------------------------------------------------------------------- */

bool kva_stages_has_products(const kva_stage_map *s, const kva_node *n) {
  const kva_sizes sizes = {s->m, kva_assumed_extent, s->m};
  return kva_node_flops(n, &sizes) > 0;
}

static bool reads_parameter(const kva_node *n) {
  const kva_state *state = kva_state_read_by(n);
  return state && state->kind == KVA_STATE_PARAM;
}

/* Sets `of` to stage 0 where a node depends on an input, and on a parameter or a product. */
static void find_main(kva_stage_map *s) {
  bool *of_input = KVA_NEW_ARRAY(s->scratch, bool, s->m->next_node_id + 1);
  bool *of_weights = KVA_NEW_ARRAY(s->scratch, bool, s->m->next_node_id + 1);
  s->of_parameters = KVA_NEW_ARRAY(s->scratch, bool, s->m->next_node_id + 1);
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    of_weights[n->id] = reads_parameter(n) || kva_stages_has_products(s, n);
    s->of_parameters[n->id] = reads_parameter(n);
    for (uint32_t i = 0; i < n->n_operands; i++) {
      const kva_value *v = kva_operand(n, i);
      if (!v) continue;
      of_input[n->id] |= !v->def || of_input[v->def->id];
      of_weights[n->id] |= v->def && of_weights[v->def->id];
      s->of_parameters[n->id] |= v->def && s->of_parameters[v->def->id];
    }
    s->of[n->id] = of_input[n->id] && of_weights[n->id] ? 0 : KVA_ANY_STAGE;
  }
}

static void find_forward(kva_stage_map *s) {
  const kva_node *end = s->graph->last;
  s->forward[end->id] = true;
  for (const kva_node *n = end; n; n = n->prev)
    for (uint32_t i = 0; s->forward[n->id] && i < n->n_operands; i++)
      if (kva_operand(n, i) && kva_operand(n, i)->def) s->forward[kva_operand(n, i)->def->id] = true;
  s->forward[end->id] = false;
}

static void prepare(kva_stage_map *s) {
  uint32_t n = s->m->next_node_id + 1;
  s->of = KVA_NEW_ARRAY(s->scratch, int, n);
  s->last = KVA_NEW_ARRAY(s->scratch, int, n);
  s->forward = KVA_NEW_ARRAY(s->scratch, bool, n);
  find_main(s);
  find_forward(s);
}

/* ---- the cut ----------------------------------------------------------------------------------------------------- */

/* The forward pass in order. Entry i of the sums is of the nodes before number i. */
typedef struct cutter {
  kva_stage_map *s;
  uint32_t n;
  const kva_node **nodes;
  uint32_t *place;   /* by node id: 1 + its number; 0: it is not one of them */
  double *cost;      /* sums */
  uint32_t *readers; /* sums: nodes that read a parameter */
  double *crossing;  /* bytes that the nodes from i on read of those before */
  bool *narrow;      /* no place near this one is crossed by fewer bytes */
  uint32_t limit;    /* the last stage begins here or before */
} cutter;

static void list_nodes(cutter *c) {
  const kva_stage_map *s = c->s;
  c->nodes = KVA_NEW_ARRAY(s->scratch, const kva_node *, s->m->next_node_id + 1);
  c->place = KVA_NEW_ARRAY(s->scratch, uint32_t, s->m->next_node_id + 1);
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    if (!is_main(s, n) || !s->forward[n->id]) continue;
    c->nodes[c->n++] = n;
    c->place[n->id] = c->n;
  }
}

/* Numbers of nodes of the forward pass that read a value, through nodes of no stage; first > last: none does. */
typedef struct range {
  uint32_t first, last;
} range;

static bool reads_any(const kva_node *n, const bool *of) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i) && kva_operand(n, i)->def && of[kva_operand(n, i)->def->id]) return true;
  return false;
}

/* reached: by node id, what is made of the parameter that `read` reads, in no stage. */
static void add_readers(const cutter *c, const kva_node *read, bool *reached, range *out) {
  reached[read->id] = true;
  for (const kva_node *n = read->next; n; n = n->next) {
    if (!reads_any(n, reached)) continue;
    uint32_t place = c->place[n->id];
    if (place && place - 1 < out->first) out->first = place - 1;
    if (place && place - 1 > out->last) out->last = place - 1;
    reached[n->id] = !is_main(c->s, n);
  }
}

/* By state id: of parameters. */
static range *find_readers(const cutter *c) {
  const kva_module *m = c->s->m;
  range *readers = KVA_NEW_ARRAY(c->s->scratch, range, m->states.len + 1);
  bool *reached = KVA_NEW_ARRAY(c->s->scratch, bool, m->next_node_id + 1);
  for (uint32_t i = 0; i < m->states.len; i++) readers[i].first = c->n;
  for (const kva_node *n = c->s->graph->first; n; n = n->next) {
    if (!reads_parameter(n)) continue;
    memset(reached, 0, (m->next_node_id + 1) * sizeof *reached);
    add_readers(c, n, reached, &readers[kva_state_read_by(n)->id]);
  }
  return readers;
}

static void add_costs(cutter *c, const range *readers) {
  const kva_stage_map *s = c->s;
  const kva_sizes sizes = {s->m, kva_assumed_extent, s->m};
  c->cost = KVA_NEW_ARRAY(s->scratch, double, c->n + 1);
  c->readers = KVA_NEW_ARRAY(s->scratch, uint32_t, c->n + 1);
  for (uint32_t i = 0; i < s->m->states.len; i++) {
    uint32_t first = readers[i].first;
    if (first == c->n) continue;
    c->cost[first + 1] += OF_BYTE * bytes_of(s->m, s->m->states.data[i]->type);
    c->readers[first + 1] = 1;
  }
  for (uint32_t i = 0; i < c->n; i++) {
    double own = kva_node_flops(c->nodes[i], &sizes) + OF_BYTE * result_bytes(s, c->nodes[i]);
    c->cost[i + 1] += c->cost[i] + BACKWARD * own;
    c->readers[i + 1] += c->readers[i];
  }
}

/* Bytes that cross each place, and the first node that makes an output: the last stage has it. */
static void find_crossing(cutter *c) {
  const kva_stage_map *s = c->s;
  c->crossing = KVA_NEW_ARRAY(s->scratch, double, c->n + 2);
  c->limit = c->n;
  for (uint32_t i = 0; i < c->n; i++)
    for (uint32_t r = 0; r < c->nodes[i]->n_results; r++) {
      uint32_t last = i;
      for (const kva_use *u = c->nodes[i]->results[r].uses; u; u = u->next) {
        if (u->user == s->graph->last && i < c->limit) c->limit = i;
        if (c->place[u->user->id] > last + 1) last = c->place[u->user->id] - 1;
      }
      double bytes = bytes_of(s->m, c->nodes[i]->results[r].type);
      c->crossing[i + 1] += bytes;
      c->crossing[last + 1] -= bytes;
    }
  for (uint32_t i = 1; i <= c->n; i++) c->crossing[i] += c->crossing[i - 1];
}

/* Both sides of place i read parameters. */
static bool is_place(const cutter *c, uint32_t i) {
  return c->readers[i] && c->readers[c->n] > c->readers[i];
}

/* Near: a quarter of an average stage away. */
static void find_narrow(cutter *c) {
  double reach = c->cost[c->n] / (double)c->s->n / 4;
  c->narrow = KVA_NEW_ARRAY(c->s->scratch, bool, c->n + 1);
  for (uint32_t i = 1; i < c->n; i++) {
    bool least = is_place(c, i);
    for (uint32_t k = i; least && --k && c->cost[i] - c->cost[k] <= reach;)
      least = !is_place(c, k) || c->crossing[k] >= c->crossing[i];
    for (uint32_t k = i + 1; least && k < c->n && c->cost[k] - c->cost[i] <= reach; k++)
      least = !is_place(c, k) || c->crossing[k] >= c->crossing[i];
    c->narrow[i] = least;
  }
}

typedef struct choice {
  double worst, sent;
  uint32_t from; /* where the stage begins */
} choice;

static bool is_better(const choice *a, const choice *b) {
  return a->worst < b->worst || (a->worst == b->worst && a->sent < b->sent);
}

/* best[p * (n + 1) + i]: of p + 1 stages that end before node i. worst < 0: there is none. */
static void extend(const cutter *c, const choice *before, uint32_t end, choice *out) {
  *out = (choice){.worst = -1};
  for (uint32_t i = 1; i < end; i++) {
    if (before[i].worst < 0 || c->readers[end] == c->readers[i] || !c->narrow[i]) continue;
    if (end == c->n && i > c->limit) break;
    double sent = c->crossing[i],
           own = c->cost[end] - c->cost[i] + OF_SENT * (sent + (end < c->n ? c->crossing[end] : 0));
    choice found = {before[i].worst > own ? before[i].worst : own, before[i].sent + sent, i};
    if (out->worst < 0 || is_better(&found, out)) *out = found;
  }
}

static bool choose(const cutter *c, uint32_t *begins) {
  uint32_t stages = (uint32_t)c->s->n, width = c->n + 1;
  choice *best = KVA_NEW_ARRAY(c->s->scratch, choice, (size_t)stages * width + 1);
  for (uint32_t i = 0; i < width; i++)
    best[i].worst = i && c->readers[i] ? c->cost[i] + OF_SENT * (i < c->n ? c->crossing[i] : 0) : -1;
  for (uint32_t p = 1; p < stages; p++)
    for (uint32_t i = 0; i < width; i++) extend(c, best + (size_t)(p - 1) * width, i, &best[(size_t)p * width + i]);
  if (best[(size_t)(stages - 1) * width + c->n].worst < 0) return false;
  for (uint32_t p = stages, end = c->n; p--;) end = begins[p] = best[(size_t)p * width + end].from;
  return true;
}

static kva_status cut_forward(cutter *c) {
  kva_stage_map *s = c->s;
  uint32_t begins[KVA_MOST_STAGES + 1];
  find_narrow(c);
  bool found = choose(c, begins);
  for (uint32_t i = 0; !found && i < c->n; i++) c->narrow[i] = true;
  if (!found && !choose(c, begins))
    return kva_error(s->m->diag, NULL,
                     "pipeline=%lld: '%s' cannot be cut into so many stages: each needs a parameter of its own, and "
                     "parameters are read in %u places before the loss",
                     (long long)s->n, s->m->name ? s->m->name : "the model", c->readers[c->n]);
  for (uint32_t i = 0, p = 0; i < c->n; i++) {
    while (p + 1 < s->n && i >= begins[p + 1]) p++;
    s->of[c->nodes[i]->id] = (int)p;
  }
  return KVA_OK;
}

/* ---- the backward pass ------------------------------------------------------------------------------------------- */

static void find_last(kva_stage_map *s) {
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    if (!is_main(s, n) || !s->forward[n->id]) continue;
    s->last[n->id] = s->of[n->id];
    for (uint32_t i = 0; i < n->n_operands; i++) {
      const kva_value *v = kva_operand(n, i);
      if (v && v->def && is_main(s, v->def) && s->last[v->def->id] < s->of[n->id]) s->last[v->def->id] = s->of[n->id];
    }
  }
}

/* By node id, of nodes of no stage: the last stage whose forward pass reads the parameters that they are made of. last:
 * by state id. */
static int *find_limits(const kva_stage_map *s, const int *last) {
  int *limit = KVA_NEW_ARRAY(s->scratch, int, s->m->next_node_id + 1);
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    limit[n->id] = reads_parameter(n) ? last[kva_state_read_by(n)->id] : (int)s->n - 1;
    for (uint32_t i = 0; i < n->n_operands && !is_main(s, n); i++) {
      const kva_value *v = kva_operand(n, i);
      if (v && v->def && limit[v->def->id] < limit[n->id]) limit[n->id] = limit[v->def->id];
    }
  }
  return limit;
}

/* The last stage in which a node of the backward pass can be without more of the forward pass, or a parameter, being
 * sent. */
static int highest(const kva_stage_map *s, const kva_node *n, const int *limit) {
  int stage = (int)s->n - 1;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_node *def = kva_operand(n, i) ? kva_operand(n, i)->def : NULL;
    if (!def) continue;
    int most = !is_main(s, def) ? limit[def->id] : s->forward[def->id] ? s->last[def->id] : s->of[def->id];
    if (most < stage) stage = most;
  }
  return stage;
}

/* The last stage that reads it. */
static int highest_user(const kva_stage_map *s, const kva_node *n) {
  int stage = KVA_ANY_STAGE;
  for (uint32_t r = 0; r < n->n_results; r++)
    for (const kva_use *u = n->results[r].uses; u; u = u->next)
      if (s->of[u->user->id] > stage) stage = s->of[u->user->id];
  return stage;
}

/* Whether moving n down to `stage` sends no more than it does where it is, and brings no parameter there. */
static bool moves_down(const kva_stage_map *s, const kva_node *n, int stage) {
  double bytes = 0;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (!v || !v->def) continue;
    if (!is_main(s, v->def)) {
      if (s->of_parameters[v->def->id]) return false;
    } else if (s->of[v->def->id] > stage) {
      bytes += bytes_of(s->m, v->type);
    }
  }
  return bytes <= result_bytes(s, n);
}

/* By node id: what adds to a sum that an earlier micro-batch left. */
static const bool *find_sums(const kva_stage_map *s) {
  bool *adds = KVA_NEW_ARRAY(s->scratch, bool, s->m->next_node_id + 1);
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    adds[n->id] = kva_state_read_by(n) && kva_state_read_by(n)->kind == KVA_STATE_CACHE;
    for (uint32_t i = 0; i < n->n_operands; i++)
      adds[n->id] |= kva_operand(n, i) && kva_operand(n, i)->def && adds[kva_operand(n, i)->def->id];
  }
  return adds;
}

/* Operands first, then users first: gradients are added up where the forward pass first reads the parameter. */
static void place_backward(kva_stage_map *s, const int *reader, const int *last) {
  const bool *adds = find_sums(s);
  const int *limit = find_limits(s, last);
  for (const kva_node *n = s->graph->first; n; n = n->next)
    if (is_main(s, n) && !s->forward[n->id]) s->of[n->id] = highest(s, n, limit);
  for (const kva_node *n = s->graph->last; n; n = n->prev) {
    if (!is_main(s, n) || s->forward[n->id]) continue;
    const kva_state *sum = kva_state_written_by(n);
    int stage = sum ? (sum->of ? reader[sum->of->id] : KVA_ANY_STAGE) : highest_user(s, n);
    if (stage >= 0 && stage < s->of[n->id] && (adds[n->id] || moves_down(s, n, stage))) s->of[n->id] = stage;
  }
}

/* grad_step: where it is cut. reader: by state id, room for all; the first stage whose forward pass reads a parameter,
 * KVA_ANY_STAGE: none does. */
static kva_status cut_passes(kva_stage_map *s, int *reader) {
  cutter c = {.s = s};
  prepare(s);
  list_nodes(&c);
  const range *readers = find_readers(&c);
  add_costs(&c, readers);
  find_crossing(&c);
  KVA_TRY(cut_forward(&c));
  int *last = KVA_NEW_ARRAY(s->scratch, int, s->m->states.len + 1);
  for (uint32_t i = 0; i < s->m->states.len; i++) {
    bool none = readers[i].first == c.n;
    reader[i] = none ? KVA_ANY_STAGE : s->of[c.nodes[readers[i].first]->id];
    last[i] = none ? (int)s->n - 1 : s->of[c.nodes[readers[i].last]->id];
  }
  find_last(s);
  place_backward(s, reader, last);
  return KVA_OK;
}

/* ---- another function of the same model -------------------------------------------------------------------------- */

/* By node id: bits of the stages that have a parameter which the node reads through nodes of no stage. */
static uint32_t *find_sets(const kva_stage_map *s, const uint32_t *readers) {
  uint32_t *sets = KVA_NEW_ARRAY(s->scratch, uint32_t, s->m->next_node_id + 1);
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    if (reads_parameter(n)) sets[n->id] = readers[kva_state_read_by(n)->id];
    for (uint32_t i = 0; i < n->n_operands && !sets[n->id]; i++) {
      const kva_value *v = kva_operand(n, i);
      if (v && v->def && !is_main(s, v->def)) sets[n->id] = sets[v->def->id];
    }
  }
  return sets;
}

/* The first stage from `least` on of the set; the last of the set where there is none. */
static int first_of(uint32_t set, int least, int64_t n) {
  int found = least;
  for (int p = 0; p < n; p++) {
    if (!(set >> p & 1)) continue;
    found = p;
    if (p >= least) break;
  }
  return found > least ? found : least;
}

static bool is_output(const kva_stage_map *s, const kva_node *n) {
  for (uint32_t r = 0; r < n->n_results; r++)
    for (const kva_use *u = n->results[r].uses; u; u = u->next)
      if (u->user == s->graph->last) return true;
  return false;
}

/* eval: every node in the stage that has the parameters which it reads, as `readers` says: by state id, one bit for
 * each stage; last of what it needs. */
static void assign_eval(kva_stage_map *s, const uint32_t *readers) {
  prepare(s);
  const uint32_t *sets = find_sets(s, readers);
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    int stage = 0;
    if (!is_main(s, n)) continue;
    for (uint32_t i = 0; i < n->n_operands; i++) {
      const kva_value *v = kva_operand(n, i);
      if (v && v->def && s->of[v->def->id] > stage) stage = s->of[v->def->id];
    }
    stage = first_of(sets[n->id], stage, s->n);
    s->of[n->id] = is_output(s, n) ? (int)s->n - 1 : stage;
  }
  find_last(s);
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

static kva_status check_graph(kva_module *m, const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next)
    if (n->n_graphs)
      return kva_error(m->diag, &n->loc,
                       "kv.%s: models with branches and loops cannot be cut into stages (pipeline); use data=N",
                       n->op->name);
  return KVA_OK;
}

/* By state id: the stage that adds up the gradient of a parameter, and updates it. */
static int *find_owners(const kva_stage_map *s) {
  int *owner = KVA_NEW_ARRAY(s->scratch, int, s->m->states.len + 1);
  for (uint32_t i = 0; i < s->m->states.len; i++) owner[i] = KVA_ANY_STAGE;
  for (const kva_node *n = s->graph->first; n; n = n->next) {
    const kva_state *sum = kva_state_written_by(n);
    if (sum && sum->of) owner[sum->of->id] = s->of[n->id];
  }
  return owner;
}

static void note_states(uint32_t *stages, const kva_function *f) {
  for (const kva_node *n = f->graph->first; f->stage && n; n = n->next) {
    const kva_state *s = kva_state_read_by(n) ? kva_state_read_by(n) : kva_state_written_by(n);
    if (s) stages[s->id] |= 1u << (f->stage - 1);
  }
}

/* By state id: the stages whose functions read or write it. */
static uint32_t *find_stages(const kva_module *m, kva_arena *scratch) {
  uint32_t *stages = KVA_NEW_ARRAY(scratch, uint32_t, m->states.len + 1);
  for (uint32_t i = 0; i < m->functions.len; i++) note_states(stages, m->functions.data[i]);
  return stages;
}

/* Who has a state has those that its initial value is made of. Settings and counters are in all processes, and so is
 * what no stage uses. */
static void set_states(kva_module *m, const uint32_t *stages) {
  for (uint32_t i = 0; i < m->states.len; i++) {
    kva_state *s = m->states.data[i];
    s->stages = s->kind == KVA_STATE_BUFFER && !s->type->rank ? 0 : stages[i];
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t i = 0; i < m->states.len; i++) {
      const kva_state *s = m->states.data[i];
      bool made = s->init == KVA_INIT_ONE_MINUS || s->init == KVA_INIT_COPY;
      if (!made || !s->of->stages || (s->stages && !(s->stages & ~s->of->stages))) continue;
      s->of->stages = s->stages ? s->of->stages | s->stages : 0;
      changed = true;
    }
  }
}

static kva_status cut(kva_module *m, kva_arena *scratch, int64_t n) {
  kva_function *gradients = kva_module_find_function(m, "grad_step"), *eval = kva_module_find_function(m, "eval");
  kva_function *updates = kva_module_find_function(m, "apply_step");
  if (!gradients || !eval || !updates)
    return kva_error(m->diag, NULL,
                     "pass stages needs grad_step, apply_step and eval: pass train with --mesh makes them");
  KVA_TRY(check_graph(m, gradients->graph));
  KVA_TRY(check_graph(m, eval->graph));
  KVA_TRY(kva_check_forward_states(m, eval->graph));
  kva_stage_map s = {.m = m, .graph = gradients->graph, .scratch = scratch, .n = n};
  KVA_TRY(cut_passes(&s, KVA_NEW_ARRAY(scratch, int, m->states.len + 1)));
  const int *owner = find_owners(&s);
  kva_stages_split_passes(&s, gradients);
  kva_stage_map e = {.m = m, .graph = eval->graph, .scratch = scratch, .n = n};
  assign_eval(&e, find_stages(m, scratch));
  kva_stages_split_eval(&e, eval);
  kva_stages_split_updates(m, updates, n, owner, scratch);
  set_states(m, find_stages(m, scratch));
  return KVA_OK;
}

kva_status kva_cut_stages(kva_module *m, const kva_pass_options *options, bool *changed) {
  int64_t n = options->mesh.pipeline;
  if (n <= 1 || kva_module_find_function(m, "forward.0")) return KVA_OK;
  kva_arena *scratch = kva_arena_create();
  kva_status status = cut(m, scratch, n);
  kva_arena_destroy(scratch);
  *changed = true;
  return status;
}
