/* conv and its gradients as contractions (contract.h), where a group has rows enough for a register tile; else their element
 * code runs in plain loops.
 *
 *              rows            columns                 depth
 *   conv       M/group         lines of y: (n, o...)   C/group, kernel
 *   input      C/group         lines of x: (n, i...)   M/group, kernel
 *   weight     M/group         (c, kernel)             (n, o)
 *
 * A line is the last spatial axis; the taps along it share one packed copy, the leading axes' taps are the contraction's leads.
 * Windows of one tap without stride and padding make an image one line. The gradient for the input is a convolution of dy, with
 * stride - 1 zeros between its elements, by the reversed kernel. */
#include "ops/conv.h"

typedef struct site {
  kva_window w;       /* as columns read operand 0; for the input's gradient of reversed taps, with stride 1 */
  int64_t between[KVA_MAX_SPATIAL]; /* elements of operand 0 lie at multiples of this; 1 but for the input's gradient */
  bool reversed, pointwise;
  uint32_t lead_axes;
  int64_t group;
  kva_dim depth_per_group;
} site;

static kva_expr_ctx *exprs(const kva_contraction *c) { return c->l->kb->exprs; }

static const kva_expr *channel(const kva_contraction *c, kva_dim per_group, const kva_expr *batch, const kva_expr *i) {
  return kva_expr_add(exprs(c), kva_expr_mul(exprs(c), batch, per_group), i);
}

/* Splits flat over extents[0..n). */
static void unflatten(kva_expr_ctx *e, const kva_expr *flat, uint32_t n, const kva_dim *extents, const kva_expr **out) {
  for (uint32_t d = n; d-- > 0;) {
    out[d] = d == 0 ? flat : kva_expr_mod(e, flat, extents[d]);
    if (d) flat = kva_expr_div(e, flat, extents[d]);
  }
}

/* Image and spatial position of a column, in the result's extents. */
static void column_index(const kva_contraction *c, const kva_contract_at *at, const kva_expr **out_n, const kva_expr **out_at) {
  const site *s = c->user;
  const kva_dim *extents = c->n->results[0].type->dims;
  if (s->pointwise) {
    *out_n = at->line;
    unflatten(exprs(c), at->position, s->w.n, extents + 2, out_at);
    return;
  }
  const kva_expr *rest = at->line, *split[KVA_MAX_RANK];
  kva_dim outer[KVA_MAX_RANK] = {extents[0]};
  memcpy(outer + 1, extents + 2, sizeof *outer * s->lead_axes);
  unflatten(exprs(c), rest, 1 + s->lead_axes, outer, split);
  *out_n = split[0];
  memcpy(out_at, split + 1, sizeof *split * s->lead_axes);
  out_at[s->lead_axes] = at->position;
}

static void result_at(const kva_contraction *c, const kva_contract_at *at, const kva_expr **idx) {
  column_index(c, at, &idx[0], idx + 2);
  idx[1] = channel(c, c->rows, at->batch, at->row);
}

/* w at (row, k, taps) */
static kva_kval weight(const kva_contraction *c, const kva_contract_at *at) {
  const site *s = c->user;
  kva_expr_ctx *e = exprs(c);
  kva_dim kernel[KVA_MAX_SPATIAL];
  const kva_expr *idx[KVA_MAX_RANK];
  kva_window_kernel(e, &s->w, kernel);
  unflatten(e, at->lead, s->lead_axes, kernel, idx + 2);
  idx[2 + s->lead_axes] = at->tap;
  for (uint32_t d = 0; s->reversed && d < s->w.n; d++)
    idx[2 + d] = kva_expr_sub(e, kva_expr_const(e, s->w.kernel[d] - 1), idx[2 + d]);
  idx[0] = s->reversed ? channel(c, s->depth_per_group, at->batch, at->k) : channel(c, c->rows, at->batch, at->row);
  idx[1] = s->reversed ? at->row : at->k;
  return kva_k_convert(c->l->kb, c->l->operand(c->l, c->n, 1, idx), c->type);
}

/* Position `raw` of the padded, spread out axis as an index below `extent`, and whether there is an element. */
static kva_kval place(kva_kb *kb, const kva_expr *raw, int64_t before, int64_t between, kva_dim extent, const kva_expr **out_at) {
  kva_expr_ctx *e = kb->exprs;
  const kva_expr *x = kva_expr_addi(e, raw, -before), *step = kva_expr_const(e, between);
  *out_at = kva_expr_div(e, x, step);
  kva_kval inside = kva_k_and(kb, kva_k_index_le(kb, kva_expr_const(e, 0), x), kva_k_index_lt(kb, *out_at, extent));
  if (between == 1) return inside;
  return kva_k_and(kb, inside, kva_k_index_eq(kb, kva_expr_mod(e, x, step), kva_expr_const(e, 0)));
}

/* Operand 0 at image n, channel k, where the taps read for the column. */
static kva_kval image(const kva_contraction *c, const kva_contract_at *at) {
  const site *s = c->user;
  kva_kb *kb = c->l->kb;
  kva_expr_ctx *e = kb->exprs;
  const kva_type *t = kva_operand_type(c->n, 0);
  const kva_expr *idx[KVA_MAX_RANK], *column[KVA_MAX_RANK], *taps[KVA_MAX_RANK];
  kva_dim kernel[KVA_MAX_SPATIAL];
  column_index(c, at, &idx[0], column);
  idx[1] = channel(c, s->depth_per_group, at->batch, at->k);
  kva_window_kernel(e, &s->w, kernel);
  unflatten(e, at->lead, s->lead_axes, kernel, taps);
  kva_kval inside = NULL;
  for (uint32_t d = 0; d < s->w.n; d++) {
    const kva_expr *raw = kva_expr_muli(e, column[d], s->w.stride[d]);
    raw = kva_expr_add(e, raw, d < s->lead_axes ? kva_expr_muli(e, taps[d], s->w.dilation[d]) : at->phase);
    if (s->pointwise) idx[2 + d] = column[d];
    else inside = kva_k_and(kb, inside, place(kb, raw, s->w.before[d], s->between[d], t->dims[2 + d], &idx[2 + d]));
  }
  kva_kval v = kva_masked_operand(c->l, c->n, 0, idx, inside);
  return kva_k_convert(kb, v, c->type);
}
