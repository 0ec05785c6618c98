/* Rules: the optimisers of ai.onnx.preview.training. Inputs are R (learning rate), T (update count), then all tensors
 * of each kind: X1 .. Xn, G1 .. Gn and the states. Outputs are the new X and states in the same order. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

enum { MOMENTUM = 1, ADAGRAD = 1, ADAM = 2 };

/* One parameter with its tensors, and scalars of their dtype. */
typedef struct update {
  kva_onnx_call *k;
  kva_builder *b;
  kva_value *x, *g, *state[2], *rate, *count;
} update;

static kva_value *num(const update *u, double v) {
  return kva_scalar_like(u->b, u->x, v);
}
static kva_value *attr(const update *u, const char *name, double absent) {
  return num(u, kva_onnx_float(u->k, name, absent));
}

/* scale * a + (1 - scale) * b */
static kva_value *mix(const update *u, double scale, kva_value *x, kva_value *y) {
  return kva_add(u->b, kva_mul(u->b, num(u, scale), x), kva_mul(u->b, num(u, 1 - scale), y));
}

static kva_value *step_down(const update *u, kva_value *direction) {
  return kva_sub(u->b, u->x, kva_mul(u->b, u->rate, direction));
}

/* The rate decays as R / (1 + T * decay_factor). */
static kva_value *adagrad(update *u) {
  kva_builder *b = u->b;
  kva_value *decay = kva_add(b, num(u, 1), kva_mul(b, u->count, attr(u, "decay_factor", 0)));
  u->rate = kva_div(b, u->rate, decay);
  u->state[0] = kva_add(b, u->state[0], kva_mul(b, u->g, u->g));
  kva_value *root = kva_add(b, kva_build1(b, KVA_OP_sqrt, u->state[0]), attr(u, "epsilon", 1e-6));
  return step_down(u, kva_div(b, u->g, root));
}

/* Bias correction applies from the second update on (T = 0 is the first). */
static kva_value *adam(update *u) {
  kva_builder *b = u->b;
  double alpha = kva_onnx_float(u->k, "alpha", 0.9), beta = kva_onnx_float(u->k, "beta", 0.999);
  kva_value *one = num(u, 1), *first = kva_build2(b, KVA_OP_less, u->count, one);
  u->state[0] = mix(u, alpha, u->state[0], u->g);
  u->state[1] = mix(u, beta, u->state[1], kva_mul(b, u->g, u->g));
  kva_value *fade = kva_sub(b, one, kva_build2(b, KVA_OP_pow, num(u, alpha), u->count));
  kva_value *square = kva_build1(b, KVA_OP_sqrt, kva_sub(b, one, kva_build2(b, KVA_OP_pow, num(u, beta), u->count)));
  kva_value *corrected = kva_div(b, kva_mul(b, u->rate, square), kva_onnx_where(b, first, one, fade));
  u->rate = kva_onnx_where(b, first, u->rate, corrected);
  kva_value *root = kva_add(b, kva_build1(b, KVA_OP_sqrt, u->state[1]), attr(u, "epsilon", 1e-6));
  kva_value *x = step_down(u, kva_div(b, u->state[0], root));
  return kva_mul(b, x, num(u, 1 - kva_onnx_float(u->k, "norm_coefficient_post", 0)));
}

/* The first update takes the whole gradient: beta applies only later. */
static kva_value *momentum(update *u) {
  kva_builder *b = u->b;
  kva_value *alpha = attr(u, "alpha", 0), *first = kva_build2(b, KVA_OP_less, u->count, num(u, 1));
  kva_value *beta = kva_onnx_where(b, first, num(u, 1), attr(u, "beta", 0));
  u->state[0] = kva_add(b, kva_mul(b, alpha, u->state[0]), kva_mul(b, beta, u->g));
  bool nesterov = !strcmp(kva_onnx_string(u->k, "mode", "standard"), "nesterov");
  return step_down(u, nesterov ? kva_add(b, u->g, kva_mul(b, alpha, u->state[0])) : u->state[0]);
}

static kva_status optimize(kva_onnx_call *k, uint32_t states, kva_value *(*rule)(update *)) {
  uint32_t kinds = 2 + states, n = (k->n->n_inputs - 2) / kinds;
  if (!n || k->n->n_inputs != 2 + n * kinds)
    return kva_onnx_fail(k, KVA_INVALID, "%u inputs are not 2 and %u for each tensor", k->n->n_inputs, kinds);
  for (uint32_t i = 2; i < k->n->n_inputs; i++)
    if (!kva_onnx_in(k, i)) return kva_onnx_fail(k, KVA_INVALID, "input %u is missing", i);
  for (uint32_t i = 0; i < n; i++) {
    update u = {.k = k, .b = k->b, .x = kva_onnx_in(k, 2 + i), .g = kva_onnx_in(k, 2 + n + i)};
    for (uint32_t s = 0; s < states; s++) u.state[s] = kva_onnx_in(k, 2 + (2 + s) * n + i);
    u.rate = kva_cast(k->b, kva_onnx_in(k, 0), u.x->type->dtype);
    u.count = kva_cast(k->b, kva_onnx_in(k, 1), u.x->type->dtype);
    u.g = kva_add(k->b, u.g, kva_mul(k->b, attr(&u, "norm_coefficient", 0), u.x));
    kva_onnx_set_out(k, i, rule(&u));
    for (uint32_t s = 0; s < states; s++) kva_onnx_set_out(k, (1 + s) * n + i, u.state[s]);
  }
  return KVA_OK;
}

kva_status kva_onnx_adagrad(kva_onnx_call *k) {
  return optimize(k, ADAGRAD, adagrad);
}
kva_status kva_onnx_adam(kva_onnx_call *k) {
  return optimize(k, ADAM, adam);
}
kva_status kva_onnx_momentum(kva_onnx_call *k) {
  return optimize(k, MOMENTUM, momentum);
}
