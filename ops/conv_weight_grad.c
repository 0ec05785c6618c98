/* conv_weight_grad(x[N, C, spatial], dy[N, M, out]) -> dw[M, C/group, kernel]: the transpose of conv in w,
 *
 *   dw[m,c,k] = sum_{n,o} x[n, g C/group + c, o * stride + k * dilation - pad] * dy[n,m,o],   g = m / (M/group)
 *
 * Gradients: conv_input_grad(dy, g) for x, conv(x, g) for dy.
 * Tolerance 32: one sum over the whole batch and all positions. */
#include "ops/conv.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"

KVA_OP_FUNCTIONS(conv_weight_grad)

static kva_window window_of(const kva_node *n) {
  const kva_conv_weight_grad_attrs *a = n->attrs;
  return kva_window_get(a->kernel.n, a->kernel.v, a->strides, a->pads, a->dilations, false);
}

kva_status kva_conv_weight_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_conv_weight_grad_attrs *a = n->attrs;
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_same_dtype(m, n, 1, 0));
  KVA_TRY(kva_check_min_rank(m, n, 0, 3));
  const kva_type *x = kva_operand_type(n, 0), *dy = kva_operand_type(n, 1);
  KVA_TRY(kva_check_rank(m, n, 1, x->rank));
  KVA_TRY(kva_window_check(m, n, x->rank - 2, a->kernel, a->strides, a->pads, a->dilations));
  KVA_TRY(kva_conv_check_group(m, n, a->group, x->dims[1], "x"));
  KVA_TRY(kva_conv_check_group(m, n, a->group, dy->dims[1], "dy"));
  kva_window window = window_of(n);
  kva_dim y[KVA_MAX_RANK] = {x->dims[0], dy->dims[1]};
  KVA_TRY(kva_window_extents(m, n, &window, x->dims + 2, y + 2));
  KVA_TRY(kva_check_shape(m, n, 1, x->rank, y));
  kva_dim dims[KVA_MAX_RANK] = {dy->dims[1], kva_conv_per_group(m->exprs, x->dims[1], a->group)};
  kva_window_kernel(m->exprs, &window, dims + 2);
  kva_dtype result;
  KVA_TRY(kva_check_result_dtype(m, n, a->to, &result));
  out_types[0] = kva_type_tensor(m, result, x->rank, dims);
  return KVA_OK;
}

kva_status kva_conv_weight_grad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                    kva_ref_tensor *const *out) {
  (void)r;
  const kva_conv_weight_grad_attrs *a = n->attrs;
  kva_conv_oracle c = {window_of(n),   a->group,        in[0]->dims[0], in[0]->dims[1],
                       in[1]->dims[1], in[0]->dims + 2, in[1]->dims + 2};
  kva_conv_accumulate(&c, KVA_CONV_W, in[0]->f, in[1]->f, out[0]->f);
  return KVA_OK;
}

kva_status kva_conv_weight_grad_vjp(kva_vjp *c, kva_node *n) {
  const kva_conv_weight_grad_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  kva_value *g = kva_cast(c->b, c->grad_out[0], x->dtype);
  if (c->wants[0]) {
    kva_conv_input_grad_attrs attrs = {a->strides, a->pads, a->dilations, a->group, {x->rank - 2, x->dims + 2}};
    c->grad_in[0] = kva_build(c->b, KVA_OP_conv_input_grad, 2, (kva_value *[]){kva_operand(n, 1), g}, &attrs);
  }
  if (c->wants[1]) {
    kva_conv_attrs attrs = {.strides = a->strides, .pads = a->pads, .dilations = a->dilations, .group = a->group};
    c->grad_in[1] = kva_build(c->b, KVA_OP_conv, 2, (kva_value *[]){kva_operand(n, 0), g}, &attrs);
  }
  return KVA_OK;
}

typedef struct grad_body {
  kva_window_site at;
  const kva_expr *channel; /* of x */
} grad_body;

static kva_kval term(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const grad_body *body = user;
  const kva_type *x = kva_operand_type(body->at.n, 0);
  const kva_expr *x_at[KVA_MAX_RANK] = {vars[0], body->channel}, *dy_at[KVA_MAX_RANK] = {vars[0], body->at.idx[0]};
  memcpy(dy_at + 2, vars + 1, sizeof(*vars) * body->at.window->n);
  kva_kval cond = kva_window_read(kb, body->at.window, x->dims + 2, vars + 1, body->at.idx + 2, x_at + 2);
  kva_kval value = kva_masked_operand(body->at.l, body->at.n, 0, x_at, cond);
  return kva_k2(kb, KVA_K_mul, value, body->at.l->operand(body->at.l, body->at.n, 1, dy_at));
}

kva_kval kva_conv_weight_grad_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_conv_weight_grad_attrs *a = n->attrs;
  kva_expr_ctx *c = l->kb->exprs;
  const kva_type *x = kva_operand_type(n, 0), *dy = kva_operand_type(n, 1);
  kva_window window = window_of(n);
  const kva_expr *group = kva_expr_div(c, idx[0], kva_conv_per_group(c, dy->dims[1], a->group));
  if (a->group == 1) group = kva_expr_const(c, 0);
  const kva_expr *per_group = kva_conv_per_group(c, x->dims[1], a->group);
  grad_body body = {{l, n, &window, idx}, kva_conv_channel(c, group, per_group, idx[1])};
  const kva_expr *extents[KVA_MAX_RANK] = {dy->dims[0]};
  memcpy(extents + 1, dy->dims + 2, sizeof(*extents) * window.n);
  return kva_k_reduce_over(l->kb, KVA_COMBINE_ADD, kva_k_compute_type(x->dtype), 1 + window.n, extents, term, &body);
}

double kva_conv_weight_grad_flops(const kva_node *n, const kva_sizes *s) {
  return kva_conv_products(s, kva_operand_type(n, 1), n->results[0].type);
}
