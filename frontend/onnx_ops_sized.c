/* Rules with data-dependent result extents: NonZero, Compress, Unique. A count computed by the graph is bound to a new
 * symbol (kv.bind), which is the extent of what follows. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

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

static kept keep(kva_builder *b, kva_value *flag, const char *name) {
  kva_value *ones = kva_cast(b, flag, KVA_I64);
  kva_value *place = kva_build(b, KVA_OP_cumsum, 1, &ones, &(kva_cumsum_attrs){.axis = 0, .exclusive = true});
  return (kept){flag, place, bind_sum(b, ones, name)};
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
  kept selected = keep(b, condition, "selected");
  return kva_onnx_done(k, kva_onnx_gather(b, x, numbers_kept(b, &selected), axis));
}

/* ---- unique ------------------------------------------------------------------------------------------------------ */

/* items[n, m]: n items of m elements each, compared pairwise in n^2 m comparisons. */
typedef struct items {
  kva_value *x;
  kva_dim n, m;
} items;

/* [n, n, m]: item i along axis 0, item j along axis 1. */
static kva_value *first_items(kva_builder *b, const items *t) {
  return kva_onnx_unsqueeze(b, t->x, 1, 1);
}
static kva_value *second_items(kva_builder *b, const items *t) {
  return kva_onnx_unsqueeze(b, t->x, 0, 1);
}

/* int64[n]: index of the first item that equals item i. */
static kva_value *first_equal(kva_builder *b, const items *t) {
  int64_t last = 2;
  kva_value *same = kva_build2(b, KVA_OP_equal, first_items(b, t), second_items(b, t));
  same = kva_reduce(b, KVA_OP_reduce_min, kva_cast(b, same, KVA_I32), 1, &last, false);
  return kva_build(b, KVA_OP_argmax, 1, &same, &(kva_argmax_attrs){.axis = 1, .keepdims = false});
}

/* int32[n, n]: 1 if item j precedes item i lexicographically, decided by the first element that differs. */
static kva_value *comes_before(kva_builder *b, const items *t) {
  kva_value *i = first_items(b, t), *j = second_items(b, t), *zero = kva_const_scalar(b, KVA_I32, 0);
  kva_value *order = kva_sub(b, kva_cast(b, kva_build2(b, KVA_OP_less, j, i), KVA_I32),
                             kva_cast(b, kva_build2(b, KVA_OP_less, i, j), KVA_I32));
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
  *t = (items){rows, rows->type->dims[0], rows->type->dims[1]};
  return b->failed ? KVA_INVALID : KVA_OK;
}

kva_status kva_onnx_unique(kva_onnx_call *k) {
  kva_builder *b = k->b;
  items t;
  kva_value *x;
  uint32_t axis;
  KVA_TRY(read_items(k, &t, &x, &axis));
  kva_value *first = first_equal(b, &t);
  kept unique = keep(b, kva_build2(b, KVA_OP_equal, first, kva_onnx_iota(b, KVA_I64, 1, &t.n, 0)), "unique");
  if (kva_onnx_int(k, "sorted", 1)) unique.place = sorted_places(b, &t, unique.flag);
  kva_value *inverse = kva_onnx_gather(b, unique.place, first, 0), *numbers = numbers_kept(b, &unique);
  if (b->failed) return KVA_INVALID;
  kva_onnx_set_out(k, 1, numbers);
  kva_onnx_set_out(k, 2, inverse);
  kva_onnx_set_out(k, 3, counts_of(b, inverse, unique.count));
  return kva_onnx_done(k, kva_onnx_gather(b, x, numbers, axis));
}
