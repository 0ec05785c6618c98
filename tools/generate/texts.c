/* Prompts, texts in order, statistics. */
#include "tools/generate/texts.h"

#include "runtime/exe/train.h"
#include "tools/tokenizer/unicode.h"

#include <jansson.h>
#include <stdlib.h>

typedef struct prompt {
  const char *text;
  kva_token_ids ids;
} prompt;

struct kva_texts {
  const kva_texts_options *o;
  kva_diag *diag;
  kva_arena *arena;
  kva_tokenizer *tokenizer;
  const kva_chat *chat; /* NULL: prompts are continued as they are */
  kva_strings stops;
  KVA_VEC(prompt) prompts;
  kva_engine *engine;
  kva_completion *texts;
  int64_t n, added, printed;
};

const char *kva_texts_misused(const kva_texts_options *o) {
  if (o->prompt && o->prompts) return "--prompt and --prompts: give one of them";
  if (o->sampling.top_p > 1 || o->sampling.min_p > 1) return "--top-p and --min-p are probabilities, at most 1";
  if (o->system && !o->chat) return "--system is for --chat";
  for (uint32_t i = 0; i < o->stops.n; i++)
    if (!*o->stops.v[i]) return "--stop: expected a text, found none";
  return NULL;
}

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* What the model continues: the prompt, or a chat in which the user says it. */
static void add_asked(const kva_texts *t, const char *text, kva_text *out) {
  const kva_message messages[] = {{KVA_ROLE_SYSTEM, t->o->system}, {KVA_ROLE_USER, text}};
  size_t first = t->o->system ? 0 : 1;
  kva_text_add_bytes(out, text, t->chat ? 0 : strlen(text));
  if (!t->chat) return;
  const char *wrong = kva_chat_render(t->chat, messages + first, 2 - first, out);
  KVA_ASSERT(!wrong);
}

static kva_status add_prompt(kva_texts *t, const char *text, const char *where) {
  prompt p = {.text = text};
  kva_text asked = {0};
  int64_t replaced = 0;
  add_asked(t, text, &asked);
  kva_tokenizer_begin(t->tokenizer, &p.ids);
  kva_status status = kva_tokenizer_encode(t->tokenizer, asked.data, asked.len, t->diag, &p.ids, &replaced);
  kva_text_free(&asked);
  KVA_PUSH(t->arena, &t->prompts, p);
  if (status == KVA_OK && !p.ids.n)
    return kva_error(t->diag, NULL, "%s: expected at least one token, found none", where);
  return status;
}

/* Every line is a prompt; lines end as on Unix or Windows. */
static kva_status read_prompts(kva_texts *t, const char *path) {
  kva_file file;
  KVA_TRY(kva_file_map(path, t->diag, &file));
  char *text = kva_arena_strndup(t->arena, file.data, file.size), *next = text;
  bool binary = strlen(text) != file.size;
  kva_file_unmap(&file);
  if (binary) return kva_error(t->diag, NULL, "%s: expected lines of text, found a zero byte", path);
  for (uint32_t line = 1; next && *next; line++) {
    char where[32], *begin = next;
    snprintf(where, sizeof where, "--prompts, line %u", line);
    next = strchr(begin, '\n');
    if (next && next > begin && next[-1] == '\r') next[-1] = 0;
    if (next) *next++ = 0;
    KVA_TRY(add_prompt(t, begin, where));
  }
  return t->prompts.len ? KVA_OK : kva_error(t->diag, NULL, "%s: expected lines of text, found none", path);
}

static kva_status find_chat(kva_texts *t, const kva_chat *auto_chat) {
  t->stops = t->o->stops;
  if (!t->o->chat) return KVA_OK;
  const kva_chat *named = kva_chat_named(t->o->chat);
  t->chat = named ? named : auto_chat;
  if (!t->chat)
    return kva_error(t->diag, NULL, "--chat auto: the tokenizer does not tell the format; choose one of " KVA_CHATS);
  const char *stop = kva_chat_stop(t->chat);
  if (stop && t->stops.n < sizeof t->stops.v / sizeof *t->stops.v) t->stops.v[t->stops.n++] = stop;
  return KVA_OK;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void print_text(kva_completion *c, const char *text, size_t size) {
  (void)c;
  fwrite(text, 1, size, stdout);
  fflush(stdout);
}

static kva_status make_texts(kva_texts *t) {
  const kva_texts_options *o = t->o;
  kva_sampling sampling = o->sampling;
  sampling.seed = (uint64_t)o->seed;
  t->n = t->prompts.len * o->texts;
  t->texts = calloc((size_t)t->n, sizeof *t->texts);
  if (!t->texts) return kva_fail(t->diag, KVA_NO_MEMORY, NULL, "out of memory");
  for (int64_t i = 0; i < t->n; i++) {
    const prompt *p = &t->prompts.data[i / o->texts];
    t->texts[i] = (kva_completion){.prompt = p->ids.data,
                                   .prompt_tokens = p->ids.n,
                                   .max_tokens = o->tokens,
                                   .sampling = sampling,
                                   .sequence = (uint64_t)i,
                                   .stops = t->stops.v,
                                   .n_stops = t->stops.n};
    if (t->n == 1 && !o->json) t->texts[i].on_text = print_text;
  }
  return KVA_OK;
}

static void print_json(const kva_texts *t, int64_t i) {
  static const char *const finishes[] = {"cancelled", "stop", "length", "cancelled", "failed"};
  const kva_completion *c = &t->texts[i];
  const prompt *p = &t->prompts.data[i / t->o->texts];
  kva_text text = {0}, asked = {0};
  kva_utf8_add_valid(c->text.data, c->text.len, &text);
  kva_utf8_add_valid(p->text, strlen(p->text), &asked);
  json_t *o =
      json_pack("{s:s%, s:I, s:s%, s:s, s:I, s:I}", "prompt", asked.len ? asked.data : "", asked.len, "index",
                (json_int_t)(i % t->o->texts), "text", text.len ? text.data : "", text.len, "finish",
                finishes[c->finish], "prompt_tokens", (json_int_t)c->prompt_tokens, "tokens", (json_int_t)c->tokens);
  json_dumpf(o, stdout, JSON_COMPACT);
  putchar('\n');
  json_decref(o);
  kva_text_free(&text);
  kva_text_free(&asked);
}

static void print_whole(const kva_texts *t, int64_t i) {
  const kva_completion *c = &t->texts[i];
  if (t->o->json) {
    print_json(t, i);
    return;
  }
  if (t->n > 1) {
    printf("%s== %lld ==\n%s%s", i ? "\n" : "", (long long)i + 1, t->prompts.data[i / t->o->texts].text,
           t->chat ? "\n" : "");
    fwrite(c->text.data, 1, c->text.len, stdout);
  }
  if (i + 1 == t->n) putchar('\n');
}

/* Texts are printed in order, each when it has ended. */
static void print_ended(kva_texts *t) {
  for (; t->printed < t->added && t->texts[t->printed].finish != KVA_FINISH_NONE; t->printed++)
    print_whole(t, t->printed);
  fflush(stdout);
}

static void cancel(kva_texts *t) {
  for (int64_t i = 0; i < t->added; i++) atomic_store(&t->texts[i].cancelled, true);
}

static kva_status check_ended(const kva_texts *t) {
  for (int64_t i = 0; i < t->added; i++) {
    const kva_completion *c = &t->texts[i];
    if (c->finish == KVA_FINISH_FAILED)
      return kva_fail(t->diag, KVA_NOT_FINITE, NULL, "text %lld: the model's logits after %lld tokens are not numbers",
                      (long long)i + 1, (long long)(c->prompt_tokens + c->tokens));
  }
  return KVA_OK;
}

static kva_status continue_texts(kva_texts *t) {
  if (t->n == 1 && !t->o->json) printf("%s%s", t->prompts.data[0].text, t->chat ? "\n" : ""), fflush(stdout);
  while (t->printed < t->n) {
    bool stopped = kva_train_stopped() || ferror(stdout);
    if (stopped) cancel(t);
    if (stopped && t->printed == t->added) break;
    while (!stopped && t->added < t->n && kva_engine_free_slots(t->engine))
      kva_engine_add(t->engine, &t->texts[t->added++]);
    KVA_TRY(kva_engine_step(t->engine, t->diag));
    print_ended(t);
  }
  return kva_train_stopped() ? KVA_INTERRUPTED : check_ended(t);
}

static double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? (double)tokens / seconds : 0;
}

static void print_stats(const kva_texts *t) {
  const kva_engine_stats s = kva_engine_get_stats(t->engine);
  fprintf(stderr, "prompt: %lld tokens, %.0f tokens/s; text: %lld tokens, %.0f tokens/s\n", (long long)s.read,
          rate(s.read, s.read_seconds), (long long)s.drawn, rate(s.drawn - t->n, s.draw_seconds));
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

int64_t kva_texts_slots(const kva_texts *t) {
  return t->o->batch < t->n ? t->o->batch : t->n;
}

static int64_t longest_prompt(const kva_texts *t) {
  int64_t most = 0;
  for (uint32_t i = 0; i < t->prompts.len; i++)
    if (most < t->prompts.data[i].ids.n) most = t->prompts.data[i].ids.n;
  return most;
}

kva_status kva_texts_run(kva_texts *t, kva_session *s, int64_t context) {
  int64_t longest = longest_prompt(t);
  kva_engine_options options = {.slots = kva_texts_slots(t), .capacity = longest + t->o->tokens, .prefixes = 1};
  if (longest >= context)
    return kva_error(t->diag, NULL, "a prompt has %lld tokens; the model has positions for %lld, text included",
                     (long long)longest, (long long)context);
  if (options.capacity > context) options.capacity = context;
  KVA_TRY(kva_engine_create(s, t->tokenizer, &options, t->diag, &t->engine));
  kva_train_catch_signals();
  kva_status status = continue_texts(t);
  if ((status == KVA_OK || status == KVA_INTERRUPTED) && t->o->stats) print_stats(t);
  return status;
}

kva_status kva_texts_create(const kva_texts_options *o, kva_tokenizer *tokenizer, const kva_chat *auto_chat,
                            kva_diag *diag, kva_texts **out_texts) {
  *out_texts = NULL;
  kva_texts *t = calloc(1, sizeof *t);
  if (!t) return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  *t = (kva_texts){.o = o, .diag = diag, .arena = kva_arena_create(), .tokenizer = tokenizer};
  kva_status status = find_chat(t, auto_chat);
  if (status == KVA_OK) status = o->prompts ? read_prompts(t, o->prompts) : add_prompt(t, o->prompt, "the prompt");
  if (status == KVA_OK) status = make_texts(t);
  if (status == KVA_OK)
    *out_texts = t;
  else
    kva_texts_destroy(t);
  return status;
}

void kva_texts_destroy(kva_texts *t) {
  if (!t) return;
  for (int64_t i = 0; t->texts && i < t->n; i++) kva_completion_clear(&t->texts[i]);
  for (uint32_t i = 0; i < t->prompts.len; i++) free(t->prompts.data[i].ids.data);
  free(t->texts);
  kva_engine_destroy(t->engine);
  kva_arena_destroy(t->arena);
  free(t);
}
