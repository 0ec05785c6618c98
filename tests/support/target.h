/* What tests compile for, and what a test may leave out. */
#ifndef KVA_TESTS_SUPPORT_TARGET_H
#define KVA_TESTS_SUPPORT_TARGET_H

#include "codegen/codegen.h"

/* Built with sanitizers: $KVASIR_SANITIZED. */
bool sanitized(void);

/* In the folder $KVASIR_TEST_CACHE; NULL: it is not set. LLVM, which has no sanitizers, then compiles once what several
 * tests compile, in release builds and in others; this compiler writes LLVM's input each time, which is the key. */
const struct kva_cache *test_cache(void);

/* LLVM's code generator at `level`, with that cache; at 0 under sanitizers without it. arch: a GPU; NULL: this CPU. */
kva_target_options test_target(int level, const char *arch);

#endif
