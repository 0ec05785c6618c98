/* CPU code: the target machine, the module of kernels, LLVM's passes, machine code.
 *
 * The pass list is short because the emitter vectorises itself: measured, LLVM's O2 and O3 give the same speed for
 * twice the compile time. sroa turns LOCAL tiles into registers. */
#include "codegen/llvm_internal.h"
#include "ir/dialect.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <stdlib.h>

const char kva_cg_passes[] = "function(sroa,early-cse,instcombine<no-verify-fixpoint>,simplifycfg,loop-mssa(licm),gvn,"
                             "sroa,instcombine<no-verify-fixpoint>,simplifycfg,adce)";

/* ---- target ------------------------------------------------------------------------------------------------------ */

static void initialize_llvm(void) {
  LLVMInitializeX86TargetInfo();
  LLVMInitializeX86Target();
  LLVMInitializeX86TargetMC();
  LLVMInitializeX86AsmPrinter();
  LLVMInitializeAArch64TargetInfo();
  LLVMInitializeAArch64Target();
  LLVMInitializeAArch64TargetMC();
  LLVMInitializeAArch64AsmPrinter();
}

kva_status kva_cg_check(kva_diag *diag, LLVMErrorRef error, const char *what) {
  if (!error) return KVA_OK;
  char *text = LLVMGetErrorMessage(error);
  kva_status status = kva_fail(diag, KVA_UNSUPPORTED, NULL, "%s: LLVM says: %s", what, text);
  LLVMDisposeErrorMessage(text);
  return status;
}

static kva_status find_llvm_target(kva_codegen *cg) {
  char *error = NULL;
  if (!LLVMGetTargetFromTriple(cg->triple, &cg->llvm_target, &error)) return KVA_OK;
  kva_status status = kva_fail(cg->diag, KVA_MISSING, NULL, "LLVM has no target for %s: %s", cg->triple, error);
  LLVMDisposeMessage(error);
  return status;
}

static kva_status cpu_target(kva_codegen *cg, const kva_target_options *options) {
  kva_cg_cpu cpu;
  KVA_TRY(kva_cg_describe_cpu(options, cg->arena, cg->diag, &cpu, &cg->target));
  cg->cpu = cpu.name;
  cg->features = cpu.features;
  cg->needs = cpu.needs;
  cg->triple = cpu.triple;
  cg->foreign = cpu.foreign;
  return KVA_OK;
}

kva_status kva_codegen_create(const kva_target_options *options, kva_diag *diag, kva_codegen **out_cg) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, initialize_llvm);
  kva_target_options defaults = {.opt_level = 2};
  if (!options) options = &defaults;
  kva_arena *arena = kva_arena_create();
  kva_codegen *cg = KVA_NEW(arena, kva_codegen);
  cg->diag = diag;
  cg->arena = arena;
  cg->opt_level = options->opt_level;
  cg->in_process = options->in_process && !options->arch;
  cg->cache = options->cache;
  cg->control = options->control;
  cg->numbers = kva_map_create(arena);
  kva_status status = options->arch ? kva_ptx_target(cg, options) : cpu_target(cg, options);
  if (status == KVA_OK) status = find_llvm_target(cg);
  if (status != KVA_OK) {
    kva_codegen_destroy(cg);
    return status;
  }
  kva_cg_begin_module(cg);
  *out_cg = cg;
  return KVA_OK;
}

void kva_codegen_destroy(kva_codegen *cg) {
  if (!cg) return;
  if (cg->jit) LLVMConsumeError(LLVMOrcDisposeLLJIT(cg->jit));
  if (cg->object) LLVMDisposeMemoryBuffer(cg->object);
  for (uint32_t i = 0; i < cg->modules.len; i++) kva_cg_destroy_module(cg->modules.data[i]);
  kva_arena_destroy(cg->arena);
}

uint32_t kva_codegen_needs(const kva_codegen *cg) {
  return cg->needs;
}

const kva_target *kva_codegen_target(const kva_codegen *cg) {
  return &cg->target;
}

kva_pass_control *kva_codegen_control(const kva_codegen *cg) {
  return cg->control;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* The key is the whole encoding, so kernels with colliding hashes stay distinct. On a CPU it does not matter what the
 * symbols are called: each step says what it passes. A GPU's kernel says it itself (runtime/abi.h). */
static kva_text key_of(const kva_codegen *cg, const kva_kernel *k, uint32_t n_symbols, const kva_expr *const *symbols) {
  kva_text key = {0};
  bool is_gpu = cg->target.kind == KVA_TARGET_GPU;
  kva_kernel_encode(k, is_gpu ? 0 : n_symbols, symbols, &key);
  for (uint32_t i = 0; is_gpu && i < n_symbols; i++)
    kva_text_add_bytes(&key, symbols[i]->name, strlen(symbols[i]->name) + 1);
  return key;
}

/* A name that assemblers accept, unique by its number. */
static const char *symbol_name(kva_codegen *cg, const char *name) {
  char *s = kva_arena_printf(cg->arena, "kva_k%u_%.60s", cg->kernels.len, name);
  for (char *c = s; *c; c++) {
    bool ok = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '_';
    if (!ok) *c = '_';
  }
  return s;
}

typedef struct intrinsic_check {
  kva_codegen *cg;
  const char *kernel;
  kva_status status;
} intrinsic_check;

static void check_intrinsic(void *user, kva_kinstr *i) {
  intrinsic_check *c = user;
  const kva_intrinsic_info *info = i->op == KVA_K_INTRINSIC ? kva_intrinsic_get(i->intrinsic->op) : NULL;
  if (!info || kva_intrinsic_suits(i->intrinsic->op, &c->cg->target)) return;
  c->status = kva_error(c->cg->diag, NULL, "kernel '%s': code for %s has no instruction %s", c->kernel,
                        c->cg->target.description, info->name);
}

static kva_status check_intrinsics(kva_codegen *cg, const kva_kernel *k) {
  intrinsic_check c = {cg, k->name, KVA_OK};
  kva_k_each_instr(k, check_intrinsic, &c);
  return c.status;
}

static kva_status check_shared(kva_codegen *cg, const kva_cg_kernel *k) {
  const kva_target *t = &cg->target;
  uint32_t bytes = k->launch.shared_bytes + k->launch.dynamic_bytes;
  if (t->kind != KVA_TARGET_GPU || bytes <= t->shared_bytes) return KVA_OK;
  return kva_error(cg->diag, NULL, "kernel '%s': a block takes %u bytes of shared memory; code for %s may take %u",
                   k->name, bytes, t->arch, t->shared_bytes);
}

static kva_status add_kernel(kva_codegen *cg, const kva_kernel *k, uint32_t n_symbols, const kva_expr *const *symbols) {
  KVA_TRY(check_intrinsics(cg, k));
  kva_cg_kernel entry = {.name = symbol_name(cg, k->name ? k->name : "kernel")};
  entry.launch = kva_ll_kernel(cg, k, entry.name, n_symbols, symbols);
  KVA_TRY(check_shared(cg, &entry));
  KVA_PUSH(cg->arena, &cg->kernels, entry);
  return KVA_OK;
}

kva_status kva_codegen_add(kva_codegen *cg, const kva_kernel *k, uint32_t n_symbols, const kva_expr *const *symbols,
                           int32_t *out_kernel) {
  KVA_ASSERT(!cg->module->optimized);
  kva_text key = key_of(cg, k, n_symbols, symbols);
  uintptr_t known = (uintptr_t)kva_map_get(cg->numbers, key.data, key.len);
  if (!known) kva_cg_make_room(cg, key.len);
  kva_status status = known ? KVA_OK : add_kernel(cg, k, n_symbols, symbols);
  uintptr_t number = known ? known : cg->kernels.len;
  if (status == KVA_OK && !known) kva_map_set(cg->numbers, key.data, key.len, (void *)number);
  *out_kernel = (int32_t)number - 1;
  kva_text_free(&key);
  return status;
}

int32_t kva_codegen_kernel_count(const kva_codegen *cg) {
  return (int32_t)cg->kernels.len;
}

const char *kva_codegen_kernel_name(const kva_codegen *cg, int32_t kernel) {
  return cg->kernels.data[kernel].name;
}

bool kva_codegen_cached(const kva_codegen *cg) {
  bool cached = true;
  for (uint32_t i = 0; i < cg->modules.len; i++) cached &= cg->modules.data[i]->cached;
  return cached;
}

kva_kernel_fn kva_codegen_function(const kva_codegen *cg, int32_t kernel) {
  KVA_ASSERT(kernel >= 0 && (uint32_t)kernel < cg->kernels.len);
  return cg->kernels.data[kernel].fn;
}

kva_launch kva_codegen_launch(const kva_codegen *cg, int32_t kernel) {
  KVA_ASSERT(kernel >= 0 && (uint32_t)kernel < cg->kernels.len);
  return cg->kernels.data[kernel].launch;
}

/* ---- machine code ------------------------------------------------------------------------------------------------ */

/* Verifies the emitted module. A failure is a bug of the emitter, hence an assertion. */
static void verify_module(const kva_cg_module *m) {
  char *text = NULL;
  if (LLVMVerifyModule(m->ir, LLVMReturnStatusAction, &text)) {
    fprintf(stderr, "%s\n", text);
    KVA_ASSERT(!"LLVM refused the emitted module");
  }
  LLVMDisposeMessage(text);
}

kva_status kva_cg_optimize(kva_cg_module *m) {
  if (m->optimized) return KVA_OK;
  verify_module(m);
  LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
  LLVMErrorRef error = LLVMRunPasses(m->ir, kva_cg_passes, m->machine, options);
  LLVMDisposePassBuilderOptions(options);
  KVA_TRY(kva_cg_check(m->diag, error, "optimising kernels"));
  if (m->cg->target.kind == KVA_TARGET_GPU) KVA_TRY(kva_ptx_work_around(m));
  m->optimized = true;
  return KVA_OK;
}

kva_status kva_cg_machine_code(kva_cg_module *m, LLVMCodeGenFileType kind, LLVMMemoryBufferRef *out_code) {
  KVA_TRY(kva_cg_optimize(m));
  if (m->cg->target.kind == KVA_TARGET_GPU) return kva_ptx_emit(m, out_code);
  char *error = NULL;
  if (!LLVMTargetMachineEmitToMemoryBuffer(m->machine, m->ir, kind, &error, out_code)) return KVA_OK;
  kva_status status = kva_fail(m->diag, KVA_UNSUPPORTED, NULL, "compiling kernels for %s: LLVM says: %s",
                               m->cg->target.description, error);
  LLVMDisposeMessage(error);
  return status;
}

static kva_status copy_out(const char *data, size_t size, char **out_data, size_t *out_size) {
  *out_data = malloc(size + 1);
  if (!*out_data) return KVA_NO_MEMORY;
  memcpy(*out_data, data, size);
  (*out_data)[size] = 0;
  *out_size = size;
  return KVA_OK;
}

kva_status kva_codegen_emit(kva_codegen *cg, const char *kind, char **out_data, size_t *out_size) {
  KVA_ASSERT(!cg->in_process);
  if (!strcmp(kind, "llvm")) {
    KVA_TRY(kva_cg_optimize(cg->module));
    char *text = LLVMPrintModuleToString(cg->module->ir);
    if (!text) return KVA_NO_MEMORY;
    kva_status status = copy_out(text, strlen(text), out_data, out_size);
    LLVMDisposeMessage(text);
    return status;
  }
  bool is_gpu = cg->target.kind == KVA_TARGET_GPU, is_asm = !strcmp(kind, is_gpu ? "ptx" : "asm");
  if (!is_asm && (is_gpu || strcmp(kind, "obj")))
    return kva_error(cg->diag, NULL, "no such output for %s: %s; there are %s", cg->target.description, kind,
                     is_gpu ? "llvm, ptx" : "obj, llvm, asm");
  LLVMMemoryBufferRef code;
  KVA_TRY(kva_cg_code(cg->module, is_asm ? LLVMAssemblyFile : LLVMObjectFile, &code));
  kva_status status = copy_out(LLVMGetBufferStart(code), LLVMGetBufferSize(code), out_data, out_size);
  LLVMDisposeMemoryBuffer(code);
  return status;
}
