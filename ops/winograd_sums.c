/* winograd_sums: m [N, ceil(rows / 4) * ceil(columns / 4), 36 M] -> [N, rows, columns, M]: for each tile and filter
 *
 *   y[n, 4 * row of t + i, 4 * column of t + j, m] = (A' m[n, t, 36 places, m] A)[i, j]
 *
 * where that is a result (ops/winograd.h). A pass makes it (passes/layout_winograd.c), for inference: no gradient.
 * Tolerance 16: two sums of at most five products, whose factors are up to 8. */
#include "ops/winograd.h"

KVA_OP_FUNCTIONS(winograd_sums)

enum { STEP = KVA_WINOGRAD_STEP, EXTENT = KVA_WINOGRAD_EXTENT, PLACES = KVA_WINOGRAD_PLACES };

const double kva_winograd_sum[STEP][EXTENT] = {
    {1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}};

kva_status kva_winograd_sums_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_winograd_sums_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_rank(m, n, 0, 3));
  if (a->rows < 1 || a->columns < 1)
    return kva_error(m->diag, &n->loc, "kv.winograd_sums: rows and columns must be positive, found %lld and %lld",
                     (long long)a->rows, (long long)a->columns);
  if (!kva_expr_is(x->dims[1], kva_winograd_tiles_for(a->rows) * kva_winograd_tiles_for(a->columns)))
    return kva_operand_error(m, n, 0, "not as many tiles as rows and columns need");
  kva_dim filters = kva_expr_div(m->exprs, x->dims[2], kva_expr_const(m->exprs, PLACES));
  if (kva_expr_muli(m->exprs, filters, PLACES) != x->dims[2])
    return kva_operand_error(m, n, 0, "expected %d places of the same filters", PLACES);
  kva_dim dims[] = {x->dims[0], kva_expr_const(m->exprs, a->rows), kva_expr_const(m->exprs, a->columns), filters};
  out_types[0] = kva_type_tensor(m, x->dtype, 4, dims);
  return KVA_OK;
}

kva_status kva_winograd_sums_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                 kva_ref_tensor *const *out) {
  (void)r;
  int64_t across = kva_winograd_tiles_for(((const kva_winograd_sums_attrs *)n->attrs)->columns), at[4] = {0};
  int64_t M = out[0]->dims[3];
  for (int64_t k = 0; k < out[0]->n; k++, kva_next_index(4, out[0]->dims, at)) {
    int64_t tile = at[1] / STEP * across + at[2] / STEP;
    const double *places = in[0]->f + (at[0] * in[0]->dims[1] + tile) * in[0]->dims[2] + at[3];
    double sum = 0;
    for (int64_t i = 0; i < EXTENT; i++)
      for (int64_t j = 0; j < EXTENT; j++)
        sum += kva_winograd_sum[at[1] % STEP][i] * kva_winograd_sum[at[2] % STEP][j] * places[(i * EXTENT + j) * M];
    out[0]->f[k] = sum;
  }
  return KVA_OK;
}
