/* The operator set: the table's type, and the contexts of evaluation, differentiation and lowering. Only ids.h and
 * ops.c expand ops.def, so that changing a row recompiles little. See ops/README.md. */
#ifndef KVA_OPS_OPS_H
#define KVA_OPS_OPS_H

#include "ir/op_info.h"
#include "ops/attrs.h"
#include "ops/lower.h"

typedef uint32_t kva_op_id; /* KVA_OP_<name>, of ops/ids.h */

extern const kva_op_set kva_ops;
static inline bool kva_is(const kva_node *n, kva_op_id id) {
  return n->op->id == id;
}

/* ---- reference evaluation ---------------------------------------------------------------------------------------- */

/* A tensor in its widest form: floats as double, integers and bool as int64_t (uint64 keeps its bits). Row-major,
 * dense. */
struct kva_ref_tensor {
  kva_dtype dtype;
  uint32_t rank;
  int64_t dims[KVA_MAX_RANK];
  int64_t n;  /* elements */
  double *f;  /* float dtypes */
  int64_t *i; /* others */
};

/* Context of a reference evaluation: symbol values, state, and scratch memory that is freed after each node. */
struct kva_ref {
  kva_diag *diag;
  kva_arena *scratch;
  kva_expr_lookup lookup;
  void *lookup_user;
  kva_ref_tensor *(*state)(void *user, kva_state *s); /* the live tensor of a state */
  void *state_user;
};
/* Value of an expression of the graph under the evaluation's symbols. KVA_INVALID: unbound or overflow. */
KVA_MUST_USE kva_status kva_ref_dim(kva_ref *r, kva_dim e, int64_t *out_v);

/* Outputs arrive allocated (shape from inference, zeroed) and are rounded to their dtype by the caller afterwards. */

/* Evaluates function f with the reference: inputs in order; outputs allocated with malloc, freed by the caller with
 * kva_ref_tensor_free. Input shapes bind the symbols. trace (may be NULL) is called for every value. */
typedef void (*kva_ref_trace)(void *user, const kva_value *v, const kva_ref_tensor *w);
KVA_MUST_USE kva_status kva_ref_run(kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                                    kva_ref_tensor **outputs, kva_ref_tensor *(*state)(void *user, kva_state *s),
                                    void *state_user, kva_ref_trace trace, void *trace_user, kva_diag *diag);
kva_ref_tensor *kva_ref_tensor_create(kva_dtype dtype, uint32_t rank,
                                      const int64_t *dims); /* zeroed; NULL: no memory */
void kva_ref_tensor_free(kva_ref_tensor *w);
/* Conversion from and to packed storage. */
kva_ref_tensor *kva_ref_tensor_from_data(kva_dtype dtype, uint32_t rank, const int64_t *dims, const void *data);
void kva_ref_tensor_to_data(const kva_ref_tensor *w, void *data);
static inline double kva_ref_tensor_get(const kva_ref_tensor *w, int64_t i) {
  return w->f ? w->f[i] : (double)w->i[i];
}

/* ---- differentiation --------------------------------------------------------------------------------------------- */

/* One call of <op>_vjp: grad_out[k] is dL/d(result k), or NULL for none. The rule sets grad_in[i] to dL/d(operand i)
 * for operands with wants[i], and leaves NULL for zero. It builds ordinary nodes with b. */
struct kva_vjp {
  kva_builder *b;
  kva_value *const *grad_out;
  kva_value **grad_in;
  const bool *wants;
};

/* ---- functions of an operator ------------------------------------------------------------------------------------ */

/* Declares the functions that a row may name. A file that defines some of them uses this macro to declare them. */
#define KVA_OP_FUNCTIONS(name)                                                                 \
  kva_status kva_##name##_infer(kva_module *m, const kva_node *n, const kva_type **out_types); \
  kva_status kva_##name##_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,  \
                              kva_ref_tensor *const *out);                                     \
  kva_status kva_##name##_vjp(kva_vjp *c, kva_node *n);                                        \
  kva_kval kva_##name##_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx);

#endif
