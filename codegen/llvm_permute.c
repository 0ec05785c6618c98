/* Gathers from no more elements than a vector has: x86 loads those once and permutes them by the indices, in a tenth of
 * a gather's time. So are read rows of few features and tables of codes. */
#include "codegen/llvm_internal.h"

static const char *instruction(const kva_emit *e, kva_dtype type) {
  const kva_target *t = &e->cg->target;
  bool whole = e->lanes.n * 4 == (unsigned)t->vector_bytes;
  if (!kva_target_has(t, KVA_TARGET_PAIRS) || !whole || (type != KVA_F32 && type != KVA_I32)) return NULL;
  if (e->lanes.n == 16) return type == KVA_F32 ? "llvm.x86.avx512.permvar.sf.512" : "llvm.x86.avx512.permvar.si.512";
  return e->lanes.n != 8 ? NULL : type == KVA_F32 ? "llvm.x86.avx2.permps" : "llvm.x86.avx2.permd";
}

/* v is max(min(index, n - 1), 0), as ops/index.h makes indices of 32 bits: n, else 0. */
static int64_t count_of(kva_kval v) {
  if (v->op != KVA_K_max || v->args[0]->op != KVA_K_min) return 0;
  kva_kval zero = v->args[1], last = v->args[0]->args[1];
  bool known = zero->op == KVA_K_CONST && zero->imm.i == 0 && last->op == KVA_K_CONST && last->imm.i >= 0;
  return known && v->dtype == KVA_I32 ? last->imm.i + 1 : 0;
}

/* The index of 32 bits that lanes of x differ by, and by nothing else; NULL: there is none. */
static kva_kval index_of(const kva_emit *e, const kva_expr *x) {
  const kva_expr *found = x->kind == KVA_EXPR_SYMBOL ? x : NULL;
  for (uint32_t i = 0; x->kind == KVA_EXPR_SUM && i < x->n_terms; i++) {
    const kva_expr_term *t = &x->terms[i];
    for (uint32_t f = 0; f < t->n_factors; f++) {
      if (!kva_ll_expr_varying(e, t->factors[f])) continue;
      if (found || t->n_factors > 1 || t->coefficient != 1 || t->factors[f]->kind != KVA_EXPR_SYMBOL) return NULL;
      found = t->factors[f];
    }
  }
  kva_kval v = found ? kva_ll_symbol_value(e, found) : NULL;
  return v && v->op == KVA_K_CONVERT ? v->args[0] : NULL;
}

LLVMValueRef kva_ll_permute(kva_emit *e, const kva_kinstr *load) {
  const char *name = instruction(e, load->buf->dtype);
  kva_kval index = name ? index_of(e, load->index) : NULL;
  int64_t n = index ? count_of(index) : 0;
  if (n < 1 || n > (int64_t)e->lanes.n) return NULL;
  LLVMValueRef uniform, bits[16], none = LLVMConstNull(LLVMInt1TypeInContext(e->ctx));
  (void)kva_ll_expr_parts(e, load->index, &uniform);
  for (unsigned i = 0; i < e->lanes.n; i++) bits[i] = i < n ? LLVMConstNot(none) : none;
  LLVMValueRef mask = LLVMConstVector(bits, e->lanes.n);
  LLVMValueRef table = kva_ll_masked_vector(e, load->buf, uniform ? uniform : kva_ll_i64(e, 0), mask);
  LLVMValueRef args[] = {table, kva_ll_use(e, index)};
  return kva_ll_intrinsic(e, name, 0, NULL, 2, args);
}
