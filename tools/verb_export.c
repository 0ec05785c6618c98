/* kvasir export: writes a model as ONNX, or its parameters as a checkpoint of other programs. */
#include "tools/cli.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/driver/trained.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_export = {
    "export", "MODEL -o FILE.onnx [options]", "write a model as ONNX, or its parameters for other programs",
    "KVShift, attention, rotary embedding and norms become model-local functions with bodies in standard operators:\n"
    "any ONNX runtime executes them, and Kvasir reads the calls back as its own operators.\n"
    "--decode writes the function that computes the next rows of sequences, with caches as inputs and outputs.\n"
    "--weights takes trained values by name: parameters of a .kv model, initialisers of an ONNX model. Low-rank "
    "updates\n"
    "in the file are merged into the weights that they belong to.\n"
    "--format huggingface writes a folder like the one that the model comes from, or like that of --like, with the "
    "same\n"
    "files, names and types. --format gguf writes a file by the names that the model has for it.\n\n"
    "Examples:\n"
    "  kvasir export models/lm.kv -D preset=small --seed 1 -o lm.onnx\n"
    "  kvasir export models/lm.kv -D preset=small --weights run/step-0000001000.safetensors -o lm.onnx\n"
    "  kvasir export models/lm.kv --weights run/step-0000001000.safetensors --decode -o decode.onnx\n"
    "  kvasir export models/llama.kv --like Llama/ --weights run/step-0000001000.safetensors --format huggingface -o "
    "out\n"
    "  kvasir export Llama/ --format gguf --packing q8_0 -o llama.gguf",
    run};

typedef struct export_options {
  kva_strings defines, pins;
  const char *out, *weights, *like, *format, *packing;
  int64_t seed, opset;
  bool decode, inference;
} export_options;

static const void *state_bytes(void *user, const kva_state *s) {
  kva_tensor t;
  return kva_session_state(user, s->name, &t) ? t.data : NULL;
}

/* What an option says of the file: the loaded graph, or the function that decodes, made of it. */
static kva_status choose_form(kva_module *m, const export_options *o, kva_export_form *out) {
  *out = (kva_export_form){.opset = (int)o->opset};
  if (!o->decode) return KVA_OK;
  const kva_pass_options passes = {.whole_caches = true};
  KVA_TRY(kva_optimize(m, &passes));
  *out = (kva_export_form){.function = "decode", .opset = o->opset ? (int)o->opset : 24};
  return kva_make_decode(m, &passes);
}

/* Parameters get the initial values of a session with this seed. */
static kva_status export_model(kva_module *m, kva_module *compiled_source, const export_options *o, kva_diag *diag) {
  kva_compiled *c;
  kva_export_form form;
  KVA_TRY(kva_compile(compiled_source, &(kva_compile_options){.target = {.opt_level = 0}}, diag, &c));
  kva_session *s = NULL;
  kva_status status =
      kva_session_create(c->artifact, &(kva_session_options){.threads = 1, .seed = (uint64_t)o->seed}, diag, &s);
  if (status == KVA_OK) status = choose_form(m, o, &form);
  if (status == KVA_OK) status = kva_export_onnx_as(m, &form, o->out, state_bytes, s, diag);
  kva_session_destroy(s);
  kva_compiled_destroy(c);
  return status;
}

static int load(const char *path, const export_options *o, const char *weights, kva_diag *diag, kva_module **out) {
  const kva_cli_source from = {.path = path,
                               .defines = &o->defines,
                               .pins = &o->pins,
                               .weights = weights,
                               .inference = o->inference,
                               .language = o->decode};
  return kva_cli_load_from(&from, diag, out);
}

static int export_onnx(const char *path, const export_options *o, kva_diag *diag) {
  kva_module *m = NULL, *source = NULL;
  int code = load(path, o, o->weights, diag, &m);
  if (code < 0) code = load(path, o, o->weights, diag, &source);
  if (code < 0) {
    kva_status status = kva_file_prepare(o->out, diag);
    if (status == KVA_OK) {
      status = export_model(m, source, o, diag);
      source = NULL; /* kva_compile owns it now */
    }
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_module_destroy(m);
  kva_module_destroy(source);
  return code;
}

/* ---- checkpoints of other programs ------------------------------------------------------------------------------- */

static kva_status write_folder(const kva_module *m, const char *like, const char *out, kva_diag *diag) {
  kva_foreign *f;
  const kva_names *names;
  KVA_TRY(kva_foreign_open(like, diag, &f));
  kva_status status = KVA_OK;
  if (strcmp(f->format, "huggingface") != 0)
    status = kva_error(diag, &(kva_loc){.file = like}, "is no folder of Hugging Face; name one with --like");
  if (status == KVA_OK) status = kva_foreign_names(f, m, m->name, diag, &names);
  if (status == KVA_OK) status = kva_folder_write(m, f, names, out, diag);
  kva_foreign_close(f);
  return status;
}

static kva_status write_foreign(const kva_module *m, const char *like, const export_options *o, kva_diag *diag) {
  if (!strcmp(o->format, "huggingface")) return write_folder(m, like, o->out, diag);
  KVA_TRY(kva_file_prepare(o->out, diag));
  const kva_packing *packing = kva_packing_named(o->packing ? o->packing : "f16");
  return kva_gguf_write(m, packing, o->out, diag);
}

/* The hyper-parameters are those of `like`, the values those of --weights, where both are given; a model that is a
 * checkpoint has its own. */
static int export_foreign(const char *path, const export_options *o, kva_diag *diag) {
  const char *given = o->weights && kva_foreign_is(o->weights) ? o->weights : kva_foreign_is(path) ? path : NULL;
  const char *like = o->like ? o->like : given;
  if (!like && !strcmp(o->format, "huggingface")) {
    fprintf(stderr, "kvasir export: --format huggingface needs the folder to write alike: --like FOLDER\n");
    return EXIT_USAGE;
  }
  kva_module *m = NULL;
  bool own = like == path || (o->like && kva_foreign_is(path));
  int code = load(path, o, own ? NULL : like, diag, &m);
  if (code < 0) {
    kva_status status = strcmp(o->format, "gguf") ? KVA_OK : kva_gguf_check(m, diag);
    if (status == KVA_OK && o->weights && o->weights != like) status = kva_load_weights(m, o->weights, diag);
    if (status == KVA_OK) status = write_foreign(m, like, o, diag);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_module_destroy(m);
  return code;
}

static int run(int argc, char **argv) {
  export_options o = {0};
  const kva_option options[] = {
      {"--output", "-o", "FILE", KVA_OPTION_STRING, &o.out, "where to write: a file, or the folder of huggingface"},
      {"--format", NULL, "onnx|huggingface|gguf", KVA_OPTION_WORD, &o.format, "what to write (onnx)"},
      {"--like", NULL, "FOLDER", KVA_OPTION_STRING, &o.like, "with huggingface: the folder to write alike"},
      {"--packing", NULL, "f32|f16|bf16|q8_0", KVA_OPTION_WORD, &o.packing, "with gguf: of matrices (f16)"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "seed of the parameters' initial values (0)"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, KVA_WEIGHTS_HELP},
      KVA_INFERENCE_OPTION(&o.inference),
      {"--decode", NULL, NULL, KVA_OPTION_FLAG, &o.decode, "with onnx: what decodes, with caches in and out"},
      {"--opset", NULL, "N", KVA_OPTION_INT, &o.opset, "with onnx: 21 to 27 (21, with --decode 24)"},
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_export, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0 || !o.out) {
    fprintf(stderr, "kvasir export: needs a model and -o FILE\n");
    return EXIT_USAGE;
  }
  bool onnx = !o.format || !strcmp(o.format, "onnx"), gguf = o.format && !strcmp(o.format, "gguf");
  if ((o.like && (onnx || gguf)) || (o.packing && !gguf)) {
    fprintf(stderr, "kvasir export: --like belongs to --format huggingface, --packing to --format gguf\n");
    return EXIT_USAGE;
  }
  if (!onnx && (o.decode || o.opset || o.pins.n)) {
    fprintf(stderr, "kvasir export: --decode, --opset and --pin belong to --format onnx\n");
    return EXIT_USAGE;
  }
  if (o.opset && (o.opset < (o.decode ? 24 : 21) || o.opset > 27)) {
    fprintf(stderr, "kvasir export: --opset %lld: expected 21 to 27, with --decode 24 at least\n", (long long)o.opset);
    return EXIT_USAGE;
  }
  const char *inputs[] = {path, o.weights};
  if (kva_cli_replaces_input("export", "-o", o.out, 2, inputs)) return EXIT_USAGE;
  kva_cli_clean_at_signal(o.out);
  kva_diag *diag = kva_diag_create();
  code = onnx ? export_onnx(path, &o, diag) : export_foreign(path, &o, diag);
  kva_diag_destroy(diag);
  return code;
}
