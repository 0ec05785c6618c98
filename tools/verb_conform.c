/* kvasir conform: runs folders of ONNX models with recorded inputs and outputs, such as the official test suite.
 *
 * A case is a folder with model.onnx and test_data_set_*, or a file light_<name>.onnx with light_<name>_output_0.pb
 * beside it (input: i / n in row-major order, as the suite defines). Every case runs in a separate process, so that a
 * crash does not affect the others. Tolerance as in the suite: |a - b| <= atol + rtol * |b|, with equal shapes and
 * types, bfloat16 with a relative tolerance of at least two of its units. Outputs of a model that draws random numbers
 * have the recorded shape, type and distribution. */
#include "ops/ids.h"
#include "runtime/exe/files.h"
#include "tools/cli.h"
#include "tools/driver/differences.h"
#include "tools/driver/isolate.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_conform = {
    "conform", "DIR... [options]", "run ONNX test folders and compare with their recorded outputs",
    "Searches each DIR for cases and closes with `N passed, M failed, K skipped`. A case is skipped, with its reason, "
    "when\n"
    "it uses something that Kvasir does not support (see kvasir check). Small inputs that decide shapes (axes, target\n"
    "shapes, conditions) are compiled in where a model needs that. On a GPU a last line says how many kernels ran "
    "there and how "
    "many\n"
    "steps ran on the CPU instead. Exit code 0: none failed; with --expected, whose lines are `skip NAME reason` or\n"
    "`FAIL NAME reason`: all cases did what the file says.\n\n"
    "With --grad: the gradient of a weighted sum of a case's float outputs, by its float inputs, is compared with "
    "slopes\n"
    "of the reference in double. A last line says how many operators were compared.\n\n"
    "Example:\n  kvasir conform onnx-suite/data/node --filter softmax -v",
    run};

typedef struct conform_options {
  const char *filter, *expected, *mode, *output_dir;
  double rtol, atol;
  int64_t seconds;
  bool verbose, json, gradients;
  kva_device_choice device;
  char arch[16];          /* that the device's code is for; "": the CPU's */
  const kva_cache *cache; /* of compiled code; NULL: none */
} conform_options;

typedef struct paths {
  char **v;
  size_t n, cap;
} paths;

/* Where the steps of a case's program run. A session has one device and no other place for a step; only a library's
 * products, on the simulator, are the CPU's. No step: the compiler knew the outputs. */
typedef struct step_counts {
  uint64_t device, cpu, constant_cases;
} step_counts;

typedef enum outcome { OUTCOME_PASS = 0, OUTCOME_FAIL = 1, OUTCOME_SKIP = 77 } outcome;

static const char *outcome_name(outcome result) {
  return result == OUTCOME_PASS ? "pass" : result == OUTCOME_SKIP ? "skip" : "FAIL";
}

/* ---- finding cases ----------------------------------------------------------------------------------------------- */

static void add_path(paths *p, const char *path) {
  if (p->n == p->cap) {
    p->cap = p->cap ? 2 * p->cap : 256;
    p->v = realloc(p->v, p->cap * sizeof *p->v);
    KVA_ASSERT(p->v);
  }
  p->v[p->n++] = strdup(path);
}

static bool is_file(const char *path) {
  struct stat s;
  return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

static bool join(char out[4096], const char *dir, const char *name) {
  return snprintf(out, 4096, "%s/%s", dir, name) < 4096;
}

static bool has_suffix(const char *s, const char *suffix) {
  size_t n = strlen(s), m = strlen(suffix);
  return n >= m && strcmp(s + n - m, suffix) == 0;
}

static void find_cases(const char *dir, int depth, paths *out) {
  char path[4096];
  if (join(path, dir, "model.onnx") && is_file(path)) {
    add_path(out, dir);
    return;
  }
  DIR *d = depth < 6 ? opendir(dir) : NULL;
  if (!d) return;
  for (struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.' || !join(path, dir, e->d_name)) continue;
    struct stat s;
    if (stat(path, &s) != 0) continue;
    if (S_ISDIR(s.st_mode))
      find_cases(path, depth + 1, out);
    else if (!strncmp(e->d_name, "light_", 6) && has_suffix(path, ".onnx"))
      add_path(out, path);
  }
  closedir(d);
}

static int compare_paths(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static bool element_close(const kva_ref_tensor *w, const kva_ref_tensor *expected, int64_t i,
                          const conform_options *o) {
  if (w->dtype == KVA_STRING) return !strcmp((const char *)w->i[i], (const char *)expected->i[i]);
  if (!expected->f) return w->i[i] == expected->i[i];
  double a = w->f[i], b = expected->f[i];
  if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
  if (isinf(a) || isinf(b)) return a == b;
  double rtol = w->dtype == KVA_BF16 ? fmax(o->rtol, 0x1p-6) : o->rtol;
  return fabs(a - b) <= o->atol + rtol * fabs(b);
}

/* Mean of the elements' powers. */
static double moment(const kva_ref_tensor *w, double power) {
  double sum = 0;
  for (int64_t i = 0; i < w->n; i++) sum += pow(kva_ref_tensor_get(w, i), power);
  return w->n ? sum / (double)w->n : 0;
}

/* Whether two samples agree in mean and mean square within five standard errors of the difference. */
static bool same_distribution(const kva_ref_tensor *w, const kva_ref_tensor *expected) {
  for (int power = 1; power <= 2; power++) {
    double a = moment(w, power), b = moment(expected, power);
    double spread = moment(w, 2 * power) - a * a + moment(expected, 2 * power) - b * b;
    if (!(fabs(a - b) <= 1e-6 + 5 * sqrt(fmax(spread, 0) / (double)(w->n + 1)))) return false;
  }
  return true;
}

static bool same_shape(const kva_tensor *t, const kva_ref_tensor *expected) {
  if (t->dtype != expected->dtype || (uint32_t)t->rank != expected->rank) return false;
  for (int32_t d = 0; d < t->rank; d++)
    if (t->dims[d] != expected->dims[d]) return false;
  return true;
}

static void add_shape(kva_text *why, const char *before, kva_dtype dtype, uint32_t rank, const int64_t *dims) {
  kva_text_add(why, "%s%s[", before, kva_dtype_name(dtype));
  for (uint32_t d = 0; d < rank; d++) kva_text_add(why, "%s%lld", d ? ", " : "", (long long)dims[d]);
  kva_text_add(why, "]");
}

static outcome compare(const kva_tensor *t, const kva_ref_tensor *expected, bool random, const conform_options *o,
                       kva_text *why) {
  if (!same_shape(t, expected)) {
    add_shape(why, "output is ", t->dtype, (uint32_t)t->rank, t->dims);
    add_shape(why, ", expected ", expected->dtype, expected->rank, expected->dims);
    return OUTCOME_FAIL;
  }
  kva_ref_tensor *w = kva_ref_tensor_from_data(t->dtype, expected->rank, t->dims, t->data);
  outcome result = OUTCOME_PASS;
  if (random) {
    result = same_distribution(w, expected) ? OUTCOME_PASS : OUTCOME_FAIL;
    if (result) kva_text_add(why, "mean is %g, expected about %g", moment(w, 1), moment(expected, 1));
    kva_ref_tensor_free(w);
    return result;
  }
  for (int64_t i = 0; i < expected->n && result == OUTCOME_PASS; i++) {
    if (element_close(w, expected, i, o)) continue;
    if (w->dtype == KVA_STRING)
      kva_text_add(why, "element %lld is '%s', expected '%s'", (long long)i, (const char *)w->i[i],
                   (const char *)expected->i[i]);
    else
      kva_text_add(why, "element %lld is %g, expected %g", (long long)i, kva_ref_tensor_get(w, i),
                   kva_ref_tensor_get(expected, i));
    result = OUTCOME_FAIL;
  }
  kva_ref_tensor_free(w);
  return result;
}

/* ---- running one case -------------------------------------------------------------------------------------------- */

static bool tensor_from_reference(const kva_ref_tensor *w, kva_tensor *out) {
  int64_t bytes;
  *out = (kva_tensor){.dtype = w->dtype, .rank = (int32_t)w->rank};
  memcpy(out->dims, w->dims, sizeof(int64_t) * w->rank);
  if (!kva_dtype_bytes(w->dtype, w->n, &bytes) || !(out->data = malloc((size_t)bytes + 1))) return false;
  kva_ref_tensor_to_data(w, out->data);
  return true;
}

/* The suite's input for light models. */
static kva_status light_input(const kva_program *p, kva_tensor *out) {
  const int64_t dims[4] = {1, 3, 224, 224}, n = 3 * 224 * 224;
  (void)p;
  *out = (kva_tensor){.dtype = KVA_F32, .rank = 4, .data = malloc((size_t)n * 4)};
  if (!out->data) return KVA_NO_MEMORY;
  memcpy(out->dims, dims, sizeof dims);
  for (int64_t i = 0; i < n; i++) ((float *)out->data)[i] = (float)((double)i / (double)n);
  return KVA_OK;
}

/* Value k of a data set, `what` ("input") says of which side. */
static kva_status read_value(const char *data_set, const char *what, uint32_t k, kva_value_kind kind, kva_diag *diag,
                             kva_list_value *out) {
  char path[4096], name[32];
  snprintf(name, sizeof name, "%s_%u.pb", what, k);
  *out = (kva_list_value){0};
  return join(path, data_set, name) ? kva_read_value_proto(path, kind, diag, out) : KVA_IO;
}

/* The values of the model: which tensors of the program they are, and inputs that are compiled in, small vectors and
 * scalars that decide shapes and structure (axes, target shapes, ranges, conditions). Those are only tried when the
 * model does not compile without. */
enum { MAX_VALUES = 256, MAX_FIXED_ELEMENTS = 64, MAX_FIXED_FLOATS = 8 };
typedef struct value {
  kva_value_kind kind;
  bool fixed, absent;  /* absent: an optional output holds nothing */
  uint32_t n;          /* tensors of the program; inputs that are compiled in have none */
  kva_list_value data; /* of inputs, in the last data set that was read */
} value;
typedef struct interface {
  const char *data_set;
  bool fixes, random; /* fixes: small inputs are compiled in; random: the model draws numbers */
  bool dynamic;       /* extents of inputs are symbols */
  uint32_t n_inputs, n_outputs;
  value inputs[MAX_VALUES], outputs[MAX_VALUES];
} interface;

static bool is_small(const kva_ref_tensor *w) {
  if (w->dtype == KVA_STRING) return false;
  if (w->dtype == KVA_BOOL) return w->n == 1;
  return w->rank <= 1 && w->n <= (w->i ? MAX_FIXED_ELEMENTS : MAX_FIXED_FLOATS);
}

static value *add_input(interface *f, uint32_t index, kva_value_kind kind) {
  if (index >= MAX_VALUES) return NULL;
  value *v = &f->inputs[index];
  kva_list_value_free(&v->data);
  *v = (value){.kind = kind};
  f->n_inputs = index + 1;
  kva_diag *quiet = kva_diag_create();
  bool ok = f->data_set && !read_value(f->data_set, "input", index, kind, quiet, &v->data);
  kva_diag_destroy(quiet);
  v->n = ok ? v->data.n : 1;
  return ok ? v : NULL;
}

static const kva_ref_tensor *fix_input(void *user, uint32_t index, const char *name) {
  (void)name;
  interface *f = user;
  value *v = add_input(f, index, KVA_VALUE_TENSOR);
  if (!v || !f->fixes || !is_small(v->data.items[0])) return NULL;
  v->fixed = true, v->n = 0;
  return v->data.items[0];
}

static const kva_list_value *list_input(void *user, uint32_t index, const char *name, kva_value_kind kind) {
  (void)name;
  value *v = add_input(user, index, kind);
  return v ? &v->data : NULL;
}

static void note_output(void *user, uint32_t index, kva_value_kind kind, bool absent, uint32_t n) {
  interface *f = user;
  if (index >= MAX_VALUES) return;
  f->outputs[index] = (value){.kind = kind, .absent = absent, .n = n};
  f->n_outputs = index + 1;
}

/* Tensors of the inputs that the program has, in order. Strings are in f until the next data set. */
static kva_status read_inputs(interface *f, const kva_program *p, const char *data_set, kva_diag *diag,
                              kva_tensor *out) {
  int32_t n = 0;
  for (uint32_t k = 0; k < f->n_inputs; k++) {
    kva_list_value *data = &f->inputs[k].data;
    if (f->inputs[k].fixed) continue;
    kva_list_value_free(data);
    KVA_TRY(read_value(data_set, "input", k, f->inputs[k].kind, diag, data));
    bool ok = data->n == f->inputs[k].n;
    for (uint32_t i = 0; i < data->n && ok; i++)
      ok = n < p->n_inputs && tensor_from_reference(data->items[i], &out[n++]);
    if (!ok) return kva_fail(diag, KVA_INVALID, NULL, "input %u has another number of tensors than compiled", k);
  }
  return KVA_OK;
}

static outcome outcome_of(kva_status status, const kva_diag *diag, kva_text *why) {
  size_t n = kva_diag_count(diag);
  kva_text_add(why, "%s", n ? kva_diag_message(diag, 0, NULL, NULL) : kva_status_name(status));
  return status == KVA_UNSUPPORTED ? OUTCOME_SKIP : OUTCOME_FAIL;
}

/* Output k of the model, whose tensors begin at out. */
static outcome compare_value(const value *v, const kva_tensor *out, const kva_list_value *expected, bool random,
                             const conform_options *o, kva_text *why) {
  if (v->absent != expected->absent || v->n != expected->n) {
    kva_text_add(why, "output has %u tensors, expected %u", v->n, expected->n);
    return OUTCOME_FAIL;
  }
  outcome result = OUTCOME_PASS;
  for (uint32_t i = 0; i < v->n && result == OUTCOME_PASS; i++)
    result = compare(&out[i], expected->items[i], random, o, why);
  return result;
}

static outcome compare_outputs(const interface *f, const kva_tensor *out, const char *data_set,
                               const char *light_output, const conform_options *o, kva_diag *diag, kva_text *why) {
  outcome result = OUTCOME_PASS;
  for (uint32_t k = 0; k < f->n_outputs && result == OUTCOME_PASS; out += f->outputs[k++].n) {
    const value *v = &f->outputs[k];
    kva_list_value expected;
    kva_status status = light_output ? kva_read_value_proto(light_output, v->kind, diag, &expected)
                                     : read_value(data_set, "output", k, v->kind, diag, &expected);
    if (status) return outcome_of(status, diag, why);
    result = compare_value(v, out, &expected, f->random, o, why);
    kva_list_value_free(&expected);
  }
  return result;
}

/* Output k as output_<k>.pb, a TensorProto as in the suites; tensors of a list as output_<k>_<i>.pb. */
static outcome write_outputs(const interface *f, const kva_tensor *out, const conform_options *o, kva_diag *diag,
                             kva_text *why) {
  for (uint32_t k = 0; k < f->n_outputs; k++)
    for (uint32_t i = 0; i < f->outputs[k].n; i++) {
      char path[4096];
      const char *form = f->outputs[k].kind == KVA_VALUE_TENSOR ? "%s/output_%u.pb" : "%s/output_%u_%u.pb";
      snprintf(path, sizeof path, form, o->output_dir, k, i);
      kva_status status = kva_cli_write_proto(path, "", out++, diag);
      if (status) return outcome_of(status, diag, why);
    }
  return OUTCOME_PASS;
}

static outcome run_data_set(kva_session *s, const char *data_set, const char *light_output, interface *f,
                            const conform_options *o, kva_diag *diag, kva_text *why) {
  const kva_program *p = kva_session_program_desc(s, 0);
  kva_tensor *in = calloc((size_t)p->n_inputs + 1, sizeof *in), *out = calloc((size_t)p->n_outputs + 1, sizeof *out);
  kva_status status = in && out ? KVA_OK : KVA_NO_MEMORY;
  if (status == KVA_OK) status = light_output ? light_input(p, in) : read_inputs(f, p, data_set, diag, in);
  if (status == KVA_OK && (status = kva_session_run(s, 0, in, out)) != KVA_OK)
    status = kva_fail(diag, status, NULL, "%s", kva_session_error(s));
  outcome result = status          ? outcome_of(status, diag, why)
                   : o->output_dir ? write_outputs(f, out, o, diag, why)
                                   : compare_outputs(f, out, data_set, light_output, o, diag, why);
  for (int32_t i = 0; in && i < p->n_inputs; i++) free(in[i].data);
  free(in);
  free(out);
  return result;
}

/* Whether the program fits the first data set alone. */
static bool is_for_first(const interface *f) {
  bool lists = false;
  for (uint32_t k = 0; k < f->n_inputs; k++) lists |= f->inputs[k].kind != KVA_VALUE_TENSOR;
  return f->fixes || lists;
}

static outcome run_data_sets(kva_session *s, const char *path, interface *f, const conform_options *o, kva_diag *diag,
                             kva_text *why) {
  char name[64], data_set[4096];
  if (has_suffix(path, ".onnx")) {
    snprintf(data_set, sizeof data_set, "%.*s_output_0.pb", (int)(strlen(path) - 5), path);
    return run_data_set(s, NULL, data_set, f, o, diag, why);
  }
  outcome result = OUTCOME_PASS;
  int k = 0;
  for (; result == OUTCOME_PASS; k++) {
    snprintf(name, sizeof name, "test_data_set_%d", k);
    if (!join(data_set, path, name) || access(data_set, R_OK) != 0) break;
    result = run_data_set(s, data_set, NULL, f, o, diag, why);
    if (is_for_first(f) || o->output_dir) return result; /* other data sets may have other shapes */
  }
  if (k == 0) kva_text_add(why, "no test_data_set_0");
  return k == 0 ? OUTCOME_FAIL : result;
}

static bool draws_numbers(const kva_module *m) {
  for (const kva_node *n = m->functions.data[0]->graph->first; n; n = n->next)
    if (kva_is(n, KVA_OP_random_uniform) || kva_is(n, KVA_OP_random_normal)) return true;
  return false;
}

static kva_status load_case(const char *model, interface *f, kva_diag *diag, kva_module **out) {
  kva_load_options options = {.fixed_input = fix_input,
                              .list_input = list_input,
                              .output = note_output,
                              .input_user = f,
                              .free_extents = f->dynamic};
  KVA_TRY(kva_load_model(model, &options, diag, out));
  f->random = draws_numbers(*out);
  return KVA_OK;
}

static kva_status load_and_compile(const char *model, const conform_options *o, interface *f, kva_diag *diag,
                                   kva_compiled **out) {
  kva_module *m = NULL;
  kva_compile_options options = {.target = {.opt_level = 1, .cache = o->cache}};
  KVA_TRY(kva_cli_target(&o->device, diag, &options.target));
  KVA_TRY(load_case(model, f, diag, &m));
  return kva_compile(m, &options, diag, out);
}

static step_counts count_steps(const kva_program *p, const char *device) {
  bool stand_in = device && !strcmp(device, "ptxsim");
  step_counts n = {.constant_cases = p->n_steps == 0};
  for (int32_t i = 0; i < p->n_steps; i++) {
    bool on_cpu = !device || !strcmp(device, "cpu") || (stand_in && p->steps[i].kind == KVA_STEP_CALL);
    ++*(on_cpu ? &n.cpu : &n.device);
  }
  return n;
}

static bool is_dynamic(const conform_options *o) {
  return o->mode && !strcmp(o->mode, "dynamic");
}

static outcome run_case(const char *path, const conform_options *o, step_counts *steps, kva_text *why) {
  char model[4096], data_set[4096];
  snprintf(model, sizeof model, has_suffix(path, ".onnx") ? "%s" : "%s/model.onnx", path);
  static interface f; /* of this process's only case */
  f.dynamic = is_dynamic(o);
  f.data_set = join(data_set, path, "test_data_set_0") && access(data_set, R_OK) == 0 ? data_set : NULL;
  const kva_session_options so = {.threads = 1, .device = o->device.device};
  kva_diag *diag = kva_diag_create();
  kva_compiled *c = NULL;
  kva_session *s = NULL;
  kva_status status = load_and_compile(model, o, &f, diag, &c);
  if (status != KVA_OK && f.data_set) {
    kva_diag_clear(diag);
    f.fixes = true;
    status = load_and_compile(model, o, &f, diag, &c);
  }
  if (status == KVA_OK) status = kva_session_create(c->artifact, &so, diag, &s);
  if (status == KVA_OK) *steps = count_steps(kva_session_program_desc(s, 0), o->device.device);
  outcome result = status == KVA_OK ? run_data_sets(s, path, &f, o, diag, why) : outcome_of(status, diag, why);
  for (uint32_t i = 0; i < f.n_inputs; i++) kva_list_value_free(&f.inputs[i].data);
  kva_session_destroy(s);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
  return result;
}

/* ---- gradients of one case --------------------------------------------------------------------------------------- */

/* What a case says of an operator. */
typedef struct case_gradient {
  char op[64];   /* the only operator of the model; "": it has several */
  bool constant; /* no gradient flows, and none should */
} case_gradient;

static void name_operator(const char *model, case_gradient *g) {
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  kva_check_report report = {0};
  if (kva_check_model(model, arena, diag, &report) == KVA_OK && report.rows.len == 1)
    snprintf(g->op, sizeof g->op, "%s", report.rows.data[0].op_type);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
}

/* The tensors of the model's inputs, in order; they stay those of f. */
static uint32_t collect_inputs(const interface *f, kva_ref_tensor **out) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < f->n_inputs; k++)
    for (uint32_t i = 0; i < f->inputs[k].n && i < f->inputs[k].data.n && n < MAX_VALUES; i++)
      out[n++] = f->inputs[k].data.items[i];
  return n;
}

static kva_status check_gradient(const char *model, interface *f, kva_diag *diag, case_gradient *g) {
  kva_ref_tensor *inputs[MAX_VALUES];
  kva_differences found = {0};
  kva_module *m = NULL;
  KVA_TRY(load_case(model, f, diag, &m));
  kva_diag_clear(diag);
  bool known = collect_inputs(f, inputs) == m->functions.data[0]->graph->inputs.len;
  kva_status status = f->random ? kva_fail(diag, KVA_UNSUPPORTED, NULL, "it draws numbers")
                      : known   ? kva_check_differences(m, inputs, diag, &found)
                                : kva_fail(diag, KVA_UNSUPPORTED, NULL, "an input is missing");
  kva_module_destroy(m);
  g->constant = !found.inputs;
  return status;
}

static outcome run_gradient_case(const char *path, case_gradient *g, kva_text *why) {
  char model[4096], data_set[4096];
  if (has_suffix(path, ".onnx") || !join(model, path, "model.onnx") || !join(data_set, path, "test_data_set_0"))
    return OUTCOME_SKIP;
  static interface f; /* of this process's only case */
  f.data_set = data_set;
  kva_diag *diag = kva_diag_create();
  name_operator(model, g);
  kva_status status = check_gradient(model, &f, diag, g);
  if (status == KVA_INVALID || status == KVA_UNSUPPORTED) {
    f.fixes = true;
    kva_diag_clear(diag);
    status = check_gradient(model, &f, diag, g);
  }
  outcome result = status == KVA_OK ? OUTCOME_PASS : outcome_of(status, diag, why);
  for (uint32_t i = 0; i < f.n_inputs; i++) kva_list_value_free(&f.inputs[i].data);
  kva_diag_destroy(diag);
  return result;
}

/* ---- one process per case ---------------------------------------------------------------------------------------- */

typedef struct case_result {
  step_counts steps;
  case_gradient gradient;
} case_result;

typedef struct isolated_case {
  const char *path;
  const conform_options *o;
  case_result found;
} isolated_case;

static int work_on_case(void *user, kva_text *why) {
  isolated_case *c = user;
  if (c->o->gradients) return (int)run_gradient_case(c->path, &c->found.gradient, why);
  return (int)run_case(c->path, c->o, &c->found.steps, why);
}

static outcome run_isolated(const char *path, const conform_options *o, case_result *found, char *why, size_t size) {
  isolated_case c = {.path = path, .o = o};
  const kva_isolated job = {work_on_case, &c, &c.found, sizeof c.found, o->seconds};
  int code = kva_isolate(&job, why, size);
  *found = c.found;
  return code < 0 ? OUTCOME_FAIL : (outcome)code;
}

/* On one line whatever is in names: programs count lines. */
static void print_line(FILE *out, const char *word, const char *path, const char *note, const char *why) {
  fprintf(out, "%s ", word);
  kva_print_escaped(path, out);
  fprintf(out, "%s%s", note, *why ? ": " : "");
  kva_print_escaped(why, out);
  fputc('\n', out);
}

static void print_case(const char *path, outcome result, const char *why, const conform_options *o) {
  const char *word = outcome_name(result);
  if (o->json) {
    kva_text t = {0};
    kva_text_add(&t, "{\"case\": ");
    kva_text_add_quoted(&t, path);
    kva_text_add(&t, ", \"result\": \"%s\", \"reason\": ", word);
    kva_text_add_quoted(&t, why);
    printf("%s}\n", t.data);
    kva_text_free(&t);
  } else if (o->verbose || result == OUTCOME_FAIL) {
    print_line(stdout, word, path, "", why);
  }
}

/* ---- expectations ------------------------------------------------------------------------------------------------ */

/* Lines `skip NAME reason` or `FAIL NAME reason`, NAME being the last part of a case's path; # begins a comment. Cases
 * that are not listed pass. */
static kva_status read_expected(const char *path, kva_diag *diag, kva_arena *arena, kva_map **out) {
  kva_file file;
  *out = kva_map_create(arena);
  KVA_TRY(kva_file_map(path, diag, &file));
  char *text = kva_arena_strndup(arena, (const char *)file.data, file.size), *rest = text, *end = NULL;
  kva_status status = KVA_OK;
  for (int number = 1; !status && rest && *rest; number++) {
    char *line = strtok_r(rest, "\n", &end);
    rest = end;
    if (!line || *line == '#') continue;
    char *word = strtok_r(line, " ", &line), *name = strtok_r(NULL, " ", &line), *reason = line;
    bool skip = word && !strcmp(word, outcome_name(OUTCOME_SKIP));
    if (!word || (!skip && strcmp(word, outcome_name(OUTCOME_FAIL)) != 0) || !name || !reason || !*reason)
      status = kva_error(diag, &(kva_loc){.file = path}, "line %d: expected `skip NAME reason` or `FAIL NAME reason`",
                         number);
    else
      kva_map_set_str(*out, name, word);
  }
  kva_file_unmap(&file);
  return status;
}

static const char *expected_of(const kva_map *expected, const char *path) {
  const char *word = kva_map_get_str(expected, kva_file_name(path));
  return word ? word : outcome_name(OUTCOME_PASS);
}

/* ---- all cases --------------------------------------------------------------------------------------------------- */

/* Cases of an operator whose gradient was compared. */
typedef struct operator_row {
  char name[64];
  size_t passed, failed;
} operator_row;

typedef struct summary {
  size_t passed, failed, skipped, unexpected;
  size_t on_cpu; /* cases of a GPU that had steps on the CPU */
  step_counts steps;
  kva_arena *arena;
  KVA_VEC(operator_row) operators;
} summary;

static void count_operator(summary *sum, outcome result, const case_gradient *g) {
  uint32_t k = 0;
  if (result == OUTCOME_SKIP) return;
  if (!*g->op || (g->constant && result == OUTCOME_PASS)) return;
  while (k < sum->operators.len && strcmp(sum->operators.data[k].name, g->op) != 0) k++;
  if (k == sum->operators.len) {
    operator_row row = {{0}, 0, 0};
    memcpy(row.name, g->op, sizeof row.name);
    KVA_PUSH(sum->arena, &sum->operators, row);
  }
  ++*(result == OUTCOME_PASS ? &sum->operators.data[k].passed : &sum->operators.data[k].failed);
}

static void count(summary *sum, outcome result, const case_result *found) {
  ++*(result == OUTCOME_PASS ? &sum->passed : result == OUTCOME_SKIP ? &sum->skipped : &sum->failed);
  sum->steps.device += found->steps.device;
  sum->steps.cpu += found->steps.cpu;
  sum->on_cpu += found->steps.cpu > 0;
  sum->steps.constant_cases += found->steps.constant_cases;
  count_operator(sum, result, &found->gradient);
}

static void print_operators(const summary *sum, const conform_options *o) {
  size_t green = 0, n = sum->operators.len;
  for (size_t i = 0; i < n; i++) {
    const operator_row *row = &sum->operators.data[i];
    green += !row->failed;
    if (o->verbose && !o->json) printf("%-32s %zu of %zu cases\n", row->name, row->passed, row->passed + row->failed);
  }
  printf(o->json ? "{\"operators\": %zu, \"green\": %zu}\n"
                 : "%zu operators have a gradient that was compared, %zu of them right in every case\n",
         n, green);
}

static void print_steps(const summary *sum, const conform_options *o) {
  printf("%llu kernels and copies ran on %s (%s), %llu on the CPU instead, in %zu cases; %llu cases have constant "
         "outputs\n",
         (unsigned long long)sum->steps.device, o->device.device, o->arch, (unsigned long long)sum->steps.cpu,
         sum->on_cpu, (unsigned long long)sum->steps.constant_cases);
}

static void print_json_summary(const summary *sum) {
  printf("{\"passed\": %zu, \"failed\": %zu, \"skipped\": %zu, \"device_steps\": %llu, \"cpu_steps\": %llu, "
         "\"constant_cases\": %llu}\n",
         sum->passed, sum->failed, sum->skipped, (unsigned long long)sum->steps.device,
         (unsigned long long)sum->steps.cpu, (unsigned long long)sum->steps.constant_cases);
}

static void print_summary(const summary *sum, const conform_options *o) {
  if (o->json)
    print_json_summary(sum);
  else
    printf("%zu passed, %zu failed, %zu skipped\n", sum->passed, sum->failed, sum->skipped);
  if (o->gradients)
    print_operators(sum, o);
  else if (!o->json && o->device.device && strcmp(o->device.device, "cpu") != 0)
    print_steps(sum, o);
}

/* Of a whole suite: what is listed for no case is misspelt, or of another suite. */
static void tell_unknown(const kva_map *expected, const paths *cases, const char *file) {
  for (uint32_t i = 0; i < kva_map_len(expected); i++) {
    size_t size, k = 0;
    const char *name = kva_map_key_at(expected, i, &size);
    while (k < cases->n && strcmp(kva_file_name(cases->v[k]), name) != 0) k++;
    if (k == cases->n) fprintf(stderr, "kvasir conform: %s lists %s, which is no case here\n", file, name);
  }
}

/* expected: what read_expected gave; NULL: every case is to pass or to be skipped. */
static int run_all(const paths *cases, const kva_map *expected, const conform_options *o) {
  summary sum = {.arena = kva_arena_create()};
  for (size_t i = 0; i < cases->n; i++) {
    char why[1024], word[32], note[4096];
    case_result found;
    outcome result = run_isolated(cases->v[i], o, &found, why, sizeof why);
    const char *wanted = expected ? expected_of(expected, cases->v[i]) : outcome_name(result);
    print_case(cases->v[i], result, why, o);
    count(&sum, result, &found);
    if (!strcmp(wanted, outcome_name(result)) || (o->gradients && result == OUTCOME_SKIP)) continue;
    sum.unexpected++;
    snprintf(word, sizeof word, "UNEXPECTED %s", outcome_name(result));
    snprintf(note, sizeof note, ", which %s lists as %s", o->expected, wanted);
    print_line(stderr, word, cases->v[i], note, why);
  }
  if (expected && !o->filter) tell_unknown(expected, cases, o->expected);
  print_summary(&sum, o);
  kva_arena_destroy(sum.arena);
  return (expected ? sum.unexpected : sum.failed) ? EXIT_NO : EXIT_DONE;
}

/* Finds the cases below dirs that pass the filter, sorted. false: a folder has none, which is told: a misspelt name is
 * not to count as passed. */
static bool choose_cases(const char *const *dirs, int n, const conform_options *o, paths *out) {
  paths all = {0};
  bool found = true;
  for (int i = 0; i < n; i++) {
    size_t before = all.n;
    find_cases(dirs[i], 0, &all);
    if (all.n == before) fprintf(stderr, "kvasir conform: %s: no case found there\n", dirs[i]);
    found = found && all.n > before;
  }
  for (size_t i = 0; i < all.n; i++)
    if (!o->filter || strstr(all.v[i], o->filter)) add_path(out, all.v[i]);
  if (out->n) qsort(out->v, out->n, sizeof *out->v, compare_paths);
  for (size_t i = 0; i < all.n; i++) free(all.v[i]);
  free(all.v);
  if (found && !out->n) fprintf(stderr, "kvasir conform: no case found%s\n", n ? " with --filter" : "; name a folder");
  return found && out->n;
}

typedef struct device_answer {
  const kva_device_choice *device;
  kva_status status;
  char arch[16];
} device_answer;

static int ask_device(void *user, kva_text *why) {
  device_answer *a = user;
  kva_target_options target = {0};
  kva_diag *diag = kva_diag_create();
  a->status = kva_cli_target(a->device, diag, &target);
  snprintf(a->arch, sizeof a->arch, "%s", target.arch ? target.arch : "");
  if (kva_diag_count(diag)) kva_text_add(why, "%s", kva_diag_message(diag, 0, NULL, NULL));
  kva_diag_destroy(diag);
  return 0;
}

/* In a child: a process that has used CUDA's driver cannot have children that do, as the cases are. */
static kva_status find_device(conform_options *o, kva_diag *diag) {
  char why[1024];
  device_answer a = {.device = &o->device};
  const kva_isolated job = {ask_device, &a, &a, sizeof a, o->seconds};
  if (kva_isolate(&job, why, sizeof why) != 0) return kva_fail(diag, KVA_MISSING, NULL, "no device answers: %s", why);
  snprintf(o->arch, sizeof o->arch, "%s", a.arch);
  return a.status == KVA_OK ? KVA_OK : kva_fail(diag, a.status, NULL, "%s", why);
}

/* None by itself: a suite is thousands of entries, which would drive out those of other models. */
static const kva_cache *named_cache(kva_arena *arena) {
  const char *folder = getenv("KVASIR_CACHE");
  return folder && *folder ? kva_user_cache(arena, NULL) : NULL;
}

static int run_chosen(const char *const *dirs, int n, conform_options *o) {
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_map *expected = NULL;
  paths cases = {0};
  kva_status status = find_device(o, diag);
  o->cache = named_cache(arena);
  if (!status && o->expected) status = read_expected(o->expected, diag, arena, &expected);
  bool any = !status && choose_cases(dirs, n, o, &cases);
  if (any && o->output_dir && cases.n > 1) {
    fprintf(stderr, "kvasir conform: --output is for one case, whose files would be those of others, too; found %zu\n",
            cases.n);
    any = false;
  }
  if (any && o->output_dir) status = kva_folder_make(o->output_dir, 0777, diag);
  int code = status ? kva_cli_fail(status, diag) : EXIT_USAGE;
  if (any && !status) code = run_all(&cases, expected, o);
  for (size_t i = 0; i < cases.n; i++) free(cases.v[i]);
  free(cases.v);
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
  return code;
}

static int run(int argc, char **argv) {
  conform_options o = {.rtol = 1e-3, .atol = 1e-7, .seconds = 60};
  const kva_option options[] = {
      {"--filter", NULL, "TEXT", KVA_OPTION_STRING, &o.filter, "only cases whose path contains TEXT"},
      {"--expected", NULL, "FILE", KVA_OPTION_STRING, &o.expected, "which cases do not pass; others are unexpected"},
      {"--rtol", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &o.rtol, "relative tolerance (1e-3)"},
      {"--atol", NULL, "X", KVA_OPTION_NOT_NEGATIVE, &o.atol, "absolute tolerance (1e-7)"},
      {"--time-limit", NULL, "SECONDS", KVA_OPTION_COUNT, &o.seconds, "of one case (60)"},
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.output_dir,
       "write the outputs of a single case instead of comparing them"},
      {"--mode", NULL, "static|dynamic", KVA_OPTION_WORD, &o.mode, "extents as declared, or all symbolic"},
      {"--grad", NULL, NULL, KVA_OPTION_FLAG, &o.gradients, "compare gradients with central differences instead"},
      KVA_DEVICE_OPTIONS(&o.device),
      {"--verbose", "-v", NULL, KVA_OPTION_FLAG, &o.verbose, "print every case, with the reason of skips"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &o.json, "print one JSON object a line"},
  };
  const char *dirs[64];
  int n, code = kva_cli_parse(&kva_verb_conform, argc, argv, options, sizeof options / sizeof *options, dirs, 64, &n);
  if (code >= 0) return code;
  return run_chosen(dirs, n, &o);
}
