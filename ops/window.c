/* Implements window.h. */
#include "ops/facts.h"
#include "ops/incremental.h"
#include "ops/window.h"

static kva_status list_error(kva_module *m, const kva_node *n, const char *list, uint32_t expected, kva_ints found,
                             int64_t least) {
  for (uint32_t i = 0; i < found.n; i++) {
    if (found.v[i] < least) {
      return kva_error(m->diag, &n->loc, "%s: %s must be at least %lld, found %lld", n->op->name, list,
                       (long long)least, (long long)found.v[i]);
    }
  }
  if (found.n == expected || found.n == 0) return KVA_OK;
  return kva_error(m->diag, &n->loc, "%s: expected %u %s, found %u", n->op->name, expected, list, found.n);
}

kva_status kva_window_check(kva_module *m, const kva_node *n, uint32_t n_spatial, kva_ints kernel, kva_ints strides,
                            kva_ints pads, kva_ints dilations) {
  if (kernel.n == 0 && n_spatial > 0) {
    return kva_error(m->diag, &n->loc, "%s: expected %u kernel extents, found none", n->op->name, n_spatial);
  }
  KVA_TRY(list_error(m, n, "kernel extents", n_spatial, kernel, 1));
  KVA_TRY(list_error(m, n, "strides", n_spatial, strides, 1));
  KVA_TRY(list_error(m, n, "dilations", n_spatial, dilations, 1));
  return list_error(m, n, "pads", 2 * n_spatial, pads, 0);
}

kva_window kva_window_get(uint32_t n_spatial, const int64_t *kernel, kva_ints strides, kva_ints pads,
                          kva_ints dilations, bool ceil_mode) {
  kva_window w = {.n = n_spatial, .ceil_mode = ceil_mode};
  for (uint32_t i = 0; i < n_spatial; i++) {
    w.kernel[i] = kernel[i];
    w.stride[i] = strides.n ? strides.v[i] : 1;
    w.dilation[i] = dilations.n ? dilations.v[i] : 1;
    w.before[i] = pads.n ? pads.v[i] : 0;
    w.after[i] = pads.n ? pads.v[n_spatial + i] : 0;
  }
  return w;
}

static kva_dim window_extent(kva_expr_ctx *c, const kva_window *w, uint32_t i, kva_dim in) {
  const kva_expr *stride = kva_expr_const(c, w->stride[i]);
  int64_t span = (w->kernel[i] - 1) * w->dilation[i] + 1;
  const kva_expr *room = kva_expr_addi(c, in, w->before[i] + w->after[i] - span);
  if (!w->ceil_mode) return kva_expr_addi(c, kva_expr_div(c, room, stride), 1);
  /* no window may begin in the padding after x: (out - 1) * stride < in + before */
  const kva_expr *starts = kva_expr_ceildiv(c, kva_expr_addi(c, in, w->before[i]), stride);
  return kva_expr_min(c, kva_expr_addi(c, kva_expr_ceildiv(c, room, stride), 1), starts);
}

kva_status kva_window_extents(kva_module *m, const kva_node *n, const kva_window *w, const kva_dim *in, kva_dim *out) {
  for (uint32_t i = 0; i < w->n; i++) {
    int64_t extent;
    out[i] = window_extent(m->exprs, w, i, in[i]);
    if (!kva_expr_is_const(out[i], &extent) || extent >= 0) continue;
    return kva_error(m->diag, &n->loc,
                     "%s: on spatial axis %u the window of %lld taps, dilation %lld, is larger than the padded input",
                     n->op->name, i, (long long)w->kernel[i], (long long)w->dilation[i]);
  }
  return KVA_OK;
}

int64_t kva_window_offset(const kva_window *w, const int64_t *dims, const int64_t *o, const int64_t *k) {
  int64_t offset = 0;
  for (uint32_t i = 0; i < w->n; i++) {
    int64_t at = kva_window_position(w, i, o[i], k[i]);
    if (at < 0 || at >= dims[i]) return -1;
    offset = offset * dims[i] + at;
  }
  return offset;
}

static kva_kval inside(kva_kb *kb, const kva_expr *at, kva_dim extent) {
  return kva_k_and(kb, kva_k_index_le(kb, kva_expr_const(kb->exprs, 0), at), kva_k_index_lt(kb, at, extent));
}

kva_kval kva_window_read(kva_kb *kb, const kva_window *w, const kva_dim *in, const kva_expr *const *o,
                         const kva_expr *const *k, const kva_expr **out_at) {
  kva_expr_ctx *c = kb->exprs;
  kva_kval all = NULL;
  for (uint32_t i = 0; i < w->n; i++) {
    const kva_expr *begin = kva_expr_addi(c, kva_expr_muli(c, o[i], w->stride[i]), -w->before[i]);
    out_at[i] = kva_expr_add(c, begin, kva_expr_muli(c, k[i], w->dilation[i]));
    all = kva_k_and(kb, all, inside(kb, out_at[i], in[i]));
  }
  return all;
}

kva_kval kva_window_reader(kva_kb *kb, const kva_window *w, const kva_dim *out, const kva_expr *const *at,
                           const kva_expr *const *k, const kva_expr **out_o) {
  kva_expr_ctx *c = kb->exprs;
  kva_kval all = NULL;
  for (uint32_t i = 0; i < w->n; i++) {
    const kva_expr *stride = kva_expr_const(c, w->stride[i]);
    const kva_expr *begin =
        kva_expr_sub(c, kva_expr_addi(c, at[i], w->before[i]), kva_expr_muli(c, k[i], w->dilation[i]));
    kva_kval divides = kva_k_index_eq(kb, kva_expr_mod(c, begin, stride), kva_expr_const(c, 0));
    out_o[i] = kva_expr_div(c, begin, stride);
    all = kva_k_and(kb, all, kva_k_and(kb, divides, inside(kb, out_o[i], out[i])));
  }
  return all;
}

void kva_window_kernel(kva_expr_ctx *c, const kva_window *w, const kva_expr **out_extents) {
  for (uint32_t i = 0; i < w->n; i++) out_extents[i] = kva_expr_const(c, w->kernel[i]);
}

kva_kval kva_window_reduce(kva_kb *kb, const kva_window *w, kva_combine combine, kva_dtype t, const kva_expr *channels,
                           kva_k_body tap, void *user) {
  const kva_expr *extents[1 + KVA_MAX_SPATIAL] = {channels};
  uint32_t leading = channels != NULL;
  kva_window_kernel(kb->exprs, w, extents + leading);
  return kva_k_reduce_over(kb, combine, t, leading + w->n, extents, tap, user);
}

int kva_images_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)n;
  if (axis) return KVA_MIXED;
  return operand ? KVA_SAME_FOR_ALL : 0;
}
