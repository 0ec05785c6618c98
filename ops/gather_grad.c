/* gather_grad: the gradient of gather. Operands: g of shape [a.., i.., c..] and indices [i..]; the result has shape
 * [a.., extent, c..]:  dx[a.., v, c..] = sum of g[a.., i.., c..] over all i with indices[i] = v.
 * The sum runs in the order of i and is rounded at every step, on every target.
 * Tolerance 8: kernels of narrow floats may keep more bits between two steps. */
#include "ops/check.h"
#include "ops/index.h"
#include "ops/scatter_common.h"
#include "ops/shape.h"

typedef struct layout {
  uint32_t axis, n_indices, rank; /* rank of the result */
} layout;

static layout layout_of(const kva_node *n) {
  layout y = {.n_indices = kva_operand_type(n, 1)->rank};
  y.rank = kva_operand_type(n, 0)->rank + 1 - y.n_indices;
  y.axis = kva_axis(((const kva_gather_grad_attrs *)n->attrs)->axis, y.rank);
  return y;
}

kva_status kva_gather_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_gather_grad_attrs *a = n->attrs;
  const kva_type *g = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t axis;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_index_check(m, n, 1));
  KVA_TRY(kva_check_min_rank(m, n, 0, indices->rank));
  if (!a->extent) return kva_error(m->diag, &n->loc, "kv.gather_grad: attribute extent is missing");
  layout y = {.n_indices = indices->rank, .rank = g->rank + 1 - indices->rank};
  KVA_TRY(kva_normalize_axis(m, n, a->axis, y.rank, &axis));
  for (uint32_t k = 0; k < indices->rank; k++)
    if (g->dims[axis + k] != indices->dims[k])
      return kva_operand_error(m, n, 0, "axis %u differs from axis %u of the indices", axis + k, k);
  kva_dim dims[KVA_MAX_RANK];
  if (y.rank > KVA_MAX_RANK) return kva_error(m->diag, &n->loc, "kv.gather_grad: the result has rank %u", y.rank);
  for (uint32_t k = 0; k < y.rank; k++)
    dims[k] = k < axis ? g->dims[k] : k == axis ? a->extent : g->dims[k - 1 + y.n_indices];
  out_types[0] = kva_type_tensor(m, g->dtype, y.rank, dims);
  return KVA_OK;
}

kva_status kva_gather_grad_ref(kva_ref *r, const kva_node *n, const kva_wide *const *in, kva_wide *const *out) {
  const kva_wide *g = in[0], *indices = in[1];
  layout y = layout_of(n);
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (int64_t i = 0; i < g->n; i++, kva_next_index(g->rank, g->dims, idx)) {
    int64_t index = indices->i[kva_ref_offset(indices, idx + y.axis)];
    KVA_TRY(kva_index_ref(r, n, index, y.axis, out[0]->dims[y.axis], &at[y.axis]));
    for (uint32_t k = 0; k < y.axis; k++) at[k] = idx[k];
    for (uint32_t k = y.axis + 1; k < y.rank; k++) at[k] = idx[k - 1 + y.n_indices];
    kva_scatter_ref(KVA_SCATTER_ADD, g, i, out[0], kva_ref_offset(out[0], at));
  }
  return KVA_OK;
}

/* Offset in the result of element c of row `row` of the slice, behind outer position `outer`. */
static const kva_expr *offset(kva_expr_ctx *e, const kva_expr *outer, const kva_expr *row, kva_dim extent,
                              const kva_expr *c, const kva_expr *inner) {
  row = kva_expr_add(e, kva_expr_mul(e, outer, extent), row);
  return kva_expr_add(e, kva_expr_mul(e, row, inner), c);
}

/* ---- work items: outer position x slice of the inner axes -------------------------------------------------------- */

static void by_slices(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  layout y = layout_of(n);
  const kva_type *g = kva_operand_type(n, 0), *type = n->results[0].type;
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  uint32_t n_inner = y.rank - 1 - y.axis;
  const kva_dim *inner_dims = type->dims + y.axis + 1;
  const kva_expr *inner = kva_shape_product(e, n_inner, inner_dims), *at[KVA_MAX_RANK];
  kva_kloop *outer_loops[KVA_MAX_RANK], *index_loops[KVA_MAX_RANK];
  kva_nest_begin(l, KVA_K_MAP, y.axis, type->dims, outer_loops, at);
  const kva_expr *outer = kva_shape_linear(e, y.axis, type->dims, at);
  kva_slice_loop slice = kva_slices_begin(l, inner);

  kva_kloop *rows = kva_k_loop_begin(b, KVA_K_MAP, type->dims[y.axis], "row");
  kva_kloop *fill = kva_k_loop_begin(b, KVA_K_MAP, slice.width, "c");
  const kva_expr *c = kva_expr_add(e, slice.start, fill->var);
  kva_k_store(b, buf, offset(e, outer, rows->var, type->dims[y.axis], c, inner),
              kva_k_const(b, kva_k_compute_type(type->dtype), 0));
  kva_k_loop_end(b, fill);
  kva_k_loop_end(b, rows);

  kva_nest_begin(l, KVA_K_SERIAL, y.n_indices, g->dims + y.axis, index_loops, at + y.axis);
  const kva_expr *row = kva_index_lower(l, n, 1, at + y.axis, type->dims[y.axis]);
  kva_kloop *add = kva_k_loop_begin(b, KVA_K_MAP, slice.width, "c");
  c = kva_expr_add(e, slice.start, add->var);
  kva_shape_split(e, n_inner, inner_dims, c, at + y.axis + y.n_indices);
  kva_kval guard = kva_k_guard_begin(b, kva_index_nonempty(l, NULL, type->dims[y.axis]));
  kva_kval v = l->operand(l, n, 0, at);
  kva_scatter_store(l, KVA_SCATTER_ADD, buf, offset(e, outer, row, type->dims[y.axis], c, inner), v);
  kva_k_guard_end(b, guard);
  kva_k_loop_end(b, add);
  kva_nest_end(l, y.n_indices, index_loops);

  kva_slices_end(l, &slice);
  kva_nest_end(l, y.axis, outer_loops);
}

/* ---- blocks of a GPU --------------------------------------------------------------------------------------------- */

/* A block owns every BLOCKS-th row of the result: frequent indices, which often are neighbours, go to different blocks.
 * An element of a row is one thread's, always the same, so that its additions need no barrier. The block fills its rows
 * with zeros and looks for them in the indices, BLOCK at a time; what it finds in these it takes in order, the next one
 * being the least position behind the last. */
enum { BLOCK = 256, BLOCKS = 512, WARP = 32, LANES = 4 };

typedef struct row_blocks {
  kva_lower *l;
  kva_kb *b;
  kva_expr_ctx *e;
  const kva_node *n;
  layout y;
  kva_kbuf *buf;
  kva_dim rows, positions, inner;          /* extents: of the axis, of all indices, of what a row holds */
  const kva_expr *outer, *blocks, *number; /* outer position; blocks for each, this one's number among them */
  const kva_expr *at[KVA_MAX_RANK];        /* indices of g */
} row_blocks;

static const kva_expr *num(const row_blocks *s, int64_t v) {
  return kva_expr_const(s->e, v);
}

/* The row that index number i, of all of them, names. */
static const kva_expr *row_at(row_blocks *s, const kva_expr *i) {
  kva_shape_split(s->e, s->y.n_indices, kva_operand_type(s->n, 1)->dims, i, s->at + s->y.axis);
  return kva_index_lower(s->l, s->n, 1, s->at + s->y.axis, s->rows);
}

/* The threads of a row's elements. */
static kva_kloop *begin_row(row_blocks *s) {
  int64_t n;
  kva_kloop *c = kva_k_loop_begin(s->b, KVA_K_THREAD, s->inner, "c");
  if (kva_expr_is_const(s->inner, &n) && n % LANES == 0 && n >= WARP * LANES) c->width = LANES;
  return c;
}

static void fill_rows(row_blocks *s) {
  const kva_expr *left = kva_expr_sub(s->e, s->rows, s->number);
  kva_kloop *r = kva_k_loop_begin(s->b, KVA_K_SERIAL, kva_expr_ceildiv(s->e, left, s->blocks), "r");
  const kva_expr *row = kva_expr_add(s->e, s->number, kva_expr_mul(s->e, r->var, s->blocks));
  kva_kloop *c = begin_row(s);
  kva_k_store(s->b, s->buf, offset(s->e, s->outer, row, s->rows, c->var, s->inner),
              kva_k_const(s->b, kva_k_compute_type(s->buf->dtype), 0));
  kva_k_loop_end(s->b, c);
  kva_k_loop_end(s->b, r);
}

/* Of the BLOCK indices from number `first` on, a thread for each: the number of the first that names a row of this
 * block behind number `last`; last = NULL: how many do. */
static kva_kval search(row_blocks *s, const kva_expr *first, kva_kval last) {
  const kva_expr *here = kva_expr_min(s->e, num(s, BLOCK), kva_expr_sub(s->e, s->positions, first));
  kva_kloop *j = kva_k_loop_begin(s->b, KVA_K_THREAD, here, "j");
  const kva_expr *i = kva_expr_add(s->e, first, j->var);
  kva_kval none = kva_k_const_i(s->b, KVA_I64, last ? INT64_MAX : 0), position = kva_k_index(s->b, i);
  kva_kval match = kva_k_index_eq(s->b, kva_expr_mod(s->e, row_at(s, i), s->blocks), s->number);
  if (last) match = kva_k_and(s->b, match, kva_k2(s->b, KVA_K_lt, last, position));
  kva_kval found = kva_k_select(s->b, match, last ? position : kva_k_const_i(s->b, KVA_I64, 1), none);
  kva_kval result = kva_k_reduce(s->b, j, last ? KVA_COMBINE_MIN : KVA_COMBINE_ADD, none, found);
  kva_k_loop_end(s->b, j);
  return result;
}

/* Row number i of g to where it belongs. */
static void add_row(row_blocks *s, const kva_expr *i) {
  const kva_expr *row = row_at(s, i);
  uint32_t n_inner = s->y.rank - 1 - s->y.axis;
  kva_kloop *c = begin_row(s);
  kva_shape_split(s->e, n_inner, s->n->results[0].type->dims + s->y.axis + 1, c->var,
                  s->at + s->y.axis + s->y.n_indices);
  kva_kval v = s->l->operand(s->l, s->n, 0, s->at);
  kva_scatter_store(s->l, KVA_SCATTER_ADD, s->buf, offset(s->e, s->outer, row, s->rows, c->var, s->inner), v);
  kva_k_loop_end(s->b, c);
}

static void add_rows(row_blocks *s) {
  kva_kloop *chunk = kva_k_loop_begin(s->b, KVA_K_SERIAL, kva_expr_ceildiv(s->e, s->positions, num(s, BLOCK)), "chunk");
  const kva_expr *first = kva_expr_muli(s->e, chunk->var, BLOCK);
  kva_kval count = search(s, first, NULL);
  kva_kloop *each = kva_k_loop_begin(s->b, KVA_K_SERIAL, kva_k_symbol(s->b, count), "match");
  kva_kval last = kva_k_carry(s->b, each, kva_k_const_i(s->b, KVA_I64, -1));
  kva_kval next = search(s, first, last);
  add_row(s, kva_k_symbol(s->b, next));
  kva_k_carry_next(s->b, each, last, next);
  kva_k_loop_end(s->b, each);
  kva_k_loop_end(s->b, chunk);
}

static void by_blocks(kva_lower *l, const kva_node *n) {
  row_blocks s = {.l = l, .b = l->kb, .e = l->kb->exprs, .n = n, .y = layout_of(n)};
  const kva_type *type = n->results[0].type, *indices = kva_operand_type(n, 1);
  s.buf = kva_scatter_result(l, n, 0);
  s.rows = type->dims[s.y.axis];
  s.positions = kva_shape_product(s.e, s.y.n_indices, indices->dims);
  s.inner = kva_shape_product(s.e, s.y.rank - 1 - s.y.axis, type->dims + s.y.axis + 1);
  s.blocks = kva_expr_min(s.e, s.rows, num(&s, BLOCKS));
  const kva_expr *outer = kva_shape_product(s.e, s.y.axis, type->dims);
  kva_kloop *item = kva_k_loop_begin(s.b, KVA_K_GRID, kva_expr_mul(s.e, outer, s.blocks), "item");
  bool single = kva_expr_is(outer, 1);
  s.outer = single ? num(&s, 0) : kva_expr_div(s.e, item->var, s.blocks);
  s.number = single ? item->var : kva_expr_mod(s.e, item->var, s.blocks);
  s.b->kernel->threads = BLOCK;
  kva_shape_split(s.e, s.y.axis, type->dims, s.outer, s.at);
  fill_rows(&s);
  add_rows(&s);
  kva_k_loop_end(s.b, item);
}

void kva_gather_grad_kernel(kva_lower *l, const kva_node *n) {
  bool whole_bytes = kva_dtype_bits(n->results[0].type->dtype) >= 8;
  (l->gpu && whole_bytes ? by_blocks : by_slices)(l, n);
}
