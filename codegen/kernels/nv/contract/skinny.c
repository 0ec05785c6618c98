/* Products of few rows, as in decoding: the time is that of reading b once, so its loads are what counts.
 *
 * A block of threads computes bn columns of all rows. Its threads divide the columns, `across` of them, and the depth,
 * in parts. A thread takes a group of `steps` of the depth by `width` columns, 16 bytes long in the direction that
 * memory has, and then the next group of its part:
 *
 *   columns contiguous   4 steps x 16 bytes     neighbouring threads across columns, then along the depth
 *   depth contiguous     16 bytes x 4 columns   8 neighbouring threads along the depth, then across columns
 *
 * It loads several groups before it multiplies the first, and keeps rows x width sums in registers. Threads that need
 * an element of a load it together, or are in a few warps, so a does not go through shared memory. In the end the lanes
 * that share columns add up by a butterfly, and the warps' sums meet in shared memory, in the order of warps.
 *
 * Where rows of b begin at odd addresses, loads are of single elements. The order of a sum depends on types, depth,
 * columns and batch, not on the number of rows. It is not the order of the tiles. */
#include "codegen/kernels/any/contract/contraction.h"

/* Up to here it beats tiles of 64 rows, which multiply in vain, and occupy few multiprocessors where columns are few.
 * With more rows the sums do not fit into a thread's registers, and multiplying takes longer than loading: for 16 rows
 * of bf16 it takes as long already. */
enum { MAX_ROWS = 16 };

enum {
  WARP = 32,
  THREADS = 256,
  LOAD = 16,           /* bytes */
  WORD = 4,            /* bytes of a register */
  SECTOR = 32,         /* bytes of a row of b that a block loads at least */
  GROUP = 4,           /* steps, or columns, across the direction of memory */
  DEPTH_LANES = 8,     /* their loads are a line */
  MAX_ACROSS = 32,     /* so that parts are as many as steps may be left behind the last group */
  LINE_ACROSS = 8,     /* their loads are a line */
  ENOUGH_BLOCKS = 120, /* most of an H100's 132 multiprocessors; where blocks are fewer, they get fewer columns */
  MAX_WIDTH = 8,
  MAX_SUMS = MAX_ROWS * MAX_WIDTH,
};

/* Registers. Threads have 128 if a multiprocessor is to have two blocks, else 255; addresses and elements of a need
 * some, and 16-bit elements of b two each at times. */
enum {
  IN_FLIGHT = 32,     /* what a thread loads of b before it multiplies */
  SUMS_OF_ONE = 64,   /* with so many sums there is one block */
  LOADED_OF_TWO = 64, /* sums, and what is in flight */
  LOADED_OF_ONE = 128,
  FLOATS_OF_TWO = 76, /* sums, and factors as floats */
};

typedef struct skinny {
  const kva_contraction *c;
  kva_kb *kb;
  kva_expr_ctx *e;
  int64_t rows, width, steps;        /* of a thread's group */
  int64_t at_once;                   /* groups */
  int64_t across, lanes, parts;      /* threads along columns; neighbours along the depth; all along the depth */
  int64_t bn, pitch;                 /* of the block; of its rows in shared memory */
  kva_kbuf *sums, *factors, *staged; /* factors: of b */
  const kva_expr *batch, *col0, *thread, *part, *column; /* column: the thread's first one */
} skinny;

static const kva_expr *num(const skinny *x, int64_t v) {
  return kva_expr_const(x->e, v);
}
static const kva_expr *plus(const skinny *x, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(x->e, a, b);
}
static const kva_expr *times(const skinny *x, const kva_expr *a, int64_t v) {
  return kva_expr_muli(x->e, a, v);
}
static const kva_expr *over(const skinny *x, const kva_expr *a, int64_t v) {
  return kva_expr_div(x->e, a, num(x, v));
}
static const kva_expr *rest(const skinny *x, const kva_expr *a, int64_t v) {
  return kva_expr_mod(x->e, a, num(x, v));
}

static bool is_multiple(kva_dim extent, int64_t of) {
  int64_t n;
  return kva_expr_is_const(extent, &n) && n % of == 0;
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static kva_kval element_of_b(const skinny *x, const kva_expr *k, const kva_expr *column) {
  if (!is_multiple(x->c->used, x->width)) column = kva_expr_min(x->e, column, kva_expr_addi(x->e, x->c->used, -1));
  const kva_expr *zero = num(x, 0);
  kva_contract_at at = {.batch = x->batch, .k = k, .lead = zero, .phase = zero, .line = zero, .position = column};
  return x->c->b(x->c, &at);
}

static kva_kval element_of_a(const skinny *x, const kva_expr *row, const kva_expr *k) {
  kva_contract_at at = {.batch = x->batch, .row = row, .k = k, .lead = num(x, 0), .tap = num(x, 0)};
  return x->c->a(x->c, &at);
}

static const kva_expr *factor_at(const skinny *x, int64_t group, const kva_expr *step, const kva_expr *j) {
  return plus(x, num(x, group * x->steps * x->width), plus(x, times(x, step, x->width), j));
}

static void load_group(const skinny *x, int64_t group, const kva_expr *k0, int64_t steps) {
  kva_kloop *step = kva_k_loop_begin(x->kb, KVA_K_UNROLL, num(x, steps), "step");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_UNROLL, num(x, x->width), "j");
  kva_kval v = element_of_b(x, plus(x, k0, step->var), plus(x, x->column, j->var));
  kva_k_store(x->kb, x->factors, factor_at(x, group, step->var, j->var), v);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, step);
}

static void multiply_group(const skinny *x, int64_t group, const kva_expr *k0, int64_t steps) {
  kva_kb *kb = x->kb;
  kva_kloop *row = kva_k_loop_begin(kb, KVA_K_UNROLL, num(x, x->rows), "row");
  kva_kloop *step = kva_k_loop_begin(kb, KVA_K_UNROLL, num(x, steps), "step");
  kva_kval a = element_of_a(x, row->var, plus(x, k0, step->var));
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_UNROLL, num(x, x->width), "j");
  const kva_expr *at = plus(x, times(x, row->var, x->width), j->var);
  kva_kval b = kva_k_load(kb, x->factors, factor_at(x, group, step->var, j->var));
  kva_k_store(kb, x->sums, at, kva_k_op(kb, KVA_K_fma, a, b, kva_k_load(kb, x->sums, at)));
  kva_k_loop_end(kb, j);
  kva_k_loop_end(kb, step);
  kva_k_loop_end(kb, row);
}

/* Groups first .. first + n - 1 of the thread's part. */
static void add_groups(const skinny *x, const kva_expr *first, int64_t n) {
  for (int64_t pass = 0; pass < 2; pass++) {
    for (int64_t g = 0; g < n; g++) {
      const kva_expr *group = plus(x, x->part, times(x, kva_expr_addi(x->e, first, g), x->parts));
      (pass ? multiply_group : load_group)(x, g, times(x, group, x->steps), x->steps);
    }
  }
}

/* Steps behind the last whole group, one for each part. */
static void add_last_steps(const skinny *x, const kva_expr *groups) {
  if (is_multiple(x->c->depth, x->steps)) return;
  const kva_expr *k = plus(x, times(x, groups, x->steps), x->part);
  kva_kinstr *some = kva_k_if_begin(x->kb, kva_k_index_lt(x->kb, k, x->c->depth));
  load_group(x, 0, k, 1);
  multiply_group(x, 0, k, 1);
  kva_k_if_end(x->kb, some);
}

static void add_part(const skinny *x) {
  const kva_expr *groups = over(x, x->c->depth, x->steps);
  bool even = is_multiple(groups, x->parts);
  const kva_expr *mine =
      even ? over(x, groups, x->parts) : kva_expr_ceildiv(x->e, kva_expr_sub(x->e, groups, x->part), num(x, x->parts));
  const kva_expr *whole = over(x, mine, x->at_once), *done = times(x, whole, x->at_once);
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, whole, "s");
  add_groups(x, times(x, s->var, x->at_once), x->at_once);
  kva_k_loop_end(x->kb, s);
  if (x->at_once > 1) {
    kva_kloop *g = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_sub(x->e, mine, done), "g");
    add_groups(x, plus(x, done, g->var), 1);
    kva_k_loop_end(x->kb, g);
  }
  add_last_steps(x, groups);
}

/* ---- sums of the block ------------------------------------------------------------------------------------------- */

static kva_kval swap(const skinny *x, kva_kval v, int64_t bit) {
  return kva_k_intrinsic(x->kb, &(kva_kintrinsic){.op = KVA_TILE_shuffle_xor, .numbers = {(int32_t)bit}}, v);
}

/* Lanes that differ in `bit` have different columns. */
static bool is_across(const skinny *x, int64_t bit) {
  return bit >= x->lanes && bit < x->lanes * x->across;
}

/* What a thread has of its sums while lanes are added up: n of them, v[0] is sum `first`. */
typedef struct shares {
  kva_kval v[MAX_SUMS];
  int64_t n;
  const kva_expr *first, *spare; /* spare: 0 in the lanes that keep them; the others have the same ones */
} shares;

/* Two lanes add up: each of them takes a half of the sums, or both take all if those are odd in number. */
static void add_lanes(const skinny *x, shares *s, int64_t bit) {
  kva_kb *kb = x->kb;
  const kva_expr *is_set = rest(x, over(x, x->thread, bit), 2);
  if (s->n % 2) {
    for (int64_t i = 0; i < s->n; i++) s->v[i] = kva_k2(kb, KVA_K_add, s->v[i], swap(x, s->v[i], bit));
    s->spare = plus(x, s->spare, is_set);
    return;
  }
  kva_kval high = kva_k_index_eq(kb, is_set, num(x, 1));
  s->n /= 2;
  s->first = plus(x, s->first, times(x, is_set, s->n));
  for (int64_t i = 0; i < s->n; i++) {
    kva_kval lower = s->v[i], upper = s->v[i + s->n];
    kva_kval given = swap(x, kva_k_select(kb, high, lower, upper), bit);
    s->v[i] = kva_k2(kb, KVA_K_add, kva_k_select(kb, high, upper, lower), given);
  }
}

/* Threads whose numbers differ by this have the same columns in different warps. */
static int64_t threads_apart(const skinny *x) {
  return x->lanes * x->across < WARP ? WARP : x->lanes * x->across;
}

static const kva_expr *staged_at(const skinny *x, const kva_expr *share, const kva_expr *row, const kva_expr *column) {
  return plus(x, times(x, plus(x, times(x, share, x->rows), row), x->pitch), column);
}

static void stage_sums(const skinny *x) {
  kva_kb *kb = x->kb;
  shares s = {.n = x->rows * x->width, .first = num(x, 0), .spare = num(x, 0)};
  for (int64_t i = 0; i < s.n; i++) s.v[i] = kva_k_load(kb, x->sums, num(x, i));
  for (int64_t bit = 1; bit < WARP; bit *= 2)
    if (!is_across(x, bit)) add_lanes(x, &s, bit);
  const kva_expr *share = over(x, x->thread, threads_apart(x)), *column = kva_expr_sub(x->e, x->column, x->col0);
  kva_kinstr *keeps = kva_k_if_begin(kb, kva_k_index_eq(kb, s.spare, num(x, 0)));
  for (int64_t i = 0; i < s.n; i++) {
    const kva_expr *sum = kva_expr_addi(x->e, s.first, i);
    const kva_expr *at = plus(x, column, rest(x, sum, x->width));
    kva_k_store(kb, x->staged, staged_at(x, share, over(x, sum, x->width), at), s.v[i]);
  }
  kva_k_if_end(kb, keeps);
}

/* Columns that a thread stores at once. */
static uint32_t store_width(const skinny *x) {
  return is_multiple(x->c->used, GROUP) && x->bn % GROUP == 0 ? GROUP : 1;
}

static void store_results(const skinny *x) {
  kva_kb *kb = x->kb;
  kva_k_barrier(kb);
  kva_kloop *row = kva_k_loop_begin(kb, KVA_K_THREAD, num(x, x->rows), "row");
  row->subgroup = WARP;
  const kva_expr *here = num(x, x->bn);
  if (!is_multiple(x->c->used, x->bn)) here = kva_expr_min(x->e, here, kva_expr_sub(x->e, x->c->used, x->col0));
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_THREAD, here, "column");
  j->width = store_width(x);
  kva_kval sum = kva_k_load(kb, x->staged, staged_at(x, num(x, 0), row->var, j->var));
  for (int64_t share = 1; share < THREADS / threads_apart(x); share++)
    sum = kva_k2(kb, KVA_K_add, sum, kva_k_load(kb, x->staged, staged_at(x, num(x, share), row->var, j->var)));
  kva_contract_at at = {.batch = x->batch, .row = row->var, .line = num(x, 0), .position = plus(x, x->col0, j->var)};
  kva_contract_store(x->c, &at, sum);
  kva_k_loop_end(kb, j);
  kva_k_loop_end(kb, row);
}

/* ---- shape of a block -------------------------------------------------------------------------------------------- */

/* Of an element; codes that a producer unpacks count as what they become, and a thread has at most 8 columns. */
static int64_t bytes_of_b(const skinny *x) {
  int64_t bits = kva_dtype_bits(kva_operand_type(x->c->n, 1)->dtype);
  return bits < 16 ? LOAD / MAX_WIDTH : bits / 8;
}

/* Loads of 16 bytes where rows of memory begin at multiples of them, else of single elements. */
static void choose_group(skinny *x) {
  int64_t wide = LOAD / bytes_of_b(x);
  bool along_depth = x->c->along_depth, aligned = is_multiple(along_depth ? x->c->depth : x->c->used, wide);
  x->steps = !along_depth ? GROUP : aligned ? wide : 1;
  x->width = along_depth ? GROUP : aligned ? wide : 1;
  x->lanes = !along_depth ? 1 : aligned ? DEPTH_LANES : WARP;
  int64_t sums = x->rows * x->width, words = aligned ? GROUP * LOAD / WORD : x->steps * x->width;
  int64_t most = sums < SUMS_OF_ONE ? LOADED_OF_TWO : LOADED_OF_ONE;
  for (x->at_once = IN_FLIGHT / words; x->at_once > 1 && sums + x->at_once * words > most;) x->at_once /= 2;
}

/* Unknown extents count as large, unknown batches as one. */
static int64_t blocks(const skinny *x, int64_t across) {
  int64_t n = 4096, batch = 1, bn = across * x->width;
  kva_expr_is_const(x->c->used, &n);
  kva_expr_is_const(x->c->batch, &batch);
  return (n + bn - 1) / bn * batch;
}

static void choose_columns(skinny *x) {
  int64_t load = x->width * bytes_of_b(x);
  int64_t most = load >= LOAD && !x->c->along_depth ? LINE_ACROSS : MAX_ACROSS;
  int64_t least = x->c->along_depth ? 1 : SECTOR / load;
  if (most > THREADS / x->lanes) most = THREADS / x->lanes;
  for (x->across = most; x->across > least && blocks(x, x->across) < ENOUGH_BLOCKS;) x->across /= 2;
  x->bn = x->across * x->width;
  x->pitch = x->c->along_depth ? x->bn + GROUP : x->bn; /* neighbouring lanes have different rows there */
  x->parts = THREADS / x->across;
}

static skinny skinny_of(const kva_contraction *c) {
  skinny x = {.c = c, .kb = c->l->kb, .e = c->l->kb->exprs};
  bool known = kva_expr_is_const(c->rows, &x.rows);
  KVA_ASSERT(known && x.rows <= MAX_ROWS);
  choose_group(&x);
  choose_columns(&x);
  int64_t sums = x.rows * x.width, factors = x.at_once * x.steps * x.width;
  x.sums = kva_k_local(x.kb, "sums", c->type, sums);
  x.factors = kva_k_local(x.kb, "factors", c->type, factors);
  x.staged = kva_k_shared(x.kb, "staged", c->type, THREADS / threads_apart(&x) * x.rows * x.pitch);
  x.kb->kernel->threads = THREADS;
  x.kb->kernel->blocks = sums < SUMS_OF_ONE && sums + factors <= FLOATS_OF_TWO ? 2 : 1;
  return x;
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

static void place_thread(skinny *x, const kva_expr *thread) {
  x->thread = thread;
  x->column = plus(x, x->col0, times(x, rest(x, over(x, thread, x->lanes), x->across), x->width));
  x->part = plus(x, rest(x, thread, x->lanes), times(x, over(x, thread, x->lanes * x->across), x->lanes));
}

static void make_sums(const skinny *x) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_UNROLL, x->sums->extent, "i");
  kva_k_store(x->kb, x->sums, i->var, kva_k_const(x->kb, x->c->type, 0));
  kva_k_loop_end(x->kb, i);
  kva_kinstr *inside =
      is_multiple(x->c->used, x->bn) ? NULL : kva_k_if_begin(x->kb, kva_k_index_lt(x->kb, x->column, x->c->used));
  add_part(x);
  if (inside) kva_k_if_end(x->kb, inside);
}

const char *kva_nv_skinny_refuses(kva_lower *l, const kva_node *n) {
  int64_t rows;
  kva_contraction c = kva_contract_of(l, n);
  if (c.type != KVA_F32) return kva_dtype_is_float(c.type) ? "double" : "integers";
  return kva_expr_is_const(c.rows, &rows) && rows >= 1 && rows <= MAX_ROWS ? NULL : "not 1 to 16 rows";
}

void kva_nv_skinny_emit(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  kva_kb *kb = l->kb;
  skinny x = skinny_of(&c);
  const kva_expr *columns = kva_expr_ceildiv(x.e, c.used, num(&x, x.bn));
  kva_kloop *g = kva_k_loop_begin(kb, KVA_K_GRID, kva_expr_mul(x.e, columns, c.batch), "item");
  x.batch = kva_expr_div(x.e, g->var, columns);
  x.col0 = times(&x, kva_expr_mod(x.e, g->var, columns), x.bn);
  kva_kloop *t = kva_k_loop_begin(kb, KVA_K_THREAD, num(&x, THREADS), "thread");
  place_thread(&x, t->var);
  make_sums(&x);
  stage_sums(&x);
  kva_k_loop_end(kb, t);
  store_results(&x);
  kva_k_loop_end(kb, g);
}
