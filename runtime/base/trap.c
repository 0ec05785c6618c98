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

bool kva_trap_is_set(void) {
  return current != NULL;
}

static void print(const char *fmt, va_list args) {
  fputs("kvasir: ", stderr);
  vfprintf(stderr, fmt, args);
  fputc('\n', stderr);
}

void kva_trap_jump_or_print(bool memory, const char *fmt, va_list args) {
  kva_trap *trap = current;
  if (!trap) {
    print(fmt, args);
    return;
  }
  trap->memory = memory;
  vsnprintf(trap->text, sizeof trap->text, fmt, args);
  kva_trap_leave(trap);
  kva_task_restore(trap->task);
  longjmp(trap->at, 1);
}

void kva_fatal(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  kva_trap_jump_or_print(false, fmt, args);
  abort();
}
