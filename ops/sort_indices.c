/* sort_indices(indices) -> keys, bounds: sorts indices into `extent` rows, in chunks of C consecutive ones, by the
 * owner of the row. For P indices in row-major order, with B = max(1, min(owners, extent)) owners and R = ceil(extent /
 * B):
 *
 *   key of index v at position p:  ((v mod B) R + floor(v / B)) C + p mod C
 *   keys [ceil(P / C), C]          the keys of each chunk, ascending; the last chunk is padded with B R C + p mod C
 *   bounds [ceil(P / C), B + 1]    number of keys of a chunk that belong to owners below b, i.e. are less than b R C
 *
 * So an owner's keys are contiguous in every chunk, ordered by row and then by position. Owner b has every B-th row, so
 * frequent indices, which are often close together, have different owners. C is 2048, or less if fewer indices are
 * known to exist. passes/opt_split.c creates this operator for GPUs, for gather_grad: no gradient. */
#include "ops/sort_indices.h"

#include "ops/index.h"
#include "ops/shape.h"

#include <stdlib.h>

KVA_OP_FUNCTIONS(sort_indices)

enum {
  MIN_CHUNK = 32,
  MAX_CHUNK = 2048,
  MANY_ROWS = 1 << 19 /* too many for keys of 32 bits */
};

static int64_t chunk_of(const kva_expr *positions) {
  int64_t chunk = MIN_CHUNK, known;
  if (!kva_expr_is_const(positions, &known)) return MAX_CHUNK;
  while (chunk < MAX_CHUNK && chunk < known) chunk *= 2;
  return chunk;
}

kva_sorted kva_sorted_of(kva_expr_ctx *c, const kva_type *indices, kva_dim rows, kva_dim owners) {
  kva_sorted s = {.rows = rows, .owners = owners, .positions = kva_shape_product(c, indices->rank, indices->dims)};
  int64_t known;
  s.chunk = chunk_of(s.positions);
  s.chunks = kva_expr_ceildiv(c, s.positions, kva_expr_const(c, s.chunk));
  s.each = kva_expr_ceildiv(c, rows, s.owners);
  s.dtype = kva_expr_is_const(rows, &known) && known < MANY_ROWS ? KVA_I32 : KVA_I64;
  return s;
}

kva_sorted kva_sort_indices_of(kva_expr_ctx *c, const kva_node *n) {
  const kva_sort_indices_attrs *a = n->attrs;
  kva_dim owners = kva_expr_max(c, kva_expr_const(c, 1), kva_expr_min(c, kva_expr_const(c, a->owners), a->extent));
  return kva_sorted_of(c, kva_operand_type(n, 0), a->extent, owners);
}

kva_status kva_sort_indices_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_sort_indices_attrs *a = n->attrs;
  KVA_TRY(kva_index_check(m, n, 0));
  if (!a->extent) return kva_error(m->diag, &n->loc, "kv.%s: attribute extent is missing", n->op->name);
  if (a->owners < 1)
    return kva_error(m->diag, &n->loc, "kv.%s: owners = %lld must be positive", n->op->name, (long long)a->owners);
  kva_sorted s = kva_sort_indices_of(m->exprs, n);
  out_types[0] = kva_type_tensor(m, s.dtype, 2, (kva_dim[]){s.chunks, kva_expr_const(m->exprs, s.chunk)});
  out_types[1] = kva_type_tensor(m, KVA_I32, 2, (kva_dim[]){s.chunks, kva_expr_addi(m->exprs, s.owners, 1)});
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y) {
  int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
  return (a > b) - (a < b);
}

static void ref_bounds(const int64_t *keys, int64_t chunk, int64_t step, int64_t n, int64_t *bounds) {
  for (int64_t b = 0; b < n; b++)
    for (int64_t i = 0; i < chunk; i++) bounds[b] += keys[i] < b * step;
}

kva_status kva_sort_indices_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                kva_ref_tensor *const *out) {
  int64_t rows, chunk = out[0]->dims[1], owners = out[1]->dims[1] - 1;
  KVA_TRY(kva_ref_dim(r, ((const kva_sort_indices_attrs *)n->attrs)->extent, &rows));
  int64_t each = (rows + owners - 1) / owners, *keys = out[0]->i;
  for (int64_t i = 0; i < out[0]->n; i++) {
    int64_t v, row = owners * each;
    if (i < in[0]->n) {
      KVA_TRY(kva_index_ref(r, n, in[0]->i[i], 0, rows, &v));
      row = v % owners * each + v / owners;
    }
    keys[i] = row * chunk + i % chunk;
  }
  for (int64_t c = 0; c < out[0]->dims[0]; c++) {
    qsort(keys + c * chunk, (size_t)chunk, sizeof *keys, by_value);
    ref_bounds(keys + c * chunk, chunk, each * chunk, owners + 1, out[1]->i + c * (owners + 1));
  }
  return KVA_OK;
}
