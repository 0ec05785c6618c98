/* kvasir generate: continues texts with a language model. */
#include "tools/cli.h"
#include "runtime/sequences.h"
#include "tools/library/library.h"
#include "tools/driver/language.h"
#include "tools/driver/sampler.h"
#include "tools/tokenizer/tokenizer.h"

#include <signal.h>
#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_generate = {
    "generate", "MODEL --prompt TEXT [options]", "continue a text with a language model",
    "The model takes tokens [B, T] and gives logits [B, T, vocabulary]; what it remembers of earlier tokens is "
    "derived\n"
    "from it, so that a token costs one step. Without --tokenizer tokens are bytes, and 256 ends a text. The text is\n"
    "printed as it comes, after the prompt; several texts (--n) one after the other. The same seed gives the same\n"
    "texts, whatever the number of threads.\n\n"
    "Examples:\n"
    "  kvasir generate models/lm.kv -D vocab=257 --weights model.safetensors --prompt \"Once upon\" --temperature 0.8\n"
    "  kvasir generate model.onnx --tokenizer tokenizer.json --prompt \"The\" --tokens 40",
    run};

typedef struct generate_options {
  kva_strings defines;
  const char *weights, *prompt, *tokenizer;
  int64_t tokens, texts, threads, seed;
  bool stats;
  kva_sampling sampling;
  kva_pass_choice passes;
} generate_options;

enum { CHUNK = 256 }; /* rows of the prompt that are read at once, to bound the memory of their logits */

static volatile sig_atomic_t stop_requested;
static void request_stop(int number) {
  (void)number;
  stop_requested = 1;
}

/* What came is printed; a shell sees that the user ended it. */
static void die_of_interrupt(void) {
  signal(SIGINT, SIG_DFL);
  raise(SIGINT);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

typedef struct generation {
  const generate_options *o;
  kva_diag *diag;
  kva_tokenizer *tokenizer;
  kva_token_ids prompt;
  kva_compiled *compiled;
  kva_session *session;
  kva_sequences *sequences;
  kva_dtype token_type;
  void *tokens;                    /* [texts][rows of the call] in token_type */
  int32_t *order;                  /* room for the sampler */
  int64_t vocabulary, drawn, made; /* drawn: tokens that may be */
  kva_text *texts;                 /* of those that are printed at the end: what follows the prompt */
  bool *ended;
  double prefill_seconds, decode_seconds;
} generation;

static kva_status load_tokenizer(generation *g) {
  if (g->o->tokenizer)
    KVA_TRY(kva_tokenizer_load(g->o->tokenizer, g->diag, &g->tokenizer));
  else
    g->tokenizer = kva_tokenizer_bytes();
  int64_t replaced = 0;
  KVA_TRY(kva_tokenizer_encode(g->tokenizer, g->o->prompt, strlen(g->o->prompt), g->diag, &g->prompt, &replaced));
  return g->prompt.n ? KVA_OK : kva_error(g->diag, NULL, "--prompt: expected at least one token, found none");
}

/* Models may have a few tokens more than their tokenizer, to round sizes; these are not drawn. */
static kva_status check_vocabulary(generation *g) {
  int64_t known = kva_tokenizer_vocab(g->tokenizer), bytes = known - 1;
  g->drawn = known < g->vocabulary ? known : g->vocabulary;
  bool fits = g->o->tokenizer ? g->vocabulary >= known : g->vocabulary == bytes || g->vocabulary == known;
  if (fits) return KVA_OK;
  if (g->o->tokenizer)
    return kva_error(g->diag, NULL, "the model knows %lld tokens, the tokenizer has %lld", (long long)g->vocabulary,
                     (long long)known);
  return kva_error(
      g->diag, NULL,
      "the model knows %lld tokens; those of bytes are 256 or, with the end of texts, 257: give --tokenizer",
      (long long)g->vocabulary);
}

static kva_status check_signature(generation *g, const kva_module *m) {
  kva_language language;
  KVA_TRY(kva_language_of(m, "kvasir generate", g->diag, &language));
  g->token_type = language.token_type;
  g->vocabulary = language.vocabulary;
  return check_vocabulary(g);
}

static kva_status allocate(generation *g) {
  size_t texts = (size_t)g->o->texts, rows = (size_t)g->prompt.n;
  if (rows > SIZE_MAX / 16 / texts) return kva_fail(g->diag, KVA_NO_MEMORY, NULL, "out of memory");
  g->tokens = calloc(texts * rows, sizeof(int64_t));
  g->order = calloc((size_t)g->vocabulary, sizeof *g->order);
  g->texts = calloc(texts, sizeof *g->texts);
  g->ended = calloc(texts, sizeof *g->ended);
  bool ok = g->tokens && g->order && g->texts && g->ended;
  return ok ? KVA_OK : kva_fail(g->diag, KVA_NO_MEMORY, NULL, "out of memory");
}

static kva_status prepare(generation *g, kva_module *m, kva_pass_control *control, kva_arena *arena) {
  const kva_compile_options co = {.decode = true,
                                  .target = {.opt_level = 2, .cache = kva_user_cache(arena, NULL)},
                                  .passes = {.control = control, .sequences = g->o->texts}};
  const kva_session_options so = {.threads = (int)g->o->threads, .seed = (uint64_t)g->o->seed};
  kva_status status = check_signature(g, m);
  if (status != KVA_OK) {
    kva_module_destroy(m);
    return status;
  }
  KVA_TRY(kva_compile(m, &co, g->diag, &g->compiled));
  KVA_TRY(kva_session_create(g->compiled->artifact, &so, g->diag, &g->session));
  KVA_TRY(kva_sequences_create(g->session, g->o->texts, g->prompt.n + g->o->tokens, g->diag, &g->sequences));
  return allocate(g);
}

static void set_token(generation *g, int64_t i, int64_t token) {
  if (g->token_type == KVA_I32)
    ((int32_t *)g->tokens)[i] = (int32_t)token;
  else
    ((int64_t *)g->tokens)[i] = token;
}

static kva_status append(generation *g, int64_t rows, const float **out_logits) {
  kva_tensor in = {.dtype = g->token_type, .rank = 2, .dims = {g->o->texts, rows}, .data = g->tokens}, out[8] = {{0}};
  if (kva_sequences_outputs(g->sequences) > 8)
    return kva_fail(g->diag, KVA_UNSUPPORTED, NULL, "kvasir generate: the model has more than 8 outputs");
  kva_status status = kva_sequences_append(g->sequences, &in, out);
  if (status != KVA_OK) return kva_fail(g->diag, status, NULL, "%s", kva_session_error(g->session));
  *out_logits = out[0].data;
  return KVA_OK;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* One text is printed as it comes. */
static void take_token(generation *g, int64_t text, int64_t token) {
  if (token == kva_tokenizer_end(g->tokenizer)) g->ended[text] = true;
  if (g->ended[text]) return;
  kva_text *t = &g->texts[text];
  size_t before = t->len;
  kva_tokenizer_decode(g->tokenizer, (uint32_t)token, t);
  if (g->o->texts > 1) return;
  fwrite(t->data + before, 1, t->len - before, stdout);
  fflush(stdout);
}

static bool all_ended(const generation *g) {
  for (int64_t i = 0; i < g->o->texts; i++)
    if (!g->ended[i]) return false;
  return true;
}

/* Draws a token for every text from the logits of the last of `rows` rows. */
static void draw(generation *g, const float *logits, int64_t rows) {
  int64_t position = kva_sequences_length(g->sequences, 0);
  for (int64_t i = 0; i < g->o->texts; i++) {
    const float *last = logits + ((i + 1) * rows - 1) * g->vocabulary;
    int64_t token = kva_sample(&g->o->sampling, last, g->drawn, (uint64_t)i, (uint64_t)position, g->order);
    set_token(g, i, token);
    take_token(g, i, token);
  }
}

/* Of every text the same rows of the prompt, from `first` on. */
static kva_status read_prompt(generation *g, int64_t first, int64_t *out_rows, const float **out_logits) {
  int64_t rows = *out_rows = g->prompt.n - first < CHUNK ? g->prompt.n - first : CHUNK;
  for (int64_t i = 0; i < g->o->texts; i++)
    for (int64_t k = 0; k < rows; k++) set_token(g, i * rows + k, g->prompt.data[first + k]);
  return append(g, rows, out_logits);
}

static kva_status continue_texts(generation *g) {
  const float *logits = NULL;
  double start = kva_now();
  int64_t rows = 0;
  if (g->o->texts == 1) printf("%s", g->o->prompt), fflush(stdout);
  for (int64_t first = 0; first < g->prompt.n; first += rows) KVA_TRY(read_prompt(g, first, &rows, &logits));
  g->prefill_seconds = kva_now() - start;
  draw(g, logits, rows);
  for (g->made = 1; g->made < g->o->tokens && !all_ended(g) && !stop_requested && !ferror(stdout); g->made++) {
    KVA_TRY(append(g, 1, &logits));
    draw(g, logits, 1);
  }
  g->decode_seconds = kva_now() - start - g->prefill_seconds;
  return KVA_OK;
}

static void print_texts(const generation *g) {
  for (int64_t i = 0; g->o->texts > 1 && i < g->o->texts; i++) {
    printf("%s== %lld ==\n%s", i ? "\n" : "", (long long)i + 1, g->o->prompt);
    fwrite(g->texts[i].data, 1, g->texts[i].len, stdout);
  }
  fputc('\n', stdout);
  fflush(stdout);
}

static double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? (double)tokens / seconds : 0;
}

static void print_stats(const generation *g) {
  int64_t n = g->o->texts;
  fprintf(stderr, "prompt: %lld tokens, %.0f tokens/s; text: %lld tokens, %.0f tokens/s\n",
          (long long)(n * g->prompt.n), rate(n * g->prompt.n, g->prefill_seconds), (long long)(n * g->made),
          rate(n * (g->made - 1), g->decode_seconds));
}

static void clear(generation *g) {
  for (int64_t i = 0; g->texts && i < g->o->texts; i++) kva_text_free(&g->texts[i]);
  free(g->texts);
  free(g->ended);
  free(g->tokens);
  free(g->order);
  free(g->prompt.data);
  kva_sequences_destroy(g->sequences);
  kva_session_destroy(g->session);
  kva_compiled_destroy(g->compiled);
  kva_tokenizer_destroy(g->tokenizer);
  kva_diag_destroy(g->diag);
}

/* ---- the verb ---------------------------------------------------------------------------------------------------- */

static int generate(const char *path, generate_options *o) {
  generation g = {.o = o, .diag = kva_diag_create()};
  kva_arena *arena = kva_arena_create();
  kva_module *m = NULL;
  const kva_cli_source from = {.path = path, .defines = &o->defines, .pins = &(kva_strings){0}, .weights = o->weights};
  kva_status status = load_tokenizer(&g);
  int code = status == KVA_OK ? kva_cli_load_from(&from, g.diag, &m) : kva_cli_fail(status, g.diag);
  if (code < 0) {
    status = prepare(&g, m, &o->passes.control, arena);
    kva_cli_print_passes(&o->passes);
    signal(SIGINT, request_stop);
    if (status == KVA_OK) status = continue_texts(&g);
    if (status == KVA_OK) print_texts(&g);
    if (status == KVA_OK && o->stats) print_stats(&g);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, g.diag);
  }
  clear(&g);
  kva_arena_destroy(arena);
  if (stop_requested) die_of_interrupt();
  return code;
}

static int misused(const char *what) {
  fprintf(stderr, "kvasir generate: %s\n", what);
  return EXIT_USAGE;
}

static int run(int argc, char **argv) {
  generate_options o = {.tokens = 256, .texts = 1, .sampling = {.top_p = 1}};
  const kva_option options[] = {
      {"--prompt", NULL, "TEXT", KVA_OPTION_STRING, &o.prompt, "the text to continue"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, "trained values: a safetensors file or checkpoint"},
      {"--tokenizer", NULL, "FILE", KVA_OPTION_STRING, &o.tokenizer, "a tokenizer.json (tokens are bytes)"},
      {"--tokens", NULL, "N", KVA_OPTION_COUNT, &o.tokens, "at most so many more tokens (256)"},
      {"--n", NULL, "N", KVA_OPTION_COUNT, &o.texts, "so many texts, in one batch (1)"},
      {"--temperature", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &o.sampling.temperature,
       "0 (default): always the likeliest token; 1: as the model says"},
      {"--top-k", NULL, "N", KVA_OPTION_INT, &o.sampling.top_k, "only the N likeliest tokens (0: all)"},
      {"--top-p", NULL, "X", KVA_OPTION_POSITIVE, &o.sampling.top_p,
       "only the likeliest tokens that together have this probability (1)"},
      {"--min-p", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &o.sampling.min_p,
       "only tokens at least X times as likely as the likeliest (0)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of the draws, and of parameters without values (0)"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--stats", NULL, NULL, KVA_OPTION_FLAG, &o.stats, "print tokens per second to standard error"},
      KVA_PASS_OPTIONS(&o.passes),
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_generate, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (!n) return misused("a model is missing");
  if (!o.prompt) return misused("--prompt is missing: the text to continue");
  if (o.sampling.top_p > 1 || o.sampling.min_p > 1) return misused("--top-p and --min-p are probabilities, at most 1");
  if ((code = kva_cli_passes(&kva_verb_generate, &o.passes)) >= 0) return code;
  o.sampling.seed = (uint64_t)o.seed;
  return generate(path, &o);
}
