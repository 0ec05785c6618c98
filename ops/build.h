/* Builds nodes with inferred types, for vjp rules, passes and importers. Every function appends (or inserts before
 * `before`) and returns the first result. A node whose inference fails is reported once in the module's diag. The
 * builder then returns a value of a harmless type and sets `failed`: callers need not test every call, only b->failed
 * at the end. */
#ifndef KVA_OPS_BUILD_H
#define KVA_OPS_BUILD_H

#include "ops/ops.h"

struct kva_builder {
  kva_module *m;
  kva_graph *graph;
  kva_node *before; /* insertion point, NULL: end */
  kva_loc loc;      /* location for new nodes */
  bool failed;
  /* Extents of operands that are not provably equal, where an operator needs that, and numbers of elements of reshapes
   * are assumed to be (ops/assume.c), not refused. */
  bool assumes;
};

/* A builder that inserts before `n` and gives new nodes its place in the source. */
static inline kva_builder kva_builder_before(kva_module *m, kva_node *n) {
  return (kva_builder){.m = m, .graph = n->graph, .before = n, .loc = n->loc};
}

/* attrs: the operator's struct, copied into the module's arena, or NULL for defaults. operands may contain NULLs.
 * n_results only matters for operators with a variable number. */
kva_node *kva_build_node(kva_builder *b, kva_op_id op, uint32_t n_operands, kva_value *const *operands,
                         uint32_t n_results, const void *attrs);
kva_value *kva_build(kva_builder *b, kva_op_id op, uint32_t n_operands, kva_value *const *operands, const void *attrs);

/* Operators without attributes. */
kva_value *kva_build1(kva_builder *b, kva_op_id op, kva_value *x);
kva_value *kva_build2(kva_builder *b, kva_op_id op, kva_value *x, kva_value *y);
kva_value *kva_build3(kva_builder *b, kva_op_id op, kva_value *x, kva_value *y, kva_value *z);
kva_value *kva_add(kva_builder *b, kva_value *x, kva_value *y);
kva_value *kva_sub(kva_builder *b, kva_value *x, kva_value *y);
kva_value *kva_mul(kva_builder *b, kva_value *x, kva_value *y);
kva_value *kva_div(kva_builder *b, kva_value *x, kva_value *y);
kva_value *kva_neg(kva_builder *b, kva_value *x);

/* Constants: a scalar of dtype t (rank 0, broadcast by its users); a whole tensor (data borrowed). */
kva_value *kva_const_scalar(kva_builder *b, kva_dtype t, double v);
kva_value *kva_const_i64s(kva_builder *b, uint32_t n, const int64_t *v); /* int64[n] */
kva_value *kva_const_tensor(kva_builder *b, const kva_tensor_data *data);
/* A scalar of x's dtype. */
kva_value *kva_scalar_like(kva_builder *b, const kva_value *x, double v);
/* An expression over shape symbols as a scalar of dtype t. */
kva_value *kva_dim_scalar(kva_builder *b, kva_dtype t, kva_dim e);

/* Movement and reduction; returns x itself if nothing changes. */
kva_value *kva_cast(kva_builder *b, kva_value *x, kva_dtype to);
kva_value *kva_reshape(kva_builder *b, kva_value *x, uint32_t rank, const kva_dim *shape);
kva_value *kva_reshape_like(kva_builder *b, kva_value *x, const kva_type *type);
kva_value *kva_transpose(kva_builder *b, kva_value *x, const int64_t *perm);
kva_value *kva_expand(kva_builder *b, kva_value *x, uint32_t rank, const kva_dim *shape);
kva_value *kva_expand_like(kva_builder *b, kva_value *x, const kva_type *type);
kva_value *kva_reduce(kva_builder *b, kva_op_id op, kva_value *x, uint32_t n_axes, const int64_t *axes, bool keepdims);
/* x with these dims, one for each of its own, which are assumed to be equal; `user` names the reader in messages. */
kva_value *kva_assume(kva_builder *b, kva_value *x, const kva_dim *dims, const char *user);
/* Whether an extent is 0 or 1, as that of x[:1]: where operands broadcast, it is taken to be 1. */
bool kva_at_most_one(kva_dim d);
/* Gives operands, in place, the extents that their axes need to have in common, by op assume where they differ; see
 * kva_op_info.agrees. What can never be equal stays as it is. */
void kva_assume_agreement(kva_builder *b, const kva_op_info *op, const void *attrs, uint32_t n, kva_value **operands);
/* Sums x over broadcast axes down to `type`'s shape: the gradient of a broadcast. */
kva_value *kva_reduce_to(kva_builder *b, kva_value *x, const kva_type *type);
kva_value *kva_matmul(kva_builder *b, kva_value *x, kva_value *y, bool transpose_x, bool transpose_y);
/* Zeros of a type. */
kva_value *kva_zeros(kva_builder *b, const kva_type *type);

/* ---- shared parts of infer, ref and lower ------------------------------------------------------------------------ */

/* NumPy broadcast of shapes; reports a mismatch at n with both shapes. Symbolic dims must be equal or 1. */
KVA_MUST_USE kva_status kva_broadcast_types(kva_module *m, const kva_node *n, uint32_t n_types,
                                            const kva_type *const *types, uint32_t *out_rank, kva_dim *out_dims);
/* Inference of elementwise operators: broadcast shape, dtype of operand 0 (bool with KVA_BOOL_RESULT). Operands must
 * share a dtype of the row's classes. */
KVA_MUST_USE kva_status kva_elementwise_infer(kva_module *m, const kva_node *n, const kva_type **out_types);
/* Reports "operand i: expected ..., found ..." at n. */
kva_status kva_operand_error(kva_module *m, const kva_node *n, uint32_t operand, const char *fmt, ...) KVA_PRINTF(4, 5);
/* axis in [-rank, rank) to [0, rank); reports. */
KVA_MUST_USE kva_status kva_normalize_axis(kva_module *m, const kva_node *n, int64_t axis, uint32_t rank,
                                           uint32_t *out_axis);
/* Reference loops over the broadcast result: f for floats, g for other types (NULL: undefined there). */
void kva_ref_map1(const kva_ref_tensor *x, kva_ref_tensor *y, double (*f)(double), int64_t (*g)(int64_t));
void kva_ref_map2(const kva_ref_tensor *x, const kva_ref_tensor *y, kva_ref_tensor *z, double (*f)(double, double),
                  int64_t (*g)(int64_t, int64_t));
/* Offset in w, which broadcasts to a result of rank `rank`, of result index idx. */
int64_t kva_ref_broadcast_offset(const kva_ref_tensor *w, uint32_t rank, const int64_t *idx);
/* Advances idx to the next element in row-major order; false after the last. */
bool kva_next_index(uint32_t rank, const int64_t *dims, int64_t *idx);

/* A simple unary operator's file contains only its mathematics: see ops/relu.c. */
#define KVA_ELEMENTWISE_INFER(op)                                                             \
  KVA_OP_FUNCTIONS(op)                                                                        \
  kva_status kva_##op##_infer(kva_module *m, const kva_node *n, const kva_type **out_types) { \
    return kva_elementwise_infer(m, n, out_types);                                            \
  }
#define KVA_UNARY_REF(op, f, g)                                                             \
  kva_status kva_##op##_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, \
                            kva_ref_tensor *const *out) {                                   \
    (void)r, (void)n;                                                                       \
    kva_ref_map1(in[0], out[0], f, g);                                                      \
    return KVA_OK;                                                                          \
  }
#define KVA_BINARY_REF(op, f, g)                                                            \
  kva_status kva_##op##_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, \
                            kva_ref_tensor *const *out) {                                   \
    (void)r, (void)n;                                                                       \
    kva_ref_map2(in[0], in[1], out[0], f, g);                                               \
    return KVA_OK;                                                                          \
  }

#endif
