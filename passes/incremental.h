/* Shared by the files of pass incremental. */
#ifndef KVA_PASSES_INCREMENTAL_H
#define KVA_PASSES_INCREMENTAL_H

#include "ops/incremental.h"
#include "passes/passes_internal.h"

/* What became of a value of the original function. */
typedef enum kva_chunk_form {
  KVA_CHUNK_PLAIN,  /* `value` has its type; the time symbol counts the rows of the chunk */
  KVA_CHUNK_LIFTED, /* `value` has an axis of sequences before its own, since positions differ between them */
  KVA_CHUNK_MATRIX, /* it relates every row to every row: made on demand (incremental_mask.c) */
  KVA_CHUNK_REFUSED,
} kva_chunk_form;
typedef struct kva_chunk_value {
  kva_chunk_form form;
  kva_value *value;
} kva_chunk_value;

/* A value over all rows that was made for a mask. */
typedef struct kva_over_rows {
  const kva_value *v;
  uint32_t axis;
  kva_value *made;
} kva_over_rows;

typedef struct kva_chunks {
  kva_incremental c;       /* first: rules get a pointer to it */
  kva_chunk_value *values; /* by id of the original value */
  KVA_VEC(kva_over_rows) over_rows;
} kva_chunks;

/* Axes of v that count rows. */
uint32_t kva_time_axes(const kva_chunks *p, const kva_value *v);

/* The name of an attribute, other than the result's shape, that depends on the number of rows; NULL: none does. */
const char *kva_counting_attribute(const kva_chunks *p, const kva_node *n);

/* Adds function "prefill" beside decode, whose first outputs are the model's own. */
kva_function *kva_add_prefill(kva_chunks *p, const kva_function *decode, uint32_t own_outputs);

/* Builds n, whose operands may be lifted, with these operands and attributes; NULL and a message: there is no rule.
 * The result is lifted if its rank is that of n's result + 1. */
kva_value *kva_build_lifted(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs);

/* Parts axes of a graph that count rows and another axis in one, where that is what nodes do anyway
 * (incremental_split.c). */
void kva_part_merged_rows(kva_module *m, kva_graph *g, kva_dim time);

/* kva_incremental.over_all_rows. */
kva_value *kva_mask_over_all_rows(kva_incremental *c, const kva_node *n, uint32_t operand);

#endif
