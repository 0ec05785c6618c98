/* Kernels written by hand, scheduled, compiled and run, against plain C: remainders, masks, reductions, gathers,
 * storage types, scans, several nests, symbolic extents. */
#include "tests/support/jit.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

static const int64_t sizes[] = {0, 1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 1000, 4096, 100000};
enum { N_SIZES = sizeof sizes / sizeof *sizes, MAX = 100000 };
static float x[MAX + 64], y[MAX + 64], out[MAX + 64];

static void fill(void) {
  for (int i = 0; i < MAX + 64; i++) {
    x[i] = (float)(i % 97) - 48;
    y[i] = (float)(i % 89) * 0.25f;
    out[i] = -7;
  }
}

static kva_kbuf *param(jit *j, const char *name, kva_dtype t, const kva_expr *extent) {
  return kva_k_param(j->kb, name, t, extent);
}

/* ---- elementwise ------------------------------------------------------------------------------------------------- */

static jit build_axpy(const kva_target_options *options, bool symbolic, int64_t n) {
  jit j = jit_create_for("axpy", options);
  const kva_expr *extent = symbolic ? kva_expr_symbol(j.exprs, "N") : jit_const(&j, n);
  kva_kbuf *px = param(&j, "x", KVA_F32, extent), *py = param(&j, "y", KVA_F32, extent);
  kva_kbuf *pz = param(&j, "z", KVA_F32, extent);
  kva_kloop *l = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, extent, "i");
  kva_kval v = kva_k_op(j.kb, KVA_K_fma, kva_k_load(j.kb, px, l->var), kva_k_const(j.kb, KVA_F32, 2),
                        kva_k_load(j.kb, py, l->var));
  kva_k_store(j.kb, pz, l->var, v);
  kva_k_loop_end(j.kb, l);
  jit_compile(&j, false, symbolic, &extent);
  return j;
}

static int64_t grid_for(const jit *j, const char *name, int64_t value);

static void check_axpy(const jit *j, int64_t n) {
  fill();
  void *buffers[] = {x, y, out};
  jit_run(j, buffers, &n, grid_for(j, "N", n));
  for (int64_t i = 0; i < n; i++) assert_float_equal(out[i], 2 * x[i] + y[i], 0);
  for (int i = 0; i < 64; i++) assert_float_equal(out[n + i], -7, 0);
}

typedef struct binding {
  const char *name;
  int64_t value;
} binding;

static bool bound(void *user, const kva_expr *symbol, int64_t *out_v) {
  const binding *b = user;
  *out_v = b->value;
  return !strcmp(symbol->name, b->name);
}

static int64_t grid_for(const jit *j, const char *name, int64_t value) {
  binding b = {name, value};
  int64_t items = -1;
  assert_true(kva_expr_eval(kva_codegen_grid(j->kernel), bound, &b, &items));
  return items;
}

static void test_remainders(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++) {
    jit j = build_axpy(NULL, false, sizes[i]);
    check_axpy(&j, sizes[i]);
    jit_destroy(&j);
  }
}

static void test_symbolic(void **state) {
  (void)state;
  static const kva_target_options avx2 = {.cpu = "x86-64-v3", .opt_level = 2};
  for (int t = 0; t < 2; t++) {
    jit j = build_axpy(t ? &avx2 : NULL, true, 0);
    for (int i = 0; i < N_SIZES; i++) check_axpy(&j, sizes[i]);
    jit_destroy(&j);
  }
}

/* z[i,j] = x[i,j] + y[j]: the rows cannot merge. */
static void test_broadcast(void **state) {
  (void)state;
  enum { ROWS = 37, COLUMNS = 51 };
  jit j = jit_create("bias");
  const kva_expr *rows = jit_const(&j, ROWS), *columns = jit_const(&j, COLUMNS), *all = jit_const(&j, ROWS * COLUMNS);
  kva_kbuf *px = param(&j, "x", KVA_F32, all), *py = param(&j, "y", KVA_F32, columns),
           *pz = param(&j, "z", KVA_F32, all);
  kva_kloop *r = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, rows, "i"),
            *c = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, columns, "j");
  const kva_expr *at = kva_expr_add(j.exprs, kva_expr_muli(j.exprs, r->var, COLUMNS), c->var);
  kva_k_store(j.kb, pz, at, kva_k2(j.kb, KVA_K_add, kva_k_load(j.kb, px, at), kva_k_load(j.kb, py, c->var)));
  kva_k_loop_end(j.kb, c);
  kva_k_loop_end(j.kb, r);
  jit_compile(&j, false, 0, NULL);
  fill();
  void *buffers[] = {x, y, out};
  jit_run(&j, buffers, NULL, j.grid);
  for (int i = 0; i < ROWS * COLUMNS; i++) assert_float_equal(out[i], x[i] + y[i % COLUMNS], 0);
  jit_destroy(&j);
}

/* A dense nest of three loops is one loop after scheduling. */
static void test_collapse(void **state) {
  (void)state;
  jit j = jit_create("copy");
  static const int64_t dims[] = {6, 7, 11};
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, 462)), *pz = param(&j, "z", KVA_F32, jit_const(&j, 462));
  kva_kloop *l[3];
  const kva_expr *at = jit_const(&j, 0);
  for (int d = 0; d < 3; d++) {
    l[d] = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, jit_const(&j, dims[d]), "i");
    at = kva_expr_add(j.exprs, kva_expr_muli(j.exprs, at, dims[d]), l[d]->var);
  }
  kva_k_store(j.kb, pz, at, kva_k_load(j.kb, px, at));
  for (int d = 3; d-- > 0;) kva_k_loop_end(j.kb, l[d]);
  jit_compile(&j, false, 0, NULL);
  const kva_kinstr *only = j.kernel->body->first;
  assert_ptr_equal(only, j.kernel->body->last);
  assert_int_equal(only->op, KVA_K_LOOP);
  assert_int_equal(only->loop->kind, KVA_K_VECTOR);
  assert_true(kva_expr_is(only->loop->extent, 462));
  fill();
  void *buffers[] = {x, out};
  jit_run(&j, buffers, NULL, j.grid);
  assert_memory_equal(out, x, 462 * sizeof *x);
  jit_destroy(&j);
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* z[i] = x[i - 3] where that exists, else 0; memory before and behind x must not be touched (address 0 stands there).
 */
static void test_guard(void **state) {
  (void)state;
  for (int s = 0; s < N_SIZES; s++) {
    int64_t n = sizes[s];
    jit j = jit_create("shift");
    kva_kb *b = j.kb;
    kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, n)), *pz = param(&j, "z", KVA_F32, jit_const(&j, n + 6));
    kva_kloop *l = kva_k_loop_begin(b, KVA_K_PARALLEL, jit_const(&j, n + 6), "i");
    const kva_expr *from = kva_expr_addi(j.exprs, l->var, -3);
    kva_kval inside =
        kva_k_and(b, kva_k_index_le(b, jit_const(&j, 0), from), kva_k_index_lt(b, from, jit_const(&j, n)));
    kva_kval previous = inside ? kva_k_guard_begin(b, inside) : NULL;
    kva_kval v = kva_k_load(b, px, from);
    if (inside) kva_k_guard_end(b, previous);
    kva_k_store(b, pz, l->var, v);
    kva_k_loop_end(b, l);
    jit_compile(&j, false, 0, NULL);
    fill();
    void *buffers[] = {n ? x : NULL, out};
    jit_run(&j, buffers, NULL, j.grid);
    for (int64_t i = 0; i < n + 6; i++) assert_float_equal(out[i], i < 3 || i >= n + 3 ? 0 : x[i - 3], 0);
    jit_destroy(&j);
  }
}

/* Guarded stores leave the other elements alone. */
static void test_guarded_store(void **state) {
  (void)state;
  jit j = jit_create("odd");
  kva_kb *b = j.kb;
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, 100)), *pz = param(&j, "z", KVA_F32, jit_const(&j, 100));
  kva_kloop *l = kva_k_loop_begin(b, KVA_K_PARALLEL, jit_const(&j, 100), "i");
  kva_kval v = kva_k_load(b, px, l->var);
  kva_kval previous = kva_k_guard_begin(b, kva_k2(b, KVA_K_lt, kva_k_const(b, KVA_F32, 0), v));
  kva_k_store(b, pz, l->var, v);
  kva_k_guard_end(b, previous);
  kva_k_loop_end(b, l);
  jit_compile(&j, false, 0, NULL);
  fill();
  void *buffers[] = {x, out};
  jit_run(&j, buffers, NULL, j.grid);
  for (int i = 0; i < 100; i++) assert_float_equal(out[i], x[i] > 0 ? x[i] : -7, 0);
  jit_destroy(&j);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

typedef struct term {
  kva_kbuf *buf;
  const kva_expr *base;
  int64_t stride;
} term;

static kva_kval element(kva_kb *b, void *user, const kva_expr *const *vars) {
  const term *t = user;
  return kva_k_load(b, t->buf, kva_expr_add(b->exprs, t->base, kva_expr_muli(b->exprs, vars[0], t->stride)));
}

/* z[i] = combine over k of x[i*row + k*column] */
static void check_reduce(kva_combine combine, int64_t rows, int64_t n, bool columns) {
  jit j = jit_create("reduce");
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, rows * n)), *pz = param(&j, "z", KVA_F32, jit_const(&j, rows));
  kva_kloop *l = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, jit_const(&j, rows), "i");
  term t = {px, columns ? l->var : kva_expr_muli(j.exprs, l->var, n), columns ? rows : 1};
  const kva_expr *extent = jit_const(&j, n);
  kva_k_store(j.kb, pz, l->var, kva_k_reduce_over(j.kb, combine, KVA_F32, 1, &extent, element, &t));
  kva_k_loop_end(j.kb, l);
  jit_compile(&j, false, 0, NULL);
  fill();
  void *buffers[] = {x, out};
  jit_run(&j, buffers, NULL, j.grid);
  for (int64_t i = 0; i < rows; i++) {
    double want = combine == KVA_COMBINE_MAX ? -INFINITY : 0;
    for (int64_t k = 0; k < n; k++) {
      double v = (double)x[columns ? i + k * rows : i * n + k];
      want = combine == KVA_COMBINE_MAX ? fmax(want, v) : want + v;
    }
    assert_float_equal(out[i], want, 0); /* small integers: exact in any order */
  }
  jit_destroy(&j);
}

static void test_reductions(void **state) {
  (void)state;
  for (int i = 0; i < N_SIZES; i++) {
    int64_t rows = sizes[i] > 4096 ? 1 : 5;
    check_reduce(KVA_COMBINE_ADD, rows, sizes[i], false);
    check_reduce(KVA_COMBINE_MAX, rows, sizes[i], false);
    check_reduce(KVA_COMBINE_ADD, sizes[i] > 4096 ? 4096 : sizes[i], 19, true);
    check_reduce(KVA_COMBINE_MAX, sizes[i] > 4096 ? 4096 : sizes[i], 19, true);
  }
}

static void test_max_of_nan(void **state) {
  (void)state;
  enum { N = 200 };
  jit j = jit_create("max");
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, N)), *pz = param(&j, "z", KVA_F32, jit_const(&j, 1));
  term t = {px, jit_const(&j, 0), 1};
  const kva_expr *extent = jit_const(&j, N);
  kva_k_store(j.kb, pz, jit_const(&j, 0), kva_k_reduce_over(j.kb, KVA_COMBINE_MAX, KVA_F32, 1, &extent, element, &t));
  jit_compile(&j, false, 0, NULL);
  for (int at = 0; at < N; at++) {
    fill();
    x[at] = NAN;
    void *buffers[] = {x, out};
    j.fn(buffers, NULL, 0, 1);
    assert_true(isnan(out[0]));
  }
  jit_destroy(&j);
}

/* Of elements of two arrays, in vectors and in several side by side; NaN wherever one is. */
static void check_minmax(const kva_target_options *options, uint32_t width, bool is_min) {
  enum { N = 77 };
  jit j = jit_create_for("minmax", options);
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, 2 * N)), *pz = param(&j, "z", KVA_F32, jit_const(&j, N));
  kva_kloop *i = kva_k_loop_begin(j.kb, KVA_K_VECTOR, jit_const(&j, N), "i");
  i->width = width;
  kva_kval a = kva_k_load(j.kb, px, i->var), b = kva_k_load(j.kb, px, kva_expr_addi(j.exprs, i->var, N));
  kva_k_store(j.kb, pz, i->var, kva_k2(j.kb, is_min ? KVA_K_min : KVA_K_max, a, b));
  kva_k_loop_end(j.kb, i);
  jit_compile(&j, false, 0, NULL);
  fill();
  for (int k = 0; k < N; k += 3) x[k + k % 2 * N] = NAN;
  jit_run(&j, (void *[]){x, out}, NULL, j.grid);
  for (int k = 0; k < N; k++) {
    float most = is_min ? fminf(x[k], x[k + N]) : fmaxf(x[k], x[k + N]);
    assert_true(k % 3 ? out[k] == most : isnan(out[k]));
  }
  jit_destroy(&j);
}

static void test_minmax(void **state) {
  (void)state;
  static const kva_target_options targets[] = {
    {.vector_bits = 0},
    {.vector_bits = 128},
#if defined __x86_64__
    {.cpu = "x86-64-v3"},
#endif
  };
  for (size_t t = 0; t < sizeof targets / sizeof *targets; t++)
    for (uint32_t width = 0; width <= 4; width += 2)
      for (int is_min = 0; is_min < 2; is_min++) check_minmax(&targets[t], width, is_min);
}

/* Row statistics beside a row of results: softmax, all in one work item a row. */
static void test_softmax(void **state) {
  (void)state;
  enum { ROWS = 9, N = 77 };
  jit j = jit_create("softmax");
  kva_kb *b = j.kb;
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, ROWS * N)),
           *pz = param(&j, "z", KVA_F32, jit_const(&j, ROWS * N));
  kva_kloop *r = kva_k_loop_begin(b, KVA_K_PARALLEL, jit_const(&j, ROWS), "i");
  const kva_expr *base = kva_expr_muli(j.exprs, r->var, N), *extent = jit_const(&j, N);
  term t = {px, base, 1};
  kva_kval max = kva_k_reduce_over(b, KVA_COMBINE_MAX, KVA_F32, 1, &extent, element, &t);
  kva_kloop *k = kva_k_loop_begin(b, KVA_K_SERIAL, extent, "k");
  kva_kval e = kva_k1(b, KVA_K_exp, kva_k2(b, KVA_K_sub, element(b, &t, &k->var), max));
  kva_kval sum = kva_k_reduce(b, k, KVA_COMBINE_ADD, kva_k_const(b, KVA_F32, 0), e);
  kva_k_loop_end(b, k);
  kva_kloop *c = kva_k_loop_begin(b, KVA_K_PARALLEL, extent, "j");
  e = kva_k1(b, KVA_K_exp, kva_k2(b, KVA_K_sub, element(b, &t, &c->var), max));
  kva_k_store(b, pz, kva_expr_add(j.exprs, base, c->var), kva_k2(b, KVA_K_div, e, sum));
  kva_k_loop_end(b, c);
  kva_k_loop_end(b, r);
  jit_compile(&j, false, 0, NULL);
  for (int i = 0; i < ROWS * N; i++) x[i] = (float)(i * 37 % 101) * 0.07f - 3;
  void *buffers[] = {x, out};
  jit_run(&j, buffers, NULL, j.grid);
  for (int i = 0; i < ROWS; i++) {
    double total = 0;
    for (int c2 = 0; c2 < N; c2++) total += exp((double)x[i * N + c2]);
    for (int c2 = 0; c2 < N; c2++) assert_float_equal(out[i * N + c2], exp((double)x[i * N + c2]) / total, 1e-7);
  }
  jit_destroy(&j);
}

/* Running sum along each row: a sequential carry. */
static void test_scan(void **state) {
  (void)state;
  enum { ROWS = 33, N = 29 };
  for (int columns = 0; columns < 2; columns++) {
    jit j = jit_create("scan");
    kva_kb *b = j.kb;
    kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, ROWS * N)),
             *pz = param(&j, "z", KVA_F32, jit_const(&j, ROWS * N));
    kva_kloop *r = kva_k_loop_begin(b, KVA_K_PARALLEL, jit_const(&j, ROWS), "i");
    kva_kloop *k = kva_k_loop_begin(b, KVA_K_SERIAL, jit_const(&j, N), "k");
    const kva_expr *at = columns ? kva_expr_add(j.exprs, r->var, kva_expr_muli(j.exprs, k->var, ROWS))
                                 : kva_expr_add(j.exprs, kva_expr_muli(j.exprs, r->var, N), k->var);
    kva_kval before = kva_k_carry(b, k, kva_k_const(b, KVA_F32, 0));
    kva_kval after = kva_k2(b, KVA_K_add, before, kva_k_load(b, px, at));
    kva_k_store(b, pz, at, after);
    kva_k_carry_next(b, k, before, after);
    kva_k_loop_end(b, k);
    kva_k_loop_end(b, r);
    jit_compile(&j, false, 0, NULL);
    fill();
    void *buffers[] = {x, out};
    jit_run(&j, buffers, NULL, j.grid);
    for (int i = 0; i < ROWS; i++) {
      float sum = 0;
      for (int c = 0; c < N; c++) {
        int at_c = columns ? i + c * ROWS : i * N + c;
        sum += x[at_c];
        assert_float_equal(out[at_c], sum, 0);
      }
    }
    jit_destroy(&j);
  }
}

/* ---- gather, nests ----------------------------------------------------------------------------------------------- */

/* z[i, j] = x[index[i], j] with rows from memory, and w[i] = x[index[i]*N + i] one by one. */
static void test_gather(void **state) {
  (void)state;
  enum { ROWS = 21, N = 40 };
  static int64_t index[ROWS];
  static float w[ROWS];
  jit j = jit_create("gather");
  kva_kb *b = j.kb;
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, ROWS * N)), *pi = param(&j, "i", KVA_I64, jit_const(&j, ROWS));
  kva_kbuf *pz = param(&j, "z", KVA_F32, jit_const(&j, ROWS * N)), *pw = param(&j, "w", KVA_F32, jit_const(&j, ROWS));
  for (int part = 0; part < 2; part++) {
    kva_kloop *r = kva_k_loop_begin(b, KVA_K_PARALLEL, jit_const(&j, ROWS), "r");
    const kva_expr *row = kva_expr_muli(j.exprs, kva_k_symbol(b, kva_k_load(b, pi, r->var)), N);
    if (part) {
      kva_k_store(b, pw, r->var, kva_k_load(b, px, kva_expr_add(j.exprs, row, r->var)));
    } else {
      kva_kloop *c = kva_k_loop_begin(b, KVA_K_PARALLEL, jit_const(&j, N), "c");
      kva_k_store(b, pz, kva_expr_add(j.exprs, kva_expr_muli(j.exprs, r->var, N), c->var),
                  kva_k_load(b, px, kva_expr_add(j.exprs, row, c->var)));
      kva_k_loop_end(b, c);
    }
    kva_k_loop_end(b, r);
  }
  jit_compile(&j, false, 0, NULL);
  assert_int_equal(j.grid, 2); /* two nests, each small: one item each */
  fill();
  for (int i = 0; i < ROWS; i++) index[i] = i * 8 % ROWS;
  void *buffers[] = {x, index, out, w};
  jit_run(&j, buffers, NULL, j.grid);
  for (int i = 0; i < ROWS; i++) {
    assert_memory_equal(&out[i * N], &x[index[i] * N], N * sizeof *x);
    assert_float_equal(w[i], x[index[i] * N + i], 0);
  }
  jit_destroy(&j);
}

/* Room for n elements that end where memory ends. */
static float *before_the_end(int64_t n, void **out_map, size_t *out_size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)n * sizeof(float);
  *out_size = (bytes + page - 1) / page * page + page;
  char *map = mmap(NULL, *out_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(map, MAP_FAILED);
  assert_int_equal(mprotect(map + *out_size - page, page, PROT_NONE), 0);
  *out_map = map;
  return (float *)(void *)(map + *out_size - page - bytes);
}

/* z[i] = x[stride*i], or 0 for the first two and where x has ended: lanes that are some elements apart touch no memory
 * behind x. */
static void check_stride(const kva_target_options *options, int64_t stride, int64_t n, bool guarded) {
  jit j = jit_create_for("stride", options);
  kva_kb *b = j.kb;
  int64_t held = stride * (n - 1) + 1;
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, held)), *pz = param(&j, "z", KVA_F32, jit_const(&j, n + 4));
  kva_kloop *l = kva_k_loop_begin(b, KVA_K_PARALLEL, jit_const(&j, guarded ? n + 4 : n), "i");
  const kva_expr *from = kva_expr_muli(j.exprs, kva_expr_addi(j.exprs, l->var, guarded ? -2 : 0), stride);
  kva_kval inside = NULL, previous = NULL;
  if (guarded)
    inside = kva_k_and(b, kva_k_index_le(b, jit_const(&j, 0), from), kva_k_index_lt(b, from, jit_const(&j, held)));
  if (guarded) previous = kva_k_guard_begin(b, inside);
  kva_kval v = kva_k_load(b, px, from);
  if (guarded) kva_k_guard_end(b, previous);
  kva_k_store(b, pz, l->var, v);
  kva_k_loop_end(b, l);
  jit_compile(&j, false, 0, NULL);
  void *map;
  size_t size;
  float *data = before_the_end(held, &map, &size);
  fill();
  memcpy(data, x, (size_t)held * sizeof *x);
  jit_run(&j, (void *[]){data, out}, NULL, j.grid);
  for (int64_t i = 0; i < n; i++) assert_float_equal(out[guarded ? i + 2 : i], x[stride * i], 0);
  for (int64_t i = 0; guarded && i < 2; i++) assert_float_equal(out[i] + out[n + 2 + i], 0, 0);
  assert_float_equal(out[guarded ? n + 4 : n], -7, 0);
  munmap(map, size);
  jit_destroy(&j);
}

static void test_stride(void **state) {
  (void)state;
  const kva_target_options narrow = {.cpu = "x86-64-v2", .triple = "x86_64-linux-gnu"}, half = {.vector_bits = 256};
  const int64_t counts[] = {1, 15, 16, 17, 40, 1000};
  for (int64_t stride = 1; stride <= 6; stride++) {
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
      check_stride(NULL, stride, counts[i], false);
      check_stride(NULL, stride, counts[i], true);
    }
    check_stride(&half, stride, 100, true);
#ifdef __x86_64__
    check_stride(&narrow, stride, 100, true);
#else
    (void)narrow;
#endif
  }
}

/* Two nests where the second reads what the first wrote stay in order in one work item. */
static void test_dependent_nests(void **state) {
  (void)state;
  enum { N = 50000 };
  jit j = jit_create("dependent");
  kva_kb *b = j.kb;
  const kva_expr *n = jit_const(&j, N);
  kva_kbuf *px = param(&j, "x", KVA_F32, n), *pz = param(&j, "z", KVA_F32, n);
  kva_kloop *l = kva_k_loop_begin(b, KVA_K_PARALLEL, n, "i");
  kva_k_store(b, pz, l->var, kva_k_const(b, KVA_F32, 1));
  kva_k_loop_end(b, l);
  l = kva_k_loop_begin(b, KVA_K_PARALLEL, n, "i");
  kva_k_store(b, pz, l->var, kva_k2(b, KVA_K_add, kva_k_load(b, pz, l->var), kva_k_load(b, px, l->var)));
  kva_k_loop_end(b, l);
  jit_compile(&j, false, 0, NULL);
  assert_int_equal(j.grid, 1);
  fill();
  void *buffers[] = {x, out};
  jit_run(&j, buffers, NULL, 1);
  for (int i = 0; i < N; i++) assert_float_equal(out[i], x[i] + 1, 0);
  jit_destroy(&j);
}

/* ---- storage types ----------------------------------------------------------------------------------------------- */

/* z = (type)x, w = (float)z for every code or value of the type, lane by lane and in vectors. */
static void check_type(kva_dtype t, int64_t n) {
  bool is_float = kva_dtype_is_float(t);
  kva_dtype wide = is_float ? KVA_F32 : kva_k_compute_type(t);
  int64_t bytes, packed;
  assert_true(kva_dtype_bytes(wide, n, &bytes) && kva_dtype_bytes(t, n, &packed));
  void *in = calloc((size_t)bytes + 8, 1), *got = calloc((size_t)packed + 8, 1), *back = calloc((size_t)bytes + 8, 1);
  void *want = calloc((size_t)packed + 8, 1);
  for (int64_t i = 0; i < n; i++) {
    kva_philox r = kva_philox4x32((uint64_t)i, 3, (uint64_t)t);
    float f = (float)ldexp(kva_uniform01(r.v[0]) - 0.5, (int)(r.v[1] % 64) - 32);
    if (i % 17 == 5) f = i % 2 ? INFINITY : -INFINITY;
    if (i % 17 == 7) f = NAN;
    if (i % 17 == 9) f = i % 2 ? 0.0f : -0.0f;
    if (i % 3 == 1 && is_float && t != KVA_F8E8M0) f = (float)kva_round_f64(t, (double)f); /* exact */
    if (is_float)
      kva_store_f64(KVA_F32, in, i, (double)f);
    else
      kva_store_i64(wide, in, i, kva_wrap_i64(t, (int64_t)r.v[2]));
    if (is_float)
      kva_store_f64(t, want, i, (double)f);
    else
      kva_store_i64(t, want, i, kva_load_i64(wide, in, i));
  }
  jit j = jit_create("types");
  const kva_expr *extent = jit_const(&j, n);
  kva_kbuf *px = param(&j, "x", wide, extent), *pz = param(&j, "z", t, extent);
  kva_kloop *l = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, extent, "i");
  kva_k_store(j.kb, pz, l->var, kva_k_load(j.kb, px, l->var));
  kva_k_loop_end(j.kb, l);
  jit_compile(&j, false, 0, NULL);
  void *buffers[] = {in, got};
  jit_run(&j, buffers, NULL, j.grid);
  jit_destroy(&j);
  for (int64_t i = 0; i < n; i++) {
    double a = is_float ? kva_load_f64(t, got, i) : (double)kva_load_i64(t, got, i);
    double b = is_float ? kva_load_f64(t, want, i) : (double)kva_load_i64(t, want, i);
    bool same = (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
    if (!same) {
      double v = is_float ? kva_load_f64(wide, in, i) : (double)kva_load_i64(wide, in, i);
      fail_msg("%s: %a stored as %a, expected %a", kva_dtype_name(t), v, a, b);
    }
  }
  j = jit_create("types_back");
  extent = jit_const(&j, n);
  pz = param(&j, "z", t, extent);
  px = param(&j, "x", wide, extent);
  l = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, extent, "i");
  kva_k_store(j.kb, px, l->var, kva_k_load(j.kb, pz, l->var));
  kva_k_loop_end(j.kb, l);
  jit_compile(&j, false, 0, NULL);
  void *buffers_back[] = {want, back};
  jit_run(&j, buffers_back, NULL, j.grid);
  jit_destroy(&j);
  for (int64_t i = 0; i < n; i++) {
    double a = is_float ? kva_load_f64(wide, back, i) : (double)kva_load_i64(wide, back, i);
    double b = is_float ? kva_load_f64(t, want, i) : (double)kva_load_i64(t, want, i);
    bool same = (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
    if (!same) fail_msg("%s: element %lld loaded as %a, expected %a", kva_dtype_name(t), (long long)i, a, b);
  }
  free(in), free(got), free(back), free(want);
}

static void test_types(void **state) {
  (void)state;
  for (int t = 1; t < KVA_DTYPE_COUNT; t++) {
    if (!kva_dtype_is_float((kva_dtype)t) && !kva_dtype_is_int((kva_dtype)t)) continue;
    check_type((kva_dtype)t, 20000);
    check_type((kva_dtype)t, 37);
  }
}

static void double_constants(void *user, kva_kinstr *i) {
  (void)user;
  if (i->op == KVA_K_CONST) i->imm.f *= 2;
}

static void test_equal_kernels(void **state) {
  (void)state;
  jit j = build_axpy(NULL, false, 100);
  kva_kernel *first = j.kernel;
  jit other = jit_create("other");
  int32_t a, b;
  kva_kernel *k = kva_kernel_create(j.arena, j.exprs, "again");
  kva_kb *kb = kva_kb_create(k);
  const kva_expr *extent = jit_const(&j, 100);
  kva_kbuf *px = kva_k_param(kb, "a", KVA_F32, extent), *py = kva_k_param(kb, "b", KVA_F32, extent);
  kva_kbuf *pz = kva_k_param(kb, "c", KVA_F32, extent);
  kva_kloop *l = kva_k_loop_begin(kb, KVA_K_PARALLEL, extent, "n");
  kva_k_store(
      kb, pz, l->var,
      kva_k_op(kb, KVA_K_fma, kva_k_load(kb, px, l->var), kva_k_const(kb, KVA_F32, 2), kva_k_load(kb, py, l->var)));
  kva_k_loop_end(kb, l);
  kva_codegen_schedule(k, kva_codegen_target(other.cg));
  assert_int_equal(kva_codegen_add(other.cg, first, 0, NULL, &a), KVA_OK);
  assert_int_equal(kva_codegen_add(other.cg, k, 0, NULL, &b), KVA_OK);
  assert_int_equal(a, b);
  assert_int_equal(kva_codegen_kernel_count(other.cg), 1);
  kva_k_each_instr(k, double_constants, NULL);
  assert_int_equal(kva_codegen_add(other.cg, k, 0, NULL, &b), KVA_OK);
  assert_int_equal(b, 1);
  jit_destroy(&other);
  jit_destroy(&j);
}

/* Beside a nest with work, one whose extent 0 is a constant: nothing may divide by it. */
static void test_empty_nest(void **state) {
  (void)state;
  jit j = jit_create("empty");
  const kva_expr *n = kva_expr_symbol(j.exprs, "N"), *none = jit_const(&j, 0);
  kva_kbuf *px = param(&j, "x", KVA_F32, n), *pz = param(&j, "z", KVA_F32, n), *pe = param(&j, "e", KVA_F32, none);
  kva_kloop *i = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, n, "i");
  kva_k_store(j.kb, pz, i->var, kva_k_load(j.kb, px, i->var));
  kva_k_loop_end(j.kb, i);
  kva_kloop *rows = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, n, "r");
  kva_kloop *empty = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, none, "e");
  kva_kloop *columns = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, n, "c");
  const kva_expr *at = kva_expr_add(j.exprs, kva_expr_mul(j.exprs, columns->var, n), rows->var);
  kva_k_store(j.kb, pe, kva_expr_add(j.exprs, at, empty->var), kva_k_load(j.kb, px, columns->var));
  kva_k_loop_end(j.kb, columns);
  kva_k_loop_end(j.kb, empty);
  kva_k_loop_end(j.kb, rows);
  jit_compile(&j, false, 1, &n);
  fill();
  int64_t symbols[] = {77};
  jit_run(&j, (void *[]){x, out, NULL}, symbols, grid_for(&j, "N", 77));
  for (int64_t k = 0; k < 77; k++) assert_float_equal(out[k], x[k], 0);
  jit_destroy(&j);
}

/* out[r] = row r of x, y, x, ... behind one another. */
enum { JOINED_ROWS = 5, MAX_JOINED = 24 };

typedef struct joined {
  int n;
  int64_t widths[MAX_JOINED];
} joined;

static int64_t joined_width(const joined *w) {
  int64_t n = 0;
  for (int p = 0; p < w->n; p++) n += w->widths[p];
  return n;
}

static jit build_joined(const joined *w) {
  jit j = jit_create_for("joined", &(kva_target_options){.vector_bits = 128});
  int64_t n = joined_width(w);
  kva_kbuf *parts[MAX_JOINED];
  for (int p = 0; p < w->n; p++) parts[p] = param(&j, "part", KVA_F32, jit_const(&j, JOINED_ROWS * w->widths[p]));
  kva_kbuf *to = param(&j, "out", KVA_F32, jit_const(&j, JOINED_ROWS * n));
  kva_kloop *r = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, jit_const(&j, JOINED_ROWS), "r");
  kva_kloop *i = kva_k_loop_begin(j.kb, KVA_K_PARALLEL, jit_const(&j, n), "i");
  kva_kval v = NULL;
  for (int64_t p = 0, first = 0; p < w->n; first += w->widths[p++]) {
    const kva_expr *begin = jit_const(&j, first), *end = jit_const(&j, first + w->widths[p]);
    kva_kval after = kva_k_index_le(j.kb, begin, i->var);
    kva_kval outer = kva_k_guard_begin(j.kb, kva_k_and(j.kb, after, kva_k_index_lt(j.kb, i->var, end)));
    const kva_expr *row = kva_expr_muli(j.exprs, r->var, w->widths[p]);
    kva_kval own = kva_k_load(j.kb, parts[p], kva_expr_add(j.exprs, row, kva_expr_addi(j.exprs, i->var, -first)));
    kva_k_guard_end(j.kb, outer);
    v = v ? kva_k_select(j.kb, after, own, v) : own;
  }
  kva_k_store(j.kb, to, kva_expr_add(j.exprs, kva_expr_muli(j.exprs, r->var, n), i->var), v);
  kva_k_loop_end(j.kb, i);
  kva_k_loop_end(j.kb, r);
  jit_compile(&j, false, 0, NULL);
  return j;
}

static uint32_t count(const kva_kernel *k, const char *word) {
  kva_text text = {0};
  uint32_t n = 0;
  kva_kernel_print(k, &text);
  for (const char *at = text.data; (at = strstr(at, word)); at++) n++;
  kva_text_free(&text);
  return n;
}

static void check_joined(const joined *w) {
  void *buffers[MAX_JOINED + 1];
  int64_t n = joined_width(w), first = 0;
  bool whole = true;
  for (int p = 0; p < w->n; p++) {
    whole &= w->widths[p] >= 4;
    buffers[p] = p % 2 ? y : x;
  }
  buffers[w->n] = out;
  jit j = build_joined(w);
  assert_int_equal(count(j.kernel, "vector "), whole ? w->n : 1);
  assert_int_equal(count(j.kernel, "select ") + count(j.kernel, " where "), whole ? 0 : 2 * w->n - 1);
  fill();
  jit_run(&j, buffers, NULL, j.grid);
  for (int p = 0; p < w->n; first += w->widths[p++]) {
    const float *from = buffers[p];
    for (int64_t r = 0; r < JOINED_ROWS; r++)
      for (int64_t i = 0; i < w->widths[p]; i++)
        assert_float_equal(out[r * n + first + i], from[r * w->widths[p] + i], 0);
  }
  jit_destroy(&j);
}

/* A loop for each part, without comparisons; one for all where a part is less than a vector. */
static void test_joined(void **state) {
  (void)state;
  static const joined few[] = {{3, {40, 16, 24}}, {3, {7, 4, 9}}, {3, {40, 3, 24}}};
  for (int c = 0; c < 3; c++) check_joined(&few[c]);
  joined many = {.n = MAX_JOINED};
  for (int p = 0; p < many.n; p++) many.widths[p] = 32;
  check_joined(&many);
}

/* out[r] = row r - 1 of x, sums[r] = its sum; 0 where there is none. Vectors of 4 lanes have no masks: all lanes of a
 * row take zeros instead, and the last two of a row are a vector of their own. */
static void test_missing_rows(void **state) {
  (void)state;
  enum { N = 70, LAST = 9 };
  jit j = jit_create_for("missing", &(kva_target_options){.vector_bits = 128});
  kva_kb *b = j.kb;
  kva_kbuf *px = param(&j, "x", KVA_F32, jit_const(&j, (LAST - 1) * N));
  kva_kbuf *pz = param(&j, "z", KVA_F32, jit_const(&j, (LAST + 1) * N));
  kva_kbuf *sums = param(&j, "sums", KVA_F32, jit_const(&j, LAST + 1));
  kva_kloop *r = kva_k_loop_begin(b, KVA_K_SERIAL, jit_const(&j, LAST + 1), "r");
  kva_kval inside =
      kva_k_and(b, kva_k_index_le(b, jit_const(&j, 1), r->var), kva_k_index_lt(b, r->var, jit_const(&j, LAST)));
  const kva_expr *row = kva_expr_muli(j.exprs, r->var, N), *before = kva_expr_addi(j.exprs, row, -N);
  kva_kloop *i = kva_k_loop_begin(b, KVA_K_VECTOR, jit_const(&j, N), "i");
  kva_kval outer = kva_k_guard_begin(b, inside), v = kva_k_load(b, px, kva_expr_add(j.exprs, before, i->var));
  kva_k_guard_end(b, outer);
  kva_k_store(b, pz, kva_expr_add(j.exprs, row, i->var), v);
  kva_k_loop_end(b, i);
  kva_kloop *k = kva_k_loop_begin(b, KVA_K_SERIAL, jit_const(&j, N), "k");
  kva_kval sum = kva_k_carry(b, k, kva_k_const(b, KVA_F32, 0));
  outer = kva_k_guard_begin(b, inside), v = kva_k_load(b, px, kva_expr_add(j.exprs, before, k->var));
  kva_k_guard_end(b, outer);
  kva_k_carry_next(b, k, sum, kva_k2(b, KVA_K_add, sum, v));
  kva_k_loop_end(b, k);
  kva_k_store(b, sums, r->var, kva_k_carry_result(b, k, sum));
  kva_k_loop_end(b, r);
  jit_compile(&j, true, 0, NULL);
  assert_false(jit_emits(&j, "llvm.masked"));
  assert_true(jit_emits(&j, "<2 x float>"));
  fill();
  float total[LAST + 1];
  jit_run(&j, (void *[]){x, out, total}, NULL, 1);
  for (int at = 0; at <= LAST; at++) {
    float expected = 0;
    for (int c = 0; c < N; c++) {
      float element = at >= 1 && at < LAST ? x[(at - 1) * N + c] : 0;
      assert_float_equal(out[at * N + c], element, 0);
      expected += element;
    }
    assert_float_equal(total[at], expected, 0);
  }
  jit_destroy(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_remainders),    cmocka_unit_test(test_symbolic),
      cmocka_unit_test(test_broadcast),     cmocka_unit_test(test_collapse),
      cmocka_unit_test(test_guard),         cmocka_unit_test(test_guarded_store),
      cmocka_unit_test(test_reductions),    cmocka_unit_test(test_max_of_nan),
      cmocka_unit_test(test_minmax),        cmocka_unit_test(test_softmax),
      cmocka_unit_test(test_scan),          cmocka_unit_test(test_gather),
      cmocka_unit_test(test_types),         cmocka_unit_test(test_dependent_nests),
      cmocka_unit_test(test_equal_kernels), cmocka_unit_test(test_empty_nest),
      cmocka_unit_test(test_stride),        cmocka_unit_test(test_joined),
      cmocka_unit_test(test_missing_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
