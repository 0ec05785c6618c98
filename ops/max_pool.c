/* max_pool(x[N, C, spatial]) -> y, indices: the largest element of each window and its position as ONNX defines it,
 *
 *   y[n,c,o] = max over taps k inside x of x[n,c,at(o,k)],   indices[n,c,o] = position in the flat tensor x
 *
 * (window.h defines where taps read). Padding never wins; ties go to the first element in row-major order; NaN beats
 * numbers. With column_major the first spatial axis varies fastest in the position (ONNX storage_order 1). A window
 * entirely in padding gives the lowest value and index -1. Gradient: dy goes to the element that won. Exact:
 * comparisons and selections. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/ids.h"
#include "ops/pool.h"
#include "ops/shape.h"

#include <math.h>

KVA_OP_FUNCTIONS(max_pool)

kva_status kva_max_pool_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_max_pool_attrs *a = n->attrs;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_check_min_rank(m, n, 0, 3));
  KVA_TRY(kva_window_check(m, n, kva_operand_type(n, 0)->rank - 2, KVA_POOL_LISTS(a)));
  kva_window w = KVA_POOL_WINDOW(a);
  KVA_TRY(kva_pool_infer(m, n, &w, &out_types[0]));
  out_types[1] = kva_type_with_dtype(m, out_types[0], KVA_I64);
  return KVA_OK;
}

static double lowest(kva_dtype t) {
  if (kva_dtype_is_float(t)) return -INFINITY;
  return kva_dtype_is_unsigned(t) ? 0 : -ldexp(1, kva_dtype_bits(t) - 1);
}

static bool wins(const kva_ref_tensor *x, int64_t at, int64_t best) {
  if (best < 0) return true;
  if (x->f) return x->f[at] > x->f[best] || (isnan(x->f[at]) && !isnan(x->f[best]));
  if (kva_dtype_is_unsigned(x->dtype)) return (uint64_t)x->i[at] > (uint64_t)x->i[best];
  return x->i[at] > x->i[best];
}

/* Position within one image with the first axis varying fastest. */
static int64_t column_major(const kva_window *w, const int64_t *dims, int64_t position) {
  int64_t out = 0, digits[KVA_MAX_SPATIAL];
  for (uint32_t i = w->n; i > 0; position /= dims[i - 1], i--) digits[i - 1] = position % dims[i - 1];
  for (uint32_t i = w->n; i > 0; i--) out = out * dims[i - 1] + digits[i - 1];
  return out;
}

kva_status kva_max_pool_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                            kva_ref_tensor *const *out) {
  (void)r;
  const kva_max_pool_attrs *a = n->attrs;
  const kva_ref_tensor *x = in[0];
  kva_window w = KVA_POOL_WINDOW(a);
  int64_t idx[KVA_MAX_RANK] = {0}, image = 1, at = 0;
  for (uint32_t i = 0; i < w.n; i++) image *= x->dims[2 + i];
  if (out[0]->n == 0) return KVA_OK;
  do {
    int64_t k[KVA_MAX_SPATIAL] = {0}, base = (idx[0] * x->dims[1] + idx[1]) * image, best = -1;
    do {
      int64_t offset = kva_window_offset(&w, x->dims + 2, idx + 2, k);
      if (offset >= 0 && wins(x, base + offset, best)) best = base + offset;
    } while (kva_next_index(w.n, w.kernel, k));
    if (x->f)
      out[0]->f[at] = best < 0 ? lowest(x->dtype) : x->f[best];
    else
      out[0]->i[at] = best < 0 ? (int64_t)lowest(x->dtype) : x->i[best];
    bool turn = a->column_major && best >= 0;
    out[1]->i[at++] = turn ? base + column_major(&w, x->dims + 2, best - base) : best;
  } while (kva_next_index(out[0]->rank, out[0]->dims, idx));
  return KVA_OK;
}

kva_status kva_max_pool_vjp(kva_vjp *c, kva_node *n) {
  const kva_max_pool_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  kva_value *indices = kva_result(n, 1);
  if (!c->wants[0] || !c->grad_out[0]) return KVA_OK;
  if (a->column_major) {
    kva_max_pool_attrs plain = *a;
    plain.column_major = false;
    kva_value *operand = kva_operand(n, 0);
    indices = kva_result(kva_build_node(c->b, KVA_OP_max_pool, 1, &operand, 2, &plain), 1);
  }
  kva_max_pool_grad_attrs attrs = {KVA_POOL_LISTS(a), a->ceil_mode, {x->rank - 2, x->dims + 2}};
  c->grad_in[0] = kva_build(c->b, KVA_OP_max_pool_grad, 2, (kva_value *[]){indices, c->grad_out[0]}, &attrs);
  return KVA_OK;
}

typedef struct pool_body {
  kva_window_site at;
  kva_kval max; /* NULL: being computed */
} pool_body;

static kva_kval tap(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const pool_body *body = user;
  const kva_type *x = kva_operand_type(body->at.n, 0);
  const kva_expr *at[KVA_MAX_RANK] = {body->at.idx[0], body->at.idx[1]};
  kva_kval cond = kva_window_read(kb, body->at.window, x->dims + 2, body->at.idx + 2, vars, at + 2);
  kva_kval v = kva_masked_operand(body->at.l, body->at.n, 0, at, cond);
  if (!body->max) return cond ? kva_k_select(kb, cond, v, kva_k_const(kb, v->dtype, lowest(v->dtype))) : v;
  kva_kval hit = kva_k2(kb, KVA_K_eq, v, body->max);
  if (kva_dtype_is_float(v->dtype)) hit = kva_k2(kb, KVA_K_or, hit, kva_k1(kb, KVA_K_isnan, v));
  kva_kval position = kva_k_index(kb, kva_shape_linear(kb->exprs, x->rank, x->dims, at));
  return kva_k_select(kb, kva_k_and(kb, cond, hit), position, kva_k_const_i(kb, KVA_I64, INT64_MAX));
}

/* A position in the flat tensor with its spatial part in column-major order. */
static kva_kval turned(kva_lower *l, const kva_type *x, kva_kval position) {
  kva_expr_ctx *c = l->kb->exprs;
  const kva_expr *rest = kva_k_symbol(l->kb, position), *digits[KVA_MAX_RANK];
  for (uint32_t i = x->rank; i > 2; rest = kva_expr_div(c, rest, x->dims[i - 1]), i--) {
    digits[i - 1] = kva_expr_mod(c, rest, x->dims[i - 1]);
  }
  for (uint32_t i = x->rank; i > 2; i--) {
    rest = kva_expr_add(c, kva_expr_mul(c, rest, x->dims[i - 1]), digits[i - 1]);
  }
  return kva_k_index(l->kb, rest);
}

kva_kval kva_max_pool_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  const kva_max_pool_attrs *a = n->attrs;
  kva_kb *kb = l->kb;
  const kva_type *x = kva_operand_type(n, 0);
  kva_window w = KVA_POOL_WINDOW(a);
  pool_body body = {{l, n, &w, idx}, NULL};
  kva_kval max = kva_window_reduce(kb, &w, KVA_COMBINE_MAX, kva_k_compute_type(x->dtype), NULL, tap, &body);
  if (result == 0) return max;
  body.max = max;
  kva_kval first = kva_window_reduce(kb, &w, KVA_COMBINE_MIN, KVA_I64, NULL, tap, &body);
  kva_kval none = kva_k2(kb, KVA_K_eq, first, kva_k_const_i(kb, KVA_I64, INT64_MAX));
  kva_kval position = kva_k_select(kb, none, kva_k_const_i(kb, KVA_I64, -1), first);
  return a->column_major ? kva_k_select(kb, none, position, turned(l, x, position)) : position;
}
