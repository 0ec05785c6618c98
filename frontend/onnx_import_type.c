/* Types of graph inputs, and the shape symbols that they declare. */
#include "frontend/onnx_import.h"

#include <stdlib.h>

/* Maximum number of elements of a tensor: byte sizes of all types stay in range. */
static const int64_t max_elements = INT64_C(1) << 58;

/* `name` with all but letters, digits and underscores replaced; not empty and without a leading digit. */
static char *identifier(kva_arena *arena, const char *name) {
  bool prefix = !*name || (*name >= '0' && *name <= '9');
  char *copy = kva_arena_printf(arena, "%s%s", prefix ? "_" : "", name);
  for (char *p = copy; *p; p++) {
    bool fine = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_';
    if (!fine) *p = '_';
  }
  return copy;
}

static const char *unique_symbol(kva_import *im, const char *name) {
  char *base = identifier(im->m->arena, name), *unique = base;
  for (int i = 2; kva_map_get_str(im->used_names, unique); i++)
    unique = kva_arena_printf(im->m->arena, "%s_%d", base, i);
  kva_map_set_str(im->used_names, unique, im);
  return unique;
}

/* Kept in order of the options; kva_import_check_pins rejects more than 64 pins. */
kva_status kva_import_pin(kva_import *im, const char *name, kva_dim *out) {
  const kva_load_options *o = im->options;
  for (uint32_t i = 0; o && i < o->n_pins; i++) {
    if (strcmp(o->pins[i].name, name)) continue;
    im->pins_used |= UINT64_C(1) << (i & 63);
    char *end;
    long long v = strtoll(o->pins[i].value, &end, 10);
    if (*end || end == o->pins[i].value || v < 0)
      return kva_error(im->c.diag, &im->loc, "pin %s=%s: expected a number that is not negative", name,
                       o->pins[i].value);
    *out = kva_expr_const(im->m->exprs, v);
  }
  return KVA_OK;
}

/* The symbol of a dim_param (`key` not NULL, shared by equal names) or a fresh one. */
static kva_status symbol(kva_import *im, const char *key, const char *name, kva_dim *out) {
  *out = key ? kva_map_get_str(im->symbols, key) : NULL;
  if (*out) return KVA_OK;
  const char *unique = unique_symbol(im, name);
  *out = kva_expr_symbol(im->m->exprs, unique);
  KVA_TRY(kva_import_pin(im, unique, out));
  /* As the file calls it, too, unless another symbol may have that name here. */
  if (key && strcmp(key, identifier(im->m->arena, key)) != 0) KVA_TRY(kva_import_pin(im, key, out));
  if (key) kva_map_set_str(im->symbols, key, (void *)*out);
  return KVA_OK;
}

/* Equal names are equal extents, except in elements of a sequence (not `shared`), which may differ. */
static kva_status import_dim(kva_import *im, const char *input, uint32_t axis, bool shared,
                             const Onnx__TensorShapeProto__Dimension *d, kva_dim *out) {
  if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) {
    if (d->dim_value < 0)
      return kva_error(im->c.diag, &im->loc, "input '%s': dimension %u is negative (%lld)", input, axis,
                       (long long)d->dim_value);
    if (shared && im->options && im->options->free_batch && axis == 0 && d->dim_value == 1)
      return symbol(im, "B", "B", out);
    if (shared && im->options && im->options->free_extents && d->dim_value > 1)
      return symbol(im, NULL, kva_arena_printf(im->m->arena, "%s_%u", input, axis), out);
    *out = kva_expr_const(im->m->exprs, d->dim_value);
    return KVA_OK;
  }
  bool named =
      shared && d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM && d->dim_param && *d->dim_param;
  const char *name = named ? d->dim_param : kva_arena_printf(im->m->arena, "%s_%u", input, axis);
  return symbol(im, named ? name : NULL, name, out);
}

static kva_status check_elements(kva_import *im, const char *input, uint32_t rank, const kva_dim *dims) {
  int64_t n = 1, d;
  for (uint32_t i = 0; i < rank; i++)
    if (kva_expr_is_const(dims[i], &d) && d > 0 && (!kva_mul_size(n, d, &n) || n > max_elements))
      return kva_error(im->c.diag, &im->loc, "input '%s': its shape holds more elements than memory can", input);
  return KVA_OK;
}

static kva_status tensor_type(kva_import *im, const char *name, bool shared, const Onnx__TypeProto__Tensor *t,
                              const kva_type **out) {
  kva_diag *diag = im->c.diag;
  if (t->elem_type <= 0 || t->elem_type >= KVA_DTYPE_COUNT)
    return kva_error(diag, &im->loc, "input '%s': unknown data type %d", name, t->elem_type);
  kva_dtype dtype = (kva_dtype)t->elem_type;
  if (dtype == KVA_C64 || dtype == KVA_C128)
    return kva_fail(diag, KVA_UNSUPPORTED, &im->loc, "input '%s': %s tensors are not supported", name,
                    kva_dtype_name(dtype));
  if (!t->shape)
    return kva_fail(diag, KVA_UNSUPPORTED, &im->loc, "input '%s': its rank is unknown; give it a shape", name);
  if (t->shape->n_dim > KVA_MAX_RANK)
    return kva_fail(diag, KVA_UNSUPPORTED, &im->loc, "input '%s': rank %zu is more than the supported %d", name,
                    t->shape->n_dim, KVA_MAX_RANK);
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = (uint32_t)t->shape->n_dim;
  for (uint32_t i = 0; i < rank; i++) KVA_TRY(import_dim(im, name, i, shared, t->shape->dim[i], &dims[i]));
  KVA_TRY(check_elements(im, name, rank, dims));
  *out = kva_type_tensor(im->m, dtype, rank, dims);
  return KVA_OK;
}

kva_status kva_import_type(kva_import *im, const kva_pb_value_info *v, const kva_type **out) {
  const char *name = kva_pb_str(v->name);
  if (!v->type || v->type->value_case == ONNX__TYPE_PROTO__VALUE__NOT_SET)
    return kva_error(im->c.diag, &im->loc, "input '%s' has no type", name);
  if (v->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
    return kva_fail(im->c.diag, KVA_UNSUPPORTED, &im->loc, "input '%s': maps and sparse tensors are not supported",
                    name);
  return tensor_type(im, name, true, v->type->tensor_type, out);
}

static const kva_pb_type *element_of(const kva_pb_type *t, Onnx__TypeProto__ValueCase value_case) {
  if (!t || t->value_case != value_case) return NULL;
  return value_case == ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE ? t->sequence_type->elem_type
                                                             : t->optional_type->elem_type;
}

kva_value_kind kva_import_kind(const kva_pb_type **type) {
  const kva_pb_type *held = element_of(*type, ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE);
  const kva_pb_type *element = element_of(held ? held : *type, ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE);
  if (element) *type = element;
  if (element) return held ? KVA_VALUE_OPTIONAL_SEQUENCE : KVA_VALUE_SEQUENCE;
  if (held) *type = held;
  return held ? KVA_VALUE_OPTIONAL : KVA_VALUE_TENSOR;
}

kva_dtype kva_import_element_dtype(const kva_pb_type *declared) {
  bool known = declared->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE && declared->tensor_type->elem_type > 0 &&
               declared->tensor_type->elem_type < KVA_DTYPE_COUNT;
  return known ? (kva_dtype)declared->tensor_type->elem_type : KVA_F32;
}

kva_status kva_import_element_type(kva_import *im, const char *name, const kva_pb_type *declared,
                                   const kva_ref_tensor *like, const kva_type **out) {
  kva_dim dims[KVA_MAX_RANK];
  if (declared->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
    return kva_fail(im->c.diag, KVA_UNSUPPORTED, &im->loc,
                    "input '%s': sequences and optionals hold tensors, not maps, sparse tensors or further sequences",
                    name);
  if (!like) return tensor_type(im, name, false, declared->tensor_type, out);
  if ((int32_t)like->dtype != declared->tensor_type->elem_type)
    return kva_error(im->c.diag, &im->loc, "input '%s' is declared as data type %d, the value is %s", name,
                     declared->tensor_type->elem_type, kva_dtype_name(like->dtype));
  for (uint32_t i = 0; i < like->rank; i++) dims[i] = kva_expr_const(im->m->exprs, like->dims[i]);
  *out = kva_type_tensor(im->m, like->dtype, like->rank, dims);
  return KVA_OK;
}

/* What v declares beside the value's type; false: nothing that differs. */
static bool contradicts(const kva_pb_value_info *v, const kva_type *t, uint32_t first_axis, kva_text *what) {
  if (!v->type || v->type->value_case == ONNX__TYPE_PROTO__VALUE__NOT_SET) return false;
  bool is_tensor = t->kind == KVA_TYPE_TENSOR;
  if (is_tensor != (v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE))
    return kva_text_add(what, is_tensor ? "as no tensor, but is one" : "as a tensor, but is a sequence or optional"),
           true;
  if (!is_tensor) return false;
  const Onnx__TypeProto__Tensor *declared = v->type->tensor_type;
  if (declared->elem_type && declared->elem_type != (int32_t)t->dtype)
    return kva_text_add(what, "as data type %d, but is %s", declared->elem_type, kva_dtype_name(t->dtype)), true;
  if (!declared->shape) return false;
  if (declared->shape->n_dim != t->rank)
    return kva_text_add(what, "with rank %zu, but has %u", declared->shape->n_dim, t->rank), true;
  for (uint32_t i = first_axis; i < t->rank; i++) {
    int64_t extent;
    const Onnx__TensorShapeProto__Dimension *d = declared->shape->dim[i];
    if (d->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) continue;
    if (!kva_expr_is_const(t->dims[i], &extent) || extent == d->dim_value) continue;
    kva_text_add(what, "with extent %lld on axis %u, but has %lld", (long long)d->dim_value, i, (long long)extent);
    return true;
  }
  return false;
}

void kva_import_check_type(kva_import *im, const kva_pb_value_info *v, const kva_value *value) {
  kva_text what = {0};
  const kva_load_options *o = im->options;
  uint32_t compared_from = o && o->free_extents ? KVA_MAX_RANK : o && o->free_batch;
  if (contradicts(v, value->type, compared_from, &what))
    kva_warn_counted(im->c.diag, &im->loc, "'%s' is declared %s", kva_pb_str(v->name), what.data);
  kva_text_free(&what);
}

kva_status kva_import_check_initializer(kva_import *im, const kva_pb_value_info *v, const kva_value *value) {
  kva_text what = {0};
  kva_status status = KVA_OK;
  if (contradicts(v, value->type, 0, &what))
    status = kva_error(im->c.diag, &im->loc, "initialiser '%s' is declared %s", kva_pb_str(v->name), what.data);
  kva_text_free(&what);
  return status;
}

kva_status kva_import_check_pins(kva_import *im) {
  const kva_load_options *o = im->options;
  if (o && o->n_pins > 64) return kva_error(im->c.diag, &im->loc, "more than 64 pins");
  kva_status status = KVA_OK;
  for (uint32_t i = 0; o && i < o->n_pins; i++) {
    if (im->pins_used >> i & 1) continue;
    kva_text known = {0};
    for (uint32_t j = 0; j < kva_map_len(im->used_names); j++)
      kva_text_add(&known, "%s%s", j ? ", " : "", (const char *)kva_map_key_at(im->used_names, j, NULL));
    status = kva_error(im->c.diag, &im->loc, "pin %s: the model has no such symbol; it has: %s", o->pins[i].name,
                       known.data ? known.data : "none");
    kva_text_free(&known);
  }
  return status;
}
