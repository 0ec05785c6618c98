/* kvasir generate: continues texts with a language model. */
#include "tools/cli.h"
#include "runtime/exe/train.h"
#include "tools/serve/chat.h"
#include "tools/serve/engine.h"
#include "tools/tokenizer/unicode.h"

#include <jansson.h>
#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_generate = {
    "generate", "MODEL --prompt TEXT [options]", "continue texts with a language model",
    "The model takes tokens [B, T] and gives logits [B, T, vocabulary]; what it remembers of earlier tokens is "
    "derived\n"
    "from it, so that a token costs one step. Without --tokenizer tokens are bytes, and 256 ends a text. One text is\n"
    "printed as it comes, after the prompt; several (--n, --prompts) one after the other. The same seed gives the "
    "same\n"
    "texts, whatever the number of threads and --batch. A signal ends the texts where they are, with exit code 4.\n\n"
    "Examples:\n"
    "  kvasir generate models/lm.kv -D vocab=257 --weights model.safetensors --prompt \"Once upon\" --temperature 0.8\n"
    "  kvasir generate model.onnx --tokenizer tokenizer.json --prompt \"The\" --tokens 40 --stop \".\"\n"
    "  kvasir generate model.onnx --tokenizer tokenizer.json --prompts questions.txt --batch 8 --json",
    run};

typedef struct generate_options {
  kva_strings defines, stops;
  const char *weights, *prompt, *prompts, *tokenizer, *chat, *system;
  int64_t tokens, texts, batch, threads, seed;
  bool stats, json;
  kva_sampling sampling;
  kva_pass_choice passes;
} generate_options;

typedef struct prompt {
  const char *text;
  kva_token_ids ids;
} prompt;

typedef struct generation {
  const generate_options *o;
  kva_diag *diag;
  kva_arena *arena;
  kva_tokenizer *tokenizer;
  const kva_chat *chat; /* NULL: prompts are continued as they are */
  kva_strings stops;
  KVA_VEC(prompt) prompts;
  kva_engine *engine;
  kva_completion *texts;
  int64_t n, added, printed;
} generation;

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

/* What the model continues: the prompt, or a chat in which the user says it. */
static void add_asked(const generation *g, const char *text, kva_text *out) {
  const kva_message messages[] = {{KVA_ROLE_SYSTEM, g->o->system}, {KVA_ROLE_USER, text}};
  size_t first = g->o->system ? 0 : 1;
  kva_text_add_bytes(out, text, g->chat ? 0 : strlen(text));
  if (!g->chat) return;
  const char *wrong = kva_chat_render(g->chat, messages + first, 2 - first, out);
  KVA_ASSERT(!wrong);
}

static kva_status add_prompt(generation *g, const char *text, const char *where) {
  prompt p = {.text = text};
  kva_text asked = {0};
  int64_t replaced = 0;
  add_asked(g, text, &asked);
  kva_tokenizer_begin(g->tokenizer, &p.ids);
  kva_status status = kva_tokenizer_encode(g->tokenizer, asked.data, asked.len, g->diag, &p.ids, &replaced);
  kva_text_free(&asked);
  KVA_PUSH(g->arena, &g->prompts, p);
  if (status == KVA_OK && !p.ids.n)
    return kva_error(g->diag, NULL, "%s: expected at least one token, found none", where);
  return status;
}

/* Every line is a prompt. */
static kva_status read_prompts(generation *g, const char *path) {
  kva_file file;
  KVA_TRY(kva_file_map(path, g->diag, &file));
  char *text = kva_arena_strndup(g->arena, file.data, file.size), *next = text;
  bool binary = strlen(text) != file.size;
  kva_file_unmap(&file);
  if (binary) return kva_error(g->diag, NULL, "%s: expected lines of text, found a zero byte", path);
  for (uint32_t line = 1; next && *next; line++) {
    char where[32], *begin = next;
    snprintf(where, sizeof where, "--prompts, line %u", line);
    next = strchr(begin, '\n');
    if (next) *next++ = 0;
    KVA_TRY(add_prompt(g, begin, where));
  }
  return g->prompts.len ? KVA_OK : kva_error(g->diag, NULL, "%s: expected lines of text, found none", path);
}

static kva_status find_chat(generation *g) {
  const generate_options *o = g->o;
  g->stops = o->stops;
  if (!o->chat) return KVA_OK;
  KVA_TRY(kva_chat_choose(o->chat, o->tokenizer, g->tokenizer, g->diag, &g->chat));
  if (!g->chat)
    return kva_error(g->diag, NULL, "--chat auto: the tokenizer does not tell the format; choose one of " KVA_CHATS);
  const char *stop = kva_chat_stop(g->chat);
  if (stop && g->stops.n < sizeof g->stops.v / sizeof *g->stops.v) g->stops.v[g->stops.n++] = stop;
  return KVA_OK;
}

static kva_status load_prompts(generation *g) {
  if (g->o->tokenizer)
    KVA_TRY(kva_tokenizer_load(g->o->tokenizer, g->diag, &g->tokenizer));
  else
    g->tokenizer = kva_tokenizer_bytes();
  KVA_TRY(find_chat(g));
  return g->o->prompts ? read_prompts(g, g->o->prompts) : add_prompt(g, g->o->prompt, "--prompt");
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void print_text(kva_completion *c, const char *text, size_t size) {
  (void)c;
  fwrite(text, 1, size, stdout);
  fflush(stdout);
}

static kva_status make_texts(generation *g) {
  const generate_options *o = g->o;
  g->n = g->prompts.len * o->texts;
  g->texts = calloc((size_t)g->n, sizeof *g->texts);
  if (!g->texts) return kva_fail(g->diag, KVA_NO_MEMORY, NULL, "out of memory");
  for (int64_t i = 0; i < g->n; i++) {
    const prompt *p = &g->prompts.data[i / o->texts];
    g->texts[i] = (kva_completion){.prompt = p->ids.data,
                                   .prompt_tokens = p->ids.n,
                                   .max_tokens = o->tokens,
                                   .sampling = o->sampling,
                                   .sequence = (uint64_t)i,
                                   .stops = g->stops.v,
                                   .n_stops = g->stops.n};
    if (g->n == 1 && !o->json) g->texts[i].on_text = print_text;
  }
  return KVA_OK;
}

static void print_json(const generation *g, int64_t i) {
  static const char *const finishes[] = {"cancelled", "stop", "length", "cancelled", "failed"};
  const kva_completion *c = &g->texts[i];
  const prompt *p = &g->prompts.data[i / g->o->texts];
  kva_text text = {0}, asked = {0};
  kva_utf8_add_valid(c->text.data, c->text.len, &text);
  kva_utf8_add_valid(p->text, strlen(p->text), &asked);
  json_t *o =
      json_pack("{s:s%, s:I, s:s%, s:s, s:I, s:I}", "prompt", asked.len ? asked.data : "", asked.len, "index",
                (json_int_t)(i % g->o->texts), "text", text.len ? text.data : "", text.len, "finish",
                finishes[c->finish], "prompt_tokens", (json_int_t)c->prompt_tokens, "tokens", (json_int_t)c->tokens);
  json_dumpf(o, stdout, JSON_COMPACT);
  putchar('\n');
  json_decref(o);
  kva_text_free(&text);
  kva_text_free(&asked);
}

static void print_whole(const generation *g, int64_t i) {
  const kva_completion *c = &g->texts[i];
  if (g->o->json) {
    print_json(g, i);
    return;
  }
  if (g->n > 1) {
    printf("%s== %lld ==\n%s%s", i ? "\n" : "", (long long)i + 1, g->prompts.data[i / g->o->texts].text,
           g->chat ? "\n" : "");
    fwrite(c->text.data, 1, c->text.len, stdout);
  }
  if (i + 1 == g->n) putchar('\n');
}

/* Texts are printed in order, each when it has ended. */
static void print_ended(generation *g) {
  for (; g->printed < g->added && g->texts[g->printed].finish != KVA_FINISH_NONE; g->printed++)
    print_whole(g, g->printed);
  fflush(stdout);
}

static void cancel(generation *g) {
  for (int64_t i = 0; i < g->added; i++) atomic_store(&g->texts[i].cancelled, true);
}

static kva_status continue_texts(generation *g) {
  if (g->n == 1 && !g->o->json) printf("%s%s", g->prompts.data[0].text, g->chat ? "\n" : ""), fflush(stdout);
  while (g->printed < g->n) {
    bool stopped = kva_train_stopped() || ferror(stdout);
    if (stopped) cancel(g);
    if (stopped && g->printed == g->added) break;
    while (!stopped && g->added < g->n && kva_engine_free_slots(g->engine))
      kva_engine_add(g->engine, &g->texts[g->added++]);
    KVA_TRY(kva_engine_step(g->engine, g->diag));
    print_ended(g);
  }
  return kva_train_stopped() ? KVA_INTERRUPTED : KVA_OK;
}

static double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? (double)tokens / seconds : 0;
}

static void print_stats(const generation *g) {
  const kva_engine_stats s = kva_engine_get_stats(g->engine);
  fprintf(stderr, "prompt: %lld tokens, %.0f tokens/s; text: %lld tokens, %.0f tokens/s\n", (long long)s.read,
          rate(s.read, s.read_seconds), (long long)s.drawn, rate(s.drawn - g->n, s.draw_seconds));
}

/* ---- the verb ---------------------------------------------------------------------------------------------------- */

static int64_t longest_prompt(const generation *g) {
  int64_t most = 0;
  for (uint32_t i = 0; i < g->prompts.len; i++)
    if (most < g->prompts.data[i].ids.n) most = g->prompts.data[i].ids.n;
  return most;
}

static kva_status make_engine(generation *g, kva_module *m) {
  const generate_options *o = g->o;
  const kva_engine_options options = {.slots = o->batch < g->n ? o->batch : g->n,
                                      .capacity = longest_prompt(g) + o->tokens,
                                      .prefixes = 1,
                                      .threads = (int)o->threads,
                                      .seed = (uint64_t)o->seed,
                                      .target = {.opt_level = 2, .cache = kva_user_cache(g->arena, NULL)},
                                      .control = (kva_pass_control *)&o->passes.control};
  return kva_engine_create(m, g->tokenizer, &options, g->diag, &g->engine);
}

static int load_and_continue(generation *g, const char *path, generate_options *o) {
  const kva_cli_source from = {.path = path, .defines = &o->defines, .pins = &(kva_strings){0}, .weights = o->weights};
  kva_module *m = NULL;
  kva_status status = load_prompts(g);
  if (status == KVA_OK) status = make_texts(g);
  int code = status == KVA_OK ? kva_cli_load_from(&from, g->diag, &m) : kva_cli_fail(status, g->diag);
  if (code >= 0) return code;
  status = make_engine(g, m);
  kva_cli_print_passes(&o->passes);
  kva_train_catch_signals();
  if (status == KVA_OK) status = continue_texts(g);
  if ((status == KVA_OK || status == KVA_INTERRUPTED) && o->stats) print_stats(g);
  return status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, g->diag);
}

static int generate(const char *path, generate_options *o) {
  generation g = {.o = o, .diag = kva_diag_create(), .arena = kva_arena_create()};
  int code = load_and_continue(&g, path, o);
  for (int64_t i = 0; g.texts && i < g.n; i++) kva_completion_clear(&g.texts[i]);
  for (uint32_t i = 0; i < g.prompts.len; i++) free(g.prompts.data[i].ids.data);
  free(g.texts);
  kva_engine_destroy(g.engine);
  kva_tokenizer_destroy(g.tokenizer);
  kva_arena_destroy(g.arena);
  kva_diag_destroy(g.diag);
  return code;
}

static int misused(const char *what) {
  fprintf(stderr, "kvasir generate: %s\n", what);
  return EXIT_USAGE;
}

static int check(const generate_options *o, int n_models) {
  if (!n_models) return misused("a model is missing");
  if (!o->prompt && !o->prompts) return misused("--prompt is missing: the text to continue");
  if (o->prompt && o->prompts) return misused("--prompt and --prompts: give one of them");
  if (o->sampling.top_p > 1 || o->sampling.min_p > 1)
    return misused("--top-p and --min-p are probabilities, at most 1");
  if (o->system && !o->chat) return misused("--system is for --chat");
  for (uint32_t i = 0; i < o->stops.n; i++)
    if (!*o->stops.v[i]) return misused("--stop: expected a text, found none");
  return -1;
}

static int run(int argc, char **argv) {
  generate_options o = {.tokens = 256, .texts = 1, .batch = 16, .sampling = {.top_p = 1, .repetition = 1}};
  const kva_option options[] = {
      {"--prompt", NULL, "TEXT", KVA_OPTION_STRING, &o.prompt, "the text to continue"},
      {"--prompts", NULL, "FILE", KVA_OPTION_STRING, &o.prompts, "texts to continue, one a line"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, KVA_WEIGHTS_HELP},
      {"--tokenizer", NULL, "FILE", KVA_OPTION_STRING, &o.tokenizer, "a tokenizer.json (tokens are bytes)"},
      {"--tokens", NULL, "N", KVA_OPTION_COUNT, &o.tokens, "at most so many more tokens (256)"},
      {"--chat", NULL, KVA_CHAT_WORDS, KVA_OPTION_WORD, &o.chat,
       "the prompt is said by a user; auto: in the tokenizer's format"},
      {"--system", NULL, "TEXT", KVA_OPTION_STRING, &o.system, "with --chat: what the model is told first"},
      {"--stop", NULL, "TEXT", KVA_OPTION_LIST, &o.stops, "ends a text before it"},
      {"--n", NULL, "N", KVA_OPTION_COUNT, &o.texts, "so many texts for each prompt (1)"},
      {"--batch", NULL, "N", KVA_OPTION_COUNT, &o.batch, "so many texts at once (16)"},
      {"--temperature", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &o.sampling.temperature,
       "0 (default): always the likeliest token; 1: as the model says"},
      {"--top-k", NULL, "N", KVA_OPTION_INT, &o.sampling.top_k, "only the N likeliest tokens (0: all)"},
      {"--top-p", NULL, "X", KVA_OPTION_POSITIVE, &o.sampling.top_p,
       "only the likeliest tokens that together have this probability (1)"},
      {"--min-p", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &o.sampling.min_p,
       "only tokens at least X times as likely as the likeliest (0)"},
      {"--repetition-penalty", NULL, "X", KVA_OPTION_POSITIVE, &o.sampling.repetition,
       "divides the logits of tokens that came before (1)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of the draws, and of parameters without values (0)"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &o.json, "print one JSON object a text"},
      {"--stats", NULL, NULL, KVA_OPTION_FLAG, &o.stats, "print tokens per second to standard error"},
      KVA_PASS_OPTIONS(&o.passes),
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_generate, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0 || (code = check(&o, n)) >= 0) return code;
  if ((code = kva_cli_passes(&kva_verb_generate, &o.passes)) >= 0) return code;
  o.sampling.seed = (uint64_t)o.seed;
  return generate(path, &o);
}
