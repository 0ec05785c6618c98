/* A prompt is read in a sequence of its own (an entry of the cache); the text in a slot goes on in a fork of it. All
 * texts that draw take one token a step together. */
#include "tools/generate/engine.h"

#include "runtime/base/platform.h"
#include "runtime/sequences.h"

#include <math.h>
#include <stdlib.h>

enum {
  /* Rows of a prompt that are read in one step, and while other texts wait for their next token: more of them unpack
   * weights less often, and take longer. */
  CHUNK = 512,
  SHORT_CHUNK = 256,
  NO_SEQUENCE = -1
};

/* A prompt, or a text with its prompt, and the state behind it; the logits of its last token. */
typedef struct entry {
  int64_t sequence; /* or NO_SEQUENCE */
  kva_token_ids tokens;
  float *logits;
  int64_t logits_after; /* so many tokens; another number than tokens.n: they are not there */
  int64_t used;         /* time of the last use */
} entry;

typedef struct slot {
  kva_completion *c;    /* NULL: free */
  entry *reading;       /* NULL: the prompt is read */
  int64_t sequence;     /* then */
  kva_token_ids tokens; /* of the sequence */
  uint32_t next;        /* the token that was drawn last */
} slot;

struct kva_engine {
  kva_engine_options o;
  kva_tokenizer *tokenizer;
  kva_session *session;
  kva_sequences *sequences;
  kva_dtype token_type;
  int64_t vocabulary, drawable, clock;
  entry *entries;
  slot *slots;
  void *tokens;                 /* of a call, in token_type */
  kva_tensor *inputs, *outputs; /* of the call, by sequence */
  kva_sequence_rows *parts;
  float *logits;  /* of the texts that draw, by slot */
  float *row;     /* logits of a draw */
  uint32_t *room; /* of the sampler */
  kva_engine_stats stats;
};

/* ---- the model --------------------------------------------------------------------------------------------------- */

kva_status kva_engine_check_tokens(const kva_tokenizer *t, int64_t vocabulary, kva_diag *diag) {
  int64_t known = kva_tokenizer_vocab(t);
  bool bytes = kva_tokenizer_is_bytes(t);
  if (bytes ? vocabulary == known || vocabulary == known - 1 : vocabulary >= known) return KVA_OK;
  if (!bytes)
    return kva_error(diag, NULL, "the model knows %lld tokens, the tokenizer has %lld", (long long)vocabulary,
                     (long long)known);
  return kva_error(
      diag, NULL,
      "the model knows %lld tokens; those of bytes are 256 or, with the end of texts, 257: give --tokenizer",
      (long long)vocabulary);
}

/* Reads the types off the compiled programs. */
static kva_status find_types(kva_engine *e, kva_diag *diag) {
  const kva_program *p = kva_sequences_program(e->sequences);
  const kva_buffer_desc *tokens = &p->buffers[p->inputs[0]], *logits = &p->buffers[p->outputs[0]];
  int64_t known = kva_tokenizer_vocab(e->tokenizer);
  KVA_ASSERT(kva_sequences_inputs(e->sequences) == 1 && tokens->rank == 2 && logits->rank == 3);
  e->token_type = (kva_dtype)tokens->dtype;
  e->vocabulary = logits->dims[2].words->arg;
  e->drawable = known < e->vocabulary ? known : e->vocabulary;
  return kva_engine_check_tokens(e->tokenizer, e->vocabulary, diag);
}

static kva_status checked(const kva_engine *e, kva_status status, kva_diag *diag) {
  return status == KVA_OK ? status : kva_fail(diag, status, NULL, "%s", kva_session_error(e->session));
}

static kva_status allocate(kva_engine *e, kva_diag *diag) {
  int64_t rows = e->o.slots > CHUNK ? e->o.slots : CHUNK;
  const kva_sequences_options options = {.longest = e->o.capacity, .sequences = e->o.slots + e->o.prefixes};
  KVA_TRY(kva_sequences_create(e->session, &options, diag, &e->sequences));
  KVA_TRY(find_types(e, diag));
  e->entries = calloc((size_t)e->o.prefixes, sizeof *e->entries);
  e->slots = calloc((size_t)e->o.slots, sizeof *e->slots);
  e->tokens = calloc((size_t)rows, sizeof(int64_t));
  e->inputs = calloc((size_t)e->o.slots, sizeof *e->inputs);
  e->parts = calloc((size_t)e->o.slots, sizeof *e->parts);
  e->logits = calloc((size_t)e->o.slots * (size_t)e->vocabulary, sizeof *e->logits);
  e->row = calloc((size_t)e->vocabulary, sizeof *e->row);
  e->room = calloc((size_t)e->vocabulary, 4 * sizeof *e->room);
  e->outputs = calloc((size_t)(e->o.slots * kva_sequences_outputs(e->sequences)), sizeof *e->outputs);
  if (!e->entries || !e->slots || !e->tokens || !e->inputs || !e->outputs || !e->parts || !e->logits || !e->row ||
      !e->room)
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  for (int64_t i = 0; i < e->o.prefixes; i++) e->entries[i].sequence = NO_SEQUENCE;
  for (int64_t i = 0; i < e->o.slots; i++) e->slots[i].sequence = NO_SEQUENCE;
  return KVA_OK;
}

kva_status kva_engine_create(kva_session *s, kva_tokenizer *tokenizer, const kva_engine_options *options,
                             kva_diag *diag, kva_engine **out_engine) {
  *out_engine = NULL;
  kva_engine *e = calloc(1, sizeof *e);
  if (!e) return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  *e = (kva_engine){.o = *options, .tokenizer = tokenizer, .session = s};
  kva_status status = allocate(e, diag);
  if (status == KVA_OK)
    *out_engine = e;
  else
    kva_engine_destroy(e);
  return status;
}

void kva_engine_destroy(kva_engine *e) {
  if (!e) return;
  for (int64_t i = 0; e->entries && i < e->o.prefixes; i++) {
    free(e->entries[i].tokens.data);
    free(e->entries[i].logits);
  }
  for (int64_t i = 0; e->slots && i < e->o.slots; i++) free(e->slots[i].tokens.data);
  kva_sequences_destroy(e->sequences);
  free(e->entries);
  free(e->slots);
  free(e->tokens);
  free(e->inputs);
  free(e->outputs);
  free(e->parts);
  free(e->logits);
  free(e->row);
  free(e->room);
  free(e);
}

static void set_token(kva_engine *e, int64_t i, uint32_t token) {
  if (e->token_type == KVA_I32)
    ((int32_t *)e->tokens)[i] = (int32_t)token;
  else
    ((int64_t *)e->tokens)[i] = token;
}

/* Part `part` of a call: `rows` tokens of e->tokens from `at` on are a sequence's next; the logits of the last one go
 * to `logits`. */
static void set_part(kva_engine *e, int64_t part, int64_t sequence, int64_t at, int64_t rows, float *logits) {
  size_t size = (size_t)kva_dtype_bits(e->token_type) / 8;
  kva_tensor *outputs = e->outputs + part * kva_sequences_outputs(e->sequences);
  e->inputs[part] =
      (kva_tensor){.dtype = e->token_type, .rank = 2, .dims = {1, rows}, .data = (char *)e->tokens + (size_t)at * size};
  outputs[0].data = logits;
  e->parts[part] = (kva_sequence_rows){
      .sequence = sequence, .rows = rows, .inputs = &e->inputs[part], .wanted = 1, .outputs = outputs};
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static bool is_read_by_any(const kva_engine *e, const entry *x) {
  for (int64_t i = 0; i < e->o.slots; i++)
    if (e->slots[i].reading == x) return true;
  return false;
}

/* How many tokens of the prompt an entry can give: all, with its logits, or fewer, from a state that sequences keep. */
static int64_t common(const kva_engine *e, const entry *x, const kva_completion *c) {
  enum { KEPT_ROWS = 128 }; /* see kva_sequences_roll_back: a cut before costs as much as reading again */
  int64_t n = 0, most = x->tokens.n < c->prompt_tokens ? x->tokens.n : c->prompt_tokens;
  if (is_read_by_any(e, x)) return 0;
  while (n < most && x->tokens.data[n] == c->prompt[n]) n++;
  bool with_logits = n == x->tokens.n && n == x->logits_after;
  if (n == c->prompt_tokens && !with_logits) n--; /* those of its last token are needed */
  return n == x->tokens.n || n >= KEPT_ROWS ? n : 0;
}

/* The entry that gives most; NULL: none gives anything. */
static entry *best_entry(const kva_engine *e, const kva_completion *c, int64_t *out_common) {
  entry *best = NULL;
  *out_common = 0;
  for (int64_t i = 0; i < e->o.prefixes; i++) {
    int64_t n = common(e, &e->entries[i], c);
    if (n <= *out_common) continue;
    *out_common = n;
    best = &e->entries[i];
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
  if (!x->logits) x->logits = malloc((size_t)e->vocabulary * sizeof *x->logits);
  return x->logits ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
}

static void forget(kva_engine *e, entry *x) {
  kva_sequences_remove(e->sequences, x->sequence);
  x->sequence = NO_SEQUENCE, x->tokens.n = 0;
}

/* An entry takes what another one has in common with a prompt. */
static kva_status begin_as(kva_engine *e, entry *x, const entry *prefix, int64_t known, kva_diag *diag) {
  kva_sequences *q = e->sequences;
  if (x == prefix) { /* the rest of its own is given up */
    int64_t rows = x->tokens.n - known;
    x->tokens.n = known;
    return checked(e, kva_sequences_roll_back(q, x->sequence, rows), diag);
  }
  forget(e, x);
  if (!prefix) return checked(e, kva_sequences_add(q, &x->sequence), diag);
  KVA_TRY(checked(e, kva_sequences_fork(q, prefix->sequence, &x->sequence), diag));
  KVA_TRY(checked(e, kva_sequences_roll_back(q, x->sequence, prefix->tokens.n - known), diag));
  for (int64_t i = 0; i < known; i++) kva_token_ids_add(&x->tokens, prefix->tokens.data[i]);
  return KVA_OK;
}

/* Gives a text an entry to read its prompt in, if one is free. */
static kva_status begin_reading(kva_engine *e, slot *s, kva_diag *diag) {
  int64_t known;
  entry *prefix = best_entry(e, s->c, &known), *x = known == s->c->prompt_tokens ? prefix : oldest(e);
  if (!x) return KVA_OK;
  KVA_TRY(make_room(e, x, diag));
  kva_status status = begin_as(e, x, prefix, known, diag);
  if (status != KVA_OK) forget(e, x);
  KVA_TRY(status);
  s->c->reused = known;
  e->stats.reused += known;
  if (prefix) prefix->used = ++e->clock;
  x->used = ++e->clock;
  s->reading = x;
  return KVA_OK;
}

static kva_status read_chunk(kva_engine *e, slot *s, bool others_draw, kva_diag *diag) {
  entry *x = s->reading;
  int64_t left = s->c->prompt_tokens - x->tokens.n, most = others_draw ? SHORT_CHUNK : CHUNK;
  int64_t rows = left < most ? left : most;
  if (!rows) return KVA_OK;
  double start = kva_now();
  for (int64_t i = 0; i < rows; i++) set_token(e, i, s->c->prompt[x->tokens.n + i]);
  set_part(e, 0, x->sequence, 0, rows, x->logits);
  kva_status status = kva_sequences_append(e->sequences, 1, e->parts);
  if (status != KVA_OK) forget(e, x);
  KVA_TRY(checked(e, status, diag));
  for (int64_t i = 0; i < rows; i++) kva_token_ids_add(&x->tokens, s->c->prompt[x->tokens.n]);
  x->logits_after = x->tokens.n;
  e->stats.read += rows;
  e->stats.read_seconds += kva_now() - start;
  return KVA_OK;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* The entry for a text that has ended: the one of its own prompt stays. */
static entry *entry_for_text(const kva_engine *e) {
  return e->o.prefixes > 1 ? oldest(e) : NULL;
}

/* What comes after the text, as the next turn of a chat, begins with all of it. */
static void keep_text(kva_engine *e, slot *s) {
  entry *x = entry_for_text(e);
  if (!x || make_room(e, x, NULL) != KVA_OK) return;
  forget(e, x);
  free(x->tokens.data);
  x->tokens = s->tokens, x->sequence = s->sequence, x->logits_after = 0, x->used = ++e->clock;
  s->tokens = (kva_token_ids){0}, s->sequence = NO_SEQUENCE;
}

static void leave(kva_engine *e, slot *s) {
  kva_sequences_remove(e->sequences, s->sequence);
  free(s->tokens.data);
  *s = (slot){.sequence = NO_SEQUENCE};
  e->stats.running--;
}

static void end(kva_engine *e, slot *s, kva_finish finish) {
  kva_completion *c = s->c;
  leave(e, s);
  kva_completion_end(c, finish);
}

static bool has_number(const float *logits, int64_t n) {
  int64_t i = 0;
  while (i < n && isnan(logits[i])) i++;
  return i < n;
}

/* Draws the token after `logits`; a text after which there is none to draw fails, others go on. */
static void draw(kva_engine *e, slot *s, const float *logits) {
  kva_completion *c = s->c;
  if (!has_number(logits, e->drawable)) {
    end(e, s, KVA_FINISH_FAILED);
    return;
  }
  memcpy(e->row, logits, (size_t)e->vocabulary * sizeof *logits);
  kva_penalize(&c->sampling, e->row, e->drawable, c->prompt, c->prompt_tokens, c->drawn.data, c->drawn.n,
               (int32_t *)e->room);
  s->next = (uint32_t)kva_sample(&c->sampling, e->row, e->drawable, c->sequence,
                                 (uint64_t)(c->prompt_tokens + c->tokens), e->room);
  e->stats.drawn++;
  bool grown = s->tokens.n > c->prompt_tokens; /* before c may be gone */
  if (!kva_completion_take(c, e->tokenizer, s->next)) {
    if (grown) keep_text(e, s);
    leave(e, s);
  } else if (c->prompt_tokens + c->tokens >= e->o.capacity)
    end(e, s, KVA_FINISH_LENGTH);
}

/* The prompt is read: the text goes on in a fork, and the first token is drawn. */
static kva_status enter_batch(kva_engine *e, slot *s, kva_diag *diag) {
  KVA_TRY(checked(e, kva_sequences_fork(e->sequences, s->reading->sequence, &s->sequence), diag));
  const float *logits = s->reading->logits;
  for (int64_t i = 0; i < s->c->prompt_tokens; i++) kva_token_ids_add(&s->tokens, s->c->prompt[i]);
  s->reading = NULL;
  draw(e, s, logits);
  return KVA_OK;
}

static bool is_drawing(const slot *s) {
  return s->c && s->c->tokens > 0;
}

static kva_status draw_all(kva_engine *e, kva_diag *diag) {
  int64_t n = 0;
  double start = kva_now();
  for (int64_t i = 0; i < e->o.slots; i++) {
    if (!is_drawing(&e->slots[i])) continue;
    set_token(e, n, e->slots[i].next);
    set_part(e, n, e->slots[i].sequence, n, 1, e->logits + i * e->vocabulary);
    n++;
  }
  KVA_TRY(checked(e, kva_sequences_append(e->sequences, n, e->parts), diag));
  for (int64_t i = 0; i < e->o.slots; i++)
    if (is_drawing(&e->slots[i])) kva_token_ids_add(&e->slots[i].tokens, e->slots[i].next);
  for (int64_t i = 0; i < e->o.slots; i++)
    if (is_drawing(&e->slots[i])) draw(e, &e->slots[i], e->logits + i * e->vocabulary);
  e->stats.draw_seconds += kva_now() - start;
  return KVA_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

int64_t kva_engine_free_slots(const kva_engine *e) {
  return e->o.slots - e->stats.running;
}

int64_t kva_engine_tokens(const kva_engine *e) {
  return e->drawable;
}

void kva_engine_add(kva_engine *e, kva_completion *c) {
  slot *s = e->slots;
  while (s->c) s++;
  KVA_ASSERT(s < e->slots + e->o.slots && c->prompt_tokens > 0 && c->prompt_tokens < e->o.capacity);
  *s = (slot){.c = c, .sequence = NO_SEQUENCE};
  e->stats.running++;
}

/* One chunk of the first text that has not been read. */
static kva_status read_prompts(kva_engine *e, bool others_draw, kva_diag *diag) {
  for (int64_t i = 0; i < e->o.slots; i++) {
    slot *s = &e->slots[i];
    if (!s->c || is_drawing(s)) continue;
    if (!s->reading) KVA_TRY(begin_reading(e, s, diag));
    if (!s->reading) continue;
    KVA_TRY(read_chunk(e, s, others_draw, diag));
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
  kva_status status = read_prompts(e, draws, diag);
  if (status == KVA_OK && draws) status = draw_all(e, diag);
  if (status != KVA_OK) end_all(e, false, KVA_FINISH_FAILED);
  return status;
}

kva_engine_stats kva_engine_get_stats(const kva_engine *e) {
  return e->stats;
}
