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

/* Rows in front of the batch, [M, .., K], come behind it: [.., M, K]. */
static kva_value *rows_behind_batch(kva_builder *b, kva_value *x) {
  uint32_t rank = x->type->rank;
  int64_t perm[KVA_MAX_RANK] = {0};
  for (uint32_t i = 0; i < rank; i++) perm[i] = i + 2 < rank ? i + 1 : i + 2 == rank ? 0 : i;
  return kva_transpose(b, x, perm);
}

kva_status kva_onnx_fused_matmul(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *y = kva_onnx_in(k, 1);
  double alpha = kva_onnx_float(k, "alpha", 1);
  if (x->type->rank < 2 || y->type->rank < 2) return kva_onnx_fail(k, KVA_UNSUPPORTED, "operands of rank 1");
  if (kva_onnx_int(k, "transBatchA", 0)) x = rows_behind_batch(b, x);
  if (kva_onnx_int(k, "transBatchB", 0)) y = rows_behind_batch(b, y);
  kva_value *z = kva_matmul(b, x, y, kva_onnx_int(k, "transA", 0) != 0, kva_onnx_int(k, "transB", 0) != 0);
  return kva_onnx_done(k, alpha == 1 ? z : kva_mul(b, z, kva_scalar_like(b, z, alpha)));
}

static kva_status read_activation(kva_onnx_call *k, kva_onnx_curve *out) {
  const char *name = kva_onnx_string(k, "activation", "");
  return kva_onnx_find_curve(name, KVA_ONNX_PRODUCTS, out) ? KVA_OK
                                                           : kva_onnx_fail(k, KVA_UNSUPPORTED, "activation '%s'", name);
}

/* activation(conv(x, w) + bias + z) */
kva_status kva_onnx_fused_conv(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *bias = kva_onnx_in(k, 2), *z = kva_onnx_in(k, 3), *y = NULL;
  kva_onnx_curve a;
  KVA_TRY(read_activation(k, &a));
  const kva_onnx_attr *params = kva_onnx_find_attr(k, "activation_params");
  uint32_t n = params && params->kind == KVA_ONNX_FLOATS ? params->n : 0;
  if (n != a.parameters)
    return kva_onnx_fail(k, KVA_INVALID, "activation '%s' with %u parameters; expected %u", a.name, n, a.parameters);
  if (n > 0) a.alpha = params->floats[0];
  if (n > 1) a.beta = params->floats[1];
  KVA_TRY(kva_onnx_convolve(k, kva_onnx_in(k, 0), kva_onnx_in(k, 1), &y));
  if (b->failed) return KVA_INVALID;
  if (bias) y = kva_add(b, y, kva_onnx_channels(b, bias, y->type->rank));
  if (z) y = kva_add(b, y, z);
  return kva_onnx_done(k, a.build(b, &a, y));
}

/* Gemm with an activation, whose attributes have names of their own: of Selu, gamma is the second. */
kva_status kva_onnx_fused_gemm(kva_onnx_call *k) {
  kva_onnx_curve a;
  KVA_TRY(read_activation(k, &a));
  a.alpha = kva_onnx_float(k, "activation_alpha", a.alpha);
  a.beta = kva_onnx_float(k, strcmp(a.name, "Selu") ? "activation_beta" : "activation_gamma", a.beta);
  KVA_TRY(kva_onnx_gemm(k));
  return kva_onnx_done(k, k->b->failed ? NULL : a.build(k->b, &a, k->out[0]));
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

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

/* The sum of rows of three tables, one of them by position, and its norm. Output 1: the number of tokens that the mask
 * shows, of each sequence. */
kva_status kva_onnx_embed_norm(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *ids = kva_onnx_in(k, 0), *segments = kva_onnx_in(k, 1), *mask = kva_onnx_in(k, 7);
  kva_value *positions = kva_onnx_in(k, 8), *table = kva_onnx_in(k, 3), *kinds = kva_onnx_in(k, 4);
  (void)kva_onnx_int(k, "mask_index_type", 0); /* says which type output 1 has */
  for (uint32_t i = 2; i < 7; i++)
    if (i != 4 && !kva_onnx_in(k, i)) return kva_onnx_fail(k, KVA_INVALID, "input %u is required but was left out", i);
  if (ids->type->rank != 2 || table->type->rank != 2 || !segments != !kinds)
    return kva_onnx_fail(k, KVA_INVALID, "expected ids and tables of rank 2, and a table where segments are given");
  if (!positions) positions = kva_onnx_ramp(b, KVA_I64, 2, 1, kva_onnx_dim(ids, 1));
  kva_value *sum = kva_add(b, kva_onnx_gather(b, kva_onnx_in(k, 2), ids, 0), kva_onnx_gather(b, table, positions, 0));
  if (segments) sum = kva_add(b, sum, kva_onnx_gather(b, kinds, segments, 0));
  kva_value *in[] = {sum, kva_onnx_in(k, 5), kva_onnx_in(k, 6)};
  kva_layer_norm_attrs attrs = {.axis = -1, .eps = kva_onnx_float(k, "epsilon", 1e-12)};
  kva_dim batch = kva_onnx_dim(ids, 0);
  kva_value *none = kva_expand(b, kva_const_scalar(b, KVA_I32, 0), 1, &batch);
  kva_onnx_set_out(k, 1, mask ? kva_reduce(b, KVA_OP_reduce_sum, mask, 1, (int64_t[]){1}, false) : none);
  kva_onnx_set_out(k, 2, sum);
  return kva_onnx_done(k, kva_build(b, KVA_OP_layer_norm, 3, in, &attrs));
}
