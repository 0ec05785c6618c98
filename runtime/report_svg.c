/* Line charts, stacked areas and scatter plots. All map data to a frame with `axis`, draw grid and ticks, then marks.
 * Tooltips are <title> elements, so the page needs no script. */
#include "runtime/report_svg.h"

#include <math.h>
#include <stdlib.h>

enum { WIDTH = 560, HEIGHT = 300, LEFT = 54, TOP = 14, BOTTOM = 42, MAX_BINS = 160, LABEL_HEIGHT = 14 };
enum { SCATTER_HEIGHT = 380, SCATTER_RIGHT = 20, LABEL_CHARS = 20 /* longer labels are cut */, LABEL_CHAR_WIDTH = 7 };

/* A linear map from [low, high] to pixels [from, to]; logarithmic: of logarithms. */
typedef struct axis {
  double low, high, step;
  double from, to;
  bool logarithmic;
} axis;

typedef struct frame {
  axis x, y;
} frame;

void kva_html_add(kva_text *text, const char *s) {
  text->cut = text->cut || !s;
  if (!s) return;
  for (; *s; s++) {
    const char *escaped = *s == '&'    ? "&amp;"
                          : *s == '<'  ? "&lt;"
                          : *s == '>'  ? "&gt;"
                          : *s == '"'  ? "&quot;"
                          : *s == '\'' ? "&#39;"
                                       : NULL;
    if (escaped)
      kva_text_add(text, "%s", escaped);
    else if ((unsigned char)*s >= ' ' || *s == '\n')
      kva_text_add_bytes(text, s, 1);
  }
}

/* Finite, and small enough that differences do not overflow. */
static bool is_drawable(double v) {
  return fabs(v) < 1e100;
}

/* ---- axes -------------------------------------------------------------------------------------------------------- */

static double pixel(const axis *a, double v) {
  if (a->logarithmic) v = log(v);
  return a->from + (v - a->low) / (a->high - a->low) * (a->to - a->from);
}

/* 1, 2 or 5 times a power of ten, such that [low, high] has about `count` steps. */
static double nice_step(double low, double high, int count) {
  double raw = (high - low) / count, power = pow(10, floor(log10(raw))), m = raw / power;
  return power * (m <= 1.5 ? 1 : m <= 3.5 ? 2 : m <= 7.5 ? 5 : 10);
}

static axis make_axis(double low, double high, int count, bool widen, double from, double to) {
  if (!(low <= high)) low = 0, high = 1; /* no data */
  double least = fmax(fabs(low), fabs(high)) * 1e-9 + 1e-30;
  if (high - low < least) {
    low -= 0.5 * fmax(least, fabs(low));
    high += 0.5 * fmax(least, fabs(high));
  }
  if (high - low < 1e-30) high = low + 1;
  axis a = {.low = low, .high = high, .step = nice_step(low, high, count), .from = from, .to = to};
  if (!widen) return a;
  a.low = floor(low / a.step + 1e-9) * a.step;
  a.high = ceil(high / a.step - 1e-9) * a.step;
  return a;
}

static double first_tick(const axis *a) {
  return ceil(a->low / a->step - 1e-9) * a->step;
}

static double clean_zero(double v, double step) {
  return fabs(v) < step * 1e-6 ? 0 : v;
}

static void add_tick_label(kva_text *text, double v) {
  if (fabs(v) >= 10000)
    kva_text_add(text, "%.4gk", v / 1000);
  else
    kva_text_add(text, "%.6g", v);
}

static void add_x_tick(kva_text *text, const frame *f, double v) {
  double x = pixel(&f->x, v);
  kva_text_add(text, "<line class=\"tickmark\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", x, f->y.from, x,
               f->y.from + 4);
  kva_text_add(text, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", x, f->y.from + 17);
  add_tick_label(text, v);
  kva_text_add(text, "</text>\n");
}

static void add_grid(kva_text *text, const frame *f) {
  for (double v = first_tick(&f->y); v <= f->y.high + f->y.step * 1e-6; v += f->y.step) {
    double y = pixel(&f->y, v), shown = clean_zero(v, f->y.step);
    kva_text_add(text, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", f->x.from, y, f->x.to,
                 y);
    kva_text_add(text, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">", f->x.from - 7, y + 4);
    add_tick_label(text, shown);
    kva_text_add(text, "</text>\n");
  }
  for (double v = first_tick(&f->x); !f->x.logarithmic && v <= f->x.high + f->x.step * 1e-6; v += f->x.step)
    add_x_tick(text, f, clean_zero(v, f->x.step));
  kva_text_add(text, "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", f->x.from, f->y.from,
               f->x.to, f->y.from);
}

static void add_axis_title(kva_text *text, double x, double y, const char *anchor, const char *title) {
  kva_text_add(text, "<text class=\"axis-title\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
  kva_html_add(text, title);
  kva_text_add(text, "</text>\n");
}

static void open_svg(kva_text *text, const char *title, int width, int height) {
  kva_text_add(text, "<figure><figcaption>");
  kva_html_add(text, title);
  kva_text_add(text, "</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", width, height);
  kva_html_add(text, title);
  kva_text_add(text, "\">\n");
}

static void close_svg(kva_text *text) {
  kva_text_add(text, "</svg></figure>\n");
}

/* ---- curves ------------------------------------------------------------------------------------------------------ */

/* Adjacent points of a curve, averaged. */
typedef struct bin {
  double x, mean, low, high; /* low and high: of the line's band, or of the points */
  int64_t n;
} bin;

/* At most MAX_BINS bins with equal numbers of points; values that cannot be drawn are skipped. */
static int make_bins(const kva_svg_line *line, bin bins[MAX_BINS]) {
  int n_bins = (int)(line->n < MAX_BINS ? line->n : MAX_BINS), used = 0;
  for (int b = 0; b < n_bins; b++) {
    bin *out = &bins[used];
    *out = (bin){.low = INFINITY, .high = -INFINITY};
    for (int64_t i = line->n * b / n_bins; i < line->n * (b + 1) / n_bins; i++) {
      if (!is_drawable(line->y[i])) continue;
      out->n++;
      out->x += (line->x[i] - out->x) / (double)out->n;
      out->mean += (line->y[i] - out->mean) / (double)out->n;
      out->low = fmin(out->low, line->low ? line->low[i] : line->y[i]);
      out->high = fmax(out->high, line->high ? line->high[i] : line->y[i]);
    }
    used += out->n > 0;
  }
  return used;
}

static void add_band(kva_text *text, const frame *f, const kva_svg_line *line, int n, const bin *bins) {
  kva_text_add(text, "<path class=\"band c%d\" d=\"", line->color % KVA_SVG_COLORS);
  for (int i = 0; i < n; i++)
    kva_text_add(text, "%c%.1f %.1f", i ? 'L' : 'M', pixel(&f->x, bins[i].x), pixel(&f->y, bins[i].high));
  for (int i = n - 1; i >= 0; i--) kva_text_add(text, "L%.1f %.1f", pixel(&f->x, bins[i].x), pixel(&f->y, bins[i].low));
  kva_text_add(text, "Z\"/>\n");
}

static void add_dots(kva_text *text, const frame *f, const kva_svg_line *line, int n, const bin *bins) {
  const char *what = line->strong ? "evaluation" : "training";
  for (int i = 0; i < n; i++) {
    kva_text_add(text, "<circle class=\"%s c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"><title>",
                 line->strong && n <= 60 ? "dot" : "hover", line->color % KVA_SVG_COLORS, pixel(&f->x, bins[i].x),
                 pixel(&f->y, bins[i].mean), line->strong ? "2.8" : "4");
    kva_html_add(text, line->run);
    if (line->x_name)
      kva_text_add(text, ", %s %.6g: %.5g", line->x_name, bins[i].x, bins[i].mean);
    else
      kva_text_add(text, ", %s, step %.0f: %.5g", what, bins[i].x, bins[i].mean);
    if (line->low) kva_text_add(text, " (%.5g to %.5g)", bins[i].low, bins[i].high);
    kva_text_add(text, "</title></circle>");
  }
  kva_text_add(text, "\n");
}

static void add_curve(kva_text *text, const frame *f, const kva_svg_line *line) {
  bin bins[MAX_BINS];
  int n = make_bins(line, bins);
  if (!n) return;
  if (line->low || (!line->strong && line->n > MAX_BINS)) add_band(text, f, line, n, bins);
  int dash = line->color / KVA_SVG_COLORS;
  kva_text_add(text, "<path class=\"%s c%d%s\" d=\"", line->strong ? "line strong" : "line",
               line->color % KVA_SVG_COLORS, dash ? " dashed" : "");
  for (int i = 0; i < n; i++)
    kva_text_add(text, "%c%.1f %.1f", i ? 'L' : 'M', pixel(&f->x, bins[i].x), pixel(&f->y, bins[i].mean));
  kva_text_add(text, "\"/>\n");
  add_dots(text, f, line, n, bins);
}

/* ---- direct labels ----------------------------------------------------------------------------------------------- */

typedef struct end_label {
  const kva_svg_line *line;
  double value, y;
} end_label;

static int compare_labels(const void *a, const void *b) {
  const end_label *x = a, *y = b;
  if (x->y != y->y) return x->y < y->y ? -1 : 1;
  return x->line < y->line ? -1 : x->line > y->line;
}

/* Pushes labels apart downwards, then upwards again from the bottom of the frame. */
static void spread(int n, end_label *labels, double top, double bottom) {
  qsort(labels, (size_t)n, sizeof *labels, compare_labels);
  for (int i = 0; i < n; i++) {
    double least = i ? labels[i - 1].y + LABEL_HEIGHT : top;
    if (labels[i].y < least) labels[i].y = least;
  }
  for (int i = n - 1; i >= 0; i--) {
    double most = i + 1 < n ? labels[i + 1].y - LABEL_HEIGHT : bottom;
    if (labels[i].y > most) labels[i].y = most;
  }
}

static double last_drawable(const kva_svg_line *line) {
  int64_t i = line->n - 1;
  while (i >= 0 && !is_drawable(line->y[i])) i--;
  return i < 0 ? NAN : line->y[i];
}

/* At most LABEL_CHARS bytes, whole UTF-8 characters. */
static void add_cut(kva_text *text, const char *label) {
  char cut[LABEL_CHARS + 1];
  size_t n = strnlen(label, LABEL_CHARS);
  while (n && ((unsigned char)label[n] & 0xC0) == 0x80) n--;
  memcpy(cut, label, n);
  cut[n] = 0;
  kva_html_add(text, cut);
}

static void add_end_labels(kva_text *text, const frame *f, const kva_svg_chart *chart) {
  end_label *labels = calloc((size_t)chart->n_lines + 1, sizeof *labels);
  int n = 0;
  text->cut = text->cut || !labels;
  for (int i = 0; labels && i < chart->n_lines; i++) {
    const kva_svg_line *line = &chart->lines[i];
    double value = last_drawable(line);
    if (!line->label || isnan(value)) continue;
    bin bins[MAX_BINS];
    int n_bins = make_bins(line, bins);
    labels[n++] = (end_label){.line = line, .value = value, .y = pixel(&f->y, bins[n_bins - 1].mean)};
  }
  if (n) spread(n, labels, TOP + 4, f->y.from);
  for (int i = 0; i < n; i++) {
    kva_text_add(text, "<text class=\"label c%d\" x=\"%.1f\" y=\"%.1f\">", labels[i].line->color % KVA_SVG_COLORS,
                 f->x.to + 8, labels[i].y + 4);
    add_cut(text, labels[i].line->label);
    kva_text_add(text, " <tspan class=\"value\">%.3g</tspan></text>\n", labels[i].value);
  }
  free(labels);
}

/* ---- charts ------------------------------------------------------------------------------------------------------ */

static void extend(double v, double *low, double *high) {
  if (!is_drawable(v)) return;
  *low = fmin(*low, v);
  *high = fmax(*high, v);
}

/* Space on the right for the longest label and its value. */
static double label_room(const kva_svg_chart *chart) {
  size_t longest = 0;
  for (int i = 0; i < chart->n_lines; i++) {
    size_t n = chart->lines[i].label ? strlen(chart->lines[i].label) : 0;
    if (n > longest) longest = n;
  }
  if (longest > LABEL_CHARS) longest = LABEL_CHARS;
  return longest ? (double)longest * LABEL_CHAR_WIDTH + 56 : 20;
}

static frame chart_frame(const kva_svg_chart *chart) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (int l = 0; l < chart->n_lines; l++)
    for (int64_t i = 0; i < chart->lines[l].n; i++) {
      extend(chart->lines[l].x[i], &x_low, &x_high);
      extend(chart->lines[l].y[i], &y_low, &y_high);
      if (chart->lines[l].low) extend(chart->lines[l].low[i], &y_low, &y_high);
      if (chart->lines[l].high) extend(chart->lines[l].high[i], &y_low, &y_high);
    }
  if (chart->unit_range) y_low = 0, y_high = 1;
  if (y_low > 0 && y_low < 0.5 * y_high) y_low = 0; /* start at zero where that costs little height */
  double right = WIDTH - label_room(chart);
  frame f = {.y = make_axis(y_low, y_high, 5, true, HEIGHT - BOTTOM, TOP)};
  if (chart->log_x)
    f.x = make_axis(log(x_low) - 0.1, log(x_high) + 0.1, 6, false, LEFT, right);
  else
    f.x = make_axis(fmin(x_low, x_low < INFINITY ? 0 : x_low), x_high, 6, false, LEFT, right);
  f.x.logarithmic = chart->log_x;
  return f;
}

/* A tick at each x that no earlier line has. */
static void add_own_ticks(kva_text *text, const frame *f, const kva_svg_chart *chart) {
  for (int l = 0; l < chart->n_lines; l++)
    for (int64_t i = 0; i < chart->lines[l].n; i++) {
      bool known = false;
      for (int k = 0; k < l; k++)
        for (int64_t j = 0; j < chart->lines[k].n; j++) known = known || chart->lines[k].x[j] == chart->lines[l].x[i];
      if (!known) add_x_tick(text, f, chart->lines[l].x[i]);
    }
}

void kva_svg_add_chart(kva_text *text, const kva_svg_chart *chart) {
  frame f = chart_frame(chart);
  open_svg(text, chart->title, WIDTH, HEIGHT);
  add_grid(text, &f);
  if (chart->log_x) add_own_ticks(text, &f, chart);
  add_axis_title(text, f.x.to, HEIGHT - 8, "end", chart->x_title);
  for (int i = 0; i < chart->n_lines; i++)
    if (!chart->lines[i].strong) add_curve(text, &f, &chart->lines[i]);
  for (int i = 0; i < chart->n_lines; i++)
    if (chart->lines[i].strong) add_curve(text, &f, &chart->lines[i]);
  add_end_labels(text, &f, chart);
  close_svg(text);
}

/* ---- areas ------------------------------------------------------------------------------------------------------- */

enum { AREA_WIDTH = 1140, AREA_HEIGHT = 320, MAX_COLUMNS = 380 };

static double area_sum(const kva_svg_areas *a, int layers, int at) {
  double sum = 0;
  for (int l = 0; l < layers; l++) sum += a->layers[l].y[at];
  return sum;
}

/* The index within a column at which the sum is largest. */
static int column_peak(const kva_svg_areas *a, int column, int columns) {
  int begin = (int)((int64_t)a->n * column / columns), end = (int)((int64_t)a->n * (column + 1) / columns),
      best = begin;
  for (int i = begin + 1; i < end; i++)
    if (area_sum(a, a->n_layers, i) > area_sum(a, a->n_layers, best)) best = i;
  return best;
}

static void add_layer(kva_text *text, const frame *f, const kva_svg_areas *a, int layer, int columns) {
  kva_text_add(text, "<path class=\"area c%d\" d=\"", a->layers[layer].color % KVA_SVG_COLORS);
  for (int side = 0; side < 2; side++)
    for (int k = 0; k < columns; k++) {
      int column = side ? columns - 1 - k : k;
      double y = pixel(&f->y, area_sum(a, layer + !side, column_peak(a, column, columns)));
      double left = pixel(&f->x, (double)a->n * column / columns);
      double right = pixel(&f->x, (double)a->n * (column + 1) / columns);
      kva_text_add(text, "%c%.1f %.1fH%.1f", side || k ? 'L' : 'M', side ? right : left, y, side ? left : right);
    }
  kva_text_add(text, "Z\"/>\n");
}

static void add_columns(kva_text *text, const frame *f, const kva_svg_areas *a, int columns) {
  for (int k = 0; k < columns; k++) {
    double left = pixel(&f->x, (double)a->n * k / columns), right = pixel(&f->x, (double)a->n * (k + 1) / columns);
    kva_text_add(text, "<rect class=\"column\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>", left,
                 f->y.to, right - left, f->y.from - f->y.to);
    kva_html_add(text, a->tooltips[column_peak(a, k, columns)]);
    kva_text_add(text, "</title></rect>");
  }
  kva_text_add(text, "\n");
}

static void add_limit(kva_text *text, const frame *f, const kva_svg_areas *a) {
  double y = pixel(&f->y, a->limit);
  kva_text_add(text, "<line class=\"reference\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", f->x.from, y,
               f->x.to, y);
  add_axis_title(text, f->x.to, y - 5, "end", a->limit_label);
}

void kva_svg_add_areas(kva_text *text, const kva_svg_areas *a) {
  int columns = a->n < MAX_COLUMNS ? a->n : MAX_COLUMNS;
  double high = a->limit;
  for (int k = 0; k < columns; k++) high = fmax(high, area_sum(a, a->n_layers, column_peak(a, k, columns)));
  frame f = {.x = make_axis(0, a->n, 12, false, LEFT, AREA_WIDTH - 20),
             .y = make_axis(0, high * 1.06, 5, true, AREA_HEIGHT - BOTTOM, TOP + 16)};
  open_svg(text, a->title, AREA_WIDTH, AREA_HEIGHT);
  add_grid(text, &f);
  add_axis_title(text, f.x.to, AREA_HEIGHT - 8, "end", a->x_title);
  add_axis_title(text, LEFT - 40, 14, "start", a->y_title);
  for (int l = 0; l < a->n_layers; l++) add_layer(text, &f, a, l, columns);
  add_columns(text, &f, a, columns);
  add_limit(text, &f, a);
  close_svg(text);
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

enum { CONTOURS = 16, ARROWS = 11 };

static double field_at(const kva_svg_field *s, int i, int j) {
  return s->at[i * s->n + j];
}

/* Where `level` lies between two neighbours, as a share of the way; NAN: not between them. */
static double crossing(double a, double b, double level) {
  return (a < level) == (b < level) ? NAN : (level - a) / (b - a);
}

/* The line through a cell: between the first two of its edges that the level crosses. */
static void add_cell_line(kva_text *text, const frame *f, const kva_svg_field *s, int i, int j, double level) {
  static const struct {
    int from_i, from_j, to_i, to_j;
  } edges[4] = {{0, 0, 0, 1}, {0, 1, 1, 1}, {1, 0, 1, 1}, {0, 0, 1, 0}};
  int n = 0;
  for (int e = 0; e < 4 && n < 2; e++) {
    double t = crossing(field_at(s, i + edges[e].from_i, j + edges[e].from_j),
                        field_at(s, i + edges[e].to_i, j + edges[e].to_j), level);
    if (isnan(t)) continue;
    double y = (i + edges[e].from_i + t * (edges[e].to_i - edges[e].from_i)) / (s->n - 1);
    double x = (j + edges[e].from_j + t * (edges[e].to_j - edges[e].from_j)) / (s->n - 1);
    kva_text_add(text, "%c%.1f %.1f", n++ ? 'L' : 'M', pixel(&f->x, x), pixel(&f->y, y));
  }
}

static void add_contours(kva_text *text, const frame *f, const kva_svg_field *s) {
  double low = INFINITY, high = -INFINITY;
  for (int k = 0; k < s->n * s->n; k++) extend(s->at[k], &low, &high);
  for (int c = 1; c < CONTOURS; c++) {
    double level = low + (high - low) * c / CONTOURS;
    kva_text_add(text, "<path class=\"line c0\" style=\"opacity:%.2f\" d=\"M0 0", 0.25 + 0.7 * c / CONTOURS);
    for (int i = 0; i + 1 < s->n; i++)
      for (int j = 0; j + 1 < s->n; j++) add_cell_line(text, f, s, i, j, level);
    kva_text_add(text, "\"><title>%.5g</title></path>\n", level);
  }
}

/* An arrow down the gradient, from differences of neighbours; its length grows with the slope. */
static void add_arrow(kva_text *text, const frame *f, const kva_svg_field *s, int i, int j, double steepest) {
  double dx = field_at(s, i, j - 1) - field_at(s, i, j + 1), dy = field_at(s, i - 1, j) - field_at(s, i + 1, j);
  double x = pixel(&f->x, (double)j / (s->n - 1)), y = pixel(&f->y, (double)i / (s->n - 1));
  double slope = hypot(dx, dy), length = 8 + 16 * slope / steepest;
  if (!(slope > 0)) return;
  double u = dx / slope, v = -dy / slope, tip_x = x + length * u, tip_y = y + length * v;
  kva_text_add(text, "<path class=\"line strong c1\" d=\"M%.1f %.1fL%.1f %.1fM%.1f %.1fL%.1f %.1fL%.1f %.1f\"/>\n", x,
               y, tip_x, tip_y, tip_x - 5 * u + 3 * v, tip_y - 5 * v - 3 * u, tip_x, tip_y, tip_x - 5 * u - 3 * v,
               tip_y - 5 * v + 3 * u);
}

static void add_arrows(kva_text *text, const frame *f, const kva_svg_field *s) {
  double steepest = 1e-300;
  int step = (s->n - 1) / ARROWS + 1;
  for (int i = 1; i + 1 < s->n; i++)
    for (int j = 1; j + 1 < s->n; j++)
      steepest = fmax(steepest, hypot(field_at(s, i, j - 1) - field_at(s, i, j + 1),
                                      field_at(s, i - 1, j) - field_at(s, i + 1, j)));
  for (int i = step; i + 1 < s->n; i += step)
    for (int j = step; j + 1 < s->n; j += step) add_arrow(text, f, s, i, j, steepest);
}

void kva_svg_add_field(kva_text *text, const kva_svg_field *s) {
  frame f = {.x = make_axis(0, 1, 5, true, LEFT, WIDTH - SCATTER_RIGHT),
             .y = make_axis(0, 1, 5, true, SCATTER_HEIGHT - BOTTOM, TOP + 14)};
  open_svg(text, s->title, WIDTH, SCATTER_HEIGHT);
  add_grid(text, &f);
  add_axis_title(text, f.x.to, SCATTER_HEIGHT - 8, "end", s->x_title);
  add_axis_title(text, LEFT - 40, 14, "start", s->y_title);
  add_contours(text, &f, s);
  add_arrows(text, &f, s);
  close_svg(text);
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

/* Labels placed so far; a label is dropped when it would overlap one of them. Widths are estimates. */
typedef struct placed_labels {
  int n;
  double x[64], y[64], width[64];
} placed_labels;

static bool place_label(placed_labels *p, double x, double y, const char *label) {
  double width = 6.5 * (double)strlen(label);
  if (p->n == 64) return false;
  for (int i = 0; i < p->n; i++)
    if (fabs(p->y[i] - y) < LABEL_HEIGHT - 2 && x < p->x[i] + p->width[i] && p->x[i] < x + width) return false;
  p->x[p->n] = x;
  p->y[p->n] = y;
  p->width[p->n++] = width;
  return true;
}

static void add_points(kva_text *text, const frame *f, int n, const kva_svg_point *points) {
  placed_labels placed = {0};
  for (int i = 0; i < n; i++) {
    if (!is_drawable(points[i].x) || !is_drawable(points[i].y)) continue;
    double x = pixel(&f->x, points[i].x), y = pixel(&f->y, points[i].y);
    kva_text_add(text, "<circle class=\"point c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"><title>",
                 points[i].color % KVA_SVG_COLORS, x, y);
    kva_html_add(text, points[i].tooltip);
    kva_text_add(text, "</title></circle>");
    const char *label = points[i].label;
    if (!label) continue;
    double width = 6.5 * (double)strlen(label);
    double at = x + 9 + width < f->x.to ? x + 9 : x - 9 - width;
    if (!place_label(&placed, at, y, label)) continue;
    kva_text_add(text, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\">", at, y + 4);
    kva_html_add(text, label);
    kva_text_add(text, "</text>\n");
  }
}

/* Zero of both axes, and where the weights sum to one, as they do initially. */
static void add_reference_lines(kva_text *text, const frame *f) {
  double x0 = pixel(&f->x, 0), y0 = pixel(&f->y, 0);
  kva_text_add(text, "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", x0, f->y.from, x0,
               f->y.to);
  kva_text_add(text, "<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", f->x.from, y0, f->x.to,
               y0);
  double left = fmax(f->x.low, 1 - f->y.high), right = fmin(f->x.high, 1 - f->y.low);
  kva_text_add(text, "<line class=\"reference\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
               pixel(&f->x, left), pixel(&f->y, 1 - left), pixel(&f->x, right), pixel(&f->y, 1 - right));
}

static void add_bound(kva_text *text, const frame *f, int n, const kva_svg_point *bound) {
  for (int i = 1; i < n; i++)
    kva_text_add(text, "<line class=\"reference\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                 pixel(&f->x, bound[i - 1].x), pixel(&f->y, bound[i - 1].y), pixel(&f->x, bound[i].x),
                 pixel(&f->y, bound[i].y));
}

static void extend_by(int n, const kva_svg_point *points, double x[2], double y[2]) {
  for (int i = 0; i < n; i++) {
    extend(points[i].x, &x[0], &x[1]);
    extend(points[i].y, &y[0], &y[1]);
  }
}

void kva_svg_add_scatter(kva_text *text, const kva_svg_scatter *s) {
  double x[2] = {INFINITY, -INFINITY}, y[2] = {INFINITY, -INFINITY};
  const kva_svg_point corners[] = {{.x = 0, .y = 0}, {.x = 1, .y = 1}};
  extend_by(s->shares ? 2 : s->n_bound, s->shares ? corners : s->bound, x, y);
  extend_by(s->n, s->points, x, y);
  frame f = {.x = make_axis(x[0], x[1], 5, true, LEFT, WIDTH - SCATTER_RIGHT),
             .y = make_axis(y[0], y[1], 5, true, SCATTER_HEIGHT - BOTTOM, TOP + 14)};
  open_svg(text, s->title, WIDTH, SCATTER_HEIGHT);
  add_grid(text, &f);
  if (s->shares)
    add_reference_lines(text, &f);
  else
    add_bound(text, &f, s->n_bound, s->bound);
  add_axis_title(text, f.x.to, SCATTER_HEIGHT - 8, "end", s->x_title);
  add_axis_title(text, LEFT - 40, 14, "start", s->y_title);
  add_points(text, &f, s->n, s->points);
  close_svg(text);
}
