/* A profile as text, as JSON, as a trace and as a page. */
#include "runtime/report_svg.h"
#include "tools/profile/profile.h"

#include <math.h>
#include <stdlib.h>

/* ---- kinds of steps ---------------------------------------------------------------------------------------------- */

typedef struct kinds {
  int n;
  kva_report_time *rows; /* those that take longest first */
} kinds;

static int longer_first(const void *a, const void *b) {
  double x = ((const kva_report_time *)a)->seconds, y = ((const kva_report_time *)b)->seconds;
  return (x < y) - (x > y);
}

/* Steps of one name added up. Free the rows. */
static kinds kinds_of(const kva_profile *p) {
  kinds k = {.rows = calloc((size_t)p->n + 1, sizeof *k.rows)};
  for (int i = 0; k.rows && i < p->n; i++) {
    const kva_profile_step *step = &p->steps[i];
    int at = 0;
    while (at < k.n && strcmp(k.rows[at].name, step->name) != 0) at++;
    if (at == k.n) k.rows[k.n++].name = step->name;
    k.rows[at].calls++;
    k.rows[at].seconds += step->seconds, k.rows[at].flops += step->flops, k.rows[at].bytes += step->bytes;
  }
  if (k.rows) qsort(k.rows, (size_t)k.n, sizeof *k.rows, longer_first);
  return k;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* "  123.4 GFLOP/s  56 %", in 1e9 per second; blank where there is no amount. */
static void print_rate(double amount, double seconds, double peak, FILE *out) {
  if (!(amount > 0 && seconds > 0))
    fprintf(out, "%16s", "");
  else if (peak > 0)
    fprintf(out, "%9.4g %4.0f %%", amount / seconds * 1e-9, 100 * amount / seconds / peak);
  else
    fprintf(out, "%9.4g %6s", amount / seconds * 1e-9, "");
}

static void print_row(const kva_profile *p, const kva_report_time *row, FILE *out) {
  double sum = 0;
  for (int i = 0; i < p->n; i++) sum += p->steps[i].seconds;
  fprintf(out, "%5.1f %% %10.1f %5lld", sum > 0 ? 100 * row->seconds / sum : 0, row->seconds * 1e6,
          (long long)row->calls);
  print_rate(row->flops, row->seconds, p->peaks.flops, out);
  print_rate(row->bytes, row->seconds, p->peaks.bytes, out);
  fprintf(out, "  %s\n", row->name);
}

void kva_profile_print(const kva_profile *p, int most, FILE *out) {
  kinds k = kinds_of(p);
  fprintf(out, "%s, %s: %.4g ms a run (half of %lld runs: %.4g to %.4g), %d steps\n", p->model, p->program,
          p->median * 1e3, (long long)p->runs, p->low * 1e3, p->high * 1e3, p->n);
  if (p->peaks.isa)
    fprintf(out, "this machine (%s, %d threads): %.4g GFLOP/s of multiply-adds, %.4g GB/s read from memory\n",
            p->peaks.isa, p->peaks.threads, p->peaks.flops * 1e-9, p->peaks.bytes * 1e-9);
  fprintf(out, "\n%7s %10s %5s %9s %6s%9s %6s  %s\n", "share", "us", "steps", "GFLOP/s", "peak", "GB/s", "read",
          "nodes");
  for (int i = 0; i < k.n && i < most; i++) print_row(p, &k.rows[i], out);
  if (k.n > most) fprintf(out, "... and %d kinds of steps more: --top N, --json\n", k.n - most);
  free(k.rows);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void add_steps(kva_text *t, const kva_profile *p) {
  for (int i = 0; i < p->n; i++) {
    const kva_profile_step *s = &p->steps[i];
    kva_text_add(t, "%s\n  {\"nodes\": ", i ? "," : "");
    kva_text_add_quoted(t, s->name);
    kva_text_add(t, ", \"calls\": %lld, \"seconds\": %.6g, \"flops\": %.9g, \"bytes\": %.9g, \"temporaries\": %lld}",
                 (long long)s->calls, s->seconds, s->flops, s->bytes, (long long)s->live);
  }
}

void kva_profile_print_json(const kva_profile *p, FILE *out) {
  const kva_memory_report *m = &p->memory;
  kva_text t = {0};
  kva_text_add(&t, "{\"model\": ");
  kva_text_add_quoted(&t, p->model);
  kva_text_add(&t, ", \"program\": ");
  kva_text_add_quoted(&t, p->program);
  kva_text_add(&t, ", \"device\": ");
  kva_text_add_quoted(&t, p->device);
  kva_text_add(&t, ", \"runs\": %lld, \"seconds\": %.6g, \"low\": %.6g, \"high\": %.6g,\n", (long long)p->runs,
               p->median, p->low, p->high);
  if (p->peaks.isa)
    kva_text_add(&t, " \"machine\": {\"isa\": \"%s\", \"threads\": %d, \"flops\": %.4g, \"bytes\": %.4g},\n",
                 p->peaks.isa, p->peaks.threads, p->peaks.flops, p->peaks.bytes);
  kva_text_add(&t,
               " \"memory\": {\"parameters\": %lld, \"moments\": %lld, \"other_state\": %lld, \"temporaries\": %lld, "
               "\"inputs\": %lld, \"outputs\": %lld, \"constants\": %lld},\n \"steps\": [",
               (long long)m->params, (long long)m->moments, (long long)m->other_state, (long long)m->temps,
               (long long)m->inputs, (long long)m->outputs, (long long)m->constants);
  add_steps(&t, p);
  kva_text_add(&t, "]}\n");
  fputs(t.data && !t.cut ? t.data : "", out);
  kva_text_free(&t);
}

/* ---- trace ------------------------------------------------------------------------------------------------------- */

static kva_status write_text(const char *path, kva_text *t, kva_diag *diag) {
  kva_status status = t->cut || !t->data ? kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for %s", path)
                                         : kva_file_write(path, t->data, t->len, diag);
  kva_text_free(t);
  return status;
}

kva_status kva_profile_write_trace(const kva_profile *p, const char *path, kva_diag *diag) {
  kva_text t = {0};
  double at = 0;
  kva_text_add(&t, "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
  for (int i = 0; i < p->n; i++) {
    const kva_profile_step *s = &p->steps[i];
    kva_text_add(&t, "%s\n{\"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"name\": ", i ? "," : "");
    kva_text_add_quoted(&t, s->name);
    kva_text_add(&t, ", \"ts\": %.3f, \"dur\": %.3f, \"args\": {\"step\": %d, \"flops\": %.9g, \"bytes\": %.9g}},\n",
                 at * 1e6, s->seconds * 1e6, i, s->flops, s->bytes);
    kva_text_add(&t,
                 "{\"ph\": \"C\", \"pid\": 1, \"name\": \"temporaries\", \"ts\": %.3f, \"args\": {\"bytes\": %lld}}",
                 at * 1e6, (long long)s->live);
    at += s->seconds;
  }
  kva_text_add(&t, "\n]}\n");
  return write_text(path, &t, diag);
}

/* ---- page -------------------------------------------------------------------------------------------------------- */

/* A step of so many operations a byte can reach. */
static double roof_at(const kva_profile *p, double intensity) {
  return fmin(p->peaks.flops, p->peaks.bytes * intensity);
}

static kva_svg_point place(double intensity, double rate) {
  return (kva_svg_point){.x = log10(intensity), .y = log10(rate * 1e-9)};
}

/* From a tenth of the intensity where arithmetic begins to bound, or the least of the points, to the greatest. */
static int add_roof(const kva_profile *p, int n, const kva_svg_point *points, kva_svg_point roof[3]) {
  if (!(p->peaks.flops > 0 && p->peaks.bytes > 0)) return 0;
  double ridge = p->peaks.flops / p->peaks.bytes, least = ridge / 10, most = ridge * 10;
  for (int i = 0; i < n; i++) least = fmin(least, pow(10, points[i].x)), most = fmax(most, pow(10, points[i].x));
  const double at[] = {least, ridge, most};
  for (int i = 0; i < 3; i++) roof[i] = place(at[i], roof_at(p, at[i]));
  return 3;
}

static bool is_product(const kva_report_time *row) {
  return row->flops > 0 && row->bytes > 0 && row->seconds > 0;
}

/* Steps with products: their rate, and the line that memory and arithmetic bound it by. */
static void add_roofline(kva_text *t, const kva_profile *p, const kinds *k) {
  kva_svg_point *points = calloc((size_t)k->n + 1, sizeof *points), roof[3];
  kva_text *tips = calloc((size_t)k->n + 1, sizeof *tips);
  int n = 0;
  t->cut = t->cut || !points || !tips;
  for (int i = 0; points && tips && i < k->n; i++) {
    const kva_report_time *row = &k->rows[i];
    if (!is_product(row)) continue;
    double intensity = row->flops / row->bytes, rate = row->flops / row->seconds, most = roof_at(p, intensity);
    kva_text_add(&tips[n], "%s: %.3g GFLOP/s, %.3g FLOP a byte", row->name, rate * 1e-9, intensity);
    if (most > 0) kva_text_add(&tips[n], ", %.0f %% of the line", 100 * rate / most);
    points[n] = place(intensity, rate);
    points[n].tooltip = tips[n].data, n++;
  }
  if (n)
    kva_svg_add_scatter(t, &(kva_svg_scatter){.title = "Rate of products by intensity",
                                              .x_title = "FLOP a byte, log10",
                                              .y_title = "GFLOP/s, log10",
                                              .n = n,
                                              .points = points,
                                              .n_bound = add_roof(p, n, points, roof),
                                              .bound = roof});
  for (int i = 0; tips && i < n; i++) kva_text_free(&tips[i]);
  free(tips);
  free(points);
}

static void add_item(kva_text *values, kva_report_item *items, int *n, const char *name) {
  items[*n] = (kva_report_item){.name = name, .value = values[*n].data};
  ++*n;
}

static int add_config(const kva_profile *p, kva_text *values, kva_report_item *items) {
  int n = 0;
  kva_text_add(&values[n], "%s, %s", p->model, p->program);
  add_item(values, items, &n, "program");
  kva_text_add(&values[n], "%.4g ms (half of %lld runs: %.4g to %.4g)", p->median * 1e3, (long long)p->runs,
               p->low * 1e3, p->high * 1e3);
  add_item(values, items, &n, "a run");
  kva_text_add(&values[n], "%s", p->device);
  add_item(values, items, &n, "device");
  if (!p->peaks.isa) return n;
  kva_text_add(&values[n], "%s, %d threads: %.4g GFLOP/s, %.4g GB/s", p->peaks.isa, p->peaks.threads,
               p->peaks.flops * 1e-9, p->peaks.bytes * 1e-9);
  add_item(values, items, &n, "the machine");
  return n;
}

enum { CONFIG = 4 };

kva_status kva_profile_write_page(const kva_profile *p, const char *path, kva_diag *diag) {
  kinds k = kinds_of(p);
  kva_report_moment *moments = calloc((size_t)p->n + 1, sizeof *moments);
  kva_text roofline = {0}, values[CONFIG] = {0};
  kva_report_item items[CONFIG];
  kva_status status = KVA_NO_MEMORY;
  if (k.rows && moments) {
    for (int i = 0; i < p->n; i++) moments[i] = (kva_report_moment){p->steps[i].name, p->steps[i].live};
    add_roofline(&roofline, p, &k);
    kva_report r = {.title = "Profile",
                    .n_times = k.n,
                    .times = k.rows,
                    .memory = &p->memory,
                    .n_moments = p->n,
                    .moments = moments,
                    .config = items,
                    .n_config = add_config(p, values, items),
                    .figures = (const char *const[]){roofline.data},
                    .n_figures = roofline.data ? 1 : 0};
    status = kva_report_write(path, &r, diag);
  } else {
    kva_fail(diag, status, NULL, "no memory for %s", path);
  }
  for (int i = 0; i < CONFIG; i++) kva_text_free(&values[i]);
  kva_text_free(&roofline);
  free(moments);
  free(k.rows);
  return status;
}
