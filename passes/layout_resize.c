/* Resizing along the last axis as a product with a constant matrix, of which each result has a few factors that are not
 * 0 (frontend/onnx_ops_resize.c), for layout.c. With channels last that axis is not the innermost one any more: a
 * result is then a weighted sum of gathered elements, whose channels are lanes. The product may stand between two
 * reshapes, which make a matrix of x and undo that. */
#include "ops/ids.h"
#include "passes/fuse_internal.h"
#include "passes/layout.h"

enum { MAX_NEIGHBOURS = 4 }; /* of a cubic */

typedef struct resizing {
  kva_value *x, *list;           /* the image, or the list [N, C, positions] that is one; the other is NULL */
  const kva_tensor_data *matrix; /* [out, in] */
} resizing;

/* ---- finding it -------------------------------------------------------------------------------------------------- */

static const float *row_of(const kva_tensor_data *m, int64_t i) {
  return (const float *)m->data + i * m->dims[1];
}

static bool has_few_factors(const kva_tensor_data *m) {
  for (int64_t i = 0; i < m->dims[0]; i++) {
    const float *row = row_of(m, i);
    int n = 0;
    for (int64_t k = 0; k < m->dims[1]; k++) n += row[k] != 0;
    if (n > MAX_NEIGHBOURS) return false;
  }
  return true;
}

/* The matrix of a product with lines; NULL: it is none, or it mixes too many elements. */
static const kva_tensor_data *matrix_of(const kva_node *n) {
  if (!kva_is(n, KVA_OP_matmul)) return NULL;
  const kva_matmul_attrs *a = n->attrs;
  const kva_tensor_data *m = kva_constant_of(kva_operand(n, 1));
  if (!m || m->rank != 2 || m->dtype != KVA_F32 || a->transpose_a || !a->transpose_b) return NULL;
  if (n->results[0].type->dtype != KVA_F32 || kva_operand_type(n, 0)->dtype != KVA_F32) return NULL;
  return has_few_factors(m) ? m : NULL;
}

static bool differs_in_last(const kva_type *a, const kva_type *b) {
  if (a->rank != b->rank || a->rank < 3) return false;
  for (uint32_t d = 0; d + 1 < a->rank; d++)
    if (a->dims[d] != b->dims[d]) return false;
  return true;
}

/* y, whose lines had `in` elements, was a list. */
static bool has_positions_of(const kva_type *list, const kva_type *y, int64_t in) {
  int64_t n = in, positions;
  if (list->rank != 3 || y->rank < 4 || !kva_fuse_has_prefix(y, list, 2)) return false;
  if (!kva_expr_is_const(list->dims[2], &positions) || !kva_type_is_static_from(y, 2)) return false;
  for (uint32_t d = 2; d + 1 < y->rank; d++) n *= kva_type_extent(y, d);
  return n == positions;
}

static bool find(const kva_node *n, resizing *out) {
  const kva_node *product = n;
  const kva_type *type = n->results[0].type;
  const kva_value *y = kva_is(n, KVA_OP_reshape) ? kva_operand(n, 0) : NULL;
  if (y && y->def && !y->uses->next) product = y->def;
  *out = (resizing){.matrix = matrix_of(product)};
  if (!out->matrix) return false;
  out->x = kva_operand(product, 0);
  if (product != n && out->x->def && kva_is(out->x->def, KVA_OP_reshape)) out->x = kva_operand(out->x->def, 0);
  if (differs_in_last(out->x->type, type)) return true;
  out->list = product != n && has_positions_of(out->x->type, type, out->matrix->dims[1]) ? out->x : NULL;
  out->x = NULL;
  return out->list;
}

kva_value *kva_layout_resized(const kva_node *n) {
  resizing r;
  return n->n_results == 1 && find(n, &r) ? r.x : NULL;
}

kva_value *kva_layout_resized_list(const kva_node *n) {
  resizing r;
  return n->n_results == 1 && find(n, &r) ? r.list : NULL;
}

bool kva_layout_resizes(const kva_node *product) {
  const kva_use *u = product->results[0].uses;
  resizing r;
  return find(product, &r) || (u && !u->next && u->user->n_results == 1 && find(u->user, &r));
}

/* ---- with channels last ------------------------------------------------------------------------------------------ */

typedef struct neighbours {
  int64_t *places[MAX_NEIGHBOURS];
  float *weights[MAX_NEIGHBOURS];
  int n; /* the most that a result has */
} neighbours;

/* A result with fewer neighbours has one of them again, with weight 0. */
static neighbours neighbours_of(kva_arena *arena, const kva_tensor_data *m) {
  neighbours all = {.n = 1};
  for (int j = 0; j < MAX_NEIGHBOURS; j++) {
    all.places[j] = KVA_NEW_ARRAY(arena, int64_t, m->dims[0]);
    all.weights[j] = KVA_NEW_ARRAY(arena, float, m->dims[0]);
  }
  for (int64_t i = 0; i < m->dims[0]; i++) {
    const float *row = row_of(m, i);
    int n = 0;
    int64_t last = 0;
    for (int64_t k = 0; k < m->dims[1]; k++) {
      if (row[k] == 0) continue;
      all.places[n][i] = last = k;
      all.weights[n++][i] = row[k];
    }
    if (n > all.n) all.n = n;
    for (; n < MAX_NEIGHBOURS; n++) all.places[n][i] = last;
  }
  return all;
}

static kva_value *list(kva_builder *b, kva_dtype dtype, uint32_t rank, uint32_t axis, int64_t n, const void *data) {
  kva_tensor_data *t = KVA_NEW(b->m->arena, kva_tensor_data);
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < rank; d++) dims[d] = d == axis ? n : 1;
  *t = (kva_tensor_data){.dtype = dtype, .rank = rank, .data = data, .bytes = n * kva_dtype_bits(dtype) / 8};
  t->dims = kva_arena_memdup(b->m->arena, dims, rank * sizeof *dims);
  return kva_const_tensor(b, t);
}

kva_value *kva_layout_resize(kva_builder *b, const kva_node *n, kva_value *last) {
  resizing r;
  bool found = find(n, &r);
  KVA_ASSERT(found);
  uint32_t rank = last->type->rank, axis = rank - 2;
  neighbours all = neighbours_of(b->m->arena, r.matrix);
  kva_value *y = NULL;
  for (int j = 0; j < all.n; j++) {
    kva_value *operands[] = {last, list(b, KVA_I64, 1, 0, r.matrix->dims[0], all.places[j])};
    kva_value *part = kva_build(b, KVA_OP_gather, 2, operands, &(kva_gather_attrs){axis});
    part = kva_mul(b, part, list(b, KVA_F32, rank, axis, r.matrix->dims[0], all.weights[j]));
    y = y ? kva_add(b, y, part) : part;
  }
  return y;
}

kva_value *kva_layout_resize_list(kva_builder *b, const kva_node *n, kva_value *list) {
  const kva_type *y = n->results[0].type;
  resizing r;
  bool found = find(n, &r);
  KVA_ASSERT(found);
  kva_dim dims[KVA_MAX_RANK] = {y->dims[0]};
  for (uint32_t d = 2; d < y->rank; d++) dims[d - 1] = y->dims[d];
  dims[y->rank - 2] = kva_expr_const(b->m->exprs, r.matrix->dims[1]);
  dims[y->rank - 1] = y->dims[1];
  return kva_layout_resize(b, n, kva_reshape(b, list, y->rank, dims));
}
