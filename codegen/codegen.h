/* From planned graphs to machine code. llvm-c stays inside this folder. */
#ifndef KVA_CODEGEN_CODEGEN_H
#define KVA_CODEGEN_CODEGEN_H

#include "codegen/kernels/kernels.h"
#include "ir/kernel.h"
#include "ir/plan.h"
#include "ir/target.h"
#include "ops/ops.h"
#include "runtime/abi.h"

/* What to generate for. */
typedef struct kva_target_options {
  const char *cpu;    /* LLVM name or x86-64 level ("x86-64-v3", "znver4"; an unknown one is an error that lists the
                         known); NULL: the host, with all its features */
  const char *triple; /* another machine than this one: "x86_64-linux-gnu", "aarch64-linux-gnu"; NULL: this one */
  int vector_bits;    /* 0: widest that the cpu has (512, 256, 128) */
  int opt_level;      /* 0..3 of LLVM's code generator; default 2 */
  const char *arch;   /* an NVIDIA GPU: "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"; NULL: a CPU */
  bool library_gemm;  /* GPU: plain matrix products are steps for the device's library (cuBLASLt) */
  const struct kva_cache *cache; /* where compiled code is kept (cache.h); borrowed; NULL: nowhere */
} kva_target_options;

/* What the options mean. Errors: an unknown cpu, triple or arch, with the known ones. */
KVA_MUST_USE kva_status kva_codegen_describe(const kva_target_options *options, kva_diag *diag, kva_target *out_target);

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Lowers a `kv.kernel` node (fused group: its sub-graph holds the nodes) or a single node to unscheduled kernel IR.
 * Parameters: distinct operand values in order of first use in `node`'s operand list, then results. Returns NULL with
 * diagnostics when an operator has no lowering. */
kva_kernel *kva_codegen_lower(kva_arena *arena, const kva_node *node, const kva_target *target);

/* The hand-written kernel that lowering the node takes; *out_operator: the operator that it is for, NULL: the node has
 * none. Without a row in the choice the node cannot be compiled for the target. */
kva_kernel_choice kva_codegen_choose(const kva_node *node, const kva_target *target, const kva_node **out_operator);

/* Schedule for a CPU, in place: collapses adjacent PARALLEL loops, makes the outer ones GRID (exactly one GRID loop
 * remains, outermost; its extent is the number of work items), chooses VECTOR and UNROLL. Idempotent. */
void kva_codegen_schedule_cpu(kva_kernel *k, const kva_target *target);

/* Schedule for a GPU, in place: the GRID loop's items are blocks of k->threads threads, THREAD loops divide work among
 * them. Idempotent. */
void kva_codegen_schedule_gpu(kva_kernel *k, const kva_target *target);

/* The one of the two that the target needs. */
void kva_codegen_schedule(kva_kernel *k, const kva_target *target);

/* Whether this node is a call (runtime/calls.def) instead of a kernel: by its operator, or a product for a library. */
bool kva_codegen_is_call(const kva_target *target, const kva_node *node);

/* Confirms or replaces the plan's in-place proposals (ir/plan.h): the steps that make one are lowered and scheduled for
 * that. The plan is then what the artefact does; settling it again changes nothing. */
KVA_MUST_USE kva_status kva_codegen_settle(kva_arena *arena, kva_memory_plan *plan, const kva_target *target);
/* The same for one step, given its scheduled kernel; NULL: a library runs it. */
void kva_codegen_settle_step(kva_arena *arena, kva_memory_plan *plan, uint32_t step, const kva_kernel *k);

/* Work items of a scheduled kernel (the GRID loop's extent; 1 without one). */
const kva_expr *kva_codegen_grid(const kva_kernel *k);

/* ---- modules of machine code ------------------------------------------------------------------------------------- */

/* A set of kernels being compiled for one target; equal kernels (kva_kernel_encode) are compiled once. */
typedef struct kva_codegen kva_codegen;
KVA_MUST_USE kva_status kva_codegen_create(const kva_target_options *options, kva_diag *diag, kva_codegen **out_cg);
void kva_codegen_destroy(kva_codegen *cg); /* JIT code dies with it */
const kva_target *kva_codegen_target(const kva_codegen *cg);

/* Adds a scheduled kernel; symbols[i] is the shape symbol whose value arrives in the kernel's symbols[i]. Returns the
 * kernel number (an earlier one when equal). */
KVA_MUST_USE kva_status kva_codegen_add(kva_codegen *cg, const kva_kernel *k, uint32_t n_symbols,
                                        const kva_expr *const *symbols, int32_t *out_kernel);
/* The shape symbols that a kernel's code reads, in the order of the text: a list for kva_codegen_add. */
uint32_t kva_codegen_symbols(const kva_kernel *k, kva_arena *arena, const kva_expr *const **out_symbols);
/* Optimises and compiles all added kernels in process. Afterwards kva_codegen_function gives entry points. */
KVA_MUST_USE kva_status kva_codegen_jit(kva_codegen *cg);
/* Whether the code came from the cache, after kva_codegen_jit or kva_codegen_artifact. */
bool kva_codegen_cached(const kva_codegen *cg);
kva_kernel_fn kva_codegen_function(const kva_codegen *cg, int32_t kernel);
int32_t kva_codegen_kernel_count(const kva_codegen *cg);
const char *kva_codegen_kernel_name(const kva_codegen *cg, int32_t kernel);
/* The same module as an ELF object / textual LLVM IR / assembly; for a GPU "llvm" and "ptx". malloc'd; free() it. */
KVA_MUST_USE kva_status kva_codegen_emit(kva_codegen *cg, const char *kind /* "obj", "llvm", "asm", "ptx" */,
                                         char **out_data, size_t *out_size);

/* How a kernel of a GPU is launched: exactly kva_codegen_grid blocks along x (none for 0) of `threads` threads along x.
 * Parameters: a pointer for each buffer, aligned to KVA_GPU_ALIGNMENT bytes, in their order, then an int64 for each
 * symbol given to kva_codegen_add, then each of the kernel's tensor maps (128 bytes, aligned to 64). */
enum { KVA_GPU_ALIGNMENT = 16 };
typedef struct kva_launch {
  uint32_t threads;
  uint32_t shared_bytes;  /* static, declared by the kernel itself */
  uint32_t dynamic_bytes; /* of shared memory that the launch must add */
} kva_launch;
kva_launch kva_codegen_launch(const kva_codegen *cg, int32_t kernel);

/* Compiles planned functions to an artefact whose kernels are JIT code owned by cg, or for a GPU the text of a module,
 * and whose tables live in `arena`.
 * plans[i] becomes programs[i], and is settled; plans that their steps run become internal programs after them. The
 * module's states become the artefact's states. */
KVA_MUST_USE kva_status kva_codegen_artifact(kva_codegen *cg, kva_arena *arena, kva_module *m, uint32_t n_plans,
                                             kva_memory_plan *const *plans, const kva_artifact **out_artifact);

/* The same tables without code of this process: kernels have no fn. They may be changed before they become part of an
 * object. */
KVA_MUST_USE kva_status kva_codegen_tables(kva_codegen *cg, kva_arena *arena, kva_module *m, uint32_t n_plans,
                                           kva_memory_plan *const *plans, kva_artifact **out_artifact);

/* ---- objects ----------------------------------------------------------------------------------------------------- */

typedef struct kva_object_function {
  const char *name; /* in C */
  int32_t program;
  bool binds; /* symbols: <name>_dims gives what they became */
} kva_object_function;

/* What a relocatable object exports beside the tables and kernels, which are local to it:
 *   <prefix>_artifact(), <prefix>_create(), <prefix>_destroy(), <prefix>_error() and, for each of the functions, itself
 *   <name>_arena() and, where it binds symbols, <name>_dims(): see runtime/context.h. */
typedef struct kva_object_options {
  const char *prefix; /* a C identifier */
  uint32_t n_functions;
  const kva_object_function *functions;
  const char *entry; /* main() calls this: int entry(int argc, char **argv, const kva_artifact *, info); or NULL */
  const char *const *info; /* with entry: key, value, ..., NULL */
} kva_object_options;

/* Writes tables of constants with the kernels of cg, or with the GPU code that a and its alternatives hold, as an ELF
 * object. Constants become read-only data, aligned to 64 bytes. cg: for a CPU; afterwards it is only fit to be
 * destroyed, and the object with it. */
KVA_MUST_USE kva_status kva_codegen_object(kva_codegen *cg, const kva_artifact *a, const kva_object_options *options,
                                           const char **out_data, size_t *out_size);

#endif
