/* Metrics files and the HTML report. */
#include "runtime/report.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char path[] = "/tmp/kva-report-XXXXXX";

static int make_file(void **unused) {
  (void)unused;
  int fd = mkstemp(path);
  if (fd < 0) return -1;
  close(fd);
  return 0;
}

static int remove_file(void **unused) {
  (void)unused;
  return unlink(path);
}

static const char *const names[] = {"loss", "accuracy", "first \"repeat\""};

static kva_train_event event_at(int64_t step, bool evaluation, double values[3]) {
  values[0] = 5.0 / (double)step + 0.1 * evaluation;
  values[1] = (double)step / 1000;
  values[2] = step == 2 ? NAN : 1;
  return (kva_train_event){.step = step,
                           .steps = 1000,
                           .evaluation = evaluation,
                           .seconds = 0.5 * (double)step,
                           .lr = 1e-5 * (double)step,
                           .n = 3,
                           .names = names,
                           .values = values};
}

static void write_text(const char *text) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  assert_true(fputs(text, f) >= 0 && !fclose(f));
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

static void metrics_round_trip(void **unused) {
  (void)unused;
  double values[3];
  for (int part = 0; part < 2; part++) { /* a run and its resumption */
    kva_metrics *m;
    assert_int_equal(kva_metrics_create(path, part, NULL, &m), KVA_OK);
    for (int64_t step = 1 + 50 * part; step <= 50 + 50 * part; step++) {
      kva_train_event e = event_at(step, false, values);
      assert_int_equal(kva_metrics_add(m, &e, NULL), KVA_OK);
      e = event_at(step, true, values);
      if (step % 10 == 0) assert_int_equal(kva_metrics_add(m, &e, NULL), KVA_OK);
    }
    kva_metrics_destroy(m);
  }
  kva_history *h;
  assert_int_equal(kva_metrics_read(path, NULL, &h), KVA_OK);
  assert_int_equal(kva_history_count(h), 5 + 3);
  kva_series loss = kva_history_find(h, "loss", false), eval = kva_history_find(h, "loss", true);
  kva_series first = kva_history_find(h, names[2], false), lr = kva_history_find(h, "lr", false);
  assert_int_equal(loss.n, 100);
  assert_int_equal(eval.n, 10);
  assert_int_equal(kva_history_find(h, "nothing", true).n, 0);
  for (int i = 0; i < 100; i++) {
    assert_true(loss.steps[i] == i + 1 && loss.values[i] == 5.0 / (i + 1) && lr.values[i] == 1e-5 * (i + 1));
    assert_true(i == 1 ? isnan(first.values[i]) : first.values[i] == 1);
  }
  assert_true(eval.steps[9] == 100 && eval.values[9] == 5.0 / 100 + 0.1);
  kva_history_destroy(h);
}

static void a_line_is_json(void **unused) {
  (void)unused;
  double values[3];
  kva_metrics *m;
  assert_int_equal(kva_metrics_create(path, false, NULL, &m), KVA_OK);
  kva_train_event e = event_at(2, true, values);
  assert_int_equal(kva_metrics_add(m, &e, NULL), KVA_OK);
  kva_metrics_destroy(m);
  char line[512] = "";
  FILE *f = fopen(path, "r");
  assert_non_null(fgets(line, sizeof line, f));
  fclose(f);
  assert_string_equal(line, "{\"step\": 2, \"event\": \"eval\", \"loss\": 2.6, \"lr\": 2e-05, \"seconds\": 1.0, "
                            "\"metrics\": {\"accuracy\": 0.002, \"first \\\"repeat\\\"\": null}}\n");
}

static void strangers_are_tolerated_and_faults_are_not(void **unused) {
  (void)unused;
  kva_history *h;
  kva_diag *diag = kva_diag_create();
  write_text(
      "\n{\"step\": 1, \"loss\": 2, \"host\": \"a\\\"b\", \"deep\": {\"x\": 1}, \"ok\": true}\r\n{\"step\": 2, \"lo");
  assert_int_equal(kva_metrics_read(path, diag, &h), KVA_OK);
  assert_int_equal(kva_diag_errors(diag), 0);
  assert_int_equal(kva_diag_count(diag), 1);
  assert_int_equal(kva_history_find(h, "loss", false).n, 1);
  assert_int_equal(kva_history_find(h, "x", false).n, 0);
  kva_history_destroy(h);
  write_text("");
  assert_int_equal(kva_metrics_read(path, diag, &h), KVA_OK);
  assert_int_equal(kva_history_count(h), 0);
  kva_history_destroy(h);
  const char *const bad[] = {
      "{\n",
      "{}\n",
      "[1]\n",
      "{\"step\": 1} x\n",
      "{\"step\": one}\n",
      "{\"step\": null}\n",
      "{\"step\" 1}\n",
      "{\"step\": 1 \"loss\": 2}\n",
      "{\"step\": 1, \"a\": \"b\\\n",
      "{\"step\": 1, \"a\": {\"b\": {\"c\": {\"d\": {\"e\": {\"f\": {\"g\": {\"h\": {\"i\": {\"j\": "
      "{\"k\": {\"l\": {\"m\": {\"n\": {\"o\": {\"p\": {}}}}}}}}}}}}}}}}}\n"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    write_text(bad[i]);
    kva_diag_clear(diag);
    assert_int_equal(kva_metrics_read(path, diag, &h), KVA_INVALID);
    assert_null(h);
    kva_loc loc;
    kva_diag_message(diag, 0, NULL, &loc);
    assert_int_equal(loc.line, 1);
  }
  kva_metrics *m;
  assert_int_equal(kva_metrics_create("no/such/folder/x", false, diag, &m), KVA_IO);
  kva_diag_destroy(diag);
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

/* Tags balance, attributes are quoted, no stray '<' or '&'. */
static void check_well_formed(const char *s) {
  char open[64][16];
  int depth = 0;
  for (; *s; s++) {
    if (*s == '&') assert_true(strchr(s, ';') && strchr(s, ';') - s < 8);
    if (*s != '<') continue;
    const char *end = ++s;
    bool quoted = false;
    for (; *end && (quoted || *end != '>'); end++) {
      quoted ^= *end == '"';
      assert_true(*end != '<');
    }
    assert_int_equal(*end, '>');
    char tag[16] = "";
    size_t n = strcspn(s + (*s == '/'), " />");
    memcpy(tag, s + (*s == '/'), n < 15 ? n : 15);
    if (*s == '/') {
      assert_true(depth > 0);
      assert_string_equal(open[--depth], tag);
    } else if (*s != '!' && end[-1] != '/') {
      assert_true(depth < 64);
      strcpy(open[depth++], tag);
    }
    s = end;
  }
  assert_int_equal(depth, 0);
}

static kva_history *make_history(int64_t steps) {
  kva_history *h = kva_history_create();
  double values[3];
  for (int64_t step = 1; step <= steps; step++) {
    kva_train_event e = event_at(step, false, values);
    assert_int_equal(kva_history_add(h, &e), KVA_OK);
    e = event_at(step, true, values);
    if (step % 100 == 0) assert_int_equal(kva_history_add(h, &e), KVA_OK);
  }
  return h;
}

static int count(const char *text, const char *what) {
  int n = 0;
  for (; (text = strstr(text, what)); text++) n++;
  return n;
}

static void report_contains_its_data(void **unused) {
  (void)unused;
  kva_history *a = make_history(1000), *b = make_history(300);
  const kva_report_shift shifts[] = {{"block.0 & co", 0, 0.03125, 2.25, 3.5, -0.125}, {"block.0 & co", 1, 0, 1, 1, 0}};
  const kva_report_run runs[] = {
      {.name = "KV <shift>", .history = a, .n_shifts = 2, .shifts = shifts, .items = 2048, .unit = "tokens"},
      {.name = "vanilla", .history = b, .items = 2048, .unit = "tokens"}};
  const kva_report_item config[] = {{"learning rate", "2e-3 \"quoted\""}};
  const kva_report_time times[] = {{.name = "step <one>", .seconds = 0.25, .calls = 1000},
                                   {"step two", 1.5, 1000, .flops = 3e9, .bytes = 6e9}};
  const kva_memory_report memory = {.params = 4096, .moments = 8192, .temps = 3 << 20};
  const kva_report_moment moments[] = {{"first", 1 << 20}, {"matmul <peak>", 2 << 20}, {"last", 0}};
  const kva_report_claim claims[] = {{"A <claim>", "yes", "0.5 > 0.25", true}, {"another", NULL, "1 < 0", false}};
  const char *const figures[] = {"<figure>a figure</figure>"};
  const kva_report r = {.title = "A & B",
                        .n_runs = 2,
                        .runs = runs,
                        .n_config = 1,
                        .config = config,
                        .n_times = 2,
                        .times = times,
                        .memory = &memory,
                        .n_moments = 3,
                        .moments = moments,
                        .source = "Figure <1>",
                        .n_claims = 2,
                        .claims = claims,
                        .n_figures = 1,
                        .figures = figures};
  assert_int_equal(kva_report_write(path, &r, NULL), KVA_OK);
  kva_text text = {0};
  kva_report_print(&r, &text);
  check_well_formed(text.data);
  const char *const expected[] = {"<title>A &amp; B</title>",
                                  "KV &lt;shift&gt;",
                                  "block.0 &amp; co",
                                  "<td>2.250</td>",
                                  "<td>-0.125</td>",
                                  "finds the token before, reads this one: induction",
                                  "2e-3 &quot;quoted&quot;",
                                  "step &lt;one&gt;",
                                  "<p>Figure &lt;1&gt;</p>",
                                  "A &lt;claim&gt;",
                                  "text holds\">holds",
                                  "text fails\">failed",
                                  "a figure",
                                  "3.00 MiB",
                                  "8.00 KiB",
                                  "prefers-color-scheme:dark",
                                  "vanilla, evaluation, step 300",
                                  "tokens a second",
                                  "<td>2</td><td>4</td>", /* GFLOP/s, GB/s */
                                  "planned: arena and all else",
                                  "step 1, matmul &lt;peak&gt;: 2.00 MiB of temporaries, 2.01 MiB in all"};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
    if (!strstr(text.data, expected[i])) fail_msg("'%s' is missing", expected[i]);
  const char *const unwanted[] = {"<script", "http", "src=", "@import", "url(", "nan", ">inf", "-inf"};
  for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
    if (strstr(text.data, unwanted[i])) fail_msg("'%s' does not belong here", unwanted[i]);
  assert_int_equal(count(text.data, "<svg"), 4 + 2 + 2);
  assert_int_equal(count(text.data, "class=\"point"), 2 * 2);
  FILE *f = fopen(path, "r");
  fseek(f, 0, SEEK_END);
  assert_int_equal(ftell(f), text.len);
  fclose(f);
  kva_text_free(&text);
  kva_history_destroy(a);
  kva_history_destroy(b);
}

static kva_series only_loss(const kva_history *h) {
  kva_series s = kva_history_find(h, "loss", false);
  assert_int_equal(kva_history_count(h), 3); /* loss, lr, seconds */
  return s;
}

static void add_loss(kva_history *h, int64_t step, double loss) {
  static const char *const only[] = {"loss"};
  kva_train_event e = {.step = step, .n = 1, .names = only, .values = &loss};
  assert_int_equal(kva_history_add(h, &e), KVA_OK);
}

/* A mean has the steps that all have, with the range of the values there. */
static void means_of_histories(void **unused) {
  (void)unused;
  kva_history *h[2] = {kva_history_create(), kva_history_create()};
  for (int64_t step = 1; step <= 4; step++) add_loss(h[0], step, (double)step);
  for (int64_t step = 2; step <= 6; step += 2) add_loss(h[1], step, 10);
  const kva_report_shift shift = {"layer", 0, 1, 2, 3, 4};
  assert_int_equal(kva_history_add_shift(h[0], &shift), KVA_OK);
  kva_history *mean = kva_history_mean(2, (const kva_history *const *)h);
  assert_non_null(mean);
  kva_series s = only_loss(mean);
  assert_int_equal(s.n, 2);
  assert_true(s.steps[0] == 2 && s.values[0] == 6 && s.low[0] == 2 && s.high[0] == 10);
  assert_true(s.steps[1] == 4 && s.values[1] == 7 && s.low[1] == 4 && s.high[1] == 10);
  const kva_report_shift *shifts;
  assert_int_equal(kva_history_shifts(mean, &shifts), 1);
  const kva_report_run run = {.name = "both", .history = mean};
  kva_text text = {0};
  kva_report_print(&(kva_report){.title = "t", .n_runs = 1, .runs = &run}, &text);
  check_well_formed(text.data);
  assert_non_null(strstr(text.data, "class=\"band c0\""));
  assert_null(strstr(text.data, "evaluation loss")); /* no column without a value */
  kva_text_free(&text);
  kva_history_destroy(mean);
  kva_history_destroy(h[0]);
  kva_history_destroy(h[1]);
}

/* Shift scalars and a loss that is not finite pass through the file; a later value replaces an earlier one. */
static void ends_of_runs(void **unused) {
  (void)unused;
  kva_metrics *m;
  kva_history *h;
  const kva_report_shift first = {"a \"b\"", 1, 0.5, 0.25, -1, 2}, later = {"a \"b\"", 1, 0.75, 0.25, -1, 2};
  assert_int_equal(kva_metrics_create(path, false, NULL, &m), KVA_OK);
  assert_int_equal(kva_metrics_add_shift(m, 3, &first, NULL), KVA_OK);
  assert_int_equal(kva_metrics_add_shift(m, 5, &later, NULL), KVA_OK);
  assert_int_equal(kva_metrics_add_not_finite(m, 6, NULL), KVA_OK);
  kva_metrics_destroy(m);
  assert_int_equal(kva_metrics_read(path, NULL, &h), KVA_OK);
  const kva_report_shift *shifts;
  assert_int_equal(kva_history_shifts(h, &shifts), 1);
  assert_string_equal(shifts[0].layer, "a \"b\"");
  assert_true(shifts[0].head == 1 && shifts[0].k_current == 0.75 && shifts[0].v_previous == 2);
  kva_series loss = kva_history_find(h, "loss", false);
  assert_true(loss.n == 1 && loss.steps[0] == 6 && isinf(loss.values[0]));
  kva_history_destroy(h);
}

/* A run that is resumed at step 3 writes what comes after, the shifts at its end, and here the evaluation. */
static void ends_are_cut(void **unused) {
  (void)unused;
  static const char json[] = "{\"step\": 3, \"event\": \"step\", \"loss\": 1}\n";
  static const char csv[] = "step,event,name,value\n3,step,\"loss\",1\n";
  char text[400];
  for (int is_csv = 0; is_csv < 2; is_csv++) {
    snprintf(text, sizeof text, "%s%s", is_csv ? csv : json,
             is_csv ? "3,eval,\"loss\",1\n3,shift,\"a.0.k_current\",1\n4,step,\"loss\",1\n4,st"
                    : "{\"step\": 3, \"event\": \"eval\"}\n{\"step\": 3, \"event\": \"shift\", \"layer\": "
                      "\"a\"}\n{\"step\": 4, \"event\": \"step\"}\n{\"st");
    write_text(text);
    assert_int_equal(kva_metrics_cut(path, 3, true, NULL), KVA_OK);
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    assert_string_equal(text, is_csv ? csv : json);
  }
}

/* Curves that tempt arithmetic: empty, one point, constant, infinite, huge, negative. */
static void odd_curves_do_not_break_the_page(void **unused) {
  (void)unused;
  const double curves[][4] = {{NAN, NAN, NAN, NAN},   {7, 7, 7, 7},
                              {0, 0, 0, 0},           {1, INFINITY, 2, NAN},
                              {-1e308, 1e308, 0, 1},  {1e-300, 2e-300, 0, 1e-300},
                              {-5, -4, -3, -1000000}, {1e20, 1e20, 1e20, 1e20}};
  for (size_t i = 0; i < sizeof curves / sizeof *curves; i++) {
    kva_history *h = kva_history_create();
    for (int k = 0; k < 4; k++) {
      kva_train_event e = {.step = k + 1, .n = 1, .names = names, .values = &curves[i][k], .lr = curves[i][k]};
      assert_int_equal(kva_history_add(h, &e), KVA_OK);
    }
    const kva_report_shift shift = {"x", 0, curves[i][0], curves[i][1], curves[i][2], curves[i][3]};
    const kva_report_run run = {.name = "run", .history = h, .n_shifts = 1, .shifts = &shift};
    kva_text text = {0};
    kva_report_print(&(kva_report){.title = "t", .n_runs = 1, .runs = &run}, &text);
    check_well_formed(text.data);
    assert_null(strstr(text.data, "=\"nan"));
    assert_null(strstr(text.data, "=\"-nan"));
    assert_null(strstr(text.data, "=\"inf"));
    assert_true(text.len < 100000);
    kva_text_free(&text);
    kva_history_destroy(h);
  }
  kva_history *empty = kva_history_create();
  const kva_report_run run = {.name = "run", .history = empty};
  kva_text text = {0};
  kva_report_print(&(kva_report){.title = "t", .n_runs = 1, .runs = &run}, &text);
  check_well_formed(text.data);
  kva_text_free(&text);
  kva_history_destroy(empty);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(metrics_round_trip),
      cmocka_unit_test(a_line_is_json),
      cmocka_unit_test(strangers_are_tolerated_and_faults_are_not),
      cmocka_unit_test(report_contains_its_data),
      cmocka_unit_test(means_of_histories),
      cmocka_unit_test(ends_of_runs),
      cmocka_unit_test(ends_are_cut),
      cmocka_unit_test(odd_curves_do_not_break_the_page),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
