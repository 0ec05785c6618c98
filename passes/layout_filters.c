/* Filters of convolutions with channels last (layout.c): which convolutions have a kernel for that
 * (codegen/kernels/cpu/contract), and constants in panels (ops/join_filters.c). */
#include "ops/codes.h"
#include "ops/conv.h"
#include "ops/matmul.h"
#include "passes/layout.h"
#include "runtime/base/platform.h"

enum {
  LANES = 16, /* of a CPU that is not known */
  MAX_VECTORS = 3,
  MIN_FILTERS = KVA_FEW_ROWS + 1,
  AXES = 2,
  MAX_PATCH = 1 << 15, /* elements that a row of four results reads: half of what a kernel copies at once */
  LARGE = 1 << 21,     /* bytes */
  /* for which codegen/kernels/cpu/contract/channels.c copies no part of the image on any CPU */
  MIN_CHANNELS_IN_PLACE = 256,
  MIN_COLUMNS_IN_PLACE = 14,
  WORD = KVA_CODES_PER_WORD,
};

const kva_node *kva_layout_uniform(const kva_value *w, double *out_x) {
  const kva_node *n = w->def && kva_is(w->def, KVA_OP_expand) ? w->def : NULL;
  return n && kva_splat_value(kva_operand(n, 0), out_x) ? n : NULL;
}

int64_t kva_layout_lanes(const kva_layout *l) {
  return l->target ? kva_target_lanes(l->target, KVA_F32) : LANES;
}

/* As few vectors as compute the least. Three take tiles of fewer positions, one reads more of the image. */
int64_t kva_layout_panel(const kva_layout *l, int64_t filters, int64_t groups) {
  static const double cycles[] = {0, 7.7, 14, 21.5};
  int64_t lanes = kva_layout_lanes(l), best = 0;
  double least = 0;
  for (int64_t v = 1; v <= MAX_VECTORS; v++) {
    int64_t panel = v * lanes;
    if (groups > 1 && filters % panel) continue;
    double cost = (double)((filters + panel - 1) / panel) * cycles[v];
    if (best && cost >= least) continue;
    least = cost, best = panel;
  }
  return best;
}

bool kva_layout_is_depthwise(const kva_node *n) {
  int64_t groups = ((const kva_conv_attrs *)n->attrs)->group;
  return groups > 1 && kva_type_extent(kva_operand_type(n, 1), 0) == groups &&
         kva_type_extent(kva_operand_type(n, 1), 1) == 1;
}

/* The image of a depthwise convolution is a vector, too: wider panels share nothing of it. */
static int64_t panel_of_node(const kva_layout *l, const kva_node *n) {
  int64_t groups = ((const kva_conv_attrs *)n->attrs)->group;
  if (kva_layout_is_depthwise(n)) return kva_layout_lanes(l);
  return kva_layout_panel(l, kva_type_extent(kva_operand_type(n, 1), 0) / groups, groups);
}

double kva_layout_padding(const kva_layout *l, const kva_node *n) {
  int64_t filters = kva_type_extent(kva_operand_type(n, 1), 0), panel = panel_of_node(l, n);
  return (double)((panel - filters % panel) % panel) / (double)filters;
}

static bool is_of_bytes(const kva_node *n) {
  kva_dtype x = kva_operand_type(n, 0)->dtype, w = kva_operand_type(n, 1)->dtype;
  return kva_are_of_both_signs(x, w) && n->results[0].type->dtype == KVA_I32;
}

/* Its kernel reads the image where it lies, however far apart taps are. */
static bool is_read_in_place(const kva_node *n) {
  const kva_type *w = kva_operand_type(n, 1), *y = n->results[0].type;
  if (kva_layout_is_depthwise(n) || is_of_bytes(n)) return false;
  return kva_type_extent(w, 1) >= MIN_CHANNELS_IN_PLACE && kva_type_extent(y, y->rank - 1) >= MIN_COLUMNS_IN_PLACE;
}

/* Its kernel can copy what a row of results reads. */
static bool fits(const kva_node *n) {
  const kva_conv_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  kva_window window = kva_conv_window(w, a->strides, a->pads, a->dilations);
  int64_t elements = kva_layout_is_depthwise(n) ? 3 * (int64_t)LANES : kva_type_extent(w, 1);
  for (uint32_t d = 0; d < window.n; d++)
    elements *= (window.kernel[d] - 1) * window.dilation[d] + 1 + (d + 1 == window.n ? 3 * window.stride[d] : 0);
  return elements <= MAX_PATCH;
}

bool kva_layout_needs_place(const kva_node *n) {
  return !fits(n) && is_read_in_place(n);
}

int64_t kva_layout_missing_channels(const kva_node *n) {
  return is_of_bytes(n) ? -kva_type_extent(kva_operand_type(n, 1), 1) & (WORD - 1) : 0;
}

/* Floats, or bytes that are in words or can be. */
static bool has_types(const kva_node *n) {
  double x;
  const kva_value *w = kva_operand(n, 1);
  bool words = ((const kva_conv_attrs *)n->attrs)->group == 1 || kva_layout_missing_channels(n) == 0;
  if (is_of_bytes(n)) return words && kva_constant_of(w);
  if (n->results[0].type->dtype != KVA_F32 || kva_operand_type(n, 0)->dtype != KVA_F32) return false;
  return kva_constant_of(w) || kva_layout_uniform(w, &x);
}

bool kva_layout_suits(const kva_layout *l, const kva_node *n) {
  if (!kva_is(n, KVA_OP_conv)) return false;
  const kva_type *x = kva_operand_type(n, 0), *w = kva_operand_type(n, 1), *y = n->results[0].type;
  if (y->rank - 2 > AXES) return false;
  if (!kva_type_is_static_from(x, 1) || !kva_type_is_static_from(w, 0) || !kva_type_is_static_from(y, 1)) return false;
  if (!has_types(n)) return false;
  for (uint32_t d = 1; d < y->rank; d++)
    if (!kva_type_extent(y, d) || !kva_type_extent(x, d)) return false;
  int64_t groups = kva_layout_is_depthwise(n) ? 1 : ((const kva_conv_attrs *)n->attrs)->group;
  return kva_type_extent(w, 0) / groups >= MIN_FILTERS && (fits(n) || is_read_in_place(n)) && panel_of_node(l, n) > 0;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

typedef struct packing_key {
  const void *data;
  int64_t panel;
} packing_key;

/* Element (m, c, tap) goes to panel m / panel, where the filters of a tap and channel lie side by side. */
static void pack(const float *from, float *to, int64_t filters, int64_t channels, int64_t taps, int64_t panel) {
  for (int64_t m = 0; m < filters; m++) {
    float *at = to + m / panel * taps * channels * panel + m % panel;
    for (int64_t c = 0; c < channels; c++)
      for (int64_t t = 0; t < taps; t++) at[(t * channels + c) * panel] = *from++;
  }
}

/* The same of words, whose channels follow each other. */
static void pack_words(const uint8_t *from, uint8_t *to, int64_t filters, int64_t channels, int64_t taps,
                       int64_t panel) {
  int64_t words = (channels + WORD - 1) / WORD;
  for (int64_t m = 0; m < filters; m++) {
    uint8_t *at = to + (m / panel * taps * words * panel + m % panel) * WORD;
    for (int64_t c = 0; c < channels; c++)
      for (int64_t t = 0; t < taps; t++) at[(t * words + c / WORD) * panel * WORD + c % WORD] = *from++;
  }
}

kva_tensor_data *kva_layout_room(kva_layout *l, kva_dtype t, uint32_t rank, const int64_t *dims) {
  kva_tensor_data *room = KVA_NEW(l->m->arena, kva_tensor_data);
  *room = (kva_tensor_data){.dtype = t, .rank = rank, .bytes = WORD};
  for (uint32_t d = 0; d < rank; d++) room->bytes *= dims[d];
  room->dims = kva_arena_memdup(l->m->arena, dims, rank * sizeof *dims);
  void *data = kva_arena_alloc(l->m->arena, (size_t)room->bytes);
  if (room->bytes >= LARGE) kva_pages_enlarge(data, (size_t)room->bytes);
  room->data = data;
  return room;
}

/* w as floats or words of these dimensions. */
static const kva_tensor_data *packed(kva_layout *l, const kva_tensor_data *w, uint32_t rank, const int64_t *dims) {
  int64_t panel = dims[rank - 1], taps = 1;
  packing_key key = {w->data, panel};
  kva_tensor_data *to = kva_map_get(l->packed, &key, sizeof key);
  if (to) return to;
  for (uint32_t d = 2; d < w->rank; d++) taps *= w->dims[d];
  to = kva_layout_room(l, w->dtype == KVA_F32 ? KVA_F32 : KVA_U32, rank, dims);
  void *data = (void *)(uintptr_t)to->data;
  memset(data, 0, (size_t)to->bytes);
  if (to->dtype == KVA_F32)
    pack(w->data, data, w->dims[0], w->dims[1], taps, panel);
  else
    pack_words(w->data, data, w->dims[0], w->dims[1], taps, panel);
  kva_map_set(l->packed, &key, sizeof key, to);
  return to;
}

kva_value *kva_layout_filters(kva_layout *l, kva_builder *b, const kva_node *n) {
  kva_value *w = kva_operand(n, 1), *panels;
  uint32_t rank = w->type->rank + 1;
  int64_t panel = panel_of_node(l, n), dims[KVA_MAX_RANK] = {(kva_type_extent(w->type, 0) + panel - 1) / panel};
  for (uint32_t d = 2; d < w->type->rank; d++) dims[d - 1] = kva_type_extent(w->type, d);
  int64_t channels = kva_type_extent(w->type, 1) + kva_layout_missing_channels(n);
  dims[rank - 2] = channels / (is_of_bytes(n) ? WORD : 1), dims[rank - 1] = panel;
  double x;
  const kva_node *expand = kva_layout_uniform(w, &x);
  if (expand) {
    kva_dim shape[KVA_MAX_RANK];
    for (uint32_t d = 0; d < rank; d++) shape[d] = kva_expr_const(l->m->exprs, dims[d]);
    panels = kva_expand(b, kva_operand(expand, 0), rank, shape);
  } else {
    panels = kva_const_tensor(b, packed(l, kva_constant_of(w), rank, dims));
  }
  kva_join_filters_attrs attrs = {.filters = w->type->dims[0]};
  kva_value *filters = kva_build(b, KVA_OP_join_filters, 1, &panels, &attrs);
  kva_unpack_attrs words = {.axis = 1, .extent = kva_expr_const(l->m->exprs, channels), .to = w->type->dtype};
  return is_of_bytes(n) ? kva_build(b, KVA_OP_unpack, 1, &filters, &words) : filters;
}
