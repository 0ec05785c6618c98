/* Gathers from no more elements than a vector has: x86 loads those once and permutes them by the indices, in a tenth of
 * a gather's time. So are read rows of few features and tables of codes. A field of a word of 32 bits becomes a float
 * in the same way if a vector has as many lanes as the field has values: weights of 4 bits do with 16 lanes. */
#include "codegen/llvm_internal.h"

enum { MOST_LANES = 16 };

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
  LLVMValueRef uniform, bits[MOST_LANES], none = LLVMConstNull(LLVMInt1TypeInContext(e->ctx));
  (void)kva_ll_expr_parts(e, load->index, &uniform);
  for (unsigned i = 0; i < e->lanes.n; i++) bits[i] = i < n ? LLVMConstNot(none) : none;
  LLVMValueRef mask = LLVMConstVector(bits, e->lanes.n);
  LLVMValueRef table = kva_ll_masked_vector(e, load->buf, uniform ? uniform : kva_ll_i64(e, 0), mask);
  LLVMValueRef args[] = {table, kva_ll_use(e, index)};
  return kva_ll_intrinsic(e, name, 0, NULL, 2, args);
}

/* ---- fields of words --------------------------------------------------------------------------------------------- */

enum { WORD_BITS = 32 };

typedef struct field {
  kva_kval word;
  int64_t bit, bits; /* the lowest one, their number */
  bool is_signed;
} field;

static bool shifts(kva_kval v, kva_kop op) {
  return v->op == op && kva_dtype_bits(v->dtype) == WORD_BITS && v->args[1]->op == KVA_K_CONST;
}

/* v is a field of a word as kv.unpack extracts it: shifted to the top and back, then an integer of the same sign. */
static bool field_of(kva_kval v, field *out) {
  if (v->op != KVA_K_CONVERT || !kva_dtype_is_int(v->dtype) || !shifts(v->args[0], KVA_K_shr)) return false;
  bool is_unsigned = kva_dtype_is_unsigned(v->dtype);
  v = v->args[0];
  if (is_unsigned != kva_dtype_is_unsigned(v->dtype)) return false;
  int64_t right = v->args[1]->imm.i, left = 0;
  v = v->args[0];
  if (shifts(v, KVA_K_shl)) {
    left = v->args[1]->imm.i;
    v = v->args[0];
  }
  *out = (field){v, right - left, WORD_BITS - right, !is_unsigned};
  return left >= 0 && left <= right && right < WORD_BITS;
}

/* Entry i is the float of the field that has the lowest bits of i. */
static LLVMValueRef table_of(kva_emit *e, const field *f) {
  LLVMValueRef table[MOST_LANES];
  int64_t values = INT64_C(1) << f->bits;
  for (int64_t i = 0; i < (int64_t)e->lanes.n; i++) {
    int64_t code = i % values;
    bool negative = f->is_signed && code >= values / 2;
    table[i] = LLVMConstReal(LLVMFloatTypeInContext(e->ctx), (double)(negative ? code - values : code));
  }
  return LLVMConstVector(table, e->lanes.n);
}

/* A permutation reads the lowest bits of its indices alone: the others may hold what is above the field. */
LLVMValueRef kva_ll_float_of_field(kva_emit *e, const kva_kinstr *convert) {
  field f;
  const char *name = convert->dtype == KVA_F32 && field_of(convert->args[0], &f) ? instruction(e, KVA_F32) : NULL;
  if (!name || !kva_target_looks_up(&e->cg->target, f.bits)) return NULL;
  LLVMValueRef word = kva_ll_use(e, f.word);
  if (!kva_ll_is_vector(word)) return NULL;
  if (f.bit) word = LLVMBuildLShr(e->b, word, kva_ll_int(LLVMTypeOf(word), f.bit), "");
  LLVMValueRef args[] = {table_of(e, &f), word};
  return kva_ll_intrinsic(e, name, 0, NULL, 2, args);
}
