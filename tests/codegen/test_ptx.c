/* The GPU target without a GPU: the PTX of every operator's cases runs on the simulator and is compared with the
 * reference; ptxas, where there is one, assembles it; schedules are what they should be. KVA_TEST_CASE=name picks an
 * operator. */
#include "tests/support/assembler.h"
#include "tests/support/target.h"
#include "tests/support/part.h"
#include "tests/support/schedule.h"
#include "ops/ids.h"
#include "tools/verify/simulated.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

/* ---- every case -------------------------------------------------------------------------------------------------- */

typedef struct tally {
  uint32_t passed, failed;
} tally;

static bool wanted(kva_op_id op) {
  const char *only = getenv("KVA_TEST_CASE");
  return !only || !strcmp(only, kva_ops.ops[op]->name);
}

static void run_case(const kva_case *c, kva_dtype dtype, kva_ptx_run *run, tally *t) {
  kva_check check = {0};
  bool ok = kva_case_check(c, dtype, kva_run_ptx, run, &check);
  ++*(ok ? &t->passed : &t->failed);
  if (!ok) print_error("%s", check.message.data);
  kva_text_free(&check.message);
}

/* bf16 for the newest architecture, the others for the oldest. */
static const char *arch_for(kva_dtype dtype) {
  return dtype == KVA_BF16 ? "sm_90a" : "sm_80";
}

static void run_typed(const kva_case *c, kva_dtype dtype, kva_ptx_run *run, tally *t) {
  run->arch = arch_for(dtype);
  run_case(c, dtype, run, t);
}

/* Sanitizers see every third type of each case: the element type leads to few other lines of the compiler. */
static bool has_turn(uint32_t i, int type) {
  return !sanitized() || (i + (uint32_t)type) % 3 == 0;
}

/* What ptxas assembles of the listed cases: each in its own type or float, those of any float type in bf16 as well. */
typedef struct assembly {
  const char *arch;
  kva_dtype dtype; /* NONE: the case's own */
  joined_ptx modules;
} assembly;
static assembly assemblies[] = {{.arch = "sm_80"}, {.arch = "sm_90a", .dtype = KVA_BF16}};
enum { N_ASSEMBLIES = sizeof assemblies / sizeof *assemblies };

static bool is_assembled(const assembly *a, const kva_case *c) {
  return !a->dtype || (!c->dtype && kva_ops.ops[c->op]->traits & KVA_FLOAT);
}

/* Whether a case's run in a type has the code that is assembled. */
static bool has_code_of(const assembly *a, const kva_case *c, kva_dtype type) {
  kva_dtype own = a->dtype ? a->dtype : c->dtype ? c->dtype : KVA_F32;
  return is_assembled(a, c) && !strcmp(arch_for(type), a->arch) && type == (type ? own : a->dtype);
}

static assembly *assembly_of(const kva_case *c, kva_dtype type) {
  for (uint32_t i = 0; i < N_ASSEMBLIES; i++)
    if (has_code_of(&assemblies[i], c, type)) return &assemblies[i];
  return NULL;
}

static void gather(void *user, const char *ptx) {
  assembly *a = user;
  joined_ptx_add(&a->modules, ptx);
}

static void run_listed(const kva_case_table *table, kva_ptx_run *run, tally *t) {
  bool assembles = assembler_found() && !sanitized();
  for (uint32_t i = 0; i < table->n; i++) {
    const kva_case *c = &table->cases[i];
    kva_dtype_set set = kva_case_dtypes(c);
    for (int type = 0; wanted(c->op) && in_part(i) && type < KVA_DTYPE_COUNT; type++) {
      if (!kva_dtype_in(set, (kva_dtype)type) || !has_turn(i, type)) continue;
      run->visitor = assembles ? assembly_of(c, (kva_dtype)type) : NULL;
      run->visit_text = run->visitor ? gather : NULL;
      run_typed(c, (kva_dtype)type, run, t);
    }
  }
}

static void run_random(kva_op_id op, kva_dtype dtype, uint32_t n, kva_ptx_run *run, tally *t) {
  for (uint32_t i = 0; i < n; i++) {
    kva_case c;
    kva_arena *arena = kva_arena_create();
    if (kva_case_random(arena, op, dtype, i, &c)) run_typed(&c, KVA_DTYPE_NONE, run, t);
    kva_arena_destroy(arena);
  }
}

static void finish(const char *what, const kva_ptx_run *run, const tally *t) {
  print_message("%s: %u cases passed, %u failed; %u kernels, %u launches\n", what, t->passed, t->failed, run->kernels,
                run->launches);
  assert_int_equal(t->failed, 0);
  assert_true(getenv("KVA_TEST_CASE") || t->passed > 0);
}

static void test_listed(void **state) {
  (void)state;
  kva_ptx_run run = {.cache = test_cache()};
  tally t = {0};
  run_listed(&kva_cases_core, &run, &t);
  run_listed(&kva_cases_nn, &run, &t);
  finish("listed", &run, &t);
}

static void test_random(void **state) {
  (void)state;
  kva_ptx_run run = {.cache = test_cache()};
  tally t = {0};
  for (int op = 0; op < KVA_OP_COUNT; op++) {
    kva_dtype_set set = kva_case_op_dtypes((kva_op_id)op);
    if (!wanted((kva_op_id)op) || !in_part((uint64_t)op)) continue;
    if (!set) run_random((kva_op_id)op, KVA_DTYPE_NONE, 12, &run, &t);
    for (int type = 0; type < KVA_DTYPE_COUNT; type++)
      if (kva_dtype_in(set, (kva_dtype)type) && has_turn((uint32_t)op, type))
        run_random((kva_op_id)op, (kva_dtype)type, 2, &run, &t);
  }
  finish("random", &run, &t);
}

/* Whatever keys and bounds hold, gather_grad stays within its operands: the simulator finds nothing. */
static void test_wrong_keys(void **state) {
  (void)state;
  const kva_case c = {
      .op = KVA_OP_gather_grad,
      .attrs = "extent=20",
      .in = {{"300,8"}, {"300", 0, 19, KVA_I64}, {"1,512", -5e3, 2e4, KVA_I32}, {"1,21", -600, 600, KVA_I32}}};
  kva_case_built built;
  kva_ref_tensor *out[1];
  kva_ptx_run run = {.cache = test_cache(), .arch = "sm_80"};
  assert_int_equal(kva_case_build(&c, KVA_DTYPE_NONE, &built), KVA_OK);
  kva_status status = kva_run_ptx(&run, built.m, built.f, (const kva_ref_tensor *const *)built.inputs, out, built.diag);
  if (status != KVA_OK) kva_diag_print(built.diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_ref_tensor_free(out[0]);
  kva_case_free(&built);
}

/* ---- schedules --------------------------------------------------------------------------------------------------- */

/* Sizes that reach what small cases do not: whole blocks, vectors, long rows, several warps' results. */
static const kva_case large[] = {
    {.op = KVA_OP_relu, .in = {{"N=5003"}}},
    {.op = KVA_OP_add, .in = {{"B=3,1000"}, {"B,1000"}}},
    {.op = KVA_OP_add, .in = {{"B=3,T=37,64"}, {"T,64"}}},
    {.op = KVA_OP_mul, .in = {{"B=5,4096"}, {"4096"}}},
    {.op = KVA_OP_transpose, .attrs = "perm=1,0", .in = {{"A=70,C=130"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=9,64"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=2,3000"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=3,C=777"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=9,C=136"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"2,B=3,C=2056"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=2,C=2051"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"2,C=264,C"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=3,1003"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=3,C=8191"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=2,20001"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=2,66003"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=2,110003"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=2,128256"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=3,120001"}}},
    {.op = KVA_OP_log_softmax, .attrs = "axis=-1", .in = {{"B=2,230007"}}},
    {.op = KVA_OP_cross_entropy, .in = {{"B=3,T=2,1357"}, {"B,T", 0, 1356, KVA_I32}}},
    {.op = KVA_OP_reduce_max, .attrs = "axes=-1", .in = {{"B=5,645"}}},
    {.op = KVA_OP_layer_norm, .in = {{"B=3,1501"}, {"1501"}, {"1501"}}},
    {.op = KVA_OP_layer_norm, .in = {{"B=5,C=520"}, {"C"}, {"C"}}},
    {.op = KVA_OP_reduce_sum, .attrs = "axes=0", .in = {{"N=100,C=300"}}},
    {.op = KVA_OP_reduce_sum, .in = {{"A=30,C=170"}}},
    {.op = KVA_OP_reduce_max, .attrs = "axes=-1", .in = {{"A=30,C=170"}}},
    {.op = KVA_OP_reduce_mean, .attrs = "axes=2,3", .in = {{"A=3,5,16,12"}}},
    {.op = KVA_OP_cumsum, .attrs = "axis=1", .in = {{"A=300,C=17"}}},
    {.op = KVA_OP_cumsum, .attrs = "axis=2; exclusive=1", .in = {{"A=3,5,72"}}},
    {.op = KVA_OP_cumsum, .attrs = "axis=2; reverse=1", .in = {{"A=3,3,200"}}},
    {.op = KVA_OP_cumsum, .attrs = "axis=1; reverse=1; exclusive=1", .in = {{"A=9,129"}}},
    {.op = KVA_OP_cumsum, .in = {{"9001", -1, 1}}},
    {.op = KVA_OP_cumsum, .dtype = KVA_I64, .attrs = "axis=1", .in = {{"A=2,4096"}}},
    {.op = KVA_OP_cumprod, .attrs = "axis=1; reverse=1", .in = {{"A=2,264", 0.9, 1.1}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=3,66"}}},
    {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=2,3,4098"}}},
    {.op = KVA_OP_kv_shift, .in = {{"B=3,2,T=37,64"}, {"2,2"}, {"-"}, {"B,T", 0, 1, KVA_I32}}},
    {.op = KVA_OP_kv_shift, .attrs = "time_axis=1", .in = {{"2,T=37,9,64"}, {"9,4"}, {"-"}, {"2,T", 0, 1, KVA_I64}}},
    {.op = KVA_OP_kv_shift, .in = {{"B=1,2,T=0,64"}, {"2,2"}, {"-"}, {"B,T", 0, 1, KVA_I32}}},
    {.op = KVA_OP_kv_shift_input_grad, .in = {{"B=3,2,T=37,64"}, {"2,3"}, {"-"}, {"B,T", 0, 1, KVA_I32}}},
    {.op = KVA_OP_kv_shift_grads, .attrs = "time_axis=1", .in = {{"2,T=37,3,128"}, {"3,2"}, {"2,T,3,128"}}},
    {.op = KVA_OP_kv_shift_grads, .in = {{"3,2,48,64"}, {"2,4"}, {"3,2,48,64"}}},
    {.op = KVA_OP_kv_shift_grads, .in = {{"1,1,T=15,256"}, {"1,1"}, {"1,1,T,256"}}},
    {.op = KVA_OP_kv_shift_grads, .in = {{"2,2,T=19,6"}, {"2,2"}, {"2,2,T,6"}}},
    {.op = KVA_OP_kv_shift_grads, .attrs = "time_axis=1", .in = {{"1,T=33,2,66"}, {"2,3"}, {"1,T,2,66"}}},
    {.op = KVA_OP_kv_shift_grads, .in = {{"1,1,T=17,640"}, {"1,2"}, {"1,1,T,640"}}},
    {.op = KVA_OP_kv_shift_grads,
     .attrs = "time_axis=1",
     .in = {{"2,T=37,3,128"}, {"3,2"}, {"2,T,3,128"}, {"2,T", 0, 1, KVA_I32}}},
    {.op = KVA_OP_kv_shift_grads, .in = {{"1,2,T=32,64"}, {"2,3"}, {"1,2,T,64"}, {"1,T", 0, 1, KVA_I64}}},
    {.op = KVA_OP_kv_shift_grads, .in = {{"1,2,T=21,37"}, {"2,6"}, {"1,2,T,37"}}},
    {.op = KVA_OP_add, .in = {{"A=30,B=7,36"}, {"B,36"}}},
    {.op = KVA_OP_add, .in = {{"A=30,B=7,6"}, {"B,6"}}},
};

static void test_large(void **state) {
  (void)state;
  static const kva_dtype types[] = {KVA_F32, KVA_BF16, KVA_F16, KVA_F64};
  kva_ptx_run run = {.cache = test_cache()};
  tally t = {0};
  for (size_t c = 0; c < sizeof large / sizeof *large; c++)
    for (size_t i = 0; in_part(c) && i < sizeof types / sizeof *types; i++) run_typed(&large[c], types[i], &run, &t);
  finish("large", &run, &t);
}

/* Kernel text before and after. */
static void check_schedule_for(const char *arch, const char *before, const char *after) {
  kva_text text = scheduled_text(arch, before);
  assert_string_equal(text.data, after);
  kva_text_free(&text);
}

static void check_schedule(const char *before, const char *after) {
  check_schedule_for("sm_80", before, after);
}

/* A warp for each row; nested sums are one; what is after them and not in a loop is one thread's. */
static void test_rows(void **state) {
  (void)state;
  check_schedule("kernel \"rows\" (read float x[64*B], write float y[64*B], write float z[B]) {\n"
                 "  parallel b < B {\n"
                 "    serial i < 8 carry (add float 0.0) {\n"
                 "      serial j < 8 carry (add float 0.0) {\n"
                 "        %0 = load x[64*b + 8*i + j]\n"
                 "        yield %0\n"
                 "      }\n"
                 "      %1 = reduce j[0]\n"
                 "      yield %1\n"
                 "    }\n"
                 "    %2 = reduce i[0]\n"
                 "    parallel k < 64 {\n"
                 "      %3 = load x[64*b + k]\n"
                 "      %4 = mul %3, %2 : float\n"
                 "      store y[64*b + k], %4\n"
                 "    }\n"
                 "    store z[b], %2\n"
                 "  }\n"
                 "}\n",
                 "kernel \"rows\" (read float x[64*B], write float y[64*B], write float z[B]) threads 256 blocks 2 {\n"
                 "  grid item < floordiv(B + 15, 16) {\n"
                 "    thread row < min(16, B - 16*item) subgroup 16 {\n"
                 "      thread r < 64 carry (add float 0.0) width 4 {\n"
                 "        %0 = load x[1024*item + r + 64*row]\n"
                 "        yield %0\n"
                 "      }\n"
                 "      %1 = reduce r[0]\n"
                 "      thread k < 64 width 4 {\n"
                 "        %2 = load x[1024*item + k + 64*row]\n"
                 "        %3 = mul %2, %1 : float\n"
                 "        store y[1024*item + k + 64*row], %3\n"
                 "      }\n"
                 "      thread first < 1 {\n"
                 "        store z[16*item + row], %1\n"
                 "      }\n"
                 "    }\n"
                 "  }\n"
                 "}\n");
}

/* Angles of two rows are the same for all heads; what varies with the head, or in a loop, stays. */
static void test_stage(void **state) {
  (void)state;
  check_schedule("kernel \"stage\" (read float x[64*H], read float cos[32*T], write float y[64*H]) threads 256 {\n"
                 "  grid item < floordiv(T, 2) {\n"
                 "    thread head < H subgroup 32 stage {\n"
                 "      thread i < 32 {\n"
                 "        %0 = load cos[64*item + i]\n"
                 "        %1 = load x[64*head + i]\n"
                 "        %2 = mul %0, %1 : float\n"
                 "        store y[64*head + i], %2\n"
                 "        %3 = load cos[64*item + i + 32]\n"
                 "        %4 = mul %3, %0 : float\n"
                 "        store y[64*head + i + 32], %4\n"
                 "        serial j < 4 {\n"
                 "          %5 = load cos[i + 32*j]\n"
                 "          store y[64*head + i + j], %5\n"
                 "        }\n"
                 "      }\n"
                 "    }\n"
                 "  }\n"
                 "}\n",
                 "kernel \"stage\" (read float x[64*H], read float cos[32*T], write float y[64*H]) threads 256 {\n"
                 "  shared readwrite float staged3[64]\n"
                 "  grid item < floordiv(T, 2) {\n"
                 "    thread i < 32 {\n"
                 "      %0 = load cos[i + 64*item]\n"
                 "      store staged3[i], %0\n"
                 "      %1 = load cos[i + 64*item + 32]\n"
                 "      store staged3[i + 32], %1\n"
                 "    }\n"
                 "    barrier\n"
                 "    thread head < H subgroup 32 {\n"
                 "      thread i_2 < 32 {\n"
                 "        %2 = load staged3[i_2]\n"
                 "        %3 = load x[64*head + i_2]\n"
                 "        %4 = mul %2, %3 : float\n"
                 "        store y[64*head + i_2], %4\n"
                 "        %5 = load staged3[i_2 + 32]\n"
                 "        %6 = mul %5, %2 : float\n"
                 "        store y[64*head + i_2 + 32], %6\n"
                 "        serial j < 4 {\n"
                 "          %7 = load cos[i_2 + 32*j]\n"
                 "          store y[64*head + i_2 + j], %7\n"
                 "        }\n"
                 "      }\n"
                 "    }\n"
                 "  }\n"
                 "}\n");
}

/* Numbers that each subgroup would load one by one are loaded for all of them; a few are not. What lies
 * far apart has lists of its own. */
static void test_stage_numbers(void **state) {
  (void)state;
  check_schedule("kernel \"numbers\" (read int32 id[B*T], write int32 y[32*B]) threads 256 {\n"
                 "  grid item < floordiv(T, 4) {\n"
                 "    thread b < min(80, B) subgroup 32 stage {\n"
                 "      %0 = load id[4*item + T*b]\n"
                 "      %1 = load id[4*item + T*b + 1]\n"
                 "      %2 = add %0, %1 : int32\n"
                 "      thread i < 32 {\n"
                 "        %3 = index item\n"
                 "        %4 = lt 0, %3 : int64\n"
                 "        %5 = load id[4*item + T*b - 1] where %4\n"
                 "        %6 = add %2, %5 : int32\n"
                 "        %7 = load id[4*item + T*b + 2]\n"
                 "        %8 = add %6, %7 : int32\n"
                 "        %9 = load id[4*item + T*b + 3]\n"
                 "        %10 = add %8, %9 : int32\n"
                 "        %11 = load id[b + 1000]\n"
                 "        %12 = add %10, %11 : int32\n"
                 "        %13 = load id[4*item + T*b + 100]\n"
                 "        %14 = add %12, %13 : int32\n"
                 "        %15 = load id[4*item + T*b + 101]\n"
                 "        %16 = add %14, %15 : int32\n"
                 "        %17 = load id[4*item + T*b + 102]\n"
                 "        %18 = add %16, %17 : int32\n"
                 "        %19 = load id[4*item + T*b + 103]\n"
                 "        %20 = add %18, %19 : int32\n"
                 "        %21 = load id[4*item + T*b + 104]\n"
                 "        %22 = add %20, %21 : int32\n"
                 "        store y[i + 32*b], %22\n"
                 "      }\n"
                 "    }\n"
                 "  }\n"
                 "}\n",
                 "kernel \"numbers\" (read int32 id[B*T], write int32 y[32*B]) threads 256 {\n"
                 "  shared readwrite int32 numbers2[512]\n"
                 "  shared readwrite int32 numbers3[512]\n"
                 "  grid item < floordiv(T, 4) {\n"
                 "    thread i < 512 {\n"
                 "      %0 = load id[max(0, min(B*T - 1, T*floordiv(i, 5) + 4*item + mod(i, 5) - 1))]\n"
                 "      store numbers2[i], %0\n"
                 "    }\n"
                 "    thread i_2 < 512 {\n"
                 "      %1 = load id[max(0, min(B*T - 1, T*floordiv(i_2, 5) + 4*item + mod(i_2, 5) + 100))]\n"
                 "      store numbers3[i_2], %1\n"
                 "    }\n"
                 "    barrier\n"
                 "    thread b < min(80, B) subgroup 32 {\n"
                 "      %2 = load numbers2[5*b + 1]\n"
                 "      %3 = load numbers2[5*b + 2]\n"
                 "      %4 = add %2, %3 : int32\n"
                 "      thread i_3 < 32 {\n"
                 "        %5 = index item\n"
                 "        %6 = lt 0, %5 : int64\n"
                 "        %7 = load numbers2[5*b] where %6\n"
                 "        %8 = add %4, %7 : int32\n"
                 "        %9 = load numbers2[5*b + 3]\n"
                 "        %10 = add %8, %9 : int32\n"
                 "        %11 = load numbers2[5*b + 4]\n"
                 "        %12 = add %10, %11 : int32\n"
                 "        %13 = load id[b + 1000]\n"
                 "        %14 = add %12, %13 : int32\n"
                 "        %15 = load numbers3[5*b]\n"
                 "        %16 = add %14, %15 : int32\n"
                 "        %17 = load numbers3[5*b + 1]\n"
                 "        %18 = add %16, %17 : int32\n"
                 "        %19 = load numbers3[5*b + 2]\n"
                 "        %20 = add %18, %19 : int32\n"
                 "        %21 = load numbers3[5*b + 3]\n"
                 "        %22 = add %20, %21 : int32\n"
                 "        %23 = load numbers3[5*b + 4]\n"
                 "        %24 = add %22, %23 : int32\n"
                 "        store y[32*b + i_3], %24\n"
                 "      }\n"
                 "    }\n"
                 "  }\n"
                 "}\n");
}

/* 240 KiB: 136 in registers, 92 in shared memory, 12 are read again. */
static void test_long_rows(void **state) {
  (void)state;
  check_schedule("kernel \"long\" (read float x[61440*B], write float y[61440*B]) {\n"
                 "  parallel b < B {\n"
                 "    serial i < 61440 carry (add float 0.0) {\n"
                 "      %0 = load x[61440*b + i]\n"
                 "      yield %0\n"
                 "    }\n"
                 "    %1 = reduce i[0]\n"
                 "    parallel k < 61440 {\n"
                 "      %2 = load x[61440*b + k]\n"
                 "      %3 = mul %2, %1 : float\n"
                 "      store y[61440*b + k], %3\n"
                 "    }\n"
                 "  }\n"
                 "}\n",
                 "kernel \"long\" (read float x[61440*B], write float y[61440*B]) threads 256 blocks 1 {\n"
                 "  shared readwrite float kept2[23552]\n"
                 "  grid item < B {\n"
                 "    thread i < 34816 carry (add float 0.0) width 4 {\n"
                 "      %0 = load x[i + 61440*item]\n"
                 "      yield %0\n"
                 "    }\n"
                 "    %1 = reduce i[0]\n"
                 "    thread i_2 < 23552 carry (add float %1) width 4 {\n"
                 "      %2 = load x[i_2 + 61440*item + 34816]\n"
                 "      store kept2[i_2], %2\n"
                 "      yield %2\n"
                 "    }\n"
                 "    %3 = reduce i_2[0]\n"
                 "    thread i_3 < 3072 carry (add float %3) width 4 {\n"
                 "      %4 = load x[i_3 + 61440*item + 58368]\n"
                 "      yield %4\n"
                 "    }\n"
                 "    %5 = reduce i_3[0]\n"
                 "    thread k < 34816 width 4 {\n"
                 "      %6 = load x[61440*item + k]\n"
                 "      %7 = mul %6, %5 : float\n"
                 "      store y[61440*item + k], %7\n"
                 "    }\n"
                 "    thread k_2 < 23552 width 4 {\n"
                 "      %8 = load kept2[k_2]\n"
                 "      %9 = mul %8, %5 : float\n"
                 "      store y[61440*item + k_2 + 34816], %9\n"
                 "    }\n"
                 "    thread k_3 < 3072 width 4 {\n"
                 "      %10 = load x[61440*item + k_3 + 58368]\n"
                 "      %11 = mul %10, %5 : float\n"
                 "      store y[61440*item + k_3 + 58368], %11\n"
                 "    }\n"
                 "  }\n"
                 "}\n");
}

/* 336 KiB: a cluster of two blocks has half a row each; they tell each other what the last loop over it made. */
static void test_shared_rows(void **state) {
  (void)state;
  check_schedule_for("sm_90",
                     "kernel \"shared\" (read float x[86016*B], write float y[86016*B]) {\n"
                     "  parallel b < B {\n"
                     "    serial i < 86016 carry (add float 0.0) {\n"
                     "      %0 = load x[86016*b + i]\n"
                     "      yield %0\n"
                     "    }\n"
                     "    %1 = reduce i[0]\n"
                     "    parallel k < 86016 {\n"
                     "      %2 = load x[86016*b + k]\n"
                     "      %3 = mul %2, %1 : float\n"
                     "      store y[86016*b + k], %3\n"
                     "    }\n"
                     "  }\n"
                     "}\n",
                     "kernel \"shared\" (read float x[86016*B], write float y[86016*B]) threads 512 blocks 1 {\n"
                     "  shared readwrite float kept2[21504]\n"
                     "  grid part < 2*B {\n"
                     "    thread i < 21504 carry (add float 0.0) width 4 {\n"
                     "      %0 = load x[i + 43008*part]\n"
                     "      yield %0\n"
                     "    }\n"
                     "    %1 = reduce i[0]\n"
                     "    thread i_2 < 21504 carry (add float %1) width 4 blocks 2 {\n"
                     "      %2 = load x[i_2 + 43008*part + 21504]\n"
                     "      store kept2[i_2], %2\n"
                     "      yield %2\n"
                     "    }\n"
                     "    %3 = reduce i_2[0]\n"
                     "    thread k < 21504 width 4 {\n"
                     "      %4 = load x[k + 43008*part]\n"
                     "      %5 = mul %4, %3 : float\n"
                     "      store y[k + 43008*part], %5\n"
                     "    }\n"
                     "    thread k_2 < 21504 width 4 {\n"
                     "      %6 = load kept2[k_2]\n"
                     "      %7 = mul %6, %3 : float\n"
                     "      store y[k_2 + 43008*part + 21504], %7\n"
                     "    }\n"
                     "  }\n"
                     "}\n");
}

/* Every warp a share of the rows of 32 columns. */
static void test_columns(void **state) {
  (void)state;
  check_schedule("kernel \"columns\" (read bfloat16 x[4096*C], write float y[C]) {\n"
                 "  parallel c < C {\n"
                 "    serial i < 4096 carry (max float -inf) {\n"
                 "      %0 = load x[C*i + c]\n"
                 "      yield %0\n"
                 "    }\n"
                 "    %1 = reduce i[0]\n"
                 "    store y[c], %1\n"
                 "  }\n"
                 "}\n",
                 "kernel \"columns\" (read bfloat16 x[4096*C], write float y[C]) threads 256 blocks 2 {\n"
                 "  shared readwrite float partial2[256]\n"
                 "  grid item < floordiv(C + 31, 32) {\n"
                 "    thread part < 8 subgroup 32 {\n"
                 "      thread c < min(32, C - 32*item) {\n"
                 "        serial i < 512 carry (max float -inf) {\n"
                 "          %0 = load x[8*C*i + C*part + c + 32*item]\n"
                 "          yield %0\n"
                 "        }\n"
                 "        %1 = reduce i[0]\n"
                 "        store partial2[c + 32*part], %1\n"
                 "      }\n"
                 "    }\n"
                 "    barrier\n"
                 "    thread c_2 < min(32, C - 32*item) {\n"
                 "      unroll part_2 < 8 carry (max float -inf) {\n"
                 "        %2 = load partial2[c_2 + 32*part_2]\n"
                 "        yield %2\n"
                 "      }\n"
                 "      %3 = reduce part_2[0]\n"
                 "      store y[c_2 + 32*item], %3\n"
                 "    }\n"
                 "  }\n"
                 "}\n");
}

/* Threads meet before each loop over what is read and written. */
static void test_ordered(void **state) {
  (void)state;
  check_schedule(
      "kernel \"scatter\" (read float g[64*N], read int64 at[N], readwrite float y[64*V]) {\n"
      "  parallel h < 2 {\n"
      "    parallel v < V {\n"
      "      parallel c < 32 {\n"
      "        store y[64*v + 32*h + c], 0.0\n"
      "      }\n"
      "    }\n"
      "    serial i < N {\n"
      "      %0 = load at[i]\n"
      "      parallel d < 32 {\n"
      "        %1 = load y[64*%0 + 32*h + d]\n"
      "        %2 = load g[64*i + 32*h + d]\n"
      "        %3 = add %1, %2 : float\n"
      "        store y[64*%0 + 32*h + d], %3\n"
      "      }\n"
      "    }\n"
      "  }\n"
      "}\n",
      "kernel \"scatter\" (read float g[64*N], read int64 at[N], readwrite float y[64*V]) threads 256 blocks 2 {\n"
      "  grid item < 1 {\n"
      "    thread row < -32*item + 2 subgroup 8 {\n"
      "      serial v < V {\n"
      "        barrier\n"
      "        thread c < 32 width 4 {\n"
      "          store y[c + 1024*item + 32*row + 64*v], 0.0\n"
      "        }\n"
      "      }\n"
      "      serial i < N {\n"
      "        %0 = load at[i]\n"
      "        barrier\n"
      "        thread d < 32 width 4 {\n"
      "          %1 = load y[64*%0 + d + 1024*item + 32*row]\n"
      "          %2 = load g[d + 64*i + 1024*item + 32*row]\n"
      "          %3 = add %1, %2 : float\n"
      "          store y[64*%0 + d + 1024*item + 32*row], %3\n"
      "        }\n"
      "      }\n"
      "    }\n"
      "  }\n"
      "}\n");
}

/* Global memory in 16-byte pieces: every request of a warp moves 512 bytes. */
static void test_vectors(void **state) {
  (void)state;
  static const kva_case cases[] = {{.op = KVA_OP_relu, .in = {{"N=8192"}}},
                                   {.op = KVA_OP_relu, .in = {{"B=8,T=4,256"}}}};
  static const kva_dtype types[] = {KVA_F32, KVA_BF16, KVA_F64};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
      kva_ptx_run run = {.cache = test_cache(), .arch = "sm_80"};
      tally t = {0};
      run_case(&cases[c], types[i], &run, &t);
      assert_int_equal(t.passed, 1);
      assert_int_equal(run.counters.global_load_bytes, 8192 * kva_dtype_bits(types[i]) / 8);
      assert_int_equal(run.counters.global_load_bytes / run.counters.global_load_requests, 512);
      assert_int_equal(run.counters.global_store_bytes / run.counters.global_store_requests, 512);
    }
  }
}

/* Results over operands, as the planner puts them where an element is read last for the result that replaces it. */
static void test_in_place(void **state) {
  (void)state;
  static const kva_case cases[] = {{.op = KVA_OP_relu, .in = {{"N=5003"}}},
                                   {.op = KVA_OP_add, .in = {{"B=3,1000"}, {"B,1000"}}},
                                   {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=9,C=100"}}},
                                   {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=9,C=1000"}}},
                                   {.op = KVA_OP_softmax, .attrs = "axis=-1", .in = {{"B=3,5000"}}}};
  kva_ptx_run run = {.cache = test_cache(), .arch = "sm_80", .in_place = true};
  tally t = {0};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) run_case(&cases[c], KVA_F32, &run, &t);
  assert_int_equal(t.passed, sizeof cases / sizeof *cases);
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static const char kernel_text[] = "kernel \"sum\" (read float x[N], write float y[1]) threads 256 {\n"
                                  "  thread k < N carry (add float 0.0) width 4 {\n"
                                  "    %0 = load x[k]\n"
                                  "    yield %0\n"
                                  "  }\n"
                                  "  %1 = reduce k[0]\n"
                                  "  thread one < 1 {\n"
                                  "    store y[0], %1\n"
                                  "  }\n"
                                  "}\n";

static void test_module(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  kva_kernel *k = kva_kernel_parse(arena, kva_expr_ctx_create(arena), kernel_text, "k.txt", diag);
  assert_non_null(k);
  kva_codegen *cg;
  assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = "sm_90"}, diag, &cg), KVA_OK);
  const kva_expr *const *symbols;
  assert_int_equal(kva_codegen_symbols(k, arena, &symbols), 1);
  int32_t first, second;
  assert_int_equal(kva_codegen_add(cg, k, 1, symbols, &first), KVA_OK);
  assert_int_equal(kva_codegen_add(cg, k, 1, symbols, &second), KVA_OK);
  assert_int_equal(first, second);
  assert_int_equal(kva_codegen_launch(cg, first).threads, 256);
  assert_int_equal(kva_codegen_launch(cg, first).shared_bytes, 8 * 8); /* a slot for each warp */
  char *text;
  size_t size;
  assert_int_equal(kva_codegen_emit(cg, "ptx", &text, &size), KVA_OK);
  assert_non_null(strstr(text, ".target sm_90\n"));
  assert_non_null(strstr(text, ".reqntid 256, 1, 1"));
  assert_non_null(strstr(text, "ld.global.nc.v4.f32"));
  free(text);
  assert_int_equal(kva_codegen_emit(cg, "obj", &text, &size), KVA_INVALID);
  assert_int_not_equal(kva_codegen_jit(cg), KVA_OK);
  kva_codegen_destroy(cg);
  assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = "sm_35"}, diag, &cg), KVA_INVALID);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
}

/* What a block may have depends on the GPU that the code is for. */
static void test_shared_limit(void **state) {
  (void)state;
  static const char text[] = "kernel \"large\" (write float y[1]) threads 32 {\n"
                             "  shared readwrite float kept[30000]\n"
                             "  thread one < 1 {\n"
                             "    store kept[7], 1.0\n"
                             "    %0 = load kept[7]\n"
                             "    store y[0], %0\n"
                             "  }\n"
                             "}\n";
  static const struct {
    const char *arch;
    kva_status status;
  } rows[] = {{"sm_80", KVA_OK}, {"sm_86", KVA_INVALID}, {"sm_90", KVA_INVALID}, {"sm_90a", KVA_OK}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    kva_arena *arena = kva_arena_create();
    kva_diag *diag = kva_diag_create();
    kva_kernel *k = kva_kernel_parse(arena, kva_expr_ctx_create(arena), text, "k.txt", diag);
    kva_codegen *cg;
    int32_t number;
    assert_non_null(k);
    assert_int_equal(kva_codegen_create(&(kva_target_options){.arch = rows[i].arch}, diag, &cg), KVA_OK);
    assert_int_equal(kva_codegen_add(cg, k, 0, NULL, &number), rows[i].status);
    if (rows[i].status != KVA_OK)
      assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "takes 120000 bytes of shared memory"));
    kva_codegen_destroy(cg);
    kva_diag_destroy(diag);
    kva_arena_destroy(arena);
  }
}

/* ---- ptxas ------------------------------------------------------------------------------------------------------- */

static void add_node(kva_codegen *cg, kva_arena *arena, const kva_node *n) {
  const kva_expr *const *symbols;
  int32_t number;
  kva_kernel *k = kva_codegen_lower(arena, n, kva_codegen_target(cg));
  if (!k) return;
  kva_codegen_schedule(k, kva_codegen_target(cg));
  uint32_t n_symbols = kva_codegen_symbols(k, arena, &symbols);
  if (kva_codegen_add(cg, k, n_symbols, symbols, &number)) return; /* counted as skipped above */
}

static bool has_run(const assembly *a, const kva_case *c) {
  kva_dtype_set set = kva_case_dtypes(c);
  for (int type = 0; type < KVA_DTYPE_COUNT; type++)
    if (kva_dtype_in(set, (kva_dtype)type) && has_code_of(a, c, (kva_dtype)type)) return true;
  return false;
}

static void add_others(kva_codegen *cg, const kva_case_table *table, const assembly *a) {
  for (uint32_t i = 0; i < table->n; i++) {
    const kva_case *c = &table->cases[i];
    kva_case_built built;
    if (!wanted(c->op) || !in_part(i) || !is_assembled(a, c) || has_run(a, c)) continue;
    assert_int_equal(kva_case_build_graph(c, a->dtype, &built), KVA_OK);
    kva_arena *arena = kva_arena_create();
    for (const kva_node *n = built.f->graph->first; n; n = n->next)
      if (!(n->op->traits & KVA_RETURN) && !kva_is(n, KVA_OP_constant)) add_node(cg, arena, n);
    kva_arena_destroy(arena);
    kva_case_free(&built);
  }
}

/* test_listed has gathered what ran; the others are compiled here. */
static void assemble(assembly *a) {
  kva_diag *diag = kva_diag_create();
  kva_codegen *cg;
  const kva_target_options target = test_target(2, a->arch);
  assert_int_equal(kva_codegen_create(&target, diag, &cg), KVA_OK);
  add_others(cg, &kva_cases_core, a);
  add_others(cg, &kva_cases_nn, a);
  char *text;
  size_t size;
  assert_int_equal(kva_codegen_emit(cg, "ptx", &text, &size), KVA_OK);
  joined_ptx_add(&a->modules, text);
  assert_true(getenv("KVA_TEST_CASE") || kva_map_len(a->modules.known) > 1);
  assert_assembles(a->modules.text.data, a->modules.text.len, a->arch);
  print_message("ptxas -arch=%s: %u modules of cases that ran, %d other kernels, %zu bytes of PTX\n", a->arch,
                kva_map_len(a->modules.known) - 1, kva_codegen_kernel_count(cg), a->modules.text.len);
  free(text);
  kva_codegen_destroy(cg);
  kva_diag_destroy(diag);
  joined_ptx_free(&a->modules);
}

static void test_ptxas(void **state) {
  (void)state;
  if (!assembler_found()) {
    print_message("SKIP: no ptxas on PATH\n");
    skip();
  }
  if (sanitized()) {
    print_message("SKIP: ptxas says the same without sanitizers\n");
    skip();
  }
  for (uint32_t i = 0; i < N_ASSEMBLIES; i++) assemble(&assemblies[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_module),      cmocka_unit_test(test_shared_limit),  cmocka_unit_test(test_rows),
      cmocka_unit_test(test_stage),       cmocka_unit_test(test_stage_numbers), cmocka_unit_test(test_long_rows),
      cmocka_unit_test(test_shared_rows), cmocka_unit_test(test_columns),       cmocka_unit_test(test_ordered),
      cmocka_unit_test(test_vectors),     cmocka_unit_test(test_in_place),      cmocka_unit_test(test_large),
      cmocka_unit_test(test_wrong_keys),  cmocka_unit_test(test_listed),        cmocka_unit_test(test_ptxas),
      cmocka_unit_test(test_random)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
