/* Option parsing: --name VALUE, --name=VALUE, -nVALUE; the help text comes from the same table. */
#include "runtime/exe/options.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether a bare --name is allowed, without a value. */
static bool is_choice(const kva_option *o) {
  return o->kind == KVA_OPTION_CHOICE || o->kind == KVA_OPTION_CHOICES;
}

static void print_help(const kva_usage *usage, const kva_option *options, uint32_t n) {
  printf("%s %s\n\n%s\n\n", usage->program, usage->arguments, usage->summary);
  printf("Options:\n");
  for (uint32_t i = 0; i < n; i++) {
    char left[64];
    snprintf(left, sizeof left, "%s%s%s%s%s", options[i].short_name ? options[i].short_name : "",
             options[i].short_name ? ", " : "", options[i].name, options[i].value && !is_choice(&options[i]) ? " " : "",
             options[i].value ? options[i].value : "");
    printf("  %-28s %s\n", left, options[i].help);
  }
  printf("  %-28s %s\n", "-h, --help", "this text");
  if (usage->details) printf("\n%s\n", usage->details);
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
  case KVA_OPTION_CHOICE:
  case KVA_OPTION_STRING: *(const char **)o->target = value; return true;
  case KVA_OPTION_LIST:
  case KVA_OPTION_CHOICES: {
    kva_strings *list = o->target;
    if (list->n == sizeof list->v / sizeof *list->v) return false;
    list->v[list->n++] = value;
    return true;
  }
  }
  return false;
}

static int wrong_value(const kva_usage *usage, const kva_option *o, const char *value) {
  static const char *const expected[] = {[KVA_OPTION_INT] = "an integer that is not negative",
                                         [KVA_OPTION_FLOAT] = "a number",
                                         [KVA_OPTION_LIST] = "at most 64 values",
                                         [KVA_OPTION_CHOICES] = "at most 64 values"};
  fprintf(stderr, "%s: %s: expected %s, found '%s'\nTry: %s --help\n", usage->program, o->name, expected[o->kind],
          value, usage->program);
  return EXIT_USAGE;
}

static int usage_error(const kva_usage *usage, const char *what, const char *arg) {
  fprintf(stderr, "%s: %s '%s'\nTry: %s --help\n", usage->program, what, arg, usage->program);
  return EXIT_USAGE;
}

/* Takes one option at argv[*i] and advances *i past a separate value. Returns -1 on success. */
static int take_option(const kva_usage *usage, const kva_option *options, uint32_t n, int argc, char **argv, int *i) {
  const char *arg = argv[*i], *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
  size_t len = equals ? (size_t)(equals - arg) : strlen(arg);
  const kva_option *o = find_option(options, n, arg, len);
  const char *value = equals ? equals + 1 : NULL;
  if (!o && arg[1] != '-' && (o = find_option(options, n, arg, 2))) value = arg + 2; /* -Dname=value */
  if (!o) return usage_error(usage, "unknown option", arg);
  if (o->kind == KVA_OPTION_FLAG) {
    if (value) return usage_error(usage, "this option takes no value:", arg);
  } else if (is_choice(o)) {
    if (!value) value = "";
  } else if (!value) {
    if (*i + 1 >= argc) return usage_error(usage, "a value is missing after", arg);
    value = argv[++*i];
  }
  return store(o, value) ? -1 : wrong_value(usage, o, value);
}

int kva_options_parse(const kva_usage *usage, int argc, char **argv, const kva_option *options, uint32_t n_options,
                      const char **positional, int max_positional, int *n_positional) {
  *n_positional = 0;
  bool only_positional = false;
  for (int i = 0; i < argc; i++) {
    const char *arg = argv[i];
    if (!only_positional && (!strcmp(arg, "--help") || !strcmp(arg, "-h"))) {
      print_help(usage, options, n_options);
      return EXIT_DONE;
    }
    if (!only_positional && !strcmp(arg, "--")) {
      only_positional = true;
    } else if (!only_positional && arg[0] == '-' && arg[1]) {
      int code = take_option(usage, options, n_options, argc, argv, &i);
      if (code >= 0) return code;
    } else {
      if (*n_positional == max_positional) return usage_error(usage, "unexpected argument", arg);
      positional[(*n_positional)++] = arg;
    }
  }
  return -1;
}
