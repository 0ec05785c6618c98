/* winograd_tiles: x [N, H, W, C] -> [N, tiles, 36 C], where `pads` are those of a convolution with 3 x 3 filters and
 * stride 1, whose result has R x S positions and ceil(R / 4) x ceil(S / 4) tiles, row by row:
 *
 *   y[n, t, 36 places, C] = B' d B,   d[i, j, c] = x[n, 4 * row of t + i - pads, 4 * column of t + j - pads, c] or zero
 *
 * for each channel (ops/winograd.h). A pass makes it (passes/layout_winograd.c), for inference: no gradient. Tolerance
 * 16: two sums of at most four products, whose factors are up to 5. */
#include "ops/winograd.h"

KVA_OP_FUNCTIONS(winograd_tiles)

enum { STEP = KVA_WINOGRAD_STEP, EXTENT = KVA_WINOGRAD_EXTENT, PLACES = KVA_WINOGRAD_PLACES, PADS = 4 };

const double kva_winograd_tile[EXTENT][EXTENT] = {
    {4, 0, -5, 0, 1, 0},  {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0},
    {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1},
};

const double kva_winograd_filter[EXTENT][KVA_WINOGRAD_KERNEL] = {
    {1.0 / 4, 0, 0},
    {-1.0 / 6, -1.0 / 6, -1.0 / 6},
    {-1.0 / 6, 1.0 / 6, -1.0 / 6},
    {1.0 / 24, 1.0 / 12, 1.0 / 6},
    {1.0 / 24, -1.0 / 12, 1.0 / 6},
    {0, 0, 1},
};

kva_winograd_image kva_winograd_image_of(const kva_node *n) {
  kva_ints pads = ((const kva_winograd_tiles_attrs *)n->attrs)->pads;
  kva_winograd_image image = {0};
  for (int d = 0; d < 2; d++) {
    image.in[d] = kva_type_extent(kva_operand_type(n, 0), 1 + (uint32_t)d);
    image.before[d] = pads.n ? pads.v[d] : 0;
    image.out[d] = image.in[d] + image.before[d] + (pads.n ? pads.v[2 + d] : 0) - (KVA_WINOGRAD_KERNEL - 1);
  }
  return image;
}

static bool are_pads(kva_ints pads) {
  bool ok = pads.n == 0 || pads.n == PADS;
  for (uint32_t i = 0; i < pads.n && ok; i++) ok = pads.v[i] >= 0 && pads.v[i] < EXTENT;
  return ok;
}

kva_status kva_winograd_tiles_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0);
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_rank(m, n, 0, 4));
  if (!are_pads(((const kva_winograd_tiles_attrs *)n->attrs)->pads))
    return kva_error(m->diag, &n->loc, "kv.winograd_tiles: pads must be none, or %d of 0 to %d", PADS, EXTENT - 1);
  if (!kva_expr_is_const(x->dims[1], NULL) || !kva_expr_is_const(x->dims[2], NULL))
    return kva_operand_error(m, n, 0, "expected constant numbers of rows and columns");
  kva_winograd_image image = kva_winograd_image_of(n);
  if (image.out[0] < 1 || image.out[1] < 1) return kva_operand_error(m, n, 0, "expected an image as large as a filter");
  int64_t tiles = kva_winograd_tiles_for(image.out[0]) * kva_winograd_tiles_for(image.out[1]);
  kva_dim dims[] = {x->dims[0], kva_expr_const(m->exprs, tiles), kva_expr_muli(m->exprs, x->dims[3], PLACES)};
  out_types[0] = kva_type_tensor(m, x->dtype, 3, dims);
  return KVA_OK;
}

/* The element of a channel at (row, column), which may be outside. */
static double element(const kva_ref_tensor *x, int64_t image, int64_t row, int64_t column, int64_t c) {
  if (row < 0 || row >= x->dims[1] || column < 0 || column >= x->dims[2]) return 0;
  return x->f[((image * x->dims[1] + row) * x->dims[2] + column) * x->dims[3] + c];
}

kva_status kva_winograd_tiles_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                  kva_ref_tensor *const *out) {
  (void)r;
  kva_winograd_image image = kva_winograd_image_of(n);
  int64_t across = kva_winograd_tiles_for(image.out[1]), C = in[0]->dims[3], at[3] = {0};
  for (int64_t k = 0; k < out[0]->n; k++, kva_next_index(3, out[0]->dims, at)) {
    int64_t place = at[2] / C, row = at[1] / across * STEP - image.before[0],
            column = at[1] % across * STEP - image.before[1];
    double sum = 0;
    for (int64_t i = 0; i < EXTENT; i++)
      for (int64_t j = 0; j < EXTENT; j++)
        sum += kva_winograd_tile[place / EXTENT][i] * kva_winograd_tile[place % EXTENT][j] *
               element(in[0], at[0], row + i, column + j, at[2] % C);
    out[0]->f[k] = sum;
  }
  return KVA_OK;
}
