/* Attention on tensor cores: values against the reference for the sizes that its tiles must get right (several steps,
 * ragged edges, every width of a head), resources, and what it moves. KVA_TEST_CASE picks an operator. */
#include "tests/support/target.h"
#include "tests/support/part.h"
#include "tools/verify/simulated.h"
#include "ops/ids.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A mask whose finite values hide all keys of two queries of three: scores as large as floats, which are equal. */
#define HIDDEN_ROWS \
  { "T,1", .dtype = KVA_F32, .values = "0, -2.5521177519070385e38, -1.9014759003423441e30" }

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
    {.op = KVA_OP_attention, .in = {{"1,2,T=66,64"}, {"1,2,S=70,64"}, {"1,2,S,64"}, HIDDEN_ROWS}, .first_result = true},
};

static void check_case(const kva_case *c, kva_dtype dtype, const char *arch) {
  const char *only = getenv("KVA_TEST_CASE");
  if (only && strcmp(only, kva_ops.ops[c->op]->name)) return;
  kva_ptx_run run = {.cache = test_cache(), .arch = arch};
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
    if (!in_part(i)) continue;
    if (!is_wide(&cases[i])) check_case(&cases[i], KVA_F32, "sm_80");
    check_case(&cases[i], KVA_BF16, "sm_90a");
    if (!sanitized()) check_case(&cases[i], KVA_F16, "sm_80");
  }
}

/* Blocks of these GPUs have 99 KiB of shared memory: steps are shorter, and what no step makes small enough runs by
 * threads. */
static void test_little_shared_memory(void **state) {
  (void)state;
  static const char *const archs[] = {"sm_86", "sm_89", "sm_90"};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (!in_part(i) || (sanitized() && i % 5)) continue; /* one of each GPU: only the sizes of steps are others */
    check_case(&cases[i], KVA_BF16, archs[i % 3]);
    kva_ptx_run run = {.cache = test_cache(), .arch = archs[i % 3]};
    kva_check check = {0};
    bool ok = kva_case_check(&cases[i], KVA_F32, kva_run_ptx, &run, &check);
    if (!ok) print_error("case %zu: %s", i, check.message.data);
    kva_text_free(&check.message);
    assert_true(ok);
  }
}

/* ---- by warpgroups ----------------------------------------------------------------------------------------------- */

#define ATTENTION(attributes, ...) \
  { .op = KVA_OP_attention, .attrs = attributes, .in = __VA_ARGS__, .first_result = true }
#define SELF(t, d)                      \
  {                                     \
    {"1,1,T=" t "," d}, {"1,1,T," d}, { \
      "1,1,T," d                        \
    }                                   \
  }
#define CROSS(t, s, d)                        \
  {                                           \
    {"1,1,T=" t "," d}, {"1,1,S=" s "," d}, { \
      "1,1,S," d                              \
    }                                         \
  }

/* Blocks of 128 queries; tiles of 128 keys (64 from D = 129 on, and with a mask) in rings of 4 stages (2 from D = 65).
 */
static const kva_case warpgroups[] = {
    ATTENTION("causal=1", {{"B=2,6,T=200,64"}, {"B,2,T,64"}, {"B,2,T,64"}}),
    ATTENTION("causal=1", SELF("50", "128")),                     /* less than a tile */
    ATTENTION("causal=1", SELF("256", "128")),                    /* whole tiles */
    ATTENTION("", CROSS("130", "800", "64")),                     /* more tiles than stages, a ragged one at the end */
    ATTENTION("", CROSS("100", "512", "128")),                    /* nothing to mask */
    ATTENTION("causal=1", SELF("420", "128")),                    /* one masked tile, then free ones */
    ATTENTION("causal=1; offset=330", CROSS("140", "470", "64")), /* two masked tiles */
    ATTENTION("causal=1; offset=-60", CROSS("300", "128", "64")), /* queries that see nothing; keys end early */
    ATTENTION("causal=1; offset=-200", CROSS("190", "70", "64")), /* blocks without any tile */
    ATTENTION("causal=1; window=70", SELF("400", "64")),
    ATTENTION("window=1; scale=-0.5", SELF("140", "128")),
    ATTENTION("causal=1", SELF("200", "256")),
    ATTENTION("", CROSS("70", "150", "80")), /* parts of boxes */
    ATTENTION("causal=1", SELF("140", "8")),
    ATTENTION("softcap=3; causal=1", CROSS("130", "290", "128")),
    ATTENTION("causal=1; scale=0.25", {{"1,2,T=130,64"}, {"1,1,S=200,64"}, {"1,1,S,64"}, {"T,S"}, {"2", 0.1, 1}}),
    ATTENTION("", {{"1,2,T=130,256"}, {"1,1,S=70,256"}, {"1,1,S,256"}, {"T,S", .dtype = KVA_BOOL}}),
    ATTENTION("", {{"1,2,T=132,64"}, {"1,1,S=200,64"}, {"1,1,S,64"}, HIDDEN_ROWS}),
#define GRADIENT(operator, attributes, h, t, s, d)        \
  {                                                       \
    .op = KVA_OP_##operator, .attrs = attributes, .in = { \
      {"1," h ",T=" t "," d},                             \
      {"1,2,S=" s "," d},                                 \
      {"1,2,S," d},                                       \
      {"-"},                                              \
      {"-"},                                              \
      {"1," h ",T"},                                      \
      {"1," h ",T", 4, 6},                                \
      {"1," h ",T," d}                                    \
    }                                                     \
  }
    GRADIENT(attention_grad_q, "causal=1", "4", "140", "140", "64"),
    GRADIENT(attention_grad_q, "", "2", "70", "600", "64"), /* more tiles than stages */
    GRADIENT(attention_grad_q, "causal=1; offset=60", "4", "200", "300", "128"),
    GRADIENT(attention_grad_q, "causal=1; offset=-150", "2", "190", "70", "128"), /* blocks without any tile */
    GRADIENT(attention_grad_q, "causal=1; window=70", "2", "200", "200", "80"),
    GRADIENT(attention_grad_kv, "causal=1", "4", "140", "140", "64"),
    GRADIENT(attention_grad_kv, "", "2", "600", "70", "64"), /* more tiles than stages */
    GRADIENT(attention_grad_kv, "causal=1; offset=60", "6", "200", "300", "128"),
    GRADIENT(attention_grad_kv, "causal=1; offset=-90", "2", "190", "170", "128"), /* blocks without any tile */
    GRADIENT(attention_grad_kv, "causal=1; window=70", "4", "300", "200", "80"),
    GRADIENT(attention_grad_kv, "causal=1", "2", "256", "256", "128"), /* whole tiles */
    ATTENTION("", CROSS("0", "70", "64")),
    ATTENTION("", CROSS("70", "0", "64")),
};

static void run_warpgroups(kva_dtype dtype, bool lazy, uint32_t seed) {
  for (size_t i = 0; i < sizeof warpgroups / sizeof *warpgroups; i++) {
    if (!in_part(i)) continue;
    kva_ptx_run run = {.cache = test_cache(), .arch = "sm_90a", .lazy = lazy, .launches = seed};
    kva_check check = {0};
    bool ok = kva_case_check(&warpgroups[i], dtype, kva_run_ptx, &run, &check);
    if (!ok) print_error("case %zu: %s", i, check.message.data);
    kva_text_free(&check.message);
    assert_true(ok);
    assert_int_equal(run.maps, warpgroups[i].op == KVA_OP_attention ? 3 : 4);
    const kva_ptx_counters *n = &run.counters;
    assert_true((double)n->shared_wavefronts <= 1.1 * (double)n->shared_wavefronts_ideal);
  }
}

/* Sanitizers see the same code whatever order warps run in. */
static void test_warpgroups(void **state) {
  (void)state;
  run_warpgroups(KVA_BF16, true, 7);
  if (sanitized()) return;
  run_warpgroups(KVA_BF16, false, 0);
  run_warpgroups(KVA_F16, true, 1);
}

/* Rows leave whole: no sector is stored twice. */
static void test_stores(void **state) {
  (void)state;
  kva_case c = ATTENTION("causal=1", SELF("256", "128"));
  kva_ptx_run run = {.cache = test_cache(), .arch = "sm_90a"};
  kva_check check = {0};
  assert_true(kva_case_check(&c, KVA_BF16, kva_run_ptx, &run, &check));
  kva_text_free(&check.message);
  assert_int_equal(run.counters.global_store_bytes, 256 * 128 * 2 + 256 * 4);
  assert_int_equal(32 * run.counters.global_store_sectors, run.counters.global_store_bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_little_shared_memory),
      cmocka_unit_test(test_warpgroups),
      cmocka_unit_test(test_stores),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
