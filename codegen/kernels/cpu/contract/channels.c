/* Convolutions with output channels across lanes: filters lie in panels (kv.join_filters), images have the channels of
 * a position side by side (passes/layout.c).
 *
 *   acc[r][j] += x[position r moved by tap, c] * filter[panel][tap][c][j]     r unrolled, j in vectors
 *
 * for all taps and input channels: one long sum, in which a step reads one panel row in the order of memory and one
 * number of each position. Positions are a tile of rows x columns of the result, whose accumulators are registers.
 *
 * A kernel of one tap and stride 1 is a product of matrices: tiles are runs of positions of all images, which are read
 * from where they lie. So are windows of images with many channels last: taps that lie outside of the image for
 * all of a tile are left out, most of those that are far apart, and columns outside are masked, at both ends of a tile.
 * Others copy the part of an image that a block of the result reads, with the zeros around it, so that the taps of a
 * row and their channels are one run. It has the order of the image, so that copying moves vectors: channels last, or a
 * plane for each. Tiles at an edge move back inside: they compute some positions again, but store none twice.
 *
 * Of bytes a step takes four channels: a word of the image and one of each filter, whose product is dot4.
 *
 * Where each filter has an input channel of its own, panels and their channels are one, and the factor of the image is
 * a vector, too. Few products of an element hide no copying, so that all but short rows are read where they lie; a
 * patch has the channels of its item alone.
 *
 * An element is one sum in a fixed order of taps and channels, whatever the threads. Sums go through a block in memory
 * to the fused epilogue, so that its code is there once. */
#include "codegen/kernels/cpu/contract/contract.h"
#include "ir/dialect_cpu.h"
#include "ops/codes.h"
#include "ops/conv.h"
#include "ops/element.h"
#include "ops/ids.h"
#include "ops/matmul.h"

enum {
  AXES = 2,
  MAX_PATCH = 1 << 19, /* bytes of the copied part of an image, on a stack */
  MAX_POSITIONS = 224, /* of a block of a product */
  WANTED_ITEMS = 8,
  STREAMS = 4,
  FEW_TILES = 8,
  MAX_SHARES = 64,    /* tiles of a panel among which the next one's way from memory is divided */
  LINE_NUMBERS = 16,  /* of 32 bits in a cache line */
  MIN_PRODUCTS = 256, /* of an item for each element that it copies: its time is then a few percent */
};

typedef struct geometry {
  int64_t in[AXES], out[AXES]; /* of one spatial axis, the first ones are 1 */
  int64_t kernel[AXES], stride[AXES], dilation[AXES], before[AXES];
  int64_t channels, filters, groups; /* channels and filters of one group; depthwise, there is one, of one channel */
} geometry;

typedef struct tiling {
  int64_t rows, columns;             /* of a tile */
  int64_t block_rows, block_columns; /* of a block; of a product, columns are positions */
  int64_t panels, blocks;            /* of an item */
} tiling;

typedef struct channels {
  kva_lower *l;
  const kva_node *n;
  kva_kb *kb;
  kva_expr_ctx *e;
  geometry g;
  tiling t;
  uint32_t axes; /* spatial axes of the node */
  bool product, depthwise;
  bool direct;                          /* windows are read from where they lie */
  bool planes;                          /* a patch has a plane for each channel, as the image */
  kva_dtype sum;                        /* float, or int32 of bytes */
  int64_t word, size;                   /* channels that a step takes, bytes of one */
  int64_t vectors, panel, group_panels; /* panels of one group */
  int64_t patch_rows, patch_columns;
  kva_kbuf *patch, *acc, *block;
  /* of an item and a block of it */
  const kva_expr *image, *group, *first_panel, *n_panels;
  const kva_expr *begin[AXES], *end[AXES]; /* of the block's results */
  const kva_expr *origin[AXES];            /* the result at the patch's beginning */
  const kva_expr *before;                  /* rows of tiles that the panel had in earlier blocks */
} channels;

static const kva_expr *num(const channels *x, int64_t v) {
  return kva_expr_const(x->e, v);
}
static const kva_expr *plus(const channels *x, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(x->e, a, b);
}
static const kva_expr *minus(const channels *x, const kva_expr *a, const kva_expr *b) {
  return kva_expr_sub(x->e, a, b);
}
static const kva_expr *times(const channels *x, const kva_expr *a, int64_t v) {
  return kva_expr_muli(x->e, a, v);
}
static const kva_expr *least(const channels *x, const kva_expr *a, const kva_expr *b) {
  return kva_expr_min(x->e, a, b);
}
/* ---- what the node is -------------------------------------------------------------------------------------------- */

static geometry geometry_of(const kva_node *n) {
  const kva_conv_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0), *w = kva_operand_type(n, 1), *y = n->results[0].type;
  kva_window window = kva_conv_window(w, a->strides, a->pads, a->dilations);
  geometry g = {.in = {1, 1},
                .out = {1, 1},
                .kernel = {1, 1},
                .stride = {1, 1},
                .dilation = {1, 1},
                .channels = kva_type_extent(w, 1),
                .filters = kva_type_extent(w, 0) / a->group,
                .groups = a->group};
  for (uint32_t d = 0; d < window.n; d++) {
    uint32_t at = AXES - window.n + d;
    g.in[at] = kva_type_extent(x, 2 + d), g.out[at] = kva_type_extent(y, 2 + d);
    g.kernel[at] = window.kernel[d], g.stride[at] = window.stride[d];
    g.dilation[at] = window.dilation[d], g.before[at] = window.before[d];
  }
  return g;
}

/* Operand 0 is a view of memory whose last axis are the channels, in the same kernel. */
static bool has_channels_last(const channels *x) {
  const kva_value *v = kva_operand(x->n, 0);
  if (v->def && x->l->computes(x->l, v) && kva_is(v->def, KVA_OP_transpose)) return true;
  return x->g.in[0] * x->g.in[1] == 1;
}

static bool is_product(const channels *x) {
  const geometry *g = &x->g;
  for (int d = 0; d < AXES; d++)
    if (g->kernel[d] != 1 || g->stride[d] != 1 || g->before[d] || g->in[d] != g->out[d]) return false;
  return g->groups == 1 && !x->depthwise && has_channels_last(x);
}

enum {
  MIN_COLUMNS = 7, /* of a depthwise convolution */
  MIN_STEPS = 256, /* of a tap for each column of the image: what copying costs beside the loop over a window's row */
};

/* The image is memory with channels last, and its rows are long enough for tiles of one: then windows need not be
 * copied. Taps outside of the image are whole rows or columns of a window, which are left out, or belong to the first
 * and last columns of a tile. */
static bool reads_windows(const channels *x) {
  const kva_value *v = kva_operand(x->n, 0);
  if (x->product || x->word > 1 || !has_channels_last(x)) return false;
  if (!v->def || !x->l->computes(x->l, v) || x->l->computes(x->l, kva_operand(v->def, 0))) return false;
  if (x->depthwise) return x->g.dilation[0] == 1 && x->g.out[1] >= MIN_COLUMNS;
  bool window = x->g.kernel[0] * x->g.kernel[1] > 1 && x->g.channels * x->g.stride[1] >= MIN_STEPS;
  return window && x->g.out[1] >= kva_contract_most_rows(x->l->target, x->sum, x->vectors);
}

/* ---- tiling ------------------------------------------------------------------------------------------------------ */

/* From a result to the next in the patch, and in steps of the patch in the image. One tap leaves what it skips. */
static int64_t patch_stride(const channels *x, int axis) {
  return x->g.kernel[axis] == 1 ? 1 : x->g.stride[axis];
}
static int64_t image_step(const channels *x, int axis) {
  return x->g.stride[axis] / patch_stride(x, axis);
}

/* Elements of a patch for so many results. */
static int64_t patch_extent(const channels *x, int axis, int64_t results) {
  return (results - 1) * patch_stride(x, axis) + (x->g.kernel[axis] - 1) * x->g.dilation[axis] + 1;
}
/* Channels of a position in what an item reads. */
static int64_t pitch(const channels *x) {
  return x->depthwise ? x->t.panels * x->panel : x->g.channels;
}
static int64_t patch_elements(const channels *x, int64_t rows, int64_t columns) {
  return patch_extent(x, 0, rows) * patch_extent(x, 1, columns) * pitch(x);
}

/* A patch stays in the second cache beside panels. */
static int64_t most_copied(const channels *x) {
  int64_t fit = x->l->target->l2_bytes / 4;
  return (fit < MAX_PATCH ? fit : MAX_PATCH) / x->size;
}

static int64_t positions_known(const channels *x) {
  int64_t images = 1;
  kva_expr_is_const(x->n->results[0].type->dims[0], &images);
  return images * x->g.out[0] * x->g.out[1];
}

/* Cycles of one step of a tile's inner loop. A depthwise one loads a vector for every product, which takes longer than
 * sums wait for each other. */
static double tile_cycles(const channels *x, int64_t positions) {
  if (x->depthwise) return (double)(positions * x->vectors);
  double step = kva_contract_step_cycles(x->l->target, x->sum, positions, x->vectors);
  double image = kva_contract_rows_cycles(positions, pitch(x) * x->size);
  return image > step ? image : step;
}

/* A depthwise convolution in place: its factors are vectors, and the taps of a row are unrolled. */
static bool reads_vectors(const channels *x) {
  return x->direct && x->depthwise;
}

/* A row of the filters stays in registers while a window is read. */
static int64_t most_positions(const channels *x) {
  int64_t most = kva_contract_most_rows(x->l->target, x->sum, x->vectors);
  int64_t others = x->l->target->vector_registers / x->vectors - x->g.kernel[1] - 1;
  return reads_vectors(x) && others < most && others > 0 ? others : most;
}

/* The tile that computes least, counted in cycles; of equals the one of most columns. */
static bool choose_tile(channels *x) {
  int64_t most = most_positions(x);
  int64_t height = x->product || x->direct ? 1 : x->g.out[0], width = x->product ? positions_known(x) : x->g.out[1];
  double best = 0;
  for (int64_t c = most < width ? most : width; c >= 1; c--)
    for (int64_t r = 1; r * c <= most && r <= height; r++) {
      if (!x->product && !x->direct && patch_elements(x, r, c) > most_copied(x)) break;
      double cycles = (double)(kva_ceil_div(height, r) * kva_ceil_div(width, c)) * tile_cycles(x, r * c);
      if (best > 0 && cycles >= best) continue;
      best = cycles;
      x->t.rows = r, x->t.columns = c;
    }
  return best > 0;
}

/* Blocks of nearly equal height, at most `most`: whole tiles, or all. */
static int64_t even_block(int64_t all, int64_t most, int64_t tile) {
  if (most >= all) return all;
  most = most > tile ? most / tile * tile : tile;
  int64_t block = kva_round_up(kva_ceil_div(all, kva_ceil_div(all, most)), tile);
  return block < all ? block : all;
}

/* Of a depthwise convolution as many as a tile's patch has room for. */
static void choose_channels(channels *x) {
  x->t.panels = x->group_panels;
  while (patch_elements(x, x->t.rows, x->t.columns) > most_copied(x)) x->t.panels = kva_ceil_div(x->t.panels, 2);
}

static int64_t panel_bytes(const channels *x) {
  const geometry *g = &x->g;
  return g->kernel[0] * g->kernel[1] * g->channels * x->panel * x->size;
}

static int64_t blocks_known(const channels *x) {
  int64_t positions = x->g.out[0] * x->g.out[1], all = positions_known(x);
  if (x->product) return kva_ceil_div(all, x->t.block_columns);
  return all / positions * kva_ceil_div(x->g.out[0], x->t.block_rows) * kva_ceil_div(x->g.out[1], x->t.block_columns);
}

static int64_t items_known(const channels *x) {
  return kva_ceil_div(blocks_known(x), x->t.blocks) * x->g.groups * kva_ceil_div(x->group_panels, x->t.panels);
}

/* Blocks of fewer rows, until there are enough: those that copy little for what they compute. */
static void split_rows(channels *x) {
  int64_t all = x->product ? positions_known(x) : x->g.out[0], tile = x->product ? x->t.columns : x->t.rows;
  int64_t *rows = x->product ? &x->t.block_columns : &x->t.block_rows;
  int64_t overlap = x->product ? 0 : 2 * (x->g.kernel[0] - 1) * x->g.dilation[0];
  while (blocks_known(x) < WANTED_ITEMS && *rows > tile && *rows / 2 * x->g.stride[0] >= overlap)
    *rows = even_block(all, *rows / 2, tile);
}

/* The work of fewer panels is worth what a block copies. Depthwise, a panel reads channels of its own. */
static bool may_split_panels(const channels *x) {
  double copied = (double)patch_elements(x, x->t.block_rows, x->t.block_columns) / (double)pitch(x);
  double products = (double)(x->t.block_rows * x->t.block_columns * x->g.kernel[0] * x->g.kernel[1] * x->panel);
  if (x->t.panels == 1) return false;
  return x->depthwise || x->product || x->direct ||
         (double)kva_ceil_div(x->t.panels, 2) * products >= MIN_PRODUCTS * copied;
}

/* An item takes the panels that stay in the second cache, and all blocks, so that filters come there once; then less
 * of one or the other until there are enough items. Fewer panels read the image once more, fewer blocks all filters. */
static void share_out(channels *x) {
  int64_t fit = x->l->target->l2_bytes / 4 / panel_bytes(x), read[] = {0, 0};
  if (blocks_known(x) == 1) fit = x->group_panels; /* which read each panel once */
  if (!x->depthwise) x->t.panels = even_block(x->group_panels, fit > 1 ? fit : 1, 1);
  x->t.blocks = blocks_known(x);
  while (items_known(x) < WANTED_ITEMS) {
    read[0] =
        positions_known(x) * x->g.stride[0] * x->g.stride[1] * pitch(x) * kva_ceil_div(x->group_panels, x->t.panels);
    read[1] = x->group_panels * panel_bytes(x) / x->size * kva_ceil_div(blocks_known(x), x->t.blocks);
    bool panels = may_split_panels(x);
    if (!panels && x->t.blocks == 1) return;
    int64_t *less = panels && (x->t.blocks == 1 || read[0] < read[1]) ? &x->t.panels : &x->t.blocks;
    *less = kva_ceil_div(*less, 2);
  }
}

static void choose_product_blocks(channels *x) {
  int64_t most = x->l->target->l2_bytes / 2 / x->size / x->g.channels;
  if (most > MAX_POSITIONS) most = MAX_POSITIONS;
  x->t.block_rows = 1, x->t.block_columns = even_block(positions_known(x), most, x->t.columns);
}

static void choose_patch_blocks(channels *x) {
  const geometry *g = &x->g;
  tiling *t = &x->t;
  if (x->depthwise) choose_channels(x);
  int64_t most = g->out[1];
  while (most > t->columns && patch_elements(x, t->rows, most) > most_copied(x))
    most = kva_round_up(most / 2, t->columns);
  t->block_columns = even_block(g->out[1], most, t->columns);
  most = g->out[0];
  while (most > t->rows && patch_elements(x, most, t->block_columns) > most_copied(x)) most -= 1;
  t->block_rows = even_block(g->out[0], most, t->rows);
}

static void choose_direct_blocks(channels *x) {
  x->t.panels = x->group_panels;
  x->t.block_rows = x->g.out[0], x->t.block_columns = x->g.out[1];
}

static void choose_blocks(channels *x) {
  if (x->product)
    choose_product_blocks(x);
  else if (reads_vectors(x))
    choose_direct_blocks(x);
  else
    choose_patch_blocks(x);
  if (x->depthwise || x->group_panels * panel_bytes(x) <= x->l->target->l2_bytes / 2) split_rows(x);
  share_out(x);
  x->patch_rows = patch_extent(x, 0, x->t.block_rows), x->patch_columns = patch_extent(x, 1, x->t.block_columns);
}

static channels channels_of(kva_lower *l, const kva_node *n) {
  channels x = {.l = l, .n = n, .kb = l->kb, .e = l->kb->exprs, .g = geometry_of(n)};
  x.axes = n->results[0].type->rank - 2;
  x.panel = kva_panel_of(kva_operand(n, 1));
  x.t.panels = 1;
  x.depthwise = x.g.groups > 1 && x.g.channels == 1 && x.g.filters == 1;
  if (x.depthwise) x.g.filters = x.g.groups, x.g.groups = 1;
  x.sum = kva_k_compute_type(n->results[0].type->dtype);
  x.word = x.sum == KVA_I32 ? KVA_CODES_PER_WORD : 1;
  x.size = (int64_t)sizeof(float) / x.word;
  x.vectors = x.panel / kva_target_lanes(l->target, KVA_F32);
  x.group_panels = kva_ceil_div(x.g.filters, x.panel);
  x.product = is_product(&x);
  x.direct = reads_windows(&x);
  x.planes = !has_channels_last(&x) && x.word == 1 && x.g.channels > 1;
  return x;
}

/* ---- why not ----------------------------------------------------------------------------------------------------- */

const char *kva_cpu_channels_refuses(kva_lower *l, const kva_node *n) {
  const kva_value *w = kva_operand(n, 1);
  const kva_type *y = n->results[0].type;
  if (!kva_panel_of(w) || !l->computes(l, w)) return "filters not in panels";
  bool bytes = y->dtype == KVA_I32 && kva_are_of_both_signs(kva_operand_type(n, 0)->dtype, w->type->dtype);
  if (y->dtype != KVA_F32 && !bytes) return "not of float or bytes of both signs";
  if (y->rank - 2 > AXES) return "more than two spatial axes";
  if (!kva_type_is_static_from(y, 2) || !kva_type_is_static_from(kva_operand_type(n, 0), 1) ||
      !kva_type_is_static_from(w->type, 0))
    return "unknown extents";
  int64_t lanes = kva_target_lanes(l->target, KVA_F32), panel = kva_panel_of(w);
  if (panel % lanes || panel > 4 * lanes) return "panels of more than 4 vectors, or of no whole vectors";
  channels x = channels_of(l, n);
  if (x.g.groups > 1 && x.g.filters % panel) return "panels across groups";
  if (x.g.channels % x.word) return "a number of channels that is no multiple of the word size";
  if (x.g.out[0] * x.g.out[1] * x.g.channels == 0) return "no elements";
  return choose_tile(&x) ? NULL : "a window larger than a stack";
}

/* ---- the patch --------------------------------------------------------------------------------------------------- */

static const kva_expr *patch_at(const channels *x, const kva_expr *row, const kva_expr *column, const kva_expr *c) {
  const kva_expr *position = plus(x, times(x, row, x->patch_columns), column);
  if (x->planes) return plus(x, times(x, c, x->patch_rows * x->patch_columns), position);
  return plus(x, times(x, position, pitch(x)), c);
}

static const kva_expr *clamped(const channels *x, const kva_expr *index, int64_t n) {
  return least(x, kva_expr_max(x->e, index, num(x, 0)), num(x, n - 1));
}

/* And `inside`: the index on a spatial axis of the image exists. */
static kva_kval and_exists(const channels *x, kva_kval inside, const kva_expr *index, uint32_t axis) {
  inside = kva_k_and(x->kb, inside, kva_k_index_le(x->kb, num(x, 0), index));
  return kva_k_and(x->kb, inside, kva_k_index_lt(x->kb, index, num(x, x->g.in[axis])));
}

/* The index of operand 0 for an element of the patch, and whether it exists. A vector of which no lane exists has an
 * address inside nevertheless: a page that is not there costs processors much more than the load, although they raise
 * no fault. */
static kva_kval image_index(const channels *x, const kva_expr *const *at, const kva_expr *c, const kva_expr **idx) {
  kva_kval inside = NULL;
  bool last = has_channels_last(x);
  idx[0] = x->image;
  idx[1] = plus(x, x->depthwise ? times(x, x->first_panel, x->panel) : times(x, x->group, x->g.channels), c);
  if (x->depthwise) inside = kva_k_index_lt(x->kb, idx[1], num(x, x->g.filters));
  for (uint32_t d = 0; d < x->axes; d++) {
    uint32_t axis = AXES - x->axes + d;
    const kva_expr *begin = kva_expr_addi(x->e, times(x, x->origin[axis], x->g.stride[axis]), -x->g.before[axis]);
    idx[2 + d] = plus(x, begin, times(x, at[axis], image_step(x, (int)axis)));
    inside = and_exists(x, inside, idx[2 + d], axis);
    if (last || d + 1 < x->axes) idx[2 + d] = clamped(x, idx[2 + d], x->g.in[axis]);
  }
  return inside;
}

static void copy_element(const channels *x, const kva_expr *row, const kva_expr *column, const kva_expr *c) {
  const kva_expr *idx[KVA_MAX_RANK], *at[] = {row, column};
  kva_kval inside = image_index(x, at, c, idx);
  kva_k_store(x->kb, x->patch, patch_at(x, row, column, c), kva_masked_operand(x->l, x->n, 0, idx, inside));
}

/* Along whichever axis memory of the image is contiguous. */
static void copy_patch(const channels *x) {
  bool last = has_channels_last(x);
  kva_kloop *row = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, x->patch_rows), "row");
  kva_kloop *outer = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, last ? x->patch_columns : pitch(x)), "outer");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, last ? pitch(x) : x->patch_columns), "j");
  copy_element(x, row->var, last ? outer->var : j->var, last ? j->var : outer->var);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, outer);
  kva_k_loop_end(x->kb, row);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

typedef struct place {
  const kva_expr *panel;                    /* among all */
  const kva_expr *start[AXES], *from[AXES]; /* the first result that the tile stores, that it computes */
  const kva_expr *tap[AXES], *c;
  const kva_expr *tile; /* number among those of the panel */
} place;

typedef void (*tile_body)(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j, const place *p);
static void over_tile(const channels *x, tile_body body, const place *p) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_UNROLL, num(x, x->t.rows), "r");
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_UNROLL, num(x, x->t.columns), "q");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->panel), "j");
  body(x, r->var, q->var, j->var, p);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, q);
  kva_k_loop_end(x->kb, r);
}

/* The same of positions that are constants: whether a tap of one exists may be known. */
static void over_positions(const channels *x, tile_body body, const place *p) {
  for (int64_t i = 0; i < x->t.rows * x->t.columns; i++) {
    kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->panel), "j");
    body(x, num(x, i / x->t.columns), num(x, i % x->t.columns), j->var, p);
    kva_k_loop_end(x->kb, j);
  }
}

static const kva_expr *sum_at(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j) {
  return plus(x, times(x, plus(x, times(x, r, x->t.columns), q), x->panel), j);
}

static void clear_sum(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j, const place *p) {
  (void)p;
  kva_k_store(x->kb, x->acc, sum_at(x, r, q, j), kva_k_const(x->kb, x->sum, 0));
}

static void save_sum(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j, const place *p) {
  (void)p;
  kva_k_store(x->kb, x->block, sum_at(x, r, q, j), kva_k_load(x->kb, x->acc, sum_at(x, r, q, j)));
}

/* Image and index on the spatial axes of a position among those of all images. */
static void split_position(const channels *x, const kva_expr *position, const kva_expr **idx) {
  const kva_expr *plane = num(x, x->g.out[0] * x->g.out[1]), *width = num(x, x->g.out[1]);
  const kva_expr *in_image = kva_expr_mod(x->e, position, plane);
  idx[0] = kva_expr_div(x->e, position, plane);
  if (x->axes == AXES) idx[2] = kva_expr_div(x->e, in_image, width);
  idx[1 + x->axes] = kva_expr_mod(x->e, in_image, width);
}

/* Of an element of a window where it lies; its row exists. */
static kva_kval window_element(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j,
                               const place *p) {
  const kva_expr *idx[KVA_MAX_RANK] = {x->image}, *tile[] = {r, q};
  kva_kval inside = NULL;
  if (x->depthwise) {
    idx[1] = plus(x, times(x, p->panel, x->panel), j);
    inside = kva_k_index_lt(x->kb, idx[1], num(x, x->g.filters));
  } else {
    idx[1] = plus(x, times(x, x->group, x->g.channels), p->c);
  }
  for (uint32_t d = 0; d < x->axes; d++) {
    uint32_t axis = AXES - x->axes + d;
    const kva_expr *first = times(x, plus(x, p->from[axis], tile[axis]), x->g.stride[axis]);
    const kva_expr *at = plus(x, first, times(x, p->tap[axis], x->g.dilation[axis]));
    idx[2 + d] = kva_expr_addi(x->e, at, -x->g.before[axis]);
    if (axis == 0) continue;
    inside = and_exists(x, inside, idx[2 + d], axis);
    if (inside) idx[2 + d] = clamped(x, idx[2 + d], x->g.in[axis]);
  }
  return kva_masked_operand(x->l, x->n, 0, idx, inside);
}

static kva_kval image_element(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j,
                              const place *p) {
  if (x->direct) return window_element(x, r, q, j, p);
  if (x->product) {
    const kva_expr *idx[KVA_MAX_RANK];
    split_position(x, plus(x, p->from[1], q), idx);
    idx[1] = p->c;
    return x->l->operand(x->l, x->n, 0, idx);
  }
  const kva_expr *at[AXES], *tile[] = {r, q};
  for (int d = 0; d < AXES; d++) {
    const kva_expr *result = plus(x, minus(x, p->from[d], x->origin[d]), tile[d]);
    at[d] = plus(x, times(x, result, patch_stride(x, d)), times(x, p->tap[d], x->g.dilation[d]));
  }
  const kva_expr *c = x->depthwise ? plus(x, times(x, minus(x, p->panel, x->first_panel), x->panel), j) : p->c;
  return kva_k_load(x->kb, x->patch, patch_at(x, at[0], at[1], c));
}

static kva_kval filter_element(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j,
                               const place *p) {
  (void)r, (void)q;
  const kva_expr *idx[KVA_MAX_RANK] = {plus(x, times(x, p->panel, x->panel), j), p->c};
  for (uint32_t d = 0; d < x->axes; d++) idx[2 + d] = p->tap[AXES - x->axes + d];
  return x->l->operand(x->l, x->n, 1, idx);
}

typedef kva_kval (*element_fn)(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j,
                               const place *p);

/* The elements from p's channel on. */
static kva_kval word_from(const channels *x, element_fn element, const kva_expr *r, const kva_expr *q,
                          const kva_expr *j, const place *p) {
  kva_kval word = kva_k_const(x->kb, KVA_I32, 0);
  for (int64_t i = 0; i < KVA_CODES_PER_WORD; i++) {
    place one = *p;
    one.c = kva_expr_addi(x->e, p->c, i);
    word = kva_contract_put_bits(x->kb, word, kva_contract_bits_of_byte(x->kb, element(x, r, q, j, &one)), 8 * i);
  }
  return word;
}

static kva_kval product_of(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j, const place *p,
                           kva_kval sum) {
  if (x->word == 1)
    return kva_lower_multiply_add(x->l, image_element(x, r, q, j, p), filter_element(x, r, q, j, p), sum);
  kva_kval a = word_from(x, image_element, r, q, j, p), b = word_from(x, filter_element, r, q, j, p);
  bool first = kva_operand_type(x->n, 0)->dtype == KVA_U8; /* dot4 takes the unsigned factor first */
  return kva_k_op(x->kb, KVA_K_dot4, first ? a : b, first ? b : a, sum);
}

/* The taps of a row of the window: neighbours share elements. */
static void add_row(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j, const place *p) {
  const kva_expr *at = sum_at(x, r, q, j);
  kva_kval sum = kva_k_load(x->kb, x->acc, at);
  for (int64_t w = 0; w < x->g.kernel[1]; w++) {
    place tap = *p;
    tap.tap[1] = num(x, w);
    sum = product_of(x, r, q, j, &tap, sum);
  }
  kva_k_store(x->kb, x->acc, at, sum);
}

/* Begins a loop over the taps along an axis of the window; of one in place, over those that exist for some result of
 * the tile. Those of columns 1 apart do nearly always. */
static kva_kloop *begin_taps(const channels *x, place *p, int axis) {
  const geometry *g = &x->g;
  const kva_expr *none = num(x, 0), *first = none, *end = num(x, g->kernel[axis]);
  if (x->direct && (axis == 0 || g->dilation[axis] > 1)) {
    int64_t last = (axis == 0 ? x->t.rows : x->t.columns) - 1;
    const kva_expr *apart = num(x, g->dilation[axis]);
    const kva_expr *top = kva_expr_addi(x->e, times(x, p->from[axis], g->stride[axis]), -g->before[axis]);
    const kva_expr *missing = minus(x, none, kva_expr_addi(x->e, top, last * g->stride[axis]));
    first = kva_expr_ceildiv(x->e, kva_expr_max(x->e, none, missing), apart);
    end = least(x, end, kva_expr_ceildiv(x->e, minus(x, num(x, g->in[axis]), top), apart));
  }
  const kva_expr *n = kva_expr_max(x->e, none, minus(x, end, first));
  kva_kloop *tap = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n, axis == 0 ? "h" : "w");
  p->tap[axis] = plus(x, first, tap->var);
  return tap;
}

/* Of a depthwise convolution in place. */
static void add_rows(const channels *x, place *p) {
  kva_kloop *h = begin_taps(x, p, 0);
  p->c = num(x, 0);
  over_positions(x, add_row, p);
  kva_k_loop_end(x->kb, h);
}

static void add_product(const channels *x, const kva_expr *r, const kva_expr *q, const kva_expr *j, const place *p) {
  const kva_expr *at = sum_at(x, r, q, j);
  kva_k_store(x->kb, x->acc, at, product_of(x, r, q, j, p, kva_k_load(x->kb, x->acc, at)));
}

/* A panel comes from memory for its first tile, which would wait for it; so it is fetched while the tiles of the panel
 * before are computed, of which each fetches a part, a line a step at most. 0: tiles are too few for that, or so many
 * that the first one does not matter. */
static int64_t shares_of(const channels *x) {
  int64_t tiles = kva_ceil_div(x->t.block_rows, x->t.rows) * kva_ceil_div(x->t.block_columns, x->t.columns), n = 1;
  if (x->t.panels == 1) tiles *= x->t.blocks;
  while (2 * n <= tiles && x->panel % (2 * n) == 0) n *= 2;
  return !x->depthwise && tiles <= MAX_SHARES && x->panel / n <= LINE_NUMBERS ? n : 0;
}

/* The part of a tile at a step, among all steps; nothing behind the last panel, where no page need be. */
static void fetch_next_panel(const channels *x, const place *p, const kva_expr *step, int64_t steps) {
  int64_t shares = shares_of(x), all = x->g.groups * x->group_panels * steps * x->panel, extent;
  if (!shares) return;
  place next = *p;
  next.panel = kva_expr_addi(x->e, p->panel, 1);
  next.tap[0] = next.tap[1] = next.c = num(x, 0);
  kva_kval first = filter_element(x, NULL, NULL, next.c, &next);
  while (first->op != KVA_K_LOAD && first->n_args) first = first->args[0];
  if (first->op != KVA_K_LOAD || first->buf->space != KVA_K_PARAM) return;
  if (!kva_expr_is_const(first->buf->extent, &extent) || extent != all) return;
  const kva_expr *done = plus(x, times(x, least(x, p->tile, num(x, shares - 1)), steps), step);
  const kva_expr *at = plus(x, first->index, times(x, done, x->panel / shares));
  kva_cpu_prefetch(x->kb, first->buf, least(x, at, num(x, all - 1)));
}

/* Filters that few tiles read, and that come from memory, are read in several places at once: whatever a page's first
 * lines wait for, they wait together. Products of more rows keep the order of sums. */
static int64_t streams_of(const channels *x, int64_t steps) {
  if (x->product && positions_known(x) >= KVA_PANEL_ROWS) return 1;
  int64_t tiles = positions_known(x) / (x->t.rows * x->t.columns);
  bool large = x->group_panels * panel_bytes(x) > x->l->target->l2_bytes / 4;
  return large && tiles <= FEW_TILES && steps % STREAMS == 0 && !shares_of(x) ? STREAMS : 1;
}

/* Without dilation the taps of a row of the window and their channels are one run of the patch. */
static void add_products(const channels *x, place *p) {
  bool run = (x->g.dilation[1] == 1 && !x->planes && !x->direct) || x->g.kernel[1] == 1;
  int64_t steps = x->g.channels / x->word * (run ? x->g.kernel[1] : 1), streams = streams_of(x, steps);
  kva_kloop *h = begin_taps(x, p, 0), *w = run ? NULL : begin_taps(x, p, 1);
  kva_kloop *c = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, steps / streams), "c");
  const kva_expr *steps_here = num(x, x->g.channels / x->word);
  const kva_expr *column = run ? num(x, 0) : p->tap[1];
  const kva_expr *segment = plus(x, times(x, p->tap[0], run ? 1 : x->g.kernel[1]), column);
  if (streams == 1)
    fetch_next_panel(x, p, plus(x, times(x, segment, steps), c->var),
                     x->g.kernel[0] * (run ? 1 : x->g.kernel[1]) * steps);
  for (int64_t s = 0; s < streams; s++) {
    const kva_expr *step = kva_expr_addi(x->e, c->var, s * (steps / streams));
    p->tap[1] = run ? kva_expr_div(x->e, step, steps_here) : column;
    p->c = times(x, run ? kva_expr_mod(x->e, step, steps_here) : step, x->word);
    (x->direct ? over_positions : over_tile)(x, add_product, p);
  }
  kva_k_loop_end(x->kb, c);
  if (w) kva_k_loop_end(x->kb, w);
  kva_k_loop_end(x->kb, h);
}

static int64_t bytes_to_next(const channels *x) {
  const geometry *g = &x->g;
  int64_t row = g->filters * g->groups * x->size;
  return kva_contract_ahead(x->l->target, g->kernel[0] * g->kernel[1] * g->channels / x->word, positions_known(x) * row,
                            x->t.columns * row);
}

static void store_element(const channels *x, const place *p, const kva_expr *const *at, const kva_expr *j) {
  const kva_expr *idx[KVA_MAX_RANK], *moved[AXES], *where[AXES];
  for (int d = 0; d < AXES; d++) {
    where[d] = plus(x, p->start[d], at[d]);
    moved[d] = minus(x, where[d], p->from[d]);
  }
  if (x->product) {
    split_position(x, where[1], idx);
  } else {
    idx[0] = x->image;
    for (uint32_t d = 0; d < x->axes; d++) idx[2 + d] = where[AXES - x->axes + d];
  }
  idx[1] = plus(x, times(x, p->panel, x->panel), j);
  kva_kval sum = kva_k_load(x->kb, x->block, sum_at(x, moved[0], moved[1], j));
  x->kb->prefetch_bytes = bytes_to_next(x);
  x->l->store(x->l, x->n, 0, idx, sum);
  x->kb->prefetch_bytes = 0;
}

static void store_tile(const channels *x, const place *p) {
  const kva_expr *filters = num(x, x->g.filters * x->g.groups), *n[AXES];
  int64_t size[] = {x->t.rows, x->t.columns};
  for (int d = 0; d < AXES; d++) {
    n[d] = least(x, minus(x, plus(x, p->from[d], num(x, size[d])), p->start[d]), minus(x, x->end[d], p->start[d]));
  }
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n[0], "r");
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n[1], "q");
  const kva_expr *left = minus(x, filters, times(x, p->panel, x->panel));
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, least(x, num(x, x->panel), left), "j");
  store_element(x, p, (const kva_expr *[]){r->var, q->var}, j->var);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, q);
  kva_k_loop_end(x->kb, r);
}

static kva_dim results_of(const channels *x, int axis) {
  if (!x->product) return num(x, x->g.out[axis]);
  if (axis == 0) return num(x, 1);
  return times(x, x->n->results[0].type->dims[0], x->g.out[0] * x->g.out[1]);
}

/* The tile that begins at `start`, moved back inside. */
static void compute_tile(const channels *x, place *p) {
  int64_t size[] = {x->t.rows, x->t.columns};
  for (int d = 0; d < AXES; d++) {
    const kva_expr *last = kva_expr_addi(x->e, results_of(x, d), -size[d]);
    p->from[d] = least(x, p->start[d], last);
    if (p->from[d] != p->start[d]) p->from[d] = kva_k_name(x->kb, p->from[d], kva_expr_addi(x->e, last, 1));
  }
  over_tile(x, clear_sum, p);
  if (reads_vectors(x))
    add_rows(x, p);
  else
    add_products(x, p);
  over_tile(x, save_sum, p);
  store_tile(x, p);
}

static void compute_block(const channels *x) {
  const kva_expr *tiles[AXES];
  int64_t size[] = {x->t.rows, x->t.columns};
  for (int d = 0; d < AXES; d++) tiles[d] = kva_expr_ceildiv(x->e, minus(x, x->end[d], x->begin[d]), num(x, size[d]));
  bool last = reads_vectors(x);
  kva_kloop *panel = last ? NULL : kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->n_panels, "panel");
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, tiles[0], "i");
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, tiles[1], "k");
  if (last) panel = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->n_panels, "panel");
  place p = {
      .panel = plus(x, plus(x, times(x, x->group, x->group_panels), x->first_panel), panel->var),
      .start = {plus(x, x->begin[0], times(x, i->var, size[0])), plus(x, x->begin[1], times(x, k->var, size[1]))},
      .tile = plus(x, times(x, plus(x, x->before, i->var), kva_ceil_div(x->t.block_columns, size[1])), k->var)};
  compute_tile(x, &p);
  if (last) kva_k_loop_end(x->kb, panel);
  kva_k_loop_end(x->kb, k);
  kva_k_loop_end(x->kb, i);
  if (!last) kva_k_loop_end(x->kb, panel);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

/* Splits off the lowest mixed-radix digit: returns *io mod n and sets *io to *io div n. */
static const kva_expr *digit(const channels *x, const kva_expr **io, const kva_expr *n) {
  const kva_expr *v = kva_expr_mod(x->e, *io, n);
  *io = kva_expr_div(x->e, *io, n);
  return v;
}

static void place_block(channels *x, int axis, const kva_expr *number, int64_t size) {
  const kva_expr *all = results_of(x, axis);
  x->begin[axis] = times(x, number, size);
  x->end[axis] = least(x, plus(x, x->begin[axis], num(x, size)), all);
  x->origin[axis] = least(x, x->begin[axis], kva_expr_addi(x->e, all, -size));
}

/* The blocks of an item, one after the other. */
static void compute_item(channels *x, const kva_expr *first, const kva_expr *const *blocks, const kva_expr *all) {
  const kva_expr *n = least(x, num(x, x->t.blocks), minus(x, all, first));
  kva_kloop *block = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n, "block");
  const kva_expr *rest = plus(x, first, block->var);
  place_block(x, 1, digit(x, &rest, blocks[1]), x->t.block_columns);
  place_block(x, 0, digit(x, &rest, blocks[0]), x->t.block_rows);
  x->image = rest;
  x->before = times(x, block->var, x->t.panels == 1 ? kva_ceil_div(x->t.block_rows, x->t.rows) : 0);
  if (!x->product && !x->direct) copy_patch(x);
  compute_block(x);
  kva_k_loop_end(x->kb, block);
}

/* Consecutive items read the same part of the images. */
void kva_cpu_channels_emit(kva_lower *l, const kva_node *n) {
  channels x = channels_of(l, n);
  bool fits = choose_tile(&x);
  KVA_ASSERT(fits);
  choose_blocks(&x);
  const kva_expr *panel_groups = num(&x, kva_ceil_div(x.group_panels, x.t.panels)), *groups = num(&x, x.g.groups);
  const kva_expr *blocks[] = {kva_expr_ceildiv(x.e, results_of(&x, 0), num(&x, x.t.block_rows)),
                              kva_expr_ceildiv(x.e, results_of(&x, 1), num(&x, x.t.block_columns))};
  const kva_expr *all = kva_expr_mul(x.e, blocks[0], blocks[1]);
  if (!x.product) all = kva_expr_mul(x.e, all, n->results[0].type->dims[0]);
  if (!x.product && !x.direct)
    x.patch = kva_k_local(x.kb, "patch", kva_operand_type(n, 0)->dtype, x.patch_rows * x.patch_columns * pitch(&x));
  x.block = kva_k_local(x.kb, "block", x.sum, x.t.rows * x.t.columns * x.panel);
  x.acc = kva_k_local(x.kb, "acc", x.sum, x.t.rows * x.t.columns * x.panel);
  const kva_expr *items =
      kva_expr_mul(x.e, kva_expr_ceildiv(x.e, all, num(&x, x.t.blocks)), kva_expr_mul(x.e, panel_groups, groups));
  kva_kloop *item = kva_k_loop_begin(x.kb, KVA_K_GRID, items, "item");
  const kva_expr *rest = item->var;
  x.first_panel = times(&x, digit(&x, &rest, panel_groups), x.t.panels);
  x.n_panels = least(&x, num(&x, x.t.panels), minus(&x, num(&x, x.group_panels), x.first_panel));
  x.group = digit(&x, &rest, groups);
  compute_item(&x, times(&x, rest, x.t.blocks), blocks, all);
  kva_k_loop_end(x.kb, item);
}
