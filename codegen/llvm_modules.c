/* Modules of kernels. What only runs in process is divided among several, which as many threads as there are CPUs
 * compile side by side. Which kernels share one depends on the kernels alone, so code does not depend on threads. */
#include "codegen/llvm_internal.h"
#include "runtime/base/platform.h"
#include "runtime/base/trap.h"

/* Encodings of kernels after which another module begins: LLVM takes about 0.1 s for them, and 3 ms for a module
 * with nothing in it. */
enum { FULL = 8 << 10 };

/* ---- modules ----------------------------------------------------------------------------------------------------- */

static LLVMCodeGenOptLevel code_level(int level) {
  return level <= 0 ? LLVMCodeGenLevelNone : level == 1 ? LLVMCodeGenLevelLess : LLVMCodeGenLevelDefault;
}

/* Code for GPUs is text that the driver relocates. */
static LLVMTargetMachineRef create_machine(const kva_codegen *cg) {
  bool is_gpu = cg->target.kind == KVA_TARGET_GPU;
  return LLVMCreateTargetMachine(cg->llvm_target, cg->triple, cg->cpu, cg->features,
                                 is_gpu ? LLVMCodeGenLevelDefault : code_level(cg->opt_level),
                                 is_gpu ? LLVMRelocDefault : LLVMRelocPIC, LLVMCodeModelDefault);
}

void kva_cg_begin_module(kva_codegen *cg) {
  kva_cg_module *m = KVA_NEW(cg->arena, kva_cg_module);
  *m = (kva_cg_module){.cg = cg, .diag = cg->diag, .ctx = LLVMContextCreate(), .machine = create_machine(cg)};
  m->ir = LLVMModuleCreateWithNameInContext("kvasir", m->ctx);
  m->builder = LLVMCreateBuilderInContext(m->ctx);
  m->layout = LLVMCreateTargetDataLayout(m->machine);
  LLVMSetTarget(m->ir, cg->triple);
  LLVMSetModuleDataLayout(m->ir, m->layout);
  KVA_PUSH(cg->arena, &cg->modules, m);
  cg->module = m;
}

void kva_cg_destroy_module(const kva_cg_module *m) {
  if (m->broken) return;
  LLVMDisposeBuilder(m->builder);
  LLVMDisposeModule(m->ir);
  LLVMContextDispose(m->ctx);
  LLVMDisposeTargetData(m->layout);
  LLVMDisposeTargetMachine(m->machine);
}

void kva_cg_make_room(kva_codegen *cg, size_t bytes) {
  if (cg->in_process && cg->module->bytes > FULL) kva_cg_begin_module(cg);
  cg->module->bytes += bytes;
}

/* ---- side by side ------------------------------------------------------------------------------------------------ */

typedef struct job {
  kva_cg_module *m;
  LLVMMemoryBufferRef object;
  kva_status status;
  bool traps; /* the thread that waits has a trap */
  kva_trap trap;
  bool trapped;
} job;

/* A trap belongs to a thread; what ends in this one is raised again where the result is waited for. */
static void compile_trapped(job *j) {
  if (setjmp(j->trap.at)) {
    j->trapped = true;
    return;
  }
  kva_trap_enter(&j->trap);
  j->status = kva_cg_code(j->m, LLVMObjectFile, &j->object);
  kva_trap_leave(&j->trap);
}

static void compile(job *j) {
  if (j->traps)
    compile_trapped(j);
  else
    j->status = kva_cg_code(j->m, LLVMObjectFile, &j->object);
}

static void compile_range(void *jobs, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i++) compile((job *)jobs + i);
}

static void compile_all(job *jobs, uint32_t n) {
  kva_pool *pool = n > 1 ? kva_pool_create_with(&(kva_pool_options){.sleep = true}) : NULL;
  kva_pool_run(pool, n, compile_range, jobs);
  kva_pool_destroy(pool);
}

static void raise_again(const kva_trap *trap) {
  if (trap->memory) kva_fatal_memory("%s", trap->text);
  kva_fatal("%s", trap->text);
}

static void copy_messages(const kva_diag *from, kva_diag *to, kva_status status) {
  for (size_t i = 0; i < kva_diag_count(from); i++)
    kva_fail(to, status, NULL, "%s", kva_diag_message(from, i, NULL, NULL));
}

/* Takes the job's result, or its failure. */
static kva_status finish(const kva_codegen *cg, job *j, LLVMMemoryBufferRef *out_object) {
  if (j->status != KVA_OK) copy_messages(j->m->diag, cg->diag, j->status);
  kva_diag_destroy(j->m->diag);
  j->m->diag = cg->diag;
  if (j->trapped) raise_again(&j->trap);
  *out_object = j->object;
  return j->status;
}

kva_status kva_cg_objects(kva_codegen *cg, LLVMMemoryBufferRef *out_objects) {
  uint32_t n = cg->modules.len;
  job *jobs = KVA_NEW_ARRAY(cg->arena, job, n);
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < n; i++) {
    jobs[i].m = cg->modules.data[i];
    jobs[i].traps = kva_trap_is_set();
    jobs[i].m->diag = kva_diag_create();
  }
  compile_all(jobs, n);
  for (uint32_t i = 0; i < n; i++) {
    kva_status s = finish(cg, &jobs[i], &out_objects[i]);
    if (status == KVA_OK) status = s;
  }
  for (uint32_t i = 0; status != KVA_OK && i < n; i++) {
    if (out_objects[i]) LLVMDisposeMemoryBuffer(out_objects[i]);
  }
  return status;
}
