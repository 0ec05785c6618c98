/* Values of a run, and parts of a model as modules. */
#include "tools/diff/diff.h"

#include "ops/ids.h"

#include <stdlib.h>

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

static void add_symbol(void *user, const kva_expr *symbol) {
  kva_diff_values *v = user;
  for (uint32_t i = 0; i < v->symbols.len; i++)
    if (v->symbols.data[i] == symbol) return;
  KVA_PUSH(v->arena, &v->symbols, symbol);
  KVA_PUSH(v->arena, &v->extents, -1);
}

static void set_extent(kva_diff_values *v, const kva_expr *symbol, int64_t extent) {
  for (uint32_t i = 0; i < v->symbols.len; i++)
    if (v->symbols.data[i] == symbol) v->extents.data[i] = extent;
}

static void learn_shape(kva_diff_values *v, const kva_type *type, const int64_t *dims) {
  for (uint32_t d = 0; d < type->rank; d++)
    if (type->dims[d]->kind == KVA_EXPR_SYMBOL) set_extent(v, type->dims[d], dims[d]);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

void kva_diff_values_init(kva_diff_values *v, const kva_module *m) {
  const kva_graph *g = m->functions.data[0]->graph;
  *v = (kva_diff_values){.arena = kva_arena_create(), .m = m};
  v->of = KVA_NEW_ARRAY(v->arena, kva_ref_tensor *, m->next_value_id + 1);
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_type *type = g->inputs.data[i]->type;
    for (uint32_t d = 0; d < type->rank; d++) kva_expr_each_symbol(type->dims[d], add_symbol, v);
  }
  for (const kva_node *n = g->first; n; n = n->next) {
    kva_dims binds = kva_node_binds(n);
    for (uint32_t i = 0; i < binds.n; i++) add_symbol(v, binds.v[i]);
  }
}

void kva_diff_values_free(kva_diff_values *v) {
  for (uint32_t i = 0; v->of && i < v->m->next_value_id; i++) kva_ref_tensor_free(v->of[i]);
  kva_arena_destroy(v->arena);
  *v = (kva_diff_values){0};
}

kva_status kva_diff_learn(kva_diff_values *v, const kva_value *value, kva_ref_tensor *w) {
  kva_diff_forget(v, value);
  if (!w) return kva_fail(v->m->diag, KVA_NO_MEMORY, NULL, "no memory for the model's values");
  v->of[value->id] = w;
  learn_shape(v, value->type, w->dims);
  return KVA_OK;
}

void kva_diff_learn_bind(kva_diff_values *v, const kva_node *n) {
  const kva_ref_tensor *w = kva_is(n, KVA_OP_bind) ? v->of[kva_operand(n, 0)->id] : NULL;
  if (w) set_extent(v, ((const kva_bind_attrs *)n->attrs)->symbol.v[0], w->i[0]);
}

void kva_diff_forget(kva_diff_values *v, const kva_value *value) {
  kva_ref_tensor_free(v->of[value->id]);
  v->of[value->id] = NULL;
}

static kva_status learn_state(kva_diff_values *v, kva_session *whole, kva_node *n) {
  const kva_state *s = ((const kva_state_read_attrs *)n->attrs)->state;
  kva_tensor t;
  if (!kva_session_state(whole, s->name, &t)) return KVA_OK; /* nothing that runs reads it */
  return kva_diff_learn(v, kva_result(n, 0), kva_ref_tensor_from_data(t.dtype, (uint32_t)t.rank, t.dims, t.data));
}

void kva_diff_learn_symbols(kva_diff_values *v, kva_session *whole) {
  const kva_program *p = kva_session_program_desc(whole, 0);
  const int64_t *found = kva_session_symbols(whole, 0);
  for (uint32_t i = 0; i < v->symbols.len; i++)
    for (int32_t k = 0; k < p->n_symbols; k++)
      if (v->extents.data[i] < 0 && !strcmp(p->symbols[k], v->symbols.data[i]->name)) v->extents.data[i] = found[k];
}

kva_status kva_diff_start(kva_diff_values *v, kva_session *whole, const kva_tensor *inputs) {
  const kva_graph *g = v->m->functions.data[0]->graph;
  for (uint32_t i = 0; i < g->inputs.len; i++)
    KVA_TRY(kva_diff_learn(
        v, g->inputs.data[i],
        kva_ref_tensor_from_data(inputs[i].dtype, (uint32_t)inputs[i].rank, inputs[i].dims, inputs[i].data)));
  for (kva_node *n = g->first; n; n = n->next)
    if (kva_is(n, KVA_OP_state_read)) KVA_TRY(learn_state(v, whole, n));
  return KVA_OK;
}

/* ---- parts as modules -------------------------------------------------------------------------------------------- */

bool kva_diff_is_step(const kva_node *n) {
  return !(n->op->traits & (KVA_RETURN | KVA_READS_STATE | KVA_WRITES_STATE)) && !kva_is(n, KVA_OP_constant);
}

static void keep_constants(const kva_diff_part *part, const kva_graph *g, bool *keep) {
  for (const kva_node *n = g->first; n; n = n->next)
    for (uint32_t i = 0; part->keep[n->id] && i < n->n_operands; i++) {
      const kva_value *v = n->operands[i].value;
      if (v && v->def && kva_is(v->def, KVA_OP_constant)) keep[v->def->id] = true;
    }
}

static bool binds(const kva_graph *g, const kva_expr *symbol) {
  for (const kva_node *n = g->first; n; n = n->next) {
    kva_dims dims = kva_node_binds(n);
    for (uint32_t i = 0; i < dims.n; i++)
      if (dims.v[i] == symbol) return true;
  }
  return false;
}

static bool is_input_extent(const kva_graph *g, const kva_expr *symbol) {
  for (uint32_t i = 0; i < g->inputs.len; i++)
    for (uint32_t d = 0; d < g->inputs.data[i]->type->rank; d++)
      if (g->inputs.data[i]->type->dims[d] == symbol) return true;
  return false;
}

/* A symbol that the part uses, and that no input of it has as an extent, comes as the extent of an input that is not
 * read. */
static void add_symbols(const kva_diff_values *v, kva_module *m) {
  kva_graph *g = m->functions.data[0]->graph;
  for (uint32_t i = 0; i < v->symbols.len; i++) {
    const kva_expr *symbol = kva_expr_symbol(m->exprs, v->symbols.data[i]->name);
    if (!kva_uses_symbol(g->first, symbol) || is_input_extent(g, symbol) || binds(g, symbol)) continue;
    kva_graph_add_input(g, kva_type_tensor(m, KVA_BOOL, 1, &symbol), kva_arena_printf(m->arena, "%s", symbol->name));
  }
}

kva_module *kva_diff_module(const kva_diff_values *v, const kva_diff_part *part) {
  kva_arena *scratch = kva_arena_create();
  bool *keep = kva_arena_memdup(scratch, part->keep, v->m->next_node_id);
  keep_constants(part, v->m->functions.data[0]->graph, keep);
  kva_module *m = kva_module_part(v->m, keep, part->n_outputs, part->outputs);
  kva_arena_destroy(scratch);
  add_symbols(v, m);
  kva_text names = {0};
  kva_module_print(m, &names); /* makes names unique */
  kva_text_free(&names);
  return m;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

kva_status kva_diff_input(const kva_diff_values *v, const kva_value *input, kva_ref_tensor **out) {
  *out = NULL;
  if (input->id < v->m->next_value_id) {
    const kva_ref_tensor *w = v->of[input->id];
    if (!w) return kva_error(v->m->diag, NULL, "the value of %s is not known", input->name);
    *out = kva_ref_tensor_create(w->dtype, w->rank, w->dims);
    if (*out) memcpy((*out)->f ? (void *)(*out)->f : (*out)->i, w->f ? (void *)w->f : w->i, (size_t)w->n * 8);
  } else {
    const char *symbol = input->type->dims[0]->name;
    for (uint32_t i = 0; i < v->symbols.len; i++)
      if (!strcmp(v->symbols.data[i]->name, symbol) && v->extents.data[i] >= 0)
        *out = kva_ref_tensor_create(KVA_BOOL, 1, &v->extents.data[i]);
    if (!*out) return kva_error(v->m->diag, NULL, "the value of symbol %s is not known", symbol);
  }
  return *out ? KVA_OK : kva_fail(v->m->diag, KVA_NO_MEMORY, NULL, "no memory for the inputs of a part");
}

typedef kva_status (*run_fn)(kva_module *m, kva_ref_tensor **in, const kva_diff_target *target, kva_ref_tensor **out,
                             kva_diag *diag);

/* Makes the module and its inputs; `run` owns the module. */
static kva_status run_part(const kva_diff_values *v, const kva_diff_part *part, run_fn run,
                           const kva_diff_target *target, kva_ref_tensor **out, kva_diag *diag) {
  kva_module *m = kva_diff_module(v, part);
  const kva_graph *g = m->functions.data[0]->graph;
  uint32_t n = g->inputs.len;
  kva_ref_tensor **in = calloc(n + 1, sizeof *in);
  kva_status status = in ? KVA_OK : KVA_NO_MEMORY;
  m->diag = diag;
  for (uint32_t i = 0; i < n && status == KVA_OK; i++) status = kva_diff_input(v, g->inputs.data[i], &in[i]);
  if (status == KVA_OK)
    status = run(m, in, target, out, diag);
  else
    kva_module_destroy(m);
  for (uint32_t i = 0; in && i < n; i++) kva_ref_tensor_free(in[i]);
  free(in);
  return status;
}

static kva_status run_reference(kva_module *m, kva_ref_tensor **in, const kva_diff_target *target, kva_ref_tensor **out,
                                kva_diag *diag) {
  (void)target;
  kva_status status =
      kva_ref_run(m, m->functions.data[0], (const kva_ref_tensor *const *)in, out, NULL, NULL, NULL, NULL, diag);
  kva_module_destroy(m);
  return status;
}

kva_status kva_diff_reference(const kva_diff_values *v, const kva_diff_part *part, kva_ref_tensor **out,
                              kva_diag *diag) {
  return run_part(v, part, run_reference, NULL, out, diag);
}

static kva_status run_session(kva_session *s, kva_arena *arena, kva_ref_tensor **in, kva_ref_tensor **out,
                              kva_diag *diag) {
  const kva_program *p = kva_session_program_desc(s, 0);
  kva_tensor *inputs = KVA_NEW_ARRAY(arena, kva_tensor, p->n_inputs + 1);
  kva_tensor *outputs = KVA_NEW_ARRAY(arena, kva_tensor, p->n_outputs + 1);
  for (int32_t i = 0; i < p->n_inputs; i++) {
    int64_t bytes;
    if (!kva_dtype_bytes(in[i]->dtype, in[i]->n, &bytes)) return KVA_NO_MEMORY;
    inputs[i] = (kva_tensor){.dtype = in[i]->dtype, .rank = (int32_t)in[i]->rank};
    memcpy(inputs[i].dims, in[i]->dims, sizeof *in[i]->dims * in[i]->rank);
    inputs[i].data = kva_arena_alloc(arena, (size_t)bytes + 64);
    kva_ref_tensor_to_data(in[i], inputs[i].data);
  }
  kva_status status = kva_session_run(s, 0, inputs, outputs);
  if (status) return kva_fail(diag, status, NULL, "%s", kva_session_error(s));
  for (int32_t i = 0; i < p->n_outputs; i++)
    out[i] = kva_ref_tensor_from_data(outputs[i].dtype, (uint32_t)outputs[i].rank, outputs[i].dims, outputs[i].data);
  return KVA_OK;
}

static kva_status run_compiled(kva_module *m, kva_ref_tensor **in, const kva_diff_target *target, kva_ref_tensor **out,
                               kva_diag *diag) {
  kvasir_program *p = NULL;
  kvasir_session *s = NULL;
  kva_arena *arena = kva_arena_create();
  const kva_session_options options = {.threads = target->threads};
  kva_status status =
      kva_program_compile(m, &(kva_compile_options){.target = target->options}, target->device, diag, &p);
  if (status == KVA_OK) status = kva_program_session(p, &options, diag, &s);
  if (status == KVA_OK) status = run_session(s->s, arena, in, out, diag);
  kvasir_session_destroy(s);
  kvasir_program_destroy(p);
  kva_arena_destroy(arena);
  return status;
}

kva_status kva_diff_compiled(const kva_diff_values *v, const kva_diff_part *part, const kva_diff_target *target,
                             kva_ref_tensor **out, kva_diag *diag) {
  return run_part(v, part, run_compiled, target, out, diag);
}
