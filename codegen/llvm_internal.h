/* Shared by the llvm_*.c files, the only ones that see llvm-c. */
#ifndef KVA_CODEGEN_LLVM_INTERNAL_H
#define KVA_CODEGEN_LLVM_INTERNAL_H

#include "codegen/codegen.h"

#include <llvm-c/Core.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/TargetMachine.h>

typedef struct kva_cg_kernel {
  const char *name;  /* symbol in the module */
  kva_kernel_fn fn;  /* after kva_codegen_jit */
  kva_launch launch; /* of a GPU */
} kva_cg_kernel;

struct kva_codegen {
  kva_diag *diag; /* borrowed */
  kva_arena *arena;
  kva_target target;
  int opt_level;
  const char *cpu, *features;
  const struct kva_cache *cache; /* borrowed, or NULL */
  bool cached;                   /* the code came from there */
  LLVMContextRef ctx;
  LLVMModuleRef module;
  LLVMBuilderRef builder;
  LLVMTargetMachineRef machine;
  LLVMTargetDataRef layout;
  LLVMOrcLLJITRef jit;        /* NULL before kva_codegen_jit */
  LLVMMemoryBufferRef object; /* NULL before kva_codegen_object */
  bool optimized;
  bool broken; /* LLVM gave up with a fatal error: its objects are in no state to be touched again */
  KVA_VEC(kva_cg_kernel) kernels;
  kva_map *numbers; /* encoding of a kernel and its symbols -> kernel number + 1 */
};

typedef struct kva_binding {
  const kva_expr *symbol;
  LLVMValueRef value; /* i64 */
} kva_binding;

/* The vector loop around the code being emitted. Inside it an instruction is `varying` when its value may differ
 * between lanes; it is then a vector of `lanes`, else a scalar. */
typedef struct kva_lanes {
  unsigned n;          /* 1: no vector loop */
  const kva_expr *var; /* the vector loop's variable; its binding is lane 0's value */
  LLVMValueRef mask;   /* <n x i1> of the lanes that run; NULL: all */
  bool behind_peel;    /* consecutive accesses of lanes are aligned */
} kva_lanes;

/* A GPU thread's share of a part of a THREAD loop, as rounds of straight code. */
typedef enum kva_part { KVA_PART_LANES, KVA_PART_PEEL, KVA_PART_TAIL } kva_part;
typedef struct kva_share {
  const kva_kloop *loop; /* NULL: the code being emitted is in no such round */
  int64_t step, round, rounds;
  kva_part part;
} kva_share;

/* Elements in a register: llvm_keep.c */
typedef struct kva_kept {
  const kva_kbuf *buf;
  const kva_expr *index, *extent;
  int64_t step, round;
  kva_part part;
  unsigned lanes;
  LLVMValueRef value; /* as memory holds it */
} kva_kept;

/* Emission of one kernel. */
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
  LLVMValueRef *values;          /* by instruction id: its latest emission */
  bool *varying;                 /* by instruction id, see kva_lanes */
  LLVMValueRef *scopes, *others; /* alias metadata by buffer id */
  KVA_VEC(kva_binding) bindings;
  kva_lanes lanes;
  /* GPU */
  LLVMValueRef thread;   /* i64: number within the block */
  unsigned subgroup;     /* threads that run the code being emitted together; 1: each for itself */
  uint32_t shared_bytes; /* so far */
  uint32_t dynamic_bytes;
  uint32_t first_map; /* number of the parameter */
  kva_share share;
  const kva_expr *element;  /* stands for the variable of a share's loop */
  KVA_VEC(kva_kept) kept;   /* of the rounds so far in the regions around */
  KVA_VEC(kva_kept) loaded; /* in this round */
} kva_emit;

static inline bool kva_ll_is_gpu(const kva_emit *e) {
  return e->cg->target.kind == KVA_TARGET_GPU;
}

/* ---- llvm_types.c: types, constants, small helpers --------------------------------------------------------------- */

LLVMTypeRef kva_ll_type(const kva_emit *e, kva_dtype compute);    /* scalar */
LLVMTypeRef kva_ll_storage(const kva_emit *e, kva_dtype storage); /* what a pointer to elements points to */
LLVMTypeRef kva_ll_widen(LLVMTypeRef scalar, unsigned lanes);     /* the vector type; scalar itself for 1 */
LLVMTypeRef kva_ll_like(LLVMTypeRef scalar, LLVMValueRef shape);  /* scalar or vector as `shape` is */
LLVMValueRef kva_ll_int(LLVMTypeRef type, int64_t v);             /* scalar or splat */
LLVMValueRef kva_ll_i64(const kva_emit *e, int64_t v);
LLVMValueRef kva_ll_splat(kva_emit *e, LLVMValueRef v, unsigned lanes); /* a vector stays what it is */
LLVMValueRef kva_ll_iota(const kva_emit *e, LLVMTypeRef scalar, unsigned lanes);
bool kva_ll_is_vector(LLVMValueRef v);
/* An overloaded intrinsic, overloaded on `types`. */
LLVMValueRef kva_ll_intrinsic(kva_emit *e, const char *name, unsigned n_types, LLVMTypeRef *types, unsigned n_args,
                              LLVMValueRef *args);
/* The same, overloaded on the type of args[0]. */
LLVMValueRef kva_ll_intrinsic1(kva_emit *e, const char *name, unsigned n_args, LLVMValueRef *args);
/* A C function (libm), called lane by lane. */
LLVMValueRef kva_ll_libcall(kva_emit *e, const char *name, unsigned n_args, LLVMValueRef *args);
LLVMBasicBlockRef kva_ll_block(kva_emit *e, const char *name);
LLVMValueRef kva_ll_any(kva_emit *e, LLVMValueRef mask);              /* i1: some lane is set */
LLVMValueRef kva_ll_and(kva_emit *e, LLVMValueRef a, LLVMValueRef b); /* NULL stands for true; splats as needed */

/* ---- llvm_index.c: index expressions ----------------------------------------------------------------------------- */

void kva_ll_bind(kva_emit *e, const kva_expr *symbol, LLVMValueRef value);
bool kva_ll_expr_varying(const kva_emit *e, const kva_expr *x);
/* i64 value of x in lane 0. */
LLVMValueRef kva_ll_expr(kva_emit *e, const kva_expr *x);
/* <lanes x i64>. */
LLVMValueRef kva_ll_expr_lanes(kva_emit *e, const kva_expr *x);
/* x grows by exactly one from lane to lane. */
bool kva_ll_expr_contiguous(const kva_emit *e, const kva_expr *x);
/* Such an x is a multiple of the number of lanes in lane 0. */
bool kva_ll_expr_aligned(const kva_emit *e, const kva_expr *x);
/* A number that divides x; 0 when x is 0. Loop variables that are constants here (UNROLL) count with their values. */
int64_t kva_ll_expr_multiple(const kva_emit *e, const kva_expr *x);

/* ---- llvm_arith.c, llvm_convert.c -------------------------------------------------------------------------------- */

/* Value of v where the builder stands: scalar, or vector when it varies. */
LLVMValueRef kva_ll_use(kva_emit *e, kva_kval v);
LLVMValueRef kva_ll_arith(kva_emit *e, const kva_kinstr *i);
LLVMValueRef kva_ll_convert(kva_emit *e, LLVMValueRef v, kva_dtype from, kva_dtype to);
LLVMValueRef kva_ll_combine(kva_emit *e, kva_combine op, kva_dtype t, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef kva_ll_neutral(const kva_emit *e, kva_combine op, kva_dtype t); /* scalar */
/* max(a, b) and min(a, b), NaN if either is NaN. */
LLVMValueRef kva_ll_max(kva_emit *e, kva_dtype t, bool is_min, LLVMValueRef a, LLVMValueRef b);
/* Between the value that memory holds and the value that is computed with; scalars or vectors. Types narrower than a
 * byte come and go as i8. */
LLVMValueRef kva_ll_from_storage(kva_emit *e, kva_dtype storage, LLVMValueRef v);
LLVMValueRef kva_ll_to_storage(kva_emit *e, kva_dtype storage, LLVMValueRef v);

/* ---- llvm_memory.c ----------------------------------------------------------------------------------------------- */

LLVMValueRef kva_ll_load(kva_emit *e, const kva_kinstr *i);
void kva_ll_store(kva_emit *e, const kva_kinstr *i);

/* What loads of i give where the builder stands, before conversion: one access for all lanes, no predicate. */
LLVMValueRef kva_ll_raw_load(kva_emit *e, const kva_kinstr *i);

/* ---- llvm_keep.c: elements in registers -------------------------------------------------------------------------- */

/* Bytes that a thread may keep of a loop's only load. */
int64_t kva_ll_kept_bytes(const kva_emit *e);
/* May the load i, in a round of e->share, be kept or be one that is? */
bool kva_ll_may_keep(kva_emit *e, const kva_kinstr *i);
/* What such a load gave before, NULL: nothing yet. */
LLVMValueRef kva_ll_kept(kva_emit *e, const kva_kinstr *i);
void kva_ll_keep(kva_emit *e, const kva_kinstr *i, LLVMValueRef value);
/* What this round loaded is there for the code that follows. A round that may be skipped ends in block `loaded`, and
 * comes together with `skipped` where the builder stands; NULL: it always runs. */
void kva_ll_end_round(kva_emit *e, LLVMBasicBlockRef skipped, LLVMBasicBlockRef loaded);
/* The load i in l's body gives the same in every iteration of `rows`, where l stands. */
bool kva_ll_is_row_invariant(const kva_emit *e, const kva_kinstr *i, const kva_kloop *l, const kva_kloop *rows);

/* ---- llvm_loop.c, llvm_emit.c ------------------------------------------------------------------------------------ */

void kva_ll_loop(kva_emit *e, const kva_kloop *l);
void kva_ll_region(kva_emit *e, const kva_kregion *r);
/* Marks what varies inside a vector loop over e->lanes.var. */
void kva_ll_mark_varying(kva_emit *e, const kva_kloop *l);
bool kva_ll_carry_varying(const kva_emit *e, const kva_kcarry *c);
/* Can this VECTOR loop run in lanes? Marks what varies as a side effect. */
bool kva_ll_vectorizable(kva_emit *e, const kva_kloop *l);
unsigned kva_ll_lane_count(const kva_emit *e, const kva_kloop *l);

/* Defines the function of kernel k under `name`. symbols: see kva_codegen_add. */
kva_launch kva_ll_kernel(kva_codegen *cg, const kva_kernel *k, const char *name, uint32_t n_symbols,
                         const kva_expr *const *symbols);
void kva_ll_parameter_attribute(kva_emit *e, unsigned parameter, const char *name, uint64_t value);
/* Memory of a LOCAL buffer. */
LLVMValueRef kva_ll_local(kva_emit *e, const kva_kbuf *buf);

/* ---- llvm_thread.c: kernels of a GPU ----------------------------------------------------------------------------- */

/* Creates the function of e->k and binds buffers, symbols and the thread's number. */
void kva_ll_gpu_entry(kva_emit *e, const char *name, uint32_t n_symbols, const kva_expr *const *symbols);
/* i64: number of the block. */
LLVMValueRef kva_ll_block_number(kva_emit *e);
/* i64: number of this thread's subgroup of `subgroup` among those that `around` threads make. */
LLVMValueRef kva_ll_subgroup_number(kva_emit *e, unsigned around, unsigned subgroup);
/* Static shared memory, with no content. */
LLVMValueRef kva_ll_shared_array(kva_emit *e, const char *name, LLVMTypeRef element, uint64_t n);
/* Waits for the threads of e->subgroup. */
void kva_ll_barrier(kva_emit *e);
/* Combines every thread's values[c] for carry c of l over e->subgroup, in place: all threads get the same. */
void kva_ll_combine_threads(kva_emit *e, const kva_kloop *l, LLVMValueRef *values);

/* llvm_blocks.c: the same over the l->blocks blocks that share a row, for values that are the block's. */
void kva_ll_combine_blocks(kva_emit *e, const kva_kloop *l, LLVMValueRef *values);

/* ---- llvm_tile.c, llvm_nv.c: dialects ---------------------------------------------------------------------------- */

void kva_ll_tile(kva_emit *e, const kva_kinstr *i);
void kva_ll_nv(kva_emit *e, const kva_kinstr *i);
/* Pointer to a place. */
LLVMValueRef kva_ll_place(kva_emit *e, const kva_kplace *p);
/* Address of a place in shared memory, as assembly wants it: i32. */
LLVMValueRef kva_ll_shared_address(kva_emit *e, const kva_kplace *p);
/* Inline assembly; `pure`: no effect but on its results. All of it is convergent. */
LLVMValueRef kva_ll_assembly(kva_emit *e, bool pure, const char *text, const char *constraints, LLVMTypeRef result,
                             uint32_t n_args, LLVMValueRef *args);
/* n registers (each `type`) from or to a LOCAL place. */
void kva_ll_load_registers(kva_emit *e, const kva_kplace *p, LLVMTypeRef type, uint32_t n, LLVMValueRef *out);
void kva_ll_store_registers(kva_emit *e, const kva_kplace *p, uint32_t n, const LLVMValueRef *values);

/* ---- llvm_target.c ----------------------------------------------------------------------------------------------- */

/* A CPU as LLVM knows it. */
typedef struct kva_cg_cpu {
  const char *triple, *name, *features;
} kva_cg_cpu;
/* See kva_codegen_describe. Strings go to `arena`. */
KVA_MUST_USE kva_status kva_cg_describe_cpu(const kva_target_options *options, kva_arena *arena, kva_diag *diag,
                                            kva_cg_cpu *out_cpu, kva_target *out_target);
KVA_MUST_USE kva_status kva_cg_describe_gpu(const kva_target_options *options, kva_diag *diag, kva_target *out_target);

/* ---- llvm_ptx.c -------------------------------------------------------------------------------------------------- */

/* Target machine and facts for options->arch. */
KVA_MUST_USE kva_status kva_ptx_target(kva_codegen *cg, const kva_target_options *options);
/* LLVMTargetMachineEmitToMemoryBuffer, where a fatal error of LLVM becomes a failure and leaves cg broken. */
KVA_MUST_USE kva_status kva_ptx_emit(kva_codegen *cg, LLVMMemoryBufferRef *out_text);
/* Between optimising and emitting: llvm_ptx.c says why. */
KVA_MUST_USE kva_status kva_ptx_restore_additions(kva_codegen *cg);

/* ---- llvm_cpu.c -------------------------------------------------------------------------------------------------- */

/* Runs the pass pipeline once and gives the module as an object or as assembly. */
KVA_MUST_USE kva_status kva_cg_optimize(kva_codegen *cg);
extern const char kva_cg_passes[]; /* for a CPU */
KVA_MUST_USE kva_status kva_cg_machine_code(kva_codegen *cg, LLVMCodeGenFileType kind, LLVMMemoryBufferRef *out_code);
/* llvm_cache.c: the same, from the cache where it has it */
KVA_MUST_USE kva_status kva_cg_code(kva_codegen *cg, LLVMCodeGenFileType kind, LLVMMemoryBufferRef *out_code);
/* Reports an LLVM error under `what` and consumes it; KVA_OK for no error. */
KVA_MUST_USE kva_status kva_cg_check(kva_codegen *cg, LLVMErrorRef error, const char *what);

#endif
