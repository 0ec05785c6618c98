/* A model in double, its inputs as trained states, its loss, and slopes of that loss.
 *
 * A slope is a fourth-order central difference: its error is about h^4 f^(5) / 30 + epsilon / h. Steps of several
 * lengths are tried, since a short one does not cross a nearby kink; a wrong gradient agrees with none. Where values
 * lie on a kink, as integers under Floor or equal elements under MaxPool, the model is tried again beside them. */
#include "tools/driver/differences.h"
#include "ops/ids.h"
#include "passes/passes.h"

#include <math.h>
#include <stdlib.h>

enum { DIRECTIONS = 3, ELEMENTS = 6 };
#define TOLERANCE      1e-6
#define SMALLEST_SCALE 1e-3 /* of slopes: below it rounding of the differences shows */
#define ASIDE          0.01 /* how far beside a kink */

/* ---- in double --------------------------------------------------------------------------------------------------- */

static kva_dtype widened(kva_dtype t) {
  return kva_dtype_is_float(t) && kva_dtype_bits(t) >= 16 ? KVA_F64 : t;
}

static const kva_tensor_data *widened_data(kva_module *m, const kva_tensor_data *data) {
  if (widened(data->dtype) == data->dtype) return data;
  kva_tensor_data *copy = kva_arena_memdup(m->arena, data, sizeof *data);
  kva_ref_tensor *w = kva_ref_tensor_from_data(data->dtype, data->rank, data->dims, data->data);
  if (!w) return data; /* verification fails */
  double *elements = KVA_NEW_ARRAY(m->arena, double, w->n + 1);
  memcpy(elements, w->f, (size_t)w->n * sizeof *elements);
  *copy = (kva_tensor_data){.dtype = KVA_F64,
                            .rank = data->rank,
                            .dims = data->dims,
                            .data = elements,
                            .bytes = w->n * (int64_t)sizeof *elements};
  kva_ref_tensor_free(w);
  return copy;
}

static void widen_attrs(kva_module *m, kva_node *n) {
  for (uint32_t i = 0; n->attrs && i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    void *at = (char *)n->attrs + f->offset;
    if (f->kind == KVA_ATTR_DTYPE) *(kva_dtype *)at = widened(*(kva_dtype *)at);
    const kva_tensor_data **tensor = at;
    if (f->kind == KVA_ATTR_TENSOR && *tensor) *tensor = widened_data(m, *tensor);
  }
}

static void widen(kva_module *m, kva_graph *g) {
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    kva_value *v = g->inputs.data[i];
    v->type = kva_type_with_dtype(m, v->type, widened(v->type->dtype));
  }
  for (kva_node *n = g->first; n; n = n->next) {
    widen_attrs(m, n);
    for (uint32_t i = 0; i < n->n_graphs; i++) widen(m, n->graphs[i]);
    for (uint32_t r = 0; r < n->n_results; r++)
      n->results[r].type = kva_type_with_dtype(m, n->results[r].type, widened(n->results[r].type->dtype));
  }
}

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

static bool is_smooth(const kva_value *v) {
  return v->type->kind == KVA_TYPE_TENSOR && v->type->dtype == KVA_F64;
}

/* Float inputs are read from states of their numbers: those are what autodiff follows. */
static void inputs_to_states(kva_module *m) {
  kva_graph *g = m->functions.data[0]->graph;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    kva_value *v = g->inputs.data[i];
    if (!is_smooth(v)) continue;
    kva_state_read_attrs attrs = {
        .state = kva_state_create(m, kva_arena_printf(m->arena, "%u", i), v->type, KVA_STATE_PARAM)};
    kva_builder b = {.m = m, .graph = g, .before = g->first};
    kva_value_replace_all_uses(v, kva_build(&b, KVA_OP_state_read, 0, NULL, &attrs));
  }
}

/* Sum of sin(1.7 i + k) y_i over the elements. */
static kva_value *weighted_sum(kva_builder *b, kva_value *y, uint32_t k) {
  kva_dim n = kva_type_elements(b->m, y->type);
  const kva_iota_attrs iota = {.shape = {1, kva_arena_memdup(b->m->arena, &n, sizeof(kva_dim))}, .dtype = KVA_F64};
  kva_value *i = kva_build(b, KVA_OP_iota, 0, NULL, &iota);
  kva_value *angle = kva_add(b, kva_mul(b, i, kva_scalar_like(b, i, 1.7)), kva_scalar_like(b, i, 0.4 + k));
  kva_value *product = kva_mul(b, kva_build1(b, KVA_OP_sin, angle), kva_reshape(b, y, 1, &n));
  return kva_reduce(b, KVA_OP_reduce_sum, product, 1, &(int64_t){0}, false);
}

static kva_value *make_loss(kva_builder *b, const kva_graph *g) {
  kva_value *loss = NULL;
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++) {
    if (!is_smooth(kva_graph_output(g, i))) continue;
    kva_value *term = weighted_sum(b, kva_graph_output(g, i), i);
    loss = loss ? kva_add(b, loss, term) : term;
  }
  return loss;
}

static void set_outputs(kva_graph *g, uint32_t n, kva_value *const *outputs) {
  kva_node *ret = g->last;
  kva_node_create(g, ret, ret->op, n, outputs, 0, NULL, ret->loc);
  kva_node_remove(ret);
}

/* ---- slopes ------------------------------------------------------------------------------------------------------ */

typedef struct check {
  kva_module *forward, *backward; /* the loss; the loss and its gradients */
  kva_ref_tensor *const *inputs;
  kva_ref_tensor **gradients; /* by input; NULL: none */
  kva_arena *arena;
  kva_diag *diag;
  kva_differences *out;
} check;

static kva_ref_tensor *state_value(void *user, kva_state *s) {
  const check *c = user;
  return c->inputs[strtoul(s->name, NULL, 10)];
}

static kva_status evaluate(check *c, kva_module *m, kva_ref_tensor **outputs) {
  kva_function *f = m->functions.data[0];
  return kva_ref_run(m, f, (const kva_ref_tensor *const *)c->inputs, outputs, state_value, c, NULL, NULL, c->diag);
}

static void move(kva_ref_tensor *x, const double *center, const double *direction, double by) {
  for (int64_t i = 0; i < x->n; i++) x->f[i] = center[i] + by * direction[i];
}

static kva_status slope(check *c, kva_ref_tensor *x, const double *direction, double h, double *out) {
  static const double at[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
  double *center = kva_arena_memdup(c->arena, x->f, (size_t)x->n * sizeof *center), sum = 0;
  kva_status status = KVA_OK;
  for (int k = 0; k < 4 && !status; k++) {
    kva_ref_tensor *loss = NULL;
    move(x, center, direction, at[k] * h);
    status = evaluate(c, c->forward, &loss);
    if (!status) sum += weight[k] * loss->f[0];
    kva_ref_tensor_free(loss);
  }
  memcpy(x->f, center, (size_t)x->n * sizeof *center);
  *out = sum / (12 * h);
  return status;
}

static kva_status compare(check *c, uint32_t input, const double *direction) {
  static const double steps[] = {1e-3, 1e-4, 1e-5, 1e-6};
  kva_ref_tensor *x = c->inputs[input];
  const kva_ref_tensor *gradient = c->gradients[input];
  double found = 0, scale = SMALLEST_SCALE, expected = NAN, error = INFINITY;
  for (int64_t i = 0; gradient && i < x->n; i++) {
    found += gradient->f[i] * direction[i];
    scale = fmax(scale, fabs(gradient->f[i] * direction[i]));
  }
  for (size_t k = 0; k < sizeof steps / sizeof *steps && !(error <= TOLERANCE * scale); k++) {
    double s;
    KVA_TRY(slope(c, x, direction, steps[k], &s));
    if (fabs(s - found) < error) expected = s;
    error = fmin(error, fabs(s - found));
  }
  c->out->slopes++;
  if (error <= TOLERANCE * scale) {
    c->out->error = fmax(c->out->error, error / scale);
    return KVA_OK;
  }
  return kva_error(c->diag, NULL, "gradient by input %u: slope %.12g, gradient gives %.12g", input, expected, found);
}

static kva_status compare_input(check *c, uint32_t input) {
  const kva_ref_tensor *x = c->inputs[input];
  for (uint32_t k = 0; k < DIRECTIONS + ELEMENTS && x->n; k++) {
    double *direction = KVA_NEW_ARRAY(c->arena, double, x->n);
    uint32_t element = kva_philox4x32(k, input, 7).v[1] % (uint32_t)x->n;
    for (int64_t i = 0; i < x->n; i++) {
      double random = 2 * kva_uniform01(kva_philox4x32((uint64_t)i, k, input).v[0]) - 1;
      direction[i] = k < DIRECTIONS ? random : i == element;
    }
    KVA_TRY(compare(c, input, direction));
  }
  return KVA_OK;
}

static kva_status find_gradients(check *c, const kva_value *const *of) {
  uint32_t n = c->backward->states.len, next = 1;
  kva_ref_tensor **outputs = KVA_NEW_ARRAY(c->arena, kva_ref_tensor *, n + 2);
  KVA_TRY(evaluate(c, c->backward, outputs));
  bool finite = isfinite(outputs[0]->f[0]);
  kva_ref_tensor_free(outputs[0]);
  for (uint32_t i = 0; i < n; i++)
    if (of[i]) c->gradients[strtoul(c->backward->states.data[i]->name, NULL, 10)] = outputs[next++];
  c->out->inputs = next - 1;
  return finite ? KVA_OK : kva_fail(c->diag, KVA_UNSUPPORTED, NULL, "the outputs are not finite here");
}

static kva_status check_here(check *c, const kva_value *const *of) {
  uint32_t n = c->backward->functions.data[0]->graph->inputs.len;
  c->gradients = KVA_NEW_ARRAY(c->arena, kva_ref_tensor *, n + 1);
  kva_status status = find_gradients(c, of);
  for (uint32_t i = 0; i < n && status == KVA_OK; i++)
    if (c->inputs[i]->dtype == KVA_F64) status = compare_input(c, i);
  for (uint32_t i = 0; i < n; i++) kva_ref_tensor_free(c->gradients[i]);
  return status;
}

static void step_aside(check *c, double by) {
  uint32_t n = c->backward->functions.data[0]->graph->inputs.len;
  for (uint32_t k = 0; k < n; k++)
    for (int64_t i = 0; c->inputs[k]->dtype == KVA_F64 && i < c->inputs[k]->n; i++)
      c->inputs[k]->f[i] += by * (0.5 + kva_uniform01(kva_philox4x32((uint64_t)i, k, 99).v[0]));
}

/* At the given values, and beside them. */
static kva_status check_around(check *c, const kva_value *const *of) {
  static const double aside[] = {ASIDE, -2 * ASIDE};
  kva_status status = check_here(c, of);
  for (size_t k = 0; k < sizeof aside / sizeof *aside && status == KVA_INVALID; k++) {
    kva_diag_clear(c->diag);
    step_aside(c, aside[k]);
    status = check_here(c, of);
  }
  return status;
}

/* Fills in `of`, by state. */
static kva_status build(check *c, kva_module *m, kva_value **of) {
  kva_function *f = m->functions.data[0];
  widen(m, f->graph);
  if (kva_module_verify(m)) {
    kva_diag_clear(c->diag);
    return kva_fail(c->diag, KVA_UNSUPPORTED, NULL, "it does not compute in double");
  }
  inputs_to_states(m);
  kva_builder b = {.m = m, .graph = f->graph, .before = f->graph->last};
  kva_value *loss = make_loss(&b, f->graph);
  if (!loss || b.failed || !m->states.len)
    return kva_fail(c->diag, KVA_UNSUPPORTED, NULL, "no output or no input is of a float type");
  set_outputs(f->graph, 1, &loss);
  c->forward = kva_module_clone(m);
  kva_gradients gradients = {f, loss, of};
  bool changed = false;
  KVA_TRY(kva_run_pass(m, KVA_PASS_autodiff, &(kva_pass_options){.gradients = &gradients}, &changed));
  kva_value **outputs = KVA_NEW_ARRAY(c->arena, kva_value *, m->states.len + 1);
  uint32_t n = 0;
  outputs[n++] = loss;
  for (uint32_t i = 0; i < m->states.len; i++)
    if (of[i]) outputs[n++] = of[i];
  set_outputs(f->graph, n, outputs);
  return KVA_OK;
}

kva_status kva_check_differences(kva_module *m, kva_ref_tensor *const *inputs, kva_diag *diag, kva_differences *out) {
  check c = {.backward = m, .inputs = inputs, .arena = kva_arena_create(), .diag = diag, .out = out};
  uint32_t n = m->functions.data[0]->graph->inputs.len;
  kva_value **of = KVA_NEW_ARRAY(c.arena, kva_value *, n + 1);
  *out = (kva_differences){0};
  for (uint32_t i = 0; i < n; i++) inputs[i]->dtype = widened(inputs[i]->dtype);
  kva_status status = m->states.len ? kva_fail(diag, KVA_UNSUPPORTED, NULL, "it has states") : build(&c, m, of);
  if (status == KVA_OK) status = check_around(&c, (const kva_value *const *)of);
  if (c.forward) kva_module_destroy(c.forward);
  kva_arena_destroy(c.arena);
  return status;
}
