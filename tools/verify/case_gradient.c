/* Checks a gradient rule against central differences of the reference, both in double, and its compiled form against
 * the reference. */
#include "tools/verify/check.h"
#include "ops/ids.h"

enum { MAX_RESULTS = 8 };
#define SMALLEST_SCALE 1e-3 /* of gradients: below it rounding of the differences shows */

/* The case's function with seeds as additional inputs and gradients as outputs; operand k's gradient is output slot[k],
 * or -1 if it is zero. */
typedef struct backward {
  kva_case_built forward;
  kva_ref_tensor *seeds[MAX_RESULTS];
  kva_function *f;
  uint32_t n_seeds, n_outputs;
  int slot[KVA_CASE_OPERANDS];
} backward;

static kva_value *seed_input(backward *g, kva_value *result) {
  kva_module *m = g->forward.m;
  if (!kva_dtype_is_float(result->type->dtype)) return NULL;
  return kva_graph_add_input(g->f->graph, result->type, kva_arena_printf(m->arena, "seed%u", g->n_seeds++));
}

static kva_status build_backward(const kva_case *c, kva_dtype dtype, backward *g) {
  KVA_TRY(kva_case_build(c, dtype, &g->forward));
  kva_module *m = g->forward.m;
  const kva_node *model = g->forward.node;
  g->f = kva_function_create(m, "gradient");
  kva_builder b = {.m = m, .graph = g->f->graph};
  kva_value *operands[KVA_CASE_OPERANDS] = {0}, *grad_in[KVA_CASE_OPERANDS] = {0}, *grad_out[MAX_RESULTS] = {0};
  bool wants[KVA_CASE_OPERANDS] = {0};
  for (uint32_t i = 0; i < model->n_operands; i++) {
    if (!kva_operand(model, i)) continue;
    operands[i] = kva_graph_add_input(g->f->graph, kva_operand_type(model, i), kva_operand(model, i)->name);
    wants[i] = kva_dtype_is_float(operands[i]->type->dtype) && !c->in[i].constant;
  }
  kva_node *n = kva_build_node(&b, c->op, model->n_operands, operands, model->n_results, model->attrs);
  uint32_t n_seeded = c->first_result ? 1 : n->n_results;
  for (uint32_t i = 0; i < n_seeded; i++) grad_out[i] = seed_input(g, kva_result(n, i));
  kva_vjp vjp = {.b = &b, .grad_out = grad_out, .grad_in = grad_in, .wants = wants};
  KVA_TRY(n->op->vjp(&vjp, n));
  kva_value *outputs[KVA_CASE_OPERANDS];
  for (uint32_t i = 0; i < n->n_operands; i++) {
    g->slot[i] = wants[i] && grad_in[i] ? (int)g->n_outputs : -1;
    if (g->slot[i] < 0) continue;
    if (grad_in[i]->type != operands[i]->type)
      return kva_error(g->forward.diag, NULL, "gradient of operand %u has not the operand's type", i);
    outputs[g->n_outputs++] = grad_in[i];
  }
  kva_build_node(&b, KVA_OP_return, g->n_outputs, outputs, 0, NULL);
  return b.failed ? KVA_INVALID : kva_module_verify(m);
}

/* Sum over results of seed * result. */
static kva_status loss(const backward *g, const kva_ref_tensor *const *in, double *out_loss) {
  kva_ref_tensor *y[MAX_RESULTS] = {0};
  const kva_case_built *f = &g->forward;
  KVA_TRY(kva_run_reference(NULL, f->m, f->f, in, y, f->diag));
  uint32_t seed = 0;
  *out_loss = 0;
  for (uint32_t k = 0; k < f->n_outputs; k++) {
    bool seeded = y[k]->f && seed < g->n_seeds;
    for (int64_t i = 0; seeded && i < y[k]->n; i++) *out_loss += g->seeds[seed]->f[i] * y[k]->f[i];
    seed += y[k]->f != NULL;
    kva_ref_tensor_free(y[k]);
  }
  return KVA_OK;
}

static kva_status make_seeds(backward *g) {
  kva_ref_tensor *y[MAX_RESULTS] = {0};
  const kva_case_built *f = &g->forward;
  KVA_TRY(kva_run_reference(NULL, f->m, f->f, (const kva_ref_tensor *const *)f->inputs, y, f->diag));
  uint32_t n = 0;
  for (uint32_t k = 0; k < f->n_outputs; k++) {
    if (!y[k]->f) {
      kva_ref_tensor_free(y[k]);
      continue;
    }
    g->seeds[n++] = y[k];
    for (int64_t i = 0; i < y[k]->n; i++)
      y[k]->f[i] = kva_round_f64(y[k]->dtype, kva_case_uniform((uint64_t)i, 100 + k) * 2 - 1);
  }
  return KVA_OK;
}

/* Fourth-order central difference: the error is about h^4 f^(5) / 30 + epsilon / h, far below 1e-6. */
static kva_status difference(const backward *g, kva_ref_tensor *x, int64_t i, double h, double *out_slope) {
  static const double at[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
  double center = x->f[i], sum = 0, l;
  kva_status status = KVA_OK;
  for (int k = 0; k < 4 && !status; k++) {
    x->f[i] = center + at[k] * h;
    status = loss(g, (const kva_ref_tensor *const *)g->forward.inputs, &l);
    sum += weight[k] * l;
  }
  x->f[i] = center;
  *out_slope = sum / (12 * h);
  return status;
}

/* Smallest error of `found` over several step sizes. A long step is more accurate; a short one does not cross a nearby
 * kink, which random values sometimes have. Neither agrees with a wrong gradient. */
static kva_status slope_error(const backward *g, kva_ref_tensor *x, int64_t i, double found, double *out_expected,
                              double *out_error) {
  static const double steps[] = {1e-3, 1e-5};
  *out_error = INFINITY;
  for (size_t k = 0; k<sizeof steps / sizeof *steps && * out_error> KVA_GRADIENT_TOLERANCE; k++) {
    double slope;
    KVA_TRY(difference(g, x, i, steps[k], &slope));
    double error = fabs(slope - found);
    if (!(error < *out_error)) continue;
    *out_error = error;
    *out_expected = slope;
  }
  return KVA_OK;
}

static bool check_operand(const kva_case *c, const backward *g, uint32_t operand, kva_ref_tensor *x,
                          const kva_ref_tensor *gradient, kva_check *check) {
  double scale = fmax(SMALLEST_SCALE, gradient ? kva_check_largest(gradient) : 0);
  for (int64_t i = 0; i < x->n; i++) {
    double expected = NAN, error, found = gradient ? gradient->f[i] : 0;
    if (slope_error(g, x, i, found, &expected, &error))
      return kva_check_fail(check, c, KVA_F64, "reference fails", g->forward.diag);
    check->error = fmax(check->error, error / scale);
    if (error <= KVA_GRADIENT_TOLERANCE * scale) continue;
    char text[160];
    snprintf(text, sizeof text, "gradient of operand %u, element %lld: finite difference %.12g, vjp %.12g", operand,
             (long long)i, expected, found);
    return kva_check_fail(check, c, KVA_F64, text, NULL);
  }
  return true;
}

/* Builds the function and sets its inputs. */
static bool prepare(const kva_case *c, kva_dtype dtype, backward *g, const kva_ref_tensor **in, kva_check *check) {
  const kva_case_built *f = &g->forward;
  if (build_backward(c, dtype, g)) return kva_check_fail(check, c, dtype, "its gradient does not build", f->diag);
  if (make_seeds(g)) return kva_check_fail(check, c, dtype, "reference fails", f->diag);
  for (uint32_t i = 0; i < f->n_inputs; i++) in[i] = f->inputs[i];
  for (uint32_t i = 0; i < g->n_seeds; i++) in[f->n_inputs + i] = g->seeds[i];
  return true;
}

static void free_backward(backward *g) {
  for (uint32_t i = 0; i < MAX_RESULTS; i++) kva_ref_tensor_free(g->seeds[i]);
  kva_case_free(&g->forward);
}

static bool check_gradients(const kva_case *c, backward *g, kva_ref_tensor **gradients, kva_check *check) {
  const kva_case_built *f = &g->forward;
  const kva_ref_tensor *in[KVA_CASE_OPERANDS + MAX_RESULTS];
  if (!prepare(c, KVA_F64, g, in, check)) return false;
  if (kva_run_reference(NULL, f->m, g->f, in, gradients, f->diag))
    return kva_check_fail(check, c, KVA_F64, "its gradient fails", f->diag);
  uint32_t input = 0;
  for (uint32_t i = 0; i < f->node->n_operands; i++) {
    if (!kva_operand(f->node, i)) continue;
    kva_ref_tensor *x = f->inputs[input++];
    if (!x->f || c->in[i].constant) continue;
    if (!check_operand(c, g, i, x, g->slot[i] < 0 ? NULL : gradients[g->slot[i]], check)) return false;
  }
  return true;
}

bool kva_case_has_gradient(const kva_case *c) {
  bool is_float = !c->dtype || kva_dtype_is_float(c->dtype);
  return !c->no_gradient && is_float && kva_ops.ops[c->op]->vjp_kind == KVA_VJP_RULE;
}

bool kva_case_check_gradient(const kva_case *c, kva_check *check) {
  backward g = {0};
  kva_ref_tensor *gradients[KVA_CASE_OPERANDS] = {0};
  bool ok = check_gradients(c, &g, gradients, check);
  for (uint32_t i = 0; i < KVA_CASE_OPERANDS; i++) kva_ref_tensor_free(gradients[i]);
  free_backward(&g);
  return ok;
}

bool kva_case_check_backward(const kva_case *c, kva_executor run, void *user, kva_check *check) {
  backward g = {0};
  const kva_ref_tensor *in[KVA_CASE_OPERANDS + MAX_RESULTS];
  bool ok = prepare(c, KVA_F32, &g, in, check);
  kva_check_run r = {.c = c, .dtype = KVA_F32, .built = &g.forward, .f = g.f, .inputs = in};
  for (const kva_node *n = ok ? g.f->graph->first : NULL; n; n = n->next) {
    r.tolerance += n->op->tolerance;
    check->exchanges |= (n->op->traits & KVA_EXCHANGES) != 0;
  }
  ok = ok && kva_check_function(&r, run, user, check);
  free_backward(&g);
  return ok;
}
