/* Kernel IR as text: round trip, what the parser and the verifier refuse, copies, hash. */
#include "tests/support/kernel_fixture.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

/* ---- text -------------------------------------------------------------------------------------------------------- */

static const char everything[] = "kernel \"all \\\"of\\\" it\" (read float x[B*N], readwrite float16 \"y z\"[B*N], "
                                 "unused int4 u[\"past + 1\"], read "
                                 "int64 rows[B], write int32 z32[1], write "
                                 "float x_out[1]) {\n"
                                 "  local readwrite float t[4]\n"
                                 "  shared unused double s[16]\n"
                                 "  grid g < floordiv(B + 3, 4) {\n"
                                 "    %0 = load rows[g]\n"
                                 "    %1 = index -2*g + 5\n"
                                 "    %2 = lt %0, %1 : int64\n"
                                 "    unroll j < 4 {\n"
                                 "      store t[j], -0.0\n"
                                 "    }\n"
                                 "    serial strict k < N carry (add float 0.0, none int64 -3, max float -inf) {\n"
                                 "      %3 = load x[%0*N + mod(k, 8)] ahead 4096 where %2\n"
                                 "      %4 = carry k[1]\n"
                                 "      %5 = add %4, 9223372036854775807 : int64\n"
                                 "      %6 = convert %3 : float -> float16\n"
                                 "      %7 = convert %6 : float16 -> float\n"
                                 "      %8 = narrow %7 : float8e4m3fn\n"
                                 "      yield %3, %5, %8\n"
                                 "    }\n"
                                 "    %9 = reduce k[0]\n"
                                 "    %10 = reduce k[1]\n"
                                 "    %11 = select %2, %9, nan : float\n"
                                 "    %12 = bitcast %11 : float -> uint32\n"
                                 "    %13 = and %12, 4294967295 : uint32\n"
                                 "    %14 = eq %13, 1 : uint32\n"
                                 "    %15 = bitcast %13 : uint32 -> int32\n"
                                 "    %16 = dot4 %15, -1, %15 : int32\n"
                                 "    store z32[0] ahead 64, %16\n"
                                 "    %17 = dot2 %11, 0.5, %9 : float\n"
                                 "    store x_out[0], %17\n"
                                 "    if %14 {\n"
                                 "      barrier\n"
                                 "      store \"y z\"[%10 + min(7, g)], %9\n"
                                 "    } else {\n"
                                 "      vector k_2 < N {\n"
                                 "        store \"y z\"[N*g + k_2], 0.1 where %2\n"
                                 "      }\n"
                                 "    }\n"
                                 "  }\n"
                                 "}\n";

static kva_kernel *parse(kernel_fixture *f, const char *text) {
  return kva_kernel_parse(f->arena, f->exprs, text, "k.txt", f->diag);
}

/* The kernel that `text` is, which prints as it. */
static kva_kernel *parse_and_print(kernel_fixture *f, const char *expected) {
  kva_kernel *k = parse(f, expected);
  if (!k) kva_diag_print(f->diag, stderr);
  assert_non_null(k);
  char *text = kernel_text(k);
  assert_string_equal(text, expected);
  free(text);
  return k;
}

static void text_round_trip(void **state) {
  kernel_fixture *f = *state;
  kva_kernel *k = parse_and_print(f, everything);
  kva_arena *arena = kva_arena_create();
  kva_kernel *again = kva_kernel_parse(arena, kva_expr_ctx_create(arena), everything, NULL, f->diag);
  assert_non_null(again);
  assert_int_equal(kernel_code_hash(again), kernel_code_hash(k));
  kva_arena_destroy(arena);
}

static const char threads[] = "kernel \"rows\" (read float x[B*N], write float y[B*N]) threads 256 {\n"
                              "  grid g < floordiv(B + 7, 8) {\n"
                              "    thread row < min(8, B - 8*g) subgroup 32 stage {\n"
                              "      thread k < N carry (add float 0.0) width 4 peel mod(31*N*row, 32) {\n"
                              "        %0 = load x[8*N*g + N*row + k]\n"
                              "        yield %0\n"
                              "      }\n"
                              "      %1 = reduce k[0]\n"
                              "      barrier\n"
                              "      thread one < 1 {\n"
                              "        store y[8*g + row], %1\n"
                              "      }\n"
                              "    }\n"
                              "  }\n"
                              "}\n";

static void thread_loops_round_trip(void **state) {
  kva_kernel *k = parse_and_print(*state, threads);
  uint64_t h = kernel_code_hash(k);
  k->threads = 128;
  assert_int_not_equal(h, kernel_code_hash(k));
  k->threads = 256;
  k->loops.data[2]->width = 2;
  assert_int_not_equal(h, kernel_code_hash(k));
  k->loops.data[2]->width = 4;
  k->loops.data[1]->subgroup = 64;
  assert_int_not_equal(h, kernel_code_hash(k));
  k->loops.data[1]->subgroup = 32;
  k->loops.data[1]->stage = false;
  assert_int_not_equal(h, kernel_code_hash(k));
  k->loops.data[1]->stage = true;
  assert_int_equal(h, kernel_code_hash(k));
  k->loops.data[2]->peel = NULL;
  assert_int_not_equal(h, kernel_code_hash(k));
}

static void shared_rows_round_trip(void **state) {
  static const char shared[] = "kernel \"rows\" (read float x[4096], write float y[2]) threads 256 {\n"
                               "  grid part < 4 {\n"
                               "    thread k < 1024 carry (add float 0.0) width 4 blocks 2 {\n"
                               "      %0 = load x[k + 1024*part]\n"
                               "      yield %0\n"
                               "    }\n"
                               "    %1 = reduce k[0]\n"
                               "    thread one < 1 {\n"
                               "      store y[floordiv(part, 2)], %1\n"
                               "    }\n"
                               "  }\n"
                               "}\n";
  kva_kernel *k = parse_and_print(*state, shared);
  uint64_t h = kernel_code_hash(k);
  k->loops.data[1]->blocks = 4;
  assert_int_not_equal(h, kernel_code_hash(k));
}

/* A copy has loops, sums, carried values and symbols of values of its own; a shape symbol in it means another thing. */
static void copies_stand_alone(void **state) {
  kernel_fixture *f = *state;
  kva_kernel *k = parse(f, "kernel \"k\" (read float x[B*N], read int64 at[B], write float y[B*N]) {\n"
                           "  parallel b < B {\n"
                           "    %0 = load at[b]\n"
                           "    serial i < N carry (add float 0.0) {\n"
                           "      %1 = load x[N*%0 + i]\n"
                           "      yield %1\n"
                           "    }\n"
                           "    %2 = reduce i[0]\n"
                           "    store y[N*b], %2\n"
                           "  }\n"
                           "}\n");
  assert_non_null(k);
  kva_kinstr *nest = k->body->first;
  while (nest->op != KVA_K_LOOP) nest = nest->next;
  const kva_expr *n = kva_expr_symbol(f->exprs, "N"), *fixed = kva_expr_const(f->exprs, 64);
  kva_kinstr *made = kva_k_copy(k, nest, 1, &n, &fixed);
  kva_k_insert(k->body, NULL, made);
  kva_k_unlink(nest);
  kva_kernel_sweep(k);
  assert_int_equal(kva_kernel_verify(k, f->diag), KVA_OK);
  char *text = kernel_text(k);
  assert_string_equal(text, "kernel \"k\" (read float x[B*N], read int64 at[B], write float y[B*N]) {\n"
                            "  parallel b < B {\n"
                            "    %0 = load at[b]\n"
                            "    serial i < 64 carry (add float 0.0) {\n"
                            "      %1 = load x[64*%0 + i]\n"
                            "      yield %1\n"
                            "    }\n"
                            "    %2 = reduce i[0]\n"
                            "    store y[64*b], %2\n"
                            "  }\n"
                            "}\n");
  free(text);
}

#define SHARED(items, type, blocks)                                                                          \
  "kernel \"k\" () threads 64 {\ngrid g < " items " {\nthread i < 4 carry (add " type " 0.0) blocks " blocks \
  " {\nyield 1.0\n}\n}\n}"
#define BODY(lines) "kernel \"k\" (read float x[N], write float y[N]) {\n" lines "\n}\n"

static void bad_text_is_reported(void **state) {
  kernel_fixture *f = *state;
  static const struct {
    const char *text, *message;
    uint32_t line, column;
  } cases[] = {
      {"", "expected 'kernel'", 1, 1},
      {"kernel \"k", "string without end", 1, 8},
      {"kernel \"k\" (read floaty x[N]) {}", "'floaty' is not an element type", 1, 18},
      {"kernel \"k\" (read string x[N]) {}", "'string' is not an element type", 1, 18},
      {"kernel \"k\" (read float x[N], read float x[N]) {}", "two buffers are called 'x'", 1, 41},
      {"kernel \"k\" (see float x[N]) {}", "expected read, write", 1, 13},
      {BODY("  %0 = load z[0]"), "no buffer is called 'z'", 2, 13},
      {BODY("  %0 = lod x[0]"), "no instruction 'lod'", 2, 8},
      {BODY("  %0 = const x[0]"), "no instruction 'const'", 2, 8},
      {BODY("  %0 = exp %7 : float"), "value %7 is not defined", 2, 12},
      {BODY("  %0 = load x[0]\n  %0 = load x[0]"), "defined twice", 3, 3},
      {BODY("  %0 = exp 1.5 : int32"), "'1.5' is not a constant of type int32", 2, 12},
      {BODY("  %0 = exp 300 : int8"), "'300' is not a constant of type int8", 2, 12},
      {BODY("  %0 = load x[floordiv(N, 0)]"), "division by zero", 2, 15},
      {BODY("  %0 = load x[99999999999999999999]"), "not a 64-bit integer", 2, 15},
      {BODY("  %0 = load x[0]\n  %1 = load x[%0]"), "an index needs int64", 3, 15},
      {BODY("  serial N < 4 {\n  }"), "'N' already means something else", 2, 10},
      {BODY("  serial i < 4 carry (add float 0.0) {\n  }"), "expected 'yield'", 3, 3},
      {BODY("  serial i < 4 carry (sum float 0.0) {\n  }"), "expected a combination", 2, 23},
      {BODY("  serial i < 4 {\n  }\n  %0 = reduce i[0]"), "the loop has 0 carries", 4, 17},
      {BODY("  %0 = reduce i[0]"), "no loop above is called 'i'", 2, 15},
      {BODY("  serial i < 4 {"), "expected an instruction, found 'end of text'", 4, 1},
      {BODY("") "x", "text after the kernel's end", 4, 1},
      {BODY("  %0 = load x[0] ahead x"), "expected a number of bytes, found 'x'", 2, 24},
      {BODY("  store y[0], 1.0 where 1"), "'1' is not a constant of type bool", 2, 25},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kva_diag_clear(f->diag);
    assert_null(parse(f, cases[i].text));
    kva_loc loc;
    const char *message = kva_diag_message(f->diag, 0, NULL, &loc);
    if (!strstr(message, cases[i].message)) fail_msg("%s\ngave: %s", cases[i].text, message);
    if (loc.line != cases[i].line || loc.column != cases[i].column) {
      fail_msg("%s\n%s: at %u:%u, not %u:%u", cases[i].text, message, loc.line, loc.column, cases[i].line,
               cases[i].column);
    }
  }
}

static void deep_nesting_is_refused(void **state) {
  kernel_fixture *f = *state;
  kva_text text = {0};
  kva_text_add(&text, "kernel \"k\" (read float x[");
  for (int i = 0; i < 100000; i++) kva_text_add(&text, "(");
  assert_null(parse(f, text.data));
  kva_text_free(&text);
  kva_text_add(&text, "kernel \"k\" () {");
  for (int i = 0; i < 100000; i++) kva_text_add(&text, "if true {");
  assert_null(parse(f, text.data));
  kva_text_free(&text);
  assert_int_equal(kva_diag_errors(f->diag), 2);
}

/* ---- verifier ---------------------------------------------------------------------------------------------------- */

/* Text that parses but means something wrong. */
static void wrong_kernels_in_text(void **state) {
  kernel_fixture *f = *state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      {BODY("serial i < 4 {\n%0 = load x[i]\n}\nstore y[0], %0"), "operand 0 is not visible"},
      {BODY("serial i < 4 {\n}\n%0 = load x[i]"), "symbol 'i' where it has no value"},
      {BODY("unroll i < N {\n}"), "unroll loop needs a constant extent"},
      {BODY("grid i < N carry (add float 0.0) {\nyield 1.0\n}"), "grid loop cannot carry values"},
      {BODY("serial i < N {\ngrid j < N {\n}\n}"), "grid loop inside something"},
      {BODY("vector i < N carry (none float 0.0) {\nyield 1.0\n}"), "needs a serial or unroll loop"},
      {BODY("serial i < N carry (add float 0.0) {\n%0 = reduce i[0]\nyield 1.0\n}"), "does not stand after its loop"},
      {BODY("serial i < N carry (add float 0.0) {\n%0 = carry i[0]\nyield 1.0\n}"), "is not sequential"},
      {BODY("%0 = load y[0]"), "buffer 'y' is not marked as read"},
      {BODY("store x[0], 1.0"), "buffer 'x' is not marked as written"},
      {BODY("%0 = load x[0]\n%1 = add %0, 1 : int32"), "operand has type int32, expected float"},
      {BODY("%0 = load x[0]\n%1 = add %0, 1.0 : float\nif %1 {\n}"), "condition has type float, expected bool"},
      {BODY("%0 = exp 1.0 : float16"), "only a storage type"},
      {BODY("%0 = bitcast 1.0 : float -> int64"), "from 32 bits to 64"},
      {BODY("%0 = narrow 1 : int8"), "cannot round to int8"},
      {BODY("if true {\n%0 = load x[0]\n} else {\nstore y[0], %0\n}"), "operand 0 is not visible"},
      {"kernel \"k\" () {\nlocal read float t[N]\n}", "needs a constant extent"},
      {BODY("thread i < N {\n}"), "in a kernel of 0 threads"},
      {"kernel \"k\" () threads 48 {\nthread i < 4 {\n}\n}", "in a kernel of 48 threads"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 subgroup 64 {\n}\n}",
       "subgroups of 64 threads do not divide the 64"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 {\nthread j < 4 {\n}\n}\n}",
       "subgroups of 1 threads do not divide the 1"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 subgroup 24 {\n}\n}", "subgroups of 24 threads do not divide"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 carry (add float 0.0) subgroup 32 {\nyield 1.0\n}\n}",
       "subgroups can neither carry values"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 stage {\n}\n}", "single threads have nothing to stage"},
      {SHARED("4", "double", "2"), "2 blocks share a row"},
      {SHARED("4", "float", "3"), "3 blocks share a row: a power of two up to 8"},
      {SHARED("5", "float", "2"), "by items of the grid"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 carry (add float 0.0) blocks 2 {\nyield 1.0\n}\n}",
       "by items of the grid"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 width 3 {\n}\n}", "width 3 is no power of two"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 peel 3 {\n}\n}", "a peel needs lanes"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 width 4 peel N {\n}\n}", "known to be shorter than 32"},
      {"kernel \"k\" () threads 64 {\nthread strict i < 4 {\n}\n}", "a thread loop has no order"},
      {"kernel \"k\" () threads 64 {\nthread i < 4 carry (none float 0.0) {\nyield 1.0\n}\n}",
       "needs a serial or unroll loop"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kva_diag_clear(f->diag);
    if (parse(f, cases[i].text)) fail_msg("accepted: %s", cases[i].text);
    const char *message = kva_diag_message(f->diag, 0, NULL, NULL);
    if (!strstr(message, cases[i].message)) fail_msg("%s\ngave: %s", cases[i].text, message);
  }
}

/* ---- hash -------------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(kernel_fixture *f, const char *text) {
  kva_arena *arena = kva_arena_create();
  kva_kernel *k = kva_kernel_parse(arena, kva_expr_ctx_create(arena), text, NULL, f->diag);
  if (!k) kva_diag_print(f->diag, stderr);
  assert_non_null(k);
  uint64_t h = kernel_code_hash(k);
  kva_arena_destroy(arena);
  return h;
}

static void hash_sees_structure_only(void **state) {
  kernel_fixture *f = *state;
  uint64_t h = hash_of(f, "kernel \"a\" (read float x[B*N], write float y[N]) {\n"
                          "parallel i < N {\n%0 = load x[B*i + 2]\n%1 = add %0, 1.0 : float\nstore y[i], %1\n}\n}\n");
  assert_int_equal(
      h, hash_of(f, "kernel \"b\" (read float p[N*B], write float q[N]) {\n"
                    "parallel j < N {\n%5 = load p[2 + j*B]\n%2 = add %5, 1.0 : float\nstore q[j], %2\n}\n}\n"));
  static const char *const others[] = {
      "kernel \"a\" (read float x[B*N], write float y[N]) {\n" /* another constant */
      "parallel i < N {\n%0 = load x[B*i + 2]\n%1 = add %0, 1.5 : float\nstore y[i], %1\n}\n}\n",
      "kernel \"a\" (read float x[B*N], write float y[N]) {\n" /* another index */
      "parallel i < N {\n%0 = load x[B*i + 3]\n%1 = add %0, 1.0 : float\nstore y[i], %1\n}\n}\n",
      "kernel \"a\" (read float x[B*N], write float y[N]) {\n" /* another operand */
      "parallel i < N {\n%0 = load x[B*i + 2]\n%1 = add %0, 1.0 : float\nstore y[i], %0\n}\n}\n",
      "kernel \"a\" (read float x[B*N], write float y[N]) {\n" /* another shape symbol */
      "parallel i < B {\n%0 = load x[B*i + 2]\n%1 = add %0, 1.0 : float\nstore y[i], %1\n}\n}\n",
      "kernel \"a\" (read float x[B*N], write float y[N]) {\n" /* another kind of loop */
      "grid i < N {\n%0 = load x[B*i + 2]\n%1 = add %0, 1.0 : float\nstore y[i], %1\n}\n}\n",
      "kernel \"a\" (read float16 x[B*N], write float y[N]) {\n" /* another storage type */
      "parallel i < N {\n%0 = load x[B*i + 2]\n%1 = add %0, 1.0 : float\nstore y[i], %1\n}\n}\n",
  };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_int_not_equal(h, hash_of(f, others[i]));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, kernel_fixture_create, kernel_fixture_destroy)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(text_round_trip),       TEST(thread_loops_round_trip),  TEST(shared_rows_round_trip),
      TEST(copies_stand_alone),    TEST(bad_text_is_reported),     TEST(deep_nesting_is_refused),
      TEST(wrong_kernels_in_text), TEST(hash_sees_structure_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
