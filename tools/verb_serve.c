/* kvasir serve: a language model behind HTTP. */
#include "tools/cli.h"
#include "tools/serve/decoder.h"
#include "tools/serve/http/server.h"
#include "tools/tokenizer/unicode.h"

#include <signal.h>
#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_serve = {
    "serve", "MODEL [options]", "serve a language model over HTTP, as OpenAI's interface",
    "Answers /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics, and has a page to try the model "
    "at /.\n"
    "Many texts are made at once; a text does not depend on what runs beside it. Listens on this machine alone unless\n"
    "--host says otherwise. A key for clients comes from --api-key-file or from $KVASIR_API_KEY. SIGTERM and SIGINT "
    "end\n"
    "it after the texts that run.\n\n"
    "Examples:\n"
    "  kvasir serve models/lm.kv -D vocab=257 --weights model.safetensors\n"
    "  kvasir serve model.onnx --tokenizer tokenizer.json --name mine --port 8080 --api-key-file key",
    run};

typedef struct serve_options {
  kva_strings defines;
  const char *weights, *tokenizer, *chat, *key_file, *caches;
  int64_t batch, prefixes, queue, threads, seed;
  kva_server_options server;
  kva_device_choice device;
  kva_pass_choice passes;
} serve_options;

typedef struct serving {
  const serve_options *o;
  kva_diag *diag;
  kva_arena *arena;
  kva_tokenizer *tokenizer;
  kva_server_options server;
  kva_decoder *decoder;
  kva_engine *engine;
  kva_service *service;
  kva_dtype caches;
  kva_target_options target;
} serving;

/* ---- settings ---------------------------------------------------------------------------------------------------- */

/* The first line of the file, else the environment's. */
static kva_status find_key(serving *s) {
  const char *key = getenv("KVASIR_API_KEY");
  if (s->o->key_file) {
    kva_file file;
    KVA_TRY(kva_file_map(s->o->key_file, s->diag, &file));
    char *text = kva_arena_strndup(s->arena, file.data, file.size);
    kva_file_unmap(&file);
    text[strcspn(text, "\r\n")] = 0;
    key = text;
    if (!*key) return kva_error(s->diag, NULL, "%s: expected a key in the first line, found none", s->o->key_file);
  }
  s->server.api_key = key && *key ? key : NULL;
  return KVA_OK;
}

/* A template of no known format is a warning: texts can be served all the same. */
static void find_chat(serving *s) {
  kva_status status = kva_chat_choose(s->o->chat, s->o->tokenizer, s->tokenizer, s->diag, &s->server.chat);
  if (status != KVA_OK) kva_diag_demote(s->diag);
}

/* The name of the file, without its folder and ending. */
static const char *model_name(const char *path, kva_arena *arena) {
  const char *begin = kva_file_name(path), *dot = strrchr(begin, '.');
  return dot && dot > begin ? kva_arena_strndup(arena, begin, (size_t)(dot - begin)) : begin;
}

static kva_status settle(serving *s, const char *path) {
  s->server = s->o->server;
  if (!s->server.model) s->server.model = model_name(path, s->arena);
  if (!kva_utf8_valid(s->server.model, strlen(s->server.model)))
    return kva_error(s->diag, NULL, "the name of the model is not UTF-8, as answers need it: give another --name");
  if (s->server.max_tokens > s->server.context) s->server.max_tokens = s->server.context;
  if (s->o->tokenizer)
    KVA_TRY(kva_tokenizer_load(s->o->tokenizer, s->diag, &s->tokenizer));
  else
    s->tokenizer = kva_tokenizer_bytes();
  find_chat(s);
  s->target = (kva_target_options){.opt_level = 2, .cache = kva_user_cache(s->arena, NULL)};
  KVA_TRY(kva_cli_target(&s->o->device, s->diag, &s->target));
  KVA_TRY(kva_precision_named(s->o->caches, s->diag, &s->caches));
  return find_key(s);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Texts have at most as many tokens as the model has positions. */
static kva_status fit_context(serving *s, int64_t context) {
  if (context < 2)
    return kva_error(s->diag, NULL, "the model has positions for %lld tokens; a prompt and a token are two",
                     (long long)context);
  if (s->server.context > context) s->server.context = context;
  if (s->server.max_tokens > s->server.context) s->server.max_tokens = s->server.context;
  return KVA_OK;
}

static kva_status make_engine(serving *s, kva_module *m) {
  const serve_options *o = s->o;
  const kva_decoder_options compiled = {.slots = o->batch,
                                        .threads = (int)o->threads,
                                        .seed = (uint64_t)o->seed,
                                        .device = o->device.device,
                                        .caches = s->caches,
                                        .target = s->target,
                                        .control = (kva_pass_control *)&o->passes.control};
  KVA_TRY(kva_decoder_create(m, s->tokenizer, &compiled, s->diag, &s->decoder));
  KVA_TRY(fit_context(s, kva_decoder_context(s->decoder)));
  const kva_engine_options options = {.slots = o->batch, .capacity = s->server.context, .prefixes = o->prefixes};
  KVA_TRY(kva_engine_create(kva_decoder_session(s->decoder), s->tokenizer, &options, s->diag, &s->engine));
  s->server.tokens = kva_engine_tokens(s->engine);
  return KVA_OK;
}

static void print_address(const serving *s, const kva_server *server) {
  bool v6 = strchr(s->server.host, ':') != NULL;
  printf("serving %s at http://%s%s%s:%d\n", s->server.model, v6 ? "[" : "", s->server.host, v6 ? "]" : "",
         kva_server_port(server));
  fflush(stdout);
}

/* Signals that end it, blocked in the threads that are created from now on: the first one waits for them. */
static sigset_t block_signals(void) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigprocmask(SIG_BLOCK, &ends, NULL);
  signal(SIGPIPE, SIG_IGN);
  return ends;
}

static kva_status serve_until(serving *s, const sigset_t *ends) {
  int number;
  kva_server *server = NULL;
  KVA_TRY(kva_service_start(s->engine, s->o->queue, s->diag, &s->service));
  kva_status status = kva_server_start(s->service, s->tokenizer, &s->server, s->diag, &server);
  if (status == KVA_OK) {
    print_address(s, server);
    sigwait(ends, &number);
    sigprocmask(SIG_UNBLOCK, ends, NULL); /* a second one ends at once */
  }
  kva_server_stop(server);
  kva_service_stop(s->service);
  return status;
}

static int load_and_serve(serving *s, const char *path, serve_options *o) {
  const kva_cli_source from = {.path = path,
                               .defines = &o->defines,
                               .pins = &(kva_strings){0},
                               .weights = o->weights,
                               .language = true,
                               .packed = true,
                               .fixed = true};
  kva_module *m = NULL;
  kva_status status = settle(s, path);
  if (status == KVA_OK) kva_cli_warn(s->diag);
  int code = status == KVA_OK ? kva_cli_load_from(&from, s->diag, &m) : kva_cli_fail(status, s->diag);
  if (code >= 0) return code;
  const sigset_t ends = block_signals();
  status = make_engine(s, m);
  kva_cli_print_passes(&o->passes);
  if (status == KVA_OK) status = serve_until(s, &ends);
  return status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, s->diag);
}

static int serve(const char *path, serve_options *o) {
  serving s = {.o = o, .diag = kva_diag_create(), .arena = kva_arena_create()};
  int code = load_and_serve(&s, path, o);
  kva_engine_destroy(s.engine);
  kva_decoder_destroy(s.decoder);
  kva_tokenizer_destroy(s.tokenizer);
  kva_arena_destroy(s.arena);
  kva_diag_destroy(s.diag);
  return code;
}

static int misused(const char *what) {
  fprintf(stderr, "kvasir serve: %s\n", what);
  return EXIT_USAGE;
}

static int run(int argc, char **argv) {
  serve_options o = {.chat = "auto",
                     .batch = 8,
                     .prefixes = 8,
                     .queue = 256,
                     .server = {.host = "127.0.0.1",
                                .port = 8000,
                                .context = 2048,
                                .max_tokens = 1024,
                                .max_body = 1 << 20,
                                .max_texts = 64,
                                .connections = 256}};
  kva_server_options *s = &o.server;
  const kva_option options[] = {
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, "trained values: a safetensors file or checkpoint"},
      {"--tokenizer", NULL, "FILE", KVA_OPTION_STRING, &o.tokenizer, "a tokenizer.json (tokens are bytes)"},
      {"--chat", NULL, KVA_CHAT_WORDS, KVA_OPTION_WORD, &o.chat, "format of chats (auto: the tokenizer's)"},
      {"--name", NULL, "NAME", KVA_OPTION_STRING, &s->model, "of the model (the file's)"},
      {"--host", NULL, "ADDRESS", KVA_OPTION_STRING, &s->host, "to listen at (127.0.0.1)"},
      {"--port", NULL, "N", KVA_OPTION_INT32, &s->port, "to listen at; 0: any (8000)"},
      {"--api-key-file", NULL, "FILE", KVA_OPTION_STRING, &o.key_file,
       "a key that clients must send ($KVASIR_API_KEY)"},
      {"--context", NULL, "N", KVA_OPTION_COUNT, &s->context, "tokens of a text with its prompt (2048)"},
      {"--max-tokens", NULL, "N", KVA_OPTION_COUNT, &s->max_tokens, "that a request may ask for (1024)"},
      {"--batch", NULL, "N", KVA_OPTION_COUNT, &o.batch, "so many texts at once (8)"},
      {"--queue", NULL, "N", KVA_OPTION_COUNT, &o.queue, "so many texts may wait (256)"},
      {"--prefixes", NULL, "N", KVA_OPTION_COUNT, &o.prefixes, "so many prompts and texts are kept (8)"},
      {"--max-body", NULL, "BYTES", KVA_OPTION_COUNT, &s->max_body, "of a request (1048576)"},
      {"--connections", NULL, "N", KVA_OPTION_COUNT, &s->connections, "so many at once (256)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of parameters without values (0)"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      KVA_CACHES_OPTION(&o.caches),
      KVA_DEVICE_OPTIONS(&o.device),
      KVA_PASS_OPTIONS(&o.passes),
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_serve, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (!n) return misused("a model is missing");
  if (s->port > 65535) return misused("--port: expected a number below 65536");
  if (s->context < 2) return misused("--context: expected at least two tokens");
  if ((code = kva_cli_passes(&kva_verb_serve, &o.passes)) >= 0) return code;
  if (s->max_texts > o.queue) s->max_texts = o.queue; /* more would never find room */
  return serve(path, &o);
}
