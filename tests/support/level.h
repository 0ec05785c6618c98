/* How far LLVM optimises code of a test, and what a test may leave out. */
#ifndef KVA_TESTS_SUPPORT_LEVEL_H
#define KVA_TESTS_SUPPORT_LEVEL_H

#include <stdbool.h>

/* Built with sanitizers: $KVASIR_SANITIZED. */
bool sanitized(void);

/* `level`, and 0 under sanitizers: LLVM has none, and release builds test what it optimises. */
int opt_level(int level);

#endif
