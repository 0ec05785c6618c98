/* Arithmetic in steps, after iGSM (Ye, Xu, Li, Allen-Zhu: Physics of Language Models, part 2.1, 2024; table 7 of Xu et
 * al., arXiv 2411.19574), without its sentences.
 *
 * A row is a problem, its question and its solution:
 *   b = 3 + a ; a = 2 * 4 ; b ? a = 2 * 4 = 2 * 4 = 3 ; b = 3 + a = 3 + 3 = 1 ;      (modulo 5)
 * A problem defines `n` quantities, each by one operation on numbers and quantities; the last one is asked for, and all
 * others are needed for it. Definitions stand in a random order; a step of the solution repeats one, puts in numbers
 * and computes. What follows the name in a step counts. The rest of a row is filled with 0.
 *
 * Training draws n from 1 .. ops, evaluation has n = test. A hash of the definitions, names aside, gives an eighth of
 * all problems to evaluation, so that no problem is on both sides. */
#include "runtime/data.h"

#include "runtime/base/platform.h"

enum { OPS = 1, TEST = 2, MOD = 3, MAX_OPS = 32, HELD_OUT = 8 };
enum { END = 1, EQUALS, PLUS, MINUS, TIMES, QUESTION, NUMBERS };
enum { DEFINITION = 6, ASKED = 2, STEP = 12 }; /* tokens */

/* A number, or the quantity of that index. */
typedef struct operand {
  int32_t is_quantity, of;
} operand;

typedef struct definition {
  int32_t operation;
  operand a, b;
} definition;

typedef struct problem {
  int32_t n, mod;
  definition of[MAX_OPS];
  int32_t values[MAX_OPS], names[MAX_OPS];
} problem;

static double most_ops(const kva_generated_data *d) {
  return d->args[OPS] > d->args[TEST] ? d->args[OPS] : d->args[TEST];
}

static kva_status prepare(kva_generated_data *d, kva_diag *diag) {
  if (d->args[OPS] < 1 || d->args[TEST] < 1 || most_ops(d) > MAX_OPS)
    return kva_error(diag, NULL, "data 'igsm': 'ops' and 'test' must lie between 1 and %d, found %g and %g", MAX_OPS,
                     d->args[OPS], d->args[TEST]);
  /* Fewer numbers make so few problems of one operation that evaluation might have none. */
  if (d->args[MOD] < 5) return kva_error(diag, NULL, "data 'igsm': 'mod' must be at least 5, found %g", d->args[MOD]);
  double needed = NUMBERS + d->args[MOD] + most_ops(d);
  if (needed <= (double)d->vocab) return KVA_OK;
  return kva_error(diag, NULL, "data 'igsm': %g numbers and %g names need a vocabulary of %g, found %lld", d->args[MOD],
                   most_ops(d), needed, (long long)d->vocab);
}

static kva_status check_length(const kva_generated_data *d, int64_t length, kva_diag *diag) {
  int64_t needed = (int64_t)most_ops(d) * (DEFINITION + STEP) + ASKED;
  if (length >= needed) return KVA_OK;
  return kva_error(diag, NULL, "data 'igsm': problems of %g operations need sequences of %lld tokens, found %lld",
                   most_ops(d), (long long)needed, (long long)length);
}

/* ---- problems ---------------------------------------------------------------------------------------------------- */

static operand draw_operand(const problem *p, kva_stream *s, int32_t earlier) {
  bool quantity = earlier && kva_stream_below(s, 2);
  return (operand){quantity, (int32_t)kva_stream_below(s, (uint32_t)(quantity ? earlier : p->mod))};
}

static int32_t take(kva_stream *s, int32_t *list, int32_t *n) {
  int32_t i = (int32_t)kva_stream_below(s, (uint32_t)*n), taken = list[i];
  list[i] = list[--*n];
  return taken;
}

/* An operation takes up to two quantities that nothing uses yet, and is one itself. It takes so many that the
 * operations after it can take the rest. */
static void draw_definitions(problem *p, kva_stream *s) {
  int32_t unused[MAX_OPS], n = 0;
  for (int32_t i = 0; i < p->n; i++) {
    int32_t after = p->n - i - 1, least = n > after ? n - after : 0, most = n < 2 ? n : 2;
    int32_t taken = least + (int32_t)kva_stream_below(s, (uint32_t)(most - least + 1));
    bool swapped = kva_stream_below(s, 2);
    operand a = taken > 0 ? (operand){true, take(s, unused, &n)} : draw_operand(p, s, i);
    operand b = taken > 1 ? (operand){true, take(s, unused, &n)} : draw_operand(p, s, i);
    p->of[i] = (definition){PLUS + (int32_t)kva_stream_below(s, 3), swapped ? b : a, swapped ? a : b};
    unused[n++] = i;
  }
}

static bool is_held_out(const problem *p) {
  return kva_hash(0, p->of, (size_t)p->n * sizeof *p->of) % HELD_OUT == 0;
}

static int32_t value_of(const problem *p, operand x) {
  return x.is_quantity ? p->values[x.of] : x.of;
}

static void solve(problem *p) {
  for (int32_t i = 0; i < p->n; i++) {
    int64_t a = value_of(p, p->of[i].a), b = value_of(p, p->of[i].b);
    int64_t value = p->of[i].operation == PLUS ? a + b : p->of[i].operation == MINUS ? a - b + p->mod : a * b;
    p->values[i] = (int32_t)(value % p->mod);
  }
}

static bool is_taken(const problem *p, int32_t n, int32_t name) {
  for (int32_t i = 0; i < n; i++)
    if (p->names[i] == name) return true;
  return false;
}

static void draw_names(const kva_generated_data *d, problem *p, kva_stream *s) {
  int32_t first = NUMBERS + p->mod;
  for (int32_t i = 0; i < p->n; i++) do
      p->names[i] = first + (int32_t)kva_stream_below(s, (uint32_t)(d->vocab - first));
    while (is_taken(p, i, p->names[i]));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int32_t token_of(const problem *p, operand x) {
  return x.is_quantity ? p->names[x.of] : NUMBERS + x.of;
}

static int32_t *put_operation(const problem *p, int32_t i, bool numbers, int32_t *at) {
  const definition *of = &p->of[i];
  *at++ = EQUALS;
  *at++ = numbers ? NUMBERS + value_of(p, of->a) : token_of(p, of->a);
  *at++ = of->operation;
  *at++ = numbers ? NUMBERS + value_of(p, of->b) : token_of(p, of->b);
  return at;
}

static int32_t *put_definition(const problem *p, int32_t i, int32_t *at) {
  *at++ = p->names[i];
  at = put_operation(p, i, false, at);
  *at++ = END;
  return at;
}

static int32_t *put_step(const problem *p, int32_t i, int32_t *at) {
  *at++ = p->names[i];
  at = put_operation(p, i, false, at);
  at = put_operation(p, i, true, at);
  *at++ = EQUALS;
  *at++ = NUMBERS + p->values[i];
  *at++ = END;
  return at;
}

static void put_problem(const problem *p, kva_stream *s, int32_t *row, int32_t *targets) {
  int32_t order[MAX_OPS], left = p->n, *at = row;
  for (int32_t i = 0; i < left; i++) order[i] = i;
  while (left) at = put_definition(p, take(s, order, &left), at);
  *at++ = p->names[p->n - 1];
  *at++ = QUESTION;
  for (int32_t i = 0; i < p->n; i++) {
    int64_t name = at - row;
    at = put_step(p, i, at);
    for (int64_t t = name; t < name + STEP - 1; t++) targets[t] = row[t + 1];
  }
}

static void draw(const kva_generated_data *d, uint64_t seed, kva_stream *s, int64_t length, int32_t *row,
                 int32_t *targets) {
  (void)seed;
  problem p = {.mod = (int32_t)d->args[MOD]};
  bool evaluation = kva_stream_evaluates(s);
  do {
    p.n = evaluation ? (int32_t)d->args[TEST] : 1 + (int32_t)kva_stream_below(s, (uint32_t)d->args[OPS]);
    draw_definitions(&p, s);
  } while (is_held_out(&p) != evaluation);
  solve(&p);
  draw_names(d, &p, s);
  for (int64_t t = 0; t <= length; t++) row[t] = 0;
  put_problem(&p, s, row, targets);
}

const kva_generator kva_generator_igsm = {
    .name = "igsm",
    .n_args = 4,
    .args = {{"all", 0}, {"ops", 4}, {"test", 5}, {"mod", 5}},
    .prepare = prepare,
    .check_length = check_length,
    .draw = draw,
};
