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
} kva_series;

typedef struct kva_history kva_history;
kva_history *kva_history_create(void); /* NULL: no memory */
void kva_history_destroy(kva_history *h);
KVA_MUST_USE kva_status kva_history_add(kva_history *h, const kva_train_event *event);
int kva_history_count(const kva_history *h);
kva_series kva_history_at(const kva_history *h, int i);
/* n = 0: no such series. */
kva_series kva_history_find(const kva_history *h, const char *name, bool evaluation);

/* ---- metrics: one JSON object a line -------------------------------------------------------------------------------
 * {"step": 3, "event": "step" or "eval", "loss": 5.4, "lr": 0.002, "seconds": 1.5, "metrics": {"accuracy": 0.1}}
 * Values that are not finite are null. */

typedef struct kva_metrics kva_metrics;
KVA_MUST_USE kva_status kva_metrics_create(const char *path, bool append, kva_diag *diag, kva_metrics **out_metrics);
/* Every line reaches the file before the call returns. KVA_INTERRUPTED, without a message: the file is a pipe whose
 * reader went away. */
KVA_MUST_USE kva_status kva_metrics_add(kva_metrics *m, const kva_train_event *event, kva_diag *diag);
/* Removes the lines after `step` from such a file, for a run that continues from there. A missing file is not an
 * error. */
KVA_MUST_USE kva_status kva_metrics_cut(const char *path, int64_t step, kva_diag *diag);
void kva_metrics_destroy(kva_metrics *m);
/* Reads such a file. A truncated last line is dropped with a warning. */
KVA_MUST_USE kva_status kva_metrics_read(const char *path, kva_diag *diag, kva_history **out_history);

/* ---- report ------------------------------------------------------------------------------------------------------ */

typedef struct kva_report_item {
  const char *name, *value;
} kva_report_item;

/* Learned scalars of a KV shift, one per layer and KV head. */
typedef struct kva_report_shift {
  const char *layer;
  int head;
  double k_current, k_previous, v_current, v_previous;
} kva_report_shift;

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
} kva_report;

/* Prints the page to *out (free it with kva_text_free) or writes it to a file atomically. Inline SVG, light and dark,
 * no scripts, no external resources. */
void kva_report_print(const kva_report *r, kva_text *out);
KVA_MUST_USE kva_status kva_report_write(const char *path, const kva_report *r, kva_diag *diag);

#endif
