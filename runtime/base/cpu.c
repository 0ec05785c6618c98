/* Features of this CPU, by LLVM's names: those that only some of the CPUs have that code can be generated for. Features
 * that come together are one: a CPU with BMI2 has F16C, LZCNT and MOVBE. */
#include "runtime/base/platform.h"

#include <string.h>

typedef struct feature_row {
  const char *name;
  bool present;
} feature_row;

static bool find_present(const feature_row *rows, size_t n, const char *name, size_t length) {
  for (size_t i = 0; i < n; i++)
    if (strlen(rows[i].name) == length && !memcmp(rows[i].name, name, length)) return rows[i].present;
  return false;
}

#if defined __x86_64__
#include <cpuid.h>

/* Of bytes and of bfloat16. */
static bool has_tiles(void) {
  enum { BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25, ALL = BF16 | TILE | INT8 };
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL && kva_tiles_permit();
}

/* Also asks whether the system saves the registers. */
#define ASK(name) \
  { name, __builtin_cpu_supports(name) }

bool kva_cpu_has(const char *feature, size_t length) {
  const feature_row rows[] = {ASK("avx2"),       ASK("avx512bf16"),      ASK("avx512bitalg"), ASK("avx512bw"),
                              ASK("avx512cd"),   ASK("avx512dq"),        ASK("avx512f"),      ASK("avx512ifma"),
                              ASK("avx512vbmi"), ASK("avx512vbmi2"),     ASK("avx512vl"),     ASK("avx512vnni"),
                              ASK("bmi"),        ASK("avx512vpopcntdq"), ASK("bmi2"),         ASK("fma"),
                              ASK("gfni"),       ASK("popcnt"),          ASK("sse4.2"),       ASK("sse4a")};
  bool tiles = length == strlen("amx-tile") && !memcmp(feature, "amx-tile", length);
  return tiles ? has_tiles() : find_present(rows, sizeof rows / sizeof *rows, feature, length);
}

#elif defined __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>

bool kva_cpu_has(const char *feature, size_t length) {
  unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  const feature_row rows[] = {{"bf16", second & HWCAP2_BF16},   {"dotprod", first & HWCAP_ASIMDDP},
                              {"fullfp16", first & HWCAP_FPHP}, {"i8mm", second & HWCAP2_I8MM},
                              {"lse", first & HWCAP_ATOMICS},   {"sve", first & HWCAP_SVE}};
  return find_present(rows, sizeof rows / sizeof *rows, feature, length);
}

#else
bool kva_cpu_has(const char *feature, size_t length) {
  return find_present(NULL, 0, feature, length);
}
#endif

kva_status kva_cpu_check(const char *features, const char *target, kva_diag *diag) {
  for (const char *f = features ? features : ""; *f;) {
    size_t length = strcspn(f, ",");
    if (!kva_cpu_has(f, length))
      return kva_fail(diag, KVA_MISSING, NULL,
                      "code for %s does not run on this machine, which has no %.*s: build for another --target", target,
                      (int)length, f);
    f += length + (f[length] == ',');
  }
  return KVA_OK;
}
