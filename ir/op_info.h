/* What the IR needs to know of an operator: one row of ops/ops.def as data. The table itself and the functions live
 * in ops/; this header lets printer, parser and verifier work for any table. */
#ifndef KVA_IR_OP_INFO_H
#define KVA_IR_OP_INFO_H

#include "ir/ir.h"
#include "ir/kernel.h"

typedef enum kva_trait {
  KVA_ELEMENTWISE = 1 << 0, /* operands broadcast (NumPy rule) to the result; element i depends on elements i only */
  KVA_COMMUTATIVE = 1 << 1,
  KVA_VIEW = 1 << 2,    /* moves elements, computes nothing */
  KVA_REDUCES = 1 << 3, /* its element code contains a loop over operand elements */
  KVA_RETURN = 1 << 4,
  KVA_READS_STATE = 1 << 5,
  KVA_WRITES_STATE = 1 << 6, /* never dead, ordered after reads of the same state */
  KVA_TILE = 1 << 7,         /* whole-kernel operator that fuses prologues and epilogues */
  KVA_BOOL_RESULT = 1 << 8,  /* comparison: result dtype is bool */
  KVA_FLOAT = 1 << 9,        /* dtype classes that operand 0 may have; the test lists come from these */
  KVA_INT = 1 << 10,
  KVA_BOOLEAN = 1 << 11,
  KVA_CHEAP = 1 << 12,   /* a few instructions: may be computed again in every consumer */
  KVA_UPDATES = 1 << 13, /* an optimiser's step: new values of one parameter and its moments from the old ones */
  KVA_BINDS = 1 << 14,   /* gives a symbol a value: what uses the symbol stays behind it */
  KVA_CONTROL = 1 << 15, /* runs its sub-graphs as programs: their nodes are nodes of steps of their own */
} kva_trait;

typedef enum kva_vjp_kind {
  KVA_VJP_RULE,  /* <op>_vjp */
  KVA_VJP_ZERO,  /* no gradient, by mathematics (integers, comparisons, piecewise constant) */
  KVA_VJP_NONE,  /* differentiable, but Kvasir has no rule; vjp_reason reaches the user */
  KVA_VJP_GRAPH, /* through the node's sub-graphs (passes/autodiff_control.c) */
} kva_vjp_kind;

typedef enum kva_lower_kind {
  KVA_LOWER_ELEMENT, /* <op>_lower: the value of one result element; fuses freely */
  KVA_LOWER_KERNEL,  /* <op>_kernel: writes a whole kernel */
  KVA_LOWER_NONE,    /* structure: constant, state, return, fused kernel */
} kva_lower_kind;

typedef struct kva_infer kva_infer;
typedef struct kva_ref kva_ref;
typedef struct kva_ref_tensor kva_ref_tensor;
typedef struct kva_vjp kva_vjp;
typedef struct kva_lower kva_lower;

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
  /* f32/f64 tolerance of compiled against reference: tolerance * epsilon(dtype) relative to the largest magnitude that
   * took part; the reason stands in the operator's file. */
  double tolerance;
  /* Result types of n from its operands and attributes; problems go to m->diag with n->loc. */
  kva_status (*infer)(kva_module *m, const kva_node *n, const kva_type **out_types);
  kva_status (*ref)(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out);
  kva_status (*vjp)(kva_vjp *c, kva_node *n);
  kva_kval (*lower)(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx);
  void (*kernel)(kva_lower *l, const kva_node *n);
};

typedef struct kva_op_set {
  uint32_t n;
  const kva_op_info *const *ops;
} kva_op_set;

const kva_op_info *kva_op_set_find(const kva_op_set *set, const char *name, size_t name_len);

#endif
