/* See scorer.h. Texts of one call are padded on the right to the longest: rows after a text's end are computed and
 * dropped, and no row depends on later ones. */
#include "tools/eval/scorer.h"

#include "runtime/base/platform.h"
#include "runtime/sequences.h"

#include <math.h>
#include <stdlib.h>

enum {
  MAX_ROWS = 512,        /* of a chunk, over all texts */
  MAX_LOGITS = 16 << 20, /* of a chunk */
  MAX_OUTPUTS = 8,
  WORTH_SHARING = 16 /* tokens */
};

struct kva_scorer {
  kva_session *session;
  kva_language language;
  kva_sequences *blank;  /* one sequence without rows: copies of it are new sequences */
  kva_sequences *prefix; /* one sequence: what the texts have in common */
  kva_sequences *slots;  /* a sequence for each text */
  int n_slots;
  int64_t capacity; /* rows of `prefix` and `slots` */
  void *tokens;     /* of a chunk, in the model's type */
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

kva_status kva_scorer_create(kva_session *session, const kva_language *language, kva_diag *diag,
                             kva_scorer **out_scorer) {
  *out_scorer = NULL;
  kva_scorer *s = calloc(1, sizeof *s);
  if (!s) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a scorer");
  *s = (kva_scorer){.session = session, .language = *language};
  kva_status status = kva_sequences_create(session, 1, 1, diag, &s->blank);
  s->tokens = calloc(MAX_ROWS, sizeof(int64_t));
  if (status == KVA_OK && !s->tokens) status = kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a chunk of tokens");
  if (status == KVA_OK && kva_sequences_outputs(s->blank) > MAX_OUTPUTS)
    status = kva_fail(diag, KVA_UNSUPPORTED, NULL, "expected a model of at most %d outputs, found %d", MAX_OUTPUTS,
                      kva_sequences_outputs(s->blank));
  if (status == KVA_OK)
    *out_scorer = s;
  else
    kva_scorer_destroy(s);
  return status;
}

void kva_scorer_destroy(kva_scorer *s) {
  if (!s) return;
  kva_sequences_destroy(s->blank);
  kva_sequences_destroy(s->prefix);
  kva_sequences_destroy(s->slots);
  free(s->tokens);
  free(s);
}

/* Makes room for n sequences of `rows` rows. */
static kva_status reserve(kva_scorer *s, int n, int64_t rows, kva_diag *diag) {
  if (rows > s->capacity) {
    kva_sequences_destroy(s->prefix);
    kva_sequences_destroy(s->slots);
    s->prefix = s->slots = NULL;
    s->n_slots = 0;
    s->capacity = rows;
    KVA_TRY(kva_sequences_create(s->session, 1, rows, diag, &s->prefix));
  }
  if (n == s->n_slots) return KVA_OK;
  kva_sequences_destroy(s->slots);
  s->slots = NULL;
  s->n_slots = 0;
  KVA_TRY(kva_sequences_create(s->session, n, s->capacity, diag, &s->slots));
  s->n_slots = n;
  return KVA_OK;
}

static kva_status failed(const kva_scorer *s, kva_status status, kva_diag *diag) {
  return kva_fail(diag, status, NULL, "%s", kva_session_error(s->session));
}

static kva_status copy(kva_scorer *s, kva_sequences *to, int i, const kva_sequences *from, kva_diag *diag) {
  kva_status status = kva_sequences_copy(to, i, from, 0);
  return status == KVA_OK ? KVA_OK : failed(s, status, diag);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int64_t chunk_of(const kva_scorer *s, int n, int64_t left) {
  int64_t rows = MAX_ROWS / n, by_logits = MAX_LOGITS / (s->language.vocabulary * n);
  if (rows > by_logits) rows = by_logits;
  if (rows < 1) rows = 1;
  return rows < left ? rows : left;
}

static void put_token(kva_scorer *s, int64_t i, uint32_t token) {
  if (s->language.token_type == KVA_I32)
    ((int32_t *)s->tokens)[i] = (int32_t)token;
  else
    ((int64_t *)s->tokens)[i] = token;
}

/* Appends tokens [from, from + rows) of each text to its sequence. */
static kva_status append(kva_scorer *s, kva_sequences *to, int n, const kva_scored_text *texts, int64_t from,
                         int64_t rows, kva_diag *diag, const float **out_logits) {
  for (int i = 0; i < n; i++)
    for (int64_t t = 0; t < rows; t++)
      put_token(s, i * rows + t, from + t < texts[i].n ? texts[i].tokens[from + t] : 0);
  const kva_tensor in = {.dtype = s->language.token_type, .rank = 2, .dims = {n, rows}, .data = s->tokens};
  kva_tensor out[MAX_OUTPUTS] = {{0}};
  kva_status status = kva_sequences_append(to, &in, out);
  *out_logits = out[0].data;
  return status == KVA_OK ? KVA_OK : failed(s, status, diag);
}

static int64_t likeliest_of(const float *logits, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

static double log_probability(const float *logits, int64_t n, uint32_t token, float largest) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - largest);
  return (double)logits[token] - largest - log(sum);
}

/* Logits of the row of token t score token t + 1. */
static kva_status take_row(const kva_scorer *s, const kva_scored_text *text, int64_t t, const float *logits,
                           kva_diag *diag) {
  int64_t i = t + 1, vocabulary = s->language.vocabulary;
  if (i < text->first || i >= text->n) return KVA_OK;
  int64_t best = likeliest_of(logits, vocabulary);
  double p = text->log_p[i - text->first] = log_probability(logits, vocabulary, text->tokens[i], logits[best]);
  if (text->likeliest) text->likeliest[i - text->first] = best == text->tokens[i];
  if (!isnan(p)) return KVA_OK;
  return kva_fail(diag, KVA_NOT_FINITE, NULL, "the model's logits after %lld tokens are not numbers", (long long)i);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Rows whose input is the same in all texts, and whose logits some text may need. */
static int64_t common_rows(int n, const kva_scored_text *texts) {
  int64_t rows = texts[0].n - 1;
  for (int i = 1; i < n; i++) {
    int64_t same = 0;
    while (same < rows && same < texts[i].n - 1 && texts[i].tokens[same] == texts[0].tokens[same]) same++;
    rows = same;
  }
  return n > 1 && rows >= WORTH_SHARING ? rows : 0;
}

static int64_t longest(int n, const kva_scored_text *texts) {
  int64_t most = 0;
  for (int i = 0; i < n; i++) most = texts[i].n > most ? texts[i].n : most;
  return most;
}

static kva_status run_prefix(kva_scorer *s, int n, const kva_scored_text *texts, int64_t rows, kva_diag *diag) {
  KVA_TRY(copy(s, s->prefix, 0, s->blank, diag));
  for (int64_t from = 0, chunk; from < rows; from += chunk) {
    const float *logits;
    chunk = chunk_of(s, 1, rows - from);
    KVA_TRY(append(s, s->prefix, 1, texts, from, chunk, diag, &logits));
    for (int64_t t = 0; t < chunk; t++)
      for (int i = 0; i < n; i++) KVA_TRY(take_row(s, &texts[i], from + t, logits + t * s->language.vocabulary, diag));
  }
  return KVA_OK;
}

static kva_status run_rest(kva_scorer *s, int n, const kva_scored_text *texts, int64_t from, int64_t rows,
                           kva_diag *diag) {
  for (int i = 0; i < n; i++) KVA_TRY(copy(s, s->slots, i, s->prefix, diag));
  for (int64_t chunk; from < rows; from += chunk) {
    const float *logits;
    chunk = chunk_of(s, n, rows - from);
    KVA_TRY(append(s, s->slots, n, texts, from, chunk, diag, &logits));
    for (int i = 0; i < n; i++)
      for (int64_t t = 0; t < chunk; t++)
        KVA_TRY(take_row(s, &texts[i], from + t, logits + (i * chunk + t) * s->language.vocabulary, diag));
  }
  return KVA_OK;
}

kva_status kva_scorer_run(kva_scorer *s, int n, const kva_scored_text *texts, kva_diag *diag) {
  int64_t rows = longest(n, texts) - 1;
  if (rows < 1) return KVA_OK;
  int64_t common = common_rows(n, texts);
  KVA_TRY(reserve(s, n, rows, diag));
  KVA_TRY(run_prefix(s, n, texts, common, diag));
  return run_rest(s, n, texts, common, rows, diag);
}

kva_status kva_scorer_continue(kva_scorer *s, int64_t n, const uint32_t *tokens, int64_t count,
                               bool (*take)(void *user, uint32_t token), void *user, kva_diag *diag) {
  kva_scored_text text = {.tokens = tokens, .n = n, .first = n};
  const float *logits = NULL;
  KVA_TRY(reserve(s, 1, n + count, diag));
  KVA_TRY(copy(s, s->slots, 0, s->blank, diag));
  int64_t chunk = 0;
  for (int64_t from = 0; from < n; from += chunk) {
    chunk = chunk_of(s, 1, n - from);
    KVA_TRY(append(s, s->slots, 1, &text, from, chunk, diag, &logits));
  }
  for (int64_t i = 0; i < count; i++, chunk = 1) {
    uint32_t next = (uint32_t)likeliest_of(logits + (chunk - 1) * s->language.vocabulary, s->language.vocabulary);
    if (!take(user, next) || i + 1 == count) return KVA_OK;
    text = (kva_scored_text){.tokens = &next, .n = 1};
    KVA_TRY(append(s, s->slots, 1, &text, 0, 1, diag, &logits));
  }
  return KVA_OK;
}
