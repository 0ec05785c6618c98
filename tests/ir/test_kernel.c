/* Kernel IR: placement and sharing in the builder, rewriting, verifier. test_kernel_text.c: as text. */
#include "tests/support/kernel_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct fixture {
  kva_arena *arena;
  kva_expr_ctx *exprs;
  kva_diag *diag;
  kva_kb *b;
  const kva_expr *T, *C;
  kva_kbuf *x, *w, *y; /* x[T*C], w[T], y[T*C] */
} fixture;

static int set_up(void **state) {
  fixture *f = calloc(1, sizeof *f);
  f->arena = kva_arena_create();
  f->exprs = kva_expr_ctx_create(f->arena);
  f->diag = kva_diag_create();
  f->b = kva_kb_create(kva_kernel_create(f->arena, f->exprs, "test"));
  f->T = kva_expr_symbol(f->exprs, "T");
  f->C = kva_expr_symbol(f->exprs, "C");
  const kva_expr *size = kva_expr_mul(f->exprs, f->T, f->C);
  f->x = kva_k_param(f->b, "x", KVA_F32, size);
  f->w = kva_k_param(f->b, "w", KVA_F32, f->T);
  f->y = kva_k_param(f->b, "y", KVA_F32, size);
  *state = f;
  return 0;
}

static int tear_down(void **state) {
  fixture *f = *state;
  kva_diag_destroy(f->diag);
  kva_arena_destroy(f->arena);
  free(f);
  return 0;
}

static const kva_expr *at(fixture *f, const kva_expr *t, const kva_expr *c) {
  return kva_expr_add(f->exprs, kva_expr_mul(f->exprs, t, f->C), c);
}

static kva_kval f32(fixture *f, double v) {
  return kva_k_const_f(f->b, KVA_F32, v);
}

static char *print(const kva_kernel *k) {
  kva_text text = {0};
  kva_kernel_print(k, &text);
  return text.data;
}

static void assert_valid(fixture *f) {
  kva_status status = kva_kernel_verify(f->b->kernel, f->diag);
  if (status != KVA_OK) kva_diag_print(f->diag, stderr);
  assert_int_equal(status, KVA_OK);
}

/* Swept, verified and printed, the kernel is this text. */
static void assert_text(fixture *f, const char *expected) {
  assert_valid(f);
  kva_kernel_sweep(f->b->kernel);
  assert_valid(f);
  char *text = print(f->b->kernel);
  assert_string_equal(text, expected);
  free(text);
}

static uint32_t count_op(const kva_kregion *r, kva_kop op) {
  uint32_t n = 0;
  for (const kva_kinstr *i = r->first; i; i = i->next) {
    n += i->op == op;
    if (i->op == KVA_K_LOOP) n += count_op(i->loop->body, op);
    if (i->then) n += count_op(i->then, op) + count_op(i->orelse, op);
  }
  return n;
}

/* ---- placement --------------------------------------------------------------------------------------------------- */

#define PARAMS "(read float x[C*T], read float w[T], write float y[C*T])"

static void invariant_load_leaves_the_loop(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kloop *c = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->C, "c");
  const kva_expr *i = at(f, t->var, c->var);
  kva_kval scale = kva_k2(f->b, KVA_K_mul, kva_k_load(f->b, f->w, t->var), f32(f, 2));
  kva_k_store(f->b, f->y, i, kva_k2(f->b, KVA_K_mul, kva_k_load(f->b, f->x, i), scale));
  kva_k_loop_end(f->b, c);
  kva_k_loop_end(f->b, t);
  assert_ptr_equal(scale->region, t->body);
  assert_text(f, "kernel \"test\" " PARAMS " {\n"
                 "  parallel t < T {\n"
                 "    %0 = load w[t]\n"
                 "    %1 = mul %0, 2.0 : float\n"
                 "    parallel c < C {\n"
                 "      %2 = load x[C*t + c]\n"
                 "      %3 = mul %2, %1 : float\n"
                 "      store y[C*t + c], %3\n"
                 "    }\n"
                 "  }\n"
                 "}\n");
}

static void equal_values_are_one(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kval p = kva_k_load(f->b, f->w, t->var), q = kva_k_load(f->b, f->w, t->var);
  assert_ptr_equal(p, q);
  kva_kval exp = kva_k1(f->b, KVA_K_exp, p);
  assert_ptr_equal(kva_k1(f->b, KVA_K_exp, q), exp);
  assert_ptr_equal(kva_k2(f->b, KVA_K_add, p, exp), kva_k2(f->b, KVA_K_add, exp, p));
  assert_ptr_not_equal(kva_k2(f->b, KVA_K_sub, p, exp), kva_k2(f->b, KVA_K_sub, exp, p));
  kva_k_loop_end(f->b, t);
  kva_kloop *u = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  assert_ptr_not_equal(kva_k_load(f->b, f->w, u->var), p);
  kva_k_loop_end(f->b, u);
}

/* x[C*t] does not exist when C = 0, though the loop over c asks for it; w[t] always does. */
static void load_stays_in_a_loop_that_may_be_empty(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kloop *c = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->C, "c");
  kva_kval first = kva_k_load(f->b, f->x, at(f, t->var, kva_expr_const(f->exprs, 0)));
  kva_kloop *four = kva_k_loop_begin(f->b, KVA_K_SERIAL, kva_expr_const(f->exprs, 4), "n");
  assert_ptr_equal(kva_k_load(f->b, f->x, at(f, t->var, kva_expr_const(f->exprs, 0))), first);
  kva_kval third = kva_k_load(f->b, f->x, at(f, t->var, kva_expr_const(f->exprs, 2)));
  kva_k_loop_end(f->b, four);
  kva_k_loop_end(f->b, c);
  kva_k_loop_end(f->b, t);
  assert_ptr_equal(first->region, c->body);
  assert_ptr_equal(third->region, c->body); /* out of the loop of 4, which cannot be empty */
}

static void load_stays_in_its_arm(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kval v = kva_k_load(f->b, f->w, t->var);
  kva_kinstr *branch = kva_k_if_begin(f->b, kva_k2(f->b, KVA_K_lt, v, f32(f, 0)));
  kva_kval in_then = kva_k_load(f->b, f->x, t->var);
  kva_kval pure = kva_k1(f->b, KVA_K_exp, v);
  kva_k_store(f->b, f->y, t->var, in_then);
  kva_k_if_else(f->b, branch);
  kva_kval in_else = kva_k_load(f->b, f->x, t->var);
  kva_kval again = kva_k_load(f->b, f->w, t->var);
  kva_k_store(f->b, f->y, t->var, kva_k2(f->b, KVA_K_add, in_else, pure));
  kva_k_if_end(f->b, branch);
  kva_k_loop_end(f->b, t);
  assert_ptr_equal(in_then->region, branch->then);
  assert_ptr_equal(in_else->region, branch->orelse);
  assert_ptr_equal(again, v);
  assert_ptr_equal(pure->region, t->body);
  assert_valid(f);
}

static void guard_holds_loads_and_stores(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kval free_load = kva_k_load(f->b, f->w, kva_expr_const(f->exprs, 0));
  kva_kloop *c = kva_k_loop_begin(f->b, KVA_K_SERIAL, f->C, "c");
  kva_kval cond = kva_k_index_lt(f->b, c->var, t->var);
  kva_kval previous = kva_k_guard_begin(f->b, cond);
  kva_kval guarded = kva_k_load(f->b, f->w, kva_expr_const(f->exprs, 0));
  kva_kval inner = kva_k_guard_begin(f->b, kva_k2(f->b, KVA_K_lt, guarded, f32(f, 0)));
  assert_int_equal(f->b->pred->op, KVA_K_and);
  kva_k_store(f->b, f->y, c->var, guarded);
  kva_k_guard_end(f->b, inner);
  kva_k_guard_end(f->b, previous);
  kva_k_loop_end(f->b, c);
  kva_k_loop_end(f->b, t);
  assert_null(f->b->pred);
  assert_ptr_not_equal(guarded, free_load);
  assert_ptr_equal(guarded->args[0], cond);
  assert_ptr_equal(guarded->region, cond->region);
  const kva_kinstr *store = c->body->last;
  assert_int_equal(store->op, KVA_K_STORE);
  assert_int_equal(store->n_args, 2);
  assert_valid(f);
}

static void constant_guards(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kval yes = kva_k_index_lt(f->b, t->var, f->T), no = kva_k_index_lt(f->b, t->var, kva_expr_const(f->exprs, 0));
  kva_kval previous = kva_k_guard_begin(f->b, yes);
  assert_null(f->b->pred);
  kva_k_guard_end(f->b, previous);
  previous = kva_k_guard_begin(f->b, no);
  assert_ptr_equal(kva_k_load(f->b, f->w, t->var), f32(f, 0));
  kva_k_store(f->b, f->y, t->var, f32(f, 1));
  kva_k_guard_end(f->b, previous);
  kva_k_loop_end(f->b, t);
  assert_int_equal(count_op(f->b->kernel->body, KVA_K_STORE), 0);
}

/* A value that a buffer holds may change once the kernel writes it. */
static void loads_of_written_buffers_keep_their_place(void **state) {
  fixture *f = *state;
  kva_kbuf *tile = kva_k_local(f->b, "tile", KVA_F32, 4);
  const kva_expr *zero = kva_expr_const(f->exprs, 0);
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_SERIAL, f->T, "t");
  kva_kval before = kva_k_load(f->b, tile, zero);
  kva_k_store(f->b, tile, zero, kva_k2(f->b, KVA_K_add, before, f32(f, 1)));
  kva_kval after = kva_k_load(f->b, tile, zero);
  kva_k_store(f->b, f->y, t->var, after);
  kva_kval y = kva_k_load(f->b, f->y, t->var);
  assert_ptr_not_equal(kva_k_load(f->b, f->y, t->var), y);
  kva_k_loop_end(f->b, t);
  assert_ptr_not_equal(before, after);
  assert_ptr_equal(before->region, t->body);
  assert_valid(f);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

typedef struct row {
  fixture *f;
  const kva_expr *t;
  kva_kval shift; /* exp(x - shift); NULL: x */
} row;

static kva_kval row_element(kva_kb *b, void *user, const kva_expr *const *vars) {
  row *r = user;
  kva_kval x = kva_k_load(b, r->f->x, at(r->f, r->t, vars[0]));
  return r->shift ? kva_k1(b, KVA_K_exp, kva_k2(b, KVA_K_sub, x, r->shift)) : x;
}

static kva_kval softmax_element(fixture *f, const kva_expr *t, const kva_expr *c) {
  row r = {f, t, NULL};
  kva_kval max = kva_k_reduce_over(f->b, KVA_COMBINE_MAX, KVA_F32, 1, &f->C, row_element, &r);
  r.shift = max;
  kva_kval sum = kva_k_reduce_over(f->b, KVA_COMBINE_ADD, KVA_F32, 1, &f->C, row_element, &r);
  const kva_expr *vars[] = {c};
  return kva_k2(f->b, KVA_K_div, row_element(f->b, &r, vars), sum);
}

static void reductions_hoist_and_are_shared(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kloop *c = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->C, "c");
  kva_kval p = softmax_element(f, t->var, c->var);
  assert_ptr_equal(softmax_element(f, t->var, c->var), p);
  kva_k_store(f->b, f->y, at(f, t->var, c->var), p);
  kva_k_loop_end(f->b, c);
  kva_k_loop_end(f->b, t);
  assert_int_equal(f->b->kernel->loops.len, 4);
  assert_text(f, "kernel \"test\" (read float x[C*T], unused float w[T], write float y[C*T]) {\n"
                 "  parallel t < T {\n"
                 "    serial r < C carry (max float -inf) {\n"
                 "      %0 = load x[C*t + r]\n"
                 "      yield %0\n"
                 "    }\n"
                 "    %1 = reduce r[0]\n"
                 "    serial r_2 < C carry (add float 0.0) {\n"
                 "      %2 = load x[C*t + r_2]\n"
                 "      %3 = sub %2, %1 : float\n"
                 "      %4 = exp %3 : float\n"
                 "      yield %4\n"
                 "    }\n"
                 "    %5 = reduce r_2[0]\n"
                 "    parallel c < C {\n"
                 "      %6 = load x[C*t + c]\n"
                 "      %7 = sub %6, %1 : float\n"
                 "      %8 = exp %7 : float\n"
                 "      %9 = div %8, %5 : float\n"
                 "      store y[C*t + c], %9\n"
                 "    }\n"
                 "  }\n"
                 "}\n");
}

static kva_kval scaled_product(kva_kb *b, void *user, const kva_expr *const *vars) {
  fixture *f = user;
  kva_kval scale = kva_k1(b, KVA_K_exp, kva_k_load(b, f->w, vars[0]));
  return kva_k2(b, KVA_K_mul, scale, kva_k_load(b, f->x, at(f, vars[0], vars[1])));
}

/* What depends on the outer variable only stands in the outer loop; the second nest is the first. */
static void nested_reduction(void **state) {
  fixture *f = *state;
  const kva_expr *extents[] = {f->T, f->C};
  kva_kloop *m = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "m");
  kva_kval p = kva_k_reduce_over(f->b, KVA_COMBINE_ADD, KVA_F32, 2, extents, scaled_product, f);
  kva_kval q = kva_k_reduce_over(f->b, KVA_COMBINE_ADD, KVA_F32, 2, extents, scaled_product, f);
  kva_kval r = kva_k_reduce_over(f->b, KVA_COMBINE_MAX, KVA_F32, 2, extents, scaled_product, f);
  kva_k_store(f->b, f->y, m->var, kva_k2(f->b, KVA_K_add, p, r));
  kva_k_loop_end(f->b, m);
  assert_ptr_equal(p, q);
  assert_ptr_not_equal(p, r);
  assert_ptr_equal(p->region, f->b->kernel->body);
  assert_int_equal(f->b->kernel->loops.len, 5);
  assert_int_equal(count_op(p->loop->body, KVA_K_LOAD), 2);
  assert_int_equal(p->loop->body->first->op, KVA_K_LOAD);
  assert_valid(f);
}

static kva_kval outer_value(kva_kb *b, void *user, const kva_expr *const *vars) {
  row *r = user;
  kva_kval w = kva_k1(b, KVA_K_exp, kva_k_load(b, r->f->w, r->t)); /* free of the reduction's variable */
  return kva_k2(b, KVA_K_mul, w, kva_k_load(b, r->f->x, vars[0]));
}

/* The loop follows what its body needs from outside, and comes after it. */
static void reduction_stays_behind_its_operands(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kloop *c = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->C, "c");
  row r = {f, t->var, NULL};
  kva_kval sum = kva_k_reduce_over(f->b, KVA_COMBINE_ADD, KVA_F32, 1, &f->C, outer_value, &r);
  kva_k_store(f->b, f->y, at(f, t->var, c->var), sum);
  kva_k_loop_end(f->b, c);
  kva_k_loop_end(f->b, t);
  assert_ptr_equal(sum->region, t->body);
  assert_int_equal(t->body->first->op, KVA_K_LOAD);
  assert_ptr_equal(t->body->last, c->instr);
  assert_valid(f);
}

static void three_step_form_is_shared(void **state) {
  fixture *f = *state;
  kva_kval sums[2];
  for (int i = 0; i < 2; i++) {
    kva_kloop *l = kva_k_loop_begin(f->b, KVA_K_SERIAL, f->T, "k");
    sums[i] = kva_k_reduce(f->b, l, KVA_COMBINE_ADD, f32(f, 0), kva_k_load(f->b, f->w, l->var));
    kva_k_loop_end(f->b, l);
  }
  assert_ptr_equal(kva_k1(f->b, KVA_K_exp, sums[0]), kva_k1(f->b, KVA_K_exp, sums[1]));
  assert_int_equal(f->b->kernel->loops.len, 1);
  kva_kloop *strict = kva_k_loop_begin(f->b, KVA_K_SERIAL, f->T, "k");
  strict->strict_order = true;
  kva_k_reduce(f->b, strict, KVA_COMBINE_ADD, f32(f, 0), kva_k_load(f->b, f->w, strict->var));
  kva_k_loop_end(f->b, strict);
  assert_int_equal(f->b->kernel->loops.len, 2);
}

static kva_kval gathered(kva_kb *b, void *user, const kva_expr *const *vars) {
  fixture *f = user;
  const kva_expr *v = kva_k_symbol(b, kva_k_load(b, f->b->kernel->bufs.data[3], vars[0]));
  return kva_k_load(b, f->x, v);
}

/* Symbols for values inside of a loop match like the loop's variable. */
static void reductions_that_gather_are_shared(void **state) {
  fixture *f = *state;
  kva_k_param(f->b, "rows", KVA_I64, f->T);
  kva_kval p = kva_k_reduce_over(f->b, KVA_COMBINE_ADD, KVA_F32, 1, &f->T, gathered, f);
  kva_kval q = kva_k_reduce_over(f->b, KVA_COMBINE_ADD, KVA_F32, 1, &f->T, gathered, f);
  kva_k_store(f->b, f->y, f->T, p);
  assert_ptr_equal(p, q);
  assert_int_equal(f->b->kernel->values.len, 1);
  assert_ptr_equal(kva_k_symbol_region(f->b->kernel, f->b->kernel->value_symbols.data[0]), p->loop->body);
  assert_valid(f);
}

static void trivial_extents(void **state) {
  fixture *f = *state;
  const kva_expr *one = kva_expr_const(f->exprs, 1), *none = kva_expr_const(f->exprs, 0);
  const kva_expr *extents[] = {one, none};
  row r = {f, none, NULL};
  kva_kval v = kva_k_reduce_over(f->b, KVA_COMBINE_ADD, KVA_F32, 1, extents, row_element, &r);
  assert_int_equal(v->op, KVA_K_LOAD);
  assert_ptr_equal(v->index, none);
  assert_ptr_equal(kva_k_reduce_over(f->b, KVA_COMBINE_MAX, KVA_F32, 2, extents, row_element, &r), f32(f, -INFINITY));
  assert_ptr_equal(kva_k_reduce_over(f->b, KVA_COMBINE_MIN, KVA_I8, 2, extents, row_element, &r),
                   kva_k_const_i(f->b, KVA_I8, 127));
  assert_ptr_equal(kva_k_reduce_over(f->b, KVA_COMBINE_MAX, KVA_I64, 2, extents, row_element, &r),
                   kva_k_const_i(f->b, KVA_I64, INT64_MIN));
  assert_int_equal(f->b->kernel->loops.len, 0);
}

static void sequential_carry(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_SERIAL, f->T, "t");
  kva_kval previous = kva_k_carry(f->b, t, f32(f, 1));
  kva_kval next = kva_k2(f->b, KVA_K_mul, previous, kva_k_load(f->b, f->w, t->var));
  kva_k_store(f->b, f->y, t->var, next);
  kva_k_carry_next(f->b, t, previous, next);
  kva_k_loop_end(f->b, t);
  kva_k_store(f->b, f->y, f->T, kva_k_carry_result(f->b, t, previous));
  assert_text(f, "kernel \"test\" (unused float x[C*T], read float w[T], write float y[C*T]) {\n"
                 "  serial t < T carry (none float 1.0) {\n"
                 "    %0 = carry t[0]\n"
                 "    %1 = load w[t]\n"
                 "    %2 = mul %0, %1 : float\n"
                 "    store y[t], %2\n"
                 "    yield %2\n"
                 "  }\n"
                 "  %3 = reduce t[0]\n"
                 "  store y[T], %3\n"
                 "}\n");
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

static void float_folding(void **state) {
  fixture *f = *state;
  kva_kb *b = f->b;
  kva_kval x = kva_k_load(b, f->w, kva_expr_const(f->exprs, 0));
  assert_ptr_equal(kva_k2(b, KVA_K_add, x, f32(f, 0)), x);
  assert_ptr_equal(kva_k2(b, KVA_K_mul, f32(f, 1), x), x);
  assert_int_equal(kva_k2(b, KVA_K_mul, x, f32(f, 0))->op, KVA_K_mul);
  assert_ptr_equal(kva_k2(b, KVA_K_add, f32(f, 0.5), f32(f, 0.25)), f32(f, 0.75));
  assert_ptr_equal(f32(f, 0.1), f32(f, (double)0.1f));
  assert_true(isnan(kva_k2(b, KVA_K_max, f32(f, NAN), f32(f, 1))->imm.f));
  assert_ptr_equal(kva_k1(b, KVA_K_round, f32(f, 2.5)), f32(f, 2));
  assert_ptr_equal(kva_k_select(b, kva_k2(b, KVA_K_lt, f32(f, 1), f32(f, 2)), x, f32(f, 9)), x);
  assert_ptr_equal(kva_k2(b, KVA_K_lt, x, x), kva_k_const_i(b, KVA_BOOL, 0));
  assert_int_equal(kva_k2(b, KVA_K_eq, x, x)->op, KVA_K_eq); /* NaN */
  assert_int_equal(kva_k1(b, KVA_K_exp, f32(f, 1))->op, KVA_K_exp);
  assert_ptr_equal(kva_k_op(b, KVA_K_fma, f32(f, 2), f32(f, 3), f32(f, 4)), f32(f, 10));
}

static kva_kval word(fixture *f, uint32_t bits) {
  return kva_k_const_i(f->b, KVA_I32, (int32_t)bits);
}

/* Bytes of the first word have no sign, those of the second have one; the sum wraps. */
static void dot4_folding(void **state) {
  fixture *f = *state;
  kva_kb *b = f->b;
  assert_ptr_equal(kva_k_op(b, KVA_K_dot4, word(f, 0x01020304), word(f, 0x05060708), word(f, 9)), word(f, 79));
  assert_ptr_equal(kva_k_op(b, KVA_K_dot4, word(f, 0xFFFFFFFF), word(f, 0x80808080), word(f, 0)),
                   word(f, (uint32_t)(-4 * 255 * 128)));
  assert_ptr_equal(kva_k_op(b, KVA_K_dot4, word(f, 0x80808080), word(f, 0xFFFFFFFF), word(f, 0)),
                   word(f, (uint32_t)(-4 * 128)));
  assert_ptr_equal(kva_k_op(b, KVA_K_dot4, word(f, 0xFF000000), word(f, 0x7F000000), word(f, 0x7FFFFFFF)),
                   word(f, 0x7FFFFFFFu + 255 * 127));
}

static void int_folding(void **state) {
  fixture *f = *state;
  kva_kb *b = f->b;
  kva_kval min = kva_k_const_i(b, KVA_I64, INT64_MIN), minus = kva_k_const_i(b, KVA_I64, -1);
  assert_ptr_equal(kva_k2(b, KVA_K_div, min, minus), min);
  assert_ptr_equal(kva_k2(b, KVA_K_div, minus, kva_k_const_i(b, KVA_I64, 0)), kva_k_const_i(b, KVA_I64, 0));
  assert_ptr_equal(kva_k2(b, KVA_K_rem, kva_k_const_i(b, KVA_I64, -7), kva_k_const_i(b, KVA_I64, 4)),
                   kva_k_const_i(b, KVA_I64, -3));
  kva_kval u = kva_k_const_i(b, KVA_U8, 200);
  assert_ptr_equal(kva_k2(b, KVA_K_add, u, u), kva_k_const_i(b, KVA_U8, 144));
  assert_ptr_equal(kva_k2(b, KVA_K_mulhi, kva_k_const_i(b, KVA_U32, -1), kva_k_const_i(b, KVA_U32, 16)),
                   kva_k_const_i(b, KVA_U32, 15));
  kva_kval big = kva_k_const_i(b, KVA_U64, -1);
  assert_ptr_equal(kva_k2(b, KVA_K_lt, kva_k_const_i(b, KVA_U64, 1), big), kva_k_const_i(b, KVA_BOOL, 1));
  kva_kval i = kva_k_convert(b, kva_k_load(b, f->w, kva_expr_const(f->exprs, 0)), KVA_I32);
  assert_ptr_equal(kva_k2(b, KVA_K_mul, i, kva_k_const_i(b, KVA_I32, 0)), kva_k_const_i(b, KVA_I32, 0));
  assert_ptr_equal(kva_k2(b, KVA_K_and, i, kva_k_const_i(b, KVA_I32, -1)), i);
}

static void conversion_folding(void **state) {
  fixture *f = *state;
  kva_kb *b = f->b;
  assert_ptr_equal(kva_k_convert(b, f32(f, -3.9), KVA_I32), kva_k_const_i(b, KVA_I32, -3));
  assert_ptr_equal(kva_k_convert(b, f32(f, 1e30), KVA_I64), kva_k_const_i(b, KVA_I64, INT64_MAX));
  assert_ptr_equal(kva_k_convert(b, f32(f, -1e30), KVA_I8), kva_k_const_i(b, KVA_I8, -128));
  assert_ptr_equal(kva_k_convert(b, f32(f, 300), KVA_U8), kva_k_const_i(b, KVA_U8, 255));
  assert_ptr_equal(kva_k_convert(b, f32(f, NAN), KVA_I32), kva_k_const_i(b, KVA_I32, 0));
  assert_ptr_equal(kva_k_convert(b, kva_k_const_i(b, KVA_U64, -1), KVA_F64), kva_k_const_f(b, KVA_F64, 0x1p64));
  assert_ptr_equal(kva_k_convert(b, f32(f, 0.5), KVA_BOOL), kva_k_const_i(b, KVA_BOOL, 1));
  assert_ptr_equal(kva_k_bitcast(b, f32(f, 1), KVA_I32), kva_k_const_i(b, KVA_I32, 0x3f800000));
  assert_ptr_equal(kva_k_convert(b, f32(f, 1.0009765625 + 1e-5), KVA_F16),
                   kva_k_const_f(b, KVA_F16, 1.0009765625)); /* 1 + 2^-10, a unit in the last place of f16 */
}

static void index_comparisons(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kval yes = kva_k_const_i(f->b, KVA_BOOL, 1), no = kva_k_const_i(f->b, KVA_BOOL, 0);
  const kva_expr *next = kva_expr_addi(f->exprs, t->var, 1);
  assert_ptr_equal(kva_k_index_lt(f->b, t->var, f->T), yes);
  assert_ptr_equal(kva_k_index_le(f->b, next, f->T), yes);
  assert_ptr_equal(kva_k_index_lt(f->b, f->T, t->var), no);
  assert_ptr_equal(kva_k_index_eq(f->b, t->var, next), no);
  assert_ptr_equal(kva_k_index_eq(f->b, next, next), yes);
  kva_kval open = kva_k_index_lt(f->b, next, f->T);
  assert_int_equal(open->op, KVA_K_lt);
  assert_ptr_equal(open->region, t->body);
  assert_ptr_equal(kva_k_and(f->b, NULL, open), open);
  assert_ptr_equal(kva_k_and(f->b, open, yes), open);
  assert_null(kva_k_and(f->b, NULL, NULL));
  kva_k_loop_end(f->b, t);
}

static void symbols_of_values(void **state) {
  fixture *f = *state;
  kva_kbuf *rows = kva_k_param(f->b, "rows", KVA_I64, f->T);
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kval v = kva_k_load(f->b, rows, t->var);
  const kva_expr *s = kva_k_symbol(f->b, v);
  assert_ptr_equal(kva_k_symbol(f->b, v), s);
  assert_ptr_equal(kva_k_index(f->b, s), v);
  assert_ptr_equal(kva_k_symbol(f->b, kva_k_index(f->b, t->var)), t->var);
  assert_true(kva_expr_is(kva_k_symbol(f->b, kva_k_const_i(f->b, KVA_I64, 7)), 7));
  kva_kloop *c = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->C, "c");
  kva_k_store(f->b, f->y, at(f, t->var, c->var), kva_k_load(f->b, f->x, at(f, s, c->var)));
  kva_k_loop_end(f->b, c);
  kva_k_loop_end(f->b, t);
  assert_text(f, "kernel \"test\" (read float x[C*T], unused float w[T], write float y[C*T], read int64 rows[T]) {\n"
                 "  parallel t < T {\n"
                 "    %0 = load rows[t]\n"
                 "    parallel c < C {\n"
                 "      %1 = load x[%0*C + c]\n"
                 "      store y[C*t + c], %1\n"
                 "    }\n"
                 "  }\n"
                 "}\n");
}

/* ---- rewriting --------------------------------------------------------------------------------------------------- */

static void replace_index_reaches_extents(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kloop *c = kva_k_loop_begin(f->b, KVA_K_SERIAL, kva_expr_addi(f->exprs, t->var, 1), "c");
  kva_k_store(f->b, f->y, kva_expr_add(f->exprs, t->var, c->var), kva_k_load(f->b, f->w, c->var));
  kva_k_loop_end(f->b, c);
  kva_k_loop_end(f->b, t);
  const kva_expr *to = kva_expr_muli(f->exprs, t->var, 4);
  kva_k_replace_index(f->b->kernel, 1, &t->var, &to);
  assert_ptr_equal(c->extent, kva_expr_addi(f->exprs, to, 1));
  assert_ptr_equal(c->body->last->index, kva_expr_add(f->exprs, to, c->var));
  assert_ptr_equal(kva_k_symbol_region(f->b->kernel, c->var), c->body);
  assert_null(kva_k_symbol_region(f->b->kernel, f->T));
}

static void sweep_drops_what_nobody_uses(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  row r = {f, t->var, NULL};
  kva_k_reduce_over(f->b, KVA_COMBINE_ADD, KVA_F32, 1, &f->C, row_element, &r);
  kva_k1(f->b, KVA_K_exp, kva_k_load(f->b, f->w, t->var));
  kva_k_store(f->b, f->y, t->var, f32(f, 3));
  kva_k_loop_end(f->b, t);
  kva_kernel_sweep(f->b->kernel);
  assert_int_equal(f->b->kernel->loops.len, 1);
  assert_int_equal(f->b->kernel->next_id, 3); /* constant, loop, store */
  assert_valid(f);
}

/* ---- verifier ---------------------------------------------------------------------------------------------------- */

static void built_kernel_round_trips(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kloop *c = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->C, "T"); /* a loop variable called like a shape symbol */
  kva_k_store(f->b, f->y, at(f, t->var, c->var), softmax_element(f, t->var, c->var));
  kva_k_loop_end(f->b, c);
  kva_k_loop_end(f->b, t);
  char *text = print(f->b->kernel);
  kva_kernel *k = kva_kernel_parse(f->arena, f->exprs, text, "k.txt", f->diag);
  assert_non_null(k);
  assert_int_equal(kernel_code_hash(k), kernel_code_hash(f->b->kernel));
  char *again = print(k);
  assert_string_equal(again, text);
  assert_non_null(strstr(text, "parallel T_2 < C"));
  free(text);
  free(again);
}

static void expect_broken(fixture *f, const char *message) {
  kva_diag_clear(f->diag);
  assert_int_equal(kva_kernel_verify(f->b->kernel, f->diag), KVA_INVALID);
  const char *found = kva_diag_message(f->diag, 0, NULL, NULL);
  if (!strstr(found, message)) fail_msg("expected: %s\nfound: %s", message, found);
}

/* What only a wrong pass can make. */
static void broken_structure(void **state) {
  fixture *f = *state;
  kva_kloop *t = kva_k_loop_begin(f->b, KVA_K_PARALLEL, f->T, "t");
  kva_kval v = kva_k_load(f->b, f->w, t->var);
  kva_kval e = kva_k1(f->b, KVA_K_exp, v);
  kva_k_store(f->b, f->y, t->var, e);
  kva_k_loop_end(f->b, t);
  assert_valid(f);
  kva_k_unlink(e);
  expect_broken(f, "operand 0 is not visible");
  kva_k_insert(t->body, v, e);
  expect_broken(f, "operand 0 is not visible"); /* exp before its operand */
  kva_k_unlink(e);
  kva_k_insert(t->body, t->body->last, e);
  assert_valid(f);
  e->id = v->id;
  expect_broken(f, "id is used twice");
  e->id = f->b->kernel->next_id;
  expect_broken(f, "not below the kernel's next_id");
  e->id = v->id + 1;
  t->body->depth = 5;
  expect_broken(f, "region is missing or linked to another parent");
  t->body->depth = 1;
  f->b->kernel->loops.len = 0;
  expect_broken(f, "is not in the kernel's list of loops");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(invariant_load_leaves_the_loop),
      TEST(equal_values_are_one),
      TEST(load_stays_in_a_loop_that_may_be_empty),
      TEST(load_stays_in_its_arm),
      TEST(guard_holds_loads_and_stores),
      TEST(constant_guards),
      TEST(loads_of_written_buffers_keep_their_place),
      TEST(reductions_hoist_and_are_shared),
      TEST(nested_reduction),
      TEST(reduction_stays_behind_its_operands),
      TEST(three_step_form_is_shared),
      TEST(reductions_that_gather_are_shared),
      TEST(trivial_extents),
      TEST(sequential_carry),
      TEST(float_folding),
      TEST(int_folding),
      TEST(dot4_folding),
      TEST(conversion_folding),
      TEST(index_comparisons),
      TEST(symbols_of_values),
      TEST(replace_index_reaches_extents),
      TEST(sweep_drops_what_nobody_uses),
      TEST(built_kernel_round_trips),
      TEST(broken_structure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
