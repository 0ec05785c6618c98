/* Shared by the kernels of gather_grad. */
#ifndef KVA_KERNELS_ANY_SCATTER_GATHER_GRAD_H
#define KVA_KERNELS_ANY_SCATTER_GATHER_GRAD_H

#include "codegen/kernels/any/scatter/scatter.h"
#include "ops/gather_grad.h"

/* Offset in the result of element c of row `row` of the axis (`extent` rows of `inner` elements), behind outer position
 * `outer`. */
const kva_expr *kva_gather_grad_offset(kva_expr_ctx *e, const kva_expr *outer, const kva_expr *row, kva_dim extent,
                                       const kva_expr *c, const kva_expr *inner);

#endif
