/* conv(x[N, C, spatial], w[M, C/group, kernel]) -> y[N, M, out]: cross-correlation in `group` independent groups,
 *
 *   y[n,m,o] = sum_{c < C/group} sum_k x[n, g C/group + c, o * stride + k * dilation - pad] * w[m,c,k]
 *
 * with g = m / (M/group) and zeros outside x; any number of spatial axes. Integers of 8 bits, of either sign each, give
 * an int32 result (to), which wraps. It is bilinear, so each gradient is one of three siblings: conv_input_grad (also
 * ONNX's ConvTranspose), conv_weight_grad. Tolerance 16: one sum of C/group * |kernel| products in several
 * accumulators. */
#include "ops/conv.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(conv)

kva_status kva_conv_check_group(kva_module *m, const kva_node *n, int64_t group, kva_dim channels, const char *of) {
  int64_t count;
  if (group >= 1 && (!kva_expr_is_const(channels, &count) || count % group == 0)) return KVA_OK;
  return kva_error(m->diag, &n->loc, "%s: group %lld does not divide the channels of %s", n->op->name, (long long)group,
                   of);
}

kva_status kva_conv_check_kernel(kva_module *m, const kva_node *n, kva_ints strides, kva_ints pads,
                                 kva_ints dilations) {
  const kva_type *w = kva_operand_type(n, 1);
  int64_t kernel[KVA_MAX_SPATIAL];
  for (uint32_t i = 2; i < w->rank; i++) {
    if (kva_expr_is_const(w->dims[i], &kernel[i - 2])) continue;
    return kva_operand_error(m, n, 1, "the kernel's spatial dimensions must be constants");
  }
  return kva_window_check(m, n, w->rank - 2, (kva_ints){w->rank - 2, kernel}, strides, pads, dilations);
}

kva_window kva_conv_window(const kva_type *w, kva_ints strides, kva_ints pads, kva_ints dilations) {
  int64_t kernel[KVA_MAX_SPATIAL] = {0};
  for (uint32_t i = 2; i < w->rank; i++) KVA_ASSERT(kva_expr_is_const(w->dims[i], &kernel[i - 2]));
  return kva_window_get(w->rank - 2, kernel, strides, pads, dilations, false);
}

static kva_window window_of(const kva_node *n) {
  const kva_conv_attrs *a = n->attrs;
  return kva_conv_window(kva_operand_type(n, 1), a->strides, a->pads, a->dilations);
}

static kva_status check_floats(kva_module *m, const kva_node *n) {
  kva_dtype to = ((const kva_conv_attrs *)n->attrs)->to;
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_same_dtype(m, n, 1, 0));
  if (!to || to == kva_operand_type(n, 0)->dtype) return KVA_OK;
  return kva_error(m->diag, &n->loc, "kv.conv: a result of %s from operands of %s: expected their type",
                   kva_dtype_name(to), kva_dtype_name(kva_operand_type(n, 0)->dtype));
}

kva_status kva_conv_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_conv_attrs *a = n->attrs;
  bool exact = kva_sums_bytes(n, a->to);
  if (!exact) KVA_TRY(check_floats(m, n));
  KVA_TRY(kva_check_min_rank(m, n, 0, 3));
  const kva_type *x = kva_operand_type(n, 0), *w = kva_operand_type(n, 1);
  KVA_TRY(kva_check_rank(m, n, 1, x->rank));
  KVA_TRY(kva_conv_check_kernel(m, n, a->strides, a->pads, a->dilations));
  KVA_TRY(kva_conv_check_group(m, n, a->group, w->dims[0], "the result"));
  if (kva_expr_muli(m->exprs, w->dims[1], a->group) != x->dims[1]) {
    return kva_operand_error(m, n, 1, "dimension 1 of the weights times group %lld must be the channels of x",
                             (long long)a->group);
  }
  kva_window window = window_of(n);
  kva_dim dims[KVA_MAX_RANK] = {x->dims[0], w->dims[0]};
  KVA_TRY(kva_window_extents(m, n, &window, x->dims + 2, dims + 2));
  out_types[0] = kva_type_tensor(m, exact ? KVA_I32 : x->dtype, x->rank, dims);
  return KVA_OK;
}

static int64_t product(uint32_t n, const int64_t *dims) {
  int64_t p = 1;
  for (uint32_t i = 0; i < n; i++) p *= dims[i];
  return p;
}

typedef struct flat_sizes {
  int64_t in, out, kernel; /* elements of one channel */
} flat_sizes;

/* Where each tap of each output element is in a channel of x, or -1: the same for all channels and images. */
static const int64_t *tap_offsets(const kva_conv_oracle *c, const flat_sizes *size, kva_arena *arena) {
  int64_t *offsets = KVA_NEW_ARRAY(arena, int64_t, size->out * size->kernel + 1);
  int64_t o[KVA_MAX_SPATIAL] = {0}, n = 0;
  do {
    int64_t k[KVA_MAX_SPATIAL] = {0};
    do offsets[n++] = kva_window_offset(&c->window, c->in, o, k);
    while (kva_next_index(c->window.n, c->window.kernel, k));
  } while (kva_next_index(c->window.n, c->out, o));
  return offsets;
}

/* Adds all products of output element y, of channel m of image n, whose taps are at `offsets`. Around x are zeros, and
 * zero times an infinite factor is NaN. */
static void accumulate_at(const kva_conv_oracle *c, const flat_sizes *size, kva_conv_role result, int64_t n, int64_t m,
                          const int64_t *offsets, int64_t y, const double *a, const double *b, double *sum) {
  int64_t per_group = c->C / c->group, first = m / (c->M / c->group) * per_group;
  for (int64_t channel = 0; channel < per_group; channel++) {
    int64_t w = (m * per_group + channel) * size->kernel, base = (n * c->C + first + channel) * size->in;
    for (int64_t k = 0; k < size->kernel; k++, w++) {
      int64_t at = offsets[k], x = base + at;
      if (result == KVA_CONV_Y) sum[y] += (at >= 0 ? a[x] : 0) * b[w];
      if (result == KVA_CONV_W) sum[w] += (at >= 0 ? a[x] : 0) * b[y];
      if (result == KVA_CONV_X && at >= 0) sum[x] += a[w] * b[y];
    }
  }
}

void kva_conv_accumulate(const kva_conv_oracle *c, kva_conv_role result, const double *a, const double *b,
                         double *sum) {
  uint32_t spatial = c->window.n;
  flat_sizes size = {product(spatial, c->in), product(spatial, c->out), product(spatial, c->window.kernel)};
  if (size.out == 0 || size.in == 0 || size.kernel == 0) return;
  kva_arena *scratch = kva_arena_create();
  const int64_t *offsets = tap_offsets(c, &size, scratch);
  for (int64_t image = 0; image < c->N * c->M; image++)
    for (int64_t o = 0; o < size.out; o++)
      accumulate_at(c, &size, result, image / c->M, image % c->M, offsets + o * size.kernel, image * size.out + o, a, b,
                    sum);
  kva_arena_destroy(scratch);
}

static double *doubles_of(kva_arena *arena, const kva_ref_tensor *t) {
  double *v = KVA_NEW_ARRAY(arena, double, t->n + 1);
  for (int64_t i = 0; t->i && i < t->n; i++) v[i] = (double)t->i[i];
  return v;
}

/* Sums of products of bytes are exact in double. */
static kva_status accumulate_bytes(const kva_conv_oracle *c, const kva_ref_tensor *const *in, kva_ref_tensor *y) {
  kva_arena *scratch = kva_arena_create();
  double *sum = doubles_of(scratch, y);
  memset(sum, 0, (size_t)y->n * sizeof *sum);
  kva_conv_accumulate(c, KVA_CONV_Y, doubles_of(scratch, in[0]), doubles_of(scratch, in[1]), sum);
  for (int64_t i = 0; i < y->n; i++) y->i[i] = (int32_t)(uint32_t)(int64_t)sum[i];
  kva_arena_destroy(scratch);
  return KVA_OK;
}

kva_status kva_conv_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_conv_attrs *a = n->attrs;
  kva_conv_oracle c = {window_of(n),   a->group,        in[0]->dims[0],  in[0]->dims[1],
                       in[1]->dims[0], in[0]->dims + 2, out[0]->dims + 2};
  if (out[0]->f) {
    kva_conv_accumulate(&c, KVA_CONV_Y, in[0]->f, in[1]->f, out[0]->f);
    return KVA_OK;
  }
  return accumulate_bytes(&c, in, out[0]);
}

kva_status kva_conv_vjp(kva_vjp *c, kva_node *n) {
  const kva_conv_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  kva_window window = window_of(n);
  if (c->wants[0]) {
    kva_conv_input_grad_attrs attrs = {a->strides, a->pads, a->dilations, a->group, {x->rank - 2, x->dims + 2}};
    kva_value *operands[2] = {c->grad_out[0], kva_operand(n, 1)};
    c->grad_in[0] = kva_build(c->b, KVA_OP_conv_input_grad, 2, operands, &attrs);
  }
  if (c->wants[1]) {
    kva_conv_weight_grad_attrs attrs = {a->strides,    a->pads, a->dilations, a->group, {window.n, window.kernel},
                                        KVA_DTYPE_NONE};
    kva_value *operands[2] = {kva_operand(n, 0), c->grad_out[0]};
    c->grad_in[1] = kva_build(c->b, KVA_OP_conv_weight_grad, 2, operands, &attrs);
  }
  return KVA_OK;
}

typedef struct conv_body {
  kva_window_site at;
  const kva_expr *group;
} conv_body;

static kva_kval tap(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const conv_body *body = user;
  const kva_type *x = kva_operand_type(body->at.n, 0), *w = kva_operand_type(body->at.n, 1);
  const kva_expr *x_at[KVA_MAX_RANK] = {body->at.idx[0]}, *w_at[KVA_MAX_RANK] = {body->at.idx[1]};
  x_at[1] = kva_conv_channel(kb->exprs, body->group, w->dims[1], vars[0]);
  memcpy(w_at + 1, vars, sizeof(*vars) * (w->rank - 1));
  kva_kval cond = kva_window_read(kb, body->at.window, x->dims + 2, body->at.idx + 2, vars + 1, x_at + 2);
  kva_dtype t = kva_k_compute_type(body->at.n->results[0].type->dtype);
  kva_kval value = kva_k_convert(kb, kva_masked_operand(body->at.l, body->at.n, 0, x_at, cond), t);
  return kva_k2(kb, KVA_K_mul, value, kva_k_convert(kb, body->at.l->operand(body->at.l, body->at.n, 1, w_at), t));
}

kva_kval kva_conv_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_conv_attrs *a = n->attrs;
  kva_expr_ctx *c = l->kb->exprs;
  const kva_type *w = kva_operand_type(n, 1);
  kva_window window = window_of(n);
  const kva_expr *group = kva_expr_div(c, idx[1], kva_conv_per_group(c, w->dims[0], a->group));
  conv_body body = {{l, n, &window, idx}, a->group == 1 ? kva_expr_const(c, 0) : group};
  return kva_window_reduce(l->kb, &window, KVA_COMBINE_ADD, kva_k_compute_type(n->results[0].type->dtype), w->dims[1],
                           tap, &body);
}

/* conv, conv_input_grad: lines of the image, operand 0, are packed; weights are streamed. Filters in panels are read by
 * lanes, and then the image by single elements. */
kva_operand_role kva_conv_image_role(const kva_node *n, uint32_t operand) {
  if (kva_panel_of(kva_operand(n, 1))) return operand == 0 ? KVA_IMAGE : KVA_PACKED;
  return operand == 0 ? KVA_PACKED : KVA_SCALARS;
}

/* Each element of y is a sum over one filter. */
double kva_conv_products(const kva_sizes *s, const kva_type *y, const kva_type *w) {
  return 2 * kva_elements_of(s, y) * kva_elements_of(s, w) / kva_extent_of(s, w->dims[0]);
}

double kva_conv_flops(const kva_node *n, const kva_sizes *s) {
  return kva_conv_products(s, n->results[0].type, kva_operand_type(n, 1));
}
