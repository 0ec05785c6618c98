/* The kernel IR: the small language between the graph and LLVM. One kernel = one function over buffers, run for work
 * items [begin, end) of its grid. No LLVM here; dtype and target are parameters.
 *
 *   region   a list of instructions; a kernel's body, a loop's body, the arms of an if
 *   instr    SSA scalar value or effect. Code is scalar: a VECTOR loop asks the target to run W iterations in lanes
 *   loop     kind, variable (an index expression symbol), extent; reductions are values carried by combination, so that
 *            a target may use several accumulators or lanes
 *   buffer   a parameter (operand or result of the kernel) or a local tile
 *
 * Index arithmetic is not made of instructions: loads, stores and extents carry a kva_expr over loop variables, shape
 * symbols and values (kva_k_symbol). So strides, collapsing and bounds are algebra, not pattern matching.
 *
 * Placement: the builder puts every pure instruction (arithmetic, loads from read-only buffers, reduction loops) into
 * the outermost region that its operands allow and reuses an equal one that is visible there. Lowering code therefore
 * just pulls values; loop-invariant code and common subexpressions take care of themselves. */
#ifndef KVA_IR_KERNEL_H
#define KVA_IR_KERNEL_H

#include "ir/expr.h"

typedef struct kva_kernel kva_kernel;
typedef struct kva_kregion kva_kregion;
typedef struct kva_kinstr kva_kinstr;
typedef struct kva_kloop kva_kloop;
typedef struct kva_kbuf kva_kbuf;
typedef kva_kinstr *kva_kval; /* an instruction seen as the value it makes; NULL never */

typedef enum kva_kspace {
  KVA_K_PARAM,  /* argument of the kernel */
  KVA_K_LOCAL,  /* private to a work item: registers where indices are constant after unrolling, else stack */
  KVA_K_SHARED, /* GPU: shared by the threads of a block; CPU: same as LOCAL */
} kva_kspace;

struct kva_kbuf {
  kva_kspace space;
  kva_dtype dtype;        /* storage type */
  const kva_expr *extent; /* elements; constant for LOCAL and SHARED */
  bool read, written;     /* PARAM: set by loads and stores; a buffer that is both is ordered, never hoisted. Of one
                           * that is only written a kernel stores every element once */
  uint32_t id;            /* dense; parameters first, in argument order */
  const char *name;
  kva_kbuf *over; /* SHARED: lies where this earlier buffer does and is no larger; NULL: has memory of its own */
};

/* Scalar opcodes. X(name, operands). Types: results have the type of operand 0 unless said. Computation types are
 * bool, i8..i64, u8..u64, f32, f64; loads of f16, bf16, f8, i4 ... widen (to f32, i8, u8), stores round. */
/* clang-format off */
#define KVA_K_ARITH(X)                                                                                             \
  X(add, 2) X(sub, 2) X(mul, 2) X(div, 2) /* integers: truncating; by zero gives 0 */                              \
  X(rem, 2) /* sign of the dividend (C fmod, %) */                                                                 \
  X(min, 2) X(max, 2) /* floats: NaN if either is NaN */                                                           \
  X(fma, 3) /* a*b + c, one rounding for floats */                                                                 \
  X(neg, 1) X(abs, 1) X(floor, 1) X(ceil, 1) X(round, 1) /* half to even */ X(trunc, 1) X(sqrt, 1)                 \
  X(exp, 1) X(log, 1) X(sin, 1) X(cos, 1) X(tan, 1) X(asin, 1) X(acos, 1) X(atan, 1) X(sinh, 1) X(cosh, 1)         \
  X(tanh, 1) X(asinh, 1) X(acosh, 1) X(atanh, 1) X(erf, 1) X(pow, 2) X(log1p, 1) X(expm1, 1)                       \
  X(and, 2) X(or, 2) X(xor, 2) X(not, 1) /* bitwise; bool: logical */                                              \
  X(shl, 2) X(shr, 2) /* shr: logical on unsigned */                                                               \
  X(mulhi, 2) /* high half of the unsigned product (u32) */                                                        \
  X(eq, 2) X(ne, 2) X(lt, 2) X(le, 2) /* -> bool; floats ordered, ne unordered */                                  \
  X(isnan, 1) /* -> bool */                                                                                        \
  X(select, 3) /* bool, a, b -> type of a */
/* clang-format on */

typedef enum kva_kop {
#define KVA_K_OP_ENUM(name, n) KVA_K_##name,
  KVA_K_ARITH(KVA_K_OP_ENUM)
#undef KVA_K_OP_ENUM
      KVA_K_CONST, /* value in `imm` */
  KVA_K_INDEX,     /* an expression as i64 */
  KVA_K_CONVERT,   /* to dtype: C conversion, float -> int truncates, saturating; int -> int wraps */
  KVA_K_BITCAST,   /* same width */
  KVA_K_LOAD,      /* buf[index]; args[0]: optional predicate, false lanes give 0 and touch no memory */
  KVA_K_STORE,     /* buf[index] = args[0]; args[1]: optional predicate */
  KVA_K_LOOP,
  KVA_K_REDUCE,    /* value of loop `loop`, carried `carry`, after the loop */
  KVA_K_CARRY,     /* inside the loop: previous value of a KVA_COMBINE_NONE carry */
  KVA_K_IF,        /* args[0]; regions then/orelse; effects only */
  KVA_K_BARRIER,   /* waits for the subgroup's threads and orders their memory accesses; nothing on a CPU */
  KVA_K_INTRINSIC, /* `intrinsic`: an instruction of a dialect */
} kva_kop;

/* ---- intrinsics --------------------------------------------------------------------------------------------------
 * Instructions that only some targets have, for kernels that write what every thread does: they stand in a THREAD loop
 * with one iteration for each thread of the block, or of a subgroup of it. Each belongs to a dialect (ir/dialect.h),
 * which says its operands and verifies it. */

typedef enum kva_dialect_id {
  KVA_DIALECT_TILE, /* KVA_K_TILES */
  KVA_DIALECT_NV,   /* ir/dialect_nv.def */
  KVA_DIALECT_COUNT
} kva_dialect_id;

enum { KVA_DIALECT_SIZE = 256 };
#define KVA_DIALECT_FIRST(dialect) ((dialect)*KVA_DIALECT_SIZE) /* number of a dialect's first instruction */
typedef uint32_t kva_intrinsic_id;

/* X(name, type of the value, features, operands): what every target with subgroups and tiles of matrices has. A
 * fragment is a tile of a matrix in the registers of a subgroup's 32 lanes.
 *
 * load_matrix dst, row, n, t   n (1, 2, 4) matrices of 8 x 8 elements of 16 bits from shared memory; lane 8*i + r names
 *                              row r of matrix i (16 bytes). A lane gets elements (lane / 4, 2 * (lane % 4) + 0, 1) of
 *                              each; t = 1: of the transposes
 * store_matrix row, src, n, t  the reverse
 * mma d, a, b                  d[4] += a[8] * b[4]: 16 x 16 by 16 x 8 elements of 16 bits, float sums
 * block_barrier                all threads of the block
 * subgroup_barrier             the 32 threads of the subgroup
 * shuffle_xor v, bit           v of the lane whose number differs in `bit`
 * exp2 v                       2^v to 2 units in the last place; below 2^-126 it is 0
 * round_pair d, s              d[2] of 16 bits = s[2] of floats, rounded to nearest: one register at once */
/* clang-format off */
#define KVA_K_TILES(X)                                             \
  X(load_matrix, KVA_DTYPE_NONE, 0, "Lsii")                        \
  X(store_matrix, KVA_DTYPE_NONE, KVA_TARGET_STORE_MATRIX, "Slii") \
  X(mma, KVA_DTYPE_NONE, 0, "Bll")                                 \
  X(block_barrier, KVA_DTYPE_NONE, 0, "")                          \
  X(subgroup_barrier, KVA_DTYPE_NONE, 0, "")                       \
  X(shuffle_xor, KVA_F32, 0, "vi")                                 \
  X(exp2, KVA_F32, 0, "v")                                         \
  X(round_pair, KVA_DTYPE_NONE, 0, "Ll")
/* clang-format on */

enum {
#define KVA_K_TILE_ENUM(name, type, features, operands) KVA_TILE_##name,
  KVA_K_TILES(KVA_K_TILE_ENUM)
#undef KVA_K_TILE_ENUM
};
_Static_assert(KVA_DIALECT_FIRST(KVA_DIALECT_TILE) == 0, "numbers of the enumeration above");

typedef struct kva_kplace {
  kva_kbuf *buf;
  const kva_expr *index;
} kva_kplace;

enum { KVA_K_MAX_PLACES = 3, KVA_K_MAX_INDICES = 5, KVA_K_MAX_NUMBERS = 5 };

/* The operands of one kind stand in the order of the row. A float value is args[0] of the instruction. */
typedef struct kva_kintrinsic {
  kva_intrinsic_id op;
  kva_kplace places[KVA_K_MAX_PLACES];
  const kva_expr *indices[KVA_K_MAX_INDICES]; /* NULL after the last */
  int32_t numbers[KVA_K_MAX_NUMBERS];
} kva_kintrinsic;

/* A tensor map: a parameter of the kernel that describes how copies of boxes see one of its buffers. Dimensions from
 * the innermost one. */
enum { KVA_K_TENSOR_MAP_RANK = 5 };
typedef struct kva_ktensor_map {
  kva_kbuf *buf;
  uint32_t rank;
  const kva_expr *dims[KVA_K_TENSOR_MAP_RANK];    /* elements, over shape symbols */
  const kva_expr *strides[KVA_K_TENSOR_MAP_RANK]; /* bytes, multiples of 16; [0] is not used */
  int32_t box[KVA_K_TENSOR_MAP_RANK];             /* elements; the innermost ones fill `swizzle` bytes */
  int32_t swizzle;                                /* 0, 32, 64, 128 */
} kva_ktensor_map;

/* ---- loops, instructions, kernels -------------------------------------------------------------------------------- */

typedef enum kva_kloop_kind {
  KVA_K_PARALLEL, /* independent iterations, as lowered; the schedule turns it into one of the next four */
  KVA_K_GRID,     /* iterations are work items */
  KVA_K_SERIAL,   /* in order */
  KVA_K_UNROLL,   /* constant extent, expanded */
  KVA_K_VECTOR,   /* lanes; remainder handled by the target */
  KVA_K_THREAD,   /* GPU: threads of a block */
} kva_kloop_kind;

typedef enum kva_combine {
  KVA_COMBINE_NONE, /* sequential: the body reads KVA_K_CARRY and yields the next value (scan) */
  KVA_COMBINE_ADD,
  KVA_COMBINE_MUL,
  KVA_COMBINE_MAX, /* NaN wins */
  KVA_COMBINE_MIN,
  KVA_COMBINE_AND,
  KVA_COMBINE_OR,
} kva_combine;

typedef struct kva_kcarry {
  kva_combine combine;
  kva_dtype dtype;
  kva_kval init;  /* in the parent region */
  kva_kval yield; /* NONE: next value; else: this iteration's contribution */
} kva_kcarry;

struct kva_kloop {
  kva_kloop_kind kind;
  const kva_expr *var; /* fresh symbol, 0 <= var < extent */
  const kva_expr *extent;
  kva_kregion *body;
  KVA_VEC(kva_kcarry) carries;
  kva_kinstr *instr;
  bool strict_order; /* reductions: add in index order, one accumulator (bit-exact chunking) */
  /* THREAD: the threads around it (the block's, or an outer THREAD loop's subgroup) divide into subgroups of `subgroup`
   * (a power of two; 0, 1: single threads), which take the iterations in turn. Inside, all threads of a subgroup run
   * the same code and hold the same values; a nested THREAD loop divides them further. A single thread takes `width`
   * (0: 1) consecutive iterations at once, as lanes. Reductions combine over all subgroups in a fixed tree; every
   * thread gets the result. Lanes start after the first `peel` iterations (NULL: none; less than KVA_K_PEEL), which are
   * single ones, as are the fewer than KVA_K_PEEL that no lanes are left for: accesses of the lanes are aligned then
   * where rows are not. `blocks` (a power of two; 0, 1: the block alone) successive blocks that run the same code share
   * the row of which each takes a part: the results of its reductions combine over them, too, and are the same in all.
   * PARALLEL: `subgroup` is a wish of who wrote the kernel (0: none): an iteration shall be such a subgroup's. */
  uint32_t subgroup, width, blocks;
  const kva_expr *peel;
  bool stage; /* THREAD with subgroups, run once by the block: a wish that what its subgroups load alike, or number by
               * number, be loaded by the block before, and read by them from shared memory */
};
enum {
  KVA_K_PEEL = 32,     /* elements of a byte in a sector of global memory */
  KVA_K_MAX_BLOCKS = 8 /* that share a row */
};

struct kva_kinstr {
  kva_kop op;
  kva_dtype dtype; /* of the value; KVA_DTYPE_NONE for effects */
  uint32_t n_args;
  kva_kval args[3];
  union {
    double f;  /* CONST of a float type */
    int64_t i; /* CONST of an integer or bool type */
  } imm;
  const kva_expr *index;     /* LOAD, STORE, INDEX */
  kva_kbuf *buf;             /* LOAD, STORE */
  kva_kloop *loop;           /* LOOP, REDUCE, CARRY */
  uint32_t carry;            /* REDUCE, CARRY */
  kva_kintrinsic *intrinsic; /* INTRINSIC */
  kva_kregion *then, *orelse;
  kva_kregion *region; /* where it stands */
  kva_kinstr *prev, *next;
  uint32_t id; /* dense in the kernel */
};

struct kva_kregion {
  kva_kinstr *owner; /* loop or if instruction; NULL: kernel body */
  kva_kregion *parent;
  uint32_t depth;
  kva_kinstr *first, *last;
};

struct kva_kernel {
  kva_arena *arena;
  kva_expr_ctx *exprs;
  const char *name;
  KVA_VEC(kva_kbuf *) bufs;
  KVA_VEC(kva_kloop *) loops;
  /* Symbols bound to values read from memory: symbol value_symbols[i] is instruction values[i] (integer). */
  KVA_VEC(const kva_expr *) value_symbols;
  KVA_VEC(kva_kval) values;
  kva_kregion *body;
  uint32_t next_id;
  uint32_t threads;              /* of a block, for kernels scheduled for a GPU; 0: no THREAD loops */
  uint32_t blocks;               /* that a multiprocessor shall have registers for; 0: as the assembler sees fit */
  KVA_VEC(kva_ktensor_map) maps; /* parameters after the symbols */
};

/* ---- builder ----------------------------------------------------------------------------------------------------- */

typedef struct kva_kb {
  kva_kernel *kernel;
  kva_arena *arena;
  kva_expr_ctx *exprs;
  kva_kregion *region;      /* innermost open region */
  kva_kval pred;            /* current guard of loads and stores, NULL: none; see kva_k_guard_begin */
  struct kva_kb_memo *memo; /* hash-consing; private to kernel_build.c */
} kva_kb;

kva_kernel *kva_kernel_create(kva_arena *arena, kva_expr_ctx *exprs, const char *name);
kva_kb *kva_kb_create(kva_kernel *k);

kva_kbuf *kva_k_param(kva_kb *b, const char *name, kva_dtype dtype, const kva_expr *extent);
kva_kbuf *kva_k_local(kva_kb *b, const char *name, kva_dtype dtype, int64_t extent);
kva_kbuf *kva_k_shared(kva_kb *b, const char *name, kva_dtype dtype, int64_t extent);

/* The type that computation on storage type t happens in: f16 -> f32, int4 -> i8, ... */
kva_dtype kva_k_compute_type(kva_dtype t);

/* Arithmetic; folds constants and neutral elements (x+0, x*1, select of a constant); for integers only where exact. */
kva_kval kva_k_op(kva_kb *b, kva_kop op, kva_kval x, kva_kval y, kva_kval z); /* unused operands NULL */
static inline kva_kval kva_k1(kva_kb *b, kva_kop op, kva_kval x) {
  return kva_k_op(b, op, x, NULL, NULL);
}
static inline kva_kval kva_k2(kva_kb *b, kva_kop op, kva_kval x, kva_kval y) {
  return kva_k_op(b, op, x, y, NULL);
}
static inline kva_kval kva_k_select(kva_kb *b, kva_kval c, kva_kval x, kva_kval y) {
  return kva_k_op(b, KVA_K_select, c, x, y);
}
kva_kval kva_k_const_f(kva_kb *b, kva_dtype t, double v);
kva_kval kva_k_const_i(kva_kb *b, kva_dtype t, int64_t v);   /* also bool */
kva_kval kva_k_const(kva_kb *b, kva_dtype t, double v);      /* by type */
kva_kval kva_k_convert(kva_kb *b, kva_kval x, kva_dtype to); /* x itself when the type is the same */
kva_kval kva_k_bitcast(kva_kb *b, kva_kval x, kva_dtype to);

/* An index expression as an i64 value, and an i64 value as an index expression (gather). */
kva_kval kva_k_index(kva_kb *b, const kva_expr *e);
const kva_expr *kva_k_symbol(kva_kb *b, kva_kval i64_value);
/* A symbol for e, which is computed here once: 0 <= e < extent is the caller's word. For long expressions that many
 * indices share. */
const kva_expr *kva_k_name(kva_kb *b, const kva_expr *e, const kva_expr *extent);
/* Comparisons of index expressions, folded where ranges prove them. */
kva_kval kva_k_index_lt(kva_kb *b, const kva_expr *x, const kva_expr *y);
kva_kval kva_k_index_le(kva_kb *b, const kva_expr *x, const kva_expr *y);
kva_kval kva_k_index_eq(kva_kb *b, const kva_expr *x, const kva_expr *y);
kva_kval kva_k_and(kva_kb *b, kva_kval x, kva_kval y); /* NULL stands for true */

/* Loads and stores happen under the current guard. A load's value is in the compute type; a store converts. */
kva_kval kva_k_load(kva_kb *b, kva_kbuf *buf, const kva_expr *index);
void kva_k_store(kva_kb *b, kva_kbuf *buf, const kva_expr *index, kva_kval v);
/* Between begin and end loads and stores are predicated by cond (and what was there): for padding, concat, ragged
 * edges. Returns the previous guard, which goes to end. */
kva_kval kva_k_guard_begin(kva_kb *b, kva_kval cond);
void kva_k_guard_end(kva_kb *b, kva_kval previous);

/* Loops. begin makes the loop at the current place and enters it; end leaves it. The variable is loop->var.
 * `strict_order` may be set between. For reductions that are pulled as values use the three-step form:
 *   kva_kloop *l = kva_k_loop_begin(b, KVA_K_SERIAL, extent, "k");
 *   kva_kval x = ... l->var ...;
 *   kva_kval sum = kva_k_reduce(b, l, KVA_COMBINE_ADD, kva_k_const(b, F32, 0), x);   // inside, any number of them
 *   kva_k_loop_end(b, l);
 * `sum` is usable after end. A loop with only reductions moves out to where its operands allow at end, and merges with
 * an equal one. Prefer kva_k_reduce_over, which does this in one call. */
kva_kloop *kva_k_loop_begin(kva_kb *b, kva_kloop_kind kind, const kva_expr *extent, const char *name);
kva_kval kva_k_reduce(kva_kb *b, kva_kloop *l, kva_combine combine, kva_kval init, kva_kval contribution);
/* Sequential carry: returns its previous value; give the next one with kva_k_carry_next, result by kva_k_carry_result
 * after the loop. */
kva_kval kva_k_carry(kva_kb *b, kva_kloop *l, kva_kval init);
void kva_k_carry_next(kva_kb *b, kva_kloop *l, kva_kval carry, kva_kval next);
kva_kval kva_k_carry_result(kva_kb *b, kva_kloop *l, kva_kval carry);
void kva_k_loop_end(kva_kb *b, kva_kloop *l);

/* combine over 0 <= i < extents[0], ... of body(user, vars). Neutral start. Pure: placed and shared like arithmetic. */
typedef kva_kval (*kva_k_body)(kva_kb *b, void *user, const kva_expr *const *vars);
kva_kval kva_k_reduce_over(kva_kb *b, kva_combine combine, kva_dtype dtype, uint32_t n, const kva_expr *const *extents,
                           kva_k_body body, void *user);

/* if (cond) { ... } else { ... }: effects only. */
kva_kinstr *kva_k_if_begin(kva_kb *b, kva_kval cond);
void kva_k_if_else(kva_kb *b, kva_kinstr *branch);
void kva_k_if_end(kva_kb *b, kva_kinstr *branch);
void kva_k_barrier(kva_kb *b);
/* A copy of *m at the current place; float_value is its 'v' or NULL. Its value, or NULL. */
kva_kval kva_k_intrinsic(kva_kb *b, const kva_kintrinsic *m, kva_kval float_value);
/* The number of a new tensor map; *map is copied. */
int32_t kva_k_tensor_map(kva_kb *b, const kva_ktensor_map *map);

/* ---- checking, text ---------------------------------------------------------------------------------------------- */

/* Types, dominance (operands visible), loops closed, constant extents where required. */
KVA_MUST_USE kva_status kva_kernel_verify(const kva_kernel *k, kva_diag *diag);
void kva_kernel_print(const kva_kernel *k, kva_text *out);
/* Reads what print writes; symbols by name. NULL and diagnostics on bad text. */
kva_kernel *kva_kernel_parse(kva_arena *arena, kva_expr_ctx *exprs, const char *text, const char *file, kva_diag *diag);
/* Whether the parameter `result` may lie in the memory of the parameter `operand`: every element is loaded before it is
 * stored, in the iteration that stores it. For scheduled kernels; false: not proven. */
bool kva_kernel_in_place(const kva_kernel *k, const kva_kbuf *result, const kva_kbuf *operand);
/* Appends bytes that are the same for equal kernels and for no others. Equal: they differ only in ids, in the place of
 * constants, and in names of the kernel, buffers and variables. */
void kva_kernel_encode(const kva_kernel *k, kva_text *out);

/* ---- walking and rewriting ----------------------------------------------------------------------------------------
 * For schedules and code generation. The builder's own tables do not follow these edits: rewrite after building. */

const char *kva_kop_name(kva_kop op);                         /* "add", "load", ... */
uint32_t kva_kop_arity(kva_kop op);                           /* operands of an arithmetic opcode; 0 for the others */
kva_dtype kva_kop_result_type(kva_kop op, kva_dtype operand); /* of arithmetic; operand: type of args[0], select: [1] */
const char *kva_kloop_kind_name(kva_kloop_kind kind);
const char *kva_combine_name(kva_combine combine);

/* Calls visit for every instruction in text order (a loop before its body). visit may unlink the one it is given. */
void kva_k_each_instr(const kva_kernel *k, void (*visit)(void *user, kva_kinstr *i), void *user);
/* The same within one region and the regions below it. */
void kva_k_each_instr_in(const kva_kregion *r, void (*visit)(void *user, kva_kinstr *i), void *user);
/* Calls visit for every index expression and extent of i, which it may change. */
void kva_k_each_index(kva_kinstr *i, void (*visit)(void *user, const kva_expr **e), void *user);
/* Is `inner` the region `outer` or below it? */
bool kva_k_encloses(const kva_kregion *outer, const kva_kregion *inner);
/* Number of loops around this one. */
uint32_t kva_k_loop_depth(const kva_kloop *l);
/* The region where a symbol has a value: a loop's body, the region of a value; NULL for shape symbols. */
kva_kregion *kva_k_symbol_region(const kva_kernel *k, const kva_expr *symbol);
/* Replaces symbols from[i] by to[i] in every index and loop extent. Ranges that symbols carry stay as they are. */
void kva_k_replace_index(kva_kernel *k, uint32_t n, const kva_expr *const *from, const kva_expr *const *to);

/* Unlinked objects of k, for rewriting. A loop comes with its instruction and an empty body. */
kva_kinstr *kva_k_instr_create(kva_kernel *k, kva_kop op, kva_dtype dtype);
kva_kloop *kva_k_loop_create(kva_kernel *k, kva_kloop_kind kind, const kva_expr *extent, const char *name);
kva_kregion *kva_k_region_create(kva_kernel *k, kva_kinstr *owner);
/* An unlinked copy of i with all below it, which defines what it defines anew; in its indices and extents to[s] stands
 * for symbol from[s]. */
kva_kinstr *kva_k_copy(kva_kernel *k, kva_kinstr *i, uint32_t n, const kva_expr *const *from,
                       const kva_expr *const *to);
/* Links i into r before `before` (NULL: at the end); regions below i get their parent and depth. */
void kva_k_insert(kva_kregion *r, kva_kinstr *before, kva_kinstr *i);
void kva_k_unlink(kva_kinstr *i);
/* Removes pure instructions and loops whose values nobody uses, and makes ids dense again in text order. */
void kva_kernel_sweep(kva_kernel *k);

#endif
