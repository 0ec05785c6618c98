/* Attention on tensor cores: values against the reference for the sizes that its tiles must get right (several steps,
 * ragged edges, every width of a head), resources, and what it moves. KVA_TEST_CASE picks an operator. */
#include "tools/verify/simulated.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const kva_case cases[] = {
    {.op = KVA_OP_attention,
     .attrs = "causal=1",
     .in = {{"B=2,4,T=70,64"}, {"B,2,T,64"}, {"B,2,T,64"}},
     .first_result = true},
    {.op = KVA_OP_attention, .in = {{"1,2,T=65,128"}, {"1,1,S=130,128"}, {"1,1,S,128"}}, .first_result = true},
    {.op = KVA_OP_attention,
     .attrs = "causal=1; offset=30",
     .in = {{"1,1,T=100,256"}, {"1,1,S=130,256"}, {"1,1,S,256"}},
     .first_result = true},
    {.op = KVA_OP_attention,
     .attrs = "causal=1; window=40",
     .in = {{"1,2,T=150,40"}, {"1,2,T,40"}, {"1,2,T,40"}},
     .first_result = true},
    {.op = KVA_OP_attention,
     .attrs = "softcap=3; scale=0.25",
     .in = {{"1,2,33,16"}, {"1,2,S=70,16"}, {"1,2,S,16"}, {"33,S", .dtype = KVA_BOOL}, {"2", 0.1, 1}},
     .first_result = true},
    {.op = KVA_OP_attention, .attrs = "causal=1; offset=-70", .in = {{"1,1,130,32"}, {"1,1,60,32"}, {"1,1,60,32"}}},
    {.op = KVA_OP_attention_grad_q,
     .attrs = "causal=1",
     .in = {{"B=2,4,T=70,64"}, {"B,2,T,64"}, {"B,2,T,64"}, {"-"}, {"-"}, {"B,4,T"}, {"B,4,T", 4, 6}, {"B,4,T,64"}}},
    {.op = KVA_OP_attention_grad_kv,
     .attrs = "causal=1",
     .in = {{"B=2,4,T=70,64"}, {"B,2,T,64"}, {"B,2,T,64"}, {"-"}, {"-"}, {"B,4,T"}, {"B,4,T", 4, 6}, {"B,4,T,64"}}},
    {.op = KVA_OP_attention_grad_q,
     .in =
         {{"1,2,T=65,128"}, {"1,1,S=130,128"}, {"1,1,S,128"}, {"-"}, {"-"}, {"1,2,T"}, {"1,2,T", 5, 7}, {"1,2,T,128"}}},
    {.op = KVA_OP_attention_grad_kv,
     .in =
         {{"1,2,T=65,128"}, {"1,1,S=130,128"}, {"1,1,S,128"}, {"-"}, {"-"}, {"1,2,T"}, {"1,2,T", 5, 7}, {"1,2,T,128"}}},
    {.op = KVA_OP_attention_grad_q,
     .attrs = "causal=1; offset=30",
     .in = {{"1,1,100,256"},
            {"1,1,130,256"},
            {"1,1,130,256"},
            {"-"},
            {"-"},
            {"1,1,100"},
            {"1,1,100", 5, 7},
            {"1,1,100,256"}}},
    {.op = KVA_OP_attention_grad_kv,
     .attrs = "causal=1; offset=30",
     .in = {{"1,1,100,256"},
            {"1,1,130,256"},
            {"1,1,130,256"},
            {"-"},
            {"-"},
            {"1,1,100"},
            {"1,1,100", 5, 7},
            {"1,1,100,256"}}},
    {.op = KVA_OP_attention_grad_q,
     .attrs = "window=40",
     .in = {{"1,2,T=150,40"},
            {"1,2,T,40"},
            {"1,2,T,40"},
            {"-"},
            {"2", 0.1, 1},
            {"1,2,T"},
            {"1,2,T", 3, 5},
            {"1,2,T,40"}}},
    {.op = KVA_OP_attention_grad_kv,
     .attrs = "window=40",
     .in = {{"1,2,T=150,40"},
            {"1,2,T,40"},
            {"1,2,T,40"},
            {"-"},
            {"2", 0.1, 1},
            {"1,2,T"},
            {"1,2,T", 3, 5},
            {"1,2,T,40"}}},
    {.op = KVA_OP_attention_grad_kv,
     .attrs = "softcap=3; scale=0.25",
     .in = {{"1,2,33,16"},
            {"1,2,S=70,16"},
            {"1,2,S,16"},
            {"33,S", .dtype = KVA_BOOL},
            {"-"},
            {"1,2,33"},
            {"1,2,33", 3, 5},
            {"1,2,33,16"}}},
};

static void check_case(const kva_case *c, kva_dtype dtype, const char *arch) {
  const char *only = getenv("KVA_TEST_CASE");
  if (only && strcmp(only, kva_ops.ops[c->op]->name)) return;
  kva_ptx_run run = {.arch = arch};
  kva_check check = {0};
  bool ok = kva_case_check(c, dtype, kva_run_ptx, &run, &check);
  if (!ok) print_error("%s", check.message.data);
  kva_text_free(&check.message);
  assert_true(ok);
  const kva_ptx_counters *n = &run.counters;
  double degree = (double)n->shared_wavefronts / (double)(n->shared_wavefronts_ideal + 1);
  print_message("%s %s: error %.2f of the tolerance, %g Mflop on tensor cores, bank conflict degree %.2f\n",
                kva_ops.ops[c->op]->name, arch, check.error, (double)n->matrix_flops / 1e6, degree);
  assert_true((n->matrix_flops > 0) == (dtype != KVA_F32));
  assert_true(n->shared_wavefronts > 0);
  assert_true(degree <= 1.1);
}

static bool is_wide(const kva_case *c) {
  return strstr(c->in[0].shape, ",256") != NULL;
}

static void test_values(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (!is_wide(&cases[i])) check_case(&cases[i], KVA_F32, "sm_80");
    check_case(&cases[i], KVA_BF16, "sm_90a");
    check_case(&cases[i], KVA_F16, "sm_80");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_values)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
