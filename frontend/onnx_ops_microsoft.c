/* Rules of domain com.microsoft: what ONNX Runtime's optimiser fuses nodes of float models into. */
#include "frontend/onnx_window.h"
#include "ops/ids.h"

/* ---- activations ------------------------------------------------------------------------------------------------- */

static kva_value *gelu(kva_builder *b, kva_value *x, bool tanh_form) {
  return kva_build(b, KVA_OP_gelu, 1, &x, &(kva_gelu_attrs){.tanh = tanh_form});
}

/* Gelu of x, or of x + bias. The argument: whether it is the tanh form. */
kva_status kva_onnx_bias_gelu(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *bias = kva_onnx_in(k, 1);
  return kva_onnx_done(k, gelu(k->b, bias ? kva_add(k->b, x, bias) : x, k->arg != 0));
}

/* x sigmoid(alpha x) */
kva_status kva_onnx_quick_gelu(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  double alpha = kva_onnx_float(k, "alpha", 1.702);
  kva_value *gate = kva_build1(k->b, KVA_OP_sigmoid, kva_mul(k->b, x, kva_scalar_like(k->b, x, alpha)));
  return kva_onnx_done(k, kva_mul(k->b, x, gate));
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

kva_status kva_onnx_fused_matmul(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *y = kva_onnx_in(k, 1);
  double alpha = kva_onnx_float(k, "alpha", 1);
  if (kva_onnx_int(k, "transBatchA", 0) || kva_onnx_int(k, "transBatchB", 0))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "transBatchA and transBatchB");
  if (x->type->rank < 2 || y->type->rank < 2) return kva_onnx_fail(k, KVA_UNSUPPORTED, "operands of rank 1");
  kva_value *z = kva_matmul(b, x, y, kva_onnx_int(k, "transA", 0) != 0, kva_onnx_int(k, "transB", 0) != 0);
  return kva_onnx_done(k, alpha == 1 ? z : kva_mul(b, z, kva_scalar_like(b, z, alpha)));
}

static kva_status activate(kva_onnx_call *k, kva_value **x) {
  kva_builder *b = k->b;
  const char *name = kva_onnx_string(k, "activation", "");
  const kva_onnx_attr *a = kva_onnx_find_attr(k, "activation_params");
  uint32_t n = a && a->kind == KVA_ONNX_FLOATS ? a->n : 0;
  double first = n > 0 ? a->floats[0] : 0, second = n > 1 ? a->floats[1] : 0;
  kva_value *p = kva_scalar_like(b, *x, first), *q = kva_scalar_like(b, *x, second), *zero = kva_scalar_like(b, *x, 0);
  uint32_t wanted = !strcmp(name, "LeakyRelu") ? 1 : !strcmp(name, "Clip") || !strcmp(name, "HardSigmoid") ? 2 : 0;
  if (n != wanted)
    return kva_onnx_fail(k, KVA_INVALID, "activation '%s' with %u parameters; expected %u", name, n, wanted);
  if (!strcmp(name, "Relu"))
    *x = kva_build1(b, KVA_OP_relu, *x);
  else if (!strcmp(name, "Tanh"))
    *x = kva_build1(b, KVA_OP_tanh, *x);
  else if (!strcmp(name, "Sigmoid"))
    *x = kva_build1(b, KVA_OP_sigmoid, *x);
  else if (!strcmp(name, "LeakyRelu"))
    *x = kva_onnx_where(b, kva_build2(b, KVA_OP_less, *x, zero), kva_mul(b, *x, p), *x);
  else if (!strcmp(name, "Clip"))
    *x = kva_build2(b, KVA_OP_min, kva_build2(b, KVA_OP_max, *x, p), q);
  else if (!strcmp(name, "HardSigmoid"))
    *x = kva_build2(b, KVA_OP_min, kva_build2(b, KVA_OP_max, kva_add(b, kva_mul(b, *x, p), q), zero),
                    kva_scalar_like(b, *x, 1));
  else
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "activation '%s'", name);
  return KVA_OK;
}

/* activation(conv(x, w) + bias + z) */
kva_status kva_onnx_fused_conv(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *bias = kva_onnx_in(k, 2), *z = kva_onnx_in(k, 3), *y = NULL;
  KVA_TRY(kva_onnx_convolve(k, kva_onnx_in(k, 0), kva_onnx_in(k, 1), &y));
  if (b->failed) return KVA_INVALID;
  if (bias) y = kva_add(b, y, kva_onnx_channels(b, bias, y->type->rank));
  if (z) y = kva_add(b, y, z);
  KVA_TRY(activate(k, &y));
  return kva_onnx_done(k, y);
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

/* Norm of x + skip + bias over the last axis; output 3 is the sum. The argument: whether it is the root mean square. */
kva_status kva_onnx_skip_norm(kva_onnx_call *k) {
  kva_builder *b = k->b;
  uint32_t bias_at = k->arg ? 3 : 4;
  double eps = kva_onnx_float(k, "epsilon", 1e-12);
  kva_value *bias = kva_onnx_in(k, bias_at), *beta = k->arg ? NULL : kva_onnx_in(k, 3);
  kva_value *sum = kva_add(b, kva_onnx_in(k, 0), kva_onnx_in(k, 1));
  if (bias) sum = kva_add(b, sum, bias);
  kva_onnx_set_out(k, 3, sum);
  kva_value *in[3] = {sum, kva_onnx_in(k, 2), beta};
  if (k->arg)
    return kva_onnx_done(k, kva_build(b, KVA_OP_rms_norm, 2, in, &(kva_rms_norm_attrs){.axis = -1, .eps = eps}));
  return kva_onnx_done(
      k, kva_build(b, KVA_OP_layer_norm, beta ? 3 : 2, in, &(kva_layer_norm_attrs){.axis = -1, .eps = eps}));
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

enum { IN_BIAS = 3, IN_PADDING, IN_SCORES, IN_PAST_KEY, IN_PAST_VALUE };

/* Part `i` of three of the bias of a projection. */
static kva_value *biased(kva_onnx_call *k, kva_value *x, kva_dim start) {
  kva_value *bias = kva_onnx_in(k, IN_BIAS);
  if (!bias) return x;
  return kva_add(k->b, x, kva_onnx_slice(k->b, bias, 0, start, kva_onnx_dim(x, 2)));
}

/* Attention of q, k and v [B, T, H * D], with a bias of all three, a mask that is added to the scores, and a cache. */
kva_status kva_onnx_multi_head_attention(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  int64_t heads = kva_onnx_int(k, "num_heads", 0);
  kva_value *q = kva_onnx_in(k, 0), *key = kva_onnx_in(k, 1), *value = kva_onnx_in(k, 2),
            *mask = kva_onnx_in(k, IN_SCORES);
  kva_value *past_key = kva_onnx_in(k, IN_PAST_KEY), *past_value = kva_onnx_in(k, IN_PAST_VALUE);
  if (!key || !value || q->type->rank != 3 || key->type->rank != 3 || value->type->rank != 3)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "packed or transposed queries, keys and values; expected three of rank 3");
  if (kva_onnx_in(k, IN_PADDING)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "key_padding_mask");
  if (!past_key != !past_value) return kva_onnx_fail(k, KVA_INVALID, "past_key and past_value go together");
  kva_dim second = kva_onnx_dim(q, 2), third = kva_expr_add(e, second, kva_onnx_dim(key, 2));
  KVA_TRY(kva_onnx_split_heads(k, biased(k, q, kva_expr_const(e, 0)), heads, &q));
  KVA_TRY(kva_onnx_split_heads(k, biased(k, key, second), heads, &key));
  KVA_TRY(kva_onnx_split_heads(k, biased(k, value, third), heads, &value));
  kva_attention_attrs attrs = {.scale = kva_onnx_float(k, "scale", 0),
                               .causal = kva_onnx_int(k, "unidirectional", 0) != 0};
  if (past_key) {
    attrs.offset = kva_onnx_dim(past_key, 2);
    key = kva_onnx_concat(b, past_key, key, 2);
    value = kva_onnx_concat(b, past_value, value, 2);
  }
  kva_onnx_set_out(k, 1, key);
  kva_onnx_set_out(k, 2, value);
  kva_value *in[] = {q, key, value, mask};
  return kva_onnx_done(k, kva_onnx_join_heads(b, kva_build(b, KVA_OP_attention, mask ? 4 : 3, in, &attrs)));
}
