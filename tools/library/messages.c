/* From diagnostics and failures to what callers of kvasir.h get: a status and a list of messages. */
#include "runtime/base/numbers.h"
#include "runtime/base/trap.h"
#include "tools/library/library.h"

#include <stdlib.h>

struct kvasir_messages {
  kva_diag *diag;
  char *text;
};

const char *kvasir_version(void) {
  return KVA_VERSION;
}

static char *print(const kva_diag *diag) {
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  kva_diag_print(diag, out);
  fclose(out);
  return text;
}

/* Takes diag. NULL: there is nothing to say, or no memory to say it. */
static kvasir_messages *messages_of(kva_diag *diag) {
  kvasir_messages *m = kva_diag_count(diag) ? calloc(1, sizeof *m) : NULL;
  if (!m) {
    kva_diag_destroy(diag);
    return NULL;
  }
  *m = (kvasir_messages){diag, print(diag)};
  return m;
}

const char *kvasir_messages_text(const kvasir_messages *m) {
  return m && m->text ? m->text : "";
}

size_t kvasir_messages_count(const kvasir_messages *m) {
  return m ? kva_diag_count(m->diag) : 0;
}

kvasir_message kvasir_messages_at(const kvasir_messages *m, size_t i) {
  static const kvasir_severity severities[] = {
      [KVA_NOTE] = KVASIR_NOTE, [KVA_WARNING] = KVASIR_WARNING, [KVA_ERROR] = KVASIR_ERROR};
  if (i >= kvasir_messages_count(m)) return (kvasir_message){0};
  kva_severity severity;
  kva_loc loc;
  const char *text = kva_diag_message(m->diag, i, &severity, &loc);
  return (kvasir_message){severities[severity], text, loc.file, loc.line, loc.column, loc.node};
}

void kvasir_messages_destroy(kvasir_messages *m) {
  if (!m) return;
  kva_diag_destroy(m->diag);
  free(m->text);
  free(m);
}

static kvasir_status status_of(kva_status status) {
  switch (status) {
  case KVA_OK: return KVASIR_OK;
  case KVA_UNSUPPORTED: return KVASIR_UNSUPPORTED;
  case KVA_MISSING: return KVASIR_MISSING;
  case KVA_IO: return KVASIR_IO;
  case KVA_NO_MEMORY: return KVASIR_NO_MEMORY;
  case KVA_NOT_FINITE: return KVASIR_NOT_FINITE;
  default: return KVASIR_INVALID;
  }
}

/* Without a message the status alone must say what happened. */
static kvasir_status run_trapped(kva_library_work work, void *job, kva_diag *diag) {
  kva_trap trap;
  if (setjmp(trap.at)) {
    kva_fail(diag, KVA_INVALID, NULL, "%s", trap.text);
    return trap.memory ? KVASIR_NO_MEMORY : KVASIR_INTERNAL;
  }
  kva_trap_enter(&trap);
  kva_status status = work(job, diag);
  kva_trap_leave(&trap);
  if (status != KVA_OK && !kva_diag_errors(diag)) kva_fail(diag, status, NULL, "%s", kva_status_name(status));
  return status_of(status);
}

/* The program may have chosen a locale, which numbers of models and of code must not follow. */
static kvasir_status run_in_c(kva_library_work work, void *job, kva_diag *diag) {
  locale_t before = kva_numbers_enter();
  kvasir_status status = run_trapped(work, job, diag);
  kva_numbers_leave(before);
  return status;
}

kvasir_status kva_library_call(kva_library_work work, void *job, kvasir_messages **out_messages) {
  if (out_messages) *out_messages = NULL;
  kva_diag *diag = kva_diag_create();
  if (!diag) return KVASIR_NO_MEMORY;
  kvasir_status status = run_in_c(work, job, diag);
  if (out_messages)
    *out_messages = messages_of(diag);
  else
    kva_diag_destroy(diag);
  return status;
}

static kva_status say_no_place(void *job, kva_diag *diag) {
  (void)job;
  return kva_error(diag, NULL, "the address for the result is a null pointer");
}

kvasir_status kva_library_no_place(kvasir_messages **out_messages) {
  return kva_library_call(say_no_place, NULL, out_messages);
}
