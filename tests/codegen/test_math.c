/* Expanded mathematical functions against the C library in double: over the whole range of floats, and at the ends. The
 * column of largest errors is what codegen/legalize_math.c states. */
#include "tests/support/jit.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { N = 1 << 14 };
static float x[N], y[N], out[N];

typedef struct function {
  const char *name;
  kva_kop op;
  double (*f)(double);
  double ulps; /* allowed */
} function;

static const function functions[] = {
    {"exp", KVA_K_exp, exp, 1.2},        {"log", KVA_K_log, log, 1.0},        {"sin", KVA_K_sin, sin, 1.6},
    {"cos", KVA_K_cos, cos, 1.6},        {"tan", KVA_K_tan, tan, 3.1},        {"asin", KVA_K_asin, asin, 2.3},
    {"acos", KVA_K_acos, acos, 1.5},     {"atan", KVA_K_atan, atan, 1.6},     {"sinh", KVA_K_sinh, sinh, 2.0},
    {"cosh", KVA_K_cosh, cosh, 2.0},     {"tanh", KVA_K_tanh, tanh, 2.4},     {"asinh", KVA_K_asinh, asinh, 0.51},
    {"acosh", KVA_K_acosh, acosh, 0.51}, {"atanh", KVA_K_atanh, atanh, 0.51}, {"erf", KVA_K_erf, erf, 1.2},
    {"log1p", KVA_K_log1p, log1p, 0.51}, {"expm1", KVA_K_expm1, expm1, 1.5},
};

static jit compile_for(const kva_target_options *target, kva_kop op, bool two) {
  jit j = jit_create_for(kva_kop_name(op), target);
  kva_kb *b = j.kb;
  const kva_expr *n = jit_const(&j, N);
  kva_kbuf *px = kva_k_param(b, "x", KVA_F32, n), *py = kva_k_param(b, "y", KVA_F32, n);
  kva_kbuf *pz = kva_k_param(b, "z", KVA_F32, n);
  kva_kloop *l = kva_k_loop_begin(b, KVA_K_PARALLEL, n, "i");
  kva_kval v = kva_k_op(b, op, kva_k_load(b, px, l->var), two ? kva_k_load(b, py, l->var) : NULL, NULL);
  kva_k_store(b, pz, l->var, v);
  kva_k_loop_end(b, l);
  jit_compile(&j, false, 0, NULL);
  return j;
}

static jit compile(kva_kop op, bool two) {
  return compile_for(NULL, op, two);
}

static void run(const jit *j) {
  void *buffers[] = {x, y, out};
  jit_run(j, buffers, NULL, j->grid);
}

/* Distance in units of the last place of the right result; 0 where both are the same infinity or both NaN. */
static double ulps(float got, double want) {
  float rounded = (float)want;
  if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
  if (got == rounded) return signbit(got) == signbit(rounded) || rounded != 0 ? 0 : INFINITY;
  if (isinf(rounded) || isinf(got)) {
    return fabs(fabs(want) - 0x1.fffffep127) < 0x1p105 ? 1 : INFINITY;
  }
  int exponent;
  frexp(want, &exponent);
  double unit = ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
  return fabs((double)got - want) / unit;
}

static float from_bits(uint32_t bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

static void check_function(const function *f, uint32_t stride) {
  jit j = compile(f->op, false);
  double worst = 0;
  float worst_x = 0;
  uint64_t next = 0;
  while (next <= UINT32_MAX) {
    for (int i = 0; i < N; i++, next += stride) x[i] = from_bits((uint32_t)next);
    run(&j);
    for (int i = 0; i < N; i++) {
      double e = ulps(out[i], f->f((double)x[i]));
      if (e > worst) worst = e, worst_x = x[i];
    }
  }
  if (getenv("KVA_BENCH")) {
    for (int i = 0; i < N; i++) x[i] = (float)(i + 1) / N;
    double best = 1e9;
    for (int round = 0; round < 10; round++) {
      double t = kva_now();
      run(&j);
      t = kva_now() - t;
      if (t < best) best = t;
    }
    printf("%-6s %.3f ulp at %a, %.3f ns\n", f->name, worst, (double)worst_x, best * 1e9 / N);
  }
  if (worst > f->ulps) fail_msg("%s(%a): %.3f ulp", f->name, (double)worst_x, worst);
  jit_destroy(&j);
}

static void test_functions(void **state) {
  (void)state;
  uint32_t stride = getenv("KVA_TEST_ALL") ? 257 : 4099;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) check_function(&functions[i], stride);
}

static void test_ends(void **state) {
  (void)state;
  static const float ends[] = {0.0f,
                               -0.0f,
                               1.0f,
                               -1.0f,
                               0x1p-149f,
                               -0x1p-149f,
                               0x1p-126f,
                               -0x1p-126f,
                               0x1.fffffep127f,
                               -0x1.fffffep127f,
                               INFINITY,
                               -INFINITY,
                               NAN,
                               88.72283f,
                               88.72284f,
                               -87.33655f,
                               -103.97f,
                               -104.0f,
                               89.41598f,
                               0.99999994f,
                               1.0000001f,
                               0.5f,
                               -0.5f,
                               10.0f,
                               4.0f,
                               0x1p50f,
                               -0x1.fffffep49f,
                               0x1.f37c8ap95f /* nearest to a multiple of pi/2 */};
  size_t n = sizeof ends / sizeof *ends;
  memset(x, 0, sizeof x);
  memcpy(x, ends, sizeof ends);
  for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
    jit j = compile(functions[f].op, false);
    run(&j);
    for (size_t i = 0; i < n; i++) {
      double e = ulps(out[i], functions[f].f((double)x[i]));
      if (e > functions[f].ulps) {
        fail_msg("%s(%a) = %a, expected %a", functions[f].name, (double)x[i], (double)out[i],
                 functions[f].f((double)x[i]));
      }
    }
    jit_destroy(&j);
  }
}

static void check_pow(void) {
  for (int i = 0; i < N; i++) {
    double e = ulps(out[i], pow((double)x[i], (double)y[i]));
    if (e > 0.51) {
      fail_msg("pow(%a, %a) = %a, expected %a", (double)x[i], (double)y[i], (double)out[i],
               pow((double)x[i], (double)y[i]));
    }
  }
}

static void test_pow(void **state) {
  (void)state;
  static const float special[] = {0.0f,       -0.0f,   1.0f,        -1.0f,       2.0f,      -2.0f, 3.0f,
                                  -3.0f,      0.5f,    -0.5f,       INFINITY,    -INFINITY, NAN,   0x1p-149f,
                                  -0x1p-149f, 0x1p24f, 16777217.0f, -8388609.0f, 1.5f,      -2.5f};
  enum { S = sizeof special / sizeof *special };
  jit j = compile(KVA_K_pow, true);
  for (int i = 0; i < N; i++) x[i] = special[i / S % S], y[i] = special[i % S];
  run(&j);
  check_pow();
  for (uint32_t round = 0; round < 16; round++) {
    for (int i = 0; i < N; i++) {
      kva_philox r = kva_philox4x32((uint64_t)i, round, 7);
      x[i] = round < 8 ? from_bits(r.v[0]) : (float)(kva_uniform01(r.v[0]) * 4 - 0.5);
      y[i] = round < 8 ? from_bits(r.v[1]) : (float)(kva_uniform01(r.v[1]) * 40 - 20);
    }
    run(&j);
    check_pow();
  }
  jit_destroy(&j);
}

/* By the machine's instruction and by arithmetic, the bits are ldexp's. */
static void test_scalef(void **state) {
  (void)state;
  static const kva_target_options targets[] = {
    {0},
#if defined __x86_64__
    {.cpu = "x86-64"},
#else
    {.vector_bits = 128},
#endif
  };
  for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
    jit j = compile_for(&targets[t], KVA_K_scalef, true);
    for (int i = 0; i < N; i++) {
      kva_philox r = kva_philox4x32((uint64_t)i, 0, 11);
      x[i] = from_bits((r.v[0] & 0x80FFFFFF) | 0x3F000000); /* [1/2, 2), either sign */
      y[i] = (float)(KVA_K_ROUNDER + i % 501 - 250);
    }
    x[1] = x[2] = y[2] = NAN;
    run(&j);
    for (int i = 0; i < N; i++) {
      float want = isnan(x[i]) ? NAN : ldexpf(x[i], (int)(y[i] - (float)KVA_K_ROUNDER));
      bool same = isnan(want) ? isnan(out[i]) : !memcmp(&out[i], &want, sizeof want);
      if (!same) fail_msg("scalef(%a, %a) = %a, expected %a", (double)x[i], (double)y[i], (double)out[i], (double)want);
    }
    jit_destroy(&j);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_functions), cmocka_unit_test(test_ends),
                                     cmocka_unit_test(test_pow), cmocka_unit_test(test_scalef)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
