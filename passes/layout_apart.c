/* Transposed convolutions whose windows lie side by side, for layout.c: where the stride is the kernel's extent, or an
 * axis has one position, a result is one tap of one position, so that all of them are a convolution of one tap, with as
 * many filters for each filter as it has taps, whose results are then put in place:
 *
 *   y[n, o, h K + i, w L + j] = sum over c of x[n, c, h, w] filter[c, o, i, j]
 *
 * The filters of a tap follow each other, so that channels stay side by side where they are last. */
#include "ops/conv.h"
#include "ops/ids.h"
#include "passes/layout.h"

enum { AXES = 2, MIN_FILTERS = 16 };

/* Along axis d nothing is added at the edges or left out. */
static bool is_apart(const kva_node *n, const kva_window *w, uint32_t d) {
  int64_t positions = kva_type_extent(kva_operand_type(n, 0), 2 + d),
          results = kva_type_extent(n->results[0].type, 2 + d);
  bool apart = positions == 1 || w->kernel[d] == w->stride[d];
  return apart && w->dilation[d] == 1 && w->before[d] == 0 && results == positions * w->kernel[d];
}

/* The filters, known floats. NULL: windows overlap, or there are too few of them. */
static const kva_tensor_data *filters_of(const kva_node *n) {
  if (!kva_is(n, KVA_OP_conv_input_grad)) return NULL;
  const kva_conv_input_grad_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0), *w = kva_operand_type(n, 1), *y = n->results[0].type;
  const kva_tensor_data *filters = kva_constant_of(kva_operand(n, 1));
  bool known = kva_type_is_static_from(x, 1) && kva_type_is_static_from(w, 0) && kva_type_is_static_from(y, 1);
  if (!filters || !known || a->group != 1 || x->rank - 2 > AXES || x->dtype != KVA_F32 || y->dtype != KVA_F32)
    return NULL;
  kva_window window = kva_conv_window(w, a->strides, a->pads, a->dilations);
  int64_t each = kva_type_extent(w, 1);
  for (uint32_t d = 0; d < window.n; d++) {
    if (!is_apart(n, &window, d)) return NULL;
    each *= window.kernel[d];
  }
  return each >= MIN_FILTERS ? filters : NULL;
}

bool kva_layout_is_apart(const kva_node *n) {
  return filters_of(n) != NULL;
}

/* [taps * O, C, 1 ...] of w [C, O, taps]. */
static kva_value *one_tap(kva_layout *l, kva_builder *b, const kva_tensor_data *w) {
  int64_t channels = w->dims[0], filters = w->dims[1], taps = 1, dims[2 + AXES] = {0, channels, 1, 1};
  for (uint32_t d = 2; d < w->rank; d++) taps *= w->dims[d];
  dims[0] = taps * filters;
  kva_tensor_data *to = kva_layout_room(l, KVA_F32, w->rank, dims);
  const float *from = w->data;
  float *at = (float *)(uintptr_t)to->data;
  for (int64_t c = 0; c < channels; c++)
    for (int64_t o = 0; o < filters; o++)
      for (int64_t t = 0; t < taps; t++) at[(t * filters + o) * channels + c] = *from++;
  return kva_const_tensor(b, to);
}

/* [N, taps.., O, positions..] as [N, O, positions and taps in turn]. */
static kva_value *put_in_place(kva_builder *b, kva_value *y, const kva_type *w, const kva_type *result) {
  uint32_t axes = w->rank - 2, rank = 2 + 2 * axes;
  kva_dim dims[KVA_MAX_RANK] = {y->type->dims[0]};
  int64_t perm[KVA_MAX_RANK] = {0, 1 + axes};
  dims[1 + axes] = w->dims[1];
  for (uint32_t d = 0; d < axes; d++) {
    dims[1 + d] = w->dims[2 + d], dims[2 + axes + d] = y->type->dims[2 + d];
    perm[2 + 2 * d] = 2 + axes + d, perm[3 + 2 * d] = 1 + d;
  }
  return kva_reshape_like(b, kva_transpose(b, kva_reshape(b, y, rank, dims), perm), result);
}

bool kva_layout_apart(kva_layout *l, kva_graph *g) {
  bool changed = false;
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    const kva_tensor_data *filters = filters_of(n);
    if (!filters) continue;
    kva_builder b = kva_builder_before(l->m, n);
    kva_value *operands[] = {kva_operand(n, 0), one_tap(l, &b, filters)}, *result = &n->results[0];
    kva_value *y = kva_build(&b, KVA_OP_conv, 2, operands, &(kva_conv_attrs){.group = 1});
    y = put_in_place(&b, y, kva_operand_type(n, 1), result->type);
    y->name = result->name;
    kva_value_replace_all_uses(result, y);
    kva_node_remove(n);
    changed = true;
  }
  return changed;
}
