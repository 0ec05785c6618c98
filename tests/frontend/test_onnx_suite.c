/* The official ONNX cases, imported and run on the reference evaluator: every rule of the importer against the
 * specification's own data. Data: folder $KVASIR_ONNX_SUITE (holds node/ and the other sets), else
 * ../shared/onnx-suite-1.22.0.tar.xz beside the source tree, unpacked to a temporary folder; else
 * the onnx wheel of that version; else the test is skipped.
 *
 * A case passes when dtypes and shapes are equal and values within rtol 1e-3 (bfloat16: 2^-6), atol 1e-7, the suite's
 * own tolerance; values of a model that draws random numbers are not compared. A model that the importer calls
 * unsupported is skipped; anything else that does not pass is a failure. What passes is exported, imported again and
 * run again: the results must be the same within the same tolerance. */
#include "frontend/frontend.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

enum { MAX_TENSORS = 64 };

typedef struct suite {
  char folder[4096];
  bool temporary;
} suite;

typedef enum outcome { PASSED, FAILED, SKIPPED } outcome;

static bool exists(const char *path) {
  return !access(path, R_OK);
}

/* The onnx wheel of that version carries the same data. */
static bool find_in_wheel(suite *s) {
  FILE *out = popen("python3 -c 'import onnx, os; print(os.path.join(os.path.dirname(onnx.__file__), "
                    "\"backend/test/data\") if onnx.__version__ == \"1.22.0\" else \"\")' 2>/dev/null",
                    "r");
  if (!out) return false;
  *s = (suite){0};
  bool found = fgets(s->folder, sizeof s->folder, out) != NULL;
  s->folder[strcspn(s->folder, "\n")] = 0;
  return pclose(out) == 0 && found && exists(s->folder) && *s->folder;
}

static bool find_suite(suite *s) {
  const char *given = getenv("KVASIR_ONNX_SUITE"), *archive = "../shared/onnx-suite-1.22.0.tar.xz";
  *s = (suite){.temporary = !given};
  if (given) return snprintf(s->folder, sizeof s->folder, "%s", given), true;
  if (!exists(archive)) return find_in_wheel(s);
  char command[8192], root[] = "/tmp/kvasir-onnx-XXXXXX";
  if (!mkdtemp(root)) return false;
  snprintf(command, sizeof command, "tar xJf %s -C %s", archive, root);
  snprintf(s->folder, sizeof s->folder, "%s/data", root);
  return !system(command);
}

static void remove_suite(const suite *s) {
  char command[8192];
  if (!s->temporary) return;
  snprintf(command, sizeof command, "rm -rf '%.*s'", (int)(strlen(s->folder) - strlen("/data")), s->folder);
  if (system(command)) printf("could not remove %s\n", s->folder);
}

/* ---- one case ---------------------------------------------------------------------------------------------------- */

static bool close_enough(double a, double b, double rtol) {
  if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
  return a == b || fabs(a - b) <= 1e-7 + rtol * fabs(b);
}

/* NULL when equal, else what differs. */
static const char *difference(const kva_ref_tensor *got, const kva_ref_tensor *want, bool random) {
  static char text[256];
  double rtol = want->dtype == KVA_BF16 ? 0x1p-6 : 1e-3;
  if (got->dtype != want->dtype) return "another data type";
  if (got->rank != want->rank || memcmp(got->dims, want->dims, got->rank * sizeof *got->dims)) return "another shape";
  for (int64_t i = 0; i < got->n && !random; i++) {
    double a = kva_ref_tensor_get(got, i), b = kva_ref_tensor_get(want, i);
    if (got->f ? close_enough(a, b, rtol) : got->i[i] == want->i[i]) continue;
    snprintf(text, sizeof text, "element %lld: %.9g, expected %.9g", (long long)i, a, b);
    return text;
  }
  return NULL;
}

static const char *first_error(const kva_diag *diag) {
  for (size_t i = 0; i < kva_diag_count(diag); i++) {
    kva_severity severity;
    const char *message = kva_diag_message(diag, i, &severity, NULL);
    if (severity == KVA_ERROR) return message;
  }
  return "(no message)";
}

static kva_status read_tensor(const char *folder, const char *kind, uint32_t i, kva_diag *diag, kva_ref_tensor **out) {
  char path[8192];
  snprintf(path, sizeof path, "%.7000s/test_data_set_0/%s_%u.pb", folder, kind, i);
  return kva_read_tensor_proto(path, diag, out);
}

/* Inputs of one case, and which of them were made constants. */
typedef struct case_inputs {
  const char *folder;
  bool fixed[MAX_TENSORS];
  kva_ref_tensor *tensor[MAX_TENSORS], *calls; /* calls: the only state, of models that draw random numbers */
} case_inputs;

/* Axes, shapes, counts and the like: what an importer that compiles ahead needs to know. */
static const kva_ref_tensor *fix_structure(void *user, uint32_t index, const char *name) {
  case_inputs *in = user;
  kva_diag *quiet = kva_diag_create();
  bool resizes = !strcmp(name, "scales") || !strcmp(name, "roi");
  if (index < MAX_TENSORS && !read_tensor(in->folder, "input", index, quiet, &in->tensor[index])) {
    const kva_ref_tensor *w = in->tensor[index];
    in->fixed[index] = w->rank == 0 || (w->rank == 1 && (w->i || resizes));
  }
  kva_diag_destroy(quiet);
  return index < MAX_TENSORS && in->fixed[index] ? in->tensor[index] : NULL;
}

static kva_ref_tensor *number_of_calls(void *user, kva_state *s) {
  case_inputs *in = user;
  if (!in->calls) in->calls = kva_ref_tensor_create(s->type->dtype, 0, NULL);
  return in->calls;
}

static kva_status run(kva_module *m, kva_diag *diag, case_inputs *in, kva_ref_tensor **out) {
  kva_function *f = m->functions.data[0];
  const kva_ref_tensor *given[MAX_TENSORS] = {NULL};
  uint32_t n = 0;
  if (kva_graph_output_count(f->graph) > MAX_TENSORS) return KVA_UNSUPPORTED;
  for (uint32_t i = 0; n < f->graph->inputs.len; i++) {
    if (i == MAX_TENSORS) return KVA_UNSUPPORTED;
    if (!in->tensor[i]) KVA_TRY(read_tensor(in->folder, "input", i, diag, &in->tensor[i]));
    if (!in->fixed[i]) given[n++] = in->tensor[i];
  }
  return kva_ref_run(m, f, given, out, number_of_calls, in, NULL, NULL, diag);
}

/* Expected values that are rounding noise of the suite's own float transform, above its absolute tolerance, where the
 * exact result is 0. */
static bool is_noise(const char *name) {
  return !strcmp(name, "test_dft_inverse") || !strcmp(name, "test_dft_inverse_opset19");
}

static outcome compare(const char *name, kva_module *m, const char *folder, kva_diag *diag, kva_ref_tensor **out) {
  for (uint32_t i = 0; i < kva_graph_output_count(m->functions.data[0]->graph); i++) {
    kva_ref_tensor *want = NULL;
    if (read_tensor(folder, "output", i, diag, &want)) return SKIPPED;
    const char *problem = difference(out[i], want, m->states.len > 0);
    kva_ref_tensor_free(want);
    if (!problem) continue;
    printf("%s %s: output %u: %s\n", is_noise(name) ? "SKIPPED" : "FAILED", name, i, problem);
    return is_noise(name) ? SKIPPED : FAILED;
  }
  return PASSED;
}

/* Exports m, imports that and runs it again. A part without ONNX form is skipped. */
static outcome round_trip(const char *name, kva_module *m, case_inputs *in, kva_ref_tensor **want) {
  char path[] = "/tmp/kvasir-export-XXXXXX";
  kva_diag *diag = kva_diag_create();
  kva_module *again = NULL;
  kva_ref_tensor *out[MAX_TENSORS] = {NULL};
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  kva_status status = kva_export_onnx(m, path, NULL, NULL, diag);
  bool no_form = status == KVA_UNSUPPORTED;
  if (!status) status = kva_load_model(path, NULL, diag, &again);
  if (!status) status = run(again, diag, in, out);
  outcome result = !status ? PASSED : no_form ? SKIPPED : FAILED;
  if (status) printf("%s round trip of %s: %s\n", no_form ? "SKIPPED" : "FAILED", name, first_error(diag));
  for (uint32_t i = 0; !status && i < kva_graph_output_count(m->functions.data[0]->graph); i++) {
    const char *problem = difference(out[i], want[i], false);
    if (!problem) continue;
    printf("FAILED round trip of %s: output %u: %s\n", name, i, problem);
    result = FAILED;
  }
  unlink(path);
  for (int i = 0; i < MAX_TENSORS; i++) kva_ref_tensor_free(out[i]);
  if (again) kva_module_destroy(again);
  kva_diag_destroy(diag);
  return result;
}

static void free_tensors(kva_ref_tensor **list) {
  for (int i = 0; i < MAX_TENSORS; i++) kva_ref_tensor_free(list[i]), list[i] = NULL;
}

/* Loads the model, with the inputs that decide structure made constant if `fixed`, runs it, compares, and exports what
 * passes. */
static outcome attempt(const char *name, const char *folder, bool fixed, kva_diag *diag, outcome *again) {
  char path[8192];
  kva_ref_tensor *out[MAX_TENSORS] = {NULL};
  case_inputs in = {.folder = folder};
  kva_load_options options = {.fixed_input = fix_structure, .input_user = &in};
  kva_module *m = NULL;
  snprintf(path, sizeof path, "%.7000s/model.onnx", folder);
  kva_status status = kva_load_model(path, fixed ? &options : NULL, diag, &m);
  if (!status) status = run(m, diag, &in, out);
  outcome result = status ? status == KVA_UNSUPPORTED ? SKIPPED : FAILED : compare(name, m, folder, diag, out);
  *again = result == PASSED ? round_trip(name, m, &in, out) : SKIPPED;
  free_tensors(in.tensor), free_tensors(out);
  kva_ref_tensor_free(in.calls);
  if (m) kva_module_destroy(m);
  return result;
}

/* What does not run, or has no ONNX form, as it is, is tried again with its structure fixed. */
static outcome run_case(const char *name, const char *folder, outcome *again) {
  kva_diag *diag = kva_diag_create();
  outcome fixed_again, result = attempt(name, folder, false, diag, again);
  if (*again == SKIPPED) {
    kva_diag_clear(diag);
    outcome fixed = attempt(name, folder, true, diag, &fixed_again);
    *again = fixed_again;
    if (result != PASSED) result = fixed;
  }
  if (result != PASSED) printf("%s %s: %s\n", result == SKIPPED ? "SKIPPED" : "FAILED", name, first_error(diag));
  kva_diag_destroy(diag);
  return result;
}

/* ---- all cases --------------------------------------------------------------------------------------------------- */

static int by_name(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_case(const struct dirent *e) {
  const char *only = getenv("KVASIR_ONNX_CASE");
  return !strncmp(e->d_name, "test_", 5) && (!only || strstr(e->d_name, only));
}

static suite data;

/* The numbers: what passed when this was last changed; raised when more does, never lowered. */
static void run_set(const char *set, int floor, int round_trips) {
  char folder[8192], node[4200];
  struct dirent **cases;
  int count[3] = {0}, again[3] = {0};
  outcome second;
  snprintf(node, sizeof node, "%s/%s", data.folder, set);
  int n = scandir(node, &cases, is_case, by_name);
  assert_true(n >= 0);
  for (int i = 0; i < n; i++) {
    snprintf(folder, sizeof folder, "%s/%s", node, cases[i]->d_name);
    count[run_case(cases[i]->d_name, folder, &second)]++;
    again[second]++;
    free(cases[i]);
  }
  free(cases);
  printf("%s: %d passed, %d failed, %d skipped\n", set, count[PASSED], count[FAILED], count[SKIPPED]);
  printf("%s, exported and imported again: %d passed, %d failed\n", set, again[PASSED], again[FAILED]);
  if (getenv("KVASIR_ONNX_CASE")) return;
  assert_int_equal(count[FAILED], 0);
  assert_int_equal(again[FAILED], 0);
  assert_true(count[PASSED] >= floor);
  assert_true(again[PASSED] >= round_trips);
}

static void test_node(void **unused) {
  (void)unused, run_set("node", 1683, 1581);
}
static void test_simple(void **unused) {
  (void)unused, run_set("simple", 7, 7);
}
static void test_pytorch_converted(void **unused) {
  (void)unused, run_set("pytorch-converted", 82, 82);
}
static void test_pytorch_operator(void **unused) {
  (void)unused, run_set("pytorch-operator", 35, 35);
}

/* ---- light models ------------------------------------------------------------------------------------------------ */

/* The nine whole networks import; their input is not stored but arange(n) / n. Only the smallest is run here: the
 * reference evaluator takes minutes for the largest. */
static void run_light(const char *name, bool evaluate) {
  char path[8192];
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  snprintf(path, sizeof path, "%.7000s/light/light_%s.onnx", data.folder, name);
  kva_status status = kva_load_model(path, NULL, diag, &m);
  if (status) kva_diag_print(diag, stdout);
  assert_int_equal(status, KVA_OK);
  if (evaluate) {
    kva_ref_tensor *x = kva_ref_tensor_create(KVA_F32, 4, (int64_t[]){1, 3, 224, 224}), *want = NULL, *got = NULL;
    for (int64_t i = 0; i < x->n; i++) x->f[i] = (float)((double)i / (double)x->n);
    const kva_ref_tensor *in[] = {x};
    snprintf(path, sizeof path, "%.7000s/light/light_%s_output_0.pb", data.folder, name);
    assert_int_equal(kva_read_tensor_proto(path, diag, &want), KVA_OK);
    status = kva_ref_run(m, m->functions.data[0], in, &got, NULL, NULL, NULL, NULL, diag);
    assert_int_equal(status, KVA_OK);
    assert_null(difference(got, want, false));
    kva_ref_tensor_free(x), kva_ref_tensor_free(want), kva_ref_tensor_free(got);
  }
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_light(void **unused) {
  (void)unused;
  static const char *const large[] = {"bvlc_alexnet", "densenet121", "inception_v1", "inception_v2",
                                      "resnet50",     "vgg19",       "zfnet512"};
  for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) run_light(large[i], false);
  run_light("shufflenet", true);
  run_light("squeezenet", false);
}

int main(void) {
  if (!find_suite(&data)) {
    printf("SKIP: no ONNX suite: set KVASIR_ONNX_SUITE to its folder\n");
    return 77;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_node), cmocka_unit_test(test_simple),
                                     cmocka_unit_test(test_pytorch_converted), cmocka_unit_test(test_pytorch_operator),
                                     cmocka_unit_test(test_light)};
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  remove_suite(&data);
  return failed;
}
