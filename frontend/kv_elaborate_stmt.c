/* Elaborates statements and graphs. */
#include "frontend/kv_elaborate.h"
#include "ops/control.h"
#include "ops/ids.h"

enum { MAX_STEPS = 1000000, MAX_LEVEL = 1000 };

bool kva_el_spend(kva_elab *e, uint32_t token, int64_t steps) {
  bool had = e->steps <= MAX_STEPS;
  if (had) e->steps += steps;
  if (had && e->steps > MAX_STEPS) {
    kva_el_error(e, token, "this unrolls into more than %d loop iterations and calls", MAX_STEPS);
  }
  return e->steps <= MAX_STEPS;
}

bool kva_el_descend(kva_elab *e, uint32_t token) {
  if (++e->level <= MAX_LEVEL) return true;
  if (!e->too_deep) kva_el_error(e, token, "with its calls this nests more than %d levels deep", MAX_LEVEL);
  e->too_deep = true;
  return false;
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static void name_value(kva_elab *e, kva_value *v, const char *name) {
  if (!v->name && *name) v->name = kva_arena_strdup(e->m->arena, name);
}

static void bind_target(kva_elab *e, const kva_ast_name *target, kva_el_value v) {
  if (!*target->text) return;
  if (v.kind == KVA_EL_LITERAL) {
    kva_value *constant = kva_el_operand(e, target->token, v, KVA_DTYPE_NONE);
    v = constant ? kva_el_tensor(constant) : (kva_el_value){.kind = KVA_EL_ERROR};
  }
  if (v.kind == KVA_EL_TENSOR) name_value(e, v.value, target->text);
  kva_el_bind(e, target->text, v);
}

static bool in_train_block(const kva_elab *e) {
  return e->train && e->frame == e->train;
}

/* A label names the parameters of one function. Where there is none, they would silently have other names. */
static void check_label(kva_elab *e, const kva_ast_stmt *s) {
  bool named = s->label.text && *s->label.text;
  bool call = s->value->kind == KVA_AST_CALL && strcmp(s->value->call->domain, "kv") != 0;
  if (named && !call)
    kva_el_error(e, s->label.token, "the label '%s' names no call: assign the function's result by itself",
                 s->label.text);
}

static void elab_assign(kva_elab *e, const kva_ast_stmt *s) {
  if (in_train_block(e) && kva_el_setting(e->trainer, s)) return;
  check_label(e, s);
  uint32_t n = s->targets.len;
  kva_el_value *values = KVA_NEW_ARRAY(e->scratch, kva_el_value, n + 1);
  const char **wanted = KVA_NEW_ARRAY(e->scratch, const char *, n + 1);
  for (uint32_t i = 0; i < n; i++) wanted[i] = s->targets.data[i].text;
  if (s->value->kind == KVA_AST_CALL) {
    kva_el_call(e, s->value, &s->label, n, wanted, values);
  } else if (n == 1) {
    values[0] = kva_el_expr(e, s->value);
  } else {
    kva_el_error(e, s->first, "%u names are assigned, but the right side has one value", n);
  }
  for (uint32_t i = 0; i < n; i++) bind_target(e, &s->targets.data[i], values[i]);
}

static void elab_metric(kva_elab *e, const kva_ast_stmt *s) {
  if (!in_train_block(e)) {
    kva_el_error(e, s->first, "'metric' belongs into a train block");
    return;
  }
  elab_assign(e, s);
  for (uint32_t k = 0; k < s->targets.len; k++) {
    const kva_ast_name *metric = &s->targets.data[k];
    if (!strcmp(metric->text, "loss")) /* it would be what trains */
      kva_el_error(e, metric->token, "'loss' is what the block trains; give the metric another name");
    if (!strcmp(metric->text, "grad_norm"))
      kva_el_error(e, metric->token, "'grad_norm' is what clipping reports; give the metric another name");
    for (uint32_t i = 0; i < e->metrics.len; i++)
      if (!strcmp(e->metrics.data[i].text, metric->text))
        kva_el_error(e, metric->token, "there is a metric '%s' already", metric->text);
    KVA_PUSH(e->scratch, &e->metrics, *metric);
  }
}

static bool range(kva_elab *e, const kva_ast_stmt *s, int64_t *from, int64_t *to) {
  bool ok = kva_el_as_int(e, s->value, kva_el_expr(e, s->value), "the start of the loop", from);
  return kva_el_as_int(e, s->to, kva_el_expr(e, s->to), "the end of the loop", to) && ok;
}

static void elab_for(kva_elab *e, const kva_ast_stmt *s) {
  int64_t from, to;
  if (!range(e, s, &from, &to)) return;
  kva_el_frame *f = e->frame;
  size_t errors = kva_diag_errors(e->m->diag);
  for (int64_t i = from; i < to && !f->returned; i++) {
    /* an error in one iteration recurs in all */
    if (!kva_el_spend(e, s->first, 1) || kva_diag_errors(e->m->diag) != errors) return;
    KVA_PUSH(e->scratch, &f->loops, i);
    kva_el_bind(e, s->targets.data[0].text, kva_el_int(e, i));
    kva_el_block(e, &s->arms.data[0].body);
    f->loops.len--;
  }
}

/* If the condition is wrong, marks names that the branches assign as errors, to avoid follow-up messages. */
static void poison(kva_elab *e, const kva_ast_block *body) {
  for (uint32_t i = 0; i < body->len; i++) {
    const kva_ast_stmt *s = body->data[i];
    for (uint32_t k = 0; k < s->targets.len; k++) {
      if (*s->targets.data[k].text) kva_el_bind(e, s->targets.data[k].text, (kva_el_value){.kind = KVA_EL_ERROR});
    }
    for (uint32_t k = 0; k < s->arms.len; k++) poison(e, &s->arms.data[k].body);
  }
}

static void elab_if(kva_elab *e, const kva_ast_stmt *s) {
  for (uint32_t i = 0; i < s->arms.len; i++) {
    const kva_ast_arm *arm = &s->arms.data[i];
    kva_el_value v = arm->cond ? kva_el_expr(e, arm->cond) : kva_el_bool(true);
    if (v.kind == KVA_EL_BOOL && !v.i) continue;
    if (v.kind == KVA_EL_BOOL) {
      kva_el_block(e, &arm->body);
      return;
    }
    if (v.kind != KVA_EL_ERROR) {
      kva_el_error(e, arm->cond->first, "the condition must be true or false at compile time, found %s",
                   kva_el_kind_name(&v));
    }
    for (uint32_t k = 0; k < s->arms.len; k++) poison(e, &s->arms.data[k].body);
    return;
  }
}

static void elab_return(kva_elab *e, const kva_ast_stmt *s) {
  kva_el_frame *f = e->frame;
  if (in_train_block(e)) kva_el_error(e, s->first, "a train block assigns 'loss' instead of returning it");
  for (uint32_t i = 0; i < s->values.len; i++) {
    kva_el_value v = kva_el_expr(e, s->values.data[i]);
    KVA_PUSH(e->scratch, &f->results, v);
  }
  f->returned = true;
  f->return_token = s->first;
}

void kva_el_statement(kva_elab *e, const kva_ast_stmt *s) {
  switch (s->kind) {
  case KVA_AST_ASSIGN: elab_assign(e, s); break;
  case KVA_AST_METRIC: elab_metric(e, s); break;
  case KVA_AST_PARAM: kva_el_param(e, s); break;
  case KVA_AST_FOR: elab_for(e, s); break;
  case KVA_AST_IF: elab_if(e, s); break;
  case KVA_AST_RETURN: elab_return(e, s); break;
  }
}

void kva_el_block(kva_elab *e, const kva_ast_block *body) {
  if (body->len && kva_el_descend(e, body->data[0]->first)) {
    for (uint32_t i = 0; i < body->len && !e->frame->returned; i++) kva_el_statement(e, body->data[i]);
  }
  e->level -= body->len > 0;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

void kva_el_initialisers(kva_elab *e, const kva_ast_values *values) {
  for (uint32_t i = 0; i < values->list.len; i++) {
    const kva_ast_value *v = &values->list.data[i];
    if (!v->init) continue;
    const kva_tensor_data *data = kva_el_literal(e, v->init);
    kva_el_value bound = {.kind = data ? KVA_EL_LITERAL : KVA_EL_ERROR, .data = data};
    bind_target(e, &v->name, bound);
  }
}

void kva_el_inputs(kva_elab *e, const kva_ast_values *inputs) {
  kva_map *seen = kva_map_create(e->scratch);
  for (uint32_t i = 0; i < inputs->list.len; i++) {
    const kva_ast_value *in = &inputs->list.data[i];
    if (kva_map_get_str(seen, in->name.text)) {
      kva_el_error(e, in->name.token, "there are two inputs called '%s'", in->name.text);
    }
    kva_map_set_str(seen, in->name.text, e);
    if (in->init) continue; /* a constant: see kva_el_initialisers */
    if (!in->type) kva_el_error(e, in->name.token, "the input '%s' needs a type", in->name.text);
    const kva_type *type = in->type ? kva_el_type(e, in->type) : NULL;
    kva_el_value v = {.kind = KVA_EL_ERROR};
    if (type)
      v = kva_el_tensor(kva_graph_add_input(e->onnx.b.graph, type, kva_arena_strdup(e->m->arena, in->name.text)));
    kva_el_bind(e, in->name.text, v);
  }
  kva_el_initialisers(e, inputs);
}

/* Whether the declared type of an output agrees with the inferred one. ONNX text is often inaccurate about symbols, so
 * only constant dimensions must agree there. In a model (`strict`) all must, except for data-dependent ones, whose
 * symbols have generated names. */
static bool types_agree(kva_elab *e, const kva_type *declared, const kva_type *found, bool strict) {
  if (declared->dtype != found->dtype || declared->rank != found->rank) return false;
  for (uint32_t i = 0; i < declared->rank; i++) {
    bool constants = kva_expr_is_const(declared->dims[i], NULL) && kva_expr_is_const(found->dims[i], NULL);
    bool known = strict && !kva_is_local_dim(e->onnx.b.graph, found->dims[i]);
    if (declared->dims[i] != found->dims[i] && (known || constants)) return false;
  }
  return true;
}

static bool check_output(kva_elab *e, const kva_ast_graph *g, const kva_ast_value *out, const kva_value *v) {
  if (!out->type || out->type->kind != KVA_AST_TENSOR || out->type->any_rank) return true;
  const kva_type *declared = kva_el_type(e, out->type);
  if (!declared) return false;
  if (types_agree(e, declared, v->type, g->kind == KVA_AST_MODEL)) return true;
  kva_text want = {0}, found = {0};
  kva_type_print(declared, &want);
  kva_type_print(v->type, &found);
  kva_el_error(e, out->type->first, "the output '%s' is declared %s, but its value is %s", out->name.text, want.data,
               found.data);
  kva_text_free(&want);
  kva_text_free(&found);
  return false;
}

static bool named_output(kva_elab *e, const kva_ast_name *name, kva_value **out) {
  const kva_el_value *v = kva_el_find(e, name->text);
  if (v && v->kind == KVA_EL_ERROR) return false;
  if (!v || v->kind == KVA_EL_STRING || v->kind == KVA_EL_DIM) {
    kva_el_error(e, name->token, "the output '%s' is never assigned", name->text);
    return false;
  }
  *out = kva_el_operand(e, name->token, *v, KVA_DTYPE_NONE);
  return *out != NULL;
}

static bool returned_output(kva_elab *e, uint32_t i, kva_value **out) {
  *out = kva_el_operand(e, e->frame->return_token, e->frame->results.data[i], KVA_DTYPE_NONE);
  return *out != NULL;
}

bool kva_el_outputs(kva_elab *e, const kva_ast_graph *g, kva_value **out) {
  const kva_el_frame *f = e->frame;
  uint32_t n = g->outputs.list.len;
  if (f->returned && f->results.len != n) {
    kva_el_error(e, f->return_token, "this returns %u value%s, but %u output%s declared", f->results.len,
                 f->results.len == 1 ? "" : "s", n, n == 1 ? " is" : "s are");
    return false;
  }
  bool ok = true;
  for (uint32_t i = 0; i < n; i++) {
    const kva_ast_value *o = &g->outputs.list.data[i];
    bool found = f->returned ? returned_output(e, i, &out[i]) : named_output(e, &o->name, &out[i]);
    ok &= found && check_output(e, g, o, out[i]);
  }
  return ok;
}

static bool close_graph(kva_elab *e, const kva_ast_graph *g) {
  uint32_t n = g->outputs.list.len;
  kva_value **outputs = KVA_NEW_ARRAY(e->scratch, kva_value *, n + 1);
  size_t errors = kva_diag_errors(e->m->diag);
  bool ok = kva_el_outputs(e, g, outputs) && errors == kva_diag_errors(e->m->diag);
  e->onnx.b.loc = kva_el_loc(e, e->frame->returned ? e->frame->return_token : g->last);
  if (ok) kva_build_node(&e->onnx.b, KVA_OP_return, n, outputs, 0, NULL);
  return ok && !kva_el_failed(e);
}

bool kva_el_subgraph(kva_elab *e, const kva_ast_graph *g, kva_graph *into) {
  kva_graph *outer = e->onnx.b.graph;
  size_t errors = kva_diag_errors(e->m->diag);
  e->onnx.b.graph = into;
  kva_el_push_frame(e, false);
  kva_el_inputs(e, &g->inputs);
  kva_el_block(e, &g->body);
  bool ok = kva_diag_errors(e->m->diag) == errors && close_graph(e, g);
  kva_el_pop_frame(e);
  e->onnx.b.graph = outer;
  return ok;
}

kva_function *kva_el_function(kva_elab *e, const char *name, const kva_ast_graph *g) {
  kva_function *f = kva_function_create(e->m, kva_arena_strdup(e->m->arena, name));
  const char **names = KVA_NEW_ARRAY(e->m->arena, const char *, g->outputs.list.len);
  for (uint32_t i = 0; i < g->outputs.list.len; i++) {
    names[i] = kva_arena_strdup(e->m->arena, g->outputs.list.data[i].name.text);
  }
  f->output_names = names;
  f->loc = kva_el_loc(e, g->name.token);
  size_t errors = kva_diag_errors(e->m->diag);
  e->onnx.b.graph = f->graph;
  e->paths = kva_map_create(e->scratch);
  e->declared = kva_map_create(e->scratch);
  kva_el_inputs(e, &g->inputs);
  kva_el_initialisers(e, &g->infos);
  kva_el_block(e, &g->body);
  if (kva_diag_errors(e->m->diag) == errors) close_graph(e, g);
  return f;
}
