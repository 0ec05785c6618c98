/* NVIDIA GPUs: the target machine, PTX text.
 *
 * LLVM's NVPTX backend ends the process on code that it cannot select. A fatal error handler jumps out of LLVM instead;
 * the module is not touched afterwards. */
#include "codegen/llvm_internal.h"

#include <llvm-c/ErrorHandling.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <pthread.h>
#include <setjmp.h>

/* ---- target ------------------------------------------------------------------------------------------------------ */

static _Thread_local jmp_buf *escape;
static _Thread_local char fatal_text[256];

/* Without a jump target LLVM ends the process as usual. */
static void on_fatal_error(const char *reason) {
  if (!escape) return;
  snprintf(fatal_text, sizeof fatal_text, "%s", reason);
  longjmp(*escape, 1);
}

static void initialize(void) {
  LLVMInitializeNVPTXTargetInfo();
  LLVMInitializeNVPTXTarget();
  LLVMInitializeNVPTXTargetMC();
  LLVMInitializeNVPTXAsmPrinter();
  LLVMInstallFatalErrorHandler(on_fatal_error);
}

kva_status kva_ptx_target(kva_codegen *cg, const kva_target_options *options) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  KVA_TRY(kva_cg_describe_gpu(options, cg->diag, &cg->target));
  pthread_once(&once, initialize);
  cg->triple = "nvptx64-nvidia-cuda";
  cg->cpu = cg->target.arch;
  cg->features = "+ptx83";
  return KVA_OK;
}

/* ---- restoring additions ----------------------------------------------------------------------------------------- */

/* `or disjoint` is an addition if its operands share no bits, which InstCombine may have derived from a dominating
 * branch. NVPTX's passes hoist it out of that branch (SpeculativeExecution) and then derive other addresses from it as
 * if it were an addition everywhere (StraightLineStrengthReduce; LLVM 19). So restore the additions, and let
 * InstCombine make `or` of those that are disjoint without any branch, which saves registers: conditions are hidden
 * from it. */

typedef struct hidden {
  LLVMBuilderRef b;
  LLVMValueRef function; /* i1 (i1), opaque */
  LLVMTypeRef type;
} hidden;

static void hide_condition(hidden *h, LLVMValueRef i) {
  if (!LLVMIsABranchInst(i) || !LLVMIsConditional(i)) return;
  LLVMValueRef condition = LLVMGetCondition(i);
  LLVMPositionBuilderBefore(h->b, i);
  LLVMSetCondition(i, LLVMBuildCall2(h->b, h->type, h->function, &condition, 1, ""));
}

static void restore_addition(hidden *h, LLVMValueRef i) {
  if (LLVMGetInstructionOpcode(i) != LLVMOr || !LLVMGetIsDisjoint(i)) return;
  LLVMPositionBuilderBefore(h->b, i);
  LLVMReplaceAllUsesWith(i, LLVMBuildAdd(h->b, LLVMGetOperand(i, 0), LLVMGetOperand(i, 1), ""));
  LLVMInstructionEraseFromParent(i);
}

/* The same for shifts and divisions: `exact` says that no bits are lost, in that branch. */
static void forget_exact(hidden *h, LLVMValueRef i) {
  (void)h;
  LLVMOpcode op = LLVMGetInstructionOpcode(i);
  if (op == LLVMLShr || op == LLVMAShr || op == LLVMUDiv || op == LLVMSDiv) LLVMSetExact(i, false);
}

static void each_instruction(hidden *h, LLVMModuleRef module, void (*f)(hidden *h, LLVMValueRef i)) {
  for (LLVMValueRef fn = LLVMGetFirstFunction(module); fn; fn = LLVMGetNextFunction(fn))
    for (LLVMBasicBlockRef block = LLVMGetFirstBasicBlock(fn); block; block = LLVMGetNextBasicBlock(block))
      for (LLVMValueRef i = LLVMGetFirstInstruction(block), next; i; i = next) {
        next = LLVMGetNextInstruction(i);
        f(h, i);
      }
}

static void reveal_conditions(hidden *h) {
  for (LLVMUseRef use; (use = LLVMGetFirstUse(h->function));) {
    LLVMValueRef call = LLVMGetUser(use);
    LLVMReplaceAllUsesWith(call, LLVMGetOperand(call, 0));
    LLVMInstructionEraseFromParent(call);
  }
  LLVMDeleteFunction(h->function);
}

/* ---- conversions of bits ----------------------------------------------------------------------------------------- */

static LLVMTypeRef scalar_of(LLVMTypeRef type) {
  return LLVMGetTypeKind(type) == LLVMVectorTypeKind ? LLVMGetElementType(type) : type;
}

/* A number, in all lanes of a vector. */
static LLVMValueRef real(LLVMTypeRef type, double x) {
  enum { MAX_LANES = 64 };
  LLVMValueRef scalar = LLVMConstReal(scalar_of(type), x), lanes[MAX_LANES];
  if (LLVMGetTypeKind(type) != LLVMVectorTypeKind) return scalar;
  unsigned n = LLVMGetVectorSize(type);
  KVA_ASSERT(n <= MAX_LANES);
  for (unsigned k = 0; k < n; k++) lanes[k] = scalar;
  return LLVMConstVector(lanes, n);
}

/* `sitofp i1` of true is -1; NVPTX's instruction selection makes 1 of it (LLVM 19). InstCombine derives it from the sum
 * of a bit and -1, for example. */
static void choose_number(hidden *h, LLVMValueRef i) {
  if (LLVMGetInstructionOpcode(i) != LLVMSIToFP) return;
  LLVMValueRef bit = LLVMGetOperand(i, 0);
  LLVMTypeRef to = LLVMTypeOf(i);
  if (LLVMGetIntTypeWidth(scalar_of(LLVMTypeOf(bit))) != 1) return;
  LLVMPositionBuilderBefore(h->b, i);
  LLVMValueRef number = LLVMBuildSelect(h->b, bit, real(to, -1), real(to, 0), "");
  LLVMReplaceAllUsesWith(i, number);
  LLVMInstructionEraseFromParent(i);
}

kva_status kva_ptx_work_around(kva_cg_module *m) {
  LLVMTypeRef i1 = LLVMInt1TypeInContext(m->ctx);
  hidden h = {.b = LLVMCreateBuilderInContext(m->ctx), .type = LLVMFunctionType(i1, &i1, 1, false)};
  h.function = LLVMAddFunction(m->ir, "kva.hidden", h.type);
  each_instruction(&h, m->ir, hide_condition);
  each_instruction(&h, m->ir, restore_addition);
  each_instruction(&h, m->ir, forget_exact);
  LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
  LLVMErrorRef error = LLVMRunPasses(m->ir, "function(instcombine<no-verify-fixpoint>)", m->machine, options);
  LLVMDisposePassBuilderOptions(options);
  reveal_conditions(&h);
  each_instruction(&h, m->ir, choose_number);
  LLVMDisposeBuilder(h.b);
  return kva_cg_check(m->diag, error, "working around faults of NVPTX");
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Between setjmp and longjmp only LLVM owns resources, and its objects are abandoned. */
static int emit_guarded(kva_cg_module *m, LLVMMemoryBufferRef *out_text, char **out_error) {
  jmp_buf here;
  escape = &here;
  int result =
      setjmp(here) ? -1 : LLVMTargetMachineEmitToMemoryBuffer(m->machine, m->ir, LLVMAssemblyFile, out_error, out_text);
  escape = NULL;
  return result;
}

/* LLVM 19 can say how large a kernel's clusters may be, not how large they are: says that instead. */
static void require_clusters(LLVMMemoryBufferRef *text) {
  static const char at_most[] = "\n.maxclusterrank ", exactly[] = "\n.explicitcluster\n.reqnctapercluster ";
  const char *from = LLVMGetBufferStart(*text), *found = strstr(from, at_most);
  if (!found) return;
  kva_text out = {0};
  for (; found; found = strstr(from, at_most)) {
    kva_text_add(&out, "%.*s%s", (int)(found - from), from, exactly);
    from = found + strlen(at_most);
  }
  kva_text_add(&out, "%s", from);
  LLVMDisposeMemoryBuffer(*text);
  *text = LLVMCreateMemoryBufferWithMemoryRangeCopy(out.data, out.len, "ptx");
  kva_text_free(&out);
}

kva_status kva_ptx_emit(kva_cg_module *m, LLVMMemoryBufferRef *out_text) {
  char *error = NULL;
  int result = emit_guarded(m, out_text, &error);
  if (!result) {
    require_clusters(out_text);
    return KVA_OK;
  }
  m->broken = result < 0;
  kva_status status = kva_fail(m->diag, KVA_UNSUPPORTED, NULL, "compiling kernels for %s: LLVM says: %s",
                               m->cg->target.description, m->broken ? fatal_text : error);
  if (!m->broken) LLVMDisposeMessage(error);
  return status;
}
