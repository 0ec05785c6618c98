/* Allocations of LLVM that fail.
 *
 * LLVM is compiled without exceptions, so that its operator new cannot report a failure: it aborts, without naming a
 * reason. Both handlers that prevent this exist in C++ alone; their symbols are in the process wherever LLVM is. */
#include "codegen/codegen.h"
#include "runtime/base/trap.h"

#include <dlfcn.h>

static void new_failed(void) {
  kva_fatal_memory("out of memory: LLVM asked for more");
}

static void malloc_failed(void *user, const char *reason, bool dump) {
  (void)user;
  (void)dump;
  kva_fatal_memory("out of memory: LLVM asked for more (%s)", reason);
}

void kva_codegen_catch_memory_errors(void) {
  void (*(*set_new_handler)(void (*)(void)))(void);
  void (*set_malloc_handler)(void (*)(void *, const char *, bool), void *);
  *(void **)&set_new_handler = dlsym(RTLD_DEFAULT, "_ZSt15set_new_handlerPFvvE");
  *(void **)&set_malloc_handler = dlsym(RTLD_DEFAULT, "_ZN4llvm31install_bad_alloc_error_handlerEPFvPvPKcbES0_");
  if (set_new_handler) (void)set_new_handler(new_failed);
  if (set_malloc_handler) set_malloc_handler(malloc_failed, NULL);
}
