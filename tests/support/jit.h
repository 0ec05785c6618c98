/* Kernel IR built by hand, compiled in process, run. */
#ifndef KVA_TESTS_SUPPORT_JIT_H
#define KVA_TESTS_SUPPORT_JIT_H

#include "codegen/codegen.h"

typedef struct jit {
  kva_arena *arena;
  kva_diag *diag;
  kva_expr_ctx *exprs;
  kva_kernel *kernel;
  kva_kb *kb;
  kva_codegen *cg;
  kva_kernel_fn fn;
  int64_t grid; /* work items, after jit_compile with no symbols */
} jit;

jit jit_create(const char *name);
/* For a target other than the host at its widest. */
jit jit_create_for(const char *name, const kva_target_options *options);
/* Verifies, schedules (unless `as_is`), verifies again and compiles; fails the test with what is wrong. */
void jit_compile(jit *j, bool as_is, uint32_t n_symbols, const kva_expr *const *symbols);
/* Runs all work items; `grid` of them. */
void jit_run(const jit *j, void *const *buffers, const int64_t *symbols, int64_t grid);
/* Whether the LLVM IR contains the word. */
bool jit_emits(const jit *j, const char *word);
void jit_destroy(jit *j);

static inline const kva_expr *jit_const(const jit *j, int64_t v) {
  return kva_expr_const(j->exprs, v);
}

#endif
