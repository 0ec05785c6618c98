/* Charts as inline SVG. Colours are classes (c0 .. c5) that the page's style sheet defines for light and dark. */
#ifndef KVA_RUNTIME_REPORT_SVG_H
#define KVA_RUNTIME_REPORT_SVG_H

#include "runtime/base/base.h"

enum { KVA_SVG_COLORS = 6 };

/* A curve. NaN values break it. `strong`: evaluation, drawn with dots; else training: thin, averaged over bins where
 * there are many points, with a band from the least to the largest of each bin. */
typedef struct kva_svg_line {
  const char *run;   /* for tooltips */
  const char *label; /* beside its end, or NULL */
  int color;
  bool strong;
  int64_t n;
  const double *x, *y;
} kva_svg_line;

typedef struct kva_svg_chart {
  const char *title, *x_title;
  bool unit_range; /* y from 0 to 1 */
  int n_lines;
  const kva_svg_line *lines;
} kva_svg_chart;
void kva_svg_add_chart(kva_text *text, const kva_svg_chart *chart);

typedef struct kva_svg_point {
  const char *tooltip;
  const char *label; /* beside it where there is room, or NULL */
  int color;
  double x, y;
} kva_svg_point;
void kva_svg_add_scatter(kva_text *text, const char *title, const char *x_title, const char *y_title, int n,
                         const kva_svg_point *points);

/* Layers that add up, over the numbers 0 to n - 1; columns where there are many, with the largest sum of each. */
typedef struct kva_svg_layer {
  int color;
  const double *y; /* n values, not negative */
} kva_svg_layer;
typedef struct kva_svg_areas {
  const char *title, *x_title, *y_title;
  int n_layers, n;
  const kva_svg_layer *layers;
  const char *const *tooltips; /* n of them */
  double limit;                /* a dashed line, named: */
  const char *limit_label;
} kva_svg_areas;
void kva_svg_add_areas(kva_text *text, const kva_svg_areas *areas);

/* s with &, <, > and quotes escaped. */
void kva_html_add(kva_text *text, const char *s);

#endif
