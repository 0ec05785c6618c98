/* kv_shift_grads(dy, w, x, segments?) -> dx, dw: both gradients of kv_shift (see there) for weights [H,W], boundary
 * "zero", without past or padding, in one pass over dy and x:
 *
 *   dx[b,h,s,:]   = sum_{j<W, s+j<T} w[h,j] * dy[b,h,s+j,:]
 *   dw[b,c,h,j]   = sum_{16c<=s<16c+16, s+j<T} dy[b,h,s+j,:] . x[b,h,s,:]
 *
 * where rows s and s+j belong to one document. dw is [B, ceil(T/16), H, W], float (double for double); the caller sums
 * it over b and c to get the gradient of w. passes/opt_split_shift.c creates this operator for GPUs after
 * differentiation: no gradient. Tolerance 16: as kv_shift_weight_grad. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/kv_shift.h"

KVA_OP_FUNCTIONS(kv_shift_grads)

enum { ROWS = KVA_SHIFT_GRADS_ROWS, DY = KVA_SHIFT_GRADS_DY, X = KVA_SHIFT_GRADS_X };

kva_shift kva_shift_grads_get(const kva_node *n) {
  const kva_kv_shift_grads_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  return kva_shift_get(n, kva_operand_type(n, 0), a->time_axis, NULL, w->rank, w->dims);
}

kva_status kva_kv_shift_grads_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_kv_shift_grads_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0), *w = kva_operand_type(n, 1);
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_rank(m, n, 0, 4));
  KVA_TRY(kva_check_rank(m, n, 1, 2));
  KVA_TRY(kva_check_same_dtype(m, n, X, 0));
  KVA_TRY(kva_check_shape(m, n, X, x->rank, x->dims));
  KVA_TRY(kva_check_int(m, n, KVA_SHIFT_SEGMENTS));
  if (a->time_axis != 1 && a->time_axis != 2)
    return kva_error(m->diag, &n->loc, "kv.%s: time_axis must be 1 ([B,T,H,D]) or 2 ([B,H,T,D]), found %lld",
                     n->op->name, (long long)a->time_axis);
  KVA_TRY(kva_check_shape(m, n, 1, 2, (kva_dim[]){x->dims[3 - a->time_axis], w->dims[1]}));
  KVA_TRY(kva_check_shape(m, n, KVA_SHIFT_SEGMENTS, 2, (kva_dim[]){x->dims[0], x->dims[a->time_axis]}));
  if (!kva_expr_is_const(w->dims[1], NULL)) return kva_operand_error(m, n, 1, "the number of taps must be a constant");
  kva_shift s = kva_shift_grads_get(n);
  kva_dim blocks = kva_expr_ceildiv(m->exprs, s.T, kva_expr_const(m->exprs, ROWS));
  out_types[0] = x;
  out_types[1] = kva_type_tensor(m, kva_ref_tensor_dtype(x->dtype), 4, (kva_dim[]){s.B, blocks, s.H, w->dims[1]});
  return KVA_OK;
}

kva_status kva_kv_shift_grads_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                  kva_ref_tensor *const *out) {
  (void)r;
  kva_shift form = kva_shift_grads_get(n);
  kva_shift_ref s = kva_shift_ref_get(
      &form, in[0], (const kva_ref_tensor *const[]){in[0], in[1], NULL, n->n_operands > 3 ? in[3] : NULL});
  int64_t dims[4] = {s.B, s.T, s.H, s.D}, i[4] = {0}, blocks = out[1]->dims[1];
  if (in[0]->n == 0) return KVA_OK;
  do {
    int64_t b = i[0], t = i[1], h = i[2], d = i[3];
    double dy = in[DY]->f[kva_shift_offset(&s, s.T, b, t, h, d)];
    for (int64_t j = 0; j < s.W && j <= t; j++) {
      if (kva_shift_read(&s, b, t, j).from == KVA_FROM_NOTHING) continue;
      int64_t from = kva_shift_offset(&s, s.T, b, t - j, h, d);
      out[0]->f[from] += in[1]->f[h * s.W + j] * dy;
      out[1]->f[((b * blocks + (t - j) / ROWS) * s.H + h) * s.W + j] += dy * in[X]->f[from];
    }
  } while (kva_next_index(4, dims, i));
  return KVA_OK;
}

kva_operand_role kva_kv_shift_grads_role(const kva_node *n, uint32_t operand) {
  (void)n;
  return operand == DY || operand == X ? KVA_ONCE : KVA_STREAMED;
}
