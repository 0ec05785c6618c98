/* What a run leaves behind: metrics as JSON lines, and one self-contained HTML page. */
#ifndef KVA_RUNTIME_REPORT_H
#define KVA_RUNTIME_REPORT_H

#include "runtime/runtime.h"

/* ---- history: the curves of a run in memory ---------------------------------------------------------------------- */

/* Values of one metric over steps. Training steps also have the series "lr" and "seconds". */
typedef struct kva_series {
  const char *name;
  bool evaluation;
  int64_t n;
  const double *steps, *values;
  const double *low, *high; /* of a mean: the least and the greatest of its values; else NULL */
} kva_series;

/* Learned scalars of a KV shift, one per layer and KV head. */
typedef struct kva_report_shift {
  const char *layer;
  int head;
  double k_current, k_previous, v_current, v_previous;
} kva_report_shift;

typedef struct kva_history kva_history;
kva_history *kva_history_create(void); /* NULL: no memory */
void kva_history_destroy(kva_history *h);
KVA_MUST_USE kva_status kva_history_add(kva_history *h, const kva_train_event *event);
/* The state at the end of a run; a later value of a layer and head replaces an earlier one. */
KVA_MUST_USE kva_status kva_history_add_shift(kva_history *h, const kva_report_shift *shift);
/* *out_shifts is borrowed until the history changes. Returns their number. */
int kva_history_shifts(const kva_history *h, const kva_report_shift **out_shifts);
/* The mean of n > 0 histories, at the steps of which each has a value; shift scalars of all. NULL: no memory. */
kva_history *kva_history_mean(int n, const kva_history *const *histories);
int kva_history_count(const kva_history *h);
kva_series kva_history_at(const kva_history *h, int i);
/* n = 0: no such series. */
kva_series kva_history_find(const kva_history *h, const char *name, bool evaluation);

/* ---- metrics: one JSON object a line -------------------------------------------------------------------------------
 * or, in files whose names end in .csv, one value a line: step, event, name in quotes, value (empty: not finite).
 * {"step": 3, "event": "step" or "eval", "loss": 5.4, "lr": 0.002, "seconds": 1.5, "metrics": {"accuracy": 0.1}}
 * Values that are not finite are null. A run ends with a line for each pair of shift scalars, or with the step whose
 * loss was not finite (which is infinite in the history):
 * {"step": 9, "event": "shift", "layer": "attention.0", "head": 0, "metrics": {"k_current": 0.1, "k_previous": 0.9,
 * ...}}
 * {"step": 9, "event": "not_finite"} */

typedef struct kva_metrics kva_metrics;
/* path NULL: JSON lines to the stream stdout, in order with what else is printed there. */
KVA_MUST_USE kva_status kva_metrics_create(const char *path, bool append, kva_diag *diag, kva_metrics **out_metrics);
/* Every line reaches the file before the call returns. KVA_INTERRUPTED, without a message: the file is a pipe whose
 * reader went away. */
KVA_MUST_USE kva_status kva_metrics_add(kva_metrics *m, const kva_train_event *event, kva_diag *diag);
KVA_MUST_USE kva_status kva_metrics_add_shift(kva_metrics *m, int64_t step, const kva_report_shift *shift,
                                              kva_diag *diag);
KVA_MUST_USE kva_status kva_metrics_add_not_finite(kva_metrics *m, int64_t step, kva_diag *diag);
/* Removes the lines after `step`, and shifts, from such a file, for a run that continues from there; that of the step's
 * evaluation, too, if the run evaluates first. A missing file is not an error. */
KVA_MUST_USE kva_status kva_metrics_cut(const char *path, int64_t step, bool evaluates, kva_diag *diag);
void kva_metrics_destroy(kva_metrics *m);
/* Reads such a file. A truncated last line is dropped with a warning. */
KVA_MUST_USE kva_status kva_metrics_read(const char *path, kva_diag *diag, kva_history **out_history);

/* ---- report ------------------------------------------------------------------------------------------------------ */

typedef struct kva_report_item {
  const char *name, *value;
} kva_report_item;

typedef struct kva_report_time {
  const char *name;
  double seconds;
  int64_t calls;
  double flops, bytes; /* sums over all calls: floating-point operations (0: unknown), bytes of the arguments */
} kva_report_time;

/* Temporaries live in one step of the training program. */
typedef struct kva_report_moment {
  const char *name; /* of the step */
  int64_t bytes;
} kva_report_moment;

typedef struct kva_report_run {
  const char *name;
  const kva_history *history;
  int n_shifts;
  const kva_report_shift *shifts;
  double items;     /* items per step, for throughput; 0: unknown */
  const char *unit; /* of items: "tokens" */
} kva_report_run;

/* A statement of a paper beside what was measured. */
typedef struct kva_report_claim {
  const char *text, *paper, *ours;
  bool holds;
} kva_report_claim;

typedef struct kva_report {
  const char *title;
  int n_runs;
  const kva_report_run *runs;
  int n_config; /* name and value as text */
  const kva_report_item *config;
  int n_times; /* indexed by step of the program */
  const kva_report_time *times;
  const kva_memory_report *memory; /* or NULL */
  int n_moments;                   /* only with memory: the steps of the program in order */
  const kva_report_moment *moments;
  const char *source, *about; /* where it stands in a paper, and a paragraph; or NULL */
  int n_claims;
  const kva_report_claim *claims;
  const char *const *metrics; /* the curves to draw, NULL at the end; or NULL: all */
  int n_figures;              /* further ones, as HTML */
  const char *const *figures;
  bool without_shifts; /* leave out the learned scalars */
} kva_report;

/* Prints the page to *out (free it with kva_text_free) or writes it to a file atomically. Inline SVG, light and dark,
 * no scripts, no external resources. */
void kva_report_print(const kva_report *r, kva_text *out);
KVA_MUST_USE kva_status kva_report_write(const char *path, const kva_report *r, kva_diag *diag);
/* Several reports on one page, each with its own heading. */
KVA_MUST_USE kva_status kva_report_write_all(const char *path, const char *title, int n, const kva_report *reports,
                                             kva_diag *diag);
/* The chart of a metric of the report's runs, as the page has it; `text` stays empty if no run has the metric. */
void kva_report_add_curves(kva_text *text, const kva_report *r, const char *metric);
/* A figure of a page as an SVG file that stands alone, with the page's style. */
KVA_MUST_USE kva_status kva_report_write_svg(const char *path, const char *figure, kva_diag *diag);

#endif
