/* Matrix products of blocks of threads: shapes that reach every edge of the tiles, with copies that land early and
 * late; shared memory without conflicts, global memory in whole sectors. */
#include "tests/support/target.h"
#include "tools/verify/simulated.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static void run_case(const kva_case *c, kva_dtype dtype, kva_ptx_run *run) {
  kva_check check = {0};
  bool ok = kva_case_check(c, dtype, kva_run_ptx, run, &check);
  if (!ok) print_error("%s\n", check.message.data ? check.message.data : "");
  kva_text_free(&check.message);
  assert_true(ok);
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

#define NN       "transpose_a=0; transpose_b=0"
#define NT       "transpose_a=0; transpose_b=1"
#define TN       "transpose_a=1; transpose_b=0"
#define TT       "transpose_a=1; transpose_b=1"
#define TO_FLOAT "; to=float"

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

/* Few rows: loads of 16 bytes in either direction of b, what is left behind whole groups of steps, columns behind the
 * last one, elements at odd addresses; sums that lanes halve, and that are odd in number; batches. */
static const kva_case few_rows[] = {
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"1,512"}, {"512,136"}}},
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"1,512"}, {"136,512"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"2,1030"}, {"1030,24"}}}, /* two steps behind the last group */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"3,136"}, {"70,136"}}},   /* a group of columns in part */
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"5,67"}, {"67,33"}}},     /* odd addresses */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"7,67"}, {"33,67"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"8,200"}, {"200,1928"}}}, /* blocks of many columns, and a part */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"13,72"}, {"2050,72"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"16,96"}, {"96,72"}}},
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"16,600"}, {"40,600"}}},
    {.op = KVA_OP_matmul, .attrs = TN, .in = {{"300,6"}, {"300,40"}}},
    {.op = KVA_OP_matmul, .attrs = TT, .in = {{"130,4"}, {"9,130"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"4,K=83"}, {"K,N=50"}}},
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"4,K=83"}, {"N=50,K"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"2,K=0"}, {"K,40"}}},
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"3,1,2,40"}, {"40,48"}}},     /* leading dims as rows */
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"B=3,2,2,40"}, {"2,40,48"}}}, /* a batch, broadcast */
    {.op = KVA_OP_matmul, .attrs = NT, .in = {{"B=2,12,64"}, {"B,T=70,64"}}},
};

static void test_few_rows(void **state) {
  (void)state;
  static const kva_dtype types[] = {KVA_F32, KVA_BF16, KVA_F16};
  for (size_t i = 0; i < sizeof few_rows / sizeof *few_rows; i++) {
    for (size_t t = 0; t < (sanitized() ? 2 : sizeof types / sizeof *types); t++) {
      kva_ptx_run run = {.cache = test_cache(), .arch = t == 1 ? "sm_90a" : "sm_80"};
      run_case(&few_rows[i], types[t], &run);
    }
  }
}

/* ---- bits of few rows -------------------------------------------------------------------------------------------- */

/* Results of the product of so many rows; values of its first row do not depend on their number. */
static kva_ref_tensor *product_of(const char *a, const char *b, const char *attrs, kva_dtype dtype) {
  kva_case c = {.op = KVA_OP_matmul, .attrs = attrs, .in = {{a}, {b}}};
  kva_ptx_run run = {.cache = test_cache(), .arch = "sm_80"};
  kva_case_built built;
  kva_ref_tensor *out = NULL;
  assert_int_equal(kva_case_build(&c, dtype, &built), KVA_OK);
  const kva_ref_tensor *const *inputs = (const kva_ref_tensor *const *)built.inputs;
  assert_int_equal(kva_run_ptx(&run, built.m, built.f, inputs, &out, built.diag), KVA_OK);
  kva_case_free(&built);
  return out;
}

static void same_bits_as_one_row(const char *rows, const char *b, const char *attrs, kva_dtype dtype, int64_t columns) {
  kva_ref_tensor *one = product_of("1,333", b, attrs, dtype), *many = product_of(rows, b, attrs, dtype);
  assert_int_equal(one->n, columns);
  assert_memory_equal(one->f, many->f, (size_t)columns * sizeof *one->f);
  kva_ref_tensor_free(one);
  kva_ref_tensor_free(many);
}

static void test_bits_of_few_rows(void **state) {
  (void)state;
  static const char *const rows[] = {"2,333", "5,333", "8,333", "9,333", "16,333"};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    same_bits_as_one_row(rows[i], "333,48", NN, KVA_F32, 48);
    same_bits_as_one_row(rows[i], "47,333", NT, KVA_F32, 47);
    same_bits_as_one_row(rows[i], "333,48", NN TO_FLOAT, KVA_BF16, 48);
    same_bits_as_one_row(rows[i], "47,333", NT TO_FLOAT, KVA_F16, 47);
  }
}

/* Windows with rows enough for blocks: strides, dilation, groups, one tap; gradients. */
static const kva_case windows[] = {
    {.op = KVA_OP_conv, .attrs = "pads=1,1,1,1", .in = {{"B=2,8,9,10"}, {"20,8,3,3"}}},
    {.op = KVA_OP_conv,
     .attrs = "strides=2,3; pads=1,2,0,1; dilations=1,2; group=2",
     .in = {{"2,6,9,13"}, {"40,3,3,2"}}},
    {.op = KVA_OP_conv, .in = {{"2,16,5,8"}, {"24,16,1,1"}}},
    {.op = KVA_OP_conv, .in = {{"1,16,8,8"}, {"64,16,1,1"}}},
    {.op = KVA_OP_conv_input_grad, .attrs = "strides=2; pads=1,1; spatial=16", .in = {{"2,12,8"}, {"12,20,3"}}},
    {.op = KVA_OP_conv_weight_grad, .attrs = "kernel=3,3; pads=1,1,1,1", .in = {{"2,5,6,7"}, {"2,18,6,7"}}},
};

static void test_windows(void **state) {
  (void)state;
  static const kva_dtype types[] = {KVA_F32, KVA_BF16, KVA_F16};
  for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
    for (size_t t = 0; t < (sanitized() ? 2 : sizeof types / sizeof *types); t++) {
      kva_ptx_run run = {.cache = test_cache(), .arch = t == 1 ? "sm_90a" : "sm_80", .lazy = t != 0};
      run_case(&windows[i], types[t], &run);
    }
  }
}

/* Gradients of weights: factors of 16 bits, the float sums themselves as results. */
static const kva_case to_float[] = {
    {.op = KVA_OP_matmul, .attrs = NN TO_FLOAT, .in = {{"128,64"}, {"64,64"}}},
    {.op = KVA_OP_matmul, .attrs = NN TO_FLOAT, .in = {{"M=150,96"}, {"96,640"}}},
    {.op = KVA_OP_matmul, .attrs = NT TO_FLOAT, .in = {{"M=130,72"}, {"648,72"}}},
    {.op = KVA_OP_matmul, .attrs = TN TO_FLOAT, .in = {{"T=70,640"}, {"T,642"}}},
    {.op = KVA_OP_matmul, .attrs = TN TO_FLOAT, .in = {{"K=41,M=66"}, {"K,N=3"}}},
    {.op = KVA_OP_matmul, .attrs = TT TO_FLOAT, .in = {{"67,65"}, {"33,67"}}},
    {.op = KVA_OP_matmul, .attrs = NT TO_FLOAT, .in = {{"B=2,T=70,64"}, {"B,T,64"}}},
    {.op = KVA_OP_matmul, .attrs = TN TO_FLOAT, .in = {{"K=0,64"}, {"K,64"}}},
    {.op = KVA_OP_conv_weight_grad, .attrs = "kernel=3,3; pads=1,1,1,1" TO_FLOAT, .in = {{"2,5,6,7"}, {"2,18,6,7"}}},
    {.op = KVA_OP_conv_weight_grad, .attrs = "kernel=1,1" TO_FLOAT, .in = {{"1,64,8,8"}, {"1,64,8,8"}}},
    {.op = KVA_OP_conv_weight_grad,
     .attrs = "kernel=3; strides=2; pads=1,1; group=2" TO_FLOAT,
     .in = {{"2,8,16"}, {"2,40,8"}}},
};

static void test_to_float(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof to_float / sizeof *to_float; i++) {
    run_case(&to_float[i], KVA_BF16, &(kva_ptx_run){.arch = "sm_80", .lazy = true});
    if (!sanitized()) run_case(&to_float[i], KVA_F16, &(kva_ptx_run){.arch = "sm_90a"});
  }
}

static void run_shapes(kva_dtype dtype, bool lazy) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    kva_ptx_run run = {.cache = test_cache(), .arch = "sm_80", .lazy = lazy};
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
  if (sanitized()) {
    print_message("SKIP: sanitizers see the same code for both types of 16 bits\n");
    skip();
  }
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
    {.op = KVA_OP_matmul, .attrs = NN, .in = {{"M=0,64"}, {"64,256"}}},
    {.op = KVA_OP_matmul, .attrs = TN, .in = {{"K=0,1024"}, {"K,1024"}}},
    {.op = KVA_OP_matmul, .attrs = NN TO_FLOAT, .in = {{"M=150,96"}, {"96,256"}}},
    {.op = KVA_OP_matmul, .attrs = NT TO_FLOAT, .in = {{"M=130,64"}, {"998,64"}}}, /* results at odd addresses */
    {.op = KVA_OP_matmul, .attrs = TN TO_FLOAT, .in = {{"K=330,1024"}, {"K,1032"}}},
    {.op = KVA_OP_matmul, .attrs = TT TO_FLOAT, .in = {{"136,1032"}, {"1024,136"}}},
    {.op = KVA_OP_matmul, .attrs = NT TO_FLOAT, .in = {{"B=2,M=70,64"}, {"B,256,64"}}},
};

static void run_warpgroups(kva_dtype dtype, bool lazy) {
  for (size_t i = 0; i < sizeof warpgroups / sizeof *warpgroups; i++) {
    kva_ptx_run run = {.cache = test_cache(), .arch = "sm_90a", .lazy = lazy};
    run_case(&warpgroups[i], dtype, &run);
    assert_true(run.maps == 2);
  }
}

static void test_warpgroups(void **state) {
  (void)state;
  run_warpgroups(KVA_BF16, true);
  if (!sanitized()) run_warpgroups(KVA_F16, false);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct traffic {
  const char *attrs, *a, *b;
  kva_dtype dtype;     /* of the factors */
  uint64_t load_bytes; /* that the tiles ask for */
} traffic;

/* Global loads: (rows + columns) * depth of every block, in whole sectors; stores: every result once. */
static const traffic traffics[] = {
    {NN, "M=256,128", "128,640", KVA_BF16, 10ull * 256 * 128 * 2},
    {NT, "M=256,128", "640,128", KVA_BF16, 10ull * 256 * 128 * 2},
    {TN, "K=128,640", "K,640", KVA_F16, 100ull * 128 * 128 * 2}, /* 64 x 64 */
    {TN TO_FLOAT, "K=128,640", "K,640", KVA_BF16, 100ull * 128 * 128 * 2},
    {NN TO_FLOAT, "M=256,128", "128,640", KVA_BF16, 10ull * 256 * 128 * 2},
    {NN, "M=256,128", "128,640", KVA_F32, 10ull * 256 * 128 * 4},
    {NT, "M=256,128", "640,128", KVA_F32, 10ull * 256 * 128 * 4},
};

static void test_traffic(void **state) {
  (void)state;
  if (sanitized()) {
    print_message("SKIP: what kernels move is the same without sanitizers\n");
    skip();
  }
  for (size_t i = 0; i < sizeof traffics / sizeof *traffics; i++) {
    const traffic *t = &traffics[i];
    kva_case c = {.op = KVA_OP_matmul, .attrs = t->attrs, .in = {{t->a}, {t->b}}};
    kva_ptx_run run = {.cache = test_cache(), .arch = "sm_80"};
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

/* Few rows: every sector of b once; a in every block, once or, along a contiguous depth, by two of its warps. */
typedef struct few_traffic {
  const char *attrs, *a, *b;
  kva_dtype dtype;
  uint64_t rows, depth, columns, reads; /* of a */
} few_traffic;

static const few_traffic few_traffics[] = {
    {NN, "1,1056", "1056,512", KVA_F32, 1, 1056, 512, 64},
    {NN, "16,1056", "1056,512", KVA_F32, 16, 1056, 512, 64},
    {NN, "3,320", "320,7680", KVA_BF16, 3, 320, 7680, 120},
    {NT, "1,1056", "1024,1056", KVA_F32, 1, 1056, 1024, 128},
    {NT, "16,768", "3840,768", KVA_F32, 16, 768, 3840, 2 * 120},
    {NT, "4,512", "3840,512", KVA_F16, 4, 512, 3840, 2 * 120},
};

static void test_traffic_of_few_rows(void **state) {
  (void)state;
  if (sanitized()) {
    print_message("SKIP: what kernels move is the same without sanitizers\n");
    skip();
  }
  for (size_t i = 0; i < sizeof few_traffics / sizeof *few_traffics; i++) {
    const few_traffic *t = &few_traffics[i];
    kva_case c = {.op = KVA_OP_matmul, .attrs = t->attrs, .in = {{t->a}, {t->b}}};
    kva_ptx_run run = {.cache = test_cache(), .arch = "sm_80"};
    run_case(&c, t->dtype, &run);
    const kva_ptx_counters *n = &run.counters;
    uint64_t bytes = (uint64_t)kva_dtype_bits(t->dtype) / 8 * t->depth * (t->columns + t->reads * t->rows);
    print_message("%s %s %s %s: load sectors %.3f, store sectors %.3f of the least\n", kva_dtype_name(t->dtype),
                  t->attrs, t->a, t->b, 32.0 * (double)n->global_load_sectors / (double)bytes,
                  32.0 * (double)n->global_store_sectors / (double)n->global_store_bytes);
    assert_int_equal(32 * n->global_load_sectors, bytes);
    assert_int_equal(32 * n->global_store_sectors, n->global_store_bytes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_traffic),
      cmocka_unit_test(test_shapes),
      cmocka_unit_test(test_lazy),
      cmocka_unit_test(test_windows),
      cmocka_unit_test(test_warpgroups),
      cmocka_unit_test(test_to_float),
      cmocka_unit_test(test_few_rows),
      cmocka_unit_test(test_bits_of_few_rows),
      cmocka_unit_test(test_traffic_of_few_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
