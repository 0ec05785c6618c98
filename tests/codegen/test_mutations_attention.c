/* Every synchronising instruction of attention's kernels (codegen/kernels/nv/attention) is needed: several steps over
 * the far positions, with and without causality, ragged ends, heads of 64 and of 128. tests/support/ptx_mutate.h */
#include "tests/support/target.h"
#include "tests/support/ptx_mutate.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

#define FORWARD(attributes, q, kv) \
  { .op = KVA_OP_attention, .attrs = attributes, .in = {{q}, {kv}, {kv}}, .first_result = true }
#define CACHED(attributes, q, kv, position)                     \
  {                                                             \
    .op = KVA_OP_attention_cached, .attrs = attributes, .in = { \
      {q},                                                      \
      {kv},                                                     \
      {kv},                                                     \
      {"-"},                                                    \
      {"-"},                                                    \
      {"1", .dtype = KVA_I64, .values = position}               \
    }                                                           \
  }
/* rows: of lse and delta */
#define GRADIENT(operator, attributes, q, kv, rows)                                                                  \
  {                                                                                                                  \
    .op = KVA_OP_##operator, .attrs = attributes, .in = { {q}, {kv}, {kv}, {"-"}, {"-"}, {rows}, {rows, 5, 7}, {q} } \
  }

static const ptx_generated kernels[] = {
    {"forward_64", "sm_80", KVA_BF16, 1, FORWARD("causal=1", "1,1,T=260,64", "1,1,T,64")},
    {"forward_128", "sm_80", KVA_F16, 1, FORWARD("", "1,1,T=65,128", "1,1,S=260,128")},
    {"forward_256", "sm_80", KVA_BF16, 1, FORWARD("causal=1; offset=30", "1,1,T=100,256", "1,1,S=130,256")},
    {"forward_window", "sm_80", KVA_F16, 1, FORWARD("causal=1; window=100", "1,1,T=260,40", "1,1,T,40")},
    {"grad_q_64", "sm_80", KVA_F16, 1, GRADIENT(attention_grad_q, "causal=1", "1,1,T=260,64", "1,1,T,64", "1,1,T")},
    {"grad_q_128", "sm_80", KVA_BF16, 1, GRADIENT(attention_grad_q, "", "1,1,T=65,128", "1,1,S=260,128", "1,1,T")},
    {"grad_kv_64", "sm_80", KVA_BF16, 1, GRADIENT(attention_grad_kv, "causal=1", "1,2,T=100,64", "1,1,T,64", "1,2,T")},
    {"grad_kv_128", "sm_80", KVA_F16, 1, GRADIENT(attention_grad_kv, "", "1,2,T=100,128", "1,1,S=70,128", "1,2,T")},
    {"grad_kv_256", "sm_80", KVA_BF16, 2, GRADIENT(attention_grad_kv, "", "1,1,T=100,256", "1,1,S=70,256", "1,1,T")},
    {"forward_float", "sm_80", KVA_F32, 1, FORWARD("causal=1", "1,1,T=200,64", "1,1,T,64")},
    {"grad_q_float", "sm_80", KVA_F32, 1, GRADIENT(attention_grad_q, "", "1,1,T=65,64", "1,1,S=200,64", "1,1,T")},
    {"grad_kv_float", "sm_80", KVA_F32, 1, GRADIENT(attention_grad_kv, "", "1,2,T=100,64", "1,1,S=70,64", "1,2,T")},
    {"cached", "sm_80", KVA_F32, 1, CACHED("causal=1", "1,1,T=2,64", "1,1,C=600,64", "598")},
    {"warpgroups_64", "sm_90a", KVA_BF16, 1, FORWARD("causal=1; offset=30", "B=2,4,T=650,64", "B,2,S=800,64")},
    {"warpgroups_128", "sm_90a", KVA_F16, 1, FORWARD("", "B=2,2,T=200,128", "B,2,S=700,128")},
    {"warpgroups_grad_q", "sm_90a", KVA_BF16, 1,
     GRADIENT(attention_grad_q, "causal=1; offset=30", "B=2,4,T=650,128", "B,2,S=800,128", "B,4,T")},
    {"warpgroups_grad_kv", "sm_90a", KVA_BF16, 1,
     GRADIENT(attention_grad_kv, "causal=1; offset=30", "B=1,4,T=650,64", "B,2,S=400,64", "B,4,T")},
};

static void test_attention(void **state) {
  (void)state;
  static ptx_mutations t;
  ptx_mutations_check_generated(&t, "tests/data/ptx/mutations_attention.txt", kernels,
                                sizeof kernels / sizeof *kernels);
  assert_int_equal(t.failures, 0);
  assert_true(t.mutants >= 60);
}

int main(void) {
  if (sanitized()) {
    printf(
        "SKIP: what the simulator finds is the same without sanitizers; codegen.mutations_contract runs with them\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
