/* Options, help text, model loading: shared by the verbs. */
#include "tools/cli.h"
#include "runtime/cuda/query.h"

#include <errno.h>
#include <stdlib.h>

static void print_help(const kva_verb *verb, const kva_option *options, uint32_t n) {
  printf("kvasir %s %s\n\n%s\n\n", verb->name, verb->arguments, verb->summary);
  printf("Options:\n");
  for (uint32_t i = 0; i < n; i++) {
    char left[64];
    snprintf(left, sizeof left, "%s%s%s%s%s", options[i].short_name ? options[i].short_name : "",
             options[i].short_name ? ", " : "", options[i].name, options[i].value ? " " : "",
             options[i].value ? options[i].value : "");
    printf("  %-28s %s\n", left, options[i].help);
  }
  printf("  %-28s %s\n", "-h, --help", "this text");
  if (verb->details) printf("\n%s\n", verb->details);
}

static const kva_option *find_option(const kva_option *options, uint32_t n, const char *arg, size_t len) {
  for (uint32_t i = 0; i < n; i++) {
    if (strlen(options[i].name) == len && !strncmp(options[i].name, arg, len)) return &options[i];
    if (options[i].short_name && strlen(options[i].short_name) == len && !strncmp(options[i].short_name, arg, len))
      return &options[i];
  }
  return NULL;
}

static bool store_number(const kva_option *o, const char *value) {
  char *end;
  errno = 0;
  if (o->kind == KVA_OPTION_FLOAT) {
    *(double *)o->target = strtod(value, &end);
    return *value && !*end && !errno;
  }
  int64_t n = *(int64_t *)o->target = strtoll(value, &end, 10);
  return *value && !*end && !errno && n >= 0;
}

static bool store(const kva_option *o, const char *value) {
  switch (o->kind) {
  case KVA_OPTION_FLAG: *(bool *)o->target = true; return true;
  case KVA_OPTION_INT:
  case KVA_OPTION_FLOAT: return store_number(o, value);
  case KVA_OPTION_STRING: *(const char **)o->target = value; return true;
  case KVA_OPTION_LIST: {
    kva_strings *list = o->target;
    if (list->n == sizeof list->v / sizeof *list->v) return false;
    list->v[list->n++] = value;
    return true;
  }
  }
  return false;
}

static int wrong_value(const kva_verb *verb, const kva_option *o, const char *value) {
  static const char *const expected[] = {[KVA_OPTION_INT] = "an integer that is not negative",
                                         [KVA_OPTION_FLOAT] = "a number",
                                         [KVA_OPTION_LIST] = "at most 64 values"};
  fprintf(stderr, "kvasir %s: %s: expected %s, found '%s'\nTry: kvasir %s --help\n", verb->name, o->name,
          expected[o->kind], value, verb->name);
  return EXIT_USAGE;
}

static int usage_error(const kva_verb *verb, const char *what, const char *arg) {
  fprintf(stderr, "kvasir %s: %s '%s'\nTry: kvasir %s --help\n", verb->name, what, arg, verb->name);
  return EXIT_USAGE;
}

/* One option at argv[*i]; advances *i past a separate value. -1: taken. */
static int take_option(const kva_verb *verb, const kva_option *options, uint32_t n, int argc, char **argv, int *i) {
  const char *arg = argv[*i], *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
  size_t len = equals ? (size_t)(equals - arg) : strlen(arg);
  const kva_option *o = find_option(options, n, arg, len);
  const char *value = equals ? equals + 1 : NULL;
  if (!o && arg[1] != '-' && (o = find_option(options, n, arg, 2))) value = arg + 2; /* -Dname=value */
  if (!o) return usage_error(verb, "unknown option", arg);
  if (o->kind == KVA_OPTION_FLAG) {
    if (value) return usage_error(verb, "this option takes no value:", arg);
  } else if (!value) {
    if (*i + 1 >= argc) return usage_error(verb, "a value is missing after", arg);
    value = argv[++*i];
  }
  return store(o, value) ? -1 : wrong_value(verb, o, value);
}

int kva_cli_parse(const kva_verb *verb, int argc, char **argv, const kva_option *options, uint32_t n_options,
                  const char **positional, int max_positional, int *n_positional) {
  *n_positional = 0;
  bool only_positional = false;
  for (int i = 0; i < argc; i++) {
    const char *arg = argv[i];
    if (!only_positional && (!strcmp(arg, "--help") || !strcmp(arg, "-h"))) {
      print_help(verb, options, n_options);
      return EXIT_DONE;
    }
    if (!only_positional && !strcmp(arg, "--")) {
      only_positional = true;
    } else if (!only_positional && arg[0] == '-' && arg[1]) {
      int code = take_option(verb, options, n_options, argc, argv, &i);
      if (code >= 0) return code;
    } else {
      if (*n_positional == max_positional) return usage_error(verb, "unexpected argument", arg);
      positional[(*n_positional)++] = arg;
    }
  }
  return -1;
}

bool kva_cli_defines(const kva_strings *list, const char *option, kva_arena *arena, uint32_t *out_n,
                     const kva_define **out_defines) {
  kva_define *d = KVA_NEW_ARRAY(arena, kva_define, list->n + 1);
  for (uint32_t i = 0; i < list->n; i++) {
    const char *equals = strchr(list->v[i], '=');
    if (!equals || equals == list->v[i]) {
      fprintf(stderr, "kvasir: %s needs name=value, found '%s'\n", option, list->v[i]);
      return false;
    }
    d[i] = (kva_define){kva_arena_strndup(arena, list->v[i], (size_t)(equals - list->v[i])), equals + 1};
  }
  *out_n = list->n;
  *out_defines = d;
  return true;
}

/* cuda uses the library where it is; elsewhere only who asks gets a stand-in. */
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

int kva_cli_fail(kva_status status, const kva_diag *diag) {
  kva_diag_print(diag, stderr);
  if (kva_diag_count(diag) == 0) fprintf(stderr, "kvasir: %s\n", kva_status_name(status));
  return kva_status_exit_code(status);
}

int kva_cli_load(const char *path, const kva_strings *defines, const kva_strings *pins, kva_diag *diag,
                 kva_module **out_module) {
  kva_arena *arena = kva_arena_create();
  kva_load_options o = {0};
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
