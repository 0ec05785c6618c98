/* What the IR knows of an operator: one row of ops/ops.def as data. The table itself and the functions live in ops/;
 * with this header the printer, parser and verifier work for any table. */
#ifndef KVA_IR_OP_INFO_H
#define KVA_IR_OP_INFO_H

#include "ir/ir.h"
#include "ir/kernel.h"

typedef enum kva_trait {
  KVA_ELEMENTWISE = 1 << 0, /* operands broadcast (NumPy rule) to the result; element i depends on elements i only */
  KVA_COMMUTATIVE = 1 << 1,
  KVA_VIEW = 1 << 2,    /* moves elements, computes nothing */
  KVA_REDUCES = 1 << 3, /* its element code contains a loop over operand elements: each is read many times */
  KVA_RETURN = 1 << 4,
  KVA_READS_STATE = 1 << 5,
  KVA_WRITES_STATE = 1 << 6, /* never dead; ordered after reads of the same state */
  KVA_TILE = 1 << 7,         /* whole-kernel operator that fuses prologues and epilogues */
  KVA_BOOL_RESULT = 1 << 8,  /* comparison: result dtype is bool */
  KVA_FLOAT = 1 << 9,        /* dtype classes of its elements, from which the test lists derive */
  KVA_INT = 1 << 10,
  KVA_BOOLEAN = 1 << 11,
  KVA_CHEAP = 1 << 12, /* a few instructions: may be recomputed in every consumer */
  /* An optimiser's step: computes new values of one parameter and its moments. Operands: parameter, gradient, moments,
   * learning rate, then the step number if the update uses it; results: parameter, moments. */
  KVA_UPDATES = 1 << 13,
  KVA_BINDS = 1 << 14,      /* defines a symbol: uses of the symbol stay after it */
  KVA_CONTROL = 1 << 15,    /* runs its sub-graphs as programs: their nodes become steps of their own */
  KVA_READS_ONCE = 1 << 16, /* with KVA_REDUCES: all results together read each element of operand 0 once */
  KVA_NARROW = 1 << 17,     /* elementwise: narrow operands cost only the rounding of the result */
  KVA_ALIAS = 1 << 18,      /* a view with operand 0's elements in their order: outside of kernels it shares memory */
  /* Result 0 is operand 0 with some elements replaced. The kernel stores these alone and does not read operand 0; the
   * others are there already (passes/plan.c). */
  KVA_UPDATES_PART = 1 << 19,
  /* A few instructions make its elements of fewer bits: what products read of it stays packed in memory, constants too
   * (passes/opt_fold.c), and kernels make the elements where they need them (passes/fuse.c). */
  KVA_UNPACKS = 1 << 20,
  KVA_STRINGS =
      1 << 21, /* also takes strings, which it moves or finds equal: they are numbers (frontend/onnx_strings.h) */
  KVA_EXCHANGES = 1 << 22, /* processes of a mesh hold what it takes or makes (ops/exchange.h) */
} kva_trait;

/* Operands of an update (KVA_UPDATES); the moments follow. */
enum { KVA_UPDATE_PARAMETER, KVA_UPDATE_GRADIENT, KVA_UPDATE_MOMENTS };

typedef enum kva_vjp_kind {
  KVA_VJP_RULE,  /* <op>_vjp */
  KVA_VJP_ZERO,  /* mathematically no gradient (integers, comparisons, piecewise constant) */
  KVA_VJP_NONE,  /* differentiable, but Kvasir has no rule; vjp_reason is shown to the user */
  KVA_VJP_GRAPH, /* through the node's sub-graphs (passes/autodiff_control.c) */
} kva_vjp_kind;

typedef enum kva_lower_kind {
  KVA_LOWER_ELEMENT, /* <op>_lower: the value of one result element; fuses freely */
  KVA_LOWER_KERNEL,  /* whole kernels are written by hand: codegen/kernels */
  KVA_LOWER_NONE,    /* structure: constant, state, return, fused kernel */
  KVA_LOWER_CALL,    /* a step of its own, which the runtime does: the row of runtime/calls.def that has its name */
} kva_lower_kind;

/* How a whole kernel (KVA_TILE) reads an operand, which decides what fusion may put before it (passes/fuse.c). */
typedef enum kva_operand_role {
  KVA_STREAMED, /* by inner loops, lanes at a time */
  KVA_SCALARS,  /* by inner loops, one element at a time, never in lanes */
  KVA_PACKED,   /* once for each block of results, into panels */
  KVA_IMAGE,    /* an image whose channels lie side by side, behind a transposition that makes them axis 1 */
  KVA_ONCE,     /* read once per element; so are the operands of the code fused before it */
  KVA_MASK,     /* attention's mask: one element for every score */
} kva_operand_role;

/* Result type of a product with narrow operands (passes/precision.c). */
typedef enum kva_product_result {
  KVA_NARROW_RESULT,  /* the operands' */
  KVA_FLOAT_GRADIENT, /* float if it is a gradient that goes to an update, by attribute `to` */
  KVA_FLOAT_RESULT,   /* always float, by attribute `to` */
} kva_product_result;

/* Values for the symbols of shape expressions, to count work with. */
typedef struct kva_sizes {
  kva_module *m;
  kva_expr_lookup lookup;
  void *user; /* of lookup */
} kva_sizes;

/* An operand that selects places of a tensor (gather, scatter, the classes of a loss). An index i belongs to extent e
 * of `extents` and must satisfy 0 <= i < e, or -e <= i < e if from_end. With n > 1 extents the operand's last axis
 * numbers them. */
typedef struct kva_indexing {
  uint32_t operand, n;
  kva_dim extents[KVA_MAX_RANK];
  uint32_t axis; /* of the indexed tensor that extents[0] belongs to; the others follow */
  bool from_end;
  bool has_ignored; /* one value is allowed beside them */
  int64_t ignored;
} kva_indexing;

typedef struct kva_shape_values kva_shape_values; /* ops/shape_values.h */
typedef struct kva_builder kva_builder;           /* ops/build.h */
typedef struct kva_infer kva_infer;
typedef struct kva_ref kva_ref;
typedef struct kva_ref_tensor kva_ref_tensor;
typedef struct kva_vjp kva_vjp;
typedef struct kva_lower kva_lower;
typedef struct kva_incremental kva_incremental; /* ops/incremental.h */
typedef struct kva_partition kva_partition;     /* ops/partition.h */

enum { KVA_AGREES_FULL = 1 << 8 }; /* kva_op_info.agrees */

struct kva_op_info {
  const char *name;               /* prints as kv.<name> */
  uint32_t id;                    /* row number */
  int min_operands, max_operands; /* max -1: any number */
  int n_results;                  /* -1: given at construction */
  uint32_t traits;
  const kva_attr_desc *attrs;
  kva_vjp_kind vjp_kind;
  const char *vjp_reason;
  kva_lower_kind lower_kind;
  /* Tolerance of compiled f32/f64 code against the reference: tolerance * epsilon(dtype) relative to the largest
   * magnitude involved; the operator's file gives the reason. */
  double tolerance;
  /* Infers the result types of n from its operands and attributes; problems go to m->diag with n->loc. */
  kva_status (*infer)(kva_module *m, const kva_node *n, const kva_type **out_types);
  kva_status (*ref)(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out);
  kva_status (*vjp)(kva_vjp *c, kva_node *n);
  kva_kval (*lower)(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx);

  /* ---- facts of some rows ---- */

  /* Fusion: how the kernel of n reads an operand; NULL: all are KVA_STREAMED. */
  kva_operand_role (*role)(const kva_node *n, uint32_t operand);
  /* Number of leading dims of operand 0 that number the rows which n reduces; -1: n does not reduce rows of trailing
   * axes, or reduces the whole tensor, where rows share nothing. NULL: never rows. */
  int (*row_dims)(const kva_node *n);
  /* Operands (bits) of which result element i depends only on element i; for elementwise operators all. */
  uint32_t pointwise;

  /* Mixed precision, operands as bits. A product reads those in `product` rounded to the narrow type and accumulates in
   * float. An operator takes the type of those in `follows`, whatever the others have; a KVA_VIEW follows all. Without
   * either an operator computes in float, except elementwise ones with KVA_NARROW. */
  uint32_t product, follows;
  kva_product_result product_result;

  /* Floating-point operations of a contraction for these sizes, two for each multiply-add; NULL: not counted. For
   * summaries and benchmarks (tools/driver/summary.c). */
  double (*flops)(const kva_node *n, const kva_sizes *s);

  /* Elements of n's result, an integer or bool tensor, as expressions over shape symbols, from those of its operands;
   * false: unknown. The importer follows shape arithmetic of models with it (frontend/onnx_contents.c). NULL: known
   * only if all operands are constant. */
  bool (*shape_values)(kva_shape_values *v, const kva_node *n);

  /* Number of the group, below 2 KVA_MAX_RANK, that an axis of an operand of type t is in: all extents of a group must
   * be equal, or 1 where the operator broadcasts; -1: it may have any extent. With KVA_AGREES_FULL added, the axis does
   * not broadcast: where it has 1, so have the others of its group. Where a model's extents are not provably equal, the
   * importer assumes it (ops/assume.c). NULL: elementwise operators align axes from the right, others do not say. */
  int (*agrees)(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);

  /* Columns of n's result, a matrix, that its memory has together: kernels that take so many columns at once read it in
   * order. 0, NULL: rows lie in memory. */
  int64_t (*panel)(const kva_node *n);
  /* Rows of a column that its panels have side by side. NULL: 1. */
  int64_t (*panel_word)(const kva_node *n);

  /* Blocks of so many elements along `axis`, from index 0 on, have a factor in common, the scale of quantised weights,
   * which a sum along the axis can take once a block. 0, NULL: they have none. */
  int64_t (*factor_block)(const kva_node *n, uint32_t axis);
  /* Of a row with factor_block, for element idx: the factor, or what it multiplies. */
  kva_kval (*lower_factor)(kva_lower *l, const kva_node *n, const kva_expr *const *idx);
  kva_kval (*lower_rest)(kva_lower *l, const kva_node *n, const kva_expr *const *idx);
  /* What the factor multiplies is a code minus a zero point, which a block has in common, too, and code is shorter if a
   * sum takes it once a block. NULL: it is not, or there is none. */
  bool (*has_zero)(const kva_node *n);
  kva_kval (*lower_code)(kva_lower *l, const kva_node *n, const kva_expr *const *idx);
  kva_kval (*lower_zero)(kva_lower *l, const kva_node *n, const kva_expr *const *idx);
  /* Elements of at most 8 bits, without sign, along the axis in which memory has words of them: four from idx on, a
   * multiple of four, as the bytes of an int32, the first one lowest. NULL: memory has no such words. */
  kva_kval (*lower_bytes)(kva_lower *l, const kva_node *n, const kva_expr *const *idx);

  /* Which operand holds indices, and what bounds them: constants are checked when n is made, others at run time by
   * passes/check_indices.c. *out is zero before. NULL: none does. */
  void (*indexing)(const kva_node *n, kva_indexing *out);

  /* The axis of an operand along which `axis` of n's results steps: index i reads, of this axis, i alone; or one of the
   * reasons in ops/incremental.h. NULL: elementwise operators broadcast, others read several indices. */
  int (*source_axis)(const kva_node *n, uint32_t operand, uint32_t axis);
  /* Builds n, a node whose rows depend on earlier rows or on their position, for a chunk of rows: ops/incremental.h.
   * NULL: it cannot be. */
  kva_status (*incremental)(kva_incremental *c, const kva_node *n);
  /* Builds n, some of whose operands have an axis of sequences before their own (kva_is_lifted), with these operands
   * and attributes. NULL, of the row or as its result: there is no way; elementwise operators broadcast. */
  kva_value *(*lifted)(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);

  /* Builds n for operands whose axes are moved: axis d of n's result, and of an operand of as many axes, is axis
   * moved[d] of what is built and of `operands`; others are as they were. NULL: only elementwise operators can.
   * passes/layout.c puts channels last by it. */
  kva_value *(*permute)(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved);

  /* Whether n's results are sums over this axis of the operand, along which others of its operands then have an axis
   * that is summed, too, or none. NULL: never. */
  bool (*sums)(const kva_node *n, uint32_t operand, uint32_t axis);
  /* Builds n, some of whose operands are split among processes, for slices: ops/partition.h. false, or NULL: it follows
   * from source_axis and sums, or the operands are gathered. */
  bool (*partition)(kva_partition *p, const kva_node *n);

  /* Of a KVA_UPDATES row, whose name is the optimizer's: name suffixes of its moments' states, in operand order, for
   * passes/train.c; and whether weight decay scales the parameter (else it adds to the gradient). */
  const char *moments[2];
  bool decoupled_decay;
};

/* Code is generated for it. */
static inline bool kva_op_has_code(const kva_op_info *op) {
  return op->lower_kind == KVA_LOWER_ELEMENT || op->lower_kind == KVA_LOWER_KERNEL;
}

/* The fact `panel` of what makes v; 0: it is not made by a node, or has none. */
static inline int64_t kva_panel_of(const kva_value *v) {
  return v && v->def && v->def->op->panel ? v->def->op->panel(v->def) : 0;
}

/* The fact `panel_word`. */
static inline int64_t kva_panel_word_of(const kva_value *v) {
  return v && v->def && v->def->op->panel_word ? v->def->op->panel_word(v->def) : 1;
}

/* Operand i is in a set of operands. */
static inline bool kva_in_operands(uint32_t set, uint32_t i) {
  return i < 32 && (set >> i & 1);
}

typedef struct kva_op_set {
  uint32_t n;
  const kva_op_info *const *ops;
} kva_op_set;

const kva_op_info *kva_op_set_find(const kva_op_set *set, const char *name, size_t name_len);

#endif
