/* Shared by the kernels of contractions on CPUs. */
#ifndef KVA_KERNELS_CPU_CONTRACT_CONTRACT_H
#define KVA_KERNELS_CPU_CONTRACT_CONTRACT_H

#include "codegen/kernels/any/contract/contraction.h"
#include "ops/matmul.h"

static inline int64_t kva_round_up(int64_t x, int64_t to) {
  return kva_ceil_div(x, to) * to;
}

/* Rows of a tile of 1 to 4 vectors, at most: accumulators, a row of the panel and a factor fit the registers. Sums of
 * int32 are of words of bytes. */
int64_t kva_contract_most_rows(const kva_target *t, kva_dtype sums, int64_t vectors);
/* Cycles that a step of a tile takes: its products, its loads, the way of its part of the panel from L2, or the time
 * from a sum to the next one in its register. */
double kva_contract_step_cycles(const kva_target *t, kva_dtype sums, int64_t rows, int64_t vectors);
/* Cycles of a step in which so many rows are read where they lie, at a distance: if more of them share a set of the
 * first cache than it has ways, as with distances of whole pages, each step reads their lines from L2 again. Else 0. */
double kva_contract_rows_cycles(int64_t rows, int64_t bytes_apart);

/* Bytes from a tile, whose rows of the result take tile_bytes, to where the next one stores (kva_kb.prefetch_bytes): a
 * CPU fetches the lines there, and those of a residual, while it computes the sums, because rows of a tile are too
 * short for it to see the next ones coming. 0: sums of so many steps are too short to hide that, or the result stays in
 * the second cache. */
int64_t kva_contract_ahead(const kva_target *t, int64_t steps, int64_t result_bytes, int64_t tile_bytes);

/* Why c has no tile kernel: see kva_kernel_row. */
const char *kva_contract_refuses(const kva_contraction *c);

/* c.factor_block where kernels here sum up blocks without b's factor; 0: they take b with it. */
int64_t kva_contract_block(const kva_contraction *c);

/* Loops for few rows (skinny.c) inside of another kernel, which takes them where c's rows, whose number is not known,
 * turn out to be at most KVA_FEW_ROWS. They add in the order of tiles, so which are taken does not change results. */
bool kva_skinny_suits_unknown_rows(const kva_contraction *c);
/* Their number of work items. */
const kva_expr *kva_skinny_items(const kva_contraction *c);
/* Their code for one of them. */
void kva_skinny_emit_item(const kva_contraction *c, const kva_expr *item);

#endif
