/* Expressions: the simplifications that code generation relies on, by name, and everything against brute force. */
#include "ir/expr.h"
#include "tests/support/target.h"

#include <inttypes.h>
#include <setjmp.h>
#include <cmocka.h>

typedef struct fixture {
  kva_arena *arena;
  kva_expr_ctx *c;
  const kva_expr *A, *B, *N, *T, *P;       /* sizes */
  const kva_expr *i, *j, *k, *flat, *tile; /* i < N, j < A, k < B, flat < N*A*B, tile < 4 */
} fixture;

static fixture make(void) {
  fixture f = {.arena = kva_arena_create()};
  kva_expr_ctx *c = f.c = kva_expr_ctx_create(f.arena);
  f.A = kva_expr_symbol(c, "A");
  f.B = kva_expr_symbol(c, "B");
  f.N = kva_expr_symbol(c, "N");
  f.T = kva_expr_symbol(c, "T");
  f.P = kva_expr_symbol(c, "P");
  f.i = kva_expr_fresh(c, "i", 0, f.N);
  f.j = kva_expr_fresh(c, "j", 0, f.A);
  f.k = kva_expr_fresh(c, "k", 0, f.B);
  f.flat = kva_expr_fresh(c, "f", 0, kva_expr_mul(c, kva_expr_mul(c, f.N, f.A), f.B));
  f.tile = kva_expr_fresh(c, "t", 0, kva_expr_const(c, 4));
  return f;
}

#define ADD(x, y) kva_expr_add(f.c, x, y)
#define SUB(x, y) kva_expr_sub(f.c, x, y)
#define MUL(x, y) kva_expr_mul(f.c, x, y)
#define DIV(x, y) kva_expr_div(f.c, x, y)
#define MOD(x, y) kva_expr_mod(f.c, x, y)
#define MIN(x, y) kva_expr_min(f.c, x, y)
#define MAX(x, y) kva_expr_max(f.c, x, y)
#define INT(v)    kva_expr_const(f.c, v)

static void check_same(const kva_expr *got, const kva_expr *want, int line) {
  if (got == want) return;
  kva_text a = {0}, b = {0};
  kva_expr_print(got, &a);
  kva_expr_print(want, &b);
  fail_msg("line %d: got %s, expected %s", line, a.data, b.data);
}
#define SAME(got, want) check_same(got, want, __LINE__)

static void check_text(const kva_expr *e, const char *want, int line) {
  kva_text text = {0};
  kva_expr_print(e, &text);
  if (strcmp(text.data, want)) fail_msg("line %d: got %s, expected %s", line, text.data, want);
  kva_text_free(&text);
}
#define TEXT(e, want) check_text(e, want, __LINE__)

static void sums_are_canonical(void **state) {
  (void)state;
  fixture f = make();
  SAME(ADD(f.A, f.B), ADD(f.B, f.A));
  SAME(SUB(ADD(f.A, f.B), f.B), f.A);
  SAME(SUB(f.A, f.A), INT(0));
  SAME(MUL(ADD(f.A, INT(1)), SUB(f.A, INT(1))), SUB(MUL(f.A, f.A), INT(1)));
  SAME(kva_expr_muli(f.c, ADD(f.A, f.B), 0), INT(0));
  SAME(kva_expr_symbol(f.c, "A"), f.A);
  assert_ptr_not_equal(kva_expr_fresh(f.c, "A", 0, NULL), f.A);
  assert_true(kva_expr_is(INT(7), 7));
  assert_false(kva_expr_is(f.A, 7));
  kva_arena_destroy(f.arena);
}

static void flattened_indices_come_apart(void **state) {
  (void)state;
  fixture f = make();
  const kva_expr *AB = MUL(f.A, f.B);
  const kva_expr *two = ADD(MUL(f.i, f.A), f.j);
  SAME(DIV(two, f.A), f.i);
  SAME(MOD(two, f.A), f.j);
  const kva_expr *three = ADD(ADD(MUL(f.i, AB), MUL(f.j, f.B)), f.k);
  SAME(DIV(three, AB), f.i);
  SAME(MOD(three, AB), ADD(MUL(f.j, f.B), f.k));
  SAME(DIV(three, f.B), ADD(MUL(f.i, f.A), f.j));
  SAME(MOD(three, f.B), f.k);
  SAME(MOD(DIV(three, f.B), f.A), f.j);
  SAME(DIV(MOD(three, AB), f.B), f.j);
  /* constant extents */
  const kva_expr *mixed = ADD(kva_expr_muli(f.c, f.i, 4), f.tile);
  SAME(DIV(mixed, INT(4)), f.i);
  SAME(MOD(mixed, INT(4)), f.tile);
  SAME(DIV(mixed, INT(8)), DIV(f.i, INT(2)));
  SAME(MOD(mixed, INT(8)), ADD(kva_expr_muli(f.c, MOD(f.i, INT(2)), 4), f.tile));
  SAME(DIV(mixed, INT(2)), ADD(kva_expr_muli(f.c, f.i, 2), DIV(f.tile, INT(2))));
  kva_arena_destroy(f.arena);
}

static void sums_as_divisors(void **state) {
  (void)state;
  fixture f = make();
  const kva_expr *L = ADD(f.T, f.P), *t = kva_expr_fresh(f.c, "t", 0, L);
  const kva_expr *flat = ADD(MUL(f.i, L), t);
  SAME(DIV(flat, L), f.i);
  SAME(MOD(flat, L), t);
  const kva_expr *LA = MUL(L, f.A), *deep = ADD(ADD(MUL(f.i, LA), MUL(t, f.A)), f.j);
  SAME(DIV(deep, LA), f.i);
  SAME(DIV(deep, f.A), flat);
  SAME(MOD(DIV(deep, f.A), L), t);
  SAME(DIV(SUB(L, INT(1)), L), INT(0));
  const kva_expr *N1 = ADD(f.N, INT(1));
  SAME(DIV(MUL(f.B, N1), N1), f.B);
  SAME(DIV(f.N, N1), INT(0));
  kva_arena_destroy(f.arena);
}

static void division_by_sizes(void **state) {
  (void)state;
  fixture f = make();
  SAME(DIV(f.N, f.N), INT(1));
  SAME(MOD(f.N, f.N), INT(0));
  SAME(DIV(MUL(f.B, f.N), f.N), f.B);
  SAME(DIV(MUL(f.B, f.N), MUL(f.N, f.A)), DIV(f.B, f.A));
  SAME(DIV(SUB(f.N, INT(1)), f.N), INT(0));
  SAME(DIV(DIV(f.flat, f.A), f.B), DIV(f.flat, MUL(f.A, f.B)));
  SAME(DIV(DIV(f.N, INT(2)), INT(3)), DIV(f.N, INT(6)));
  SAME(DIV(ADD(DIV(f.N, INT(2)), INT(1)), INT(2)), DIV(ADD(f.N, INT(2)), INT(4)));
  SAME(kva_expr_ceildiv(f.c, ADD(kva_expr_muli(f.c, f.N, 4), INT(1)), INT(4)), ADD(f.N, INT(1)));
  SAME(DIV(f.N, INT(0)), MOD(f.N, INT(0)));
  assert_int_equal(DIV(f.N, INT(0))->kind, KVA_EXPR_OVERFLOW);
  kva_arena_destroy(f.arena);
}

static bool four_one_minus_one(void *user, const kva_expr *symbol, int64_t *out_v) {
  const fixture *f = user;
  *out_v = symbol == f->N ? 4 : symbol == f->tile ? 1 : -1;
  return true;
}

/* floor((4*4 + 1) / (4*-1)) = -5, but floor(4 / -1) = -4: a common divisor comes out of positive divisors only. */
static void division_by_what_may_be_negative(void **state) {
  (void)state;
  fixture f = make();
  const kva_expr *s = kva_expr_fresh(f.c, "s", -2, NULL), *x = ADD(kva_expr_muli(f.c, f.N, 4), f.tile);
  int64_t v;
  assert_true(kva_expr_eval(DIV(x, kva_expr_muli(f.c, s, 4)), four_one_minus_one, &f, &v));
  assert_int_equal(v, -5);
  assert_true(kva_expr_eval(MOD(x, kva_expr_muli(f.c, s, 4)), four_one_minus_one, &f, &v));
  assert_int_equal(v, -3);
  SAME(DIV(f.N, INT(-2)), DIV(kva_expr_muli(f.c, f.N, -1), INT(2)));
  kva_arena_destroy(f.arena);
}

static void what_division_took_apart_comes_together(void **state) {
  (void)state;
  fixture f = make();
  const kva_expr *AB = MUL(f.A, f.B);
  SAME(ADD(MUL(DIV(f.flat, f.B), f.B), MOD(f.flat, f.B)), f.flat);
  const kva_expr *n = DIV(f.flat, AB), *a = MOD(DIV(f.flat, f.B), f.A), *b = MOD(f.flat, f.B);
  SAME(ADD(ADD(MUL(n, AB), MUL(a, f.B)), b), f.flat);
  SAME(ADD(MUL(a, f.B), b), MOD(f.flat, AB));
  SAME(DIV(MOD(f.flat, AB), f.B), a);
  SAME(MOD(MOD(f.flat, AB), f.B), b);
  const kva_expr *g = kva_expr_fresh(f.c, "g", 0, INT(100));
  SAME(ADD(kva_expr_muli(f.c, DIV(g, INT(7)), 7), MOD(g, INT(7))), g);
  SAME(DIV(f.flat, MUL(AB, f.N)), INT(0));
  SAME(MOD(n, f.N), n);
  kva_arena_destroy(f.arena);
}

static void order_is_proven_from_ranges(void **state) {
  (void)state;
  fixture f = make();
  kva_expr_ctx *c = f.c;
  const kva_expr *AB = MUL(f.A, f.B), *NAB = MUL(f.N, AB);
  const kva_expr *three = ADD(ADD(MUL(f.i, AB), MUL(f.j, f.B)), f.k);
  assert_true(kva_expr_provably_less(c, f.i, f.N));
  assert_false(kva_expr_provably_less(c, f.i, SUB(f.N, INT(1))));
  assert_true(kva_expr_provably_le(c, f.i, SUB(f.N, INT(1))));
  assert_true(kva_expr_provably_less(c, three, NAB));
  assert_false(kva_expr_provably_less(c, ADD(three, INT(1)), NAB));
  assert_true(kva_expr_provably_le(c, ADD(three, INT(1)), NAB));
  assert_true(kva_expr_provably_le(c, INT(0), three));
  assert_false(kva_expr_provably_less(c, INT(0), f.N));
  assert_false(kva_expr_provably_less(c, f.N, f.A));
  assert_true(kva_expr_provably_less(c, DIV(f.flat, AB), f.N));
  assert_true(kva_expr_provably_less(c, MOD(f.flat, f.B), f.B));
  assert_true(kva_expr_provably_le(c, kva_expr_muli(c, DIV(f.N, INT(2)), 2), f.N));
  assert_true(kva_expr_provably_le(c, f.N, kva_expr_muli(c, kva_expr_ceildiv(c, f.N, INT(2)), 2)));
  const kva_expr *half = kva_expr_fresh(c, "h", 0, kva_expr_ceildiv(c, f.N, INT(2)));
  assert_true(kva_expr_provably_le(c, kva_expr_muli(c, half, 2), SUB(f.N, INT(1))));
  assert_true(kva_expr_provably_le(c, MOD(f.i, INT(4)), f.i));
  /* reversed */
  const kva_expr *reversed = SUB(SUB(f.N, INT(1)), f.i);
  assert_true(kva_expr_provably_le(c, INT(0), reversed));
  assert_true(kva_expr_provably_less(c, reversed, f.N));
  SAME(MOD(reversed, f.N), reversed);
  kva_arena_destroy(f.arena);
}

static void min_and_max(void **state) {
  (void)state;
  fixture f = make();
  SAME(MIN(f.i, f.N), f.i);
  SAME(MAX(f.i, f.N), f.N);
  SAME(MAX(SUB(f.i, INT(1)), f.i), f.i);
  SAME(MIN(f.A, f.B), MIN(f.B, f.A));
  SAME(MIN(MIN(f.A, f.B), f.N), MIN(f.A, MIN(f.N, f.B)));
  SAME(MIN(MIN(f.A, f.B), f.A), MIN(f.A, f.B));
  SAME(MAX(f.A, INT(0)), f.A);
  SAME(MIN(INT(3), INT(-2)), INT(-2));
  int64_t v;
  assert_true(kva_expr_upper_bound(MIN(f.A, INT(9)), &v));
  assert_int_equal(v, 9);
  assert_true(kva_expr_provably_le(f.c, MIN(f.A, f.B), f.A));
  assert_true(kva_expr_provably_le(f.c, f.A, MAX(f.A, f.B)));
  kva_arena_destroy(f.arena);
}

static void affine_and_substitution(void **state) {
  (void)state;
  fixture f = make();
  const kva_expr *k, *rest, *e = ADD(MUL(f.i, MUL(f.A, f.B)), ADD(f.j, DIV(f.k, INT(2))));
  assert_true(kva_expr_affine(f.c, e, f.i, &k, &rest));
  SAME(k, MUL(f.A, f.B));
  SAME(rest, ADD(f.j, DIV(f.k, INT(2))));
  assert_false(kva_expr_affine(f.c, e, f.k, &k, &rest));
  assert_false(kva_expr_affine(f.c, MUL(f.i, f.i), f.i, &k, &rest));
  assert_true(kva_expr_affine(f.c, e, f.tile, &k, &rest));
  SAME(k, INT(0));
  const kva_expr *from[2] = {f.i, f.k}, *to[2] = {f.k, INT(5)};
  SAME(kva_expr_substitute(f.c, e, 2, from, to), ADD(ADD(MUL(f.k, MUL(f.A, f.B)), f.j), INT(2)));
  assert_true(kva_expr_uses(e, f.k));
  assert_false(kva_expr_uses(e, f.tile));
  kva_arena_destroy(f.arena);
}

static void overflow_absorbs(void **state) {
  (void)state;
  fixture f = make();
  const kva_expr *big = MUL(INT(INT64_MAX), INT(2));
  assert_int_equal(big->kind, KVA_EXPR_OVERFLOW);
  SAME(ADD(big, f.A), big);
  SAME(MUL(big, INT(0)), big);
  SAME(DIV(INT(0), big), big);
  SAME(MIN(big, INT(0)), big);
  SAME(ADD(INT(INT64_MAX), INT(1)), big);
  SAME(DIV(INT(INT64_MIN), INT(-1)), big);
  assert_false(kva_expr_provably_le(f.c, big, big));
  int64_t v;
  assert_false(kva_expr_eval(big, NULL, NULL, &v));
  kva_arena_destroy(f.arena);
}

/* Repeated halves and remainders grow exponentially when written out: they must end as overflow, and soon. */
static void runaway_expressions_end(void **state) {
  (void)state;
  fixture f = make();
  const kva_expr *e = f.N;
  for (int n = 0; n < 200; n++) {
    e = ADD(kva_expr_muli(f.c, DIV(e, INT(5)), 3), MUL(MOD(e, INT(7)), f.A));
  }
  assert_int_equal(e->kind, KVA_EXPR_OVERFLOW);
  e = f.A;
  for (int n = 0; n < 64; n++) e = MUL(e, f.B);
  assert_int_equal(e->kind, KVA_EXPR_OVERFLOW);
  kva_arena_destroy(f.arena);
}

/* What was made first does not show. */
static void text_has_one_order(void **state) {
  (void)state;
  for (int turn = 0; turn < 2; turn++) {
    fixture f = make();
    const kva_expr *low = NULL, *high = NULL;
    for (int i = 0; i < 2; i++) {
      if (i == turn) low = MIN(f.A, INT(8));
      if (i != turn) high = MAX(INT(0), SUB(f.A, INT(9)));
    }
    TEXT(SUB(low, high), "min(8, A) - max(0, A - 9)");
    TEXT(MUL(high, low), "min(8, A)*max(0, A - 9)");
    TEXT(MAX(high, low), "max(A - 9, min(8, A))");
    TEXT(MIN(DIV(low, f.B), DIV(high, f.B)), "min(floordiv(min(8, A), B), floordiv(max(0, A - 9), B))");
    kva_arena_destroy(f.arena);
  }
}

static void text_is_readable(void **state) {
  (void)state;
  fixture f = make();
  TEXT(INT(-3), "-3");
  TEXT(f.A, "A");
  TEXT(ADD(f.T, INT(1)), "T + 1");
  TEXT(MUL(kva_expr_muli(f.c, f.B, 2), f.T), "2*B*T");
  TEXT(SUB(f.A, ADD(f.B, INT(4))), "A - B - 4");
  TEXT(DIV(f.N, INT(2)), "floordiv(N, 2)");
  TEXT(MOD(f.i, INT(4)), "mod(i, 4)");
  TEXT(MAX(f.A, f.B), "max(A, B)");
  TEXT(kva_expr_muli(f.c, f.A, -1), "-A");
  kva_arena_destroy(f.arena);
}

/* ---- brute force ------------------------------------------------------------------------------------------------- */

enum { N_SIZES = 3, N_VARS = 4, N_SYMBOLS = N_SIZES + N_VARS };

typedef struct tree {
  char op; /* s symbol, c constant, + - * / % m M */
  int symbol;
  int64_t v;
  struct tree *a, *b;
} tree;

typedef struct world {
  kva_arena *arena;
  kva_expr_ctx *c;
  const kva_expr *symbols[N_SYMBOLS];
  int64_t values[N_SYMBOLS];
  uint64_t random;
} world;

static uint64_t draw(world *w, uint64_t n) {
  w->random = w->random * 6364136223846793005u + 1442695040888963407u;
  return (w->random >> 33) % n;
}

static bool lookup(void *user, const kva_expr *symbol, int64_t *out_v) {
  world *w = user;
  for (int i = 0; i < N_SYMBOLS; i++) {
    if (w->symbols[i] != symbol) continue;
    *out_v = w->values[i];
    return true;
  }
  return false;
}

static world make_world(uint64_t seed) {
  world w = {.arena = kva_arena_create(), .random = seed * 77777 + 1};
  w.c = kva_expr_ctx_create(w.arena);
  w.symbols[0] = kva_expr_symbol(w.c, "A");
  w.symbols[1] = kva_expr_symbol(w.c, "B");
  w.symbols[2] = kva_expr_symbol(w.c, "C");
  w.symbols[3] = kva_expr_fresh(w.c, "i", 0, w.symbols[0]);
  w.symbols[4] = kva_expr_fresh(w.c, "j", 0, kva_expr_mul(w.c, w.symbols[0], w.symbols[1]));
  w.symbols[5] = kva_expr_fresh(w.c, "k", 0, kva_expr_const(w.c, 6));
  w.symbols[6] = kva_expr_fresh(w.c, "l", -2, kva_expr_ceildiv(w.c, w.symbols[2], kva_expr_const(w.c, 2)));
  return w;
}

/* Values within the ranges; false: a range is empty. */
static bool bind(world *w) {
  for (int i = 0; i < N_SIZES; i++) w->values[i] = (int64_t)draw(w, 5);
  for (int i = N_SIZES; i < N_SYMBOLS; i++) {
    int64_t lo = w->symbols[i]->lo, end;
    assert_true(kva_expr_eval(w->symbols[i]->extent, lookup, w, &end));
    if (end <= lo) return false;
    w->values[i] = lo + (int64_t)draw(w, (uint64_t)(end - lo));
  }
  return true;
}

static tree *leaf(world *w) {
  tree *t = KVA_NEW(w->arena, tree);
  t->op = draw(w, 4) ? 's' : 'c';
  t->symbol = (int)draw(w, N_SYMBOLS);
  t->v = (int64_t)draw(w, 9) - 2;
  return t;
}

static tree *binary(world *w, char op, tree *a, tree *b) {
  tree *t = KVA_NEW(w->arena, tree);
  *t = (tree){.op = op, .a = a, .b = b};
  return t;
}

static tree *grow(world *w, int depth) {
  if (!depth || draw(w, 6) == 0) return leaf(w);
  static const char ops[] = "+++-**//%%mM";
  char op = ops[draw(w, sizeof ops - 1)];
  tree *a = grow(w, depth - 1), *b = grow(w, depth - 1);
  /* Mostly divisors that occur: sizes, constants, their products. */
  bool division = op == '/' || op == '%';
  if (division && draw(w, 4)) b = draw(w, 2) ? leaf(w) : binary(w, '*', leaf(w), leaf(w));
  return binary(w, op, a, b);
}

static bool eval_tree(world *w, const tree *t, int64_t *out_v) {
  if (t->op == 's' || t->op == 'c') {
    *out_v = t->op == 's' ? w->values[t->symbol] : t->v;
    return true;
  }
  int64_t a, b;
  if (!eval_tree(w, t->a, &a) || !eval_tree(w, t->b, &b)) return false;
  if ((t->op == '/' || t->op == '%') && !b) return false;
  switch (t->op) {
  case '+': *out_v = a + b; break;
  case '-': *out_v = a - b; break;
  case '*': *out_v = a * b; break;
  case '/': *out_v = a / b - (a % b && (a < 0) != (b < 0)); break;
  case '%': *out_v = a % b + (a % b && (a < 0) != (b < 0) ? b : 0); break;
  case 'm': *out_v = a < b ? a : b; break;
  default: *out_v = a > b ? a : b; break;
  }
  return true;
}

static const kva_expr *build_tree(world *w, const tree *t) {
  if (t->op == 's') return w->symbols[t->symbol];
  if (t->op == 'c') return kva_expr_const(w->c, t->v);
  const kva_expr *a = build_tree(w, t->a), *b = build_tree(w, t->b);
  switch (t->op) {
  case '+': return kva_expr_add(w->c, a, b);
  case '-': return kva_expr_sub(w->c, a, b);
  case '*': return kva_expr_mul(w->c, a, b);
  case '/': return kva_expr_div(w->c, a, b);
  case '%': return kva_expr_mod(w->c, a, b);
  case 'm': return kva_expr_min(w->c, a, b);
  default: return kva_expr_max(w->c, a, b);
  }
}

static void print_tree(const tree *t, kva_text *out) {
  static const char *const names[] = {"A", "B", "C", "i", "j", "k", "l"};
  if (t->op == 's') kva_text_add(out, "%s", names[t->symbol]);
  if (t->op == 'c') kva_text_add(out, "%" PRId64, t->v);
  if (t->op == 's' || t->op == 'c') return;
  kva_text_add(out, "(");
  print_tree(t->a, out);
  kva_text_add(out, " %c ", t->op);
  print_tree(t->b, out);
  kva_text_add(out, ")");
}

static void report(world *w, const tree *t, const kva_expr *e, const char *what) {
  kva_text a = {0}, b = {0};
  print_tree(t, &a);
  kva_expr_print(e, &b);
  fail_msg("%s: %s became %s at A=%d B=%d C=%d i=%d j=%d k=%d l=%d", what, a.data, b.data, (int)w->values[0],
           (int)w->values[1], (int)w->values[2], (int)w->values[3], (int)w->values[4], (int)w->values[5],
           (int)w->values[6]);
}

static void check_tree(world *w, const tree *t) {
  const kva_expr *e = build_tree(w, t), *zero = kva_expr_const(w->c, 0);
  if (e->kind == KVA_EXPR_OVERFLOW) return;
  bool positive = kva_expr_provably_less(w->c, zero, e), nonnegative = kva_expr_provably_le(w->c, zero, e);
  bool negative = kva_expr_provably_less(w->c, e, zero);
  int64_t lo = INT64_MIN, hi = INT64_MAX;
  kva_expr_lower_bound(e, &lo);
  kva_expr_upper_bound(e, &hi);
  for (int n = 0; n < 24; n++) {
    int64_t want, got;
    if (!bind(w) || !eval_tree(w, t, &want)) continue;
    if (!kva_expr_eval(e, lookup, w, &got) || got != want) report(w, t, e, "value");
    if (want < lo || want > hi) report(w, t, e, "bounds");
    if ((positive && want <= 0) || (nonnegative && want < 0) || (negative && want >= 0)) report(w, t, e, "proof");
  }
}

static void simplification_keeps_values(void **state) {
  (void)state;
  const uint64_t seeds = sanitized() ? 100 : 400; /* all of them run the same lines */
  for (uint64_t seed = 1; seed <= seeds; seed++) {
    world w = make_world(seed);
    for (int n = 0; n < 40; n++) check_tree(&w, grow(&w, 2 + n % 3));
    kva_arena_destroy(w.arena);
  }
}

/* Substituting values for all symbols must end in the constant that evaluation gives. */
static void substitution_agrees_with_evaluation(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    world w = make_world(seed + 5000);
    for (int n = 0; n < 40; n++) {
      tree *t = grow(&w, 3);
      const kva_expr *e = build_tree(&w, t), *to[N_SYMBOLS];
      int64_t want, got;
      if (!bind(&w) || !eval_tree(&w, t, &want) || e->kind == KVA_EXPR_OVERFLOW) continue;
      for (int i = 0; i < N_SYMBOLS; i++) to[i] = kva_expr_const(w.c, w.values[i]);
      const kva_expr *constant = kva_expr_substitute(w.c, e, N_SYMBOLS, w.symbols, to);
      if (!kva_expr_is_const(constant, &got) || got != want) report(&w, t, e, "substitution");
    }
    kva_arena_destroy(w.arena);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_are_canonical),
      cmocka_unit_test(flattened_indices_come_apart),
      cmocka_unit_test(sums_as_divisors),
      cmocka_unit_test(division_by_sizes),
      cmocka_unit_test(division_by_what_may_be_negative),
      cmocka_unit_test(what_division_took_apart_comes_together),
      cmocka_unit_test(order_is_proven_from_ranges),
      cmocka_unit_test(min_and_max),
      cmocka_unit_test(affine_and_substitution),
      cmocka_unit_test(overflow_absorbs),
      cmocka_unit_test(runaway_expressions_end),
      cmocka_unit_test(text_is_readable),
      cmocka_unit_test(text_has_one_order),
      cmocka_unit_test(simplification_keeps_values),
      cmocka_unit_test(substitution_agrees_with_evaluation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
