/* The part of a matrix in memory that an item packs next is fetched to L2 while tiles are multiplied (tiles.c). The
 * contiguous pieces of a slice are too short for the hardware prefetcher. The last tiles before the packing fetch one
 * line of a factor in every step of the depth; lines fetched earlier would leave L2 again.
 *
 * Filters of a window are read where they lie: a slice of a row is a few lines, and in a gradient of the image those of
 * two steps are pages apart. Each tile fetches those of the next one, for every lead the lines where its taps begin. */
#include "codegen/kernels/cpu/contract/tile.h"
#include "ir/dialect_cpu.h"
#include "ops/ids.h"

enum { LINE = 64, MIN_TAPS = 4 };

/* Where packing goes on. */
typedef struct packing {
  const kva_expr *batch, *first_tile, *first_panel, *k0;
} packing;

static const kva_expr *either(const kva_tile *x, const kva_expr *turn, const kva_expr *if_0, const kva_expr *if_1) {
  return kva_tile_plus(x, if_0, kva_expr_mul(x->e, turn, kva_expr_sub(x->e, if_1, if_0)));
}

/* All panels of an item are packed together, slice by slice; those of the next item are not looked for. */
static packing next_slice(const kva_tile *x, const kva_expr *k0) {
  return (packing){x->batch, x->first_tile, x->first_panel, kva_expr_addi(x->e, k0, x->t.depth)};
}

/* Panels are packed one by one: the next one of the item, or where it has one alone, of the next slice or item. */
static packing next_panel(const kva_tile *x, const kva_expr *k0) {
  const kva_expr *next_k0 = kva_expr_addi(x->e, k0, x->t.depth);
  if (x->t.panels > 1)
    return (packing){x->batch, x->first_tile, kva_expr_addi(x->e, kva_tile_plus(x, x->first_panel, x->panel), 1), k0};
  int64_t all = kva_tile_all_steps(x);
  const kva_expr *last = kva_expr_div(x->e, next_k0, kva_tile_num(x, all)); /* 1 in the last slice */
  return (packing){.batch = either(x, last, x->batch, x->next_batch),
                   .first_panel = either(x, last, x->first_panel, x->next_panel),
                   .k0 = kva_expr_sub(x->e, next_k0, kva_tile_times(x, last, all))};
}

static const kva_expr *at_most(const kva_tile *x, const kva_expr *at, const kva_expr *extent) {
  return kva_expr_min(x->e, at, kva_expr_addi(x->e, extent, -1));
}

/* The line with the element, of which a guard selects zero past the edge. */
static void fetch(const kva_tile *x, kva_kval element) {
  while (element->op == KVA_K_select) element = element->args[1];
  if (element->op != KVA_K_LOAD || element->buf->space != KVA_K_PARAM) return;
  kva_cpu_prefetch(x->kb, element->buf, element->index);
}

static int64_t elements_of_line(const kva_tile *x) {
  return LINE * 8 / kva_dtype_bits(x->c->type);
}

/* Tiles from one packing to the next. The last ones, one for each line of a step, fetch. */
static int64_t tiles_between(const kva_tile *x) {
  return x->t.tiles * (x->together ? x->t.panels : 1);
}

static int64_t packed_rows(const kva_tile *x) {
  return x->t.tiles * x->t.tile_rows;
}

static int64_t packed_columns(const kva_tile *x) {
  return x->t.panel * (x->together ? x->t.panels : 1);
}

/* Of `elements` rows or columns that are packed: where the line begins that a tile fetches at step k. If memory is
 * contiguous along the depth, a line has several steps of one of them, and as many steps fetch those of one each: from
 * *k on, which becomes a multiple. */
static const kva_expr *line_of(const kva_tile *x, int64_t elements, bool along_depth, const kva_expr *tile,
                               const kva_expr **k) {
  int64_t of_line = elements_of_line(x), lines = kva_ceil_div(elements, of_line);
  const kva_expr *number = kva_expr_addi(x->e, tile, lines - tiles_between(x));
  const kva_expr *first = kva_tile_times(x, kva_expr_max(x->e, number, kva_tile_num(x, 0)), of_line);
  if (!along_depth) return first;
  const kva_expr *of_group = kva_expr_mod(x->e, *k, kva_tile_num(x, of_line));
  *k = kva_expr_sub(x->e, *k, of_group);
  return kva_tile_plus(x, first, of_group);
}

/* A matrix in memory that does not stay in the caches anyway. */
static bool comes_from_memory(const kva_tile *x, uint32_t operand) {
  const kva_value *v = kva_tile_in_memory(x, operand);
  return v && v->type->dtype == x->c->type && kva_tile_is_large(x, v);
}

static void fetch_rows(const kva_tile *x, const packing *p, const kva_expr *tile, const kva_expr *k) {
  const kva_expr *row = line_of(x, packed_rows(x), false, tile, &k), *zero = kva_tile_num(x, 0);
  row = kva_tile_plus(x, kva_tile_times(x, p->first_tile, x->t.tile_rows), row);
  kva_contract_at at = {.batch = p->batch,
                        .k = at_most(x, kva_tile_plus(x, p->k0, k), x->c->depth),
                        .lead = zero,
                        .row = at_most(x, row, x->c->rows),
                        .tap = zero};
  fetch(x, x->c->a(x->c, &at));
}

static void fetch_columns(const kva_tile *x, const packing *p, const kva_expr *tile, const kva_expr *k) {
  const kva_expr *column = line_of(x, packed_columns(x), x->c->along_depth, tile, &k), *zero = kva_tile_num(x, 0);
  column = kva_tile_plus(x, kva_tile_times(x, p->first_panel, x->t.panel), column);
  kva_contract_at at = {.batch = p->batch,
                        .k = at_most(x, kva_tile_plus(x, p->k0, k), x->c->depth),
                        .lead = zero,
                        .phase = zero,
                        .line = zero,
                        .position = at_most(x, column, x->columns)};
  fetch(x, x->c->b(x->c, &at));
}

/* Products of floats whose parts are packed without more ado. */
static bool is_plain(const kva_tile *x) {
  const kva_contraction *c = x->c;
  int64_t depth;
  bool plain = kva_is(c->n, KVA_OP_matmul) && !c->any && !c->amx && !c->words && !c->panel && !x->factor_block;
  return plain && kva_dtype_is_float(c->type) && kva_expr_is_const(c->depth, &depth) && depth > 0;
}

bool kva_tile_fetches_panels(const kva_tile *x) {
  return is_plain(x) && x->c->along_depth && comes_from_memory(x, 1);
}

/* Slices of both factors are packed for all panels of an item. */
static bool fetches_slices(const kva_tile *x) {
  return is_plain(x) && x->c->across_rows && x->together && !x->one_slice;
}

static const kva_expr *tile_between(const kva_tile *x, const kva_expr *tile_of_block) {
  return x->together ? kva_tile_plus(x, kva_tile_times(x, x->panel, x->t.tiles), tile_of_block) : tile_of_block;
}

kva_kval kva_tile_fetches(const kva_tile *x, const kva_expr *tile_of_block) {
  bool columns = kva_tile_fetches_panels(x) || (fetches_slices(x) && comes_from_memory(x, 1));
  bool rows = fetches_slices(x) && comes_from_memory(x, 0);
  if (!columns && !rows) return NULL;
  int64_t most = columns ? packed_columns(x) : 0;
  if (rows && packed_rows(x) > most) most = packed_rows(x);
  const kva_expr *first = kva_tile_num(x, tiles_between(x) - kva_ceil_div(most, elements_of_line(x)));
  return kva_k_index_lt(x->kb, kva_expr_addi(x->e, first, -1), tile_between(x, tile_of_block));
}

void kva_tile_fetch(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *k0, const kva_expr *k) {
  const kva_expr *tile = tile_between(x, tile_of_block);
  if (kva_tile_fetches_panels(x)) {
    packing p = next_panel(x, k0);
    fetch_columns(x, &p, tile, k);
    return;
  }
  packing p = next_slice(x, k0);
  if (comes_from_memory(x, 1)) fetch_columns(x, &p, tile, k);
  if (comes_from_memory(x, 0)) fetch_rows(x, &p, tile, k);
}

/* With few taps, a line has many steps. */
bool kva_tile_fetches_filters(const kva_tile *x) {
  const kva_contraction *c = x->c;
  bool filters = c->leads * c->taps >= MIN_TAPS && !c->along_depth && !c->amx && !c->across_rows && !c->words;
  return filters && comes_from_memory(x, 1);
}

void kva_tile_fetch_filters(const kva_tile *x, const kva_expr *row, const kva_expr *k, const kva_expr *lead) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, x->t.tile_rows), "r");
  const kva_expr *next = kva_tile_plus(x, row, kva_expr_addi(x->e, r->var, x->t.tile_rows));
  kva_contract_at at = {
      .batch = x->batch, .k = k, .lead = lead, .row = at_most(x, next, x->c->rows), .tap = kva_tile_num(x, 0)};
  fetch(x, x->c->a(x->c, &at));
  kva_k_loop_end(x->kb, r);
}
