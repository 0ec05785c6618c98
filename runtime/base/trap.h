/* Failures that no status reports: a broken invariant of Kvasir (KVA_ASSERT), and memory that the compiler's arenas
 * lack. They end the process, unless the thread has set a trap: a program that embeds the compiler survives them. */
#ifndef KVA_BASE_TRAP_H
#define KVA_BASE_TRAP_H

#include "runtime/base/status.h"

#include <setjmp.h>

/* Set with `if (!setjmp(trap.at)) { kva_trap_enter(&trap); ...; kva_trap_leave(&trap); }`; the other branch runs after
 * a failure, with the trap left. What the abandoned functions had allocated is lost. */
typedef struct kva_trap {
  jmp_buf at;
  bool memory; /* the reason: no memory, else an invariant */
  char text[1024];
  const kva_task *task; /* of the thread when the trap was set */
  struct kva_trap *outer;
} kva_trap;

void kva_trap_enter(kva_trap *trap);
void kva_trap_leave(kva_trap *trap);
/* Whether the thread has set one. */
bool kva_trap_is_set(void);

/* Jumps to the thread's trap with a text; prints the text and returns if there is none. */
void kva_trap_jump_or_print(bool memory, const char *fmt, va_list args);

/* Jump to the thread's trap. Without one they print the text and end the process: by abort(), and for memory with the
 * exit code of a machine that lacks something. */
_Noreturn void kva_fatal(const char *fmt, ...) KVA_PRINTF(1, 2);
_Noreturn void kva_fatal_memory(const char *fmt, ...) KVA_PRINTF(1, 2);

#endif
