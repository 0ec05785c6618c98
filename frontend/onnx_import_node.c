/* Attributes of one node, including sub-graphs. */
#include "frontend/onnx_import.h"

/* IR 1 and some old exporters omit the type; the field that is set then determines it. */
static int attr_type(const kva_pb_attr *a) {
  if (a->has_type && a->type) return (int)a->type;
  if (a->has_f) return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT;
  if (a->has_i) return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
  if (a->has_s) return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
  if (a->t) return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR;
  if (a->g) return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH;
  if (a->n_floats) return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS;
  if (a->n_ints) return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS;
  if (a->n_strings) return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS;
  return ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__UNDEFINED;
}

static const char *copy_string(kva_arena *arena, ProtobufCBinaryData s) {
  return kva_arena_strndup(arena, s.len ? (const char *)s.data : "", s.len);
}

static void convert_floats(kva_arena *arena, const kva_pb_attr *a, kva_onnx_attr *out) {
  double *v = KVA_NEW_ARRAY(arena, double, a->n_floats + 1);
  for (size_t i = 0; i < a->n_floats; i++) v[i] = a->floats[i];
  out->kind = KVA_ONNX_FLOATS;
  out->n = (uint32_t)a->n_floats;
  out->floats = v;
}

static void convert_strings(kva_arena *arena, const kva_pb_attr *a, kva_onnx_attr *out) {
  const char **v = KVA_NEW_ARRAY(arena, const char *, a->n_strings + 1);
  for (size_t i = 0; i < a->n_strings; i++) v[i] = copy_string(arena, a->strings[i]);
  out->kind = KVA_ONNX_STRINGS;
  out->n = (uint32_t)a->n_strings;
  out->strings = v;
}

/* ---- sub-graphs -------------------------------------------------------------------------------------------------- */

typedef struct subgraph {
  kva_onnx_subgraph base; /* first */
  kva_import *im;
  const kva_import_scope *outer;
  const kva_pb_graph *graph;
  kva_loc loc;
} subgraph;

static kva_status subgraph_outputs(subgraph *s, const kva_import_scope *scope, kva_value **outputs) {
  for (uint32_t i = 0; i < s->base.n_outputs; i++) {
    const kva_import_name *v = kva_import_find(scope, kva_pb_str(s->graph->output[i]->name));
    if (!v)
      return kva_error(s->im->c.diag, &s->loc, "sub-graph output '%s' is not defined",
                       kva_pb_str(s->graph->output[i]->name));
    if (v->state != KVA_NAME_OK) return s->im->status ? s->im->status : KVA_INVALID;
    outputs[i] = v->value;
  }
  return KVA_OK;
}

static kva_status build_subgraph(kva_onnx_ctx *c, const kva_onnx_subgraph *base, kva_value *const *inputs,
                                 kva_value **outputs) {
  subgraph *s = (subgraph *)(uintptr_t)base;
  kva_import_scope *scope = KVA_NEW(c->arena, kva_import_scope);
  *scope = (kva_import_scope){.outer = s->outer, .frame = s->outer->frame, .names = kva_map_create(c->arena)};
  for (uint32_t i = 0; i < base->n_inputs; i++)
    KVA_TRY(kva_import_define(s->im, scope, kva_pb_str(s->graph->input[i]->name),
                              (kva_import_name){KVA_NAME_OK, inputs[i]}, &s->loc));
  KVA_TRY(kva_import_initializers(s->im, scope, s->graph, NULL));
  kva_import_nodes(s->im, scope, s->graph->n_node, s->graph->node);
  if (s->im->status) return s->im->status;
  return subgraph_outputs(s, scope, outputs);
}

static const kva_onnx_subgraph *make_subgraph(kva_import *im, const kva_import_scope *scope, const kva_pb_graph *g,
                                              const kva_loc *loc) {
  subgraph *s = KVA_NEW(im->c.arena, subgraph);
  *s = (subgraph){.im = im, .outer = scope, .graph = g, .loc = *loc};
  s->base = (kva_onnx_subgraph){
      .n_inputs = (uint32_t)g->n_input, .n_outputs = (uint32_t)g->n_output, .build = build_subgraph};
  return &s->base;
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static kva_status convert_attr(kva_import *im, kva_import_scope *s, const kva_pb_attr *a, const kva_loc *loc,
                               kva_onnx_attr *out) {
  kva_arena *arena = im->c.arena;
  switch (attr_type(a)) {
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT: out->kind = KVA_ONNX_FLOAT, out->f = a->f; return KVA_OK;
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT: out->kind = KVA_ONNX_INT, out->i = a->i; return KVA_OK;
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING:
    out->kind = KVA_ONNX_STRING;
    out->s = copy_string(arena, a->s);
    return KVA_OK;
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS:
    out->kind = KVA_ONNX_INTS;
    out->n = (uint32_t)a->n_ints;
    out->ints = a->ints; /* the message outlives the import */
    return KVA_OK;
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS: convert_floats(arena, a, out); return KVA_OK;
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS: convert_strings(arena, a, out); return KVA_OK;
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR:
    out->kind = KVA_ONNX_TENSOR;
    if (!a->t) return kva_error(im->c.diag, loc, "attribute '%s' is a tensor without one", out->name);
    return kva_pb_read_tensor(&im->tensors, a->t, NULL, loc, &out->tensor);
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH:
    out->kind = KVA_ONNX_GRAPH;
    if (!a->g) return kva_error(im->c.diag, loc, "attribute '%s' is a graph without one", out->name);
    out->graph = make_subgraph(im, s, a->g, loc);
    return KVA_OK;
  case ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TYPE_PROTO: out->kind = KVA_ONNX_TYPE; return KVA_OK;
  default:
    return kva_fail(im->c.diag, KVA_UNSUPPORTED, loc, "attribute '%s' is of kind %d, which is not supported", out->name,
                    attr_type(a));
  }
}

static const kva_onnx_attr *frame_attr(const kva_import_frame *f, const char *name) {
  for (uint32_t i = 0; i < f->n_attrs; i++)
    if (!strcmp(f->attrs[i].name, name)) return &f->attrs[i];
  return NULL;
}

/* In a function body an attribute may refer to one of the call; it is omitted if the call omits it. */
static kva_status resolve_attr(kva_import *im, kva_import_scope *s, const kva_pb_attr *a, const kva_loc *loc,
                               kva_onnx_attr *out, bool *out_present) {
  const char *name = kva_arena_strdup(im->c.arena, kva_pb_str(a->name)), *reference = kva_pb_str(a->ref_attr_name);
  *out_present = true;
  *out = (kva_onnx_attr){.name = name};
  if (!*reference) return convert_attr(im, s, a, loc, out);
  if (!s->frame->function)
    return kva_error(im->c.diag, loc, "attribute '%s' refers to '%s', but is not in a function", name, reference);
  const kva_onnx_attr *given = frame_attr(s->frame, reference);
  *out_present = given != NULL;
  if (given) *out = *given;
  out->name = name;
  return KVA_OK;
}

kva_status kva_import_attrs(kva_import *im, kva_import_scope *s, const kva_pb_node *n, const kva_loc *loc,
                            uint32_t *out_n, const kva_onnx_attr **out) {
  kva_onnx_attr *list = KVA_NEW_ARRAY(im->c.arena, kva_onnx_attr, n->n_attribute + 1);
  *out_n = 0;
  for (size_t i = 0; i < n->n_attribute; i++) {
    bool present;
    KVA_TRY(resolve_attr(im, s, n->attribute[i], loc, &list[*out_n], &present));
    for (uint32_t j = 0; present && j < *out_n; j++)
      if (!strcmp(list[j].name, list[*out_n].name))
        return kva_error(im->c.diag, loc, "attribute '%s' is given twice", list[j].name);
    *out_n += present;
  }
  *out = list;
  return KVA_OK;
}
