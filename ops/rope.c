/* rope(x, cos, sin): rotates pairs of channels of x[..., T, D] by tabulated angles (Su et al., arXiv 2104.09864).
 *
 *   y_a = x_a cos - x_b sin,   y_b = x_b cos + x_a sin
 *
 * cos and sin have R/2 <= D/2 as last dimension; pair i < R/2 is (i, i + R/2), or (2i, 2i + 1) when `interleaved`;
 * channels from R on pass through. The leading dimensions of cos and sin broadcast to x's ([T, R/2], [B, 1, T, R/2]).
 * Gradient: dx is the rotation back, rope(dy, cos, -sin). dcos sums x dy over both channels of a pair, dsin sums
 * rope(x, 0, 1) dy, each over what the table is broadcast to.
 * Tolerance 4: two products and a sum in float (double for double), one rounding. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"

KVA_OP_FUNCTIONS(rope)

kva_status kva_rope_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_float(m, n, 1));
  KVA_TRY(kva_check_same_dtype(m, n, 2, 1));
  for (uint32_t i = 0; i < 3; i++) KVA_TRY(kva_check_min_rank(m, n, i, i ? 1 : 2));
  const kva_type *x = kva_operand_type(n, 0), *cos_type = kva_operand_type(n, 1);
  KVA_TRY(kva_check_shape(m, n, 2, cos_type->rank, cos_type->dims));
  kva_dim dims[KVA_MAX_RANK];
  memcpy(dims, x->dims, sizeof(*dims) * x->rank);
  kva_dim half = dims[x->rank - 1] = cos_type->dims[cos_type->rank - 1];
  KVA_TRY(kva_check_broadcasts_to(m, n, 1, x->rank, dims));
  int64_t pairs, channels;
  if (kva_expr_is_const(half, &pairs) && kva_expr_is_const(x->dims[x->rank - 1], &channels) &&
      (pairs < 1 || 2 * pairs > channels)) {
    return kva_operand_error(m, n, 1, "expected 1 to %lld angles for %lld channels, found %lld",
                             (long long)(channels / 2), (long long)channels, (long long)pairs);
  }
  out_types[0] = x;
  return KVA_OK;
}

/* Axes align from the right; the last one of the angles is another than x's. */
int kva_rope_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  if (axis + 1 < t->rank) return kva_agrees_with_first(attrs, t, operand, axis);
  return operand ? KVA_MAX_RANK | KVA_AGREES_FULL : -1;
}

typedef struct channel {
  int64_t pair, partner;
  bool first; /* whether it is the first of its pair */
} channel;

static channel channel_of(int64_t d, int64_t half, bool interleaved) {
  if (interleaved) return (channel){d / 2, d ^ 1, d % 2 == 0};
  return (channel){d % half, d < half ? d + half : d - half, d < half};
}

kva_status kva_rope_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_rope_attrs *a = n->attrs;
  const kva_ref_tensor *x = in[0];
  uint32_t rank = x->rank;
  int64_t idx[KVA_MAX_RANK] = {0}, half = in[1]->dims[in[1]->rank - 1], at = 0;
  if (x->n == 0) return KVA_OK;
  do {
    int64_t d = idx[rank - 1];
    out[0]->f[at] = x->f[at];
    if (d < 2 * half) {
      channel c = channel_of(d, half, a->interleaved);
      int64_t angle[KVA_MAX_RANK];
      memcpy(angle, idx, sizeof(angle));
      angle[rank - 1] = c.pair;
      double cosine = in[1]->f[kva_ref_broadcast_offset(in[1], rank, angle)];
      double sine = in[2]->f[kva_ref_broadcast_offset(in[2], rank, angle)];
      out[0]->f[at] = x->f[at] * cosine + (c.first ? -1 : 1) * x->f[at - d + c.partner] * sine;
    }
    at++;
  } while (kva_next_index(rank, x->dims, idx));
  return KVA_OK;
}

/* The channels of v that rotate, in the dtype of the tables. */
static kva_value *rotated_channels(kva_builder *b, kva_value *v, const kva_type *table) {
  const kva_type *type = v->type;
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  for (uint32_t k = 0; k < type->rank; k++) {
    starts[k] = kva_expr_const(b->m->exprs, 0);
    shape[k] = type->dims[k];
  }
  shape[type->rank - 1] = kva_expr_muli(b->m->exprs, table->dims[table->rank - 1], 2);
  const kva_slice_attrs attrs = {.starts = {type->rank, starts}, .shape = {type->rank, shape}};
  return kva_cast(b, kva_build(b, KVA_OP_slice, 1, &v, &attrs), table->dtype);
}

/* x dy over the channels that rotate, summed over pairs and what `table` is broadcast to. */
static kva_value *table_gradient(kva_builder *b, kva_value *x, kva_value *dy, const kva_type *table, bool interleaved) {
  kva_value *product = kva_mul(b, x, dy);
  uint32_t rank = product->type->rank, pairs = interleaved ? rank - 1 : rank;
  kva_dim shape[KVA_MAX_RANK + 1];
  memcpy(shape, product->type->dims, sizeof *shape * rank);
  shape[pairs] = table->dims[table->rank - 1];
  shape[2 * rank - 1 - pairs] = kva_expr_const(b->m->exprs, 2);
  kva_value *by_pair = kva_reshape(b, product, rank + 1, shape);
  return kva_reduce_to(b, kva_reduce(b, KVA_OP_reduce_sum, by_pair, 1, &(int64_t){2 * rank - 1 - pairs}, false), table);
}

kva_status kva_rope_vjp(kva_vjp *c, kva_node *n) {
  kva_builder *b = c->b;
  bool interleaved = ((const kva_rope_attrs *)n->attrs)->interleaved;
  const kva_type *table = kva_operand_type(n, 1);
  kva_value *operands[3] = {c->grad_out[0], kva_operand(n, 1), kva_neg(b, kva_operand(n, 2))};
  if (c->wants[0]) c->grad_in[0] = kva_build(b, KVA_OP_rope, 3, operands, n->attrs);
  if (!c->wants[1] && !c->wants[2]) return KVA_OK;
  if (kva_operand_type(n, 0)->rank == KVA_MAX_RANK)
    return kva_fail(b->m->diag, KVA_UNSUPPORTED, &n->loc, "kv.rope: no gradient for tables of %d dimensions",
                    KVA_MAX_RANK);
  kva_value *x = rotated_channels(b, kva_operand(n, 0), table), *dy = rotated_channels(b, c->grad_out[0], table);
  kva_value *zeros = kva_zeros(b, table);
  kva_value *ones = kva_expand_like(b, kva_const_scalar(b, table->dtype, 1), table);
  kva_value *turned = kva_build(b, KVA_OP_rope, 3, (kva_value *[]){x, zeros, ones}, n->attrs);
  if (c->wants[1]) c->grad_in[1] = table_gradient(b, x, dy, table, interleaved);
  if (c->wants[2]) c->grad_in[2] = table_gradient(b, turned, dy, table, interleaved);
  return KVA_OK;
}

typedef struct rotation {
  const kva_expr *pair, *partner;
  kva_kval first;
} rotation;

static rotation rotation_of(kva_kb *kb, const kva_expr *d, const kva_expr *half, bool interleaved) {
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *zero = kva_expr_const(c, 0), *two = kva_expr_const(c, 2);
  if (interleaved) {
    const kva_expr *odd = kva_expr_mod(c, d, two);
    const kva_expr *partner = kva_expr_sub(c, kva_expr_addi(c, d, 1), kva_expr_muli(c, odd, 2));
    return (rotation){kva_expr_div(c, d, two), partner, kva_k_index_eq(kb, odd, zero)};
  }
  const kva_expr *partner = kva_expr_mod(c, kva_expr_add(c, d, half), kva_expr_muli(c, half, 2));
  return (rotation){kva_expr_mod(c, d, half), partner, kva_k_index_lt(kb, d, half)};
}

/* cos or sin at x's index `idx`, with the last entry replaced by the pair's number. */
static kva_kval angle_at(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx,
                         const kva_expr *pair) {
  const kva_type *t = kva_operand_type(n, operand);
  uint32_t skipped = kva_operand_type(n, 0)->rank - t->rank;
  const kva_expr *at[KVA_MAX_RANK];
  for (uint32_t i = 0; i + 1 < t->rank; i++) {
    at[i] = kva_expr_is(t->dims[i], 1) ? kva_expr_const(l->kb->exprs, 0) : idx[skipped + i];
  }
  at[t->rank - 1] = pair;
  return kva_k_convert(l->kb, l->operand(l, n, operand, at), kva_k_compute_type(kva_operand_type(n, 0)->dtype));
}

kva_kval kva_rope_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_rope_attrs *a = n->attrs;
  kva_kb *kb = l->kb;
  const kva_type *x = kva_operand_type(n, 0), *angles = kva_operand_type(n, 1);
  const kva_expr *d = idx[x->rank - 1], *half = angles->dims[angles->rank - 1];
  kva_kval plain = l->operand(l, n, 0, idx);
  kva_kval rotated = kva_k_index_lt(kb, d, kva_expr_muli(kb->exprs, half, 2));
  rotation r = rotation_of(kb, d, half, a->interleaved);
  const kva_expr *other[KVA_MAX_RANK];
  memcpy(other, idx, sizeof(*other) * x->rank);
  other[x->rank - 1] = r.partner;
  kva_kval outer = kva_k_guard_begin(kb, rotated);
  kva_kval cosine = angle_at(l, n, 1, idx, r.pair), sine = angle_at(l, n, 2, idx, r.pair);
  kva_kval partner = l->operand(l, n, 0, other);
  kva_k_guard_end(kb, outer);
  sine = kva_k_select(kb, r.first, kva_k1(kb, KVA_K_neg, sine), sine);
  kva_kval y = kva_k_op(kb, KVA_K_fma, partner, sine, kva_k2(kb, KVA_K_mul, plain, cosine));
  return kva_k_select(kb, rotated, y, plain);
}

int kva_rope_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  if (axis + 1 == n->results[0].type->rank) return KVA_MIXED;
  return operand ? kva_broadcast_source_axis(n, operand, axis) : (int)axis;
}

/* Angles of x's rows. */
kva_value *kva_rope_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs) {
  if (kva_is_lifted(n, 0, operands)) return NULL;
  return kva_broadcast_lifted(c, n, operands, attrs, operands[0]->type->rank);
}
