/* Descriptions of targets, and that code follows from their fields alone. */
#include "codegen/codegen.h"
#include "ops/build.h"
#include "ops/ids.h"
#include "runtime/base/cpu.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static kva_target describe(const kva_target_options *options) {
  kva_target t;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_codegen_describe(options, diag, &t), KVA_OK);
  kva_diag_destroy(diag);
  return t;
}

static void test_described(void **state) {
  (void)state;
  static const struct {
    kva_target_options options;
    kva_target_kind kind;
    int vector_bytes, registers;
    uint32_t features;
  } rows[] = {
      {{.cpu = "x86-64"}, KVA_TARGET_CPU, 16, 16, KVA_TARGET_PAIRS},
      {{.cpu = "x86-64-v3"}, KVA_TARGET_CPU, 32, 16, KVA_TARGET_FMA | KVA_TARGET_PAIRS},
      {{.cpu = "x86-64-v4"}, KVA_TARGET_CPU, 64, 32, KVA_TARGET_FMA | KVA_TARGET_PAIRS | KVA_TARGET_SCALEF},
      {{.cpu = "alderlake"}, KVA_TARGET_CPU, 32, 16, KVA_TARGET_FMA | KVA_TARGET_PAIRS | KVA_TARGET_DOT4},
      {{.cpu = "znver5"},
       KVA_TARGET_CPU,
       64,
       32,
       KVA_TARGET_FMA | KVA_TARGET_PAIRS | KVA_TARGET_DOT4 | KVA_TARGET_SCALEF | KVA_TARGET_DOT2},
      {{.cpu = "sapphirerapids"},
       KVA_TARGET_CPU,
       64,
       32,
       KVA_TARGET_FMA | KVA_TARGET_PAIRS | KVA_TARGET_DOT4 | KVA_TARGET_SCALEF | KVA_TARGET_AMX},
      {{.cpu = "x86-64-v3", .vector_bits = 512}, KVA_TARGET_CPU, 64, 32, KVA_TARGET_FMA},
      {{.triple = "aarch64-linux-gnu"}, KVA_TARGET_CPU, 16, 32, KVA_TARGET_FMA | KVA_TARGET_ADD_PAIRS},
      {{.cpu = "neoverse-n1"}, KVA_TARGET_CPU, 16, 32, KVA_TARGET_FMA | KVA_TARGET_ADD_PAIRS | KVA_TARGET_DOT4_SIGNED},
      {{.cpu = "neoverse-v1", .triple = "aarch64-linux-gnu"},
       KVA_TARGET_CPU,
       16,
       32,
       KVA_TARGET_FMA | KVA_TARGET_ADD_PAIRS | KVA_TARGET_DOT4_SIGNED | KVA_TARGET_DOT4},
      {{.arch = "sm_80"}, KVA_TARGET_GPU, 16, 16, KVA_TARGET_FMA},
      {{.arch = "sm_90a"},
       KVA_TARGET_GPU,
       16,
       16,
       KVA_TARGET_FMA | KVA_TARGET_TENSOR_MAPS | KVA_TARGET_WARPGROUP_MMA | KVA_TARGET_STORE_MATRIX |
           KVA_TARGET_CLUSTERS},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    kva_target t = describe(&rows[i].options);
    assert_int_equal(t.kind, rows[i].kind);
    assert_int_equal(t.vector_bytes, rows[i].vector_bytes);
    assert_int_equal(t.vector_registers, rows[i].registers);
    assert_int_equal(t.features, rows[i].features);
    assert_int_equal(t.l2_bytes > 0, t.kind == KVA_TARGET_CPU);
    assert_int_equal(t.cores > 0, t.kind == KVA_TARGET_CPU);
    assert_int_equal(t.multiprocessors > 0, t.kind == KVA_TARGET_GPU);
  }
}

/* What LLVM uses for a CPU and others with the same vectors have not. */
static void test_needs(void **state) {
  (void)state;
  static const struct {
    const char *cpu;
    uint32_t has, has_not;
  } rows[] = {{"icelake-server", KVA_CPU_GFNI | KVA_CPU_AVX512VNNI, KVA_CPU_AVXVNNI | KVA_CPU_AVX512BF16},
              {"sapphirerapids", KVA_CPU_AVXVNNI | KVA_CPU_AVX512FP16, KVA_CPU_SSE4A},
              {"alderlake", KVA_CPU_AVXVNNI, KVA_CPU_AVX512VL},
              {"znver4", KVA_CPU_SSE4A, KVA_CPU_AVXVNNI},
              {"znver5", KVA_CPU_AVXVNNI, KVA_CPU_AVX512FP16},
              {"neoverse-n1", KVA_CPU_DOTPROD, KVA_CPU_SHA3 | KVA_CPU_SVE},
              {"apple-m1", KVA_CPU_SHA3, KVA_CPU_SVE},
              {"neoverse-v1", KVA_CPU_SHA3 | KVA_CPU_SVE, KVA_CPU_SVE2},
              {"neoverse-n2", KVA_CPU_SVE2, KVA_CPU_SHA3}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    kva_codegen *cg;
    kva_diag *diag = kva_diag_create();
    assert_int_equal(kva_codegen_create(&(kva_target_options){.cpu = rows[i].cpu}, diag, &cg), KVA_OK);
    assert_int_equal(kva_codegen_needs(cg) & (rows[i].has | rows[i].has_not), rows[i].has);
    kva_codegen_destroy(cg);
    kva_diag_destroy(diag);
  }
}

static void test_refused(void **state) {
  (void)state;
  static const struct {
    kva_target_options options;
    const char *known;
  } rows[] = {{{.cpu = "i386"}, "x86-64-v3"},
              {{.cpu = "i386"}, "neoverse-n1"},
              {{.triple = "vax"}, "aarch64-linux-gnu"},
              {{.cpu = "znver4", .triple = "aarch64-linux-gnu"}, "x86_64-linux-gnu"},
              {{.arch = "sm_10"}, "sm_90a"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    kva_target t;
    kva_diag *diag = kva_diag_create();
    assert_int_equal(kva_codegen_describe(&rows[i].options, diag, &t), KVA_INVALID);
    assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), rows[i].known));
    kva_diag_destroy(diag);
  }
}

/* ---- code of one node -------------------------------------------------------------------------------------------- */

typedef struct model {
  kva_diag *diag;
  kva_module *m;
  kva_node *node;
} model;

static model model_of(kva_op_id op, uint32_t n, const int64_t (*shapes)[2], const void *attrs) {
  model t = {.diag = kva_diag_create()};
  t.m = kva_module_create(t.diag);
  kva_function *f = kva_function_create(t.m, "main");
  kva_builder b = {.m = t.m, .graph = f->graph};
  kva_value *in[2];
  for (uint32_t i = 0; i < n; i++) {
    kva_dim dims[2] = {kva_expr_const(t.m->exprs, shapes[i][0]), kva_expr_const(t.m->exprs, shapes[i][1])};
    in[i] = kva_graph_add_input(f->graph, kva_type_tensor(t.m, KVA_F32, 2, dims), i ? "b" : "a");
  }
  t.node = kva_build_node(&b, op, n, in, 1, attrs);
  assert_false(b.failed);
  return t;
}

static model product(void) {
  static const int64_t shapes[2][2] = {{480, 1000}, {1000, 480}};
  return model_of(KVA_OP_matmul, 2, shapes, NULL);
}

static model softmax(int64_t rows, int64_t columns) {
  const int64_t shapes[1][2] = {{rows, columns}};
  return model_of(KVA_OP_softmax, 1, shapes, NULL);
}

static void model_destroy(model *t) {
  kva_module_destroy(t->m);
  kva_diag_destroy(t->diag);
}

static kva_text kernel_text(const model *t, const kva_target *target) {
  kva_text text = {0};
  kva_kernel *k = kva_codegen_lower(t->m->arena, t->node, target);
  assert_non_null(k);
  kva_codegen_schedule(k, target);
  kva_kernel_print(k, &text);
  kva_text_add(&text, "threads %u blocks %u\n", k->threads, k->blocks);
  return text;
}

static void assert_differs(const model *t, const kva_target *a, const kva_target *b, const char *field) {
  kva_text x = kernel_text(t, a), y = kernel_text(t, b);
  if (!strcmp(x.data, y.data)) fail_msg("nothing asks for %s", field);
  kva_text_free(&x);
  kva_text_free(&y);
}

/* Another number in a field gives other code. */
static void test_fields_are_read(void **state) {
  (void)state;
  const kva_target cpu = describe(&(kva_target_options){.cpu = "x86-64-v4"});
  const kva_target gpu = *kva_target_gpu("sm_80"), hopper = *kva_target_gpu("sm_90a");
  kva_target t = cpu;
  model m = product();
  t.vector_registers = 16;
  assert_differs(&m, &cpu, &t, "vector_registers");
  t = cpu, t.vector_bytes = 32;
  assert_differs(&m, &cpu, &t, "vector_bytes");
  t = cpu, t.l2_bytes = 128 << 10;
  assert_differs(&m, &cpu, &t, "l2_bytes");
  t = cpu, t.cores = 1;
  assert_differs(&m, &cpu, &t, "cores");
  model_destroy(&m);
  m = softmax(4096, 64);
  t = gpu, t.registers /= 2;
  assert_differs(&m, &gpu, &t, "registers");
  t = gpu, t.subgroup_width /= 4;
  assert_differs(&m, &gpu, &t, "subgroup_width");
  model_destroy(&m);
  m = softmax(64, 60000);
  t = gpu, t.row_bytes = hopper.row_bytes;
  assert_differs(&m, &gpu, &t, "row_bytes");
  model_destroy(&m);
}

/* ---- registers --------------------------------------------------------------------------------------------------- */

/* The vector registers that multiply-adds of the assembly add to, as bits. */
static uint32_t accumulators_of(const char *text) {
  uint32_t bits = 0;
  for (const char *at = strstr(text, "fmla\tv"); at; at = strstr(at + 1, "fmla\tv")) bits |= 1u << atoi(at + 6);
  return bits;
}

/* A product for aarch64 has its 24 sums and more in registers: v16 to v31 are among them, and none is on the stack. */
static void test_aarch64_uses_all_registers(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_codegen *cg;
  assert_int_equal(kva_codegen_create(&(kva_target_options){.triple = "aarch64-linux-gnu", .opt_level = 2}, diag, &cg),
                   KVA_OK);
  model m = product();
  kva_kernel *k = kva_codegen_lower(m.m->arena, m.node, kva_codegen_target(cg));
  kva_codegen_schedule(k, kva_codegen_target(cg));
  int32_t number;
  char *text;
  size_t size;
  assert_int_equal(kva_codegen_add(cg, k, 0, NULL, &number), KVA_OK);
  assert_int_equal(kva_codegen_emit(cg, "asm", &text, &size), KVA_OK);
  uint32_t used = accumulators_of(text);
  assert_true(__builtin_popcount(used) >= 24);
  assert_true(__builtin_popcount(used >> 16) >= 12);
  free(text);
  model_destroy(&m);
  kva_codegen_destroy(cg);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_described), cmocka_unit_test(test_needs),
                                     cmocka_unit_test(test_refused), cmocka_unit_test(test_fields_are_read),
                                     cmocka_unit_test(test_aarch64_uses_all_registers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
