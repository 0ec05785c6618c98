#include "tests/support/evaluate.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

/* ---- values ------------------------------------------------------------------------------------------------------ */

static bool lookup(void *user, const kva_expr *symbol, int64_t *out_v) {
  for (const eval_size *s = user; s && s->name; s++) {
    if (!symbol->name || strcmp(s->name, symbol->name)) continue;
    *out_v = s->size;
    return true;
  }
  return false;
}

/* Floats in (-1, 1), or (0, 1) for moments, which optimisers take square roots of. */
static kva_ref_tensor *values_for(const kva_type *t, const char *name, const eval_size *sizes, bool positive) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < t->rank; d++)
    if (!kva_expr_eval(t->dims[d], lookup, (void *)sizes, &dims[d])) fail_msg("no size for a dimension of %s", name);
  kva_ref_tensor *w = kva_ref_tensor_create(t->dtype, t->rank, dims);
  assert_non_null(w);
  uint64_t key = kva_hash(0, name, strlen(name));
  for (int64_t i = 0; i < w->n; i++) {
    uint32_t bits = kva_philox4x32((uint64_t)i, 0, key).v[0];
    double u = kva_uniform01(bits);
    if (w->f)
      w->f[i] = kva_round_f64(t->dtype, positive ? u : 2 * u - 1);
    else
      w->i[i] = t->dtype == KVA_BOOL ? bits & 1 : bits % EVAL_INTEGERS;
  }
  return w;
}

kva_ref_tensor *eval_state(const kva_state *s) {
  return values_for(s->type, s->name, NULL, s->kind == KVA_STATE_MOMENT);
}

kva_ref_tensor *eval_input(const kva_value *v, const eval_size *sizes) {
  assert_non_null(v->name);
  return values_for(v->type, v->name, sizes, false);
}

static evaluated create(const kva_module *m, const kva_graph *g) {
  evaluated e = {.n_outputs = kva_graph_output_count(g), .n_states = m->states.len};
  e.outputs = calloc(e.n_outputs + 1, sizeof(kva_ref_tensor *));
  e.states = calloc(e.n_states + 1, sizeof(kva_ref_tensor *));
  assert_true(e.outputs && e.states);
  for (const kva_node *n = g->first; n; n = n->next) {
    if (!(n->op->traits & (KVA_READS_STATE | KVA_WRITES_STATE))) continue;
    const kva_state *s = ((const kva_state_read_attrs *)n->attrs)->state;
    if (!e.states[s->id]) e.states[s->id] = eval_state(s);
  }
  return e;
}

void evaluated_free(evaluated *e) {
  for (uint32_t i = 0; i < e->n_outputs; i++) kva_ref_tensor_free(e->outputs[i]);
  for (uint32_t i = 0; i < e->n_states; i++) kva_ref_tensor_free(e->states[i]);
  free(e->outputs);
  free(e->states);
  *e = (evaluated){0};
}

static void print_module(kva_module *m) {
  kva_text text = {0};
  kva_module_print(m, &text);
  fprintf(stderr, "%s\n", text.data);
  kva_text_free(&text);
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static kva_ref_tensor *live_state(void *user, kva_state *s) {
  return ((evaluated *)user)->states[s->id];
}

static void replace_states(evaluated *e, const kva_ref_tensor *const *states) {
  for (uint32_t i = 0; i < e->n_states; i++) {
    if (!states[i] || !e->states[i]) continue;
    memcpy(e->states[i]->f ? (void *)e->states[i]->f : e->states[i]->i,
           states[i]->f ? (void *)states[i]->f : states[i]->i, (size_t)states[i]->n * 8);
  }
}

static evaluated run_reference(kva_module *m, kva_function *f, const eval_size *sizes,
                               const kva_ref_tensor *const *states, kva_ref_trace trace, void *user) {
  evaluated e = create(m, f->graph);
  if (states) replace_states(&e, states);
  uint32_t n = f->graph->inputs.len;
  kva_ref_tensor **inputs = calloc(n + 1, sizeof *inputs);
  for (uint32_t i = 0; i < n; i++) inputs[i] = eval_input(f->graph->inputs.data[i], sizes);
  kva_diag *diag = kva_diag_create();
  kva_status status =
      kva_ref_run(m, f, (const kva_ref_tensor *const *)inputs, e.outputs, live_state, &e, trace, user, diag);
  if (status != KVA_OK) {
    print_module(m);
    kva_diag_print(diag, stderr);
    fail_msg("the reference cannot evaluate %s", f->name);
  }
  kva_diag_destroy(diag);
  for (uint32_t i = 0; i < n; i++) kva_ref_tensor_free(inputs[i]);
  free(inputs);
  return e;
}

evaluated evaluate_reference_from(kva_module *m, kva_function *f, const eval_size *sizes,
                                  const kva_ref_tensor *const *states) {
  return run_reference(m, f, sizes, states, NULL, NULL);
}

evaluated evaluate_reference(kva_module *m, kva_function *f, const eval_size *sizes) {
  return run_reference(m, f, sizes, NULL, NULL, NULL);
}

evaluated evaluate_reference_traced(kva_module *m, kva_function *f, const eval_size *sizes, kva_ref_trace trace,
                                    void *user) {
  return run_reference(m, f, sizes, NULL, trace, user);
}

/* ---- compiled code ----------------------------------------------------------------------------------------------- */

static kva_tensor to_tensor(const kva_ref_tensor *w) {
  kva_tensor t = {.dtype = w->dtype, .rank = (int32_t)w->rank};
  for (uint32_t d = 0; d < w->rank; d++) t.dims[d] = w->dims[d];
  t.data = calloc((size_t)kva_tensor_bytes(&t) + 1, 1);
  assert_non_null(t.data);
  kva_ref_tensor_to_data(w, t.data);
  return t;
}

static kva_ref_tensor *to_reference(const kva_tensor *t) {
  kva_ref_tensor *w = kva_ref_tensor_from_data(t->dtype, (uint32_t)t->rank, t->dims, t->data);
  assert_non_null(w);
  return w;
}

static void fill_states(kva_session *s, const kva_module *m, const evaluated *e) {
  for (uint32_t i = 0; i < e->n_states; i++) {
    kva_tensor t;
    if (!e->states[i]) continue;
    assert_true(kva_session_state(s, m->states.data[i]->name, &t));
    kva_ref_tensor_to_data(e->states[i], t.data);
  }
}

static kva_status run_session(kva_session *s, const kva_function *f, const eval_size *sizes, evaluated *e) {
  uint32_t n = f->graph->inputs.len;
  kva_tensor *inputs = calloc(n + 1, sizeof *inputs), *outputs = calloc(e->n_outputs + 1, sizeof *outputs);
  for (uint32_t i = 0; i < n; i++) {
    kva_ref_tensor *w = eval_input(f->graph->inputs.data[i], sizes);
    inputs[i] = to_tensor(w);
    kva_ref_tensor_free(w);
  }
  int program = kva_session_program(s, f->name);
  assert_true(program >= 0);
  kva_status status = kva_session_run(s, program, inputs, outputs);
  if (status) fprintf(stderr, "%s: %s\n", f->name, kva_session_error(s));
  for (uint32_t i = 0; !status && i < e->n_outputs; i++) e->outputs[i] = to_reference(&outputs[i]);
  for (uint32_t i = 0; i < n; i++) free(inputs[i].data);
  free(inputs);
  free(outputs);
  return status;
}

kva_status evaluate_compiled_or_refuse(const kva_compiled *c, kva_function *f, const eval_size *sizes, evaluated *out) {
  evaluated e = create(c->module, f->graph);
  kva_diag *diag = kva_diag_create();
  kva_session *s;
  const kva_session_options options = {.threads = 2, .device = kva_artifact_arch(c->artifact) ? "ptxsim" : NULL};
  if (kva_session_create(c->artifact, &options, diag, &s)) {
    kva_diag_print(diag, stderr);
    fail_msg("%s: no session", f->name);
  }
  fill_states(s, c->module, &e);
  kva_status status = run_session(s, f, sizes, &e);
  for (uint32_t i = 0; !status && i < e.n_states; i++) {
    kva_tensor t;
    if (!e.states[i]) continue;
    assert_true(kva_session_state(s, c->module->states.data[i]->name, &t));
    kva_ref_tensor_free(e.states[i]);
    e.states[i] = to_reference(&t);
  }
  kva_session_destroy(s);
  kva_diag_destroy(diag);
  if (status) evaluated_free(&e);
  *out = e;
  return status;
}

evaluated evaluate_compiled(const kva_compiled *c, kva_function *f, const eval_size *sizes) {
  evaluated e;
  if (evaluate_compiled_or_refuse(c, f, sizes, &e)) fail_msg("%s does not run", f->name);
  return e;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static double largest(const kva_ref_tensor *w) {
  double m = 1;
  for (int64_t i = 0; w->f && i < w->n; i++)
    if (isfinite(w->f[i]) && fabs(w->f[i]) > m) m = fabs(w->f[i]);
  return m;
}

static bool same_element(const kva_ref_tensor *a, const kva_ref_tensor *b, int64_t i, double bound) {
  if (!a->f) return a->i[i] == b->i[i];
  if (isnan(a->f[i]) || isnan(b->f[i])) return isnan(a->f[i]) && isnan(b->f[i]);
  return a->f[i] == b->f[i] || fabs(a->f[i] - b->f[i]) <= bound;
}

static bool tensors_equal(const char *what, const char *name, const kva_ref_tensor *a, const kva_ref_tensor *b,
                          double tolerance) {
  bool same = a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->dims, b->dims, a->rank * sizeof *a->dims);
  if (!same) {
    fprintf(stderr, "%s: %s has another type\n", what, name);
    return false;
  }
  if (a->dtype == KVA_F32 && tolerance < 1e-5) tolerance = 1e-5; /* a float among doubles: it rounds by itself */
  double bound = tolerance * largest(a);
  for (int64_t i = 0; i < a->n; i++) {
    if (same_element(a, b, i, bound)) continue;
    fprintf(stderr, "%s: %s, element %lld of %lld: expected %.17g, found %.17g, tolerance %.3g\n", what, name,
            (long long)i, (long long)a->n, kva_ref_tensor_get(a, i), kva_ref_tensor_get(b, i), a->f ? bound : 0);
    return false;
  }
  return true;
}

bool evaluated_equal(const char *what, const kva_module *m, const evaluated *expected, const evaluated *found,
                     double tolerance) {
  bool ok = expected->n_outputs == found->n_outputs;
  if (!ok) fprintf(stderr, "%s: %u outputs, expected %u\n", what, found->n_outputs, expected->n_outputs);
  for (uint32_t i = 0; ok && i < expected->n_outputs; i++) {
    char name[32];
    snprintf(name, sizeof name, "output %u", i);
    ok = tensors_equal(what, name, expected->outputs[i], found->outputs[i], tolerance);
  }
  for (uint32_t i = 0; ok && i < expected->n_states; i++) {
    const kva_ref_tensor *a = expected->states[i], *b = i < found->n_states ? found->states[i] : NULL;
    if (a && b)
      ok = tensors_equal(what, m->states.data[i]->name, a, b, tolerance);
    else if (a) {
      /* A pass may drop a write that changes nothing, and with it the last trace of the state. */
      kva_ref_tensor *initial = eval_state(m->states.data[i]);
      ok = tensors_equal(what, m->states.data[i]->name, a, initial, 0);
      kva_ref_tensor_free(initial);
    }
  }
  return ok;
}
