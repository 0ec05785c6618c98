/* Implements check.h. */
#include "ops/check.h"

static const char *type_text(kva_module *m, const kva_type *t) {
  kva_text text = {0};
  kva_type_print(t, &text);
  const char *copy = kva_arena_strdup(m->arena, text.data ? text.data : "");
  kva_text_free(&text);
  return copy;
}

static kva_status check_tensor(kva_module *m, const kva_node *n, uint32_t i, bool ok, const char *expected) {
  const kva_type *t = kva_operand_type(n, i);
  if (t->kind == KVA_TYPE_TENSOR && ok) return KVA_OK;
  return kva_operand_error(m, n, i, "expected a tensor of %s, found %s", expected, type_text(m, t));
}

kva_status kva_check_class(kva_module *m, const kva_node *n, uint32_t i) {
  if (!kva_operand(n, i)) return KVA_OK;
  kva_dtype t = kva_operand_type(n, i)->dtype;
  uint32_t traits = n->op->traits;
  bool ok = ((traits & KVA_FLOAT) && kva_dtype_is_float(t)) || ((traits & KVA_INT) && kva_dtype_is_int(t)) ||
            ((traits & KVA_BOOLEAN) && t == KVA_BOOL) || ((traits & KVA_STRINGS) && t == KVA_STRING);
  static const char *const names[] = {"nothing", "floats",         "integers",         "floats or integers",
                                      "bool",    "floats or bool", "integers or bool", "floats, integers or bool"};
  return check_tensor(m, n, i, ok,
                      names[!!(traits & KVA_FLOAT) + 2 * !!(traits & KVA_INT) + 4 * !!(traits & KVA_BOOLEAN)]);
}

kva_status kva_check_float(kva_module *m, const kva_node *n, uint32_t i) {
  if (!kva_operand(n, i)) return KVA_OK;
  return check_tensor(m, n, i, kva_dtype_is_float(kva_operand_type(n, i)->dtype), "floats");
}

kva_status kva_check_int(kva_module *m, const kva_node *n, uint32_t i) {
  if (!kva_operand(n, i)) return KVA_OK;
  return check_tensor(m, n, i, kva_dtype_is_int(kva_operand_type(n, i)->dtype), "integers");
}

kva_status kva_check_bool(kva_module *m, const kva_node *n, uint32_t i) {
  if (!kva_operand(n, i)) return KVA_OK;
  return check_tensor(m, n, i, kva_operand_type(n, i)->dtype == KVA_BOOL, "bool");
}

kva_status kva_check_same_dtype(kva_module *m, const kva_node *n, uint32_t i, uint32_t as) {
  if (!kva_operand(n, i)) return KVA_OK;
  kva_dtype expected = kva_operand_type(n, as)->dtype;
  return check_tensor(m, n, i, kva_operand_type(n, i)->dtype == expected, kva_dtype_name(expected));
}

kva_status kva_check_rank(kva_module *m, const kva_node *n, uint32_t i, uint32_t rank) {
  if (!kva_operand(n, i) || kva_operand_type(n, i)->rank == rank) return KVA_OK;
  return kva_operand_error(m, n, i, "expected rank %u, found %s", rank, type_text(m, kva_operand_type(n, i)));
}

kva_status kva_check_min_rank(kva_module *m, const kva_node *n, uint32_t i, uint32_t rank) {
  if (!kva_operand(n, i) || kva_operand_type(n, i)->rank >= rank) return KVA_OK;
  return kva_operand_error(m, n, i, "expected rank %u or more, found %s", rank, type_text(m, kva_operand_type(n, i)));
}

kva_status kva_check_shape(kva_module *m, const kva_node *n, uint32_t i, uint32_t rank, const kva_dim *dims) {
  if (!kva_operand(n, i)) return KVA_OK;
  const kva_type *t = kva_operand_type(n, i);
  const kva_type *expected = kva_type_tensor(m, t->dtype, rank, dims);
  if (t == expected) return KVA_OK;
  return kva_operand_error(m, n, i, "expected %s, found %s", type_text(m, expected), type_text(m, t));
}

kva_status kva_check_broadcasts_to(kva_module *m, const kva_node *n, uint32_t i, uint32_t rank, const kva_dim *dims) {
  if (!kva_operand(n, i)) return KVA_OK;
  const kva_type *t = kva_operand_type(n, i);
  bool ok = t->rank <= rank;
  for (uint32_t k = 0; ok && k < t->rank; k++) {
    ok = t->dims[k] == dims[rank - t->rank + k] || kva_expr_is(t->dims[k], 1);
  }
  if (ok) return KVA_OK;
  const kva_type *expected = kva_type_tensor(m, t->dtype, rank, dims);
  return kva_operand_error(m, n, i, "expected a shape that broadcasts to %s, found %s", type_text(m, expected),
                           type_text(m, t));
}

static bool is_byte(kva_dtype t) {
  return t == KVA_I8 || t == KVA_U8;
}

bool kva_sums_bytes(const kva_node *n, kva_dtype to) {
  return to == KVA_I32 && is_byte(kva_operand_type(n, 0)->dtype) && is_byte(kva_operand_type(n, 1)->dtype);
}

kva_status kva_check_result_dtype(kva_module *m, const kva_node *n, kva_dtype to, kva_dtype *out_result) {
  kva_dtype from = kva_operand_type(n, 0)->dtype;
  *out_result = to ? to : from;
  bool widens = kva_dtype_is_float(from) && to == KVA_F32 && kva_dtype_bits(from) < 32;
  if (*out_result == from || widens) return KVA_OK;
  return kva_error(m->diag, &n->loc,
                   "kv.%s: a result of %s from operands of %s: expected their type, or float from "
                   "narrower floats",
                   n->op->name, kva_dtype_name(to), kva_dtype_name(from));
}
