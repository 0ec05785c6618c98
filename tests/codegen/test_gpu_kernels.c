/* What ptxas makes of the kernels that blocks of threads run, against a baseline (tests/codegen/gpu_kernels.txt;
 * KVA_UPDATE_BASELINE=1 writes its rows): registers, and that nothing spills or is serialised. */
#include "codegen/codegen.h"
#include "ops/ids.h"
#include "tests/support/assembler.h"
#include "tests/support/target.h"
#include "tools/verify/cases.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

#define NN       "transpose_a=0; transpose_b=0"
#define NT       "transpose_a=0; transpose_b=1"
#define TN       "transpose_a=1; transpose_b=0"
#define TO_FLOAT "; to=float" /* as gradients of weights */
#define Q(d)     "B=1,4,T=64," d
#define KV(d)    "B,2,T," d
#define ROWS     "B,4,T"

/* Gradients of attention hold two sums of the head's width: a few of their registers go to memory. */
enum { GRADIENT_SPILL = 64 };

typedef struct named {
  const char *name, *arch, *attrs;
  kva_dtype dtype;
  kva_op_id op;
  const char *in[KVA_CASE_OPERANDS];
  uint32_t spill; /* bytes */
} named;

/* clang-format off */
#define MATMUL(name, arch, attrs, dtype, a, b) {name, arch, attrs, dtype, KVA_OP_matmul, {a, b}, 0},
#define ATTENTION(arch, dtype, d)                                                                                            \
  {"attention_" d, arch, "causal=1", dtype, KVA_OP_attention, {Q(d), KV(d), KV(d)}, 0},                            \
  {"attention_grad_q_" d, arch, "causal=1", dtype, KVA_OP_attention_grad_q,                                        \
   {Q(d), KV(d), KV(d), "-", "-", ROWS, ROWS, Q(d)}, 0},                                                              \
  {"attention_grad_kv_" d, arch, "causal=1", dtype, KVA_OP_attention_grad_kv,                                      \
   {Q(d), KV(d), KV(d), "-", "-", ROWS, ROWS, Q(d)}, GRADIENT_SPILL},
#define SHIFT_GRADS(arch, dtype, d) \
  {"kv_shift_grads_" d, arch, "", dtype, KVA_OP_kv_shift_grads, {"B=1,H=4,T=64," d, "H,2", "B,H,T," d}, 0},
#define FORWARD(name, attrs, dtype, ...) \
  {name, "sm_90a", attrs, dtype, KVA_OP_attention, {Q("128"), KV("128"), KV("128"), __VA_ARGS__}, 0},

static const named kernels[] = {
  MATMUL("matmul_nn", "sm_80", NN, KVA_BF16, "M=8192,1024", "1024,4096")
  MATMUL("matmul_nt", "sm_80", NT, KVA_BF16, "M=8192,1024", "4096,1024")
  MATMUL("matmul_tn", "sm_80", TN, KVA_BF16, "M=8192,1024", "M,4096")
  MATMUL("matmul_nn", "sm_80", NN, KVA_F16, "M=8192,1024", "1024,4096")
  MATMUL("matmul_nn_64", "sm_80", NN, KVA_BF16, "64,1024", "1024,512")
  MATMUL("matmul_nn_odd", "sm_80", NN, KVA_BF16, "M=8192,K=1023", "K,N=999")
  MATMUL("matmul_nn", "sm_80", NN, KVA_F32, "M=8192,1024", "1024,4096")
  MATMUL("matmul_nt", "sm_80", NT, KVA_F32, "M=8192,1024", "4096,1024")
  MATMUL("matmul_tn", "sm_80", TN, KVA_F32, "M=8192,1024", "M,4096")
  MATMUL("matmul_nn", "sm_90a", NN, KVA_BF16, "M=8192,1024", "1024,4096")
  MATMUL("matmul_nt", "sm_90a", NT, KVA_BF16, "M=8192,1024", "4096,1024")
  MATMUL("matmul_tn", "sm_90a", TN, KVA_BF16, "M=8192,1024", "M,4096")
  MATMUL("matmul_nn_to_float", "sm_80", NN TO_FLOAT, KVA_BF16, "M=8192,1024", "1024,4096")
  MATMUL("matmul_tn_to_float", "sm_80", TN TO_FLOAT, KVA_BF16, "M=8192,1024", "M,4096")
  MATMUL("matmul_tn_to_float", "sm_90a", TN TO_FLOAT, KVA_BF16, "M=8192,1024", "M,4096")
  MATMUL("skinny_nn_1", "sm_90a", NN, KVA_F32, "1,768", "768,3072")
  MATMUL("skinny_nn_8", "sm_80", NN, KVA_F32, "8,1030", "1030,3072")
  MATMUL("skinny_nn_16", "sm_90a", NN, KVA_F32, "16,768", "768,3072")
  MATMUL("skinny_nn_1", "sm_90a", NN, KVA_BF16, "1,2048", "2048,5504")
  MATMUL("skinny_nn_8", "sm_90a", NN, KVA_BF16, "8,2048", "2048,5504")
  MATMUL("skinny_nn_16", "sm_90a", NN, KVA_BF16, "16,2048", "2048,5504")
  MATMUL("skinny_nt_1", "sm_90a", NT, KVA_F32, "1,768", "50257,768")
  MATMUL("skinny_nt_16", "sm_90a", NT, KVA_F32, "16,768", "50257,768")
  MATMUL("skinny_nt_16", "sm_80", NT, KVA_F16, "16,768", "768,768")
  MATMUL("skinny_nn_odd", "sm_80", NN, KVA_BF16, "16,K=777", "K,N=999")
  MATMUL("skinny_nt_odd", "sm_80", NT, KVA_F32, "16,777", "999,777")
  ATTENTION("sm_80", KVA_F32, "64")
  ATTENTION("sm_80", KVA_F32, "128")
  ATTENTION("sm_80", KVA_BF16, "64")
  ATTENTION("sm_80", KVA_BF16, "128")
  ATTENTION("sm_80", KVA_BF16, "256")
  ATTENTION("sm_90a", KVA_BF16, "64")
  ATTENTION("sm_90a", KVA_BF16, "128")
  ATTENTION("sm_90a", KVA_BF16, "256")
  FORWARD("attention_causal_128", "causal=1", KVA_F16)
  FORWARD("attention_full_128", "", KVA_BF16)
  FORWARD("attention_window_128", "causal=1; window=512", KVA_BF16)
  FORWARD("attention_softcap_128", "causal=1; softcap=30", KVA_BF16)
  FORWARD("attention_mask_128", "", KVA_BF16, "B,1,T,T", "4")
  SHIFT_GRADS("sm_80", KVA_F32, "32")
  SHIFT_GRADS("sm_80", KVA_F32, "192")
  SHIFT_GRADS("sm_80", KVA_BF16, "128")
  SHIFT_GRADS("sm_80", KVA_BF16, "256")
  SHIFT_GRADS("sm_90a", KVA_BF16, "128")
};
/* clang-format on */
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

static void check_one(const named *n) {
  kva_case c = {.op = n->op, .attrs = n->attrs};
  for (uint32_t i = 0; i < KVA_CASE_OPERANDS; i++) c.in[i].shape = n->in[i];
  kva_case_built built;
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_codegen *cg;
  const kva_target_options target = test_target(2, n->arch);
  assert_int_equal(kva_case_build_graph(&c, n->dtype, &built), KVA_OK);
  assert_int_equal(kva_codegen_create(&target, diag, &cg), KVA_OK);
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
  assert_kernel(key, text, size, n->arch, n->spill);
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
  if (sanitized()) {
    printf("SKIP: ptxas's report is the same without sanitizers\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_registers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
