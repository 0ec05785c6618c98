/* Every synchronising instruction of the products' kernels (codegen/kernels/nv/contract) is needed: shapes with more
 * slices than the ring has stages, every engine and every way to fill the ring. tests/support/ptx_mutate.h */
#include "tests/support/ptx_mutate.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <cmocka.h>

#define NN "transpose_a=0; transpose_b=0"
#define NT "transpose_a=0; transpose_b=1"
#define TN "transpose_a=1; transpose_b=0"
#define MATMUL(a, b, attributes)                                 \
  {                                                              \
    .op = KVA_OP_matmul, .attrs = attributes, .in = { {a}, {b} } \
  }

static const ptx_generated kernels[] = {
    {"mma_128", "sm_80", KVA_BF16, 1, MATMUL("M=130,200", "200,640", NN)},
    {"mma_128_tn", "sm_80", KVA_F16, 1, MATMUL("K=200,2048", "K,1280", TN)},
    {"mma_64", "sm_80", KVA_F16, 1, MATMUL("72,136", "72,136", NT)},
    {"mma_odd", "sm_80", KVA_BF16, 1, MATMUL("67,137", "137,65", NN)},
    {"mma_odd_a", "sm_80", KVA_BF16, 1, MATMUL("67,K=136", "K,64", NN)},
    {"mma_odd_b", "sm_80", KVA_BF16, 1, MATMUL("67,136", "136,65", NN)},
    {"simt_128", "sm_80", KVA_F32, 1, MATMUL("M=130,60", "60,640", NN)},
    {"simt_64", "sm_80", KVA_F32, 1, MATMUL("60,K=68", "60,K", NT)},
    {"simt_odd", "sm_80", KVA_F32, 1, MATMUL("K=41,M=66", "K,3", TN)},
    {"simt_f64", "sm_80", KVA_F64, 1, MATMUL("66,44", "44,66", NN)},
    {"skinny_nn", "sm_80", KVA_F32, 1, MATMUL("5,67", "67,136", NN)},
    {"skinny_nt", "sm_80", KVA_BF16, 1, MATMUL("16,72", "136,72", NT)},
    {"wgmma_nn", "sm_90a", KVA_BF16, 1, MATMUL("M=130,640", "640,256", NN)},
    {"wgmma_nt_256", "sm_90a", KVA_F16, 1, MATMUL("M=130,584", "1024,584", NT)},
    {"mma_to_float", "sm_80", KVA_BF16, 1, MATMUL("K=168,640", "K,640", TN "; to=float")},
    {"wgmma_to_float", "sm_90a", KVA_BF16, 1, MATMUL("K=330,1024", "K,1032", TN "; to=float")},
    {"wgmma_batch", "sm_90a", KVA_BF16, 1, MATMUL("B=2,M=70,640", "B,256,640", NT)},
    {"conv",
     "sm_80",
     KVA_BF16,
     1,
     {.op = KVA_OP_conv, .attrs = "pads=1,1,1,1", .in = {{"B=2,16,9,10"}, {"20,16,3,3"}}}},
    {"conv_one_tap", "sm_80", KVA_F32, 1, {.op = KVA_OP_conv, .in = {{"1,64,8,8"}, {"64,64,1,1"}}}},
};

static void test_contract(void **state) {
  (void)state;
  static ptx_mutations t;
  ptx_mutations_check_generated(&t, "tests/data/ptx/mutations_contract.txt", kernels, sizeof kernels / sizeof *kernels);
  assert_int_equal(t.failures, 0);
  assert_true(t.mutants >= 60);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_contract)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
