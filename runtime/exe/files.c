/* Inputs from files or random, outputs as lines and files. */
#include "runtime/exe/files.h"
#include "runtime/base/platform.h"
#include "runtime/exe/exe.h"
#include "runtime/formula.h"
#include "runtime/npy.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_PATH = 4096, MAX_TIMES = 1 << 20 };

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static bool is_input(const kva_program *p, const char *name, size_t len) {
  for (int32_t i = 0; i < p->n_inputs; i++) {
    const char *known = p->buffers[p->inputs[i]].name;
    if (strlen(known) == len && !strncmp(known, name, len)) return true;
  }
  return false;
}

/* The '=' behind an input's name; NULL: all is a path, which may have one, too. */
static const char *name_end(const kva_program *p, const char *given) {
  const char *equals = strchr(given, '=');
  return equals && !is_input(p, given, (size_t)(equals - given)) && !access(given, F_OK) ? NULL : equals;
}

static const char *given_file(const kva_program *p, const kva_run_request *r, const char *name,
                              uint32_t *next_unnamed) {
  for (uint32_t i = 0; i < r->files->n; i++) {
    const char *equals = strchr(r->files->v[i], '=');
    if (equals && strlen(name) == (size_t)(equals - r->files->v[i]) && !strncmp(name, r->files->v[i], strlen(name)))
      return equals + 1;
  }
  while (*next_unnamed < r->files->n && name_end(p, r->files->v[*next_unnamed])) ++*next_unnamed;
  return *next_unnamed < r->files->n ? r->files->v[(*next_unnamed)++] : NULL;
}

/* The extent, if constants and the request's symbols determine it; the last value that is given for one counts. */
static bool known_extent(const kva_program *p, const kva_formula *f, const kva_run_request *r, int64_t *out) {
  int64_t symbols[64];
  for (int64_t i = 0; i < f->n; i++) {
    const kva_formula_word *w = &f->words[i];
    if (w->op != KVA_FORMULA_SYMBOL) continue;
    int k = r->n_dims - 1;
    while (k >= 0 && strcmp(r->dims[k].name, p->symbols[w->arg]) != 0) k--;
    if (k < 0 || w->arg >= 64) return false;
    symbols[w->arg] = r->dims[k].value;
  }
  return kva_formula_eval(f, symbols, out);
}

/* Creates a zeroed tensor with the input's shape; returns its number of elements. */
static kva_status blank_input(const kva_program *p, const kva_buffer_desc *b, const kva_run_request *r, kva_diag *diag,
                              kva_tensor *out, int64_t *out_n) {
  *out = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank};
  *out_n = 1;
  for (int32_t d = 0; d < b->rank; d++) {
    if (!known_extent(p, &b->dims[d], r, &out->dims[d]))
      return kva_error(diag, NULL, "input '%s': dimension %d is symbolic; give a .npy file, or fix it with --pin",
                       b->name, d);
    if (!kva_mul_size(*out_n, out->dims[d], out_n)) return kva_error(diag, NULL, "input '%s' is too large", b->name);
  }
  int64_t bytes = kva_tensor_bytes(out);
  if (bytes < 0 || !(out->data = calloc((size_t)bytes + 1, 1)))
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for input '%s'", b->name);
  return KVA_OK;
}

/* Lines of a text, one for each string; `text` is NULL: all are empty. Addresses and lines are one allocation. */
static kva_status string_input(const kva_program *p, const kva_buffer_desc *b, const kva_run_request *r,
                               const char *path, const kva_file *text, kva_diag *diag, kva_tensor *out) {
  int64_t n, lines = 0;
  size_t size = text ? text->size : 0;
  const char *bytes = text ? text->data : "";
  KVA_TRY(blank_input(p, b, r, diag, out, &n));
  for (size_t i = 0; i < size; i++) lines += bytes[i] == '\n' || i + 1 == size;
  if (text && (lines != n || memchr(bytes, 0, size)))
    return kva_error(diag, &(kva_loc){.file = path},
                     "expected a text of %lld lines, the strings of input '%s', found "
                     "%lld lines",
                     (long long)n, b->name, (long long)lines);
  const char **strings = realloc(out->data, (size_t)n * sizeof *strings + size + 1);
  if (!strings) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for input '%s'", b->name);
  out->data = strings;
  char *at = (char *)(strings + n), *end = at + size;
  memcpy(at, bytes, size);
  *end = 0;
  for (int64_t i = 0; i < n; i++) {
    strings[i] = at;
    at += strcspn(at, "\n");
    if (at < end) *at++ = 0;
  }
  return KVA_OK;
}

static kva_status random_input(const kva_program *p, const kva_buffer_desc *b, int index, const kva_run_request *r,
                               kva_diag *diag, kva_tensor *out) {
  int64_t n;
  if (b->dtype == KVA_STRING) return string_input(p, b, r, NULL, NULL, diag, out);
  KVA_TRY(blank_input(p, b, r, diag, out, &n));
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = kva_philox4x32((uint64_t)i, (uint64_t)index, r->seed).v[0];
    if (kva_dtype_is_float(out->dtype))
      kva_store_f64(out->dtype, out->data, i, 2 * kva_uniform01(bits) - 1);
    else
      kva_store_i64(out->dtype, out->data, i, bits & 1);
  }
  return KVA_OK;
}

static kva_status raw_input(const kva_program *p, const kva_buffer_desc *b, const kva_run_request *r, const char *path,
                            const kva_file *file, kva_diag *diag, kva_tensor *out) {
  int64_t n;
  if (b->dtype == KVA_STRING) return string_input(p, b, r, path, file, diag, out);
  KVA_TRY(blank_input(p, b, r, diag, out, &n));
  int64_t bytes = kva_tensor_bytes(out);
  if ((size_t)bytes != file->size)
    return kva_error(diag, &(kva_loc){.file = path},
                     "is no .npy file, and as bare elements it must have %lld bytes, found %zu", (long long)bytes,
                     file->size);
  if (bytes) memcpy(out->data, file->data, (size_t)bytes);
  return KVA_OK;
}

static kva_status file_input(const kva_program *p, const kva_buffer_desc *b, const kva_run_request *r, const char *path,
                             kva_diag *diag, kva_tensor *out) {
  kva_file file;
  KVA_TRY(kva_file_map(path, diag, &file));
  size_t length = strlen(path);
  if (r->read_proto && length > 3 && !strcmp(path + length - 3, ".pb")) {
    kva_file_unmap(&file);
    return r->read_proto(path, diag, out);
  }
  bool npy = file.size >= 6 && !memcmp(file.data, "\x93NUMPY", 6);
  kva_status status = npy ? kva_npy_parse(path, file.data, file.size, (kva_dtype)b->dtype, diag, out)
                          : raw_input(p, b, r, path, &file, diag, out);
  kva_file_unmap(&file);
  return status;
}

/* Every --input must name an input. */
static kva_status check_inputs(const kva_program *p, const kva_run_request *r, kva_diag *diag) {
  if (r->files->n > (uint32_t)p->n_inputs)
    return kva_error(diag, NULL, "%u inputs are given, the model has %d", r->files->n, p->n_inputs);
  for (uint32_t i = 0; i < r->files->n; i++) {
    const char *equals = name_end(p, r->files->v[i]);
    int len = equals ? (int)(equals - r->files->v[i]) : 0;
    if (!equals || is_input(p, r->files->v[i], (size_t)len)) continue;
    kva_text known = {0};
    for (int32_t k = 0; k < p->n_inputs; k++)
      kva_text_add(&known, "%s%s", k ? ", " : "", p->buffers[p->inputs[k]].name);
    kva_status status = kva_error(diag, NULL, "the model has no input '%.*s'; it has: %s", len, r->files->v[i],
                                  known.data ? known.data : "none");
    kva_text_free(&known);
    return status;
  }
  return KVA_OK;
}

/* Every value must be of a symbol. */
static kva_status check_symbols(const kva_program *p, const kva_run_request *r, kva_diag *diag) {
  for (int i = 0; i < r->n_dims; i++) {
    int32_t k = 0;
    while (k < p->n_symbols && strcmp(p->symbols[k], r->dims[i].name) != 0) k++;
    if (k < p->n_symbols) continue;
    kva_text known = {0};
    for (k = 0; k < p->n_symbols; k++) kva_text_add(&known, "%s%s", k ? ", " : "", p->symbols[k]);
    kva_status status = kva_error(diag, NULL, "pin %s: the model has no such symbol; it has: %s", r->dims[i].name,
                                  known.data ? known.data : "none");
    kva_text_free(&known);
    return status;
  }
  return KVA_OK;
}

/* A file's shape must agree with the request's symbols; the run compares the rest. */
static kva_status check_extents(const kva_program *p, const kva_buffer_desc *b, const kva_run_request *r,
                                const kva_tensor *t, kva_diag *diag) {
  for (int32_t d = 0; r->n_dims && t->rank == b->rank && d < t->rank; d++) {
    int64_t extent;
    if (known_extent(p, &b->dims[d], r, &extent) && extent != t->dims[d])
      return kva_error(diag, NULL, "dimension %d of input '%s' must be %lld, found %lld", d, b->name, (long long)extent,
                       (long long)t->dims[d]);
  }
  return KVA_OK;
}

kva_status kva_run_inputs(const kva_program *p, const kva_run_request *r, kva_diag *diag, kva_tensor *in) {
  uint32_t next = 0;
  KVA_TRY(check_inputs(p, r, diag));
  KVA_TRY(check_symbols(p, r, diag));
  for (int32_t i = 0; i < p->n_inputs; i++) {
    const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
    const char *file = given_file(p, r, b->name, &next);
    KVA_TRY(file ? file_input(p, b, r, file, diag, &in[i]) : random_input(p, b, i, r, diag, &in[i]));
    KVA_TRY(check_extents(p, b, r, &in[i], diag));
  }
  return KVA_OK;
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

/* NaN without a sign: printed, it would depend on the CPU. */
static double unsigned_nan(double v) {
  return isnan(v) ? NAN : v;
}

static double element(const kva_tensor *t, int64_t i) {
  if (!kva_dtype_is_float(t->dtype)) return (double)kva_load_i64(t->dtype, t->data, i);
  return unsigned_nan(kva_load_f64(t->dtype, t->data, i));
}

static void print_strings(const kva_tensor *t, int64_t n) {
  printf("]  [");
  for (int64_t i = 0; i < n && i < 6; i++) {
    printf("%s\"", i ? ", " : "");
    kva_print_escaped(((const char *const *)t->data)[i], stdout);
    printf("\"");
  }
  printf("%s]\n", n > 6 ? ", ..." : "");
}

static void print_output(const char *name, const kva_tensor *t) {
  int64_t n = 1;
  kva_print_escaped(name, stdout);
  printf(": %s[", kva_dtype_name(t->dtype));
  for (int32_t d = 0; d < t->rank; d++) {
    printf("%s%lld", d ? ", " : "", (long long)t->dims[d]);
    n *= t->dims[d];
  }
  if (t->dtype == KVA_STRING) {
    print_strings(t, n);
    return;
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
  if (n > nans) printf("  min %g  max %g", lo, hi);
  if (n) printf("  mean %g", unsigned_nan(sum / (double)n));
  if (nans) printf("  %lld NaN", (long long)nans);
  printf("  [");
  for (int64_t i = 0; i < n && i < 6; i++) printf("%s%g", i ? ", " : "", element(t, i));
  printf("%s]\n", n > 6 ? ", ..." : "");
}

/* The file of an output: "gpu_0/softmax_1" becomes DIR/gpu_0_softmax_1.npy; strings are lines of a .txt. */
static kva_status output_path(const kva_run_request *r, const kva_buffer_desc *b, kva_diag *diag, size_t size,
                              char *out) {
  const char *name = b->name, *kind = r->write_proto ? "pb" : b->dtype == KVA_STRING ? "txt" : "npy";
  int length = snprintf(out, size, "%s/%s.%s", r->output_dir, name, kind), start = (int)strlen(r->output_dir) + 1;
  if (length >= (int)size) return kva_error(diag, NULL, "the name of output '%s' is too long for a file", name);
  for (int k = start; k < length; k++)
    if (out[k] == '/') out[k] = '_';
  return KVA_OK;
}

static const kva_buffer_desc *output_buffer(const kva_program *p, int32_t i) {
  return &p->buffers[p->outputs[i]];
}

static const char *output_name(const kva_program *p, int32_t i) {
  return output_buffer(p, i)->name;
}

static kva_status write_strings(const char *path, const kva_tensor *t, kva_diag *diag) {
  kva_text lines = {0};
  for (int64_t i = 0; i < kva_tensor_bytes(t) / 8; i++) kva_text_add(&lines, "%s\n", ((const char *const *)t->data)[i]);
  kva_status status = lines.cut ? kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for %s", path)
                                : kva_file_write(path, lines.data ? lines.data : "", lines.len, diag);
  kva_text_free(&lines);
  return status;
}

static kva_status check_replaced(const kva_program *p, int32_t output, const kva_run_request *r, const char *path,
                                 kva_diag *diag) {
  for (uint32_t i = 0; i < r->files->n; i++) {
    const char *given = r->files->v[i], *equals = name_end(p, given), *file = equals ? equals + 1 : given;
    if (kva_exe_same_file(file, path))
      return kva_error(diag, NULL, "output '%s' would replace %s, which is read; write elsewhere",
                       output_name(p, output), file);
  }
  return KVA_OK;
}

/* Refuses outputs that would have one file, or that of an input. */
static kva_status check_paths(const kva_program *p, const kva_run_request *r, kva_diag *diag) {
  char path[MAX_PATH], other[MAX_PATH];
  for (int32_t i = 0; i < p->n_outputs; i++) {
    KVA_TRY(output_path(r, output_buffer(p, i), diag, sizeof path, path));
    KVA_TRY(check_replaced(p, i, r, path, diag));
    for (int32_t k = 0; k < i; k++) {
      KVA_TRY(output_path(r, output_buffer(p, k), diag, sizeof other, other));
      if (!strcmp(path, other))
        return kva_error(diag, NULL, "outputs '%s' and '%s' would both be written to %s; rename one of them",
                         output_name(p, k), output_name(p, i), path);
    }
  }
  return KVA_OK;
}

static kva_status write_output(const kva_program *p, int32_t i, const kva_run_request *r, const kva_tensor *t,
                               kva_diag *diag) {
  char path[MAX_PATH];
  KVA_TRY(output_path(r, output_buffer(p, i), diag, sizeof path, path));
  if (r->write_proto) return r->write_proto(path, output_name(p, i), t, diag);
  return t->dtype == KVA_STRING ? write_strings(path, t, diag) : kva_npy_write(path, t, diag);
}

static kva_status write_outputs(const kva_program *p, const kva_run_request *r, const kva_tensor *out, kva_diag *diag) {
  for (int32_t i = 0; i < p->n_outputs; i++) {
    print_output(output_name(p, i), &out[i]);
    if (r->output_dir) KVA_TRY(write_output(p, i, r, &out[i], diag));
  }
  return KVA_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int shorter_first(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void print_times(double *seconds, int64_t n) {
  qsort(seconds, (size_t)n, sizeof *seconds, shorter_first);
  printf("%lld runs: median %.3f ms, half of them in %.3f to %.3f ms, the fastest in %.3f ms\n", (long long)n,
         seconds[n / 2] * 1e3, seconds[n / 4] * 1e3, seconds[n - 1 - n / 4] * 1e3, seconds[0] * 1e3);
}

/* Only the last MAX_TIMES runs are reported. */
static kva_status run_repeatedly(kva_session *s, int program, const kva_run_request *r, kva_diag *diag,
                                 const kva_tensor *in, kva_tensor *out) {
  int64_t runs = r->repeat > 0 ? r->repeat : 1, kept = runs < MAX_TIMES ? runs : MAX_TIMES;
  double *seconds = malloc((size_t)kept * sizeof *seconds);
  if (!seconds) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the times of %lld runs", (long long)kept);
  kva_status status = KVA_OK;
  for (int64_t i = 0; i < runs && status == KVA_OK; i++) {
    double start = kva_now();
    status = kva_session_run(s, program, in, out);
    seconds[i % kept] = kva_now() - start;
  }
  if (status != KVA_OK)
    kva_fail(diag, status, NULL, "%s", kva_session_error(s));
  else if (runs > 1)
    print_times(seconds, kept);
  free(seconds);
  return status;
}

kva_status kva_run_files(kva_session *s, int program, const kva_run_request *r, kva_diag *diag) {
  const kva_program *p = kva_session_program_desc(s, program);
  kva_tensor *in = calloc((size_t)p->n_inputs + 1, sizeof *in), *out = calloc((size_t)p->n_outputs + 1, sizeof *out);
  kva_status status = in && out ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the list of tensors");
  if (status == KVA_OK && r->output_dir) status = kva_folder_make(r->output_dir, 0777, diag);
  if (status == KVA_OK && r->output_dir) status = check_paths(p, r, diag);
  if (status == KVA_OK) status = kva_run_inputs(p, r, diag, in);
  if (status == KVA_OK) status = run_repeatedly(s, program, r, diag, in, out);
  if (status == KVA_OK) status = write_outputs(p, r, out, diag);
  for (int32_t i = 0; in && i < p->n_inputs; i++) free(in[i].data);
  free(in);
  free(out);
  return status;
}
