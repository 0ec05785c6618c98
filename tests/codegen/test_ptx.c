/* The GPU target without a GPU: the PTX of every operator's cases runs on the simulator and is compared with the
 * reference; ptxas, where there is one, assembles it; schedules are what they should be. KVA_TEST_CASE=name picks an
 * operator. */
#include "tests/support/ptx.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- every case -----------------------------------------------------------------------------------------------------
 */

typedef struct tally {
  uint32_t passed, failed, skipped;
  kva_text reasons;
} tally;

static bool wanted(const kva_case *c, kva_dtype dtype) {
  const char *only = getenv("KVA_TEST_CASE");
  if (only && strcmp(only, kva_ops.ops[c->op]->name) != 0) return false;
  return !dtype || (!c->dtype && (kva_ops.ops[c->op]->traits & KVA_FLOAT));
}

/* A case without code is skipped with the compiler's word for it; each word is printed once. */
static void count_skip(tally *t, const char *reason) {
  t->skipped++;
  if (t->reasons.data && strstr(t->reasons.data, reason)) return;
  kva_text_add(&t->reasons, "%s", reason);
  print_message("  skipped: %s\n", reason);
}

static void run_case(const kva_case *c, kva_dtype dtype, ptx_run *run, tally *t) {
  kva_check check = {0};
  bool ok = kva_case_check(c, dtype, ptx_execute, run, &check);
  if (ok)
    t->passed++;
  else if (run->unsupported)
    count_skip(t, run->unsupported);
  else
    t->failed++;
  if (!ok && !run->unsupported) print_error("%s", check.message.data);
  kva_text_free(&check.message);
}

static void run_table(const kva_case_table *table, kva_dtype dtype, ptx_run *run, tally *t) {
  for (uint32_t i = 0; i < table->n; i++)
    if (wanted(&table->cases[i], dtype)) run_case(&table->cases[i], dtype, run, t);
}

static void run_all(kva_dtype dtype, const char *arch) {
  ptx_run run = {.arch = arch, .pool = kva_pool_create(0)};
  tally t = {0};
  run_table(&kva_cases_core, dtype, &run, &t);
  run_table(&kva_cases_nn, dtype, &run, &t);
  print_message("%s, %s: %u cases passed, %u skipped, %u failed; %u kernels, %u launches\n", arch,
                dtype ? kva_dtype_name(dtype) : "as listed", t.passed, t.skipped, t.failed, run.kernels, run.launches);
  kva_pool_destroy(run.pool);
  kva_text_free(&t.reasons);
  assert_int_equal(t.failed, 0);
  assert_true(getenv("KVA_TEST_CASE") || t.passed > 10 * t.skipped);
}

static void test_listed(void **state) {
  (void)state;
  run_all(KVA_DTYPE_NONE, "sm_80");
}

static void test_bf16(void **state) {
  (void)state;
  run_all(KVA_BF16, "sm_90a");
}

static void test_f16(void **state) {
  (void)state;
  run_all(KVA_F16, "sm_80");
}

/* ---- schedules ------------------------------------------------------------------------------------------------------
 */

/* Sizes that reach what small cases do not: whole blocks, vectors, long rows, several warps' results. */
static const kva_case large[] = {
    {.op = KVA_OP_relu, .in = {{"N=5003"}}},
    {.op = KVA_OP_add, .in = {{"B=3,1000"}, {"B,1000"}}},
    {.op = KVA_OP_add, .in = {{"B=3,T=37,64"}, {"T,64"}}},
    {.op = KVA_OP_mul, .in = {{"B=5,4096"}, {"4096"}}},
    {.op = KVA_OP_transpose, .attrs = "perm=1,0", .in = {{"A=70,C=130"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=9,64"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=2,3000"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=3,C=777"}}},
    {.op = KVA_OP_reduce_sum, .attrs = "axes=0", .in = {{"N=100,C=300"}}},
    {.op = KVA_OP_reduce_sum, .in = {{"A=30,C=170"}}},
    {.op = KVA_OP_reduce_max, .attrs = "axes=-1", .in = {{"A=30,C=170"}}},
    {.op = KVA_OP_reduce_mean, .attrs = "axes=2,3", .in = {{"A=3,5,16,12"}}},
    {.op = KVA_OP_cumsum, .attrs = "axis=1", .in = {{"A=300,C=17"}}},
};

static void test_large(void **state) {
  (void)state;
  static const kva_dtype types[] = {KVA_F32, KVA_BF16, KVA_F16, KVA_F64};
  kva_case_table table = {large, sizeof large / sizeof *large};
  ptx_run run = {.arch = "sm_80"};
  tally t = {0};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) run_table(&table, types[i], &run, &t);
  print_message("large: %u cases passed, %u skipped, %u failed\n", t.passed, t.skipped, t.failed);
  kva_text_free(&t.reasons);
  assert_int_equal(t.failed, 0);
}

/* Global memory in 16-byte pieces: every request of a warp moves 512 bytes. */
static void test_vectors(void **state) {
  (void)state;
  static const kva_case cases[] = {{.op = KVA_OP_relu, .in = {{"N=8192"}}},
                                   {.op = KVA_OP_relu, .in = {{"B=8,T=4,256"}}}};
  static const kva_dtype types[] = {KVA_F32, KVA_BF16, KVA_F64};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
      ptx_run run = {.arch = "sm_80"};
      tally t = {0};
      run_case(&cases[c], types[i], &run, &t);
      assert_int_equal(t.passed, 1);
      assert_int_equal(run.counters.global_load_bytes, 8192 * kva_dtype_bits(types[i]) / 8);
      assert_int_equal(run.counters.global_load_bytes / run.counters.global_load_requests, 512);
      assert_int_equal(run.counters.global_store_bytes / run.counters.global_store_requests, 512);
    }
  }
}

/* ---- the module -----------------------------------------------------------------------------------------------------
 */

static const char kernel_text[] = "kernel \"sum\" (read float x[N], write float y[1]) threads 256 {\n"
                                  "  thread k < N carry (add float 0.0) width 4 {\n"
                                  "    %0 = load x[k]\n"
                                  "    yield %0\n"
                                  "  }\n"
                                  "  %1 = reduce k[0]\n"
                                  "  thread one < 1 {\n"
                                  "    store y[0], %1\n"
                                  "  }\n"
                                  "}\n";

static void test_module(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  kva_kernel *k = kva_kernel_parse(arena, kva_expr_ctx_create(arena), kernel_text, "k.txt", diag);
  assert_non_null(k);
  kva_codegen *cg;
  assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = "sm_90"}, diag, &cg), KVA_OK);
  const kva_expr *const *symbols;
  assert_int_equal(kva_codegen_symbols(k, arena, &symbols), 1);
  int32_t first, second;
  assert_int_equal(kva_codegen_add(cg, k, 1, symbols, &first), KVA_OK);
  assert_int_equal(kva_codegen_add(cg, k, 1, symbols, &second), KVA_OK);
  assert_int_equal(first, second);
  assert_int_equal(kva_codegen_launch(cg, first).threads, 256);
  assert_int_equal(kva_codegen_launch(cg, first).shared_bytes, 8 * 8); /* a slot for each warp */
  char *text;
  size_t size;
  assert_int_equal(kva_codegen_emit(cg, "ptx", &text, &size), KVA_OK);
  assert_non_null(strstr(text, ".target sm_90\n"));
  assert_non_null(strstr(text, ".reqntid 256, 1, 1"));
  assert_non_null(strstr(text, "ld.global.nc.v4.f32"));
  free(text);
  assert_int_equal(kva_codegen_emit(cg, "obj", &text, &size), KVA_INVALID);
  assert_int_not_equal(kva_codegen_jit(cg), KVA_OK);
  kva_codegen_destroy(cg);
  assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = "sm_35"}, diag, &cg), KVA_INVALID);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
}

/* A function of f64 has no code: a diagnostic, and the process lives. */
static void test_unsupported(void **state) {
  (void)state;
  static const kva_case c = {.op = KVA_OP_exp, .in = {{"N=4"}}};
  ptx_run run = {.arch = "sm_80"};
  tally t = {0};
  run_case(&c, KVA_F64, &run, &t);
  assert_int_equal(t.skipped, 1);
  assert_non_null(strstr(run.reason, "exp of double has no code for sm_80"));
  kva_text_free(&t.reasons);
}

/* ---- ptxas ----------------------------------------------------------------------------------------------------------
 */

static void add_node(kva_codegen *cg, kva_arena *arena, const kva_node *n) {
  const kva_expr *const *symbols;
  int32_t number;
  kva_kernel *k = kva_codegen_lower(arena, n, kva_codegen_target(cg));
  if (!k) return;
  kva_codegen_schedule(k, kva_codegen_target(cg));
  uint32_t n_symbols = kva_codegen_symbols(k, arena, &symbols);
  if (kva_codegen_add(cg, k, n_symbols, symbols, &number)) return; /* counted as skipped above */
}

static void add_table(kva_codegen *cg, const kva_case_table *table, kva_dtype dtype) {
  for (uint32_t i = 0; i < table->n; i++) {
    kva_case_built built;
    if (!wanted(&table->cases[i], dtype)) continue;
    assert_int_equal(kva_case_build(&table->cases[i], dtype, &built), KVA_OK);
    kva_arena *arena = kva_arena_create();
    for (const kva_node *n = built.f->graph->first; n; n = n->next)
      if (!(n->op->traits & KVA_RETURN) && !kva_is(n, KVA_OP_constant)) add_node(cg, arena, n);
    kva_arena_destroy(arena);
    kva_case_free(&built);
  }
}

static int assemble(const char *text, size_t size, const char *arch) {
  char name[] = "/tmp/kva_test_ptx_XXXXXX", command[160];
  int fd = mkstemp(name);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, size), (ssize_t)size);
  close(fd);
  snprintf(command, sizeof command, "ptxas -arch=%s %s -o /dev/null", arch, name);
  int status = system(command);
  unlink(name);
  return status;
}

static void assemble_all(const char *arch, kva_dtype dtype) {
  kva_diag *diag = kva_diag_create();
  kva_codegen *cg;
  assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = arch}, diag, &cg), KVA_OK);
  add_table(cg, &kva_cases_core, dtype);
  add_table(cg, &kva_cases_nn, dtype);
  char *text;
  size_t size;
  assert_int_equal(kva_codegen_emit(cg, "ptx", &text, &size), KVA_OK);
  assert_int_equal(assemble(text, size, arch), 0);
  print_message("ptxas -arch=%s: %d kernels, %zu bytes of PTX\n", arch, kva_codegen_kernel_count(cg), size);
  free(text);
  kva_codegen_destroy(cg);
  kva_diag_destroy(diag);
}

static void test_ptxas(void **state) {
  (void)state;
  if (system("command -v ptxas >/dev/null 2>&1") != 0) {
    print_message("SKIP: no ptxas on PATH\n");
    skip();
  }
  assemble_all("sm_80", KVA_DTYPE_NONE);
  assemble_all("sm_90a", KVA_BF16);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_module), cmocka_unit_test(test_unsupported),
                                     cmocka_unit_test(test_ptxas),  cmocka_unit_test(test_vectors),
                                     cmocka_unit_test(test_large),  cmocka_unit_test(test_listed),
                                     cmocka_unit_test(test_bf16),   cmocka_unit_test(test_f16)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
