/* Kernels in process: LLJIT links the modules' objects. Memory functions come from the process, and those of libm from
 * libm itself: a host that loads Kvasir by dlopen may not show its own. */
#include "codegen/llvm_internal.h"
#include "runtime/base/cpu.h"

#include <gnu/lib-names.h>
#include <llvm-c/Orc.h>

/* Errors come back from the calls that met them; LLVM would print them as well. */
static void drop_error(void *context, LLVMErrorRef error) {
  (void)context;
  LLVMConsumeError(error);
}

/* Takes ownership of the objects, even on failure. */
static kva_status link_objects(kva_codegen *cg, LLVMMemoryBufferRef *objects) {
  LLVMOrcJITDylibRef library = LLVMOrcLLJITGetMainJITDylib(cg->jit);
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < cg->modules.len; i++) {
    LLVMErrorRef error = LLVMOrcLLJITAddObjectFile(cg->jit, library, objects[i]);
    kva_status s = kva_cg_check(cg->diag, error, "linking kernels");
    if (status == KVA_OK) status = s;
  }
  return status;
}

static kva_status find_library(kva_codegen *cg, const char *name) {
  LLVMOrcDefinitionGeneratorRef found = NULL;
  char prefix = LLVMOrcLLJITGetGlobalPrefix(cg->jit);
  LLVMErrorRef error = LLVMOrcCreateDynamicLibrarySearchGeneratorForPath(&found, name, prefix, NULL, NULL);
  KVA_TRY(kva_cg_check(cg->diag, error, name));
  LLVMOrcJITDylibAddGenerator(LLVMOrcLLJITGetMainJITDylib(cg->jit), found);
  return KVA_OK;
}

/* By name, too: in a process that loaded this library locally, the names of what came with it are not global. */
static kva_status find_libraries(kva_codegen *cg) {
  LLVMOrcDefinitionGeneratorRef process = NULL;
  char prefix = LLVMOrcLLJITGetGlobalPrefix(cg->jit);
  LLVMErrorRef error = LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(&process, prefix, NULL, NULL);
  KVA_TRY(kva_cg_check(cg->diag, error, "finding the C library"));
  LLVMOrcJITDylibAddGenerator(LLVMOrcLLJITGetMainJITDylib(cg->jit), process);
  KVA_TRY(find_library(cg, LIBM_SO));
  return find_library(cg, LIBGCC_S_SO);
}

static kva_status look_up(kva_codegen *cg, kva_cg_kernel *kernel) {
  LLVMOrcExecutorAddress address = 0;
  KVA_TRY(kva_cg_check(cg->diag, LLVMOrcLLJITLookup(cg->jit, &address, kernel->name), kernel->name));
  kernel->fn = (kva_kernel_fn)(uintptr_t)address;
  return KVA_OK;
}

kva_status kva_codegen_jit(kva_codegen *cg) {
  if (cg->jit) return KVA_OK;
  if (cg->target.kind == KVA_TARGET_GPU || cg->foreign)
    return kva_error(cg->diag, NULL, "code for %s does not run in this process", cg->target.description);
  KVA_TRY(kva_cpu_check(cg->needs, cg->target.description, cg->diag));
  LLVMMemoryBufferRef *objects = KVA_NEW_ARRAY(cg->arena, LLVMMemoryBufferRef, cg->modules.len);
  KVA_TRY(kva_cg_objects(cg, objects));
  kva_status status = kva_cg_check(cg->diag, LLVMOrcCreateLLJIT(&cg->jit, NULL), "starting the JIT");
  if (status != KVA_OK) {
    for (uint32_t i = 0; i < cg->modules.len; i++) LLVMDisposeMemoryBuffer(objects[i]);
    return status;
  }
  LLVMOrcExecutionSessionSetErrorReporter(LLVMOrcLLJITGetExecutionSession(cg->jit), drop_error, NULL);
  KVA_TRY(link_objects(cg, objects));
  KVA_TRY(find_libraries(cg));
  for (uint32_t i = 0; i < cg->kernels.len; i++) KVA_TRY(look_up(cg, &cg->kernels.data[i]));
  return KVA_OK;
}
