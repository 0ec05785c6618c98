/* Rules: If, Loop and Scan. The internal graph has no control flow: a branch whose condition is known is inlined,
 * others become a selection; loops are unrolled, so their trip count and conditions must be known. */
#include "frontend/frontend_internal.h"
#include "frontend/onnx_rules.h"

enum { MAX_TRIPS = 1024, MAX_VALUES = 64 };

static kva_status body_of(kva_onnx_call *k, const char *name, const kva_onnx_subgraph **out) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, name);
  if (!a || a->kind != KVA_ONNX_GRAPH) return kva_onnx_fail(k, KVA_INVALID, "attribute '%s' is missing", name);
  *out = a->graph;
  if ((*out)->n_inputs > MAX_VALUES || (*out)->n_outputs > MAX_VALUES)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "more than %d values go into or out of '%s'", MAX_VALUES, name);
  return KVA_OK;
}

/* The single integer or bool that v holds, when known. */
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

/* Both branches are pure, so a selection of their results means the same. */
static kva_status select_branch(kva_onnx_call *k, kva_value *cond) {
  kva_value *yes[MAX_VALUES] = {NULL}, *no[MAX_VALUES] = {NULL};
  KVA_TRY(build_branch(k, "then_branch", yes));
  KVA_TRY(build_branch(k, "else_branch", no));
  cond = kva_reshape(k->b, cond, 0, NULL);
  for (uint32_t i = 0; i < k->n->n_outputs; i++) {
    if (yes[i]->type != no[i]->type)
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "the branches give different shapes and the condition depends on data");
    kva_onnx_set_out(k, i, kva_onnx_where(k->b, cond, yes[i], no[i]));
  }
  return KVA_OK;
}

kva_status kva_onnx_if(kva_onnx_call *k) {
  int64_t cond;
  if (!known_number(k, kva_onnx_in(k, 0), &cond)) return select_branch(k, kva_onnx_in(k, 0));
  kva_value *out[MAX_VALUES] = {NULL};
  KVA_TRY(build_branch(k, cond ? "then_branch" : "else_branch", out));
  for (uint32_t i = 0; i < k->n->n_outputs; i++) kva_onnx_set_out(k, i, out[i]);
  return KVA_OK;
}

/* ---- collected outputs ------------------------------------------------------------------------------------------- */

/* Values of one scan output, joined along a new axis at the end. */
typedef struct collected {
  kva_value *v[MAX_TRIPS];
  uint32_t n;
} collected;

static kva_status join(kva_onnx_call *k, const collected *c, int64_t axis, bool reversed, kva_value **out) {
  kva_value **parts = KVA_NEW_ARRAY(k->c->arena, kva_value *, c->n + 1);
  if (!c->n) return kva_onnx_fail(k, KVA_UNSUPPORTED, "a loop without iterations collects nothing");
  uint32_t rank = c->v[0]->type->rank + 1, at;
  KVA_TRY(kva_onnx_axis(k, axis, rank, &at));
  for (uint32_t i = 0; i < c->n; i++) parts[i] = kva_onnx_unsqueeze(k->b, c->v[reversed ? c->n - 1 - i : i], at, 1);
  kva_concat_attrs attrs = {.axis = at};
  *out = c->n == 1 ? parts[0] : kva_build(k->b, KVA_OP_concat, c->n, parts, &attrs);
  return k->b->failed ? KVA_INVALID : KVA_OK;
}

/* ---- loop -------------------------------------------------------------------------------------------------------- */

typedef struct loop {
  const kva_onnx_subgraph *body;
  uint32_t carried, collects;
  int64_t trips; /* at most */
  kva_value *state[MAX_VALUES];
  kva_value *cond;
  collected *scans;
} loop;

static kva_status read_loop(kva_onnx_call *k, loop *l) {
  KVA_TRY(body_of(k, "body", &l->body));
  l->carried = k->n->n_inputs - 2;
  if (k->n->n_inputs < 2 || l->body->n_inputs != l->carried + 2 || l->body->n_outputs < l->carried + 1)
    return kva_onnx_fail(k, KVA_INVALID, "the body's inputs and outputs do not fit the loop's");
  l->collects = l->body->n_outputs - 1 - l->carried;
  l->trips = INT64_MAX;
  if (kva_onnx_in(k, 0) && !known_number(k, kva_onnx_in(k, 0), &l->trips))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "the trip count depends on data or on a symbol");
  for (uint32_t i = 0; i < l->carried; i++)
    if (!(l->state[i] = kva_onnx_in(k, i + 2))) return kva_onnx_fail(k, KVA_INVALID, "input %u is missing", i + 2);
  l->cond = kva_onnx_in(k, 1) ? kva_onnx_in(k, 1) : kva_const_scalar(k->b, KVA_BOOL, 1);
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

kva_status kva_onnx_loop(kva_onnx_call *k) {
  loop l = {0};
  KVA_TRY(read_loop(k, &l));
  for (int64_t trip = 0; trip < l.trips; trip++) {
    int64_t go_on;
    if (!known_number(k, l.cond, &go_on)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "the condition depends on data");
    if (!go_on) break;
    if (trip == MAX_TRIPS) return kva_onnx_fail(k, KVA_UNSUPPORTED, "more than %d iterations to unroll", MAX_TRIPS);
    KVA_TRY(run_iteration(k, &l, trip));
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
  int64_t length;
  kva_ints in_axes, in_directions, out_axes, out_directions;
  kva_value *state[MAX_VALUES];
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
  s->in_directions = kva_onnx_ints(k, "scan_input_directions");
  s->out_axes = kva_onnx_ints(k, "scan_output_axes");
  s->out_directions = kva_onnx_ints(k, "scan_output_directions");
  for (uint32_t i = 0; i < k->n->n_inputs; i++)
    if (!kva_onnx_in(k, i)) return kva_onnx_fail(k, KVA_INVALID, "input %u is missing", i);
  for (uint32_t i = 0; i < s->states; i++) s->state[i] = kva_onnx_in(k, i);
  s->scans = KVA_NEW_ARRAY(k->c->arena, collected, s->outputs + 1);
  return KVA_OK;
}

/* Axis of scan input i; all lengths must be one number. */
static kva_status scan_axis(kva_onnx_call *k, scan *s, uint32_t i, uint32_t *out) {
  kva_value *x = kva_onnx_in(k, s->states + i);
  int64_t length;
  KVA_TRY(kva_onnx_axis(k, entry(s->in_axes, i), x->type->rank, out));
  if (!kva_expr_is_const(kva_onnx_dim(x, *out), &length))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "the length to scan is symbolic; pin the symbol (--pin)");
  if (i && length != s->length) return kva_onnx_fail(k, KVA_INVALID, "scan inputs of different lengths");
  s->length = length;
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

static kva_status scan_step(kva_onnx_call *k, scan *s, const uint32_t *axes, int64_t step) {
  kva_value *in[MAX_VALUES], *out[MAX_VALUES] = {NULL};
  for (uint32_t i = 0; i < s->states; i++) in[i] = s->state[i];
  for (uint32_t i = 0; i < s->inputs; i++) {
    int64_t at = entry(s->in_directions, i) ? s->length - 1 - step : step;
    in[s->states + i] = element(k, kva_onnx_in(k, s->states + i), axes[i], at);
  }
  KVA_TRY(s->body->build(k->c, s->body, in, out));
  for (uint32_t i = 0; i < s->states; i++) s->state[i] = out[i];
  for (uint32_t i = 0; i < s->outputs; i++) s->scans[i].v[s->scans[i].n++] = out[s->states + i];
  return KVA_OK;
}

kva_status kva_onnx_scan_op(kva_onnx_call *k) {
  scan s = {0};
  uint32_t axes[MAX_VALUES];
  KVA_TRY(read_scan(k, &s));
  for (uint32_t i = 0; i < s.inputs; i++) KVA_TRY(scan_axis(k, &s, i, &axes[i]));
  if (s.length > MAX_TRIPS) return kva_onnx_fail(k, KVA_UNSUPPORTED, "more than %d iterations to unroll", MAX_TRIPS);
  for (int64_t step = 0; step < s.length; step++) KVA_TRY(scan_step(k, &s, axes, step));
  for (uint32_t i = 0; i < s.states; i++) kva_onnx_set_out(k, i, s.state[i]);
  for (uint32_t i = 0; i < s.outputs && s.states + i < k->n->n_outputs; i++) {
    kva_value *v = NULL;
    KVA_TRY(join(k, &s.scans[i], entry(s.out_axes, i), entry(s.out_directions, i) != 0, &v));
    kva_onnx_set_out(k, s.states + i, v);
  }
  return KVA_OK;
}
