/* Norms over the positions of channels, or of groups of channels (Ulyanov et al., "Instance Normalization", 2016; Wu
 * and He, "Group Normalization", ECCV 2018), for layout.c: layer_norm from axis 2 on, of an image or between two
 * reshapes that split its channels. With channels last the elements of a group lie apart, so that the norm is done by
 * sums over positions, which have channels across lanes; mean and variance of a group are means of those of its
 * channels, as all have as many positions:
 *
 *   m = mean(x)     d = x - m     y = d / sqrt(mean(d d) + eps) * scale + bias */
#include "ops/check.h"
#include "ops/ids.h"
#include "passes/fuse_internal.h"
#include "passes/layout.h"

typedef struct norm {
  const kva_node *node; /* layer_norm */
  kva_value *x;
  int64_t channels, groups;
} norm;

/* ---- finding it -------------------------------------------------------------------------------------------------- */

/* A factor that broadcasts to an operand of type t has one element, or one a group, or one a channel; or there is none.
 */
static bool is_of_channels(const norm *m, const kva_value *v, const kva_type *t) {
  for (uint32_t d = 0; v && d < v->type->rank; d++) {
    uint32_t axis = d + t->rank - v->type->rank;
    bool has = kva_expr_is(v->type->dims[d], 1) || (axis == 1 && kva_expr_is(v->type->dims[d], m->groups)) ||
               (axis == 2 && kva_expr_is(v->type->dims[d], m->channels / m->groups));
    if (!has) return false;
  }
  return true;
}

static bool find(const kva_node *n, norm *out) {
  const kva_value *y = n->n_results == 1 && kva_is(n, KVA_OP_reshape) ? kva_operand(n, 0) : NULL;
  *out = (norm){.node = y && y->def && !y->uses->next ? y->def : n};
  if (!kva_is(out->node, KVA_OP_layer_norm)) return false;
  const kva_type *t = kva_operand_type(out->node, 0);
  if (kva_axis(((const kva_layer_norm_attrs *)out->node->attrs)->axis, t->rank) != 2 || t->dtype != KVA_F32)
    return false;
  out->x = kva_operand(out->node, 0);
  bool split = out->x->def && kva_is(out->x->def, KVA_OP_reshape) && out->node != n;
  if (split) out->x = kva_operand(out->x->def, 0);
  if (out->x->type != n->results[0].type || t->dims[0] != out->x->type->dims[0]) return false;
  if (!kva_expr_is_const(out->x->type->dims[1], &out->channels) || !kva_expr_is_const(t->dims[1], &out->groups))
    return false;
  if (out->groups < 1 || out->channels % out->groups) return false;
  return is_of_channels(out, kva_operand(out->node, 1), t) && is_of_channels(out, kva_operand(out->node, 2), t);
}

kva_value *kva_layout_normalized(const kva_node *n) {
  norm m;
  return find(n, &m) ? m.x : NULL;
}

/* ---- with channels last ------------------------------------------------------------------------------------------ */

/* v, which has an element a group or a channel in its last axis, with one a channel in `rank` axes, as many of v's
 * images. */
static kva_value *of_channels(const norm *m, kva_builder *b, kva_value *v, kva_dim images, uint32_t rank) {
  kva_expr_ctx *e = b->m->exprs;
  kva_dim each[] = {images, kva_expr_const(e, m->groups), kva_expr_const(e, m->channels / m->groups)};
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < rank; d++) dims[d] = kva_expr_const(e, 1);
  dims[0] = images, dims[rank - 1] = kva_expr_const(e, m->channels);
  return kva_reshape(b, kva_expand(b, v, 3, each), rank, dims);
}

/* The mean over the positions of a group, for each channel. */
static kva_value *mean_of(const norm *m, kva_builder *b, kva_value *v) {
  uint32_t rank = v->type->rank;
  int64_t positions[KVA_MAX_RANK], last = 2;
  kva_expr_ctx *e = b->m->exprs;
  kva_dim each[] = {v->type->dims[0], kva_expr_const(e, m->groups), kva_expr_const(e, m->channels / m->groups)};
  for (uint32_t d = 0; d + 2 < rank; d++) positions[d] = d + 1;
  kva_value *mean = kva_reduce(b, KVA_OP_reduce_mean, v, rank - 2, positions, false);
  mean = kva_reshape(b, mean, 3, each);
  if (m->groups < m->channels) mean = kva_reduce(b, KVA_OP_reduce_mean, mean, 1, &last, true);
  return of_channels(m, b, mean, v->type->dims[0], rank);
}

/* The extent of axis `axis` of a factor that broadcasts to type t. */
static kva_dim extent_of(const kva_builder *b, const kva_value *v, const kva_type *t, uint32_t axis) {
  uint32_t missing = t->rank - v->type->rank;
  return axis < missing ? kva_expr_const(b->m->exprs, 1) : v->type->dims[axis - missing];
}

/* Scale or bias, one number a channel. */
static kva_value *factor_of(const norm *m, kva_builder *b, kva_value *v, uint32_t rank) {
  const kva_type *t = kva_operand_type(m->node, 0);
  kva_dim one = kva_expr_const(b->m->exprs, 1), dims[] = {one, extent_of(b, v, t, 1), extent_of(b, v, t, 2)};
  return of_channels(m, b, kva_reshape(b, v, 3, dims), one, rank);
}

kva_value *kva_layout_norm(kva_builder *b, const kva_node *n, kva_value *last) {
  norm m;
  bool found = find(n, &m);
  KVA_ASSERT(found);
  uint32_t rank = last->type->rank;
  kva_value *scale = kva_operand(m.node, 1), *bias = kva_operand(m.node, 2);
  kva_value *d = kva_sub(b, last, mean_of(&m, b, last)), *variance = mean_of(&m, b, kva_mul(b, d, d));
  double eps = ((const kva_layer_norm_attrs *)m.node->attrs)->eps;
  kva_value *root = kva_build1(b, KVA_OP_sqrt, kva_add(b, variance, kva_scalar_like(b, variance, eps)));
  kva_value *y = kva_mul(b, d, kva_build1(b, KVA_OP_reciprocal, root));
  if (scale) y = kva_mul(b, y, factor_of(&m, b, scale, rank));
  return bias ? kva_add(b, y, factor_of(&m, b, bias, rank)) : y;
}
