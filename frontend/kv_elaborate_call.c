/* Resolves calls, in this order: a function of the file (def), a compile-time function (min, dim, ...), an internal
 * operator (kv.name), an ONNX function of the file, an ONNX operator. Functions are inlined.
 *
 * A call is a scope for parameters. Its path consists of the caller's path, the function's name (or the statement's
 * [label]) and the indices of the enclosing loops: `block.3.attention`. A second call with the same path in one
 * function of the module gets the suffix _2, so that names depend only on the order of calls. */
#include "frontend/kv_elaborate.h"

enum { STEPS_OF_A_CALL = 10 };

kva_el_frame *kva_el_push_frame(kva_elab *e, bool is_function) {
  kva_el_frame *f = KVA_NEW(e->scratch, kva_el_frame);
  f->parent = is_function ? NULL : e->frame;
  f->names = kva_map_create(e->scratch);
  f->path = e->frame ? e->frame->path : "";
  f->opset = e->frame ? e->frame->opset : KVA_ONNX_NEWEST_OPSET;
  f->is_function = is_function;
  e->frame = f;
  return f;
}

/* For frames that see their parent only; calls restore the caller's frame themselves. */
void kva_el_pop_frame(kva_elab *e) {
  e->frame = e->frame->parent;
}

static const char *call_path(kva_elab *e, const char *name) {
  const kva_el_frame *f = e->frame;
  const char *prefix = *f->path ? kva_arena_printf(e->scratch, "%s.", f->path) : "";
  const char *loops = "";
  for (uint32_t i = 0; i < f->loops.len; i++) {
    loops = kva_arena_printf(e->scratch, "%s.%lld", loops, (long long)f->loops.data[i]);
  }
  const char *base = kva_arena_printf(e->scratch, "%s%s%s", prefix, name, loops), *path = base;
  uintptr_t calls = (uintptr_t)kva_map_get_str(e->paths, base); /* number of earlier calls with this path */
  while (kva_map_get_str(e->paths, path)) {
    path = kva_arena_printf(e->scratch, "%s%s_%llu%s", prefix, name, (unsigned long long)++calls, loops);
  }
  if (path != base) kva_map_set_str(e->paths, path, (void *)(uintptr_t)1);
  kva_map_set_str(e->paths, base, (void *)(path == base ? (uintptr_t)1 : calls));
  return path;
}

/* Bounds the depth and number of inlined calls. */
static bool enter_call(kva_elab *e, const kva_ast_expr *x) {
  if (++e->depth <= KVA_MAX_NESTING) return true;
  if (e->depth == KVA_MAX_NESTING + 1) {
    kva_el_error(e, x->first, "calls nest more than %d levels deep; does '%s' call itself?", KVA_MAX_NESTING,
                 x->call->name);
  }
  return false;
}

/* ---- functions written with def ---------------------------------------------------------------------------------- */

static const kva_ast_attr *find_attr(const kva_ast_attrs *attrs, const char *name) {
  for (uint32_t i = 0; i < attrs->list.len; i++) {
    if (!strcmp(attrs->list.data[i].name.text, name)) return &attrs->list.data[i];
  }
  return NULL;
}

static bool check_attr_names(kva_elab *e, const kva_ast_expr *x, const kva_ast_graph *g) {
  bool ok = true;
  for (uint32_t i = 0; i < x->call->attrs.list.len; i++) {
    const kva_ast_name *name = &x->call->attrs.list.data[i].name;
    if (find_attr(&g->attrs, name->text)) continue;
    kva_el_error(e, name->token, "the function '%s' has no hyper-parameter '%s'", x->call->name, name->text);
    ok = false;
  }
  return ok;
}

/* Evaluates the call's attributes in the caller's frame into `given`; false: an error was reported. */
static bool eval_given(kva_elab *e, const kva_ast_expr *x, const kva_ast_graph *g, kva_el_value *given) {
  bool ok = check_attr_names(e, x, g);
  for (uint32_t i = 0; i < g->attrs.list.len; i++) {
    const kva_ast_attr *a = find_attr(&x->call->attrs, g->attrs.list.data[i].name.text);
    given[i].kind = KVA_EL_NOTHING;
    if (a && a->value) given[i] = kva_el_expr(e, a->value);
    if (a ? a->value : g->attrs.list.data[i].value) continue;
    kva_el_error(e, x->first, "the function '%s' needs the hyper-parameter '%s'", x->call->name,
                 g->attrs.list.data[i].name.text);
    ok = false;
  }
  return ok;
}

/* Binds hyper-parameters in the callee's frame, since defaults may use earlier ones. */
static void bind_given(kva_elab *e, const kva_ast_graph *g, const kva_el_value *given) {
  for (uint32_t i = 0; i < g->attrs.list.len; i++) {
    const kva_ast_attr *a = &g->attrs.list.data[i];
    kva_el_bind(e, a->name.text, given[i].kind == KVA_EL_NOTHING ? kva_el_expr(e, a->value) : given[i]);
  }
}

static bool check_argument(kva_elab *e, const kva_ast_expr *x, const kva_ast_value *input, kva_el_value v) {
  if (!input->type || v.kind == KVA_EL_ERROR) return true;
  const kva_type *expected = kva_el_type(e, input->type);
  if (!expected || (v.kind == KVA_EL_TENSOR && v.value->type == expected)) return expected != NULL;
  kva_text want = {0}, found = {0};
  kva_type_print(expected, &want);
  if (v.kind == KVA_EL_TENSOR)
    kva_type_print(v.value->type, &found);
  else
    kva_text_add(&found, "%s", kva_el_kind_name(&v));
  kva_el_error(e, x->first, "argument '%s': expected %s, found %s", input->name.text, want.data, found.data);
  kva_text_free(&want);
  kva_text_free(&found);
  return false;
}

static void take_results(kva_elab *e, const kva_ast_expr *x, const kva_el_frame *f, uint32_t n, kva_el_value *out) {
  if (!f->returned) {
    kva_el_error(e, x->first, "the function '%s' does not return anything", x->call->name);
  } else if (f->results.len < n || (f->results.len > n && n != 1) || f->results.len == 0) {
    kva_el_error(e, x->first, "the function '%s' returns %u value%s, but %u %s expected", x->call->name, f->results.len,
                 f->results.len == 1 ? "" : "s", n, n == 1 ? "is" : "are");
  } else {
    memcpy(out, f->results.data, n * sizeof *out);
  }
}

static void call_def(kva_elab *e, const kva_ast_expr *x, const kva_ast_name *label, const kva_ast_graph *g, uint32_t n,
                     kva_el_value *out) {
  uint32_t n_args = x->items.len;
  kva_el_value *args = KVA_NEW_ARRAY(e->scratch, kva_el_value, n_args);
  kva_el_value *given = KVA_NEW_ARRAY(e->scratch, kva_el_value, g->attrs.list.len);
  size_t errors = kva_diag_errors(e->m->diag);
  if (n_args != g->inputs.list.len) {
    kva_el_error(e, x->first, "the function '%s' takes %u argument%s, found %u", x->call->name, g->inputs.list.len,
                 g->inputs.list.len == 1 ? "" : "s", n_args);
    return;
  }
  for (uint32_t i = 0; i < n_args; i++) args[i] = kva_el_expr(e, x->items.data[i]);
  if (!eval_given(e, x, g, given)) return;
  kva_el_frame *caller = e->frame;
  const char *path = call_path(e, label && label->text && *label->text ? label->text : x->call->name);
  kva_el_frame *f = kva_el_push_frame(e, true);
  f->path = path;
  for (uint32_t i = 0; i < n_args; i++) kva_el_bind(e, g->inputs.list.data[i].name.text, args[i]);
  bind_given(e, g, given);
  bool ok = true;
  for (uint32_t i = 0; i < n_args; i++) ok &= check_argument(e, x->items.data[i], &g->inputs.list.data[i], args[i]);
  if (ok) kva_el_block(e, &g->body);
  if (ok && kva_diag_errors(e->m->diag) == errors) take_results(e, x, f, n, out);
  e->frame = caller;
}

/* ---- ONNX functions ---------------------------------------------------------------------------------------------- */

int64_t kva_el_opset(const kva_ast_header *h, int64_t otherwise) {
  for (uint32_t i = 0; i < h->entries.len; i++) {
    const kva_ast_header_entry *entry = &h->entries.data[i];
    if (strcmp(entry->key.text, "opset_import")) continue;
    for (uint32_t k = 0; k + 1 < entry->pairs.len; k += 2) {
      const char *domain = entry->pairs.data[k]->text;
      if (!*domain || !strcmp(domain, "ai.onnx")) return (int64_t)entry->pairs.data[k + 1]->integer;
    }
  }
  return otherwise;
}

static void bind_attr_parameters(kva_elab *e, const kva_ast_expr *x, const kva_ast_graph *g, kva_map *attrs) {
  for (uint32_t i = 0; i < g->attrs.list.len; i++) {
    const kva_ast_attr *parameter = &g->attrs.list.data[i];
    const kva_ast_attr *a = find_attr(&x->call->attrs, parameter->name.text);
    if (!a && !parameter->value) continue; /* not given: references to it are dropped */
    kva_onnx_attr *v = KVA_NEW(e->scratch, kva_onnx_attr);
    if (kva_el_onnx_attr(e, a ? a : parameter, v)) kva_map_set_str(attrs, parameter->name.text, v);
  }
}

static void call_onnx_function(kva_elab *e, const kva_ast_expr *x, const kva_ast_graph *g, uint32_t n,
                               kva_el_value *out) {
  uint32_t n_inputs = g->inputs.list.len, n_outputs = g->outputs.list.len;
  if (x->items.len > n_inputs || n > n_outputs) {
    kva_el_error(e, x->first, "the function '%s' has %u inputs and %u outputs, found %u and %u", x->call->name,
                 n_inputs, n_outputs, x->items.len, n);
    return;
  }
  kva_value **operands = KVA_NEW_ARRAY(e->scratch, kva_value *, n_inputs + 1);
  kva_value **results = KVA_NEW_ARRAY(e->scratch, kva_value *, n_outputs + 1);
  kva_map *attrs = kva_map_create(e->scratch);
  size_t errors = kva_diag_errors(e->m->diag);
  bool ok = kva_el_operands(e, x, operands) && check_attr_names(e, x, g);
  bind_attr_parameters(e, x, g, attrs);
  if (!ok || kva_diag_errors(e->m->diag) != errors) return;
  kva_el_frame *caller = e->frame;
  kva_el_frame *f = kva_el_push_frame(e, true);
  f->attrs = attrs;
  f->opset = kva_el_opset(&g->header, f->opset);
  for (uint32_t i = 0; i < n_inputs; i++) {
    kva_el_value v = operands[i] ? kva_el_tensor(operands[i]) : (kva_el_value){.kind = KVA_EL_NOTHING};
    kva_el_bind(e, g->inputs.list.data[i].name.text, v);
  }
  kva_el_block(e, &g->body);
  if (kva_diag_errors(e->m->diag) == errors && kva_el_outputs(e, g, results)) {
    for (uint32_t i = 0; i < n; i++) out[i] = kva_el_tensor(results[i]);
  }
  e->frame = caller;
}

static const kva_ast_graph *find_onnx_function(kva_elab *e, const kva_ast_call *c) {
  const char *domain = strcmp(c->domain, "ai.onnx") ? c->domain : "";
  const char *key = kva_arena_printf(e->scratch, "%s:%s", domain, c->name);
  if (c->overload) key = kva_arena_printf(e->scratch, "%s:%s", key, c->overload);
  return kva_map_get_str(e->functions, key);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

void kva_el_call(kva_elab *e, const kva_ast_expr *x, const kva_ast_name *label, uint32_t n, const char *const *wanted,
                 kva_el_value *out) {
  const kva_ast_call *c = x->call;
  const kva_ast_graph *def = *c->domain ? NULL : kva_map_get_str(e->functions, c->name);
  const kva_ast_graph *function = find_onnx_function(e, c);
  for (uint32_t i = 0; i < n; i++) out[i] = (kva_el_value){.kind = KVA_EL_ERROR};
  if (!e->onnx.b.graph && (n != 1 || !kva_el_builtin(e, x, out))) {
    kva_el_error(e, x->first, "only compile-time functions can be called here; '%s' is none", c->name);
    return;
  }
  if (!e->onnx.b.graph) return;
  if (!c->has_operands) {
    kva_el_error(e, x->first, "'%s' is called without operands; write %s <...> (...)", c->name, c->name);
    return;
  }
  bool enters = enter_call(e, x) && ((!def && !function) || kva_el_spend(e, x->first, STEPS_OF_A_CALL));
  if (enters && def)
    call_def(e, x, label, def, n, out);
  else if (enters && function)
    call_onnx_function(e, x, function, n, out);
  else if (enters && !strcmp(c->domain, "kv"))
    kva_el_kv_op(e, x, n, out);
  else if (enters && (n != 1 || !kva_el_builtin(e, x, out)))
    kva_el_onnx_op(e, x, label, n, wanted, out);
  e->depth--;
}
