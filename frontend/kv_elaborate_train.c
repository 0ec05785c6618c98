/* The train block. In a model it is a graph over the model's inputs and outputs that computes `loss` and metrics, with
 * settings among its statements; it becomes the function "loss" and the module's kva_train_spec. In a dump it lists the
 * fields of the spec. */
#include "frontend/kv_elaborate.h"
#include "ops/ids.h"
#include "ops/optimizer.h"

#include <stddef.h>

typedef struct kva_el_trainer {
  kva_elab *e;
  kva_train_spec *spec;
  const char *decay; /* the parameters that weight decay applies to */
  bool *is_set;      /* numbers that the model has set, by their place in kva_train_numbers */
} trainer;

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static bool set_number(trainer *t, const char *name, const kva_ast_expr *x) {
  const kva_attr_field *f = kva_attrs_find(&kva_train_numbers, name, strlen(name));
  if (!f) return false;
  t->is_set[f - kva_train_numbers.fields] = true;
  void *to = (char *)t->spec + f->offset;
  kva_el_value v = kva_el_expr(t->e, x);
  bool is_int = f->kind == KVA_ATTR_INT;
  bool ok = is_int ? kva_el_as_int(t->e, x, v, name, to) : kva_el_as_float(t->e, x, v, name, to);
  bool negative = ok && (is_int ? *(int64_t *)to < 0 : !(*(double *)to >= 0));
  bool averages = f->offset == offsetof(kva_train_spec, beta1) || f->offset == offsetof(kva_train_spec, beta2);
  if (negative) kva_el_error(t->e, x->first, "%s must not be negative", name);
  if (ok && averages && *(double *)to >= 1) /* moments are divided by 1 - beta^step */
    kva_el_error(t->e, x->first, "%s must be below 1", name);
  return true;
}

/* A name, a name with attributes, or a string; NULL: an error was reported. */
static const char *word(trainer *t, const kva_ast_expr *x, const char *what) {
  bool is_call = x->kind == KVA_AST_CALL && !*x->call->domain;
  if (x->kind == KVA_AST_NAME || x->kind == KVA_AST_STRING) return x->text;
  if (is_call) return x->call->name;
  kva_el_error(t->e, x->first, "expected the name of %s", what);
  return NULL;
}

/* Nothing that a setting is called with goes unread. */
static void refuse_operands(trainer *t, const kva_ast_expr *x) {
  if (x->kind != KVA_AST_CALL || !x->items.len) return;
  kva_el_error(t->e, x->items.data[0]->first, "'%s' takes no operands here; settings go between '<' and '>'",
               x->call->name);
}

static void refuse_attrs(trainer *t, const kva_ast_expr *x) {
  if (x->kind != KVA_AST_CALL || !x->call->attrs.list.len) return;
  kva_el_error(t->e, x->call->attrs.list.data[0].name.token, "'%s' takes nothing between '<' and '>' here",
               x->call->name);
}

static const char *choose(trainer *t, const kva_ast_expr *x, const char *what, const char *const *known, size_t n) {
  const char *name = word(t, x, what), *list = "";
  for (size_t i = 0; name && i < n; i++) {
    if (!strcasecmp(name, known[i])) return known[i];
    list = kva_arena_printf(t->e->scratch, "%s%s%s", list, i ? ", " : "", known[i]);
  }
  if (name) kva_el_error(t->e, x->first, "'%s' is not %s; there are: %s", name, what, list);
  return NULL;
}

static void set_decay(trainer *t, const kva_ast_expr *x) {
  static const char *const known[] = {"matrices", "all", "none"};
  refuse_operands(t, x);
  refuse_attrs(t, x);
  const char *decay = choose(t, x, "what weight decay applies to", known, 3);
  if (decay) t->decay = decay;
}

static void use_defaults(trainer *t, const kva_op_info *op) {
  for (uint32_t i = 0; i < kva_train_numbers.n_fields; i++) {
    const kva_attr_field *f = &kva_train_numbers.fields[i];
    if (f->kind != KVA_ATTR_FLOAT || t->is_set[i]) continue;
    *(double *)((char *)t->spec + f->offset) = kva_optimizer_default(op, f);
  }
}

/* Whether one of the train block's numbers is the optimiser's. */
static bool is_setting_of(const kva_op_info *op, const char *name) {
  size_t n = strlen(name);
  return !strcmp(name, "lr") || (kva_attrs_find(op->attrs, name, n) && kva_attrs_find(&kva_train_numbers, name, n));
}

/* Lists the optimiser's settings for messages: "lr, beta1, ..., decay". */
static const char *settings_of(trainer *t, const kva_op_info *op) {
  const char *list = "lr";
  for (uint32_t i = 0; i < op->attrs->n_fields; i++) {
    const char *name = op->attrs->fields[i].name;
    if (is_setting_of(op, name)) list = kva_arena_printf(t->e->scratch, "%s, %s", list, name);
  }
  return kva_arena_printf(t->e->scratch, "%s, decay", list);
}

static void set_optimizer(trainer *t, const kva_ast_expr *x) {
  refuse_operands(t, x);
  const char **known = KVA_NEW_ARRAY(t->e->scratch, const char *, kva_ops.n);
  const char *name = choose(t, x, "an optimizer", known, kva_optimizer_names(known));
  if (!name) return;
  const kva_op_info *op = kva_optimizer_find(name);
  t->spec->optimizer = name;
  use_defaults(t, op);
  const kva_ast_attrs *attrs = x->kind == KVA_AST_CALL ? &x->call->attrs : NULL;
  for (uint32_t i = 0; attrs && i < attrs->list.len; i++) {
    const kva_ast_attr *a = &attrs->list.data[i];
    if (a->value && !strcmp(a->name.text, "decay"))
      set_decay(t, a->value);
    else if (!a->value || !is_setting_of(op, a->name.text) || !set_number(t, a->name.text, a->value))
      kva_el_error(t->e, a->name.token, "optimizer %s has no setting '%s'; there are: %s", name, a->name.text,
                   settings_of(t, op));
  }
}

/* warmup(steps), cosine(warmup, total, final ratio), linear(warmup, total, final ratio), constant */
static void set_schedule(trainer *t, const kva_ast_expr *x) {
  static const char *const known[] = {"constant", "warmup", "cosine", "linear"};
  static const char *const arguments[] = {"warmup_steps", "total_steps", "final_lr_ratio"};
  refuse_attrs(t, x);
  const char *name = choose(t, x, "a schedule", known, 4);
  if (!name) return;
  t->spec->schedule = name;
  uint32_t most = name == known[0] ? 0 : name == known[1] ? 1 : 3;
  uint32_t least = most == 3 ? 2 : most;
  if (x->kind == KVA_AST_STRING) return; /* a dump has the steps as separate fields */
  if (x->items.len < least || x->items.len > most) {
    kva_el_error(t->e, x->first,
                 "the schedule is constant, warmup(steps), cosine(warmup steps, total steps, final "
                 "ratio) or linear(warmup steps, total steps, final ratio)");
    return;
  }
  t->spec->warmup_steps = t->spec->total_steps = 0; /* those of a schedule that this one replaces */
  t->spec->final_lr_ratio = 0;
  for (uint32_t i = 0; i < x->items.len; i++) set_number(t, arguments[i], x->items.data[i]);
}

static void set_data_arg(trainer *t, const char *name, const kva_ast_expr *x) {
  kva_el_value v = kva_el_expr(t->e, x);
  double f = (double)v.i, *number = KVA_NEW(t->e->m->arena, double);
  if (v.kind == KVA_EL_ERROR) return;
  if (v.kind != KVA_EL_BOOL && !kva_el_as_float(t->e, x, v, name, &f)) return;
  *number = f;
  kva_map_set_str(t->spec->data_args, name, number);
}

/* One item of a data source, FILE or NAME=VALUE, is a relative name without "..". */
static bool stays_below(const char *item, size_t n) {
  const char *end = item + n, *equals = memchr(item, '=', n), *at = equals ? equals + 1 : item;
  if (at < end && *at == '/') return false;
  for (const char *next; at < end; at = next + 1) {
    const char *slash = memchr(at, '/', (size_t)(end - at));
    next = slash ? slash : end;
    if (next - at == 2 && at[0] == '.' && at[1] == '.') return false;
  }
  return true;
}

/* A model reads nothing outside its folder: the files that a source names are below it. */
static bool check_files(trainer *t, const kva_ast_expr *x, const char *source) {
  const char *item = strchr(source, ':');
  while (item) {
    size_t n = strcspn(++item, ",");
    if (!stays_below(item, n)) {
      kva_el_error(t->e, x->first,
                   "'%.*s': a train block names files below the model's folder, without '..'; --data takes any", (int)n,
                   item);
      return false;
    }
    item = item[n] ? item + n : NULL;
  }
  return true;
}

static void set_data(trainer *t, const kva_ast_expr *x) {
  refuse_operands(t, x);
  const char *name = word(t, x, "a data source");
  if (!name || !check_files(t, x, name)) return;
  t->spec->data = kva_arena_strdup(t->e->m->arena, name);
  t->spec->data_args = kva_map_create(t->e->m->arena);
  const kva_ast_attrs *attrs = x->kind == KVA_AST_CALL ? &x->call->attrs : NULL;
  for (uint32_t i = 0; attrs && i < attrs->list.len; i++) {
    const kva_ast_attr *a = &attrs->list.data[i];
    if (a->value) set_data_arg(t, a->name.text, a->value);
  }
}

bool kva_el_setting(trainer *t, const kva_ast_stmt *s) {
  if (s->kind != KVA_AST_ASSIGN || s->targets.len != 1 || s->bare) return false;
  const char *name = s->targets.data[0].text;
  if (!strcmp(name, "optimizer"))
    set_optimizer(t, s->value);
  else if (!strcmp(name, "schedule"))
    set_schedule(t, s->value);
  else if (!strcmp(name, "data"))
    set_data(t, s->value);
  else if (!strcmp(name, "decay"))
    set_decay(t, s->value);
  else
    return set_number(t, name, s->value);
  return true;
}

static void init_spec(trainer *t, const kva_ast_graph *g) {
  t->spec = kva_train_spec_create(t->e->m->arena);
  t->spec->loc = kva_el_loc(t->e, g->first);
  t->decay = "matrices";
  t->is_set = KVA_NEW_ARRAY(t->e->scratch, bool, kva_train_numbers.n_fields);
}

static void apply_decay(const trainer *t) {
  kva_module *m = t->e->m;
  bool all = !strcmp(t->decay, "all"), none = !strcmp(t->decay, "none");
  for (uint32_t i = 0; i < m->states.len; i++) {
    kva_state *s = m->states.data[i];
    if (s->kind != KVA_STATE_PARAM) continue;
    s->decay = !none && (all || s->type->rank >= 2) && !kva_map_get_str(t->e->no_decay, s->name);
  }
}

/* ---- the loss function ------------------------------------------------------------------------------------------- */

/* Elaborates the model again in the loss function's graph, then leaves only its inputs and outputs visible. */
static bool inline_model(kva_elab *e, const kva_ast_graph *model) {
  uint32_t n = model->outputs.list.len;
  kva_value **outputs = KVA_NEW_ARRAY(e->scratch, kva_value *, n + 1);
  kva_el_block(e, &model->body);
  if (!kva_el_outputs(e, model, outputs)) return false;
  kva_el_push_frame(e, true);
  kva_value **inputs = e->onnx.b.graph->inputs.data;
  for (uint32_t i = 0; i < e->onnx.b.graph->inputs.len; i++) kva_el_bind(e, inputs[i]->name, kva_el_tensor(inputs[i]));
  for (uint32_t i = 0; i < n; i++) kva_el_bind(e, model->outputs.list.data[i].name.text, kva_el_tensor(outputs[i]));
  return true;
}

static void statements(trainer *t, const kva_ast_block *body) {
  t->e->train = t->e->frame;
  t->e->trainer = t;
  kva_el_block(t->e, body);
  t->e->train = NULL;
}

/* Adds an output of the loss function, which must be a scalar; the loss comes first. */
static bool scalar_output(trainer *t, const char *name, uint32_t token, kva_value **out) {
  const kva_el_value *v = kva_el_find(t->e, name);
  if (v && v->kind == KVA_EL_ERROR) return false;
  if (!v || v->kind != KVA_EL_TENSOR) {
    kva_el_error(t->e, token, "the train block must assign a tensor to '%s'", name);
    return false;
  }
  *out = v->value;
  if (v->value->type->rank == 0 && kva_dtype_is_float(v->value->type->dtype)) return true;
  kva_text text = {0};
  kva_type_print(v->value->type, &text);
  kva_el_error(t->e, token, "'%s' must be a float scalar, found %s", name, text.data);
  kva_text_free(&text);
  return false;
}

static void close_loss(trainer *t, kva_function *f, const kva_ast_graph *train) {
  kva_elab *e = t->e;
  uint32_t n = 1 + e->metrics.len;
  kva_value **outputs = KVA_NEW_ARRAY(e->scratch, kva_value *, n);
  const char **names = KVA_NEW_ARRAY(e->m->arena, const char *, n);
  names[0] = "loss";
  bool ok = scalar_output(t, "loss", train->first, &outputs[0]);
  for (uint32_t i = 1; i < n; i++) {
    const kva_ast_name *metric = &e->metrics.data[i - 1];
    names[i] = kva_arena_strdup(e->m->arena, metric->text);
    ok &= scalar_output(t, metric->text, metric->token, &outputs[i]);
  }
  f->output_names = names;
  e->onnx.b.loc = kva_el_loc(e, train->last);
  if (ok) kva_build_node(&e->onnx.b, KVA_OP_return, n, outputs, 0, NULL);
}

static void loss_function(trainer *t, const kva_ast_graph *train, const kva_ast_graph *model) {
  kva_elab *e = t->e;
  kva_function *f = kva_function_create(e->m, "loss");
  f->loc = kva_el_loc(e, train->first);
  e->onnx.b.graph = f->graph;
  e->paths = kva_map_create(e->scratch);
  e->declared = kva_map_create(e->scratch);
  e->frame = NULL;
  kva_el_push_frame(e, true);
  kva_el_inputs(e, &model->inputs);
  uint32_t n = f->graph->inputs.len;
  kva_el_inputs(e, &train->inputs);
  for (uint32_t i = n; i < f->graph->inputs.len; i++) {
    for (uint32_t k = 0; k < n; k++) {
      if (strcmp(f->graph->inputs.data[i]->name, f->graph->inputs.data[k]->name)) continue;
      kva_el_error(e, train->name.token, "'%s' is an input of the model already", f->graph->inputs.data[i]->name);
    }
  }
  if (!inline_model(e, model)) return;
  statements(t, &train->body);
  close_loss(t, f, train);
}

/* A dump's block has fields only. */
static void fields_only(trainer *t, const kva_ast_block *body) {
  for (uint32_t i = 0; i < body->len; i++) {
    const kva_ast_stmt *s = body->data[i];
    if (!kva_el_setting(t, s)) kva_el_error(t->e, s->first, "this is not a setting of a train block");
  }
}

void kva_el_train(kva_elab *e, const kva_ast_graph *train, const kva_ast_graph *model) {
  trainer t = {.e = e};
  init_spec(&t, train);
  if (model) {
    loss_function(&t, train, model);
    apply_decay(&t);
  } else {
    fields_only(&t, &train->body);
  }
  e->m->train = t.spec;
}
