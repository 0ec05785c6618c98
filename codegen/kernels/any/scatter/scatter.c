#include "codegen/kernels/any/scatter/scatter.h"

void kva_scatter_store(kva_lower *l, kva_scatter_mode mode, kva_kbuf *buf, const kva_expr *at, kva_kval v) {
  static const kva_kop ops[] = {[KVA_SCATTER_ADD] = KVA_K_add,
                                [KVA_SCATTER_MUL] = KVA_K_mul,
                                [KVA_SCATTER_MAX] = KVA_K_max,
                                [KVA_SCATTER_MIN] = KVA_K_min};
  if (mode != KVA_SCATTER_SET) v = kva_k2(l->kb, ops[mode], kva_k_load(l->kb, buf, at), v);
  kva_k_store(l->kb, buf, at, v);
}

kva_kbuf *kva_scatter_result(kva_lower *l, const kva_node *n, uint32_t result) {
  const kva_kernel *k = l->kb->kernel;
  KVA_ASSERT(k->bufs.len >= n->n_results);
  kva_kbuf *buf = k->bufs.data[k->bufs.len - n->n_results + result];
  KVA_ASSERT(buf->space == KVA_K_PARAM && buf->dtype == n->results[result].type->dtype);
  return buf;
}

kva_slice_loop kva_slices_begin(kva_lower *l, const kva_expr *extent) {
  int64_t columns = l->target->kind == KVA_TARGET_GPU ? 32 : 16;
  kva_expr_ctx *c = l->kb->exprs;
  const kva_expr *width = kva_expr_const(c, columns);
  kva_slice_loop slice;
  int64_t known;
  if (kva_expr_is_const(extent, &known) && known <= columns) {
    slice.loop = kva_k_loop_begin(l->kb, KVA_K_PARALLEL, kva_expr_const(c, 1), "slice");
    slice.start = kva_expr_const(c, 0);
    slice.width = extent;
    return slice;
  }
  slice.loop = kva_k_loop_begin(l->kb, KVA_K_PARALLEL, kva_expr_ceildiv(c, extent, width), "slice");
  slice.start = kva_expr_muli(c, slice.loop->var, columns);
  slice.width = width;
  if (!kva_expr_is(kva_expr_mod(c, extent, width), 0))
    slice.width = kva_expr_min(c, width, kva_expr_sub(c, extent, slice.start));
  return slice;
}

void kva_slices_end(kva_lower *l, const kva_slice_loop *slice) {
  kva_k_loop_end(l->kb, slice->loop);
}
