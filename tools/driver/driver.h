/* From a module to runnable code: the glue between compiler and runtime, shared by verbs, tests and benchmarks. */
#ifndef KVA_TOOLS_DRIVER_H
#define KVA_TOOLS_DRIVER_H

#include "codegen/codegen.h"
#include "frontend/frontend.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

/* Memory of what will run the programs. */
typedef struct kva_room {
  int64_t whole;              /* bytes; 0: unknown, and nothing is checked */
  int64_t (*available)(void); /* bytes of it that are free now; NULL: unknown */
  const char *what;           /* ", the memory and swap of this machine" */
} kva_room;

typedef struct kva_compile_options {
  bool train;       /* programs "train_step" and "eval" in addition to "main"; requires a train block */
  bool decode;      /* programs "decode" and "step": pass incremental */
  bool decode_only; /* with decode: these alone, without function 0 */
  kva_target_options target;
  kva_pass_options passes;
  kva_room room; /* programs that cannot fit are refused before they are compiled */
} kva_compile_options;

/* Words of options. */
#define KVA_PRECISIONS "f32|bf16|f16"
#define KVA_GEMMS      "library|generated|bf16x3"
#define KVA_MATHS      "exact|relaxed|int8"

/* Processes that share a training step; text for kva_mesh_named. */
#define KVA_MESH_OPTION(text)                                                                               \
  {                                                                                                         \
    "--mesh", NULL, "data=N[,zero=Z][,pipeline=P][,sequence=S][,tensor=M]", KVA_OPTION_STRING, (text),      \
        "divide every batch among N groups of P*S*M processes, which divide layers, rows of sequences and " \
        "parameters; "                                                                                      \
        "started by mpirun -n N*P*S*M"                                                                      \
  }

#define KVA_MATH_OPTION(name)                                                                                 \
  {                                                                                                           \
    "--math", NULL, KVA_MATHS, KVA_OPTION_WORD, (name),                                                       \
        "relaxed: 3x3 convolutions on a CPU by Winograd's transforms; errors of 1e-5 of the largest result. " \
        "int8: that, and what quantised weights multiply is rounded to 8 bits, as llama.cpp does (exact)"     \
  }

#define KVA_CACHES_OPTION(name)                                                                                    \
  {                                                                                                                \
    "--kv-cache", NULL, KVA_PRECISIONS, KVA_OPTION_WORD, (name),                                                   \
        "type of cached keys and values of float: f16 and bf16 take half the memory, and long texts go on faster " \
        "(f32)"                                                                                                    \
  }

/* Name of --precision or --kv-cache: "f32" (or NULL), "bf16", "f16"; *out_compute for kva_pass_options. */
KVA_MUST_USE kva_status kva_precision_named(const char *name, kva_diag *diag, kva_dtype *out_compute);
/* Name of --gemm for target->arch, or a CPU: "generated" (or NULL), of a GPU "library", of a CPU with AMX "bf16x3". */
KVA_MUST_USE kva_status kva_gemm_named(const char *name, kva_diag *diag, kva_target_options *target);
/* Name of --math: "exact" (or NULL), "relaxed", "int8". */
KVA_MUST_USE kva_status kva_math_named(const char *name, kva_diag *diag, kva_target_options *target);
/* A mesh as text, "data=4" or "data=4,zero=2,pipeline=2,sequence=2,tensor=2"; NULL: one process. */
KVA_MUST_USE kva_status kva_mesh_named(const char *text, kva_diag *diag, kva_mesh *out_mesh);
/* Name of --target: "native" (or NULL), a CPU, a triple ("aarch64-linux-gnu"), or a GPU ("sm_80"). */
kva_target_options kva_target_named(const char *name);

/* A module compiled in process. Programs: function 0 under its own name, then "train_step" and "eval". */
typedef struct kva_compiled {
  kva_module *module; /* optimised and fused; owned */
  kva_arena *arena;   /* plans and tables */
  kva_codegen *cg;
  kva_memory_plan **plans;
  uint32_t n_plans;
  const kva_artifact *artifact;
  double pass_seconds, codegen_seconds;
  bool cached; /* the code came from target.cache */
} kva_compiled;

/* Optimises, fuses, plans and compiles m. The result owns m; on failure m is destroyed. */
KVA_MUST_USE kva_status kva_compile(kva_module *m, const kva_compile_options *options, kva_diag *diag,
                                    kva_compiled **out_compiled);
void kva_compiled_destroy(kva_compiled *c);

/* Runs only the passes, without code generation, for `kvasir show`. */
KVA_MUST_USE kva_status kva_compile_graph(kva_module *m, const kva_compile_options *options);
/* Plans the functions that become programs; runs after kva_compile_graph. */
KVA_MUST_USE kva_status kva_plan_functions(kva_module *m, const kva_compile_options *options, kva_arena *arena,
                                           uint32_t *out_n, kva_memory_plan ***out_plans);
/* Fails if a program surely takes more than options->room has, and warns if more than is free of it. */
KVA_MUST_USE kva_status kva_check_room(kva_module *m, uint32_t n, kva_memory_plan *const *plans,
                                       const kva_compile_options *options);

#endif
