/* Convolutions with channels last by Winograd's transforms (ops/winograd.h), for layout.c.
 *
 * What: conv(x, w) with constant 3 x 3 filters and stride 1 becomes
 *
 *   winograd_sums(conv(winograd_tiles(x), G w G'))
 *
 * where the convolution in the middle has one tap and 36 groups, whose positions are tiles: 36 products of matrices
 * with the filters in panels. Sums round differently, so only --math relaxed allows it. Constants become four times as
 * large. */
#include "ops/conv.h"
#include "ops/winograd.h"
#include "passes/layout.h"

/* Products that take as long as: an element of a filter on its way from memory; a place of a tile that a transform
 * stores and the next kernel loads. Estimates, by times of `kvasir profile` on Zen 4. */
enum { PRODUCTS_OF_WEIGHT = 25, PRODUCTS_OF_PLACE = 12 };
enum { KERNEL = KVA_WINOGRAD_KERNEL, EXTENT = KVA_WINOGRAD_EXTENT, PLACES = KVA_WINOGRAD_PLACES };

static bool suits(const kva_layout *l, const kva_node *n) {
  if (!l->target || !l->target->relaxed_math || !kva_layout_suits(l, n)) return false;
  const kva_conv_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  kva_window window = kva_conv_window(w, a->strides, a->pads, a->dilations);
  if (window.n != 2 || a->group != 1 || w->dtype != KVA_F32) return false;
  for (uint32_t d = 0; d < window.n; d++) {
    if (window.kernel[d] != KERNEL || window.stride[d] != 1 || window.dilation[d] != 1) return false;
    if (window.before[d] >= EXTENT || window.after[d] >= EXTENT) return false;
  }
  return kva_layout_panel(l, kva_type_extent(w, 0), PLACES) > 0;
}

double kva_layout_winograd_gain(const kva_layout *l, const kva_node *n) {
  if (!suits(l, n)) return 0;
  const kva_type *w = kva_operand_type(n, 1), *y = n->results[0].type;
  int64_t images = 1, rows = kva_type_extent(y, 2), columns = kva_type_extent(y, 3);
  kva_expr_is_const(y->dims[0], &images);
  double tiles = (double)(images * kva_winograd_tiles_for(rows) * kva_winograd_tiles_for(columns));
  double filters = (double)kva_type_extent(w, 0), channels = (double)kva_type_extent(w, 1);
  double saved = KERNEL * KERNEL * (double)(images * rows * columns) - PLACES * tiles;
  double weights = (PLACES - KERNEL * KERNEL) * PRODUCTS_OF_WEIGHT;
  return filters * channels * (saved - weights) - (filters + channels) * PLACES * tiles * PRODUCTS_OF_PLACE;
}

/* ---- filters ----------------------------------------------------------------------------------------------------- */

/* u = G w G'; elements of u are `step` apart. */
static void transform(const float *w, float *u, int64_t step) {
  double rows[EXTENT][KERNEL];
  for (int i = 0; i < EXTENT; i++)
    for (int j = 0; j < KERNEL; j++) {
      rows[i][j] = 0;
      for (int k = 0; k < KERNEL; k++) rows[i][j] += kva_winograd_filter[i][k] * (double)w[k * KERNEL + j];
    }
  for (int i = 0; i < EXTENT; i++)
    for (int j = 0; j < EXTENT; j++) {
      double sum = 0;
      for (int k = 0; k < KERNEL; k++) sum += rows[i][k] * kva_winograd_filter[j][k];
      u[(i * EXTENT + j) * step] = (float)sum;
    }
}

/* What filters are: the same elements, or one number and how many. */
typedef struct filters_key {
  const void *data; /* NULL: one number */
  double x;
  int64_t filters, channels;
} filters_key;

static filters_key key_of(const kva_value *w) {
  const kva_tensor_data *t = kva_constant_of(w);
  filters_key key = {t ? t->data : NULL, 0, kva_type_extent(w->type, 0), kva_type_extent(w->type, 1)};
  if (!t) kva_layout_uniform(w, &key.x);
  return key;
}

/* [36 M / panel, 1, C, panel]: filter m of a place is number place * M + m. */
static const kva_tensor_data *transformed(kva_layout *l, const kva_value *w, int64_t panel) {
  const filters_key key = key_of(w);
  int64_t M = key.filters, C = key.channels, dims[] = {PLACES * M / panel, 1, C, panel};
  kva_tensor_data *to = kva_map_get(l->transformed, &key, sizeof key);
  if (to) return to;
  to = kva_layout_room(l, KVA_F32, sizeof dims / sizeof *dims, dims);
  float *data = (float *)(uintptr_t)to->data, same[KERNEL * KERNEL];
  for (int k = 0; k < KERNEL * KERNEL; k++) same[k] = (float)key.x;
  for (int64_t i = 0; i < M * C; i++) {
    const float *from = key.data ? (const float *)key.data + i * KERNEL * KERNEL : same;
    int64_t m = i / C, c = i % C;
    transform(from, data + (m / panel * C + c) * panel + m % panel, M * C);
  }
  kva_map_set(l->transformed, &key, sizeof key, to);
  return to;
}

static kva_value *filters_of(kva_layout *l, kva_builder *b, const kva_node *n) {
  const kva_value *w = kva_operand(n, 1);
  int64_t filters = kva_type_extent(w->type, 0);
  kva_value *panels = kva_const_tensor(b, transformed(l, w, kva_layout_panel(l, filters, PLACES)));
  kva_join_filters_attrs attrs = {.filters = kva_expr_const(l->m->exprs, PLACES * filters)};
  return kva_build(b, KVA_OP_join_filters, 1, &panels, &attrs);
}

/* ---- the node ---------------------------------------------------------------------------------------------------- */

/* The products of each place: [images, tiles, 36 C] -> [images, tiles, 36 M]. Tiles are positions of their image, so
 * that images stay apart (opt_batch.c). */
static kva_value *products(kva_layout *l, kva_builder *b, const kva_node *n, kva_value *tiles) {
  static const int64_t swapped[] = {0, 2, 1};
  kva_value *operands[] = {kva_transpose(b, tiles, swapped), filters_of(l, b, n)};
  return kva_transpose(b, kva_build(b, KVA_OP_conv, 2, operands, &(kva_conv_attrs){.group = PLACES}), swapped);
}

kva_value *kva_layout_winograd(kva_layout *l, kva_builder *b, const kva_node *n, kva_value *image) {
  const kva_type *y = n->results[0].type;
  kva_winograd_tiles_attrs window = {.pads = ((const kva_conv_attrs *)n->attrs)->pads};
  kva_value *tiles = kva_build(b, KVA_OP_winograd_tiles, 1, &image, &window);
  kva_value *sums = products(l, b, n, tiles);
  kva_winograd_sums_attrs size = {.rows = kva_type_extent(y, 2), .columns = kva_type_extent(y, 3)};
  return kva_build(b, KVA_OP_winograd_sums, 1, &sums, &size);
}
