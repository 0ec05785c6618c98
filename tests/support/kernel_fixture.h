/* What tests of kernel text have in common. */
#ifndef KVA_TESTS_KERNEL_FIXTURE_H
#define KVA_TESTS_KERNEL_FIXTURE_H

#include "ir/kernel.h"

typedef struct kernel_fixture {
  kva_arena *arena;
  kva_expr_ctx *exprs;
  kva_diag *diag;
} kernel_fixture;

/* Setup and teardown of a cmocka test: *state is the fixture. */
int kernel_fixture_create(void **state);
int kernel_fixture_destroy(void **state);
/* k as text, which is the caller's. */
char *kernel_text(const kva_kernel *k);
/* Of the bytes that kva_kernel_encode makes. */
uint64_t kernel_code_hash(const kva_kernel *k);

#endif
