/* Option parsing: --name VALUE, --name=VALUE, -nVALUE; the help text comes from the same table. */
#include "runtime/exe/options.h"

#include "runtime/base/memory.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The values that options of each kind take. */
typedef struct range {
  const char *expected, *note; /* for messages; for the help text, or NULL */
  int64_t least, most;         /* integers */
  double floor;                /* numbers */
  bool above;                  /* floor itself is not allowed */
} range;

static const range ranges[] = {
    [KVA_OPTION_INT] = {.expected = "an integer that is not negative", .most = INT64_MAX},
    [KVA_OPTION_INT32] = {.expected = "an integer from 0 to 2147483647", .most = INT32_MAX},
    [KVA_OPTION_COUNT] = {.expected = "an integer from 1 to 2147483647",
                          .note = "at least 1",
                          .least = 1,
                          .most = INT32_MAX},
    [KVA_OPTION_FLOAT] = {.expected = "a finite number", .floor = -INFINITY},
    [KVA_OPTION_NOT_NEGATIVE] = {.expected = "a finite number that is not negative", .note = "not negative"},
    [KVA_OPTION_POSITIVE] = {.expected = "a finite number above 0", .note = "above 0", .above = true},
    [KVA_OPTION_SECONDS] = {.expected = "a time like 90s, 30m or 8h"},
    [KVA_OPTION_BYTES] = {.expected = "a number of bytes like 40G, 512M or 64K"},
    [KVA_OPTION_PART] = {.expected = "R/W with R below W, as 0/4"},
    [KVA_OPTION_LIST] = {.expected = "at most 64 values"},
    [KVA_OPTION_CHOICES] = {.expected = "at most 64 values"},
};

static bool is_number(kva_option_kind kind) {
  return kind == KVA_OPTION_FLOAT || kind == KVA_OPTION_NOT_NEGATIVE || kind == KVA_OPTION_POSITIVE;
}

/* Whether a bare --name is allowed, without a value. */
static bool is_choice(const kva_option *o) {
  return o->kind == KVA_OPTION_CHOICE || o->kind == KVA_OPTION_CHOICES;
}

static void print_help(const kva_usage *usage, const kva_option *options, uint32_t n) {
  printf("%s %s\n\n%s\n\n", usage->program, usage->arguments, usage->summary);
  printf("Options:\n");
  for (uint32_t i = 0; i < n; i++) {
    int width =
        printf("  %s%s%s%s%s", options[i].short_name ? options[i].short_name : "", options[i].short_name ? ", " : "",
               options[i].name, options[i].value && !is_choice(&options[i]) ? " " : "",
               options[i].value ? options[i].value : "");
    const char *note = ranges[options[i].kind].note;
    if (width > 30) {
      printf("\n");
      width = 0;
    }
    printf("%*s ", 30 - width, "");
    printf("%s%s%s\n", options[i].help, note ? "; " : "", note ? note : "");
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
  const range *r = &ranges[o->kind];
  char *end;
  errno = 0;
  if (is_number(o->kind)) {
    double *x = o->target;
    return kva_parse_double(value, x) && isfinite(*x) && (r->above ? *x > r->floor : *x >= r->floor);
  }
  int64_t n = *(int64_t *)o->target = strtoll(value, &end, 10);
  return *value && !*end && !errno && n >= r->least && n <= r->most;
}

static bool store_seconds(const char *value, double *out) {
  char *end;
  double v = strtod(value, &end), unit = *end == 'h' ? 3600 : *end == 'm' ? 60 : 1;
  if (end != value && *end && strchr("smh", *end)) end++;
  *out = v * unit;
  return end != value && !*end && v > 0 && v < 1e9;
}

bool kva_parse_bytes(const char *value, int64_t *out) {
  static const char units[] = "KMGT";
  char *end;
  double v = strtod(value, &end);
  const char *unit = end != value && *end ? strchr(units, *end) : NULL;
  if (unit) v = ldexp(v, 10 * (int)(unit - units + 1)), end++;
  *out = v >= 1 && v < 0x1p62 ? (int64_t)v : 0;
  return end != value && !*end && *out > 0;
}

static bool store_part(const char *value, kva_part *out) {
  int end = 0;
  bool numbers = sscanf(value, "%9d/%9d%n", &out->index, &out->count, &end) == 2 && !value[end];
  return numbers && out->index >= 0 && out->index < out->count;
}

int kva_word_index(const char *words, const char *word) {
  size_t n = strlen(word);
  for (int i = 0;; i++) {
    size_t length = strcspn(words, "|");
    if (n == length && !strncmp(words, word, n)) return i;
    if (!words[length]) return -1;
    words += length + 1;
  }
}

static bool store(const kva_option *o, const char *value) {
  switch (o->kind) {
  case KVA_OPTION_FLAG: *(bool *)o->target = true; return true;
  case KVA_OPTION_INT:
  case KVA_OPTION_INT32:
  case KVA_OPTION_COUNT:
  case KVA_OPTION_FLOAT:
  case KVA_OPTION_NOT_NEGATIVE:
  case KVA_OPTION_POSITIVE: return store_number(o, value);
  case KVA_OPTION_SECONDS: return store_seconds(value, o->target);
  case KVA_OPTION_BYTES: return kva_parse_bytes(value, o->target);
  case KVA_OPTION_PART: return store_part(value, o->target);
  case KVA_OPTION_WORD: *(const char **)o->target = value; return kva_word_index(o->value, value) >= 0;
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

/* "text|dot|json" as "text, dot or json". */
static void print_words(const char *words) {
  for (const char *bar; (bar = strchr(words, '|')); words = bar + 1)
    fprintf(stderr, "%.*s%s", (int)(bar - words), words, strchr(bar + 1, '|') ? ", " : " or ");
  fputs(words, stderr);
}

static int wrong_value(const kva_usage *usage, const kva_option *o, const char *value) {
  fprintf(stderr, "%s: %s: expected ", usage->program, o->name);
  if (o->kind == KVA_OPTION_WORD)
    print_words(o->value);
  else
    fputs(ranges[o->kind].expected, stderr);
  fprintf(stderr, ", found '%s'\nTry: %s --help\n", value, usage->program);
  return EXIT_USAGE;
}

static int usage_error(const kva_usage *usage, const char *what, const char *arg) {
  fprintf(stderr, "%s: %s '%s'\nTry: %s --help\n", usage->program, what, arg, usage->program);
  return EXIT_USAGE;
}

/* before: the argument that precedes it, which may be an option that takes a value behind '=' alone. */
static int unexpected(const kva_usage *usage, const kva_option *options, uint32_t n, const char *before,
                      const char *arg) {
  const kva_option *o = find_option(options, n, before, strlen(before));
  if (!o || !is_choice(o)) return usage_error(usage, "unexpected argument", arg);
  fprintf(stderr, "%s: unexpected argument '%s'; as the value of %s it is written %s=%s\nTry: %s --help\n",
          usage->program, arg, o->name, o->name, arg, usage->program);
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
      if (*n_positional == max_positional) return unexpected(usage, options, n_options, i ? argv[i - 1] : "", arg);
      positional[(*n_positional)++] = arg;
    }
  }
  return -1;
}

int kva_exit_code(const char *program, kva_status status, const kva_diag *diag) {
  int code = kva_status_exit_code(status);
  kva_diag_print(diag, stderr);
  bool silent = kva_diag_count(diag) == 0 && code != EXIT_DONE && code != EXIT_INTERRUPTED;
  if (silent) fprintf(stderr, "%s: %s\n", program, kva_status_name(status));
  return code;
}
