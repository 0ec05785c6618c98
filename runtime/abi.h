/* The only header shared by compiled code and runtime. Artefacts (.o, .so, JIT) contain one kva_artifact, which the
 * runtime executes on a device. Includes nothing of Kvasir but calls.def, the table of calls. Sizes are pinned below; a
 * layout change increments KVA_ABI_VERSION.
 *
 * Units: sizes in bytes, extents in elements. All pointers are borrowed from the artefact. */
#ifndef KVA_RUNTIME_ABI_H
#define KVA_RUNTIME_ABI_H

#include <stdint.h>

#define KVA_ABI_VERSION 16u
#define KVA_ABI_MAGIC   0x52495341564bull /* "KVASIR" */

/* A kernel on the CPU: runs work items [begin, end). buffers has one pointer per argument, in argument order; symbols
 * has the values of the shape symbols that its step names. Work items are independent. */
typedef void (*kva_kernel_fn)(void *const *buffers, const int64_t *symbols, int64_t begin, int64_t end);

/* A size or grid formula: postfix over the symbols, one op per word pair. */
typedef enum kva_formula_op {
  KVA_FORMULA_CONST,  /* push arg */
  KVA_FORMULA_SYMBOL, /* push symbols[arg] */
  KVA_FORMULA_ADD,
  KVA_FORMULA_MUL,
  KVA_FORMULA_DIV, /* floor */
  KVA_FORMULA_MOD, /* floor */
  KVA_FORMULA_MIN,
  KVA_FORMULA_MAX,
} kva_formula_op;
typedef struct kva_formula_word {
  int64_t op; /* kva_formula_op */
  int64_t arg;
} kva_formula_word;
typedef struct kva_formula {
  const kva_formula_word *words;
  int64_t n;
} kva_formula;

typedef enum kva_buffer_kind {
  KVA_BUFFER_INPUT,  /* bound by the caller */
  KVA_BUFFER_OUTPUT, /* bound by the caller, or by the session if the caller provides none */
  KVA_BUFFER_STATE,  /* lives in the session across calls; `state` is its index */
  KVA_BUFFER_CONST,  /* bytes in the artefact or a mapped file */
  KVA_BUFFER_TEMP,   /* arena, from first_step to last_step */
} kva_buffer_kind;

enum { KVA_ABI_MAX_RANK = 8 };

typedef struct kva_buffer_desc {
  const char *name; /* for inputs, outputs and states; else a hint or NULL */
  int32_t kind;     /* kva_buffer_kind */
  int32_t dtype;    /* kva_dtype code = onnx.TensorProto.DataType */
  int32_t rank;
  int32_t state;      /* STATE: index in kva_artifact.states; else -1 */
  int32_t first_step; /* TEMP: lifetime, inclusive */
  int32_t last_step;
  kva_formula dims[KVA_ABI_MAX_RANK];
  kva_formula bytes;
  const void *data; /* CONST */
} kva_buffer_desc;

typedef enum kva_step_kind {
  KVA_STEP_KERNEL,
  KVA_STEP_COPY,   /* args[0] <- args[1], whole buffers */
  KVA_STEP_CALL,   /* not a kernel of the artefact: row `call` of runtime/calls.def */
  KVA_STEP_BRANCH, /* runs one of two internal programs, selected by args[0]: kva_branch_desc */
  KVA_STEP_LOOP,   /* repeats an internal program: kva_loop_desc */
  KVA_STEP_BIND,   /* binds a symbol to the value of args[0]: kva_bind_desc */
  KVA_STEP_WAIT,   /* the end of what an earlier step starts, which has the same args: kva_wait_desc */
} kva_step_kind;

/* A row of calls.def, with its typed descriptor. The host performs calls that a device does not support. */
typedef enum kva_call_id {
#define KVA_CALL(id, name, desc, fields) KVA_CALL_##id,
#include "runtime/calls.def"
  KVA_CALL_COUNT
} kva_call_id;

/* KVA_CALL_GEMM: arguments a, b, d. `batch` row-major matrix products d[m][n] = sum over k of a[m][k] * b[k][n], with
 * float sums. Strides between matrices in elements; 0 shares one matrix. */
typedef struct kva_gemm_desc {
  kva_formula batch, m, n, k;
  kva_formula step_a, step_b, step_d; /* from one matrix of the batch to the next */
  int32_t transpose_a, transpose_b;   /* stored k x m, n x k */
  int32_t dtype;                      /* of a and b: float, float16, bfloat16 */
  int32_t dtype_d;                    /* dtype or float */
} kva_gemm_desc;

/* KVA_CALL_HOST: calls a function of the embedding program by name (kva_session_options.functions). */
typedef struct kva_host_desc {
  const char *name;
} kva_host_desc;

/* What a group of processes exchanges: `parts` of them, whose ranks differ by multiples of `stride` within parts *
 * stride. Parts of a tensor are those of kva_part_elements; a part is a vector.
 *   KVA_CALL_ALL_REDUCE: tensors, then the sum of each over the processes.
 *   KVA_CALL_REDUCE_SCATTER: a tensor, then this process's part of the sum.
 *   KVA_CALL_ALL_GATHER: this process's part of a tensor, then the tensor.
 *     With `stacks`: a tensor, then those of all processes, one after the other.
 *   KVA_CALL_OWN_PART: a tensor that is equal in all processes, then this one's part; nothing is sent.
 *   KVA_CALL_NEIGHBOUR: a tensor, then that of the process before this one, with `next` of the one behind it; zeros
 *     where there is none.
 *   KVA_CALL_PROCESS_INDEX: the number of this process in its group, an int64; nothing is sent. */
typedef struct kva_exchange_desc {
  int32_t parts; /* processes that the program was compiled for; 1: results are copies */
  int32_t stride;
  int32_t stacks;
  int32_t next;
} kva_exchange_desc;

/* KVA_CALL_CHECK_INDICES: arguments indices, limits, the indices again. limits: int64, low and high of each extent; the
 * last dimension of the indices numbers the extents if there are several. */
typedef struct kva_check_indices_desc {
  const char *user; /* the node that reads them, for messages */
  int32_t axis;     /* that the first extent belongs to */
  int32_t ignores;  /* limits has one element more: an index that is allowed, too */
} kva_check_indices_desc;

/* KVA_CALL_EXTERNAL: calls a function of libkvasir by name (runtime/base/external.h). */
typedef struct kva_external_desc {
  const char *name, *text;
  int32_t number;
  int32_t reserved;
} kva_external_desc;

/* Steps that run internal programs of the artefact, which have their caller's symbols. A symbol that a step binds is
 * defined from then on; only one step of a program binds it, and no earlier step uses it.
 *
 * BRANCH: args are a bool scalar, then the inputs and outputs of both programs, in order. */
enum { KVA_BRANCH_BIND = 3 };
typedef struct kva_branch_desc {
  int32_t then, orelse; /* indices in kva_artifact.programs */
  int32_t n_binds;      /* length of binds */
  const int32_t *binds; /* (symbol, output, dimension): binds the symbol to the actual extent of the output */
} kva_branch_desc;

/* LOOP: args are the int64 scalar `count` if has_count, the bool scalar `cond` if has_cond, n_carried initial values,
 * further inputs; then results: n_carried final values, and tensors with one row per iteration. For i = 0, 1, ... while
 * i < count and cond, the body runs with inputs (i, carried values, further inputs) and outputs (cond, carried values,
 * rows). Without has_cond its first output is ignored. */
typedef struct kva_loop_desc {
  int32_t body; /* index in kva_artifact.programs */
  int32_t n_carried;
  int32_t has_count, has_cond;
  int32_t symbol; /* set to the number of iterations; -1: none */
  int32_t reserved;
} kva_loop_desc;

typedef struct kva_bind_desc {
  int32_t symbol;
  int32_t reserved;
  kva_formula bound; /* maximum value; n 0: unknown */
} kva_bind_desc;

/* Between an exchange that only starts and its WAIT no step touches its results, writes its operands or runs other
 * programs; what they are stays in memory. */
typedef struct kva_wait_desc {
  int32_t start; /* the step that starts it */
  int32_t reserved;
} kva_wait_desc;

/* A CPU's kernel that reads more symbols gets all of the program, so that a step's fit a stack. */
enum { KVA_ABI_STEP_SYMBOLS = 16 };

typedef struct kva_step_desc {
  int32_t kind;   /* kva_step_kind */
  int32_t kernel; /* KERNEL: index in kva_artifact.kernels */
  int32_t call;   /* CALL: kva_call_id */
  int32_t n_args;
  int32_t n_results;   /* the last of the args are written; a copy writes the first, and this is 0 */
  int32_t wait;        /* CALL of an exchange: the WAIT behind it that ends it; 0: it ends itself */
  const int32_t *args; /* buffer numbers */
  kva_formula grid;    /* KERNEL: number of work items */
  const char *origin;  /* the graph node(s), for profiles and errors */
  const void *desc;    /* CALL: see calls.def; BRANCH, LOOP, BIND, WAIT: see above; else NULL */
  /* KERNEL on a CPU: indices in kva_program.symbols of those that the kernel gets; 0: all, in their order */
  int32_t n_symbols;
  int32_t reserved;
  const int32_t *symbols;
} kva_step_desc;

/* Role of an output in training. A step with a LOSS or GRAD_NORM that is not finite changes no parameter. */
typedef enum kva_output_role {
  KVA_OUTPUT_VALUE,
  KVA_OUTPUT_LOSS,      /* minimised by training; a scalar */
  KVA_OUTPUT_GRAD_NORM, /* norm of all gradients before clipping; a scalar */
  KVA_OUTPUT_METRIC,    /* reported beside the loss */
} kva_output_role;

/* Members of a step's descriptor, one letter each (see calls.def); "" if it has none. */
static inline const char *kva_step_fields(const kva_step_desc *s) {
  static const char *const calls[] = {
#define KVA_CALL(id, name, desc, fields) fields,
#include "runtime/calls.def"
  };
  switch (s->kind) {
  case KVA_STEP_CALL: return calls[s->call];
  case KVA_STEP_BRANCH: return "iina";
  case KVA_STEP_LOOP: return "iiiiii";
  case KVA_STEP_BIND: return "iio";
  case KVA_STEP_WAIT: return "ii";
  default: return "";
  }
}

/* The internal programs that a step runs, at most two; their number. */
static inline int kva_step_programs(const kva_step_desc *s, int32_t out[2]) {
  if (s->kind == KVA_STEP_LOOP) return out[0] = ((const kva_loop_desc *)s->desc)->body, 1;
  if (s->kind != KVA_STEP_BRANCH) return 0;
  const kva_branch_desc *b = (const kva_branch_desc *)s->desc;
  return out[0] = b->then, out[1] = b->orelse, 2;
}

/* Offset of the member that follows the first `at` bytes of a descriptor, and its length. */
static inline int64_t kva_field_offset(char field, int64_t at) {
  return field == 'i' || field == 'n' ? (at + 3) / 4 * 4 : (at + 7) / 8 * 8;
}
static inline int64_t kva_field_bytes(char field) {
  return field == 'f' || field == 'o' ? (int64_t)sizeof(kva_formula) : field == 'i' || field == 'n' ? 4 : 8;
}

/* Two sizes that must be equal. */
typedef struct kva_condition {
  kva_formula left, right;
  const char *what; /* "extent 1 of operand 0 of add at node x", which is `left` and is used as `right` */
} kva_condition;

typedef struct kva_program {
  const char *name; /* "forward", "train_step", "init", ... */
  int32_t n_symbols, n_buffers, n_steps, n_inputs, n_outputs;
  int32_t is_internal;        /* only steps of other programs run it */
  const char *const *symbols; /* "B", "T" */
  const kva_buffer_desc *buffers;
  const kva_step_desc *steps;
  const int32_t *inputs; /* buffer numbers in call order */
  /* An output that is the buffer of an input replaces that input: the program writes it into the caller's input. */
  const int32_t *outputs;
  const int32_t *output_roles; /* kva_output_role; NULL: all are values */
  const kva_condition *conditions;
  int32_t n_conditions, reserved;
} kva_program;

/* A tensor map (TMA descriptor) over an argument of the kernel. Innermost dimension first; formulas over the program's
 * symbols. Elements outside of dims read as 0. */
enum { KVA_ABI_MAP_RANK = 5 };
typedef struct kva_tensor_map_desc {
  int32_t argument; /* index in the step's args */
  int32_t dtype;
  int32_t rank;
  int32_t swizzle;                       /* bytes: 0, 32, 64, 128 */
  kva_formula dims[KVA_ABI_MAP_RANK];    /* elements */
  kva_formula strides[KVA_ABI_MAP_RANK]; /* bytes, a multiple of 16; [0] is not read */
  int32_t box[KVA_ABI_MAP_RANK];         /* elements */
  int32_t reserved;
} kva_tensor_map_desc;

/* On a GPU a kernel is an entry of the artefact's code: one block of `threads` threads (along x) per work item. Its
 * parameters are a pointer per argument of the step, aligned to 16 bytes, then an int64 per symbol, then a CUtensorMap
 * (128 bytes, aligned to 64) per tensor map. Stores to a buffer with several elements per byte touch bytes up to the
 * next multiple of 4 and preserve the other bits. */
typedef struct kva_kernel_desc {
  const char *name; /* GPU: name of the entry */
  kva_kernel_fn fn; /* CPU; else NULL */
  uint32_t threads;
  uint32_t shared_bytes;  /* static shared memory, declared by the kernel */
  uint32_t dynamic_bytes; /* shared memory that the launch must add */
  int32_t n_symbols;
  const int32_t *symbols; /* indices in kva_program.symbols, the same in every program that calls the kernel */
  const kva_tensor_map_desc *maps;
  int32_t n_maps;
  /* How many consecutive items have blocks that wait for each other; it divides the number of items. The launch is
   * cooperative, so that all its blocks run at once. The grid size must be a multiple of this number, at most
   * KVA_ABI_COOPERATING; blocks process the items round-robin. Launches of the artefact must not overlap. 0: blocks do
   * not wait, as said above. */
  uint32_t cooperating;
} kva_kernel_desc;
enum { KVA_ABI_COOPERATING = 1024 };

/* A state, shared by the programs of an artefact. init: see kva_state_init. */
typedef enum kva_state_init {
  KVA_STATE_INIT_CONSTANT,  /* a */
  KVA_STATE_INIT_NORMAL,    /* standard deviation a */
  KVA_STATE_INIT_UNIFORM,   /* [a, b) */
  KVA_STATE_INIT_DATA,      /* data */
  KVA_STATE_INIT_ONE_MINUS, /* 1 - state `of` */
  KVA_STATE_INIT_COPY,      /* state `of` in this type; programs that write one write both */
} kva_state_init;

typedef enum kva_state_role {
  KVA_ROLE_PARAMETER, /* trained, saved */
  KVA_ROLE_MOMENT,    /* of a parameter's optimiser; initially zero */
  KVA_ROLE_BUFFER,    /* running statistics, counters, settings; saved if a program writes it */
  KVA_ROLE_CACHE,     /* of one sequence or step: never saved */
} kva_state_role;

typedef struct kva_state_desc {
  const char *name;
  int32_t role; /* kva_state_role */
  int32_t dtype;
  int32_t rank;
  int32_t init;  /* kva_state_init */
  int32_t of;    /* ONE_MINUS, COPY: state index; moments: their parameter; else -1 */
  int32_t parts; /* processes that hold a part of it each (kva_part_elements), a vector; 0: every process has it */
  double init_a, init_b;
  int64_t dims[KVA_ABI_MAX_RANK]; /* states have constant shapes */
  int64_t bytes;
  const void *data;                /* of the whole state */
  int64_t whole[KVA_ABI_MAX_RANK]; /* with parts or slices: the shape of the state of all processes */
  int32_t whole_rank;
  /* Processes of the axis tensor that have a slice of it each along `split_axis`; parts are of that slice. 0: each has
   * all. */
  int32_t slices, split_axis;
  uint32_t stages; /* bit s: processes of stage s of the axis pipeline have it; 0: all processes do */
} kva_state_desc;

/* Processes hold different elements of it. */
static inline int kva_state_is_divided(const kva_state_desc *s) {
  return s->parts || s->slices;
}

/* Elements of the state, of all processes together. */
static inline int64_t kva_state_elements(const kva_state_desc *s) {
  const int64_t *dims = kva_state_is_divided(s) ? s->whole : s->dims;
  int64_t n = 1;
  for (int32_t i = 0; i < (kva_state_is_divided(s) ? s->whole_rank : s->rank); i++) n *= dims[i];
  return n;
}

/* Form of an artefact's kernels. An artefact may have several; a device takes the first that it can run. */
typedef enum kva_code_format {
  KVA_CODE_FUNCTIONS, /* functions of this process: kva_kernel_desc.fn; without bytes */
  KVA_CODE_CUBIN,     /* machine code of an NVIDIA GPU */
  KVA_CODE_PTX,       /* text for the driver's compiler */
} kva_code_format;

typedef struct kva_code {
  int32_t format;   /* kva_code_format */
  uint32_t needs;   /* functions: what the CPU must have (runtime/base/cpu.h) */
  const char *arch; /* "sm_80"; NULL for functions */
  const void *data;
  int64_t bytes;
} kva_code;

typedef struct kva_artifact {
  uint64_t magic;
  uint32_t abi_version;
  int32_t n_states, n_kernels, n_programs, n_codes, reserved;
  const char *model;
  const char *target;    /* "x86-64-v4 ...", for messages */
  const kva_code *codes; /* for one kind of machine: functions, or one GPU architecture */
  const kva_state_desc *states;
  const kva_kernel_desc *kernels;
  const kva_program *programs;
  int32_t mesh_data, mesh_sequence, mesh_tensor, mesh_pipeline; /* processes on each axis of the mesh; 0 is 1 */
  const struct kva_artifact *next; /* the same model for another GPU architecture, or NULL */
} kva_artifact;

_Static_assert(sizeof(kva_formula_word) == 16, "abi");
_Static_assert(sizeof(kva_formula) == 16, "abi");
_Static_assert(sizeof(kva_buffer_desc) == 32 + 8 * 16 + 16 + 8, "abi");
_Static_assert(sizeof(kva_step_desc) == 80, "abi");
_Static_assert(sizeof(kva_gemm_desc) == 7 * 16 + 16, "abi");
_Static_assert(sizeof(kva_host_desc) == 8, "abi");
_Static_assert(sizeof(kva_external_desc) == 24, "abi");
_Static_assert(sizeof(kva_exchange_desc) == 16, "abi");
_Static_assert(sizeof(kva_branch_desc) == 24, "abi");
_Static_assert(sizeof(kva_loop_desc) == 24, "abi");
_Static_assert(sizeof(kva_bind_desc) == 24, "abi");
_Static_assert(sizeof(kva_tensor_map_desc) == 16 + 10 * 16 + 24, "abi");
_Static_assert(sizeof(kva_wait_desc) == 8, "abi");
_Static_assert(sizeof(kva_condition) == 40, "abi");
_Static_assert(sizeof(kva_program) == 96, "abi");
_Static_assert(sizeof(kva_kernel_desc) == 56, "abi");
_Static_assert(sizeof(kva_state_desc) == 208, "abi");
_Static_assert(sizeof(kva_code) == 32, "abi");
_Static_assert(sizeof(kva_artifact) == 104, "abi");

#endif
