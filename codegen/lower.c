/* Graph to kernel IR. Values are pulled: an element of a result asks for elements of its operands, which nodes of the
 * same group compute in place, or which are loaded. The builder hoists loop-invariant code and shares common
 * subexpressions, so pulling needs no plan.
 *
 * Without a whole-kernel operator, the group's outputs define the loops: one nest for each distinct shape. Outputs
 * share the outer loops of equal leading extents, so row reductions and elementwise results of one group share the row
 * loop. A whole-kernel operator writes the loops itself and hands its elements to `store`, which computes the rest of
 * the group from them. */
#include "codegen/lower_internal.h"
#include "ops/ids.h"
#include "ops/reduce_common.h"

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static kva_dim elements(kva_lowering *w, const kva_type *t) {
  kva_dim n = kva_expr_const(w->l.kb->exprs, 1);
  for (uint32_t d = 0; d < t->rank; d++) n = kva_expr_mul(w->l.kb->exprs, n, t->dims[d]);
  return n;
}

static kva_kbuf *parameter(kva_lowering *w, const kva_value *v, const char *prefix, uint32_t i) {
  const char *name = v->name ? v->name : kva_arena_printf(w->arena, "%s%u", prefix, i);
  return kva_k_param(w->l.kb, name, v->type->dtype, elements(w, v->type));
}

static void create_parameters(kva_lowering *w) {
  const kva_node *n = w->node;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    if (!v) continue;
    kva_kbuf *buf = kva_map_get(w->bufs, &v, sizeof v);
    if (!buf) kva_map_set(w->bufs, &v, sizeof v, buf = parameter(w, v, "in", i));
    if (!w->group) continue;
    KVA_ASSERT(i < w->group->inputs.len && w->group->inputs.data[i]->type == v->type);
    const kva_value *input = w->group->inputs.data[i];
    kva_map_set(w->bufs, &input, sizeof input, buf);
    kva_map_set(w->outer, &input, sizeof input, (void *)v);
  }
  w->n_outputs = n->n_results;
  w->outputs = KVA_NEW_ARRAY(w->arena, kva_lowering_output, n->n_results + 1);
  for (uint32_t i = 0; i < n->n_results; i++) {
    const kva_value *v = w->group ? kva_graph_output(w->group, i) : &n->results[i];
    w->outputs[i] = (kva_lowering_output){v, parameter(w, &n->results[i], "out", i)};
  }
}

/* ---- reading operands -------------------------------------------------------------------------------------------- */

static const kva_expr *linear_index(kva_lowering *w, const kva_type *t, const kva_expr *const *idx) {
  KVA_ASSERT(t->rank <= KVA_MAX_RANK);
  kva_expr_ctx *c = w->l.kb->exprs;
  const kva_expr *sum = kva_expr_const(c, 0), *stride = kva_expr_const(c, 1);
  for (uint32_t d = t->rank; d-- > 0;) {
    if (!kva_expr_is(t->dims[d], 1)) sum = kva_expr_add(c, sum, kva_expr_mul(c, idx[d], stride));
    stride = kva_expr_mul(c, stride, t->dims[d]);
  }
  return sum;
}

static kva_kval element_of(kva_lowering *w, const kva_tensor_data *t, int64_t i) {
  KVA_ASSERT(i >= 0 && t->dtype != KVA_STRING);
  kva_dtype type = kva_k_compute_type(t->dtype);
  if (kva_dtype_is_float(t->dtype)) return kva_k_const_f(w->l.kb, type, kva_load_f64(t->dtype, t->data, i));
  return kva_k_const_i(w->l.kb, type, kva_load_i64(t->dtype, t->data, i));
}

enum { MAX_INLINE = 16 };

/* Constants of a group have no buffer: a scalar is an immediate, a short list a chain of selects. */
static kva_kval inline_constant(kva_lowering *w, const kva_node *n, const kva_tensor_data *t,
                                const kva_expr *const *idx) {
  kva_kb *b = w->l.kb;
  int64_t count = kva_tensor_elements(t);
  kva_dtype type = kva_k_compute_type(t->dtype);
  if (count > MAX_INLINE)
    return kva_lowering_fail(w, n, type, "a constant of %lld elements inside a fused group", (long long)count);
  if (count < 1) return kva_k_const(b, type, 0);
  const kva_expr *at = linear_index(w, n->results[0].type, idx);
  kva_kval v = element_of(w, t, 0);
  for (int64_t i = 1; i < count; i++) {
    v = kva_k_select(b, kva_k_index_eq(b, at, kva_expr_const(b->exprs, i)), element_of(w, t, i), v);
  }
  return v;
}

/* A constant of one element, whose value is part of the code; NULL for other values. */
static const kva_tensor_data *number_of(const kva_value *v) {
  const kva_tensor_data *t = kva_constant_of(v);
  return t && kva_tensor_elements(t) == 1 ? t : NULL;
}

static kva_kval load_parameter(kva_lowering *w, const kva_value *v, const kva_expr *const *idx) {
  const kva_value *outer = kva_map_get(w->outer, &v, sizeof v);
  const kva_tensor_data *number = number_of(outer ? outer : v);
  if (number) return element_of(w, number, 0);
  kva_kbuf *buf = kva_map_get(w->bufs, &v, sizeof v);
  KVA_ASSERT(buf);
  return kva_k_load(w->l.kb, buf, linear_index(w, v->type, idx));
}

bool kva_codegen_lower_equally(const kva_node *left, const kva_node *right) {
  if (!kva_node_equal(left, right)) return false;
  for (uint32_t i = 0; i < left->n_operands; i++) {
    const kva_value *l = left->operands[i].value, *r = right->operands[i].value;
    if (!kva_tensor_equal(number_of(l), number_of(r))) return false;
  }
  return true;
}

/* Memoises each result by index and guard: nodes form DAGs, and pulling both sides of a diamond at every level would
 * take exponential time. A value computed in an inner loop is not reused outside it. */
typedef struct memo_key {
  const kva_value *value;
  kva_kval guard;
  const kva_expr *idx[KVA_MAX_RANK];
} memo_key;

static kva_kval evaluate_node(kva_lowering *w, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  if (n == w->tile) return kva_lowering_bound(w, n, result, idx);
  const kva_tensor_data *t = kva_constant_of(&n->results[0]);
  if (t) return inline_constant(w, n, t, idx);
  if (n->op->lower_kind != KVA_LOWER_ELEMENT) {
    return kva_lowering_fail(w, n, kva_k_compute_type(n->results[result].type->dtype), "no code for one element of it");
  }
  kva_task task = {.what = "operator", .name = n->op->name, .loc = &n->loc};
  kva_task_begin(&task);
  kva_kval v = n->op->lower(&w->l, n, result, idx);
  kva_task_end(&task);
  return v;
}

static bool computes(const kva_lower *l, const kva_value *v) {
  const kva_lowering *w = (const kva_lowering *)(const void *)l;
  return w->group ? v->def && v->graph == w->group : v->def == w->node;
}

kva_kval kva_lowering_value(kva_lowering *w, const kva_value *v, const kva_expr *const *idx) {
  KVA_ASSERT(v && v->type->rank <= KVA_MAX_RANK);
  if (!computes(&w->l, v)) return load_parameter(w, v, idx);
  memo_key key = {.value = v, .guard = w->l.kb->pred};
  for (uint32_t d = 0; d < v->type->rank; d++) key.idx[d] = idx[d];
  kva_kval known = kva_map_get(w->memo, &key, sizeof key);
  if (known && known->region && kva_k_encloses(known->region, w->l.kb->region)) return known;
  kva_kval made = evaluate_node(w, v->def, v->index, idx);
  kva_map_set(w->memo, &key, sizeof key, made);
  return made;
}

static kva_kval operand(kva_lower *l, const kva_node *n, uint32_t i, const kva_expr *const *idx) {
  return kva_lowering_value((kva_lowering *)(void *)l, n->operands[i].value, idx);
}

kva_kval kva_lowering_fail(kva_lowering *w, const kva_node *n, kva_dtype type, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  char text[256];
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (!w->failed)
    kva_fail(w->l.module->diag, KVA_UNSUPPORTED, &n->loc, "kv.%s: cannot be compiled: %s", n->op->name, text);
  w->failed = true;
  return kva_k_const(w->l.kb, type, 0);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

void kva_lowering_write(kva_lowering *w, const kva_lowering_output *o, const kva_expr *const *idx, kva_kval v) {
  KVA_ASSERT(o->buf->space == KVA_K_PARAM && o->buf->dtype == o->value->type->dtype);
  kva_k_store(w->l.kb, o->buf, linear_index(w, o->value->type, idx), v);
}

static bool ends_at(const kva_type *t, uint32_t depth) {
  for (uint32_t d = depth; d < t->rank; d++) {
    if (!kva_expr_is(t->dims[d], 1)) return false;
  }
  return true;
}

/* A nest of one item, which may stand beside others in a GPU's grid; the same code whether it does or not. */
static bool has_own_block(const kva_lowering *w, const kva_lowering_output *o) {
  const kva_node *def = o->value->def;
  return w->l.target->kind == KVA_TARGET_GPU && def && kva_reduces_few(def);
}

/* Outputs without further indices are stored here; the others continue in a loop for each distinct next extent. */
void kva_lowering_outputs(kva_lowering *w, uint32_t n, const kva_lowering_output **outputs, uint32_t depth,
                          const kva_expr **idx) {
  kva_expr_ctx *c = w->l.kb->exprs;
  KVA_ASSERT(depth <= KVA_MAX_RANK);
  const kva_lowering_output **rest = KVA_NEW_ARRAY(w->arena, const kva_lowering_output *, n + 1);
  const kva_lowering_output **same = KVA_NEW_ARRAY(w->arena, const kva_lowering_output *, n + 1);
  uint32_t n_rest = 0;
  for (uint32_t i = 0; i < n; i++) {
    const kva_type *t = outputs[i]->value->type;
    if (!ends_at(t, depth)) {
      rest[n_rest++] = outputs[i];
      continue;
    }
    for (uint32_t d = depth; d < t->rank; d++) idx[d] = kva_expr_const(c, 0);
    bool block = !depth && has_own_block(w, outputs[i]);
    kva_kloop *l = block ? kva_k_loop_begin(w->l.kb, KVA_K_PARALLEL, kva_expr_const(c, 1), "i") : NULL;
    kva_lowering_write(w, outputs[i], idx, kva_lowering_value(w, outputs[i]->value, idx));
    if (l) kva_k_loop_end(w->l.kb, l);
  }
  while (n_rest) {
    kva_dim extent = rest[0]->value->type->dims[depth];
    uint32_t n_same = 0, n_other = 0;
    for (uint32_t i = 0; i < n_rest; i++) {
      if (rest[i]->value->type->dims[depth] == extent)
        same[n_same++] = rest[i];
      else
        rest[n_other++] = rest[i];
    }
    n_rest = n_other;
    if (kva_expr_is(extent, 1)) {
      idx[depth] = kva_expr_const(c, 0);
      kva_lowering_outputs(w, n_same, same, depth + 1, idx);
      continue;
    }
    kva_kloop *l = kva_k_loop_begin(w->l.kb, KVA_K_PARALLEL, extent, "i");
    idx[depth] = l->var;
    kva_lowering_outputs(w, n_same, same, depth + 1, idx);
    kva_k_loop_end(w->l.kb, l);
  }
}

/* ---- entry ------------------------------------------------------------------------------------------------------- */

static const kva_node *find_tile(kva_lowering *w) {
  if (!w->group) return w->node->op->lower_kind == KVA_LOWER_KERNEL ? w->node : NULL;
  const kva_node *tile = NULL;
  for (const kva_node *n = w->group->first; n; n = n->next) {
    if (n->op->lower_kind != KVA_LOWER_KERNEL) continue;
    if (tile) kva_lowering_fail(w, n, KVA_F32, "it shares a fused group with kv.%s", tile->op->name);
    tile = n;
  }
  return tile;
}

/* All outputs are empty: no work, and no code for loops over zero elements or divisions by their number. */
static bool all_empty(const kva_lowering *w) {
  for (uint32_t i = 0; i < w->n_outputs; i++) {
    const kva_type *t = w->outputs[i].value->type;
    bool empty = false;
    for (uint32_t d = 0; d < t->rank; d++) empty |= kva_expr_is(t->dims[d], 0);
    if (!empty) return false;
  }
  return true;
}

/* ---- parts that share nothing ------------------------------------------------------------------------------------ */

typedef struct part_search {
  kva_map *seen; /* nodes and inputs of one part */
  bool grew;
} part_search;

static bool is_in_part(const part_search *s, const void *key) {
  return kva_map_get(s->seen, &key, sizeof key) != NULL;
}

static void add_to_part(part_search *s, const void *key) {
  if (is_in_part(s, key)) return;
  kva_map_set(s->seen, &key, sizeof key, s);
  s->grew = true;
}

/* What n reads and may share with others: not numbers. */
static const void *shared_by(const kva_graph *group, const kva_value *v) {
  if (!v) return NULL;
  if (v->def && v->graph == group) return v->def->n_operands ? v->def : NULL;
  return v->type->rank ? v : NULL;
}

static void follow(part_search *s, const kva_graph *group, const kva_node *n) {
  bool inside = is_in_part(s, n);
  for (uint32_t i = 0; i < n->n_operands && !inside; i++) {
    const void *read = shared_by(group, n->operands[i].value);
    inside = read && is_in_part(s, read);
  }
  if (!inside) return;
  add_to_part(s, n);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const void *read = shared_by(group, n->operands[i].value);
    if (read) add_to_part(s, read);
  }
}

/* Moves the outputs to the front that share a node or a tensor, by some steps, with the first; returns their number.
 * The others are of other tensors (passes/fuse_together.c, fuse_updates.c), even if their shapes are equal. */
static uint32_t put_part_first(kva_lowering *w, uint32_t n, const kva_lowering_output **outputs) {
  if (!w->group || n == 1 || !outputs[0]->value->def) return n;
  part_search s = {.seen = kva_map_create(w->arena)};
  add_to_part(&s, outputs[0]->value->def);
  while (s.grew) {
    s.grew = false;
    for (const kva_node *k = w->group->first; k; k = k->next)
      if (k->n_results) follow(&s, w->group, k);
  }
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; i++) {
    const kva_lowering_output *o = outputs[i];
    if (!o->value->def || !is_in_part(&s, o->value->def)) continue;
    outputs[i] = outputs[found];
    outputs[found++] = o;
  }
  return found;
}

uint32_t kva_lowering_put_first(uint32_t n, const kva_lowering_output **outputs,
                                bool (*wanted)(const kva_lowering_output *o, const kva_node *def)) {
  const kva_node *def = outputs[0]->value->def;
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; i++) {
    const kva_lowering_output *o = outputs[i];
    if (!wanted(o, def)) continue;
    outputs[i] = outputs[found];
    outputs[found++] = o;
  }
  return found;
}

static void lower_outputs(kva_lowering *w) {
  const kva_lowering_output **left = KVA_NEW_ARRAY(w->arena, const kva_lowering_output *, w->n_outputs + 1);
  for (uint32_t i = 0; i < w->n_outputs; i++) left[i] = &w->outputs[i];
  const kva_expr *idx[KVA_MAX_RANK];
  if (kva_lowering_partial_sums(w, left)) return;
  for (uint32_t n = w->n_outputs, together; n; n -= together, left += together) {
    together = put_part_first(w, n, left);
    kva_lowering_outputs(w, together, left, 0, idx);
  }
}

const char *kva_codegen_kernel_name_of(const kva_node *n) {
  if (!kva_is(n, KVA_OP_kernel)) return n->op->name;
  const char *name = ((const kva_kernel_attrs *)n->attrs)->name;
  return name ? name : "kernel";
}

static kva_lowering lowering_of(kva_arena *arena, const kva_node *node, const kva_target *target) {
  kva_module *m = node->graph->module;
  KVA_ASSERT(!kva_is(node, KVA_OP_kernel) || kva_graph_output_count(node->graphs[0]) == node->n_results);
  kva_kernel *k = kva_kernel_create(arena, m->exprs, kva_codegen_kernel_name_of(node));
  kva_lowering w = {.l = {.kb = kva_kb_create(k),
                          .module = m,
                          .target = target,
                          .operand = operand,
                          .computes = computes,
                          .store = kva_lowering_store},
                    .arena = arena,
                    .node = node,
                    .group = kva_is(node, KVA_OP_kernel) ? node->graphs[0] : NULL,
                    .bufs = kva_map_create(arena),
                    .outer = kva_map_create(arena),
                    .memo = kva_map_create(arena)};
  create_parameters(&w);
  return w;
}

/* Predicates analyse operands in a scratch kernel; `failed` suppresses its diagnostics. */
kva_kernel_choice kva_codegen_choose(const kva_node *node, const kva_target *target, const kva_node **out_operator) {
  kva_kernel_choice choice = {0};
  kva_arena *scratch = kva_arena_create();
  kva_lowering w = lowering_of(scratch, node, target);
  w.failed = true;
  w.tile = find_tile(&w);
  *out_operator = all_empty(&w) ? NULL : w.tile;
  if (*out_operator) choice = kva_kernel_choose(&w.l, w.tile);
  kva_arena_destroy(scratch);
  return choice;
}

static void fail_without_kernel(kva_lowering *w, const kva_kernel_choice *c) {
  kva_text refused = {0};
  for (uint32_t i = 0; i < c->n_refused; i++)
    kva_text_add(&refused, "%s%s: %s", i ? "; " : " (", c->refused[i]->name, c->reasons[i]);
  kva_lowering_fail(w, w->tile, KVA_F32, "there is no kernel for %s%s%s", w->l.target->description,
                    refused.data ? refused.data : "", c->n_refused ? ")" : "");
  kva_text_free(&refused);
}

static void lower_tile(kva_lowering *w) {
  const kva_node *tile;
  kva_kernel_choice choice = kva_codegen_choose(w->node, w->l.target, &tile);
  if (choice.row)
    choice.row->emit(&w->l, w->tile);
  else
    fail_without_kernel(w, &choice);
}

kva_kernel *kva_codegen_lower(kva_arena *arena, const kva_node *node, const kva_target *target) {
  kva_lowering w = lowering_of(arena, node, target);
  if (all_empty(&w)) return w.l.kb->kernel;
  w.tile = find_tile(&w);
  if (w.tile && !w.failed)
    lower_tile(&w);
  else
    lower_outputs(&w);
  kva_kernel *k = w.l.kb->kernel;
  /* Hand-written kernels with threads probe their operands at indices that no loop gives: those loads are dead. */
  if (k->threads) kva_kernel_sweep(k);
  return w.failed ? NULL : k;
}
