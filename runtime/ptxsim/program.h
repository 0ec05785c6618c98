/* The decoded form of PTX, private to the simulator.
 *
 * A kernel is an array of instructions over register slots. Every operand is a slot: immediates and special registers
 * have their own slots, filled before a warp starts, so that execution never tests the kind of an operand. A slot holds
 * 32 lanes of 4 bytes (types up to 32 bits; 8- and 16-bit values zero-extended) or of 8 bytes. Predicates are lane
 * masks in a separate array; an operand names one as index * 2 + negated. */
#ifndef KVA_RUNTIME_PTXSIM_PROGRAM_H
#define KVA_RUNTIME_PTXSIM_PROGRAM_H

#include "runtime/ptxsim/ptxsim.h"

enum { PTX_LANES = 32 };
#define PTX_ALL  0xffffffffu
#define PTX_NONE 0xffffffffu /* no register, no predicate, no instruction */

/* Predicates that every kernel has. */
enum { PTX_FALSE, PTX_TRUE, PTX_CARRY, PTX_FIRST_PREDICATE };

/* X(name, NAME, bits, kind): kinds p predicate, b bits, u unsigned, s signed, f float, 2 packed pair. f32z is f32 with
 * .ftz: reads and writes flush subnormals to zero. */
#define PTX_TYPES(X)       \
  X(pred, PRED, 1, p)      \
  X(b8, B8, 8, b)          \
  X(u8, U8, 8, u)          \
  X(s8, S8, 8, s)          \
  X(b16, B16, 16, b)       \
  X(u16, U16, 16, u)       \
  X(s16, S16, 16, s)       \
  X(f16, F16, 16, f)       \
  X(bf16, BF16, 16, f)     \
  X(b32, B32, 32, b)       \
  X(u32, U32, 32, u)       \
  X(s32, S32, 32, s)       \
  X(f32, F32, 32, f)       \
  X(f32z, F32Z, 32, f)     \
  X(f16x2, F16X2, 32, 2)   \
  X(bf16x2, BF16X2, 32, 2) \
  X(u16x2, U16X2, 32, 2)   \
  X(s16x2, S16X2, 32, 2)   \
  X(b64, B64, 64, b)       \
  X(u64, U64, 64, u)       \
  X(s64, S64, 64, s)       \
  X(f64, F64, 64, f)
typedef enum ptx_type {
  PTX_NOTYPE,
#define PTX_TYPE_ENUM(name, NAME, bits, kind) PTX_##NAME,
  PTX_TYPES(PTX_TYPE_ENUM)
#undef PTX_TYPE_ENUM
      PTX_N_TYPES
} ptx_type;
const char *kva_ptx_type_name(ptx_type t);
int kva_ptx_type_bits(ptx_type t);
char kva_ptx_type_kind(ptx_type t);
ptx_type kva_ptx_type_from_name(const char *s, size_t n); /* PTX_NOTYPE: unknown; never F32Z */

/* Special registers. X(name, NAME): the 32-bit ones, with a slot filled when a warp starts. The two clocks have their
 * own instructions. */
/* clang-format off */
#define PTX_SPECIALS(X) \
  X(tid.x, TID_X) X(tid.y, TID_Y) X(tid.z, TID_Z) X(ntid.x, NTID_X) X(ntid.y, NTID_Y) X(ntid.z, NTID_Z) X(ctaid.x, CTAID_X) \
  X(ctaid.y, CTAID_Y) X(ctaid.z, CTAID_Z) X(nctaid.x, NCTAID_X) X(nctaid.y, NCTAID_Y) X(nctaid.z, NCTAID_Z) \
  X(laneid, LANEID) X(warpid, WARPID) X(nwarpid, NWARPID) X(smid, SMID) X(nsmid, NSMID) X(gridid, GRIDID) \
  X(lanemask_eq, MASK_EQ) X(lanemask_lt, MASK_LT) X(lanemask_le, MASK_LE) X(lanemask_gt, MASK_GT) \
  X(lanemask_ge, MASK_GE) X(dynamic_smem_size, DYNAMIC_SMEM) X(total_smem_size, TOTAL_SMEM) \
  X(cluster_ctarank, CLUSTER_RANK) X(cluster_nctarank, CLUSTER_SIZE) \
  X(cluster_ctaid.x, CLUSTER_CTAID_X) X(cluster_ctaid.y, CLUSTER_CTAID_Y) X(cluster_ctaid.z, CLUSTER_CTAID_Z) \
  X(cluster_nctaid.x, CLUSTER_NCTAID_X) X(cluster_nctaid.y, CLUSTER_NCTAID_Y) X(cluster_nctaid.z, CLUSTER_NCTAID_Z) \
  X(clusterid.x, CLUSTERID_X) X(clusterid.y, CLUSTERID_Y) X(clusterid.z, CLUSTERID_Z) \
  X(nclusterid.x, NCLUSTERID_X) X(nclusterid.y, NCLUSTERID_Y) X(nclusterid.z, NCLUSTERID_Z)
/* clang-format on */
typedef enum ptx_special {
#define PTX_SPECIAL_ENUM(name, NAME) PTX_SPECIAL_##NAME,
  PTX_SPECIALS(PTX_SPECIAL_ENUM)
#undef PTX_SPECIAL_ENUM
      PTX_N_SPECIALS,
  PTX_SPECIAL_CLOCK = PTX_N_SPECIALS,
  PTX_SPECIAL_CLOCK64,
  PTX_SPECIAL_GLOBALTIMER,
} ptx_special;

typedef enum ptx_space {
  PTX_GENERIC,
  PTX_GLOBAL,
  PTX_SHARED,
  PTX_CLUSTER, /* shared memory of all CTAs of the cluster */
  PTX_LOCAL,
  PTX_PARAM,
  PTX_CONST,
} ptx_space;

typedef enum ptx_atomic {
  PTX_ATOM_ADD,
  PTX_ATOM_MIN,
  PTX_ATOM_MAX,
  PTX_ATOM_AND,
  PTX_ATOM_OR,
  PTX_ATOM_XOR,
  PTX_ATOM_EXCH,
  PTX_ATOM_CAS,
  PTX_ATOM_INC,
  PTX_ATOM_DEC,
} ptx_atomic;

enum { PTX_BAR_SYNC, PTX_BAR_ARRIVE, PTX_BAR_RED_POPC, PTX_BAR_RED_AND, PTX_BAR_RED_OR };
enum { PTX_SHFL_UP, PTX_SHFL_DOWN, PTX_SHFL_BFLY, PTX_SHFL_IDX };
enum { PTX_VOTE_ALL, PTX_VOTE_ANY, PTX_VOTE_UNI, PTX_VOTE_BALLOT };

enum {
  PTX_MBARRIER_INIT,
  PTX_MBARRIER_INVAL,
  PTX_MBARRIER_ARRIVE,
  PTX_MBARRIER_ARRIVE_TX,
  PTX_MBARRIER_EXPECT_TX,
  PTX_MBARRIER_COMPLETE_TX,
};
/* Bulk copies: what moves where. */
enum { PTX_BULK_LOAD, PTX_BULK_STORE, PTX_BULK_REDUCE, PTX_BULK_ARRIVE };

/* Windows of the generic address space. Host addresses are below 2^47. */
#define PTX_WINDOW_SHIFT  56
#define PTX_SHARED_WINDOW (1ull << PTX_WINDOW_SHIFT)
#define PTX_LOCAL_WINDOW  (2ull << PTX_WINDOW_SHIFT)
#define PTX_PARAM_WINDOW  (3ull << PTX_WINDOW_SHIFT)

typedef struct ptx_warp ptx_warp;
typedef struct ptx_ins ptx_ins;
/* Executes an instruction for the lanes of mask, which is never empty. */
typedef void (*ptx_exec)(ptx_warp *w, const ptx_ins *i, uint32_t mask);
typedef uint32_t (*ptx_compare)(ptx_warp *w, const ptx_ins *i);

/* Operations that the warp loop handles itself; everything else is PTX_OP_EXEC. */
typedef enum ptx_op {
  PTX_OP_EXEC,
  PTX_OP_BRANCH,
  PTX_OP_BRANCH_TABLE,
  PTX_OP_EXIT,
  PTX_OP_BARRIER,  /* bar, barrier: sync, arrive, red */
  PTX_OP_MBARRIER, /* mbarrier.test_wait, try_wait */
  PTX_OP_SETMAXNREG,
  PTX_OP_WGMMA_WAIT,
  PTX_OP_CLUSTER_WAIT,
} ptx_op;

struct ptx_ins {
  ptx_exec exec;
  ptx_compare compare;      /* setp, set */
  uint8_t op;               /* ptx_op */
  uint8_t class;            /* kva_ptx_class */
  uint8_t type;             /* ptx_type */
  uint8_t space;            /* ptx_space */
  uint8_t bytes;            /* of one element in memory */
  uint8_t n;                /* elements in list */
  uint8_t sub;              /* operation within exec: atomic, shuffle or vote mode, boolean of setp */
  bool hidden;              /* part of the next instruction: not counted */
  bool relocate, relocate2; /* imm, imm2 are offsets from the start of dynamic shared memory */
  uint8_t width;            /* bytes of the data registers of ld and st, at least the type's */
  bool flag2;               /* operands of 64 bits */
  bool flag;                /* strong memory access, uniform branch, aligned barrier, transposed matrix, `exit` */
  uint32_t guard;           /* predicate operand or PTX_NONE */
  uint32_t dst, dst2;       /* slots (byte offsets in the register file), or predicate indices */
  uint32_t src[4];          /* slots or predicate operands */
  int64_t imm;              /* address offset, group count, table size */
  int64_t imm2;             /* offset of the destination of a copy */
  uint32_t target;          /* branch: instruction */
  uint32_t reconverge;      /* branch: instruction at the immediate post-dominator; n_ins: the end */
  uint32_t *list;           /* slots of a vector, targets of a branch table */
  uint32_t *reads, *writes; /* register slots of its sources and destinations */
  uint16_t n_reads, n_writes;
  uint32_t line, source_line; /* in the PTX text; of the last .loc, 0: none */
  const char *text;           /* mnemonic, for messages */
};

typedef struct ptx_constant {
  uint32_t slot;
  bool wide, relocate; /* relocate: an offset from the start of dynamic shared memory */
  uint64_t bits;
} ptx_constant;

struct kva_ptx_kernel {
  kva_ptx_kernel_info info;
  const kva_ptx_module *module;
  ptx_ins *ins; /* ends with an exit */
  uint32_t n_ins;
  uint32_t reg_bytes, n_preds;
  KVA_VEC(ptx_constant) constants;
  uint32_t special_slot[PTX_N_SPECIALS]; /* PTX_NONE: not used */
  uint32_t param_bytes, shared_bytes, local_bytes;
  uint32_t dynamic_align; /* largest alignment of .extern .shared arrays */
  uint32_t shadow_shift;  /* log2 of the narrowest access to shared memory in bytes */
  uint32_t global_shift;  /* likewise for global memory; at most 2 */
  bool uses_async, uses_wgmma;
  bool polls; /* loads global memory to see writes of other CTAs: volatile, relaxed or acquire */
};

/* A .global or .const variable. */
typedef struct ptx_variable {
  const char *name;
  unsigned char *data;
  size_t size;
  bool writable;
} ptx_variable;

struct kva_ptx_module {
  kva_arena *arena;
  const char *name, *text;
  KVA_VEC(kva_ptx_kernel *) kernels;
  KVA_VEC(ptx_variable) variables;
};

/* ---- statements: the parser's output, the decoder's input -------------------------------------------------------- */

typedef enum ptx_operand_kind {
  PTX_OPERAND_REG,     /* slot; predicates: index */
  PTX_OPERAND_IMM,     /* bits, type: S64 integer, F32 or F64 as written */
  PTX_OPERAND_SPECIAL, /* special */
  PTX_OPERAND_SYMBOL,  /* address of a variable, value in bits, space */
  PTX_OPERAND_ADDRESS, /* [register or nothing + bits], space of the named symbol */
  PTX_OPERAND_LIST,    /* {a, b} */
  PTX_OPERAND_LABEL,
  PTX_OPERAND_DISCARD, /* _ */
} ptx_operand_kind;

typedef struct ptx_operand ptx_operand;
struct ptx_operand {
  ptx_operand_kind kind;
  ptx_type type;
  uint32_t slot;
  uint64_t bits;
  ptx_special special;
  ptx_space space;
  bool negated, has_symbol, relocate;
  const char *name; /* label, register */
  const ptx_operand *items;
  uint32_t n_items;
  const ptx_operand *second; /* a|b */
  uint32_t line, column;
};

enum { PTX_MAX_MODS = 16, PTX_MAX_OPERANDS = 12 };
typedef struct ptx_statement {
  const char *text; /* whole mnemonic */
  const char *base;
  const char *mods[PTX_MAX_MODS];
  bool taken[PTX_MAX_MODS];
  uint32_t n_mods;
  uint32_t guard;
  ptx_operand operands[PTX_MAX_OPERANDS];
  uint32_t n_operands;
  uint32_t line, column, source_line;
} ptx_statement;

typedef struct ptx_branch_targets {
  const char **names;
  uint32_t n;
} ptx_branch_targets;

/* Builds one kernel. */
typedef struct ptx_builder {
  kva_ptx_module *module;
  kva_ptx_kernel *kernel;
  kva_diag *diag;
  kva_arena *arena;
  KVA_VEC(ptx_ins) ins;
  KVA_VEC(const char *) targets; /* branch targets, parallel to ins: label names or NULL */
  kva_map *constants;            /* value to index + 1 in the kernel's constants */
  kva_map *tables;               /* label to ptx_branch_targets */
} ptx_builder;

uint32_t kva_ptx_new_slot(ptx_builder *b, bool wide);
bool kva_ptx_knows(const char *base); /* whether there is an instruction of this name */
/* Reports an error at a position in the text. */
kva_status kva_ptx_error_at(const kva_ptx_module *module, kva_diag *diag, kva_status status, uint32_t line,
                            uint32_t column, const char *fmt, ...) KVA_PRINTF(6, 7);
/* Appends the statement's instruction. */
KVA_MUST_USE kva_status kva_ptx_decode(ptx_builder *b, ptx_statement *s);
/* Sets the reconvergence point of every branch; requires resolved targets. */
void kva_ptx_build_cfg(kva_ptx_kernel *kernel, kva_arena *arena);

/* ---- tables of instruction forms --------------------------------------------------------------------------------- */

/* An instruction that maps lanes to lanes. `name` is the mnemonic without types, .rn and .ftz. `operands`: result, then
 * sources: t the instruction's type, w twice as wide, u u32, p predicate. */
typedef struct ptx_form {
  const char *name;
  ptx_type type;
  kva_ptx_class class;
  const char *operands;
  ptx_exec exec;
} ptx_form;
typedef struct ptx_forms {
  const ptx_form *forms;
  uint32_t n;
} ptx_forms;
extern const ptx_forms kva_ptx_forms_integer, kva_ptx_forms_bits, kva_ptx_forms_float, kva_ptx_forms_special,
    kva_ptx_forms_half;

ptx_compare kva_ptx_find_compare(const char *name, ptx_type type); /* NULL: none */
/* Sets the fields of *i that the conversion needs; false: unsupported. */
bool kva_ptx_find_convert(ptx_type to, ptx_type from, const char *rounding, bool saturate, bool ftz, ptx_ins *i);
bool kva_ptx_atomic_supported(ptx_atomic op, ptx_type type);
ptx_exec kva_ptx_find_convert_pair(ptx_type to, bool with_relu);

#endif
