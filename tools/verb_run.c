/* kvasir run: compiles a model in process and runs it once. */
#include "tools/cli.h"
#include "runtime/npy.h"

#include <math.h>
#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_run = {"run", "MODEL [options]", "compile a model and run it on tensors",
                               "Inputs are .npy files, by name or in order; those not given are filled with random "
                               "numbers (integers: 0 or 1), for which\n"
                               "every symbolic dimension must be pinned. Parameters of a .kv model start from --seed. "
                               "Prints a line for every output.\n\n"
                               "Examples:\n"
                               "  kvasir run model.onnx --input x=x.npy --output out/\n"
                               "  kvasir run models/lm.kv -D preset=small --pin B=1 --pin T=16",
                               run};

typedef struct run_options {
  kva_strings inputs, defines, pins;
  const char *output_dir, *precision;
  int64_t threads, seed, repeat;
  kva_device_choice device;
} run_options;

/* ---- inputs
 * ---------------------------------------------------------------------------------------------------------------- */

static const char *given_file(const run_options *o, const char *name, uint32_t *next_unnamed) {
  for (uint32_t i = 0; i < o->inputs.n; i++) {
    const char *equals = strchr(o->inputs.v[i], '=');
    if (equals && strlen(name) == (size_t)(equals - o->inputs.v[i]) && !strncmp(name, o->inputs.v[i], strlen(name)))
      return equals + 1;
  }
  while (*next_unnamed < o->inputs.n && strchr(o->inputs.v[*next_unnamed], '=')) ++*next_unnamed;
  return *next_unnamed < o->inputs.n ? o->inputs.v[(*next_unnamed)++] : NULL;
}

static kva_status random_input(const kva_buffer_desc *b, int index, uint64_t seed, kva_diag *diag, kva_tensor *out) {
  *out = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank};
  int64_t n = 1;
  for (int32_t d = 0; d < b->rank; d++) {
    const kva_formula *f = &b->dims[d];
    if (f->n != 1 || f->words[0].op != KVA_FORMULA_CONST)
      return kva_error(diag, NULL, "input '%s': dimension %d is symbolic; give a file, or fix it with --pin", b->name,
                       d);
    out->dims[d] = f->words[0].arg;
    if (!kva_mul_size(n, out->dims[d], &n)) return kva_error(diag, NULL, "input '%s' is too large", b->name);
  }
  int64_t bytes = kva_tensor_bytes(out);
  if (bytes < 0 || !(out->data = calloc((size_t)bytes + 1, 1)))
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for input '%s'", b->name);
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = kva_philox4x32((uint64_t)i, (uint64_t)index, seed).v[0];
    if (kva_dtype_is_float(out->dtype))
      kva_store_f64(out->dtype, out->data, i, 2 * kva_uniform01(bits) - 1);
    else
      kva_store_i64(out->dtype, out->data, i, bits & 1);
  }
  return KVA_OK;
}

static bool is_input(const kva_program *p, const char *name, size_t len) {
  for (int32_t i = 0; i < p->n_inputs; i++) {
    const char *known = p->buffers[p->inputs[i]].name;
    if (strlen(known) == len && !strncmp(known, name, len)) return true;
  }
  return false;
}

/* Every --input goes somewhere. */
static kva_status check_inputs(const kva_program *p, const run_options *o, kva_diag *diag) {
  if (o->inputs.n > (uint32_t)p->n_inputs)
    return kva_error(diag, NULL, "%u inputs are given, the model has %d", o->inputs.n, p->n_inputs);
  for (uint32_t i = 0; i < o->inputs.n; i++) {
    const char *equals = strchr(o->inputs.v[i], '=');
    int len = equals ? (int)(equals - o->inputs.v[i]) : 0;
    if (!equals || is_input(p, o->inputs.v[i], (size_t)len)) continue;
    kva_text known = {0};
    for (int32_t k = 0; k < p->n_inputs; k++)
      kva_text_add(&known, "%s%s", k ? ", " : "", p->buffers[p->inputs[k]].name);
    kva_status status = kva_error(diag, NULL, "the model has no input '%.*s'; it has: %s", len, o->inputs.v[i],
                                  known.data ? known.data : "none");
    kva_text_free(&known);
    return status;
  }
  return KVA_OK;
}

static kva_status read_inputs(const kva_program *p, const run_options *o, kva_diag *diag, kva_tensor *in) {
  uint32_t next = 0;
  KVA_TRY(check_inputs(p, o, diag));
  for (int32_t i = 0; i < p->n_inputs; i++) {
    const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
    const char *file = given_file(o, b->name, &next);
    KVA_TRY(file ? kva_npy_read(file, diag, &in[i]) : random_input(b, i, (uint64_t)o->seed, diag, &in[i]));
  }
  return KVA_OK;
}

/* ---- outputs
 * ---------------------------------------------------------------------------------------------------------------- */

static double element(const kva_tensor *t, int64_t i) {
  return kva_dtype_is_float(t->dtype) ? kva_load_f64(t->dtype, t->data, i) : (double)kva_load_i64(t->dtype, t->data, i);
}

static void print_output(const char *name, const kva_tensor *t) {
  int64_t n = 1;
  printf("%s: %s[", name, kva_dtype_name(t->dtype));
  for (int32_t d = 0; d < t->rank; d++) {
    printf("%s%lld", d ? ", " : "", (long long)t->dims[d]);
    n *= t->dims[d];
  }
  double lo = INFINITY, hi = -INFINITY, sum = 0;
  int64_t nans = 0;
  for (int64_t i = 0; i < n; i++) {
    double v = element(t, i);
    if (isnan(v)) nans++;
    lo = v < lo ? v : lo;
    hi = v > hi ? v : hi;
    sum += v;
  }
  printf("]");
  if (n) printf("  min %g  max %g  mean %g", lo, hi, sum / (double)n);
  if (nans) printf("  %lld NaN", (long long)nans);
  printf("  [");
  for (int64_t i = 0; i < n && i < 6; i++) printf("%s%g", i ? ", " : "", element(t, i));
  printf("%s]\n", n > 6 ? ", ..." : "");
}

static kva_status write_outputs(const kva_program *p, const char *dir, const kva_tensor *out, kva_diag *diag) {
  for (int32_t i = 0; i < p->n_outputs; i++) {
    const char *name = p->buffers[p->outputs[i]].name;
    print_output(name, &out[i]);
    if (!dir) continue;
    char path[4096];
    if (strchr(name, '/') || snprintf(path, sizeof path, "%s/%s.npy", dir, name) >= (int)sizeof path)
      return kva_error(diag, NULL, "output '%s' has no name that a file could have", name);
    KVA_TRY(kva_npy_write(path, &out[i], diag));
  }
  return KVA_OK;
}

/* ---- running
 * ---------------------------------------------------------------------------------------------------------------- */

static kva_status run_repeatedly(kva_session *s, const run_options *o, kva_diag *diag, const kva_tensor *in,
                                 kva_tensor *out) {
  double best = INFINITY;
  for (int64_t i = 0; i < (o->repeat > 0 ? o->repeat : 1); i++) {
    double start = kva_now();
    kva_status status = kva_session_run(s, 0, in, out);
    if (status != KVA_OK) return kva_fail(diag, status, NULL, "%s", kva_session_error(s));
    double seconds = kva_now() - start;
    best = seconds < best ? seconds : best;
  }
  if (o->repeat > 1) printf("best of %lld runs: %.3f ms\n", (long long)o->repeat, best * 1e3);
  return KVA_OK;
}

static kva_status run_program(kva_session *s, const run_options *o, kva_diag *diag) {
  const kva_program *p = kva_session_program_desc(s, 0);
  kva_tensor *in = calloc((size_t)p->n_inputs + 1, sizeof *in), *out = calloc((size_t)p->n_outputs + 1, sizeof *out);
  kva_status status = in && out ? read_inputs(p, o, diag, in) : KVA_NO_MEMORY;
  if (status == KVA_OK) status = run_repeatedly(s, o, diag, in, out);
  if (status == KVA_OK) status = write_outputs(p, o->output_dir, out, diag);
  for (int32_t i = 0; in && i < p->n_inputs; i++) free(in[i].data);
  free(in);
  free(out);
  return status;
}

static int run(int argc, char **argv) {
  run_options o = {0};
  const kva_option options[] = {
      {"--input", "-i", "[NAME=]FILE", KVA_OPTION_LIST, &o.inputs, "a .npy file for an input"},
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.output_dir, "write every output as DIR/<name>.npy"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--threads", NULL, "N", KVA_OPTION_INT, &o.threads, "worker threads (all)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of parameters and random inputs (0)"},
      {"--repeat", NULL, "N", KVA_OPTION_INT, &o.repeat, "run N times and print the best time"},
      {"--precision", NULL, "P", KVA_OPTION_STRING, &o.precision, "of products: f32 (default), bf16 or f16"},
      KVA_DEVICE_OPTIONS(&o.device),
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_run, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0) {
    fprintf(stderr, "kvasir run: a model is missing\n");
    return EXIT_USAGE;
  }
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_compiled *c = NULL;
  kva_session *s = NULL;
  kva_compile_options co = {.target = {.opt_level = 2}};
  kva_status status = kva_cli_target(&o.device, diag, &co.target);
  if (status == KVA_OK) status = kva_cli_precision(o.precision, diag, &co.passes.compute);
  code = status == KVA_OK ? kva_cli_load(path, &o.defines, &o.pins, diag, &m) : kva_cli_fail(status, diag);
  if (code < 0) {
    status = kva_compile(m, &co, diag, &c);
    kva_session_options so = {.threads = (int)o.threads, .seed = (uint64_t)o.seed, .device = o.device.device};
    if (status == KVA_OK) status = kva_session_create(c->artifact, &so, diag, &s);
    if (status == KVA_OK) status = run_program(s, &o, diag);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_session_destroy(s);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
  return code;
}
