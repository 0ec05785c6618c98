/* Shared by elementwise operators: broadcasting in types, reference and kernels; also the error helpers of all infer
 * functions. */
#include "ops/elementwise.h"

#include <stdarg.h>

/* ---- infer ------------------------------------------------------------------------------------------------------- */

kva_status kva_operand_error(kva_module *m, const kva_node *n, uint32_t operand, const char *fmt, ...) {
  char text[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return kva_error(m->diag, &n->loc, "kv.%s: operand %u: %s", n->op->name, operand, text);
}

kva_status kva_normalize_axis(kva_module *m, const kva_node *n, int64_t axis, uint32_t rank, uint32_t *out_axis) {
  if (axis < -(int64_t)rank || axis >= (int64_t)rank)
    return kva_error(m->diag, &n->loc, "kv.%s: axis %lld is outside [-%u, %u) of a tensor of rank %u", n->op->name,
                     (long long)axis, rank, rank, rank);
  *out_axis = (uint32_t)(axis < 0 ? axis + rank : axis);
  return KVA_OK;
}

static kva_status mismatch(kva_module *m, const kva_node *n, uint32_t n_types, const kva_type *const *types,
                           uint32_t axis_from_right) {
  kva_text text = {0};
  for (uint32_t i = 0; i < n_types; i++) {
    if (i) kva_text_add(&text, " and ");
    kva_type_print(types[i], &text);
  }
  kva_error(m->diag, &n->loc, "kv.%s: shapes %s do not broadcast (axis %u from the right): extents must be equal or 1",
            n->op->name, text.data, axis_from_right);
  kva_text_free(&text);
  return KVA_INVALID;
}

kva_status kva_broadcast_types(kva_module *m, const kva_node *n, uint32_t n_types, const kva_type *const *types,
                               uint32_t *out_rank, kva_dim *out_dims) {
  uint32_t rank = 0;
  for (uint32_t i = 0; i < n_types; i++) rank = types[i]->rank > rank ? types[i]->rank : rank;
  for (uint32_t k = 1; k <= rank; k++) {
    kva_dim dim = NULL;
    for (uint32_t i = 0; i < n_types; i++) {
      if (types[i]->rank < k) continue;
      kva_dim d = types[i]->dims[types[i]->rank - k];
      if (!dim || kva_expr_is(dim, 1))
        dim = d;
      else if (d != dim && !kva_expr_is(d, 1))
        return mismatch(m, n, n_types, types, k);
    }
    out_dims[rank - k] = dim;
  }
  *out_rank = rank;
  return KVA_OK;
}

kva_status kva_elementwise_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *types[4];
  KVA_ASSERT(n->n_operands >= 1 && n->n_operands <= 4);
  KVA_TRY(kva_check_class(m, n, 0));
  for (uint32_t i = 0; i < n->n_operands; i++) {
    types[i] = kva_operand_type(n, i);
    KVA_TRY(kva_check_same_dtype(m, n, i, 0));
  }
  uint32_t rank;
  kva_dim dims[KVA_MAX_RANK];
  KVA_TRY(kva_broadcast_types(m, n, n->n_operands, types, &rank, dims));
  kva_dtype dtype = n->op->traits & KVA_BOOL_RESULT ? KVA_BOOL : types[0]->dtype;
  out_types[0] = kva_type_tensor(m, dtype, rank, dims);
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

int64_t kva_ref_broadcast_offset(const kva_ref_tensor *w, uint32_t rank, const int64_t *idx) {
  int64_t offset = 0;
  uint32_t skip = rank - w->rank;
  for (uint32_t i = 0; i < w->rank; i++) offset = offset * w->dims[i] + (w->dims[i] == 1 ? 0 : idx[skip + i]);
  return offset;
}

bool kva_next_index(uint32_t rank, const int64_t *dims, int64_t *idx) {
  for (uint32_t i = rank; i-- > 0;) {
    if (++idx[i] < dims[i]) return true;
    idx[i] = 0;
  }
  return false;
}

void kva_ref_map1(const kva_ref_tensor *x, kva_ref_tensor *y, double (*f)(double), int64_t (*g)(int64_t)) {
  for (int64_t i = 0; i < y->n; i++) {
    if (x->f && y->f)
      y->f[i] = f(x->f[i]);
    else if (x->f)
      y->i[i] = (int64_t)f(x->f[i]); /* float -> bool: is_nan and the like */
    else
      y->i[i] = g(x->i[i]);
  }
}

void kva_ref_map2(const kva_ref_tensor *x, const kva_ref_tensor *y, kva_ref_tensor *z, double (*f)(double, double),
                  int64_t (*g)(int64_t, int64_t)) {
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < z->n; i++, kva_next_index(z->rank, z->dims, idx)) {
    int64_t a = kva_ref_broadcast_offset(x, z->rank, idx), b = kva_ref_broadcast_offset(y, z->rank, idx);
    if (x->f && z->f)
      z->f[i] = f(x->f[a], y->f[b]);
    else if (x->f)
      z->i[i] = (int64_t)f(x->f[a], y->f[b]); /* comparisons */
    else
      z->i[i] = g(x->i[a], y->i[b]);
  }
}

/* ---- lower ------------------------------------------------------------------------------------------------------- */

kva_kval kva_lower_broadcast(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx) {
  const kva_type *type = kva_operand_type(n, operand);
  uint32_t skip = n->results[0].type->rank - type->rank;
  const kva_expr *at[KVA_MAX_RANK];
  for (uint32_t i = 0; i < type->rank; i++)
    at[i] = kva_expr_is(type->dims[i], 1) ? kva_expr_const(l->kb->exprs, 0) : idx[skip + i];
  return l->operand(l, n, operand, at);
}
