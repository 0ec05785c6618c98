/* Operators that write at places that are data. */
#include "ops/scatter_common.h"

#include <math.h>

kva_scatter_mode kva_scatter_mode_of(const char *reduction) {
  static const char *const names[] = {"none", "add", "mul", "max", "min"};
  if (!reduction) return KVA_SCATTER_SET;
  int i = 0;
  while (i < KVA_SCATTER_UNKNOWN && strcmp(reduction, names[i])) i++;
  return (kva_scatter_mode)i;
}

kva_status kva_scatter_check(kva_module *m, const kva_node *n, const char *reduction) {
  kva_scatter_mode mode = kva_scatter_mode_of(reduction);
  if (mode == KVA_SCATTER_UNKNOWN)
    return kva_error(m->diag, &n->loc, "kv.%s: reduction \"%s\": expected none, add, mul, max or min", n->op->name,
                     reduction);
  if (mode != KVA_SCATTER_SET && kva_operand_type(n, 0)->dtype == KVA_BOOL)
    return kva_error(m->diag, &n->loc, "kv.%s: reduction %s is not defined for bool", n->op->name, reduction);
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static double combine_f(kva_scatter_mode mode, double a, double x) {
  switch (mode) {
  case KVA_SCATTER_ADD: return a + x;
  case KVA_SCATTER_MUL: return a * x;
  case KVA_SCATTER_MAX: return isnan(a) || a > x ? a : x;
  case KVA_SCATTER_MIN: return isnan(a) || a < x ? a : x;
  default: return x;
  }
}

static int64_t combine_i(kva_scatter_mode mode, int64_t a, int64_t x, bool unsigned64) {
  bool less = unsigned64 ? (uint64_t)a < (uint64_t)x : a < x;
  switch (mode) {
  case KVA_SCATTER_ADD: return (int64_t)((uint64_t)a + (uint64_t)x);
  case KVA_SCATTER_MUL: return (int64_t)((uint64_t)a * (uint64_t)x);
  case KVA_SCATTER_MAX: return less ? x : a;
  case KVA_SCATTER_MIN: return less ? a : x;
  default: return x;
  }
}

void kva_scatter_ref(kva_scatter_mode mode, const kva_ref_tensor *x, int64_t from, kva_ref_tensor *y, int64_t to) {
  if (y->f)
    y->f[to] = kva_round_f64(y->dtype, combine_f(mode, y->f[to], x->f[from]));
  else
    y->i[to] = kva_wrap_i64(y->dtype, combine_i(mode, y->i[to], x->i[from], y->dtype == KVA_U64));
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

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

void kva_nest_begin(kva_lower *l, kva_kloop_kind kind, uint32_t n, const kva_dim *extents, kva_kloop **out_loops,
                    const kva_expr **out_vars) {
  for (uint32_t k = 0; k < n; k++) {
    out_loops[k] = kva_k_loop_begin(l->kb, kind, extents[k], "i");
    out_vars[k] = out_loops[k]->var;
  }
}

void kva_nest_end(kva_lower *l, uint32_t n, kva_kloop *const *loops) {
  for (uint32_t k = n; k-- > 0;) kva_k_loop_end(l->kb, loops[k]);
}

kva_slice_loop kva_slices_begin(kva_lower *l, const kva_expr *extent) {
  int64_t columns = kva_lower_for_gpu(l) ? 32 : 16;
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
