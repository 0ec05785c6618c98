/* A tensor seen along one axis as runs of rows of other tensors: what pad, slice, concat, masks and widening casts do
 * to rows, without the order in which they do it. */
#ifndef KVA_PASSES_RAISE_ROWS_H
#define KVA_PASSES_RAISE_ROWS_H

#include "passes/passes_internal.h"

typedef enum kva_run_kind {
  KVA_RUN_ROWS,   /* rows [start, start + len) of `of` */
  KVA_RUN_REPEAT, /* row `start` of `of`, len times */
  KVA_RUN_ZERO,
} kva_run_kind;

typedef struct kva_run {
  kva_run_kind kind;
  kva_value *of; /* may be of a narrower float type than the tensor */
  kva_dim start, len;
} kva_run;

enum { KVA_MAX_RUNS = 12 };

/* Row t of the tensor is row t of the runs put end to end. The length of the last run may be formally negative (T - 2
 * for T = 1): then the rows end before it. */
typedef struct kva_rows_view {
  uint32_t n;
  kva_run runs[KVA_MAX_RUNS];
} kva_rows_view;

/* Never fails: what is not understood is a run of its own. */
kva_rows_view kva_rows_view_of(kva_expr_ctx *c, kva_value *v, uint32_t axis);
/* Rows [start, start + len) of view, as *out; false: not decidable for every binding of the symbols. */
bool kva_rows_crop(kva_expr_ctx *c, const kva_rows_view *view, kva_dim start, kva_dim len, kva_rows_view *out);
/* Adds a run at the end, merged with the last where they continue each other. False: too many. */
bool kva_rows_push(kva_expr_ctx *c, kva_rows_view *view, kva_run run);
/* The axis along which v's defining node moves rows; -1: it does not, or along several. */
int kva_rows_axis(const kva_value *v);
/* v without reshapes and expansions is a constant 0. */
bool kva_is_zero(const kva_value *v);

#endif
