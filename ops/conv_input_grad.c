/* conv_input_grad(dy[N, M, out], w[M, C/group, kernel]) -> dx[N, C, spatial]: the transpose of conv in x,
 *
 *   dx[n,c,i] = sum over m of c's group and taps k with o * stride + k * dilation - pad = i of dy[n,m,o] * w[m,c,k]
 *
 * `spatial` gives the extents of dx, which out does not determine when stride > 1. ONNX's ConvTranspose is this
 * operator. Gradients: conv(g, w) for dy, conv_weight_grad(g, dy) for w; where `spatial` has room for more positions
 * than dy (an output_padding of a stride or more), dy counts as 0 there. Tolerance 16: as conv. */
#include "ops/conv.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"

KVA_OP_FUNCTIONS(conv_input_grad)

static kva_window window_of(const kva_node *n) {
  const kva_conv_input_grad_attrs *a = n->attrs;
  return kva_conv_window(kva_operand_type(n, 1), a->strides, a->pads, a->dilations);
}

static kva_status check_operands(kva_module *m, const kva_node *n) {
  const kva_conv_input_grad_attrs *a = n->attrs;
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_same_dtype(m, n, 1, 0));
  KVA_TRY(kva_check_min_rank(m, n, 0, 3));
  const kva_type *dy = kva_operand_type(n, 0), *w = kva_operand_type(n, 1);
  KVA_TRY(kva_check_rank(m, n, 1, dy->rank));
  if (a->spatial.n != dy->rank - 2) {
    return kva_error(m->diag, &n->loc, "conv_input_grad: expected %u spatial extents, found %u", dy->rank - 2,
                     a->spatial.n);
  }
  KVA_TRY(kva_conv_check_group(m, n, a->group, w->dims[0], "dy"));
  if (w->dims[0] == dy->dims[1]) return KVA_OK;
  return kva_operand_error(m, n, 1, "dimension 0 of the weights must be the channels of dy");
}

kva_status kva_conv_input_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_conv_input_grad_attrs *a = n->attrs;
  KVA_TRY(check_operands(m, n));
  const kva_type *dy = kva_operand_type(n, 0), *w = kva_operand_type(n, 1);
  KVA_TRY(kva_conv_check_kernel(m, n, a->strides, a->pads, a->dilations));
  kva_dim dims[KVA_MAX_RANK] = {dy->dims[0], kva_expr_muli(m->exprs, w->dims[1], a->group)};
  memcpy(dims + 2, a->spatial.v, sizeof(*dims) * a->spatial.n);
  out_types[0] = kva_type_tensor(m, dy->dtype, dy->rank, dims);
  return KVA_OK;
}

kva_status kva_conv_input_grad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                   kva_ref_tensor *const *out) {
  (void)r;
  const kva_conv_input_grad_attrs *a = n->attrs;
  kva_conv_oracle c = {window_of(n),   a->group,         out[0]->dims[0], out[0]->dims[1],
                       in[1]->dims[0], out[0]->dims + 2, in[0]->dims + 2};
  kva_conv_accumulate(&c, KVA_CONV_X, in[1]->f, in[0]->f, out[0]->f);
  return KVA_OK;
}

/* x with zeros after its last positions, or without these, so that its spatial extents are those given. */
static kva_value *with_extents(kva_builder *b, kva_value *x, const kva_dim *extents) {
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  bool same = true;
  for (uint32_t k = 0; k < rank && !b->failed; k++) {
    before[k] = after[k] = kva_expr_const(b->m->exprs, 0);
    if (k < 2 || x->type->dims[k] == extents[k - 2]) continue;
    after[k] = kva_expr_sub(b->m->exprs, extents[k - 2], x->type->dims[k]);
    same = false;
  }
  kva_pad_attrs attrs = {.before = {rank, before}, .after = {rank, after}};
  return same ? x : kva_build(b, KVA_OP_pad, 1, &x, &attrs);
}

kva_status kva_conv_input_grad_vjp(kva_vjp *c, kva_node *n) {
  const kva_conv_input_grad_attrs *a = n->attrs;
  kva_window window = window_of(n);
  kva_value *g = c->grad_out[0], *dy = kva_operand(n, 0);
  if (c->wants[0]) {
    kva_conv_attrs attrs = {.strides = a->strides, .pads = a->pads, .dilations = a->dilations, .group = a->group};
    kva_value *grad = kva_build(c->b, KVA_OP_conv, 2, (kva_value *[]){g, kva_operand(n, 1)}, &attrs);
    c->grad_in[0] = with_extents(c->b, grad, dy->type->dims + 2);
  }
  if (c->wants[1]) {
    kva_conv_weight_grad_attrs attrs = {a->strides,    a->pads, a->dilations, a->group, {window.n, window.kernel},
                                        KVA_DTYPE_NONE};
    kva_dim reached[KVA_MAX_RANK];
    KVA_TRY(kva_window_extents(c->b->m, n, &window, a->spatial.v, reached));
    kva_value *operands[] = {g, with_extents(c->b, dy, reached)};
    c->grad_in[1] = kva_build(c->b, KVA_OP_conv_weight_grad, 2, operands, &attrs);
  }
  return KVA_OK;
}

typedef struct grad_body {
  kva_window_site at;
  const kva_expr *group, *channel, *per_group; /* of dx's channel; number of dy's channels in a group */
} grad_body;

static kva_kval tap(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const grad_body *body = user;
  const kva_type *dy = kva_operand_type(body->at.n, 0);
  const kva_expr *m = kva_conv_channel(kb->exprs, body->group, body->per_group, vars[0]);
  const kva_expr *dy_at[KVA_MAX_RANK] = {body->at.idx[0], m}, *w_at[KVA_MAX_RANK] = {m, body->channel};
  memcpy(w_at + 2, vars + 1, sizeof(*vars) * body->at.window->n);
  kva_kval cond = kva_window_reader(kb, body->at.window, dy->dims + 2, body->at.idx + 2, vars + 1, dy_at + 2);
  kva_kval value = kva_masked_operand(body->at.l, body->at.n, 0, dy_at, cond);
  return kva_k2(kb, KVA_K_mul, value, body->at.l->operand(body->at.l, body->at.n, 1, w_at));
}

kva_kval kva_conv_input_grad_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_conv_input_grad_attrs *a = n->attrs;
  kva_expr_ctx *c = l->kb->exprs;
  const kva_type *w = kva_operand_type(n, 1);
  kva_window window = window_of(n);
  bool one = a->group == 1;
  grad_body body = {{l, n, &window, idx},
                    one ? kva_expr_const(c, 0) : kva_expr_div(c, idx[1], w->dims[1]),
                    one ? idx[1] : kva_expr_mod(c, idx[1], w->dims[1]),
                    kva_conv_per_group(c, w->dims[0], a->group)};
  kva_dtype t = kva_k_compute_type(w->dtype);
  return kva_window_reduce(l->kb, &window, KVA_COMBINE_ADD, t, body.per_group, tap, &body);
}

double kva_conv_input_grad_flops(const kva_node *n, const kva_sizes *s) {
  return kva_conv_products(s, kva_operand_type(n, 0), kva_operand_type(n, 1));
}
