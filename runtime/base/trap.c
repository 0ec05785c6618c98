/* Traps: one stack of them for each thread. */
#include "runtime/base/trap.h"

#include <stdlib.h>

static _Thread_local kva_trap *current;

void kva_trap_enter(kva_trap *trap) {
  trap->outer = current;
  trap->task = kva_task_current();
  current = trap;
}

void kva_trap_leave(kva_trap *trap) {
  current = trap->outer;
}

void kva_fatal(bool memory, const char *fmt, ...) {
  char text[sizeof current->text];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  kva_trap *trap = current;
  if (trap) {
    trap->memory = memory;
    snprintf(trap->text, sizeof trap->text, "%s", text);
    kva_trap_leave(trap);
    kva_task_restore(trap->task);
    longjmp(trap->at, 1);
  }
  fprintf(stderr, "kvasir: %s\n", text);
  if (memory) exit(kva_status_exit_code(KVA_NO_MEMORY));
  abort();
}
