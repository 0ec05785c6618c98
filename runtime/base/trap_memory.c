/* Memory that an arena lacks. In a file of its own: a library that is deployed has no call of exit(). */
#include "runtime/base/trap.h"

#include <stdlib.h>

void kva_fatal_memory(const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  kva_trap_jump(true, fmt, args);
  fputs("kvasir: ", stderr);
  vfprintf(stderr, fmt, again);
  fputc('\n', stderr);
  exit(kva_status_exit_code(KVA_NO_MEMORY));
}
