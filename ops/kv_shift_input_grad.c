/* kv_shift_input_grad(dy, w, past?, segments?, left_pad?) -> dx, dpast: kv_shift (see there) is linear in x and past;
 * this is its transpose, the anti-causal shift
 *
 *   dx[b,h,s,:] = sum_{j<W, s+j<T} w[h,j] * dy[b,h,s+j,:]
 *
 * over the rows s+j whose tap j reads row s: of the same document, s not padding. Row -i of past, i < W, gets the same
 * sum with s = -i. Boundary "keep": the unmixed row has weights (1, 0, ...); "edge": the first row also gets what taps
 * before it gave. Of past only the presence matters; without it dpast is zero.
 * Tolerance 4: as kv_shift; the edge row sums up to W * W products. */
#include "ops/kv_shift.h"
#include "ops/check.h"

KVA_OP_FUNCTIONS(kv_shift_input_grad)

static kva_shift shift_of(const kva_node *n) {
  const kva_kv_shift_input_grad_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  return kva_shift_get(n, kva_operand_type(n, 0), a->time_axis, a->boundary, w->rank, w->dims);
}

kva_status kva_kv_shift_input_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_kv_shift_input_grad_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  KVA_TRY(kva_shift_check(m, n, a->time_axis, a->boundary, w->rank, w->dims, 1));
  kva_shift s = shift_of(n);
  out_types[0] = kva_operand_type(n, 0);
  out_types[1] = kva_shift_state_type(m, &s);
  return KVA_OK;
}

/* Scatters as the forward pass gathers, so that the lowered gather is checked against independent code. */
kva_status kva_kv_shift_input_grad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                       kva_ref_tensor *const *out) {
  (void)r;
  kva_shift form = shift_of(n);
  kva_shift_ref s = kva_shift_ref_get(&form, in[0], in);
  int64_t dims[4] = {s.B, s.T, s.H, s.D}, i[4] = {0};
  if (in[0]->n == 0) return KVA_OK;
  do {
    int64_t b = i[0], t = i[1], h = i[2], d = i[3];
    double dy = in[0]->f[kva_shift_offset(&s, s.T, b, t, h, d)];
    for (int64_t j = 0; j < s.W; j++) {
      kva_shift_source to = kva_shift_read(&s, b, t, j);
      double w = to.unit_weight ? 1 : in[1]->f[kva_shift_weight_offset(&s, b, t, h, j, d)];
      if (to.from == KVA_FROM_X) out[0]->f[kva_shift_offset(&s, s.T, b, to.row, h, d)] += w * dy;
      if (to.from == KVA_FROM_PAST) out[1]->f[kva_shift_offset(&s, s.W - 1, b, to.row, h, d)] += w * dy;
    }
  } while (kva_next_index(4, dims, i));
  return KVA_OK;
}

/* Row at.t + j of dy and its weight for tap j, if cond holds and that row exists. */
static kva_shift_product product_at(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j,
                                    const kva_expr *read_row, kva_kval cond) {
  kva_shift_at later = at;
  later.t = kva_expr_add(l->kb->exprs, at.t, j);
  cond = kva_k_and(l->kb, cond, kva_k_index_lt(l->kb, later.t, s->T));
  cond = kva_k_and(l->kb, cond, kva_shift_same_segment(l, s, at.b, read_row, later.t, cond));
  return (kva_shift_product){kva_shift_weight(l, s, later, j, cond), kva_shift_operand(l, s, 0, later, cond)};
}

/* at.t is a row of x. */
static kva_shift_product row_product(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j, void *user) {
  (void)user;
  kva_kval real = kva_k_index_le(l->kb, kva_shift_start(l, s, at.b), at.t);
  kva_shift_product p = product_at(l, s, at, j, at.t, real);
  kva_kval kept = kva_shift_kept_row(l, s, at);
  if (!kept) return p;
  kva_kval current = kva_k_index_eq(l->kb, j, kva_expr_const(l->kb->exprs, 0));
  p.weight = kva_k_select(l->kb, kva_k_and(l->kb, kept, current), kva_k_const(l->kb, p.weight->dtype, 1), p.weight);
  return p;
}

/* at.t is a negative row, before x. Row 0 determines past's document. */
static kva_shift_product past_product(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j,
                                      void *user) {
  (void)user;
  const kva_expr *later = kva_expr_add(l->kb->exprs, at.t, j);
  kva_kval real = kva_k_index_le(l->kb, kva_shift_start(l, s, at.b), later);
  return product_at(l, s, at, j, kva_expr_const(l->kb->exprs, 0), real);
}

typedef struct edge_taps {
  const kva_expr *distance; /* distance of the reading row from the first row */
  kva_kval cond;
} edge_taps;

/* Taps that reach before the first row: j > distance. */
static kva_shift_product tap_beyond(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j, void *user) {
  edge_taps *taps = user;
  kva_kval cond = kva_k_and(l->kb, taps->cond, kva_k_index_lt(l->kb, taps->distance, j));
  kva_kval w = kva_shift_weight(l, s, at, j, cond);
  return (kva_shift_product){w, kva_k_const(l->kb, w->dtype, 1)};
}

/* at.t is the first row; sums everything that row at.t + i reads from before it. */
static kva_shift_product edge_product(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *i,
                                      void *user) {
  kva_shift_at later = at;
  later.t = kva_expr_add(l->kb->exprs, at.t, i);
  kva_kval cond = kva_k_and(l->kb, user, kva_k_index_lt(l->kb, later.t, s->T));
  cond = kva_k_and(l->kb, cond, kva_k_index_lt(l->kb, i, kva_expr_const(l->kb->exprs, s->window - 1)));
  cond = kva_k_and(l->kb, cond, kva_shift_same_segment(l, s, at.b, at.t, later.t, cond));
  edge_taps taps = {i, cond};
  kva_kval weight = kva_shift_sum(l, s, later, tap_beyond, &taps);
  return (kva_shift_product){weight, kva_shift_operand(l, s, 0, later, cond)};
}

kva_kval kva_kv_shift_input_grad_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  kva_shift s = shift_of(n);
  kva_shift_at at = kva_shift_index(&s, idx);
  bool past = kva_operand(n, KVA_SHIFT_PAST);
  kva_dtype t = kva_k_compute_type(kva_operand_type(n, 0)->dtype);
  if (result == 1) {
    if (!past) return kva_k_const(l->kb, t, 0);
    at.t = kva_expr_addi(l->kb->exprs, at.t, 1 - s.window);
    return kva_shift_sum(l, &s, at, past_product, NULL);
  }
  kva_kval dx = kva_shift_sum(l, &s, at, row_product, NULL);
  if (past || s.boundary != KVA_SHIFT_EDGE) return dx;
  kva_kval first = kva_k_index_eq(l->kb, at.t, kva_shift_start(l, &s, at.b));
  return kva_k2(l->kb, KVA_K_add, dx, kva_shift_sum(l, &s, at, edge_product, first));
}
