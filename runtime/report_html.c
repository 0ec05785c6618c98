/* The HTML report: one page without scripts or external resources. A section appears when it has data: summary of the
 * runs, curves with throughput, learned shift weights, configuration. Memory and time by step are in report_plan.c. */
#include "runtime/report.h"

#include "runtime/base/platform.h"
#include "runtime/report_plan.h"
#include "runtime/report_svg.h"

#include <math.h>
#include <stdlib.h>

/* Six hues that also differ in lightness, chosen for light and dark backgrounds. */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1c1d1f;--soft:#63666c;--rule:#e4e4e1;"
    "--k0:#2760c4;--k1:#cf5410;--k2:#0c8567;--k3:#9a3bb0;--k4:#957200;--k5:#bf2f4d}"
    "@media(prefers-color-scheme:dark){:root{--bg:#141517;--card:#1c1e21;--ink:#ececea;--soft:#9a9ea6;--rule:#32353a;"
    "--k0:#74a9ff;--k1:#ff9a5e;--k2:#46cfa6;--k3:#d58fec;--k4:#e0bf4c;--k5:#ff8497}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,\"Segoe UI\","
    "\"DejaVu Sans\",sans-serif}"
    "main{max-width:1180px;margin:0 auto;padding:36px 24px 60px}"
    "h1{font-size:27px;line-height:1.2;margin:0 0 4px;font-weight:650;letter-spacing:-.01em}"
    "h2{font-size:17px;margin:40px 0 12px;font-weight:650}p{margin:0 0 12px;color:var(--soft);max-width:76ch}"
    ".grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}"
    "figure,.card{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 16px}"
    ".card{overflow-x:auto}figcaption{font-weight:600;font-size:14px;margin-bottom:6px}"
    "svg{display:block;width:100%;max-width:760px;margin:auto;height:auto;overflow:visible}svg "
    "text{font-family:inherit}"
    ".c0{--c:var(--k0)}.c1{--c:var(--k1)}.c2{--c:var(--k2)}.c3{--c:var(--k3)}.c4{--c:var(--k4)}.c5{--c:var(--k5)}"
    ".grid{stroke:var(--rule);stroke-width:1}.axis,.tickmark{stroke:var(--soft);stroke-width:1;opacity:.55}"
    ".reference{stroke:var(--soft);stroke-dasharray:4 4;opacity:.7}"
    ".tick,.axis-title{font-size:11.5px;fill:var(--soft);font-variant-numeric:tabular-nums}"
    ".line{fill:none;stroke:var(--c);stroke-width:1.3;opacity:.55;stroke-linejoin:round}"
    ".strong{stroke-width:2.2;opacity:1}.dashed{stroke-dasharray:6 3}.band{fill:var(--c);opacity:.13}"
    ".dot{fill:var(--card);stroke:var(--c);stroke-width:1.8}.point{fill:var(--c);stroke:var(--card);stroke-width:1.5}"
    ".area{fill:var(--c);opacity:.8}.column{fill:var(--ink);opacity:0}.column:hover{opacity:.12}"
    ".hover{fill:var(--c);opacity:0}.hover:hover{opacity:1}.dot:hover,.point:hover{stroke:var(--ink)}"
    ".label{font-size:12px;font-weight:600;fill:var(--c)}.value{font-weight:400;fill:var(--soft)}"
    ".legend{display:flex;flex-wrap:wrap;gap:6px 20px;margin:0 0 12px;font-size:13.5px}"
    ".legend span{display:inline-flex;align-items:center;gap:7px}.key{width:12px;height:12px;border-radius:3px;"
    "background:var(--c);flex:none;display:inline-block}.note{color:var(--soft)}"
    "table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}"
    "th{font-weight:600;color:var(--soft);text-align:right;padding:4px 12px 6px;border-bottom:1px solid var(--rule);"
    "white-space:nowrap}td{text-align:right;padding:5px 12px;border-bottom:1px solid var(--rule)}"
    "tr:last-child td{border-bottom:0}th:first-child,td:first-child,.text{text-align:left!important}"
    ".holds{color:var(--k2);font-weight:600}.fails{color:var(--k5);font-weight:700}"
    "section{border-top:1px solid var(--rule);margin-top:48px;padding-top:8px}section h1{font-size:22px}"
    "@media(max-width:600px){main{padding:20px 12px 40px}.wide,figure{overflow-x:auto}"
    "svg{min-width:540px}th,td{padding:4px 6px}}"
    "td .key{margin-right:8px;vertical-align:-1px}"
    ".bar{display:block;height:9px;border-radius:3px;background:var(--k0);min-width:2px}.barcell{width:34%}"
    ".stack{display:flex;height:22px;border-radius:5px;overflow:hidden;margin:4px 0 12px;gap:2px}"
    ".stack i{background:var(--c);min-width:2px}code{font:12.5px ui-monospace,\"DejaVu Sans Mono\",monospace;"
    "overflow-wrap:anywhere}footer{margin-top:44px;color:var(--soft);font-size:12.5px}"
    "@media print{body{background:#fff}figure,.card{break-inside:avoid}}";

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static void add_cell(kva_text *t, const char *class, const char *s) {
  kva_text_add(t, "<td%s%s%s>", class ? " class=\"" : "", class ? class : "", class ? "\"" : "");
  kva_html_add(t, s);
  kva_text_add(t, "</td>");
}

static void add_number_cell(kva_text *t, const char *format_hint, double v) {
  if (isnan(v))
    kva_text_add(t, "<td>&#8211;</td>");
  else if (!strcmp(format_hint, "int"))
    kva_text_add(t, "<td>%.0f</td>", v);
  else if (!strcmp(format_hint, "fixed"))
    kva_text_add(t, "<td>%.3f</td>", v);
  else
    kva_text_add(t, "<td>%.4g</td>", v);
}

static void add_run_key(kva_text *t, const kva_report_run *run, int index) {
  kva_text_add(t, "<span class=\"key c%d\"></span>", index % KVA_SVG_COLORS);
  kva_html_add(t, run->name);
}

/* ---- summary ----------------------------------------------------------------------------------------------------- */

static double last_value(kva_series s) {
  return s.n ? s.values[s.n - 1] : NAN;
}

static bool is_accuracy(const char *name) {
  return strstr(name, "acc") || strstr(name, "first");
}

/* The metric that summarises a run: prefers accuracy at first repeats (the paper's), and evaluation over training. */
static kva_series main_accuracy(const kva_history *h) {
  kva_series best = {0};
  int best_rank = 0;
  for (int i = 0; i < kva_history_count(h); i++) {
    kva_series s = kva_history_at(h, i);
    int rank = is_accuracy(s.name) ? 1 + s.evaluation + 2 * (strstr(s.name, "first") != NULL) : 0;
    if (rank <= best_rank) continue;
    best = s;
    best_rank = rank;
  }
  return best;
}

static double best_value(kva_series s) {
  double best = NAN;
  for (int64_t i = 0; i < s.n; i++) best = fmax(best, s.values[i]);
  return best;
}

static double first_step_at(kva_series s, double level) {
  for (int64_t i = 0; i < s.n; i++)
    if (s.values[i] >= level) return s.steps[i];
  return NAN;
}

/* The columns of the summary; those without a value in any row are left out. */
typedef enum column {
  STEPS,
  TRAINING_LOSS,
  EVALUATION_LOSS,
  BEST_ACCURACY,
  STEP_AT_99,
  SECONDS,
  STEPS_A_SECOND,
  N_COLUMNS
} column;

static const struct {
  const char *title, *format;
} columns[N_COLUMNS] = {
    [STEPS] = {"steps", "int"},
    [TRAINING_LOSS] = {"training loss", "short"},
    [EVALUATION_LOSS] = {"evaluation loss", "short"},
    [BEST_ACCURACY] = {"best accuracy", "short"},
    [STEP_AT_99] = {"99 % at step", "int"},
    [SECONDS] = {"seconds", "short"},
    [STEPS_A_SECOND] = {"steps a second", "short"},
};

static double column_value(const kva_report_run *run, column c) {
  kva_series loss = kva_history_find(run->history, "loss", false);
  kva_series seconds = kva_history_find(run->history, "seconds", false);
  switch (c) {
  case STEPS: return loss.n ? loss.steps[loss.n - 1] : NAN;
  case TRAINING_LOSS: return last_value(loss);
  case EVALUATION_LOSS: return last_value(kva_history_find(run->history, "loss", true));
  case BEST_ACCURACY: return best_value(main_accuracy(run->history));
  case STEP_AT_99: return first_step_at(main_accuracy(run->history), 0.99);
  case SECONDS: return last_value(seconds);
  case STEPS_A_SECOND: return (double)seconds.n / last_value(seconds);
  case N_COLUMNS: break;
  }
  return NAN;
}

static bool has_column(const kva_report *r, column c) {
  for (int i = 0; i < r->n_runs; i++)
    if (!isnan(column_value(&r->runs[i], c))) return true;
  return false;
}

static void add_summary(kva_text *t, const kva_report *r) {
  kva_text_add(t, "<h2>Runs</h2><div class=\"card\"><table><thead><tr><th>run</th>");
  for (column c = 0; c < N_COLUMNS; c++)
    if (has_column(r, c)) kva_text_add(t, "<th>%s</th>", columns[c].title);
  kva_text_add(t, "</tr></thead><tbody>\n");
  for (int i = 0; i < r->n_runs; i++) {
    kva_text_add(t, "<tr><td>");
    add_run_key(t, &r->runs[i], i);
    kva_text_add(t, "</td>");
    for (column c = 0; c < N_COLUMNS; c++)
      if (has_column(r, c)) add_number_cell(t, columns[c].format, column_value(&r->runs[i], c));
    kva_text_add(t, "</tr>\n");
  }
  kva_text_add(t, "</tbody></table></div>\n");
}

/* ---- curves ------------------------------------------------------------------------------------------------------ */

static bool has_evaluation(const kva_report *r) {
  for (int i = 0; i < r->n_runs; i++)
    for (int k = 0; k < kva_history_count(r->runs[i].history); k++)
      if (kva_history_at(r->runs[i].history, k).evaluation) return true;
  return false;
}

static void add_legend(kva_text *t, const kva_report *r) {
  kva_text_add(t, "<div class=\"legend\">");
  for (int i = 0; i < r->n_runs; i++) {
    kva_text_add(t, "<span>");
    add_run_key(t, &r->runs[i], i);
    kva_text_add(t, "</span>");
  }
  if (has_evaluation(r)) kva_text_add(t, "<span class=\"note\">thick with dots: evaluation; thin: training</span>");
  kva_text_add(t, "</div>\n");
}

/* Labels of curves. A single run needs no name. With several runs each is named at one curve only; learning rate
 * curves, which mostly coincide, get no label. */
static const char *label_of(const kva_report *r, int run, const char *metric, bool evaluation, bool evaluated) {
  if (!strcmp(metric, "lr")) return NULL;
  if (r->n_runs == 1) return evaluation ? "evaluation" : "training";
  return evaluation || !evaluated ? r->runs[run].name : NULL;
}

void kva_report_add_curves(kva_text *t, const kva_report *r, const char *name) {
  kva_svg_line *lines = calloc(2 * (size_t)r->n_runs, sizeof *lines);
  int n = 0;
  t->cut = t->cut || !lines;
  bool unit = true;
  for (int i = 0; lines && i < r->n_runs; i++) {
    kva_series evaluated = kva_history_find(r->runs[i].history, name, true);
    for (int e = 0; e < 2; e++) {
      kva_series s = e ? evaluated : kva_history_find(r->runs[i].history, name, false);
      if (!s.n) continue;
      lines[n++] = (kva_svg_line){.run = r->runs[i].name,
                                  .label = label_of(r, i, name, e, evaluated.n > 0),
                                  .color = i,
                                  .strong = e,
                                  .n = s.n,
                                  .x = s.steps,
                                  .y = s.values,
                                  .low = s.low,
                                  .high = s.high};
      for (int64_t k = 0; k < s.n; k++) unit = unit && !(s.values[k] < 0 || s.values[k] > 1);
    }
  }
  kva_svg_chart chart = {.title = strcmp(name, "lr") ? name : "learning rate",
                         .x_title = "step",
                         .unit_range = unit && is_accuracy(name),
                         .n_lines = n,
                         .lines = lines};
  if (n) kva_svg_add_chart(t, &chart);
  free(lines);
}

/* ---- throughput -------------------------------------------------------------------------------------------------- */

enum { MAX_RATES = 200 };

/* Items per second over equal stretches of the steps. Returns the number of stretches. */
static int64_t rates_of(const kva_report_run *run, double *x, double *y) {
  kva_series s = kva_history_find(run->history, "seconds", false);
  int64_t n = s.n < MAX_RATES ? s.n : MAX_RATES, used = 0;
  if (run->items <= 0) return 0;
  for (int64_t k = 0, before = -1; k < n; k++) {
    int64_t at = s.n * (k + 1) / n - 1;
    double seconds = s.values[at] - (before < 0 ? 0 : s.values[before]);
    if (seconds > 0) {
      x[used] = s.steps[at];
      y[used++] = run->items * (double)(at - before) / seconds;
    }
    before = at;
  }
  return used;
}

static void add_throughput(kva_text *t, const kva_report *r) {
  kva_svg_line *lines = calloc((size_t)r->n_runs, sizeof *lines);
  double *values = calloc((size_t)r->n_runs, 2 * MAX_RATES * sizeof *values);
  kva_text title = {0};
  int n = 0;
  for (int i = 0; lines && values && i < r->n_runs; i++) {
    double *x = values + (size_t)i * 2 * MAX_RATES, *y = x + MAX_RATES;
    const char *name = r->runs[i].name;
    lines[n] = (kva_svg_line){.run = name, .label = r->n_runs > 1 ? name : NULL, .color = i, .x = x, .y = y};
    lines[n].n = rates_of(&r->runs[i], x, y);
    n += lines[n].n > 0;
  }
  if (n) {
    kva_text_add(&title, "%s a second", r->runs[0].unit ? r->runs[0].unit : "rows");
    kva_svg_add_chart(t, &(kva_svg_chart){.title = title.data, .x_title = "step", .n_lines = n, .lines = lines});
  }
  t->cut = t->cut || title.cut || !lines || !values;
  kva_text_free(&title);
  free(values);
  free(lines);
}

/* Whether an earlier run or series has the same name. */
static bool is_known(const kva_report *r, int run, int index, const char *name) {
  for (int i = 0; i <= run; i++)
    for (int k = 0; k < (i < run ? kva_history_count(r->runs[i].history) : index); k++)
      if (!strcmp(kva_history_at(r->runs[i].history, k).name, name)) return true;
  return false;
}

static void add_all_curves(kva_text *t, const kva_report *r) {
  for (int i = 0; i < r->n_runs; i++)
    for (int k = 0; k < kva_history_count(r->runs[i].history); k++) {
      const char *name = kva_history_at(r->runs[i].history, k).name;
      bool plain = strcmp(name, "lr") && strcmp(name, "seconds");
      if (plain && !is_known(r, i, k, name)) kva_report_add_curves(t, r, name);
    }
  kva_report_add_curves(t, r, "lr");
  add_throughput(t, r);
}

static void add_curves(kva_text *t, const kva_report *r) {
  kva_text_add(t, "<h2>Curves</h2>\n");
  add_legend(t, r);
  kva_text_add(t, "<div class=\"grid2\">\n");
  for (int i = 0; r->metrics && r->metrics[i]; i++) kva_report_add_curves(t, r, r->metrics[i]);
  if (!r->metrics) add_all_curves(t, r);
  kva_text_add(t, "</div>\n");
}

/* ---- shift weights ----------------------------------------------------------------------------------------------- */

static int count_shifts(const kva_report *r) {
  int n = 0;
  for (int i = 0; i < r->n_runs; i++) n += r->runs[i].n_shifts;
  return n;
}

static void add_shift_scatter(kva_text *t, const kva_report *r, bool of_keys) {
  int n = count_shifts(r), at = 0;
  kva_svg_point *points = calloc((size_t)n, sizeof *points);
  kva_text *texts = calloc(2 * (size_t)n, sizeof *texts);
  for (int i = 0; points && texts && i < r->n_runs; i++)
    for (int k = 0; k < r->runs[i].n_shifts; k++, at++) {
      const kva_report_shift *s = &r->runs[i].shifts[k];
      double x = of_keys ? s->k_current : s->v_current, y = of_keys ? s->k_previous : s->v_previous;
      kva_text_add(&texts[2 * at], "%s, %s head %d: current %.4g, previous %.4g", r->runs[i].name, s->layer, s->head, x,
                   y);
      kva_text_add(&texts[2 * at + 1], "%s.%d", s->layer, s->head);
      points[at] = (kva_svg_point){
          .tooltip = texts[2 * at].data, .label = n <= 16 ? texts[2 * at + 1].data : NULL, .color = i, .x = x, .y = y};
    }
  kva_svg_add_scatter(t, &(kva_svg_scatter){.title = of_keys ? "Keys" : "Values",
                                            .x_title = "weight of the current token",
                                            .y_title = "weight of the previous token",
                                            .n = at,
                                            .points = points,
                                            .shares = true});
  t->cut = t->cut || !points || !texts;
  for (int i = 0; texts && i < 2 * n; i++) {
    t->cut = t->cut || texts[i].cut;
    kva_text_free(&texts[i]);
  }
  free(texts);
  free(points);
}

static const char *reading_of(const kva_report_shift *s) {
  bool previous_key = s->k_previous > s->k_current, previous_value = s->v_previous > s->v_current;
  if (previous_key && !previous_value) return "finds the token before, reads this one: induction";
  if (previous_key) return "shifted as a whole";
  return previous_value ? "finds this token, reads the one before" : "mostly unshifted";
}

static void add_shift_table(kva_text *t, const kva_report *r) {
  kva_text_add(
      t, "<div class=\"card\" style=\"margin-top:16px\"><table><thead><tr><th>run</th><th class=\"text\">layer</th>"
         "<th>head</th><th>K current</th><th>K previous</th><th>V current</th><th>V previous</th>"
         "<th class=\"text\">reading</th></tr></thead><tbody>\n");
  for (int i = 0; i < r->n_runs; i++)
    for (int k = 0; k < r->runs[i].n_shifts; k++) {
      const kva_report_shift *s = &r->runs[i].shifts[k];
      kva_text_add(t, "<tr><td>");
      add_run_key(t, &r->runs[i], i);
      kva_text_add(t, "</td>");
      add_cell(t, "text", s->layer);
      add_number_cell(t, "int", s->head);
      add_number_cell(t, "fixed", s->k_current);
      add_number_cell(t, "fixed", s->k_previous);
      add_number_cell(t, "fixed", s->v_current);
      add_number_cell(t, "fixed", s->v_previous);
      add_cell(t, "text", reading_of(s));
      kva_text_add(t, "</tr>\n");
    }
  kva_text_add(t, "</tbody></table></div>\n");
}

static void add_shifts(kva_text *t, const kva_report *r) {
  kva_text_add(t,
               "<h2>Learned shift weights</h2><p>One point per layer and KV head. On the dashed line the two weights "
               "sum to one, as they do at the start. Induction pulls keys up, to the previous token, and values "
               "right, to the current one.</p><div class=\"grid2\">\n");
  add_shift_scatter(t, r, true);
  add_shift_scatter(t, r, false);
  kva_text_add(t, "</div>\n");
  add_shift_table(t, r);
}

/* ---- configuration ----------------------------------------------------------------------------------------------- */

static void add_config(kva_text *t, const kva_report *r) {
  kva_text_add(t, "<h2>Configuration</h2><div class=\"card\"><table><tbody>\n");
  for (int i = 0; i < r->n_config; i++) {
    kva_text_add(t, "<tr>");
    add_cell(t, NULL, r->config[i].name);
    kva_text_add(t, "<td class=\"text\"><code>");
    kva_html_add(t, r->config[i].value);
    kva_text_add(t, "</code></td></tr>\n");
  }
  kva_text_add(t, "</tbody></table></div>\n");
}

/* ---- claims and figures -------------------------------------------------------------------------------------------
 */

static bool names_paper(const kva_report *r) {
  for (int i = 0; i < r->n_claims; i++)
    if (r->claims[i].paper) return true;
  return false;
}

static void add_claims(kva_text *t, const kva_report *r) {
  bool paper = names_paper(r);
  kva_text_add(t,
               "<div class=\"card\"><table><thead><tr><th class=\"text\">statement</th>%s"
               "<th class=\"text\">ours</th><th class=\"text\">verdict</th></tr></thead><tbody>\n",
               paper ? "<th class=\"text\">paper</th>" : "");
  for (int i = 0; i < r->n_claims; i++) {
    const kva_report_claim *c = &r->claims[i];
    kva_text_add(t, "<tr>");
    add_cell(t, "text", c->text);
    if (paper) add_cell(t, "text", c->paper ? c->paper : "not stated");
    add_cell(t, "text", c->ours);
    add_cell(t, c->holds ? "text holds" : "text fails", c->holds ? "holds" : "failed");
    kva_text_add(t, "</tr>\n");
  }
  kva_text_add(t, "</tbody></table></div>\n");
}

static void add_figures(kva_text *t, const kva_report *r) {
  kva_text_add(t, "<h2>Figures</h2><div class=\"grid2\">\n");
  for (int i = 0; i < r->n_figures; i++) kva_text_add_bytes(t, r->figures[i], strlen(r->figures[i]));
  kva_text_add(t, "</div>\n");
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static void add_paragraph(kva_text *t, const char *s) {
  kva_text_add(t, "<p>");
  kva_html_add(t, s);
  kva_text_add(t, "</p>\n");
}

static void add_heading(kva_text *t, const char *title) {
  kva_text_add(t, "<h1>");
  kva_html_add(t, title);
  kva_text_add(t, "</h1>\n");
}

static void open_page(kva_text *t, const char *title) {
  kva_text_add(t, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
                  "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/><title>");
  kva_html_add(t, title);
  kva_text_add(t, "</title>\n<style>%s</style></head>\n<body><main>", style);
}

static void close_page(kva_text *t) {
  kva_text_add(t, "<footer>Written by Kvasir " KVA_VERSION ".</footer></main></body></html>\n");
}

static void add_body(kva_text *t, const kva_report *r) {
  add_heading(t, r->title);
  if (r->source) add_paragraph(t, r->source);
  if (r->about) add_paragraph(t, r->about);
  if (r->n_claims) add_claims(t, r);
  if (r->n_figures) add_figures(t, r);
  if (r->n_runs) {
    add_summary(t, r);
    add_curves(t, r);
  }
  if (count_shifts(r) && !r->without_shifts) add_shifts(t, r);
  if (r->n_config) add_config(t, r);
  if (r->memory) kva_report_add_memory(t, r);
  if (r->n_times) kva_report_add_times(t, r);
}

void kva_report_print(const kva_report *r, kva_text *out) {
  open_page(out, r->title);
  add_body(out, r);
  close_page(out);
}

static kva_status write_page(const char *path, kva_text *text, kva_diag *diag) {
  kva_status status = text->cut ? kva_fail(diag, KVA_NO_MEMORY, &(kva_loc){.file = path}, "no memory for the report")
                                : kva_file_write(path, text->data, text->len, diag);
  kva_text_free(text);
  return status;
}

kva_status kva_report_write(const char *path, const kva_report *r, kva_diag *diag) {
  kva_text text = {0};
  kva_report_print(r, &text);
  return write_page(path, &text, diag);
}

kva_status kva_report_write_all(const char *path, const char *title, int n, const kva_report *reports, kva_diag *diag) {
  kva_text text = {0};
  open_page(&text, title);
  add_heading(&text, title);
  for (int i = 0; i < n; i++) {
    kva_text_add(&text, "<section>\n");
    add_body(&text, &reports[i]);
    kva_text_add(&text, "</section>\n");
  }
  close_page(&text);
  return write_page(path, &text, diag);
}

kva_status kva_report_write_svg(const char *path, const char *figure, kva_diag *diag) {
  static const char begin[] = "<svg ", end[] = "</svg>";
  const char *from = strstr(figure, begin), *to = from ? strstr(from, end) : NULL;
  const char *inside = from ? strchr(from, '>') : NULL;
  kva_text text = {0};
  if (!to || !inside) return kva_error(diag, &(kva_loc){.file = path}, "the figure has no drawing");
  kva_text_add(&text, "<svg xmlns=\"http://www.w3.org/2000/svg\" ");
  kva_text_add_bytes(&text, from + sizeof begin - 1, (size_t)(inside + 1 - from) - (sizeof begin - 1));
  kva_text_add(&text, "<style>%s</style>", style);
  kva_text_add_bytes(&text, inside + 1, (size_t)(to - inside - 1) + sizeof end - 1);
  return write_page(path, &text, diag);
}
