/* kvasir eval: how well a language model predicts texts. */
#include "tools/cli.h"
#include "tools/eval/text.h"
#include "tools/library/library.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_eval = {
    "eval", "MODEL --data FILE [options]", "measure how well a language model predicts texts",
    "Prints the mean loss of a token (in nats), perplexity and bits per byte of token files and texts. Every token is\n"
    "predicted once, from windows of --context tokens; windows begin --stride tokens apart. Memory does not grow with\n"
    "the number of tokens. The numbers do not depend on the number of threads. docs/evaluation.md defines them.\n\n"
    "Examples:\n"
    "  kvasir eval models/lm.kv -D vocab=257 --weights model.safetensors --data books.tok\n"
    "  kvasir eval model.onnx --tokenizer tokenizer.json --data texts/ --context 1024 --stride 512 --json",
    run};

enum { DEFAULT_CONTEXT = 512, TOGETHER = 2048, MAX_WINDOWS = 64 };

typedef struct eval_options {
  const char *model, *weights, *tokenizer, *documents;
  kva_strings defines, data;
  int64_t context, stride, limit, threads, seed;
  bool json;
  kva_pass_choice passes;
} eval_options;

typedef struct evaluation {
  const eval_options *o;
  kva_diag *diag;
  kva_arena *arena;
  kva_language language;
  kva_tokenizer *tokenizer;
  kvasir_program *program;
  kvasir_session *session;
  kva_scorer *scorer;
  int64_t context;
} evaluation;

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* The length of the sequences that the model trains on. */
static int64_t trained_length(const kva_module *m) {
  const double *length = m->train && m->train->data_args ? kva_map_get_str(m->train->data_args, "length") : NULL;
  return length && *length >= 1 ? (int64_t)*length : DEFAULT_CONTEXT;
}

static kva_status compile(evaluation *e, kva_module *m, kva_pass_control *control) {
  const kva_compile_options co = {.decode = true,
                                  .target = {.opt_level = 2, .cache = kva_user_cache(e->arena, NULL)},
                                  .passes = {.control = control}};
  const kva_session_options so = {.threads = (int)e->o->threads, .seed = (uint64_t)e->o->seed};
  KVA_TRY(kva_program_compile(m, &co, NULL, e->diag, &e->program));
  KVA_TRY(kva_program_session(e->program, &so, e->diag, &e->session));
  return kva_scorer_create(e->session->s, &e->language, e->diag, &e->scorer);
}

static kva_status load_tokenizer(evaluation *e) {
  if (e->o->tokenizer) return kva_tokenizer_load(e->o->tokenizer, e->diag, &e->tokenizer);
  e->tokenizer = kva_tokenizer_bytes();
  return KVA_OK;
}

static kva_status prepare(evaluation *e, kva_module *m, kva_pass_control *control) {
  kva_status status = kva_language_of(m, "kvasir eval", e->diag, &e->language);
  e->context = e->o->context ? e->o->context : trained_length(m);
  if (status == KVA_OK && e->o->stride > e->context)
    status = kva_error(e->diag, NULL, "--stride: expected at most the context of %lld tokens, found %lld",
                       (long long)e->context, (long long)e->o->stride);
  if (status == KVA_OK) return compile(e, m, control);
  kva_module_destroy(m);
  return status;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void print_json(const kva_text_eval *t, const kva_text_score *s, double seconds) {
  double loss = s->nats / (double)s->tokens;
  kva_text out = {0};
  kva_text_add(&out, "{\"tokens\": %lld, \"documents\": %lld, \"context\": %lld, \"stride\": %lld, \"documents_are\": ",
               (long long)s->tokens, (long long)s->documents, (long long)t->context, (long long)t->stride);
  kva_text_add(&out, "\"%s\", \"loss\": %.17g, \"perplexity\": %.17g, \"bytes\": ", t->apart ? "apart" : "packed", loss,
               exp(loss));
  if (s->bytes > 0)
    kva_text_add(&out, "%lld, \"bits_per_byte\": %.17g", (long long)s->bytes, s->nats / log(2) / (double)s->bytes);
  else
    kva_text_add(&out, "null, \"bits_per_byte\": null");
  printf("%s, \"seconds\": %.3f}\n", out.data, seconds);
  kva_text_free(&out);
}

static void print_text(const kva_text_eval *t, const kva_text_score *s, double seconds) {
  double loss = s->nats / (double)s->tokens;
  printf("%lld tokens of %lld documents, %s; context %lld, stride %lld; %.1f s, %.0f tokens/s\n", (long long)s->tokens,
         (long long)s->documents, t->apart ? "each apart" : "one after the other", (long long)t->context,
         (long long)t->stride, seconds, (double)s->tokens / seconds);
  printf("loss           %.6f\nperplexity     %.4f\n", loss, exp(loss));
  if (s->bytes > 0)
    printf("bits per byte  %.6f, of %lld bytes\n", s->nats / log(2) / (double)s->bytes, (long long)s->bytes);
  else
    printf("bits per byte  unknown: not how many bytes the tokens are; --tokenizer says it\n");
}

static kva_status eval_text(evaluation *e) {
  const eval_options *o = e->o;
  int64_t together = TOGETHER / e->context;
  const kva_text_eval t = {.scorer = e->scorer,
                           .tokenizer = e->tokenizer,
                           .own_tokens = o->tokenizer,
                           .vocabulary = e->language.vocabulary,
                           .context = e->context,
                           .stride = o->stride ? o->stride : e->context,
                           .windows = together < 1             ? 1
                                      : together > MAX_WINDOWS ? MAX_WINDOWS
                                                               : together,
                           .apart = o->documents && !strcmp(o->documents, "apart"),
                           .limit = o->limit,
                           .progress = !o->json && isatty(STDERR_FILENO)};
  kva_text_score score;
  double start = kva_now();
  KVA_TRY(kva_eval_text(&t, o->data.n, o->data.v, e->diag, &score));
  (o->json ? print_json : print_text)(&t, &score, kva_now() - start);
  return KVA_OK;
}

/* ---- the verb ---------------------------------------------------------------------------------------------------- */

static void clear(evaluation *e) {
  kva_scorer_destroy(e->scorer);
  kvasir_session_destroy(e->session);
  kvasir_program_destroy(e->program);
  kva_tokenizer_destroy(e->tokenizer);
  kva_arena_destroy(e->arena);
  kva_diag_destroy(e->diag);
}

static int evaluate(eval_options *o) {
  evaluation e = {.o = o, .diag = kva_diag_create(), .arena = kva_arena_create()};
  kva_module *m = NULL;
  const kva_cli_source from = {
      .path = o->model, .defines = &o->defines, .pins = &(kva_strings){0}, .weights = o->weights};
  kva_status status = load_tokenizer(&e);
  int code = status == KVA_OK ? kva_cli_load_from(&from, e.diag, &m) : kva_cli_fail(status, e.diag);
  if (code < 0) {
    status = prepare(&e, m, &o->passes.control);
    kva_cli_print_passes(&o->passes);
    if (status == KVA_OK) status = eval_text(&e);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, e.diag);
  }
  clear(&e);
  return code;
}

static int misused(const char *what) {
  fprintf(stderr, "kvasir eval: %s\nTry: kvasir eval --help\n", what);
  return EXIT_USAGE;
}

static int run(int argc, char **argv) {
  eval_options o = {0};
  const kva_option options[] = {
      {"--data", NULL, "FILE", KVA_OPTION_LIST, &o.data,
       "a token file, a text or a folder of texts; may be given often"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, "trained values: a safetensors file or checkpoint"},
      {"--tokenizer", NULL, "FILE", KVA_OPTION_STRING, &o.tokenizer, "a tokenizer.json (tokens are bytes)"},
      {"--context", NULL, "N", KVA_OPTION_COUNT, &o.context, "tokens of a window (what the model trains on, else 512)"},
      {"--stride", NULL, "N", KVA_OPTION_COUNT, &o.stride, "tokens from one window to the next (the context)"},
      {"--documents", NULL, "packed|apart", KVA_OPTION_WORD, &o.documents,
       "one after the other in a window (default), or each in windows of its own"},
      {"--limit", NULL, "N", KVA_OPTION_COUNT, &o.limit, "only the first N tokens"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of parameters without values (0)"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &o.json, "print a JSON object"},
      KVA_PASS_OPTIONS(&o.passes),
  };
  int n, code = kva_cli_parse(&kva_verb_eval, argc, argv, options, sizeof options / sizeof *options, &o.model, 1, &n);
  if (code >= 0) return code;
  if (!n) return misused("a model is missing");
  if (!o.data.n) return misused("--data is missing: what to evaluate on");
  if (o.context && o.stride > o.context) return misused("--stride is at most --context, so that no token is left out");
  if ((code = kva_cli_passes(&kva_verb_eval, &o.passes)) >= 0) return code;
  return evaluate(&o);
}
