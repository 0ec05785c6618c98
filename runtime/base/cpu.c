/* See cpu.h. */
#include "runtime/base/cpu.h"
#include "runtime/base/platform.h"

#include <string.h>

#if defined __x86_64__
#include <cpuid.h>

uint32_t kva_cpu_features(void) {
#define BIT(id, name) | (uint32_t)(__builtin_cpu_supports(name) != 0) << KVA_BIT_##id
  return 0 KVA_X86_FEATURES(BIT);
#undef BIT
}

/* Of bytes and of bfloat16. */
static bool has_tiles(void) {
  enum { BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25, ALL = BF16 | TILE | INT8 };
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL && kva_tiles_permit();
}

#elif defined __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>

uint32_t kva_cpu_features(void) {
  unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  return (first & HWCAP_ASIMDDP ? KVA_CPU_DOTPROD : 0) | (first & HWCAP_FPHP ? KVA_CPU_FULLFP16 : 0) |
         (first & HWCAP_ATOMICS ? KVA_CPU_LSE : 0) | (first & HWCAP_SHA3 ? KVA_CPU_SHA3 : 0) |
         (first & HWCAP_SVE ? KVA_CPU_SVE : 0) | (second & HWCAP2_BF16 ? KVA_CPU_BF16 : 0) |
         (second & HWCAP2_I8MM ? KVA_CPU_I8MM : 0) | (second & HWCAP2_SVE2 ? KVA_CPU_SVE2 : 0);
}

static bool has_tiles(void) {
  return false;
}

#else
uint32_t kva_cpu_features(void) {
  return 0;
}

static bool has_tiles(void) {
  return false;
}
#endif

/* That of the lowest bit; "" for one that a damaged artefact has. */
static const char *name_of(uint32_t features) {
#define NAME(id, name) name "\0"
  const char *at = KVA_CPU_FEATURES(NAME);
#undef NAME
  for (; *at && !(features & 1); features >>= 1) at += strlen(at) + 1;
  return at;
}

kva_status kva_cpu_check(uint32_t needs, const char *target, kva_diag *diag) {
  uint32_t missing = needs & ~kva_cpu_features();
  if (missing & KVA_CPU_AMX_TILE && has_tiles()) missing &= ~(uint32_t)KVA_CPU_AMX_TILE;
  if (!missing) return KVA_OK;
  return kva_fail(diag, KVA_MISSING, NULL,
                  "code for %s does not run on this machine, which has no %s: build for another --target", target,
                  name_of(missing));
}
