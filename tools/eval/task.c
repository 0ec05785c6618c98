/* Scores items. Texts of an item are scored together, so that a context that they share is computed once. */
#include "tools/eval/task.h"

#include "runtime/base/platform.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

const char *const kva_measure_names[KVA_MEASURES] = {"accuracy", "accuracy_by_tokens", "accuracy_by_bytes", "loss",
                                                     "exact_match"};

typedef struct run {
  const kva_task_run *r;
  const kva_items *items;
  kva_diag *diag;
  kva_token_ids begin; /* tokens before every text */
  int64_t n;           /* items that are evaluated */
  double *values[KVA_MEASURES];
  int64_t counts[KVA_MEASURES];
  int64_t cut;
} run;

static void measured(run *s, kva_measure m, double value) {
  s->values[m][s->counts[m]++] = value;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* Whether item i is an example for `of`. */
static bool fits(const kva_items *pool, uint32_t i, const kva_item *of) {
  return &pool->list.data[i] != of && !strcmp(pool->list.data[i].group, of->group);
}

static void add_example(const kva_item *example, kva_text *out) {
  const kva_item_text *t = &example->texts[example->right];
  kva_text_add(out, "%s%s\n\n", t->context, t->continuation);
}

/* The first items of the pool, or items drawn by number of the item, seed and draw. */
static kva_status add_examples(const run *s, const kva_item *item, uint64_t number, kva_text *out) {
  const kva_items *pool = s->r->pool ? s->r->pool : s->items;
  int64_t found = 0;
  bool *used = calloc(pool->list.len, sizeof *used);
  uint64_t tries = (uint64_t)pool->list.len * (s->r->pool ? 1 : 32);
  for (uint64_t k = 0; used && k < tries && found < s->r->shots; k++) {
    uint64_t drawn = kva_philox4x32(k, number, s->r->seed).v[0];
    uint32_t i = (uint32_t)(s->r->pool ? k : drawn % pool->list.len);
    if (used[i] || !fits(pool, i, item)) continue;
    used[i] = true;
    add_example(&pool->list.data[i], out);
    found++;
  }
  free(used);
  if (found == s->r->shots) return KVA_OK;
  return kva_error(s->diag, &item->loc, "--shots %lld: found %lld other items%s%s to show before this one",
                   (long long)s->r->shots, (long long)found, *item->group ? " of subject " : "", item->group);
}

static kva_status encode(const run *s, const char *before, const char *text, const char *after, kva_token_ids *out) {
  kva_text all = {0};
  int64_t replaced;
  kva_text_add(&all, "%s%s%s", before, text, after);
  kva_token_ids ids = {0};
  kva_status status = kva_tokenizer_encode(s->r->tokenizer, all.data, all.len, s->diag, &ids, &replaced);
  int64_t n = s->begin.n + ids.n;
  *out = (kva_token_ids){.data = calloc((size_t)n + 1, sizeof *ids.data), .n = n, .capacity = n + 1};
  if (out->data && s->begin.n) memcpy(out->data, s->begin.data, (size_t)s->begin.n * sizeof *ids.data);
  if (out->data && ids.n) memcpy(out->data + s->begin.n, ids.data, (size_t)ids.n * sizeof *ids.data);
  if (status == KVA_OK && !out->data) status = kva_fail(s->diag, KVA_NO_MEMORY, NULL, "no memory for a text");
  free(ids.data);
  kva_text_free(&all);
  return status;
}

/* How many tokens a text loses at its beginning, of the `before` ones in front of what is asked for, so that the model
 * reads at most --context of them and has positions for all that it reads. */
static kva_status cut(run *s, const kva_item *item, int64_t before, int64_t reads, int64_t *out_lost) {
  int64_t lost = s->r->context && before > s->r->context ? before - s->r->context : 0;
  if (reads - lost > s->r->positions) lost = reads - s->r->positions;
  s->cut += lost > 0;
  *out_lost = lost;
  if (lost < before) return KVA_OK;
  return kva_error(s->diag, &item->loc, "the model has positions for %lld tokens: too few for what follows the context",
                   (long long)s->r->positions);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

typedef struct scored {
  kva_token_ids ids;
  kva_scored_text text;
  double log_p; /* of the continuation */
  bool chosen;  /* every token of it is the likeliest */
} scored;

/* The continuation is what follows the tokens that context and whole text have in common. */
static kva_status prepare(run *s, const kva_item *item, const char *before, const kva_item_text *t, scored *out) {
  kva_token_ids context;
  kva_status status = encode(s, before, t->context, "", &context);
  if (status == KVA_OK) status = encode(s, before, t->context, t->continuation, &out->ids);
  int64_t first = 0, n = out->ids.n;
  while (first < context.n && first < n && context.data[first] == out->ids.data[first]) first++;
  free(context.data);
  KVA_TRY(status);
  if (!first || first == n)
    return kva_error(s->diag, &item->loc, "expected %s",
                     first ? "a continuation of at least one token" : "a context of at least one token");
  int64_t lost;
  KVA_TRY(cut(s, item, first, n - 1, &lost));
  out->text = (kva_scored_text){.tokens = out->ids.data + lost, .n = n - lost, .first = first - lost};
  out->text.log_p = calloc((size_t)(n - first), sizeof *out->text.log_p);
  out->text.likeliest = calloc((size_t)(n - first), sizeof *out->text.likeliest);
  if (out->text.log_p && out->text.likeliest) return KVA_OK;
  return kva_fail(s->diag, KVA_NO_MEMORY, NULL, "no memory for a text");
}

static kva_status score_all(run *s, const kva_item *item, const char *before, scored *texts, kva_scored_text *plain) {
  for (uint32_t i = 0; i < item->n; i++) {
    KVA_TRY(prepare(s, item, before, &item->texts[i], &texts[i]));
    plain[i] = texts[i].text;
  }
  KVA_TRY(kva_scorer_run(s->r->scorer, (int)item->n, plain, s->diag));
  for (uint32_t i = 0; i < item->n; i++) {
    texts[i].chosen = true;
    for (int64_t k = 0; k < plain[i].n - plain[i].first; k++) {
      texts[i].log_p += plain[i].log_p[k];
      texts[i].chosen &= plain[i].likeliest[k];
    }
  }
  return KVA_OK;
}

static uint32_t best_of(const scored *texts, const kva_item *item, kva_measure by) {
  uint32_t best = 0;
  double highest = -INFINITY;
  for (uint32_t i = 0; i < item->n; i++) {
    double size = by == KVA_MEASURE_BY_TOKENS  ? (double)(texts[i].text.n - texts[i].text.first)
                  : by == KVA_MEASURE_BY_BYTES ? (double)strlen(item->texts[i].continuation)
                                               : 1;
    if (texts[i].log_p / size <= highest) continue;
    best = i;
    highest = texts[i].log_p / size;
  }
  return best;
}

static void put_details(const run *s, json_t *object) {
  if (!s->r->details) return;
  json_dumpf(object, s->r->details, JSON_COMPACT | JSON_REAL_PRECISION(17));
  fputc('\n', s->r->details);
}

static void describe(const run *s, const kva_item *item, const scored *texts) {
  if (!s->r->details) return;
  json_t *object =
      json_pack("{s:s, s:i, s:[], s:[]}", "file", item->loc.file, "line", (int)item->loc.line, "log_p", "tokens");
  for (uint32_t i = 0; i < item->n; i++) {
    json_t *log_p = json_real(texts[i].log_p); /* NULL: a probability of zero */
    json_array_append_new(json_object_get(object, "log_p"), log_p ? log_p : json_null());
    json_array_append_new(json_object_get(object, "tokens"), json_integer(texts[i].text.n - texts[i].text.first));
  }
  if (item->kind == KVA_ITEM_CHOICE) {
    json_object_set_new(object, "chosen", json_integer(best_of(texts, item, KVA_MEASURE_ACCURACY)));
    json_object_set_new(object, "answer", json_integer(item->right));
  }
  put_details(s, object);
  json_decref(object);
}

static void measure(run *s, const kva_item *item, const scored *texts) {
  if (item->kind == KVA_ITEM_TARGET) {
    measured(s, KVA_MEASURE_ACCURACY, texts->chosen);
    measured(s, KVA_MEASURE_LOSS, -texts->log_p);
  } else {
    for (int m = KVA_MEASURE_ACCURACY; m <= KVA_MEASURE_BY_BYTES; m++)
      measured(s, (kva_measure)m, best_of(texts, item, (kva_measure)m) == item->right);
  }
  describe(s, item, texts);
}

static kva_status score_texts(run *s, const kva_item *item, const char *before) {
  scored *texts = calloc(item->n, sizeof *texts);
  kva_scored_text *plain = calloc(item->n, sizeof *plain);
  kva_status status = texts && plain ? score_all(s, item, before, texts, plain)
                                     : kva_fail(s->diag, KVA_NO_MEMORY, NULL, "no memory for an item");
  if (status == KVA_OK) measure(s, item, texts);
  for (uint32_t i = 0; texts && i < item->n; i++) {
    free(texts[i].ids.data);
    free(texts[i].text.log_p);
    free(texts[i].text.likeliest);
  }
  free(texts);
  free(plain);
  return status;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

typedef struct writing {
  const kva_tokenizer *tokenizer;
  const char *stop;
  kva_text text;
} writing;

static bool take_token(void *user, uint32_t token) {
  writing *w = user;
  if (kva_tokenizer_ends(w->tokenizer, token)) return false;
  kva_tokenizer_decode(w->tokenizer, token, &w->text);
  char *stop = w->text.data && *w->stop ? strstr(w->text.data, w->stop) : NULL;
  if (stop) *stop = 0;
  return !stop;
}

static kva_status write_answer(run *s, const kva_item *item, const char *before) {
  writing w = {.tokenizer = s->r->tokenizer, .stop = item->stop};
  kva_token_ids prompt;
  kva_status status = encode(s, before, item->texts->context, "", &prompt);
  int64_t lost = 0;
  if (status == KVA_OK && !prompt.n)
    status = kva_error(s->diag, &item->loc, "expected a context of at least one token");
  if (status == KVA_OK) status = cut(s, item, prompt.n, prompt.n + s->r->answer_tokens - 1, &lost);
  if (status == KVA_OK)
    status = kva_scorer_continue(s->r->scorer, prompt.n - lost, prompt.data + lost, s->r->answer_tokens, take_token, &w,
                                 s->diag);
  const char *written = w.text.data ? w.text.data : "";
  bool right = false;
  for (uint32_t i = 0; i < item->n; i++)
    right |= kva_same_answer(written, item->texts[i].continuation, item->mathematics);
  if (status == KVA_OK) measured(s, KVA_MEASURE_EXACT, right);
  if (status == KVA_OK && s->r->details) {
    json_t *text = json_string(written), /* NULL: no UTF-8 */
        *object = json_pack("{s:s, s:i, s:o, s:b}", "file", item->loc.file, "line", (int)item->loc.line, "written",
                            text ? text : json_null(), "right", right);
    put_details(s, object);
    json_decref(object);
  }
  kva_text_free(&w.text);
  free(prompt.data);
  return status;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static kva_status evaluate_item(run *s, int64_t number) {
  const kva_item *item = &s->items->list.data[number];
  kva_text before = {0};
  kva_text_add(&before, "%s", item->intro);
  kva_status status = s->r->shots ? add_examples(s, item, (uint64_t)number, &before) : KVA_OK;
  if (status == KVA_OK)
    status = item->kind == KVA_ITEM_ANSWER ? write_answer(s, item, before.data) : score_texts(s, item, before.data);
  kva_text_free(&before);
  return status;
}

/* What the tokenizer puts before a text, else the token that ends documents: an earlier one has ended. */
static void find_begin(run *s) {
  kva_tokenizer_begin(s->r->tokenizer, &s->begin);
  int64_t end = kva_tokenizer_end(s->r->tokenizer);
  if (!s->begin.n && end >= 0 && end < s->r->vocabulary) kva_token_ids_add(&s->begin, (uint32_t)end);
}

static kva_status evaluate(run *s, kva_task_score *out) {
  for (int m = 0; m < KVA_MEASURES; m++)
    if (!(s->values[m] = calloc((size_t)s->n, sizeof(double))))
      return kva_fail(s->diag, KVA_NO_MEMORY, NULL, "no memory for the results of %lld items", (long long)s->n);
  double printed = 0;
  for (int64_t i = 0; i < s->n; i++) {
    KVA_TRY(evaluate_item(s, i));
    double now = kva_now();
    if (!s->r->progress || now - printed < 0.2) continue;
    fprintf(stderr, "\r\033[K%lld of %lld items", (long long)i + 1, (long long)s->n);
    printed = now;
  }
  *out = (kva_task_score){.items = s->n, .cut = s->cut};
  for (int m = 0; m < KVA_MEASURES; m++)
    out->of[m] = kva_bootstrap(s->counts[m], s->values[m], s->r->resamples, s->r->seed);
  return KVA_OK;
}

kva_status kva_task_evaluate(const kva_task_run *r, const kva_items *items, kva_diag *diag, kva_task_score *out) {
  run s = {.r = r, .items = items, .diag = diag, .n = items->list.len};
  if (r->limit && r->limit < s.n) s.n = r->limit;
  find_begin(&s);
  kva_status status = evaluate(&s, out);
  if (r->progress) fprintf(stderr, "\r\033[K");
  for (int m = 0; m < KVA_MEASURES; m++) free(s.values[m]);
  free(s.begin.data);
  return status;
}
