/* Shapes of tiles and items of contractions (tiles.c), from what the target says of itself. A step of a tile takes as
 * long as its products, or as its part of the panel takes from L2; tiles past the edges cost as much as others. Packing
 * costs some cycles for each vector of b and block of rows, and for each vector of a and item's columns; so items are
 * large, but every core gets several. */
#include "codegen/kernels/cpu/contract/tile.h"
#include "ir/dialect_amx.h"
#include "ops/ids.h"

#include <math.h>

enum {
  PRODUCTS_PER_CYCLE = 2,  /* of vectors */
  PACKING_CYCLES = 4,      /* of a vector in L2 */
  FAR_CYCLES = 14,         /* of one beyond it */
  WINDOW_CYCLES = 12,      /* of one that lines of an image make, or a transposed matrix */
  AMX_SPEED = 8,           /* times as many with AMX, by words */
  ITEM_PRODUCTS = 1 << 11, /* vectors of products in the time that starting an item takes */
  MAX_STEPS = 1024,        /* of a slice */
  MAX_WINDOW_PRODUCTS = 384,
  MAX_BLOCK_ROWS = 512,
  MAX_AMX_ROWS = 288, /* where a is packed, too, and columns, so that slices are not short */
  MAX_AMX_COLUMNS = 256,
  MIN_ACROSS_STEPS = 128, /* of a slice where memory is contiguous along rows of a: parts of both factors fit half of */
  MAX_ACROSS_STEPS = 240, /* L2; where that is small, slices are shorter, so that an item has rows and columns enough */
  L2_OF_STEP = 4096,      /* bytes */
  MAX_ACROSS_L2 = 2 << 20,
  LINE = 64,
  MAX_PANELS = 16,
  MAX_PACKED = 1 << 16,       /* elements of b */
  MAX_ROWS_PACKED = 80 << 10, /* elements of a, and of a block between slices */
  MAX_ACROSS_BLOCK = 144 << 10,
  BLOCK_STEPS = 8, /* blocks with a factor in common are a multiple of it, which is a group of the loops for few rows */
  MAX_BLOCK = 256, /* and fit a slice */
};

/* Cycles of a step that no product hides: for a vector of the panel, if a is packed; else for a row of a, which is a
 * stream of its own. */
#define VECTOR_CYCLES 0.25
#define STREAM_CYCLES 0.05

/* Of the time of a panel that is no whole number of turns: what packing it takes longer. */
#define BROKEN_TURNS 1.06

/* ---- what is packed ---------------------------------------------------------------------------------------------- */

static bool is_window(const kva_contraction *c) {
  return c->leads * c->taps > 1;
}

bool kva_tiling_packs_a(const kva_contraction *c) {
  return c->across_rows || c->amx;
}

/* Vectors of a are packed as they lie in memory. */
static bool is_across(const kva_contraction *c) {
  return c->across_rows && !c->amx;
}

kva_dim kva_tiling_columns(const kva_contraction *c) {
  return kva_expr_mul(c->l->kb->exprs, c->lines, c->line);
}

int64_t kva_tiling_reach(const kva_contraction *c) {
  return (c->taps - 1) * c->spread / c->stride;
}

int64_t kva_tiling_phases(const kva_contraction *c) {
  return c->spread == 1 && c->taps < c->stride ? c->taps : c->stride;
}

static bool is_one(void *user, const kva_expr *symbol, int64_t *out_v) {
  (void)user, (void)symbol;
  *out_v = 1;
  return true;
}

/* What is known of a contraction's extents. */
typedef struct extents {
  int64_t rows, columns, depth, batch; /* 0: not known; of columns those of one image, if only the batch is not known */
} extents;

static extents extents_of(const kva_contraction *c) {
  extents n = {0};
  if (!kva_expr_is_const(c->rows, &n.rows)) n.rows = 0;
  if (!kva_expr_is_const(kva_tiling_columns(c), &n.columns)) n.columns = 0;
  if (!kva_expr_is_const(c->depth, &n.depth)) n.depth = 0;
  if (!kva_expr_is_const(c->batch, &n.batch)) n.batch = 0;
  return n;
}

static double step_cycles(const kva_contraction *c, int64_t rows, int64_t vectors) {
  double rest = c->across_rows ? VECTOR_CYCLES * (double)vectors : STREAM_CYCLES * (double)rows;
  return kva_contract_step_cycles(c->l->target, kva_contract_block_type(c), rows, vectors) + rest;
}

/* Cycles of a step of all tiles; where rows are not known, of a row in full tiles. */
static double tiles_cycles(const kva_contraction *c, const extents *n, int64_t columns, int64_t rows, int64_t vectors) {
  int64_t lanes = kva_target_lanes(c->l->target, c->type);
  double cycles = step_cycles(c, rows, vectors) * (double)kva_ceil_div(columns, vectors * lanes);
  return n->rows ? cycles * (double)kva_ceil_div(n->rows, rows) : cycles / (double)rows;
}

static int64_t widest_tile(const kva_contraction *c) {
  int64_t of_panels = kva_panel_vectors(c->l->target);
  return of_panels > 2 || c->panel ? of_panels : 3;
}

/* Memory of b has panels that are no wider than a tile, of elements or words as products take them: others are made
 * once a block of rows, when it is packed. */
bool kva_tiling_in_place(const kva_contraction *c) {
  const kva_value *b = kva_operand(c->n, 1);
  bool words = c->words && c->type == KVA_I32 && b->def && kva_is(b->def, KVA_OP_unpack);
  bool elements = !c->words && b->type->dtype == c->type && b->def && kva_is(b->def, KVA_OP_join_panels);
  int64_t lanes = kva_target_lanes(c->l->target, c->type);
  if (!c->panel || c->amx || !(words || elements)) return false;
  return c->panel % lanes == 0 && c->panel <= widest_tile(c) * lanes;
}

/* A narrower tile is chosen if it takes less than this share of the time. Panels that are no whole lines share lines of
 * b and of the result with their neighbours. */
static double share_to_beat(const kva_contraction *c, int64_t vectors) {
  return vectors * c->l->target->vector_bytes % LINE ? 1.02 : 0.999;
}

/* Panels of whole turns are packed without arithmetic for each column (pack.c). */
static double packing_share(const kva_contraction *c, int64_t panel) {
  return c->turn > 1 && panel % c->turn ? BROKEN_TURNS : 1;
}

/* The widest and highest tile among the fastest; as wide as panels that it reads in place. Where columns are a multiple
 * of a symbol, as the positions of a batch of images are: for those of one. */
static void choose_tile(const kva_contraction *c, const extents *n, kva_tiling *t) {
  int64_t lanes = kva_target_lanes(c->l->target, c->type), columns = n->columns, widest = widest_tile(c);
  double least = INFINITY;
  if (c->amx) {
    *t = (kva_tiling){.vectors = KVA_AMX_BLOCK / lanes, .panel = KVA_AMX_BLOCK, .tile_rows = KVA_AMX_BLOCK};
    return;
  }
  t->vectors = widest, t->tile_rows = kva_contract_most_rows(c->l->target, kva_contract_block_type(c), widest);
  if (!columns && (!kva_expr_eval(kva_tiling_columns(c), is_one, NULL, &columns) || columns < lanes))
    columns = widest * lanes;
  for (int64_t v = widest; v >= 1; v--) {
    if (v > 1 && c->panel % (v * lanes)) continue; /* vectors would cross panels of memory */
    if (kva_tiling_in_place(c) && v * lanes != c->panel) continue;
    int64_t most = kva_contract_most_rows(c->l->target, kva_contract_block_type(c), v);
    if (n->rows && n->rows < most) most = n->rows;
    for (int64_t r = most; r >= 1 && (r == most || (n->rows && 2 * r >= most)); r--) {
      double cycles = tiles_cycles(c, n, columns, r, v) * packing_share(c, v * lanes);
      double share = v < t->vectors ? share_to_beat(c, t->vectors) : 0.999;
      if (cycles < share * least) least = cycles, t->vectors = v, t->tile_rows = r;
    }
  }
  t->panel = t->vectors * lanes;
}

int64_t kva_contract_block(const kva_contraction *c) {
  bool suits = !c->along_depth && c->factor_block % BLOCK_STEPS == 0 && c->factor_block <= MAX_BLOCK;
  return suits ? c->factor_block : 0;
}

/* Elements of both factors that are packed for a slice, if those of a are. */
static int64_t most_across(const kva_contraction *c) {
  int64_t l2 = c->l->target->l2_bytes < MAX_ACROSS_L2 ? c->l->target->l2_bytes : MAX_ACROSS_L2;
  return l2 / 2 / (kva_dtype_bits(c->type) / 8);
}

/* A packed panel takes at most a quarter of the L2 cache, and slices of the depth are equal. */
static void choose_depth(const kva_contraction *c, const extents *n, kva_tiling *t) {
  int64_t fit = c->l->target->l2_bytes / 4 / (t->panel * kva_dtype_bits(c->type) / 8);
  int64_t most = is_window(c) ? MAX_WINDOW_PRODUCTS : MAX_STEPS;
  int64_t step = c->leads * kva_tiling_phases(c) * (t->panel + kva_tiling_reach(c));
  t->depth = (fit < most ? fit : most) / (c->leads * c->taps);
  if (t->depth * step > MAX_PACKED) t->depth = MAX_PACKED / step;
  int64_t rows = t->tiles * t->tile_rows, columns = t->panels * t->panel;
  if (c->amx && t->depth * rows > MAX_ROWS_PACKED) t->depth = MAX_ROWS_PACKED / rows;
  if (c->amx && t->depth * columns > MAX_PACKED) t->depth = MAX_PACKED / columns;
  if (is_across(c) && t->depth * (rows + columns) > most_across(c)) t->depth = most_across(c) / (rows + columns);
  if (t->depth < 1) t->depth = 1;
  if (n->depth) t->depth = kva_ceil_div(n->depth, kva_ceil_div(n->depth, t->depth));
  if (c->amx) t->depth = kva_round_up(t->depth, kva_contract_amx_depth(c));
  if (kva_contract_block(c)) t->depth = kva_round_up(t->depth, kva_contract_block(c));
}

/* Rows of b lie in memory as a step takes them. */
static bool is_plain(const kva_contraction *c) {
  return !is_window(c) && !c->along_depth && kva_expr_is(c->lines, 1) && !c->factor_block && !c->panel;
}

/* Panels that are packed one by one read b in short pieces of its rows, each in another page of memory. */
bool kva_tiling_packs_together(const kva_contraction *c, const kva_tiling *t) {
  return is_plain(c) && t->panels > 1 && (is_across(c) || t->panels * t->panel * t->depth <= MAX_PACKED);
}

static int64_t across_steps(const kva_contraction *c) {
  int64_t steps = c->l->target->l2_bytes / L2_OF_STEP;
  if (steps < MIN_ACROSS_STEPS) return MIN_ACROSS_STEPS;
  return steps < MAX_ACROSS_STEPS ? steps : MAX_ACROSS_STEPS;
}

/* The panels of an item would be packed one by one, though rows of b allow otherwise. */
static bool parts_panels(const kva_contraction *c, const extents *n, const kva_tiling *t) {
  kva_tiling with_depth = *t;
  if (!is_plain(c) || t->panels == 1) return false;
  choose_depth(c, n, &with_depth);
  return !kva_tiling_packs_together(c, &with_depth);
}

/* The block between slices fits, and packed rows of a. */
static bool item_fits(const kva_contraction *c, const extents *n, const kva_tiling *t) {
  int64_t rows = t->tiles * t->tile_rows, columns = t->panels * t->panel;
  if (parts_panels(c, n, t)) return false;
  if (c->amx && (rows > MAX_AMX_ROWS || columns > MAX_AMX_COLUMNS)) return false;
  if (is_across(c) && (rows + columns) * across_steps(c) > most_across(c)) return false;
  return rows <= MAX_BLOCK_ROWS && rows * columns <= (is_across(c) ? MAX_ACROSS_BLOCK : MAX_ROWS_PACKED);
}

/* Cycles that a vector of a matrix of so many elements takes to pack. */
static double packing_cycles(const kva_contraction *c, int64_t elements) {
  bool far = elements * kva_dtype_bits(c->type) / 8 > c->l->target->l2_bytes / 2;
  return far ? FAR_CYCLES : PACKING_CYCLES;
}

/* What an item costs beside its products, as a share of them: packing, starting, and cores that wait for the last. */
static double overhead(const kva_contraction *c, const extents *n, const kva_tiling *t) {
  int64_t rows = t->tiles * t->tile_rows, columns = t->panels * t->panel, cores = c->l->target->cores;
  int64_t items = n->batch * kva_ceil_div(n->rows, rows) * kva_ceil_div(n->columns, columns);
  int64_t products =
      n->rows * kva_ceil_div(n->columns, t->panel) * t->vectors * n->depth * c->leads * c->taps * n->batch;
  bool shuffles = is_window(c) || c->along_depth;
  double of_b = shuffles ? WINDOW_CYCLES : packing_cycles(c, n->depth * n->columns);
  double of_a = kva_tiling_packs_a(c) ? packing_cycles(c, n->depth * n->rows) : 0;
  double speed = !c->amx ? 1 : c->words ? AMX_SPEED : AMX_SPEED / (double)KVA_AMX_PARTS;
  double packing = speed * PRODUCTS_PER_CYCLE * (of_a / (double)columns + of_b / (double)rows);
  double start = speed * (double)(items * ITEM_PRODUCTS) / (double)products;
  double wait = (double)(kva_round_up(items, cores) - items) / (double)items + 0.1 * (double)cores / (double)items;
  return packing + start + wait;
}

/* Panels of an item and tiles of its block. */
static void choose_item(const kva_contraction *c, const extents *n, kva_tiling *t) {
  bool known = n->rows && n->columns && n->depth && n->batch;
  int64_t tiles = n->rows ? kva_ceil_div(n->rows, t->tile_rows) : MAX_BLOCK_ROWS;
  int64_t panels = kva_ceil_div(n->columns, t->panel);
  double least = INFINITY;
  kva_tiling best = *t;
  best.panels = 1, best.tiles = 1;
  for (int64_t most = tiles < MAX_BLOCK_ROWS ? tiles : MAX_BLOCK_ROWS; most >= 1; most--) {
    t->tiles = kva_ceil_div(tiles, kva_ceil_div(tiles, most)); /* blocks are nearly equal */
    for (int64_t p = 1; p <= MAX_PANELS; p *= 2) {
      if (p > 1 && (!known || is_window(c) || c->any || (p - 1) * t->panel >= n->columns)) break;
      t->panels = known ? kva_ceil_div(panels, kva_ceil_div(panels, p)) : p;
      if (!item_fits(c, n, t)) break;
      double cost = known ? overhead(c, n, t) : 1 / (double)t->tiles;
      if (cost < least) least = cost, best = *t;
    }
  }
  *t = best;
}

kva_tiling kva_tiling_choose(const kva_contraction *c) {
  extents n = extents_of(c);
  kva_tiling t = {0};
  choose_tile(c, &n, &t);
  choose_item(c, &n, &t);
  choose_depth(c, &n, &t);
  return t;
}

static bool fits(const kva_contraction *c) {
  return c->leads * kva_tiling_phases(c) * (kva_tiling_choose(c).panel + kva_tiling_reach(c)) <= MAX_PACKED;
}

const char *kva_contract_refuses(const kva_contraction *c) {
  if (!kva_dtype_is_float(c->type) && !c->words) return "integers";
  if (c->by_elements) return "as well by elements";
  return fits(c) ? NULL : "panels larger than a stack";
}
