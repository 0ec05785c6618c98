/* Products of dequantised codes in integers.
 *
 * What: a product (matmul, conv) of dequantize(x, s, p) by dequantize(w, t, q) becomes the product of the codes in
 * int32 (ops/codes.h), times s t in float:
 *
 *   sum s (x - p) t (w - q) = s t sum (x - p)(w - q)
 *
 * and where nothing but a division by one number d reads the product, as QuantizeLinear does, times s t / d instead;
 * max_pool(dequantize(x, s, p)) becomes dequantize(max_pool(x), s, p), since dequantize is monotone for s > 0. So
 * graphs of QuantizeLinear and DequantizeLinear around their operators (QDQ) compute in bytes. What else makes codes
 * again, bias, activation, rounding and saturation, stays as it is: fusion makes it the product's epilogue.
 *
 * Results: the sum is exact, so three roundings are left: of the sum (from 2^24 on), of s t or s t / d, and of their
 * product. That is 1.5 units in the last place, less than a sum in float has. Both forms have the same bits where every
 * product and sum is exact in float, too: scales that are powers of two, sums below 2^24. Else codes that are made of
 * the result differ by one step at most, where the result is near the middle between two.
 *
 * Algorithm: one sweep. A product is taken if both operands are codes of 8 bits with constant scales and zero points:
 * one, or for weights one for each channel of the result; if the sum cannot leave int32 whatever the codes are; and if
 * all products s t are normal floats. Requires: constants of weights are not folded before (kva_stays_codes). Breaks:
 * nothing; leaves sums and zero points of constants to folding, and dead nodes to dce. On a GPU products of integers
 * are slow, so there it does nothing.
 *
 * Why here, not at import: gradients and rewriting know products of floats alone. */
#include "ops/codes.h"
#include "ops/conv.h"
#include "ops/matmul.h"
#include "passes/passes_internal.h"

#include <math.h>

/* An operand as codes. */
typedef struct factor {
  kva_codes codes;
  const kva_tensor_data *scale, *zero; /* zero: NULL if it is 0 */
} factor;

/* Operand i of n is made of codes, with one scale or, if axis >= 0, one for each of its indices. */
static bool is_factor(const kva_node *n, uint32_t i, int64_t axis, factor *out) {
  const kva_node *d = kva_operand(n, i)->def;
  if (!d || !kva_is(d, KVA_OP_dequantize) || !kva_is_byte(kva_operand(d, 0))) return false;
  const kva_dequantize_attrs *a = d->attrs;
  kva_value *scale = kva_operand(d, 1), *zero = kva_operand(d, 2);
  int64_t rank = kva_operand_type(d, 0)->rank, along = a->axis < 0 ? a->axis + rank : a->axis;
  if (a->block || d->results[0].type->dtype != KVA_F32) return false;
  if (scale->type->rank && (scale->type->rank > 1 || along != axis)) return false;
  *out = (factor){{kva_operand(d, 0), zero}, kva_reshaped_constant(scale), zero ? kva_reshaped_constant(zero) : NULL};
  return out->scale && out->scale->dtype == KVA_F32 && (!zero || out->zero);
}

/* Largest magnitude of code - zero. */
static double reach_of(const factor *f) {
  bool is_unsigned = f->codes.codes->type->dtype == KVA_U8;
  double low = is_unsigned ? 0 : -128, high = low + 255, reach = fmax(-low, high);
  for (int64_t i = 0; f->zero && i < kva_tensor_elements(f->zero); i++) {
    double zero = (double)kva_load_i64(f->zero->dtype, f->zero->data, i), here = fmax(zero - low, high - zero);
    reach = i && reach > here ? reach : here;
  }
  return reach;
}

/* s t, over what the product is divided by. */
static float scale_at(const factor *x, const factor *w, double divisor, int64_t i) {
  double s = kva_load_f64(KVA_F32, x->scale->data, 0), t = kva_load_f64(KVA_F32, w->scale->data, i);
  return (float)(s * t / divisor);
}

static bool has_normal_scales(const factor *x, const factor *w, double divisor) {
  for (int64_t i = 0; i < kva_tensor_elements(w->scale); i++)
    if (!isnormal(scale_at(x, w, divisor, i))) return false;
  return true;
}

/* Axis of operand 1 along which its scales may differ, the result's channels or columns, and how many products a sum
 * has; false: n is no product, or their number is not known. */
static bool shape_of(const kva_node *n, int64_t *out_axis, int64_t *out_products) {
  if (n->n_results != 1 || n->results[0].type->dtype != KVA_F32) return false;
  if (kva_is(n, KVA_OP_matmul)) {
    kva_matmul_shape s = kva_matmul_get(n);
    *out_axis = kva_operand_type(n, 1)->rank == 2 ? !s.transpose_b : -1;
    return kva_expr_is_const(s.K, out_products);
  }
  if (!kva_is(n, KVA_OP_conv)) return false;
  const kva_type *w = kva_operand_type(n, 1);
  *out_axis = 0, *out_products = 1;
  for (uint32_t d = 1; d < w->rank; d++) {
    int64_t extent;
    if (!kva_expr_is_const(w->dims[d], &extent)) return false;
    *out_products *= extent;
  }
  return true;
}

static bool is_product_of_codes(const kva_node *n, factor *x, factor *w) {
  int64_t axis, products;
  if (!shape_of(n, &axis, &products)) return false;
  if (!is_factor(n, 0, -1, x) || !is_factor(n, 1, axis, w)) return false;
  return (double)products * reach_of(x) * reach_of(w) <= INT32_MAX && has_normal_scales(x, w, 1);
}

/* The only user of n's result, if it divides that by one number, as QuantizeLinear does; else n, divided by 1. */
static kva_node *division_of(kva_node *n, const factor *x, const factor *w, double *out_divisor) {
  const kva_use *u = n->results[0].uses;
  double divisor;
  *out_divisor = 1;
  if (u->next || !kva_is(u->user, KVA_OP_div) || u->index != 0) return n;
  if (!kva_splat_value(kva_operand(u->user, 1), &divisor) || u->user->results[0].type != n->results[0].type) return n;
  if (!has_normal_scales(x, w, divisor)) return n;
  *out_divisor = divisor;
  return u->user;
}

bool kva_stays_codes(const kva_node *n) {
  factor x, w;
  if (!kva_is(n, KVA_OP_dequantize)) return false;
  for (const kva_use *u = n->results[0].uses; u; u = u->next)
    if (!is_product_of_codes(u->user, &x, &w)) return false;
  return n->results[0].uses != NULL;
}

/* The scales as a constant that broadcasts to the result. */
static kva_value *scales_of(kva_builder *b, const kva_node *n, const factor *x, const factor *w, double divisor) {
  int64_t count = kva_tensor_elements(w->scale), dims[KVA_MAX_RANK];
  kva_tensor_data *t = KVA_NEW(b->m->arena, kva_tensor_data);
  float *data = KVA_NEW_ARRAY(b->m->arena, float, count + 1);
  for (int64_t i = 0; i < count; i++) data[i] = scale_at(x, w, divisor, i);
  *t = (kva_tensor_data){.dtype = KVA_F32, .data = data, .bytes = count * (int64_t)sizeof *data};
  bool many = kva_operand_type(kva_operand(n, 1)->def, 1)->rank > 0;
  if (many) t->rank = kva_is(n, KVA_OP_conv) ? n->results[0].type->rank - 1 : 1;
  for (uint32_t d = 0; d < t->rank; d++) dims[d] = d ? 1 : count;
  t->dims = kva_arena_memdup(b->m->arena, dims, t->rank * sizeof *dims);
  return kva_const_tensor(b, t);
}

/* Stands for the result of *n, which becomes a division after it if there is one. */
static kva_value *integer_product(kva_builder *b, kva_node **n_io) {
  factor x, w;
  kva_node *n = *n_io;
  double divisor;
  if (!is_product_of_codes(n, &x, &w)) return NULL;
  *n_io = division_of(n, &x, &w, &divisor);
  kva_value *y = kva_is(n, KVA_OP_conv) ? kva_conv_codes(b, x.codes, w.codes, n->attrs)
                                        : kva_matmul_codes(b, x.codes, w.codes, n->attrs);
  return kva_mul(b, kva_cast(b, y, KVA_F32), scales_of(b, n, &x, &w, divisor));
}

/* No window lies in padding alone, where the lowest code is no number of the lowest float. */
static bool meets_elements(const kva_max_pool_attrs *a) {
  for (uint32_t i = 0; i < a->pads.n; i++)
    if (a->pads.v[i] >= a->kernel.v[i % a->kernel.n]) return false;
  for (uint32_t i = 0; i < a->dilations.n; i++)
    if (a->dilations.v[i] != 1) return false;
  return !a->ceil_mode;
}

static kva_value *pool_of_codes(kva_builder *b, kva_node *n) {
  factor x;
  const kva_max_pool_attrs *a = n->attrs;
  if (!kva_is(n, KVA_OP_max_pool) || n->results[1].uses || !meets_elements(a)) return NULL;
  if (!is_factor(n, 0, -1, &x) || !(kva_load_f64(KVA_F32, x.scale->data, 0) > 0)) return NULL;
  const kva_node *d = kva_operand(n, 0)->def;
  kva_value *in[] = {kva_build(b, KVA_OP_max_pool, 1, &x.codes.codes, a), kva_operand(d, 1), kva_operand(d, 2)};
  return kva_build(b, KVA_OP_dequantize, d->n_operands, in, d->attrs);
}

static kva_status visit(kva_module *m, kva_graph *g, const kva_pass_options *o, bool *changed) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (!n->n_results || !n->results[0].uses) continue;
    if (!kva_may_change(o)) return KVA_OK;
    kva_builder b = kva_builder_before(m, n);
    kva_node *old = n;
    kva_value *y = integer_product(&b, &old);
    if (!y) y = pool_of_codes(&b, n);
    if (b.failed) return KVA_INVALID;
    if (!y) continue;
    KVA_ASSERT(y->type == old->results[0].type);
    y->name = old->results[0].name;
    kva_value_replace_all_uses(&old->results[0], y);
    kva_count_change(o, old, NULL, changed);
    if (next == old) next = old->next;
    kva_node_remove(old);
  }
  return KVA_OK;
}

kva_status kva_opt_integer(kva_module *m, const kva_pass_options *o, bool *changed) {
  return kva_for_gpu(o) ? KVA_OK : kva_visit_graphs(m, visit, o, changed);
}
