/* Tiles of contractions by AMX (ir/dialect_amx.h): how factors are packed in steps of KVA_AMX_WORDS words, and
 * products. Memory that is contiguous along the wrong axis goes through a square of words that registers transpose
 * (llvm_transpose.c). */
#include "codegen/kernels/cpu/contract/tile.h"
#include "ir/dialect_amx.h"

/* Tile of the block, step of AMX in the slice, row of the tile, word of the step. */
static const kva_expr *amx_a_at(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *step,
                                const kva_expr *row, const kva_expr *word) {
  const kva_expr *steps = kva_tile_plus(x, kva_tile_times(x, tile_of_block, x->t.depth / KVA_AMX_WORDS), step);
  return kva_tile_plus(
      x, kva_tile_times(x, kva_tile_plus(x, kva_tile_times(x, steps, KVA_AMX_BLOCK), row), KVA_AMX_WORDS), word);
}

static kva_kval a_of(const kva_tile *x, const kva_expr *row, const kva_expr *k) {
  kva_contract_at at = {.batch = x->batch, .k = k, .lead = kva_tile_num(x, 0), .row = row, .tap = kva_tile_num(x, 0)};
  return x->c->a(x->c, &at);
}

/* A step of a tile, whose first row is `row`: memory is contiguous along the depth. */
static void pack_amx_along(const kva_tile *x, const kva_expr *row, const kva_expr *k, const kva_expr *to) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_rows(x, row), "r");
  kva_kloop *w = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, KVA_AMX_WORDS), "w");
  const kva_expr *at = kva_tile_plus(x, kva_tile_plus(x, to, kva_tile_times(x, r->var, KVA_AMX_WORDS)), w->var);
  kva_k_store(x->kb, x->packed_a, at, a_of(x, kva_tile_plus(x, row, r->var), kva_tile_plus(x, k, w->var)));
  kva_k_loop_end(x->kb, w);
  kva_k_loop_end(x->kb, r);
}

/* x->square, rows of KVA_AMX_BLOCK or KVA_AMX_WORDS words, transposed to rows of the other length. */
static void transpose_square(const kva_tile *x, bool to_words, kva_kbuf *to, const kva_expr *first) {
  int64_t from_row = to_words ? KVA_AMX_BLOCK : KVA_AMX_WORDS, to_row = to_words ? KVA_AMX_WORDS : KVA_AMX_BLOCK;
  kva_kloop *h = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, KVA_AMX_BLOCK / KVA_AMX_WORDS), "h");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, KVA_AMX_WORDS), "j");
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, KVA_AMX_WORDS), "u");
  const kva_expr *half = kva_tile_times(x, h->var, KVA_AMX_WORDS), *line = j->var, *column = u->var;
  if (to_words)
    column = kva_tile_plus(x, half, column);
  else
    line = kva_tile_plus(x, half, line);
  kva_kval v = kva_k_load(x->kb, x->square, kva_tile_plus(x, kva_tile_times(x, line, from_row), column));
  kva_k_store(x->kb, to, kva_tile_plus(x, kva_tile_plus(x, first, kva_tile_times(x, column, to_row)), line), v);
  kva_k_loop_end(x->kb, u);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, h);
}

/* The same where it is contiguous along the rows. */
static void pack_amx_across(const kva_tile *x, const kva_expr *row, const kva_expr *k, const kva_expr *to) {
  kva_kloop *w = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, KVA_AMX_WORDS), "w");
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_rows(x, row), "r");
  const kva_expr *at = kva_tile_plus(x, kva_tile_times(x, w->var, KVA_AMX_BLOCK), r->var);
  kva_k_store(x->kb, x->square, at, a_of(x, kva_tile_plus(x, row, r->var), kva_tile_plus(x, k, w->var)));
  kva_k_loop_end(x->kb, r);
  kva_k_loop_end(x->kb, w);
  transpose_square(x, true, x->packed_a, to);
}

/* The block's rows of a for a slice, for AMX. */
void kva_amx_pack_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->tiles, "i");
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_div(x->e, slice, kva_tile_num(x, KVA_AMX_WORDS)), "s");
  const kva_expr *zero = kva_tile_num(x, 0), *k = kva_tile_plus(x, k0, kva_tile_times(x, s->var, KVA_AMX_WORDS));
  const kva_expr *to = amx_a_at(x, i->var, s->var, zero, zero);
  (x->c->across_rows ? pack_amx_across : pack_amx_along)(x, kva_tile_first_row(x, i->var), k, to);
  kva_k_loop_end(x->kb, s);
  kva_k_loop_end(x->kb, i);
}

/* The panel's part of b where memory is contiguous along the depth, for AMX. */
void kva_amx_pack_columns(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_div(x->e, slice, kva_tile_num(x, KVA_AMX_WORDS)), "s");
  const kva_expr *step = kva_tile_times(x, s->var, KVA_AMX_WORDS);
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, KVA_AMX_BLOCK), "j");
  kva_kloop *w = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, KVA_AMX_WORDS), "w");
  kva_contract_at at = {.batch = x->batch,
                        .k = kva_tile_plus(x, kva_tile_plus(x, k0, step), w->var),
                        .lead = kva_tile_num(x, 0),
                        .phase = kva_tile_num(x, 0)};
  kva_kval v = kva_tile_element(x, x->c->b, &at, kva_tile_plus(x, x->col0, j->var));
  kva_k_store(x->kb, x->square, kva_tile_plus(x, kva_tile_times(x, j->var, KVA_AMX_WORDS), w->var), v);
  kva_k_loop_end(x->kb, w);
  kva_k_loop_end(x->kb, j);
  transpose_square(x, false, x->packed, kva_tile_segment(x, step, kva_tile_num(x, 0), kva_tile_num(x, 0)));
  kva_k_loop_end(x->kb, s);
}

static void amx(const kva_tile *x, kva_intrinsic_id op, const kva_kplace *places, int32_t kind) {
  kva_kintrinsic m = {.op = op, .numbers = {kind}};
  for (uint32_t i = 0; places && i < KVA_K_MAX_PLACES; i++) m.places[i] = places[i];
  kva_k_intrinsic(x->kb, &m, NULL);
}

void kva_amx_multiply(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *slice) {
  const kva_contraction *c = x->c;
  const kva_expr *zero = kva_tile_num(x, 0), *steps = kva_expr_div(x->e, slice, kva_tile_num(x, KVA_AMX_WORDS));
  const kva_kplace sums[KVA_K_MAX_PLACES] = {{x->block, kva_tile_block(x, tile_of_block, zero, zero)}};
  int32_t kind = c->type == KVA_F32 ? KVA_AMX_BF16 : c->b_unsigned ? KVA_AMX_SIGNED_UNSIGNED : KVA_AMX_UNSIGNED_SIGNED;
  amx(x, x->one_slice ? KVA_AMX_amx_clear : KVA_AMX_amx_load, x->one_slice ? NULL : sums, 0);
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, steps, "k");
  const kva_kplace factors[KVA_K_MAX_PLACES] = {
      {x->packed_a, amx_a_at(x, tile_of_block, k->var, zero, zero)},
      {x->packed, kva_tile_segment(x, kva_tile_times(x, k->var, KVA_AMX_WORDS), zero, zero)}};
  amx(x, KVA_AMX_amx_step, factors, kind);
  kva_k_loop_end(x->kb, k);
  amx(x, KVA_AMX_amx_store, sums, 0);
}

void kva_amx_begin(const kva_tile *x) {
  amx(x, KVA_AMX_amx_begin, NULL, 0);
}

void kva_amx_end(const kva_tile *x) {
  amx(x, KVA_AMX_amx_end, NULL, 0);
}
