/* Rules with data-dependent result extents: NonZero, Compress, Unique, NonMaxSuppression. A count computed by the graph
 * is bound to a new symbol (kv.bind), which is the extent of what follows. */
#include "frontend/onnx_region.h"
#include "ops/ids.h"

#include <math.h>

/* ---- positions of selected elements ------------------------------------------------------------------------------ */

/* A selection from n elements: which are kept, and the destination of each. */
typedef struct kept {
  kva_value *flag;  /* bool[n] */
  kva_value *place; /* int64[n]: index among the kept elements; undefined for the others */
  kva_dim count;
} kept;

static kva_value *one(kva_builder *b) {
  return kva_const_scalar(b, KVA_I64, 1);
}

/* The sum of v, int64[n], as a symbol with upper bound n. */
static kva_dim bind_sum(kva_builder *b, kva_value *v, const char *name) {
  int64_t axis = 0;
  kva_dim *symbol = KVA_NEW(b->m->arena, kva_dim);
  *symbol = kva_expr_new_symbol(b->m->exprs, name);
  kva_value *sum = kva_reduce(b, KVA_OP_reduce_sum, v, 1, &axis, false);
  kva_bind_attrs attrs = {.symbol = {1, symbol}, .bound = v->type->dims[0]};
  (void)kva_build_node(b, KVA_OP_bind, 1, &sum, 0, &attrs);
  return *symbol;
}

static kva_value *places(kva_builder *b, kva_value *flag) {
  kva_value *ones = kva_cast(b, flag, KVA_I64);
  return kva_build(b, KVA_OP_cumsum, 1, &ones, &(kva_cumsum_attrs){.axis = 0, .exclusive = true});
}

static kept keep(kva_builder *b, kva_value *flag, const char *name) {
  return (kept){flag, places(b, flag), bind_sum(b, kva_cast(b, flag, KVA_I64), name)};
}

/* int64[count]: the indices of kept elements, scattered to their places. All others go to one extra element, which is
 * sliced off. */
static kva_value *numbers_kept(kva_builder *b, const kept *k) {
  kva_expr_ctx *e = b->m->exprs;
  kva_dim n = k->flag->type->dims[0], more = kva_expr_addi(e, k->count, 1);
  kva_value *zeros = kva_zeros(b, kva_type_tensor(b->m, KVA_I64, 1, &more));
  kva_value *to = kva_onnx_where(b, k->flag, k->place, kva_dim_scalar(b, KVA_I64, k->count));
  kva_value *in[] = {zeros, to, kva_onnx_iota(b, KVA_I64, 1, &n, 0)};
  kva_value *y = kva_build(b, KVA_OP_scatter_elements, 3, in, &(kva_scatter_elements_attrs){.axis = 0});
  return kva_onnx_slice(b, y, 0, kva_expr_const(e, 0), k->count);
}

static kva_value *flatten(kva_builder *b, kva_value *x) {
  kva_dim n = kva_type_elements(b->m, x->type);
  return kva_reshape(b, x, 1, &n);
}

static kva_value *is_not_zero(kva_builder *b, kva_value *x) {
  if (x->type->dtype == KVA_BOOL) return x;
  return kva_build1(b, KVA_OP_logical_not, kva_build2(b, KVA_OP_equal, x, kva_scalar_like(b, x, 0)));
}

/* ---- nonzero ----------------------------------------------------------------------------------------------------- */

/* Coordinate `axis` of elements given by their row-major indices. */
static kva_value *coordinate(kva_builder *b, kva_value *number, const kva_type *t, uint32_t axis) {
  kva_dim inner = kva_onnx_product(b, t->dims, axis + 1, t->rank);
  kva_value *v = kva_div(b, number, kva_dim_scalar(b, KVA_I64, inner));
  return axis ? kva_build2(b, KVA_OP_mod, v, kva_dim_scalar(b, KVA_I64, t->dims[axis])) : v;
}

/* int64[rank, count]; of a scalar int64[0, count]. */
kva_status kva_onnx_nonzero(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *rows[KVA_MAX_RANK];
  kept nonzero = keep(b, is_not_zero(b, flatten(b, x)), "nonzero");
  kva_value *numbers = numbers_kept(b, &nonzero);
  if (b->failed) return KVA_INVALID;
  kva_dim none[2] = {kva_expr_const(kva_onnx_exprs(k), 0), nonzero.count};
  if (!x->type->rank) return kva_onnx_done(k, kva_zeros(b, kva_type_tensor(b->m, KVA_I64, 2, none)));
  for (uint32_t i = 0; i < x->type->rank; i++)
    rows[i] = kva_onnx_unsqueeze(b, coordinate(b, numbers, x->type, i), 0, 1);
  if (x->type->rank == 1) return kva_onnx_done(k, rows[0]);
  return kva_onnx_done(k, kva_build(b, KVA_OP_concat, x->type->rank, rows, &(kva_concat_attrs){.axis = 0}));
}

kva_value *kva_onnx_select(kva_builder *b, kva_value *x, kva_value *flag, uint32_t axis, const char *name) {
  kept selected = keep(b, flag, name);
  return kva_onnx_gather(b, x, numbers_kept(b, &selected), axis);
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */

/* The condition may be shorter than the axis: elements beyond its end are dropped. */
kva_status kva_onnx_compress(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *condition = kva_onnx_in(k, 1);
  uint32_t axis = 0;
  if (condition->type->rank != 1 || condition->type->dtype != KVA_BOOL)
    return kva_onnx_fail(k, KVA_INVALID, "the condition is not a bool vector");
  if (kva_onnx_find_attr(k, "axis"))
    KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), x->type->rank, &axis));
  else
    x = flatten(b, x);
  return kva_onnx_done(k, kva_onnx_select(b, x, condition, axis, "selected"));
}

/* ---- unique ------------------------------------------------------------------------------------------------------ */

/* x[n, m]: n items of m elements each. NaNs are equal to each other and come last. */
typedef struct items {
  kva_value *x;
  kva_dim n, m;
} items;

/* Which items begin a class of equal ones, and of which class each is. */
typedef struct classes {
  kva_value *numbers; /* int64[count]: index of the first item of each class */
  kva_value *inverse; /* int64[n]: class of each item */
  kva_dim count;
} classes;

static kva_value *both_nan(kva_builder *b, kva_value *x, kva_value *y) {
  return kva_build2(b, KVA_OP_logical_and, kva_build1(b, KVA_OP_is_nan, x), kva_build1(b, KVA_OP_is_nan, y));
}

/* int32, 1 where items are equal; `axis` holds their elements. */
static kva_value *same_items(kva_builder *b, kva_value *x, kva_value *y, int64_t axis) {
  kva_value *same = kva_build2(b, KVA_OP_equal, x, y);
  if (kva_dtype_is_float(x->type->dtype)) same = kva_build2(b, KVA_OP_logical_or, same, both_nan(b, x, y));
  return kva_reduce(b, KVA_OP_reduce_min, kva_cast(b, same, KVA_I32), 1, &axis, false);
}

/* ---- by sorting: items of a few elements ------------------------------------------------------------------------- */

enum { MOST_SORTED_ELEMENTS = 16 };

/* int64[n]: the items in lexicographic order, equal ones in theirs: stable sorts by the last element, ..., the first.
 */
static kva_value *sorted_items(kva_builder *b, const items *t, int64_t m) {
  kva_expr_ctx *e = b->m->exprs;
  kva_value *order = NULL;
  for (int64_t i = m - 1; i >= 0; i--) {
    kva_value *column = kva_onnx_slice(b, t->x, 1, kva_expr_const(e, i), kva_expr_const(e, 1));
    column = kva_reshape(b, column, 1, &t->n);
    if (order) column = kva_onnx_gather(b, column, order, 0);
    kva_value *next = kva_build(b, KVA_OP_top_k, 1, &column, &(kva_top_k_attrs){.count = t->n, .smallest = true});
    order = order ? kva_onnx_gather(b, order, next, 0) : next;
  }
  return order;
}

/* Numbers the classes by the first item of each instead of by value. */
static void number_by_place(kva_builder *b, const items *t, classes *c) {
  kva_value *none = kva_zeros(b, kva_type_tensor(b->m, KVA_BOOL, 1, &t->n));
  kva_value *yes = kva_expand_like(b, kva_const_scalar(b, KVA_BOOL, 1), c->numbers->type);
  kva_value *first = kva_build(b, KVA_OP_scatter_elements, 3, (kva_value *[]){none, c->numbers, yes},
                               &(kva_scatter_elements_attrs){.axis = 0});
  kva_value *place = places(b, first);
  c->inverse = kva_onnx_gather(b, kva_onnx_gather(b, place, c->numbers, 0), c->inverse, 0);
  c->numbers = numbers_kept(b, &(kept){first, place, c->count});
}

/* In sorted order a class is a run of items. */
static classes classes_by_sorting(kva_builder *b, const items *t, int64_t m, bool sorted) {
  kva_value *order = sorted_items(b, t, m), *at = kva_onnx_iota(b, KVA_I64, 1, &t->n, 0);
  kva_value *x = kva_onnx_gather(b, t->x, order, 0);
  kva_value *before = kva_build2(b, KVA_OP_max, kva_sub(b, at, one(b)), kva_const_scalar(b, KVA_I64, 0));
  kva_value *same = same_items(b, x, kva_onnx_gather(b, x, before, 0), 1);
  kva_value *begins =
      kva_build2(b, KVA_OP_logical_or, kva_build2(b, KVA_OP_less, same, kva_const_scalar(b, KVA_I32, 1)),
                 kva_build2(b, KVA_OP_equal, at, kva_const_scalar(b, KVA_I64, 0)));
  kept run = keep(b, begins, "unique");
  kva_value *others = kva_cast(b, kva_build1(b, KVA_OP_logical_not, begins), KVA_I64);
  kva_value *in[] = {kva_zeros(b, order->type), order, kva_sub(b, run.place, others)};
  classes c = {.numbers = kva_onnx_gather(b, order, numbers_kept(b, &run), 0),
               .inverse = kva_build(b, KVA_OP_scatter_elements, 3, in, &(kva_scatter_elements_attrs){.axis = 0}),
               .count = run.count};
  if (!sorted) number_by_place(b, t, &c);
  return c;
}

/* ---- by comparing all pairs, n^2 m comparisons: items of many elements ------------------------------------------- */

/* [n, n, m]: item i along axis 0, item j along axis 1. */
static kva_value *first_items(kva_builder *b, const items *t) {
  return kva_onnx_unsqueeze(b, t->x, 1, 1);
}
static kva_value *second_items(kva_builder *b, const items *t) {
  return kva_onnx_unsqueeze(b, t->x, 0, 1);
}

/* int64[n]: index of the first item that equals item i. */
static kva_value *first_equal(kva_builder *b, const items *t) {
  kva_value *same = same_items(b, first_items(b, t), second_items(b, t), 2);
  return kva_build(b, KVA_OP_argmax, 1, &same, &(kva_argmax_attrs){.axis = 1, .keepdims = false});
}

/* int32: 1 where x comes before y. */
static kva_value *element_before(kva_builder *b, kva_value *x, kva_value *y) {
  kva_value *before = kva_build2(b, KVA_OP_less, x, y);
  if (kva_dtype_is_float(x->type->dtype)) {
    kva_value *number = kva_build1(b, KVA_OP_logical_not, kva_build1(b, KVA_OP_is_nan, x));
    before = kva_build2(b, KVA_OP_logical_or, before,
                        kva_build2(b, KVA_OP_logical_and, number, kva_build1(b, KVA_OP_is_nan, y)));
  }
  return kva_cast(b, before, KVA_I32);
}

/* int32[n, n]: 1 if item j precedes item i lexicographically, decided by the first element that differs. */
static kva_value *comes_before(kva_builder *b, const items *t) {
  kva_value *i = first_items(b, t), *j = second_items(b, t), *zero = kva_const_scalar(b, KVA_I32, 0);
  kva_value *order = kva_sub(b, element_before(b, j, i), element_before(b, i, j));
  kva_value *at = kva_build(b, KVA_OP_argmax, 1, (kva_value *[]){kva_build1(b, KVA_OP_abs, order)},
                            &(kva_argmax_attrs){.axis = 2, .keepdims = true});
  order = kva_build(b, KVA_OP_gather_elements, 2, (kva_value *[]){order, at}, &(kva_gather_elements_attrs){.axis = 2});
  return kva_cast(b, kva_build2(b, KVA_OP_less, zero, kva_reshape(b, order, 2, (kva_dim[]){t->n, t->n})), KVA_I32);
}

/* The place of each first item in sorted order: the number of first items that precede it. */
static kva_value *sorted_places(kva_builder *b, const items *t, kva_value *is_first) {
  int64_t axis = 1;
  kva_value *counts = kva_mul(b, comes_before(b, t), kva_onnx_unsqueeze(b, kva_cast(b, is_first, KVA_I32), 0, 1));
  return kva_cast(b, kva_reduce(b, KVA_OP_reduce_sum, counts, 1, &axis, false), KVA_I64);
}

static classes classes_by_pairs(kva_builder *b, const items *t, bool sorted) {
  kva_value *first = first_equal(b, t);
  kept unique = keep(b, kva_build2(b, KVA_OP_equal, first, kva_onnx_iota(b, KVA_I64, 1, &t->n, 0)), "unique");
  if (sorted) unique.place = sorted_places(b, t, unique.flag);
  return (classes){numbers_kept(b, &unique), kva_onnx_gather(b, unique.place, first, 0), unique.count};
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

/* int64[count]: number of items per place. */
static kva_value *counts_of(kva_builder *b, kva_value *inverse, kva_dim count) {
  kva_value *zeros = kva_zeros(b, kva_type_tensor(b->m, KVA_I64, 1, &count));
  kva_value *in[] = {zeros, inverse, kva_expand_like(b, one(b), inverse->type)};
  return kva_build(b, KVA_OP_scatter_elements, 3, in, &(kva_scatter_elements_attrs){.axis = 0, .reduction = "add"});
}

/* Reads the elements, or, with an axis, the slices along it. */
static kva_status read_items(kva_onnx_call *k, items *t, kva_value **out_x, uint32_t *out_axis) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  int64_t perm[KVA_MAX_RANK];
  *out_axis = 0;
  if (kva_onnx_find_attr(k, "axis"))
    KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), x->type->rank, out_axis));
  else
    x = flatten(b, x);
  *out_x = x;
  for (uint32_t i = 0; i < x->type->rank; i++) perm[i] = i == 0 ? *out_axis : i <= *out_axis ? i - 1 : i;
  kva_value *rows = kva_onnx_flatten_2d(b, kva_transpose(b, x, perm), 1);
  if (x->type->dtype == KVA_BOOL) rows = kva_cast(b, rows, KVA_U8);
  *t = (items){rows, rows->type->dims[0], rows->type->dims[1]};
  return b->failed ? KVA_INVALID : KVA_OK;
}

kva_status kva_onnx_unique(kva_onnx_call *k) {
  kva_builder *b = k->b;
  items t;
  kva_value *x;
  uint32_t axis;
  KVA_TRY(read_items(k, &t, &x, &axis));
  int64_t m;
  bool sorted = kva_onnx_int(k, "sorted", 1), few = kva_expr_is_const(t.m, &m) && m > 0 && m <= MOST_SORTED_ELEMENTS;
  classes c = few ? classes_by_sorting(b, &t, m, sorted) : classes_by_pairs(b, &t, sorted);
  if (b->failed) return KVA_INVALID;
  kva_onnx_set_out(k, 1, c.numbers);
  kva_onnx_set_out(k, 2, c.inverse);
  kva_onnx_set_out(k, 3, counts_of(b, c.inverse, c.count));
  return kva_onnx_done(k, kva_onnx_gather(b, x, c.numbers, axis));
}

/* ---- non-maximum suppression ------------------------------------------------------------------------------------- */

/* A loop takes the best remaining box of every class and image at once, and removes those that overlap it too much,
 * until nothing remains or a class has its number of boxes. */
typedef struct suppression {
  kva_value *low[2], *high[2]; /* edges, [B, 1, N] */
  kva_value *scores;           /* float[B, C, N]; -infinity: not a candidate */
  kva_value *overlap, *count;  /* scalars */
} suppression;

/* Column `at` of the boxes, [B, 1, N]. */
static kva_value *box_column(kva_builder *b, kva_value *boxes, int64_t at) {
  kva_expr_ctx *e = b->m->exprs;
  kva_value *v = kva_onnx_slice(b, boxes, 2, kva_expr_const(e, at), kva_expr_const(e, 1));
  return kva_reshape(b, v, 3, (kva_dim[]){kva_onnx_dim(boxes, 0), kva_expr_const(e, 1), kva_onnx_dim(boxes, 1)});
}

/* Corners in any order, or centre and size; y, x or x, y, which does not matter here. */
static void read_edges(kva_builder *b, kva_value *boxes, bool centred, suppression *s) {
  for (int i = 0; i < 2; i++) {
    kva_value *p = box_column(b, boxes, i), *q = box_column(b, boxes, i + 2);
    kva_value *half = centred ? kva_mul(b, q, kva_scalar_like(b, q, 0.5)) : NULL;
    s->low[i] = centred ? kva_sub(b, p, half) : kva_build2(b, KVA_OP_min, p, q);
    s->high[i] = centred ? kva_add(b, p, half) : kva_build2(b, KVA_OP_max, p, q);
  }
}

static kva_value *input_scalar(kva_onnx_call *k, uint32_t i, kva_dtype t) {
  kva_value *v = kva_onnx_in(k, i);
  return v ? kva_cast(k->b, kva_reshape(k->b, v, 0, NULL), t) : kva_const_scalar(k->b, t, 0);
}

static kva_status read_suppression(kva_onnx_call *k, suppression *s) {
  kva_builder *b = k->b;
  kva_value *boxes = kva_onnx_in(k, 0), *scores = kva_onnx_in(k, 1);
  if (boxes->type->rank == 3 && scores->type->rank == 3) {
    boxes = kva_onnx_with_extent(k, boxes, 2, kva_expr_const(kva_onnx_exprs(k), 4), "the corners of boxes");
    scores = kva_onnx_with_extent(k, scores, 0, kva_onnx_dim(boxes, 0), "the scores of boxes");
    scores = kva_onnx_with_extent(k, scores, 2, kva_onnx_dim(boxes, 1), "the scores of boxes");
  }
  if (boxes->type->rank != 3 || scores->type->rank != 3 || !kva_expr_is(kva_onnx_dim(boxes, 2), 4) ||
      kva_onnx_dim(boxes, 1) != kva_onnx_dim(scores, 2) || kva_onnx_dim(boxes, 0) != kva_onnx_dim(scores, 0))
    return kva_onnx_fail(k, KVA_INVALID, "expected boxes [B, N, 4] and scores [B, C, N]");
  read_edges(b, boxes, kva_onnx_int(k, "center_point_box", 0) != 0, s);
  s->count = input_scalar(k, 2, KVA_I64);
  s->overlap = input_scalar(k, 3, boxes->type->dtype);
  s->scores = scores;
  if (!kva_onnx_in(k, 4)) return KVA_OK;
  kva_value *candidate = kva_build2(b, KVA_OP_less, input_scalar(k, 4, scores->type->dtype), scores);
  s->scores = kva_onnx_where(b, candidate, scores, kva_scalar_like(b, scores, -(double)INFINITY));
  return KVA_OK;
}

/* Edge v of the chosen boxes, [B, C, 1]. */
static kva_value *chosen_edge(kva_builder *b, kva_value *v, kva_value *chosen, const kva_type *scores) {
  kva_value *in[2] = {kva_expand_like(b, v, kva_type_with_dtype(b->m, scores, v->type->dtype)), chosen};
  return kva_build(b, KVA_OP_gather_elements, 2, in, &(kva_gather_elements_attrs){.axis = 2});
}

/* bool[B, C, N]: intersection / union with the chosen box exceeds the limit. Boxes without area overlap nothing. */
static kva_value *overlaps(kva_builder *b, const suppression *s, kva_value *chosen, const kva_type *scores) {
  kva_value *common = NULL, *own = NULL, *other = NULL, *zero = kva_scalar_like(b, s->overlap, 0);
  for (int i = 0; i < 2; i++) {
    kva_value *low = chosen_edge(b, s->low[i], chosen, scores), *high = chosen_edge(b, s->high[i], chosen, scores);
    kva_value *width =
        kva_sub(b, kva_build2(b, KVA_OP_min, high, s->high[i]), kva_build2(b, KVA_OP_max, low, s->low[i]));
    width = kva_build2(b, KVA_OP_max, width, zero);
    common = common ? kva_mul(b, common, width) : width;
    kva_value *side = kva_sub(b, high, low), *other_side = kva_sub(b, s->high[i], s->low[i]);
    own = own ? kva_mul(b, own, side) : side;
    other = other ? kva_mul(b, other, other_side) : other_side;
  }
  kva_value *ratio = kva_div(b, common, kva_sub(b, kva_add(b, own, other), common));
  return kva_build2(b, KVA_OP_logical_and, kva_build2(b, KVA_OP_less, zero, common),
                    kva_build2(b, KVA_OP_less, s->overlap, ratio));
}

/* (i, scores) -> (anything found, remaining scores, chosen[B, C], found[B, C]) */
static void suppression_body(kva_onnx_call *k, const suppression *s, const kva_region *body) {
  kva_builder *b = k->b;
  (void)kva_graph_add_input(body->graph, kva_type_scalar(b->m, KVA_I64), NULL);
  kva_value *scores = kva_graph_add_input(body->graph, s->scores->type, NULL);
  kva_value *none = kva_scalar_like(b, scores, -(double)INFINITY);
  kva_value *chosen = kva_build(b, KVA_OP_argmax, 1, &scores, &(kva_argmax_attrs){.axis = 2, .keepdims = true});
  kva_value *best =
      kva_build(b, KVA_OP_gather_elements, 2, (kva_value *[]){scores, chosen}, &(kva_gather_elements_attrs){.axis = 2});
  kva_value *found = kva_build2(b, KVA_OP_less, none, best);
  kva_value *self = kva_build2(b, KVA_OP_equal, kva_onnx_ramp(b, KVA_I64, 3, 2, kva_onnx_dim(scores, 2)), chosen);
  kva_value *gone = kva_build2(b, KVA_OP_logical_or, self, overlaps(b, s, chosen, scores->type));
  if (b->failed) return;
  kva_dim rows[2] = {kva_onnx_dim(scores, 0), kva_onnx_dim(scores, 1)};
  kva_value *out[4] = {kva_reduce(b, KVA_OP_reduce_max, found, 0, NULL, false), kva_onnx_where(b, gone, none, scores),
                       kva_reshape(b, chosen, 2, rows), kva_reshape(b, found, 2, rows)};
  kva_region_close(k, body, 4, out);
}

/* Results: the remaining scores, chosen[n, B, C], found[n, B, C] for the n iterations. */
static kva_status suppress(kva_onnx_call *k, const suppression *s, kva_node **out) {
  kva_builder *b = k->b;
  kva_value *operands[3] = {s->count, kva_const_scalar(b, KVA_BOOL, 1), s->scores};
  kva_region body = kva_region_open(k);
  suppression_body(k, s, &body);
  if (b->failed) return kva_region_discard(k, &body), KVA_INVALID;
  kva_loop_attrs *attrs = kva_attrs_default(b->m->arena, KVA_OP(loop)->attrs);
  kva_dim *iterations = KVA_NEW(b->m->arena, kva_dim);
  *iterations = kva_expr_new_symbol(b->m->exprs, "iterations");
  attrs->carried = 1;
  attrs->binds = (kva_dims){1, iterations};
  *out = kva_region_node(k, KVA_OP_loop, 1, &body, 3, operands, 3, attrs);
  return kva_region_infer(k, *out);
}

/* int64[count, 3]: image, class and box of what was found, by image, class and score. */
kva_status kva_onnx_non_max_suppression(kva_onnx_call *k) {
  kva_builder *b = k->b;
  suppression s = {0};
  kva_node *loop = NULL;
  KVA_TRY(read_suppression(k, &s));
  if (b->failed) return KVA_INVALID;
  KVA_TRY(suppress(k, &s, &loop));
  kva_value *chosen = kva_transpose(b, kva_result(loop, 1), (int64_t[]){1, 2, 0}); /* [B, C, n] */
  kept found = keep(b, flatten(b, kva_transpose(b, kva_result(loop, 2), (int64_t[]){1, 2, 0})), "boxes");
  kva_value *numbers = numbers_kept(b, &found), *columns[3];
  if (b->failed) return KVA_INVALID;
  columns[0] = coordinate(b, numbers, chosen->type, 0), columns[1] = coordinate(b, numbers, chosen->type, 1);
  columns[2] = kva_onnx_gather(b, flatten(b, chosen), numbers, 0);
  for (int i = 0; i < 3; i++) columns[i] = kva_onnx_unsqueeze(b, columns[i], 1, 1);
  return kva_onnx_done(k, kva_build(b, KVA_OP_concat, 3, columns, &(kva_concat_attrs){.axis = 1}));
}
