/* Tiles of contractions by AMX (ir/dialect_amx.h): how factors are packed in steps of the dialect, and products. Memory
 * that is contiguous along the wrong axis goes through squares of words that registers transpose (llvm_transpose.c).
 *
 * Floats are sums of KVA_AMX_PARTS bf16, x = x0 + x1 + x2: x0 is x rounded to bf16, x1 the rest rounded, x2 what is
 * left, which has eight bits at most; so |x1| <= 2^-8 |x|, |x2| <= 2^-16 |x|. Products of parts are exact, and those
 * that a step leaves out, x1 y2, x2 y1 and x2 y2, are together at most 2^-23 (1 + 2^-9) |x y|, two roundings of an FMA,
 * of which AMX makes fewer. That holds where no part is subnormal or infinite and no sum of parts flushes to 0: x is 0
 * or 2^-100 <= |x| < 2^48, y, too, and x y is 0 or at least 2^-100. So behind the words of a step is the least
 * magnitude of its elements but 0, or 0 if one is out of that range. A step whose magnitudes have a smaller product is
 * multiplied by FMAs: NaN, infinities and subnormal numbers are what they are everywhere. */
#include "codegen/kernels/cpu/contract/tile.h"
#include "ir/dialect_amx.h"

enum {
  BYTES = 4,   /* of a word */
  BEHIND = 16, /* words, so that steps begin at cache lines */
  LEAST_BITS = (127 - 100) << 23,
  LIMIT_BITS = (127 + 48) << 23,
};
#define LEAST 0x1p-100

static int64_t parts(const kva_contraction *c) {
  return c->words ? 1 : KVA_AMX_PARTS;
}

int64_t kva_amx_step(const kva_contraction *c) {
  return c->words ? KVA_AMX_PART : KVA_AMX_PARTS * KVA_AMX_PART + BEHIND;
}

/* A word's bytes lie side by side in memory, words of a row of a, or of a step of b, behind each other: what is packed
 * is a copy. */
static bool copies(const kva_contraction *c, bool is_b) {
  int64_t depth;
  if (!c->words || c->type != KVA_I32) return false;
  if (!kva_expr_is_const(c->words->depth, &depth) || depth % BYTES) return false;
  return is_b ? c->panel_word == BYTES && !c->along_depth : !c->across_rows;
}

kva_kbuf *kva_amx_local(const kva_tile *x, bool is_b, int64_t n) {
  bool bytes = copies(x->c, is_b);
  kva_dtype type = !bytes ? x->c->type : is_b ? x->c->b_type : x->c->a_type;
  return kva_k_local(x->kb, is_b ? "packed" : "packed_a", type, x->panel_packed * n * (bytes ? BYTES : 1));
}

/* A place in a packed factor, which is counted in words. */
static kva_kplace place_of(const kva_tile *x, kva_kbuf *packed, const kva_expr *word) {
  return (kva_kplace){packed, kva_tile_times(x, word, kva_dtype_bits(x->c->type) / kva_dtype_bits(packed->dtype))};
}

static const kva_expr *steps_of(const kva_tile *x, const kva_expr *slice) {
  return kva_expr_div(x->e, slice, kva_tile_num(x, kva_contract_amx_depth(x->c)));
}

/* Where a step of a tile of the block begins in x->packed_a, and one of the panel in x->packed. */
static const kva_expr *step_of_a(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *step) {
  const kva_expr *steps = kva_tile_times(x, tile_of_block, x->t.depth / kva_contract_amx_depth(x->c));
  return kva_tile_times(x, kva_tile_plus(x, steps, step), kva_amx_step(x->c));
}

static const kva_expr *step_of_b(const kva_tile *x, const kva_expr *step) {
  return kva_tile_plus(x, x->packed0, kva_tile_times(x, step, kva_amx_step(x->c)));
}

/* ---- factors ----------------------------------------------------------------------------------------------------- */

/* A factor of the products, as packing sees it: line `line` of it is a row of a or a column of b. */
typedef struct factor {
  bool is_b;
  const kva_expr *k; /* its steps begin here */
} factor;

static kva_kval element(const kva_tile *x, const factor *f, const kva_expr *line, const kva_expr *k) {
  const kva_expr *zero = kva_tile_num(x, 0);
  kva_contract_at at = {.batch = x->batch, .k = kva_tile_plus(x, f->k, k), .lead = zero, .tap = zero, .phase = zero};
  if (f->is_b) return kva_tile_element(x, x->c->b, &at, line);
  at.row = line;
  return x->c->a(x->c, &at);
}

/* x rounded to bf16, halves away from 0. */
static kva_kval rounded(kva_kb *b, kva_kval x) {
  kva_kval bits = kva_k2(b, KVA_K_add, kva_k_bitcast(b, x, KVA_U32), kva_k_const_i(b, KVA_U32, 0x8000));
  return kva_k_bitcast(b, kva_k2(b, KVA_K_and, bits, kva_k_const_i(b, KVA_U32, 0xffff0000)), KVA_F32);
}

/* Two floats that are bf16, as a word. */
static kva_kval pair(kva_kb *b, kva_kval low, kva_kval high) {
  kva_kval bits = kva_k2(b, KVA_K_shr, kva_k_bitcast(b, low, KVA_U32), kva_k_const_i(b, KVA_U32, 16));
  return kva_k_bitcast(b, kva_k2(b, KVA_K_or, bits, kva_k_bitcast(b, high, KVA_U32)), KVA_F32);
}

static void see(const kva_tile *x, kva_combine combine, const kva_expr *at, kva_kval v) {
  kva_kop op = combine == KVA_COMBINE_MAX ? KVA_K_max : KVA_K_min;
  kva_k_store(x->kb, x->seen, at, kva_k2(x->kb, op, kva_k_load(x->kb, x->seen, at), v));
}

/* Tracks bit patterns of |v|: the maximum, and the smallest nonzero one minus 1. */
static void see_magnitude(const kva_tile *x, const kva_expr *lane, kva_kval v) {
  kva_kb *b = x->kb;
  kva_kval bits = kva_k2(b, KVA_K_and, kva_k_bitcast(b, v, KVA_U32), kva_k_const_i(b, KVA_U32, INT32_MAX));
  see(x, KVA_COMBINE_MAX, lane, bits);
  see(x, KVA_COMBINE_MIN, kva_expr_addi(x->e, lane, KVA_AMX_BLOCK),
      kva_k2(b, KVA_K_sub, bits, kva_k_const_i(b, KVA_U32, 1)));
}

/* Stores word `word` of a line's step, and the other parts of it behind; a line or words of one are `lanes`. */
static void pack_word(const kva_tile *x, const factor *f, const kva_expr *line, const kva_expr *word,
                      const kva_expr *lane, kva_kbuf *to, const kva_expr *at) {
  kva_kb *b = x->kb;
  kva_kval low = element(x, f, line, word);
  if (x->c->words) {
    kva_k_store(b, to, at, low);
    return;
  }
  kva_kval high = element(x, f, line, kva_expr_addi(x->e, word, KVA_AMX_WORDS));
  see_magnitude(x, lane, low);
  see_magnitude(x, lane, high);
  for (int64_t part = 0; part < KVA_AMX_PARTS; part++) {
    bool last = part == KVA_AMX_PARTS - 1;
    kva_kval l = last ? low : rounded(b, low), h = last ? high : rounded(b, high);
    kva_k_store(b, to, kva_expr_addi(x->e, at, part * KVA_AMX_PART), pair(b, l, h));
    low = kva_k2(b, KVA_K_sub, low, l), high = kva_k2(b, KVA_K_sub, high, h);
  }
}

/* Nothing was seen yet. */
static void begin_step(const kva_tile *x) {
  if (x->c->words) return;
  kva_kloop *lane = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, KVA_AMX_BLOCK), "lane");
  kva_k_store(x->kb, x->seen, lane->var, kva_k_const_i(x->kb, KVA_U32, 0));
  kva_k_store(x->kb, x->seen, kva_expr_addi(x->e, lane->var, KVA_AMX_BLOCK), kva_k_const_i(x->kb, KVA_U32, UINT32_MAX));
  kva_k_loop_end(x->kb, lane);
}

static kva_kval over_lanes(const kva_tile *x, kva_combine combine, int64_t first) {
  kva_kloop *lane = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, KVA_AMX_BLOCK), "lane");
  kva_kval v = kva_k_load(x->kb, x->seen, kva_expr_addi(x->e, lane->var, first));
  kva_kval init = kva_k_const_i(x->kb, KVA_U32, combine == KVA_COMBINE_MAX ? 0 : UINT32_MAX);
  kva_kval all = kva_k_reduce(x->kb, lane, combine, init, v);
  kva_k_loop_end(x->kb, lane);
  return all;
}

/* What is behind the words of a step. */
static void end_step(const kva_tile *x, kva_kbuf *to, const kva_expr *step) {
  if (x->c->words) return;
  kva_kb *b = x->kb;
  kva_kval most = over_lanes(x, KVA_COMBINE_MAX, 0), less = over_lanes(x, KVA_COMBINE_MIN, KVA_AMX_BLOCK);
  kva_kval all_zero = kva_k_const_i(b, KVA_U32, LIMIT_BITS - 1), one = kva_k_const_i(b, KVA_U32, 1);
  kva_kval least = kva_k2(b, KVA_K_add, kva_k2(b, KVA_K_min, less, all_zero), one);
  kva_kval large = kva_k2(b, KVA_K_le, kva_k_const_i(b, KVA_U32, LIMIT_BITS), most);
  kva_kval small = kva_k2(b, KVA_K_lt, least, kva_k_const_i(b, KVA_U32, LEAST_BITS));
  kva_kval outside = kva_k2(b, KVA_K_or, large, small);
  kva_kval magnitude = kva_k_select(b, outside, kva_k_const_f(b, KVA_F32, 0), kva_k_bitcast(b, least, KVA_F32));
  kva_k_store(b, to, kva_expr_addi(x->e, step, KVA_AMX_PARTS * KVA_AMX_PART), magnitude);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* `lines` lines, each of which memory has together, as rows of KVA_AMX_WORDS words. */
static void pack_along(const kva_tile *x, const factor *f, const kva_expr *first, const kva_expr *lines, kva_kbuf *to,
                       const kva_expr *at) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_SERIAL, lines, "r");
  kva_kloop *w = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, KVA_AMX_WORDS), "w");
  const kva_expr *there = kva_tile_plus(x, kva_tile_plus(x, at, kva_tile_times(x, r->var, KVA_AMX_WORDS)), w->var);
  pack_word(x, f, kva_tile_plus(x, first, r->var), w->var, w->var, to, there);
  kva_k_loop_end(x->kb, w);
  kva_k_loop_end(x->kb, r);
}

/* The bytes of `rows` rows of words, `row` each, from elements of f: byte e of row r is byte e mod BYTES of a word. */
static void copy_words(const kva_tile *x, const factor *f, const kva_expr *first, const kva_expr *rows, int64_t row,
                       kva_kbuf *to, const kva_expr *at) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_SERIAL, rows, "r");
  kva_kloop *e = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, row * BYTES), "e");
  const kva_expr *bytes = kva_tile_num(x, BYTES), *zero = kva_tile_num(x, 0);
  const kva_expr *there = kva_tile_plus(x, at, kva_tile_times(x, r->var, row));
  kva_contract_at from = {.batch = x->batch, .lead = zero, .tap = zero, .phase = zero};
  kva_tile elements = *x;
  kva_kval v;
  elements.c = x->c->words;
  if (f->is_b) {
    from.k =
        kva_tile_plus(x, kva_tile_times(x, kva_tile_plus(x, f->k, r->var), BYTES), kva_expr_mod(x->e, e->var, bytes));
    v = kva_tile_element(&elements, elements.c->b, &from, kva_tile_plus(x, first, kva_expr_div(x->e, e->var, bytes)));
  } else {
    from.k = kva_tile_plus(x, kva_tile_times(x, f->k, BYTES), e->var), from.row = kva_tile_plus(x, first, r->var);
    v = elements.c->a(elements.c, &from);
  }
  kva_k_store(x->kb, to, kva_tile_plus(x, kva_tile_times(x, there, BYTES), e->var), v);
  kva_k_loop_end(x->kb, e);
  kva_k_loop_end(x->kb, r);
}

/* Lines whose words memory has side by side, as rows of KVA_AMX_BLOCK words. */
static void pack_across(const kva_tile *x, const factor *f, const kva_expr *first, const kva_expr *lines, kva_kbuf *to,
                        const kva_expr *at) {
  kva_kloop *w = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, KVA_AMX_WORDS), "w");
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_VECTOR, lines, "r");
  const kva_expr *there = kva_tile_plus(x, kva_tile_plus(x, at, kva_tile_times(x, w->var, KVA_AMX_BLOCK)), r->var);
  pack_word(x, f, kva_tile_plus(x, first, r->var), w->var, r->var, to, there);
  kva_k_loop_end(x->kb, r);
  kva_k_loop_end(x->kb, w);
}

/* One of x->squares, rows of KVA_AMX_BLOCK or KVA_AMX_WORDS words, transposed to rows of the other length. */
static void transpose_square(const kva_tile *x, bool to_words, const kva_expr *square, kva_kbuf *to,
                             const kva_expr *first) {
  int64_t from_row = to_words ? KVA_AMX_BLOCK : KVA_AMX_WORDS, to_row = to_words ? KVA_AMX_WORDS : KVA_AMX_BLOCK;
  kva_kloop *h = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, KVA_AMX_BLOCK / KVA_AMX_WORDS), "h");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, KVA_AMX_WORDS), "j");
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, KVA_AMX_WORDS), "u");
  const kva_expr *half = kva_tile_times(x, h->var, KVA_AMX_WORDS), *line = j->var, *column = u->var;
  if (to_words)
    column = kva_tile_plus(x, half, column);
  else
    line = kva_tile_plus(x, half, line);
  const kva_expr *from = kva_tile_plus(x, square, kva_tile_plus(x, kva_tile_times(x, line, from_row), column));
  kva_kval v = kva_k_load(x->kb, x->squares, from);
  kva_k_store(x->kb, to, kva_tile_plus(x, kva_tile_plus(x, first, kva_tile_times(x, column, to_row)), line), v);
  kva_k_loop_end(x->kb, u);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, h);
}

static void transpose_squares(const kva_tile *x, bool to_words, kva_kbuf *to, const kva_expr *first) {
  kva_kloop *p = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, parts(x->c)), "part");
  const kva_expr *part = kva_tile_times(x, p->var, KVA_AMX_PART);
  transpose_square(x, to_words, part, to, kva_tile_plus(x, first, part));
  kva_k_loop_end(x->kb, p);
}

void kva_amx_pack_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->tiles, "i");
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, steps_of(x, slice), "s");
  const factor a = {.k = kva_tile_plus(x, k0, kva_tile_times(x, s->var, kva_contract_amx_depth(x->c)))};
  const kva_expr *to = step_of_a(x, i->var, s->var), *row = kva_tile_first_row(x, i->var);
  begin_step(x);
  if (x->c->across_rows) {
    pack_across(x, &a, row, kva_tile_rows(x, row), x->squares, kva_tile_num(x, 0));
    transpose_squares(x, true, x->packed_a, to);
  } else if (copies(x->c, false)) {
    copy_words(x, &a, row, kva_tile_rows(x, row), KVA_AMX_WORDS, x->packed_a, to);
  } else {
    pack_along(x, &a, row, kva_tile_rows(x, row), x->packed_a, to);
  }
  end_step(x, x->packed_a, to);
  kva_k_loop_end(x->kb, s);
  kva_k_loop_end(x->kb, i);
}

void kva_amx_pack_step(const kva_tile *x, const kva_expr *k0, const kva_expr *step) {
  const factor b = {true, kva_tile_plus(x, k0, kva_tile_times(x, step, kva_contract_amx_depth(x->c)))};
  const kva_expr *to = step_of_b(x, step), *columns = kva_tile_num(x, KVA_AMX_BLOCK);
  begin_step(x);
  if (x->c->along_depth) {
    pack_along(x, &b, x->col0, columns, x->squares, kva_tile_num(x, 0));
    transpose_squares(x, false, x->packed, to);
  } else if (copies(x->c, true)) {
    copy_words(x, &b, x->col0, kva_tile_num(x, KVA_AMX_WORDS), KVA_AMX_BLOCK, x->packed, to);
  } else {
    pack_across(x, &b, x->col0, columns, x->packed, to);
  }
  end_step(x, x->packed, to);
}

void kva_amx_pack_columns(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, steps_of(x, slice), "s");
  kva_amx_pack_step(x, k0, s->var);
  kva_k_loop_end(x->kb, s);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void amx(const kva_tile *x, kva_intrinsic_id op, const kva_kplace *places, int32_t kind) {
  kva_kintrinsic m = {.op = op, .numbers = {kind}};
  for (uint32_t i = 0; places && i < KVA_K_MAX_PLACES; i++) m.places[i] = places[i];
  kva_k_intrinsic(x->kb, &m, NULL);
}

static int32_t kind_of(const kva_contraction *c) {
  if (!c->words) return KVA_AMX_FLOAT;
  if (c->type == KVA_F32) return KVA_AMX_BF16;
  return c->b_unsigned ? KVA_AMX_SIGNED_UNSIGNED : KVA_AMX_UNSIGNED_SIGNED;
}

/* Row r of the tile and a column: the products of a step, where memory has columns together. */
static void add_column(const kva_tile *x, const factor *a, const factor *b, const kva_expr *row, const kva_expr *sums) {
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, kva_contract_amx_depth(x->c)), "k");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, KVA_AMX_BLOCK), "j");
  const kva_expr *at = kva_tile_plus(x, sums, j->var);
  kva_kval factors[] = {element(x, a, row, k->var), element(x, b, kva_tile_plus(x, x->col0, j->var), k->var)};
  kva_k_store(x->kb, x->block, at, kva_k_op(x->kb, KVA_K_fma, factors[0], factors[1], kva_k_load(x->kb, x->block, at)));
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, k);
}

/* The same where memory has a column's steps together. */
static void add_depth(const kva_tile *x, const factor *a, const factor *b, const kva_expr *row, const kva_expr *sums) {
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, KVA_AMX_BLOCK), "j");
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, kva_contract_amx_depth(x->c)), "k");
  kva_kval factors[] = {element(x, a, row, k->var), element(x, b, kva_tile_plus(x, x->col0, j->var), k->var)};
  kva_kval product = kva_k2(x->kb, KVA_K_mul, factors[0], factors[1]);
  kva_kval sum = kva_k_reduce(x->kb, k, KVA_COMBINE_ADD, kva_k_const_f(x->kb, KVA_F32, 0), product);
  kva_k_loop_end(x->kb, k);
  const kva_expr *at = kva_tile_plus(x, sums, j->var);
  kva_k_store(x->kb, x->block, at, kva_k2(x->kb, KVA_K_add, kva_k_load(x->kb, x->block, at), sum));
  kva_k_loop_end(x->kb, j);
}

/* A step of floats that are not sums of parts. */
static void add_floats(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *k) {
  const factor a = {.k = k}, b = {true, k};
  const kva_expr *first = kva_tile_first_row(x, tile_of_block);
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_rows(x, first), "r");
  const kva_expr *sums = kva_tile_block(x, tile_of_block, r->var, kva_tile_num(x, 0));
  (x->c->along_depth ? add_depth : add_column)(x, &a, &b, kva_tile_plus(x, first, r->var), sums);
  kva_k_loop_end(x->kb, r);
}

static kva_kval least_magnitude(const kva_tile *x, kva_kbuf *packed, const kva_expr *step) {
  return kva_k_load(x->kb, packed, kva_expr_addi(x->e, step, KVA_AMX_PARTS * KVA_AMX_PART));
}

void kva_amx_multiply(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *k0, const kva_expr *slice) {
  const kva_contraction *c = x->c;
  const kva_expr *zero = kva_tile_num(x, 0);
  const kva_kplace sums[KVA_K_MAX_PLACES] = {{x->block, kva_tile_block(x, tile_of_block, zero, zero)}};
  amx(x, x->one_slice ? KVA_AMX_amx_clear : KVA_AMX_amx_load, x->one_slice ? NULL : sums, 0);
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, steps_of(x, slice), "s");
  const kva_expr *of_a = step_of_a(x, tile_of_block, s->var), *of_b = step_of_b(x, s->var);
  const kva_kplace factors[KVA_K_MAX_PLACES] = {place_of(x, x->packed_a, of_a), place_of(x, x->packed, of_b)};
  kva_kinstr *branch = NULL;
  if (!c->words) {
    kva_kval magnitude =
        kva_k2(x->kb, KVA_K_mul, least_magnitude(x, x->packed_a, of_a), least_magnitude(x, x->packed, of_b));
    branch = kva_k_if_begin(x->kb, kva_k2(x->kb, KVA_K_lt, magnitude, kva_k_const_f(x->kb, KVA_F32, LEAST)));
    amx(x, KVA_AMX_amx_store, sums, 0);
    add_floats(x, tile_of_block, kva_tile_plus(x, k0, kva_tile_times(x, s->var, kva_contract_amx_depth(c))));
    amx(x, KVA_AMX_amx_load, sums, 0);
    kva_k_if_else(x->kb, branch);
  }
  amx(x, KVA_AMX_amx_step, factors, kind_of(c));
  if (branch) kva_k_if_end(x->kb, branch);
  kva_k_loop_end(x->kb, s);
  amx(x, KVA_AMX_amx_store, sums, 0);
}

void kva_amx_begin(const kva_tile *x) {
  amx(x, KVA_AMX_amx_begin, NULL, 0);
}

void kva_amx_end(const kva_tile *x) {
  amx(x, KVA_AMX_amx_end, NULL, 0);
}
