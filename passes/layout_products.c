/* Products of more than a few rows and a constant matrix as convolutions (layout.c).
 *
 * What: matmul(x, w) with constant w [K, N] of floats, or its transpose, and a known number of rows becomes a
 * convolution of one tap over an image with channels last, which is x as it lies in memory. Its filters are in panels,
 * which the kernel reads where they are and fetches ahead; products of matrices copy them to such panels in every run
 * (codegen/kernels/cpu/contract/tiles.c). Values do not change, bit by bit: a result is one sum in the order of K
 * either way.
 *
 * Algorithm: one sweep over constants whose users are such products alone. Constants that share their data share the
 * panels. Memory of the matrix is given back: pages of a file, and what is spare when nothing else reads it. */
#include "ops/matmul.h"
#include "passes/layout.h"
#include "passes/panels.h"
#include "runtime/base/platform.h"

enum { MIN_DEPTH = 16, MIN_COLUMNS = 16 };

/* ---- which ------------------------------------------------------------------------------------------------------- */

/* Rows of x; 0: not known. */
static int64_t rows_of(const kva_type *x) {
  int64_t rows = 1;
  if (!kva_type_is_static_from(x, 0)) return 0;
  for (uint32_t d = 0; d + 1 < x->rank; d++) rows *= kva_type_extent(x, d);
  return rows;
}

static bool is_product(const kva_use *u) {
  if (!kva_is(u->user, KVA_OP_matmul) || u->index != 1) return false;
  const kva_matmul_attrs *a = u->user->attrs;
  const kva_type *x = kva_operand_type(u->user, 0);
  if (a->transpose_a || x->rank < 2 || x->dtype != KVA_F32 || u->user->results[0].type->dtype != KVA_F32) return false;
  return rows_of(x) >= KVA_PANEL_ROWS && !kva_layout_resizes(u->user);
}

/* The constant of n, if all its users are products, of one orientation; NULL: something is otherwise. */
static const kva_tensor_data *matrix_of(const kva_layout *l, const kva_node *n, bool *out_transposed) {
  const kva_tensor_data *t = kva_is(n, KVA_OP_constant) ? kva_constant_of(&n->results[0]) : NULL;
  const kva_use *first = t ? n->results[0].uses : NULL;
  if (!first || t->rank != 2 || t->dtype != KVA_F32) return NULL;
  for (const kva_use *u = first; u; u = u->next)
    if (!is_product(u)) return NULL;
  *out_transposed = ((const kva_matmul_attrs *)first->user->attrs)->transpose_b;
  for (const kva_use *u = first; u; u = u->next)
    if (((const kva_matmul_attrs *)u->user->attrs)->transpose_b != *out_transposed) return NULL;
  int64_t depth = t->dims[*out_transposed], columns = t->dims[!*out_transposed];
  return depth >= MIN_DEPTH && columns >= MIN_COLUMNS && kva_layout_panel(l, columns, 1) > 0 ? t : NULL;
}

/* ---- panels ------------------------------------------------------------------------------------------------------ */

typedef struct matrix_key {
  const void *data;
  int64_t transposed;
} matrix_key;

/* [panels, 1, K, width] of w [K, N], or [N, K]. */
static const kva_tensor_data *panels_of(kva_layout *l, const kva_tensor_data *w, bool transposed) {
  int64_t depth = w->dims[transposed], columns = w->dims[!transposed], width = kva_layout_panel(l, columns, 1);
  int64_t dims[] = {(columns + width - 1) / width, 1, depth, width};
  matrix_key key = {w->data, transposed};
  kva_tensor_data *to = kva_map_get(l->matrices, &key, sizeof key);
  if (to) return to;
  to = kva_layout_room(l, KVA_F32, sizeof dims / sizeof *dims, dims);
  float *data = (float *)(uintptr_t)to->data;
  memset(data + (dims[0] - 1) * depth * width, 0, (size_t)(depth * width) * sizeof *data); /* the last may be partial */
  kva_panels_fill(&(kva_panels){depth, columns, width}, data, w->data, sizeof *data, transposed);
  kva_map_set(l->matrices, &key, sizeof key, to);
  return to;
}

/* ---- readers of constants ---------------------------------------------------------------------------------------- */

static uintptr_t readers(const kva_layout *l, const kva_tensor_data *t) {
  return (uintptr_t)kva_map_get(l->readers, &t->data, sizeof t->data);
}

static void set_readers(const kva_layout *l, const kva_tensor_data *t, uintptr_t n) {
  kva_map_set(l->readers, &t->data, sizeof t->data, (void *)n);
}

void kva_layout_count_readers(kva_layout *l, const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next) {
    const kva_tensor_data *t = kva_is(n, KVA_OP_constant) ? kva_constant_of(&n->results[0]) : NULL;
    if (t) set_readers(l, t, readers(l, t) + 1);
  }
}

static void release(const kva_layout *l, const kva_tensor_data *t) {
  set_readers(l, t, readers(l, t) - 1);
  if (t->mapped || (t->spare && !readers(l, t))) kva_pages_release(t->data, (size_t)t->bytes);
}

/* ---- the rewrite ------------------------------------------------------------------------------------------------- */

/* x as an image whose channels are its last axis: as it is, with one axis of positions or two, else [1, rows, K]. */
static kva_value *as_image(kva_builder *b, kva_value *x) {
  kva_expr_ctx *e = b->m->exprs;
  uint32_t rank = x->type->rank;
  kva_dim dims[] = {kva_expr_const(e, 1), kva_expr_const(e, rows_of(x->type)), x->type->dims[rank - 1]};
  return rank == 3 || rank == 4 ? x : kva_reshape(b, x, 3, dims);
}

/* The filters, with `axes` spatial axes. */
static kva_value *filters_of(kva_layout *l, kva_builder *b, const kva_tensor_data *w, bool transposed, uint32_t axes) {
  kva_tensor_data *panels = KVA_NEW(l->m->arena, kva_tensor_data);
  *panels = *panels_of(l, w, transposed);
  int64_t dims[] = {panels->dims[0], 1, 1, panels->dims[2], panels->dims[3]};
  if (axes == 2) panels->rank = 5, panels->dims = kva_arena_memdup(l->m->arena, dims, sizeof dims);
  kva_value *x = kva_const_tensor(b, panels);
  kva_join_filters_attrs attrs = {.filters = kva_expr_const(l->m->exprs, w->dims[!transposed])};
  return kva_build(b, KVA_OP_join_filters, 1, &x, &attrs);
}

static void convolve(kva_layout *l, kva_node *product, const kva_tensor_data *w, bool transposed) {
  static const int64_t first[][4] = {{0, 2, 1}, {0, 3, 1, 2}}, last[][4] = {{0, 2, 1}, {0, 2, 3, 1}};
  kva_builder b = kva_builder_before(l->m, product);
  kva_value *result = &product->results[0], *x = as_image(&b, kva_operand(product, 0));
  uint32_t axes = x->type->rank - 2;
  kva_value *operands[] = {kva_transpose(&b, x, first[axes - 1]), filters_of(l, &b, w, transposed, axes)};
  kva_value *y = kva_build(&b, KVA_OP_conv, 2, operands, &(kva_conv_attrs){.group = 1});
  y = kva_reshape_like(&b, kva_transpose(&b, y, last[axes - 1]), result->type);
  y->name = result->name;
  kva_value_replace_all_uses(result, y);
  kva_node_remove(product);
}

bool kva_layout_products(kva_layout *l, kva_graph *g) {
  bool changed = false, transposed;
  if (l->target && l->target->bf16x3_gemm) return false;
  for (kva_node *n = g->first, *next; n; n = next) {
    const kva_tensor_data *t = matrix_of(l, n, &transposed);
    while (t && n->results[0].uses) convolve(l, n->results[0].uses->user, t, transposed);
    next = n->next;
    if (!t) continue;
    release(l, t);
    kva_node_remove(n);
    changed = true;
  }
  return changed;
}
