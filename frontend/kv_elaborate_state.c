/* Parameters of models (`param`, named by their scope) and states of dumps (`state`, named in full). */
#include "frontend/kv_elaborate.h"
#include "ops/ids.h"

static bool has_flag(const kva_ast_names *flags, const char *flag) {
  for (uint32_t i = 0; i < flags->len; i++) {
    if (!strcmp(flags->data[i].text, flag)) return true;
  }
  return false;
}

/* ---- initialisers ------------------------------------------------------------------------------------------------ */

static const struct {
  const char *name;
  uint32_t n_args;
  kva_init_kind kind;
  double a; /* argument of an initialiser that has none in the text */
} inits[] = {
    {"zeros", 0, KVA_INIT_ZEROS, 0},   {"ones", 0, KVA_INIT_CONSTANT, 1},   {"constant", 1, KVA_INIT_CONSTANT, 0},
    {"normal", 1, KVA_INIT_NORMAL, 0}, {"uniform", 2, KVA_INIT_UNIFORM, 0}, {"one_minus", 1, KVA_INIT_ONE_MINUS, 0},
    {"copy", 1, KVA_INIT_COPY, 0},     {"data", 1, KVA_INIT_DATA, 0},
};

static kva_state *state_of_value(const kva_el_value *v) {
  if (!v || v->kind != KVA_EL_TENSOR || !v->value->def || !kva_is(v->value->def, KVA_OP_state_read)) return NULL;
  return ((const kva_state_read_attrs *)v->value->def->attrs)->state;
}

/* A parameter in scope, or any state by its full name. */
static kva_state *find_state(kva_elab *e, const kva_ast_expr *x) {
  if (x->kind != KVA_AST_NAME && x->kind != KVA_AST_STRING) return NULL;
  kva_state *s = e->frame ? state_of_value(kva_el_find(e, x->text)) : NULL;
  return s ? s : kva_map_get_str(e->states, x->text);
}

/* one_minus and copy. Only a copy may have another element type. */
static bool init_of_other(kva_elab *e, const kva_ast_expr *x, kva_state *s) {
  const char *name = x->call->name;
  if (s->init == KVA_INIT_COPY && s->kind != KVA_STATE_CACHE) {
    kva_el_error(e, x->first, "only a state of kind cache can be a copy");
    return false;
  }
  s->of = find_state(e, x->items.data[0]);
  if (!s->of) {
    kva_el_error(e, x->items.data[0]->first, "%s expects the name of another parameter", name);
    return false;
  }
  const kva_type *t = s->of->type;
  bool fits = t == s->type || (s->init == KVA_INIT_COPY && kva_type_same_shape(t, s->type));
  if (!fits || s->of == s)
    kva_el_error(e, x->items.data[0]->first, "%s expects another parameter of the same %s as '%s'", name,
                 s->init == KVA_INIT_COPY ? "shape" : "type", s->name);
  return fits && s->of != s;
}

static bool init_data(kva_elab *e, const kva_ast_expr *x, kva_state *s) {
  kva_el_value v = kva_el_expr(e, x->items.data[0]);
  if (v.kind == KVA_EL_ERROR) return false;
  bool same = v.kind == KVA_EL_LITERAL && v.data->dtype == s->type->dtype && v.data->rank == s->type->rank;
  for (uint32_t i = 0; same && i < v.data->rank; i++) same = kva_expr_is(s->type->dims[i], v.data->dims[i]);
  s->data = v.data;
  if (!same) kva_el_error(e, x->items.data[0]->first, "data expects a tensor literal of the type of '%s'", s->name);
  return same;
}

static bool init_numbers(kva_elab *e, const kva_ast_expr *x, kva_state *s) {
  double v[2] = {s->init_a, 0};
  for (uint32_t i = 0; i < x->items.len; i++) {
    const kva_ast_expr *item = x->items.data[i];
    if (!kva_el_as_float(e, item, kva_el_expr(e, item), "this argument", &v[i])) return false;
  }
  s->init_a = v[0];
  s->init_b = v[1];
  if (s->init == KVA_INIT_NORMAL && !(v[0] >= 0)) {
    kva_el_error(e, x->items.data[0]->first, "a standard deviation must not be negative");
    return false;
  }
  if (s->init != KVA_INIT_UNIFORM || v[0] < v[1]) return true;
  kva_el_error(e, x->items.data[0]->first, "uniform(a, b) needs a < b");
  return false;
}

static bool set_init(kva_elab *e, const kva_ast_expr *x, kva_state *s) {
  bool is_call = x->kind == KVA_AST_CALL && !*x->call->domain;
  const char *name = is_call ? x->call->name : x->kind == KVA_AST_NAME ? x->text : "";
  size_t i = 0, n = sizeof inits / sizeof *inits;
  while (i < n && strcmp(inits[i].name, name)) i++;
  if (i == n) {
    kva_el_error(e, x->first,
                 "expected an initialiser: zeros, ones, constant(v), normal(std), uniform(a, b), "
                 "one_minus(parameter)");
    return false;
  }
  if (x->items.len != inits[i].n_args) {
    kva_el_error(e, x->first, "the initialiser '%s' takes %u argument%s, found %u", name, inits[i].n_args,
                 inits[i].n_args == 1 ? "" : "s", x->items.len);
    return false;
  }
  s->init = inits[i].kind;
  s->init_a = inits[i].a;
  if (s->init == KVA_INIT_ONE_MINUS || s->init == KVA_INIT_COPY) return init_of_other(e, x, s);
  return s->init == KVA_INIT_DATA ? init_data(e, x, s) : init_numbers(e, x, s);
}

/* ---- parameters of models ---------------------------------------------------------------------------------------- */

static const char *param_name(kva_elab *e, const char *name) {
  const kva_el_frame *f = e->frame;
  if (*f->path) name = kva_arena_printf(e->scratch, "%s.%s", f->path, name);
  for (uint32_t i = 0; i < f->loops.len; i++) {
    name = kva_arena_printf(e->scratch, "%s.%lld", name, (long long)f->loops.data[i]);
  }
  return name;
}

static bool is_static(kva_elab *e, const kva_ast_type *t, const kva_type *type) {
  for (uint32_t i = 0; i < type->rank; i++) {
    if (kva_expr_is_const(type->dims[i], NULL)) continue;
    kva_text text = {0};
    kva_expr_print(type->dims[i], &text);
    kva_el_error(e, t->dims.data[i]->first, "a parameter needs constant dimensions, but '%s' is not a hyper-parameter",
                 text.data);
    kva_text_free(&text);
    return false;
  }
  return true;
}

static kva_state *new_state(kva_elab *e, const char *name, const kva_type *type, kva_state_kind kind) {
  kva_state *state = kva_state_create(e->m, name, type, kind);
  kva_map_set_str(e->states, name, state);
  return state;
}

/* Flags of parameters and of states in dumps. */
static void set_flags(kva_state *state, const kva_ast_names *flags) {
  state->frozen = has_flag(flags, "frozen");
  if (has_flag(flags, "split_rows")) state->split = KVA_SPLIT_ROWS;
  if (has_flag(flags, "split_columns")) state->split = KVA_SPLIT_COLUMNS;
}

static kva_state *new_param(kva_elab *e, const kva_ast_stmt *s, const char *name, const kva_type *type) {
  if (!s->value) {
    kva_el_error(e, s->targets.data[0].token, "the parameter '%s' needs an initialiser, for example ~ normal(0.02)",
                 s->targets.data[0].text);
    return NULL;
  }
  kva_state *state = new_state(e, name, type, KVA_STATE_PARAM);
  state->loc = kva_el_loc(e, s->targets.data[0].token);
  set_flags(state, &s->flags);
  if (has_flag(&s->flags, "nodecay")) {
    state->decay = false;
    kva_map_set_str(e->no_decay, state->name, state);
  }
  return set_init(e, s->value, state) ? state : NULL;
}

/* The state of a parameter statement: created in the module's first function, looked up in the others. */
static kva_state *declare_param(kva_elab *e, const kva_ast_stmt *s) {
  const char *name = param_name(e, s->targets.data[0].text);
  const kva_type *type = kva_el_type(e, s->type);
  if (!type || !is_static(e, s->type, type)) return NULL;
  if (kva_map_get_str(e->declared, name)) {
    kva_el_error(e, s->targets.data[0].token, "there is a parameter '%s' already", name);
    return NULL;
  }
  kva_map_set_str(e->declared, name, e);
  kva_state *state = kva_map_get_str(e->states, name);
  return state ? state : new_param(e, s, name, type);
}

void kva_el_param(kva_elab *e, const kva_ast_stmt *s) {
  const kva_ast_name *target = &s->targets.data[0];
  kva_state *state = declare_param(e, s);
  kva_el_value v = {.kind = KVA_EL_ERROR};
  if (state) {
    e->onnx.b.loc = kva_el_loc(e, s->first);
    kva_value *read = kva_build(&e->onnx.b, KVA_OP_state_read, 0, NULL, &(kva_state_read_attrs){.state = state});
    read->name = kva_arena_strdup(e->m->arena, target->text);
    if (!kva_el_failed(e)) v = kva_el_tensor(read);
  }
  kva_el_bind(e, target->text, v);
}

/* ---- states of dumps --------------------------------------------------------------------------------------------- */

static bool state_kind(kva_elab *e, const kva_ast_name *name, kva_state_kind *out) {
  static const char *const kinds[] = {[KVA_STATE_PARAM] = "param",
                                      [KVA_STATE_MOMENT] = "moment",
                                      [KVA_STATE_BUFFER] = "buffer",
                                      [KVA_STATE_CACHE] = "cache"};
  for (int k = KVA_STATE_PARAM; k <= KVA_STATE_CACHE; k++) {
    if (!strcmp(kinds[k], name->text)) return *out = (kva_state_kind)k, true;
  }
  kva_el_error(e, name->token, "'%s' is not a kind of state: param, moment, buffer, cache", name->text);
  return false;
}

static kva_state *declare_state(kva_elab *e, const kva_ast_state *s) {
  kva_state_kind kind;
  const kva_type *type = kva_el_type(e, s->type);
  if (!state_kind(e, &s->kind, &kind) || !type) return NULL;
  if (kva_map_get_str(e->states, s->name.text)) {
    kva_el_error(e, s->name.token, "there is a state '%s' already", s->name.text);
    return NULL;
  }
  kva_state *state = new_state(e, s->name.text, type, kind);
  state->loc = kva_el_loc(e, s->name.token);
  set_flags(state, &s->flags);
  if (has_flag(&s->flags, "nodecay")) state->decay = false;
  if (has_flag(&s->flags, "decay")) state->decay = true;
  return state;
}

static void finish_state(kva_elab *e, const kva_ast_state *s, kva_state *state) {
  if (s->init) (void)set_init(e, s->init, state);
  if (!s->of.text) return;
  state->of = kva_map_get_str(e->states, s->of.text);
  if (!state->of) kva_el_error(e, s->of.token, "there is no state '%s'", s->of.text);
}

/* Declares all names first, since states refer to each other. */
void kva_el_states(kva_elab *e) {
  uint32_t n = e->ast->items.len;
  kva_state **states = KVA_NEW_ARRAY(e->scratch, kva_state *, n);
  for (uint32_t i = 0; i < n; i++) {
    const kva_ast_state *s = e->ast->items.data[i].state;
    if (s) states[i] = declare_state(e, s);
  }
  for (uint32_t i = 0; i < n; i++) {
    if (states[i]) finish_state(e, e->ast->items.data[i].state, states[i]);
  }
}
