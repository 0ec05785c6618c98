/* Machine code through the cache.
 *
 * The key is the module's bitcode before optimisation, with the target and the versions. Any change of lowering,
 * schedules or emission changes the bitcode, so no entry outlives the code that made it; changes between bitcode and
 * machine code increment REVISION. Measured on training of models/lm.kv (preset small): of 1.18 s for code, LLVM's
 * passes and code generator take 1.13; writing bitcode takes 17 ms, hashing it 0.3 ms. */
#include "codegen/cache.h"
#include "codegen/llvm_internal.h"

#include <llvm-c/BitWriter.h>

enum { REVISION = 4 };

static void describe(const kva_cg_module *m, LLVMCodeGenFileType kind, kva_text *out) {
  const kva_codegen *cg = m->cg;
  unsigned major, minor, patch;
  LLVMGetVersion(&major, &minor, &patch);
  kva_text_add(out, "kvasir %s.%d, LLVM %u.%u.%u, %s, %s, %s, level %d, output %d, %s", KVA_VERSION, REVISION, major,
               minor, patch, cg->triple, cg->cpu, cg->features, cg->opt_level, (int)kind, kva_cg_passes);
}

/* LLVM does not check the memory of its buffers: NULL is one that found none. */
static kva_status check_buffer(const kva_cg_module *m, LLVMMemoryBufferRef buffer) {
  return buffer ? KVA_OK : kva_fail(m->diag, KVA_NO_MEMORY, NULL, "out of memory: LLVM asked for a buffer");
}

static kva_status compile(kva_cg_module *m, LLVMCodeGenFileType kind, LLVMMemoryBufferRef *out_code) {
  KVA_TRY(kva_cg_machine_code(m, kind, out_code));
  return check_buffer(m, *out_code);
}

static kva_status find_or_compile(kva_cg_module *m, LLVMCodeGenFileType kind, const kva_cache_key *key,
                                  LLVMMemoryBufferRef *out_code) {
  kva_file entry;
  kva_file_part code;
  m->cached = kva_cache_find(m->cg->cache, key, &entry, &code);
  if (m->cached) {
    *out_code = LLVMCreateMemoryBufferWithMemoryRangeCopy(code.data, code.size, "kernels");
    kva_file_unmap(&entry);
    return check_buffer(m, *out_code);
  }
  KVA_TRY(compile(m, kind, out_code));
  kva_cache_add(m->cg->cache, key, (kva_file_part){LLVMGetBufferStart(*out_code), LLVMGetBufferSize(*out_code)});
  return KVA_OK;
}

kva_status kva_cg_code(kva_cg_module *m, LLVMCodeGenFileType kind, LLVMMemoryBufferRef *out_code) {
  if (!m->cg->cache) return compile(m, kind, out_code);
  LLVMMemoryBufferRef bitcode = LLVMWriteBitcodeToMemoryBuffer(m->ir);
  KVA_TRY(check_buffer(m, bitcode));
  kva_text text = {0};
  describe(m, kind, &text);
  const kva_cache_key key = {{{text.data, text.len}, {LLVMGetBufferStart(bitcode), LLVMGetBufferSize(bitcode)}}};
  kva_status status = find_or_compile(m, kind, &key, out_code);
  LLVMDisposeMemoryBuffer(bitcode);
  kva_text_free(&text);
  return status;
}
