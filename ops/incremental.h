/* Running a function over the rows of sequences in chunks: what operators' rules share. passes/incremental.c makes a
 * function that takes the next T rows of every sequence and the state that the rows before them left.
 *
 * An operator whose results have row t of their operands in row t needs no rule, only kva_op_info.source_axis. One
 * whose rows depend on earlier rows has a rule `incremental`: it builds the node for a chunk, with state. A rule keeps
 * bits: each element gets the value that it has in one run over all rows. */
#ifndef KVA_OPS_INCREMENTAL_H
#define KVA_OPS_INCREMENTAL_H

#include "ops/build.h"

/* Results of kva_op_info.source_axis that are no axis. */
enum {
  KVA_SAME_FOR_ALL = -1, /* every index of the result's axis reads the operand in the same way */
  KVA_MIXED = -2,        /* an index reads several, or others than its own */
};
/* The fact of n's row, or what its traits say. */
int kva_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);

/* State of the sequences: an input of the function, zero for a sequence without rows, and what replaces it. */
typedef struct kva_carried {
  kva_value *old, *next;
} kva_carried;

/* A value of the chunk, preceded by earlier rows. */
typedef struct kva_with_past {
  const kva_value *x;
  uint32_t axis;
  int64_t rows;
  kva_value *all;
} kva_with_past;

/* Rows of a page of a cache. */
enum { KVA_PAGE_ROWS = 64 };

/* The pages of each sequence in caches that are read equally far back: an input of the function. */
typedef struct kva_page_table {
  int64_t window; /* rows that lie further back are not read; 0: all are */
  kva_value *table;
  kva_dim pages; /* of a cache */
} kva_page_table;

/* A cache of rows: cache_append's result, and what says where rows are (NULL: a cache without pages). */
typedef struct kva_cache {
  kva_value *all, *pages;
} kva_cache;

typedef struct kva_incremental {
  kva_builder *b;
  kva_arena *scratch;
  kva_dim batch, time; /* sequences; rows of the chunk */
  kva_dim capacity;    /* rows of a sequence that page tables have room for, or caches without pages */
  bool whole;          /* a cache is one tensor [batch, ..], without pages */
  kva_dtype narrow;    /* of caches of float keys and values; KVA_DTYPE_NONE: theirs */
  kva_value *position; /* int64[batch]: the rows of each sequence before the chunk */
  KVA_VEC(kva_page_table) tables;
  KVA_VEC(kva_carried) carried;
  KVA_VEC(kva_with_past) with_past;
  /* Of the node that a rule is called for. */
  kva_value *const *operands; /* its operands for the chunk */
  kva_value **results;        /* to set */
  /* A value of the chunk's rows (first of two axes) for all rows of its sequence (last axis, of extent `capacity`):
   * masks. NULL and a message, when there is none. */
  kva_value *(*over_all_rows)(struct kva_incremental *c, const kva_node *n, uint32_t operand);
} kva_incremental;

/* Adds state of this type, called `what` and a number; its next value comes from kva_carry. */
kva_value *kva_carried_state(kva_incremental *c, const char *what, const kva_type *type);
void kva_carry(kva_incremental *c, const kva_value *state, kva_value *next);
/* The cache of x, whose rows are along `axis`: state of pages, with x appended. Rows that `window` rows follow are not
 * read (0: all are). */
kva_cache kva_cached(kva_incremental *c, const char *what, kva_value *x, uint32_t axis, int64_t window);
/* All rows of each sequence, along `axis`, from a cache of rows along it. */
kva_value *kva_all_rows(kva_incremental *c, kva_cache cache, uint32_t axis);

/* x, preceded by the `rows` rows before it along `axis`, which are state. */
kva_value *kva_behind_past(kva_incremental *c, const char *what, kva_value *x, uint32_t axis, int64_t rows);

/* position as [batch, 1, ...] of this rank, and the positions of the chunk's rows: with them along `axis`. */
kva_value *kva_positions(kva_incremental *c, uint32_t rank);
kva_value *kva_row_positions(kva_incremental *c, uint32_t rank, uint32_t axis);
/* n rows of x along `axis` from row `first`. */
kva_value *kva_slice_rows(kva_builder *b, kva_value *x, uint32_t axis, kva_dim first, kva_dim n);

/* ---- values of positions: an axis of sequences before their own (kva_op_info.lifted) ------------------------------
 */

/* The operand has an axis of sequences more than n's. */
bool kva_is_lifted(const kva_node *n, uint32_t operand, kva_value *const *operands);
/* A lifted value in `rank` dimensions: sequences, ones, its own. NULL: it has more. */
kva_value *kva_align_lifted(kva_incremental *c, kva_value *v, uint32_t rank);
/* n, which broadcasts, for a result of `rank` dimensions. */
kva_value *kva_broadcast_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs,
                                uint32_t rank);
/* `before`, then dims; in the scratch arena. */
kva_dims kva_dims_behind(const kva_incremental *c, kva_dim before, kva_dims dims);

/* The attribute that is the shape of n's result, or NULL. */
const kva_attr_field *kva_shape_field(const kva_node *n);
/* n's attributes with another extent `axis` in that shape, in this arena; n's own, if it has no such axis. */
const void *kva_resized_shape(kva_arena *scratch, const kva_node *n, uint32_t axis, kva_dim extent);

static inline bool kva_is_time(const kva_incremental *c, const kva_value *v, uint32_t axis) {
  return v->type->rank > axis && v->type->dims[axis] == c->time;
}
/* Reports that n cannot run in chunks, and why. */
kva_status kva_refuse_chunks(kva_incremental *c, const kva_node *n, const char *fmt, ...) KVA_PRINTF(3, 4);

#endif
