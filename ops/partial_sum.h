/* Geometry of a partial sum: N rows, `rows` of them to each of `parts` results. */
#ifndef KVA_OPS_PARTIAL_SUM_H
#define KVA_OPS_PARTIAL_SUM_H

#include "ops/build.h"

/* On a GPU subgroups of a block share the rows of a result, each with sums of its own until the end. */
enum { KVA_PARTIAL_BLOCK = 512 };
/* Threads of a subgroup: a power of two, 32 up to KVA_PARTIAL_BLOCK, so that 8 columns or fewer are a thread's if that
 * is enough. */
int64_t kva_partial_subgroup(int64_t columns);

typedef struct kva_partial {
  uint32_t axes; /* leading ones of the operand, which number the rows */
  kva_dim n, rows, parts;
} kva_partial;
kva_partial kva_partial_of(kva_module *m, const kva_node *n);
/* How many rows the result `part` has. */
const kva_expr *kva_partial_count(kva_expr_ctx *c, const kva_partial *p, const kva_expr *part);
/* Indices of its row r: out_idx[0 .. axes). */
void kva_partial_row(kva_expr_ctx *c, const kva_partial *p, const kva_type *x, const kva_expr *part, const kva_expr *r,
                     const kva_expr **out_idx);

#endif
