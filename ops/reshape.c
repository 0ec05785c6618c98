/* reshape: y has the elements of x in row-major order with dims `shape`, which are final (no 0 or -1 codes). The
 * numbers of elements must be provably equal. Gradient: g in x's shape. Exact: a view. */
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/partition.h"
#include "ops/shape.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(reshape)

kva_status kva_reshape_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0);
  kva_dims shape = ((const kva_reshape_attrs *)n->attrs)->shape;
  if (shape.n > KVA_MAX_RANK)
    return kva_error(m->diag, &n->loc, "kv.reshape: rank %u is more than the %d that Kvasir supports", shape.n,
                     KVA_MAX_RANK);
  out_types[0] = kva_type_tensor(m, x->dtype, shape.n, shape.v);
  const kva_expr *from = kva_type_elements(m, x), *to = kva_type_elements(m, out_types[0]);
  if (from == to) return KVA_OK;
  bool known = kva_expr_is_const(from, NULL) && kva_expr_is_const(to, NULL);
  kva_text a = {0}, b = {0};
  kva_shape_print(x->rank, x->dims, &a);
  kva_shape_print(shape.n, shape.v, &b);
  kva_error(m->diag, &n->loc, "kv.reshape: %s to %s %s", a.data, b.data,
            known ? "changes the number of elements"
                  : "is not provably the same number of elements; write the shape in terms of the operand's symbols");
  kva_text_free(&a);
  kva_text_free(&b);
  return KVA_INVALID;
}

kva_status kva_reshape_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r, (void)n;
  KVA_ASSERT(in[0]->n == out[0]->n);
  for (int64_t i = 0; i < out[0]->n; i++) kva_ref_copy(in[0], i, out[0], i);
  return KVA_OK;
}

kva_status kva_reshape_vjp(kva_vjp *c, kva_node *n) {
  c->grad_in[0] = kva_reshape_like(c->b, c->grad_out[0], kva_operand_type(n, 0));
  return KVA_OK;
}

/* The largest i < *x_end, j < *y_end with equal products x[i, x_end) and y[j, y_end): the next group of axes, from the
 * right, that the reshape maps onto each other. Groups keep index expressions small: [B, T, D] -> [B, T, H, E] splits
 * only D. */
static void next_group(kva_expr_ctx *c, const kva_type *x, const kva_type *y, uint32_t *x_end, uint32_t *y_end) {
  const kva_expr *px = kva_expr_const(c, 1);
  for (uint32_t i = *x_end; i-- > 0;) {
    px = kva_expr_mul(c, px, x->dims[i]);
    const kva_expr *py = kva_expr_const(c, 1);
    for (uint32_t j = *y_end; j-- > 0;) {
      py = kva_expr_mul(c, py, y->dims[j]);
      if (px != py) continue;
      *x_end = i;
      *y_end = j;
      return;
    }
  }
  *x_end = *y_end = 0;
}

kva_kval kva_reshape_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  kva_expr_ctx *c = l->kb->exprs;
  const kva_type *x = kva_operand_type(n, 0), *y = n->results[result].type;
  const kva_expr *at[KVA_MAX_RANK];
  uint32_t x_end = x->rank, y_end = y->rank;
  for (uint32_t k = 0; k < x->rank; k++) at[k] = kva_expr_const(c, 0);
  while (x_end) {
    uint32_t i = x_end, j = y_end;
    next_group(c, x, y, &i, &j);
    const kva_expr *linear = kva_shape_linear(c, y_end - j, y->dims + j, idx + j);
    kva_shape_split(c, x_end - i, x->dims + i, linear, at + i);
    x_end = i;
    y_end = j;
  }
  return l->operand(l, n, 0, at);
}

bool kva_reshape_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_same(v, n);
}

/* Axes of one extent with equally many elements before them. */
int kva_reshape_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  const kva_type *x = kva_operand_type(n, operand), *y = n->results[0].type;
  kva_expr_ctx *c = n->graph->module->exprs;
  const kva_expr *before = kva_shape_product(c, axis, y->dims);
  for (uint32_t k = 0; k < x->rank; k++)
    if (x->dims[k] == y->dims[axis] && kva_shape_product(c, k, x->dims) == before) return (int)k;
  return KVA_MIXED;
}

kva_value *kva_reshape_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs) {
  (void)n;
  kva_reshape_attrs a = {kva_dims_behind(c, c->batch, ((const kva_reshape_attrs *)attrs)->shape)};
  return kva_build(c->b, KVA_OP_reshape, 1, operands, &a);
}

/* The axis of y whose slices have the elements of those of x along `from`: both axes have equally many elements before
 * them, and the processes divide both. An extent of 1 is passed over. */
static int slices_of(const kva_partition *p, const kva_type *x, uint32_t from, const kva_type *y, kva_dim *out_each) {
  kva_expr_ctx *c = p->b->m->exprs;
  const kva_expr *before = kva_shape_product(c, from, x->dims);
  for (uint32_t k = 0; k < y->rank; k++)
    if (kva_shape_product(c, k, y->dims) == before && kva_divides(p, y->dims[k], out_each)) return (int)k;
  return KVA_WHOLE;
}

bool kva_reshape_partition(kva_partition *p, const kva_node *n) {
  const kva_type *y = n->results[0].type;
  int from = kva_split_axis(p, n, 0);
  kva_dim each, dims[KVA_MAX_RANK];
  int to = slices_of(p, kva_operand_type(n, 0), (uint32_t)from, y, &each);
  if (to == KVA_WHOLE && !kva_partitioned_operand(p, n, 0)->origin) return false;
  if (to == KVA_WHOLE) {
    kva_text type = {0};
    kva_type_print(y, &type);
    kva_refuse_partition(p, n, 0, "makes %s of it, which has no axis that can be cut so", type.data);
    kva_text_free(&type);
    return false;
  }
  memcpy(dims, y->dims, sizeof *dims * y->rank);
  dims[to] = each;
  p->results[0] = kva_reshape(p->b, kva_slice_operand(p, n, 0, (uint32_t)from), y->rank, dims);
  p->axes[0] = to;
  return true;
}
