/* How far LLVM optimises code of a test. */
#ifndef KVA_TESTS_SUPPORT_LEVEL_H
#define KVA_TESTS_SUPPORT_LEVEL_H

/* `level`, and 0 under sanitizers: LLVM has none, and release builds test what it optimises. */
int opt_level(int level);

#endif
