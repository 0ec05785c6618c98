/* Chunks of rows: derives function "decode" from a causal function.
 *
 * What: the function's rows (tokens of a sequence) are along the second dimension of its first input that has a symbol
 * there, its sequences along the first dimension. "decode" computes the next rows of every sequence: the same inputs
 * and outputs with the symbol counting the rows of the chunk alone (1: a decode step; many: prefill), then int64
 * `position` with the number of rows that each sequence has so far, then state, each an output that replaces its input
 * (kva_function.updates) and begins as zeros: caches in pages, last rows, sums; and int32 `pages_R`[B, N], the pages of
 * R rows of each sequence, in their order. `pages_R_W` are those of caches that no query sees further back than W
 * rows. With the option whole_caches there are no pages: a cache is [B, .., rows, ..], all with one symbol of rows.
 * With the option caches those of float keys and values are narrower, and rounded as they are appended.
 * Every row gets the bits that it has in one run over whole sequences. With the option there is "step", too:
 * decode of one row, of one sequence, "steps": one row of a given number of sequences, and "prefill": many rows
 * of one sequence, with results of the last row alone (incremental_last.c).
 *
 * Algorithm: nodes are copied in order. Symbols say where rows are: an axis is one of rows if its extent is the time
 * symbol. A node each of whose rows reads the same row of its operands (kva_op_info.source_axis) stays as it is. One
 * that depends on earlier rows or on the position has a rule (kva_op_info.incremental; ops/incremental.h). A value that
 * depends only on positions gets a leading sequence axis (incremental_lift.c), because positions now differ between
 * sequences. Values that relate rows to rows become masks over the cache where attention reads them
 * (incremental_mask.c). All that cannot be done is named at once, with its reason.
 *
 * Requires: raised operators, since attention that is spelled out mixes rows; no state written by the function. Breaks:
 * nothing; a module that has a function "decode" stays as it is. Why not a flag of every operator: the rules are few,
 * and what has none is refused. */
#include "passes/incremental.h"

/* ---- what a node does to rows ------------------------------------------------------------------------------------ */

static bool has_time(const kva_chunks *p, const kva_type *t) {
  for (uint32_t i = 0; i < t->rank; i++)
    if (kva_expr_uses(t->dims[i], p->c.time)) return true;
  return false;
}

uint32_t kva_time_axes(const kva_chunks *p, const kva_value *v) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < v->type->rank; i++) n += v->type->dims[i] == p->c.time;
  return n;
}

static kva_chunk_form form_of(const kva_chunks *p, const kva_value *v) {
  return v ? p->values[v->id].form : KVA_CHUNK_PLAIN;
}

static bool reads(const kva_chunks *p, const kva_node *n, kva_chunk_form form) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (form_of(p, kva_operand(n, i)) == form) return true;
  return false;
}

const char *kva_counting_attribute(const kva_chunks *p, const kva_node *n) {
  for (uint32_t i = 0; n->attrs && i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    const void *at = (const char *)n->attrs + f->offset;
    kva_dims dims = {0};
    if (f->kind == KVA_ATTR_DIM) dims = (kva_dims){1, at};
    if (f->kind == KVA_ATTR_DIMS) dims = *(const kva_dims *)at;
    for (uint32_t k = 0; k < dims.n; k++)
      if (dims.v[k] && kva_expr_uses(dims.v[k], p->c.time) && f != kva_shape_field(n)) return f->name;
  }
  return NULL;
}

static bool depends_on_rows(const kva_chunks *p, const kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i) && has_time(p, kva_operand_type(n, i))) return true;
  for (uint32_t i = 0; i < n->n_results; i++)
    if (has_time(p, n->results[i].type)) return true;
  for (uint32_t i = 0; i < n->n_graphs; i++)
    if (kva_uses_symbol(n->graphs[i]->first, p->c.time)) return true;
  return kva_counting_attribute(p, n) || reads(p, n, KVA_CHUNK_LIFTED);
}

/* Row i of axis `axis` of the result reads row i alone of every operand that has rows; out_read gets their axes. */
static bool steps_along_rows(const kva_chunks *p, const kva_node *n, uint32_t axis, uint32_t *out_read) {
  bool any = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (!kva_operand(n, i)) continue;
    int source = kva_source_axis(n, i, axis);
    if (source == KVA_MIXED || (source >= 0 && !kva_is_time(&p->c, kva_operand(n, i), (uint32_t)source))) return false;
    if (source < 0) continue;
    out_read[i] |= 1u << source;
    any = true;
  }
  return any;
}

/* Every row of all results is made of the same row of the operands. */
static bool keeps_rows(const kva_chunks *p, const kva_node *n) {
  uint32_t *read = KVA_NEW_ARRAY(p->c.scratch, uint32_t, n->n_operands + 1);
  for (uint32_t r = 0; r < n->n_results; r++)
    for (uint32_t k = 0; k < n->results[r].type->rank; k++)
      if (kva_is_time(&p->c, &n->results[r], k) && !steps_along_rows(p, n, k, read)) return false;
  for (uint32_t i = 0; i < n->n_operands; i++)
    for (uint32_t k = 0; kva_operand(n, i) && k < kva_operand_type(n, i)->rank; k++)
      if (kva_is_time(&p->c, kva_operand(n, i), k) && !(read[i] >> k & 1)) return false;
  return true;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static kva_status refuse_extent(kva_chunks *p, const kva_node *n, const kva_type *t, uint32_t k) {
  kva_text extent = {0};
  kva_expr_print(t->dims[k], &extent);
  kva_refuse_chunks(&p->c, n, "dimension %u of its result is %s, which is not the number of rows", k, extent.data);
  kva_text_free(&extent);
  return KVA_UNSUPPORTED;
}

static kva_status check_node(kva_chunks *p, const kva_node *n) {
  if (n->n_graphs) return kva_refuse_chunks(&p->c, n, "its sub-graphs depend on rows");
  const char *attribute = kva_counting_attribute(p, n);
  if (attribute) return kva_refuse_chunks(&p->c, n, "'%s' depends on the number of rows, which grows", attribute);
  for (uint32_t r = 0; r < n->n_results; r++)
    for (uint32_t k = 0; k < n->results[r].type->rank; k++) {
      const kva_type *t = n->results[r].type;
      if (t->dims[k] != p->c.time && kva_expr_uses(t->dims[k], p->c.time)) return refuse_extent(p, n, t, k);
    }
  return KVA_OK;
}

static kva_value **chunk_operands(const kva_chunks *p, const kva_node *n) {
  kva_value **operands = KVA_NEW_ARRAY(p->c.scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i)) operands[i] = p->values[kva_operand(n, i)->id].value;
  return operands;
}

static void set_result(kva_chunks *p, const kva_value *old, kva_value *v) {
  if (!v) return;
  if (!v->name) v->name = old->name;
  p->values[old->id] = (kva_chunk_value){v->type->rank > old->type->rank ? KVA_CHUNK_LIFTED : KVA_CHUNK_PLAIN, v};
}

static kva_status copy_node(kva_chunks *p, kva_node *n) {
  if (n->op->traits & (KVA_WRITES_STATE | KVA_BINDS) || kva_node_binds(n).n)
    return kva_refuse_chunks(&p->c, n, "it writes state, or gives a symbol its value");
  kva_node *copy =
      kva_node_create(p->c.b->graph, NULL, n->op, n->n_operands, chunk_operands(p, n), n->n_results, n->attrs, n->loc);
  for (uint32_t i = 0; i < n->n_results; i++) {
    copy->results[i].type = n->results[i].type;
    set_result(p, &n->results[i], &copy->results[i]);
  }
  if (n->n_graphs) kva_node_copy_graphs(n, copy, KVA_NEW_ARRAY(p->c.scratch, kva_value *, p->c.b->m->next_value_id));
  return KVA_OK;
}

static kva_status run_rule(kva_chunks *p, kva_node *n) {
  p->c.operands = chunk_operands(p, n);
  p->c.results = KVA_NEW_ARRAY(p->c.scratch, kva_value *, n->n_results + 1);
  KVA_TRY(n->op->incremental(&p->c, n));
  if (p->c.b->failed) return KVA_INVALID;
  for (uint32_t i = 0; i < n->n_results; i++) set_result(p, &n->results[i], p->c.results[i]);
  return KVA_OK;
}

static kva_status lift_node(kva_chunks *p, kva_node *n) {
  kva_value *v = kva_build_lifted(p, n, chunk_operands(p, n), n->attrs);
  if (v) set_result(p, &n->results[0], v);
  return v ? KVA_OK : KVA_UNSUPPORTED;
}

static kva_status make_node(kva_chunks *p, kva_node *n) {
  if (!depends_on_rows(p, n)) return copy_node(p, n);
  KVA_TRY(check_node(p, n));
  if (n->n_results && kva_time_axes(p, &n->results[0]) > 1) {
    p->values[n->results[0].id].form = KVA_CHUNK_MATRIX;
    return KVA_OK;
  }
  bool matrix = reads(p, n, KVA_CHUNK_MATRIX);
  if (!matrix && keeps_rows(p, n)) return reads(p, n, KVA_CHUNK_LIFTED) ? lift_node(p, n) : copy_node(p, n);
  if (n->op->incremental) return run_rule(p, n);
  if (matrix)
    return kva_refuse_chunks(&p->c, n,
                             "an operand relates every row to every row; only masks of kv.attention may. Attention "
                             "that is spelled out otherwise than pass raise knows is not recognised");
  return kva_refuse_chunks(&p->c, n, "its rows depend on other rows than their own");
}

/* Results of a refused node, and of nodes that read them, are not reported again. */
static kva_status visit_node(kva_chunks *p, kva_node *n) {
  kva_status status = KVA_UNSUPPORTED;
  p->c.b->loc = n->loc;
  if (!reads(p, n, KVA_CHUNK_REFUSED)) status = make_node(p, n);
  for (uint32_t i = 0; status && i < n->n_results; i++) p->values[n->results[i].id].form = KVA_CHUNK_REFUSED;
  return status;
}

/* ---- the function ------------------------------------------------------------------------------------------------ */

static kva_value *input_with_rows(const kva_function *f) {
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) {
    kva_value *v = f->graph->inputs.data[i];
    if (v->type->rank >= 2 && v->type->dims[1]->kind == KVA_EXPR_SYMBOL) return v;
  }
  return NULL;
}

static kva_status add_inputs(kva_chunks *p, const kva_function *f) {
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < f->graph->inputs.len; i++) {
    const kva_value *v = f->graph->inputs.data[i];
    kva_value *copy = kva_graph_add_input(p->c.b->graph, v->type, v->name);
    p->values[v->id].value = copy;
    uint32_t axes = kva_time_axes(p, v);
    if (axes > 1) p->values[v->id].form = KVA_CHUNK_MATRIX;
    if (axes == 0 && has_time(p, v->type))
      status = kva_fail(p->c.b->m->diag, KVA_UNSUPPORTED, &f->loc,
                        "input '%s': no function over chunks of rows can be made: its shape depends on the number of "
                        "rows, but none of its dimensions is that number",
                        v->name ? v->name : "");
  }
  p->c.position = kva_graph_add_input(p->c.b->graph, kva_type_tensor(p->c.b->m, KVA_I64, 1, &p->c.batch), "position");
  return status;
}

static kva_status check_output(kva_chunks *p, const kva_function *f, uint32_t i) {
  static const char *const reasons[] = {[KVA_CHUNK_LIFTED] =
                                            "it depends on the position alone, which differs between sequences",
                                        [KVA_CHUNK_MATRIX] = "it relates every row to every row"};
  kva_chunk_form form = form_of(p, kva_graph_output(f->graph, i));
  if (form == KVA_CHUNK_REFUSED) return KVA_UNSUPPORTED;
  if (form == KVA_CHUNK_PLAIN) return KVA_OK;
  return kva_fail(p->c.b->m->diag, KVA_UNSUPPORTED, &f->loc,
                  "output '%s': no function over chunks of rows can be made: %s", f->output_names[i], reasons[form]);
}

static void finish(kva_chunks *p, const kva_function *f, kva_function *decode) {
  uint32_t own = kva_graph_output_count(f->graph), n = own + p->c.carried.len;
  kva_arena *arena = p->c.b->m->arena;
  kva_value **outputs = KVA_NEW_ARRAY(p->c.scratch, kva_value *, n + 1);
  const char **names = KVA_NEW_ARRAY(arena, const char *, n + 1);
  int32_t *updates = KVA_NEW_ARRAY(arena, int32_t, n + 1);
  for (uint32_t i = 0; i < own; i++) {
    outputs[i] = p->values[kva_graph_output(f->graph, i)->id].value;
    names[i] = f->output_names[i], updates[i] = -1;
  }
  for (uint32_t i = own; i < n; i++) {
    const kva_carried *state = &p->c.carried.data[i - own];
    outputs[i] = state->next;
    names[i] = kva_arena_printf(arena, "next_%s", state->old->name), updates[i] = (int32_t)state->old->index;
  }
  kva_node_create(decode->graph, NULL, KVA_OP(return ), n, outputs, 0, NULL, f->loc);
  decode->output_names = names;
  decode->updates = updates;
}

static kva_status make_decode(kva_chunks *p, const kva_function *f, kva_function *decode) {
  kva_status status = add_inputs(p, f);
  for (kva_node *n = f->graph->first; n && !p->c.b->failed; n = n->next) {
    if (n->op->traits & KVA_RETURN) continue;
    kva_status found = visit_node(p, n);
    if (found) status = found;
  }
  for (uint32_t i = 0; i < kva_graph_output_count(f->graph); i++)
    if (check_output(p, f, i)) status = KVA_UNSUPPORTED;
  KVA_TRY(status);
  if (p->c.b->failed) return KVA_INVALID;
  finish(p, f, decode);
  return KVA_OK;
}

/* With a number of rows that is known, products take other kernels. */
static void fix_sequences(const kva_chunks *p, const kva_function *f, int64_t sequences) {
  if (p->c.batch->kind == KVA_EXPR_SYMBOL)
    kva_replace_symbol(f->graph, p->c.batch, kva_expr_const(p->c.b->m->exprs, sequences));
}

static void add_step(const kva_chunks *p, const kva_function *decode, const char *name, int64_t sequences) {
  kva_module *m = p->c.b->m;
  kva_function *step = kva_function_clone(m, decode, name);
  kva_replace_symbol(step->graph, p->c.time, kva_expr_const(m->exprs, 1));
  fix_sequences(p, step, sequences);
}

static void add_steps(kva_chunks *p, const kva_function *f, const kva_function *decode, const kva_pass_options *o) {
  if (!o->step) return;
  add_step(p, decode, "step", 1);
  if (o->sequences > 1 && p->c.batch->kind == KVA_EXPR_SYMBOL) add_step(p, decode, "steps", o->sequences);
  fix_sequences(p, kva_add_prefill(p, decode, kva_graph_output_count(f->graph)), 1);
}

/* Rows of a sequence that caches have room for. */
static kva_dim new_capacity(kva_expr_ctx *e, const kva_pass_options *o) {
  if (o->whole_caches) return kva_expr_new_symbol(e, "capacity");
  return kva_expr_muli(e, kva_expr_new_symbol(e, "N"), KVA_PAGE_ROWS);
}

kva_status kva_incremental_functions(kva_module *m, const kva_pass_options *o, bool *changed) {
  const kva_function *f = m->functions.data[0];
  if (kva_module_find_function(m, "decode")) return KVA_OK;
  kva_value *tokens = input_with_rows(f);
  if (!tokens)
    return kva_fail(m->diag, KVA_UNSUPPORTED, &f->loc,
                    "%s: no function over chunks of rows can be made: no input has a symbol as its second dimension, "
                    "for the rows of sequences",
                    f->name);
  kva_part_merged_rows(m, f->graph, tokens->type->dims[1]);
  kva_arena *scratch = kva_arena_create();
  kva_function *decode = kva_function_create(m, "decode");
  kva_builder b = {.m = m, .graph = decode->graph, .loc = f->loc};
  kva_chunks p = {.c = {.b = &b,
                        .batch = tokens->type->dims[0],
                        .time = tokens->type->dims[1],
                        .capacity = new_capacity(m->exprs, o),
                        .whole = o->whole_caches,
                        .narrow = o->caches,
                        .scratch = scratch,
                        .over_all_rows = kva_mask_over_all_rows},
                  .values = KVA_NEW_ARRAY(scratch, kva_chunk_value, m->next_value_id)};
  decode->loc = f->loc;
  kva_status status = make_decode(&p, f, decode);
  if (status)
    m->functions.len--;
  else
    add_steps(&p, f, decode, o);
  *changed = true;
  kva_arena_destroy(scratch);
  return status;
}
