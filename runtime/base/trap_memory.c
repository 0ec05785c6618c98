/* Memory that an arena lacks. In a file of its own: a library that is deployed has no call of exit(). */
#include "runtime/base/trap.h"

#include <stdlib.h>

void kva_fatal_memory(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  kva_trap_jump_or_print(true, fmt, args);
  exit(kva_status_exit_code(KVA_NO_MEMORY));
}
