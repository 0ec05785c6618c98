/* The builder: nodes with inferred types. After a failure it stops inferring, so that each mistake is reported once;
 * what is built on top of it is harmless until the caller checks `failed`. */
#include "ops/build.h"
#include "ops/ids.h"
#include "ops/index.h"
#include "ops/shape.h"

static void *copy_attrs(kva_builder *b, const kva_op_info *op, const void *attrs) {
  kva_arena *arena = b->m->arena;
  if (!op->attrs) return NULL;
  if (!attrs) return kva_attrs_default(arena, op->attrs);
  char *copy = kva_arena_memdup(arena, attrs, op->attrs->size);
  for (uint32_t i = 0; i < op->attrs->n_fields; i++) {
    const kva_attr_field *field = &op->attrs->fields[i];
    void *at = copy + field->offset;
    if (field->kind == KVA_ATTR_INTS) {
      kva_ints *v = at;
      v->v = v->n ? kva_arena_memdup(arena, v->v, v->n * sizeof *v->v) : NULL;
    } else if (field->kind == KVA_ATTR_DIMS || field->kind == KVA_ATTR_SYMBOLS) {
      kva_dims *v = at;
      v->v = v->n ? kva_arena_memdup(arena, v->v, v->n * sizeof *v->v) : NULL;
    } else if (field->kind == KVA_ATTR_STR) {
      const char **v = at;
      *v = *v ? kva_arena_strdup(arena, *v) : NULL;
    }
  }
  return copy;
}

static kva_status check_operands(kva_builder *b, const kva_op_info *op, uint32_t n, kva_value *const *operands) {
  if (n < (uint32_t)op->min_operands || (op->max_operands >= 0 && n > (uint32_t)op->max_operands)) {
    if (op->max_operands < 0)
      return kva_error(b->m->diag, &b->loc, "kv.%s: expected at least %d operands, found %u", op->name,
                       op->min_operands, n);
    return kva_error(b->m->diag, &b->loc, "kv.%s: expected %d to %d operands, found %u", op->name, op->min_operands,
                     op->max_operands, n);
  }
  for (uint32_t i = 0; i < n; i++) {
    if (!operands[i] && (int)i < op->min_operands)
      return kva_error(b->m->diag, &b->loc, "kv.%s: operand %u is required but was left out", op->name, i);
    if (operands[i] && operands[i]->type->kind != KVA_TYPE_TENSOR)
      return kva_error(b->m->diag, &b->loc, "kv.%s: operand %u: expected a tensor, found a sequence or optional",
                       op->name, i);
  }
  return KVA_OK;
}

static kva_status infer_results(kva_builder *b, kva_node *n) {
  const kva_type **types = KVA_NEW_ARRAY(b->m->arena, const kva_type *, n->n_results + 1);
  kva_task task = {.what = "operator", .name = n->op->name, .loc = &n->loc};
  kva_task_begin(&task);
  kva_status status = n->op->infer(b->m, n, types);
  kva_task_end(&task);
  for (uint32_t i = 0; i < n->n_results && status == KVA_OK; i++) n->results[i].type = types[i];
  return status == KVA_OK ? kva_index_check_constant(b->m, n) : status;
}

static void set_harmless_types(kva_builder *b, kva_node *n) {
  kva_value *first = n->n_operands ? kva_operand(n, 0) : NULL;
  const kva_type *type = first ? first->type : kva_type_scalar(b->m, KVA_F32);
  for (uint32_t i = 0; i < n->n_results; i++) n->results[i].type = type;
}

kva_node *kva_build_node(kva_builder *b, kva_op_id id, uint32_t n_operands, kva_value *const *operands,
                         uint32_t n_results, const void *attrs) {
  const kva_op_info *op = kva_ops.ops[id];
  if (op->n_results >= 0) n_results = (uint32_t)op->n_results;
  void *own = copy_attrs(b, op, attrs);
  if (b->assumes && !b->failed && n_operands > 1) {
    operands = kva_arena_memdup(b->m->arena, operands, n_operands * sizeof *operands);
    kva_assume_agreement(b, op, own, n_operands, (kva_value **)(uintptr_t)operands);
  }
  kva_node *n = kva_node_create(b->graph, b->before, op, n_operands, operands, n_results, own, b->loc);
  if (!b->failed) b->failed = check_operands(b, op, n_operands, operands) != KVA_OK || infer_results(b, n) != KVA_OK;
  if (b->failed) set_harmless_types(b, n);
  return n;
}

kva_value *kva_build(kva_builder *b, kva_op_id op, uint32_t n_operands, kva_value *const *operands, const void *attrs) {
  return kva_result(kva_build_node(b, op, n_operands, operands, 1, attrs), 0);
}

kva_value *kva_build1(kva_builder *b, kva_op_id op, kva_value *x) {
  return kva_build(b, op, 1, (kva_value *[]){x}, NULL);
}

kva_value *kva_build2(kva_builder *b, kva_op_id op, kva_value *x, kva_value *y) {
  return kva_build(b, op, 2, (kva_value *[]){x, y}, NULL);
}

kva_value *kva_build3(kva_builder *b, kva_op_id op, kva_value *x, kva_value *y, kva_value *z) {
  return kva_build(b, op, 3, (kva_value *[]){x, y, z}, NULL);
}

kva_value *kva_add(kva_builder *b, kva_value *x, kva_value *y) {
  return kva_build2(b, KVA_OP_add, x, y);
}

kva_value *kva_sub(kva_builder *b, kva_value *x, kva_value *y) {
  return kva_build2(b, KVA_OP_sub, x, y);
}

kva_value *kva_mul(kva_builder *b, kva_value *x, kva_value *y) {
  return kva_build2(b, KVA_OP_mul, x, y);
}

kva_value *kva_div(kva_builder *b, kva_value *x, kva_value *y) {
  return kva_build2(b, KVA_OP_div, x, y);
}

kva_value *kva_neg(kva_builder *b, kva_value *x) {
  return kva_build1(b, KVA_OP_neg, x);
}

kva_value *kva_const_tensor(kva_builder *b, const kva_tensor_data *data) {
  return kva_build(b, KVA_OP_constant, 0, NULL, &(kva_constant_attrs){.value = data});
}

static kva_tensor_data *new_data(kva_builder *b, kva_dtype t, uint32_t rank, int64_t n) {
  kva_tensor_data *data = KVA_NEW(b->m->arena, kva_tensor_data);
  int64_t *dims = KVA_NEW_ARRAY(b->m->arena, int64_t, 1);
  dims[0] = n;
  *data = (kva_tensor_data){.dtype = t, .rank = rank, .dims = dims};
  KVA_ASSERT(kva_dtype_bytes(t, n, &data->bytes));
  data->data = kva_arena_alloc(b->m->arena, (size_t)data->bytes + 1);
  return data;
}

kva_value *kva_const_scalar(kva_builder *b, kva_dtype t, double v) {
  kva_tensor_data *data = new_data(b, t, 0, 1);
  kva_store_f64(t, (void *)data->data, 0, v);
  return kva_const_tensor(b, data);
}

kva_value *kva_const_i64s(kva_builder *b, uint32_t n, const int64_t *v) {
  kva_tensor_data *data = new_data(b, KVA_I64, 1, n);
  if (n) memcpy((void *)data->data, v, n * sizeof *v);
  return kva_const_tensor(b, data);
}

kva_value *kva_scalar_like(kva_builder *b, const kva_value *x, double v) {
  return kva_const_scalar(b, x->type->dtype, v);
}

kva_value *kva_dim_scalar(kva_builder *b, kva_dtype t, kva_dim e) {
  int64_t v;
  if (kva_expr_is_const(e, &v)) return kva_const_scalar(b, t, (double)v);
  kva_dims_attrs attrs = {.values = {1, &e}, .scalar = true};
  return kva_cast(b, kva_build(b, KVA_OP_dims, 0, NULL, &attrs), t);
}

kva_value *kva_cast(kva_builder *b, kva_value *x, kva_dtype to) {
  if (x->type->dtype == to) return x;
  return kva_build(b, KVA_OP_cast, 1, &x, &(kva_cast_attrs){.to = to, .saturate = true});
}

static bool same_dims(const kva_type *t, uint32_t rank, const kva_dim *dims) {
  return t->rank == rank && (!rank || !memcmp(t->dims, dims, rank * sizeof *dims));
}

/* x with a number of elements that is not provably that of the shape, flat; x itself if there is nothing to assume. */
static kva_value *with_elements_of(kva_builder *b, kva_value *x, uint32_t rank, const kva_dim *shape) {
  if (!b->assumes || b->failed || rank > KVA_MAX_RANK) return x;
  kva_dim from = kva_type_elements(b->m, x->type), to = kva_shape_product(b->m->exprs, rank, shape);
  bool known = kva_expr_is_const(from, NULL) && kva_expr_is_const(to, NULL);
  if (from == to || known) return x;
  x = kva_build(b, KVA_OP_reshape, 1, &x, &(kva_reshape_attrs){.shape = {1, &from}});
  return kva_assume(b, x, &to, "the elements of a reshape");
}

kva_value *kva_reshape(kva_builder *b, kva_value *x, uint32_t rank, const kva_dim *shape) {
  if (same_dims(x->type, rank, shape)) return x;
  x = with_elements_of(b, x, rank, shape);
  return kva_build(b, KVA_OP_reshape, 1, &x, &(kva_reshape_attrs){.shape = {rank, shape}});
}

kva_value *kva_reshape_like(kva_builder *b, kva_value *x, const kva_type *type) {
  return kva_reshape(b, x, type->rank, type->dims);
}

kva_value *kva_transpose(kva_builder *b, kva_value *x, const int64_t *perm) {
  uint32_t rank = x->type->rank;
  bool identity = true;
  for (uint32_t i = 0; i < rank; i++) identity &= perm[i] == (int64_t)i;
  if (identity) return x;
  return kva_build(b, KVA_OP_transpose, 1, &x, &(kva_transpose_attrs){.perm = {rank, perm}});
}

kva_value *kva_expand(kva_builder *b, kva_value *x, uint32_t rank, const kva_dim *shape) {
  if (same_dims(x->type, rank, shape)) return x;
  return kva_build(b, KVA_OP_expand, 1, &x, &(kva_expand_attrs){.shape = {rank, shape}});
}

kva_value *kva_expand_like(kva_builder *b, kva_value *x, const kva_type *type) {
  return kva_expand(b, x, type->rank, type->dims);
}

kva_value *kva_reduce(kva_builder *b, kva_op_id op, kva_value *x, uint32_t n_axes, const int64_t *axes, bool keepdims) {
  if (!x->type->rank) return x;
  return kva_build(b, op, 1, &x, &(kva_reduce_sum_attrs){.axes = {n_axes, axes}, .keepdims = keepdims});
}

kva_value *kva_reduce_to(kva_builder *b, kva_value *x, const kva_type *type) {
  if (b->failed || same_dims(x->type, type->rank, type->dims)) return x;
  int64_t axes[KVA_MAX_RANK];
  uint32_t n = 0, extra = x->type->rank - type->rank;
  KVA_ASSERT(x->type->rank >= type->rank);
  for (uint32_t i = 0; i < x->type->rank; i++) {
    bool summed = i < extra || (kva_expr_is(type->dims[i - extra], 1) && !kva_expr_is(x->type->dims[i], 1));
    if (summed) axes[n++] = i;
  }
  if (n) x = kva_reduce(b, KVA_OP_reduce_sum, x, n, axes, true);
  return kva_reshape_like(b, x, type);
}

kva_value *kva_matmul(kva_builder *b, kva_value *x, kva_value *y, bool transpose_x, bool transpose_y) {
  kva_matmul_attrs attrs = {.transpose_a = transpose_x, .transpose_b = transpose_y};
  return kva_build(b, KVA_OP_matmul, 2, (kva_value *[]){x, y}, &attrs);
}

kva_value *kva_zeros(kva_builder *b, const kva_type *type) {
  return kva_expand_like(b, kva_const_scalar(b, type->dtype, 0), type);
}
