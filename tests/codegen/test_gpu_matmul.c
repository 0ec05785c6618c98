/* Matrix products of blocks of threads: shapes that reach every edge of the tiles, with copies that land early and
 * late; shared memory without conflicts, global memory in whole sectors; what ptxas makes of the kernels against a
 * baseline (tests/codegen/gpu_registers.txt; KVA_UPDATE_BASELINE=1 writes it anew). */
#include "tests/support/assembler.h"
#include "tests/support/ptx.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static void run_case(const kva_case *c, kva_dtype dtype, ptx_run *run) {
  kva_check check = {0};
  bool ok = kva_case_check(c, dtype, ptx_execute, run, &check);
  if (!ok)
    print_error("%s%s\n", check.message.data ? check.message.data : "", run->unsupported ? run->unsupported : "");
  kva_text_free(&check.message);
  assert_true(ok);
}

/* ---- shapes ---------------------------------------------------------------------------------------------------------
 */

#define NN "transpose_a=0; transpose_b=0"
#define NT "transpose_a=0; transpose_b=1"
#define TN "transpose_a=1; transpose_b=0"
#define TT "transpose_a=1; transpose_b=1"

static const kva_case shapes[] = {
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"128,64"}, {"64,64"}}}, /* whole tiles */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"64,128"}, {"128,128"}}},
    {.op = KVA_OP_matmul, .attrs = TN, .in = {{"160,64"}, {"160,64"}}},
    {.op = KVA_OP_matmul, .attrs = TT, .in = {{"64,64"}, {"64,64"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"M=150,96"}, {"96,640"}}}, /* 128 x 128 of results a block */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"M=130,72"}, {"648,72"}}}, /* ragged everywhere, rows of 16 bytes */
    {.op = KVA_OP_matmul, .attrs = TN, .in = {{"T=70,640"}, {"T,640"}}},  /* a gradient of weights: any depth */
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"67,33"}, {"33,65"}}},     /* rows at odd addresses */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"5,K=50"}, {"7,K"}}},      /* symbolic rows */
    {.op = KVA_OP_matmul, .attrs = TN, .in = {{"K=41,M=66"}, {"K,N=3"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"1,512"}, {"512,136"}}},       /* one row */
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"B=3,2,40,48"}, {"2,48,72"}}}, /* a batch, broadcast */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"B=2,T=70,64"}, {"B,T,64"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"B=2,T=35,64"}, {"64,192"}}}, /* leading dims as rows */
};

static void run_shapes(kva_dtype dtype, bool lazy) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    ptx_run run = {.arch = "sm_80", .lazy = lazy};
    run_case(&shapes[i], dtype, &run);
  }
}

static void test_shapes(void **state) {
  (void)state;
  run_shapes(KVA_BF16, false);
  run_shapes(KVA_F32, true);
}

static void test_lazy(void **state) {
  (void)state;
  run_shapes(KVA_F16, true);
}

/* By warpgroups: either direction of either factor, more slices than stages, ragged edges, batches. */
static const kva_case warpgroups[] = {
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"M=150,96"}, {"96,256"}}},
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"M=100,456"}, {"256,456"}}},
    {.op = KVA_OP_matmul, .attrs = TN, .in = {{"K=70,1024"}, {"K,1024"}}},
    {.op = KVA_OP_matmul, .attrs = TT, .in = {{"136,1032"}, {"1024,136"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"M=130,64"}, {"64,1000"}}}, /* 256 columns a block */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"B=2,M=70,64"}, {"B,256,64"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"B=2,T=35,64"}, {"64,256"}}},
};

static void run_warpgroups(kva_dtype dtype, bool lazy) {
  for (size_t i = 0; i < sizeof warpgroups / sizeof *warpgroups; i++) {
    ptx_run run = {.arch = "sm_90a", .lazy = lazy};
    run_case(&warpgroups[i], dtype, &run);
    assert_true(run.maps == 2);
  }
}

static void test_warpgroups(void **state) {
  (void)state;
  run_warpgroups(KVA_BF16, true);
  run_warpgroups(KVA_F16, false);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------
 */

typedef struct traffic {
  const char *attrs, *a, *b;
  kva_dtype dtype;
  uint64_t load_bytes; /* that the tiles ask for */
} traffic;

/* Global loads: (rows + columns) * depth of every block, in whole sectors; stores: every result once. */
static const traffic traffics[] = {
    {NN, "M=256,128", "128,640", KVA_BF16, 10ull * 256 * 128 * 2},
    {NT, "M=256,128", "640,128", KVA_BF16, 10ull * 256 * 128 * 2},
    {TN, "K=128,640", "K,640", KVA_F16, 100ull * 128 * 128 * 2}, /* 64 x 64 */
    {NN, "M=256,128", "128,640", KVA_F32, 10ull * 256 * 128 * 4},
    {NT, "M=256,128", "640,128", KVA_F32, 10ull * 256 * 128 * 4},
};

static void test_traffic(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof traffics / sizeof *traffics; i++) {
    const traffic *t = &traffics[i];
    kva_case c = {.op = KVA_OP_matmul, .attrs = t->attrs, .in = {{t->a}, {t->b}}};
    ptx_run run = {.arch = "sm_80"};
    run_case(&c, t->dtype, &run);
    const kva_ptx_counters *n = &run.counters;
    double degree = (double)n->shared_wavefronts / (double)n->shared_wavefronts_ideal;
    print_message(
        "%s %s %s %s: conflicts %.3f (worst %u, line %u), load sectors %.3f, store sectors %.3f of the least\n",
        kva_dtype_name(t->dtype), t->attrs, t->a, t->b, degree, n->shared_degree_max, n->shared_degree_max_line,
        32.0 * (double)n->global_load_sectors / (double)n->global_load_bytes,
        32.0 * (double)n->global_store_sectors / (double)n->global_store_bytes);
    assert_true(degree <= 1.1);
    assert_int_equal(n->global_load_bytes, t->load_bytes);
    assert_int_equal(32 * n->global_load_sectors, n->global_load_bytes);
    assert_int_equal(32 * n->global_store_sectors, n->global_store_bytes);
  }
}

/* ---- registers ------------------------------------------------------------------------------------------------------
 */

typedef struct named {
  const char *name, *arch, *attrs, *a, *b;
  kva_dtype dtype;
} named;

static const named kernels[] = {
    {"matmul_nn", "sm_80", NN, "M=8192,1024", "1024,4096", KVA_BF16},
    {"matmul_nt", "sm_80", NT, "M=8192,1024", "4096,1024", KVA_BF16},
    {"matmul_tn", "sm_80", TN, "M=8192,1024", "M,4096", KVA_BF16},
    {"matmul_nn", "sm_80", NN, "M=8192,1024", "1024,4096", KVA_F16},
    {"matmul_nn_64", "sm_80", NN, "64,1024", "1024,512", KVA_BF16},
    {"matmul_nn_odd", "sm_80", NN, "M=8192,K=1023", "K,N=999", KVA_BF16},
    {"matmul_nn", "sm_80", NN, "M=8192,1024", "1024,4096", KVA_F32},
    {"matmul_nt", "sm_80", NT, "M=8192,1024", "4096,1024", KVA_F32},
    {"matmul_tn", "sm_80", TN, "M=8192,1024", "M,4096", KVA_F32},
    {"matmul_nn", "sm_90a", NN, "M=8192,1024", "1024,4096", KVA_BF16},
    {"matmul_nt", "sm_90a", NT, "M=8192,1024", "4096,1024", KVA_BF16},
    {"matmul_tn", "sm_90a", TN, "M=8192,1024", "M,4096", KVA_BF16},
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

static void check_one(const named *n) {
  kva_case c = {.op = KVA_OP_matmul, .attrs = n->attrs, .in = {{n->a}, {n->b}}};
  kva_case_built built;
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_codegen *cg;
  assert_int_equal(kva_case_build(&c, n->dtype, &built), KVA_OK);
  assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = n->arch}, diag, &cg), KVA_OK);
  kva_kernel *k = kva_codegen_lower(arena, built.f->graph->first, kva_codegen_target(cg));
  assert_non_null(k);
  kva_codegen_schedule(k, kva_codegen_target(cg));
  const kva_expr *const *symbols;
  uint32_t n_symbols = kva_codegen_symbols(k, arena, &symbols);
  int32_t number;
  assert_int_equal(kva_codegen_add(cg, k, n_symbols, symbols, &number), KVA_OK);
  char *text, key[200];
  size_t size;
  assert_int_equal(kva_codegen_emit(cg, "ptx", &text, &size), KVA_OK);
  snprintf(key, sizeof key, "%s.%s.%s", n->name, kva_dtype_name(n->dtype), n->arch);
  assert_registers(key, text, size, n->arch);
  free(text);
  kva_codegen_destroy(cg);
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
  kva_case_free(&built);
}

static void test_registers(void **state) {
  (void)state;
  if (!assembler_found()) {
    print_message("SKIP: no ptxas on PATH\n");
    skip();
  }
  for (uint32_t i = 0; i < N_KERNELS; i++) check_one(&kernels[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_traffic),    cmocka_unit_test(test_shapes),    cmocka_unit_test(test_lazy),
      cmocka_unit_test(test_warpgroups), cmocka_unit_test(test_registers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
