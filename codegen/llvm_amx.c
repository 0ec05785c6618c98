/* The dialect of AMX (ir/dialect_amx.h): LLVM's intrinsics that name tile registers.
 *
 *   sums   0 1    first 16 rows: 16 columns each       a  4    first 16 rows       b  6 7   16 columns each
 *          2 3    the other rows                          5    the other rows */
#include "codegen/llvm_internal.h"
#include "ir/dialect_amx.h"

enum { SUMS = 0, A = 4, B = 6, HALF = KVA_AMX_BLOCK / 2, WORD = 4 };

static LLVMValueRef number(const kva_emit *e, int64_t v) {
  return LLVMConstInt(LLVMInt8TypeInContext(e->ctx), (uint64_t)v, false);
}

static void call(kva_emit *e, const char *name, unsigned n, LLVMValueRef *args) {
  kva_ll_intrinsic(e, name, 0, NULL, n, args);
}

/* The memory that tile configuration has: palette 1; for each register bytes of a row (from 16 on), and rows (from 48
 * on). */
static LLVMValueRef configuration(const kva_emit *e) {
  enum { BYTES = 64, ROW_BYTES = 16, ROWS = 48, REGISTERS = 8 };
  static const char name[] = "kva_amx_configuration";
  LLVMValueRef known = LLVMGetNamedGlobal(e->module, name);
  if (known) return known;
  char text[BYTES] = {1};
  for (int i = 0; i < REGISTERS; i++) text[ROW_BYTES + 2 * i] = HALF * WORD, text[ROWS + i] = HALF;
  LLVMValueRef bytes = LLVMConstStringInContext(e->ctx, text, BYTES, true);
  LLVMValueRef made = LLVMAddGlobal(e->module, LLVMTypeOf(bytes), name);
  LLVMSetInitializer(made, bytes);
  LLVMSetGlobalConstant(made, true);
  LLVMSetLinkage(made, LLVMInternalLinkage);
  LLVMSetAlignment(made, BYTES);
  return made;
}

/* A tile of 16 rows, `row_words` apart, from word `first` of the place on. */
static void move_tile(kva_emit *e, const char *name, int tile, const kva_kplace *p, int64_t first, int64_t row_words) {
  LLVMValueRef at = kva_ll_i64(e, first * WORD * 8 / kva_dtype_bits(p->buf->dtype));
  LLVMValueRef from = LLVMBuildGEP2(e->b, kva_ll_storage(e, p->buf->dtype), kva_ll_place(e, p), &at, 1, "");
  LLVMValueRef args[] = {number(e, tile), from, kva_ll_i64(e, row_words * WORD)};
  call(e, name, 3, args);
}

static void move_sums(kva_emit *e, const char *name, const kva_kplace *p) {
  for (int64_t i = 0; i < 4; i++)
    move_tile(e, name, SUMS + (int)i, p, i / 2 * HALF * KVA_AMX_BLOCK + i % 2 * HALF, KVA_AMX_BLOCK);
}

/* A part of the rows of a, and one of the columns of b. */
static void load_a(kva_emit *e, const kva_kintrinsic *m, int64_t part) {
  for (int i = 0; i < 2; i++)
    move_tile(e, "llvm.x86.tileloadd64", A + i, &m->places[0], part * KVA_AMX_PART + i * HALF * KVA_AMX_WORDS,
              KVA_AMX_WORDS);
}

static void load_b(kva_emit *e, const kva_kintrinsic *m, int64_t part) {
  for (int i = 0; i < 2; i++)
    move_tile(e, "llvm.x86.tileloadd64", B + i, &m->places[1], part * KVA_AMX_PART + i * HALF, KVA_AMX_BLOCK);
}

static void multiply(kva_emit *e, const char *product) {
  for (int i = 0; i < 4; i++) {
    LLVMValueRef args[] = {number(e, SUMS + i), number(e, A + i / 2), number(e, B + i % 2)};
    call(e, product, 3, args);
  }
}

/* Each product has one factor in common with the one before it. */
static void step_of_parts(kva_emit *e, const kva_kintrinsic *m) {
  static const struct {
    int a, b; /* -1: the one before */
  } products[] = {{0, 2}, {-1, 1}, {-1, 0}, {1, -1}, {-1, 1}, {2, 0}};
  for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
    if (products[i].a >= 0) load_a(e, m, products[i].a);
    if (products[i].b >= 0) load_b(e, m, products[i].b);
    multiply(e, "llvm.x86.tdpbf16ps");
  }
}

static void step(kva_emit *e, const kva_kintrinsic *m) {
  static const char *const products[KVA_AMX_KINDS] = {[KVA_AMX_BF16] = "llvm.x86.tdpbf16ps",
                                                      [KVA_AMX_UNSIGNED_SIGNED] = "llvm.x86.tdpbusd",
                                                      [KVA_AMX_SIGNED_UNSIGNED] = "llvm.x86.tdpbsud"};
  if (m->numbers[0] == KVA_AMX_FLOAT) {
    step_of_parts(e, m);
    return;
  }
  load_a(e, m, 0);
  load_b(e, m, 0);
  multiply(e, products[m->numbers[0]]);
}

void kva_ll_amx(kva_emit *e, const kva_kinstr *i) {
  const kva_kintrinsic *m = i->intrinsic;
  LLVMValueRef arg;
  switch (m->op) {
  case KVA_AMX_amx_begin:
    arg = configuration(e);
    call(e, "llvm.x86.ldtilecfg", 1, &arg);
    return;
  case KVA_AMX_amx_clear:
    for (int tile = SUMS; tile < A; tile++) {
      arg = number(e, tile);
      call(e, "llvm.x86.tilezero", 1, &arg);
    }
    return;
  case KVA_AMX_amx_load: move_sums(e, "llvm.x86.tileloadd64", &m->places[0]); return;
  case KVA_AMX_amx_store: move_sums(e, "llvm.x86.tilestored64", &m->places[0]); return;
  case KVA_AMX_amx_step: step(e, m); return;
  default: call(e, "llvm.x86.tilerelease", 0, NULL); return;
  }
}
