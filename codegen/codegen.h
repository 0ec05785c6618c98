/* From planned graphs to machine code. llvm-c stays inside this folder. */
#ifndef KVA_CODEGEN_CODEGEN_H
#define KVA_CODEGEN_CODEGEN_H

#include "codegen/kernels/kernels.h"
#include "ir/kernel.h"
#include "ir/pass.h"
#include "ir/plan.h"
#include "ir/target.h"
#include "ops/ops.h"
#include "runtime/abi.h"

/* The target to generate code for. */
typedef struct kva_target_options {
  const char *cpu;    /* LLVM name or x86-64 level ("x86-64-v3", "znver4", "neoverse-n1"; an unknown one is an error
                         that lists the known); NULL: the host, with all its features, or any CPU of the triple */
  const char *triple; /* a machine other than the host: "x86_64-linux-gnu", "aarch64-linux-gnu"; NULL: the CPU's */
  int vector_bits;    /* 512, 256 or 128; 0: the widest of the cpu */
  int opt_level;      /* 0..3 of LLVM's code generator; default 2 */
  const char *arch;   /* an NVIDIA GPU: "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"; NULL: a CPU */
  bool library_gemm;  /* GPU: plain matrix products are calls of the device's library (cuBLASLt) */
  bool bf16x3_gemm;   /* CPU: kva_target.bf16x3_gemm; an error without AMX */
  bool relaxed_math;  /* CPU: kva_target.relaxed_math */
  bool byte_math;     /* CPU: kva_target.byte_math */
  bool in_process;    /* CPU: kernels only run here (kva_codegen_jit) and are never written; threads compile them */
  kva_pass_control *control;     /* how passes over kernels run; borrowed; NULL: the default */
  const struct kva_cache *cache; /* stores compiled code (cache.h); borrowed; NULL: no cache */
} kva_target_options;

/* Describes the target of these options. Errors: an unknown cpu, triple or arch; the message lists the known ones. */
KVA_MUST_USE kva_status kva_codegen_describe(const kva_target_options *options, kva_diag *diag, kva_target *out_target);

/* The triple of the machine that this CPU is of; NULL: it is of this machine, or no CPU has the name. */
const char *kva_codegen_triple(const char *cpu);

/* Makes an allocation of LLVM that fails one of the compiler's own (kva_fatal), instead of an abort. Sets handlers of
 * the whole process, that of C++'s operator new too: for programs that are nothing but the compiler. */
void kva_codegen_catch_memory_errors(void);

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Lowers a `kv.kernel` node (a fused group; its sub-graph holds the nodes) or a single node to unscheduled kernel IR.
 * Parameters: distinct operand values in order of first use in `node`'s operand list, then results. Returns NULL with
 * diagnostics if an operator has no lowering. */
kva_kernel *kva_codegen_lower(kva_arena *arena, const kva_node *node, const kva_target *target);

/* Whether two nodes of a module are lowered to the same kernel, known without lowering them: they are equal
 * (kva_node_equal) and read the same numbers, the constants that become immediates. Of other operands lowering sees the
 * types alone. */
bool kva_codegen_lower_equally(const kva_node *left, const kva_node *right);

/* The hand-written kernel that lowering the node takes; *out_operator: the operator that it is for, NULL: the node has
 * none. Without a row in the choice the node cannot be compiled for the target. */
kva_kernel_choice kva_codegen_choose(const kva_node *node, const kva_target *target, const kva_node **out_operator);

/* What passes over kernels work on (passes.def, pipeline.c). */
typedef struct kva_kernel_job {
  kva_arena *arena;     /* of the kernel */
  const kva_node *node; /* what pass lower lowers; NULL: the kernel is given */
  const kva_target *target;
  kva_pass_control *control; /* may be NULL */
  kva_diag *diag;
  kva_kernel *kernel; /* NULL before pass lower */
} kva_kernel_job;

typedef enum kva_kernel_pass {
#define PASS(name, ...) KVA_KERNEL_PASS_##name,
#include "codegen/passes.def"
} kva_kernel_pass;

extern const kva_pass_level kva_kernel_level;

/* Runs one pass of the level; see kva_pass_run. */
KVA_MUST_USE kva_status kva_run_kernel_pass(kva_kernel_job *job, const kva_pass *pass);

/* Schedules the job's kernel in place. For a CPU: merges adjacent PARALLEL loops, makes the outer ones GRID (exactly
 * one GRID loop remains, outermost; its extent is the number of work items), chooses VECTOR and UNROLL. For a GPU: the
 * GRID loop's items are blocks of k->threads threads, THREAD loops divide work among them. Idempotent. */
KVA_MUST_USE kva_status kva_schedule_job(kva_kernel_job *job);

/* The scheduled kernel of a node. KVA_UNSUPPORTED with diagnostics when an operator has no lowering. control: how
 * passes run; may be NULL. */
KVA_MUST_USE kva_status kva_codegen_kernel(kva_arena *arena, const kva_node *node, const kva_target *target,
                                           kva_pass_control *control, kva_kernel **out_kernel);

/* Scheduled kernels of the nodes of one module for one target. Nodes that are lowered equally, as those of equal layers
 * are, share one. */
typedef struct kva_kernel_set kva_kernel_set;
/* control: how passes run; may be NULL. Both are borrowed. */
kva_kernel_set *kva_kernel_set_create(const kva_target *target, kva_pass_control *control);
void kva_kernel_set_destroy(kva_kernel_set *set); /* with its kernels */
/* kva_codegen_kernel, or an earlier result of it. The set owns the kernel. */
KVA_MUST_USE kva_status kva_kernel_set_get(kva_kernel_set *set, const kva_node *node, const kva_kernel **out_kernel);

/* Whether some loop has a kind that only schedules, or kernels written by hand, have. */
bool kva_codegen_is_scheduled(const kva_kernel *k);
/* Schedules a kernel that was written by hand, and asserts that it stays valid. */
void kva_codegen_schedule(kva_kernel *k, const kva_target *target);

/* Whether this node is a call (runtime/calls.def) instead of a kernel: by its operator, or a product for a library. */
bool kva_codegen_is_call(const kva_target *target, const kva_node *node);

/* Name of the kernel of a node. */
const char *kva_codegen_kernel_name_of(const kva_node *node);

/* Confirms or replaces the plan's in-place proposals (ir/plan.h): lowers and schedules the steps that make one.
 * Afterwards the plan describes what the artefact does; settling it again changes nothing. */
KVA_MUST_USE kva_status kva_codegen_settle(kva_arena *arena, kva_memory_plan *plan, const kva_target *target);
/* The same for one step, given its scheduled kernel; NULL: a library runs the step. */
void kva_codegen_settle_step(kva_arena *arena, kva_memory_plan *plan, uint32_t step, const kva_kernel *k);

/* Work items of a scheduled kernel: the GRID loop's extent, 1 without one. */
const kva_expr *kva_codegen_grid(const kva_kernel *k);

/* ---- modules of machine code ------------------------------------------------------------------------------------- */

/* A set of kernels being compiled for one target; equal kernels (kva_kernel_encode) are compiled once. */
typedef struct kva_codegen kva_codegen;
KVA_MUST_USE kva_status kva_codegen_create(const kva_target_options *options, kva_diag *diag, kva_codegen **out_cg);
void kva_codegen_destroy(kva_codegen *cg); /* JIT code dies with it */
const kva_target *kva_codegen_target(const kva_codegen *cg);
/* What the CPU must have: kva_code.needs. */
uint32_t kva_codegen_needs(const kva_codegen *cg);
kva_pass_control *kva_codegen_control(const kva_codegen *cg);

/* Adds a scheduled kernel; symbols[i] is the shape symbol whose value the kernel receives as its i-th symbol.
 * *out_kernel is the kernel's number, an earlier one if an equal kernel was added before; of a CPU's kernels those are
 * equal, too, that differ in what symbols are called. */
KVA_MUST_USE kva_status kva_codegen_add(kva_codegen *cg, const kva_kernel *k, uint32_t n_symbols,
                                        const kva_expr *const *symbols, int32_t *out_kernel);
/* The shape symbols that a kernel's code reads, in text order: a list for kva_codegen_add. */
uint32_t kva_codegen_symbols(const kva_kernel *k, kva_arena *arena, const kva_expr *const **out_symbols);
/* Optimises and compiles all added kernels in process. Afterwards kva_codegen_function gives entry points. */
KVA_MUST_USE kva_status kva_codegen_jit(kva_codegen *cg);
/* The code came from the cache. Valid after kva_codegen_jit or kva_codegen_artifact. */
bool kva_codegen_cached(const kva_codegen *cg);
kva_kernel_fn kva_codegen_function(const kva_codegen *cg, int32_t kernel);
int32_t kva_codegen_kernel_count(const kva_codegen *cg);
const char *kva_codegen_kernel_name(const kva_codegen *cg, int32_t kernel);
/* Emits the module as an ELF object, textual LLVM IR or assembly; for a GPU "llvm" or "ptx". The caller frees *out_data
 * with free(). */
KVA_MUST_USE kva_status kva_codegen_emit(kva_codegen *cg, const char *kind /* "obj", "llvm", "asm", "ptx" */,
                                         char **out_data, size_t *out_size);

/* Launch of a GPU kernel: exactly kva_codegen_grid blocks along x (no launch for 0) of `threads` threads along x; fewer
 * where blocks cooperate, see kva_kernel_desc.
 * Parameters: a pointer to each buffer, aligned to KVA_GPU_ALIGNMENT bytes, in order, then an int64 for each symbol
 * given to kva_codegen_add, then each of the kernel's tensor maps (128 bytes, aligned to 64). */
enum { KVA_GPU_ALIGNMENT = 16 };
/* Loads of a CPU's lanes that are so many elements apart, or fewer, are vector accesses. */
enum { KVA_NEAR_STRIDE = 4 };
typedef struct kva_launch {
  uint32_t threads;
  uint32_t shared_bytes;  /* static, declared by the kernel */
  uint32_t dynamic_bytes; /* additional shared memory that the launch must request */
  uint32_t cooperating;   /* kva_kernel_desc.cooperating */
} kva_launch;
kva_launch kva_codegen_launch(const kva_codegen *cg, int32_t kernel);

/* Compiles planned functions to an artefact whose kernels are JIT code owned by cg, or for a GPU the text of a module,
 * and whose tables live in `arena`.
 * plans[i] becomes programs[i], and is settled; plans that their steps run become internal programs after them. The
 * module's states become the artefact's states. */
KVA_MUST_USE kva_status kva_codegen_artifact(kva_codegen *cg, kva_arena *arena, kva_module *m, uint32_t n_plans,
                                             kva_memory_plan *const *plans, const kva_artifact **out_artifact);

/* The same tables without JIT code: kernels have no fn. The caller may change them before they become part of an
 * object. */
KVA_MUST_USE kva_status kva_codegen_tables(kva_codegen *cg, kva_arena *arena, kva_module *m, uint32_t n_plans,
                                           kva_memory_plan *const *plans, kva_artifact **out_artifact);

/* ---- objects ----------------------------------------------------------------------------------------------------- */

typedef struct kva_object_function {
  const char *name; /* in C */
  int32_t program;
  bool binds; /* has symbols whose values <name>_dims returns */
} kva_object_function;

/* Symbols that a relocatable object exports; tables and kernels are local to it:
 *   <prefix>_artifact(), <prefix>_create(), <prefix>_destroy(), <prefix>_error() and, for each function, itself,
 *   <name>_arena() and, if it binds symbols, <name>_dims(): see runtime/context.h. */
typedef struct kva_object_options {
  const char *prefix; /* a C identifier */
  uint32_t n_functions;
  const kva_object_function *functions;
  const char *entry; /* main() calls int entry(int argc, char **argv, const kva_artifact *, info); NULL: no main */
  const char *const *info; /* with entry: key, value, ..., NULL */
} kva_object_options;

/* Writes an ELF object with the tables and either the kernels of cg or the GPU code that a and its alternatives hold.
 * Constants become read-only data, aligned to 64 bytes. cg is for a CPU; afterwards it may only be destroyed, which
 * frees the object, too. */
KVA_MUST_USE kva_status kva_codegen_object(kva_codegen *cg, const kva_artifact *a, const kva_object_options *options,
                                           const char **out_data, size_t *out_size);

#endif
