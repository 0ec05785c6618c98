/* Data-dependent indices. */
#include "ops/index.h"
#include "ops/ids.h"

kva_status kva_index_check(kva_module *m, const kva_node *n, uint32_t operand) {
  kva_dtype t = kva_operand_type(n, operand)->dtype;
  if (t == KVA_I32 || t == KVA_I64) return KVA_OK;
  return kva_operand_error(m, n, operand, "expected indices of int32 or int64, found %s; insert a cast",
                           kva_dtype_name(t));
}

kva_status kva_index_ref(kva_ref *r, const kva_node *n, int64_t index, uint32_t axis, int64_t extent,
                         int64_t *out_index) {
  *out_index = index < 0 ? index + extent : index;
  if (index >= -extent && index < extent) return KVA_OK;
  return kva_error(r->diag, &n->loc, "kv.%s: index %lld is out of range for axis %u of extent %lld", n->op->name,
                   (long long)index, axis, (long long)extent);
}

/* In int32 where the indices are and the extent fits: a vector holds twice as many. */
const kva_expr *kva_index_lower(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *at,
                                kva_dim extent) {
  kva_kb *b = l->kb;
  int64_t known;
  bool narrow =
      kva_operand_type(n, operand)->dtype == KVA_I32 && kva_expr_is_const(extent, &known) && known <= INT32_MAX;
  kva_dtype t = narrow ? KVA_I32 : KVA_I64;
  kva_kval i = kva_k_convert(b, l->operand(l, n, operand, at), t), zero = kva_k_const_i(b, t, 0);
  kva_kval end = narrow ? kva_k_const_i(b, t, known) : kva_k_index(b, extent);
  kva_kval last = narrow ? kva_k_const_i(b, t, known - 1) : kva_k_index(b, kva_expr_addi(b->exprs, extent, -1));
  i = kva_k_select(b, kva_k2(b, KVA_K_lt, i, zero), kva_k2(b, KVA_K_add, i, end), i);
  i = kva_k2(b, KVA_K_max, kva_k2(b, KVA_K_min, i, last), zero);
  return kva_k_symbol(b, kva_k_convert(b, i, KVA_I64));
}

kva_kval kva_index_nonempty(kva_lower *l, kva_kval condition, kva_dim extent) {
  kva_expr_ctx *c = l->kb->exprs;
  const kva_expr *zero = kva_expr_const(c, 0);
  if (kva_expr_provably_less(c, zero, extent)) return condition;
  return kva_k_and(l->kb, condition, kva_k_index_lt(l->kb, zero, extent));
}

uint32_t kva_index_length(const kva_type *indices) {
  int64_t length = 0;
  kva_expr_is_const(indices->dims[indices->rank - 1], &length);
  return (uint32_t)length;
}

/* ---- the operand that holds indices (kva_op_info.indexing) ------------------------------------------------------- */

void kva_index_tuples(const kva_node *n, uint32_t axis, kva_indexing *out) {
  *out = (kva_indexing){.operand = 1, .n = kva_index_length(kva_operand_type(n, 1)), .axis = axis, .from_end = true};
  for (uint32_t k = 0; k < out->n; k++) out->extents[k] = kva_operand_type(n, 0)->dims[axis + k];
}

void kva_index_range(kva_expr_ctx *c, const kva_indexing *x, uint32_t k, kva_dim *low, kva_dim *high) {
  *high = x->extents[k];
  *low = x->from_end ? kva_expr_muli(c, x->extents[k], -1) : kva_expr_const(c, 0);
}

/* Element `at` of the indices; false: it is out of range. Bounds that are not known allow every index. */
static bool is_in_range(kva_expr_ctx *c, const kva_indexing *x, int64_t at, int64_t index) {
  kva_dim low, high;
  int64_t least, end;
  kva_index_range(c, x, (uint32_t)(at % x->n), &low, &high);
  if (x->has_ignored && index == x->ignored) return true;
  if (kva_expr_is_const(low, &least) && index < least) return false;
  return !kva_expr_is_const(high, &end) || index < end;
}

static kva_status constant_error(kva_module *m, const kva_node *n, const kva_indexing *x, int64_t at, int64_t index) {
  kva_dim low, high;
  kva_text text = {0};
  uint32_t k = (uint32_t)(at % x->n);
  kva_index_range(m->exprs, x, k, &low, &high);
  kva_text_add(&text, "index %lld (element %lld) is out of range for axis %u of extent ", (long long)index,
               (long long)at, x->axis + k);
  kva_expr_print(x->extents[k], &text);
  kva_text_add(&text, ": expected ");
  kva_expr_print(low, &text);
  kva_text_add(&text, " to ");
  kva_expr_print(kva_expr_addi(m->exprs, high, -1), &text);
  if (x->has_ignored) kva_text_add(&text, " or %lld", (long long)x->ignored);
  kva_status status = kva_operand_error(m, n, x->operand, "%s", text.data);
  kva_text_free(&text);
  return status;
}

kva_status kva_index_check_constant(kva_module *m, const kva_node *n) {
  kva_indexing x = {0};
  if (!n->op->indexing) return KVA_OK;
  n->op->indexing(n, &x);
  const kva_node *source = kva_operand(n, x.operand)->def;
  if (!source || !kva_is(source, KVA_OP_constant)) return KVA_OK;
  const kva_tensor_data *data = ((const kva_constant_attrs *)source->attrs)->value;
  int64_t elements = kva_tensor_elements(data);
  for (int64_t i = 0; i < elements; i++) {
    int64_t index = kva_load_i64(data->dtype, data->data, i);
    if (!is_in_range(m->exprs, &x, i, index)) return constant_error(m, n, &x, i, index);
  }
  return KVA_OK;
}
