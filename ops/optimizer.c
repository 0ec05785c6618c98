/* Implements optimizer.h. */
#include "ops/optimizer.h"
#include "ops/check.h"
#include "ops/ids.h"

#include <stddef.h>

const kva_op_info *kva_optimizer_find(const char *name) {
  const kva_op_info *op = kva_op_set_find(&kva_ops, name, strlen(name));
  return op && op->traits & KVA_UPDATES ? op : NULL;
}

uint32_t kva_optimizer_names(const char **out_names) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < kva_ops.n; i++)
    if (kva_ops.ops[i]->traits & KVA_UPDATES) out_names[n++] = kva_ops.ops[i]->name;
  return n;
}

const char *kva_optimizer_list(kva_arena *arena) {
  const char *names[KVA_OP_COUNT], *list = "";
  uint32_t n = kva_optimizer_names(names);
  for (uint32_t i = 0; i < n; i++) list = kva_arena_printf(arena, "%s%s%s", list, i ? ", " : "", names[i]);
  return list;
}

double kva_optimizer_default(const kva_op_info *op, const kva_attr_field *number) {
  const kva_attr_field *own = kva_attrs_find(op->attrs, number->name, strlen(number->name));
  return own ? own->default_value : number->default_value;
}

void *kva_optimizer_attrs(kva_arena *arena, const kva_op_info *op, const kva_train_spec *spec, double weight_decay) {
  char *attrs = kva_attrs_default(arena, op->attrs);
  for (uint32_t i = 0; i < op->attrs->n_fields; i++) {
    const kva_attr_field *to = &op->attrs->fields[i];
    const kva_attr_field *from = kva_attrs_find(&kva_train_numbers, to->name, strlen(to->name));
    if (!from) continue;
    bool decay = from->offset == offsetof(kva_train_spec, weight_decay);
    *(double *)(attrs + to->offset) = decay ? weight_decay : *(const double *)((const char *)spec + from->offset);
  }
  return attrs;
}

kva_status kva_optimizer_infer(kva_module *m, const kva_node *n, uint32_t n_tensors, uint32_t n_results,
                               const kva_type **out_types) {
  const kva_type *p = kva_operand_type(n, 0);
  KVA_TRY(kva_check_float(m, n, 0));
  for (uint32_t i = 1; i < n_tensors; i++) {
    KVA_TRY(kva_check_same_dtype(m, n, i, 0));
    KVA_TRY(kva_check_shape(m, n, i, p->rank, p->dims));
  }
  KVA_TRY(kva_check_float(m, n, n_tensors));
  KVA_TRY(kva_check_rank(m, n, n_tensors, 0));
  for (uint32_t i = 0; i < n_results; i++) out_types[i] = p;
  return KVA_OK;
}

kva_kval kva_optimizer_operand(kva_lower *l, const kva_node *n, uint32_t i, const kva_expr *const *idx) {
  kva_dtype t = kva_k_compute_type(kva_operand_type(n, 0)->dtype);
  return kva_k_convert(l->kb, kva_lower_broadcast(l, n, i, idx), t);
}

kva_kval kva_k_scaled(kva_lower *l, kva_kval x, double scale, kva_kval y) {
  return kva_k_op(l->kb, KVA_K_fma, x, kva_k_const(l->kb, x->dtype, scale), y);
}

double kva_decayed(double g, double weight_decay, double p) {
  return weight_decay == 0 ? g : g + weight_decay * p;
}

kva_kval kva_decayed_gradient(kva_lower *l, const kva_node *n, double weight_decay, const kva_expr *const *idx) {
  kva_kval g = kva_optimizer_operand(l, n, 1, idx);
  return weight_decay == 0 ? g : kva_k_scaled(l, kva_optimizer_operand(l, n, 0, idx), weight_decay, g);
}
