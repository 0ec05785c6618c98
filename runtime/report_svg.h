/* Charts as inline SVG. Colours are classes (c0 .. c5) that the page's style sheet defines for light and dark. */
#ifndef KVA_RUNTIME_REPORT_SVG_H
#define KVA_RUNTIME_REPORT_SVG_H

#include "runtime/base/base.h"

enum { KVA_SVG_COLORS = 6 };

/* A curve. NaN values interrupt it. `strong`: evaluation, drawn with dots. Otherwise training: a thin line; many points
 * are averaged over bins, with a band from the minimum to the maximum of each bin. */
typedef struct kva_svg_line {
  const char *run;   /* for tooltips */
  const char *label; /* printed beside its end; or NULL */
  int color;
  bool strong;
  int64_t n;
  const double *x, *y;
  const double *low, *high; /* a band; or NULL */
  const char *x_name;       /* what x is, for tooltips; NULL: steps of training or evaluation */
} kva_svg_line;

typedef struct kva_svg_chart {
  const char *title, *x_title;
  bool unit_range; /* y from 0 to 1 */
  bool log_x;      /* with a tick at every x; all are above 0 */
  int n_lines;
  const kva_svg_line *lines;
} kva_svg_chart;
void kva_svg_add_chart(kva_text *text, const kva_svg_chart *chart);

typedef struct kva_svg_point {
  const char *tooltip;
  const char *label; /* printed beside it if there is room; or NULL */
  int color;
  double x, y;
} kva_svg_point;
typedef struct kva_svg_scatter {
  const char *title, *x_title, *y_title;
  int n;
  const kva_svg_point *points;
  bool shares; /* both axes show zero and one, with a dashed line where x + y is one */
  int n_bound; /* else a dashed line through these places; their labels are not drawn */
  const kva_svg_point *bound;
} kva_svg_scatter;
void kva_svg_add_scatter(kva_text *text, const kva_svg_scatter *s);

/* Stacked layers over the indices 0 to n - 1. Many indices are drawn as columns, each with its largest sum. */
typedef struct kva_svg_layer {
  int color;
  const double *y; /* n non-negative values */
} kva_svg_layer;
typedef struct kva_svg_areas {
  const char *title, *x_title, *y_title;
  int n_layers, n;
  const kva_svg_layer *layers;
  const char *const *tooltips; /* n of them */
  double limit;                /* a dashed line with this name: */
  const char *limit_label;
} kva_svg_areas;
void kva_svg_add_areas(kva_text *text, const kva_svg_areas *areas);

/* A function on the unit square as contours, darker for greater values, with arrows that point downhill. */
typedef struct kva_svg_field {
  const char *title, *x_title, *y_title;
  int n;            /* values of a side, from 0 to 1; at least 2 */
  const double *at; /* at[i * n + j]: where y = i / (n - 1) and x = j / (n - 1) */
} kva_svg_field;
void kva_svg_add_field(kva_text *text, const kva_svg_field *field);

/* s with &, <, > and quotes escaped. NULL, a text that found no memory, leaves `text` cut. */
void kva_html_add(kva_text *text, const char *s);

#endif
