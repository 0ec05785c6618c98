/* Contractions of few rows, as in decoding with a language model: b is read once, so only memory bandwidth counts, and
 * a packed copy would double the traffic. Sums of the rows of one work item stay in a local block until the epilogue.
 *
 *   columns contiguous   block[r][j] += a[r][k] * b[k][j]       j in vectors, a group of k unrolled: that many long
 *                                                               streams. Rows unrolled; groups of them in a loop
 *                                                               around j if their number is not known
 *                        in panel layout b is a single stream, read strictly in order; the sums of a few rows stay in
 *                        registers: twice as fast as by vectors that are a step apart. Panels are whole in memory,
 *                        those past the last column, too
 *                        steps with a factor in common are summed up apart and added times the factor
 *   depth contiguous     acc[r][c][lane] += a[r][k] * b[c][k]   k in vectors, rows and a few columns c unrolled in
 *                                                               registers */
#include "codegen/kernels/cpu/contract/contract.h"

enum {
  WANTED_ITEMS = 8,
  MIN_PANEL = 128, /* less of a row is fetched slowly */
  MAX_PANEL = 1024,
  STREAMS = 8,      /* that hardware prefetching follows easily */
  PANEL_STEPS = 16, /* in panels, for few rows; with more, loads of 16-bit floats spill */
  ROWS_AT_ONCE = 2, /* where their number is not known */
  ACCUMULATORS = 16,
  AHEAD = 2048, /* bytes of a panel, if the target permits: the prefetching of most CPUs does not keep up */
  CODES_AHEAD = 4096,
};

typedef struct skinny {
  const kva_contraction *c;
  kva_kb *kb;
  kva_expr_ctx *e;
  int64_t rows, lanes, panel, group; /* rows: or KVA_FEW_ROWS if their number is not known; group: columns at once if
                                        the depth is contiguous */
  int64_t steps;                     /* at once, else */
  bool known;
  int64_t factor_block; /* kva_contract_block */
  const kva_expr *batch, *col0;
  int64_t together; /* rows of panels whose sums registers hold */
  kva_kbuf *block, *acc;
  kva_kbuf *sums; /* that steps add to: the block, or those of steps with a factor in common */
} skinny;

static const kva_expr *num(const skinny *x, int64_t v) {
  return kva_expr_const(x->e, v);
}
static const kva_expr *plus(const skinny *x, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(x->e, a, b);
}
static const kva_expr *block_at(const skinny *x, const kva_expr *row, const kva_expr *j) {
  return plus(x, kva_expr_muli(x->e, row, x->panel), j);
}

/* Neither windows nor parts of the batch without products. */
static bool is_plain(const kva_contraction *c) {
  return !c->any && c->leads * c->taps == 1 && kva_expr_is(c->lines, 1);
}

const char *kva_cpu_skinny_refuses(kva_lower *l, const kva_node *n) {
  int64_t rows;
  kva_contraction c = kva_contract_of(l, n);
  const char *reason = kva_contract_refuses(&c);
  if (reason) return reason;
  if (!kva_expr_is_const(c.rows, &rows) || rows < 1 || rows > KVA_FEW_ROWS) return "not 1 to 8 rows";
  return is_plain(&c) ? NULL : "a window";
}

bool kva_skinny_suits_unknown_rows(const kva_contraction *c) {
  return !kva_expr_is_const(c->rows, NULL) && !c->along_depth && is_plain(c);
}

static int64_t choose_panel(const kva_contraction *c, int64_t lanes) {
  int64_t n, panel = MAX_PANEL;
  if (c->panel) return c->panel;
  if (!kva_expr_is_const(c->line, &n)) return panel;
  while (panel > MIN_PANEL && (n + panel - 1) / panel < WANTED_ITEMS) panel /= 2;
  int64_t rounded = (n + lanes - 1) / lanes * lanes;
  return rounded > 0 && rounded < panel ? rounded : panel;
}

/* Rows past the edge read the last one. */
static kva_contract_at row_at(const skinny *x, const kva_expr *row, const kva_expr *k) {
  if (!x->known) row = kva_expr_min(x->e, row, kva_expr_addi(x->e, x->c->rows, -1));
  return (kva_contract_at){.batch = x->batch, .row = row, .k = k, .lead = num(x, 0), .tap = num(x, 0)};
}

static kva_kval factor_a(const skinny *x, const kva_expr *row, const kva_expr *k) {
  kva_contract_at at = row_at(x, row, k);
  return x->c->a(x->c, &at);
}

/* Of the block of steps from k on: kva_contract_block_sum. */
static kva_kval sum_of_a(const skinny *x, const kva_expr *row, const kva_expr *k) {
  kva_contract_at at = row_at(x, row, k);
  return kva_contract_block_sum(x->c, &at);
}

static kva_contract_at column_at(const skinny *x, const kva_expr *k, const kva_expr *column) {
  return (kva_contract_at){
      .batch = x->batch, .k = k, .lead = num(x, 0), .phase = num(x, 0), .line = num(x, 0), .position = column};
}

static kva_kval factor_b(const skinny *x, const kva_expr *k, const kva_expr *column) {
  kva_contract_at at = column_at(x, k, column);
  return x->factor_block ? x->c->b_rest(x->c, &at) : x->c->b(x->c, &at);
}

static const kva_expr *columns_here(const skinny *x) {
  return kva_expr_min(x->e, num(x, x->panel), kva_expr_sub(x->e, x->c->line, x->col0));
}

/* ---- columns contiguous ------------------------------------------------------------------------------------------ */

/* Rows in groups, and the last one of a group, too, if it does not exist. */
static const kva_expr *rows_in_groups(const skinny *x) {
  if (x->known) return num(x, x->rows);
  return kva_expr_muli(x->e, kva_expr_ceildiv(x->e, x->c->rows, num(x, ROWS_AT_ONCE)), ROWS_AT_ONCE);
}

/* The sums of a block of steps that have a zero point in common begin with it. */
static void start_block(const skinny *x, const kva_expr *k0) {
  kva_kloop *r = kva_k_loop_begin(x->kb, x->known ? KVA_K_UNROLL : KVA_K_SERIAL, rows_in_groups(x), "r");
  kva_kval sum = sum_of_a(x, r->var, k0);
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, columns_here(x), "j");
  kva_contract_at where = column_at(x, k0, plus(x, x->col0, j->var));
  kva_k_store(x->kb, x->sums, block_at(x, r->var, j->var), kva_k2(x->kb, KVA_K_mul, x->c->b_zero(x->c, &where), sum));
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, r);
}

static void clear_sums(const skinny *x, kva_kbuf *sums) {
  const kva_expr *n = kva_expr_muli(x->e, rows_in_groups(x), x->panel);
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, n, "j");
  kva_k_store(x->kb, sums, j->var, kva_k_const(x->kb, x->c->type, 0));
  kva_k_loop_end(x->kb, j);
}

static kva_kval add_products(const skinny *x, kva_kval sum, const kva_expr *row, const kva_expr *column,
                             const kva_expr *k0, int64_t n) {
  for (int64_t u = 0; u < n; u++) {
    const kva_expr *k = kva_expr_addi(x->e, k0, u);
    sum = kva_contract_multiply(x->c, factor_a(x, row, k), factor_b(x, k, column), sum);
  }
  return sum;
}

/* Adds steps k0 .. k0 + n - 1 to the sums of `rows` rows. Code is short where it is there beside that of tiles: vectors
 * of a panel are not unrolled then. */
static void add_group(const skinny *x, const kva_expr *first_row, int64_t rows, const kva_expr *k0, int64_t n) {
  const kva_expr *columns = columns_here(x), *first = num(x, 0);
  kva_kloop *v = NULL;
  int64_t panel;
  if (!x->known && kva_expr_is_const(columns, &panel) && panel % x->lanes == 0) {
    v = kva_k_loop_begin(x->kb, KVA_K_SERIAL, num(x, panel / x->lanes), "v");
    columns = num(x, x->lanes), first = kva_expr_muli(x->e, v->var, x->lanes);
  }
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, columns, "j");
  const kva_expr *column = plus(x, first, j->var);
  for (int64_t r = 0; r < rows; r++) {
    const kva_expr *row = kva_expr_addi(x->e, first_row, r), *at = block_at(x, row, column);
    kva_kval sum = kva_k_load(x->kb, x->sums, at);
    kva_k_store(x->kb, x->sums, at, add_products(x, sum, row, plus(x, x->col0, column), k0, n));
  }
  kva_k_loop_end(x->kb, j);
  if (v) kva_k_loop_end(x->kb, v);
}

/* The same for all rows, whose number is known or a loop's matter: its last group may compute rows that do not exist.
 */
static void add_rows(const skinny *x, const kva_expr *k0, int64_t n) {
  if (x->known) {
    add_group(x, num(x, 0), x->rows, k0, n);
    return;
  }
  const kva_expr *groups = kva_expr_ceildiv(x->e, x->c->rows, num(x, ROWS_AT_ONCE));
  kva_kloop *g = kva_k_loop_begin(x->kb, KVA_K_SERIAL, groups, "g");
  add_group(x, kva_expr_muli(x->e, g->var, ROWS_AT_ONCE), ROWS_AT_ONCE, k0, n);
  kva_k_loop_end(x->kb, g);
}

/* Adds n steps from k0 on. */
static void add_steps(const skinny *x, const kva_expr *k0, const kva_expr *n) {
  const kva_expr *whole = kva_expr_div(x->e, n, num(x, x->steps));
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, whole, "s");
  add_rows(x, plus(x, k0, kva_expr_muli(x->e, s->var, x->steps)), x->steps);
  kva_k_loop_end(x->kb, s);
  const kva_expr *done = kva_expr_muli(x->e, whole, x->steps);
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_sub(x->e, n, done), "k");
  add_rows(x, plus(x, k0, plus(x, done, k->var)), 1);
  kva_k_loop_end(x->kb, k);
}

/* Adds n steps from k0 on, which have a factor in common. */
static void add_block(const skinny *x, const kva_expr *k0, const kva_expr *n) {
  if (x->c->b_zero)
    start_block(x, k0);
  else
    clear_sums(x, x->sums);
  add_steps(x, k0, n);
  kva_kloop *r = kva_k_loop_begin(x->kb, x->known ? KVA_K_UNROLL : KVA_K_SERIAL, x->c->rows, "r");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, columns_here(x), "j");
  const kva_expr *at = block_at(x, r->var, j->var);
  kva_contract_at where = column_at(x, k0, plus(x, x->col0, j->var));
  kva_kval factor = x->c->b_factor(x->c, &where), sum = kva_k_load(x->kb, x->sums, at);
  kva_k_store(x->kb, x->block, at, kva_lower_multiply_add(x->c->l, sum, factor, kva_k_load(x->kb, x->block, at)));
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, r);
}

static void multiply_along_columns(const skinny *x) {
  clear_sums(x, x->block);
  if (!x->factor_block) {
    add_steps(x, num(x, 0), x->c->depth);
    return;
  }
  const kva_expr *steps = num(x, x->factor_block), *whole = kva_expr_div(x->e, x->c->depth, steps);
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, whole, "q");
  add_block(x, kva_expr_muli(x->e, q->var, x->factor_block), steps);
  kva_k_loop_end(x->kb, q);
  const kva_expr *done = kva_expr_muli(x->e, whole, x->factor_block), *rest = kva_expr_sub(x->e, x->c->depth, done);
  if (!kva_expr_is(rest, 0)) add_block(x, done, rest);
}

/* ---- columns contiguous, in panels ------------------------------------------------------------------------------- */

/* Rows `first` .. first + n - 1, at once. */
typedef struct few {
  const kva_expr *first;
  int64_t n;
} few;

static const kva_expr *row_of(const skinny *x, few rows, int64_t r) {
  return kva_expr_addi(x->e, rows.first, r);
}

static const kva_expr *sum_at(const skinny *x, int64_t r, const kva_expr *j) {
  return plus(x, num(x, r * x->panel), j);
}

static int64_t bytes_ahead(const skinny *x) {
  int64_t wanted = x->factor_block ? CODES_AHEAD : AHEAD, most = x->c->l->target->most_ahead;
  return most && most < wanted ? most : wanted;
}

static kva_kval ahead_of(const skinny *x, kva_kval (*element)(const kva_contraction *c, const kva_contract_at *at),
                         const kva_expr *k, const kva_expr *j) {
  kva_contract_at where = column_at(x, k, plus(x, x->col0, j));
  x->kb->prefetch_bytes = bytes_ahead(x);
  kva_kval v = element(x->c, &where);
  x->kb->prefetch_bytes = 0;
  return v;
}

/* Begins with 0, or for a block of steps from k0 on with the zero point that they have in common. */
static void clear_registers(const skinny *x, few rows, const kva_expr *k0) {
  for (int64_t r = 0; r < rows.n; r++) {
    kva_kval sum = x->c->b_zero && x->factor_block ? sum_of_a(x, row_of(x, rows, r), k0) : NULL;
    kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->panel), "j");
    kva_kval start = sum ? sum : kva_k_const(x->kb, kva_contract_block_type(x->c), 0);
    if (sum && !x->c->one_zero) start = kva_k2(x->kb, KVA_K_mul, ahead_of(x, x->c->b_zero, k0, j->var), sum);
    kva_k_store(x->kb, x->acc, sum_at(x, r, j->var), start);
    kva_k_loop_end(x->kb, j);
  }
}

static void add_step_of_panel(const skinny *x, few rows, const kva_expr *k) {
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->panel), "j");
  kva_kval b = ahead_of(x, x->factor_block ? x->c->b_rest : x->c->b, k, j->var);
  for (int64_t r = 0; r < rows.n; r++) {
    const kva_expr *at = sum_at(x, r, j->var);
    kva_kval a = factor_a(x, row_of(x, rows, r), k), sum = kva_k_load(x->kb, x->acc, at);
    kva_k_store(x->kb, x->acc, at, kva_contract_multiply(x->c, a, b, sum));
  }
  kva_k_loop_end(x->kb, j);
}

static void add_steps_of_panel(const skinny *x, few rows, const kva_expr *k0, const kva_expr *n) {
  const kva_expr *whole = kva_expr_div(x->e, n, num(x, x->steps));
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, whole, "s");
  const kva_expr *first = plus(x, k0, kva_expr_muli(x->e, s->var, x->steps));
  for (int64_t u = 0; u < x->steps; u++) add_step_of_panel(x, rows, kva_expr_addi(x->e, first, u));
  kva_k_loop_end(x->kb, s);
  const kva_expr *done = kva_expr_muli(x->e, whole, x->steps);
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_sub(x->e, n, done), "k");
  add_step_of_panel(x, rows, plus(x, k0, plus(x, done, k->var)));
  kva_k_loop_end(x->kb, k);
}

/* Adds the sums of all steps, or those of a block of steps times its factor, to the rows of x->block. */
static void add_registers(const skinny *x, few rows, const kva_expr *k0) {
  for (int64_t r = 0; r < rows.n; r++) {
    kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->panel), "j");
    const kva_expr *at = block_at(x, row_of(x, rows, r), j->var);
    kva_kval sum = kva_k_load(x->kb, x->acc, sum_at(x, r, j->var));
    if (x->factor_block) {
      kva_kval factor = ahead_of(x, x->c->b_factor, k0, j->var);
      kva_contract_at here = row_at(x, row_of(x, rows, r), k0);
      sum = kva_contract_add_block(x->c, &here, sum, factor, kva_k_load(x->kb, x->block, at));
    }
    kva_k_store(x->kb, x->block, at, sum);
    kva_k_loop_end(x->kb, j);
  }
}

static void add_block_of_panel(const skinny *x, few rows, const kva_expr *k0, const kva_expr *n) {
  clear_registers(x, rows, k0);
  add_steps_of_panel(x, rows, k0, n);
  add_registers(x, rows, k0);
}

static void multiply_panel(const skinny *x, few rows) {
  if (!x->factor_block) {
    add_block_of_panel(x, rows, num(x, 0), x->c->depth);
    return;
  }
  const kva_expr *steps = num(x, x->factor_block), *whole = kva_expr_div(x->e, x->c->depth, steps);
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, whole, "q");
  add_block_of_panel(x, rows, kva_expr_muli(x->e, q->var, x->factor_block), steps);
  kva_k_loop_end(x->kb, q);
  const kva_expr *done = kva_expr_muli(x->e, whole, x->factor_block), *rest = kva_expr_sub(x->e, x->c->depth, done);
  if (!kva_expr_is(rest, 0)) add_block_of_panel(x, rows, done, rest);
}

/* Groups of n rows from row `first` on. */
static void multiply_groups(const skinny *x, const kva_expr *first, const kva_expr *groups, int64_t n) {
  kva_kloop *g = kva_k_loop_begin(x->kb, KVA_K_SERIAL, groups, "g");
  multiply_panel(x, (few){plus(x, first, kva_expr_muli(x->e, g->var, n)), n});
  kva_k_loop_end(x->kb, g);
}

/* An unknown number of rows: as many as registers hold at once, then two; the last group may compute a row that does
 * not exist. Each group reads the panel, which the second cache holds by then. */
static void multiply_panel_in_groups(const skinny *x) {
  const kva_expr *many = num(x, 0), *done = many;
  if (x->together > ROWS_AT_ONCE) {
    many = kva_expr_div(x->e, kva_expr_addi(x->e, x->c->rows, 1), num(x, x->together));
    done = kva_expr_muli(x->e, many, x->together);
    multiply_groups(x, num(x, 0), many, x->together);
  }
  const kva_expr *rest = kva_expr_max(x->e, kva_expr_sub(x->e, x->c->rows, done), num(x, 0));
  multiply_groups(x, done, kva_expr_ceildiv(x->e, rest, num(x, ROWS_AT_ONCE)), ROWS_AT_ONCE);
}

static void multiply_panels(const skinny *x) {
  if (x->factor_block) clear_sums(x, x->block);
  if (!x->known) {
    multiply_panel_in_groups(x);
    return;
  }
  for (int64_t r = 0; r < x->rows; r += x->together)
    multiply_panel(x, (few){num(x, r), r + x->together < x->rows ? x->together : x->rows - r});
}

/* ---- depth contiguous -------------------------------------------------------------------------------------------- */

static const kva_expr *acc_at(const skinny *x, int64_t row, int64_t column, const kva_expr *lane) {
  return plus(x, num(x, (row * x->group + column) * x->lanes), lane);
}

/* Columns past the edge read the last one. */
static const kva_expr *column_of(const skinny *x, const kva_expr *first, int64_t column) {
  const kva_expr *at = plus(x, x->col0, kva_expr_addi(x->e, first, column));
  return kva_expr_provably_less(x->e, at, x->c->line) ? at
                                                      : kva_expr_min(x->e, at, kva_expr_addi(x->e, x->c->line, -1));
}

/* Lanes k0 .. of all rows and columns; lanes past the depth are not read. */
static void add_lanes(const skinny *x, const kva_expr *first, const kva_expr *k0, bool guarded) {
  kva_kloop *lane = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->lanes), "lane");
  const kva_expr *k = plus(x, k0, lane->var);
  kva_kval outer = NULL;
  if (guarded) outer = kva_k_guard_begin(x->kb, kva_k_index_lt(x->kb, k, x->c->depth));
  kva_kval b[ACCUMULATORS], a[KVA_FEW_ROWS];
  for (int64_t c = 0; c < x->group; c++) b[c] = factor_b(x, k, column_of(x, first, c));
  for (int64_t r = 0; r < x->rows; r++) a[r] = factor_a(x, num(x, r), k);
  if (guarded) kva_k_guard_end(x->kb, outer);
  for (int64_t r = 0; r < x->rows; r++) {
    for (int64_t c = 0; c < x->group; c++) {
      const kva_expr *at = acc_at(x, r, c, lane->var);
      kva_k_store(x->kb, x->acc, at, kva_contract_multiply(x->c, a[r], b[c], kva_k_load(x->kb, x->acc, at)));
    }
  }
  kva_k_loop_end(x->kb, lane);
}

static void clear_acc(const skinny *x) {
  for (int64_t i = 0; i < x->rows * x->group; i++) {
    kva_kloop *lane = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->lanes), "lane");
    kva_k_store(x->kb, x->acc, plus(x, num(x, i * x->lanes), lane->var), kva_k_const(x->kb, x->c->type, 0));
    kva_k_loop_end(x->kb, lane);
  }
}

static void sum_lanes(const skinny *x, const kva_expr *first, int64_t r, int64_t c) {
  kva_kloop *lane = kva_k_loop_begin(x->kb, KVA_K_VECTOR, num(x, x->lanes), "lane");
  kva_kval v = kva_k_load(x->kb, x->acc, acc_at(x, r, c, lane->var));
  kva_kval sum = kva_k_reduce(x->kb, lane, KVA_COMBINE_ADD, kva_k_const(x->kb, x->c->type, 0), v);
  kva_k_loop_end(x->kb, lane);
  kva_k_store(x->kb, x->block, block_at(x, num(x, r), kva_expr_addi(x->e, first, c)), sum);
}

static void multiply_along_depth(const skinny *x) {
  kva_kloop *g = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_ceildiv(x->e, columns_here(x), num(x, x->group)), "g");
  const kva_expr *first = kva_expr_muli(x->e, g->var, x->group);
  clear_acc(x);
  const kva_expr *whole = kva_expr_div(x->e, x->c->depth, num(x, x->lanes));
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, whole, "k");
  add_lanes(x, first, kva_expr_muli(x->e, k->var, x->lanes), false);
  kva_k_loop_end(x->kb, k);
  const kva_expr *done = kva_expr_muli(x->e, whole, x->lanes);
  if (!kva_expr_is(kva_expr_sub(x->e, x->c->depth, done), 0)) add_lanes(x, first, done, true);
  for (int64_t r = 0; r < x->rows; r++)
    for (int64_t c = 0; c < x->group; c++) sum_lanes(x, first, r, c);
  kva_k_loop_end(x->kb, g);
}

/* ---- entry ------------------------------------------------------------------------------------------------------- */

static void store_block(const skinny *x) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->c->rows, "r");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, columns_here(x), "j");
  kva_contract_at at = {.batch = x->batch, .row = r->var, .line = num(x, 0), .position = plus(x, x->col0, j->var)};
  kva_contract_store(x->c, &at, kva_k_load(x->kb, x->block, block_at(x, r->var, j->var)));
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, r);
}

/* A word is made of elements of several rows of b, each a stream of its own; in panels, words lie in memory. */
static int64_t steps_at_once(const skinny *x) {
  int64_t of_panel = x->known && x->rows <= ROWS_AT_ONCE ? PANEL_STEPS : STREAMS;
  if (x->factor_block && x->factor_block < of_panel) of_panel = x->factor_block;
  if (x->c->panel) return of_panel;
  return x->c->words ? STREAMS * kva_dtype_bits(x->c->b_type) / kva_dtype_bits(x->c->type) : STREAMS;
}

static skinny skinny_of(const kva_contraction *c) {
  skinny x = {.c = c, .kb = c->l->kb, .e = c->l->kb->exprs, .rows = KVA_FEW_ROWS};
  x.known = kva_expr_is_const(c->rows, &x.rows);
  KVA_ASSERT(x.rows <= KVA_FEW_ROWS);
  x.lanes = kva_target_lanes(c->l->target, c->type);
  x.panel = choose_panel(c, x.lanes);
  x.group = ACCUMULATORS / x.rows > 8 ? 8 : ACCUMULATORS / x.rows;
  while (x.panel % x.group) x.group--;
  int64_t sums = c->l->target->vector_registers / 2 * x.lanes / x.panel; /* the others hold factors */
  x.together = sums > 1 ? sums : 1;
  if (!x.known) x.together = sums >= 2 * ROWS_AT_ONCE ? 2 * ROWS_AT_ONCE : ROWS_AT_ONCE;
  x.factor_block = kva_contract_block(c);
  x.steps = steps_at_once(&x);
  return x;
}

static const kva_expr *panels_of(const skinny *x) {
  return kva_expr_ceildiv(x->e, x->c->line, num(x, x->panel));
}

const kva_expr *kva_skinny_items(const kva_contraction *c) {
  skinny x = skinny_of(c);
  return kva_expr_mul(x.e, panels_of(&x), c->batch);
}

void kva_skinny_emit_item(const kva_contraction *c, const kva_expr *item) {
  skinny x = skinny_of(c);
  x.block = x.sums = kva_k_local(x.kb, "sums", c->type, x.rows * x.panel);
  if (x.factor_block && !c->panel) x.sums = kva_k_local(x.kb, "part", c->type, x.rows * x.panel);
  x.col0 = kva_expr_muli(x.e, kva_expr_mod(x.e, item, panels_of(&x)), x.panel);
  x.batch = kva_expr_div(x.e, item, panels_of(&x));
  if (c->along_depth) {
    x.acc = kva_k_local(x.kb, "acc", c->type, x.rows * x.group * x.lanes);
    multiply_along_depth(&x);
  } else if (c->panel) {
    x.acc = kva_k_local(x.kb, "acc", kva_contract_block_type(c), x.together * x.panel);
    multiply_panels(&x);
  } else {
    multiply_along_columns(&x);
  }
  store_block(&x);
}

void kva_cpu_skinny_emit(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  kva_kloop *g = kva_k_loop_begin(l->kb, KVA_K_GRID, kva_skinny_items(&c), "item");
  kva_skinny_emit_item(&c, g->var);
  kva_k_loop_end(l->kb, g);
}
