/* Which hand-written kernel a node takes on which target, and why not those before it. */
#include "codegen/codegen.h"
#include "ops/ids.h"
#include "tools/verify/cases.h"

#include <setjmp.h>
#include <cmocka.h>

static const kva_target_options cpu = {.cpu = "x86-64-v3"}, sm_80 = {.arch = "sm_80"}, sm_90 = {.arch = "sm_90"},
                                sm_90a = {.arch = "sm_90a"};

typedef struct choice_row {
  const kva_target_options *target;
  kva_dtype dtype;
  kva_case c;
  const char *kernel, *refused; /* the first ones refused: "name: reason; ..."; NULL: none was */
} choice_row;

#define MATMUL(a, b)                        \
  {                                         \
    .op = KVA_OP_matmul, .in = { {a}, {b} } \
  }
#define TO_FLOAT(op_name, attributes, a, b)                                    \
  {                                                                            \
    .op = KVA_OP_##op_name, .attrs = attributes "to=float", .in = { {a}, {b} } \
  }
#define BYTES(a, a_type, b, b_type)                                                                \
  {                                                                                                \
    .op = KVA_OP_matmul, .attrs = "to=int32", .in = { {a, .dtype = a_type}, {b, .dtype = b_type} } \
  }
#define CONV_BYTES(x, x_type, w, w_type)                                                         \
  {                                                                                              \
    .op = KVA_OP_conv, .attrs = "to=int32", .in = { {x, .dtype = x_type}, {w, .dtype = w_type} } \
  }
#define CONV(attributes, x, w)                                 \
  {                                                            \
    .op = KVA_OP_conv, .attrs = attributes, .in = { {x}, {w} } \
  }
#define ATTENTION(t, d)                                                                    \
  {                                                                                        \
    .op = KVA_OP_attention, .in = { {"2,4," t "," d}, {"2,4," t "," d}, {"2,4," t "," d} } \
  }
#define ONE_QUERY(q, pages)                                     \
  {                                                             \
    .op = KVA_OP_attention_cached, .attrs = "causal=1", .in = { \
      {"B=2," q},                                               \
      {pages},                                                  \
      {pages},                                                  \
      {"-"},                                                    \
      {"-"},                                                    \
      {"B", .dtype = KVA_I64},                                  \
      {"B,2", .dtype = KVA_I32}                                 \
    }                                                           \
  }
#define SCAN(axis, x)                                         \
  {                                                           \
    .op = KVA_OP_cumsum, .attrs = "axis=" axis, .in = { {x} } \
  }

#define MANY_ROWS "skinny: not 1 to 16 rows"

/* clang-format off */
static const choice_row rows[] = {
  {&cpu, KVA_F32, MATMUL("64,96", "96,80"), "tiles", "skinny: not 1 to 8 rows"},
  {&cpu, KVA_F32, MATMUL("8,96", "96,80"), "skinny", NULL},
  {&cpu, KVA_I32, MATMUL("64,96", "96,80"), "plain", "skinny: integers"},
  {&cpu, KVA_U8, BYTES("64,96", KVA_U8, "96,80", KVA_I8), "tiles", "skinny: not 1 to 8 rows"},
  {&cpu, KVA_U8, BYTES("1,96", KVA_I8, "96,80", KVA_U8), "skinny", NULL},
  {&cpu, KVA_U8, BYTES("64,96", KVA_I8, "96,80", KVA_I8), "plain", "skinny: integers"},
  {&sm_90a, KVA_BF16, MATMUL("1,512", "512,4096"), "skinny", NULL},
  {&sm_90a, KVA_F16, MATMUL("16,512", "512,50257"), "skinny", NULL},
  {&sm_80, KVA_F32, MATMUL("4,4,513", "513,4095"), "skinny", NULL}, /* leading dims as rows */
  {&sm_80, KVA_F32, MATMUL("B=3,2,40", "B,40,48"), "skinny", NULL},
  {&sm_80, KVA_F32, MATMUL("17,512", "512,4096"), "simt", MANY_ROWS "; wgmma: no warpgroup mma"},
  {&sm_80, KVA_F32, MATMUL("M=1,512", "512,4096"), "simt", MANY_ROWS},
  {&sm_80, KVA_F64, MATMUL("1,512", "512,4096"), "simt", "skinny: double"},
  {&sm_90a, KVA_BF16, MATMUL("4096,512", "512,4096"), "wgmma", MANY_ROWS},
  {&sm_90a, KVA_BF16, MATMUL("64,512", "512,64"), "mma", MANY_ROWS "; wgmma: few blocks"},
  {&sm_90a, KVA_BF16, MATMUL("1280,64", "64,768"), "wgmma", MANY_ROWS}, /* 60 blocks */
  {&sm_90a, KVA_BF16, MATMUL("7552,64", "64,128"), "mma", MANY_ROWS "; wgmma: few blocks"}, /* 59 */
  {&sm_90a, KVA_F16, MATMUL("5,1536,64", "5,64,128"), "wgmma", MANY_ROWS},
  {&sm_90a, KVA_F16, MATMUL("5,1536,64", "64,128"), "wgmma", MANY_ROWS},
  {&sm_90a, KVA_BF16, MATMUL("4096,513", "513,4096"), "mma", MANY_ROWS "; wgmma: no tensor map describes a factor"},
  {&sm_90, KVA_BF16, MATMUL("4096,512", "512,4096"), "mma", MANY_ROWS "; wgmma: no warpgroup mma"},
  {&sm_90a, KVA_F32, MATMUL("4096,512", "512,4096"), "simt", MANY_ROWS "; wgmma: factors not of 16 bits"},
  {&sm_90a, KVA_BF16, TO_FLOAT(matmul, "", "2048,1024", "1024,1024"), "wgmma", MANY_ROWS},
  {&sm_90a, KVA_BF16, TO_FLOAT(matmul, "transpose_a=1;", "64,1280", "64,768"), "wgmma", MANY_ROWS},
  {&sm_90a, KVA_F16, TO_FLOAT(matmul, "transpose_b=1;", "1280,64", "768,64"), "wgmma", MANY_ROWS},
  {&sm_90a, KVA_F16, TO_FLOAT(matmul, "transpose_a=1; transpose_b=1;", "64,1280", "768,64"), "wgmma", MANY_ROWS},
  {&sm_80, KVA_F16, TO_FLOAT(matmul, "", "67,33", "33,65"), "mma", MANY_ROWS "; wgmma: no warpgroup mma"},
  {&sm_90a, KVA_BF16, TO_FLOAT(conv_weight_grad, "kernel=3,3;", "2,5,8,9", "2,18,6,7"), "mma",
   "wgmma: no tensor map describes a factor"},
  {&sm_80, KVA_I32, MATMUL("64,96", "96,80"), "plain", "skinny: integers; wgmma: integers"},
  {&sm_80, KVA_U8, BYTES("64,96", KVA_U8, "96,80", KVA_I8), "plain", "skinny: integers; wgmma: integers"},
  {&cpu, KVA_F32, CONV("", "2,16,20,20", "32,16,3,3"), "tiles", "skinny: not 1 to 8 rows"},
  {&cpu, KVA_F32, CONV("", "2,16,20,20", "4,16,3,3"), "tiles", "skinny: a window"},
  {&cpu, KVA_F32, CONV("group=16", "2,16,64,64", "16,1,3,3"), "elements", "skinny: as well by elements"},
  {&cpu, KVA_U8, CONV_BYTES("2,16,20,20", KVA_U8, "32,16,3,3", KVA_I8), "tiles", "skinny: not 1 to 8 rows"},
  {&cpu, KVA_U8, CONV_BYTES("2,16,20,20", KVA_I8, "32,16,3,3", KVA_I8), "elements", "skinny: integers"},
  {&sm_80, KVA_U8, CONV_BYTES("2,16,20,20", KVA_U8, "32,16,3,3", KVA_I8), "elements", "wgmma: integers"},
  {&sm_80, KVA_F32, CONV("", "2,16,20,20", "32,16,3,3"), "simt", "wgmma: no warpgroup mma"},
  {&sm_80, KVA_F32, CONV("", "2,16,20,20", "4,16,3,3"), "elements", "wgmma: few rows"},
  {&cpu, KVA_F32, ATTENTION("200", "64"), "query_tiles", NULL},
  {&cpu, KVA_F32, ONE_QUERY("8,1,64", "6,2,64,64"), "one_query", NULL},
  {&cpu, KVA_F32, ONE_QUERY("8,2,64", "6,2,64,64"), "query_tiles", "one_query: more than one query"},
  {&cpu, KVA_F32, ONE_QUERY("8,1,64", "6,1,64,64"), "one_query", NULL},
  {&cpu, KVA_F32, ONE_QUERY("9,1,64", "6,1,64,64"), "query_tiles", "one_query: more than 8 heads for a key head"},
  {&cpu, KVA_F32, ONE_QUERY("8,1,60", "6,2,64,60"), "query_tiles", "one_query: head size is not a multiple of the vector width"},
  {&cpu, KVA_F16, ONE_QUERY("8,1,64", "6,2,64,64"), "one_query", NULL},
  {&cpu, KVA_F64, ONE_QUERY("8,1,64", "6,2,64,64"), "query_tiles", "one_query: not computed in floats"},
  {&sm_80, KVA_BF16, ATTENTION("200", "64"), "flash", "hopper: no warpgroup mma"},
  {&sm_90a, KVA_BF16, ATTENTION("200", "64"), "hopper", NULL},
  {&sm_90a, KVA_BF16, ATTENTION("50", "64"), "flash", "hopper: few rows"},
  {&sm_90a, KVA_F32, ATTENTION("200", "64"), "flash", "hopper: not of 16 bits"},
  {&sm_90a, KVA_BF16, ATTENTION("200", "60"), "query_tiles", "hopper: size of heads"},
  {&sm_90a, KVA_F64, ATTENTION("200", "64"), "query_tiles", "hopper: type"},
  {&sm_80, KVA_F32, SCAN("1", "20,300"), "threads", NULL},
  {&sm_80, KVA_F32, SCAN("0", "20,300"), "lines", "threads: not along the last axis"},
  {&sm_80, KVA_F32, SCAN("1", "300,20"), "lines", "threads: rows shorter than a warp"},
  {&cpu, KVA_F32, SCAN("1", "20,300"), "lines", NULL},
  {&sm_80, KVA_F32, {.op = KVA_OP_gather_grad, .attrs = "extent=9", .in = {{"7,5"}, {"7", 0, 8, KVA_I64}}},
   "slices", "sorted: indices are not sorted"},
};
/* clang-format on */

/* The first of the refusals, each as a whole, are those expected. */
static bool begins_with(const char *refused, const char *expected) {
  if (!refused || !expected) return !refused && !expected;
  size_t n = strlen(expected);
  return strncmp(refused, expected, n) == 0 && (!refused[n] || refused[n] == ';');
}

static void check(const choice_row *row) {
  kva_target target;
  kva_case_built built;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_codegen_describe(row->target, diag, &target), KVA_OK);
  kva_status status = kva_case_build_graph(&row->c, row->dtype, &built);
  kva_diag_print(built.diag, stderr);
  assert_int_equal(status, KVA_OK);
  const kva_node *operator;
  kva_kernel_choice choice = kva_codegen_choose(built.f->graph->first, &target, &operator);
  assert_ptr_equal(operator, built.f->graph->first);
  assert_non_null(choice.row);
  kva_text refused = {0};
  for (uint32_t i = 0; i < choice.n_refused; i++)
    kva_text_add(&refused, "%s%s: %s", i ? "; " : "", choice.refused[i]->name, choice.reasons[i]);
  if (strcmp(choice.row->name, row->kernel) != 0 || !begins_with(refused.data, row->refused)) {
    kva_text text = {0};
    kva_case_describe(&row->c, row->dtype, &text);
    fail_msg("%s on %s: %s (%s), expected %s (%s)", text.data, target.description, choice.row->name,
             refused.data ? refused.data : "", row->kernel, row->refused ? row->refused : "");
  }
  kva_text_free(&refused);
  kva_case_free(&built);
  kva_diag_destroy(diag);
}

static void test_choices(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check(&rows[i]);
}

/* Every operator without element code has a kernel on a CPU, whatever the node: the first case of each. */
static void test_all_operators(void **state) {
  (void)state;
  const kva_case_table *const tables[] = {&kva_cases_core, &kva_cases_nn};
  bool seen[KVA_OP_COUNT] = {false};
  for (int t = 0; t < 2; t++)
    for (size_t i = 0; i < tables[t]->n; i++) {
      const kva_case *c = &tables[t]->cases[i];
      kva_case_built built;
      kva_target target;
      const kva_node *operator;
      if (kva_ops.ops[c->op]->lower_kind != KVA_LOWER_KERNEL || seen[c->op]) continue;
      kva_diag *diag = kva_diag_create();
      assert_int_equal(kva_codegen_describe(&cpu, diag, &target), KVA_OK);
      assert_int_equal(kva_case_build_graph(c, KVA_F32, &built), KVA_OK);
      kva_kernel_choice choice = kva_codegen_choose(built.f->graph->first, &target, &operator);
      if (!choice.row) fail_msg("no kernel for kv.%s", kva_ops.ops[c->op]->name);
      seen[c->op] = true;
      kva_case_free(&built);
      kva_diag_destroy(diag);
    }
  for (uint32_t op = 0; op < KVA_OP_COUNT; op++)
    if (kva_ops.ops[op]->lower_kind == KVA_LOWER_KERNEL && !seen[op])
      fail_msg("no case of kv.%s", kva_ops.ops[op]->name);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_choices), cmocka_unit_test(test_all_operators)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
