/* Describes the target that the options, or the host, determine. */
#include "codegen/llvm_internal.h"
#include "runtime/base/cpu.h"
#include "runtime/base/platform.h"
#include "runtime/base/trap.h"

#include <unistd.h>

/* Machines to cross-compile for, each with its baseline CPU. */
typedef struct machine_row {
  const char *triple, *arch, *cpu;
} machine_row;
enum { X86, AARCH64 };
static const machine_row machines[] = {
    [X86] = {"x86_64-linux-gnu", "x86-64", "x86-64"}, [AARCH64] = {"aarch64-linux-gnu", "aarch64", "generic"}};
#if defined __aarch64__
enum { HOST = AARCH64 };
#else
enum { HOST = X86 };
#endif

/* CPUs that code can be generated for by name. LLVM's C interface neither lists its CPUs, nor rejects unknown names,
 * nor says what a CPU has. */
typedef struct cpu_row {
  const char *name;
  int vector_bits;
  uint32_t dots;  /* KVA_TARGET_DOT4, KVA_TARGET_DOT4_SIGNED, KVA_TARGET_DOT2, KVA_TARGET_AMX */
  int machine;    /* index in machines */
  uint32_t needs; /* kva_code.needs */
  int most_ahead; /* kva_target.most_ahead */
} cpu_row;
#define SIGNED KVA_TARGET_DOT4_SIGNED
#define DOTS   (KVA_TARGET_DOT4 | KVA_TARGET_DOT4_SIGNED)
/* Of CPUs with AVX512_BF16. Measured on Zen 5: as many vdpbf16ps as FMAs in a time, so twice the products. On Intel's
 * FMAs of converted elements are no slower; those have AMX. */
#define ZEN (KVA_TARGET_DOT4 | KVA_TARGET_DOT2)
#define V2  KVA_CPU_SSE42
#define V3  (V2 | KVA_CPU_AVX2 | KVA_CPU_FMA)
#define V4  (V3 | KVA_CPU_AVX512VL)
#define ICE (V4 | KVA_CPU_AVX512VNNI | KVA_CPU_AVX512VBMI2 | KVA_CPU_GFNI)
#define SPR (ICE | KVA_CPU_AMX_TILE | KVA_CPU_AVX512BF16 | KVA_CPU_AVX512FP16 | KVA_CPU_AVXVNNI)
#define A76 (KVA_CPU_DOTPROD | KVA_CPU_FULLFP16 | KVA_CPU_LSE)
#define V1  (A76 | KVA_CPU_BF16 | KVA_CPU_I8MM | KVA_CPU_SVE)
/* The CPU itself is ahead of a stream; 2 KiB and more take its place and are slower (docs/performance.md). */
#define ZEN4_AHEAD 512
static const cpu_row cpus[] = {
    {"x86-64", 128, 0, X86, 0, 0},
    {"x86-64-v2", 128, 0, X86, V2, 0},
    {"x86-64-v3", 256, 0, X86, V3, 0},
    {"x86-64-v4", 512, 0, X86, V4, 0},
    {"haswell", 256, 0, X86, V3, 0},
    {"skylake", 256, 0, X86, V3, 0},
    {"skylake-avx512", 512, 0, X86, V4, 0},
    {"cascadelake", 512, KVA_TARGET_DOT4, X86, V4 | KVA_CPU_AVX512VNNI, 0},
    {"icelake-server", 512, KVA_TARGET_DOT4, X86, ICE, 0},
    {"sapphirerapids", 512, KVA_TARGET_DOT4 | KVA_TARGET_AMX, X86, SPR, 0},
    {"alderlake", 256, KVA_TARGET_DOT4, X86, V3 | KVA_CPU_AVXVNNI | KVA_CPU_GFNI, 0},
    {"znver1", 256, 0, X86, V3 | KVA_CPU_SSE4A, 0},
    {"znver2", 256, 0, X86, V3 | KVA_CPU_SSE4A, 0},
    {"znver3", 256, 0, X86, V3 | KVA_CPU_SSE4A, 0},
    {"znver4", 512, ZEN, X86, ICE | KVA_CPU_AVX512BF16 | KVA_CPU_SSE4A, ZEN4_AHEAD},
    {"znver5", 512, ZEN, X86, ICE | KVA_CPU_AVX512BF16 | KVA_CPU_AVXVNNI | KVA_CPU_SSE4A, 0},
    {"cortex-a72", 128, 0, AARCH64, 0, 0},
    {"cortex-a76", 128, SIGNED, AARCH64, A76, 0},
    {"neoverse-n1", 128, SIGNED, AARCH64, A76, 0},
    {"apple-m1", 128, SIGNED, AARCH64, A76 | KVA_CPU_SHA3, 0},
    {"neoverse-v1", 128, DOTS, AARCH64, V1 | KVA_CPU_SHA3, 0},
    {"neoverse-n2", 128, DOTS, AARCH64, V1 | KVA_CPU_SVE2, 0},
};

static const cpu_row *find_cpu(const char *name) {
  for (size_t i = 0; name && i < sizeof cpus / sizeof *cpus; i++)
    if (!strcmp(cpus[i].name, name)) return &cpus[i];
  return NULL;
}

static kva_status check_cpu(const char *name, kva_diag *diag) {
  if (!name || find_cpu(name)) return KVA_OK;
  kva_text known = {0};
  for (size_t i = 0; i < sizeof cpus / sizeof *cpus; i++) kva_text_add(&known, "%s%s", i ? ", " : "", cpus[i].name);
  kva_status status = kva_error(diag, NULL, "no CPU is called '%s'; there are: %s", name, known.data);
  kva_text_free(&known);
  return status;
}

const char *kva_codegen_triple(const char *cpu) {
  const cpu_row *row = find_cpu(cpu);
  return row && row->machine != HOST ? machines[row->machine].triple : NULL;
}

/* By the triple, the CPU, or the host. */
static kva_status find_machine(const kva_target_options *o, kva_diag *diag, const machine_row **out_row) {
  const cpu_row *cpu = find_cpu(o->cpu);
  *out_row = &machines[cpu ? cpu->machine : HOST];
  if (!o->triple) return KVA_OK;
  for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
    if (strcmp(machines[i].triple, o->triple) != 0) continue;
    if (cpu && *out_row != &machines[i])
      return kva_error(diag, NULL, "CPU '%s' is of %s, not of %s", o->cpu, (*out_row)->triple, o->triple);
    *out_row = &machines[i];
    return KVA_OK;
  }
  return kva_error(diag, NULL, "no machine is called '%s'; there are: %s, %s", o->triple, machines[0].triple,
                   machines[1].triple);
}

/* Host features take precedence; a named CPU has none. */
static int widest_vector(const char *cpu, const char *features) {
  const cpu_row *row = *features ? NULL : find_cpu(cpu);
  if (row) return row->vector_bits;
  return strstr(features, "+avx512vl") ? 512 : strstr(features, "+avx2") ? 256 : 128;
}

/* As widest_vector. With 512 bits the instruction has a form for each length of vectors; with 256, two. */
static bool has_dot4(const char *cpu, const char *features) {
  const cpu_row *row = *features ? NULL : find_cpu(cpu);
  if (row) return row->dots & KVA_TARGET_DOT4;
  bool wide = strstr(features, "+avx512vl") && strstr(features, "+avx512vnni");
  return wide || (!strstr(features, "+avx512vl") && strstr(features, "+avxvnni"));
}

/* The host needs the feature, and to be a CPU on which it pays. */
static bool has_dot2(const char *cpu, const char *features) {
  const cpu_row *row = find_cpu(cpu);
  bool present = !*features || (strstr(features, "+avx512vl") && strstr(features, "+avx512bf16"));
  return row && row->dots & KVA_TARGET_DOT2 && present;
}

/* A virtual machine may be without, and the system must permit it. */
static bool has_amx(const char *cpu, const char *features) {
  const cpu_row *row = *features ? NULL : find_cpu(cpu);
  if (row) return row->dots & KVA_TARGET_AMX;
  bool present = strstr(features, "+amx-tile") && strstr(features, "+amx-bf16") && strstr(features, "+amx-int8");
  return present && kva_tiles_permit();
}

/* LLVM may not read all features of the host, but has those of a CPU whose name it knows. */
static uint32_t aarch64_features(const kva_cg_cpu *cpu) {
  const cpu_row *row = find_cpu(cpu->name);
  uint32_t features = KVA_TARGET_FMA | KVA_TARGET_ADD_PAIRS | (row ? row->dots : 0);
  if (strstr(cpu->features, "+dotprod")) features |= KVA_TARGET_DOT4_SIGNED;
  return strstr(cpu->features, "+i8mm") ? features | KVA_TARGET_DOT4 : features;
}

/* narrow: vectors are no longer than the CPU's. */
static uint32_t x86_features(const kva_cg_cpu *cpu, bool fma, bool narrow) {
  uint32_t features = fma ? KVA_TARGET_FMA : 0;
  if (!narrow) return features;
  features |= KVA_TARGET_PAIRS;
  if (widest_vector(cpu->name, cpu->features) >= 512) features |= KVA_TARGET_SCALEF;
  if (has_dot4(cpu->name, cpu->features)) features |= KVA_TARGET_DOT4;
  if (has_dot2(cpu->name, cpu->features)) features |= KVA_TARGET_DOT2;
  return has_amx(cpu->name, cpu->features) ? features | KVA_TARGET_AMX : features;
}

enum { COMMON_L2 = 512 << 10, COMMON_CORES = 8 };

static int64_t of_this_machine(int name, int64_t otherwise) {
  long n = sysconf(name);
  return n > 0 ? n : otherwise;
}

static int cores_of_this_machine(void) {
  int64_t n = of_this_machine(_SC_NPROCESSORS_ONLN, COMMON_CORES);
  return n < KVA_MAX_CORES ? (int)n : KVA_MAX_CORES;
}

/* LLVM does not check the memory of its C strings: NULL is one that found none. */
static char *own_string(kva_arena *arena, char *llvm_string) {
  if (!llvm_string) kva_fatal_memory("out of memory: LLVM asked for a string");
  char *copy = kva_arena_strdup(arena, llvm_string);
  LLVMDisposeMessage(llvm_string);
  return copy;
}

/* The host's own cache size and cores; for other machines common ones, so that builds do not depend on the building
 * machine. */
static void describe_cpu(const kva_target_options *options, const machine_row *row, const kva_cg_cpu *cpu,
                         kva_target *out) {
  bool is_x86 = row == &machines[X86], own = !options->cpu && !options->triple;
  int widest = is_x86 ? widest_vector(cpu->name, cpu->features) : 128;
  int bits = options->vector_bits ? options->vector_bits : widest;
  const cpu_row *known = find_cpu(cpu->name);
  bool fma = own ? strstr(cpu->features, "+fma") != NULL : widest >= 256;
  *out = (kva_target){.kind = KVA_TARGET_CPU,
                      .features = is_x86 ? x86_features(cpu, fma, bits <= widest) : aarch64_features(cpu),
                      .vector_bytes = bits / 8,
                      .vector_registers = bits == 512 || !is_x86 ? 32 : 16,
                      .l2_bytes = own ? of_this_machine(_SC_LEVEL2_CACHE_SIZE, COMMON_L2) : COMMON_L2,
                      .most_ahead = known ? known->most_ahead : 0,
                      .cores = own ? cores_of_this_machine() : COMMON_CORES};
  snprintf(out->description, sizeof out->description, "%s %s %d-bit", row->arch, cpu->name, bits);
}

kva_status kva_cg_describe_cpu(const kva_target_options *options, kva_arena *arena, kva_diag *diag, kva_cg_cpu *out_cpu,
                               kva_target *out_target) {
  bool own = !options->cpu && !options->triple;
  const machine_row *row;
  KVA_TRY(check_cpu(options->cpu, diag));
  KVA_TRY(find_machine(options, diag, &row));
  out_cpu->foreign = row != &machines[HOST];
  out_cpu->name =
      own ? own_string(arena, LLVMGetHostCPUName()) : kva_arena_strdup(arena, options->cpu ? options->cpu : row->cpu);
  out_cpu->features = own ? own_string(arena, LLVMGetHostCPUFeatures()) : "";
  out_cpu->triple = own_string(arena, options->triple || out_cpu->foreign ? LLVMNormalizeTargetTriple(row->triple)
                                                                          : LLVMGetDefaultTargetTriple());
  describe_cpu(options, row, out_cpu, out_target);
  const cpu_row *named = own ? NULL : find_cpu(out_cpu->name);
  uint32_t tiles = kva_target_has(out_target, KVA_TARGET_AMX) ? KVA_CPU_AMX_TILE : 0;
  out_cpu->needs = named ? named->needs : own ? kva_cpu_features() | tiles : 0;
  out_target->relaxed_math = options->relaxed_math;
  out_target->byte_math = options->byte_math;
  out_target->bf16x3_gemm = options->bf16x3_gemm;
  if (!options->bf16x3_gemm || kva_target_has(out_target, KVA_TARGET_AMX)) return KVA_OK;
  return kva_error(diag, NULL, "gemm bf16x3 needs a CPU with AMX, which %s has not", out_cpu->name);
}

static kva_status unknown_gpu(kva_diag *diag, const char *name) {
  uint32_t n;
  const kva_target *gpus = kva_target_gpus(&n);
  kva_text known = {0};
  for (uint32_t i = 0; i < n; i++) kva_text_add(&known, "%s%s", i ? ", " : "", gpus[i].arch);
  kva_status status = kva_error(diag, NULL, "no GPU architecture is called '%s'; there are: %s", name, known.data);
  kva_text_free(&known);
  return status;
}

kva_status kva_cg_describe_gpu(const kva_target_options *options, kva_diag *diag, kva_target *out_target) {
  const kva_target *known = kva_target_gpu(options->arch);
  KVA_TRY(check_cpu(options->cpu, diag));
  if (!known) return unknown_gpu(diag, options->arch);
  *out_target = *known;
  out_target->library_gemm = options->library_gemm;
  return KVA_OK;
}

kva_status kva_codegen_describe(const kva_target_options *options, kva_diag *diag, kva_target *out_target) {
  if (options->arch) return kva_cg_describe_gpu(options, diag, out_target);
  kva_cg_cpu cpu;
  kva_arena *scratch = kva_arena_create();
  kva_status status = kva_cg_describe_cpu(options, scratch, diag, &cpu, out_target);
  kva_arena_destroy(scratch);
  return status;
}
