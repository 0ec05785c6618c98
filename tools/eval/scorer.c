/* See scorer.h. What texts have in common is a sequence, which their own begin as forks of. */
#include "tools/eval/scorer.h"

#include "runtime/base/platform.h"
#include "runtime/sequences.h"

#include <math.h>
#include <stdlib.h>

enum {
  MAX_ROWS = 512,        /* of a chunk, over all texts */
  MAX_LOGITS = 16 << 20, /* of a chunk */
  WORTH_SHARING = 16     /* tokens */
};

/* A text's sequence, and the chunk of it that runs. */
typedef struct slot {
  int64_t sequence, rows; /* of the chunk */
  kva_tensor input, *outputs;
  float *logits;
} slot;

struct kva_scorer {
  kva_session *session;
  kva_language language;
  kva_sequences *sequences;
  int64_t longest;
  int n_slots; /* the last one is of what texts have in common */
  slot *slots;
  kva_sequence_rows *rows; /* [n_slots] */
  kva_tensor *outputs;     /* [n_slots][outputs of the model] */
  void *tokens;            /* of a chunk, in the model's type */
  float *logits;
  int64_t room; /* floats of logits */
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static kva_status no_memory(kva_diag *diag) {
  return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a scorer");
}

static void clear(kva_scorer *s) {
  kva_sequences_destroy(s->sequences);
  free(s->slots);
  free(s->rows);
  free(s->outputs);
  free(s->tokens);
  free(s->logits);
  *s = (kva_scorer){.session = s->session, .language = s->language};
}

static kva_status allocate(kva_scorer *s, int n, int64_t longest, kva_diag *diag) {
  const kva_sequences_options options = {.longest = longest, .sequences = n + 1};
  clear(s);
  KVA_TRY(kva_sequences_create(s->session, &options, diag, &s->sequences));
  size_t slots = (size_t)n + 1, outputs = (size_t)kva_sequences_outputs(s->sequences);
  s->slots = calloc(slots, sizeof *s->slots);
  s->rows = calloc(slots, sizeof *s->rows);
  s->outputs = calloc(slots * outputs, sizeof *s->outputs);
  s->tokens = calloc(MAX_ROWS + slots, sizeof(int64_t));
  if (!s->slots || !s->rows || !s->outputs || !s->tokens) return no_memory(diag);
  for (size_t i = 0; i < slots; i++) s->slots[i].outputs = s->outputs + i * outputs;
  s->n_slots = n + 1, s->longest = longest;
  return KVA_OK;
}

kva_status kva_scorer_create(kva_session *session, const kva_language *language, kva_diag *diag,
                             kva_scorer **out_scorer) {
  *out_scorer = NULL;
  kva_scorer *s = calloc(1, sizeof *s);
  if (!s) return no_memory(diag);
  *s = (kva_scorer){.session = session, .language = *language};
  kva_status status = allocate(s, 1, 1, diag);
  if (status == KVA_OK)
    *out_scorer = s;
  else
    kva_scorer_destroy(s);
  return status;
}

void kva_scorer_destroy(kva_scorer *s) {
  if (!s) return;
  clear(s);
  free(s);
}

/* Makes room for n sequences of `rows` rows beside what they have in common. */
static kva_status reserve(kva_scorer *s, int n, int64_t rows, kva_diag *diag) {
  if (rows <= s->longest && n < s->n_slots) return KVA_OK;
  return allocate(s, n < s->n_slots ? s->n_slots - 1 : n, rows > s->longest ? rows : s->longest, diag);
}

static kva_status report(const kva_scorer *s, kva_status status, kva_diag *diag) {
  return status == KVA_OK ? status : kva_fail(diag, status, NULL, "%s", kva_session_error(s->session));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int64_t chunk_of(const kva_scorer *s, int n, int64_t left) {
  int64_t rows = MAX_ROWS / n, by_logits = MAX_LOGITS / (s->language.vocabulary * n);
  if (rows > by_logits) rows = by_logits;
  if (rows < 1) rows = 1;
  return rows < left ? rows : left;
}

static kva_status make_room(kva_scorer *s, int64_t rows, kva_diag *diag) {
  int64_t floats = rows * s->language.vocabulary;
  if (floats <= s->room) return KVA_OK;
  free(s->logits);
  s->logits = malloc((size_t)floats * sizeof *s->logits);
  s->room = s->logits ? floats : 0;
  return s->logits ? KVA_OK : no_memory(diag);
}

static void put_token(kva_scorer *s, int64_t i, uint32_t token) {
  if (s->language.token_type == KVA_I32)
    ((int32_t *)s->tokens)[i] = (int32_t)token;
  else
    ((int64_t *)s->tokens)[i] = token;
}

/* Tokens [from, from + rows) of a text, as far as it has them, behind `at` tokens of the chunk. */
static void fill_slot(kva_scorer *s, slot *k, const kva_scored_text *text, int64_t from, int64_t rows, int64_t at) {
  k->rows = text->n - from < rows ? text->n - from : rows;
  if (k->rows < 0) k->rows = 0;
  for (int64_t t = 0; t < k->rows; t++) put_token(s, at + t, text->tokens[from + t]);
  size_t size = (size_t)kva_dtype_bits(s->language.token_type) / 8;
  k->input = (kva_tensor){.dtype = s->language.token_type, .rank = 2, .dims = {1, k->rows}};
  k->input.data = (char *)s->tokens + (size_t)at * size;
  k->outputs[0].data = k->logits = s->logits + at * s->language.vocabulary;
}

/* Appends tokens [from, from + rows) of each text to its slot's sequence. */
static kva_status append(kva_scorer *s, slot *slots, int n, const kva_scored_text *texts, int64_t from, int64_t rows,
                         kva_diag *diag) {
  KVA_TRY(make_room(s, n * rows, diag));
  for (int i = 0; i < n; i++) {
    slot *k = &slots[i];
    fill_slot(s, k, &texts[i], from, rows, i * rows);
    s->rows[i] = (kva_sequence_rows){k->sequence, k->rows, &k->input, k->rows, k->outputs};
  }
  return report(s, kva_sequences_append(s->sequences, n, s->rows), diag);
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

static kva_status no_numbers(int64_t tokens, kva_diag *diag) {
  return kva_fail(diag, KVA_NOT_FINITE, NULL, "the model's logits after %lld tokens are not numbers",
                  (long long)tokens);
}

/* Logits of the row of token t score token t + 1. */
static kva_status take_row(const kva_scorer *s, const kva_scored_text *text, int64_t t, const float *logits,
                           kva_diag *diag) {
  int64_t i = t + 1, vocabulary = s->language.vocabulary;
  if (i < text->first || i >= text->n) return KVA_OK;
  int64_t best = likeliest_of(logits, vocabulary);
  double p = text->log_p[i - text->first] = log_probability(logits, vocabulary, text->tokens[i], logits[best]);
  if (text->likeliest) text->likeliest[i - text->first] = best == text->tokens[i];
  return isnan(p) ? no_numbers(i, diag) : KVA_OK;
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

static slot *common_slot(const kva_scorer *s) {
  return &s->slots[s->n_slots - 1];
}

static kva_status run_prefix(kva_scorer *s, int n, const kva_scored_text *texts, int64_t rows, kva_diag *diag) {
  slot *k = common_slot(s);
  for (int64_t from = 0, chunk; from < rows; from += chunk) {
    chunk = chunk_of(s, 1, rows - from);
    KVA_TRY(append(s, k, 1, texts, from, chunk, diag));
    for (int64_t t = 0; t < chunk; t++)
      for (int i = 0; i < n; i++)
        KVA_TRY(take_row(s, &texts[i], from + t, k->logits + t * s->language.vocabulary, diag));
  }
  return KVA_OK;
}

static kva_status run_rest(kva_scorer *s, int n, const kva_scored_text *texts, int64_t from, int64_t rows,
                           kva_diag *diag) {
  for (int64_t chunk; from < rows; from += chunk) {
    chunk = chunk_of(s, n, rows - from);
    KVA_TRY(append(s, s->slots, n, texts, from, chunk, diag));
    for (int i = 0; i < n; i++)
      for (int64_t t = 0; t < s->slots[i].rows; t++)
        KVA_TRY(take_row(s, &texts[i], from + t, s->slots[i].logits + t * s->language.vocabulary, diag));
  }
  return KVA_OK;
}

static kva_status run_texts(kva_scorer *s, int n, const kva_scored_text *texts, int64_t rows, kva_diag *diag) {
  int64_t common = common_rows(n, texts);
  KVA_TRY(report(s, kva_sequences_add(s->sequences, &common_slot(s)->sequence), diag));
  KVA_TRY(run_prefix(s, n, texts, common, diag));
  for (int i = 0; i < n; i++)
    KVA_TRY(report(s, kva_sequences_fork(s->sequences, common_slot(s)->sequence, &s->slots[i].sequence), diag));
  return run_rest(s, n, texts, common, rows, diag);
}

static void end_sequences(kva_scorer *s) {
  for (int i = 0; i < s->n_slots; i++) kva_sequences_remove(s->sequences, i);
}

kva_status kva_scorer_run(kva_scorer *s, int n, const kva_scored_text *texts, kva_diag *diag) {
  int64_t rows = longest(n, texts) - 1;
  if (rows < 1) return KVA_OK;
  KVA_TRY(reserve(s, n, rows + 1, diag));
  kva_status status = run_texts(s, n, texts, rows, diag);
  end_sequences(s);
  return status;
}

static kva_status continue_text(kva_scorer *s, int64_t n, const uint32_t *tokens, int64_t count,
                                bool (*take)(void *user, uint32_t token), void *user, kva_diag *diag) {
  kva_scored_text text = {.tokens = tokens, .n = n, .first = n};
  slot *k = &s->slots[0];
  KVA_TRY(report(s, kva_sequences_add(s->sequences, &k->sequence), diag));
  for (int64_t from = 0; from < n; from += k->rows)
    KVA_TRY(append(s, k, 1, &text, from, chunk_of(s, 1, n - from), diag));
  for (int64_t i = 0; i < count; i++) {
    const float *last = k->logits + (k->rows - 1) * s->language.vocabulary;
    uint32_t next = (uint32_t)likeliest_of(last, s->language.vocabulary);
    if (isnan(log_probability(last, s->language.vocabulary, next, last[next]))) return no_numbers(n + i, diag);
    if (!take(user, next) || i + 1 == count) return KVA_OK;
    text = (kva_scored_text){.tokens = &next, .n = 1};
    KVA_TRY(append(s, k, 1, &text, 0, 1, diag));
  }
  return KVA_OK;
}

kva_status kva_scorer_continue(kva_scorer *s, int64_t n, const uint32_t *tokens, int64_t count,
                               bool (*take)(void *user, uint32_t token), void *user, kva_diag *diag) {
  KVA_TRY(reserve(s, 1, n + count, diag));
  kva_status status = continue_text(s, n, tokens, count, take, user, diag);
  end_sequences(s);
  return status;
}
