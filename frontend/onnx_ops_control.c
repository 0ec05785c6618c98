/* Rules: If, Loop and Scan. Control flow that is known at import is resolved: a branch with a known condition is
 * inlined, and a loop with known trip count and conditions is unrolled up to a limit. The rest becomes kv.if and
 * kv.loop. */
#include "frontend/frontend_internal.h"
#include "frontend/onnx_list.h"
#include "frontend/onnx_region.h"
#include "ops/control.h"
#include "ops/ids.h"

enum { MAX_TRIPS = 1024, MAX_UNROLLED_NODES = 1 << 15, MAX_VALUES = 64 };

static kva_status body_of(kva_onnx_call *k, const char *name, const kva_onnx_subgraph **out) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, name);
  if (!a || a->kind != KVA_ONNX_GRAPH) return kva_onnx_fail(k, KVA_INVALID, "attribute '%s' is missing", name);
  *out = a->graph;
  if ((*out)->n_inputs > MAX_VALUES || (*out)->n_outputs > MAX_VALUES)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "more than %d values go into or out of '%s'", MAX_VALUES, name);
  return KVA_OK;
}

/* Trip counts and conditions are tensors; only carried values may be lists. */
static kva_status need_tensor(kva_onnx_call *k, const kva_value *v, const char *what) {
  if (!v || !kva_is_list(v)) return KVA_OK;
  return kva_onnx_fail(k, KVA_UNSUPPORTED, "%s: expected a tensor, found a sequence or optional", what);
}

/* The single integer or bool in v, if known. */
static bool known_number(kva_onnx_call *k, const kva_value *v, int64_t *out) {
  const kva_dims *d = kva_onnx_contents(k->c, v);
  return d && d->n == 1 && kva_expr_is_const(d->v[0], out);
}

/* ---- if ---------------------------------------------------------------------------------------------------------- */

static kva_status build_branch(kva_onnx_call *k, const char *name, kva_value **out) {
  const kva_onnx_subgraph *g = NULL;
  KVA_TRY(body_of(k, name, &g));
  if (g->n_inputs || g->n_outputs < k->n->n_outputs)
    return kva_onnx_fail(k, KVA_INVALID, "'%s' has %u inputs and %u outputs, expected 0 and %u", name, g->n_inputs,
                         g->n_outputs, k->n->n_outputs);
  return g->build(k->c, g, NULL, out);
}

/* Symbols for extents that differ between the branches or are local to one branch; kv.if binds them. */
static kva_status new_extents(kva_onnx_call *k, const kva_region *r, uint32_t n, kva_dims *out) {
  kva_module *m = k->b->m;
  KVA_VEC(kva_dim) binds = {0};
  for (uint32_t i = 0; i < n; i++) {
    const kva_type *yes = kva_graph_output(r[0].graph, i)->type, *no = kva_graph_output(r[1].graph, i)->type;
    if (yes->dtype != no->dtype || yes->rank != no->rank)
      return kva_onnx_fail(k, KVA_UNSUPPORTED,
                           "the condition depends on data, and output %u is %s of rank %u or %s of rank %u", i,
                           kva_dtype_name(yes->dtype), yes->rank, kva_dtype_name(no->dtype), no->rank);
    for (uint32_t d = 0; d < yes->rank; d++)
      if (yes->dims[d] != no->dims[d] || kva_is_local_dim(r[0].graph, yes->dims[d]))
        KVA_PUSH(m->arena, &binds, kva_expr_new_symbol(m->exprs, "branch"));
  }
  *out = (kva_dims){binds.len, binds.data};
  return KVA_OK;
}

/* A branch: its outputs as the model has them, and their tensors, which the region returns. */
typedef struct branch {
  kva_region region;
  kva_value *out[MAX_VALUES];
  kva_values tensors;
} branch;

static kva_status build_region(kva_onnx_call *k, const char *name, branch *b) {
  *b = (branch){.region = kva_region_open(k)};
  kva_status status = build_branch(k, name, b->out);
  for (uint32_t r = 0; r < k->n->n_outputs && !status; r++) {
    if (!b->out[r] || k->b->failed) status = KVA_INVALID;
    if (!status) kva_list_flatten(k->c, b->out[r], &b->tensors);
  }
  if (status) return kva_region_discard(k, &b->region), status;
  kva_region_close(k, &b->region, b->tensors.len, b->tensors.data);
  return KVA_OK;
}

static kva_status check_structure(kva_onnx_call *k, const branch *yes, const branch *no) {
  for (uint32_t i = 0; i < k->n->n_outputs; i++)
    if (!kva_list_same(yes->out[i], no->out[i]))
      return kva_onnx_fail(k, KVA_UNSUPPORTED,
                           "the condition depends on data, and output %u has another number of elements in the "
                           "other branch",
                           i);
  return KVA_OK;
}

static kva_status build_if(kva_onnx_call *k, kva_value *cond) {
  kva_if_attrs *attrs = kva_attrs_default(k->b->m->arena, KVA_OP(if)->attrs);
  branch *yes = KVA_NEW(k->c->arena, branch), *no = KVA_NEW(k->c->arena, branch);
  cond = kva_cast(k->b, kva_reshape(k->b, cond, 0, NULL), KVA_BOOL);
  KVA_TRY(build_region(k, "then_branch", yes));
  KVA_TRY(build_region(k, "else_branch", no));
  KVA_TRY(check_structure(k, yes, no));
  kva_region regions[2] = {yes->region, no->region};
  KVA_TRY(new_extents(k, regions, yes->tensors.len, &attrs->binds));
  kva_node *n = kva_region_node(k, KVA_OP_if, 2, regions, 1, &cond, yes->tensors.len, attrs);
  KVA_TRY(kva_region_infer(k, n));
  kva_value **results = KVA_NEW_ARRAY(k->c->arena, kva_value *, n->n_results + 1), *const *next = results;
  for (uint32_t i = 0; i < n->n_results; i++) results[i] = kva_result(n, i);
  for (uint32_t i = 0; i < k->n->n_outputs; i++) kva_onnx_set_out(k, i, kva_list_rebuild(k->c, yes->out[i], &next));
  return KVA_OK;
}

kva_status kva_onnx_if(kva_onnx_call *k) {
  int64_t cond;
  KVA_TRY(need_tensor(k, kva_onnx_in(k, 0), "the condition"));
  if (!known_number(k, kva_onnx_in(k, 0), &cond)) return build_if(k, kva_onnx_in(k, 0));
  kva_value *out[MAX_VALUES] = {NULL};
  KVA_TRY(build_branch(k, cond ? "then_branch" : "else_branch", out));
  for (uint32_t i = 0; i < k->n->n_outputs; i++) kva_onnx_set_out(k, i, out[i]);
  return KVA_OK;
}

/* ---- collected outputs ------------------------------------------------------------------------------------------- */

/* The values of one scan output, to be joined along a new axis. */
typedef struct collected {
  kva_value *v[MAX_TRIPS];
  uint32_t n;
} collected;

static kva_status join(kva_onnx_call *k, const collected *c, int64_t axis, bool reversed, kva_value **out) {
  kva_value **parts = KVA_NEW_ARRAY(k->c->arena, kva_value *, c->n + 1);
  KVA_ASSERT(c->n);
  for (uint32_t i = 0; i < c->n; i++) KVA_TRY(need_tensor(k, c->v[i], "a collected value"));
  uint32_t rank = c->v[0]->type->rank + 1, at;
  KVA_TRY(kva_onnx_axis(k, axis, rank, &at));
  for (uint32_t i = 0; i < c->n; i++) parts[i] = kva_onnx_unsqueeze(k->b, c->v[reversed ? c->n - 1 - i : i], at, 1);
  kva_concat_attrs attrs = {.axis = at};
  *out = c->n == 1 ? parts[0] : kva_build(k->b, KVA_OP_concat, c->n, parts, &attrs);
  return k->b->failed ? KVA_INVALID : KVA_OK;
}

/* ---- loops that are not unrolled --------------------------------------------------------------------------------- */

/* v with the type that the loop carries, if only extents of 1 differ, or extents that may be equal. */
static kva_status as_carried(kva_onnx_call *k, uint32_t i, kva_value *v, const kva_type *type, kva_value **out) {
  if (v->type->dtype == type->dtype && v->type != type &&
      kva_type_elements(k->b->m, v->type) == kva_type_elements(k->b->m, type))
    v = kva_reshape_like(k->b, v, type);
  if (v->type->rank == type->rank) v = kva_onnx_with_dims(k, v, type->dims, "a carried value");
  *out = v;
  if (v->type == type) return KVA_OK;
  kva_text was = {0}, now = {0};
  kva_type_print(type, &was);
  kva_type_print(v->type, &now);
  kva_status status = kva_onnx_fail(k, KVA_UNSUPPORTED, "carried value %u changes from %s to %s in an iteration", i,
                                    was.data, now.data);
  kva_text_free(&was);
  kva_text_free(&now);
  return status;
}

/* A future kv.loop, whose body is built; the body's outputs are cond, carried values, rows. */
typedef struct kept_loop {
  kva_value *count, *cond; /* scalars; count may be NULL: omitted */
  kva_dim trips;           /* value of count, if known */
  uint32_t carried, stacked;
  kva_value *const *initial;
  kva_value *out[2 * MAX_VALUES];
  kva_region body;
} kept_loop;

/* Closes the body after out[0 .. carried] and the following rows are set. */
static kva_status close_loop(kva_onnx_call *k, kept_loop *l, kva_node **out) {
  int64_t now, later;
  for (uint32_t i = 0; i < 1 + l->carried + l->stacked; i++)
    KVA_TRY(need_tensor(k, l->out[i], "a value of a loop whose end depends on data"));
  for (uint32_t i = 0; i < l->carried; i++)
    KVA_TRY(as_carried(k, i, l->out[i + 1], l->initial[i]->type, &l->out[i + 1]));
  if (known_number(k, l->cond, &now) && now && known_number(k, l->out[0], &later) && later) l->cond = NULL;
  kva_region_close(k, &l->body, 1 + l->carried + l->stacked, l->out);
  kva_module *m = k->b->m;
  kva_loop_attrs *attrs = kva_attrs_default(m->arena, KVA_OP(loop)->attrs);
  attrs->carried = l->carried;
  attrs->trips = l->trips;
  if (l->stacked && (!l->trips || l->cond)) {
    kva_dim *symbol = KVA_NEW(m->arena, kva_dim);
    *symbol = kva_expr_new_symbol(m->exprs, "iterations");
    attrs->binds = (kva_dims){1, symbol};
  }
  kva_value *operands[MAX_VALUES + 2] = {l->count, l->cond};
  for (uint32_t i = 0; i < l->carried; i++) operands[i + 2] = l->initial[i];
  *out = kva_region_node(k, KVA_OP_loop, 1, &l->body, l->carried + 2, operands, l->carried + l->stacked, attrs);
  return k->b->failed ? KVA_INVALID : kva_region_infer(k, *out);
}

/* ---- loop -------------------------------------------------------------------------------------------------------- */

typedef struct loop {
  const kva_onnx_subgraph *body;
  uint32_t carried, collects;
  int64_t trips; /* upper bound, if known */
  bool counted;  /* trips is known, or there is no count */
  kva_value *initial[MAX_VALUES], *state[MAX_VALUES];
  kva_value *first_cond, *cond;
  collected *scans;
} loop;

static kva_status read_loop(kva_onnx_call *k, loop *l) {
  KVA_TRY(body_of(k, "body", &l->body));
  KVA_TRY(need_tensor(k, kva_onnx_in(k, 0), "the trip count"));
  KVA_TRY(need_tensor(k, kva_onnx_in(k, 1), "the condition"));
  l->carried = k->n->n_inputs - 2;
  if (k->n->n_inputs < 2 || l->body->n_inputs != l->carried + 2 || l->body->n_outputs < l->carried + 1)
    return kva_onnx_fail(k, KVA_INVALID, "the body's inputs and outputs do not fit the loop's");
  l->collects = l->body->n_outputs - 1 - l->carried;
  l->trips = INT64_MAX;
  l->counted = !kva_onnx_in(k, 0) || known_number(k, kva_onnx_in(k, 0), &l->trips);
  for (uint32_t i = 0; i < l->carried; i++)
    if (!(l->initial[i] = kva_onnx_in(k, i + 2))) return kva_onnx_fail(k, KVA_INVALID, "input %u is missing", i + 2);
  l->first_cond = kva_onnx_in(k, 1) ? kva_onnx_in(k, 1) : kva_const_scalar(k->b, KVA_BOOL, 1);
  l->scans = KVA_NEW_ARRAY(k->c->arena, collected, l->collects + 1);
  return KVA_OK;
}

static kva_status run_iteration(kva_onnx_call *k, loop *l, int64_t trip) {
  kva_value *in[MAX_VALUES + 2], *out[MAX_VALUES] = {NULL};
  in[0] = kva_reshape(k->b, kva_const_i64s(k->b, 1, &trip), 0, NULL);
  in[1] = l->cond;
  for (uint32_t i = 0; i < l->carried; i++) in[i + 2] = l->state[i];
  KVA_TRY(l->body->build(k->c, l->body, in, out));
  l->cond = out[0];
  for (uint32_t i = 0; i < l->carried; i++) l->state[i] = out[i + 1];
  for (uint32_t i = 0; i < l->collects; i++) l->scans[i].v[l->scans[i].n++] = out[1 + l->carried + i];
  return KVA_OK;
}

/* *out_done: all iterations are unrolled. Otherwise a condition depends on data, the limit is exceeded, or there are
 * none to tell what type collected values have. */
static kva_status unroll(kva_onnx_call *k, loop *l, bool *out_done) {
  uint32_t first_node = k->b->m->next_node_id;
  *out_done = false;
  l->cond = l->first_cond;
  for (uint32_t i = 0; i < l->carried; i++) l->state[i] = l->initial[i];
  if (!l->counted || (kva_onnx_in(k, 0) && l->trips > MAX_TRIPS)) return KVA_OK;
  for (int64_t trip = 0; trip < l->trips; trip++) {
    int64_t go_on;
    if (!known_number(k, l->cond, &go_on)) return KVA_OK;
    if (!go_on) break;
    if (trip == MAX_TRIPS || k->b->m->next_node_id - first_node > MAX_UNROLLED_NODES) return KVA_OK;
    KVA_TRY(run_iteration(k, l, trip));
  }
  *out_done = !l->collects || l->scans[0].n;
  return KVA_OK;
}

static void read_count(kva_onnx_call *k, kept_loop *l) {
  kva_value *count = kva_onnx_in(k, 0);
  if (!count) return;
  const kva_dims *known = kva_onnx_contents(k->c, count);
  l->count = kva_cast(k->b, kva_reshape(k->b, count, 0, NULL), KVA_I64);
  if (known && known->n == 1)
    l->trips = kva_expr_max(kva_onnx_exprs(k), known->v[0], kva_expr_const(kva_onnx_exprs(k), 0));
}

static kva_status build_loop(kva_onnx_call *k, loop *l, kva_node **out) {
  kept_loop kept = {.carried = l->carried, .stacked = l->collects, .initial = l->initial};
  kva_value *in[MAX_VALUES + 2];
  for (uint32_t i = 0; i < l->carried; i++)
    KVA_TRY(need_tensor(k, l->initial[i], "a value of a loop whose end depends on data"));
  read_count(k, &kept);
  kept.cond = kva_cast(k->b, kva_reshape(k->b, l->first_cond, 0, NULL), KVA_BOOL);
  kept.body = kva_region_open(k);
  in[0] = kva_graph_add_input(kept.body.graph, kva_type_scalar(k->b->m, KVA_I64), NULL);
  for (uint32_t i = 0; i < l->carried; i++) in[i + 2] = kva_graph_add_input(kept.body.graph, l->initial[i]->type, NULL);
  in[1] = kva_const_scalar(k->b, KVA_BOOL, 1); /* it is true whenever an iteration runs */
  kva_status status = l->body->build(k->c, l->body, in, kept.out);
  if (!status && !k->b->failed) {
    kept.out[0] = kva_reshape(k->b, kept.out[0], 0, NULL);
    status = close_loop(k, &kept, out);
  }
  if (k->b->graph == kept.body.graph) kva_region_discard(k, &kept.body);
  return status;
}

kva_status kva_onnx_loop(kva_onnx_call *k) {
  loop l = {0};
  bool done;
  KVA_TRY(read_loop(k, &l));
  KVA_TRY(unroll(k, &l, &done));
  if (!done) {
    kva_node *n = NULL;
    KVA_TRY(build_loop(k, &l, &n));
    for (uint32_t i = 0; i < n->n_results && i < k->n->n_outputs; i++) kva_onnx_set_out(k, i, kva_result(n, i));
    return KVA_OK;
  }
  for (uint32_t i = 0; i < l.carried; i++) kva_onnx_set_out(k, i, l.state[i]);
  for (uint32_t i = 0; i < l.collects && l.carried + i < k->n->n_outputs; i++) {
    kva_value *v = NULL;
    KVA_TRY(join(k, &l.scans[i], 0, false, &v));
    kva_onnx_set_out(k, l.carried + i, v);
  }
  return KVA_OK;
}

/* ---- scan -------------------------------------------------------------------------------------------------------- */

typedef struct scan {
  const kva_onnx_subgraph *body;
  uint32_t states, inputs, outputs;
  kva_dim length;
  kva_ints in_axes, in_directions, out_axes, out_directions;
  kva_value *state[MAX_VALUES], *in[MAX_VALUES]; /* in: of one length */
  collected *scans;
} scan;

static int64_t entry(kva_ints v, uint32_t i) {
  return i < v.n ? v.v[i] : 0;
}

static kva_status read_scan(kva_onnx_call *k, scan *s) {
  KVA_TRY(body_of(k, "body", &s->body));
  int64_t inputs = kva_onnx_int(k, "num_scan_inputs", 0);
  if (inputs < 1 || inputs > k->n->n_inputs || s->body->n_inputs != k->n->n_inputs)
    return kva_onnx_fail(k, KVA_INVALID, "num_scan_inputs does not fit the inputs");
  s->inputs = (uint32_t)inputs;
  s->states = k->n->n_inputs - s->inputs;
  if (s->body->n_outputs < s->states) return kva_onnx_fail(k, KVA_INVALID, "the body has too few outputs");
  s->outputs = s->body->n_outputs - s->states;
  s->in_axes = kva_onnx_ints(k, "scan_input_axes");
  s->in_directions = kva_onnx_ints(k, k->version < 9 ? "directions" : "scan_input_directions");
  s->out_axes = kva_onnx_ints(k, "scan_output_axes");
  s->out_directions = kva_onnx_ints(k, "scan_output_directions");
  for (uint32_t i = 0; i < k->n->n_inputs; i++)
    if (!kva_onnx_in(k, i)) return kva_onnx_fail(k, KVA_INVALID, "input %u is missing", i);
  for (uint32_t i = 0; i < s->states; i++) s->state[i] = kva_onnx_in(k, i);
  s->scans = KVA_NEW_ARRAY(k->c->arena, collected, s->outputs + 1);
  return KVA_OK;
}

/* Axes of the scan inputs; all lengths must be equal, and those that are symbols are taken to be. */
static kva_status scan_axes(kva_onnx_call *k, scan *s, uint32_t *axes) {
  for (uint32_t i = 0; i < s->inputs; i++) {
    s->in[i] = kva_onnx_in(k, s->states + i);
    KVA_TRY(kva_onnx_axis(k, entry(s->in_axes, i), s->in[i]->type->rank, &axes[i]));
    kva_dim length = kva_onnx_dim(s->in[i], axes[i]);
    if (!i || kva_expr_is_const(length, NULL)) s->length = length;
  }
  for (uint32_t i = 0; i < s->inputs; i++) {
    s->in[i] = kva_onnx_with_extent(k, s->in[i], axes[i], s->length, "an input of Scan");
    if (kva_onnx_dim(s->in[i], axes[i]) != s->length)
      return kva_onnx_fail(k, KVA_INVALID, "scan inputs of different lengths");
  }
  return KVA_OK;
}

static kva_value *element(kva_onnx_call *k, kva_value *x, uint32_t axis, int64_t at) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *row = kva_onnx_slice(k->b, x, axis, kva_expr_const(e, at), kva_expr_const(e, 1));
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t i = 0; i < x->type->rank; i++)
    if (i != axis) dims[rank++] = kva_onnx_dim(x, i);
  return kva_reshape(k->b, row, rank, dims);
}

static kva_status scan_step(kva_onnx_call *k, scan *s, const uint32_t *axes, int64_t length, int64_t step) {
  kva_value *in[MAX_VALUES], *out[MAX_VALUES] = {NULL};
  for (uint32_t i = 0; i < s->states; i++) in[i] = s->state[i];
  for (uint32_t i = 0; i < s->inputs; i++) {
    int64_t at = entry(s->in_directions, i) ? length - 1 - step : step;
    in[s->states + i] = element(k, s->in[i], axes[i], at);
  }
  KVA_TRY(s->body->build(k->c, s->body, in, out));
  for (uint32_t i = 0; i < s->states; i++) s->state[i] = out[i];
  for (uint32_t i = 0; i < s->outputs; i++) s->scans[i].v[s->scans[i].n++] = out[s->states + i];
  return KVA_OK;
}

/* Element t of every scan input: t = i, or length - 1 - i backwards. */
static void scan_inputs_at(kva_onnx_call *k, const scan *s, const uint32_t *axes, kva_value *i, kva_value **in) {
  kva_dim last = kva_expr_addi(kva_onnx_exprs(k), s->length, -1);
  for (uint32_t n = 0; n < s->inputs; n++) {
    kva_value *t = entry(s->in_directions, n) ? kva_sub(k->b, kva_dim_scalar(k->b, KVA_I64, last), i) : i;
    in[s->states + n] = kva_onnx_gather(k->b, s->in[n], t, axes[n]);
  }
}

/* Moves the first axis of a stacked result, [length, row...], to `axis`. */
static kva_status place_stack(kva_onnx_call *k, kva_value *v, int64_t axis, bool reversed, kva_value **out) {
  int64_t perm[KVA_MAX_RANK];
  uint32_t at, rank = v->type->rank;
  KVA_TRY(kva_onnx_axis(k, axis, rank, &at));
  for (uint32_t i = 0; i < rank; i++) perm[i] = i == at ? 0 : i < at ? i + 1 : i;
  v = kva_transpose(k->b, reversed ? kva_onnx_flip(k->b, v, 0) : v, perm);
  *out = v;
  return k->b->failed ? KVA_INVALID : KVA_OK;
}

static kva_status scan_body(kva_onnx_call *k, const scan *s, const uint32_t *axes, kept_loop *l, kva_node **out) {
  kva_value *in[MAX_VALUES], *rows[MAX_VALUES] = {NULL};
  kva_value *i = kva_graph_add_input(l->body.graph, kva_type_scalar(k->b->m, KVA_I64), NULL);
  for (uint32_t n = 0; n < s->states; n++) in[n] = kva_graph_add_input(l->body.graph, s->state[n]->type, NULL);
  scan_inputs_at(k, s, axes, i, in);
  KVA_TRY(s->body->build(k->c, s->body, in, rows));
  if (k->b->failed) return KVA_INVALID;
  l->out[0] = kva_const_scalar(k->b, KVA_BOOL, 1);
  for (uint32_t n = 0; n < s->body->n_outputs; n++) l->out[n + 1] = rows[n];
  return close_loop(k, l, out);
}

static kva_status scan_loop(kva_onnx_call *k, const scan *s, const uint32_t *axes) {
  kept_loop l = {.trips = s->length, .carried = s->states, .stacked = s->outputs, .initial = s->state};
  kva_node *n = NULL;
  l.count = kva_dim_scalar(k->b, KVA_I64, s->length);
  l.cond = kva_const_scalar(k->b, KVA_BOOL, 1);
  l.body = kva_region_open(k);
  kva_status status = scan_body(k, s, axes, &l, &n);
  if (k->b->graph == l.body.graph) kva_region_discard(k, &l.body);
  KVA_TRY(status);
  for (uint32_t i = 0; i < s->states; i++) kva_onnx_set_out(k, i, kva_result(n, i));
  for (uint32_t i = 0; i < s->outputs && s->states + i < k->n->n_outputs; i++) {
    kva_value *v = NULL;
    KVA_TRY(place_stack(k, kva_result(n, s->states + i), entry(s->out_axes, i), entry(s->out_directions, i) != 0, &v));
    kva_onnx_set_out(k, s->states + i, v);
  }
  return KVA_OK;
}

static kva_status unroll_scan(kva_onnx_call *k, scan *s, const uint32_t *axes, int64_t length) {
  for (int64_t step = 0; step < length; step++) KVA_TRY(scan_step(k, s, axes, length, step));
  for (uint32_t i = 0; i < s->states; i++) kva_onnx_set_out(k, i, s->state[i]);
  for (uint32_t i = 0; i < s->outputs && s->states + i < k->n->n_outputs; i++) {
    kva_value *v = NULL;
    KVA_TRY(join(k, &s->scans[i], entry(s->out_axes, i), entry(s->out_directions, i) != 0, &v));
    kva_onnx_set_out(k, s->states + i, v);
  }
  return KVA_OK;
}

kva_status kva_onnx_scan_op(kva_onnx_call *k) {
  scan s = {0};
  uint32_t axes[MAX_VALUES];
  int64_t length;
  KVA_TRY(read_scan(k, &s));
  KVA_TRY(scan_axes(k, &s, axes));
  bool few = kva_expr_is_const(s.length, &length) && length > 0 && length <= MAX_TRIPS;
  return few ? unroll_scan(k, &s, axes, length) : scan_loop(k, &s, axes);
}

/* ---- scan of opset 8 --------------------------------------------------------------------------------------------- */

/* Sequence `at` of v, without its axis 0. */
static kva_value *one_sequence(kva_onnx_call *k, kva_value *v, int64_t at) {
  return v->type->rank ? element(k, v, 0, at) : v;
}

/* Values have one more axis, the first, over independent sequences. */
kva_status kva_onnx_scan_batch(kva_onnx_call *k) {
  kva_value *in[MAX_VALUES], *out[MAX_VALUES] = {NULL};
  int64_t batch = 0;
  kva_onnx_node n = *k->n;
  kva_onnx_call sequence = *k;
  collected *results = KVA_NEW_ARRAY(k->c->arena, collected, n.n_outputs + 1);
  if (kva_onnx_in(k, 0)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "sequences of different lengths (sequence_lens)");
  for (uint32_t i = 1; i < n.n_inputs; i++)
    if (!kva_onnx_in(k, i) || !kva_onnx_in(k, i)->type->rank)
      return kva_onnx_fail(k, KVA_INVALID, "input %u: expected sequences", i);
  if (!kva_expr_is_const(kva_onnx_dim(kva_onnx_in(k, 1), 0), &batch) || batch < 1 || batch > MAX_TRIPS)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "expected a known number of 1 to %d sequences", MAX_TRIPS);
  n.n_inputs--, n.inputs = in;
  sequence.n = &n, sequence.out = out;
  for (int64_t at = 0; at < batch; at++) {
    for (uint32_t i = 0; i < n.n_inputs; i++) in[i] = one_sequence(k, kva_onnx_in(k, i + 1), at);
    KVA_TRY(kva_onnx_scan_op(&sequence));
    for (uint32_t i = 0; i < n.n_outputs; i++) results[i].v[results[i].n++] = out[i];
  }
  for (uint32_t i = 0; i < n.n_outputs; i++) {
    kva_value *v = NULL;
    KVA_TRY(join(k, &results[i], 0, false, &v));
    kva_onnx_set_out(k, i, v);
  }
  return KVA_OK;
}
