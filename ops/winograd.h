/* Convolutions of 3 x 3 filters with stride 1 by Winograd's F(4 x 4, 3 x 3): Lavin and Gray, "Fast Algorithms for
 * Convolutional Neural Networks", arXiv 1509.09308, section 4.3.
 *
 *   y = A' [ (G w G') . (B' d B) ] A
 *
 * gives 4 x 4 results of one channel from 6 x 6 elements d of the image and a filter w by 36 products, which are added
 * up over the input channels, instead of 144. Each of the 36 places of a tile is then a product of matrices, positions
 * by channels by filters. The sums have another order than those of the convolution, and larger factors: the result
 * differs by some 1e-5 of the largest one in float. kv.winograd_tiles is B' d B, kv.winograd_sums A' m A;
 * passes/layout_winograd.c makes them and G w G'. */
#ifndef KVA_OPS_WINOGRAD_H
#define KVA_OPS_WINOGRAD_H

#include "ops/check.h"

enum {
  KVA_WINOGRAD_STEP = 4,    /* results of a tile along an axis */
  KVA_WINOGRAD_EXTENT = 6,  /* elements of the image that they depend on */
  KVA_WINOGRAD_KERNEL = 3,  /* of a filter */
  KVA_WINOGRAD_PLACES = 36, /* products of a tile */
};

/* B', A' and G. */
extern const double kva_winograd_tile[KVA_WINOGRAD_EXTENT][KVA_WINOGRAD_EXTENT];
extern const double kva_winograd_sum[KVA_WINOGRAD_STEP][KVA_WINOGRAD_EXTENT];
extern const double kva_winograd_filter[KVA_WINOGRAD_EXTENT][KVA_WINOGRAD_KERNEL];

/* Tiles along an axis with so many results. */
static inline int64_t kva_winograd_tiles_for(int64_t results) {
  return (results + KVA_WINOGRAD_STEP - 1) / KVA_WINOGRAD_STEP;
}

/* What is transformed by kv.winograd_tiles: rows and columns of its image, and of the convolution's result. */
typedef struct kva_winograd_image {
  int64_t in[2], out[2], before[2];
} kva_winograd_image;
/* Of a checked node. */
kva_winograd_image kva_winograd_image_of(const kva_node *n);

#endif
