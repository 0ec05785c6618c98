/* Batches: a run of nodes that computes each item of a batch apart becomes a loop over the items.
 *
 * What: the items of a batch lie along axis 0 of a function's first input. Nodes n1 .. nk that stand together become
 *
 *   loop i of N:  n1 .. nk for a batch of one, x = gather(x of the batch, [i]);  their results are its rows
 *
 * where operands that are the same for all items, weights, are read whole. A layer of an image takes little work for a
 * byte, and a layer's tensors for the whole batch leave the caches before the next one reads them; those of an item do
 * not. Temporaries take less memory, too. Each item costs the loop's copies, the weights anew, and what kernels lose
 * that have the rows of one item.
 *
 * Algorithm: kva_op_info.source_axis proves node by node that index i of axis 0 reads index i. Of all runs of such
 * nodes the one is taken that saves most in a model of traffic; then what is left is searched again. Nodes between them
 * that read no item, as constants are, stay before the loop; what kernels read in place (filters in panels, scalars) is
 * copied into it. Values do not change, but for sums that a kernel adds up in another order where it has few rows. The
 * shapes and the cache's size decide, not the number of threads, so bits do not depend on that.
 *
 * Requires: known extents but for the number of items; a CPU; a function that writes no state, so that it does not
 * train. Breaks: nothing. */
#include "ops/incremental.h"
#include "passes/passes_internal.h"

/* Bytes that take as long as what a step loses where it has the rows of one item: partial tiles, and threads wait;
 * operations of a byte of operands and results from which on a kernel does not wait for memory; second caches of which
 * tensors of an item may fill so many and still be near. Estimates, by times of `kvasir profile` for one image and for
 * eight. */
enum { BYTES_OF_STEP = 512 * 1024, OPERATIONS_OF_BYTE = 64, NEAR_CACHES = 16 };
enum { MANY = 8 }; /* items, where only a run knows how many */

/* gain: what a node costs less in a loop, in bytes of traffic; ahead: what it and those after it can gain at most. */
typedef struct place {
  kva_node *node;
  bool is_item;
  double gain, ahead;
} place;

typedef struct batch {
  kva_module *m;
  kva_graph *graph;
  kva_arena *scratch;
  kva_dim extent;
  double items, cache;
  uint32_t n;
  place *places;
  uint32_t *at;       /* places of nodes, by id */
  uint32_t *last_use; /* places of the last readers, by value id */
  uint32_t *entered;  /* by value id: 1 + where the last run began that it crosses into */
} batch;

typedef struct range {
  uint32_t first, end; /* places */
  double gain;
} range;

/* ---- which nodes ------------------------------------------------------------------------------------------------- */

/* Items begin at whole bytes. */
static bool has_items(const batch *b, const kva_value *v) {
  const kva_type *t = v->type;
  return t->kind == KVA_TYPE_TENSOR && t->rank && t->dims[0] == b->extent && kva_dtype_bits(t->dtype) % 8 == 0;
}

static double bytes_of(const batch *b, const kva_value *v) {
  const kva_type *t = v->type;
  bool counts_items = has_items(b, v);
  int64_t n = 1, bytes = 0;
  for (uint32_t d = counts_items; d < t->rank; d++) n *= kva_type_extent(t, d);
  return kva_dtype_bytes(t->dtype, n, &bytes) ? (double)bytes * (counts_items ? b->items : 1) : 0;
}

static bool is_known(const batch *b, const kva_value *v) {
  return v->type->kind == KVA_TYPE_TENSOR && kva_type_is_static_from(v->type, has_items(b, v));
}

/* Item i of n's result reads item i of at least one operand, and of no operand other items. */
static bool is_item(const batch *b, const kva_node *n) {
  bool reads = false;
  if (!kva_node_is_pure(n) || !kva_op_has_code(n->op) || !n->n_results) return false;
  if (!is_known(b, &n->results[0]) || !has_items(b, &n->results[0])) return false;
  for (uint32_t r = 1; r < n->n_results; r++)
    if (n->results[r].uses) return false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    int axis = v ? kva_source_axis(n, i, 0) : KVA_SAME_FOR_ALL;
    if (axis == KVA_SAME_FOR_ALL && (!v || is_known(b, v))) continue;
    if (axis != 0 || !is_known(b, v) || !has_items(b, v)) return false;
    reads = true;
  }
  return reads;
}

static bool reads_items(const kva_node *n, uint32_t operand) {
  return kva_operand(n, operand) && kva_source_axis(n, operand, 0) == 0;
}

/* It has no traffic of its own: it reads what it follows from registers, or is another view of it. */
static bool is_fused(const kva_node *n) {
  return (n->op->traits & (KVA_ELEMENTWISE | KVA_VIEW)) != 0;
}

/* The only symbol of what is known. */
static bool items_of_batch(void *user, const kva_expr *symbol, int64_t *out_extent) {
  (void)symbol;
  *out_extent = (int64_t)((const batch *)user)->items;
  return true;
}

static double gain_of(const batch *b, const kva_node *n) {
  const kva_sizes sizes = {b->m, items_of_batch, (void *)(uintptr_t)b};
  double items = bytes_of(b, &n->results[0]), whole = 0;
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i)) *(reads_items(n, i) ? &items : &whole) += bytes_of(b, kva_operand(n, i));
  if (n->op->traits & KVA_VIEW) return 0;
  if (is_fused(n)) return 1; /* rather with what it follows */
  bool far = items > b->cache && items / b->items < NEAR_CACHES * b->cache;
  bool waits = kva_node_flops(n, &sizes) < OPERATIONS_OF_BYTE * items;
  return (far && waits ? items : 0) - (b->items - 1) * (whole + BYTES_OF_STEP);
}

static void find_places(batch *b) {
  uint32_t n = 0;
  for (const kva_node *k = b->graph->first; k; k = k->next) n++;
  b->places = KVA_NEW_ARRAY(b->scratch, place, n + 1);
  b->n = 0;
  for (kva_node *k = b->graph->first; k; k = k->next) {
    place *p = &b->places[b->n];
    *p = (place){.node = k, .is_item = is_item(b, k)};
    if (p->is_item) p->gain = gain_of(b, k);
    for (uint32_t i = 0; i < k->n_operands; i++)
      if (kva_operand(k, i)) b->last_use[kva_operand(k, i)->id] = b->n;
    b->at[k->id] = b->n++;
  }
  for (uint32_t k = b->n; k-- > 0;)
    b->places[k].ahead = b->places[k + 1].ahead + (b->places[k].gain > 0 ? b->places[k].gain : 0);
}

/* ---- which run --------------------------------------------------------------------------------------------------- */

/* v is made by an item's node at or after this place. */
static bool is_inside(const batch *b, uint32_t first, const kva_value *v) {
  return v->def && b->at[v->def->id] >= first && b->places[b->at[v->def->id]].is_item;
}

/* A run that begins at `first` goes on with this place. */
static bool goes_on(const batch *b, uint32_t first, const place *p) {
  for (uint32_t i = 0; i < p->node->n_operands; i++) {
    const kva_value *v = kva_operand(p->node, i);
    if (v && is_inside(b, first, v) && !(p->is_item && reads_items(p->node, i))) return false;
  }
  return true;
}

/* Its kernel stores it in the order of a transposition that follows, as convolutions with channels last have them. */
static bool is_transposed(const kva_value *v) {
  bool only = v->def && !is_fused(v->def) && v->uses;
  for (const kva_use *u = v->uses; u && only; u = u->next) only = kva_is(u->user, KVA_OP_transpose);
  return only;
}

/* Each byte that crosses is copied: read and written. A crossing value has its own order in memory. */
static double price(const batch *b, const kva_value *v) {
  return bytes_of(b, v) * (is_transposed(v) ? 6 : 2);
}

/* An operand before it is the same. */
static bool is_again(const kva_node *n, uint32_t operand) {
  bool again = false;
  for (uint32_t i = 0; i < operand; i++) again |= kva_operand(n, i) == kva_operand(n, operand);
  return again;
}

/* What crosses more into a run that begins at `first` and out of it once place k belongs to it. */
static double crossing(batch *b, uint32_t first, uint32_t k) {
  const kva_node *n = b->places[k].node;
  double cost = b->last_use[n->results[0].id] > k ? price(b, &n->results[0]) : 0;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (!reads_items(n, i) || is_again(n, i)) continue;
    bool inside = is_inside(b, first, v);
    if (inside && b->last_use[v->id] == k) cost -= price(b, v);
    if (!inside && b->entered[v->id] != first + 1) cost += price(b, v);
    b->entered[v->id] = first + 1;
  }
  return cost;
}

/* Among runs of equal gain the one that begins and ends first is taken. */
static void try_runs_from(batch *b, uint32_t first, range *best) {
  double gain = 0, crosses = 0;
  for (uint32_t k = first; k < b->n && goes_on(b, first, &b->places[k]); k++) {
    if (gain + b->places[k].ahead <= best->gain) return;
    if (!b->places[k].is_item) continue;
    gain += b->places[k].gain;
    crosses += crossing(b, first, k);
    if (gain - crosses > best->gain) *best = (range){first, k + 1, gain - crosses};
  }
}

static range best_run(batch *b) {
  range best = {0};
  memset(b->entered, 0, b->m->next_value_id * sizeof *b->entered);
  for (uint32_t first = 0; first < b->n; first++)
    if (b->places[first].is_item) try_runs_from(b, first, &best);
  return best;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

typedef KVA_VEC(kva_value *) value_list;

/* A loop that is being made. Arrays by value id. */
typedef struct item_loop {
  const batch *b;
  const range *run;
  kva_builder body;
  kva_value *index;          /* [1] */
  kva_value **whole, **item; /* in the body: v, and item i of v */
  value_list inputs;         /* of the loop, which the body's inputs after the counter are */
  value_list rows;           /* that become results */
} item_loop;

/* A weight, as it lies in memory or as a kernel reads it: unpacked, widened, from panels. */
static bool is_weight(const kva_value *v) {
  const kva_node *n = v->def;
  if (!n) return false;
  if (kva_is(n, KVA_OP_constant) || n->op->traits & KVA_READS_STATE) return true;
  bool made = kva_node_is_pure(n) && n->op->traits & KVA_CHEAP && n->n_results == 1 && n->n_operands > 0;
  for (uint32_t i = 0; i < n->n_operands && made; i++) made = !kva_operand(n, i) || is_weight(kva_operand(n, i));
  return made;
}

static kva_value *whole_of(item_loop *l, kva_value *v);

static kva_value *copy_in(item_loop *l, const kva_node *n) {
  kva_value **in = KVA_NEW_ARRAY(l->b->scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) in[i] = kva_operand(n, i) ? whole_of(l, kva_operand(n, i)) : NULL;
  kva_node *copy = kva_node_create(l->body.graph, NULL, n->op, n->n_operands, in, 1, n->attrs, n->loc);
  copy->results[0].type = n->results[0].type;
  copy->results[0].name = n->results[0].name;
  return &copy->results[0];
}

static kva_value *input_of(item_loop *l, kva_value *v) {
  KVA_PUSH(l->b->scratch, &l->inputs, v);
  return kva_graph_add_input(l->body.graph, v->type, v->name);
}

/* Kernels read weights in place, so what unpacks them is copied into the loop. */
static kva_value *whole_of(item_loop *l, kva_value *v) {
  bool copied = is_weight(v) && !(v->def->op->traits & KVA_READS_STATE);
  if (!l->whole[v->id]) l->whole[v->id] = copied ? copy_in(l, v->def) : input_of(l, v);
  return l->whole[v->id];
}

static kva_value *item_of(item_loop *l, kva_value *v) {
  if (l->item[v->id]) return l->item[v->id];
  if (!l->whole[v->id]) l->whole[v->id] = input_of(l, v);
  return l->item[v->id] = kva_build2(&l->body, KVA_OP_gather, l->whole[v->id], l->index);
}

static const kva_type *item_type(const batch *b, const kva_type *t) {
  kva_dim dims[KVA_MAX_RANK];
  memcpy(dims, t->dims, sizeof *dims * t->rank);
  dims[0] = kva_expr_const(b->m->exprs, 1);
  return kva_type_tensor(b->m, t->dtype, t->rank, dims);
}

static kva_status add_item(item_loop *l, kva_node *n) {
  kva_value **in = KVA_NEW_ARRAY(l->b->scratch, kva_value *, n->n_operands + 1), *result = &n->results[0];
  l->body.loc = n->loc;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = kva_operand(n, i);
    in[i] = !v ? NULL : reads_items(n, i) ? item_of(l, v) : whole_of(l, v);
  }
  const void *attrs = kva_resized_shape(l->b->scratch, n, 0, kva_expr_const(l->b->m->exprs, 1));
  kva_value *item = kva_build(&l->body, (kva_op_id)n->op->id, n->n_operands, in, attrs);
  if (l->body.failed || item->type != item_type(l->b, result->type))
    return kva_error(l->b->m->diag, &n->loc, "kv.%s: an item of its result has another type in a loop over the batch",
                     n->op->name);
  item->name = result->name;
  l->item[result->id] = item;
  if (l->b->last_use[result->id] >= l->run->end) KVA_PUSH(l->b->scratch, &l->rows, result);
  return KVA_OK;
}

static kva_status fill_body(item_loop *l, const kva_loc *loc) {
  kva_module *m = l->b->m;
  kva_value *counter = kva_graph_add_input(l->body.graph, kva_type_scalar(m, KVA_I64), "item");
  kva_dim one = kva_expr_const(m->exprs, 1);
  l->index = kva_reshape(&l->body, counter, 1, &one);
  for (uint32_t k = l->run->first; k < l->run->end; k++)
    if (l->b->places[k].is_item) KVA_TRY(add_item(l, l->b->places[k].node));
  l->body.loc = *loc;
  kva_value **out = KVA_NEW_ARRAY(l->b->scratch, kva_value *, l->rows.len + 1);
  out[0] = kva_const_scalar(&l->body, KVA_BOOL, 1);
  for (uint32_t i = 0; i < l->rows.len; i++) {
    const kva_type *t = l->rows.data[i]->type;
    out[1 + i] = kva_reshape(&l->body, l->item[l->rows.data[i]->id], t->rank - 1, t->dims + 1);
  }
  kva_node_create(l->body.graph, NULL, KVA_OP(return ), 1 + l->rows.len, out, 0, NULL, *loc);
  return KVA_OK;
}

static kva_node *add_loop(item_loop *l, kva_node *before, kva_loc loc) {
  kva_builder b = kva_builder_before(l->b->m, before);
  kva_loop_attrs *attrs = KVA_NEW(b.m->arena, kva_loop_attrs);
  attrs->trips = l->b->extent;
  uint32_t n = l->inputs.len;
  kva_value **in = KVA_NEW_ARRAY(l->b->scratch, kva_value *, n + 2);
  in[0] = kva_dim_scalar(&b, KVA_I64, l->b->extent);
  if (n) memcpy(in + 2, l->inputs.data, n * sizeof *in);
  kva_node *loop = kva_node_create(b.graph, before, KVA_OP(loop), n + 2, in, l->rows.len, attrs, loc);
  kva_node_add_graph(loop, l->body.graph);
  for (uint32_t i = 0; i < l->rows.len; i++) {
    loop->results[i].type = l->rows.data[i]->type;
    loop->results[i].name = l->rows.data[i]->name;
    kva_value_replace_all_uses(l->rows.data[i], &loop->results[i]);
  }
  return loop;
}

static kva_status make_loop(const batch *b, const range *run) {
  uint32_t values = b->m->next_value_id;
  kva_loc loc = b->places[run->first].node->loc;
  item_loop l = {.b = b, .run = run, .body = {.m = b->m, .graph = kva_graph_create(b->m, NULL), .loc = loc}};
  l.whole = KVA_NEW_ARRAY(b->scratch, kva_value *, values);
  l.item = KVA_NEW_ARRAY(b->scratch, kva_value *, values);
  KVA_TRY(fill_body(&l, &loc));
  add_loop(&l, b->places[run->end].node, loc);
  for (uint32_t k = run->end; k-- > run->first;)
    if (b->places[k].is_item) kva_node_remove(b->places[k].node);
  return KVA_OK;
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

/* The items of the first input; NULL: it has one, or no axis of them. */
static kva_dim batch_of(const kva_graph *g) {
  const kva_type *t = g->inputs.len ? g->inputs.data[0]->type : NULL;
  bool has_axis = t && t->kind == KVA_TYPE_TENSOR && t->rank;
  int64_t n;
  return has_axis && !(kva_expr_is_const(t->dims[0], &n) && n < 2) ? t->dims[0] : NULL;
}

static bool writes_state(const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next)
    if (n->op->traits & KVA_WRITES_STATE) return true;
  return false;
}

static kva_status loop_over_items(kva_module *m, kva_graph *g, int64_t cache, bool *changed) {
  batch b = {.m = m, .graph = g, .extent = batch_of(g), .cache = (double)cache, .scratch = kva_arena_create()};
  kva_status status = KVA_OK;
  range run = {.gain = 1};
  int64_t n = MANY;
  kva_expr_is_const(b.extent, &n);
  b.items = (double)n;
  while (status == KVA_OK && run.gain > 0) {
    b.at = KVA_NEW_ARRAY(b.scratch, uint32_t, m->next_node_id);
    b.last_use = KVA_NEW_ARRAY(b.scratch, uint32_t, m->next_value_id);
    b.entered = KVA_NEW_ARRAY(b.scratch, uint32_t, m->next_value_id);
    find_places(&b);
    run = best_run(&b);
    if (run.gain <= 0) break;
    status = make_loop(&b, &run);
    *changed = true;
  }
  if (*changed) kva_remove_dead(g, changed);
  kva_arena_destroy(b.scratch);
  return status;
}

kva_status kva_opt_batch(kva_module *m, const kva_pass_options *o, bool *changed) {
  if (!o->target || kva_for_gpu(o)) return KVA_OK;
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_graph *g = m->functions.data[i]->graph;
    if (batch_of(g) && !writes_state(g)) KVA_TRY(loop_over_items(m, g, o->target->l2_bytes, changed));
  }
  return KVA_OK;
}
