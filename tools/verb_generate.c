/* kvasir generate: continues texts with a language model. */
#include "tools/cli.h"
#include "tools/generate/texts.h"
#include "tools/serve/decoder.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_generate = {
    "generate", "MODEL --prompt TEXT [options]", "continue texts with a language model",
    "The model takes tokens [B, T] and gives logits [B, T, vocabulary]; what it remembers of earlier tokens is "
    "derived\n"
    "from it, so that a token costs one step. Without --tokenizer tokens are bytes, and 256 ends a text. One text is\n"
    "printed as it comes, after the prompt; several (--n, --prompts) one after the other. The same seed gives the "
    "same\n"
    "texts, whatever the number of threads and --batch. A signal ends the texts where they are, with exit code 4.\n"
    "An ONNX model that keeps a cache of its own as inputs and outputs is read without it.\n\n"
    "Examples:\n"
    "  kvasir generate models/lm.kv -D vocab=257 --weights model.safetensors --prompt \"Once upon\" --temperature 0.8\n"
    "  kvasir generate model.onnx --tokenizer tokenizer.json --prompt \"The\" --tokens 40 --stop \".\"\n"
    "  kvasir generate model.onnx --tokenizer tokenizer.json --prompts questions.txt --batch 8 --json\n"
    "  kvasir generate model.onnx --tokenizer tokenizer.json --prompt \"The\" --device cuda --stats",
    run};

typedef struct generate_options {
  kva_strings defines;
  const char *weights, *tokenizer, *caches;
  kva_texts_options texts;
  kva_device_choice device;
  kva_pass_choice passes;
} generate_options;

typedef struct generation {
  const generate_options *o;
  kva_diag *diag;
  kva_arena *arena;
  kva_tokenizer *tokenizer;
  kva_texts *texts;
  kva_decoder *decoder;
  kva_dtype caches;
  kva_target_options target;
} generation;

static kva_status read_texts(generation *g) {
  const generate_options *o = g->o;
  const kva_chat *chat = NULL;
  if (o->tokenizer)
    KVA_TRY(kva_tokenizer_load(o->tokenizer, g->diag, &g->tokenizer));
  else
    g->tokenizer = kva_tokenizer_bytes();
  if (o->texts.chat) KVA_TRY(kva_chat_choose(o->texts.chat, o->tokenizer, g->tokenizer, g->diag, &chat));
  return kva_texts_create(&o->texts, g->tokenizer, chat, g->diag, &g->texts);
}

static kva_status make_decoder(generation *g, kva_module *m) {
  const generate_options *o = g->o;
  const kva_decoder_options options = {.slots = kva_texts_slots(g->texts),
                                       .threads = (int)o->texts.threads,
                                       .seed = (uint64_t)o->texts.seed,
                                       .device = o->device.device,
                                       .caches = g->caches,
                                       .target = g->target,
                                       .control = (kva_pass_control *)&o->passes.control};
  return kva_decoder_create(m, g->tokenizer, &options, g->diag, &g->decoder);
}

static int load_and_continue(generation *g, const char *path, generate_options *o) {
  const kva_cli_source from = {.path = path,
                               .defines = &o->defines,
                               .pins = &(kva_strings){0},
                               .weights = o->weights,
                               .language = true,
                               .packed = true,
                               .fixed = true};
  kva_module *m = NULL;
  kva_status status = read_texts(g);
  g->target = (kva_target_options){.opt_level = 2, .cache = kva_user_cache(g->arena, NULL)};
  if (status == KVA_OK) status = kva_cli_target(&o->device, g->diag, &g->target);
  if (status == KVA_OK) status = kva_precision_named(o->caches, g->diag, &g->caches);
  int code = status == KVA_OK ? kva_cli_load_from(&from, g->diag, &m) : kva_cli_fail(status, g->diag);
  if (code >= 0) return code;
  status = make_decoder(g, m);
  kva_cli_print_passes(&o->passes);
  if (status == KVA_OK)
    status = kva_texts_run(g->texts, kva_decoder_session(g->decoder), kva_decoder_context(g->decoder));
  return status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, g->diag);
}

static int generate(const char *path, generate_options *o) {
  generation g = {.o = o, .diag = kva_diag_create(), .arena = kva_arena_create()};
  int code = load_and_continue(&g, path, o);
  kva_texts_destroy(g.texts);
  kva_decoder_destroy(g.decoder);
  kva_tokenizer_destroy(g.tokenizer);
  kva_arena_destroy(g.arena);
  kva_diag_destroy(g.diag);
  return code;
}

static const char *misused(const generate_options *o, int n_models) {
  if (!n_models) return "a model is missing";
  if (!o->texts.prompt && !o->texts.prompts) return "--prompt is missing: the text to continue";
  return kva_texts_misused(&o->texts);
}

static int run(int argc, char **argv) {
  generate_options o = {.texts = KVA_TEXTS_DEFAULTS};
  const kva_option options[] = {
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, KVA_WEIGHTS_HELP},
      {"--tokenizer", NULL, "FILE", KVA_OPTION_STRING, &o.tokenizer, "a tokenizer.json (tokens are bytes)"},
      KVA_TEXTS_OPTIONS(&o.texts),
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      KVA_CACHES_OPTION(&o.caches),
      KVA_DEVICE_OPTIONS(&o.device),
      KVA_PASS_OPTIONS(&o.passes),
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_generate, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  const char *wrong = misused(&o, n);
  if (wrong) {
    fprintf(stderr, "kvasir generate: %s\n", wrong);
    return EXIT_USAGE;
  }
  if ((code = kva_cli_passes(&kva_verb_generate, &o.passes)) >= 0) return code;
  return generate(path, &o);
}
