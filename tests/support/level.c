#include "tests/support/level.h"

#include <stdlib.h>

bool sanitized(void) {
  return getenv("KVASIR_SANITIZED") != NULL;
}

int opt_level(int level) {
  return sanitized() ? 0 : level;
}
