/* Implements shape_values.h. */
#include "ops/shape_values.h"
#include "ops/build.h"

static bool broadcasts(const kva_shape_values *v, const kva_dims *d) {
  return d && (d->n == 1 || d->n == v->len);
}

bool kva_shape_values_pair(kva_shape_values *v, const kva_node *n, uint32_t i, const kva_dims **a, const kva_dims **b) {
  *a = v->operand(v, n, i);
  *b = v->operand(v, n, i + 1);
  return broadcasts(v, *a) && broadcasts(v, *b);
}

bool kva_shape_values_map2(kva_shape_values *v, const kva_node *n, kva_shape_value_fn f) {
  const kva_dims *a, *b;
  if (!kva_shape_values_pair(v, n, 0, &a, &b)) return false;
  for (uint32_t i = 0; i < v->len; i++)
    if (!(v->out[i] = f(v->exprs, kva_shape_value(a, i), kva_shape_value(b, i)))) return false;
  return true;
}

bool kva_shape_values_reduce(kva_shape_values *v, const kva_node *n, kva_shape_value_fn f) {
  const kva_dims *a = v->operand(v, n, 0);
  if (!a || v->len != 1 || !a->n) return false;
  v->out[0] = a->v[0];
  for (uint32_t i = 1; i < a->n; i++) v->out[0] = f(v->exprs, v->out[0], a->v[i]);
  return true;
}

bool kva_shape_values_same(kva_shape_values *v, const kva_node *n) {
  const kva_dims *a = v->operand(v, n, 0);
  if (!broadcasts(v, a)) return false;
  for (uint32_t i = 0; i < v->len; i++) v->out[i] = kva_shape_value(a, i);
  return true;
}

/* Known elements are few, so their extents are numbers. */
static void known_extents(const kva_type *t, int64_t *out_dims) {
  for (uint32_t k = 0; k < t->rank; k++) (void)kva_expr_is_const(t->dims[k], &out_dims[k]);
}

/* Row-major; -1: outside. */
static int64_t offset_of(uint32_t rank, const int64_t *dims, const int64_t *at) {
  int64_t offset = 0;
  for (uint32_t k = 0; k < rank; k++) {
    if (at[k] < 0 || at[k] >= dims[k]) return -1;
    offset = offset * dims[k] + at[k];
  }
  return offset;
}

bool kva_shape_values_move(kva_shape_values *v, const kva_node *n, kva_shape_value_source source) {
  const kva_dims *a = v->operand(v, n, 0);
  if (!a) return false;
  const kva_type *x = kva_operand_type(n, 0), *y = n->results[0].type;
  int64_t x_dims[KVA_MAX_RANK], y_dims[KVA_MAX_RANK], at[KVA_MAX_RANK] = {0}, from[KVA_MAX_RANK] = {0};
  known_extents(x, x_dims);
  known_extents(y, y_dims);
  for (uint32_t i = 0; i < v->len; i++, kva_next_index(y->rank, y_dims, at)) {
    if (!source(n, at, from)) return false;
    int64_t offset = offset_of(x->rank, x_dims, from);
    if (offset < 0) return false;
    v->out[i] = a->v[offset];
  }
  return true;
}

/* Excludes division by zero: a constant divisor must be positive, a symbolic one, an extent, must not be negative. */
bool kva_shape_value_divides(kva_dim b) {
  int64_t lo;
  return kva_expr_lower_bound(b, &lo) && lo >= (kva_expr_is_const(b, NULL) ? 1 : 0);
}
