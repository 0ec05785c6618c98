/* Figures of an experiment that are no curves over steps: values over the x of runs, tables, fields. */
#include "tools/experiment/figures.h"

#include "runtime/npy.h"
#include "runtime/report_svg.h"

#include <math.h>

typedef struct place {
  const kva_exp_outcome *o;
  const kva_exp_plot *plot;
  kva_arena *arena;
  kva_diag *diag;
} place;

static kva_status values_of(const place *p, uint32_t run, const char *what, double *out) {
  for (int64_t s = 0; s < p->o->seeds; s++)
    KVA_TRY(kva_exp_value_of(&p->o->jobs[run * p->o->seeds + s], what, p->diag, &out[s]));
  return KVA_OK;
}

/* ---- points ------------------------------------------------------------------------------------------------------ */

static const char *group_of(const kva_exp_run *run) {
  return run->group ? run->group : run->name;
}

/* A run that failed is not drawn. */
static bool is_drawn(const place *p, uint32_t run) {
  return !isnan(p->o->experiment->runs.data[run].x) && !kva_exp_failure(p->o->jobs, p->o->seeds, run);
}

static bool is_first_of_group(const place *p, uint32_t run) {
  const kva_exp_run *runs = p->o->experiment->runs.data;
  for (uint32_t i = 0; i < run; i++)
    if (is_drawn(p, i) && !strcmp(group_of(&runs[i]), group_of(&runs[run]))) return false;
  return is_drawn(p, run);
}

static void add_point(int64_t seeds, const double *values, double *mean, double *low, double *high) {
  *mean = 0, *low = INFINITY, *high = -INFINITY;
  for (int64_t s = 0; s < seeds; s++) {
    *mean += values[s] / (double)seeds;
    *low = fmin(*low, values[s]);
    *high = fmax(*high, values[s]);
  }
}

/* The mean over seeds at the x of each run of the group, with the range as a band. */
static kva_status make_line(const place *p, uint32_t first, int color, kva_svg_line *out) {
  const kva_experiment *e = p->o->experiment;
  double *data = KVA_NEW_ARRAY(p->arena, double, 4 * e->runs.len),
         *values = KVA_NEW_ARRAY(p->arena, double, p->o->seeds);
  double *x = data, *y = x + e->runs.len, *low = y + e->runs.len, *high = low + e->runs.len;
  const char *group = group_of(&e->runs.data[first]);
  int64_t n = 0;
  for (uint32_t i = first; i < e->runs.len; i++) {
    if (!is_drawn(p, i) || strcmp(group, group_of(&e->runs.data[i])) != 0) continue;
    KVA_TRY(values_of(p, i, p->plot->metric, values));
    x[n] = e->runs.data[i].x;
    add_point(p->o->seeds, values, &y[n], &low[n], &high[n]);
    n++;
  }
  *out = (kva_svg_line){.run = group, .label = group, .color = color, .strong = true, .n = n, .x = x, .y = y};
  out->low = low;
  out->high = high;
  out->x_name = p->plot->x_title;
  return KVA_OK;
}

/* y = a x^-b through the points of a line, by least squares of logarithms; NaN where one is not above 0. */
static void fit_power(const kva_svg_line *line, double *a, double *b) {
  double n = (double)line->n, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (int64_t i = 0; i < line->n; i++) {
    double x = log(line->x[i]), y = log(line->y[i]);
    sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  *b = -(n * sxy - sx * sy) / (n * sxx - sx * sx);
  *a = exp((sy + *b * sx) / n);
}

/* The fitted curve of a line, through the same x, named by its exponent. */
static kva_svg_line fitted(const place *p, const kva_svg_line *line, int color) {
  double a, b, *y = KVA_NEW_ARRAY(p->arena, double, line->n + 1);
  fit_power(line, &a, &b);
  for (int64_t i = 0; i < line->n; i++) y[i] = a * pow(line->x[i], -b);
  const char *name = kva_arena_printf(p->arena, "%.3g N^-%.3f", a, b);
  return (kva_svg_line){
      .run = name, .label = name, .color = color, .n = line->n, .x = line->x, .y = y, .x_name = line->x_name};
}

/* The mean over seeds of each of the plot's values, with the range as a band. */
static kva_status make_run_line(const place *p, uint32_t run, int color, kva_svg_line *out) {
  uint32_t n = p->plot->n_values;
  double *data = KVA_NEW_ARRAY(p->arena, double, 3 * n + 1), *values = KVA_NEW_ARRAY(p->arena, double, p->o->seeds);
  const char *name = p->o->experiment->runs.data[run].name;
  *out =
      (kva_svg_line){.run = name, .label = name, .color = color, .strong = true, .n = n, .x = p->plot->at, .y = data};
  out->low = data + n;
  out->high = data + 2 * n;
  out->x_name = p->plot->x_title;
  for (uint32_t i = 0; i < n; i++) {
    KVA_TRY(values_of(p, run, p->plot->values[i], values));
    add_point(p->o->seeds, values, &data[i], &data[n + i], &data[2 * n + i]);
  }
  return KVA_OK;
}

static kva_status add_run_lines(const place *p, kva_svg_line *lines, int *n) {
  for (uint32_t i = 0; i < p->o->experiment->runs.len; i++) {
    if (kva_exp_failure(p->o->jobs, p->o->seeds, i)) continue;
    KVA_TRY(make_run_line(p, i, *n, &lines[*n]));
    ++*n;
  }
  return KVA_OK;
}

static kva_status add_group_lines(const place *p, kva_svg_line *lines, int *n) {
  int color = 0;
  for (uint32_t i = 0; i < p->o->experiment->runs.len; i++) {
    if (!is_first_of_group(p, i)) continue;
    KVA_TRY(make_line(p, i, color, &lines[*n]));
    ++*n;
    if (p->plot->fit) lines[*n] = fitted(p, &lines[*n - 1], color);
    *n += p->plot->fit;
    color++;
  }
  return KVA_OK;
}

static kva_status add_points(const place *p, kva_text *text) {
  const kva_experiment *e = p->o->experiment;
  kva_svg_line *lines = KVA_NEW_ARRAY(p->arena, kva_svg_line, 2 * e->runs.len);
  int n = 0;
  KVA_TRY((p->plot->at ? add_run_lines : add_group_lines)(p, lines, &n));
  kva_svg_chart chart = {.title = p->plot->title,
                         .x_title = p->plot->x_title,
                         .unit_range = p->plot->metric && strstr(p->plot->metric, "accuracy") != NULL,
                         .log_x = p->plot->log_x,
                         .n_lines = n,
                         .lines = lines};
  kva_svg_add_chart(text, &chart);
  return KVA_OK;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void add_text(kva_text *text, const char *tag, const char *s) {
  kva_text_add(text, "<%s>", tag);
  kva_html_add(text, s);
  kva_text_add(text, "</%s>", tag);
}

static kva_status add_table(const place *p, kva_text *text) {
  const kva_experiment *e = p->o->experiment;
  double *values = KVA_NEW_ARRAY(p->arena, double, p->o->seeds);
  kva_text_add(text, "<figure class=\"card\"><figcaption>");
  kva_html_add(text, p->plot->title);
  kva_text_add(text, "</figcaption><table><thead><tr><th>run</th>");
  for (uint32_t c = 0; c < p->plot->n_values; c++) add_text(text, "th", p->plot->values[c]);
  kva_text_add(text, "</tr></thead><tbody>\n");
  for (uint32_t i = 0; i < e->runs.len; i++) {
    kva_text_add(text, "<tr>");
    add_text(text, "td", e->runs.data[i].name);
    for (uint32_t c = 0; c < p->plot->n_values; c++) {
      bool failed = kva_exp_failure(p->o->jobs, p->o->seeds, i) != NULL;
      if (!failed) KVA_TRY(values_of(p, i, p->plot->values[c], values));
      add_text(text, "td", failed ? "failed" : kva_exp_mean_text(p->arena, p->o->seeds, values));
    }
    kva_text_add(text, "</tr>\n");
  }
  kva_text_add(text, "</tbody></table></figure>\n");
  return KVA_OK;
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

static kva_status add_field(const place *p, kva_text *text) {
  kva_tensor t;
  if (kva_exp_failure(p->o->jobs, p->o->seeds, 0)) return KVA_OK;
  KVA_TRY(kva_npy_read(kva_arena_printf(p->arena, "%s/%s.npy", p->o->jobs[0].folder, p->plot->metric), KVA_DTYPE_NONE,
                       p->diag, &t));
  bool square = t.rank == 2 && t.dims[0] == t.dims[1] && t.dims[0] >= 2 && t.dims[0] <= 400 && t.dtype == KVA_F64;
  kva_svg_field field = {p->plot->title, p->plot->x_title, p->plot->y_title, square ? (int)t.dims[0] : 0, t.data};
  if (square) kva_svg_add_field(text, &field);
  kva_npy_free(&t);
  if (square) return KVA_OK;
  return kva_error(p->diag, &(kva_loc){.file = p->o->experiment->path},
                   "the plot '%s' needs a square matrix of doubles with 2 to 400 rows", p->plot->metric);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static kva_status add_figure(const place *p, const kva_report *r, kva_text *text) {
  switch (p->plot->kind) {
  case KVA_PLOT_CURVES: return kva_report_add_curves(text, r, p->plot->metric), KVA_OK;
  case KVA_PLOT_POINTS: return add_points(p, text);
  case KVA_PLOT_TABLE: return add_table(p, text);
  case KVA_PLOT_FIELD: return add_field(p, text);
  case KVA_PLOT_SHIFTS: return KVA_OK;
  }
  return KVA_OK;
}

kva_status kva_exp_figure(const kva_exp_outcome *o, const kva_exp_plot *plot, const kva_report *r, kva_arena *arena,
                          kva_diag *diag, const char **out) {
  kva_text text = {0};
  kva_status status = add_figure(&(place){o, plot, arena, diag}, r, &text);
  *out = text.len ? kva_arena_strdup(arena, text.data) : NULL;
  kva_text_free(&text);
  return status;
}
