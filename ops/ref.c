/* The reference evaluator executes a graph node by node on reference tensors and rounds every result to its dtype. It
 * is the oracle for all other executors: no shortcuts, no threads.
 *
 * Symbols get their values from input shapes, or from the nodes that bind them: first plain symbols, then expressions
 * with a single unknown (`P + T` with P known). Finally every dim is checked, so contradicting inputs are errors. */
#include "ops/ids.h"
#include "ops/ops.h"

#include <stdlib.h>

typedef struct binding {
  const kva_expr *symbol;
  int64_t value;
} binding;

typedef struct evaluation {
  kva_module *m;
  kva_diag *diag;
  kva_arena *arena;
  KVA_VEC(binding) bindings;
  kva_ref_tensor **values; /* indexed by value id */
  uint32_t *remaining;     /* remaining uses, indexed by value id */
  kva_ref_tensor *(*state)(void *user, kva_state *s);
  void *state_user;
  kva_ref_trace trace;
  void *trace_user;
} evaluation;

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

static bool lookup_symbol(void *user, const kva_expr *symbol, int64_t *out_v) {
  evaluation *e = user;
  for (uint32_t i = 0; i < e->bindings.len; i++) {
    if (e->bindings.data[i].symbol != symbol) continue;
    *out_v = e->bindings.data[i].value;
    return true;
  }
  return false;
}

typedef struct unknowns {
  evaluation *e;
  const kva_expr *symbol;
  uint32_t n;
} unknowns;

static void count_unknown(void *user, const kva_expr *symbol) {
  unknowns *u = user;
  int64_t v;
  if (lookup_symbol(u->e, symbol, &v)) return;
  u->symbol = symbol;
  u->n++;
}

/* Solves dim = extent for its only unknown if dim is coefficient * symbol + rest with known integers. */
static bool solve_dim(evaluation *e, kva_dim dim, int64_t extent) {
  unknowns u = {.e = e};
  kva_expr_each_symbol(dim, count_unknown, &u);
  const kva_expr *coefficient, *rest;
  int64_t c, r;
  if (u.n != 1 || !kva_expr_affine(e->m->exprs, dim, u.symbol, &coefficient, &rest)) return false;
  if (!kva_expr_eval(coefficient, lookup_symbol, e, &c) || !kva_expr_eval(rest, lookup_symbol, e, &r)) return false;
  if (c <= 0 || extent < r || (extent - r) % c) return false;
  KVA_PUSH(e->arena, &e->bindings, ((binding){u.symbol, (extent - r) / c}));
  return true;
}

static const char *type_text(evaluation *e, const kva_type *t) {
  kva_text text = {0};
  kva_type_print(t, &text);
  const char *copy = kva_arena_strdup(e->arena, text.data);
  kva_text_free(&text);
  return copy;
}

static const char *found_text(evaluation *e, const kva_ref_tensor *w) {
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t k = 0; k < w->rank; k++) dims[k] = kva_expr_const(e->m->exprs, w->dims[k]);
  return type_text(e, kva_type_tensor(e->m, w->dtype, w->rank, dims));
}

static kva_status check_input(evaluation *e, const kva_function *f, const kva_value *v, const kva_ref_tensor *w) {
  const char *name = v->name ? v->name : "(unnamed)";
  if (w->dtype != v->type->dtype || w->rank != v->type->rank)
    return kva_error(e->diag, &f->loc, "input %s: expected %s, found %s", name, type_text(e, v->type),
                     found_text(e, w));
  for (uint32_t k = 0; k < w->rank; k++) {
    int64_t extent;
    if (!kva_expr_eval(v->type->dims[k], lookup_symbol, e, &extent))
      return kva_error(e->diag, &f->loc, "input %s: axis %u: the input shapes do not determine its extent", name, k);
    if (extent != w->dims[k])
      return kva_error(e->diag, &f->loc, "input %s: axis %u: expected extent %lld, found %lld", name, k,
                       (long long)extent, (long long)w->dims[k]);
  }
  return KVA_OK;
}

static bool solve_some(evaluation *e, const kva_graph *g, const kva_ref_tensor *const *inputs) {
  bool progress = false;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_type *type = g->inputs.data[i]->type;
    for (uint32_t k = 0; k < type->rank && k < inputs[i]->rank; k++)
      progress |= solve_dim(e, type->dims[k], inputs[i]->dims[k]);
  }
  return progress;
}

static kva_status bind_symbols(evaluation *e, const kva_function *f, const kva_ref_tensor *const *inputs) {
  while (solve_some(e, f->graph, inputs)) {
  }
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) KVA_TRY(check_input(e, f, f->graph->inputs.data[i], inputs[i]));
  return KVA_OK;
}

kva_status kva_ref_dim(kva_ref *r, kva_dim dim, int64_t *out_v) {
  if (kva_expr_eval(dim, r->lookup, r->lookup_user, out_v)) return KVA_OK;
  kva_text text = {0};
  kva_expr_print(dim, &text);
  kva_error(r->diag, NULL, "the value of %s is unknown or overflows: no input shape determines it", text.data);
  kva_text_free(&text);
  return KVA_INVALID;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static kva_status new_value(evaluation *e, kva_ref *r, const kva_node *n, const kva_type *type,
                            kva_ref_tensor **out_w) {
  int64_t dims[KVA_MAX_RANK];
  if (type->kind != KVA_TYPE_TENSOR || type->rank > KVA_MAX_RANK)
    return kva_fail(e->diag, KVA_UNSUPPORTED, &n->loc, "kv.%s: only tensors up to rank %d can be evaluated",
                    n->op->name, KVA_MAX_RANK);
  for (uint32_t i = 0; i < type->rank; i++) KVA_TRY(kva_ref_dim(r, type->dims[i], &dims[i]));
  for (uint32_t i = 0; i < type->rank; i++)
    if (dims[i] < 0)
      return kva_error(e->diag, &n->loc, "kv.%s: axis %u of the result has extent %lld", n->op->name, i,
                       (long long)dims[i]);
  *out_w = kva_ref_tensor_create(type->dtype, type->rank, dims);
  if (!*out_w) return kva_fail(e->diag, KVA_NO_MEMORY, &n->loc, "kv.%s: no memory for its result", n->op->name);
  return KVA_OK;
}

static void round_value(kva_ref_tensor *w) {
  for (int64_t i = 0; i < w->n; i++) {
    if (w->i)
      w->i[i] = kva_wrap_i64(w->dtype, w->i[i]);
    else if (w->dtype != KVA_F64)
      w->f[i] = kva_round_f64(w->dtype, w->f[i]);
  }
}

static void copy_data(kva_ref_tensor *to, const kva_ref_tensor *from) {
  memcpy(to->f ? (void *)to->f : to->i, from->f ? (void *)from->f : from->i, (size_t)from->n * 8);
}

static kva_ref_tensor *copy_of(const kva_ref_tensor *w) {
  kva_ref_tensor *copy = kva_ref_tensor_create(w->dtype, w->rank, w->dims);
  if (copy) copy_data(copy, w);
  return copy;
}

static void set_value(evaluation *e, const kva_value *v, kva_ref_tensor *w) {
  e->values[v->id] = w;
  e->remaining[v->id] = kva_value_use_count(v);
  if (e->trace) e->trace(e->trace_user, v, w);
}

static void release(evaluation *e, const kva_value *v) {
  if (--e->remaining[v->id]) return;
  kva_ref_tensor_free(e->values[v->id]);
  e->values[v->id] = NULL;
}

static void release_operands(evaluation *e, const kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i)) release(e, kva_operand(n, i));
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static kva_status live_state(evaluation *e, const kva_node *n, kva_state *s, kva_ref_tensor **out_w) {
  *out_w = e->state ? e->state(e->state_user, s) : NULL;
  if (*out_w) return KVA_OK;
  return kva_error(e->diag, &n->loc, "kv.%s: state %s has no value in this evaluation", n->op->name, s->name);
}

static kva_status run_state_read(evaluation *e, kva_node *n) {
  kva_ref_tensor *live;
  KVA_TRY(live_state(e, n, ((const kva_state_read_attrs *)n->attrs)->state, &live));
  kva_ref_tensor *w = copy_of(live);
  if (!w) return kva_fail(e->diag, KVA_NO_MEMORY, &n->loc, "kv.%s: no memory for its result", n->op->name);
  set_value(e, kva_result(n, 0), w);
  return KVA_OK;
}

static kva_status run_state_write(evaluation *e, const kva_node *n) {
  kva_state *s = ((const kva_state_write_attrs *)n->attrs)->state;
  const kva_ref_tensor *w = e->values[kva_operand(n, 0)->id];
  kva_ref_tensor *live;
  KVA_TRY(live_state(e, n, s, &live));
  bool same = live->dtype == w->dtype && live->rank == w->rank;
  for (uint32_t i = 0; same && i < w->rank; i++) same = live->dims[i] == w->dims[i];
  if (!same) return kva_error(e->diag, &n->loc, "kv.%s: the shape of state %s changed", n->op->name, s->name);
  copy_data(live, w);
  return KVA_OK;
}

static kva_status run_constant(evaluation *e, kva_node *n) {
  const kva_tensor_data *data = ((const kva_constant_attrs *)n->attrs)->value;
  kva_ref_tensor *w = kva_ref_tensor_from_data(data->dtype, data->rank, data->dims, data->data);
  if (!w) return kva_fail(e->diag, KVA_NO_MEMORY, &n->loc, "kv.%s: no memory for its result", n->op->name);
  set_value(e, kva_result(n, 0), w);
  return KVA_OK;
}

static kva_status run_node(evaluation *e, kva_node *n, kva_ref *r) {
  const kva_ref_tensor **in = KVA_NEW_ARRAY(r->scratch, const kva_ref_tensor *, n->n_operands + 1);
  kva_ref_tensor **out = KVA_NEW_ARRAY(r->scratch, kva_ref_tensor *, n->n_results + 1);
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i)) in[i] = e->values[kva_operand(n, i)->id];
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < n->n_results && !status; i++) status = new_value(e, r, n, n->results[i].type, &out[i]);
  if (!status) status = n->op->ref(r, n, in, out);
  for (uint32_t i = 0; i < n->n_results; i++) {
    if (status) {
      kva_ref_tensor_free(out[i]);
    } else {
      round_value(out[i]);
      set_value(e, kva_result(n, i), out[i]);
    }
  }
  return status;
}

static kva_status run_graph(evaluation *e, const kva_graph *g);

static kva_status no_memory(evaluation *e, const kva_node *n) {
  return kva_fail(e->diag, KVA_NO_MEMORY, &n->loc, "kv.%s: no memory for the values of its sub-graph", n->op->name);
}

static void drop_unused(evaluation *e, const kva_value *v) {
  if (v->uses) return;
  kva_ref_tensor_free(e->values[v->id]);
  e->values[v->id] = NULL;
}

/* Runs sub-graph g of n. Takes ownership of the inputs; out receives copies of the outputs, which the caller owns. */
static kva_status run_subgraph(evaluation *e, const kva_node *n, const kva_graph *g, kva_ref_tensor *const *in,
                               kva_ref_tensor **out) {
  bool complete = true;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_value *v = g->inputs.data[i];
    complete &= in[i] != NULL;
    e->values[v->id] = in[i];
    e->remaining[v->id] = kva_value_use_count(v);
    drop_unused(e, v);
  }
  if (!complete) return no_memory(e, n);
  KVA_TRY(run_graph(e, g));
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++) {
    out[i] = copy_of(e->values[kva_graph_output(g, i)->id]);
    if (!out[i]) return no_memory(e, n);
  }
  release_operands(e, g->last);
  return KVA_OK;
}

/* Runs sub-graph g with n's operands from `first` on as inputs; its outputs become n's results (fused groups,
 * branches). */
static kva_status run_inner(evaluation *e, kva_node *n, const kva_graph *g, uint32_t first) {
  kva_ref_tensor **in = KVA_NEW_ARRAY(e->arena, kva_ref_tensor *, g->inputs.len + 1);
  kva_ref_tensor **out = KVA_NEW_ARRAY(e->arena, kva_ref_tensor *, n->n_results + 1);
  for (uint32_t i = 0; i < g->inputs.len; i++) in[i] = copy_of(e->values[kva_operand(n, first + i)->id]);
  kva_status status = run_subgraph(e, n, g, in, out);
  for (uint32_t i = 0; i < n->n_results; i++) {
    if (status)
      kva_ref_tensor_free(out[i]);
    else
      set_value(e, kva_result(n, i), out[i]);
  }
  return status;
}

static void set_symbol(evaluation *e, const kva_expr *symbol, int64_t value) {
  for (uint32_t i = 0; i < e->bindings.len; i++)
    if (e->bindings.data[i].symbol == symbol) {
      e->bindings.data[i].value = value;
      return;
    }
  KVA_PUSH(e->arena, &e->bindings, ((binding){symbol, value}));
}

static kva_status run_bind(evaluation *e, kva_node *n) {
  const kva_bind_attrs *a = n->attrs;
  int64_t v = e->values[kva_operand(n, 0)->id]->i[0], bound;
  const char *name = a->symbol.v[0]->name;
  if (v < 0) return kva_error(e->diag, &n->loc, "kv.bind: symbol %s gets the value %lld", name, (long long)v);
  if (a->bound && kva_expr_eval(a->bound, lookup_symbol, e, &bound) && v > bound)
    return kva_error(e->diag, &n->loc, "kv.bind: symbol %s gets the value %lld, above its bound %lld", name,
                     (long long)v, (long long)bound);
  set_symbol(e, a->symbol.v[0], v);
  return KVA_OK;
}

static kva_status run_if(evaluation *e, kva_node *n) {
  kva_dims binds = kva_node_binds(n);
  KVA_TRY(run_inner(e, n, n->graphs[e->values[kva_operand(n, 0)->id]->i[0] ? 0 : 1], 1));
  for (uint32_t s = 0; s < binds.n; s++)
    for (uint32_t r = 0; r < n->n_results; r++)
      for (uint32_t k = 0; k < n->results[r].type->rank; k++)
        if (n->results[r].type->dims[k] == binds.v[s] && e->values[n->results[r].id])
          set_symbol(e, binds.v[s], e->values[n->results[r].id]->dims[k]);
  return KVA_OK;
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

typedef struct loop_run {
  kva_node *n;
  uint32_t carried;
  int64_t done;                   /* iterations */
  bool go_on;                     /* current cond; true if absent */
  kva_ref_tensor **in, **out;     /* inputs and outputs of the body; owned: the carried values in `in`, all of `out` */
  KVA_VEC(kva_ref_tensor *) rows; /* rows of all iterations, grouped by stacked result within an iteration */
} loop_run;

static kva_ref_tensor *int_scalar(int64_t v) {
  kva_ref_tensor *w = kva_ref_tensor_create(KVA_I64, 0, NULL);
  if (w) w->i[0] = v;
  return w;
}

static kva_status run_iteration(evaluation *e, loop_run *l) {
  kva_node *n = l->n;
  l->in[0] = int_scalar(l->done);
  for (uint32_t i = l->carried + 2; i < n->n_operands; i++) l->in[i - 1] = copy_of(e->values[kva_operand(n, i)->id]);
  kva_status status = run_subgraph(e, n, n->graphs[0], l->in, l->out);
  for (uint32_t i = 0; i < l->carried; i++) l->in[i + 1] = NULL; /* ownership has passed to the evaluation */
  KVA_TRY(status);
  for (uint32_t i = 0; i < n->n_results; i++) {
    if (i < l->carried)
      l->in[i + 1] = l->out[i + 1];
    else
      KVA_PUSH(e->arena, &l->rows, l->out[i + 1]);
    l->out[i + 1] = NULL;
  }
  l->go_on = !kva_operand(n, 1) || l->out[0]->i[0];
  kva_ref_tensor_free(l->out[0]);
  l->out[0] = NULL;
  l->done++;
  return KVA_OK;
}

/* Concatenates the rows of result r. */
static kva_status stack_rows(evaluation *e, const loop_run *l, uint32_t r) {
  kva_node *n = l->n;
  kva_ref ref = {.diag = e->diag, .lookup = lookup_symbol, .lookup_user = e};
  kva_ref_tensor *w;
  KVA_TRY(new_value(e, &ref, n, n->results[r].type, &w));
  uint32_t per_iteration = n->n_results - l->carried;
  int64_t size = l->done ? w->n / l->done : 0;
  for (int64_t i = 0; i < l->done; i++) {
    const kva_ref_tensor *row = l->rows.data[i * per_iteration + r - l->carried];
    if (w->f)
      memcpy(w->f + i * size, row->f, (size_t)size * 8);
    else
      memcpy(w->i + i * size, row->i, (size_t)size * 8);
  }
  set_value(e, kva_result(n, r), w);
  return KVA_OK;
}

static kva_status run_iterations(evaluation *e, loop_run *l) {
  kva_node *n = l->n;
  const kva_loop_attrs *a = n->attrs;
  int64_t count = kva_operand(n, 0) ? e->values[kva_operand(n, 0)->id]->i[0] : INT64_MAX, trips;
  l->go_on = !kva_operand(n, 1) || e->values[kva_operand(n, 1)->id]->i[0];
  if (a->trips && kva_expr_eval(a->trips, lookup_symbol, e, &trips) && trips != (count > 0 ? count : 0))
    return kva_error(e->diag, &n->loc, "kv.loop: trips is %lld, the count is %lld", (long long)trips, (long long)count);
  for (uint32_t i = 0; i < l->carried; i++) l->in[i + 1] = copy_of(e->values[kva_operand(n, i + 2)->id]);
  while (l->go_on && l->done < count) KVA_TRY(run_iteration(e, l));
  if (a->binds.n) set_symbol(e, a->binds.v[0], l->done);
  for (uint32_t i = l->carried; i < n->n_results; i++) KVA_TRY(stack_rows(e, l, i));
  for (uint32_t i = 0; i < l->carried; i++) {
    if (!l->in[i + 1]) return no_memory(e, n);
    set_value(e, kva_result(n, i), l->in[i + 1]);
    l->in[i + 1] = NULL;
  }
  return KVA_OK;
}

static kva_status run_loop(evaluation *e, kva_node *n) {
  loop_run l = {.n = n, .carried = (uint32_t)((const kva_loop_attrs *)n->attrs)->carried};
  l.in = KVA_NEW_ARRAY(e->arena, kva_ref_tensor *, n->n_operands);
  l.out = KVA_NEW_ARRAY(e->arena, kva_ref_tensor *, n->n_results + 1);
  kva_status status = run_iterations(e, &l);
  for (uint32_t i = 0; i < l.rows.len; i++) kva_ref_tensor_free(l.rows.data[i]);
  for (uint32_t i = 0; i < l.carried; i++) kva_ref_tensor_free(l.in[i + 1]);
  for (uint32_t i = 0; i <= n->n_results; i++) kva_ref_tensor_free(l.out[i]);
  return status;
}

static kva_status run_any(evaluation *e, kva_node *n) {
  if (kva_is(n, KVA_OP_constant)) return run_constant(e, n);
  if (kva_is(n, KVA_OP_state_read)) return run_state_read(e, n);
  if (kva_is(n, KVA_OP_state_write)) return run_state_write(e, n);
  if (kva_is(n, KVA_OP_kernel)) return run_inner(e, n, n->graphs[0], 0);
  if (kva_is(n, KVA_OP_bind)) return run_bind(e, n);
  if (kva_is(n, KVA_OP_if)) return run_if(e, n);
  if (kva_is(n, KVA_OP_loop)) return run_loop(e, n);
  kva_ref r = {.diag = e->diag,
               .scratch = kva_arena_create(),
               .lookup = lookup_symbol,
               .lookup_user = e,
               .state = e->state,
               .state_user = e->state_user};
  kva_status status = run_node(e, n, &r);
  kva_arena_destroy(r.scratch);
  return status;
}

/* The operands of `return` stay allocated for the caller. */
static kva_status run_graph(evaluation *e, const kva_graph *g) {
  for (kva_node *n = g->first; n && !kva_is(n, KVA_OP_return); n = n->next) {
    KVA_TRY(run_any(e, n));
    release_operands(e, n);
    for (uint32_t i = 0; i < n->n_results; i++) {
      if (n->results[i].uses) continue;
      kva_ref_tensor_free(e->values[n->results[i].id]);
      e->values[n->results[i].id] = NULL;
    }
  }
  return KVA_OK;
}

static kva_status run_function(evaluation *e, kva_function *f, const kva_ref_tensor *const *inputs,
                               kva_ref_tensor **outputs) {
  const kva_graph *g = f->graph;
  KVA_TRY(bind_symbols(e, f, inputs));
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    kva_ref_tensor *w = copy_of(inputs[i]);
    if (!w) return kva_fail(e->diag, KVA_NO_MEMORY, &f->loc, "no memory for the inputs");
    set_value(e, g->inputs.data[i], w);
  }
  KVA_TRY(run_graph(e, g));
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++) {
    outputs[i] = copy_of(e->values[kva_graph_output(g, i)->id]);
    if (!outputs[i]) return kva_fail(e->diag, KVA_NO_MEMORY, &f->loc, "no memory for the outputs");
  }
  return KVA_OK;
}

kva_status kva_ref_run(kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs, kva_ref_tensor **outputs,
                       kva_ref_tensor *(*state)(void *user, kva_state *s), void *state_user, kva_ref_trace trace,
                       void *trace_user, kva_diag *diag) {
  evaluation e = {.m = m,
                  .diag = diag,
                  .arena = kva_arena_create(),
                  .state = state,
                  .state_user = state_user,
                  .trace = trace,
                  .trace_user = trace_user};
  e.values = calloc(m->next_value_id + 1, sizeof *e.values);
  e.remaining = calloc(m->next_value_id + 1, sizeof *e.remaining);
  uint32_t n = kva_graph_output_count(f->graph);
  for (uint32_t i = 0; i < n; i++) outputs[i] = NULL;
  kva_status status = e.values && e.remaining
                          ? run_function(&e, f, inputs, outputs)
                          : kva_fail(diag, KVA_NO_MEMORY, &f->loc, "no memory to evaluate %s", f->name);
  for (uint32_t i = 0; e.values && i < m->next_value_id; i++) kva_ref_tensor_free(e.values[i]);
  for (uint32_t i = 0; status && i < n; i++) {
    kva_ref_tensor_free(outputs[i]);
    outputs[i] = NULL;
  }
  free(e.values);
  free(e.remaining);
  kva_arena_destroy(e.arena);
  return status;
}
