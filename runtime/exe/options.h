/* Command lines: options, help text, positional arguments. For the tool's verbs and for generated executables. */
#ifndef KVA_RUNTIME_EXE_OPTIONS_H
#define KVA_RUNTIME_EXE_OPTIONS_H

#include "runtime/base/status.h"

enum { EXIT_DONE = 0, EXIT_NO = 1, EXIT_USAGE = 2, EXIT_MACHINE = 3, EXIT_INTERRUPTED = 4 };

typedef enum kva_option_kind {
  KVA_OPTION_FLAG,         /* bool *target */
  KVA_OPTION_INT,          /* int64_t *target: 0 to 2^63 - 1 */
  KVA_OPTION_INT32,        /* int64_t *target: 0 to 2^31 - 1 */
  KVA_OPTION_COUNT,        /* int64_t *target: 1 to 2^31 - 1, so that a product of two fits */
  KVA_OPTION_FLOAT,        /* double *target: finite */
  KVA_OPTION_NOT_NEGATIVE, /* double *target: finite, from 0 */
  KVA_OPTION_POSITIVE,     /* double *target: finite, above 0 */
  KVA_OPTION_SECONDS,      /* double *target: "90s", "30m", "8h" or a plain number of seconds */
  KVA_OPTION_BYTES,        /* int64_t *target: "40G", "512M", "64K" (of 1024) or a plain number of bytes; above 0 */
  KVA_OPTION_PART,         /* kva_part *target: "R/W" */
  KVA_OPTION_WORD,         /* const char **target: a word of `value`, which lists them: "text|dot" */
  KVA_OPTION_STRING,       /* const char **target */
  KVA_OPTION_CHOICE,       /* const char **target; --name alone is "", --name=VALUE its value */
  KVA_OPTION_LIST,         /* kva_strings *target; may be repeated */
  KVA_OPTION_CHOICES       /* like CHOICE; may be repeated, kva_strings *target */
} kva_option_kind;

typedef struct kva_strings {
  uint32_t n;
  const char *v[64];
} kva_strings;

/* Part `index` (from 0) of `count` equal parts. */
typedef struct kva_part {
  int index, count;
} kva_part;

typedef struct kva_option {
  const char *name;       /* "--steps" */
  const char *short_name; /* "-D", or NULL */
  const char *value;      /* "N" in the help text; the words of KVA_OPTION_WORD; NULL for flags */
  kva_option_kind kind;
  void *target;
  const char *help;
} kva_option;

typedef struct kva_usage {
  const char *program;   /* "kvasir run": prefix of messages and of the help text */
  const char *arguments; /* "MODEL [options]" */
  const char *summary;   /* one line */
  const char *details;   /* paragraphs and examples, or NULL */
} kva_usage;

/* Reads options and positional arguments. Returns -1 to continue, else the exit code (0 after --help, 2 after an error;
 * both are already printed). positional must hold `max_positional` entries; *n_positional is set. `-h` and `--help`
 * always exist. */
int kva_options_parse(const kva_usage *usage, int argc, char **argv, const kva_option *options, uint32_t n_options,
                      const char **positional, int max_positional, int *n_positional);

/* "40G", "512M", "64K" (of 1024) or a plain number of bytes, above 0. */
bool kva_parse_bytes(const char *text, int64_t *out_bytes);

/* Index of a word in a list as "text|dot"; -1: not in it. */
int kva_word_index(const char *words, const char *word);

/* Prints diag to standard error, or the status's name if diag is empty and the status is a failure that needs words.
 * Returns the exit code. */
int kva_exit_code(const char *program, kva_status status, const kva_diag *diag);

#endif
