/* Histories of runs, and their format on disk: JSON lines.
 *
 * The reader takes any JSON of this shape: objects of numbers, strings, null, true and false, nested under the key
 * "metrics". Unknown keys are skipped. */
#include "runtime/report.h"

#include "runtime/base/platform.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct series {
  char *name;
  bool evaluation;
  int64_t n, capacity;
  double *steps, *values;
  double *low, *high; /* of a mean; else NULL */
} series;

struct kva_history {
  series *data;
  int n, capacity;
  kva_report_shift *shifts; /* with layers of their own */
  int n_shifts;
};

struct kva_metrics {
  FILE *file;
  bool csv;
  char *path;
  kva_text line;
};

/* ---- history ----------------------------------------------------------------------------------------------------- */

kva_history *kva_history_create(void) {
  return calloc(1, sizeof(kva_history));
}

void kva_history_destroy(kva_history *h) {
  if (!h) return;
  for (int i = 0; i < h->n; i++) {
    free(h->data[i].name);
    free(h->data[i].steps);
    free(h->data[i].values);
    free(h->data[i].low);
    free(h->data[i].high);
  }
  for (int i = 0; i < h->n_shifts; i++) free((char *)h->shifts[i].layer);
  free(h->shifts);
  free(h->data);
  free(h);
}

static series *find(const kva_history *h, const char *name, bool evaluation) {
  for (int i = 0; i < h->n; i++)
    if (h->data[i].evaluation == evaluation && !strcmp(h->data[i].name, name)) return &h->data[i];
  return NULL;
}

static series *find_or_add(kva_history *h, const char *name, bool evaluation) {
  series *found = find(h, name, evaluation);
  if (found) return found;
  if (h->n == h->capacity) {
    int capacity = h->capacity ? 2 * h->capacity : 8;
    series *data = realloc(h->data, (size_t)capacity * sizeof *data);
    if (!data) return NULL;
    h->data = data;
    h->capacity = capacity;
  }
  char *copy = strdup(name);
  if (!copy) return NULL;
  h->data[h->n] = (series){.name = copy, .evaluation = evaluation};
  return &h->data[h->n++];
}

static bool reserve(series *s) {
  if (s->n < s->capacity) return true;
  int64_t capacity = s->capacity ? 2 * s->capacity : 64;
  double *steps = realloc(s->steps, (size_t)capacity * sizeof *steps);
  if (steps) s->steps = steps;
  double *values = realloc(s->values, (size_t)capacity * sizeof *values);
  if (values) s->values = values;
  if (!steps || !values) return false;
  s->capacity = capacity;
  return true;
}

static kva_status add_point(kva_history *h, const char *name, bool evaluation, double step, double value) {
  series *s = find_or_add(h, name, evaluation);
  if (!s || !reserve(s)) return KVA_NO_MEMORY;
  s->steps[s->n] = step;
  s->values[s->n++] = value;
  return KVA_OK;
}

kva_status kva_history_add(kva_history *h, const kva_train_event *e) {
  double step = (double)e->step;
  for (int i = 0; i < e->n; i++) KVA_TRY(add_point(h, i ? e->names[i] : "loss", e->evaluation, step, e->values[i]));
  if (e->evaluation) return KVA_OK;
  KVA_TRY(add_point(h, "lr", false, step, e->lr));
  return add_point(h, "seconds", false, step, e->seconds);
}

int kva_history_count(const kva_history *h) {
  return h->n;
}

kva_series kva_history_at(const kva_history *h, int i) {
  const series *s = &h->data[i];
  return (kva_series){s->name, s->evaluation, s->n, s->steps, s->values, s->low, s->high};
}

kva_series kva_history_find(const kva_history *h, const char *name, bool evaluation) {
  const series *s = find(h, name, evaluation);
  return s ? kva_history_at(h, (int)(s - h->data)) : (kva_series){.name = name, .evaluation = evaluation};
}

/* ---- shift scalars ----------------------------------------------------------------------------------------------- */

static kva_report_shift *find_shift(const kva_history *h, const char *layer, int head) {
  for (int i = 0; i < h->n_shifts; i++)
    if (h->shifts[i].head == head && !strcmp(h->shifts[i].layer, layer)) return &h->shifts[i];
  return NULL;
}

static kva_status append_shift(kva_history *h, const kva_report_shift *shift) {
  kva_report_shift *all = realloc(h->shifts, ((size_t)h->n_shifts + 1) * sizeof *all);
  if (!all) return KVA_NO_MEMORY;
  h->shifts = all;
  all[h->n_shifts] = *shift;
  all[h->n_shifts].layer = strdup(shift->layer);
  return all[h->n_shifts].layer ? (h->n_shifts++, KVA_OK) : KVA_NO_MEMORY;
}

kva_status kva_history_add_shift(kva_history *h, const kva_report_shift *shift) {
  kva_report_shift *known = find_shift(h, shift->layer, shift->head);
  if (!known) return append_shift(h, shift);
  const char *layer = known->layer;
  *known = *shift;
  known->layer = layer;
  return KVA_OK;
}

int kva_history_shifts(const kva_history *h, const kva_report_shift **out_shifts) {
  *out_shifts = h->shifts;
  return h->n_shifts;
}

/* ---- means ------------------------------------------------------------------------------------------------------- */

/* Values of one step in all histories. Series are sorted by step; *at is where the last search of each ended. */
typedef struct moment {
  double sum, low, high;
  int found;
} moment;

static moment moment_at(double step, int n, const kva_series *all, int64_t *at) {
  moment m = {.low = INFINITY, .high = -INFINITY};
  for (int i = 0; i < n; i++) {
    while (at[i] < all[i].n && all[i].steps[at[i]] < step) at[i]++;
    if (at[i] == all[i].n || all[i].steps[at[i]] != step) continue;
    double v = all[i].values[at[i]];
    m.sum += v;
    m.low = fmin(m.low, v);
    m.high = fmax(m.high, v);
    m.found++;
  }
  return m;
}

static kva_status fill_mean(series *s, int n, const kva_series *all, int64_t *at) {
  for (int64_t k = 0; k < all[0].n; k++) {
    moment m = moment_at(all[0].steps[k], n, all, at);
    if (m.found < n) continue;
    if (!reserve(s)) return KVA_NO_MEMORY;
    s->steps[s->n] = all[0].steps[k];
    s->low[s->n] = m.low;
    s->high[s->n] = m.high;
    s->values[s->n++] = m.sum / n;
  }
  return KVA_OK;
}

static kva_status add_mean(kva_history *h, const kva_series *first, int n, const kva_history *const *histories) {
  kva_series *all = calloc((size_t)n, sizeof *all);
  int64_t *at = calloc((size_t)n, sizeof *at);
  series *s = all && at ? find_or_add(h, first->name, first->evaluation) : NULL;
  for (int i = 0; s && i < n; i++) all[i] = kva_history_find(histories[i], first->name, first->evaluation);
  if (s) s->low = calloc((size_t)first->n + 1, sizeof *s->low);
  if (s) s->high = calloc((size_t)first->n + 1, sizeof *s->high);
  kva_status status = s && s->low && s->high ? fill_mean(s, n, all, at) : KVA_NO_MEMORY;
  free(all);
  free(at);
  return status;
}

kva_history *kva_history_mean(int n, const kva_history *const *histories) {
  kva_history *h = kva_history_create();
  kva_status status = h ? KVA_OK : KVA_NO_MEMORY;
  for (int i = 0; status == KVA_OK && i < histories[0]->n; i++) {
    kva_series first = kva_history_at(histories[0], i);
    status = add_mean(h, &first, n, histories);
  }
  for (int i = 0; status == KVA_OK && i < n; i++)
    for (int k = 0; status == KVA_OK && k < histories[i]->n_shifts; k++)
      status = append_shift(h, &histories[i]->shifts[k]);
  if (status == KVA_OK) return h;
  kva_history_destroy(h);
  return NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static kva_status io_error(kva_diag *diag, const char *path, const char *doing) {
  kva_loc loc = {.file = path};
  return kva_fail(diag, KVA_IO, &loc, "cannot %s: %s", doing, strerror(errno));
}

static const char csv_header[] = "step,event,name,value\n";

static bool is_csv(const char *path) {
  size_t n = strlen(path);
  return n > 4 && !strcmp(path + n - 4, ".csv");
}

kva_status kva_metrics_create(const char *path, bool append, kva_diag *diag, kva_metrics **out_metrics) {
  *out_metrics = NULL;
  kva_metrics *m = calloc(1, sizeof *m);
  if (!m) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the writer of metrics");
  m->path = strdup(path ? path : "standard output");
  if (m->path) m->file = path ? fopen(path, append ? "ae" : "we") : stdout;
  if (!m->file) {
    kva_status status = m->path ? io_error(diag, path, "open it for writing") : KVA_NO_MEMORY;
    kva_metrics_destroy(m);
    return status;
  }
  m->csv = path && is_csv(path);
  if (m->csv && ftell(m->file) == 0) fputs(csv_header, m->file); /* a failure shows at the first line */
  *out_metrics = m;
  return KVA_OK;
}

void kva_metrics_destroy(kva_metrics *m) {
  if (!m) return;
  if (m->file && m->file != stdout) fclose(m->file);
  kva_text_free(&m->line);
  free(m->path);
  free(m);
}

static void add_number(kva_text *text, double v) {
  if (isfinite(v))
    kva_text_add_double(text, v);
  else
    kva_text_add(text, "null");
}

static kva_text *begin_line(kva_metrics *m) {
  m->line.len = 0;
  m->line.cut = false;
  return &m->line;
}

static kva_status write_line(kva_metrics *m, kva_diag *diag) {
  const kva_text *line = &m->line;
  if (line->cut) return kva_fail(diag, KVA_NO_MEMORY, &(kva_loc){.file = m->path}, "no memory for a line");
  if (fwrite(line->data, 1, line->len, m->file) == line->len && !fflush(m->file)) return KVA_OK;
  return errno == EPIPE ? KVA_INTERRUPTED : io_error(diag, m->path, "write it");
}

/* A value of CSV: names in quotes, numbers that are not finite empty. */
static void add_row(kva_text *line, int64_t step, const char *event, const char *name, double v) {
  kva_text_add(line, "%lld,%s,\"", (long long)step, event);
  for (; *name; name++) kva_text_add(line, *name == '"' ? "\"\"" : "%c", *name);
  kva_text_add(line, "\",");
  if (isfinite(v)) kva_text_add_double(line, v);
  kva_text_add(line, "\n");
}

static kva_status add_rows(kva_metrics *m, const kva_train_event *e, kva_diag *diag) {
  const char *event = e->evaluation ? "eval" : "step";
  kva_text *line = begin_line(m);
  for (int i = 0; i < e->n; i++) add_row(line, e->step, event, i ? e->names[i] : "loss", e->values[i]);
  add_row(line, e->step, event, "lr", e->lr);
  add_row(line, e->step, event, "seconds", e->seconds);
  return write_line(m, diag);
}

static kva_status add_shift_rows(kva_metrics *m, int64_t step, const kva_report_shift *s, kva_diag *diag) {
  const struct {
    const char *name;
    double value;
  } rows[] = {{"k_current", s->k_current},
              {"k_previous", s->k_previous},
              {"v_current", s->v_current},
              {"v_previous", s->v_previous}};
  kva_text *line = begin_line(m), name = {0};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    name.len = 0;
    kva_text_add(&name, "%s.%d.%s", s->layer, s->head, rows[i].name);
    add_row(line, step, "shift", name.data ? name.data : "", rows[i].value);
  }
  kva_text_free(&name);
  return write_line(m, diag);
}

kva_status kva_metrics_add_shift(kva_metrics *m, int64_t step, const kva_report_shift *shift, kva_diag *diag) {
  if (m->csv) return add_shift_rows(m, step, shift, diag);
  kva_text *line = begin_line(m);
  kva_text_add(line, "{\"step\": %lld, \"event\": \"shift\", \"layer\": ", (long long)step);
  kva_text_add_quoted(line, shift->layer);
  kva_text_add(line, ", \"head\": %d, \"metrics\": {\"k_current\": ", shift->head);
  add_number(line, shift->k_current);
  kva_text_add(line, ", \"k_previous\": ");
  add_number(line, shift->k_previous);
  kva_text_add(line, ", \"v_current\": ");
  add_number(line, shift->v_current);
  kva_text_add(line, ", \"v_previous\": ");
  add_number(line, shift->v_previous);
  kva_text_add(line, "}}\n");
  return write_line(m, diag);
}

kva_status kva_metrics_add_not_finite(kva_metrics *m, int64_t step, kva_diag *diag) {
  if (m->csv)
    add_row(begin_line(m), step, "not_finite", "loss", NAN);
  else
    kva_text_add(begin_line(m), "{\"step\": %lld, \"event\": \"not_finite\"}\n", (long long)step);
  return write_line(m, diag);
}

kva_status kva_metrics_add(kva_metrics *m, const kva_train_event *e, kva_diag *diag) {
  if (m->csv) return add_rows(m, e, diag);
  kva_text *line = begin_line(m);
  kva_text_add(line, "{\"step\": %lld, \"event\": \"%s\", \"loss\": ", (long long)e->step,
               e->evaluation ? "eval" : "step");
  add_number(line, e->n ? e->values[0] : NAN);
  kva_text_add(line, ", \"lr\": ");
  add_number(line, e->lr);
  kva_text_add(line, ", \"seconds\": ");
  add_number(line, e->seconds);
  kva_text_add(line, ", \"metrics\": {");
  for (int i = 1; i < e->n; i++) {
    if (i > 1) kva_text_add(line, ", ");
    kva_text_add_quoted(line, e->names[i]);
    kva_text_add(line, ": ");
    add_number(line, e->values[i]);
  }
  kva_text_add(line, "}}\n");
  return write_line(m, diag);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum { MAX_METRICS = 64, MAX_NAME = 128, MAX_NESTING = 16 };

typedef struct line_parser {
  const char *at, *end;
  int depth;
  bool has_step;
  char event[MAX_NAME], layer[MAX_NAME];
  double step, lr, seconds, loss, head;
  int n;
  char names[MAX_METRICS][MAX_NAME];
  double values[MAX_METRICS];
} line_parser;

static void skip_blanks(line_parser *p) {
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

static bool accept(line_parser *p, char c) {
  skip_blanks(p);
  if (p->at == p->end || *p->at != c) return false;
  p->at++;
  return true;
}

/* An escape becomes the character after the backslash: enough for names. Long strings are cut. */
static bool parse_string(line_parser *p, char out[MAX_NAME]) {
  size_t n = 0;
  if (!accept(p, '"')) return false;
  for (; p->at < p->end && *p->at != '"'; p->at++) {
    if (*p->at == '\\' && ++p->at == p->end) return false;
    if (n + 1 < MAX_NAME) out[n++] = *p->at;
  }
  out[n] = 0;
  return accept(p, '"');
}

/* A number or a word: null is NaN, true is 1, false is 0. */
static bool parse_number(line_parser *p, double *out) {
  static const struct {
    const char *word;
    double value;
  } words[] = {{"null", NAN}, {"true", 1}, {"false", 0}};
  skip_blanks(p);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    size_t n = strlen(words[i].word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, words[i].word, n)) continue;
    p->at += n;
    *out = words[i].value;
    return true;
  }
  char number[64];
  size_t n = 0;
  while (p->at < p->end && n + 1 < sizeof number && strchr("+-.0123456789eE", *p->at) && *p->at) number[n++] = *p->at++;
  number[n] = 0;
  return kva_parse_double(number, out);
}

static bool parse_object(line_parser *p, bool metrics);

static void take_number(line_parser *p, const char *key, double v, bool metrics) {
  if (metrics && p->n < MAX_METRICS) {
    strcpy(p->names[p->n], key);
    p->values[p->n++] = v;
  } else if (!strcmp(key, "step")) {
    p->step = v;
    p->has_step = isfinite(v);
  } else if (!strcmp(key, "lr")) {
    p->lr = v;
  } else if (!strcmp(key, "seconds")) {
    p->seconds = v;
  } else if (!strcmp(key, "loss")) {
    p->loss = v;
  } else if (!strcmp(key, "head")) {
    p->head = v;
  }
}

static bool parse_value(line_parser *p, const char *key, bool metrics) {
  skip_blanks(p);
  if (p->at == p->end) return false;
  if (*p->at == '{') return parse_object(p, !strcmp(key, "metrics"));
  if (*p->at == '"') {
    char other[MAX_NAME];
    bool event = !metrics && !strcmp(key, "event"), layer = !metrics && !strcmp(key, "layer");
    return parse_string(p, event ? p->event : layer ? p->layer : other);
  }
  double v;
  if (!parse_number(p, &v)) return false;
  take_number(p, key, v, metrics);
  return true;
}

static bool parse_object(line_parser *p, bool metrics) {
  if (!accept(p, '{') || ++p->depth > MAX_NESTING) return false;
  bool more = !accept(p, '}');
  while (more) {
    char key[MAX_NAME];
    if (!parse_string(p, key) || !accept(p, ':') || !parse_value(p, key, metrics)) return false;
    more = accept(p, ',');
    if (!more && !accept(p, '}')) return false;
  }
  p->depth--;
  return true;
}

static double metric_of(const line_parser *p, const char *name) {
  for (int i = 0; i < p->n; i++)
    if (!strcmp(p->names[i], name)) return p->values[i];
  return NAN;
}

static kva_status add_shift_line(kva_history *h, const line_parser *p) {
  const kva_report_shift shift = {p->layer,
                                  (int)p->head,
                                  metric_of(p, "k_current"),
                                  metric_of(p, "k_previous"),
                                  metric_of(p, "v_current"),
                                  metric_of(p, "v_previous")};
  return kva_history_add_shift(h, &shift);
}

/* Events of other names are skipped. */
static kva_status add_line(kva_history *h, const line_parser *p) {
  bool evaluation = !strcmp(p->event, "eval");
  if (!strcmp(p->event, "shift")) return add_shift_line(h, p);
  if (!strcmp(p->event, "not_finite")) return add_point(h, "loss", false, p->step, INFINITY);
  if (!evaluation && *p->event && strcmp(p->event, "step") != 0) return KVA_OK;
  KVA_TRY(add_point(h, "loss", evaluation, p->step, p->loss));
  for (int i = 0; i < p->n; i++) KVA_TRY(add_point(h, p->names[i], evaluation, p->step, p->values[i]));
  if (evaluation) return KVA_OK;
  KVA_TRY(add_point(h, "lr", false, p->step, p->lr));
  return add_point(h, "seconds", false, p->step, p->seconds);
}

static kva_status read_lines(kva_history *h, const char *path, const char *at, const char *end, kva_diag *diag) {
  line_parser *p = malloc(sizeof *p);
  if (!p) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a line of metrics");
  kva_status status = KVA_OK;
  for (uint32_t number = 1; !status && at < end; number++) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    kva_loc loc = {.file = path, .line = number};
    *p = (line_parser){.at = at, .end = newline ? newline : end, .loss = NAN, .lr = NAN, .seconds = NAN};
    at = newline ? newline + 1 : end;
    skip_blanks(p);
    if (p->at == p->end) continue;
    bool ok = parse_object(p, false) && (skip_blanks(p), p->at == p->end) && p->has_step;
    if (ok)
      status = add_line(h, p);
    else if (newline)
      status = kva_error(diag, &loc, "expected a JSON object of numbers with a \"step\"");
    else
      kva_warn(diag, &loc, "the last line is cut off and left out");
  }
  free(p);
  return status;
}

kva_status kva_metrics_read(const char *path, kva_diag *diag, kva_history **out_history) {
  *out_history = NULL;
  kva_file file;
  KVA_TRY(kva_file_map(path, diag, &file));
  kva_history *h = kva_history_create();
  kva_status status = h ? KVA_OK : KVA_NO_MEMORY;
  if (h && file.size) status = read_lines(h, path, file.data, (const char *)file.data + file.size, diag);
  kva_file_unmap(&file);
  if (status) {
    kva_history_destroy(h);
    return status;
  }
  *out_history = h;
  return KVA_OK;
}

static bool is_event(const char *rest, const char *json, const char *csv) {
  return !strncmp(rest, json, strlen(json)) || !strncmp(rest, csv, strlen(csv));
}

/* Whether a complete line belongs to a step up to `step`, or is the first one of a CSV file. Shifts are the end of a
 * run, which is written again. A newline ends every comparison and number. */
static bool is_kept(const char *line, const char *newline, int64_t step, bool evaluates) {
  static const char begin[] = "{\"step\":";
  size_t n = sizeof begin - 1, size = (size_t)(newline + 1 - line);
  if (size == sizeof csv_header - 1 && !memcmp(line, csv_header, size)) return true;
  const char *number = !strncmp(line, begin, n) ? line + n : line;
  while (*number == ' ') number++;
  if (*number < '0' || *number > '9') return false;
  char *rest;
  int64_t at = strtoll(number, &rest, 10);
  if (at > step || (at == step && evaluates && is_event(rest, ", \"event\": \"eval\"", ",eval,"))) return false;
  return !is_event(rest, ", \"event\": \"shift\"", ",shift,");
}

kva_status kva_metrics_cut(const char *path, int64_t step, bool evaluates, kva_diag *diag) {
  kva_file file;
  kva_text kept = {0};
  struct stat st;
  if (stat(path, &st) || !S_ISREG(st.st_mode)) return KVA_OK; /* a pipe has no lines to take back */
  KVA_TRY(kva_file_map(path, diag, &file));
  const char *at = file.data, *end = at + file.size, *newline;
  for (; at < end && (newline = memchr(at, '\n', (size_t)(end - at))); at = newline + 1)
    if (is_kept(at, newline, step, evaluates)) kva_text_add_bytes(&kept, at, (size_t)(newline + 1 - at));
  size_t size = file.size;
  kva_file_unmap(&file);
  kva_status status = KVA_OK;
  if (kept.cut)
    status = kva_fail(diag, KVA_NO_MEMORY, &(kva_loc){.file = path}, "no memory for its first %zu bytes", size);
  else if (kept.len != size)
    status = kva_file_write(path, kept.data ? kept.data : "", kept.len, diag);
  kva_text_free(&kept);
  return status;
}
