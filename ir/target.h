/* The machine that code is generated for, as data. Passes, lowering, hand-written kernels and schedules use these
 * fields; nothing compares names of architectures. Fields that a kind of machine does not have are 0. */
#ifndef KVA_IR_TARGET_H
#define KVA_IR_TARGET_H

#include "runtime/base/base.h"

typedef enum kva_target_kind { KVA_TARGET_CPU, KVA_TARGET_GPU } kva_target_kind;

typedef enum kva_target_feature {
  KVA_TARGET_FMA = 1 << 0,           /* one instruction multiplies and adds with one rounding */
  KVA_TARGET_TENSOR_MAPS = 1 << 1,   /* GPU: one thread copies boxes of tensors to shared memory */
  KVA_TARGET_WARPGROUP_MMA = 1 << 2, /* GPU: four warps multiply matrices in shared memory */
  KVA_TARGET_STORE_MATRIX = 1 << 3,  /* GPU: a subgroup stores fragments of matrices to shared memory */
  KVA_TARGET_DOT4 = 1 << 4,          /* CPU: dot4 of the kernel IR is one instruction */
  KVA_TARGET_PAIRS = 1 << 5,         /* x86: an instruction multiplies 16-bit elements and adds pairs of products */
  KVA_TARGET_CLUSTERS = 1 << 6,      /* GPU: blocks start together, and read each other's shared memory */
  KVA_TARGET_SCALEF = 1 << 7,        /* x86: scalef of the kernel IR is one instruction */
  KVA_TARGET_ADD_PAIRS = 1 << 8,     /* aarch64: an instruction adds pairs of 16-bit elements to 32-bit ones */
  KVA_TARGET_DOT4_SIGNED = 1 << 9,   /* aarch64: as DOT4, of bytes with sign by bytes with sign */
  KVA_TARGET_DOT2 = 1 << 10,         /* x86: dot2 of the kernel IR is one instruction, and faster than two FMAs */
  KVA_TARGET_AMX = 1 << 11,          /* x86: products of tiles in registers (ir/dialect_amx.h) */
} kva_target_feature;

enum { KVA_MAX_CORES = 16 }; /* that a kernel is cut for */

typedef struct kva_target {
  kva_target_kind kind;
  char description[64]; /* for people: "x86-64 znver5 512-bit", "sm_80" */
  const char *arch;     /* GPU: name of the row, as artefacts carry it; never compare it */
  uint32_t features;    /* KVA_TARGET_... */
  int vector_bytes;     /* of a vector register; GPU: of a thread's widest memory access */
  int vector_registers; /* vector registers that a loop may fill; GPU: those of a thread, which are narrower, as many as
                           leave room for other threads */
  int64_t l2_bytes;     /* CPU: L2 cache of a core */
  int64_t most_ahead;   /* CPU: bytes further on in one stream whose fetching disturbs the CPU's own; 0: none known */
  int cores;            /* CPU: that are to have items of a kernel. Results do not depend on it */
  int subgroup_width;   /* GPU: threads that run together (a warp) */
  int multiprocessors;  /* GPU: that a grid keeps busy. Sums over blocks depend on it: see target.c */
  uint32_t registers;   /* GPU: 32-bit registers of a multiprocessor */
  uint32_t shared_bytes; /* GPU: limit of shared memory per block */
  uint32_t row_bytes;    /* GPU: shared memory that a block may use to keep a long row */
  int generated_rows;    /* GPU: products of so many rows of floats take no longer generated than in the library */
  int generated_rows_16; /* the same of 16-bit types (docs/gpu-results.md) */
  /* Choices, not facts. */
  bool library_gemm; /* GPU: plain matrix products are calls of the device's library */
  bool bf16x3_gemm;  /* CPU with AMX: matrix products of float take it, each float as three bf16 */
  bool relaxed_math; /* CPU: convolutions may add up in ways that need fewer products (passes/layout_winograd.c) */
  bool byte_math;    /* CPU: factors of quantised weights may be rounded to bytes (passes/opt_bytes.c) */
} kva_target;

static inline bool kva_target_has(const kva_target *t, uint32_t features) {
  return (t->features & features) == features;
}

/* CPU: one or two instructions add four products of bytes to a sum; others take bytes apart for it. */
static inline bool kva_target_sums_bytes(const kva_target *t) {
  return t->features & (KVA_TARGET_DOT4 | KVA_TARGET_DOT4_SIGNED);
}

/* Lanes of `type` in a vector register, at least one. */
static inline int64_t kva_target_lanes(const kva_target *t, kva_dtype type) {
  int64_t lanes = t->vector_bytes * 8 / kva_dtype_bits(type);
  return lanes < 1 ? 1 : lanes;
}

/* One instruction looks up a float for each lane in a table of 2^bits that a vector register holds: vpermps of x86. It
 * takes the lowest bits of a lane of 32 for the number, whatever the others are. */
static inline bool kva_target_looks_up(const kva_target *t, int64_t bits) {
  return kva_target_has(t, KVA_TARGET_PAIRS) && kva_target_lanes(t, KVA_F32) >= INT64_C(1) << bits;
}

/* The known GPU architectures, oldest first, *out_n of them; valid for the life of the process. */
const kva_target *kva_target_gpus(uint32_t *out_n);
/* The architecture of this name ("sm_90a"); NULL: none. */
const kva_target *kva_target_gpu(const char *arch);

#endif
