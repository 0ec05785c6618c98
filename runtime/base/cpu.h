/* Features of CPUs that compiled code may need: those that only some of the CPUs have that code can be generated for,
 * by LLVM's names. One stands for those that come with it: AVX2 for BMI2, F16C, LZCNT and MOVBE; AVX512VL for BW, CD,
 * DQ and F; AVX512VBMI2 for BITALG, IFMA, VBMI and VPOPCNTDQ; AMX_TILE for products of bytes and of bfloat16. */
#ifndef KVA_BASE_CPU_H
#define KVA_BASE_CPU_H

#include "runtime/base/base.h"

#define KVA_X86_FEATURES(X)     \
  X(SSE42, "sse4.2")            \
  X(AVX2, "avx2")               \
  X(AVXVNNI, "avxvnni")         \
  X(FMA, "fma")                 \
  X(GFNI, "gfni")               \
  X(SSE4A, "sse4a")             \
  X(AVX512VL, "avx512vl")       \
  X(AVX512VNNI, "avx512vnni")   \
  X(AVX512VBMI2, "avx512vbmi2") \
  X(AVX512BF16, "avx512bf16")   \
  X(AVX512FP16, "avx512fp16")
#define KVA_AMX_FEATURES(X) X(AMX_TILE, "amx-tile")
#define KVA_AARCH64_FEATURES(X) \
  X(DOTPROD, "dotprod")         \
  X(FULLFP16, "fullfp16")       \
  X(LSE, "lse")                 \
  X(SHA3, "sha3")               \
  X(BF16, "bf16")               \
  X(I8MM, "i8mm")               \
  X(SVE, "sve")                 \
  X(SVE2, "sve2")
#define KVA_CPU_FEATURES(X) KVA_X86_FEATURES(X) KVA_AMX_FEATURES(X) KVA_AARCH64_FEATURES(X)

/* Artefacts contain these numbers: who changes them increments KVA_ABI_VERSION. */
typedef enum kva_cpu_bit {
#define KVA_CPU_BIT(id, name) KVA_BIT_##id,
  KVA_CPU_FEATURES(KVA_CPU_BIT)
#undef KVA_CPU_BIT
} kva_cpu_bit;
enum {
#define KVA_CPU_FEATURE(id, name) KVA_CPU_##id = 1 << KVA_BIT_##id,
  KVA_CPU_FEATURES(KVA_CPU_FEATURE)
#undef KVA_CPU_FEATURE
};

/* The features of this CPU whose registers the system saves, without AMX, which kva_tiles_permit asks for. */
uint32_t kva_cpu_features(void);
/* KVA_MISSING: the CPU lacks one of those that code for `target` needs. */
KVA_MUST_USE kva_status kva_cpu_check(uint32_t needs, const char *target, kva_diag *diag);

#endif
