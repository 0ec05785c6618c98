/* kvasir eval: how well a language model predicts texts, and what it gets right. */
#include "tools/cli.h"
#include "tools/eval/task.h"
#include "tools/eval/text.h"
#include "tools/library/library.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_eval = {
    "eval", "MODEL --data FILE | --task NAME --file FILE [options]", "measure how good a language model is",
    "--data: the mean loss of a token (in nats), perplexity and bits per byte of token files and texts. Every token "
    "is\n"
    "predicted once, from windows of --context tokens; windows begin --stride tokens apart.\n"
    "--task: the share of items that the model gets right, with the standard error. Items are texts to complete, "
    "choices\n"
    "and questions, from files of Kvasir's own format (items) or of public test sets as their authors publish them.\n"
    "Numbers do not depend on the number of threads. docs/evaluation.md defines them.\n\n"
    "Examples:\n"
    "  kvasir eval models/lm.kv -D vocab=257 --weights model.safetensors --data books.tok\n"
    "  kvasir eval model.onnx --tokenizer tokenizer.json --data texts/ --context 1024 --stride 512 --json\n"
    "  kvasir eval model.onnx --tokenizer tokenizer.json --task hellaswag --file hellaswag_val.jsonl --limit 1000\n"
    "  kvasir eval model.onnx --tokenizer tokenizer.json --task mmlu --file data/test --shots 5 --shots-file data/dev",
    run};

enum { DEFAULT_CONTEXT = 512, TOGETHER = 2048, MAX_WINDOWS = 64, DEFAULT_ANSWER = 64, DEFAULT_RESAMPLES = 1000 };

typedef struct eval_options {
  const char *model, *weights, *tokenizer, *documents, *task, *details, *caches;
  kva_strings defines, data, files, shots_files;
  int64_t context, stride, limit, threads, seed, shots, answer_tokens, resamples;
  bool json;
  kva_device_choice device;
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
  kva_items items, examples;
  int64_t context;
  kva_dtype caches;
  kva_target_options target;
} evaluation;

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* The length of the sequences that the model trains on. */
static int64_t trained_length(const kva_module *m) {
  int64_t length = m->train ? kva_cli_length_of(m->train) : 0;
  return length > 0 ? length : DEFAULT_CONTEXT;
}

static kva_status compile(evaluation *e, kva_module *m, kva_pass_control *control) {
  const kva_compile_options co = {
      .decode = true, .target = e->target, .passes = {.control = control, .caches = e->caches}};
  const kva_session_options so = {.threads = (int)e->o->threads, .seed = (uint64_t)e->o->seed, .borrow_states = true};
  KVA_TRY(kva_program_compile(m, &co, e->o->device.device, e->diag, &e->program));
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
  if (status == KVA_OK && !e->o->context && e->context > e->language.context) e->context = e->language.context;
  if (status == KVA_OK && !e->o->task && e->context > e->language.context)
    status = kva_error(e->diag, NULL, "--context: the model has positions for %lld tokens, found %lld",
                       (long long)e->language.context, (long long)e->context);
  if (status == KVA_OK && e->o->stride > e->context)
    status = kva_error(e->diag, NULL, "--stride: expected at most the context of %lld tokens, found %lld",
                       (long long)e->context, (long long)e->o->stride);
  if (status == KVA_OK) return compile(e, m, control);
  kva_module_destroy(m);
  return status;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* JSON has no infinity. */
static void add_number(kva_text *out, const char *name, double v) {
  if (isfinite(v))
    kva_text_add(out, ", \"%s\": %.17g", name, v);
  else
    kva_text_add(out, ", \"%s\": null", name);
}

static void print_json(const kva_text_eval *t, const kva_text_score *s, double seconds) {
  double loss = s->nats / (double)s->tokens;
  kva_text out = {0};
  kva_text_add(&out, "{\"tokens\": %lld, \"documents\": %lld, \"context\": %lld, \"stride\": %lld, \"documents_are\": ",
               (long long)s->tokens, (long long)s->documents, (long long)t->context, (long long)t->stride);
  kva_text_add(&out, "\"%s\"", t->apart ? "apart" : "packed");
  add_number(&out, "loss", loss);
  add_number(&out, "perplexity", exp(loss));
  if (s->bytes > 0)
    kva_text_add(&out, ", \"bytes\": %lld", (long long)s->bytes);
  else
    kva_text_add(&out, ", \"bytes\": null");
  add_number(&out, "bits_per_byte", s->bytes > 0 ? s->nats / log(2) / (double)s->bytes : NAN);
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

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

static void print_measures_json(const eval_options *o, const kva_task_score *s, double seconds) {
  kva_text out = {0};
  kva_text_add(&out, "{\"task\": \"%s\", \"items\": %lld, \"shots\": %lld, \"cut\": %lld", o->task, (long long)s->items,
               (long long)o->shots, (long long)s->cut);
  for (int m = 0; m < KVA_MEASURES; m++) {
    const struct kva_measured *v = &s->of[m];
    if (v->n && isfinite(v->mean))
      kva_text_add(&out, ", \"%s\": %.17g, \"%s_stderr\": %.17g", kva_measure_names[m], v->mean, kva_measure_names[m],
                   v->error);
    else if (v->n)
      kva_text_add(&out, ", \"%s\": null, \"%s_stderr\": null", kva_measure_names[m], kva_measure_names[m]);
  }
  if (s->of[KVA_MEASURE_LOSS].n && isfinite(exp(s->of[KVA_MEASURE_LOSS].mean)))
    kva_text_add(&out, ", \"perplexity\": %.17g", exp(s->of[KVA_MEASURE_LOSS].mean));
  printf("%s, \"seconds\": %.3f}\n", out.data, seconds);
  kva_text_free(&out);
}

static void print_measures(const eval_options *o, const kva_task_score *s, double seconds) {
  printf("%s: %lld items, %lld shots; %.1f s\n", o->task, (long long)s->items, (long long)o->shots, seconds);
  for (int m = 0; m < KVA_MEASURES; m++)
    if (s->of[m].n) printf("%-19s %.6f  +- %.6f\n", kva_measure_names[m], s->of[m].mean, s->of[m].error);
  if (s->of[KVA_MEASURE_LOSS].n) printf("%-19s %.4f\n", "perplexity", exp(s->of[KVA_MEASURE_LOSS].mean));
  if (s->cut) printf("%lld texts are longer than the context and lost their beginning\n", (long long)s->cut);
}

static kva_status read_items(const evaluation *e, const kva_strings *files, kva_items *items) {
  items->arena = e->arena;
  for (uint32_t i = 0; i < files->n; i++) KVA_TRY(kva_items_read(e->o->task, files->v[i], e->diag, items));
  return KVA_OK;
}

static kva_status run_task(evaluation *e, FILE *details) {
  const eval_options *o = e->o;
  const kva_task_run r = {.scorer = e->scorer,
                          .tokenizer = e->tokenizer,
                          .vocabulary = e->language.vocabulary,
                          .context = o->context,
                          .positions = e->language.context,
                          .answer_tokens = o->answer_tokens,
                          .shots = o->shots,
                          .pool = o->shots_files.n ? &e->examples : NULL,
                          .limit = o->limit,
                          .resamples = o->resamples,
                          .seed = (uint64_t)o->seed,
                          .details = details,
                          .progress = !o->json && isatty(STDERR_FILENO)};
  kva_task_score score;
  double start = kva_now();
  KVA_TRY(kva_task_evaluate(&r, &e->items, e->diag, &score));
  (o->json ? print_measures_json : print_measures)(o, &score, kva_now() - start);
  return KVA_OK;
}

static kva_status eval_task(evaluation *e) {
  const char *path = e->o->details;
  kva_loc loc = {.file = path};
  KVA_TRY(kva_eval_check_tokenizer(e->language.vocabulary, e->tokenizer, e->o->tokenizer, e->o->files.v[0], e->diag));
  FILE *details = path ? fopen(path, "we") : NULL;
  if (path && !details) return kva_fail(e->diag, KVA_IO, &loc, "cannot open it for writing: %s", strerror(errno));
  kva_status status = run_task(e, details);
  bool ok = !details || !ferror(details);
  if (details) ok = !fclose(details) && ok;
  return status == KVA_OK && !ok ? kva_fail(e->diag, KVA_IO, &loc, "cannot write it") : status;
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
  const kva_cli_source from = {.path = o->model,
                               .defines = &o->defines,
                               .pins = &(kva_strings){0},
                               .weights = o->weights,
                               .language = true,
                               .packed = true,
                               .fixed = true};
  kva_status status = load_tokenizer(&e);
  if (status == KVA_OK) status = read_items(&e, &o->files, &e.items);
  if (status == KVA_OK) status = read_items(&e, &o->shots_files, &e.examples);
  e.target = (kva_target_options){.opt_level = 2, .cache = kva_user_cache(e.arena, NULL)};
  if (status == KVA_OK) status = kva_cli_target(&o->device, e.diag, &e.target);
  if (status == KVA_OK) status = kva_precision_named(o->caches, e.diag, &e.caches);
  int code = status == KVA_OK ? kva_cli_load_from(&from, e.diag, &m) : kva_cli_fail(status, e.diag);
  if (code < 0) {
    status = prepare(&e, m, &o->passes.control);
    kva_cli_print_passes(&o->passes);
    if (status == KVA_OK) status = o->task ? eval_task(&e) : eval_text(&e);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, e.diag);
  }
  clear(&e);
  return code;
}

static int misused(const char *what) {
  fprintf(stderr, "kvasir eval: %s\nTry: kvasir eval --help\n", what);
  return EXIT_USAGE;
}

static bool replaces_input(const eval_options *o) {
  const char *inputs[] = {o->model, o->weights, o->tokenizer};
  return kva_cli_replaces_input("eval", "--details", o->details, 3, inputs) ||
         kva_cli_replaces_input("eval", "--details", o->details, (int)o->files.n, o->files.v) ||
         kva_cli_replaces_input("eval", "--details", o->details, (int)o->shots_files.n, o->shots_files.v);
}

/* Returns -1 to continue. */
static int check(const eval_options *o) {
  bool task_alone = o->files.n || o->shots || o->shots_files.n || o->details;
  if (o->task && o->data.n) return misused("--data and --task are two evaluations: give one of them");
  if (!o->task && !o->data.n) return misused("what to evaluate on is missing: --data FILE, or --task NAME --file FILE");
  if (o->task && !o->files.n) return misused("--file is missing: the items of the task");
  if (!o->task && task_alone) return misused("--file, --shots, --shots-file and --details belong to --task");
  if (o->task && (o->stride || o->documents)) return misused("--stride and --documents belong to --data");
  if (o->shots_files.n && !o->shots) return misused("--shots-file without --shots N");
  if (o->context && o->stride > o->context)
    return misused("--stride is at most --context, so that no token is left out");
  if (replaces_input(o)) return EXIT_USAGE;
  return -1;
}

static int run(int argc, char **argv) {
  eval_options o = {.answer_tokens = DEFAULT_ANSWER, .resamples = DEFAULT_RESAMPLES};
  const kva_option options[] = {
      {"--data", NULL, "FILE", KVA_OPTION_LIST, &o.data,
       "a token file, a text or a folder of texts; may be given often"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, KVA_WEIGHTS_HELP},
      {"--tokenizer", NULL, "FILE", KVA_OPTION_STRING, &o.tokenizer, "a tokenizer.json (tokens are bytes)"},
      {"--context", NULL, "N", KVA_OPTION_COUNT, &o.context, "tokens of a window (what the model trains on, else 512)"},
      {"--stride", NULL, "N", KVA_OPTION_COUNT, &o.stride, "tokens from one window to the next (the context)"},
      {"--documents", NULL, "packed|apart", KVA_OPTION_WORD, &o.documents,
       "one after the other in a window (default), or each in windows of its own"},
      {"--task", NULL, KVA_TASKS, KVA_OPTION_WORD, &o.task, "the format of the files of items"},
      {"--file", NULL, "FILE", KVA_OPTION_LIST, &o.files, "items: a file or a folder of them; may be given often"},
      {"--shots", NULL, "N", KVA_OPTION_INT32, &o.shots, "examples with their answers before each item (0)"},
      {"--shots-file", NULL, "FILE", KVA_OPTION_LIST, &o.shots_files,
       "the first items here are the examples (others of the same files, drawn by --seed)"},
      {"--answer-tokens", NULL, "N", KVA_OPTION_COUNT, &o.answer_tokens, "of answers that the model writes (64)"},
      {"--bootstrap", NULL, "N", KVA_OPTION_INT32, &o.resamples, "resamples for standard errors (1000)"},
      {"--details", NULL, "FILE", KVA_OPTION_STRING, &o.details, "write a JSON object for each item"},
      {"--limit", NULL, "N", KVA_OPTION_COUNT, &o.limit, "only the first N tokens, or items"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of examples, resamples, and parameters without values (0)"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &o.json, "print a JSON object"},
      KVA_CACHES_OPTION(&o.caches),
      KVA_DEVICE_OPTIONS(&o.device),
      KVA_PASS_OPTIONS(&o.passes),
  };
  int n, code = kva_cli_parse(&kva_verb_eval, argc, argv, options, sizeof options / sizeof *options, &o.model, 1, &n);
  if (code >= 0) return code;
  if (!n) return misused("a model is missing");
  if ((code = check(&o)) >= 0) return code;
  if ((code = kva_cli_passes(&kva_verb_eval, &o.passes)) >= 0) return code;
  return evaluate(&o);
}
