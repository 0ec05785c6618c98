/* Exports operators that ONNX lacks as calls of model-local functions of domain "ai.kvasir". The body spells the
 * operator in standard ONNX, so that any runtime can execute the file. The importer maps the call to the operator, with
 * the call's attributes (onnx_ops_own.c), and ignores the body. The body contains the attributes' values and depends on
 * ranks and types of the operands, so it is written for every call; calls with equal bodies share one function. */
#include "frontend/onnx_export.h"
#include "ops/ids.h"

#include <stdlib.h>

enum { MAX_VALUES = 8 };

typedef struct call {
  const kva_node *n;
  const char *op_type;
  const char *in[MAX_VALUES], *out[MAX_VALUES]; /* names in the body: operands, then attributes that are expressions */
  const char *given[MAX_VALUES];                /* the caller's names for `in` */
  kva_dim dims[MAX_VALUES];                     /* the expression of each `in`, NULL for operands */
  uint32_t n_in, n_out;
} call;

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* Parses "x w past -> y state". */
static void read_signature(kva_export *e, const char *signature, call *c) {
  const char **names = c->in;
  for (const char *s = signature; *s; s += strspn(s, " ")) {
    size_t len = strcspn(s, " ");
    if (*s == '-')
      names = c->out;
    else
      *names++ = kva_arena_strndup(e->arena, s, len);
    s += len;
  }
}

/* Attributes that are expressions over symbols become inputs after the operands. */
static kva_status give_inputs(kva_export *e, call *c) {
  const kva_op_info *op = c->n->op;
  uint32_t at = (uint32_t)op->max_operands;
  for (uint32_t i = 0; i < c->n->n_operands; i++)
    if ((c->given[i] = kva_export_in(e, c->n, i))) c->n_in = i + 1;
  for (uint32_t i = 0; op->attrs && i < op->attrs->n_fields; i++) {
    const kva_attr_field *f = &op->attrs->fields[i];
    if (f->kind != KVA_ATTR_DIM) continue;
    const kva_dim *d = (const void *)((const char *)c->n->attrs + f->offset);
    c->in[at] = f->name;
    if (*d && !kva_expr_is_const(*d, NULL)) {
      c->dims[at] = *d;
      if (!(c->given[at] = kva_export_dims(e, 1, d))) return KVA_UNSUPPORTED;
      c->n_in = at + 1;
    }
    at++;
  }
  return KVA_OK;
}

static void write_attr(kva_export *e, kva_pb_node *p, const kva_attr_field *f, const void *at) {
  int64_t constant;
  switch (f->kind) {
  case KVA_ATTR_INT: kva_export_int(e, p, f->name, *(const int64_t *)at); break;
  case KVA_ATTR_BOOL: kva_export_int(e, p, f->name, *(const bool *)at); break;
  case KVA_ATTR_FLOAT: kva_export_exact(e, p, f->name, *(const double *)at); break;
  case KVA_ATTR_STR:
    if (*(const char *const *)at) kva_export_string(e, p, f->name, *(const char *const *)at);
    break;
  case KVA_ATTR_DIM:
    if (*(const kva_dim *)at && kva_expr_is_const(*(const kva_dim *)at, &constant))
      kva_export_int(e, p, f->name, constant);
    break;
  default: KVA_ASSERT(!"an operator of onnx_ops.def with an attribute that ONNX cannot hold");
  }
}

static kva_pb_node *write_call(kva_export *e, const call *c) {
  const kva_attr_desc *desc = c->n->op->attrs;
  kva_pb_node *p = kva_export_node(e, c->op_type, c->n_in, c->given, kva_export_result_name(e, c->n, 0));
  p->domain = kva_arena_strdup(e->arena, "ai.kvasir");
  for (uint32_t i = 1; i < c->n_out; i++)
    kva_export_add_output(e, p, c->n->results[i].uses ? kva_export_result_name(e, c->n, i) : "");
  for (uint32_t i = 0; desc && i < desc->n_fields; i++)
    write_attr(e, p, &desc->fields[i], (const char *)c->n->attrs + desc->fields[i].offset);
  kva_export_name_node(e, p, c->n);
  return p;
}

/* ---- the function ------------------------------------------------------------------------------------------------ */

static char **string_list(kva_export *e, uint32_t n, const char *const *v) {
  char **list = KVA_NEW_ARRAY(e->arena, char *, n + 1);
  for (uint32_t i = 0; i < n; i++) list[i] = kva_arena_strdup(e->arena, v[i]);
  return list;
}

static void rename_value(kva_export *e, const char *from, const char *to) {
  for (uint32_t k = 0; k < e->nodes.len; k++) {
    kva_pb_node *p = e->nodes.data[k];
    for (size_t i = 0; i < p->n_input; i++)
      if (!strcmp(p->input[i], from)) p->input[i] = kva_arena_strdup(e->arena, to);
    for (size_t i = 0; i < p->n_output; i++)
      if (!strcmp(p->output[i], from)) p->output[i] = kva_arena_strdup(e->arena, to);
  }
}

/* The graph's writers also write the body, with the graph's state set aside. Generated names restart, so that equal
 * bodies are equal byte by byte. */
static kva_status write_body(kva_export *e, const call *c, kva_export_fn write, kva_pb_function *p) {
  kva_export outer = *e;
  e->body_of = c->n;
  e->formals = c->in;
  e->nodes.data = NULL, e->nodes.len = e->nodes.cap = 0;
  e->used_names = kva_map_create(e->arena);
  e->dims = kva_map_create(e->arena);
  e->n_made = 0;
  for (uint32_t i = 0; i < c->n_out; i++) kva_map_set_str(e->used_names, c->out[i], e);
  for (uint32_t i = 0; i < c->n_in; i++) {
    kva_map_set_str(e->used_names, c->in[i], e);
    if (c->dims[i]) kva_map_set(e->dims, &c->dims[i], sizeof c->dims[i], (void *)(uintptr_t)c->in[i]);
  }
  kva_status status = write(e, c->n, c->op_type);
  for (uint32_t i = 0; !status && i < c->n_out; i++)
    if (i == 0 || c->n->results[i].uses) rename_value(e, e->names[c->n->results[i].id], c->out[i]);
  p->n_node = e->nodes.len;
  p->node = e->nodes.data;
  *e = outer;
  return status;
}

static void write_header(kva_export *e, const call *c, const kva_pb_node *node, kva_pb_function *p) {
  p->name = kva_arena_strdup(e->arena, c->op_type);
  p->domain = kva_arena_strdup(e->arena, "ai.kvasir");
  p->n_input = c->n_in;
  p->input = string_list(e, c->n_in, c->in);
  p->n_output = c->n_out;
  p->output = string_list(e, c->n_out, c->out);
  p->n_attribute = node->n_attribute;
  p->attribute = KVA_NEW_ARRAY(e->arena, char *, node->n_attribute + 1);
  for (size_t i = 0; i < node->n_attribute; i++) p->attribute[i] = node->attribute[i]->name;
  kva_pb_opset *opset = KVA_NEW(e->arena, kva_pb_opset);
  onnx__operator_set_id_proto__init(opset);
  opset->domain = kva_arena_strdup(e->arena, "");
  opset->has_version = true;
  opset->version = e->opset;
  p->n_opset_import = 1;
  p->opset_import = kva_arena_memdup(e->arena, &opset, sizeof opset);
}

/* Returns an existing function with p's content, or p with a new overload (the first of a name has none). */
static const kva_pb_function *share(kva_export *e, kva_pb_function *p) {
  size_t size = onnx__function_proto__get_packed_size(p);
  uint8_t *bytes = kva_arena_alloc(e->arena, size);
  onnx__function_proto__pack(p, bytes);
  const kva_pb_function *known = kva_map_get(e->bodies, bytes, size);
  if (known) return known;
  kva_map_set(e->bodies, bytes, size, p);
  uint32_t same_name = 0;
  for (uint32_t i = 0; i < e->functions.len; i++) same_name += !strcmp(e->functions.data[i]->name, p->name);
  if (same_name) p->overload = kva_arena_printf(e->arena, "%u", same_name + 1);
  KVA_PUSH(e->arena, &e->functions, p);
  return p;
}

kva_status kva_export_call(kva_export *e, const kva_node *n, const char *op_type, const char *signature,
                           kva_export_fn write) {
  call c = {.n = n, .op_type = op_type, .n_out = 1};
  read_signature(e, signature, &c);
  KVA_TRY(give_inputs(e, &c));
  for (uint32_t i = 1; i < n->n_results; i++)
    if (n->results[i].uses) c.n_out = i + 1;
  kva_pb_function *p = KVA_NEW(e->arena, kva_pb_function);
  onnx__function_proto__init(p);
  KVA_TRY(write_body(e, &c, write, p));
  kva_pb_node *node = write_call(e, &c);
  write_header(e, &c, node, p);
  node->overload = share(e, p)->overload;
  for (uint32_t i = 0; i < c.n_out; i++) kva_export_set(e, n, i, node->output[i]);
  return KVA_OK;
}
