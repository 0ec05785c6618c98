/* Shared by the layout*.c files. */
#ifndef KVA_PASSES_LAYOUT_H
#define KVA_PASSES_LAYOUT_H

#include "passes/passes_internal.h"

/* A region: convolutions and what stands between them and can follow their layout. Found by union. */
typedef struct kva_layout_region {
  struct kva_layout_region *in; /* the region that it is a part of; NULL: itself */
  double gain, cost;            /* in elements that are moved */
} kva_layout_region;

typedef struct kva_layout {
  kva_module *m;
  const kva_target *target; /* NULL: any CPU */
  kva_arena *scratch;
  kva_map *regions;     /* value -> kva_layout_region * */
  kva_map *last;        /* value -> the same with channels last */
  kva_map *leads;       /* nodes that are convolutions for this pass, or lead to one */
  kva_map *packed;      /* data of filters -> kva_tensor_data * */
  kva_map *transformed; /* data of filters, or what uniform ones are -> their transforms, kva_tensor_data * */
  kva_map *matrices;    /* data of matrices and their orientation -> panels, kva_tensor_data * */
  kva_map *readers;     /* data of constants -> number of constants that have them */
} kva_layout;

/* layout_filters.c: what makes w of one number, which all of its elements are; NULL: it is no such value. */
const kva_node *kva_layout_uniform(const kva_value *w, double *out_x);
/* Each filter of the convolution n has a channel of its own. */
bool kva_layout_is_depthwise(const kva_node *n);
/* The filters of n in panels, if a convolution with channels last takes them. */
bool kva_layout_suits(const kva_layout *l, const kva_node *n);
/* n suits only because its kernel reads the image where it lies, which then has channels last. */
bool kva_layout_needs_place(const kva_node *n);
/* Filters that panels have beyond n's, for each of n's. */
double kva_layout_padding(const kva_layout *l, const kva_node *n);
/* Channels that its image and kva_layout_filters have beyond n's, for words of bytes. */
int64_t kva_layout_missing_channels(const kva_node *n);
kva_value *kva_layout_filters(kva_layout *l, kva_builder *b, const kva_node *n);
/* Floats of a vector. */
int64_t kva_layout_lanes(const kva_layout *l);
/* Columns of a panel of `filters` filters in each of `groups`; 0: panels would cross groups. */
int64_t kva_layout_panel(const kva_layout *l, int64_t filters, int64_t groups);
/* Room for elements of KVA_F32 or KVA_U32, with any values. */
kva_tensor_data *kva_layout_room(kva_layout *l, kva_dtype t, uint32_t rank, const int64_t *dims);

/* layout_winograd.c: the products that transforms of tiles save n, beside what they cost, as products; not positive:
 * they do not suit it, or a user does not allow them. */
double kva_layout_winograd_gain(const kva_layout *l, const kva_node *n);
/* The result of n with channels last, by transforms; image: operand 0 with channels last. */
kva_value *kva_layout_winograd(kva_layout *l, kva_builder *b, const kva_node *n, kva_value *image);

/* layout_shuffle.c: what n's channels are a shuffle of, if n ends one; NULL: it ends none. */
kva_value *kva_layout_shuffled(const kva_node *n);
/* The result of n, which ends one, with channels last; x: what it shuffles, with channels last. */
kva_value *kva_layout_shuffle(kva_builder *b, const kva_node *n, kva_value *x);

/* What n spreads the channels of over places, as DepthToSpace does, and its result with channels last. */
kva_value *kva_layout_spread(const kva_node *n);
kva_value *kva_layout_spread_last(kva_builder *b, const kva_node *n, kva_value *x);

/* layout_resize.c: what n resizes along its last axis by a product with a matrix, if it is or ends such a product;
 * NULL: it does not. */
kva_value *kva_layout_resized(const kva_node *n);
/* The same of a list [N, C, positions], which is an image. */
kva_value *kva_layout_resized_list(const kva_node *n);
/* The product is a part of such nodes. */
bool kva_layout_resizes(const kva_node *product);
/* The result of n, which ends them, with channels last; last: what it resizes, with channels last. */
kva_value *kva_layout_resize(kva_builder *b, const kva_node *n, kva_value *last);
kva_value *kva_layout_resize_list(kva_builder *b, const kva_node *n, kva_value *list); /* [N, positions, C] */

/* layout_norm.c: what n normalises over positions of channels or of their groups, if it is or ends such a norm; NULL:
 * it does not. */
kva_value *kva_layout_normalized(const kva_node *n);
/* The result of n, which ends it, with channels last; last: what it normalises, with channels last. */
kva_value *kva_layout_norm(kva_builder *b, const kva_node *n, kva_value *last);

/* layout_apart.c: transposed convolutions in g whose windows lie side by side become convolutions of one tap. */
bool kva_layout_apart(kva_layout *l, kva_graph *g);
/* Whether n is one of them. */
bool kva_layout_is_apart(const kva_node *n);

/* layout_products.c: products with constants in g become convolutions. Constants of all graphs are counted before. */
void kva_layout_count_readers(kva_layout *l, const kva_graph *g);
bool kva_layout_products(kva_layout *l, kva_graph *g);

#endif
