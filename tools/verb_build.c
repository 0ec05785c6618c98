/* kvasir build: compiles a model ahead of time to an object, a library or an executable. */
#include "tools/driver/build.h"
#include "tools/driver/language.h"
#include "tools/generate/chat.h"
#include "tools/generate/engine.h"
#include "tools/tune.h"

#include "runtime/base/platform.h"

#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_build = {
    "build", "MODEL -o OUT [options]", "compile a model to an object, a library or an executable",
    "Forms, one of:\n"
    "  -c         a relocatable object; needs no other tool (the default without --emit)\n"
    "  --static   an archive with that object; link it with libkvasir-rt and libm\n"
    "  --shared   a shared library with the runtime inside, which needs libc and libm alone\n"
    "  --exe      an executable that runs the model on files; its --help explains it\n"
    "Beside an object or library lies OUT's header, with typed structs for inputs and outputs.\n\n"
    "Targets: native (default), x86-64-v2, -v3, -v4 and other CPU names (znver4, neoverse-n1), aarch64-linux-gnu,\n"
    "x86_64-linux-gnu, sm_80 to sm_90a, also several of these: the runtime takes what suits its GPU. Texts beside OUT: "
    "ir,\nkernel, llvm, asm, ptx, cubin, header, plan.\n\n"
    "Examples:\n"
    "  kvasir build model.onnx -c -o model.o\n"
    "  kvasir build models/lm.kv -D preset=small --exe -o lm\n"
    "  kvasir build models/lm.kv -D preset=small --from run/step-0000001000.safetensors --exe -o lm\n"
    "  kvasir build models/lm.kv --train --exe -o trainer\n"
    "  kvasir build model.onnx --generate --exe --tokenizer tokenizer.json -o writer\n"
    "  kvasir build model.onnx --train='classifier.*' --loss cross_entropy --pin B=16 --exe -o tuner\n"
    "  kvasir build model.onnx --target sm_80,sm_90a --emit=ptx -o model.ptx",
    run};

typedef struct build_options {
  kva_strings defines, pins, emits, targets;
  const char *emit, *target, *output, *prefix, *weights, *precision, *gemm, *math, *cc, *runtime, *tokenizer,
      *mesh_text, *caches;
  kva_mesh mesh; /* value of --mesh */
  bool object, is_static, shared, exe, train, generate, cubin, inference;
  int64_t seed, memory;
  kva_pass_choice passes;
  kva_tune_choice tune; /* its `train` is the list of --train patterns */
} build_options;

static int usage(const char *what, const char *found) {
  fprintf(stderr, "kvasir build: %s%s%s%s\nTry: kvasir build --help\n", what, found ? " '" : "", found ? found : "",
          found ? "'" : "");
  return EXIT_USAGE;
}

/* Splits a comma-separated list; NULL is an empty one. false: too many items. */
static bool split(const char *text, kva_arena *arena, kva_strings *out) {
  while (text && *text) {
    size_t n = strcspn(text, ",");
    if (out->n == sizeof out->v / sizeof *out->v) return false;
    if (n) out->v[out->n++] = kva_arena_strndup(arena, text, n);
    text += n + (text[n] == ',');
  }
  return true;
}

static bool is_emit(const char *s) {
  static const char *const known[] = {"ir", "kernel", "llvm", "asm", "ptx", "cubin", "header", "plan"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i], s)) return true;
  return false;
}

static uint32_t count_gpus(const kva_strings *targets) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < targets->n; i++) n += kva_target_named(targets->v[i]).arch != NULL;
  return n;
}

/* Returns -1, or the exit code for wrong usage. */
static int check(const build_options *o, int n_models) {
  if (n_models == 0 || !o->output) return usage("needs a model and -o OUT", NULL);
  if (o->object + o->is_static + o->shared + o->exe > 1)
    return usage("give one of -c, --static, --shared and --exe", NULL);
  for (uint32_t i = 0; i < o->emits.n; i++)
    if (!is_emit(o->emits.v[i]))
      return usage("--emit: expected ir, kernel, llvm, asm, ptx, cubin, header, plan, found", o->emits.v[i]);
  if (!o->train && o->mesh_text) return usage("--mesh is for builds with --train", NULL);
  if (!o->train && o->memory) return usage("--memory is for builds with --train", NULL);
  if (!o->tune.loss && (o->tune.weight_decay > 0 || o->tune.clip > 0))
    return usage("--weight-decay and --clip are for --loss; a train block has its own, which a trainer sets", NULL);
  if (o->generate && (!o->exe || o->train))
    return usage("--generate is for executables that write texts: --exe, without --train", NULL);
  if (o->tokenizer && !o->generate) return usage("--tokenizer is for --generate", NULL);
  if (o->caches && !o->generate) return usage("--kv-cache is for --generate", NULL);
  bool form = o->object || o->is_static || o->shared || o->exe || o->emits.n == 0;
  uint32_t gpus = count_gpus(&o->targets);
  if (form && o->targets.n > 1 && gpus < o->targets.n)
    return usage("several targets in one file are for GPUs; build once for each", NULL);
  if (o->generate && gpus) return usage("--generate is for CPUs", NULL);
  if (o->cubin && (!form || !gpus)) return usage("--cubin is for files with code of a GPU: --target sm_80", NULL);
  return -1;
}

static kva_build_form form_of(const build_options *o) {
  if (o->exe) return KVA_BUILD_EXE;
  if (o->shared) return KVA_BUILD_SHARED;
  if (o->is_static) return KVA_BUILD_STATIC;
  return o->object || o->emits.n == 0 ? KVA_BUILD_OBJECT : KVA_BUILD_NOTHING;
}

/* The comment at the start of a .kv file; NULL: none. */
static const char *description_of(const char *path, kva_arena *arena) {
  kva_file file;
  kva_text text = {0};
  if (kva_file_map(path, NULL, &file) != KVA_OK) return NULL;
  const char *s = file.data, *end = s + file.size;
  while (s < end && *s == '#') {
    const char *line = s + 1 + (s + 1 < end && s[1] == ' '), *stop = memchr(s, '\n', (size_t)(end - s));
    if (!stop) stop = end;
    if (line < stop) kva_text_add(&text, "%s%.*s", text.len ? "\n" : "", (int)(stop - line), line);
    s = stop < end ? stop + 1 : end;
  }
  const char *out = text.len ? kva_arena_strdup(arena, text.data) : NULL;
  kva_text_free(&text);
  kva_file_unmap(&file);
  return out;
}

static const char *prefix_of(const char *path, kva_arena *arena) {
  const char *name = kva_file_name(path), *dot = strrchr(name, '.');
  return kva_c_identifier(arena,
                          kva_arena_strndup(arena, name, dot && dot > name ? (size_t)(dot - name) : strlen(name)));
}

/* Pins a trainer to the batch and length of its train block, like kvasir train: constants give better schedules. Other
 * batches run as several micro-batches. Returns whether there are new pins. */
static bool pin_trainer(const kva_module *m, const kva_mesh *mesh, kva_strings *pins, kva_arena *arena) {
  uint32_t before = pins->n;
  kva_cli_pin(m, kva_cli_batch_symbol(m), m->train->batch / kva_mesh_extent(mesh->data), pins, arena);
  kva_cli_pin(m, "T", kva_cli_length_of(m->train), pins, arena);
  return pins->n > before;
}

static int load(const char *path, build_options *o, const kva_strings *pins, kva_diag *diag, kva_module **m) {
  const kva_tune_load how = {&o->defines,
                             pins,
                             .free_batch = o->tune.loss,
                             .train = o->train,
                             .inference = o->inference,
                             .language = o->generate,
                             .control = &o->passes.control};
  return kva_cli_load_tuned(path, &how, &o->tune, diag, m);
}

/* ---- executables that write texts -------------------------------------------------------------------------------- */

/* What --generate puts into the executable; the format of chats may be unknown. */
static kva_status take_tokenizer(const build_options *o, const kva_tokenizer *t, kva_arena *arena, kva_diag *diag,
                                 kva_build_texts *out) {
  const kva_chat *chat = NULL;
  kva_file file;
  if (!o->tokenizer) return KVA_OK;
  KVA_TRY(kva_file_map(o->tokenizer, diag, &file));
  out->tokenizer = kva_arena_strndup(arena, file.data, file.size);
  kva_file_unmap(&file);
  if (kva_chat_find(o->tokenizer, t, diag, &chat) != KVA_OK) kva_diag_demote(diag);
  out->chat = chat ? kva_chat_name(chat) : NULL;
  return KVA_OK;
}

static kva_status check_tokens(const build_options *o, kva_module *m, kva_arena *arena, kva_diag *diag,
                               kva_build_texts *out) {
  kva_tokenizer *t = NULL;
  kva_language language;
  *out = (kva_build_texts){.together = KVA_ENGINE_TOGETHER};
  KVA_TRY(kva_language_of(m, "kvasir build --generate", diag, &language));
  out->context = language.context;
  if (o->tokenizer)
    KVA_TRY(kva_tokenizer_load(o->tokenizer, diag, &t));
  else
    t = kva_tokenizer_bytes();
  kva_status status = kva_engine_check_tokens(t, language.vocabulary, diag);
  if (status == KVA_OK) status = take_tokenizer(o, t, arena, diag, out);
  kva_tokenizer_destroy(t);
  return status;
}

/* ---- the verb ---------------------------------------------------------------------------------------------------- */

static kva_status describe_targets(const build_options *o, kva_arena *arena, kva_diag *diag, kva_target_options *out) {
  for (uint32_t i = 0; i < o->targets.n; i++) {
    out[i] = kva_target_named(o->targets.v[i]);
    out[i].cache = kva_user_cache(arena, NULL);
    KVA_TRY(kva_gemm_named(o->gemm, diag, &out[i]));
    KVA_TRY(kva_math_named(o->math, diag, &out[i]));
  }
  return KVA_OK;
}

static int build(const char *path, build_options *o, kva_arena *arena) {
  if (o->targets.n == 0) o->targets.v[o->targets.n++] = "native";
  kva_target_options targets[64];
  const char *prefix = o->prefix ? o->prefix : prefix_of(path, arena);
  if (strcmp(prefix, kva_c_identifier(arena, prefix)) != 0)
    return usage("--prefix: expected a name in C, found", prefix);
  if (!strcmp(prefix, "kva") || !strncmp(prefix, "kva_", 4))
    return usage("--prefix: names of the runtime begin with kva_, found", prefix);
  kva_build_options b = {.form = form_of(o),
                         .train = o->train,
                         .memory = o->memory,
                         .mesh = o->mesh,
                         .control = &o->passes.control,
                         .n_targets = o->targets.n,
                         .targets = targets,
                         .cubin = o->cubin,
                         .output = o->output,
                         .prefix = prefix,
                         .description = description_of(path, arena),
                         .n_emits = o->emits.n,
                         .emits = o->emits.v,
                         .seed = (uint64_t)o->seed,
                         .weights = o->weights && strcmp(o->weights, "embed") != 0 ? o->weights : NULL,
                         .link = {.cc = o->cc, .runtime = o->runtime}};
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_pass_control untouched = o->passes.control;
  kva_status status = kva_file_prepare(o->output, diag);
  if (status == KVA_OK) status = describe_targets(o, arena, diag, targets);
  if (status == KVA_OK) status = kva_precision_named(o->precision, diag, &b.compute);
  if (status == KVA_OK) status = kva_precision_named(o->caches, diag, &b.caches);
  int code = status == KVA_OK ? load(path, o, &o->pins, diag, &m) : kva_cli_fail(status, diag);
  if (code < 0 && o->train && o->exe && pin_trainer(m, &o->mesh, &o->pins, arena)) {
    kva_module_destroy(m);
    m = NULL;
    o->passes.control = untouched;
    code = load(path, o, &o->pins, diag, &m);
  }
  kva_build_texts texts;
  if (code < 0 && o->generate) {
    status = check_tokens(o, m, arena, diag, &texts);
    b.texts = &texts;
    code = status == KVA_OK ? -1 : kva_cli_fail(status, diag);
    if (status == KVA_OK) kva_cli_warn(diag);
  }
  if (code < 0) {
    kva_cli_print_trained(m, &o->tune);
    status = kva_build_model(m, &b, diag);
    kva_cli_print_passes(&o->passes);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return code;
}

static int run(int argc, char **argv) {
  build_options o = {.tune = KVA_TUNE_NOTHING};
  const kva_option options[] = {
      {"--output", "-o", "OUT", KVA_OPTION_STRING, &o.output, "where to write"},
      {"--object", "-c", NULL, KVA_OPTION_FLAG, &o.object, "a relocatable object"},
      {"--static", NULL, NULL, KVA_OPTION_FLAG, &o.is_static, "a static library"},
      {"--shared", NULL, NULL, KVA_OPTION_FLAG, &o.shared, "a shared library"},
      {"--exe", NULL, NULL, KVA_OPTION_FLAG, &o.exe, "an executable"},
      KVA_TRAIN_OPTION(&o.tune, "with training step and evaluation; of all parameters, or of what matches"),
      {"--generate", NULL, NULL, KVA_OPTION_FLAG, &o.generate,
       "with --exe: an executable that continues texts, with the tokenizer inside"},
      {"--tokenizer", NULL, "FILE", KVA_OPTION_STRING, &o.tokenizer,
       "with --generate: a tokenizer.json (tokens are bytes)"},
      KVA_CACHES_OPTION(&o.caches),
      {"--emit", NULL, "KIND,...", KVA_OPTION_STRING, &o.emit, "texts to write as well, or alone"},
      {"--target", NULL, "NAME,...", KVA_OPTION_STRING, &o.target, "what to compile for (native)"},
      {"--gemm", NULL, "generated|bf16x3", KVA_OPTION_WORD, &o.gemm,
       "products of float; bf16x3: on a CPU with AMX (generated)"},
      KVA_MATH_OPTION(&o.math),
      {"--cubin", NULL, NULL, KVA_OPTION_FLAG, &o.cubin, "GPUs: machine code by ptxas beside the PTX"},
      {"--prefix", NULL, "NAME", KVA_OPTION_STRING, &o.prefix, "of all names in C (the model file's name)"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--weights", NULL, "embed|FILE", KVA_OPTION_STRING, &o.weights,
       "large constants inside, or in a safetensors file"},
      {"--from", NULL, "FILE", KVA_OPTION_STRING, &o.tune.weights,
       "values of parameters: a safetensors file or checkpoint"},
      KVA_INFERENCE_OPTION(&o.inference),
      {"--precision", NULL, KVA_PRECISIONS, KVA_OPTION_WORD, &o.precision,
       "products in it, parameters and sums in f32 (f32)"},
      KVA_MEMORY_OPTION(&o.memory),
      KVA_MESH_OPTION(&o.mesh_text),
      KVA_TUNE_OPTIONS(&o.tune),
      KVA_PASS_OPTIONS(&o.passes),
      {"--weight-decay", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &o.tune.weight_decay,
       "with --loss: of matrices and filters (0)"},
      {"--clip", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &o.tune.clip,
       "with --loss: greatest norm of the gradient (0: none)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of parameters that have no value (0)"},
      {"--cc", NULL, "PROGRAM", KVA_OPTION_STRING, &o.cc, "C compiler that links (cc)"},
      {"--runtime", NULL, "DIR", KVA_OPTION_STRING, &o.runtime, "where libkvasir-rt.a lies"},
  };
  const char *path = NULL;
  int n, code = kva_cli_parse(&kva_verb_build, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0 || (code = kva_cli_passes(&kva_verb_build, &o.passes)) >= 0) return code;
  if ((code = kva_cli_take_train(&kva_verb_build, &o.tune, &o.train)) >= 0) return code;
  if ((code = kva_cli_check_tune(&o.tune)) >= 0) return code;
  kva_arena *arena = kva_arena_create();
  bool fits = split(o.emit, arena, &o.emits) && split(o.target, arena, &o.targets);
  code = fits ? check(&o, n) : usage("at most 64 targets and texts", NULL);
  if (code < 0) code = kva_cli_mesh(o.mesh_text, &o.mesh);
  const char *inputs[] = {path, o.tune.weights, o.tokenizer};
  if (code < 0 && kva_cli_replaces_input("build", "-o", o.output, 3, inputs)) code = EXIT_USAGE;
  if (code < 0) {
    kva_cli_clean_at_signal(o.output);
    code = build(path, &o, arena);
  }
  kva_arena_destroy(arena);
  return code;
}
