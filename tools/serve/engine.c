/* Prompts are read each in sequences of its own (an entry of the cache); its state is copied to a slot of the batch,
 * where all slots take one token a step. A slot without a text takes tokens, too, and is emptied before it is full. */
#include "tools/serve/engine.h"

#include "runtime/sequences.h"
#include "tools/driver/language.h"

#include <stdlib.h>

enum { CHUNK = 256, MAX_OUTPUTS = 8 }; /* rows of a prompt that are read at once, to bound the memory of their logits */

/* A prompt with its state, and the logits of its last token. */
typedef struct entry {
  kva_sequences *sequence; /* NULL: not used yet */
  kva_token_ids tokens;
  float *logits;
  int64_t used; /* time of the last use */
} entry;

typedef struct slot {
  kva_completion *c; /* NULL: free */
  entry *reading;    /* NULL: the prompt is in the batch */
  uint32_t next;     /* the token that was drawn last */
} slot;

struct kva_engine {
  kva_engine_options o;
  kva_tokenizer *tokenizer;
  kvasir_program *program;
  kvasir_session *session;
  kva_sequences *batch, *empty;
  kva_dtype token_type;
  int64_t vocabulary, drawable, clock;
  entry *entries;
  slot *slots;
  void *tokens; /* of a call, in token_type */
  float *row;   /* logits of a draw */
  int32_t *order;
  kva_engine_stats stats;
};

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Models may have a few tokens more than their tokenizer, to round sizes; these are not drawn. */
static kva_status check_vocabulary(kva_engine *e, kva_diag *diag) {
  int64_t known = kva_tokenizer_vocab(e->tokenizer);
  bool bytes = kva_tokenizer_is_bytes(e->tokenizer);
  e->drawable = known < e->vocabulary ? known : e->vocabulary;
  bool fits = bytes ? e->vocabulary == known || e->vocabulary == known - 1 : e->vocabulary >= known;
  if (fits) return KVA_OK;
  if (!bytes)
    return kva_error(diag, NULL, "the model knows %lld tokens, the tokenizer has %lld", (long long)e->vocabulary,
                     (long long)known);
  return kva_error(
      diag, NULL,
      "the model knows %lld tokens; those of bytes are 256 or, with the end of texts, 257: give --tokenizer",
      (long long)e->vocabulary);
}

static kva_status check_signature(kva_engine *e, const kva_module *m, kva_diag *diag) {
  kva_language language;
  KVA_TRY(kva_language_of(m, "kvasir", diag, &language));
  e->token_type = language.token_type;
  e->vocabulary = language.vocabulary;
  return check_vocabulary(e, diag);
}

static kva_status compile(kva_engine *e, kva_module *m, kva_diag *diag) {
  const kva_compile_options co = {
      .decode = true,
      .decode_only = true,
      .target = e->o.target,
      .passes = {.control = e->o.control, .sequences = e->o.slots == 1}}; /* one has faster code than any number */
  const kva_session_options so = {.threads = e->o.threads, .seed = e->o.seed};
  KVA_TRY(kva_program_compile(m, &co, NULL, diag, &e->program));
  return kva_program_session(e->program, &so, diag, &e->session);
}

static kva_status new_sequences(kva_engine *e, int64_t n, kva_diag *diag, kva_sequences **out) {
  return *out ? KVA_OK : kva_sequences_create(e->session->s, n, e->o.capacity, diag, out);
}

static kva_status allocate(kva_engine *e, kva_diag *diag) {
  int64_t rows = e->o.slots > CHUNK ? e->o.slots : CHUNK;
  e->entries = calloc((size_t)e->o.prefixes, sizeof *e->entries);
  e->slots = calloc((size_t)e->o.slots, sizeof *e->slots);
  e->tokens = calloc((size_t)rows, sizeof(int64_t));
  e->row = calloc((size_t)e->vocabulary, sizeof *e->row);
  e->order = calloc((size_t)e->vocabulary, sizeof *e->order);
  if (!e->entries || !e->slots || !e->tokens || !e->row || !e->order)
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  KVA_TRY(new_sequences(e, e->o.slots, diag, &e->batch));
  if (kva_sequences_outputs(e->batch) > MAX_OUTPUTS)
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "the model has more than %d outputs", MAX_OUTPUTS);
  return new_sequences(e, 1, diag, &e->empty);
}

kva_status kva_engine_create(kva_module *m, kva_tokenizer *tokenizer, const kva_engine_options *options, kva_diag *diag,
                             kva_engine **out_engine) {
  *out_engine = NULL;
  kva_engine *e = calloc(1, sizeof *e);
  kva_status status = e ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  if (e) *e = (kva_engine){.o = *options, .tokenizer = tokenizer};
  if (status == KVA_OK) status = check_signature(e, m, diag);
  if (status == KVA_OK)
    status = compile(e, m, diag);
  else
    kva_module_destroy(m);
  if (status == KVA_OK) status = allocate(e, diag);
  if (status == KVA_OK)
    *out_engine = e;
  else
    kva_engine_destroy(e);
  return status;
}

void kva_engine_destroy(kva_engine *e) {
  if (!e) return;
  for (int64_t i = 0; e->entries && i < e->o.prefixes; i++) {
    kva_sequences_destroy(e->entries[i].sequence);
    free(e->entries[i].tokens.data);
    free(e->entries[i].logits);
  }
  kva_sequences_destroy(e->batch);
  kva_sequences_destroy(e->empty);
  kvasir_session_destroy(e->session);
  kvasir_program_destroy(e->program);
  free(e->entries);
  free(e->slots);
  free(e->tokens);
  free(e->row);
  free(e->order);
  free(e);
}

static void set_token(kva_engine *e, int64_t i, uint32_t token) {
  if (e->token_type == KVA_I32)
    ((int32_t *)e->tokens)[i] = (int32_t)token;
  else
    ((int64_t *)e->tokens)[i] = token;
}

static kva_status append(kva_engine *e, kva_sequences *q, int64_t n, int64_t rows, kva_diag *diag,
                         const float **out_logits) {
  kva_tensor in = {.dtype = e->token_type, .rank = 2, .dims = {n, rows}, .data = e->tokens}, out[MAX_OUTPUTS] = {{0}};
  kva_status status = kva_sequences_append(q, &in, out);
  if (status != KVA_OK) return kva_fail(diag, status, NULL, "%s", kva_session_error(e->session->s));
  *out_logits = out[0].data;
  return KVA_OK;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static bool is_read_by_any(const kva_engine *e, const entry *x) {
  for (int64_t i = 0; i < e->o.slots; i++)
    if (e->slots[i].reading == x) return true;
  return false;
}

/* Whether an entry holds all its tokens, and they begin the prompt. */
static bool is_prefix(const kva_engine *e, const entry *x, const kva_completion *c) {
  return x->tokens.n && x->tokens.n <= c->prompt_tokens && !is_read_by_any(e, x) &&
         !memcmp(x->tokens.data, c->prompt, (size_t)x->tokens.n * sizeof *c->prompt);
}

static entry *longest_prefix(const kva_engine *e, const kva_completion *c) {
  entry *best = NULL;
  for (int64_t i = 0; i < e->o.prefixes; i++) {
    entry *x = &e->entries[i];
    if (is_prefix(e, x, c) && (!best || x->tokens.n > best->tokens.n)) best = x;
  }
  return best;
}

/* The entry that was used least recently and is not being read; NULL: all are. */
static entry *oldest(const kva_engine *e) {
  entry *best = NULL;
  for (int64_t i = 0; i < e->o.prefixes; i++) {
    entry *x = &e->entries[i];
    if (!is_read_by_any(e, x) && (!best || x->used < best->used)) best = x;
  }
  return best;
}

static kva_status make_room(kva_engine *e, entry *x, kva_diag *diag) {
  KVA_TRY(new_sequences(e, 1, diag, &x->sequence));
  if (!x->logits) x->logits = malloc((size_t)e->vocabulary * sizeof *x->logits);
  return x->logits ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
}

/* Gives a text an entry to read its prompt in, which begins with what another one has of it. false: none is free. */
static kva_status begin_reading(kva_engine *e, slot *s, kva_diag *diag) {
  entry *prefix = longest_prefix(e, s->c);
  bool whole = prefix && prefix->tokens.n == s->c->prompt_tokens;
  entry *x = whole ? prefix : oldest(e);
  if (!x) return KVA_OK;
  KVA_TRY(make_room(e, x, diag));
  int64_t known = prefix ? prefix->tokens.n : 0;
  s->c->reused = known;
  e->stats.reused += known;
  if (x != prefix) {
    kva_status status = kva_sequences_copy(x->sequence, 0, prefix ? prefix->sequence : e->empty, 0);
    if (status != KVA_OK) return kva_fail(diag, status, NULL, "%s", kva_session_error(e->session->s));
    x->tokens.n = 0;
    for (int64_t i = 0; i < known; i++) kva_token_ids_add(&x->tokens, s->c->prompt[i]);
  }
  if (prefix) prefix->used = ++e->clock;
  x->used = ++e->clock;
  s->reading = x;
  return KVA_OK;
}

static kva_status read_chunk(kva_engine *e, slot *s, kva_diag *diag) {
  entry *x = s->reading;
  int64_t left = s->c->prompt_tokens - x->tokens.n, rows = left < CHUNK ? left : CHUNK;
  const float *logits;
  if (!rows) return KVA_OK;
  double start = kva_now();
  for (int64_t i = 0; i < rows; i++) set_token(e, i, s->c->prompt[x->tokens.n + i]);
  KVA_TRY(append(e, x->sequence, 1, rows, diag, &logits));
  for (int64_t i = 0; i < rows; i++) kva_token_ids_add(&x->tokens, s->c->prompt[x->tokens.n]);
  memcpy(x->logits, logits + (rows - 1) * e->vocabulary, (size_t)e->vocabulary * sizeof *logits);
  e->stats.read += rows;
  e->stats.read_seconds += kva_now() - start;
  return KVA_OK;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static void leave(kva_engine *e, slot *s) {
  *s = (slot){0};
  e->stats.running--;
}

static void end(kva_engine *e, slot *s, kva_finish finish) {
  kva_completion *c = s->c;
  leave(e, s);
  kva_completion_end(c, finish);
}

/* Draws the token after `logits`. */
static void draw(kva_engine *e, slot *s, const float *logits) {
  kva_completion *c = s->c;
  memcpy(e->row, logits, (size_t)e->vocabulary * sizeof *logits);
  kva_penalize(&c->sampling, e->row, e->drawable, c->prompt, c->prompt_tokens, c->drawn.data, c->drawn.n, e->order);
  s->next = (uint32_t)kva_sample(&c->sampling, e->row, e->drawable, c->sequence,
                                 (uint64_t)(c->prompt_tokens + c->tokens), e->order);
  e->stats.drawn++;
  kva_completion_take(c, e->tokenizer, s->next);
  if (c->finish != KVA_FINISH_NONE)
    leave(e, s);
  else if (c->prompt_tokens + c->tokens >= e->o.capacity)
    end(e, s, KVA_FINISH_LENGTH);
}

/* The prompt is read: its state goes to the slot, and the first token is drawn. */
static kva_status enter_batch(kva_engine *e, slot *s, kva_diag *diag) {
  kva_status status = kva_sequences_copy(e->batch, s - e->slots, s->reading->sequence, 0);
  if (status != KVA_OK) return kva_fail(diag, status, NULL, "%s", kva_session_error(e->session->s));
  const float *logits = s->reading->logits;
  s->reading = NULL;
  draw(e, s, logits);
  return KVA_OK;
}

static bool is_drawing(const slot *s) {
  return s->c && s->c->tokens > 0;
}

/* Room in the slots that have no text, whose rows count as well. */
static kva_status empty_full_slots(kva_engine *e, kva_diag *diag) {
  for (int64_t i = 0; i < e->o.slots; i++) {
    if (is_drawing(&e->slots[i]) || kva_sequences_length(e->batch, i) < e->o.capacity) continue;
    kva_status status = kva_sequences_copy(e->batch, i, e->empty, 0);
    if (status != KVA_OK) return kva_fail(diag, status, NULL, "%s", kva_session_error(e->session->s));
  }
  return KVA_OK;
}

static kva_status draw_all(kva_engine *e, kva_diag *diag) {
  const float *logits;
  double start = kva_now();
  KVA_TRY(empty_full_slots(e, diag));
  for (int64_t i = 0; i < e->o.slots; i++) set_token(e, i, is_drawing(&e->slots[i]) ? e->slots[i].next : 0);
  KVA_TRY(append(e, e->batch, e->o.slots, 1, diag, &logits));
  for (int64_t i = 0; i < e->o.slots; i++)
    if (is_drawing(&e->slots[i])) draw(e, &e->slots[i], logits + i * e->vocabulary);
  e->stats.draw_seconds += kva_now() - start;
  return KVA_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

int64_t kva_engine_free_slots(const kva_engine *e) {
  return e->o.slots - e->stats.running;
}

void kva_engine_add(kva_engine *e, kva_completion *c) {
  slot *s = e->slots;
  while (s->c) s++;
  KVA_ASSERT(s < e->slots + e->o.slots && c->prompt_tokens > 0 && c->prompt_tokens < e->o.capacity);
  *s = (slot){.c = c};
  e->stats.running++;
}

/* One chunk of the first text that has not been read. */
static kva_status read_prompts(kva_engine *e, kva_diag *diag) {
  for (int64_t i = 0; i < e->o.slots; i++) {
    slot *s = &e->slots[i];
    if (!s->c || is_drawing(s)) continue;
    if (!s->reading) KVA_TRY(begin_reading(e, s, diag));
    if (!s->reading) continue;
    KVA_TRY(read_chunk(e, s, diag));
    return s->reading->tokens.n == s->c->prompt_tokens ? enter_batch(e, s, diag) : KVA_OK;
  }
  return KVA_OK;
}

static bool any_draws(const kva_engine *e) {
  for (int64_t i = 0; i < e->o.slots; i++)
    if (is_drawing(&e->slots[i])) return true;
  return false;
}

static void end_all(kva_engine *e, bool cancelled_only, kva_finish finish) {
  for (int64_t i = 0; i < e->o.slots; i++) {
    slot *s = &e->slots[i];
    if (s->c && (!cancelled_only || atomic_load(&s->c->cancelled))) end(e, s, finish);
  }
}

kva_status kva_engine_step(kva_engine *e, kva_diag *diag) {
  end_all(e, true, KVA_FINISH_CANCELLED);
  bool draws = any_draws(e);
  kva_status status = read_prompts(e, diag);
  if (status == KVA_OK && draws) status = draw_all(e, diag);
  if (status != KVA_OK) end_all(e, false, KVA_FINISH_FAILED);
  return status;
}

kva_engine_stats kva_engine_get_stats(const kva_engine *e) {
  return e->stats;
}
