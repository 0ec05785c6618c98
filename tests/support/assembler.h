/* ptxas, where there is one: whether it takes PTX, and what it says of registers. */
#ifndef KVA_TESTS_SUPPORT_ASSEMBLER_H
#define KVA_TESTS_SUPPORT_ASSEMBLER_H

#include "runtime/base/base.h"

/* What ptxas -v says of a kernel. */
typedef struct assembled {
  char name[128];
  uint32_t registers, stack, spill_stores, spill_loads; /* the last three in bytes */
} assembled;

bool assembler_found(void);
/* Assembles; false with its words in out_log (may be NULL). out: the first `max` kernels in the order of the log. */
bool assembler_run(const char *text, size_t size, const char *arch, uint32_t max, assembled *out, uint32_t *out_n,
                   kva_text *out_log);
/* Whether the log has one of the notes that say wgmma was serialised or setmaxnreg ignored. */
bool assembler_log_has_trouble(const char *log);
/* A failing assertion if it does not assemble, or with trouble; nothing where there is no ptxas. */
void assert_assembles(const char *text, size_t size, const char *arch);

/* Modules of one architecture as one text, since each start of ptxas takes longer than a small kernel. */
typedef struct joined_ptx {
  kva_arena *arena;
  kva_map *known; /* the modules' texts */
  kva_text text;
} joined_ptx;
/* Adds a module of LLVM's, unless an equal one is there. Its number is added to the names that it defines. */
void joined_ptx_add(joined_ptx *joined, const char *ptx);
void joined_ptx_free(joined_ptx *joined);

/* Classes of a kernel's instructions: tensor cores; loads and stores of shared memory; asynchronous copies; global
 * memory; barriers, fences and waits; special functions and shuffles; float arithmetic; branches; the rest, which is
 * mostly addresses. */
enum {
  MIX_TENSOR,
  MIX_SHARED,
  MIX_COPY,
  MIX_GLOBAL,
  MIX_SYNC,
  MIX_SPECIAL,
  MIX_FLOAT,
  MIX_BRANCH,
  MIX_OTHER,
  MIX_CLASSES
};
#define MIX_NAMES "tensor", "shared", "copy", "global", "sync", "special", "float", "branch", "other"

/* PTX of one kernel: at most `spill` bytes spilled, with 0 no stack, none of those notes; registers within one step of
 * what the hardware allots of the baseline's row for `key`, and the PTX instructions of every class within 10 % of it
 * (tensor cores: no more). The baseline is tests/codegen/gpu_kernels.txt: key, registers, classes in the order above.
 * KVA_UPDATE_BASELINE=1 in the environment writes the row instead. Nothing where there is no ptxas. */
void assert_kernel(const char *key, const char *text, size_t size, const char *arch, uint32_t spill);

#endif
