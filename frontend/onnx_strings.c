/* Tensors of strings: how rules build on them, and how they end (onnx_strings.h). */
#include "frontend/onnx_strings.h"
#include "ops/ids.h"

kva_value *kva_strings_call(kva_builder *b, const char *name, const char *text, int64_t number, kva_dtype to,
                            uint32_t n, kva_value *const *operands) {
  const kva_type *t = operands[0]->type;
  kva_external_attrs attrs = {.name = name, .text = text, .number = number, .shape = {t->rank, t->dims}, .to = to};
  return kva_build(b, KVA_OP_external, n, operands, &attrs);
}

/* ---- the end of dtype string ------------------------------------------------------------------------------------- */

static void retype_value(kva_module *m, kva_value *v) {
  if (v->type->dtype == KVA_STRING) v->type = kva_type_with_dtype(m, v->type, KVA_I64);
}

static void retype_attrs(const kva_node *n) {
  for (uint32_t i = 0; n->op->attrs && i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    kva_dtype *t = (kva_dtype *)((char *)n->attrs + f->offset);
    if (f->kind == KVA_ATTR_DTYPE && *t == KVA_STRING) *t = KVA_I64;
  }
}

/* The texts of a constant, one after the other, which a step of the program makes numbers of. */
static kva_value *lower_constant(kva_module *m, kva_node *n) {
  const kva_tensor_data *data = ((const kva_constant_attrs *)n->attrs)->value;
  const char *const *texts = data->data;
  kva_type t = *n->results[0].type;
  kva_text bytes = {0};
  for (int64_t i = 0; i < data->bytes / 8; i++) kva_text_add_bytes(&bytes, texts[i], strlen(texts[i]) + 1);
  kva_tensor_data *copy = KVA_NEW(m->arena, kva_tensor_data);
  *copy = (kva_tensor_data){.dtype = KVA_U8, .rank = 1, .bytes = (int64_t)bytes.len};
  copy->dims = kva_arena_memdup(m->arena, &copy->bytes, sizeof copy->bytes);
  copy->data = kva_arena_memdup(m->arena, bytes.data ? bytes.data : "", bytes.len + !bytes.len);
  kva_text_free(&bytes);
  kva_builder b = kva_builder_before(m, n);
  kva_value *in = kva_const_tensor(&b, copy);
  kva_external_attrs attrs = {.name = "string_bytes", .shape = {t.rank, t.dims}, .to = KVA_I64};
  return kva_build(&b, KVA_OP_external, 1, &in, &attrs);
}

/* Whether n is what this file puts at an input or output: it is there already in a graph that was printed. */
static bool is_edge(const kva_node *n, const char *name) {
  return n && kva_is(n, KVA_OP_external) && !strcmp(((const kva_external_attrs *)n->attrs)->name, name);
}

static void lower_graph(kva_module *m, kva_graph *g) {
  for (uint32_t i = 0; i < g->inputs.len; i++) retype_value(m, g->inputs.data[i]);
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (is_edge(n, "strings_out")) continue;
    if (kva_is(n, KVA_OP_constant) && n->results[0].type->dtype == KVA_STRING) {
      kva_value_replace_all_uses(&n->results[0], lower_constant(m, n));
      kva_node_remove(n);
      continue;
    }
    retype_attrs(n);
    for (uint32_t i = 0; i < n->n_results; i++) retype_value(m, &n->results[i]);
    for (uint32_t i = 0; i < n->n_graphs; i++) lower_graph(m, n->graphs[i]);
  }
}

static bool has_strings(const kva_graph *g) {
  for (uint32_t i = 0; i < g->inputs.len; i++)
    if (g->inputs.data[i]->type->dtype == KVA_STRING) return true;
  for (const kva_node *n = g->first; n; n = n->next)
    for (uint32_t i = 0; i < n->n_results; i++)
      if (n->results[i].type->dtype == KVA_STRING) return true;
  for (const kva_node *n = g->first; n; n = n->next)
    for (uint32_t i = 0; i < n->n_graphs; i++)
      if (has_strings(n->graphs[i])) return true;
  return false;
}

/* The input keeps its type; its users get numbers. */
static void lower_input(kva_module *m, kva_graph *g, kva_value *input) {
  kva_builder b = kva_builder_before(m, g->first);
  kva_value *numbers = NULL;
  for (kva_use *u = input->uses, *next; u; u = next) {
    next = u->next;
    if (is_edge(u->user, "strings_in")) continue;
    if (!numbers) numbers = kva_strings_call(&b, "strings_in", NULL, 0, KVA_I64, 1, &input);
    kva_node_set_operand(u->user, u->index, numbers);
  }
}

kva_status kva_strings_lower(kva_module *m, kva_function *f) {
  kva_graph *g = f->graph;
  if (!has_strings(g)) return KVA_OK;
  kva_node *end = g->last;
  const kva_type **inputs = KVA_NEW_ARRAY(m->arena, const kva_type *, g->inputs.len + 1);
  const kva_type **outputs = KVA_NEW_ARRAY(m->arena, const kva_type *, end->n_operands + 1);
  for (uint32_t i = 0; i < g->inputs.len; i++) inputs[i] = g->inputs.data[i]->type;
  for (uint32_t i = 0; i < end->n_operands; i++) outputs[i] = kva_operand(end, i)->type;
  lower_graph(m, g);
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    g->inputs.data[i]->type = inputs[i];
    if (inputs[i]->dtype == KVA_STRING) lower_input(m, g, g->inputs.data[i]);
  }
  kva_builder b = kva_builder_before(m, end);
  for (uint32_t i = 0; i < end->n_operands; i++) {
    kva_value *v = kva_operand(end, i);
    if (outputs[i]->dtype != KVA_STRING || is_edge(v->def, "strings_out")) continue;
    kva_node_set_operand(end, i, kva_strings_call(&b, "strings_out", NULL, 0, KVA_STRING, 1, &v));
  }
  return b.failed ? KVA_INVALID : KVA_OK;
}
