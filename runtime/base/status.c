/* Diagnostics: collected as (severity, location, text), printed with the source line and a caret. */
#include "runtime/base/trap.h"

#include <stdlib.h>
#include <string.h>

typedef struct message {
  kva_severity severity;
  kva_loc loc;
  char *text;      /* NULL: no memory was left for it */
  const char *fmt; /* that it was made of */
  size_t more;     /* warnings of this kind that are not kept */
} message;

struct kva_diag {
  message *messages;
  size_t count, capacity, errors;
  char **kept; /* strings of the locations, deduplicated */
  size_t n_kept;
};

static _Thread_local const kva_task *current_task;

void kva_task_begin(kva_task *task) {
  task->outer = current_task;
  current_task = task;
}

void kva_task_end(const kva_task *task) {
  current_task = task->outer;
}

/* The path in the repository: build systems name sources by different paths, all with what stands before this one's. */
static const char *path_in_repository(const char *file) {
  static const char own[] = "runtime/base/status.c";
  size_t before = strlen(__FILE__) - strlen(own);
  return strncmp(file, __FILE__, before) ? file : file + before;
}

const kva_task *kva_task_current(void) {
  return current_task;
}

void kva_task_restore(const kva_task *task) {
  current_task = task;
}

/* Appends at most what fits. */
static void KVA_PRINTF(3, 4) append(char *text, size_t size, const char *fmt, ...) {
  size_t len = strlen(text);
  va_list args;
  va_start(args, fmt);
  vsnprintf(text + len, size - len, fmt, args);
  va_end(args);
}

static void describe_task(const kva_task *t, char *text, size_t size) {
  append(text, size, "\n  in %s '%s'", t->what, t->name);
  if (t->loc && t->loc->node) append(text, size, " of node '%s'", t->loc->node);
  if (t->loc && t->loc->file) append(text, size, " at %s", t->loc->file);
  if (t->loc && t->loc->file && t->loc->line) append(text, size, ":%u", t->loc->line);
}

_Noreturn void kva_assert_failed(const char *cond, const char *file, int line) {
  char tasks[512] = "";
  for (const kva_task *t = current_task; t; t = t->outer) describe_task(t, tasks, sizeof tasks);
  kva_fatal("internal error at %s:%d: %s does not hold. This is a fault of Kvasir, not of its input.%s",
            path_in_repository(file), line, cond, tasks);
}

const char *kva_status_name(kva_status status) {
  static const char *const names[] = {
      [KVA_OK] = "ok",
      [KVA_INVALID] = "invalid",
      [KVA_UNSUPPORTED] = "unsupported",
      [KVA_MISSING] = "missing",
      [KVA_IO] = "io",
      [KVA_NO_MEMORY] = "out of memory",
      [KVA_NOT_FINITE] = "not finite",
      [KVA_STOPPED] = "stopped",
      [KVA_DAMAGED] = "damaged",
      [KVA_INTERRUPTED] = "interrupted",
  };
  return (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown";
}

int kva_status_exit_code(kva_status status) {
  switch (status) {
  case KVA_OK:
  case KVA_STOPPED: return 0;
  case KVA_MISSING:
  case KVA_NO_MEMORY: return 3;
  case KVA_INTERRUPTED: return 4;
  default: return 1;
  }
}

kva_diag *kva_diag_create(void) {
  return calloc(1, sizeof(kva_diag));
}

void kva_diag_clear(kva_diag *diag) {
  if (!diag) return;
  for (size_t i = 0; i < diag->count; i++) free(diag->messages[i].text);
  for (size_t i = 0; i < diag->n_kept; i++) free(diag->kept[i]);
  diag->count = diag->errors = diag->n_kept = 0;
}

void kva_diag_destroy(kva_diag *diag) {
  if (!diag) return;
  kva_diag_clear(diag);
  free(diag->messages);
  free(diag->kept);
  free(diag);
}

static bool grow(kva_diag *diag) {
  if (diag->count < diag->capacity) return true;
  size_t capacity = diag->capacity ? 2 * diag->capacity : 8;
  message *messages = realloc(diag->messages, capacity * sizeof *messages);
  if (!messages) return false;
  diag->messages = messages;
  diag->capacity = capacity;
  return true;
}

/* A copy of s that lives as long as the messages: after a failed construction the module is gone before they are
 * printed. NULL: no memory. */
static const char *keep(kva_diag *diag, const char *s) {
  if (!s) return NULL;
  for (size_t i = 0; i < diag->n_kept; i++) {
    if (!strcmp(diag->kept[i], s)) return diag->kept[i];
  }
  char **kept = realloc(diag->kept, (diag->n_kept + 1) * sizeof *kept);
  if (!kept) return NULL;
  diag->kept = kept;
  char *copy = strdup(s);
  if (copy) kept[diag->n_kept++] = copy;
  return copy;
}

static kva_loc keep_loc(kva_diag *diag, const kva_loc *loc) {
  if (!loc) return (kva_loc){0};
  kva_loc kept = *loc;
  kept.file = keep(diag, loc->file);
  kept.source = keep(diag, loc->source);
  kept.node = keep(diag, loc->node);
  return kept;
}

/* Out of memory loses the message, but not the status that goes with it. */
static void add(kva_diag *diag, kva_severity severity, const kva_loc *loc, const char *fmt, va_list args) {
  if (!diag) return;
  diag->errors += severity == KVA_ERROR;
  if (!grow(diag)) return;
  message *m = &diag->messages[diag->count++];
  *m = (message){.severity = severity, .loc = keep_loc(diag, loc), .fmt = fmt};
  if (vasprintf(&m->text, fmt, args) < 0) m->text = NULL;
}

kva_status kva_error(kva_diag *diag, const kva_loc *loc, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  add(diag, KVA_ERROR, loc, fmt, args);
  va_end(args);
  return KVA_INVALID;
}

kva_status kva_fail(kva_diag *diag, kva_status status, const kva_loc *loc, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  add(diag, KVA_ERROR, loc, fmt, args);
  va_end(args);
  return status;
}

void kva_note(kva_diag *diag, const kva_loc *loc, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  add(diag, KVA_NOTE, loc, fmt, args);
  va_end(args);
}

void kva_warn(kva_diag *diag, const kva_loc *loc, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  add(diag, KVA_WARNING, loc, fmt, args);
  va_end(args);
}

void kva_diag_demote(kva_diag *diag) {
  if (!diag) return;
  for (size_t i = 0; i < diag->count; i++)
    if (diag->messages[i].severity == KVA_ERROR) diag->messages[i].severity = KVA_WARNING;
  diag->errors = 0;
}

/* Counts a warning that was made of fmt, if there is one. */
static bool repeats(kva_diag *diag, const char *fmt) {
  for (size_t i = 0; diag && i < diag->count; i++) {
    message *m = &diag->messages[i];
    if (m->severity == KVA_WARNING && m->fmt == fmt) return ++m->more;
  }
  return false;
}

void kva_warn_counted(kva_diag *diag, const kva_loc *loc, const char *fmt, ...) {
  va_list args;
  if (repeats(diag, fmt)) return;
  va_start(args, fmt);
  add(diag, KVA_WARNING, loc, fmt, args);
  va_end(args);
}

size_t kva_diag_errors(const kva_diag *diag) {
  return diag ? diag->errors : 0;
}

size_t kva_diag_count(const kva_diag *diag) {
  return diag ? diag->count : 0;
}

static const char *text_of(const message *m) {
  return m->text ? m->text : "(no memory for the message)";
}

const char *kva_diag_message(const kva_diag *diag, size_t i, kva_severity *out_severity, kva_loc *out_loc) {
  KVA_ASSERT(i < diag->count);
  const message *m = &diag->messages[i];
  if (out_severity) *out_severity = m->severity;
  if (out_loc) *out_loc = m->loc;
  return text_of(m);
}

/* Source text goes to a terminal: replace unprintable characters, which could be control sequences. */
static void print_source(const char *s, size_t n, FILE *out) {
  for (size_t i = 0; i < n; i++) fputc((unsigned char)s[i] < 0x20 && s[i] != '\t' ? '?' : s[i], out);
}

/* Length of a control character at s: C0, DEL, or C1, which UTF-8 spells in two bytes; 0: none. */
static size_t control_length(const char *s) {
  unsigned char c = (unsigned char)s[0], d = c ? (unsigned char)s[1] : 0;
  if (c < 0x20 || c == 0x7f) return 1;
  return c == 0xc2 && d >= 0x80 && d < 0xa0 ? 2 : 0;
}

/* Prints s with control characters as \xNN, but for those in `kept`. */
static void print_without_controls(const char *s, const char *kept, FILE *out) {
  for (size_t n; *s; s += n ? n : 1) {
    n = strchr(kept, *s) ? 0 : control_length(s);
    if (!n) fputc(*s, out);
    for (size_t i = 0; i < n; i++) fprintf(out, "\\x%02x", (unsigned char)s[i]);
  }
}

void kva_print_escaped(const char *s, FILE *out) {
  print_without_controls(s, "", out);
}

/* Blanks as wide as the n bytes: tabs stay tabs; continuation bytes of UTF-8 have no width. */
static void print_blanks(const char *s, size_t n, FILE *out) {
  for (size_t i = 0; i < n; i++) {
    if (((unsigned char)s[i] & 0xC0) != 0x80) fputc(s[i] == '\t' ? '\t' : ' ', out);
  }
}

static const char *find_line(const char *source, uint32_t line) {
  while (source && line-- > 1) {
    source = strchr(source, '\n');
    if (source) source++;
  }
  return source;
}

/* Prints the line, or the part of a very long line around the column, with the caret below. */
static void print_caret(const kva_loc *loc, FILE *out) {
  enum { BEFORE = 100, WIDTH = 160 };
  const char *line = find_line(loc->source, loc->line);
  if (!line) return;
  size_t n = strcspn(line, "\r\n");
  size_t column = loc->column ? loc->column - 1 : 0;
  if (column > n) column = n;
  size_t first = n > WIDTH && column > BEFORE ? column - BEFORE : 0;
  size_t shown = n - first > WIDTH ? WIDTH : n - first;
  fputs("  ", out);
  print_source(line + first, shown, out);
  fputc('\n', out);
  if (!loc->column) return;
  fputs("  ", out);
  print_blanks(line + first, column - first, out);
  fputs("^\n", out);
}

static void print_place(const kva_loc *loc, FILE *out) {
  if (loc->file) {
    fputs(loc->file, out);
    if (loc->line) fprintf(out, ":%u", loc->line);
    if (loc->line && loc->column) fprintf(out, ":%u", loc->column);
    fputs(": ", out);
  }
  if (!loc->node) return;
  fputs("node '", out);
  kva_print_escaped(loc->node, out);
  fputs("': ", out);
}

static void print_messages(const kva_diag *diag, FILE *out) {
  static const char *const words[] = {[KVA_NOTE] = "note", [KVA_WARNING] = "warning", [KVA_ERROR] = "error"};
  for (size_t i = 0; i < kva_diag_count(diag); i++) {
    const message *m = &diag->messages[i];
    print_place(&m->loc, out);
    fprintf(out, "%s: ", words[m->severity]);
    print_without_controls(text_of(m), "\n\t", out);
    if (m->more) fprintf(out, " (and %zu more of this kind)", m->more);
    fputc('\n', out);
    if (m->loc.source && m->loc.line) print_caret(&m->loc, out);
  }
}

/* The messages in memory; NULL where it does not suffice. The caller frees. */
static char *messages_text(const kva_diag *diag, size_t *n) {
  char *text = NULL;
  FILE *out = open_memstream(&text, n);
  if (!out) return NULL;
  print_messages(diag, out);
  bool failed = ferror(out) != 0;
  if (fclose(out) == 0 && !failed) return text;
  free(text);
  return NULL;
}

/* In one piece, where memory allows: standard error has no buffer, and processes of a mesh share it. */
void kva_diag_print(const kva_diag *diag, FILE *out) {
  size_t n = 0;
  char *text = messages_text(diag, &n);
  if (text)
    fwrite(text, 1, n, out);
  else
    print_messages(diag, out);
  free(text);
}
