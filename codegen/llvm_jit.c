/* Kernels in process: LLJIT links the module's object, the same one that kva_codegen_emit gives. Memory functions come
 * from the process, and those of libm from libm itself: a host that loads Kvasir by dlopen may not show its own. */
#include "codegen/llvm_internal.h"

#include <gnu/lib-names.h>
#include <llvm-c/Orc.h>

/* Errors come back from the calls that met them; LLVM would print them as well. */
static void drop_error(void *context, LLVMErrorRef error) {
  (void)context;
  LLVMConsumeError(error);
}

static kva_status link_object(kva_codegen *cg, LLVMMemoryBufferRef code) {
  LLVMOrcJITDylibRef library = LLVMOrcLLJITGetMainJITDylib(cg->jit);
  /* Takes ownership of the buffer, even on failure. */
  KVA_TRY(kva_cg_check(cg, LLVMOrcLLJITAddObjectFile(cg->jit, library, code), "linking kernels"));
  LLVMOrcDefinitionGeneratorRef process = NULL;
  char prefix = LLVMOrcLLJITGetGlobalPrefix(cg->jit);
  LLVMErrorRef error = LLVMOrcCreateDynamicLibrarySearchGeneratorForProcess(&process, prefix, NULL, NULL);
  KVA_TRY(kva_cg_check(cg, error, "finding the C library"));
  LLVMOrcJITDylibAddGenerator(library, process);
  LLVMOrcDefinitionGeneratorRef libm = NULL;
  error = LLVMOrcCreateDynamicLibrarySearchGeneratorForPath(&libm, LIBM_SO, prefix, NULL, NULL);
  KVA_TRY(kva_cg_check(cg, error, "finding libm"));
  LLVMOrcJITDylibAddGenerator(library, libm);
  return KVA_OK;
}

static kva_status look_up(kva_codegen *cg, kva_cg_kernel *kernel) {
  LLVMOrcExecutorAddress address = 0;
  KVA_TRY(kva_cg_check(cg, LLVMOrcLLJITLookup(cg->jit, &address, kernel->name), kernel->name));
  kernel->fn = (kva_kernel_fn)(uintptr_t)address;
  return KVA_OK;
}

kva_status kva_codegen_jit(kva_codegen *cg) {
  if (cg->jit) return KVA_OK;
  if (cg->target.kind == KVA_TARGET_GPU || cg->foreign)
    return kva_error(cg->diag, NULL, "code for %s does not run in this process", cg->target.description);
  LLVMMemoryBufferRef code;
  KVA_TRY(kva_cg_code(cg, LLVMObjectFile, &code));
  kva_status status = kva_cg_check(cg, LLVMOrcCreateLLJIT(&cg->jit, NULL), "starting the JIT");
  if (status != KVA_OK) {
    LLVMDisposeMemoryBuffer(code);
    return status;
  }
  LLVMOrcExecutionSessionSetErrorReporter(LLVMOrcLLJITGetExecutionSession(cg->jit), drop_error, NULL);
  KVA_TRY(link_object(cg, code));
  for (uint32_t i = 0; i < cg->kernels.len; i++) KVA_TRY(look_up(cg, &cg->kernels.data[i]));
  return KVA_OK;
}
