/* The kernel IR: the small language between the graph and LLVM. One kernel = one function over buffers, run for work
 * items [begin, end) of its grid. No LLVM here; dtype and target are parameters.
 *
 *   region   a list of instructions: a kernel's body, a loop's body, the arms of an if
 *   instr    an SSA scalar value or an effect. Code is scalar: a VECTOR loop asks the target to run iterations in lanes
 *   loop     kind, variable (a symbol of index expressions), extent; reductions are carried values with a combining
 *            operation, so that a target may use several accumulators or lanes
 *   buffer   a parameter (operand or result of the kernel) or a local tile
 *
 * Index arithmetic is not made of instructions: loads, stores and extents carry a kva_expr over loop variables, shape
 * symbols and values (kva_k_symbol). So strides, loop merging and bounds are algebra, not pattern matching.
 *
 * Placement: the builder puts every pure instruction (arithmetic, loads from read-only buffers, reduction loops) into
 * the outermost region that its operands allow, and reuses an equal one that dominates it. So lowering code just pulls
 * values; hoisting and common subexpression elimination are implicit. */
#ifndef KVA_IR_KERNEL_H
#define KVA_IR_KERNEL_H

#include "ir/expr.h"

typedef struct kva_kernel kva_kernel;
typedef struct kva_kregion kva_kregion;
typedef struct kva_kinstr kva_kinstr;
typedef struct kva_kloop kva_kloop;
typedef struct kva_kbuf kva_kbuf;
typedef kva_kinstr *kva_kval; /* an instruction as the value that it defines; never NULL */

typedef enum kva_kspace {
  KVA_K_PARAM,  /* argument of the kernel */
  KVA_K_LOCAL,  /* private to a work item: registers if indices are constant after unrolling, else stack */
  KVA_K_SHARED, /* GPU: shared by the threads of a block; CPU: same as LOCAL */
} kva_kspace;

struct kva_kbuf {
  kva_kspace space;
  kva_dtype dtype;        /* storage type */
  const kva_expr *extent; /* elements; constant for LOCAL and SHARED */
  bool read, written; /* PARAM: set by loads and stores. Accesses to a buffer that is both are ordered, never hoisted. A
                         kernel stores every element of a write-only buffer exactly once */
  uint32_t id;        /* dense; parameters first, in argument order */
  const char *name;
  kva_kbuf *over; /* SHARED: aliases this earlier buffer, which is at least as large; NULL: has memory of its own */
};

/* Scalar opcodes. X(name, operands). Results have the type of operand 0 unless noted. Compute types are bool, i8..i64,
 * u8..u64, f32, f64; loads of f16, bf16, f8, i4 ... widen (to f32, i8, u8), stores round. */
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
  /* i32: c + the sum of the four products of a byte of a, unsigned, and the byte of b there, signed; wraps */     \
  X(dot4, 3)                                                                                                       \
  /* f32: a and b are two bf16 each, by their bits: c + the product of the high ones, rounded, + that of the low */\
  /* ones, rounded. Subnormal factors and sums may count as 0. */                                                  \
  X(dot2, 3)                                                                                                       \
  /* f32: a / b and 2^a to 2 units in the last place, 1 / (1 + 2^a) to 4, or 0 where that is below 2^-126 */       \
  X(near_div, 2) X(near_exp2, 1) X(near_logistic, 1)                                                               \
  /* f32: a * 2^n, rounded once, for b = KVA_K_ROUNDER + n, |a| in [1/2, 2), integers n in [-250, 250]; */         \
  /* NaN if a is */                                                                                                \
  X(scalef, 2)                                                                                                     \
  X(eq, 2) X(ne, 2) X(lt, 2) X(le, 2) /* -> bool; floats ordered, ne unordered */                                  \
  X(isnan, 1) /* -> bool */                                                                                        \
  /* x from KVA_FAR_ANGLE on and finite: its difference to the nearest multiple q of pi/2; q modulo 4, as bits. */ \
  /* Else operand 0. */                                                                                            \
  X(far_rest, 2) X(far_quarter, 2)                                                                                 \
  X(select, 3) /* bool, a, b -> type of a */
/* clang-format on */

#define KVA_K_ROUNDER 0x1.8p23 /* x + this is x rounded to an integer, whose value is in the low bits of the float */
#define KVA_FAR_ANGLE 0x1p50   /* operand 1 of far_rest and far_quarter */

typedef enum kva_kop {
#define KVA_K_OP_ENUM(name, n) KVA_K_##name,
  KVA_K_ARITH(KVA_K_OP_ENUM)
#undef KVA_K_OP_ENUM
      KVA_K_CONST, /* value in `imm` */
  KVA_K_INDEX,     /* an index expression as i64 */
  KVA_K_CONVERT,   /* to dtype as in C, but float -> int truncates and saturates; int -> int wraps */
  KVA_K_BITCAST,   /* same width */
  KVA_K_NARROW,    /* rounded to the storage type `imm`, as a store does; the value keeps its compute type */
  KVA_K_LOAD,      /* buf[index]; args[0]: optional predicate: false lanes give 0 and access no memory */
  KVA_K_STORE,     /* buf[index] = args[0]; args[1]: optional predicate */
  KVA_K_LOOP,
  KVA_K_REDUCE,    /* result of carry `carry` of loop `loop`, after the loop */
  KVA_K_CARRY,     /* inside the loop: previous value of a KVA_COMBINE_NONE carry */
  KVA_K_IF,        /* args[0]; regions then/orelse; effects only */
  KVA_K_BARRIER,   /* synchronises the threads of the subgroup and orders their memory accesses; no-op on a CPU */
  KVA_K_INTRINSIC, /* `intrinsic`: an instruction of a dialect */
} kva_kop;

/* ---- intrinsics --------------------------------------------------------------------------------------------------
 * Instructions that only some targets have. Each belongs to a dialect (ir/dialect.h), which defines its operands and
 * verifies it. Those of GPUs are for kernels that write the code of each thread: they stand in a THREAD loop with one
 * iteration for each thread of the block, or of a subgroup of it. */

typedef enum kva_dialect_id {
  KVA_DIALECT_TILE, /* KVA_K_TILES */
  KVA_DIALECT_NV,   /* ir/dialect_nv.def */
  KVA_DIALECT_AMX,  /* ir/dialect_amx.h */
  KVA_DIALECT_CPU,  /* ir/dialect_cpu.h */
  KVA_DIALECT_COUNT
} kva_dialect_id;

enum { KVA_DIALECT_SIZE = 256 };
#define KVA_DIALECT_FIRST(dialect) ((dialect)*KVA_DIALECT_SIZE) /* number of a dialect's first instruction */
typedef uint32_t kva_intrinsic_id;

/* X(name, type of the value, features, operands): what every target with subgroups and tiles of matrices has. A
 * fragment is a tile of a matrix in the registers of a subgroup's 32 lanes.
 *
 * load_matrix dst, row, n, t   n (1, 2, 4) matrices of 8 x 8 16-bit elements from shared memory; lane 8*i + r points to
 *                              row r of matrix i (16 bytes). A lane gets elements (lane / 4, 2 * (lane % 4) + 0, 1) of
 *                              each matrix; t = 1: of its transpose
 * store_matrix row, src, n, t  the reverse
 * mma d, a, b                  d[4] += a[8] * b[4]: 16 x 16 by 16 x 8 16-bit elements, float sums
 * block_barrier                synchronises all threads of the block
 * subgroup_barrier             synchronises the 32 threads of the subgroup
 * shuffle_xor v, bit           v of the lane whose number differs in `bit`
 * exp2 v                       2^v to 2 units in the last place; below 2^-126 it is 0
 * round_pair d, s              16-bit d[2] = float s[2], rounded to nearest, packed into one register */
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

/* Operands of each kind in the order of the table row. A float value is args[0] of the instruction. */
typedef struct kva_kintrinsic {
  kva_intrinsic_id op;
  kva_kplace places[KVA_K_MAX_PLACES];
  const kva_expr *indices[KVA_K_MAX_INDICES]; /* NULL after the last */
  int32_t numbers[KVA_K_MAX_NUMBERS];
} kva_kintrinsic;

/* A tensor map: a kernel parameter that describes one of its buffers to tensor copies. Dimensions from the innermost
 * one. */
enum { KVA_K_TENSOR_MAP_RANK = 5 };
typedef struct kva_ktensor_map {
  kva_kbuf *buf;
  uint32_t rank;
  const kva_expr *dims[KVA_K_TENSOR_MAP_RANK];    /* elements, over shape symbols */
  const kva_expr *strides[KVA_K_TENSOR_MAP_RANK]; /* bytes, multiples of 16; [0] is unused */
  int32_t box[KVA_K_TENSOR_MAP_RANK];             /* elements; the innermost dimension fills `swizzle` bytes */
  int32_t swizzle;                                /* 0, 32, 64, 128 */
} kva_ktensor_map;

/* ---- loops, instructions, kernels -------------------------------------------------------------------------------- */

typedef enum kva_kloop_kind {
  KVA_K_PARALLEL, /* independent iterations, as lowered; the schedule assigns one of the other kinds */
  KVA_K_GRID,     /* iterations are work items */
  KVA_K_SERIAL,   /* in order */
  KVA_K_UNROLL,   /* constant extent, fully unrolled */
  KVA_K_VECTOR,   /* lanes; the target handles the remainder */
  KVA_K_THREAD,   /* GPU: threads of a block */
} kva_kloop_kind;

typedef enum kva_combine {
  KVA_COMBINE_NONE, /* sequential: the body reads KVA_K_CARRY and yields the next value (scan) */
  KVA_COMBINE_ADD,
  KVA_COMBINE_MUL,
  KVA_COMBINE_MAX, /* NaN if either is NaN */
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
  bool strict_order; /* reductions: index order, one accumulator: bits do not depend on chunking */
  /* THREAD: divides the surrounding threads (the block's, or those of an outer THREAD loop's subgroup) into subgroups
   * of `subgroup` threads (a power of two; 0, 1: single threads), which take the iterations in turn. Inside, all
   * threads of a subgroup run the same code with the same values; a nested THREAD loop divides them further. Reductions
   * combine over all subgroups in a fixed tree; every thread gets the result.
   * `width`: a single thread takes so many consecutive iterations at once, as lanes (0: 1). VECTOR: lanes are those of
   * so many vectors, where their elements have 32 bits or more.
   * `peel`: lanes start after so many iterations (NULL: none; less than KVA_K_PEEL) and leave fewer than KVA_K_PEEL at
   * the end; both are single iterations. So the accesses of lanes are aligned even where rows are not.
   * `blocks` (a power of two; 0, 1: one block): so many consecutive blocks run the same code on parts of one row; the
   * results of its reductions combine over them, too, and are equal in all of them.
   * PARALLEL: `subgroup` is a request of the kernel's author (0: none): one such subgroup for each iteration. */
  uint32_t subgroup, width, blocks;
  const kva_expr *peel;
  bool stage; /* THREAD with subgroups, run once per block: a request to stage in shared memory what its subgroups load
                 alike, or as consecutive elements */
};
enum {
  KVA_K_PEEL = 32,     /* elements of one byte in a sector of global memory */
  KVA_K_MAX_BLOCKS = 8 /* blocks that share a row */
};

struct kva_kinstr {
  kva_kop op;
  kva_dtype dtype; /* of the value; KVA_DTYPE_NONE for effects */
  uint32_t n_args;
  kva_kval args[3];
  union {
    double f;  /* CONST of a float type */
    int64_t i; /* CONST of an integer or bool type; NARROW: the storage type; LOAD: see kva_kb */
  } imm;
  const kva_expr *index;     /* LOAD, STORE, INDEX */
  kva_kbuf *buf;             /* LOAD, STORE */
  kva_kloop *loop;           /* LOOP, REDUCE, CARRY */
  uint32_t carry;            /* REDUCE, CARRY */
  kva_kintrinsic *intrinsic; /* INTRINSIC */
  kva_kregion *then, *orelse;
  kva_kregion *region; /* the region that contains it */
  kva_kinstr *prev, *next;
  uint32_t id; /* dense within the kernel */
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
  /* Symbols bound to values read from memory: value_symbols[i] stands for instruction values[i] (integer). */
  KVA_VEC(const kva_expr *) value_symbols;
  KVA_VEC(kva_kval) values;
  kva_kregion *body;
  uint32_t next_id;
  uint32_t threads; /* threads of a block, in kernels scheduled for a GPU; 0: no THREAD loops */
  uint32_t blocks;  /* minimum resident blocks per multiprocessor, which limits registers; 0: left to the assembler */
  KVA_VEC(kva_ktensor_map) maps; /* parameters after the symbols */
};

/* ---- builder ----------------------------------------------------------------------------------------------------- */

/* prefetch_bytes: the distance at which a CPU prefetches past every load and store of a parameter; 0: none. A hint set
 * during lowering and copied to each such access. The address need not be mapped. */
typedef struct kva_kb {
  kva_kernel *kernel;
  kva_arena *arena;
  kva_expr_ctx *exprs;
  kva_kregion *region; /* innermost open region */
  kva_kval pred;       /* current guard of loads and stores, NULL: none; see kva_k_guard_begin */
  int64_t prefetch_bytes;
  struct kva_kb_memo *memo; /* hash-consing; private to kernel_build.c */
} kva_kb;

kva_kernel *kva_kernel_create(kva_arena *arena, kva_expr_ctx *exprs, const char *name);
kva_kb *kva_kb_create(kva_kernel *k);

kva_kbuf *kva_k_param(kva_kb *b, const char *name, kva_dtype dtype, const kva_expr *extent);
kva_kbuf *kva_k_local(kva_kb *b, const char *name, kva_dtype dtype, int64_t extent);
kva_kbuf *kva_k_shared(kva_kb *b, const char *name, kva_dtype dtype, int64_t extent);

/* The compute type of storage type t: f16 -> f32, int4 -> i8, ... */
kva_dtype kva_k_compute_type(kva_dtype t);

/* Arithmetic. Folds constants and neutral elements: x + 0, x * 1, select of a constant. That is exact, but for the sign
 * of zero: -0 + 0 of floats stays -0. x * 0 and x - x are folded for integers alone. */
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
kva_kval kva_k_const(kva_kb *b, kva_dtype t, double v);      /* float or integer by type */
kva_kval kva_k_convert(kva_kb *b, kva_kval x, kva_dtype to); /* x itself if the type is the same */
kva_kval kva_k_bitcast(kva_kb *b, kva_kval x, kva_dtype to);
/* x, of storage's compute type, as a store and a load would return it. storage: a float type. */
kva_kval kva_k_narrow(kva_kb *b, kva_kval x, kva_dtype storage);

/* An index expression as an i64 value, and an i64 value as an index expression (gather). */
kva_kval kva_k_index(kva_kb *b, const kva_expr *e);
const kva_expr *kva_k_symbol(kva_kb *b, kva_kval i64_value);
/* Names e: returns a symbol whose value is computed once here. The caller guarantees 0 <= e < extent. For long
 * expressions that many indices share. */
const kva_expr *kva_k_name(kva_kb *b, const kva_expr *e, const kva_expr *extent);
/* Compare index expressions; folded if ranges decide the outcome. */
kva_kval kva_k_index_lt(kva_kb *b, const kva_expr *x, const kva_expr *y);
kva_kval kva_k_index_le(kva_kb *b, const kva_expr *x, const kva_expr *y);
kva_kval kva_k_index_eq(kva_kb *b, const kva_expr *x, const kva_expr *y);
kva_kval kva_k_and(kva_kb *b, kva_kval x, kva_kval y); /* NULL means true */

/* Loads and stores use the current guard. A load gives the compute type; a store converts. */
kva_kval kva_k_load(kva_kb *b, kva_kbuf *buf, const kva_expr *index);
void kva_k_store(kva_kb *b, kva_kbuf *buf, const kva_expr *index, kva_kval v);
/* Between begin and end, loads and stores are predicated by cond and the enclosing guard: for padding, concat, ragged
 * edges. begin returns the previous guard, which the caller passes to end. */
kva_kval kva_k_guard_begin(kva_kb *b, kva_kval cond);
void kva_k_guard_end(kva_kb *b, kva_kval previous);

/* Loops. begin creates the loop at the current position and enters it; end leaves it. The variable is loop->var.
 * `strict_order` may be set in between. A reduction that is pulled as a value takes three steps:
 *   kva_kloop *l = kva_k_loop_begin(b, KVA_K_SERIAL, extent, "k");
 *   kva_kval x = ... l->var ...;
 *   kva_kval sum = kva_k_reduce(b, l, KVA_COMBINE_ADD, kva_k_const(b, F32, 0), x);   // inside, any number of them
 *   kva_k_loop_end(b, l);
 * `sum` is usable after end. At end, a loop that contains only reductions is hoisted as far as its operands allow and
 * merged with an equal one. Prefer kva_k_reduce_over, which does this in one call. */
kva_kloop *kva_k_loop_begin(kva_kb *b, kva_kloop_kind kind, const kva_expr *extent, const char *name);
kva_kval kva_k_reduce(kva_kb *b, kva_kloop *l, kva_combine combine, kva_kval init, kva_kval contribution);
/* Sequential carry: kva_k_carry returns the previous value, kva_k_carry_next sets the next one, kva_k_carry_result
 * gives the result after the loop. */
kva_kval kva_k_carry(kva_kb *b, kva_kloop *l, kva_kval init);
void kva_k_carry_next(kva_kb *b, kva_kloop *l, kva_kval carry, kva_kval next);
kva_kval kva_k_carry_result(kva_kb *b, kva_kloop *l, kva_kval carry);
void kva_k_loop_end(kva_kb *b, kva_kloop *l);

/* combine over 0 <= i < extents[0], ... of body(user, vars), from the neutral element. Pure: placed and shared like
 * arithmetic. */
typedef kva_kval (*kva_k_body)(kva_kb *b, void *user, const kva_expr *const *vars);
kva_kval kva_k_reduce_over(kva_kb *b, kva_combine combine, kva_dtype dtype, uint32_t n, const kva_expr *const *extents,
                           kva_k_body body, void *user);

/* if (cond) { ... } else { ... }: effects only. */
kva_kinstr *kva_k_if_begin(kva_kb *b, kva_kval cond);
void kva_k_if_else(kva_kb *b, kva_kinstr *branch);
void kva_k_if_end(kva_kb *b, kva_kinstr *branch);
void kva_k_barrier(kva_kb *b);
/* Appends a copy of *m; float_value is its 'v' operand or NULL. Returns the instruction's value, or NULL. */
kva_kval kva_k_intrinsic(kva_kb *b, const kva_kintrinsic *m, kva_kval float_value);
/* Adds a copy of *map to the kernel and returns its number. */
int32_t kva_k_tensor_map(kva_kb *b, const kva_ktensor_map *map);

/* ---- verification, text, equality -------------------------------------------------------------------------------- */

/* Types, dominance of operands, closed loops, constant extents where required. */
KVA_MUST_USE kva_status kva_kernel_verify(const kva_kernel *k, kva_diag *diag);
void kva_kernel_print(const kva_kernel *k, kva_text *out);
/* Parses the output of print; symbols by name. NULL and diagnostics on errors. */
kva_kernel *kva_kernel_parse(kva_arena *arena, kva_expr_ctx *exprs, const char *text, const char *file, kva_diag *diag);
/* Whether the parameter `result` may alias the parameter `operand`: every element is loaded before it is stored, in the
 * iteration that stores it. For scheduled kernels; false: not proven. */
bool kva_kernel_in_place(const kva_kernel *k, const kva_kbuf *result, const kva_kbuf *operand);
/* Appends an encoding of k, equal for equal kernels and only for those. Equal kernels differ at most in ids, in the
 * position of constants, and in names of the kernel, buffers, variables and these shape symbols, which count by their
 * position in the list. */
void kva_kernel_encode(const kva_kernel *k, uint32_t n_symbols, const kva_expr *const *symbols, kva_text *out);

/* ---- walking and rewriting ----------------------------------------------------------------------------------------
 * For schedules and code generation. The builder's tables do not follow these edits: rewrite only after building. */

const char *kva_kop_name(kva_kop op); /* "add", "load", ... */
uint32_t kva_kop_arity(kva_kop op);   /* operands of an arithmetic opcode; 0 for other opcodes */
kva_dtype kva_kop_result_type(kva_kop op,
                              kva_dtype operand); /* of arithmetic; operand: type of args[0], for select of args[1] */
const char *kva_kloop_kind_name(kva_kloop_kind kind);
const char *kva_combine_name(kva_combine combine);

/* Calls visit for every instruction in text order (a loop before its body). visit may unlink its instruction. */
void kva_k_each_instr(const kva_kernel *k, void (*visit)(void *user, kva_kinstr *i), void *user);
/* The same for one region and everything below it. */
void kva_k_each_instr_in(const kva_kregion *r, void (*visit)(void *user, kva_kinstr *i), void *user);
/* Calls visit for every index expression and extent of i; visit may replace them. */
void kva_k_each_index(kva_kinstr *i, void (*visit)(void *user, const kva_expr **e), void *user);
/* `inner` is `outer` or nested in it. */
bool kva_k_encloses(const kva_kregion *outer, const kva_kregion *inner);
/* The region in which a symbol is defined: a loop's body, the region of a value; NULL for shape symbols. */
kva_kregion *kva_k_symbol_region(const kva_kernel *k, const kva_expr *symbol);
/* Replaces symbols from[i] by to[i] in every index and loop extent. Ranges of symbols are unchanged. */
void kva_k_replace_index(kva_kernel *k, uint32_t n, const kva_expr *const *from, const kva_expr *const *to);

/* Create unlinked objects of k, for rewriting. A loop comes with its instruction and an empty body. */
kva_kinstr *kva_k_instr_create(kva_kernel *k, kva_kop op, kva_dtype dtype);
kva_kloop *kva_k_loop_create(kva_kernel *k, kva_kloop_kind kind, const kva_expr *extent, const char *name);
kva_kregion *kva_k_region_create(kva_kernel *k, kva_kinstr *owner);
/* Copies i and everything below it, with new definitions, unlinked. In its indices and extents to[s] replaces symbol
 * from[s], be it the variable of a loop that is copied. */
kva_kinstr *kva_k_copy(kva_kernel *k, kva_kinstr *i, uint32_t n, const kva_expr *const *from,
                       const kva_expr *const *to);
/* Links i into r before `before` (NULL: at the end) and updates parent and depth of the regions below i. */
void kva_k_insert(kva_kregion *r, kva_kinstr *before, kva_kinstr *i);
void kva_k_unlink(kva_kinstr *i);
/* Removes pure instructions and loops without users, and renumbers ids densely in text order. */
void kva_kernel_sweep(kva_kernel *k);
/* The kernel's lists of loops and values lose those that rewriting has unlinked. */
void kva_kernel_forget_unlinked(kva_kernel *k);

#endif
