/* winograd_tiles and winograd_sums (ops/winograd.h): an iteration for each tile and channel, channels innermost, so
 * that they are lanes. It has the whole tile in registers: each axis is transformed on its own, a factor that is zero
 * costs nothing. */
#include "codegen/kernels/kernels.h"
#include "ops/element.h"
#include "ops/winograd.h"

enum { STEP = KVA_WINOGRAD_STEP, EXTENT = KVA_WINOGRAD_EXTENT, TILE_AXES = 4 };

typedef struct winograd {
  kva_lower *l;
  const kva_node *n;
  kva_kb *kb;
  kva_expr_ctx *e;
  kva_kloop *loops[TILE_AXES];
  const kva_expr *image, *row, *column, *channel; /* of the tile; row and column among tiles */
  int64_t across;                                 /* tiles side by side */
} winograd;

static const kva_expr *num(const winograd *w, int64_t v) {
  return kva_expr_const(w->e, v);
}

/* Loops over tiles of so many results, and channels. */
static winograd begin(kva_lower *l, const kva_node *n, const int64_t *results, kva_dim channels) {
  winograd w = {.l = l, .n = n, .kb = l->kb, .e = l->kb->exprs, .across = kva_winograd_tiles_for(results[1])};
  const kva_expr *vars[TILE_AXES];
  kva_dim extents[] = {kva_operand_type(n, 0)->dims[0], num(&w, kva_winograd_tiles_for(results[0])), num(&w, w.across),
                       channels};
  kva_nest_begin(l, KVA_K_PARALLEL, TILE_AXES, extents, w.loops, vars);
  w.image = vars[0], w.row = vars[1], w.column = vars[2], w.channel = vars[3];
  return w;
}

static void end(const winograd *w) {
  kva_nest_end(w->l, TILE_AXES, w->loops);
}

/* sum + factor * x; sum NULL: none yet. */
static kva_kval add_product(kva_kb *kb, double factor, kva_kval x, kva_kval sum) {
  kva_kval f = kva_k_const_f(kb, x->dtype, factor);
  if (!sum) return kva_k2(kb, KVA_K_mul, f, x);
  if (factor == 1) return kva_k2(kb, KVA_K_add, sum, x);
  return factor == -1 ? kva_k2(kb, KVA_K_sub, sum, x) : kva_k_op(kb, KVA_K_fma, f, x, sum);
}

/* The sum of factors[k] * x[k * step]. */
static kva_kval sum_of(const winograd *w, const double *factors, const kva_kval *x, int step) {
  kva_kval sum = NULL;
  for (int k = 0; k < EXTENT; k++)
    if (factors[k] != 0) sum = add_product(w->kb, factors[k], x[k * step], sum);
  return sum;
}

/* F x F' of an EXTENT x EXTENT matrix x, for a matrix F of `n` rows. */
static void transform(const winograd *w, int n, const double (*f)[EXTENT], const kva_kval *x, kva_kval *y) {
  kva_kval rows[EXTENT * EXTENT];
  for (int i = 0; i < n; i++)
    for (int j = 0; j < EXTENT; j++) rows[i * EXTENT + j] = sum_of(w, f[i], x + j, EXTENT);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) y[i * n + j] = sum_of(w, f[j], rows + (ptrdiff_t)i * EXTENT, 1);
}

/* Element i of the tile along an axis of the image, and whether it exists. */
static const kva_expr *in_image(const winograd *w, const kva_expr *tile, int64_t i, int64_t before, int64_t extent,
                                kva_kval *io_inside) {
  const kva_expr *at = kva_expr_addi(w->e, kva_expr_muli(w->e, tile, STEP), i - before);
  kva_kval after = kva_k_index_le(w->kb, num(w, 0), at), in = kva_k_index_lt(w->kb, at, num(w, extent));
  *io_inside = kva_k_and(w->kb, *io_inside, kva_k_and(w->kb, after, in));
  return at;
}

/* The channels of a tile at place (i, j). */
static void place_index(const winograd *w, int place, kva_dim channels, const kva_expr **idx) {
  idx[0] = w->image;
  idx[1] = kva_expr_add(w->e, kva_expr_muli(w->e, w->row, w->across), w->column);
  idx[2] = kva_expr_add(w->e, kva_expr_muli(w->e, channels, place), w->channel);
}

void kva_winograd_tiles_emit(kva_lower *l, const kva_node *n) {
  kva_winograd_image image = kva_winograd_image_of(n);
  kva_dim channels = kva_operand_type(n, 0)->dims[3];
  winograd w = begin(l, n, image.out, channels);
  kva_kval x[EXTENT * EXTENT], y[EXTENT * EXTENT];
  for (int k = 0; k < EXTENT * EXTENT; k++) {
    kva_kval inside = NULL;
    const kva_expr *row = in_image(&w, w.row, k / EXTENT, image.before[0], image.in[0], &inside);
    const kva_expr *column = in_image(&w, w.column, k % EXTENT, image.before[1], image.in[1], &inside);
    x[k] = kva_masked_operand(l, n, 0, (const kva_expr *[]){w.image, row, column, w.channel}, inside);
  }
  transform(&w, EXTENT, kva_winograd_tile, x, y);
  for (int k = 0; k < EXTENT * EXTENT; k++) {
    const kva_expr *idx[3];
    place_index(&w, k, channels, idx);
    l->store(l, n, 0, idx, y[k]);
  }
  end(&w);
}

void kva_winograd_sums_emit(kva_lower *l, const kva_node *n) {
  const kva_winograd_sums_attrs *a = n->attrs;
  kva_dim filters = n->results[0].type->dims[3];
  winograd w = begin(l, n, (const int64_t[]){a->rows, a->columns}, filters);
  kva_kval x[EXTENT * EXTENT], y[STEP * STEP];
  for (int k = 0; k < EXTENT * EXTENT; k++) {
    const kva_expr *idx[3];
    place_index(&w, k, filters, idx);
    x[k] = l->operand(l, n, 0, idx);
  }
  transform(&w, STEP, kva_winograd_sum, x, y);
  for (int k = 0; k < STEP * STEP; k++) {
    kva_kval inside = NULL;
    const kva_expr *row = in_image(&w, w.row, k / STEP, 0, a->rows, &inside);
    const kva_expr *column = in_image(&w, w.column, k % STEP, 0, a->columns, &inside);
    kva_kval before = kva_k_guard_begin(w.kb, inside);
    l->store(l, n, 0, (const kva_expr *[]){w.image, row, column, w.channel}, y[k]);
    kva_k_guard_end(w.kb, before);
  }
  end(&w);
}
