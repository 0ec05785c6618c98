/* The f64 expansions that targets without a C library get (codegen/legalize_f64.c, legalize_rem.c), run on the CPU and
 * compared with the C library in long double. KVA_BENCH=1 prints the largest errors. */
#include "codegen/legalize.h"
#include "tests/support/jit.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { N = 1 << 14, ROUNDS = 12 };
static double x[N], y[N], out[N];

typedef struct function {
  const char *name;
  kva_kop op;
  long double (*f)(long double);
  double ulps; /* allowed */
  double far;  /* allowed from KVA_FAR_ANGLE on; 0: the same */
} function;

static const function functions[] = {
    {"exp", KVA_K_exp, expl, 1.0, 0},       {"log", KVA_K_log, logl, 1.0, 0},
    {"sin", KVA_K_sin, sinl, 1.2, 2.6},     {"cos", KVA_K_cos, cosl, 1.2, 2.6},
    {"tan", KVA_K_tan, tanl, 2.2, 4.5},     {"asin", KVA_K_asin, asinl, 2.2, 0},
    {"acos", KVA_K_acos, acosl, 1.5, 0},    {"atan", KVA_K_atan, atanl, 2.0, 0},
    {"sinh", KVA_K_sinh, sinhl, 1.7, 0},    {"cosh", KVA_K_cosh, coshl, 1.5, 0},
    {"tanh", KVA_K_tanh, tanhl, 2.5, 0},    {"asinh", KVA_K_asinh, asinhl, 1.8, 0},
    {"acosh", KVA_K_acosh, acoshl, 1.9, 0}, {"atanh", KVA_K_atanh, atanhl, 2.0, 0},
    {"erf", KVA_K_erf, erfl, 1.3, 0},       {"log1p", KVA_K_log1p, log1pl, 1.0, 0},
    {"expm1", KVA_K_expm1, expm1l, 1.9, 0},
};

static jit compile(kva_kop op, bool two) {
  jit j = jit_create(kva_kop_name(op));
  kva_kb *b = j.kb;
  const kva_expr *n = jit_const(&j, N);
  kva_kbuf *px = kva_k_param(b, "x", KVA_F64, n), *py = kva_k_param(b, "y", KVA_F64, n);
  kva_kbuf *pz = kva_k_param(b, "z", KVA_F64, n);
  kva_kloop *l = kva_k_loop_begin(b, KVA_K_PARALLEL, n, "i");
  kva_kval v = kva_k_op(b, op, kva_k_load(b, px, l->var), two ? kva_k_load(b, py, l->var) : NULL, NULL);
  kva_k_store(b, pz, l->var, v);
  kva_k_loop_end(b, l);
  kva_legalize_math_f64(b->kernel);
  kva_legalize_rem(b->kernel);
  jit_compile(&j, false, 0, NULL);
  return j;
}

static void run(const jit *j) {
  void *buffers[] = {x, y, out};
  jit_run(j, buffers, NULL, j->grid);
}

/* Distance in units of the last place of the right result; 0 where both are the same infinity or both NaN. */
static double ulps(double got, long double want) {
  double rounded = (double)want;
  if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
  if (got == rounded) return signbit(got) == signbit(rounded) || rounded != 0 ? 0 : INFINITY;
  if (isinf(rounded) || isinf(got)) return fabsl(fabsl(want) - 0x1.fffffffffffffp1023L) < 0x1p973L ? 1 : INFINITY;
  int exponent;
  frexpl(want, &exponent);
  long double unit = ldexpl(1, exponent - 53 < -1074 ? -1074 : exponent - 53);
  return (double)(fabsl((long double)got - want) / unit);
}

static double from_bits(uint64_t bits) {
  double v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

/* Round 0: ends. Then every other round all binades, and values around one. */
static double sample(uint64_t i, uint32_t round, uint64_t key) {
  static const double ends[] = {0.0,       -0.0,       1.0,
                                -1.0,      0x1p-1074,  -0x1p-1074,
                                0x1p-1022, -0x1p-1022, INFINITY,
                                NAN,       709.7827,   709.79,
                                -745.13,   -745.14,    0x1p53,
                                -0x1p52,   0.5,        -0.5,
                                2.0,       -2.0,       3.0,
                                -3.0,      -INFINITY,  1.0e308,
                                -1.0e308,  6.0,        0x1.6ac5b262ca1ffp849 /* nearest to a multiple of pi/2 */,
                                0x1p50,    0x1p-30,    1.5707963267948966};
  enum { E = sizeof ends / sizeof *ends };
  kva_philox r = kva_philox4x32(i, round, key);
  double u = kva_uniform01(r.v[0]) + kva_uniform01(r.v[1]) * 0x1p-24;
  if (!round) return ends[key == 1 ? i % E : i / E % E];
  if (round % 2) return from_bits((uint64_t)r.v[0] << 32 | r.v[1]);
  return (u - 0.3) * (double)round * (round > 6 ? 10 : 0.5);
}

static void check_function(const function *f) {
  jit j = compile(f->op, false);
  double worst = 0, worst_x = 0;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < N; i++) x[i] = sample((uint64_t)i, round, 1);
    run(&j);
    for (int i = 0; i < N; i++) {
      double e = ulps(out[i], f->f((long double)x[i]));
      if (f->far != 0 && fabs(x[i]) >= KVA_FAR_ANGLE) e *= f->ulps / f->far;
      if (e > worst) worst = e, worst_x = x[i];
    }
  }
  jit_destroy(&j);
  if (getenv("KVA_BENCH")) printf("%-6s %.3f ulp at %a\n", f->name, worst, worst_x);
  if (worst > f->ulps) print_error("%s(%a): %.3f ulp\n", f->name, worst_x, worst);
  assert_true(worst <= f->ulps);
}

static void test_functions(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) check_function(&functions[i]);
}

static void test_pow(void **state) {
  (void)state;
  jit j = compile(KVA_K_pow, true);
  double worst = 0, at[2] = {0};
  for (uint32_t round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < N; i++) x[i] = sample((uint64_t)i, round, 1), y[i] = sample((uint64_t)i, round, 2);
    run(&j);
    for (int i = 0; i < N; i++) {
      double e = ulps(out[i], powl((long double)x[i], (long double)y[i]));
      if (e > worst) worst = e, at[0] = x[i], at[1] = y[i];
    }
  }
  jit_destroy(&j);
  if (getenv("KVA_BENCH")) printf("pow    %.3f ulp at %a, %a\n", worst, at[0], at[1]);
  if (worst > 3.2) fail_msg("pow(%a, %a): %.3f ulp", at[0], at[1], worst);
}

/* fmod has no error; quotients up to 2^2098 and far below 1. */
static void test_rem(void **state) {
  (void)state;
  jit j = compile(KVA_K_rem, true);
  for (uint32_t round = 0; round < 8 * ROUNDS; round++) {
    for (int i = 0; i < N; i++) x[i] = sample((uint64_t)i, round, 1), y[i] = sample((uint64_t)i, round, 2);
    run(&j);
    for (int i = 0; i < N; i++) {
      double want = fmod(x[i], y[i]);
      bool same = isnan(want) ? isnan(out[i]) : out[i] == want && signbit(out[i]) == signbit(want);
      if (!same) fail_msg("fmod(%a, %a) is %a, expected %a", x[i], y[i], out[i], want);
    }
  }
  jit_destroy(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_functions), cmocka_unit_test(test_pow),
                                     cmocka_unit_test(test_rem)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
