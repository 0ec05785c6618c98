/* kva_peak: the machine's peak throughput, measured beside the programs that are compared with it.
 *
 *   fma          f32 multiply-adds in registers, the CPU's widest vectors, on every thread; 2 flops per lane
 *   dot          sums of four products of bytes likewise, 2 operations each; 0 where the CPU has no AVX-512 VNNI
 *   copy:BYTES   dst = src with plain vector loads and stores, BYTES per stream in total, divided among the threads
 *   stream:BYTES likewise with stores that bypass the cache: the peak for streams that exceed the cache
 *   read:BYTES   plain vector loads alone: the peak for weights
 *
 * The first line gives a call's work: flops (fma, dot) or bytes moved (read, and written but for read). */
#include "tools/bench/serve.h"

#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef enum peak_kind { PEAK_FMA, PEAK_DOT, PEAK_COPY, PEAK_STREAM, PEAK_READ } peak_kind;

typedef struct peak_case {
  peak_kind kind;
  int64_t bytes; /* of one stream */
  char *from, *to;
} peak_case;

typedef struct peak_machine {
  const char *isa;
  int lanes;
  float (*fma)(int64_t n);
  int32_t (*dot)(int64_t n); /* or NULL */
  void (*copy)(char *to, const char *from, int64_t bytes);
  void (*stream)(char *to, const char *from, int64_t bytes);
  int32_t (*read)(const char *from, int64_t bytes);
} peak_machine;

typedef struct peak {
  kva_pool *pool;
  int threads;
  peak_machine machine;
  peak_case *cases;
} peak;

enum { FMA_ROUNDS = 20000, CHAINS = 12, ALIGN = 2 << 20, BLOCK = 256 }; /* 12 chains hide the latency of any FMA unit */

/* ---- loops, one set an instruction set --------------------------------------------------------------------------- */

/* The chains must stay in registers, so they are separate variables, not an array. */
#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define START(i)      a##i += (float)i;
#define STEP(i)       a##i = FMA(a##i, x, y);
#define TOTAL(i)      sum += a##i;
#define FMA_LOOP(V)                                                                 \
  V zero = {0}, x = zero + 0.999f, y = zero + 1e-3f;                                \
  V a0 = zero, a1 = zero, a2 = zero, a3 = zero, a4 = zero, a5 = zero;               \
  V a6 = zero, a7 = zero, a8 = zero, a9 = zero, a10 = zero, a11 = zero, sum = zero; \
  EACH_CHAIN(START)                                                                 \
  for (int64_t i = 0; i < n; i++) {                                                 \
    EACH_CHAIN(STEP)                                                                \
  }                                                                                 \
  EACH_CHAIN(TOTAL)                                                                 \
  return sum[0];

#define COPY_LOOP(LOAD, STORE, WIDTH)                                  \
  for (int64_t i = 0; i < bytes; i += BLOCK)                           \
    _Pragma("GCC unroll 8") for (int64_t j = 0; j < BLOCK; j += WIDTH) \
        STORE((void *)(to + i + j), LOAD((const void *)(from + i + j)));

typedef int32_t word4 __attribute__((vector_size(16)));
typedef int32_t word8 __attribute__((vector_size(32)));
typedef int32_t word16 __attribute__((vector_size(64)));
#define READ_LOOP(V)                                                                  \
  V sum[BLOCK / sizeof(V)] = {0};                                                     \
  for (int64_t i = 0; i < bytes; i += BLOCK)                                          \
    _Pragma("GCC unroll 16") for (size_t j = 0; j < BLOCK / sizeof(V); j++) sum[j] |= \
        *(const V *)(const void *)(from + i + (int64_t)(j * sizeof(V)));              \
  int32_t all = 0;                                                                    \
  for (size_t j = 0; j < BLOCK / sizeof(V); j++)                                      \
    for (size_t k = 0; k < sizeof(V) / 4; k++) all |= sum[j][k];                      \
  return all;

typedef float vec4 __attribute__((vector_size(16)));

#define FMA(a, x, y) ((a) * (x) + (y))
static float fma_plain(int64_t n) {
  FMA_LOOP(vec4)
}
#undef FMA
static void copy_plain(char *to, const char *from, int64_t bytes) {
  memcpy(to, from, (size_t)bytes);
}

static int32_t read_plain(const char *from, int64_t bytes){READ_LOOP(word4)}

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#define AVX2   __attribute__((target("avx2,fma")))

#define VNNI         __attribute__((target("avx512f,avx512vnni,prefer-vector-width=512")))
#define DOT_START(i) __m512i a##i = _mm512_set1_epi32(i);
#define DOT_STEP(i)  a##i = _mm512_dpbusd_epi32(a##i, x, y);
#define DOT_TOTAL(i) sum = _mm512_add_epi32(sum, a##i);
VNNI static int32_t dot_avx512(int64_t n) {
  __m512i sum = _mm512_setzero_si512(), x = _mm512_set1_epi8(3), y = _mm512_set1_epi8((char)(n & 1));
  EACH_CHAIN(DOT_START)
  for (int64_t i = 0; i < n; i++) {
    EACH_CHAIN(DOT_STEP)
  }
  EACH_CHAIN(DOT_TOTAL)
  return _mm512_cvtsi512_si32(sum);
}

#define FMA(a, x, y) _mm512_fmadd_ps(a, x, y)
AVX512 static float fma_avx512(int64_t n){FMA_LOOP(__m512)}
#undef FMA
AVX512 static void copy_avx512(char *to, const char *from,
                               int64_t bytes){COPY_LOOP(_mm512_load_si512, _mm512_store_si512, 64)} AVX512
    static void stream_avx512(char *to, const char *from, int64_t bytes) {
  COPY_LOOP(_mm512_load_si512, _mm512_stream_si512, 64)
  _mm_sfence();
}

#define FMA(a, x, y) _mm256_fmadd_ps(a, x, y)
AVX2 static float fma_avx2(int64_t n){FMA_LOOP(__m256)}
#undef FMA
AVX2 static void copy_avx2(char *to, const char *from,
                           int64_t bytes){COPY_LOOP(_mm256_load_si256, _mm256_store_si256, 32)} AVX2
    static void stream_avx2(char *to, const char *from, int64_t bytes) {
  COPY_LOOP(_mm256_load_si256, _mm256_stream_si256, 32)
  _mm_sfence();
}
AVX512 static int32_t read_avx512(const char *from, int64_t bytes){READ_LOOP(word16)} AVX2 static int32_t
    read_avx2(const char *from, int64_t bytes) {
  READ_LOOP(word8)
}
#endif

static peak_machine find_machine(void) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f"))
    return (peak_machine){
        "AVX-512",     16,         fma_avx512, __builtin_cpu_supports("avx512vnni") ? dot_avx512 : NULL, copy_avx512,
        stream_avx512, read_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return (peak_machine){"AVX2", 8, fma_avx2, NULL, copy_avx2, stream_avx2, read_avx2};
#endif
  return (peak_machine){"128-bit multiply and add", 4, fma_plain, NULL, copy_plain, copy_plain, read_plain};
}

/* ---- one call of a case ------------------------------------------------------------------------------------------ */

typedef struct job {
  const peak *p;
  const peak_case *c;
} job;

static _Thread_local volatile float sink; /* keeps the loops alive */

static void run_fma(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  for (int64_t i = begin; i < end; i++) sink = j->p->machine.fma(FMA_ROUNDS);
}

static void run_dot(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  for (int64_t i = begin; i < end && j->p->machine.dot; i++) sink = (float)j->p->machine.dot(FMA_ROUNDS);
}

static void run_copy(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  void (*copy)(char *, const char *, int64_t) = j->c->kind == PEAK_COPY ? j->p->machine.copy : j->p->machine.stream;
  copy(j->c->to + begin * BLOCK, j->c->from + begin * BLOCK, (end - begin) * BLOCK);
}

static void run_read(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  sink = (float)j->p->machine.read(j->c->from + begin * BLOCK, (end - begin) * BLOCK);
}

static bool run_case(void *user, int i) {
  peak *p = user;
  job j = {p, &p->cases[i]};
  if (j.c->kind == PEAK_FMA || j.c->kind == PEAK_DOT)
    kva_pool_run(p->pool, p->threads, j.c->kind == PEAK_FMA ? run_fma : run_dot, &j);
  else
    kva_pool_run(p->pool, j.c->bytes / BLOCK, j.c->kind == PEAK_READ ? run_read : run_copy, &j);
  return true;
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */

static bool parse_case(const char *text, peak_case *c) {
  bool dot = !strcmp(text, "dot");
  if (dot) c->kind = PEAK_DOT;
  if (dot || !strcmp(text, "fma")) return true;
  bool stream = !strncmp(text, "stream:", 7), read = !strncmp(text, "read:", 5);
  if (!stream && !read && strncmp(text, "copy:", 5) != 0) return false;
  c->kind = stream ? PEAK_STREAM : read ? PEAK_READ : PEAK_COPY;
  c->bytes = (atoll(strchr(text, ':') + 1) + BLOCK - 1) / BLOCK * BLOCK;
  if (c->bytes < BLOCK || c->bytes > (int64_t)1 << 36) return false;
  size_t size = ((size_t)c->bytes + ALIGN - 1) / ALIGN * ALIGN;
  c->from = aligned_alloc(ALIGN, size);
  c->to = aligned_alloc(ALIGN, size);
  if (!c->from || !c->to) return false;
  memset(c->from, 1, size);
  memset(c->to, 2, size);
  return true;
}

static void print_ready(const peak *p, const bench_options *o) {
  printf("{\"ready\": true, \"isa\": \"%s\", \"threads\": %d, \"cases\": [", p->machine.isa, p->threads);
  for (int i = 0; i < o->n_cases; i++) {
    const peak_case *c = &p->cases[i];
    double steps = c->kind == PEAK_FMA ? 1 : c->kind == PEAK_DOT && p->machine.dot ? 4 : 0;
    double flops = 2.0 * steps * FMA_ROUNDS * CHAINS * p->machine.lanes * p->threads;
    printf("%s{\"case\": \"%s\", \"flops\": %.0f, \"bytes\": %lld}", i ? ", " : "", o->cases[i], flops,
           (long long)(c->kind == PEAK_READ ? c->bytes : 2 * c->bytes));
  }
  printf("]}\n");
  fflush(stdout);
}

static int prepare_and_run(peak *p, const bench_options *o) {
  if (!p->pool || !p->cases) return 3;
  for (int i = 0; i < o->n_cases; i++) {
    if (parse_case(o->cases[i], &p->cases[i])) continue;
    fprintf(stderr, "kva_peak: expected fma, dot, copy:BYTES, stream:BYTES or read:BYTES, found %s (or no memory)\n",
            o->cases[i]);
    return 2;
  }
  print_ready(p, o);
  return bench_run(o, run_case, p);
}

int main(int argc, char **argv) {
  bench_options o;
  if (!bench_parse(argc, argv, "CASE: fma, copy:BYTES, stream:BYTES, read:BYTES\n", &o)) return 2;
  peak p = {.pool = kva_pool_create(o.threads),
            .threads = o.threads,
            .machine = find_machine(),
            .cases = calloc((size_t)o.n_cases, sizeof(peak_case))};
  int code = prepare_and_run(&p, &o);
  for (int i = 0; p.cases && i < o.n_cases; i++) {
    free(p.cases[i].from);
    free(p.cases[i].to);
  }
  free(p.cases);
  if (p.pool) kva_pool_destroy(p.pool);
  return code;
}
