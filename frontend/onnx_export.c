/* Module -> ONNX protobuf, the inverse of onnx_import.c: nodes in order, states and constants as initialisers, symbols
 * as dim_params. Operators that ONNX lacks become calls of model-local functions that contain their definitions. */
#include "frontend/onnx_export.h"

#include <stdlib.h>

static Onnx__TensorShapeProto__Dimension *new_dim(kva_export *e, kva_dim d) {
  Onnx__TensorShapeProto__Dimension *p = KVA_NEW(e->arena, Onnx__TensorShapeProto__Dimension);
  onnx__tensor_shape_proto__dimension__init(p);
  int64_t v;
  if (kva_expr_is_const(d, &v)) {
    p->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
    p->dim_value = v;
    return p;
  }
  kva_text text = {0};
  kva_expr_print(d, &text);
  p->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM;
  p->dim_param = kva_arena_strdup(e->arena, text.data);
  kva_text_free(&text);
  return p;
}

kva_pb_value_info *kva_export_value_info(kva_export *e, const char *name, const kva_type *t) {
  kva_pb_value_info *v = KVA_NEW(e->arena, kva_pb_value_info);
  Onnx__TypeProto *type = KVA_NEW(e->arena, Onnx__TypeProto);
  Onnx__TypeProto__Tensor *tensor = KVA_NEW(e->arena, Onnx__TypeProto__Tensor);
  Onnx__TensorShapeProto *shape = KVA_NEW(e->arena, Onnx__TensorShapeProto);
  onnx__value_info_proto__init(v);
  onnx__type_proto__init(type);
  onnx__type_proto__tensor__init(tensor);
  onnx__tensor_shape_proto__init(shape);
  shape->n_dim = t->rank;
  shape->dim = KVA_NEW_ARRAY(e->arena, Onnx__TensorShapeProto__Dimension *, t->rank + 1);
  for (uint32_t i = 0; i < t->rank; i++) shape->dim[i] = new_dim(e, t->dims[i]);
  tensor->has_elem_type = true;
  tensor->elem_type = (int32_t)t->dtype;
  tensor->shape = shape;
  type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
  type->tensor_type = tensor;
  v->name = kva_arena_strdup(e->arena, name);
  v->type = type;
  return v;
}

/* ---- graph ------------------------------------------------------------------------------------------------------- */

static void write_inputs(kva_export *e, const kva_graph *g) {
  e->graph->n_input = g->inputs.len;
  e->graph->input = KVA_NEW_ARRAY(e->arena, kva_pb_value_info *, g->inputs.len + 1);
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_value *v = g->inputs.data[i];
    e->names[v->id] = kva_export_fresh(e, v->name ? v->name : "input");
    e->graph->input[i] = kva_export_value_info(e, e->names[v->id], v->type);
  }
}

/* Identity nodes give outputs their declared names: a value may be an input, a constant or several outputs. */
static void write_outputs(kva_export *e, const kva_function *f) {
  uint32_t n = kva_graph_output_count(f->graph);
  e->graph->n_output = n;
  e->graph->output = KVA_NEW_ARRAY(e->arena, kva_pb_value_info *, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    const kva_value *v = kva_graph_output(f->graph, i);
    const char *wanted = f->output_names && f->output_names[i] ? f->output_names[i] : "output";
    const char *from = kva_export_name(e, v), *name = kva_export_fresh(e, wanted);
    (void)kva_export_node(e, "Identity", 1, &from, name);
    e->graph->output[i] = kva_export_value_info(e, name, v->type);
  }
}

/* Reserves output names for write_outputs; other values with such a name get another one. */
static void reserve_output_names(kva_export *e, const kva_function *f, bool reserved) {
  for (uint32_t i = 0; f->output_names && i < kva_graph_output_count(f->graph); i++)
    if (f->output_names[i]) kva_map_set_str(e->used_names, f->output_names[i], reserved ? e : NULL);
}

/* The opset that introduced a type, and with it the version of the file's format. */
typedef struct type_age {
  int opset, ir;
} type_age;

static type_age age_of(kva_dtype t) {
  switch (t) {
  case KVA_F4E2M1: return (type_age){23, 11};
  case KVA_F8E8M0: return (type_age){24, 12};
  case KVA_U2:
  case KVA_I2: return (type_age){25, 13};
  default: return (type_age){KVA_EXPORT_OPSET, KVA_EXPORT_IR};
  }
}

static kva_status check_dtype(kva_export *e, const kva_value *v, const kva_loc *loc) {
  kva_dtype t = v->type->dtype;
  type_age age = age_of(t);
  if (age.ir > e->ir) e->ir = age.ir;
  if (age.opset <= e->opset) return KVA_OK;
  return kva_fail(e->diag, KVA_UNSUPPORTED, loc, "ONNX export: %s is newer than the exported opset %d: --opset %d",
                  kva_dtype_name(t), e->opset, age.opset);
}

static kva_status write_node(kva_export *e, const kva_node *n) {
  for (uint32_t i = 0; i < n->n_results; i++) KVA_TRY(check_dtype(e, &n->results[i], &n->loc));
  return kva_export_op(e, n);
}

kva_status kva_export_nodes(kva_export *e, const kva_graph *g) {
  kva_status status = KVA_OK;
  for (const kva_node *n = g->first; n; n = n->next) {
    if (n->op->traits & KVA_RETURN) continue;
    kva_status one = write_node(e, n);
    for (uint32_t i = 0; i < n->n_results; i++) /* so that the rest is checked, too */
      if (!e->names[n->results[i].id]) e->names[n->results[i].id] = "unwritten";
    if (one && !status) status = one;
  }
  return status;
}

static kva_status write_graph(kva_export *e) {
  const kva_function *f = e->f;
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) KVA_TRY(check_dtype(e, f->graph->inputs.data[i], &f->loc));
  write_inputs(e, f->graph);
  reserve_output_names(e, f, true);
  KVA_TRY(kva_export_nodes(e, f->graph));
  reserve_output_names(e, f, false);
  for (uint32_t i = 0; i < f->graph->inputs.len; i++)
    kva_map_set_str(e->used_names, kva_export_name(e, f->graph->inputs.data[i]), e);
  write_outputs(e, f);
  return KVA_OK;
}

/* ---- model ------------------------------------------------------------------------------------------------------- */

static kva_pb_opset *new_opset(kva_export *e, const char *domain, int64_t version) {
  kva_pb_opset *o = KVA_NEW(e->arena, kva_pb_opset);
  onnx__operator_set_id_proto__init(o);
  o->domain = kva_arena_strdup(e->arena, domain);
  o->has_version = true;
  o->version = version;
  return o;
}

static void write_properties(kva_export *e, kva_pb_model *m) {
  m->metadata_props = KVA_NEW_ARRAY(e->arena, Onnx__StringStringEntryProto *, e->m->properties.len + 1);
  for (uint32_t i = 0; i < e->m->properties.len; i++) {
    Onnx__StringStringEntryProto *p = m->metadata_props[m->n_metadata_props++] =
        KVA_NEW(e->arena, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(p);
    p->key = kva_arena_strdup(e->arena, e->m->properties.data[i].key);
    p->value = kva_arena_strdup(e->arena, e->m->properties.data[i].value);
  }
}

static kva_pb_model *make_model(kva_export *e) {
  kva_pb_model *m = KVA_NEW(e->arena, kva_pb_model);
  onnx__model_proto__init(m);
  m->has_ir_version = true;
  m->ir_version = e->ir;
  m->producer_name = kva_arena_strdup(e->arena, "kvasir");
  m->producer_version = kva_arena_strdup(e->arena, KVA_VERSION);
  m->n_opset_import = e->functions.len ? 2 : 1;
  m->opset_import = KVA_NEW_ARRAY(e->arena, kva_pb_opset *, 2);
  m->opset_import[0] = new_opset(e, "", e->opset);
  m->opset_import[1] = new_opset(e, "ai.kvasir", 1);
  e->graph->n_node = e->nodes.len;
  e->graph->node = e->nodes.data;
  e->graph->n_initializer = e->initializers.len;
  e->graph->initializer = e->initializers.data;
  m->graph = e->graph;
  m->n_functions = e->functions.len;
  m->functions = e->functions.data;
  write_properties(e, m);
  return m;
}

static kva_status write_model(const kva_pb_model *m, const char *path, kva_diag *diag) {
  kva_loc loc = {.file = path};
  size_t size = onnx__model_proto__get_packed_size(m);
  if (size > INT32_MAX)
    return kva_fail(diag, KVA_UNSUPPORTED, &loc, "the model has %zu bytes; protobuf files end at 2 GB", size);
  uint8_t *bytes = malloc(size + 1);
  if (!bytes) return kva_fail(diag, KVA_NO_MEMORY, &loc, "not enough memory for a file of %zu bytes", size);
  size = onnx__model_proto__pack(m, bytes);
  kva_status status = kva_file_write(path, bytes, size, diag);
  free(bytes);
  return status;
}

kva_status kva_export_onnx(kva_module *m, const char *path, kva_state_bytes state_data, void *user, kva_diag *diag) {
  return kva_export_onnx_as(m, &(kva_export_form){0}, path, state_data, user, diag);
}

kva_status kva_export_onnx_as(kva_module *m, const kva_export_form *form, const char *path, kva_state_bytes state_data,
                              void *user, kva_diag *diag) {
  kva_arena *arena = kva_arena_create();
  kva_export e = {.arena = arena,
                  .diag = diag,
                  .m = m,
                  .f = form->function ? kva_module_find_function(m, form->function) : m->functions.data[0],
                  .opset = form->opset ? form->opset : KVA_EXPORT_OPSET,
                  .ir = KVA_EXPORT_IR,
                  .state_data = state_data,
                  .state_user = user};
  e.graph = KVA_NEW(arena, kva_pb_graph);
  onnx__graph_proto__init(e.graph);
  e.graph->name = kva_arena_strdup(arena, m->name ? m->name : "model");
  e.names = KVA_NEW_ARRAY(arena, const char *, m->next_value_id + 1);
  e.used_names = kva_map_create(arena);
  e.named = kva_map_create(arena);
  e.node_names = kva_map_create(arena);
  e.dims = kva_map_create(arena);
  e.bodies = kva_map_create(arena);
  kva_status status = write_graph(&e);
  if (!status) status = write_model(make_model(&e), path, diag);
  kva_arena_destroy(arena);
  return status;
}
