/* Rule: Gradient, by the operators' own rules (ops/adjoints.h): nodes that compute dy/dx are part of the import. */
#include "frontend/onnx_rules.h"
#include "ops/adjoints.h"

/* The inputs are the values of `xs`, then of `zs`. A gradient at other values would be one of a copy of the graph. */
static kva_status check_inputs(kva_onnx_call *k, const kva_onnx_attr *names, uint32_t first) {
  for (uint32_t i = 0; names && i < names->n; i++) {
    kva_value *named = k->c->value_named ? k->c->value_named(k->c->scope, names->strings[i]) : NULL;
    if (!named || kva_onnx_in(k, first + i) != named)
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "input %u is not '%s': gradients at other values", first + i,
                           names->strings[i]);
    if (named->graph != k->b->graph)
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "'%s' is of another graph", names->strings[i]);
  }
  return KVA_OK;
}

static kva_status read_gradient(kva_onnx_call *k, const kva_onnx_attr **out_xs, kva_value **out_y) {
  const kva_onnx_attr *xs = kva_onnx_find_attr(k, "xs"), *zs = kva_onnx_find_attr(k, "zs");
  const char *y = kva_onnx_string(k, "y", "");
  if (!xs || xs->kind != KVA_ONNX_STRINGS || (zs && zs->kind != KVA_ONNX_STRINGS) ||
      k->n->n_inputs != xs->n + (zs ? zs->n : 0) || k->n->n_outputs > xs->n)
    return kva_onnx_fail(k, KVA_INVALID, "xs, zs, inputs and outputs do not fit each other");
  KVA_TRY(check_inputs(k, xs, 0));
  KVA_TRY(check_inputs(k, zs, xs->n));
  *out_xs = xs;
  *out_y = k->c->value_named(k->c->scope, y);
  if (!*out_y || (*out_y)->graph != k->b->graph || !kva_dtype_is_float((*out_y)->type->dtype) ||
      !kva_expr_is(kva_type_elements(k->b->m, (*out_y)->type), 1))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "y is '%s', expected one float of this graph", y);
  return KVA_OK;
}

kva_status kva_onnx_gradient(kva_onnx_call *k) {
  kva_builder *b = k->b;
  const kva_onnx_attr *xs = NULL;
  kva_value *y = NULL;
  KVA_TRY(read_gradient(k, &xs, &y));
  const kva_node *last = b->graph->last;
  kva_value **adjoint = KVA_NEW_ARRAY(k->c->arena, kva_value *, b->m->next_value_id + 1);
  bool *active = KVA_NEW_ARRAY(k->c->arena, bool, b->m->next_value_id + 1);
  for (uint32_t i = 0; i < xs->n; i++) active[kva_onnx_in(k, i)->id] = true;
  adjoint[y->id] = kva_expand_like(b, kva_const_scalar(b, y->type->dtype, 1), y->type);
  KVA_TRY(kva_build_adjoints(b, last, active, adjoint, NULL, k->c->arena));
  for (uint32_t i = 0; i < k->n->n_outputs; i++) {
    const kva_value *x = kva_onnx_in(k, i);
    kva_onnx_set_out(k, i, adjoint[x->id] ? adjoint[x->id] : kva_zeros(b, x->type));
  }
  return KVA_OK;
}
