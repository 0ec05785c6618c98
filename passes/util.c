/* Small things that several passes share. */
#include "passes/passes_internal.h"

/* False: a double does not hold it. */
static bool element_as_double(const kva_tensor_data *t, int64_t i, double *out) {
  if (kva_dtype_is_float(t->dtype)) {
    *out = kva_load_f64(t->dtype, t->data, i);
    return true;
  }
  enum { EXACT_BITS = 53 };
  int64_t x = kva_load_i64(t->dtype, t->data, i), most = INT64_C(1) << EXACT_BITS;
  *out = (double)x;
  return x >= -most && x <= most && !(x < 0 && kva_dtype_is_unsigned(t->dtype)); /* uint64 from 2^63 on is negative */
}

bool kva_splat_value(const kva_value *v, double *out_x) {
  const kva_tensor_data *t = kva_constant_of(v);
  if (!t || t->dtype == KVA_STRING) return false;
  int64_t n = kva_tensor_elements(t);
  /* Larger constants are weights; looking at all of them here would cost more than the rewrite gains. */
  if (n < 1 || n > 4096) return false;
  double next;
  if (!element_as_double(t, 0, out_x)) return false;
  for (int64_t i = 1; i < n; i++)
    if (!element_as_double(t, i, &next) || next != *out_x) return false;
  return true;
}

bool kva_comes_before(const kva_node *a, const kva_node *b) {
  for (const kva_node *n = b->prev; n; n = n->prev)
    if (n == a) return true;
  return false;
}

bool kva_is_splat(const kva_value *v, double x) {
  double found;
  return kva_splat_value(v, &found) && found == x;
}

static void copy_graph(const kva_graph *from, kva_graph *to, kva_value **values);

static kva_value *copy_of(kva_value *const *values, const kva_value *v) {
  KVA_ASSERT(!v || values[v->id]); /* definitions stand before uses */
  return v ? values[v->id] : NULL;
}

static void copy_node(const kva_node *n, kva_graph *to, kva_value **values) {
  kva_value *operands[64];
  kva_value **in = n->n_operands <= 64 ? operands : KVA_NEW_ARRAY(to->module->arena, kva_value *, n->n_operands);
  for (uint32_t i = 0; i < n->n_operands; i++) in[i] = copy_of(values, n->operands[i].value);
  kva_node *copy = kva_node_create(to, NULL, n->op, n->n_operands, in, n->n_results, n->attrs, n->loc);
  for (uint32_t r = 0; r < n->n_results; r++) {
    copy->results[r].type = n->results[r].type;
    copy->results[r].name = n->results[r].name;
    values[n->results[r].id] = &copy->results[r];
  }
  kva_node_copy_graphs(n, copy, values);
}

/* Inputs, nodes and return. */
static void copy_graph(const kva_graph *from, kva_graph *to, kva_value **values) {
  for (uint32_t i = 0; i < from->inputs.len; i++) {
    const kva_value *in = from->inputs.data[i];
    values[in->id] = kva_graph_add_input(to, in->type, in->name);
  }
  for (const kva_node *n = from->first; n; n = n->next) copy_node(n, to, values);
}

void kva_node_copy_graphs(const kva_node *n, kva_node *copy, kva_value **values) {
  for (uint32_t i = 0; i < n->n_graphs; i++)
    copy_graph(n->graphs[i], kva_graph_create(copy->graph->module, copy), values);
}

void kva_graph_copy_nodes(const kva_graph *from, kva_graph *to, kva_value **values) {
  for (const kva_node *n = from->first; n; n = n->next)
    if (!(n->op->traits & KVA_RETURN)) copy_node(n, to, values);
}

kva_function *kva_function_clone(kva_module *m, const kva_function *f, const char *name) {
  KVA_ASSERT(!kva_module_find_function(m, name));
  kva_function *copy = kva_function_create(m, name);
  copy->loc = f->loc;
  kva_arena *scratch = kva_arena_create();
  kva_value **values = KVA_NEW_ARRAY(scratch, kva_value *, m->next_value_id);
  copy_graph(f->graph, copy->graph, values);
  copy->output_names = f->output_names;
  copy->output_roles = f->output_roles;
  copy->updates = f->updates;
  kva_arena_destroy(scratch);
  return copy;
}

kva_node *kva_node_narrow(kva_node *n, const bool *no_operand, const bool *no_result) {
  kva_arena *scratch = kva_arena_create();
  kva_value **in = KVA_NEW_ARRAY(scratch, kva_value *, n->n_operands + 1);
  uint32_t n_in = 0, n_out = 0, shift = kva_is(n, KVA_OP_loop), first = kva_is(n, KVA_OP_kernel) ? 0 : 1;
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (!no_operand[i]) in[n_in++] = kva_operand(n, i);
  for (uint32_t r = 0; r < n->n_results; r++) n_out += !no_result[r];
  kva_node *fresh = kva_node_create(n->graph, n, n->op, n_in, in, n_out, n->attrs, n->loc);
  n_out = 0;
  for (uint32_t r = 0; r < n->n_results; r++) {
    if (no_result[r]) continue;
    fresh->results[n_out].type = n->results[r].type;
    fresh->results[n_out].name = n->results[r].name;
    kva_value_replace_all_uses(&n->results[r], &fresh->results[n_out++]);
  }
  for (uint32_t g = 0; g < n->n_graphs; g++) {
    kva_graph_drop_outputs(n->graphs[g], no_result, shift);
    for (uint32_t i = n->n_operands; i-- > first;)
      if (no_operand[i]) kva_graph_remove_input(n->graphs[g], i - first);
  }
  kva_node_take_graphs(fresh, n);
  kva_node_remove(n);
  kva_arena_destroy(scratch);
  return fresh;
}

/* The number of iterations of a loop, if it is given and no condition ends the loop earlier; else 1. */
static double trips_of(const kva_node *n, const kva_sizes *s) {
  bool counted = kva_is(n, KVA_OP_loop) && !kva_operand(n, 1);
  kva_dim trips = counted ? ((const kva_loop_attrs *)n->attrs)->trips : NULL;
  int64_t times = 1;
  return trips && kva_expr_eval(trips, s->lookup, s->user, &times) ? (double)times : 1;
}

double kva_node_flops(const kva_node *n, const kva_sizes *s) {
  double total = n->op->flops ? n->op->flops(n, s) : 0;
  for (uint32_t i = 0; i < n->n_graphs; i++)
    for (const kva_node *k = n->graphs[i]->first; k; k = k->next) total += kva_node_flops(k, s);
  return total * trips_of(n, s);
}

static void add_graphs(kva_arena *arena, kva_graph *g, kva_graphs *out) {
  for (kva_node *n = g->first; n; n = n->next)
    for (uint32_t i = 0; n->op->traits & KVA_CONTROL && i < n->n_graphs; i++) add_graphs(arena, n->graphs[i], out);
  KVA_PUSH(arena, out, g);
}

kva_graphs kva_program_graphs(const kva_module *m, kva_arena *arena) {
  kva_graphs graphs = {0};
  for (uint32_t f = 0; f < m->functions.len; f++) add_graphs(arena, m->functions.data[f]->graph, &graphs);
  return graphs;
}

kva_status kva_visit_graphs(kva_module *m, kva_graph_visitor visit, const kva_pass_options *o, bool *changed) {
  kva_arena *scratch = kva_arena_create();
  kva_graphs graphs = kva_program_graphs(m, scratch);
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < graphs.len && !status; i++) status = visit(m, graphs.data[i], o, changed);
  kva_arena_destroy(scratch);
  return status;
}

void kva_count_change(const kva_pass_options *o, const kva_node *n, const char *rule, bool *changed) {
  kva_text what = {0};
  *changed = true;
  if (!o->control || !o->control->bisect) return;
  kva_text_add(&what, "kv.%s", n->op->name);
  if (n->n_results && n->results[0].name) kva_text_add(&what, " \"%s\"", n->results[0].name);
  if (rule) kva_text_add(&what, " by %s", rule);
  kva_pass_count_change(o->control, &n->loc, what.data);
  kva_text_free(&what);
}

bool kva_takes_rows(const kva_use *u) {
  return kva_is(u->user, KVA_OP_gather) && u->index == 0 && ((const kva_gather_attrs *)u->user->attrs)->axis == 0;
}

/* Readers unpack each element that they need: products and lookups. */
static bool feeds_unpackers(const kva_node *n) {
  for (const kva_use *u = n->results[0].uses; u; u = u->next) {
    const kva_node *user = u->user;
    bool packs = user->op->product && user->op->role && user->op->role(user, u->index) == KVA_PACKED;
    bool passes_on = (user->op->traits & KVA_UNPACKS || kva_is(user, KVA_OP_transpose)) && u->index == 0;
    if (!packs && !kva_takes_rows(u) && !(passes_on && feeds_unpackers(user))) return false;
  }
  return n->results[0].uses != NULL;
}

bool kva_stays_packed(const kva_node *n) {
  return n->op->traits & KVA_UNPACKS && feeds_unpackers(n);
}

bool kva_stays_narrow(const kva_node *n) {
  if (!kva_is(n, KVA_OP_cast)) return false;
  kva_dtype from = kva_operand_type(n, 0)->dtype, to = n->results[0].type->dtype;
  if (!kva_dtype_is_float(from) || kva_dtype_bits(from) != 16 || to != KVA_F32) return false;
  for (const kva_use *u = n->results[0].uses; u; u = u->next) {
    bool product = kva_is(u->user, KVA_OP_matmul) && u->index == 1;
    if (product ? ((const kva_matmul_attrs *)u->user->attrs)->transpose_b : !kva_takes_rows(u)) return false;
  }
  return n->results[0].uses != NULL;
}

bool kva_writes_states(const kva_function *f) {
  for (const kva_node *n = f->graph->first; n; n = n->next)
    if (n->op->traits & KVA_WRITES_STATE) return true;
  return false;
}

kva_value *kva_pad_channels(kva_builder *b, kva_value *x, int64_t more) {
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  for (uint32_t d = 0; d < x->type->rank; d++) {
    before[d] = kva_expr_const(b->m->exprs, 0);
    after[d] = kva_expr_const(b->m->exprs, d == 1 ? more : 0);
  }
  kva_pad_attrs attrs = {.before = {x->type->rank, before}, .after = {x->type->rank, after}};
  return kva_build(b, KVA_OP_pad, 1, &x, &attrs);
}
