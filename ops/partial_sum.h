/* Geometry of a partial sum: N rows, `rows` of them per result, `parts` results. */
#ifndef KVA_OPS_PARTIAL_SUM_H
#define KVA_OPS_PARTIAL_SUM_H

#include "ops/build.h"

/* On a GPU the subgroups of a block share the rows of a result; each keeps its own sums until the end. */
enum { KVA_PARTIAL_BLOCK = 512 };
/* Threads of a subgroup: a power of two from 32 to KVA_PARTIAL_BLOCK, such that a thread has at most 8 columns if
 * possible. */
int64_t kva_partial_subgroup(int64_t columns);

typedef struct kva_partial {
  uint32_t axes; /* number of leading axes, which index the rows */
  kva_dim n, rows, parts;
} kva_partial;
kva_partial kva_partial_of(kva_module *m, const kva_node *n);
/* Number of rows of result `part`. */
const kva_expr *kva_partial_count(kva_expr_ctx *c, const kva_partial *p, const kva_expr *part);
/* Indices of row r of that part: out_idx[0 .. axes). */
void kva_partial_row(kva_expr_ctx *c, const kva_partial *p, const kva_type *x, const kva_expr *part, const kva_expr *r,
                     const kva_expr **out_idx);

#endif
