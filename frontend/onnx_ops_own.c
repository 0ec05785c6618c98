/* Rule: calls of domain "ai.kvasir", which represent Kvasir's operators. The operator's attribute description
 * determines how attributes are read; onnx_export_function.c writes them by the same description. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

/* Doubles that no float attribute means (kva_onnx_float) are tensors. */
static double read_float(kva_onnx_call *k, const kva_attr_field *f) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, f->name);
  double v;
  if (a && a->kind == KVA_ONNX_TENSOR && a->tensor->dtype == KVA_F64 && a->tensor->bytes == sizeof v)
    return memcpy(&v, a->tensor->data, sizeof v), v;
  return kva_onnx_float(k, f->name, f->default_value);
}

/* A number is an attribute; an expression over extents is input `input`. */
static kva_status read_dim(kva_onnx_call *k, const kva_attr_field *f, uint32_t input, kva_dim *out) {
  kva_dims dims;
  if (!kva_onnx_in(k, input)) {
    if (kva_onnx_find_attr(k, f->name)) *out = kva_expr_const(kva_onnx_exprs(k), kva_onnx_int(k, f->name, 0));
    return KVA_OK;
  }
  KVA_TRY(kva_onnx_need_dims(k, input, f->name, &dims));
  if (dims.n != 1) return kva_onnx_fail(k, KVA_INVALID, "input %u (%s): expected one number", input, f->name);
  *out = dims.v[0];
  return KVA_OK;
}

static kva_status read_attrs(kva_onnx_call *k, const kva_op_info *op, void *attrs) {
  uint32_t input = (uint32_t)op->max_operands;
  for (uint32_t i = 0; op->attrs && i < op->attrs->n_fields; i++) {
    const kva_attr_field *f = &op->attrs->fields[i];
    void *at = (char *)attrs + f->offset;
    switch (f->kind) {
    case KVA_ATTR_INT: *(int64_t *)at = kva_onnx_int(k, f->name, (int64_t)f->default_value); break;
    case KVA_ATTR_BOOL: *(bool *)at = kva_onnx_int(k, f->name, f->default_value != 0) != 0; break;
    case KVA_ATTR_FLOAT: *(double *)at = read_float(k, f); break;
    case KVA_ATTR_STR: *(const char **)at = kva_onnx_string(k, f->name, NULL); break;
    case KVA_ATTR_DIM: KVA_TRY(read_dim(k, f, input++, at)); break;
    default: KVA_ASSERT(!"an operator of onnx_ops.def with an attribute that ONNX cannot hold");
    }
  }
  return KVA_OK;
}

kva_status kva_onnx_own(kva_onnx_call *k) {
  const kva_op_info *op = kva_ops.ops[k->arg];
  void *attrs = op->attrs ? kva_attrs_default(k->c->arena, op->attrs) : NULL;
  uint32_t n = k->n->n_inputs < (uint32_t)op->max_operands ? k->n->n_inputs : (uint32_t)op->max_operands;
  KVA_TRY(read_attrs(k, op, attrs));
  while (n && !k->n->inputs[n - 1]) n--;
  kva_node *made = kva_build_node(k->b, (kva_op_id)op->id, n, k->n->inputs, 0, attrs);
  for (uint32_t i = 0; i < made->n_results; i++) kva_onnx_set_out(k, i, kva_result(made, i));
  return KVA_OK;
}
