/* NVIDIA's dialect (ir/dialect_nv.def): NVVM intrinsics where LLVM has them, else inline assembly.
 *
 * wgmma writes its accumulators asynchronously, but LLVM assumes that they are ready. So every instruction of a chain,
 * including the wait, takes the accumulators as inputs tied to its results: no use can move before the wait, and no
 * copy between the instructions. Tied inputs also take operand numbers in the assembly text. */
#include "codegen/llvm_internal.h"
#include "ir/dialect_nv.h"

enum { MAX_ACCUMULATORS = 2 * 256, ROW_GROUP = 1024 /* bytes of 8 rows in the 128-byte swizzle */ };

static LLVMTypeRef i32_type(const kva_emit *e) {
  return LLVMInt32TypeInContext(e->ctx);
}

static LLVMTypeRef i64_type(const kva_emit *e) {
  return LLVMInt64TypeInContext(e->ctx);
}

static void effect(kva_emit *e, const char *text, const char *operands, uint32_t n_args, LLVMValueRef *args) {
  const char *constraints = kva_arena_printf(e->scratch, "%s%s~{memory}", operands, n_args ? "," : "");
  kva_ll_assembly(e, false, text, constraints, NULL, n_args, args);
}

/* Barrier numbers must be immediates: with a register the assembler reserves all sixteen barriers. */
static void named_barrier(kva_emit *e, const kva_kintrinsic *m, const char *what) {
  effect(e, kva_arena_printf(e->scratch, "bar.%s %d, %d;", what, m->numbers[0], m->numbers[1]), "", 0, NULL);
}

/* ---- asynchronous copies ----------------------------------------------------------------------------------------- */

static void copy_async(kva_emit *e, const kva_kintrinsic *m) {
  LLVMValueRef bytes = LLVMBuildTrunc(e->b, kva_ll_expr(e, m->indices[0]), i32_type(e), "");
  LLVMValueRef args[] = {kva_ll_place(e, &m->places[0]), kva_ll_place(e, &m->places[1]), bytes};
  bool whole = kva_expr_is(m->indices[0], 16);
  kva_ll_intrinsic(e, whole ? "llvm.nvvm.cp.async.cg.shared.global.16" : "llvm.nvvm.cp.async.cg.shared.global.16.s", 0,
                   NULL, whole ? 2 : 3, args);
}

/* ---- mbarriers --------------------------------------------------------------------------------------------------- */

static void barrier_with_number(kva_emit *e, const kva_kintrinsic *m, const char *text) {
  LLVMValueRef args[] = {kva_ll_shared_address(e, &m->places[0]),
                         LLVMConstInt(i32_type(e), (uint64_t)m->numbers[0], false)};
  effect(e, text, "r,r", 2, args);
}

static void mbarrier_arrive(kva_emit *e, const kva_kintrinsic *m) {
  LLVMValueRef at = kva_ll_shared_address(e, &m->places[0]);
  effect(e, "mbarrier.arrive.shared.b64 _, [$0];", "r", 1, &at);
}

/* Predicated: in a loop with wgmma, a branch around it makes the warp reconverge too late. */
static void mbarrier_arrive_if(kva_emit *e, const kva_kintrinsic *m) {
  LLVMValueRef args[] = {kva_ll_shared_address(e, &m->places[0]),
                         LLVMBuildTrunc(e->b, kva_ll_expr(e, m->indices[0]), i32_type(e), "")};
  effect(e, "{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared.b64 _, [$0]; }", "r,r", 2, args);
}

/* The retry loop consists of LLVM blocks: labels inside assembly would be duplicated with it. */
static void mbarrier_wait(kva_emit *e, const kva_kintrinsic *m) {
  static const char text[] = "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [$1], $2; selp.b32 $0, 1, 0, p; }";
  LLVMValueRef parity = LLVMBuildTrunc(e->b, kva_ll_expr(e, m->indices[0]), i32_type(e), "");
  LLVMValueRef args[] = {kva_ll_shared_address(e, &m->places[0]), parity};
  LLVMBasicBlockRef again = kva_ll_block(e, "wait"), done = kva_ll_block(e, "arrived");
  LLVMBuildBr(e->b, again);
  LLVMPositionBuilderAtEnd(e->b, again);
  LLVMValueRef over = kva_ll_assembly(e, false, text, "=r,r,r,~{memory}", i32_type(e), 2, args);
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntNE, over, LLVMConstNull(i32_type(e)), ""), done, again);
  LLVMPositionBuilderAtEnd(e->b, done);
}

/* ---- tensor maps ------------------------------------------------------------------------------------------------- */

static void tensor_load(kva_emit *e, const kva_kintrinsic *m) {
  KVA_ASSERT((uint32_t)m->numbers[0] < e->k->maps.len);
  LLVMValueRef args[3 + KVA_K_MAX_INDICES];
  uint32_t rank = 0;
  kva_text at = {0}, constraints = {0};
  kva_text_add(&constraints, "r,l,r");
  for (; rank < KVA_K_MAX_INDICES && m->indices[rank]; rank++) {
    args[3 + rank] = LLVMBuildTrunc(e->b, kva_ll_expr(e, m->indices[rank]), i32_type(e), "");
    kva_text_add(&at, "%s$%u", rank ? ", " : "", 3 + rank);
    kva_text_add(&constraints, ",r");
  }
  args[0] = kva_ll_shared_address(e, &m->places[0]);
  args[1] = LLVMBuildPtrToInt(e->b, LLVMGetParam(e->fn, e->first_map + (uint32_t)m->numbers[0]), i64_type(e), "");
  args[2] = kva_ll_shared_address(e, &m->places[1]);
  const char *text = kva_arena_printf(e->scratch,
                                      "cp.async.bulk.tensor.%ud.shared::cluster.global.mbarrier::complete_tx::bytes "
                                      "[$0], [$1, {%s}], [$2];",
                                      rank, at.data);
  effect(e, text, constraints.data, 3 + rank, args);
  kva_text_free(&at);
  kva_text_free(&constraints);
}

/* ---- wgmma ------------------------------------------------------------------------------------------------------- */

/* Registers that pass through an instruction. */
typedef struct chain {
  kva_emit *e;
  uint32_t n;
  LLVMValueRef values[MAX_ACCUMULATORS];
  kva_text outputs, inputs; /* constraints: "=f,=f", "0,1" */
} chain;

/* Appends floats, or pairs of 16 bits. */
static void add_registers(chain *c, const kva_kplace *p, uint32_t n) {
  KVA_ASSERT(c->n + n <= MAX_ACCUMULATORS);
  bool pairs = p->buf->dtype != KVA_F32;
  LLVMTypeRef type = pairs ? i32_type(c->e) : LLVMFloatTypeInContext(c->e->ctx);
  kva_ll_load_registers(c->e, p, type, n, c->values + c->n);
  for (uint32_t i = 0; i < n; i++) {
    kva_text_add(&c->outputs, "%s=%c", c->n ? "," : "", pairs ? 'r' : 'f');
    kva_text_add(&c->inputs, "%s%u", c->n ? "," : "", c->n);
    c->n++;
  }
}

static void put_registers(chain *c, const kva_kplace *p, uint32_t first, uint32_t n, LLVMValueRef result) {
  KVA_ASSERT(first + n <= c->n);
  LLVMValueRef values[MAX_ACCUMULATORS];
  for (uint32_t i = 0; i < n; i++)
    values[i] = c->n > 1 ? LLVMBuildExtractValue(c->e->b, result, first + i, "") : result;
  kva_ll_store_registers(c->e, p, n, values);
}

/* Emits `text` with the chain and more operands; frees the chain's constraints. */
static LLVMValueRef run_chain(chain *c, const char *text, const char *more, uint32_t n_more,
                              const LLVMValueRef *operands) {
  kva_emit *e = c->e;
  LLVMTypeRef *types = KVA_NEW_ARRAY(e->scratch, LLVMTypeRef, c->n);
  LLVMValueRef *args = KVA_NEW_ARRAY(e->scratch, LLVMValueRef, c->n + n_more);
  for (uint32_t i = 0; i < c->n; i++) types[i] = LLVMTypeOf(c->values[i]), args[i] = c->values[i];
  for (uint32_t i = 0; i < n_more; i++) args[c->n + i] = operands[i];
  LLVMTypeRef result = c->n > 1 ? LLVMStructTypeInContext(e->ctx, types, c->n, false) : types[0];
  const char *constraints =
      kva_arena_printf(e->scratch, "%s,%s%s%s,~{memory}", c->outputs.data, c->inputs.data, n_more ? "," : "", more);
  kva_text_free(&c->outputs);
  kva_text_free(&c->inputs);
  return kva_ll_assembly(e, false, text, constraints, result, c->n + n_more, args);
}

/* A matrix in the 128-byte swizzle, as a descriptor of 64 bits: address, bytes between chunks of 64 and between groups
 * of 8 rows, in units of 16 bytes. Source: the PTX ISA's matrix descriptor. The upper half is the same for all. Of the
 * lower half `low` leaves out the constant part of the place, `units`, which is added beside the product: so a loop's
 * products share one register for each operand. (Every address of shared memory fits its field, so nothing carries.) */
typedef struct matrix {
  LLVMValueRef low;
  int64_t units;
} matrix;

static matrix find_matrix(kva_emit *e, const kva_kplace *p, int32_t leading) {
  int64_t per_unit = 128 / kva_dtype_bits(p->buf->dtype);
  bool further = p->index->kind == KVA_EXPR_SUM && p->index->constant > 0;
  matrix x = {.units = further ? p->index->constant / per_unit : 0};
  kva_kplace start = {p->buf, kva_expr_addi(e->k->exprs, p->index, -x.units * per_unit)};
  LLVMValueRef at = LLVMBuildTrunc(e->b, kva_ll_shared_address(e, &start), i32_type(e), "");
  at = LLVMBuildLShr(e->b, at, LLVMConstInt(i32_type(e), 4, false), "");
  x.low = LLVMBuildOr(e->b, at, LLVMConstInt(i32_type(e), (uint64_t)(leading >> 4 & 0x3fff) << 16, false), "");
  return x;
}

/* Makes the descriptor `name` of the operand with this number. */
static const char *make_descriptor(kva_emit *e, const char *name, const matrix *x, uint32_t operand) {
  return kva_arena_printf(e->scratch, "add.s32 l, $%u, %" PRId64 "; mov.b32 h, %d; mov.b64 %s, {l, h};", operand,
                          x->units, 1 << 30 | ROW_GROUP >> 4, name);
}

static const char *accumulator_list(kva_emit *e, uint32_t n) {
  kva_text text = {0};
  for (uint32_t i = 0; i < n; i++) kva_text_add(&text, "%s$%u", i ? "," : "", i);
  const char *list = kva_arena_strdup(e->scratch, text.data);
  kva_text_free(&text);
  return list;
}

static void wgmma(kva_emit *e, const kva_kintrinsic *m) {
  const int32_t *n = m->numbers;
  uint32_t half = (uint32_t)n[0] / 2, more = 2 * half;
  const char *type = m->places[1].buf->dtype == KVA_F16 ? "f16" : "bf16";
  matrix left = find_matrix(e, &m->places[1], n[3]), right = find_matrix(e, &m->places[2], n[4]);
  LLVMValueRef add = LLVMBuildTrunc(e->b, kva_ll_expr(e, m->indices[0]), i32_type(e), "");
  const char *text =
      kva_arena_printf(e->scratch,
                       "{ .reg .pred p; .reg .b32 l, h; .reg .b64 a, b; setp.ne.b32 p, $%u, 0; %s %s "
                       "wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {%s}, a, b, p, 1, 1, %d, %d; }",
                       more + 2, make_descriptor(e, "a", &left, more), make_descriptor(e, "b", &right, more + 1), n[0],
                       type, type, accumulator_list(e, half), n[1], n[2]);
  chain c = {.e = e};
  add_registers(&c, &m->places[0], half);
  LLVMValueRef operands[] = {left.low, right.low, add};
  put_registers(&c, &m->places[0], 0, half, run_chain(&c, text, "r,r,r", 3, operands));
}

static void wgmma_registers(kva_emit *e, const kva_kintrinsic *m) {
  const int32_t *n = m->numbers;
  uint32_t half = (uint32_t)n[0] / 2, more = 2 * half;
  const char *type = m->places[1].buf->dtype == KVA_F16 ? "f16" : "bf16";
  matrix right = find_matrix(e, &m->places[2], n[2]);
  const char *text =
      kva_arena_printf(e->scratch,
                       "{ .reg .pred p; .reg .b32 l, h; .reg .b64 b; setp.ne.b32 p, $%u, 0; %s "
                       "wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {%s}, {$%u,$%u,$%u,$%u}, b, p, 1, 1, %d; }",
                       more + 5, make_descriptor(e, "b", &right, more + 4), n[0], type, type, accumulator_list(e, half),
                       more, more + 1, more + 2, more + 3, n[1]);
  chain c = {.e = e};
  add_registers(&c, &m->places[0], half);
  LLVMValueRef operands[6];
  kva_ll_load_registers(e, &m->places[1], i32_type(e), 4, operands);
  operands[4] = right.low;
  operands[5] = LLVMBuildTrunc(e->b, kva_ll_expr(e, m->indices[0]), i32_type(e), "");
  put_registers(&c, &m->places[0], 0, half, run_chain(&c, text, "r,r,r,r,r,r", 6, operands));
}

/* An instruction without further operands; the registers of up to two places pass through it. */
static void pass_through(kva_emit *e, const kva_kintrinsic *m, const char *text, const int32_t *counts,
                         uint32_t n_places) {
  chain c = {.e = e};
  for (uint32_t p = 0; p < n_places; p++) add_registers(&c, &m->places[p], (uint32_t)counts[p]);
  LLVMValueRef result = run_chain(&c, text, "", 0, NULL);
  for (uint32_t p = 0, first = 0; p < n_places; first += (uint32_t)counts[p++])
    put_registers(&c, &m->places[p], first, (uint32_t)counts[p], result);
}

static void wgmma_wait(kva_emit *e, const kva_kintrinsic *m, uint32_t n_places) {
  const char *text = kva_arena_printf(e->scratch, "wgmma.wait_group.sync.aligned %d;", m->numbers[0]);
  pass_through(e, m, text, m->numbers + 1, n_places);
}

void kva_ll_nv(kva_emit *e, const kva_kinstr *i) {
  const kva_kintrinsic *m = i->intrinsic;
  LLVMValueRef number = LLVMConstInt(i32_type(e), (uint64_t)m->numbers[0], true);
  switch (m->op) {
  case KVA_NV_copy_async: copy_async(e, m); return;
  case KVA_NV_copy_commit: kva_ll_intrinsic(e, "llvm.nvvm.cp.async.commit.group", 0, NULL, 0, NULL); return;
  case KVA_NV_copy_wait: kva_ll_intrinsic(e, "llvm.nvvm.cp.async.wait.group", 0, NULL, 1, &number); return;
  case KVA_NV_named_barrier: named_barrier(e, m, "sync"); return;
  case KVA_NV_named_arrive: named_barrier(e, m, "arrive"); return;
  case KVA_NV_mbarrier_init: barrier_with_number(e, m, "mbarrier.init.shared.b64 [$0], $1;"); return;
  case KVA_NV_mbarrier_fence: effect(e, "fence.mbarrier_init.release.cluster;", "", 0, NULL); return;
  case KVA_NV_mbarrier_expect: barrier_with_number(e, m, "mbarrier.arrive.expect_tx.shared.b64 _, [$0], $1;"); return;
  case KVA_NV_mbarrier_arrive: mbarrier_arrive(e, m); return;
  case KVA_NV_mbarrier_arrive_if: mbarrier_arrive_if(e, m); return;
  case KVA_NV_mbarrier_wait: mbarrier_wait(e, m); return;
  case KVA_NV_tensor_load: tensor_load(e, m); return;
  case KVA_NV_proxy_fence: effect(e, "fence.proxy.async.shared::cta;", "", 0, NULL); return;
  case KVA_NV_wgmma: wgmma(e, m); return;
  case KVA_NV_wgmma_registers: wgmma_registers(e, m); return;
  case KVA_NV_wgmma_fence: pass_through(e, m, "wgmma.fence.sync.aligned;", m->numbers, 1); return;
  case KVA_NV_wgmma_fence2: pass_through(e, m, "wgmma.fence.sync.aligned;", m->numbers, 2); return;
  case KVA_NV_wgmma_commit: effect(e, "wgmma.commit_group.sync.aligned;", "", 0, NULL); return;
  case KVA_NV_wgmma_wait: wgmma_wait(e, m, 1); return;
  case KVA_NV_wgmma_wait2: wgmma_wait(e, m, 2); return;
  default: KVA_ASSERT(!"an instruction of the dialect");
  }
}
