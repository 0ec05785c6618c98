/* Shared by the llvm_*.c files, the only ones that include llvm-c. */
#ifndef KVA_CODEGEN_LLVM_INTERNAL_H
#define KVA_CODEGEN_LLVM_INTERNAL_H

#include "codegen/codegen.h"

#include <llvm-c/Core.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/TargetMachine.h>

typedef struct kva_cg_kernel {
  const char *name;  /* symbol in the module */
  kva_kernel_fn fn;  /* after kva_codegen_jit */
  kva_launch launch; /* for a GPU */
} kva_cg_kernel;

/* Kernels that LLVM compiles together. No two modules share one of its objects, so threads may compile them at once. */
typedef struct kva_cg_module {
  const kva_codegen *cg;
  kva_diag *diag; /* borrowed: cg's, or the one of a thread */
  LLVMContextRef ctx;
  LLVMModuleRef ir;
  LLVMBuilderRef builder;
  LLVMTargetMachineRef machine;
  LLVMTargetDataRef layout;
  size_t bytes; /* of the encodings of its kernels */
  bool optimized;
  bool cached; /* the code came from the cache */
  bool broken; /* after a fatal error inside LLVM: its objects must not be touched again */
} kva_cg_module;

struct kva_codegen {
  kva_diag *diag; /* borrowed */
  kva_arena *arena;
  kva_target target;
  int opt_level;
  LLVMTargetRef llvm_target;
  const char *triple, *cpu, *features;
  uint32_t needs;                /* kva_code.needs */
  bool foreign;                  /* for a CPU of another kind of machine than the host */
  bool in_process;               /* kva_target_options.in_process */
  kva_pass_control *control;     /* borrowed, or NULL */
  const struct kva_cache *cache; /* borrowed, or NULL */
  kva_cg_module *module;         /* gets what is added; the last of the modules */
  KVA_VEC(kva_cg_module *) modules;
  LLVMOrcLLJITRef jit;        /* NULL before kva_codegen_jit */
  LLVMMemoryBufferRef object; /* NULL before kva_codegen_object */
  KVA_VEC(kva_cg_kernel) kernels;
  kva_map *numbers; /* key of a kernel and its symbols (llvm_cpu.c) -> kernel number + 1 */
};

typedef struct kva_binding {
  const kva_expr *symbol;
  LLVMValueRef value; /* i64 */
} kva_binding;

/* The vector loop around the code being emitted. Inside it an instruction is `varying` if its value may differ between
 * lanes; it is then a vector of `lanes` elements, else a scalar. */
typedef struct kva_lanes {
  unsigned n;          /* 1: no vector loop */
  const kva_expr *var; /* the vector loop's variable; its binding is lane 0's value */
  LLVMValueRef mask;   /* <n x i1>: active lanes; NULL: all */
  bool behind_peel;    /* consecutive accesses of lanes are aligned */
} kva_lanes;

/* A GPU thread's share of one part of a THREAD loop, unrolled into rounds. */
typedef enum kva_part { KVA_PART_LANES, KVA_PART_PEEL, KVA_PART_TAIL } kva_part;
typedef struct kva_share {
  const kva_kloop *loop; /* NULL: the code being emitted belongs to no round */
  int64_t step, round, rounds;
  kva_part part;
} kva_share;

/* An element kept in a register: llvm_keep.c */
typedef struct kva_kept {
  const kva_kbuf *buf;
  const kva_expr *index, *extent;
  int64_t step, round;
  kva_part part;
  unsigned lanes;
  LLVMValueRef value; /* in its storage type */
} kva_kept;

/* The columns of a block that was loaded transposed: llvm_transpose.c */
enum { KVA_MAX_COLUMNS = 16 };
typedef struct kva_columns {
  const kva_kinstr *load;
  uint32_t next; /* round of the UNROLL loop */
  LLVMValueRef values[KVA_MAX_COLUMNS];
} kva_columns;

/* Emission of one kernel. */
/* Terms of shape symbols of a long sum, by sign (llvm_index.c); NULL: none. */
typedef struct kva_shape_sum {
  const kva_expr *of;
  LLVMValueRef plus, minus;
} kva_shape_sum;

typedef struct kva_emit {
  kva_codegen *cg;
  LLVMContextRef ctx;
  LLVMModuleRef module;
  LLVMBuilderRef b;
  kva_arena *scratch;
  const kva_kernel *k;
  LLVMValueRef fn;
  LLVMValueRef begin, end;       /* work items of this call */
  LLVMValueRef *bufs;            /* by buffer id */
  LLVMValueRef spare;            /* CPU: 8 bytes on the stack for lanes that do not store */
  LLVMValueRef *values;          /* by instruction id: its value as last emitted */
  bool *varying;                 /* by instruction id, see kva_lanes */
  bool *shares;                  /* by buffer id: a result may lie in its memory, or it in an operand's */
  LLVMValueRef *scopes, *others; /* alias metadata by buffer id */
  KVA_VEC(kva_binding) bindings;
  KVA_VEC(kva_shape_sum) shape_sums;
  kva_lanes lanes;
  KVA_VEC(kva_columns) columns; /* of the UNROLL loops around */
  /* GPU */
  LLVMValueRef thread;   /* i64: number within the block */
  unsigned subgroup;     /* threads that run the code being emitted together; 1: each thread on its own */
  uint32_t shared_bytes; /* so far */
  uint32_t dynamic_bytes;
  uint32_t first_map; /* parameter number of the first tensor map */
  kva_share share;
  const kva_expr *element;  /* placeholder for the variable of the share's loop */
  KVA_VEC(kva_kept) kept;   /* in earlier rounds of the enclosing regions */
  KVA_VEC(kva_kept) loaded; /* in this round */
} kva_emit;

static inline bool kva_ll_is_gpu(const kva_emit *e) {
  return e->cg->target.kind == KVA_TARGET_GPU;
}

/* ---- llvm_types.c: types, constants, small helpers --------------------------------------------------------------- */

LLVMTypeRef kva_ll_type(const kva_emit *e, kva_dtype compute);    /* scalar */
LLVMTypeRef kva_ll_storage(const kva_emit *e, kva_dtype storage); /* element type of memory */
LLVMTypeRef kva_ll_widen(LLVMTypeRef scalar, unsigned lanes);     /* vector type; `scalar` itself for 1 lane */
LLVMTypeRef kva_ll_like(LLVMTypeRef scalar, LLVMValueRef shape);  /* scalar or vector, as `shape` is */
LLVMValueRef kva_ll_int(LLVMTypeRef type, int64_t v);             /* scalar or splat */
LLVMValueRef kva_ll_i64(const kva_emit *e, int64_t v);
LLVMValueRef kva_ll_splat(kva_emit *e, LLVMValueRef v, unsigned lanes); /* vectors pass through unchanged */
LLVMValueRef kva_ll_iota(const kva_emit *e, LLVMTypeRef scalar, unsigned lanes);
bool kva_ll_is_vector(LLVMValueRef v);
/* Calls an intrinsic overloaded on `types`. */
LLVMValueRef kva_ll_intrinsic(kva_emit *e, const char *name, unsigned n_types, LLVMTypeRef *types, unsigned n_args,
                              LLVMValueRef *args);
/* The same, overloaded on the type of args[0]. */
LLVMValueRef kva_ll_intrinsic1(kva_emit *e, const char *name, unsigned n_args, LLVMValueRef *args);
/* Calls a C function (libm) for each lane. */
LLVMValueRef kva_ll_libcall(kva_emit *e, const char *name, unsigned n_args, LLVMValueRef *args);
LLVMBasicBlockRef kva_ll_block(kva_emit *e, const char *name);
LLVMValueRef kva_ll_any(kva_emit *e, LLVMValueRef mask);              /* i1: some lane is set */
LLVMValueRef kva_ll_and(kva_emit *e, LLVMValueRef a, LLVMValueRef b); /* NULL means true; splats as needed */

/* ---- llvm_index.c: index expressions ----------------------------------------------------------------------------- */

void kva_ll_bind(kva_emit *e, const kva_expr *symbol, LLVMValueRef value);
bool kva_ll_expr_varying(const kva_emit *e, const kva_expr *x);
/* The value of x in lane 0, i64. */
LLVMValueRef kva_ll_expr(kva_emit *e, const kva_expr *x);
/* The values of x in all lanes, <lanes x i64>. */
LLVMValueRef kva_ll_expr_lanes(kva_emit *e, const kva_expr *x);
/* x, which varies, as a sum: what lanes differ by, <lanes x i64>, and in *out_uniform i64 that is the same in all;
 * NULL: 0. */
LLVMValueRef kva_ll_expr_parts(kva_emit *e, const kva_expr *x, LLVMValueRef *out_uniform);
/* The instruction whose value a symbol stands for; NULL for other symbols. */
kva_kval kva_ll_symbol_value(const kva_emit *e, const kva_expr *symbol);
/* By how much x increases from lane to lane; 0: that is no constant, or nothing. */
int64_t kva_ll_expr_stride(const kva_emit *e, const kva_expr *x);
/* n if lanes take turns in n rows of consecutive elements, which are so far apart: lane k is element k / n of row
 * k mod n. Rows that are 0 apart are one, of which n lanes each read an element. 0: they do not. */
int64_t kva_ll_expr_interleaved(const kva_emit *e, const kva_expr *x, int64_t *out_distance);
/* An x of stride 1 is a multiple of the number of lanes in lane 0. */
bool kva_ll_expr_aligned(const kva_emit *e, const kva_expr *x);
/* A divisor of x; 0 if x is 0. Loop variables with known values (UNROLL) count as constants. */
int64_t kva_ll_expr_multiple(const kva_emit *e, const kva_expr *x);
/* As far as is known, x may be a multiple of `of`. */
bool kva_ll_expr_may_be_multiple(const kva_emit *e, const kva_expr *x, int64_t of);

/* ---- llvm_arith.c, llvm_convert.c -------------------------------------------------------------------------------- */

/* The value of v at the builder's position: a scalar, or a vector if v varies. */
LLVMValueRef kva_ll_use(kva_emit *e, kva_kval v);
LLVMValueRef kva_ll_arith(kva_emit *e, const kva_kinstr *i);
LLVMValueRef kva_ll_convert(kva_emit *e, LLVMValueRef v, kva_dtype from, kva_dtype to);
LLVMValueRef kva_ll_combine(kva_emit *e, kva_combine op, kva_dtype t, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef kva_ll_neutral(const kva_emit *e, kva_combine op, kva_dtype t); /* scalar */
/* llvm_angle.c: far_rest and far_quarter of x, which is not negative; `near` where x is small. */
LLVMValueRef kva_ll_far_angle(kva_emit *e, kva_kop op, LLVMValueRef near, LLVMValueRef x);
/* llvm_dot.c: dot4 of the kernel IR on v[0], v[1], v[2], scalars or vectors of i32. */
LLVMValueRef kva_ll_dot4(kva_emit *e, LLVMValueRef *v);
/* llvm_dot.c: dot2 of the kernel IR likewise, of f32. */
LLVMValueRef kva_ll_dot2(kva_emit *e, LLVMValueRef *v);
/* llvm_arith.c: a * b + c of f32, one rounding. */
LLVMValueRef kva_ll_fma(kva_emit *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c);
/* llvm_permute.c: what `load` gathers by a permutation; NULL: it is from too many elements, or the target has none. */
LLVMValueRef kva_ll_permute(kva_emit *e, const kva_kinstr *load);
/* The conversion of a field of few bits of a word to float by a permutation; NULL: it is none. */
LLVMValueRef kva_ll_float_of_field(kva_emit *e, const kva_kinstr *convert);
/* Convert between the storage type and the compute type of a value; scalars or vectors. Types narrower than a byte are
 * passed as i8. */
LLVMValueRef kva_ll_from_storage(kva_emit *e, kva_dtype storage, LLVMValueRef v);
LLVMValueRef kva_ll_to_storage(kva_emit *e, kva_dtype storage, LLVMValueRef v);

/* ---- llvm_memory.c ----------------------------------------------------------------------------------------------- */

LLVMValueRef kva_ll_load(kva_emit *e, const kva_kinstr *i);
void kva_ll_store(kva_emit *e, const kva_kinstr *i);

/* Consecutive elements from `index` (i64) on, those of the mask alone. */
LLVMValueRef kva_ll_masked_vector(kva_emit *e, const kva_kbuf *buf, LLVMValueRef index, LLVMValueRef mask);
/* The vector of consecutive elements of the buffer of i from `index` (i64) on, as plain as the load of i. */
LLVMValueRef kva_ll_vector_at(kva_emit *e, const kva_kinstr *i, LLVMValueRef index);
/* Emits the load of i before conversion: one unpredicated access for all lanes. */
LLVMValueRef kva_ll_raw_load(kva_emit *e, const kva_kinstr *i);

/* ---- llvm_transpose.c -------------------------------------------------------------------------------------------- */

/* Loads ahead what the UNROLL loop l reads of blocks, and pushes their columns to e->columns. */
void kva_ll_load_blocks(kva_emit *e, const kva_kloop *l);
/* The value of `load` in the next round of its UNROLL loop; NULL: it reads no block. */
LLVMValueRef kva_ll_next_column(kva_emit *e, const kva_kinstr *load);

/* ---- llvm_keep.c: elements in registers -------------------------------------------------------------------------- */

/* Bytes that a thread may keep for a loop whose body has a single load. */
int64_t kva_ll_kept_bytes(const kva_emit *e);
/* The load i, in a round of e->share, may be kept or reuse a kept element. */
bool kva_ll_may_keep(kva_emit *e, const kva_kinstr *i);
/* The kept value for load i; NULL: none. */
LLVMValueRef kva_ll_kept(kva_emit *e, const kva_kinstr *i);
void kva_ll_keep(kva_emit *e, const kva_kinstr *i, LLVMValueRef value);
/* Makes this round's loads available to the code that follows. If the round is conditional, it ends in block `loaded`
 * and joins `skipped` at the builder's position; NULL: unconditional. */
void kva_ll_end_round(kva_emit *e, LLVMBasicBlockRef skipped, LLVMBasicBlockRef loaded);
/* The load i in l's body gives the same value in every iteration of `rows`, which contains l. */
bool kva_ll_is_row_invariant(const kva_emit *e, const kva_kinstr *i, const kva_kloop *l, const kva_kloop *rows);

/* ---- llvm_loop.c, llvm_emit.c ------------------------------------------------------------------------------------ */

void kva_ll_loop(kva_emit *e, const kva_kloop *l);
void kva_ll_region(kva_emit *e, const kva_kregion *r);
/* Marks what varies inside a vector loop over e->lanes.var. */
void kva_ll_mark_varying(kva_emit *e, const kva_kloop *l);
bool kva_ll_carry_varying(const kva_emit *e, const kva_kcarry *c);
/* The VECTOR loop can run in lanes. Marks varying instructions as a side effect. */
bool kva_ll_vectorizable(kva_emit *e, const kva_kloop *l);
unsigned kva_ll_lane_count(const kva_emit *e, const kva_kloop *l);

/* Defines the function of kernel k under `name`. symbols: see kva_codegen_add. */
kva_launch kva_ll_kernel(kva_codegen *cg, const kva_kernel *k, const char *name, uint32_t n_symbols,
                         const kva_expr *const *symbols);
void kva_ll_parameter_attribute(kva_emit *e, unsigned parameter, const char *name, uint64_t value);
/* Allocates a LOCAL buffer. */
LLVMValueRef kva_ll_local(kva_emit *e, const kva_kbuf *buf);

/* ---- llvm_thread.c: kernels of a GPU ----------------------------------------------------------------------------- */

/* Creates the function of e->k and binds buffers, symbols and the thread number. */
void kva_ll_gpu_entry(kva_emit *e, const char *name, uint32_t n_symbols, const kva_expr *const *symbols);
/* The block's number and the number of blocks, i64. */
LLVMValueRef kva_ll_block_number(kva_emit *e);
LLVMValueRef kva_ll_block_count(kva_emit *e);
/* The number of this thread's subgroup of `subgroup` threads within a group of `around` threads, i64. */
LLVMValueRef kva_ll_subgroup_number(kva_emit *e, unsigned around, unsigned subgroup);
/* A static, uninitialised array in shared memory. */
LLVMValueRef kva_ll_shared_array(kva_emit *e, const char *name, LLVMTypeRef element, uint64_t n);
/* Synchronises the threads of e->subgroup. */
void kva_ll_barrier(kva_emit *e);
/* Combines values[c] of all threads of e->subgroup for each carry c of l, in place. All threads get the same bits. */
void kva_ll_combine_threads(kva_emit *e, const kva_kloop *l, LLVMValueRef *values);

/* ---- llvm_blocks.c: blocks of a GPU that share a row ------------------------------------------------------------- */

/* How many blocks share a row of the kernel, as a cluster or in a cooperative launch; 0: none do so. */
uint32_t kva_ll_cluster(const kva_emit *e);
uint32_t kva_ll_cooperating(const kva_emit *e);
/* Emits the grid's items that this block has: its own or, in a cooperative launch, one of each turn. */
void kva_ll_grid(kva_emit *e, const kva_kloop *grid);
/* Combines values of blocks as kva_ll_combine_threads does those of threads, over the l->blocks that share a row. */
void kva_ll_combine_blocks(kva_emit *e, const kva_kloop *l, LLVMValueRef *values);

/* ---- llvm_tile.c, llvm_nv.c: dialects ---------------------------------------------------------------------------- */

void kva_ll_tile(kva_emit *e, const kva_kinstr *i);
void kva_ll_nv(kva_emit *e, const kva_kinstr *i);
void kva_ll_amx(kva_emit *e, const kva_kinstr *i);
void kva_ll_cpu(kva_emit *e, const kva_kinstr *i);
/* A pointer to the place. */
LLVMValueRef kva_ll_place(kva_emit *e, const kva_kplace *p);
/* The shared-memory address of a place as inline assembly needs it: i32. */
LLVMValueRef kva_ll_shared_address(kva_emit *e, const kva_kplace *p);
/* Emits inline assembly, always convergent. pure: no effects besides its results. */
LLVMValueRef kva_ll_assembly(kva_emit *e, bool pure, const char *text, const char *constraints, LLVMTypeRef result,
                             uint32_t n_args, LLVMValueRef *args);
/* Load or store n registers of `type` from or to a LOCAL place. */
void kva_ll_load_registers(kva_emit *e, const kva_kplace *p, LLVMTypeRef type, uint32_t n, LLVMValueRef *out);
void kva_ll_store_registers(kva_emit *e, const kva_kplace *p, uint32_t n, const LLVMValueRef *values);

/* ---- llvm_target.c ----------------------------------------------------------------------------------------------- */

/* A CPU in LLVM's terms. */
typedef struct kva_cg_cpu {
  const char *triple, *name, *features;
  uint32_t needs; /* kva_code.needs */
  bool foreign;   /* of another kind of machine than the host */
} kva_cg_cpu;
/* See kva_codegen_describe. `arena` holds the strings. */
KVA_MUST_USE kva_status kva_cg_describe_cpu(const kva_target_options *options, kva_arena *arena, kva_diag *diag,
                                            kva_cg_cpu *out_cpu, kva_target *out_target);
KVA_MUST_USE kva_status kva_cg_describe_gpu(const kva_target_options *options, kva_diag *diag, kva_target *out_target);

/* ---- llvm_ptx.c -------------------------------------------------------------------------------------------------- */

/* LLVM's names and facts for options->arch. */
KVA_MUST_USE kva_status kva_ptx_target(kva_codegen *cg, const kva_target_options *options);
/* LLVMTargetMachineEmitToMemoryBuffer; a fatal error in LLVM becomes a failure and leaves m broken. */
KVA_MUST_USE kva_status kva_ptx_emit(kva_cg_module *m, LLVMMemoryBufferRef *out_text);
/* Rewrites what NVPTX's passes and instruction selection would compile wrongly; between optimisation and emission. */
KVA_MUST_USE kva_status kva_ptx_work_around(kva_cg_module *m);

/* ---- llvm_cpu.c -------------------------------------------------------------------------------------------------- */

/* Runs the pass pipeline once; kva_cg_machine_code then emits the module as an object or as assembly. */
KVA_MUST_USE kva_status kva_cg_optimize(kva_cg_module *m);
extern const char kva_cg_passes[]; /* for a CPU */
KVA_MUST_USE kva_status kva_cg_machine_code(kva_cg_module *m, LLVMCodeGenFileType kind, LLVMMemoryBufferRef *out_code);
/* llvm_cache.c: kva_cg_machine_code through the cache */
KVA_MUST_USE kva_status kva_cg_code(kva_cg_module *m, LLVMCodeGenFileType kind, LLVMMemoryBufferRef *out_code);
/* Reports an LLVM error under `what` and consumes it; KVA_OK for no error. */
KVA_MUST_USE kva_status kva_cg_check(kva_diag *diag, LLVMErrorRef error, const char *what);

/* ---- llvm_modules.c ---------------------------------------------------------------------------------------------- */

/* An empty module, which gets what is added from now on. */
void kva_cg_begin_module(kva_codegen *cg);
/* For a kernel whose encoding has so many bytes: begins another module if kernels only run in process and the last one
 * is full. */
void kva_cg_make_room(kva_codegen *cg, size_t bytes);
void kva_cg_destroy_module(const kva_cg_module *m);
/* The objects of all modules, in their order, compiled side by side. The caller disposes of them. */
KVA_MUST_USE kva_status kva_cg_objects(kva_codegen *cg, LLVMMemoryBufferRef *out_objects);

#endif
