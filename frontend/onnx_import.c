/* ONNX protobuf -> module. The nodes of the main graph become internal nodes in order; calls of model-local functions
 * are inlined. Initialisers and constants become constants that refer to the mapped file if possible.
 *
 * A failing node is reported, and its outputs count as failed. Their users are skipped silently, so that one run
 * reports every problem of the file once. */
#include "frontend/onnx_import.h"
#include "runtime/base/platform.h"
#include "frontend/onnx_list.h"
#include "frontend/onnx_strings.h"
#include "ops/ids.h"

enum { MAX_CALL_DEPTH = 64, MAX_NODES = 1 << 20 };

/* Records a failure and returns it. */
static kva_status record_failure(kva_import *im, kva_status status) {
  if (!im->status) im->status = status;
  return status;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

kva_status kva_import_define(kva_import *im, kva_import_scope *s, const char *name, kva_import_name value,
                             const kva_loc *loc) {
  if (kva_map_get_str(s->names, name)) return kva_error(im->c.diag, loc, "'%s' is defined a second time", name);
  if (value.value && !value.value->name) value.value->name = kva_arena_strdup(im->m->arena, name);
  kva_map_set_str(s->names, name, kva_arena_memdup(im->c.arena, &value, sizeof value));
  return KVA_OK;
}

const kva_import_name *kva_import_find(const kva_import_scope *s, const char *name) {
  for (; s; s = s->outer) {
    const kva_import_name *found = kva_map_get_str(s->names, name);
    if (found) return found;
  }
  return NULL;
}

static kva_loc node_loc(kva_import *im, const kva_pb_node *n, size_t index) {
  kva_loc loc = im->loc;
  const char *name = kva_pb_str(n->name);
  loc.node = *name ? kva_arena_strdup(im->m->arena, name)
                   : kva_arena_printf(im->m->arena, "%s #%zu", kva_pb_str(n->op_type), index);
  return loc;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* The nodes of a graph or function, which are imported once what they read is defined: exporters order them so, but
 * tools that change files (ONNX Runtime's conversion to float16) put nodes at the end. */
typedef struct node_list {
  size_t n;
  kva_pb_node *const *v;
  bool *begun;        /* imported, or waiting for the producer of an input */
  kva_map *producers; /* output name -> number + 1; NULL: not yet needed */
} node_list;

/* Index of the node that produces `name`; nodes->n if there is none. */
static size_t producer_of(kva_import *im, node_list *nodes, const char *name) {
  if (!nodes->producers) {
    nodes->producers = kva_map_create(im->c.arena);
    for (size_t i = nodes->n; i-- > 0;)
      for (size_t j = 0; j < nodes->v[i]->n_output; j++)
        if (*kva_pb_str(nodes->v[i]->output[j]))
          kva_map_set_str(nodes->producers, nodes->v[i]->output[j], (void *)(uintptr_t)(i + 1));
  }
  uintptr_t found = (uintptr_t)kva_map_get_str(nodes->producers, name);
  return found ? found - 1 : nodes->n;
}

static size_t producer_to_import(kva_import *im, const kva_import_scope *s, node_list *nodes, const kva_pb_node *n);

/* The same for what the nodes of a sub-graph read, and for its outputs. */
static size_t producer_for_graph(kva_import *im, const kva_import_scope *s, node_list *nodes, const kva_pb_graph *g) {
  size_t found = nodes->n;
  for (size_t i = 0; g && i < g->n_node && found == nodes->n; i++) found = producer_to_import(im, s, nodes, g->node[i]);
  for (size_t i = 0; g && i < g->n_output && found == nodes->n; i++) {
    const char *name = kva_pb_str(g->output[i]->name);
    size_t at = kva_import_find(s, name) ? nodes->n : producer_of(im, nodes, name);
    if (at < nodes->n && !nodes->begun[at]) found = at;
  }
  return found;
}

/* A node of the list that n reads, itself or in its sub-graphs, and that is not begun; nodes->n if there is none. */
static size_t producer_to_import(kva_import *im, const kva_import_scope *s, node_list *nodes, const kva_pb_node *n) {
  size_t found = nodes->n;
  for (size_t j = 0; j < n->n_input && found == nodes->n; j++) {
    const char *name = kva_pb_str(n->input[j]);
    size_t at = !*name || kva_import_find(s, name) ? nodes->n : producer_of(im, nodes, name);
    if (at < nodes->n && !nodes->begun[at]) found = at;
  }
  for (size_t j = 0; j < n->n_attribute && found == nodes->n; j++) {
    const kva_pb_attr *a = n->attribute[j];
    found = producer_for_graph(im, s, nodes, a->g);
    for (size_t i = 0; i < a->n_graphs && found == nodes->n; i++)
      found = producer_for_graph(im, s, nodes, a->graphs[i]);
  }
  return found;
}

/* Reports that a node uses a name without a definition. Its producer is begun, so it waits for this node. */
static kva_status missing_input(kva_import *im, node_list *nodes, const char *name, const kva_loc *loc) {
  size_t producer = producer_of(im, nodes, name);
  if (producer == nodes->n) return kva_error(im->c.diag, loc, "input '%s' is not defined anywhere", name);
  return kva_error(im->c.diag, loc,
                   "the graph has a cycle: input '%s' comes from node '%s', which depends on this node", name,
                   node_loc(im, nodes->v[producer], producer).node);
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

/* The call's attributes, then defaults for those it omits. */
static kva_status frame_attrs(kva_import *im, const kva_onnx_node *call, const kva_pb_function *f,
                              kva_import_frame *frame) {
  kva_pb_node defaults = ONNX__NODE_PROTO__INIT;
  kva_pb_attr **missing = KVA_NEW_ARRAY(im->c.arena, kva_pb_attr *, f->n_attribute_proto + 1);
  for (size_t i = 0; i < f->n_attribute_proto; i++) {
    bool given = false;
    for (uint32_t j = 0; j < call->n_attrs; j++)
      given |= !strcmp(call->attrs[j].name, kva_pb_str(f->attribute_proto[i]->name));
    if (!given) missing[defaults.n_attribute++] = f->attribute_proto[i];
  }
  defaults.attribute = missing;
  kva_import_scope scope = {.frame = frame};
  uint32_t n = 0;
  const kva_onnx_attr *converted = NULL;
  KVA_TRY(kva_import_attrs(im, &scope, &defaults, &call->loc, &n, &converted));
  kva_onnx_attr *all = KVA_NEW_ARRAY(im->c.arena, kva_onnx_attr, call->n_attrs + n + 1);
  for (uint32_t i = 0; i < call->n_attrs; i++) all[i] = call->attrs[i];
  for (uint32_t i = 0; i < n; i++) all[call->n_attrs + i] = converted[i];
  frame->attrs = all;
  frame->n_attrs = call->n_attrs + n;
  return KVA_OK;
}

static kva_status check_call(kva_import *im, const kva_onnx_node *call, const kva_pb_function *f,
                             const kva_import_frame *caller) {
  const char *name = kva_pb_str(f->name);
  for (const kva_import_frame *at = caller; at; at = at->caller)
    if (at->function == f) return kva_error(im->c.diag, &call->loc, "function '%s' calls itself", name);
  if (caller->depth >= MAX_CALL_DEPTH)
    return kva_error(im->c.diag, &call->loc, "functions call each other more than %d deep", MAX_CALL_DEPTH);
  if (call->n_inputs > f->n_input || call->n_outputs > f->n_output)
    return kva_error(im->c.diag, &call->loc, "function '%s' has %zu inputs and %zu outputs, the call %u and %u", name,
                     f->n_input, f->n_output, call->n_inputs, call->n_outputs);
  return KVA_OK;
}

static kva_status function_outputs(kva_import *im, const kva_onnx_node *call, const kva_pb_function *f,
                                   const kva_import_scope *scope, kva_value **out) {
  for (uint32_t i = 0; i < call->n_outputs; i++) {
    const kva_import_name *v = kva_import_find(scope, kva_pb_str(f->output[i]));
    if (!v)
      return kva_error(im->c.diag, &call->loc, "output '%s' of function '%s' is not defined in it",
                       kva_pb_str(f->output[i]), kva_pb_str(f->name));
    if (v->state == KVA_NAME_FAILED) return KVA_INVALID;
    out[i] = v->value;
  }
  return KVA_OK;
}

static kva_status inline_function(kva_import *im, const kva_onnx_node *call, const kva_pb_function *f,
                                  const kva_import_frame *caller, kva_value **out) {
  KVA_TRY(check_call(im, call, f, caller));
  kva_import_frame *frame = KVA_NEW(im->c.arena, kva_import_frame);
  *frame = (kva_import_frame){.caller = caller,
                              .function = f,
                              .n_imports = f->n_opset_import,
                              .imports = f->opset_import,
                              .depth = caller->depth + 1};
  kva_import_scope *scope = KVA_NEW(im->c.arena, kva_import_scope);
  *scope = (kva_import_scope){.frame = frame, .names = kva_map_create(im->c.arena)};
  KVA_TRY(frame_attrs(im, call, f, frame));
  for (size_t i = 0; i < f->n_input; i++) {
    kva_value *v = i < call->n_inputs ? call->inputs[i] : NULL;
    kva_import_name name = {v ? KVA_NAME_OK : KVA_NAME_ABSENT, v};
    KVA_TRY(kva_import_define(im, scope, kva_pb_str(f->input[i]), name, &call->loc));
  }
  size_t errors = kva_diag_errors(im->c.diag);
  kva_import_nodes(im, scope, f->n_node, f->node);
  if (kva_diag_errors(im->c.diag) != errors)
    kva_note(im->c.diag, &call->loc, "in function '%s', called here", kva_pb_str(f->name));
  return function_outputs(im, call, f, scope, out);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* False: an input failed earlier, so this node is skipped. */
static kva_status node_inputs(kva_import *im, const kva_import_scope *s, node_list *nodes, size_t index,
                              const kva_loc *loc, kva_value **out, bool *out_skip) {
  const kva_pb_node *n = nodes->v[index];
  kva_status status = KVA_OK;
  for (size_t i = 0; i < n->n_input; i++) {
    const char *name = kva_pb_str(n->input[i]);
    if (!*name) continue;
    const kva_import_name *found = kva_import_find(s, name);
    if (!found)
      status = missing_input(im, nodes, name, loc);
    else if (found->state == KVA_NAME_FAILED)
      *out_skip = true;
    else
      out[i] = found->value;
  }
  return status;
}

static int64_t version_in(const kva_import *im, const kva_import_frame *f, const char *domain) {
  int64_t version = kva_pb_opset_version(f->n_imports, f->imports, domain);
  return version ? version : kva_pb_opset_version(im->model->n_opset_import, im->model->opset_import, domain);
}

static kva_value *value_named(const void *scope, const char *name) {
  const kva_import_name *found = kva_import_find(scope, name);
  return found ? found->value : NULL;
}

/* Whether report_operators has named the operator. */
static bool is_reported(const kva_import *im, const kva_import_frame *f, const kva_onnx_node *n) {
  const char *reason;
  return im->lacks_operators && !kva_onnx_supported(n->domain, n->op_type, version_in(im, f, n->domain), &reason);
}

static kva_status build_node(kva_import *im, kva_import_scope *s, const kva_pb_node *pb, kva_onnx_node *n,
                             kva_value **out) {
  const kva_pb_function *f = kva_pb_find_function(im->functions, pb);
  if (++im->n_nodes > MAX_NODES)
    return kva_error(im->c.diag, &n->loc, "the model has more than %d nodes with its functions inlined", MAX_NODES);
  if (f) return inline_function(im, n, f, s->frame, out);
  if (is_reported(im, s->frame, n)) return KVA_UNSUPPORTED;
  int64_t outer_opset = im->c.opset;
  im->c.opset = version_in(im, s->frame, "");
  if (!*n->domain && !im->c.opset)
    return kva_error(im->c.diag, &n->loc, "the model imports no opset of the default domain, which this node needs");
  const void *outer_scope = im->c.scope;
  im->c.value_named = value_named;
  im->c.scope = s;
  kva_status status = kva_onnx_build(&im->c, n, out);
  im->c.opset = outer_opset;
  im->c.scope = outer_scope;
  return status;
}

static kva_status import_node(kva_import *im, kva_import_scope *s, node_list *nodes, size_t index, const kva_loc *loc,
                              kva_value **out, bool *out_skip) {
  const kva_pb_node *pb = nodes->v[index];
  kva_arena *arena = im->c.arena;
  kva_value **inputs = KVA_NEW_ARRAY(arena, kva_value *, pb->n_input + 1);
  KVA_TRY(node_inputs(im, s, nodes, index, loc, inputs, out_skip));
  if (*out_skip) return KVA_OK;
  kva_onnx_node n = {.domain = kva_pb_domain(pb->domain),
                     .op_type = kva_pb_str(pb->op_type),
                     .name = loc->node,
                     .n_inputs = (uint32_t)pb->n_input,
                     .n_outputs = (uint32_t)pb->n_output,
                     .inputs = inputs,
                     .output_names = (const char *const *)pb->output,
                     .loc = *loc};
  KVA_TRY(kva_import_attrs(im, s, pb, loc, &n.n_attrs, &n.attrs));
  return build_node(im, s, pb, &n, out);
}

static void import_and_define(kva_import *im, kva_import_scope *s, node_list *nodes, size_t i) {
  const kva_pb_node *pb = nodes->v[i];
  kva_loc loc = node_loc(im, pb, i);
  kva_value **out = KVA_NEW_ARRAY(im->c.arena, kva_value *, pb->n_output + 1);
  bool skip = false;
  kva_status status = import_node(im, s, nodes, i, &loc, out, &skip);
  if (status) (void)record_failure(im, status);
  im->c.b.failed = false;
  for (size_t j = 0; j < pb->n_output; j++) {
    if (!*kva_pb_str(pb->output[j])) continue;
    kva_import_name v = {status || skip || !out[j] ? KVA_NAME_FAILED : KVA_NAME_OK, out[j]};
    status = kva_import_define(im, s, pb->output[j], v, &loc);
    if (status) (void)record_failure(im, status);
  }
}

void kva_import_nodes(kva_import *im, kva_import_scope *s, size_t n, kva_pb_node *const *nodes) {
  node_list list = {.n = n, .v = nodes, .begun = KVA_NEW_ARRAY(im->c.arena, bool, n + 1)};
  size_t *waiting = KVA_NEW_ARRAY(im->c.arena, size_t, n + 1), depth = 0;
  for (size_t i = 0; i < n; i++) {
    if (!list.begun[i]) waiting[depth++] = i;
    while (depth && im->n_nodes <= MAX_NODES) {
      size_t at = waiting[depth - 1];
      list.begun[at] = true;
      size_t first = producer_to_import(im, s, &list, nodes[at]);
      if (first < n)
        waiting[depth++] = first;
      else
        import_and_define(im, s, &list, waiting[--depth]);
    }
  }
}

/* ---- graph ------------------------------------------------------------------------------------------------------- */

kva_status kva_import_initializers(kva_import *im, kva_import_scope *s, const kva_pb_graph *g, const kva_pb_raw *raw) {
  if (g->n_sparse_initializer)
    return kva_fail(im->c.diag, KVA_UNSUPPORTED, &im->loc, "sparse initialisers are not supported");
  for (size_t i = 0; i < g->n_initializer; i++) {
    const kva_pb_tensor *t = g->initializer[i];
    const kva_tensor_data *data;
    im->c.b.loc = im->loc;
    kva_import_name v = {KVA_NAME_OK, NULL};
    kva_status status = kva_pb_read_tensor(&im->tensors, t, raw ? &raw[i] : NULL, &im->loc, &data);
    if (status)
      v.state = KVA_NAME_FAILED, (void)record_failure(im, status);
    else
      v.value = kva_const_tensor(&im->c.b, data);
    KVA_TRY(kva_import_define(im, s, kva_pb_str(t->name), v, &im->loc));
  }
  return KVA_OK;
}

static kva_value *fixed_input(kva_import *im, const kva_ref_tensor *w) {
  kva_tensor_data *data = KVA_NEW(im->m->arena, kva_tensor_data);
  *data = (kva_tensor_data){.dtype = w->dtype, .rank = w->rank};
  data->dims = kva_arena_memdup(im->m->arena, w->dims, sizeof w->dims);
  KVA_ASSERT(kva_dtype_bytes(w->dtype, w->n, &data->bytes));
  void *bytes = kva_arena_alloc(im->m->arena, (size_t)data->bytes + 1);
  kva_ref_tensor_to_data(w, bytes);
  data->data = bytes;
  return kva_const_tensor(&im->c.b, data);
}

static kva_status list_length(kva_import *im, const char *name, const kva_list_value *given, uint32_t *out) {
  int64_t n = 0;
  kva_dim pinned = NULL;
  if (!given) {
    KVA_TRY(kva_import_pin(im, name, &pinned));
    if (!pinned || !kva_expr_is_const(pinned, &n))
      return kva_fail(im->c.diag, KVA_UNSUPPORTED, &im->loc,
                      "input '%s' is a sequence or optional of an unknown number of tensors; give it with --pin %s=N",
                      name, name);
  }
  if (n > KVA_ONNX_MAX_LIST)
    return kva_error(im->c.diag, &im->loc, "input '%s': at most %d elements", name, KVA_ONNX_MAX_LIST);
  *out = given ? given->n : (uint32_t)n;
  return KVA_OK;
}

/* An input that is no tensor becomes an input for each of its tensors. */
static kva_status import_list_input(kva_import *im, uint32_t index, const kva_pb_value_info *v, kva_value_kind kind,
                                    const kva_pb_type *element, kva_value **out) {
  const kva_load_options *o = im->options;
  const char *name = kva_arena_strdup(im->m->arena, kva_pb_str(v->name));
  const kva_list_value *given = o && o->list_input ? o->list_input(o->input_user, index, name, kind) : NULL;
  uint32_t n = 0;
  KVA_TRY(list_length(im, name, given, &n));
  if (kind == KVA_VALUE_OPTIONAL && n > 1)
    return kva_error(im->c.diag, &im->loc, "input '%s' is an optional, which has one tensor or none, not %u", name, n);
  kva_value **items = KVA_NEW_ARRAY(im->c.arena, kva_value *, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    const char *item = kva_arena_printf(im->m->arena, "%s[%u]", name, i);
    const kva_type *type = NULL;
    KVA_TRY(kva_import_element_type(im, item, element, given ? given->items[i] : NULL, &type));
    items[i] = kva_graph_add_input(im->c.b.graph, type, item);
  }
  kva_dtype dtype = kva_import_element_dtype(element);
  kva_type_kind inner = kind == KVA_VALUE_OPTIONAL ? KVA_TYPE_OPTIONAL : KVA_TYPE_SEQUENCE;
  *out = kva_list_create(&im->c, inner, dtype, n, items);
  bool present = !given || !given->absent;
  if (kind == KVA_VALUE_OPTIONAL_SEQUENCE) *out = kva_list_create(&im->c, KVA_TYPE_OPTIONAL, dtype, present, out);
  return KVA_OK;
}

static kva_status wrong_value(kva_import *im, const char *name, const kva_type *type, const kva_ref_tensor *fixed) {
  kva_text text = {0};
  kva_type_print(type, &text);
  kva_text_add(&text, ", the value to fix it to is %s", kva_dtype_name(fixed->dtype));
  for (uint32_t d = 0; d < fixed->rank; d++) kva_text_add(&text, "%s%lld", d ? ", " : "[", (long long)fixed->dims[d]);
  kva_status status =
      kva_error(im->c.diag, &im->loc, "input '%s': expected %s%s", name, text.data, fixed->rank ? "]" : "");
  kva_text_free(&text);
  return status;
}

static kva_status import_input(kva_import *im, uint32_t index, const kva_pb_value_info *v, kva_value **out) {
  const kva_type *type = NULL;
  const kva_load_options *o = im->options;
  const char *name = kva_arena_strdup(im->m->arena, kva_pb_str(v->name));
  const kva_pb_type *element = v->type;
  kva_value_kind kind = kva_import_kind(&element);
  if (kind != KVA_VALUE_TENSOR) return import_list_input(im, index, v, kind, element, out);
  const kva_ref_tensor *fixed = o && o->fixed_input ? o->fixed_input(o->input_user, index, name) : NULL;
  KVA_TRY(kva_import_type(im, v, &type));
  if (fixed && (fixed->dtype != type->dtype || fixed->rank != type->rank)) return wrong_value(im, name, type, fixed);
  *out = fixed ? fixed_input(im, fixed) : kva_graph_add_input(im->c.b.graph, type, name);
  return KVA_OK;
}

/* Before IR 4, initialisers had to be listed as inputs, too. Such an input only permits overriding the value, which a
 * compiled model does not support. */
static kva_status import_inputs(kva_import *im, kva_import_scope *s, const kva_pb_graph *g) {
  uint32_t index = 0;
  kva_map *initializers = kva_map_create(im->c.arena);
  for (size_t i = 0; i < g->n_initializer; i++) kva_map_set_str(initializers, kva_pb_str(g->initializer[i]->name), im);
  for (size_t i = 0; i < g->n_input; i++) {
    const char *name = kva_pb_str(g->input[i]->name);
    if (kva_map_get_str(initializers, name)) continue;
    kva_import_name v = {KVA_NAME_OK, NULL};
    kva_status status = im->tokens ? kva_import_language_input(im, g->input[i], &v.value) : KVA_OK;
    if (!status && !v.value) status = import_input(im, index++, g->input[i], &v.value);
    if (status) v.state = KVA_NAME_FAILED, (void)record_failure(im, status);
    KVA_TRY(kva_import_define(im, s, name, v, &im->loc));
  }
  return kva_import_check_pins(im);
}

/* Initialisers may also be declared, as inputs or among the other values. */
static void check_initializers(kva_import *im, const kva_import_scope *s, size_t n,
                               kva_pb_value_info *const *declared) {
  for (size_t i = 0; i < n; i++) {
    kva_import_name *v = kva_map_get_str(s->names, kva_pb_str(declared[i]->name));
    if (!v || !v->value || !v->value->def) continue; /* an input, or not yet defined */
    kva_status status = kva_import_check_initializer(im, declared[i], v->value);
    if (status) v->state = KVA_NAME_FAILED, (void)record_failure(im, status);
  }
}

static kva_value_kind kind_of(const kva_value *v) {
  if (!kva_is_list(v)) return KVA_VALUE_TENSOR;
  if (v->type->kind == KVA_TYPE_SEQUENCE) return KVA_VALUE_SEQUENCE;
  return v->type->element->kind == KVA_TYPE_SEQUENCE ? KVA_VALUE_OPTIONAL_SEQUENCE : KVA_VALUE_OPTIONAL;
}

/* Outputs of the program: tensors with their names. */
typedef struct outputs {
  kva_values values;
  KVA_VEC(const char *) names;
} outputs;

static void add_output(kva_import *im, uint32_t index, const char *name, kva_value *v, outputs *out) {
  const kva_load_options *o = im->options;
  const kva_list *list = kva_list_of(v);
  uint32_t first = out->values.len;
  kva_list_flatten(&im->c, v, &out->values);
  uint32_t n = out->values.len - first;
  for (uint32_t i = 0; i < n; i++)
    KVA_PUSH(im->m->arena, &out->names,
             list ? kva_arena_printf(im->m->arena, "%s[%u]", name, i) : kva_arena_strdup(im->m->arena, name));
  bool absent = list && v->type->kind == KVA_TYPE_OPTIONAL && !list->n;
  if (o && o->output) o->output(o->input_user, index, kind_of(v), absent, n);
}

static void import_output(kva_import *im, const kva_import_scope *s, uint32_t index, const kva_pb_value_info *declared,
                          outputs *out) {
  const char *name = kva_pb_str(declared->name);
  const kva_import_name *v = kva_import_find(s, name);
  if (!v) (void)record_failure(im, kva_error(im->c.diag, &im->loc, "output '%s' is not defined", name));
  if (!v || v->state != KVA_NAME_OK) return;
  bool texts = im->c.whole_texts; /* types name other extents then */
  if (texts && !kva_import_language_output(declared)) return;
  add_output(im, index, name, texts ? kva_import_language_logits(im, v->value) : v->value, out);
  if (!texts) kva_import_check_type(im, declared, v->value);
}

static kva_status import_outputs(kva_import *im, const kva_import_scope *s, const kva_pb_graph *g, kva_function *f) {
  outputs out = {0};
  if (!g->n_output) return kva_error(im->c.diag, &im->loc, "the graph has no outputs");
  for (size_t i = 0; i < g->n_output; i++) import_output(im, s, (uint32_t)i, g->output[i], &out);
  for (size_t i = 0; i < g->n_value_info && !im->c.whole_texts; i++) {
    const kva_import_name *v = kva_import_find(s, kva_pb_str(g->value_info[i]->name));
    if (v && v->value) kva_import_check_type(im, g->value_info[i], v->value);
  }
  if (im->status) return im->status;
  f->output_names = out.names.data;
  im->c.b.loc = im->loc;
  (void)kva_build_node(&im->c.b, KVA_OP_return, out.values.len, out.values.data, 0, NULL);
  return im->c.b.failed ? KVA_INVALID : KVA_OK;
}

static void note_read(kva_map *read, size_t n, char *const *names) {
  for (size_t i = 0; i < n; i++) kva_map_set_str(read, kva_pb_str(names[i]), read);
}

static void note_reads(kva_map *read, size_t n, kva_pb_node *const *nodes) {
  for (size_t i = 0; i < n; i++) {
    note_read(read, nodes[i]->n_input, nodes[i]->input);
    for (size_t a = 0; a < nodes[i]->n_attribute; a++) {
      const kva_pb_graph *g = nodes[i]->attribute[a]->g;
      if (!g) continue;
      note_reads(read, g->n_node, g->node);
      for (size_t k = 0; k < g->n_output; k++) note_read(read, 1, &g->output[k]->name);
    }
  }
}

/* The names that nodes and outputs of any graph or function read. */
static const kva_map *names_read(kva_import *im) {
  const kva_pb_model *m = im->model;
  kva_map *read = kva_map_create(im->c.arena);
  note_reads(read, m->graph->n_node, m->graph->node);
  for (size_t i = 0; i < m->graph->n_output; i++) note_read(read, 1, &m->graph->output[i]->name);
  for (size_t i = 0; i < m->n_functions; i++) {
    note_reads(read, m->functions[i]->n_node, m->functions[i]->node);
    note_read(read, m->functions[i]->n_output, m->functions[i]->output);
  }
  return read;
}

static void take_properties(kva_import *im) {
  for (size_t i = 0; i < im->model->n_metadata_props; i++)
    kva_module_add_property(im->m, kva_pb_str(im->model->metadata_props[i]->key),
                            kva_pb_str(im->model->metadata_props[i]->value));
}

static kva_status import_graph(kva_import *im) {
  const kva_pb_graph *g = im->model->graph;
  kva_import_frame main = {.n_imports = im->model->n_opset_import, .imports = im->model->opset_import};
  kva_import_scope scope = {.frame = &main, .names = kva_map_create(im->c.arena)};
  kva_function *f = kva_function_create(im->m, "main");
  im->m->name = kva_arena_strdup(im->m->arena, *kva_pb_str(g->name) ? g->name : "model");
  f->loc = im->loc;
  take_properties(im);
  im->c.b = (kva_builder){.m = im->m, .graph = f->graph, .loc = im->loc, .assumes = true};
  im->tokens = kva_import_language_tokens(im, g);
  im->c.whole_texts = im->tokens != NULL;
  if (im->options && im->options->inference) im->c.read = names_read(im);
  KVA_TRY(import_inputs(im, &scope, g));
  KVA_TRY(kva_import_initializers(im, &scope, g, im->raw));
  check_initializers(im, &scope, g->n_input, g->input);
  check_initializers(im, &scope, g->n_value_info, g->value_info);
  kva_import_nodes(im, &scope, g->n_node, g->node);
  KVA_TRY(import_outputs(im, &scope, g, f));
  KVA_TRY(kva_strings_lower(im->m, f));
  if (im->model->n_training_info) kva_warn(im->c.diag, &im->loc, "the model's training information is not used");
  return im->status;
}

/* ---- model ------------------------------------------------------------------------------------------------------- */

/* Reports every operator without a rule once, with its count. The import goes on, so that the user sees everything that
 * is missing. */
static void report_operators(kva_import *im) {
  kva_check_report report;
  kva_pb_count_ops(im->model, im->functions, im->c.arena, &report);
  for (uint32_t i = 0; i < report.rows.len; i++) {
    const kva_check_row *row = &report.rows.data[i];
    if (row->supported) continue;
    kva_loc loc = im->loc;
    if (*row->first_node) loc.node = kva_arena_strdup(im->m->arena, row->first_node);
    im->lacks_operators = true;
    (void)record_failure(im, kva_fail(im->c.diag, KVA_UNSUPPORTED, &loc, "%s%s%s, opset %lld, %lld node%s: %s",
                                      row->domain, *row->domain ? "::" : "", row->op_type, (long long)row->version,
                                      (long long)row->count, row->count == 1 ? "" : "s", row->reason));
  }
}

static kva_status import_model(kva_import *im) {
  if (im->options && im->options->n_defines)
    return kva_error(im->c.diag, &im->loc, "an ONNX model has no hyper-parameters, so -D %s=%s sets nothing",
                     im->options->defines[0].name, im->options->defines[0].value);
  KVA_TRY(kva_pb_check_header(im->model, &im->loc, im->c.diag));
  im->functions = kva_pb_index_functions(im->model, im->c.arena);
  report_operators(im);
  KVA_TRY(import_graph(im));
  return kva_module_verify(im->m);
}

/* The module has the mapping from now on: constants refer to it. */
static void take_mapping(kva_import *im, kva_file *file) {
  if (!im->raw || !im->tensors.folder) return;
  for (size_t i = 0; i < im->model->graph->n_initializer; i++) im->raw[i].mapped = true;
  KVA_PUSH(im->m->arena, &im->m->files, *file);
  *file = (kva_file){0};
}

kva_status kva_import_onnx(kva_file *file, const char *path, const kva_load_options *options, kva_diag *diag,
                           kva_module **out) {
  kva_pb_model *model;
  kva_pb_raw *raw;
  kva_loc loc = {.file = path};
  *out = NULL;
  kva_arena *scratch = kva_arena_create();
  kva_status status = kva_pb_unpack_model(file->data, file->size, &loc, scratch, diag, &model, &raw);
  if (status) {
    kva_arena_destroy(scratch);
    return status;
  }
  kva_module *m = kva_module_create(diag);
  loc.file = kva_arena_strdup(m->arena, path);
  kva_import im = {.c = {.diag = diag, .arena = scratch},
                   .m = m,
                   .model = model,
                   .raw = raw,
                   .tensors = {.arena = m->arena,
                               .diag = diag,
                               .folder = options && options->in_memory ? NULL : kva_file_folder(scratch, path)},
                   .options = options,
                   .loc = loc,
                   .symbols = kva_map_create(scratch),
                   .used_names = kva_map_create(scratch)};
  take_mapping(&im, file);
  status = import_model(&im);
  for (uint32_t i = 0; im.tensors.files && i < kva_map_len(im.tensors.files); i++)
    KVA_PUSH(m->arena, &m->files, *(kva_file *)kva_map_value_at(im.tensors.files, i));
  kva_arena_destroy(scratch);
  protobuf_c_message_free_unpacked(&model->base, NULL);
  if (status)
    kva_module_destroy(m);
  else
    *out = m;
  return status;
}
