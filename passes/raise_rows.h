/* A tensor along one axis as runs of rows of other tensors. This normalises what pad, slice, concat, masks and widening
 * casts do to rows, in any order. */
#ifndef KVA_PASSES_RAISE_ROWS_H
#define KVA_PASSES_RAISE_ROWS_H

#include "passes/passes_internal.h"

typedef enum kva_run_kind {
  KVA_RUN_ROWS,   /* rows [start, start + len) of `of` */
  KVA_RUN_REPEAT, /* row `start` of `of`, repeated len times */
  KVA_RUN_ZERO,
} kva_run_kind;

typedef struct kva_run {
  kva_run_kind kind;
  kva_value *of; /* its float type may be narrower than the tensor's */
  kva_dim start, len;
} kva_run;

enum { KVA_MAX_RUNS = 12 };

/* The rows of the tensor are the concatenated runs. The last run's length may be formally negative (T - 2 for T = 1);
 * the tensor then ends before it. */
typedef struct kva_rows_view {
  uint32_t n;
  kva_run runs[KVA_MAX_RUNS];
} kva_rows_view;

/* Never fails and never without a run: an unsupported node, or one of no rows, is a run of itself. */
kva_rows_view kva_rows_view_of(kva_expr_ctx *c, kva_value *v, uint32_t axis);
/* Rows [start, start + len) of view in *out; false: not decidable for all bindings of the symbols. */
bool kva_rows_crop(kva_expr_ctx *c, const kva_rows_view *view, kva_dim start, kva_dim len, kva_rows_view *out);
/* Appends a run, merged with the last one if it continues that. False: too many runs. */
bool kva_rows_push(kva_expr_ctx *c, kva_rows_view *view, kva_run run);
/* The axis along which v's defining node moves rows; -1: none, or several. */
int kva_rows_axis(const kva_value *v);

#endif
