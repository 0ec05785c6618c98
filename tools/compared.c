#include "tools/compared.h"

static int load(kva_compared *c, const char *path, kva_diag *diag, kva_module **out_m, kva_module **out_whole) {
  const kva_cli_source from = {.path = path, .defines = &c->defines, .pins = &c->pins, .weights = c->weights};
  c->target.device = c->device.device;
  c->target.threads = (int)c->threads;
  kva_status status = kva_cli_target(&c->device, diag, &c->target.options);
  if (status) return kva_cli_fail(status, diag);
  int code = kva_cli_load_from(&from, diag, out_m);
  return code < 0 ? kva_cli_load_from(&from, diag, out_whole) : code;
}

bool kva_compared_replaces(const char *verb, const kva_compared *c, const char *path, const char *dir) {
  static const char *const models[] = {"model.kv", "model.onnx"};
  const char *inputs[] = {path, c->weights};
  char output[4096];
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    snprintf(output, sizeof output, "%s/%s", dir, models[i]);
    if (kva_cli_replaces_input(verb, "-o", output, 2, inputs)) return true;
  }
  for (unsigned i = 0; i < 64; i++) { /* as many as --input takes; the part has its own numbers for them */
    snprintf(output, sizeof output, "%s/input%u.npy", dir, i);
    if (kva_cli_replaces_named(verb, "-o", output, &c->inputs)) return true;
  }
  return false;
}

/* Without them another program is compiled, or compared in another way, which may not fail. */
static const char *arguments_of(const kva_compared *c, kva_text *text) {
  const kva_device_choice *d = &c->device;
  const char *words[][2] = {{"--device", d->device}, {"--target", d->target}, {"--gemm", d->gemm}, {"--math", d->math}};
  const kva_diff_tolerance usual = KVA_DIFF_TOLERANCE;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (words[i][1]) kva_text_add(text, " %s %s", words[i][0], words[i][1]);
  if (c->threads) kva_text_add(text, " --threads %lld", (long long)c->threads);
  if (c->tolerance.rtol != usual.rtol) kva_text_add(text, " --rtol %.15g", c->tolerance.rtol);
  if (c->tolerance.atol != usual.atol) kva_text_add(text, " --atol %.15g", c->tolerance.atol);
  return text->len ? text->data : "";
}

int kva_compared_run(kva_compared *c, const char *path, kva_compared_work work, void *user) {
  kva_diag *diag = kva_diag_create();
  const kva_run_request request = {.files = &c->inputs, .seed = (uint64_t)c->seed, .read_proto = kva_cli_read_proto};
  kva_text arguments = {0};
  kva_module *m = NULL, *whole = NULL;
  c->target.arguments = arguments_of(c, &arguments);
  int code = load(c, path, diag, &m, &whole);
  if (code < 0) {
    kva_diff_values v;
    kva_diff_values_init(&v, m);
    code = work(user, &v, whole, &request, diag);
    kva_diff_values_free(&v);
  }
  kva_module_destroy(m);
  kva_text_free(&arguments);
  kva_diag_destroy(diag);
  return code;
}
