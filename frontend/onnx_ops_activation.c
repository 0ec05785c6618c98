/* Rules: activations and softmax. Constants have the operand's type. Definitions follow the specification. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

static kva_value *num(kva_onnx_call *k, double v) {
  return kva_scalar_like(k->b, kva_onnx_in(k, 0), v);
}

/* At 0, where the definition has no gradient, that of negative numbers counts, as in PyTorch: networks begin with zeros
 * there, behind normalisations whose scale is 0. */
static kva_value *is_positive(kva_onnx_call *k, kva_value *x) {
  return kva_build2(k->b, KVA_OP_less, num(k, 0), x);
}

/* ---- curves ------------------------------------------------------------------------------------------------------ */

#define SELU_ALPHA 1.67326319217681884765625
#define SELU_GAMMA 1.05070102214813232421875

kva_value *kva_onnx_clamp(kva_builder *b, kva_value *x, double low, double high) {
  kva_value *least = kva_scalar_like(b, x, low), *most = kva_scalar_like(b, x, high);
  return kva_build2(b, KVA_OP_max, kva_build2(b, KVA_OP_min, x, most), least);
}

static kva_value *affine(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  kva_value *y = kva_mul(b, x, kva_scalar_like(b, x, c->alpha));
  return c->beta == 0 ? y : kva_add(b, y, kva_scalar_like(b, x, c->beta));
}

static kva_value *relu(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  (void)c;
  return kva_build1(b, KVA_OP_relu, x);
}

static kva_value *tanh_of(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  (void)c;
  return kva_build1(b, KVA_OP_tanh, x);
}

static kva_value *sigmoid(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  (void)c;
  return kva_build1(b, KVA_OP_sigmoid, x);
}

static kva_value *softplus(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  (void)c;
  return kva_build1(b, KVA_OP_softplus, x);
}

static kva_value *softsign(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  (void)c;
  return kva_div(b, x, kva_add(b, kva_build1(b, KVA_OP_abs, x), kva_scalar_like(b, x, 1)));
}

static kva_value *leaky_relu(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  kva_value *positive = kva_build2(b, KVA_OP_less, kva_scalar_like(b, x, 0), x);
  return kva_onnx_where(b, positive, x, kva_mul(b, x, kva_scalar_like(b, x, c->alpha)));
}

static kva_value *thresholded_relu(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  kva_value *above = kva_build2(b, KVA_OP_less, kva_scalar_like(b, x, c->alpha), x);
  return kva_onnx_where(b, above, x, kva_scalar_like(b, x, 0));
}

/* That of gates lets the threshold itself through. */
static kva_value *thresholded_gate(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  kva_value *below = kva_build2(b, KVA_OP_less, x, kva_scalar_like(b, x, c->alpha));
  return kva_onnx_where(b, below, kva_scalar_like(b, x, 0), x);
}

static kva_value *scaled_tanh(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  kva_value *y = kva_build1(b, KVA_OP_tanh, kva_mul(b, x, kva_scalar_like(b, x, c->beta)));
  return kva_mul(b, y, kva_scalar_like(b, y, c->alpha));
}

static kva_value *hard_sigmoid(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  return kva_onnx_clamp(b, affine(b, c, x), 0, 1);
}

/* x, or alpha * (exp(x / scale) - 1) where x < 0. The exponential of a large x would be infinite, and its gradient NaN,
 * though the result is not taken. */
static kva_value *exponential_below(kva_builder *b, kva_value *x, double alpha, double scale) {
  kva_value *zero = kva_scalar_like(b, x, 0), *low = kva_build2(b, KVA_OP_min, x, zero);
  if (scale != 1) low = kva_div(b, low, kva_scalar_like(b, x, scale));
  low = kva_sub(b, kva_build1(b, KVA_OP_exp, low), kva_scalar_like(b, x, 1));
  low = kva_mul(b, low, kva_scalar_like(b, x, alpha));
  return kva_onnx_where(b, kva_build2(b, KVA_OP_less, x, zero), low, x);
}

static kva_value *elu(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  return exponential_below(b, x, c->alpha, 1);
}

static kva_value *selu(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  return kva_mul(b, elu(b, c, x), kva_scalar_like(b, x, c->beta));
}

static kva_value *clip(kva_builder *b, const kva_onnx_curve *c, kva_value *x) {
  return kva_onnx_clamp(b, x, c->alpha, c->beta);
}

bool kva_onnx_find_curve(const char *name, kva_onnx_curve_user user, kva_onnx_curve *out) {
  enum { BOTH = KVA_ONNX_GATES | KVA_ONNX_PRODUCTS };
  static const kva_onnx_curve all[] = {
      {"Affine", affine, 2, 1, 0, KVA_ONNX_GATES},
      {"Relu", relu, 0, 0, 0, BOTH},
      {"LeakyRelu", leaky_relu, 1, 0.01, 0, BOTH},
      {"ThresholdedRelu", thresholded_gate, 1, 1, 0, KVA_ONNX_GATES},
      {"ThresholdedRelu", thresholded_relu, 1, 1, 0, KVA_ONNX_PRODUCTS},
      {"Tanh", tanh_of, 0, 0, 0, BOTH},
      {"ScaledTanh", scaled_tanh, 2, 1, 1, KVA_ONNX_GATES},
      {"Sigmoid", sigmoid, 0, 0, 0, BOTH},
      {"HardSigmoid", hard_sigmoid, 2, 0.2, 0.5, BOTH},
      {"Elu", elu, 1, 1, 0, BOTH},
      {"Selu", selu, 2, SELU_ALPHA, SELU_GAMMA, KVA_ONNX_PRODUCTS},
      {"Softsign", softsign, 0, 0, 0, BOTH},
      {"Softplus", softplus, 0, 0, 0, BOTH},
      {"Clip", clip, 2, 0, 0, KVA_ONNX_PRODUCTS},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].users & user && !strcmp(all[i].name, name)) return *out = all[i], true;
  return false;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

/* Input 0 through the curve of this name, whose parameters are attributes. */
static kva_status curve_of_attributes(kva_onnx_call *k, const char *name, const char *second) {
  kva_onnx_curve c;
  KVA_ASSERT(kva_onnx_find_curve(name, KVA_ONNX_PRODUCTS, &c));
  if (c.parameters > 0) c.alpha = kva_onnx_float(k, "alpha", c.alpha);
  if (c.parameters > 1) c.beta = kva_onnx_float(k, second, c.beta);
  return kva_onnx_done(k, c.build(k->b, &c, kva_onnx_in(k, 0)));
}

kva_status kva_onnx_leaky_relu(kva_onnx_call *k) {
  return curve_of_attributes(k, "LeakyRelu", NULL);
}

/* Before opset 7 a slope of C elements belongs to axis 1; since then it broadcasts to x. */
kva_status kva_onnx_prelu(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *slope = kva_onnx_in(k, 1);
  if (k->version < 7 && slope->type->rank == 1 && x->type->rank > 1)
    slope = kva_onnx_channels(k->b, slope, x->type->rank);
  return kva_onnx_done_like(k, kva_onnx_where(k->b, is_positive(k, x), x, kva_mul(k->b, x, slope)), x, "the slope");
}

kva_status kva_onnx_elu(kva_onnx_call *k) {
  return curve_of_attributes(k, "Elu", NULL);
}

/* The standard's max(0, x) + min(0, alpha * (exp(x / alpha) - 1)), for any alpha. */
kva_status kva_onnx_celu(kva_onnx_call *k) {
  double alpha = kva_onnx_float(k, "alpha", 1);
  return kva_onnx_done(k, exponential_below(k->b, kva_onnx_in(k, 0), alpha, alpha));
}

kva_status kva_onnx_selu(kva_onnx_call *k) {
  bool first = k->version < 6;
  const kva_onnx_curve c = {.alpha = kva_onnx_float(k, "alpha", first ? 1.6732 : SELU_ALPHA),
                            .beta = kva_onnx_float(k, "gamma", first ? 1.0507 : SELU_GAMMA)};
  return kva_onnx_done(k, selu(k->b, &c, kva_onnx_in(k, 0)));
}

kva_status kva_onnx_hard_sigmoid(kva_onnx_call *k) {
  return curve_of_attributes(k, "HardSigmoid", "beta");
}

kva_status kva_onnx_hard_swish(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  return kva_onnx_done(k, kva_mul(k->b, x, hard_sigmoid(k->b, &(kva_onnx_curve){.alpha = 1.0 / 6, .beta = 0.5}, x)));
}

/* x * sigmoid(alpha * x) */
static kva_value *swish(kva_onnx_call *k, kva_value *x, double alpha) {
  if (alpha == 1) return kva_build1(k->b, KVA_OP_silu, x);
  return kva_mul(k->b, x, kva_build1(k->b, KVA_OP_sigmoid, kva_mul(k->b, x, num(k, alpha))));
}

kva_status kva_onnx_swish(kva_onnx_call *k) {
  return kva_onnx_done(k, swish(k, kva_onnx_in(k, 0), kva_onnx_float(k, "alpha", 1)));
}

/* Gate and value have equal shapes; nothing broadcasts. */
kva_status kva_onnx_swiglu(kva_onnx_call *k) {
  kva_value *gate = kva_onnx_in(k, 0), *value = kva_onnx_in(k, 1);
  if (gate->type->rank == value->type->rank)
    value = kva_onnx_with_dims(k, value, gate->type->dims, "the second operand of SwiGLU");
  if (gate->type != value->type) return kva_onnx_fail(k, KVA_INVALID, "expected two inputs of one type and shape");
  return kva_onnx_done(k, kva_mul(k->b, swish(k, gate, kva_onnx_float(k, "alpha", 1)), value));
}

kva_status kva_onnx_mish(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_value *gate = kva_build1(k->b, KVA_OP_tanh, kva_build1(k->b, KVA_OP_softplus, x));
  return kva_onnx_done(k, kva_mul(k->b, x, gate));
}

kva_status kva_onnx_softsign(kva_onnx_call *k) {
  return curve_of_attributes(k, "Softsign", NULL);
}

kva_status kva_onnx_thresholded_relu(kva_onnx_call *k) {
  return curve_of_attributes(k, "ThresholdedRelu", NULL);
}

/* x + bias below -lambd, x - bias above lambd, else 0; of integers in double, truncated at the end. */
kva_status kva_onnx_shrink(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_dtype result = kva_onnx_in(k, 0)->type->dtype;
  kva_value *x = kva_onnx_in(k, 0);
  if (!kva_dtype_is_float(result)) x = kva_cast(b, x, KVA_F64);
  kva_value *bias = kva_scalar_like(b, x, kva_onnx_float(k, "bias", 0)), *zero = kva_scalar_like(b, x, 0);
  double lambd = kva_onnx_float(k, "lambd", 0.5);
  kva_value *below = kva_build2(b, KVA_OP_less, x, kva_scalar_like(b, x, -lambd)),
            *above = kva_build2(b, KVA_OP_less, kva_scalar_like(b, x, lambd), x);
  kva_value *high = kva_onnx_where(b, above, kva_sub(b, x, bias), zero);
  return kva_onnx_done(k, kva_cast(b, kva_onnx_where(b, below, kva_add(b, x, bias), high), result));
}

kva_status kva_onnx_gelu(kva_onnx_call *k) {
  const char *mode = kva_onnx_string(k, "approximate", "none");
  bool tanh_form = !strcmp(mode, "tanh");
  if (!tanh_form && strcmp(mode, "none"))
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'approximate': expected none or tanh, found '%s'", mode);
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_gelu, 1, k->n->inputs, &(kva_gelu_attrs){.tanh = tanh_form}));
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

/* Before opset 13 the operand is flattened to two dimensions at `axis` (default 1) and the last one is normalised. */
static kva_status row_view(kva_onnx_call *k, kva_value **out_x, uint32_t *out_axis) {
  kva_value *x = kva_onnx_in(k, 0);
  int64_t axis = kva_onnx_int(k, "axis", k->version < 13 ? 1 : -1);
  *out_x = x;
  if (k->version < 13 && axis == x->type->rank)
    *out_axis = (uint32_t)axis;
  else
    KVA_TRY(kva_onnx_axis(k, axis, x->type->rank, out_axis));
  if (k->version >= 13 || *out_axis + 1 == x->type->rank) return KVA_OK;
  *out_x = kva_onnx_flatten_2d(k->b, x, *out_axis);
  *out_axis = 1;
  return KVA_OK;
}

kva_status kva_onnx_softmax(kva_onnx_call *k) {
  kva_value *x;
  uint32_t axis;
  KVA_TRY(row_view(k, &x, &axis));
  kva_value *y = kva_build(k->b, (kva_op_id)k->arg, 1, &x, &(kva_softmax_attrs){.axis = axis});
  return kva_onnx_done(k, kva_reshape_like(k->b, y, kva_onnx_in(k, 0)->type));
}

/* 1 at the first maximum, else 0. An empty axis has none, and the result no elements. */
kva_status kva_onnx_hardmax(kva_onnx_call *k) {
  kva_value *x;
  uint32_t axis;
  KVA_TRY(row_view(k, &x, &axis));
  if (kva_expr_is(kva_onnx_dim(x, axis), 0)) return kva_onnx_done(k, kva_onnx_in(k, 0));
  kva_value *top = kva_build(k->b, KVA_OP_argmax, 1, &x, &(kva_argmax_attrs){.axis = axis, .keepdims = true});
  kva_value *ramp = kva_onnx_ramp(k->b, KVA_I64, x->type->rank, axis, kva_onnx_dim(x, axis));
  kva_value *y = kva_cast(k->b, kva_build2(k->b, KVA_OP_equal, ramp, top), x->type->dtype);
  return kva_onnx_done(k, kva_reshape_like(k->b, y, kva_onnx_in(k, 0)->type));
}
