/* The interface of operator rules (onnx_ops_*.c): one call per ONNX node, with access to inputs, attributes, known
 * contents, and the builder. A rule builds internal nodes and sets its outputs. It returns early with a diagnostic if
 * the node is invalid or unsupported. A failed kva_build marks the builder, so rules need not test the values they
 * build. */
#ifndef KVA_FRONTEND_ONNX_RULES_H
#define KVA_FRONTEND_ONNX_RULES_H

#include "frontend/onnx_node.h"

/* Newest default-domain opset in the table, and the file format versions that are read. */
enum { KVA_ONNX_MAX_OPSET = 28, KVA_ONNX_MIN_IR = 3, KVA_ONNX_MAX_IR = 14 };

typedef struct kva_onnx_call {
  kva_onnx_ctx *c;
  kva_builder *b;
  const kva_onnx_node *n;
  kva_value **out;
  int64_t version; /* opset of the node's domain */
  int64_t arg;     /* last column of the table */
  bool bad_attr;   /* an attribute of the wrong kind was reported */
  uint64_t *asked; /* bit i: a rule has read attribute i, for the first 64 */
} kva_onnx_call;

typedef kva_status (*kva_onnx_rule)(kva_onnx_call *k);

#define ONNX_OP_IN(domain, op_type, first, last, min_in, max_in, max_out, rule, arg) \
  kva_status kva_onnx_##rule(kva_onnx_call *k);
#define ONNX_LIST_OP_IN ONNX_OP_IN
#include "frontend/onnx_ops.def"
#undef ONNX_OP_IN
#undef ONNX_LIST_OP_IN

/* ---- inputs and outputs ------------------------------------------------------------------------------------------ */

static inline kva_value *kva_onnx_in(const kva_onnx_call *k, uint32_t i) {
  return i < k->n->n_inputs ? k->n->inputs[i] : NULL;
}
bool kva_onnx_wants(const kva_onnx_call *k, uint32_t i);
/* Whether a node in training mode is inference outside of training steps (kva_load_options.inference). Not where
 * somebody reads its output i, which is of the mode, nor in sub-graphs. */
bool kva_onnx_as_inference(const kva_onnx_call *k, uint32_t i);
void kva_onnx_set_out(kva_onnx_call *k, uint32_t i, kva_value *v);
/* Sets output 0 and returns KVA_OK; usually the last line of a rule. */
kva_status kva_onnx_done(kva_onnx_call *k, kva_value *v);
/* The same where an operand had to broadcast to x's shape, and not x to its: KVA_INVALID if v has another. */
kva_status kva_onnx_done_like(kva_onnx_call *k, kva_value *v, const kva_value *x, const char *operand);
/* Reports at the node, with the operator as prefix, and returns `status`. */
kva_status kva_onnx_fail(kva_onnx_call *k, kva_status status, const char *fmt, ...) KVA_PRINTF(3, 4);
static inline kva_dim kva_onnx_dim(const kva_value *v, uint32_t axis) {
  return v->type->dims[axis];
}
static inline kva_expr_ctx *kva_onnx_exprs(const kva_onnx_call *k) {
  return k->b->m->exprs;
}
/* KVA_INVALID: the operand v of this name has another rank than 1. */
KVA_MUST_USE kva_status kva_onnx_check_vector(kva_onnx_call *k, const kva_value *v, const char *name);
/* Input i has this rank, if it is present. */
KVA_MUST_USE kva_status kva_onnx_check_rank(kva_onnx_call *k, uint32_t i, uint32_t rank);
/* v with `extent` on an axis, where it may be equal to v's own and the model's extents may be assumed. */
kva_value *kva_onnx_with_extent(kva_onnx_call *k, kva_value *v, uint32_t axis, kva_dim extent, const char *user);
/* The same for every axis; NULL in dims: v's own extent. */
kva_value *kva_onnx_with_dims(kva_onnx_call *k, kva_value *v, const kva_dim *dims, const char *user);
/* Whether two extents differ for every size. */
bool kva_onnx_never_equal(kva_onnx_call *k, kva_dim a, kva_dim b);
/* axis in [-rank, rank) to [0, rank). */
KVA_MUST_USE kva_status kva_onnx_axis(kva_onnx_call *k, int64_t axis, uint32_t rank, uint32_t *out);

/* ---- attributes -------------------------------------------------------------------------------------------------- */

const kva_onnx_attr *kva_onnx_find_attr(const kva_onnx_call *k, const char *name);
int64_t kva_onnx_int(kva_onnx_call *k, const char *name, int64_t absent);
/* The double with the shortest decimal that reads back as v, which is 1e-5 where a file can only have the float next to
 * it; an integer is itself. */
double kva_onnx_decimal(float v);
/* kva_onnx_decimal of the attribute: what is computed in double agrees with defaults, and with models that are written
 * and read again. */
double kva_onnx_float(kva_onnx_call *k, const char *name, double absent);
const char *kva_onnx_string(kva_onnx_call *k, const char *name, const char *absent);
kva_ints kva_onnx_ints(kva_onnx_call *k, const char *name); /* absent: n == 0, v == NULL */

/* ---- contents ---------------------------------------------------------------------------------------------------- */

/* Elements of integer input i that determine a shape or structure: as expressions, which are new symbols bound at run
 * time where data decides; or as numbers, KVA_UNSUPPORTED if they are not known. */
KVA_MUST_USE kva_status kva_onnx_need_dims(kva_onnx_call *k, uint32_t i, const char *what, kva_dims *out);
KVA_MUST_USE kva_status kva_onnx_need_ints(kva_onnx_call *k, uint32_t i, const char *what, kva_ints *out);
kva_dims kva_onnx_dims_of(kva_onnx_call *k, kva_ints ints);
/* A list that is an attribute in old versions and input i in new ones. `*out_given`: whether it is present. */
KVA_MUST_USE kva_status kva_onnx_list(kva_onnx_call *k, const char *attr, uint32_t input, kva_ints *out,
                                      bool *out_given);
/* The operator that a call of domain "ai.kvasir" represents; NULL for other domains or names. */
const kva_op_info *kva_onnx_own_operator(const char *domain, const char *op_type);
/* Value of a small constant tensor, or of one computed from constants by the reference; NULL: not constant. Lives in
 * the context's arena. */
const kva_ref_tensor *kva_onnx_constant(kva_onnx_ctx *c, const kva_value *v);

/* ---- shared pieces of rules -------------------------------------------------------------------------------------- */

kva_value *kva_onnx_unsqueeze(kva_builder *b, kva_value *x, uint32_t axis,
                              uint32_t count); /* `count` dims of 1 at axis */
kva_value *kva_onnx_slice(kva_builder *b, kva_value *x, uint32_t axis, kva_dim start, kva_dim length);
/* x backwards along axis. */
kva_value *kva_onnx_flip(kva_builder *b, kva_value *x, uint32_t axis);
kva_value *kva_onnx_concat(kva_builder *b, kva_value *x, kva_value *y, int64_t axis);
kva_value *kva_onnx_gather(kva_builder *b, kva_value *x, kva_value *indices, int64_t axis);
/* A constant: n numbers (double or int64_t) or strings as dtype t; of rank 1, or 0 with n = 1. */
kva_value *kva_onnx_const_list(kva_builder *b, kva_dtype t, uint32_t rank, int64_t n, const void *source);
/* Elements of x along axis whose flag (bool[extent]) is set; their number is a new symbol. */
kva_value *kva_onnx_select(kva_builder *b, kva_value *x, kva_value *flag, uint32_t axis, const char *name);
/* Parts of ai.onnx.ml's classifiers and regressors: post_transform by name; the label of each row's highest score. */
KVA_MUST_USE kva_status kva_onnx_post_transform(kva_onnx_call *k, const char *name, kva_value **scores);
KVA_MUST_USE kva_status kva_onnx_class_labels(kva_onnx_call *k, kva_value *scores);
/* One score for two classes, s[N, 1]: both scores by the call's post_transform, -s or, of a probability, 1 - s, and s;
 * or sigmoids of -s and s; and the labels. */
KVA_MUST_USE kva_status kva_onnx_pair_scores(kva_onnx_call *k, bool probability, kva_value **scores);
/* 0, 1, ... along `axis` of a tensor of this shape. */
kva_value *kva_onnx_iota(kva_builder *b, kva_dtype t, uint32_t rank, const kva_dim *shape, int64_t axis);
/* iota that broadcasts against rank `rank`: extent n at `axis`, 1 elsewhere. */
kva_value *kva_onnx_ramp(kva_builder *b, kva_dtype t, uint32_t rank, uint32_t axis, kva_dim n);
kva_value *kva_onnx_where(kva_builder *b, kva_value *cond, kva_value *x, kva_value *y);
/* s^(1/p) of s, sums of |x|^p, with a gradient of 0 where s is 0, as PyTorch has it for norms; that of a root is
 * infinite there, and infinity times zero is NaN. */
kva_value *kva_onnx_norm(kva_builder *b, kva_value *s, double p);
/* x[C] shaped to broadcast along axis 1 of a tensor of rank `rank`. */
kva_value *kva_onnx_channels(kva_builder *b, kva_value *x, uint32_t rank);
/* Flattens to [product of dims before axis, product of the rest]. */
kva_value *kva_onnx_flatten_2d(kva_builder *b, kva_value *x, uint32_t axis);
kva_dim kva_onnx_product(kva_builder *b, const kva_dim *dims, uint32_t from, uint32_t to);
/* [B, T, H * D] -> [B, H, T, D], and back. */
KVA_MUST_USE kva_status kva_onnx_split_heads(kva_onnx_call *k, kva_value *x, int64_t heads, kva_value **out);
kva_value *kva_onnx_join_heads(kva_builder *b, kva_value *x);
/* Inputs i and i + 1 are a past of keys and values [B, H, P, D], or both are left out. */
KVA_MUST_USE kva_status kva_onnx_check_past(kva_onnx_call *k, uint32_t i);
/* Keys and values behind those of a past; `*rows` is its length, by which queries stand further on. NULL, or a past of
 * no rows, leaves all three. */
void kva_onnx_append_past(kva_builder *b, kva_value *past_key, kva_value *past_value, kva_value **key,
                          kva_value **value, kva_dim *rows);
/* An activation with its parameters. Those of gates and of products have lists of their own. */
typedef enum kva_onnx_curve_user {
  KVA_ONNX_GATES = 1,    /* of RNN, GRU and LSTM */
  KVA_ONNX_PRODUCTS = 2, /* that ONNX Runtime fuses it into */
} kva_onnx_curve_user;
typedef struct kva_onnx_curve kva_onnx_curve;
struct kva_onnx_curve {
  const char *name;
  kva_value *(*build)(kva_builder *b, const kva_onnx_curve *c, kva_value *x);
  uint32_t parameters; /* how many of the two it has */
  double alpha, beta;  /* of Selu, beta is gamma; of Clip, these are the bounds */
  unsigned users;
};
/* The one of a name, with the defaults of the operator of that name. False: the user has none. */
bool kva_onnx_find_curve(const char *name, kva_onnx_curve_user user, kva_onnx_curve *out);
kva_value *kva_onnx_clamp(kva_builder *b, kva_value *x, double low, double high);
/* x as float (double stays double), for compositions that lose too much precision in narrower types. */
kva_value *kva_onnx_widen(kva_builder *b, kva_value *x);
/* Inputs for what follows: KVA_INVALID where zero points have more elements than their operand gives them. */
KVA_MUST_USE kva_status kva_onnx_check_zeros(kva_onnx_call *k, uint32_t x, uint32_t x_zero, uint32_t y,
                                             uint32_t y_zero);
/* (x - x_zero) (y - y_zero) in int32. A vector of zero points applies to rows of x or columns of y; NULL: 0. Operands
 * have rank 1 or more. */
kva_value *kva_onnx_integer_product(kva_builder *b, kva_value *x, kva_value *x_zero, kva_value *y, kva_value *y_zero);

#endif
