/* Builds nodes: internal operators (kv.name), whose attributes are set through their descriptors, and ONNX operators,
 * through the rules of kva_onnx_build. */
#include "frontend/kv_elaborate.h"
#include "ops/ids.h"

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Numbers among the operands get the element type of the first tensor that is not a mask. */
static kva_dtype operand_dtype(const kva_el_value *v, uint32_t n) {
  kva_dtype found = KVA_DTYPE_NONE;
  for (uint32_t i = 0; i < n; i++) {
    kva_dtype t = KVA_DTYPE_NONE;
    if (v[i].kind == KVA_EL_TENSOR) t = v[i].value->type->dtype;
    if (v[i].kind == KVA_EL_LITERAL) t = v[i].data->dtype;
    if (t != KVA_DTYPE_NONE && t != KVA_BOOL) return t;
    if (t == KVA_BOOL) found = t;
  }
  return found;
}

bool kva_el_operands(kva_elab *e, const kva_ast_expr *x, kva_value **out) {
  uint32_t n = x->items.len;
  kva_el_value *v = KVA_NEW_ARRAY(e->scratch, kva_el_value, n);
  for (uint32_t i = 0; i < n; i++) v[i] = kva_el_expr(e, x->items.data[i]);
  kva_dtype like = operand_dtype(v, n);
  bool ok = true;
  for (uint32_t i = 0; i < n; i++) {
    bool left_out = v[i].kind == KVA_EL_NOTHING || (v[i].kind == KVA_EL_STRING && !*v[i].s);
    if (left_out) continue;
    out[i] = kva_el_operand(e, x->items.data[i]->first, v[i],
                            v[i].kind == KVA_EL_FLOAT && like == KVA_BOOL ? KVA_DTYPE_NONE : like);
    ok &= out[i] != NULL;
  }
  return ok;
}

/* ---- attributes of internal operators ---------------------------------------------------------------------------- */

static const kva_ast_expr *element(const kva_ast_expr *list, uint32_t i) {
  return list->kind == KVA_AST_LIST ? list->items.data[i] : list;
}

static bool set_ints(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, const char *what, kva_ints *out) {
  int64_t *ints = KVA_NEW_ARRAY(e->m->arena, int64_t, v->n);
  for (uint32_t i = 0; i < v->n; i++) {
    if (!kva_el_as_int(e, element(x, i), v->items[i], what, &ints[i])) return false;
  }
  *out = (kva_ints){.n = v->n, .v = ints};
  return true;
}

static bool set_dims(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, const char *what, kva_dims *out) {
  kva_dim *dims = KVA_NEW_ARRAY(e->m->arena, kva_dim, v->n);
  for (uint32_t i = 0; i < v->n; i++) {
    if (!kva_el_as_dim(e, element(x, i), v->items[i], what, &dims[i])) return false;
  }
  *out = (kva_dims){.n = v->n, .v = dims};
  return true;
}

/* A single symbol may be written without brackets. */
static bool set_symbols(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, const char *what, kva_dims *out) {
  if (v->kind == KVA_EL_LIST) return set_dims(e, x, v, what, out);
  kva_dim *symbol = KVA_NEW(e->m->arena, kva_dim);
  *out = (kva_dims){.n = 1, .v = symbol};
  return kva_el_as_dim(e, x, *v, what, symbol);
}

static bool set_state(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, kva_state **out) {
  const char *name = v->kind == KVA_EL_STRING ? v->s : NULL;
  if (v->kind == KVA_EL_TENSOR && v->value->def && kva_is(v->value->def, KVA_OP_state_read)) {
    name = ((const kva_state_read_attrs *)v->value->def->attrs)->state->name; /* the parameter's name */
  }
  *out = name ? kva_map_get_str(e->states, name) : NULL;
  if (!*out) kva_el_error(e, x->first, "there is no state '%s'", name ? name : kva_el_kind_name(v));
  return *out != NULL;
}

/* Element types may be written as a type, in quotes, or as ONNX's code. */
static bool set_dtype(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, kva_dtype *out) {
  *out = KVA_DTYPE_NONE;
  if (v->kind == KVA_EL_DTYPE) *out = (kva_dtype)v->i;
  if (v->kind == KVA_EL_INT && v->i > 0 && v->i < KVA_DTYPE_COUNT) *out = (kva_dtype)v->i;
  if (v->kind == KVA_EL_STRING) *out = kva_dtype_from_name(v->s, strlen(v->s));
  if (*out == KVA_DTYPE_NONE) kva_el_error(e, x->first, "expected an element type such as float");
  return *out != KVA_DTYPE_NONE;
}

static bool expect(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, kva_el_kind kind, const char *what,
                   const char *expected) {
  if (v->kind == kind) return true;
  kva_el_error(e, x->first, "%s: expected %s, found %s", what, expected, kva_el_kind_name(v));
  return false;
}

static bool set_bool(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, const char *what, bool *out) {
  bool is_number = v->kind == KVA_EL_INT && (v->i == 0 || v->i == 1);
  if (!is_number && !expect(e, x, v, KVA_EL_BOOL, what, "true or false")) return false;
  *out = v->i;
  return true;
}

static bool set_field(kva_elab *e, const kva_attr_field *f, const kva_ast_expr *x, kva_el_value v, void *to) {
  switch (f->kind) {
  case KVA_ATTR_INT: return kva_el_as_int(e, x, v, f->name, to);
  case KVA_ATTR_FLOAT: return kva_el_as_float(e, x, v, f->name, to);
  case KVA_ATTR_BOOL: return set_bool(e, x, &v, f->name, to);
  case KVA_ATTR_STR:
    if (!expect(e, x, &v, KVA_EL_STRING, f->name, "a string")) return false;
    *(const char **)to = kva_arena_strdup(e->m->arena, v.s);
    return true;
  case KVA_ATTR_INTS: return expect(e, x, &v, KVA_EL_LIST, f->name, "a list") && set_ints(e, x, &v, f->name, to);
  case KVA_ATTR_DIM: return kva_el_as_dim(e, x, v, f->name, to);
  case KVA_ATTR_DIMS: return expect(e, x, &v, KVA_EL_LIST, f->name, "a list") && set_dims(e, x, &v, f->name, to);
  case KVA_ATTR_SYMBOLS: return set_symbols(e, x, &v, f->name, to);
  case KVA_ATTR_DTYPE: return set_dtype(e, x, &v, to);
  case KVA_ATTR_TENSOR:
    if (!expect(e, x, &v, KVA_EL_LITERAL, f->name, "a tensor literal")) return false;
    *(const kva_tensor_data **)to = v.data;
    return true;
  case KVA_ATTR_STATE: return set_state(e, x, &v, to);
  }
  return false;
}

static const char *known_fields(kva_elab *e, const kva_attr_desc *desc) {
  const char *list = "";
  for (uint32_t i = 0; desc && i < desc->n_fields; i++) {
    list = kva_arena_printf(e->scratch, "%s%s%s", list, i ? ", " : "", desc->fields[i].name);
  }
  return *list ? list : "none";
}

static bool set_attr(kva_elab *e, const kva_op_info *op, const kva_ast_attr *a, void *out) {
  const char *name = a->name.text;
  const kva_attr_field *f = op->attrs ? kva_attrs_find(op->attrs, name, strlen(name)) : NULL;
  if (!f) {
    kva_el_error(e, a->name.token, "kv.%s has no attribute '%s'; it has: %s", op->name, name,
                 known_fields(e, op->attrs));
    return false;
  }
  if (!a->value) {
    kva_el_error(e, a->name.token, "attribute '%s' has no value", name);
    return false;
  }
  if (f->kind == KVA_ATTR_SYMBOLS) kva_el_declare_symbols(e, a->value);
  bool dims = f->kind == KVA_ATTR_DIM || f->kind == KVA_ATTR_DIMS || f->kind == KVA_ATTR_SYMBOLS;
  kva_el_value v = dims ? kva_el_expr_in_dims(e, a->value) : kva_el_expr(e, a->value);
  return v.kind != KVA_EL_ERROR && set_field(e, f, a->value, v, (char *)out + f->offset);
}

/* Sets the attributes of a kv operator from an attribute list. False: an error was reported. */
static bool set_attrs(kva_elab *e, const kva_op_info *op, const kva_ast_attrs *attrs, void *out) {
  bool ok = true;
  for (uint32_t i = 0; i < attrs->list.len; i++) ok &= set_attr(e, op, &attrs->list.data[i], out);
  return ok;
}

/* ---- internal operators ------------------------------------------------------------------------------------------ */

/* Builds the sub-graph first: the node's types follow from it. */
static kva_node *build_with_graph(kva_elab *e, const kva_ast_expr *x, const kva_op_info *op, kva_value **operands,
                                  uint32_t n, void *attrs) {
  kva_builder *b = &e->onnx.b;
  kva_loc loc = b->loc;
  kva_node *node = kva_node_create(b->graph, b->before, op, x->items.len, operands, n, attrs, loc);
  bool ok = true;
  for (uint32_t i = 0; i < x->call->graphs.len; i++) {
    ok &= kva_el_subgraph(e, x->call->graphs.data[i], kva_graph_create(e->m, node));
  }
  const kva_type **types = KVA_NEW_ARRAY(e->scratch, const kva_type *, n + 1);
  ok = ok && op->infer(e->m, node, types) == KVA_OK;
  for (uint32_t i = 0; i < n; i++) node->results[i].type = ok ? types[i] : kva_type_scalar(e->m, KVA_F32);
  b->failed |= !ok;
  return node;
}

static uint32_t result_count(kva_elab *e, const kva_ast_expr *x, const kva_op_info *op, uint32_t wanted) {
  if (op->n_results < 0 || wanted <= (uint32_t)op->n_results)
    return op->n_results < 0 ? wanted : (uint32_t)op->n_results;
  kva_el_error(e, x->first, "kv.%s has %d result%s; the statement assigns %u names", op->name, op->n_results,
               op->n_results == 1 ? "" : "s", wanted);
  return UINT32_MAX;
}

void kva_el_kv_op(kva_elab *e, const kva_ast_expr *x, uint32_t n, kva_el_value *out) {
  const char *name = x->call->name;
  const kva_op_info *op = kva_op_set_find(&kva_ops, name, strlen(name));
  if (!op || (op->traits & KVA_RETURN)) {
    kva_el_error(e, x->first, "there is no operator kv.%s", name);
    return;
  }
  kva_value **operands = KVA_NEW_ARRAY(e->scratch, kva_value *, x->items.len + 1);
  void *attrs = op->attrs ? kva_attrs_default(e->m->arena, op->attrs) : NULL;
  bool ok = kva_el_operands(e, x, operands);
  ok &= set_attrs(e, op, &x->call->attrs, attrs);
  uint32_t n_results = result_count(e, x, op, n);
  if (!ok || n_results == UINT32_MAX) return;
  e->onnx.b.loc = kva_el_loc(e, x->first);
  kva_node *node = x->call->graphs.len
                       ? build_with_graph(e, x, op, operands, n_results, attrs)
                       : kva_build_node(&e->onnx.b, (kva_op_id)op->id, x->items.len, operands, n_results, attrs);
  if (kva_el_failed(e)) return;
  for (uint32_t i = 0; i < n && i < node->n_results; i++) out[i] = kva_el_tensor(kva_result(node, i));
}

/* ---- ONNX operators ---------------------------------------------------------------------------------------------- */

typedef struct text_subgraph {
  kva_onnx_subgraph base; /* first */
  kva_el_frame *outer;
  const kva_ast_graph *g;
} text_subgraph;

static kva_status build_subgraph(kva_onnx_ctx *c, const kva_onnx_subgraph *base, kva_value *const *inputs,
                                 kva_value **outputs) {
  const text_subgraph *s = (const text_subgraph *)base;
  kva_elab *e = (kva_elab *)c;
  kva_el_frame *saved = e->frame;
  e->frame = s->outer;
  kva_el_push_frame(e, false);
  for (uint32_t i = 0; i < base->n_inputs; i++) {
    kva_el_bind(e, s->g->inputs.list.data[i].name.text, kva_el_tensor(inputs[i]));
  }
  kva_el_initialisers(e, &s->g->infos);
  kva_el_block(e, &s->g->body);
  bool ok = kva_el_outputs(e, s->g, outputs);
  e->frame = saved;
  return ok ? KVA_OK : KVA_INVALID;
}

static const kva_onnx_subgraph *graph_attr(kva_elab *e, const kva_ast_graph *g) {
  text_subgraph *s = KVA_NEW(e->scratch, text_subgraph);
  *s = (text_subgraph){
      .base = {.n_inputs = g->inputs.list.len, .n_outputs = g->outputs.list.len, .build = build_subgraph},
      .outer = e->frame,
      .g = g};
  return &s->base;
}

static bool onnx_list(kva_elab *e, const kva_ast_attr *a, const kva_el_value *v, kva_onnx_attr *out) {
  int64_t *ints = KVA_NEW_ARRAY(e->scratch, int64_t, v->n);
  double *floats = KVA_NEW_ARRAY(e->scratch, double, v->n);
  const char **strings = KVA_NEW_ARRAY(e->scratch, const char *, v->n);
  bool is_float = a->type && !strcmp(a->type, "floats"), is_string = a->type && !strcmp(a->type, "strings");
  for (uint32_t i = 0; i < v->n; i++) {
    is_float |= v->items[i].kind == KVA_EL_FLOAT;
    is_string |= v->items[i].kind == KVA_EL_STRING;
  }
  for (uint32_t i = 0; i < v->n; i++) {
    const kva_el_value *item = &v->items[i];
    bool number = item->kind == KVA_EL_INT || item->kind == KVA_EL_FLOAT;
    if (is_string ? item->kind != KVA_EL_STRING : !number) {
      kva_el_error(e, a->value->first, "attribute '%s' is a list of %s, but element %u is %s", a->name.text,
                   is_string ? "strings" : "numbers", i, kva_el_kind_name(item));
      return false;
    }
    ints[i] = item->i;
    floats[i] = (float)item->f;
    strings[i] = item->s;
  }
  out->kind = is_string ? KVA_ONNX_STRINGS : is_float ? KVA_ONNX_FLOATS : KVA_ONNX_INTS;
  out->n = v->n;
  out->ints = ints;
  out->floats = floats;
  out->strings = strings;
  return true;
}

static bool onnx_value(kva_elab *e, const kva_ast_attr *a, kva_el_value v, kva_onnx_attr *out) {
  bool as_float = a->type && !strcmp(a->type, "float");
  switch (v.kind) {
  case KVA_EL_INT:
  case KVA_EL_BOOL:
  case KVA_EL_DTYPE:
    out->kind = as_float ? KVA_ONNX_FLOAT : KVA_ONNX_INT;
    out->i = v.i;
    out->f = (float)v.i;
    return true;
  case KVA_EL_FLOAT:
    out->kind = KVA_ONNX_FLOAT;
    out->f = (float)v.f; /* ONNX's float attributes are single precision */
    return true;
  case KVA_EL_STRING:
    out->kind = KVA_ONNX_STRING;
    out->s = v.s;
    return true;
  case KVA_EL_LIST: return onnx_list(e, a, &v, out);
  case KVA_EL_LITERAL:
    out->kind = KVA_ONNX_TENSOR;
    out->tensor = v.data;
    return true;
  case KVA_EL_ERROR: return false;
  default:
    kva_el_error(e, a->value->first, "attribute '%s' must be known at compile time, found %s", a->name.text,
                 kva_el_kind_name(&v));
    return false;
  }
}

/* The attribute parameter of the ONNX function being inlined; sub-graphs see those of their function. */
static const kva_onnx_attr *find_attr_parameter(const kva_elab *e, const char *name, bool *declared) {
  for (const kva_el_frame *f = e->frame; f; f = f->parent) {
    if (!f->attrs) continue;
    *declared = true;
    return kva_map_get_str(f->attrs, name);
  }
  *declared = false;
  return NULL;
}

static bool attr_reference(kva_elab *e, const kva_ast_attr *a, kva_onnx_attr *out) {
  bool declared;
  const kva_onnx_attr *given = find_attr_parameter(e, a->value->text, &declared);
  if (!declared) {
    kva_el_error(e, a->value->first, "'@%s' refers to an attribute of a function, but this is not in one",
                 a->value->text);
    return false;
  }
  if (!given) return false;
  *out = *given;
  out->name = a->name.text;
  return true;
}

bool kva_el_onnx_attr(kva_elab *e, const kva_ast_attr *a, kva_onnx_attr *out) {
  *out = (kva_onnx_attr){0};
  if (!a->value) {
    kva_el_error(e, a->name.token, "attribute '%s' has no value", a->name.text);
    return false;
  }
  if (a->value->kind == KVA_AST_REF) return attr_reference(e, a, out);
  out->name = a->name.text;
  if (a->value->kind == KVA_AST_GRAPH) {
    out->kind = KVA_ONNX_GRAPH;
    out->graph = graph_attr(e, a->value->graph);
    return true;
  }
  return onnx_value(e, a, kva_el_expr(e, a->value), out);
}

void kva_el_onnx_op(kva_elab *e, const kva_ast_expr *x, const kva_ast_name *label, uint32_t n,
                    const char *const *wanted, kva_el_value *out) {
  const kva_ast_attrs *attrs = &x->call->attrs;
  kva_onnx_attr *list = KVA_NEW_ARRAY(e->scratch, kva_onnx_attr, attrs->list.len);
  kva_value **operands = KVA_NEW_ARRAY(e->scratch, kva_value *, x->items.len + 1);
  kva_value **results = KVA_NEW_ARRAY(e->scratch, kva_value *, n + 1);
  size_t errors = kva_diag_errors(e->m->diag);
  uint32_t n_attrs = 0;
  bool ok = kva_el_operands(e, x, operands);
  for (uint32_t i = 0; i < attrs->list.len; i++) {
    n_attrs += kva_el_onnx_attr(e, &attrs->list.data[i], &list[n_attrs]);
  }
  if (!ok || kva_diag_errors(e->m->diag) != errors) return;
  kva_loc loc = kva_el_loc(e, x->first);
  loc.node = label && label->text && *label->text ? kva_arena_strdup(e->m->arena, label->text) : NULL;
  e->onnx.b.loc = loc;
  e->onnx.opset = e->frame->opset;
  const char *domain = strcmp(x->call->domain, "ai.onnx") ? x->call->domain : "";
  kva_onnx_node node = {.domain = domain,
                        .op_type = x->call->name,
                        .name = loc.node ? loc.node : "",
                        .n_attrs = n_attrs,
                        .n_inputs = x->items.len,
                        .n_outputs = n,
                        .attrs = list,
                        .inputs = operands,
                        .output_names = wanted,
                        .loc = loc};
  kva_status status = kva_onnx_build(&e->onnx, &node, results);
  if (status == KVA_UNSUPPORTED) e->unsupported += kva_diag_errors(e->m->diag) - errors;
  if (kva_el_failed(e) || status != KVA_OK) return;
  for (uint32_t i = 0; i < n; i++) {
    if (results[i]) out[i] = kva_el_tensor(results[i]);
  }
}
