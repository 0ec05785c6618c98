/* kvasir ptxsim: runs a kernel of a PTX file on the simulator and prints results, counters and findings. */
#include "tools/cli.h"
#include "runtime/npy.h"
#include "runtime/ptxsim/ptxsim.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_ptxsim = {"ptxsim", "FILE.ptx [options]",
                                  "run a PTX kernel on the simulator, with memory and race checks",
                                  "An argument is TYPE:N[=random|zero|FILE.npy], an array of N elements, or "
                                  "TYPE=VALUE, a number. Types: f32 f64 f16\n"
                                  "bf16 i8 u8 i16 u16 i32 u32 i64 u64. Arrays are random unless told otherwise.\n\n"
                                  "Exit code 1: the file was rejected or the run had findings.\n\n"
                                  "Example:\n  kvasir ptxsim add.ptx --grid 4 --block 256 --arg f32:1024 --arg "
                                  "f32:1024 --arg f32:1024=zero --arg i32=1024",
                                  run};

typedef struct argument {
  const char *spec;
  kva_dtype dtype;
  bool array;
  kva_tensor tensor; /* array, or a scalar as its single element */
  void *data;        /* the registered memory */
  void *before;      /* a copy, to detect changes */
} argument;

typedef struct job {
  const char *path, *kernel, *output;
  kva_ptx_dim3 grid, block;
  argument arguments[64];
  uint32_t n_arguments;
  int64_t shared, threads, seed, most;
  bool lazy, races, json, profile;
} job;

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static kva_dtype find_dtype(const char *s, size_t n) {
  static const struct {
    const char *name;
    kva_dtype t;
  } names[] = {{"f32", KVA_F32}, {"f64", KVA_F64}, {"f16", KVA_F16}, {"bf16", KVA_BF16},
               {"i8", KVA_I8},   {"u8", KVA_U8},   {"i16", KVA_I16}, {"u16", KVA_U16},
               {"i32", KVA_I32}, {"u32", KVA_U32}, {"i64", KVA_I64}, {"u64", KVA_U64}};
  for (size_t k = 0; k < sizeof names / sizeof *names; k++)
    if (strlen(names[k].name) == n && !memcmp(names[k].name, s, n)) return names[k].t;
  return KVA_DTYPE_NONE;
}

/* false: the type of the argument does not hold element k of the file. */
static bool take_element(argument *a, const kva_tensor *file, int64_t k) {
  bool is_float = kva_dtype_is_float(file->dtype);
  double f = is_float ? kva_load_f64(file->dtype, file->data, k) : 0;
  if (kva_dtype_is_float(a->dtype)) {
    kva_store_f64(a->dtype, a->data, k, is_float ? f : (double)kva_load_i64(file->dtype, file->data, k));
    return true;
  }
  if (is_float && (!(fabs(f) < 0x1p63) || f != trunc(f))) return false;
  int64_t n = is_float ? (int64_t)f : kva_load_i64(file->dtype, file->data, k);
  kva_store_i64(a->dtype, a->data, k, n);
  return kva_load_i64(a->dtype, a->data, k) == n;
}

/* Converts other element types, since .npy has no bf16. */
static kva_status fill_from_file(argument *a, const char *path, kva_diag *diag) {
  kva_tensor file = {0};
  KVA_TRY(kva_npy_read(path, KVA_DTYPE_NONE, diag, &file));
  int64_t bytes = kva_tensor_bytes(&file), n = bytes * 8 / kva_dtype_bits(file.dtype), k = 0;
  bool fits = n == a->tensor.dims[0];
  while (fits && k < n && take_element(a, &file, k)) k++;
  kva_npy_free(&file);
  if (!fits)
    return kva_error(diag, NULL, "%s: %lld elements; --arg %s has another number", path, (long long)n, a->spec);
  return k == n
             ? KVA_OK
             : kva_error(diag, NULL, "%s: element %lld is no integer that --arg %s holds", path, (long long)k, a->spec);
}

/* Floats in (-1, 1), integers from -8 to 7 (0 to 15 if unsigned): small enough for exact products. */
static void fill_random(argument *a, uint64_t seed) {
  for (int64_t k = 0; k < a->tensor.dims[0]; k++) {
    kva_philox p = kva_philox4x32((uint64_t)k, 0, seed);
    if (kva_dtype_is_float(a->dtype))
      kva_store_f64(a->dtype, a->data, k, 2 * kva_uniform01(p.v[0]) - 1);
    else
      kva_store_i64(a->dtype, a->data, k, (int64_t)(p.v[0] % 16) - (kva_dtype_is_unsigned(a->dtype) ? 0 : 8));
  }
}

static kva_status make_array(argument *a, const char *rest, uint64_t seed, kva_diag *diag) {
  char *end;
  long long n = strtoll(rest, &end, 10);
  int64_t bytes;
  if (end == rest || (*end && *end != '=') || n < 1 || !kva_dtype_bytes(a->dtype, n, &bytes) ||
      bytes > (int64_t)1 << 34)
    return kva_error(diag, NULL, "--arg %s: a number of elements is expected behind ':'", a->spec);
  a->tensor = (kva_tensor){.dtype = a->dtype, .rank = 1, .dims = {n}};
  a->data = aligned_alloc(256, (size_t)(bytes + 255) & ~(size_t)255);
  a->before = malloc((size_t)bytes);
  if (!a->data || !a->before) return kva_fail(diag, KVA_NO_MEMORY, NULL, "--arg %s: out of memory", a->spec);
  a->tensor.data = a->data;
  memset(a->data, 0, (size_t)bytes);
  const char *value = *end ? end + 1 : "random";
  if (!strcmp(value, "random"))
    fill_random(a, seed);
  else if (strcmp(value, "zero"))
    KVA_TRY(fill_from_file(a, value, diag));
  memcpy(a->before, a->data, (size_t)bytes);
  return KVA_OK;
}

/* Decimal, octal or hexadecimal, with or without sign: what `bits` bits hold as a signed or as an unsigned number. */
static bool parse_integer(const char *value, int bits, int64_t *out) {
  bool negative = *value == '-';
  const uint64_t most = negative ? UINT64_C(1) << (bits - 1) : UINT64_MAX >> (64 - bits);
  char *end;
  if (value[negative] < '0' || value[negative] > '9') return false;
  errno = 0;
  uint64_t n = strtoull(value + negative, &end, 0);
  *out = (int64_t)(negative ? 0 - n : n);
  return !*end && !errno && n <= most;
}

static kva_status make_integer(argument *a, const char *value, kva_diag *diag) {
  int64_t number;
  int bits = kva_dtype_bits(a->dtype);
  if (!parse_integer(value, bits, &number))
    return kva_error(diag, NULL, "--arg %s: an integer of %d bits is expected behind '='", a->spec, bits);
  kva_store_i64(a->dtype, a->data, 0, number);
  return KVA_OK;
}

static kva_status make_scalar(argument *a, const char *value, kva_diag *diag) {
  char *end;
  a->data = calloc(1, 8);
  if (!a->data) return kva_fail(diag, KVA_NO_MEMORY, NULL, "--arg %s: out of memory", a->spec);
  if (!kva_dtype_is_float(a->dtype)) return make_integer(a, value, diag);
  kva_store_f64(a->dtype, a->data, 0, strtod(value, &end));
  return *value && !*end ? KVA_OK : kva_error(diag, NULL, "--arg %s: no number behind '='", a->spec);
}

static kva_status make_argument(argument *a, const char *spec, uint64_t seed, kva_diag *diag) {
  size_t n = strcspn(spec, ":=");
  a->spec = spec;
  a->dtype = find_dtype(spec, n);
  a->array = spec[n] == ':';
  if (a->dtype == KVA_DTYPE_NONE || !spec[n])
    return kva_error(diag, NULL, "--arg %s: TYPE:N[=random|zero|FILE.npy] or TYPE=VALUE is expected, such as f32:1024",
                     spec);
  return a->array ? make_array(a, spec + n + 1, seed, diag) : make_scalar(a, spec + n + 1, diag);
}

static bool parse_dim3(const char *text, kva_ptx_dim3 *out) {
  uint32_t v[3] = {1, 1, 1};
  for (int k = 0; k < 3; k++) {
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (end == text || *text == '-' || n > UINT32_MAX) return false;
    v[k] = (uint32_t)n;
    if (!*end) {
      *out = (kva_ptx_dim3){v[0], v[1], v[2]};
      return true;
    }
    if (*end != ',') return false;
    text = end + 1;
  }
  return false;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static void print_array(const argument *a, uint32_t index) {
  double least = INFINITY, most = -INFINITY, sum = 0;
  int64_t n = a->tensor.dims[0], changed = 0, not_finite = 0;
  for (int64_t k = 0; k < n; k++) {
    bool is_float = kva_dtype_is_float(a->dtype);
    double v = is_float ? kva_load_f64(a->dtype, a->data, k) : (double)kva_load_i64(a->dtype, a->data, k);
    size_t width = (size_t)kva_dtype_bits(a->dtype) / 8;
    changed += memcmp((char *)a->data + (size_t)k * width, (char *)a->before + (size_t)k * width, width) != 0;
    if (!isfinite(v))
      not_finite++;
    else
      least = fmin(least, v), most = fmax(most, v), sum += v;
  }
  printf("argument %u %-20s %lld of %lld elements changed", index, a->spec, (long long)changed, (long long)n);
  if (not_finite < n) printf(", from %g to %g, mean %g", least, most, sum / (double)(n - not_finite));
  if (not_finite) printf(", %lld not finite", (long long)not_finite);
  printf("\n");
}

static double ratio(uint64_t a, uint64_t b) {
  return b ? (double)a / (double)b : 0;
}

static void print_counters(const kva_ptx_report *r) {
  const kva_ptx_counters *c = &r->counters;
  printf("\n%llu warp instructions, %llu thread instructions, %.3f s (%.2f G a second)\n",
         (unsigned long long)c->warp_instructions, (unsigned long long)c->thread_instructions, r->seconds,
         (double)c->thread_instructions / r->seconds * 1e-9);
  for (int k = 0; k < KVA_PTX_N_CLASSES; k++)
    if (c->warp_by_class[k])
      printf("  %-28s %12llu  %5.1f %%\n", kva_ptx_class_name((kva_ptx_class)k),
             (unsigned long long)c->warp_by_class[k], 100 * ratio(c->warp_by_class[k], c->warp_instructions));
  printf("branches: %llu, divergent %llu\n", (unsigned long long)c->branches,
         (unsigned long long)c->divergent_branches);
  printf("global loads: %llu requests, %.2f sectors each, %.0f %% of their bytes used\n",
         (unsigned long long)c->global_load_requests, ratio(c->global_load_sectors, c->global_load_requests),
         100 * ratio(c->global_load_bytes, 32 * c->global_load_sectors));
  printf("global stores: %llu requests, %.2f sectors each, %.0f %% of their bytes used\n",
         (unsigned long long)c->global_store_requests, ratio(c->global_store_sectors, c->global_store_requests),
         100 * ratio(c->global_store_bytes, 32 * c->global_store_sectors));
  if (c->shared_requests)
    printf("shared memory: %llu requests, %.2f times the passes needed, worst %u (line %u)\n",
           (unsigned long long)c->shared_requests, ratio(c->shared_wavefronts, c->shared_wavefronts_ideal),
           c->shared_degree_max, c->shared_degree_max_line);
  if (c->matrix_flops) printf("matrix operations: %llu\n", (unsigned long long)c->matrix_flops);
}

/* The lines that run most, at most 10, as indices of the report's; returns how many. */
static uint32_t busiest(const kva_ptx_report *r, uint32_t out[10]) {
  uint64_t below = UINT64_MAX, most = 1;
  uint32_t n = 0;
  for (; n < 10 && most; below = most) {
    most = 0;
    for (uint32_t k = 0; k < r->n_lines; k++)
      if (r->warp_executions[k] < below && r->warp_executions[k] > most) most = r->warp_executions[k];
    for (uint32_t k = 0; most && k < r->n_lines && n < 10; k++)
      if (r->warp_executions[k] == most) out[n++] = k;
  }
  return n;
}

static void print_profile(const kva_ptx_report *r) {
  uint32_t lines[10], n = busiest(r, lines);
  printf("\nlines that run most:\n");
  for (uint32_t k = 0; k < n; k++)
    printf("  line %-8u %12llu warps\n", r->lines[lines[k]], (unsigned long long)r->warp_executions[lines[k]]);
}

static void add_profile(const kva_ptx_report *r, kva_text *text) {
  uint32_t lines[10], n = busiest(r, lines);
  kva_text_add(text, "\"lines\": [");
  for (uint32_t k = 0; k < n; k++)
    kva_text_add(text, "%s{\"line\": %u, \"warps\": %llu}", k ? ", " : "", r->lines[lines[k]],
                 (unsigned long long)r->warp_executions[lines[k]]);
  kva_text_add(text, "], ");
}

static void print_json(const job *j, const kva_ptx_report *r) {
  const kva_ptx_counters *c = &r->counters;
  kva_text text = {0};
  kva_text_add(&text,
               "{\"warp_instructions\": %llu, \"thread_instructions\": %llu, \"global_load_requests\": %llu, "
               "\"global_load_sectors\": %llu, \"global_store_requests\": %llu, \"global_store_sectors\": %llu, "
               "\"shared_requests\": %llu, \"shared_wavefronts\": %llu, \"shared_wavefronts_ideal\": %llu, "
               "\"matrix_flops\": %llu, ",
               (unsigned long long)c->warp_instructions, (unsigned long long)c->thread_instructions,
               (unsigned long long)c->global_load_requests, (unsigned long long)c->global_load_sectors,
               (unsigned long long)c->global_store_requests, (unsigned long long)c->global_store_sectors,
               (unsigned long long)c->shared_requests, (unsigned long long)c->shared_wavefronts,
               (unsigned long long)c->shared_wavefronts_ideal, (unsigned long long)c->matrix_flops);
  if (j->profile) add_profile(r, &text);
  kva_text_add(&text, "\"findings\": [");
  for (uint32_t k = 0; k < r->n_findings; k++) {
    const kva_ptx_finding *f = &r->findings[k];
    kva_text_add(&text, "%s\n  {\"file\": ", k ? "," : "");
    kva_text_add_quoted(&text, j->path);
    kva_text_add(&text, ", \"line\": %u, \"kind\": ", f->line);
    kva_text_add_quoted(&text, kva_ptx_finding_name(f->kind));
    kva_text_add(&text, ", \"count\": %llu, \"detail\": ", (unsigned long long)f->count);
    kva_text_add_quoted(&text, f->detail);
    kva_text_add(&text, "}");
  }
  printf("%s]}\n", text.data);
  kva_text_free(&text);
}

static kva_status write_arrays(const job *j, kva_diag *diag) {
  for (uint32_t k = 0; k < j->n_arguments; k++) {
    if (!j->arguments[k].array) continue;
    char path[4096];
    snprintf(path, sizeof path, "%s/arg%u.npy", j->output, k);
    KVA_TRY(kva_npy_write(path, &j->arguments[k].tensor, diag));
  }
  return KVA_OK;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static kva_status find_kernel(const job *j, const kva_ptx_module *m, kva_diag *diag, const kva_ptx_kernel **out) {
  uint32_t n = kva_ptx_module_n_kernels(m);
  *out = j->kernel ? kva_ptx_module_get_kernel(m, j->kernel) : n == 1 ? kva_ptx_module_kernel_at(m, 0) : NULL;
  if (*out) return KVA_OK;
  kva_text names = {0};
  for (uint32_t k = 0; k < n && k < 20; k++)
    kva_text_add(&names, "%s%s", k ? ", " : "", kva_ptx_kernel_get_info(kva_ptx_module_kernel_at(m, k))->name);
  kva_status status =
      j->kernel
          ? kva_error(diag, NULL, "%s has no kernel '%s'; it has: %s", j->path, j->kernel, n ? names.data : "none")
          : kva_error(diag, NULL, "%s has %u kernels; choose with --kernel: %s", j->path, n, n ? names.data : "none");
  kva_text_free(&names);
  return status;
}

static kva_status check_arguments(const job *j, const kva_ptx_kernel_info *info, kva_diag *diag) {
  for (uint32_t k = 0; k < j->n_arguments && k < info->n_params; k++) {
    const argument *a = &j->arguments[k];
    uint32_t size = a->array ? 8 : (uint32_t)kva_dtype_bits(a->dtype) / 8;
    if (size != info->params[k].size)
      return kva_error(diag, NULL, "--arg %s has %u bytes; parameter '%s' has %u", a->spec, size, info->params[k].name,
                       info->params[k].size);
  }
  return KVA_OK;
}

static kva_status launch(const job *j, const kva_ptx_kernel *kernel, kva_diag *diag, kva_ptx_report *report) {
  KVA_TRY(check_arguments(j, kva_ptx_kernel_get_info(kernel), diag));
  kva_ptx_memory *memory = kva_ptx_memory_create();
  const void *params[64];
  kva_status status = memory ? KVA_OK : KVA_NO_MEMORY;
  for (uint32_t k = 0; status == KVA_OK && k < j->n_arguments; k++) {
    const argument *a = &j->arguments[k];
    params[k] = a->array ? (const void *)&a->data : a->data;
    if (a->array) status = kva_ptx_memory_add(memory, a->data, (size_t)kva_tensor_bytes(&a->tensor), true, a->spec);
  }
  kva_pool *pool = kva_pool_create((int)j->threads);
  kva_ptx_options options = {.pool = pool,
                             .lazy = j->lazy,
                             .check_global = j->races,
                             .schedule_seed = (uint64_t)j->seed,
                             .max_total = (uint64_t)j->most};
  if (status == KVA_OK)
    status = kva_ptx_launch(kernel, memory, j->grid, j->block, (uint32_t)j->shared, params, j->n_arguments, &options,
                            diag, report);
  kva_pool_destroy(pool);
  kva_ptx_memory_destroy(memory);
  return status;
}

static bool was_ended(const kva_ptx_report *r) {
  for (uint32_t k = 0; k < r->n_findings; k++)
    if (r->findings[k].kind == KVA_PTX_STEP_LIMIT) return true;
  return false;
}

static void print_report(const job *j, const kva_ptx_report *report) {
  if (j->json) {
    print_json(j, report);
    return;
  }
  for (uint32_t k = 0; k < j->n_arguments; k++)
    if (j->arguments[k].array) print_array(&j->arguments[k], k);
  print_counters(report);
  if (j->profile) print_profile(report);
  printf("\n%u findings\n", report->n_findings);
  if (was_ended(report))
    printf("ended after %llu warp instructions, with %llu of %llu CTAs started; --max-instructions sets the limit\n",
           (unsigned long long)report->counters.warp_instructions, (unsigned long long)report->ctas_run,
           (unsigned long long)report->ctas);
  kva_ptx_report_print_findings(report, j->path, stdout);
}

static kva_status simulate(const job *j, kva_diag *diag, bool *out_findings) {
  kva_file file;
  KVA_TRY(kva_file_map(j->path, diag, &file));
  kva_ptx_module *module = NULL;
  const kva_ptx_kernel *kernel;
  kva_ptx_report report = {0};
  kva_status status = j->output ? kva_folder_make(j->output, 0777, diag) : KVA_OK;
  if (status == KVA_OK) status = kva_ptx_module_create(file.size ? file.data : "", file.size, j->path, diag, &module);
  kva_file_unmap(&file);
  if (status == KVA_OK) status = find_kernel(j, module, diag, &kernel);
  if (status == KVA_OK) status = launch(j, kernel, diag, &report);
  if (status == KVA_OK) print_report(j, &report);
  if (status == KVA_OK && j->output) status = write_arrays(j, diag);
  *out_findings = report.n_findings > 0;
  kva_ptx_report_free(&report);
  kva_ptx_module_destroy(module);
  return status;
}

static int run_job(job *j, const kva_strings *specs) {
  kva_diag *diag = kva_diag_create();
  kva_status status = KVA_OK;
  bool findings = false;
  j->n_arguments = specs->n;
  for (uint32_t k = 0; status == KVA_OK && k < specs->n; k++)
    status = make_argument(&j->arguments[k], specs->v[k], k + 1, diag);
  if (status == KVA_OK) status = simulate(j, diag, &findings);
  int code = status == KVA_OK ? (findings ? EXIT_NO : EXIT_DONE) : kva_cli_fail(status, diag);
  for (uint32_t k = 0; k < specs->n; k++) free(j->arguments[k].data), free(j->arguments[k].before);
  kva_diag_destroy(diag);
  return code;
}

static int run(int argc, char **argv) {
  static job j = {.most = INT64_C(1) << 32};
  kva_strings specs = {0};
  const char *grid = "1", *block = "1";
  const kva_option options[] = {
      {"--kernel", NULL, "NAME", KVA_OPTION_STRING, &j.kernel, "the kernel (the only one)"},
      {"--grid", NULL, "X[,Y,Z]", KVA_OPTION_STRING, &grid, "CTAs (1)"},
      {"--block", NULL, "X[,Y,Z]", KVA_OPTION_STRING, &block, "threads of a CTA (1)"},
      {"--arg", NULL, "SPEC", KVA_OPTION_LIST, &specs, "the next parameter: f32:N, f32:N=zero, i32=5, ..."},
      {"--shared", NULL, "BYTES", KVA_OPTION_INT, &j.shared, "dynamic shared memory (0)"},
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &j.output, "write array K as DIR/argK.npy"},
      {"--lazy", NULL, NULL, KVA_OPTION_FLAG, &j.lazy, "asynchronous operations end as late as they may"},
      {"--races", NULL, NULL, KVA_OPTION_FLAG, &j.races, "also look for races on global memory"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &j.seed, "order of warps; 0: round robin (0)"},
      {"--max-instructions", NULL, "N", KVA_OPTION_INT, &j.most,
       "of all warps, before the run is ended as an endless loop (2^32)"},
      {"--threads", NULL, "N", KVA_OPTION_INT, &j.threads, "threads that simulate (all)"},
      {"--profile", NULL, NULL, KVA_OPTION_FLAG, &j.profile, "print the lines that run most"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &j.json, "print JSON"},
  };
  int n_positional, code = kva_cli_parse(&kva_verb_ptxsim, argc, argv, options, sizeof options / sizeof *options,
                                         &j.path, 1, &n_positional);
  if (code >= 0) return code;
  bool dims = parse_dim3(grid, &j.grid) && parse_dim3(block, &j.block);
  if (n_positional == 1 && dims && j.shared <= UINT32_MAX && j.threads <= 1024 && j.most >= 1)
    return run_job(&j, &specs);
  fprintf(stderr, n_positional == 1 ? "kvasir ptxsim: --grid and --block take X, X,Y or X,Y,Z; --threads 0 to 1024; "
                                      "--max-instructions 1 or more\n"
                                    : "kvasir ptxsim: which file?\n");
  return EXIT_USAGE;
}
