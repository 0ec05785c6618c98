/* kv_shift_weight_grad(x, dy, past?, segments?, left_pad?) -> dw: gradient of kv_shift (see there) by its weights,
 *
 *   dw[h,j] = sum_{b,t,d} dy[b,h,t,d] * (what tap j of row t reads)[d]
 *
 * for weights of shape weight_shape: [H,W]; [H,W,D] does not sum over d; [B,H,T,W] sums over d only. The row that
 * boundary "keep" passes unmixed gives nothing. The result is float (double for double) whatever x is, because it sums
 * over the whole batch.
 * Tolerance 16: one sum of B*T*D products, in several accumulators. */
#include "ops/kv_shift.h"
#include "ops/check.h"
#include "ops/element.h"

KVA_OP_FUNCTIONS(kv_shift_weight_grad)

static kva_shift shift_of(const kva_node *n) {
  const kva_kv_shift_weight_grad_attrs *a = n->attrs;
  return kva_shift_get(n, kva_operand_type(n, 0), a->time_axis, a->boundary, a->weight_shape.n, a->weight_shape.v);
}

kva_status kva_kv_shift_weight_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_kv_shift_weight_grad_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  KVA_TRY(kva_shift_check(m, n, a->time_axis, a->boundary, a->weight_shape.n, a->weight_shape.v, 0));
  KVA_TRY(kva_check_same_dtype(m, n, 1, 0));
  KVA_TRY(kva_check_shape(m, n, 1, x->rank, x->dims));
  out_types[0] = kva_type_tensor(m, kva_ref_tensor_dtype(x->dtype), a->weight_shape.n, a->weight_shape.v);
  return KVA_OK;
}

kva_status kva_kv_shift_weight_grad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                        kva_ref_tensor *const *out) {
  (void)r;
  kva_shift form = shift_of(n);
  kva_shift_ref s = kva_shift_ref_get(&form, in[0], in);
  int64_t dims[4] = {s.B, s.T, s.H, s.D}, i[4] = {0};
  if (in[0]->n == 0) return KVA_OK;
  do {
    int64_t b = i[0], t = i[1], h = i[2], d = i[3];
    double dy = in[1]->f[kva_shift_offset(&s, s.T, b, t, h, d)];
    for (int64_t j = 0; j < s.W; j++) {
      kva_shift_source from = kva_shift_read(&s, b, t, j);
      if (from.from == KVA_FROM_NOTHING || from.unit_weight) continue;
      bool of_x = from.from == KVA_FROM_X;
      int64_t offset = kva_shift_offset(&s, of_x ? s.T : s.W - 1, b, from.row, h, d);
      out[0]->f[kva_shift_weight_offset(&s, b, t, h, j, d)] += dy * (of_x ? in[0] : s.past)->f[offset];
    }
  } while (kva_next_index(4, dims, i));
  return KVA_OK;
}

typedef struct weight_sum {
  kva_lower *l;
  const kva_shift *s;
  const kva_expr *const *idx;
} weight_sum;

static kva_shift_at summed_at(const weight_sum *sum, const kva_expr *const *vars) {
  const kva_expr *const *idx = sum->idx;
  switch (sum->s->weight_rank) {
  case 2: return (kva_shift_at){.b = vars[0], .t = vars[1], .h = idx[0], .d = vars[2]};
  case 3: return (kva_shift_at){.b = vars[0], .t = vars[1], .h = idx[0], .d = idx[2]};
  default: return (kva_shift_at){.b = idx[0], .t = idx[2], .h = idx[1], .d = vars[0]};
  }
}

/* A row that does not exist is left out, not multiplied as zero: dy may be infinite. */
static kva_kval weight_product(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const weight_sum *sum = user;
  const kva_shift *s = sum->s;
  kva_shift_at at = summed_at(sum, vars);
  const kva_expr *j = sum->idx[kva_shift_tap_axis(s->weight_rank)];
  kva_kval exists, tap = kva_shift_tap(sum->l, s, at, j, &exists);
  kva_kval product = kva_k2(kb, KVA_K_mul, kva_shift_operand(sum->l, s, 1, at, NULL), tap);
  kva_kval kept = kva_shift_kept_row(sum->l, s, at), zero = kva_k_const(kb, product->dtype, 0);
  if (exists) product = kva_k_select(kb, exists, product, zero);
  return kept ? kva_k_select(kb, kept, zero, product) : product;
}

kva_kval kva_kv_shift_weight_grad_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_shift s = shift_of(n);
  const kva_expr *const extents[3][3] = {{s.B, s.T, s.D}, {s.B, s.T}, {s.D}};
  const uint32_t counts[3] = {3, 2, 1};
  weight_sum sum = {l, &s, idx};
  kva_dtype t = kva_k_compute_type(kva_operand_type(n, 0)->dtype);
  uint32_t form = s.weight_rank - 2;
  return kva_k_reduce_over(l->kb, KVA_COMBINE_ADD, t, counts[form], extents[form], weight_product, &sum);
}
