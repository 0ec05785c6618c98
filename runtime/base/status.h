/* Status, diagnostics and assertions, three separate things:
 *
 *   status      the caller must act on it: every fallible function returns one (KVA_OK == 0);
 *   diagnostic  the user's input is wrong or unsupported: text and location, collected in a kva_diag so that one run
 *               can report many;
 *   assert      Kvasir itself is wrong (KVA_ASSERT). Never reachable from a user's data.
 *
 * Ownership throughout the tree: `create` returns an object that the caller owns, `get` lends one, and out-parameters
 * come last and are called `out_*`. */
#ifndef KVA_BASE_STATUS_H
#define KVA_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum kva_status {
  KVA_OK = 0,
  KVA_INVALID,     /* the input contradicts its own rules (syntax, shapes, types, values) */
  KVA_UNSUPPORTED, /* the input is valid, but Kvasir does not support it */
  KVA_MISSING,     /* the machine lacks something: a device, a library, an instruction set */
  KVA_IO,          /* the operating system refused a read or a write */
  KVA_NO_MEMORY,
  KVA_NOT_FINITE,  /* training produced NaN or infinity */
  KVA_STOPPED,     /* the user asked to stop here: nothing is wrong */
  KVA_DAMAGED,     /* a file is cut off or was changed after it was written */
  KVA_INTERRUPTED, /* a run ended before its last step, in order: it can go on later */
} kva_status;

#define KVA_MUST_USE          __attribute__((warn_unused_result))
#define KVA_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Returns from the calling function when `expr` is not KVA_OK. */
#define KVA_TRY(expr)                                      \
  do {                                                     \
    kva_status kva_try_status_ = (expr);                   \
    if (kva_try_status_ != KVA_OK) return kva_try_status_; \
  } while (0)

/* Checks an invariant of Kvasir itself, in every build: a wrong compiler must not produce a wrong model. */
#define KVA_ASSERT(cond) ((cond) ? (void)0 : kva_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void kva_assert_failed(const char *cond, const char *file, int line);

/* Name of a status for messages ("invalid", "unsupported", ...). Static storage. */
const char *kva_status_name(kva_status status);
/* Exit code of a tool for a status: 0 success, 1 a negative answer, 3 the machine lacks something, 4 interrupted. (The
 * tool itself uses 2 for wrong usage.) */
int kva_status_exit_code(kva_status status);

/* A location in a user's input. All strings are borrowed from the module or source that made them. */
typedef struct kva_loc {
  const char *file;   /* NULL: unknown */
  const char *source; /* whole text of the file for the caret line, or NULL (binary input) */
  uint32_t line;      /* 1-based, 0: unknown */
  uint32_t column;    /* 1-based, 0: unknown */
  const char *node;   /* ONNX node name or NULL */
} kva_loc;

/* What a thread of the compiler is at, for the message of an assertion that fails. Tasks nest and lie on the stack;
 * what they point to is borrowed until kva_task_end. */
typedef struct kva_task {
  const char *what;   /* "pass", "operator" */
  const char *name;   /* of it */
  const kva_loc *loc; /* NULL: unknown */
  const struct kva_task *outer;
} kva_task;

void kva_task_begin(kva_task *task);
/* Takes the task that was begun last. */
void kva_task_end(const kva_task *task);
/* The innermost task of the thread, and a return to it that abandons later ones (trap.h). */
const kva_task *kva_task_current(void);
void kva_task_restore(const kva_task *task);

typedef enum kva_severity { KVA_NOTE, KVA_WARNING, KVA_ERROR } kva_severity;

/* Collects diagnostics, with copies of the strings of their locations. Not thread-safe; one per compilation. NULL
 * collects nothing; create returns NULL when no memory is left. */
typedef struct kva_diag kva_diag;
kva_diag *kva_diag_create(void);
void kva_diag_destroy(kva_diag *diag);

/* Adds an error at `loc` (NULL: no location) and returns KVA_INVALID, so that a checker can write `return
 * kva_error(diag, &loc, "...")`. The message says what is wrong, expected against found, and what to do. */
kva_status kva_error(kva_diag *diag, const kva_loc *loc, const char *fmt, ...) KVA_PRINTF(3, 4);
/* Like kva_error, with the status to return (KVA_UNSUPPORTED, KVA_IO, ...). */
kva_status kva_fail(kva_diag *diag, kva_status status, const kva_loc *loc, const char *fmt, ...) KVA_PRINTF(4, 5);
/* Adds a note to the last diagnostic ("expanded from here"). */
void kva_note(kva_diag *diag, const kva_loc *loc, const char *fmt, ...) KVA_PRINTF(3, 4);
/* Adds a warning, a diagnostic of its own. */
void kva_warn(kva_diag *diag, const kva_loc *loc, const char *fmt, ...) KVA_PRINTF(3, 4);
/* A warning that a file may give cause for many times: one line for all with the same fmt, and their number. */
void kva_warn_counted(kva_diag *diag, const kva_loc *loc, const char *fmt, ...) KVA_PRINTF(3, 4);

/* Turns all errors into warnings: there is another way than the one that failed. */
void kva_diag_demote(kva_diag *diag);

size_t kva_diag_errors(const kva_diag *diag);
size_t kva_diag_count(const kva_diag *diag);
/* The text of message i (borrowed); severity and location through out-parameters, which may be NULL. */
const char *kva_diag_message(const kva_diag *diag, size_t i, kva_severity *out_severity, kva_loc *out_loc);
/* Prints a name that comes from a file: characters that control a terminal become \xNN. */
void kva_print_escaped(const char *s, FILE *out);
/* Prints all as `file:line:column: error: text`, with the source line and a caret where the source is known. */
void kva_diag_print(const kva_diag *diag, FILE *out);
void kva_diag_clear(kva_diag *diag);

#endif
