/* Model loading and device selection, shared by the verbs. */
#include "tools/cli.h"
#include "tools/driver/opt.h"
#include "runtime/cuda/query.h"

#include <stdlib.h>

int kva_cli_parse(const kva_verb *verb, int argc, char **argv, const kva_option *options, uint32_t n_options,
                  const char **positional, int max_positional, int *n_positional) {
  char program[32];
  snprintf(program, sizeof program, "kvasir %s", verb->name);
  const kva_usage usage = {program, verb->arguments, verb->summary, verb->details};
  return kva_options_parse(&usage, argc, argv, options, n_options, positional, max_positional, n_positional);
}

bool kva_cli_defines(const kva_strings *list, const char *option, kva_arena *arena, uint32_t *out_n,
                     const kva_define **out_defines) {
  kva_define *d = KVA_NEW_ARRAY(arena, kva_define, list->n + 1);
  *out_n = 0;
  for (uint32_t i = 0; i < list->n; i++) {
    const char *equals = strchr(list->v[i], '=');
    if (!equals || equals == list->v[i]) {
      fprintf(stderr, "kvasir: %s needs name=value, found '%s'\n", option, list->v[i]);
      return false;
    }
    const char *name = kva_arena_strndup(arena, list->v[i], (size_t)(equals - list->v[i]));
    uint32_t k = 0;
    while (k < *out_n && strcmp(d[k].name, name) != 0) k++;
    d[k] = (kva_define){name, equals + 1};
    *out_n += k == *out_n;
  }
  *out_defines = d;
  return true;
}

int kva_cli_passes(const kva_verb *verb, kva_pass_choice *c) {
  const char *const names[] = {c->control.print_after, c->control.stop_after};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (!names[i] || (i == 0 && !strcmp(names[i], "all")) || kva_pass_exists(names[i])) continue;
    fprintf(stderr, "kvasir %s: no pass is called '%s'; kvasir opt --list names them\n", verb->name, names[i]);
    return EXIT_USAGE;
  }
  if (!c->bisect_limit) return -1;
  char *end;
  c->control.bisect = true;
  c->control.max_changes = strtoll(c->bisect_limit, &end, 10);
  if (*c->bisect_limit && !*end && c->control.max_changes >= 0) return -1;
  fprintf(stderr, "kvasir %s: --bisect-limit: expected a number of changes, found '%s'\n", verb->name, c->bisect_limit);
  return EXIT_USAGE;
}

void kva_cli_print_passes(const kva_pass_choice *c) {
  if (c->timing) kva_pass_print_timing(&c->control, stderr);
}

/* cuda uses the library if it is present; other devices use a stand-in only on request. */
static kva_status choose_gemm(const kva_device_choice *choice, kva_diag *diag, kva_target_options *target) {
  const char *path, *who = choice->gemm;
  bool given = who != NULL;
  if (given && strcmp(who, "library") != 0 && strcmp(who, "generated") != 0)
    return kva_error(diag, NULL, "--gemm: expected library or generated, found '%s'", who);
  if (given && !target->arch) return kva_error(diag, NULL, "--gemm is for GPUs; the CPU's code is always generated");
  target->library_gemm = given && !strcmp(who, "library");
  if (given || !choice->device || strcmp(choice->device, "cuda") != 0) return KVA_OK;
  kva_diag *why = kva_diag_create();
  target->library_gemm = kva_gpu_find_blas(why, &path) == KVA_OK;
  if (!target->library_gemm)
    fprintf(stderr, "kvasir: %s; matrix products are generated\n", kva_diag_message(why, 0, NULL, NULL));
  kva_diag_destroy(why);
  return KVA_OK;
}

kva_status kva_cli_target(const kva_device_choice *choice, kva_diag *diag, kva_target_options *target) {
  const char *arch;
  KVA_TRY(kva_device_check(choice->device, diag, &arch));
  target->arch = choice->target ? choice->target : arch;
  return choose_gemm(choice, diag, target);
}

const kva_cache *kva_cli_cache(const char **out_reason) {
  enum { MAX_BYTES = 256 << 20 };
  static char folder[4096];
  static kva_cache cache;
  const char *own = getenv("KVASIR_CACHE"), *shared = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  bool is_off = own && !strcmp(own, "off");
  int n = 0;
  if (own && *own)
    n = is_off ? 0 : snprintf(folder, sizeof folder, "%s", own);
  else if (shared && *shared == '/') /* the specification ignores relative paths */
    n = snprintf(folder, sizeof folder, "%s/kvasir", shared);
  else if (home && *home)
    n = snprintf(folder, sizeof folder, "%s/.cache/kvasir", home);
  if (out_reason) *out_reason = is_off ? "KVASIR_CACHE=off" : "there is no home folder";
  if (n <= 0 || n >= (int)sizeof folder) return NULL;
  cache = (kva_cache){folder, MAX_BYTES};
  return &cache;
}

void kva_cli_print_compiled(const kva_compiled *c) {
  printf("compiled in %.2f s (passes %.2f, code %.2f%s), %d kernels\n", c->pass_seconds + c->codegen_seconds,
         c->pass_seconds, c->codegen_seconds, c->cached ? " from the cache" : "", c->artifact->n_kernels);
}

int kva_cli_fail(kva_status status, const kva_diag *diag) {
  kva_diag_print(diag, stderr);
  if (kva_diag_count(diag) == 0 && status != KVA_STOPPED) fprintf(stderr, "kvasir: %s\n", kva_status_name(status));
  return kva_status_exit_code(status);
}

int kva_cli_load(const char *path, const kva_strings *defines, const kva_strings *pins, kva_diag *diag,
                 kva_module **out_module) {
  return kva_cli_load_batch(path, defines, pins, false, diag, out_module);
}

int kva_cli_load_batch(const char *path, const kva_strings *defines, const kva_strings *pins, bool free_batch,
                       kva_diag *diag, kva_module **out_module) {
  kva_arena *arena = kva_arena_create();
  kva_load_options o = {.free_batch = free_batch};
  int code = EXIT_USAGE;
  if (kva_cli_defines(defines, "-D", arena, &o.n_defines, &o.defines) &&
      kva_cli_defines(pins, "--pin", arena, &o.n_pins, &o.pins)) {
    kva_status status = kva_load_model(path, &o, diag, out_module);
    code = status == KVA_OK ? -1 : kva_cli_fail(status, diag);
    if (status == KVA_OK) kva_diag_print(diag, stderr); /* warnings */
    kva_diag_clear(diag);
  }
  kva_arena_destroy(arena);
  return code;
}

int64_t kva_cli_pin_of(const kva_strings *pins, const char *symbol) {
  size_t len = strlen(symbol);
  for (uint32_t i = pins->n; i-- > 0;)
    if (!strncmp(pins->v[i], symbol, len) && pins->v[i][len] == '=') return strtoll(pins->v[i] + len + 1, NULL, 10);
  return 0;
}

/* Whether an input has this symbol as an extent. */
static bool has_symbol(const kva_module *m, const char *symbol) {
  for (uint32_t f = 0; f < m->functions.len; f++) {
    const kva_graph *g = m->functions.data[f]->graph;
    for (uint32_t i = 0; i < g->inputs.len; i++) {
      const kva_type *t = g->inputs.data[i]->type;
      for (uint32_t d = 0; d < t->rank; d++)
        if (t->dims[d]->kind == KVA_EXPR_SYMBOL && !strcmp(t->dims[d]->name, symbol)) return true;
    }
  }
  return false;
}

void kva_cli_pin(const kva_module *m, const char *symbol, int64_t value, kva_strings *pins, kva_arena *arena) {
  if (value > 0 && has_symbol(m, symbol) && !kva_cli_pin_of(pins, symbol) && pins->n < 64)
    pins->v[pins->n++] = kva_arena_printf(arena, "%s=%lld", symbol, (long long)value);
}
