/* Results in the memory of operands: what the analysis of a scheduled kernel confirms, what it refuses, and that the
 * models' states stay in place on every target. */
#include "tests/support/kernel_fixture.h"
#include "tools/driver/driver.h"

#include <setjmp.h>
#include <cmocka.h>

static bool in_place(void **state, const char *text) {
  kernel_fixture *f = *state;
  kva_kernel *k = kva_kernel_parse(f->arena, f->exprs, text, "k.txt", f->diag);
  if (!k || kva_kernel_verify(k, f->diag) != KVA_OK) kva_diag_print(f->diag, stderr);
  assert_non_null(k);
  assert_int_equal(kva_diag_errors(f->diag), 0);
  return kva_kernel_in_place(k, k->bufs.data[1], k->bufs.data[0]);
}

/* A kernel over s (the operand) and y (the result). */
#define KERNEL(head, body) \
  "kernel \"k\" (read float s[4*N], write float y[4*N], read float x[N], read int64 r[N]) " head "{\n" body "}\n"
#define LOAD(index)  "%0 = load s[" index "]\n"
#define STORE(index) "store y[" index "], %1\n"
#define EXP          "%1 = exp %0 : float\n"

static void confirmed(void **state) {
  /* the same element, through loops of any kind */
  assert_true(
      in_place(state, KERNEL("", "grid i < N {\n vector j < 4 {\n" LOAD("4*i + j") EXP STORE("4*i + j") "}\n}\n")));
  /* read several times before it is written */
  assert_true(in_place(state, KERNEL("", "grid i < 4*N {\n serial k < N carry (add float 0.0) {\n" LOAD(
                                             "i") "yield %0\n}\n %1 = reduce k[0]\n" STORE("i") "}\n")));
  /* a sum that has the element */
  assert_true(in_place(state, KERNEL("", "serial k < 4*N carry (none float 0.0) {\n %2 = carry k[0]\n" LOAD("k") //
                                     "%1 = add %0, %2 : float\n" STORE("k") "yield %1\n}\n")));
  /* an operand that is not read */
  assert_true(in_place(state, "kernel \"k\" (unused float s[N], write float y[N]) {\n grid i < N {\n"
                              "store y[i], 1.0\n}\n}\n"));
  /* versions of one loop in the arms of an if */
  assert_true(in_place(state, KERNEL("", "grid i < N {\n %2 = index i\n %3 = lt %2, 7 : int64\n if %3 {\n"
                                         "%0 = load s[i]\n store y[i], %0\n} else {\n %4 = load s[i]\n %5 = exp %4 : "
                                         "float\n store y[i], %5\n}\n}\n")));
  /* nests of their own, each for one item of the grid */
  assert_true(in_place(state, KERNEL("", "grid i < 2 {\n %2 = index i\n %3 = index 1\n %4 = lt %2, %3 : int64\n if %4 "
                                         "{\n serial j < N {\n store y[j], 0.0\n}\n} else {\n serial m < N {\n" LOAD(
                                             "m") EXP STORE("m") "}\n}\n}\n")));
  /* one work item, whose thread alone loads the element */
  assert_true(in_place(state, KERNEL("threads 64 ", "grid i < 2 {\n %2 = index i\n %3 = lt %2, 1 : int64\n if %3 {\n"
                                                    "thread j < 1 {\n" LOAD("0") EXP STORE("0") "}\n}\n}\n")));
  /* the last of several rounds */
  assert_true(
      in_place(state, KERNEL("", "grid i < 4*N {\n serial s < 3 {\n %2 = index s\n %3 = lt %2, 2 : int64\n if %3 "
                                 "{\n} else {\n" LOAD("i") EXP STORE("i") "}\n}\n}\n")));
  /* a number that stands for an expression of loop variables */
  assert_true(in_place(state, KERNEL("", "grid i < N {\n %2 = index 4*i\n vector j < 4 {\n" LOAD("%2 + j")
                                             EXP STORE("4*i + j") "}\n}\n")));
  assert_true(in_place(
      state, KERNEL("threads 64 ", "grid b < 4*N {\n thread i < 1 {\n" LOAD("b + i") EXP STORE("b + i") "}\n}\n")));
}

static void refused(void **state) {
  /* another element */
  assert_false(in_place(state, KERNEL("", "grid i < 4*N {\n" LOAD("4*N - i - 1") EXP STORE("i") "}\n")));
  /* data do not order load and store */
  assert_false(in_place(state, KERNEL("", "grid i < N {\n" LOAD("i") "%1 = load x[i]\n" STORE("i") "}\n")));
  assert_false(in_place(state, KERNEL("", "grid i < N {\n %1 = load x[i]\n" STORE("i") LOAD("i") "}\n")));
  /* an element that several iterations store */
  assert_false(in_place(state, KERNEL("", "grid i < N {\n serial j < 4 {\n" LOAD("i") EXP STORE("i") "}\n}\n")));
  assert_false(in_place(state, KERNEL("", "grid i < 3 {\n %2 = index i\n %3 = index 1\n %4 = lt %2, %3 : int64\n if %4 "
                                          "{\n} else {\n serial m < N {\n" LOAD("m") EXP STORE("m") "}\n}\n}\n")));
  assert_false(in_place(state, KERNEL("", "grid i < 4*N {\n serial s < 3 {\n %2 = index s\n %3 = lt %2, 1 : int64\n if "
                                          "%3 {\n} else {\n" LOAD("i") EXP STORE("i") "}\n}\n}\n")));
  /* loads of one loop, stores of another one */
  assert_false(in_place(
      state, KERNEL("", "serial i < N {\n" LOAD("i") "}\n serial j < N {\n %1 = load x[j]\n" STORE("j") "}\n")));
  /* one of two stores is of another element */
  assert_false(in_place(state, KERNEL("", "grid i < N {\n" LOAD("i") EXP STORE("i") STORE("i + N") "}\n")));
  /* a sum of the elements before, which may be stored before the element is loaded */
  assert_false(in_place(state, KERNEL("", "serial k < 4*N carry (none float 0.0) {\n %2 = carry k[0]\n" LOAD("k") //
                                      "%1 = add %0, %2 : float\n store y[k], %2\n yield %1\n}\n")));
  /* the arms of an if, with elements of the other arm */
  assert_false(in_place(state, KERNEL("", "grid i < N {\n %2 = index i\n %3 = lt %2, 7 : int64\n if %3 {\n" LOAD(
                                              "i + 1") "store y[i], 1.0\n} else {\n store y[i], 2.0\n}\n}\n")));
  /* an index from memory may come twice */
  assert_false(in_place(state, KERNEL("", "grid i < N {\n %2 = load r[i]\n" LOAD("%2") EXP STORE("%2") "}\n")));
  /* several threads run the same code */
  assert_false(in_place(state, KERNEL("threads 64 ", "grid i < 4*N {\n" LOAD("i") EXP STORE("i") "}\n")));
  assert_false(in_place(state, KERNEL("threads 64 ", "grid b < N {\n thread i < 4 subgroup 16 {\n" LOAD("4*b + i")
                                                         EXP STORE("4*b + i") "}\n}\n")));
  /* one of several work items or threads stores what all of them load */
#define FIRST "%2 = index i\n %3 = lt %2, 1 : int64\n if %3 {\n"
  assert_false(in_place(state, KERNEL("", LOAD("0") EXP "grid i < 2 {\n" FIRST STORE("0") "}\n}\n")));
  assert_false(in_place(state, KERNEL("", "grid i < 2 {\n" LOAD("0") EXP FIRST STORE("0") "}\n}\n")));
  assert_false(in_place(state, KERNEL("threads 64 ", LOAD("0") EXP "thread i < 1 {\n" STORE("0") "}\n")));
#undef FIRST
  /* a result that is read, an operand that is written */
  assert_false(in_place(state, "kernel \"k\" (read float s[N], readwrite float y[N]) {\n grid i < N {\n" LOAD(
                                   "i") "%2 = load y[i]\n %1 = add %0, %2 : float\n" STORE("i") "}\n}\n"));
  assert_false(in_place(state, "kernel \"k\" (readwrite float s[N], write float y[N]) {\n grid i < N {\n" LOAD("i") EXP
                        "store s[i], 0.0\n" STORE("i") "}\n}\n"));
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static void separate(void **unused) {
  (void)unused;
  kva_arena *arena = kva_arena_create();
  kva_memory_plan p = {0};
  const kva_plan_buffer buffers[] = {{.place = KVA_PLACE_STATE, .name = "s"},
                                     {.place = KVA_PLACE_TEMP, .first_step = 0, .last_step = 1},
                                     {.place = KVA_PLACE_TEMP, .first_step = 0, .last_step = 0},
                                     {.place = KVA_PLACE_TEMP, .first_step = 1, .last_step = 1}};
  static const int32_t first[] = {0, 1, 2, 0}, second[] = {1, 3};
  const kva_plan_step steps[] = {{.n_args = 4, .args = first}, {.n_args = 2, .args = second}};
  for (int i = 0; i < 4; i++) KVA_PUSH(arena, &p.buffers, buffers[i]);
  for (int i = 0; i < 2; i++) KVA_PUSH(arena, &p.steps, steps[i]);
  kva_plan_separate(&p, arena, 0, 3);
  assert_int_equal(p.steps.len, 3);
  assert_int_equal(p.steps.data[0].args[0], 0);
  assert_int_equal(p.steps.data[0].args[3], 4);
  assert_null(p.steps.data[1].node);
  assert_int_equal(p.steps.data[1].args[0], 0);
  assert_int_equal(p.steps.data[1].args[1], 4);
  const int32_t lifetimes[][2] = {{0, 2}, {0, 0}, {2, 2}, {0, 1}};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(p.buffers.data[i + 1].first_step, lifetimes[i][0]);
    assert_int_equal(p.buffers.data[i + 1].last_step, lifetimes[i][1]);
  }
  kva_arena_destroy(arena);
}

/* The plan of a module's first function, settled for this machine. */
static kva_memory_plan *settled(kva_arena *arena, kva_diag *diag, const char *text, kva_module **out_m) {
  bool changed = false;
  kva_target target;
  assert_int_equal(kva_load_text(text, "m.kv", NULL, diag, out_m), KVA_OK);
  assert_int_equal(kva_run_pass(*out_m, KVA_PASS_plan, &(kva_pass_options){0}, &changed), KVA_OK);
  assert_int_equal(kva_codegen_describe(&(kva_target_options){0}, diag, &target), KVA_OK);
  assert_int_equal(kva_codegen_settle(arena, (*out_m)->functions.data[0]->plan, &target), KVA_OK);
  return (*out_m)->functions.data[0]->plan;
}

/* Element code takes its operand's memory; softmax, which reads a row again and again, gets memory of its own, and what
 * follows reads that. Both live as long as they are read. */
static void temporaries(void **unused) {
  (void)unused;
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  kva_module *m;
  const kva_memory_plan *p = settled(arena, diag,
                                     "main (float[4, 4] x) => (float[4, 4] y) {\n"
                                     "  a = kv.cumsum <axis = 0> (x)\n"
                                     "  b = kv.softmax(a)\n"
                                     "  c = kv.exp(b)\n"
                                     "  y = kv.cumsum <axis = 0> (c)\n"
                                     "}\n",
                                     &m);
  assert_int_equal(p->steps.len, 4);
  int32_t args[4][2];
  for (uint32_t i = 0; i < 4; i++) memcpy(args[i], p->steps.data[i].args, sizeof args[i]);
  assert_int_equal(args[1][0], args[0][1]);
  assert_int_not_equal(args[1][1], args[1][0]);
  assert_int_equal(args[2][0], args[1][1]);
  assert_int_equal(args[2][1], args[2][0]);
  assert_int_equal(args[3][0], args[2][1]);
  const kva_plan_buffer *a = &p->buffers.data[args[0][1]], *b = &p->buffers.data[args[1][1]];
  const int32_t lifetimes[] = {a->first_step, a->last_step, b->first_step, b->last_step}, expected[] = {0, 1, 1, 3};
  assert_memory_equal(lifetimes, expected, sizeof expected);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
}

static uint32_t count_copies(const kva_codegen *cg, kva_module *m) {
  kva_arena *arena = kva_arena_create();
  uint32_t n = 0;
  for (uint32_t f = 0; f < m->functions.len; f++) {
    kva_memory_plan *plan;
    assert_int_equal(kva_plan(m, m->functions.data[f], arena, &plan), KVA_OK);
    assert_int_equal(kva_codegen_settle(arena, plan, kva_codegen_target(cg)), KVA_OK);
    for (uint32_t i = 0; i < plan->steps.len; i++) n += !plan->steps.data[i].node;
  }
  kva_arena_destroy(arena);
  return n;
}

/* No program of these models copies a state. */
static void states_stay_in_place(const char *path, const char *arch) {
  kva_diag *diag = kva_diag_create();
  kva_module *m;
  kva_codegen *cg;
  const kva_compile_options options = {.train = true, .target = {.arch = arch}};
  assert_int_equal(kva_load_model(path, &(kva_load_options){0}, diag, &m), KVA_OK);
  assert_int_equal(kva_compile_graph(m, &options), KVA_OK);
  assert_int_equal(kva_codegen_create(&options.target, diag, &cg), KVA_OK);
  assert_int_equal(count_copies(cg, m), 0);
  kva_codegen_destroy(cg);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void models(void **unused) {
  (void)unused;
  static const char *const archs[] = {NULL, "sm_80", "sm_90a"};
  for (int i = 0; i < 3; i++) {
    states_stay_in_place("models/lm.kv", archs[i]);
    states_stay_in_place("models/induction.kv", archs[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(confirmed, kernel_fixture_create, kernel_fixture_destroy),
      cmocka_unit_test_setup_teardown(refused, kernel_fixture_create, kernel_fixture_destroy),
      cmocka_unit_test(separate),
      cmocka_unit_test(temporaries),
      cmocka_unit_test(models),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
