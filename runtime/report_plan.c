/* Memory and time by step of the training program. */
#include "runtime/report_plan.h"

#include "runtime/report_svg.h"

#include <stdlib.h>

static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};

static int unit_of(double bytes, double *out_scale) {
  int unit = 0;
  for (*out_scale = 1; bytes >= 1024 && unit < 4; unit++, bytes /= 1024) *out_scale *= 1024;
  return unit;
}

static void add_bytes(kva_text *t, double bytes) {
  double scale;
  int unit = unit_of(bytes, &scale);
  kva_text_add(t, unit ? "%.2f %s" : "%.0f %s", bytes / scale, units[unit]);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static int compare_times(const void *a, const void *b) {
  const kva_report_time *x = *(const kva_report_time *const *)a, *y = *(const kva_report_time *const *)b;
  if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
  return x < y ? -1 : x > y;
}

/* In units of 1e9 per second. */
static void add_rate_cell(kva_text *t, double amount, double seconds) {
  if (amount > 0 && seconds > 0)
    kva_text_add(t, "<td>%.3g</td>", amount / seconds * 1e-9);
  else
    kva_text_add(t, "<td></td>");
}

static void add_time_row(kva_text *t, const kva_report_time *time, double sum, double most) {
  kva_text_add(t, "<tr><td><code>");
  kva_html_add(t, time->name);
  kva_text_add(t, "</code></td><td>%lld</td><td>%.3f</td><td>%.1f</td>", (long long)time->calls, time->seconds,
               time->calls ? time->seconds / (double)time->calls * 1e6 : 0);
  add_rate_cell(t, time->flops, time->seconds);
  add_rate_cell(t, time->bytes, time->seconds);
  kva_text_add(t, "<td>%.1f %%</td>", sum > 0 ? 100 * time->seconds / sum : 0);
  kva_text_add(t, "<td class=\"barcell\"><span class=\"bar\" style=\"width:%.1f%%\"></span></td></tr>\n",
               most > 0 ? 100 * time->seconds / most : 0);
}

static void add_rows(kva_text *t, int n, const kva_report_time *const *order) {
  enum { SHOWN = 40 };
  double sum = 0;
  for (int i = 0; i < n; i++) sum += order[i]->seconds;
  kva_report_time rest = {.name = "all others"};
  for (int i = 0; i < n; i++) {
    if (i < SHOWN) add_time_row(t, order[i], sum, order[0]->seconds);
    if (i < SHOWN) continue;
    rest.seconds += order[i]->seconds;
    rest.calls += order[i]->calls;
    rest.flops += order[i]->flops;
    rest.bytes += order[i]->bytes;
  }
  if (n > SHOWN) add_time_row(t, &rest, sum, order[0]->seconds);
}

void kva_report_add_times(kva_text *t, const kva_report *r) {
  const kva_report_time **order = malloc((size_t)r->n_times * sizeof *order);
  t->cut = t->cut || !order;
  if (!order) return;
  for (int i = 0; i < r->n_times; i++) order[i] = &r->times[i];
  qsort(order, (size_t)r->n_times, sizeof *order, compare_times);
  kva_text_add(t, "<h2>Time by step</h2><p>Steps of the program; those of one name add up. GFLOP/s count matrix "
                  "products, convolutions and attention; GB/s take every argument once, whatever the caches do.</p>"
                  "<div class=\"card\"><table><thead><tr><th>step</th><th>calls</th><th>seconds</th><th>&#181;s a call"
                  "</th><th>GFLOP/s</th><th>GB/s</th><th>share</th><th></th></tr></thead><tbody>\n");
  add_rows(t, r->n_times, order);
  kva_text_add(t, "</tbody></table></div>\n");
  free(order);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { N_PARTS = 6, TEMPORARIES = 2 };
typedef struct part {
  const char *name;
  int64_t bytes;
} part;

static void take_parts(const kva_memory_report *m, part parts[N_PARTS]) {
  const part all[N_PARTS] = {{"parameters", m->params},
                             {"optimiser moments", m->moments},
                             {"temporaries (arena)", m->temps},
                             {"other state", m->other_state},
                             {"inputs and outputs", m->inputs + m->outputs},
                             {"constants", m->constants}};
  memcpy(parts, all, sizeof all);
}

/* Temporaries are on top: they vary from step to step, the others do not. */
static const int layer_order[N_PARTS] = {0, 1, 3, 4, 5, TEMPORARIES};

static void add_tooltip(kva_text *t, const kva_report_moment *m, int step, double fixed) {
  kva_text_add(t, "step %d, %s: ", step, m->name);
  add_bytes(t, (double)m->bytes);
  kva_text_add(t, " of temporaries, ");
  add_bytes(t, fixed + (double)m->bytes);
  kva_text_add(t, " in all");
}

static void add_chart(kva_text *t, const kva_report *r, const part parts[N_PARTS], double total, double *values,
                      kva_text *texts, const char **tooltips) {
  kva_svg_layer layers[N_PARTS];
  double scale, fixed = total - (double)parts[TEMPORARIES].bytes;
  int n = r->n_moments, unit = unit_of(total, &scale);
  for (int l = 0; l < N_PARTS; l++) {
    double *y = values + (size_t)l * (size_t)n;
    int p = layer_order[l];
    for (int i = 0; i < n; i++) y[i] = (double)(p == TEMPORARIES ? r->moments[i].bytes : parts[p].bytes) / scale;
    layers[l] = (kva_svg_layer){p, y};
  }
  for (int i = 0; i < n; i++) {
    add_tooltip(&texts[i], &r->moments[i], i, fixed);
    tooltips[i] = texts[i].data;
  }
  kva_svg_add_areas(t, &(kva_svg_areas){.title = "Bytes in use over the steps",
                                        .x_title = "step of the program",
                                        .y_title = units[unit],
                                        .n_layers = N_PARTS,
                                        .n = n,
                                        .layers = layers,
                                        .tooltips = tooltips,
                                        .limit = total / scale,
                                        .limit_label = "planned: arena and all else"});
}

static void add_timeline(kva_text *t, const kva_report *r, const part parts[N_PARTS], double total) {
  size_t n = (size_t)r->n_moments;
  double *values = calloc(n * N_PARTS, sizeof *values);
  kva_text *texts = calloc(n, sizeof *texts);
  const char **tooltips = calloc(n, sizeof *tooltips);
  if (values && texts && tooltips)
    add_chart(t, r, parts, total, values, texts, tooltips);
  else
    t->cut = true;
  for (size_t i = 0; texts && i < n; i++) {
    t->cut = t->cut || texts[i].cut;
    kva_text_free(&texts[i]);
  }
  free(values);
  free(texts);
  free(tooltips);
}

void kva_report_add_memory(kva_text *t, const kva_report *r) {
  part parts[N_PARTS];
  double sum = 0;
  take_parts(r->memory, parts);
  for (int i = 0; i < N_PARTS; i++) sum += (double)parts[i].bytes;
  kva_text_add(t, "<h2>Memory</h2>");
  if (r->n_moments && sum > 0) add_timeline(t, r, parts, sum);
  kva_text_add(t, "<div class=\"card\" style=\"margin-top:16px\"><div class=\"stack\">");
  for (int i = 0; i < N_PARTS; i++)
    if (parts[i].bytes)
      kva_text_add(t, "<i class=\"c%d\" style=\"flex:%.4f\" title=\"%s\"></i>", i % KVA_SVG_COLORS,
                   (double)parts[i].bytes / sum, parts[i].name);
  kva_text_add(t, "</div><table><tbody>\n");
  for (int i = 0; i < N_PARTS; i++) {
    if (!parts[i].bytes) continue;
    kva_text_add(t, "<tr><td><span class=\"key c%d\"></span>%s</td><td>", i % KVA_SVG_COLORS, parts[i].name);
    add_bytes(t, (double)parts[i].bytes);
    kva_text_add(t, "</td><td>%.1f %%</td></tr>\n", 100 * (double)parts[i].bytes / sum);
  }
  kva_text_add(t, "<tr><td>total</td><td>");
  add_bytes(t, sum);
  kva_text_add(t, "</td><td></td></tr></tbody></table></div>\n");
}
