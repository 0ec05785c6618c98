/* Loops that reach a machine's peak throughput, one set an instruction set. See loops.h. */
#include "tools/profile/loops.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { BLOCK = KVA_LOOP_BLOCK };

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
  return sum[0]

#define COPY_LOOP(LOAD, STORE, WIDTH)                                \
  for (int64_t i = 0; i < bytes; i += BLOCK)                         \
  _Pragma("GCC unroll 8") for (int64_t j = 0; j < BLOCK; j += WIDTH) \
      STORE((void *)(to + i + j), LOAD((const void *)(from + i + j)))

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
  return all

typedef float vec4 __attribute__((vector_size(16)));

#define FMA(a, x, y) ((a) * (x) + (y))
static float fma_plain(int64_t n) {
  FMA_LOOP(vec4);
}
#undef FMA
static void copy_plain(char *to, const char *from, int64_t bytes) {
  memcpy(to, from, (size_t)bytes);
}

static int32_t read_plain(const char *from, int64_t bytes) {
  READ_LOOP(word4);
}

#if defined(__x86_64__)
#define AVX512 __attribute__((target("avx512f")))
#define AVX2   __attribute__((target("avx2,fma")))

#define VNNI         __attribute__((target("avx512f,avx512vnni")))
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
AVX512 static float fma_avx512(int64_t n) {
  FMA_LOOP(__m512);
}
#undef FMA
AVX512 static void copy_avx512(char *to, const char *from, int64_t bytes) {
  COPY_LOOP(_mm512_load_si512, _mm512_store_si512, 64);
}
AVX512 static void stream_avx512(char *to, const char *from, int64_t bytes) {
  COPY_LOOP(_mm512_load_si512, _mm512_stream_si512, 64);
  _mm_sfence();
}

#define FMA(a, x, y) _mm256_fmadd_ps(a, x, y)
AVX2 static float fma_avx2(int64_t n) {
  FMA_LOOP(__m256);
}
#undef FMA
AVX2 static void copy_avx2(char *to, const char *from, int64_t bytes) {
  COPY_LOOP(_mm256_load_si256, _mm256_store_si256, 32);
}
AVX2 static void stream_avx2(char *to, const char *from, int64_t bytes) {
  COPY_LOOP(_mm256_load_si256, _mm256_stream_si256, 32);
  _mm_sfence();
}

AVX512 static int32_t read_avx512(const char *from, int64_t bytes) {
  READ_LOOP(word16);
}
AVX2 static int32_t read_avx2(const char *from, int64_t bytes) {
  READ_LOOP(word8);
}
#endif

kva_loops kva_find_loops(void) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f"))
    return (kva_loops){
        "AVX-512",     16,         fma_avx512, __builtin_cpu_supports("avx512vnni") ? dot_avx512 : NULL, copy_avx512,
        stream_avx512, read_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return (kva_loops){"AVX2", 8, fma_avx2, NULL, copy_avx2, stream_avx2, read_avx2};
#endif
  return (kva_loops){"128-bit multiply and add", 4, fma_plain, NULL, copy_plain, copy_plain, read_plain};
}
