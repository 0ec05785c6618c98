/* matmul(a, b): c[..., m, n] = sum_k a[..., m, k] * b[..., k, n].
 *
 * Both operands have rank 2 or more; leading dimensions broadcast (NumPy). transpose_a: a is stored [..., K, M];
 * transpose_b: b is stored [..., N, K]. Integers wrap in their own type; cast them first where that matters. Narrow
 * floats may give a float result (to), since they accumulate in float; integers of 8 bits, of either sign each, may
 * give an int32 result. Gradients: da = dc bT, db = aT dc with the flags adapted, summed over broadcast axes. Tolerance
 * 16: K products in float (double for double) in blocks, so the error grows like log K; one rounding. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/incremental.h"
#include "ops/matmul.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(matmul)

kva_matmul_shape kva_matmul_get(const kva_node *n) {
  const kva_matmul_attrs *attrs = n->attrs;
  const kva_type *a = kva_operand_type(n, 0), *b = kva_operand_type(n, 1);
  return (kva_matmul_shape){
      .M = a->dims[a->rank - (attrs->transpose_a ? 1 : 2)],
      .K = a->dims[a->rank - (attrs->transpose_a ? 2 : 1)],
      .N = b->dims[b->rank - (attrs->transpose_b ? 2 : 1)],
      .K_of_b = b->dims[b->rank - (attrs->transpose_b ? 1 : 2)],
      .transpose_a = attrs->transpose_a,
      .transpose_b = attrs->transpose_b,
  };
}

bool kva_matmul_sums_bytes(int64_t block, int64_t depth) {
  enum { STEPS = 32, MOST = 256 };
  return block > 0 && block % STEPS == 0 && block <= MOST && depth % block == 0;
}

static const kva_node *dequantized(const kva_node *n, uint32_t operand) {
  const kva_node *d = kva_operand(n, operand)->def;
  return d && kva_is(d, KVA_OP_dequantize) && d->results[0].type->dtype == KVA_F32 ? d : NULL;
}

bool kva_matmul_takes_bytes(const kva_node *n) {
  const kva_node *d = dequantized(n, 0);
  const kva_dequantize_attrs *a = d ? d->attrs : NULL;
  int64_t rank = d ? d->results[0].type->rank : 0, depth;
  if (!a || !a->block || d->n_operands > 2 || kva_operand_type(d, 0)->dtype != KVA_I8) return false;
  kva_matmul_shape s = kva_matmul_get(n);
  bool along = !s.transpose_a && (a->axis < 0 ? a->axis + rank : a->axis) == rank - 1;
  return along && kva_expr_is_const(s.K, &depth) && kva_matmul_sums_bytes(a->block, depth);
}

int64_t kva_matmul_byte_block(const kva_node *n) {
  const kva_node *d = kva_matmul_takes_bytes(n) ? dequantized(n, 1) : NULL;
  const kva_dequantize_attrs *a = d ? d->attrs : NULL;
  if (!a || d->n_operands < 3 || d->results[0].type->rank != 2 || (a->axis != 0 && a->axis != -2)) return 0;
  const kva_node *words = kva_operand(d, 0)->def;
  bool codes = words && kva_is(words, KVA_OP_unpack) && ((const kva_unpack_attrs *)words->attrs)->by_bytes,
       same = a->block == ((const kva_dequantize_attrs *)dequantized(n, 0)->attrs)->block;
  return codes && same && !kva_matmul_get(n).transpose_b ? a->block : 0;
}

enum { DEPTH = 0 | KVA_AGREES_FULL };

/* Group 0 is the depth, leading dims are aligned from the right; rows and columns are free. */
int kva_matmul_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  const kva_matmul_attrs *a = attrs;
  uint32_t from_end = t->rank - 1 - axis, depth = operand ? !a->transpose_b : a->transpose_a;
  return from_end >= 2 ? (int)from_end : from_end == depth ? DEPTH : -1;
}

static kva_status check_depth(kva_module *m, const kva_node *n, const kva_matmul_shape *s) {
  if (s->K == s->K_of_b) return KVA_OK;
  kva_text text = {0};
  kva_text_add(&text, "rows of length ");
  kva_expr_print(s->K, &text);
  kva_text_add(&text, " (operand 0) meet columns of length ");
  kva_expr_print(s->K_of_b, &text);
  kva_status status = kva_operand_error(m, n, 1, "%s: expected equal lengths", text.data);
  kva_text_free(&text);
  return status;
}

kva_status kva_matmul_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  for (uint32_t i = 0; i < 2; i++) {
    KVA_TRY(kva_check_class(m, n, i));
    KVA_TRY(kva_check_min_rank(m, n, i, 2));
  }
  bool exact = kva_sums_bytes(n, ((const kva_matmul_attrs *)n->attrs)->to);
  if (!exact) KVA_TRY(kva_check_same_dtype(m, n, 1, 0));
  kva_matmul_shape s = kva_matmul_get(n);
  KVA_TRY(check_depth(m, n, &s));
  const kva_type *batch[2];
  for (uint32_t i = 0; i < 2; i++) {
    const kva_type *t = kva_operand_type(n, i);
    batch[i] = kva_type_tensor(m, t->dtype, t->rank - 2, t->dims);
  }
  uint32_t rank = 0;
  kva_dim dims[KVA_MAX_RANK];
  KVA_TRY(kva_broadcast_types(m, n, 2, batch, &rank, dims));
  dims[rank] = s.M;
  dims[rank + 1] = s.N;
  kva_dtype result;
  if (exact)
    result = KVA_I32;
  else
    KVA_TRY(kva_check_result_dtype(m, n, ((const kva_matmul_attrs *)n->attrs)->to, &result));
  out_types[0] = kva_type_tensor(m, result, rank + 2, dims);
  return KVA_OK;
}

typedef struct matrix {
  const kva_ref_tensor *w;
  int64_t base, row, column; /* offset of the matrix, strides */
} matrix;

static matrix matrix_at(const kva_ref_tensor *w, uint32_t rank, const int64_t *idx, bool transposed) {
  int64_t batch[KVA_MAX_RANK] = {0}, columns = w->dims[w->rank - 1];
  memcpy(batch, idx, sizeof(*idx) * (rank - 2));
  kva_ref_tensor leading = *w; /* one-element matrices, to compute offsets only */
  leading.dims[w->rank - 2] = leading.dims[w->rank - 1] = 1;
  int64_t base = kva_ref_broadcast_offset(&leading, rank, batch) * w->dims[w->rank - 2] * columns;
  return (matrix){w, base, transposed ? 1 : columns, transposed ? columns : 1};
}

/* Sums over n elements, a step apart each. */
static double dot(const double *x, int64_t x_step, const double *y, int64_t y_step, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < n; k++) sum += x[k * x_step] * y[k * y_step];
  return sum;
}

static int64_t dot_integers(const int64_t *x, int64_t x_step, const int64_t *y, int64_t y_step, int64_t n) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < n; k++) sum += (uint64_t)x[k * x_step] * (uint64_t)y[k * y_step];
  return (int64_t)sum;
}

/* A row of the result, whose n columns of y are a step apart. Elements of a row of y are neighbours where it is not
 * transposed: all sums go on together then, each in the order of dot. */
static void row_of_sums(const double *x, int64_t x_step, const matrix *y, int64_t depth, int64_t n, double *sums) {
  const double *base = y->w->f + y->base;
  if (y->column != 1) {
    for (int64_t j = 0; j < n; j++) sums[j] = dot(x, x_step, base + j * y->column, y->row, depth);
    return;
  }
  memset(sums, 0, (size_t)n * sizeof *sums);
  for (int64_t k = 0; k < depth; k++) {
    const double factor = x[k * x_step], *row = base + k * y->row;
    for (int64_t j = 0; j < n; j++) sums[j] += factor * row[j];
  }
}

kva_status kva_matmul_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_matmul_attrs *attrs = n->attrs;
  kva_ref_tensor *c = out[0];
  int64_t idx[KVA_MAX_RANK] = {0}, depth = in[0]->dims[in[0]->rank - (attrs->transpose_a ? 2 : 1)], at = 0;
  int64_t columns = c->dims[c->rank - 1];
  if (c->n == 0) return KVA_OK;
  do { /* by rows */
    matrix a = matrix_at(in[0], c->rank, idx, attrs->transpose_a);
    matrix b = matrix_at(in[1], c->rank, idx, attrs->transpose_b);
    int64_t x = a.base + idx[c->rank - 2] * a.row;
    if (c->f) row_of_sums(a.w->f + x, a.column, &b, depth, columns, c->f + at);
    for (int64_t j = 0; c->i && j < columns; j++)
      c->i[at + j] = dot_integers(a.w->i + x, a.column, b.w->i + b.base + j * b.column, b.row, depth);
    at += columns;
  } while (kva_next_index(c->rank - 1, c->dims, idx));
  return KVA_OK;
}

/* x as one matrix: leading dimensions become rows. */
static kva_value *rows_of(kva_builder *b, kva_value *x) {
  const kva_type *t = x->type;
  if (t->rank == 2) return x;
  kva_dim rows = kva_shape_product(b->m->exprs, t->rank - 1, t->dims);
  return kva_reshape(b, x, 2, (kva_dim[]){rows, t->dims[t->rank - 1]});
}

/* Gradient of a weight shared by a batch: one product over all rows instead of a batch of products and their sum. */
static kva_value *shared_grad_b(kva_builder *b, kva_value *a, kva_value *dc, bool transpose_b) {
  kva_value *x = rows_of(b, a), *dy = rows_of(b, dc);
  return transpose_b ? kva_matmul(b, dy, x, true, false) : kva_matmul(b, x, dy, true, false);
}

kva_status kva_matmul_vjp(kva_vjp *c, kva_node *n) {
  const kva_matmul_attrs *attrs = n->attrs;
  kva_builder *b = c->b;
  bool ta = attrs->transpose_a, tb = attrs->transpose_b;
  kva_value *x = kva_operand(n, 0), *y = kva_operand(n, 1), *dc = kva_cast(b, c->grad_out[0], x->type->dtype);
  if (c->wants[0]) {
    kva_value *dx = ta ? kva_matmul(b, y, dc, tb, true) : kva_matmul(b, dc, y, false, !tb);
    c->grad_in[0] = kva_reduce_to(b, dx, x->type);
  }
  if (!c->wants[1]) return KVA_OK;
  if (!ta && y->type->rank == 2) {
    c->grad_in[1] = shared_grad_b(b, x, dc, tb);
    return KVA_OK;
  }
  kva_value *dy = tb ? kva_matmul(b, dc, x, true, ta) : kva_matmul(b, x, dc, !ta, false);
  c->grad_in[1] = kva_reduce_to(b, dy, y->type);
  return KVA_OK;
}

/* Operand 1 is packed. Operand 0 is streamed, unless an operand is transposed. */
kva_operand_role kva_matmul_role(const kva_node *n, uint32_t operand) {
  const kva_matmul_attrs *a = n->attrs;
  if (operand == 1) return KVA_PACKED;
  return a->transpose_a || a->transpose_b ? KVA_STREAMED : KVA_SCALARS;
}

double kva_matmul_flops(const kva_node *n, const kva_sizes *s) {
  return 2 * kva_elements_of(s, n->results[0].type) * kva_extent_of(s, kva_matmul_get(n).K);
}

int kva_matmul_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  kva_matmul_shape s = kva_matmul_get(n);
  uint32_t rank = n->results[0].type->rank, own = kva_operand_type(n, operand)->rank;
  if (axis + 2 < rank) return kva_broadcast_source_axis(n, operand, axis);
  if ((axis + 1 == rank) != (operand == 1)) return KVA_SAME_FOR_ALL;
  bool flipped = operand ? s.transpose_b : s.transpose_a;
  return (int)(operand == flipped ? own - 2 : own - 1);
}

kva_value *kva_matmul_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs) {
  return kva_broadcast_lifted(c, n, operands, attrs, n->results[0].type->rank + 1);
}

bool kva_matmul_sums(const kva_node *n, uint32_t operand, uint32_t axis) {
  return kva_matmul_agrees(n->attrs, kva_operand_type(n, operand), operand, axis) == DEPTH &&
         axis + 2 >= kva_operand_type(n, operand)->rank;
}
