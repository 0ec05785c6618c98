/* What ptxas makes of the kernels that blocks of threads run, against a baseline (tests/codegen/gpu_registers.txt;
 * KVA_UPDATE_BASELINE=1 writes its rows): registers, and that nothing spills or is serialised. */
#include "codegen/codegen.h"
#include "tests/support/assembler.h"
#include "tools/verify/cases.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

#define NN "transpose_a=0; transpose_b=0"
#define NT "transpose_a=0; transpose_b=1"
#define TN "transpose_a=1; transpose_b=0"

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

#define HEADS(t, s, h, h_kv, d) {{"B=8," h "," t "," d}, {"B," h_kv "," s "," d}, {"B," h_kv "," s "," d}}
#define FORWARD(attributes, s, h_kv, d) \
  { .op = KVA_OP_attention, .attrs = attributes, .in = HEADS("T=4096", s, "16", h_kv, d) }

static const struct {
  const char *name, *arch;
  kva_dtype dtype;
  kva_case c;
} attentions[] = {
    {"attention_64_causal", "sm_90a", KVA_BF16, FORWARD("causal=1", "T", "4", "64")},
    {"attention_128_causal", "sm_90a", KVA_BF16, FORWARD("causal=1", "T", "4", "128")},
    {"attention_128_causal", "sm_90a", KVA_F16, FORWARD("causal=1", "T", "4", "128")},
    {"attention_256_causal", "sm_90a", KVA_BF16, FORWARD("causal=1", "T", "4", "256")},
    {"attention_128_full", "sm_90a", KVA_BF16, FORWARD("", "S=4096", "16", "128")},
    {"attention_128_window", "sm_90a", KVA_BF16, FORWARD("causal=1; window=512", "T", "4", "128")},
    {"attention_128_softcap", "sm_90a", KVA_BF16, FORWARD("causal=1; softcap=30", "T", "4", "128")},
    {"attention_128_mask",
     "sm_90a",
     KVA_BF16,
     {.op = KVA_OP_attention,
      .in = {{"B=8,16,T=4096,128"}, {"B,4,S=4096,128"}, {"B,4,S,128"}, {"B,1,T,S", .dtype = KVA_BOOL}, {"16"}}}},
};

static void check_one(const named *n, const kva_case *of) {
  kva_case c = *of;
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
  for (uint32_t i = 0; i < N_KERNELS; i++) {
    const named *n = &kernels[i];
    check_one(n, &(kva_case){.op = KVA_OP_matmul, .attrs = n->attrs, .in = {{n->a}, {n->b}}});
  }
  for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
    named n = {.name = attentions[i].name, .arch = attentions[i].arch, .dtype = attentions[i].dtype};
    check_one(&n, &attentions[i].c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_registers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
