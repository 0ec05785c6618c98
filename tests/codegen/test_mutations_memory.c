/* Every synchronising instruction of kernels bound by memory is needed: rows by warps and by blocks, columns, squares
 * of transpositions, carries of several results, loops over what is read and written, sorted indices.
 * tests/support/ptx_mutate.h */
#include "tests/support/target.h"
#include "tests/support/ptx_mutate.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

#define ONE(operator, attributes, shape)                            \
  {                                                                 \
    .op = KVA_OP_##operator, .attrs = attributes, .in = { {shape} } \
  }

#define NORM(operator, x, scale, ...)                                                 \
  {                                                                                   \
    .op = KVA_OP_##operator, .attrs = "axis=1", .in = { {x}, {scale}, {__VA_ARGS__} } \
  }
#define SHIFT_GRAD(attributes, x, dy)                                           \
  {                                                                             \
    .op = KVA_OP_kv_shift_weight_grad, .attrs = attributes, .in = { {x}, {dy} } \
  }

static const ptx_generated kernels[] = {
    {"transpose", "sm_80", KVA_F32, 1, ONE(transpose, "perm=1,0", "A=70,C=130")},
    {"transpose_batch", "sm_80", KVA_BF16, 1, ONE(transpose, "perm=0,2,1", "B=2,A=70,C=130")},
    {"transpose_outer", "sm_80", KVA_BF16, 1, ONE(transpose, "perm=2,1,0", "A=33,3,B=35")},
    {"rope", "sm_80", KVA_F32, 1, {.op = KVA_OP_rope, .in = {{"B=3,2,T=21,64"}, {"T,32"}, {"T,32"}}}},
    {"shift_grads_documents",
     "sm_80",
     KVA_BF16,
     1,
     {.op = KVA_OP_kv_shift_grads, .in = {{"B=3,2,T=37,64"}, {"2,2"}, {"B,2,T,64"}, {"B,T", 0, 1, KVA_I32}}}},
    {"softmax", "sm_80", KVA_F32, 1, ONE(softmax, "axis=-1", "B=2,3000")},
    {"softmax_long", "sm_80", KVA_BF16, 1, ONE(softmax, "axis=-1", "B=2,40000")},
    {"softmax_shared", "sm_90", KVA_F32, 2, ONE(softmax, "axis=-1", "B=2,86016")},
    {"softmax_shared_odd", "sm_90", KVA_F32, 2, ONE(softmax, "axis=-1", "B=2,86021")},
    {"softmax_cooperative", "sm_80", KVA_F32, 2, ONE(softmax, "axis=-1", "B=2,86016")},
    {"softmax_cooperative_odd", "sm_80", KVA_F32, 2, ONE(softmax, "axis=-1", "B=2,86021")},
    {"softmax_rows", "sm_80", KVA_BF16, 1, ONE(softmax, "axis=-1", "B=9,4096")},
    {"layer_norm", "sm_80", KVA_F32, 1, NORM(layer_norm, "5,600", "600", "600")},
    {"layer_norm_rows", "sm_80", KVA_F32, 1, NORM(layer_norm, "B=270,2048", "2048", "2048")},
    {"rms_norm", "sm_80", KVA_BF16, 1, NORM(rms_norm, "2,6000", "6000")},
    {"rms_norm_rows", "sm_80", KVA_BF16, 1, NORM(rms_norm, "B=270,2048", "2048")},
    {"rms_norm_warps", "sm_80", KVA_BF16, 1, NORM(rms_norm, "B=20,512", "512")},
    {"sum_all", "sm_80", KVA_F32, 1, ONE(reduce_sum, "", "A=30,C=170")},
    {"prod_all", "sm_80", KVA_F32, 1, ONE(reduce_prod, "", "N=300")},
    {"argmax_all", "sm_80", KVA_F32, 1, ONE(argmax, "axis=0", "N=700")},
    {"sum_columns", "sm_80", KVA_BF16, 1, ONE(reduce_sum, "axes=0", "4096,C=40")},
    {"conv_skinny",
     "sm_80",
     KVA_F32,
     1,
     {.op = KVA_OP_conv, .attrs = "pads=0,1,1,0", .in = {{"1,90,4,5"}, {"2,90,2,2"}}}},
    {"conv_input_grad",
     "sm_80",
     KVA_F32,
     1,
     {.op = KVA_OP_conv_input_grad, .attrs = "pads=1,1,1,1; spatial=9,30", .in = {{"2,17,9,30"}, {"17,5,3,3"}}}},
    {"conv_weight_grad",
     "sm_80",
     KVA_F32,
     1,
     {.op = KVA_OP_conv_weight_grad, .attrs = "kernel=3", .in = {{"1,2,300"}, {"1,5,298"}}}},
    {"shift_grad_head", "sm_80", KVA_F32, 1, SHIFT_GRAD("weight_shape=H,2", "B=2,H=3,T=50,D=40", "B,H,T,D")},
    {"shift_grad_channel", "sm_80", KVA_F32, 1,
     SHIFT_GRAD("weight_shape=H,3,D; time_axis=1; boundary=keep", "B=2,T=50,H=3,D=40", "B,T,H,D")},
    {"gather_grad",
     "sm_80",
     KVA_F32,
     1,
     {.op = KVA_OP_gather_grad, .attrs = "extent=260", .in = {{"N=8300,8"}, {"N", 0, 259, KVA_I64}}}},
    {"gather_grad_windows",
     "sm_80",
     KVA_F32,
     1,
     {.op = KVA_OP_gather_grad, .attrs = "extent=2", .in = {{"17000,1"}, {"17000", 0, 1, KVA_I64}}}},
    {"gather_grad_symbolic_rows",
     "sm_80",
     KVA_F32,
     1,
     {.op = KVA_OP_gather_grad, .attrs = "extent=N", .in = {{"9000,N=2"}, {"9000", 0, 1, KVA_I64}}}},
    {"gather_grad_narrow",
     "sm_80",
     KVA_BF16,
     1,
     {.op = KVA_OP_gather_grad, .attrs = "extent=20", .in = {{"5,120,9"}, {"5,120", 0, 19, KVA_I64}}}},
    {"sort_indices",
     "sm_80",
     KVA_I64,
     1,
     {.op = KVA_OP_sort_indices, .attrs = "extent=300; owners=132", .in = {{"N=700", 0, 299, KVA_I64}}}},
    {"scatter_add",
     "sm_80",
     KVA_BF16,
     1,
     {.op = KVA_OP_scatter_nd, .attrs = "reduction=add", .in = {{"17,5,3"}, {"6,1", 0, 16, KVA_I64}, {"6,5,3"}}}},
    {"scatter_point",
     "sm_80",
     KVA_F32,
     1,
     {.op = KVA_OP_scatter_nd, .attrs = "reduction=max", .in = {{"7,7"}, {"6,2", 0, 6, KVA_I64}, {"6"}}}},
};

static void test_memory(void **state) {
  (void)state;
  static ptx_mutations t;
  ptx_mutations_check_generated(&t, "tests/data/ptx/mutations_memory.txt", kernels, sizeof kernels / sizeof *kernels);
  assert_int_equal(t.failures, 0);
}

int main(void) {
  if (sanitized()) {
    printf(
        "SKIP: what the simulator finds is the same without sanitizers; codegen.mutations_contract runs with them\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
