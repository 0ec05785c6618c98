/* kvasir export: writes a model as ONNX. */
#include "tools/cli.h"
#include "tools/driver/trained.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_export = {
    "export", "MODEL -o FILE.onnx [options]", "write a model as ONNX, with initialised parameters",
    "KVShift, attention, rotary embedding and norms become model-local functions with bodies in standard operators:\n"
    "any ONNX runtime executes them, and Kvasir reads the calls back as its own operators.\n"
    "--weights takes trained values by name: parameters of a .kv model, initialisers of an ONNX model. Low-rank "
    "updates\n"
    "in the file are merged into the weights that they belong to.\n\n"
    "Examples:\n"
    "  kvasir export models/lm.kv -D preset=small --seed 1 -o lm.onnx\n"
    "  kvasir export models/lm.kv -D preset=small --weights run/step-0000001000.safetensors -o lm.onnx",
    run};

static const void *state_bytes(void *user, const kva_state *s) {
  kva_tensor t;
  return kva_session_state(user, s->name, &t) ? t.data : NULL;
}

/* Parameters get the initial values of a session with this seed; the exported graph is the loaded one. */
static kva_status export_model(kva_module *m, kva_module *compiled_source, const char *out, uint64_t seed,
                               kva_diag *diag) {
  kva_compiled *c;
  KVA_TRY(kva_compile(compiled_source, &(kva_compile_options){.target = {.opt_level = 0}}, diag, &c));
  kva_session *s = NULL;
  kva_status status = kva_session_create(c->artifact, &(kva_session_options){.threads = 1, .seed = seed}, diag, &s);
  if (status == KVA_OK) status = kva_export_onnx(m, out, state_bytes, s, diag);
  kva_session_destroy(s);
  kva_compiled_destroy(c);
  return status;
}

static int load(const char *path, const kva_strings *defines, const kva_strings *pins, const char *weights,
                kva_diag *diag, kva_module **out) {
  int code = kva_cli_load(path, defines, pins, diag, out);
  if (code >= 0 || !weights) return code;
  kva_status status = kva_load_weights(*out, weights, diag);
  return status == KVA_OK ? -1 : kva_cli_fail(status, diag);
}

static int run(int argc, char **argv) {
  kva_strings defines = {0}, pins = {0};
  const char *out = NULL, *weights = NULL;
  int64_t seed = 0;
  const kva_option options[] = {
      {"--output", "-o", "FILE", KVA_OPTION_STRING, &out, "where to write"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &pins, "fix a shape symbol"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &seed, "seed of the parameters' initial values (0)"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &weights, "trained values: a safetensors file or checkpoint"},
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_export, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0 || !out) {
    fprintf(stderr, "kvasir export: needs a model and -o FILE\n");
    return EXIT_USAGE;
  }
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL, *source = NULL;
  code = load(path, &defines, &pins, weights, diag, &m);
  if (code < 0) code = load(path, &defines, &pins, weights, diag, &source);
  if (code < 0) {
    kva_status status = export_model(m, source, out, (uint64_t)seed, diag);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
    source = NULL; /* kva_compile owns it now */
  }
  kva_module_destroy(m);
  kva_module_destroy(source);
  kva_diag_destroy(diag);
  return code;
}
