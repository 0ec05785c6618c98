/* Work on one loss, divided among processes: the axes `tensor` and `sequence` of a mesh.
 *
 * What: each process of a group has a slice of the parameters that say how (kva_split_rule: Shoeybi et al.,
 * Megatron-LM, arXiv 1909.08053: columns, then rows) and computes with it; or it has a slice of the rows of every
 * sequence, axis 1 of the inputs, and all parameters (the second walk, over what the first one made). A value is whole,
 * the same in all processes, or split along one axis. Slices go through a function from the parameters on: by which
 * axis of an operand an axis of the result steps along (kva_op_info.source_axis), by what is summed (kva_op_info.sums;
 * kv.all_reduce then makes the whole), or by the operator's own rule (ops/partition.h). Elsewhere, and at the end of a
 * function, slices are gathered by kv.all_gather. Where slices meet, that costs least operands gathered, and of equals
 * the later operand stays: weights. Whole values that work on slices reads go through kv.share, whose gradient is the
 * sum over the processes; so differentiation needs no more, and replicated parameters have equal gradients in all of
 * them. kva_drop_shares removes these nodes afterwards. Requires: no sub-graphs; that no training program is made yet.
 * Breaks: nothing. Exact up to the order of sums. Why not after differentiation: the rules of gradients' operators
 * would say the same a second time. */
#include "ops/incremental.h"
#include "ops/partition.h"
#include "passes/passes_internal.h"

typedef struct divider {
  kva_partition p;
  kva_builder b;
  kva_arena *scratch;
  bool sequences;      /* inputs are in slices, not parameters */
  kva_node **replaced; /* from 0 up, in order */
  uint32_t n_replaced;
} divider;

/* ---- what a node does with slices -------------------------------------------------------------------------------- */

/* A way to compute a node: the result's axis `axis`, or where it is KVA_WHOLE, sums over an axis of each operand. */
typedef struct way {
  int axis;
  uint32_t operand; /* whose slices it takes */
  int gathered;     /* operands that are split otherwise; -1: there is no such way */
} way;

static int summed_axis(const kva_node *n, uint32_t operand) {
  const kva_value *v = kva_operand(n, operand);
  for (uint32_t k = 0; v && k < v->type->rank; k++)
    if (n->op->sums(n, operand, k)) return (int)k;
  return KVA_SAME_FOR_ALL;
}

/* The axis of the operand's slices, KVA_SAME_FOR_ALL or KVA_MIXED. */
static int operand_axis(const kva_partition *p, const kva_node *n, const way *w, uint32_t i) {
  if (w->axis != KVA_WHOLE) return kva_source_axis(n, i, (uint32_t)w->axis);
  return i == w->operand ? kva_split_axis(p, n, i) : summed_axis(n, i);
}

static way count_gathered(const kva_partition *p, const kva_node *n, way w) {
  kva_dim each;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (!kva_operand(n, i)) continue;
    int axis = operand_axis(p, n, &w, i), split = kva_split_axis(p, n, i);
    if (axis == KVA_MIXED || (axis >= 0 && !kva_divides(p, kva_operand(n, i)->type->dims[axis], &each)))
      return (way){.gathered = -1};
    w.gathered += split != KVA_WHOLE && split != axis;
  }
  return w;
}

static way way_of_operand(const kva_partition *p, const kva_node *n, uint32_t i) {
  int split = kva_split_axis(p, n, i);
  const kva_type *y = n->results[0].type;
  for (uint32_t k = 0; k < y->rank; k++)
    if (kva_source_axis(n, i, k) == split) return count_gathered(p, n, (way){.axis = (int)k, .operand = i});
  if (n->op->sums && n->op->sums(n, i, (uint32_t)split))
    return count_gathered(p, n, (way){.axis = KVA_WHOLE, .operand = i});
  return (way){.gathered = -1};
}

static way best_way(const kva_partition *p, const kva_node *n) {
  way best = {.gathered = -1};
  for (uint32_t i = 0; n->n_results && i < n->n_operands; i++) {
    if (kva_split_axis(p, n, i) == KVA_WHOLE) continue;
    way w = way_of_operand(p, n, i);
    if (w.gathered >= 0 && (best.gathered < 0 || w.gathered <= best.gathered)) best = w;
  }
  return best;
}

/* n's attributes for slices of its result. */
static const void *attrs_of_slice(divider *d, const kva_node *n, int axis, kva_dim each) {
  return axis == KVA_WHOLE ? n->attrs : kva_resized_shape(d->scratch, n, (uint32_t)axis, each);
}

static const kva_type *slice_type(kva_module *m, const kva_type *t, int axis, kva_dim each) {
  kva_dim dims[KVA_MAX_RANK];
  if (axis == KVA_WHOLE || axis >= (int)t->rank) return t;
  memcpy(dims, t->dims, sizeof *dims * t->rank);
  dims[axis] = each;
  return kva_type_tensor(m, t->dtype, t->rank, dims);
}

static void divide_by_axes(divider *d, const kva_node *n, const way *w) {
  kva_partition *p = &d->p;
  const kva_type *y = n->results[0].type;
  kva_dim each = NULL;
  kva_value **in = KVA_NEW_ARRAY(d->scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    int axis = kva_operand(n, i) ? operand_axis(p, n, w, i) : KVA_SAME_FOR_ALL;
    in[i] = axis >= 0 ? kva_slice_operand(p, n, i, (uint32_t)axis) : kva_shared_operand(p, n, i);
  }
  if (w->axis != KVA_WHOLE && !kva_divides(p, y->dims[w->axis], &each)) {
    kva_refuse_partition(p, n, w->operand, "has a result whose axis %d they do not divide", w->axis);
    return;
  }
  kva_node *own =
      kva_build_node(p->b, (kva_op_id)n->op->id, n->n_operands, in, n->n_results, attrs_of_slice(d, n, w->axis, each));
  for (uint32_t r = 0; r < n->n_results && !p->b->failed; r++) {
    kva_value *v = kva_result(own, r);
    if (v->type != slice_type(p->b->m, n->results[r].type, w->axis, each))
      kva_refuse_partition(p, n, w->operand, "makes no slices of slices");
    p->results[r] = w->axis == KVA_WHOLE ? kva_sum_over_processes(p, v) : v;
    p->axes[r] = w->axis;
  }
}

/* ---- a function -------------------------------------------------------------------------------------------------- */

/* The one parameter that the slices which n reads come from. */
static const kva_state *origin_of(const kva_partition *p, const kva_node *n) {
  const kva_state *s = NULL;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (kva_split_axis(p, n, i) == KVA_WHOLE) continue;
    const kva_state *found = kva_partitioned_operand(p, n, i)->origin;
    if (found) s = found;
  }
  return s;
}

static bool reads_slices(const kva_partition *p, const kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_split_axis(p, n, i) != KVA_WHOLE) return true;
  return false;
}

static void keep(divider *d, kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = kva_whole_operand(&d->p, n, i);
    if (v != kva_operand(n, i)) kva_node_set_operand(n, i, v);
  }
  for (uint32_t r = 0; r < n->n_results; r++) d->p.of[n->results[r].id] = (kva_partitioned){.whole = &n->results[r]};
}

static void replace(divider *d, kva_node *n, const kva_state *origin) {
  kva_partition *p = &d->p;
  for (uint32_t r = 0; r < n->n_results && !p->b->failed; r++) {
    bool split = p->axes[r] != KVA_WHOLE;
    kva_value *v = p->results[r];
    KVA_ASSERT(v || !n->results[r].uses);
    if (v) v->name = n->results[r].name;
    p->of[n->results[r].id] = split ? (kva_partitioned){.slice = v, .axis = p->axes[r], .split = true, .origin = origin}
                                    : (kva_partitioned){.whole = v};
  }
  d->replaced[d->n_replaced++] = n;
}

/* A parameter that is a slice already. */
static bool read_slice(divider *d, kva_node *n) {
  if (!kva_is(n, KVA_OP_state_read) || d->sequences) return false;
  const kva_state *s = ((const kva_state_read_attrs *)n->attrs)->state;
  if (n->results[0].type == s->type) return false;
  d->p.results[0] = kva_build(d->p.b, KVA_OP_state_read, 0, NULL, n->attrs);
  d->p.axes[0] = (int)s->split_axis;
  replace(d, n, s);
  return true;
}

static void divide_node(divider *d, kva_node *n) {
  kva_partition *p = &d->p;
  p->b->before = n;
  p->b->loc = n->loc;
  if (read_slice(d, n)) return;
  if (!reads_slices(p, n)) {
    keep(d, n);
    return;
  }
  p->results = KVA_NEW_ARRAY(d->scratch, kva_value *, n->n_results + 1);
  p->axes = KVA_NEW_ARRAY(d->scratch, int, n->n_results + 1);
  bool done = n->op->partition && n->op->partition(p, n);
  way w = done || p->b->failed ? (way){.gathered = -1} : best_way(p, n);
  if (w.gathered >= 0) divide_by_axes(d, n, &w);
  if (done || w.gathered >= 0)
    replace(d, n, origin_of(p, n));
  else
    keep(d, n);
}

static kva_status check_nodes(kva_module *m, const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next)
    if (n->n_graphs)
      return kva_error(m->diag, &n->loc, "kv.%s: processes cannot divide models with branches and loops; use data=N",
                       n->op->name);
  return KVA_OK;
}

/* The inputs whose axis 1 is that of the first one with two axes. */
static kva_status slice_inputs(divider *d, kva_module *m, const kva_graph *g) {
  kva_dim rows = NULL, each;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    kva_value *x = g->inputs.data[i];
    if (x->type->rank < 2 || (rows && x->type->dims[1] != rows)) continue;
    rows = x->type->dims[1];
    if (!kva_divides(&d->p, rows, &each)) {
      kva_text extent = {0};
      kva_expr_print(rows, &extent);
      kva_error(m->diag, NULL, "sequence=%lld: axis 1 of input '%s' is %s: expected a number that %lld divides (--pin)",
                (long long)d->p.parts, x->name ? x->name : "", extent.data, (long long)d->p.parts);
      kva_text_free(&extent);
      return KVA_INVALID;
    }
    d->p.of[x->id].slice = kva_cut_slice(&d->p, x, 1);
    d->p.of[x->id].axis = 1;
    d->p.of[x->id].split = true;
  }
  if (rows) return KVA_OK;
  return kva_error(m->diag, NULL, "sequence=%lld: no input has sequences along an axis 1", (long long)d->p.parts);
}

static kva_status divide_graph(divider *d, kva_module *m, kva_graph *g) {
  uint32_t n_nodes = 0;
  KVA_TRY(check_nodes(m, g));
  for (const kva_node *n = g->first; n; n = n->next) n_nodes++;
  d->replaced = KVA_NEW_ARRAY(d->scratch, kva_node *, n_nodes + 1);
  d->n_replaced = 0;
  d->b = kva_builder_before(m, g->first);
  d->p.b = &d->b;
  d->p.index = NULL;
  d->p.of = KVA_NEW_ARRAY(d->scratch, kva_partitioned, m->next_value_id + 1);
  d->p.results = KVA_NEW_ARRAY(d->scratch, kva_value *, 1);
  d->p.axes = KVA_NEW_ARRAY(d->scratch, int, 1);
  for (uint32_t i = 0; i < g->inputs.len; i++)
    d->p.of[g->inputs.data[i]->id] = (kva_partitioned){.whole = g->inputs.data[i]};
  kva_node *first = g->first;
  if (d->sequences) KVA_TRY(slice_inputs(d, m, g));
  for (kva_node *n = first, *next; n && !d->b.failed; n = next) {
    next = n->next;
    divide_node(d, n);
  }
  if (d->b.failed) return KVA_INVALID;
  while (d->n_replaced) kva_node_remove(d->replaced[--d->n_replaced]);
  return KVA_OK;
}

static kva_status divide(kva_module *m, int64_t parts, int64_t stride, bool sequences) {
  kva_status status = KVA_OK;
  for (uint32_t i = 0; status == KVA_OK && i < m->functions.len; i++) {
    divider d = {.p = {.parts = parts, .stride = stride}, .scratch = kva_arena_create(), .sequences = sequences};
    status = divide_graph(&d, m, m->functions.data[i]->graph);
    kva_arena_destroy(d.scratch);
  }
  return status;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static kva_status make_slice(kva_module *m, kva_state *s, int64_t parts) {
  uint32_t axis = s->split == KVA_SPLIT_ROWS || !s->type->rank ? 0 : s->type->rank - 1;
  int64_t extent = 0;
  kva_dim dims[KVA_MAX_RANK];
  bool fits = s->type->rank && kva_expr_is_const(s->type->dims[axis], &extent) && extent && extent % parts == 0;
  if (!fits)
    return kva_error(m->diag, &s->loc,
                     "parameter '%s' cannot be divided among %lld processes (tensor=%lld): axis %u "
                     "has %lld elements",
                     s->name, (long long)parts, (long long)parts, axis, (long long)extent);
  memcpy(dims, s->type->dims, sizeof *dims * s->type->rank);
  dims[axis] = kva_expr_const(m->exprs, extent / parts);
  s->full = s->type;
  s->slices = parts;
  s->split_axis = axis;
  s->type = kva_type_tensor(m, s->full->dtype, s->full->rank, dims);
  return KVA_OK;
}

static bool is_divided(const kva_state *s) {
  return s->kind == KVA_STATE_PARAM && s->split != KVA_SPLIT_NONE;
}

static kva_status make_slices(kva_module *m, int64_t parts) {
  bool any = false;
  for (uint32_t i = 0; i < m->states.len; i++) {
    kva_state *s = m->states.data[i];
    if (s->of && s->of->split != s->split)
      return kva_error(m->diag, &s->loc,
                       "state '%s' begins as a function of '%s', so both are divided alike (split_rows, "
                       "split_columns) or neither is",
                       s->name, s->of->name);
    if (!is_divided(s)) continue;
    KVA_TRY(make_slice(m, s, parts));
    any = true;
  }
  if (any) return KVA_OK;
  return kva_error(m->diag, NULL,
                   "tensor=%lld: no parameter of '%s' says how processes divide it (split_rows, split_columns)",
                   (long long)parts, m->name ? m->name : "the model");
}

kva_status kva_partition_functions(kva_module *m, const kva_pass_options *options, bool *changed) {
  const kva_mesh *mesh = &options->mesh;
  if (mesh->tensor > 1) {
    KVA_TRY(make_slices(m, mesh->tensor));
    KVA_TRY(divide(m, mesh->tensor, 1, false));
    *changed = true;
  }
  if (mesh->sequence > 1) {
    KVA_TRY(divide(m, mesh->sequence, kva_mesh_extent(mesh->tensor), true));
    *changed = true;
  }
  return KVA_OK;
}

void kva_drop_shares(kva_module *m) {
  for (uint32_t i = 0; i < m->functions.len; i++)
    for (kva_node *n = m->functions.data[i]->graph->first, *next; n; n = next) {
      next = n->next;
      if (!kva_is(n, KVA_OP_share)) continue;
      kva_value_replace_all_uses(&n->results[0], kva_operand(n, 0));
      kva_node_remove(n);
    }
}
