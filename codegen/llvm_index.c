/* Index expressions as i64 values: of lane 0, or of every lane. LLVM's passes eliminate common subexpressions. */
#include "codegen/llvm_internal.h"

void kva_ll_bind(kva_emit *e, const kva_expr *symbol, LLVMValueRef value) {
  KVA_ASSERT(symbol->kind == KVA_EXPR_SYMBOL && LLVMTypeOf(value) == LLVMInt64TypeInContext(e->ctx));
  for (uint32_t i = e->bindings.len; i-- > 0;) {
    if (e->bindings.data[i].symbol != symbol) continue;
    e->bindings.data[i].value = value;
    return;
  }
  kva_binding binding = {symbol, value};
  KVA_PUSH(e->scratch, &e->bindings, binding);
}

kva_kval kva_ll_symbol_value(const kva_emit *e, const kva_expr *symbol) {
  for (uint32_t i = 0; i < e->k->value_symbols.len; i++) {
    if (e->k->value_symbols.data[i] == symbol) return e->k->values.data[i];
  }
  return NULL;
}

static bool symbol_varying(const kva_emit *e, const kva_expr *symbol) {
  if (symbol == e->lanes.var) return true;
  kva_kval v = kva_ll_symbol_value(e, symbol);
  return v && e->varying[v->id];
}

typedef struct varying_query {
  const kva_emit *e;
  bool found;
} varying_query;

static void visit_varying(void *user, const kva_expr *symbol) {
  varying_query *q = user;
  q->found |= symbol_varying(q->e, symbol);
}

bool kva_ll_expr_varying(const kva_emit *e, const kva_expr *x) {
  if (e->lanes.n == 1) return false;
  varying_query q = {e, false};
  kva_expr_each_symbol(x, visit_varying, &q);
  return q.found;
}

static bool term_varying(const kva_emit *e, const kva_expr_term *t) {
  for (uint32_t f = 0; f < t->n_factors; f++) {
    if (kva_ll_expr_varying(e, t->factors[f])) return true;
  }
  return false;
}

static bool is_multiple(const kva_expr *x, int64_t n) {
  KVA_ASSERT(n > 0);
  if (x->kind != KVA_EXPR_SUM || x->constant % n) return false;
  for (uint32_t i = 0; i < x->n_terms; i++) {
    if (x->terms[i].coefficient % n) return false;
  }
  return true;
}

/* x is var + rest, and lanes have the same rest, a multiple of n. */
static bool is_var_at_multiple(const kva_emit *e, const kva_expr *x, int64_t n) {
  const kva_expr *coefficient, *rest;
  if (!kva_expr_affine(e->k->exprs, x, e->lanes.var, &coefficient, &rest)) return false;
  return kva_expr_is(coefficient, 1) && !kva_ll_expr_varying(e, rest) && is_multiple(rest, n);
}

/* mod(var + rest, M): lane 0 is at a multiple of the lane count, as in every vector of a loop. If M and rest are
 * multiples of it, too, the lanes stay within one period and their values are consecutive. The halves of a rotary
 * embedding and reshapes of a row have this form. */
static bool is_consecutive_mod(const kva_emit *e, const kva_expr *x) {
  int64_t period, n = (int64_t)e->lanes.n;
  if (x->kind != KVA_EXPR_MOD || !kva_expr_is_const(x->b, &period) || period <= 0 || period % n) return false;
  return is_var_at_multiple(e, x->a, n);
}

static bool is_consecutive(const kva_emit *e, const kva_expr *atom) {
  return atom == e->lanes.var || is_consecutive_mod(e, atom);
}

int64_t kva_ll_expr_stride(const kva_emit *e, const kva_expr *x) {
  if (!e->lanes.var) return 0;
  if (x->kind != KVA_EXPR_SUM) return is_consecutive(e, x);
  int64_t stride = 0;
  for (uint32_t i = 0; i < x->n_terms; i++) {
    const kva_expr_term *t = &x->terms[i];
    if (!term_varying(e, t)) continue;
    if (stride || t->n_factors != 1 || !is_consecutive(e, t->factors[0])) return 0;
    stride = t->coefficient;
  }
  return stride;
}

/* var + rest by n, where lane 0 is at a multiple of n. */
static bool divides_lanes(const kva_emit *e, const kva_expr *atom, kva_expr_kind kind, int64_t n) {
  return atom->kind == kind && kva_expr_is(atom->b, n) && is_var_at_multiple(e, atom->a, n);
}

static int64_t divisor_of(const kva_emit *e, const kva_expr *x) {
  int64_t n = 0;
  for (uint32_t i = 0; i < x->n_terms && !n; i++) {
    const kva_expr *atom = x->terms[i].n_factors == 1 ? x->terms[i].factors[0] : NULL;
    if (atom && atom->kind == KVA_EXPR_DIV && kva_ll_expr_varying(e, atom)) kva_expr_is_const(atom->b, &n);
  }
  return n;
}

int64_t kva_ll_expr_interleaved(const kva_emit *e, const kva_expr *x, int64_t *out_distance) {
  int64_t n = e->lanes.var && x->kind == KVA_EXPR_SUM ? divisor_of(e, x) : 0;
  bool whole = false;
  *out_distance = 0;
  if (n < 2 || (int64_t)e->lanes.n % n) return 0;
  for (uint32_t i = 0; i < x->n_terms; i++) {
    const kva_expr_term *t = &x->terms[i];
    if (!term_varying(e, t)) continue;
    if (t->n_factors != 1) return 0;
    if (!whole && t->coefficient == 1 && divides_lanes(e, t->factors[0], KVA_EXPR_DIV, n))
      whole = true;
    else if (!*out_distance && divides_lanes(e, t->factors[0], KVA_EXPR_MOD, n))
      *out_distance = t->coefficient;
    else
      return 0;
  }
  return whole ? n : 0;
}

bool kva_ll_expr_aligned(const kva_emit *e, const kva_expr *x) {
  int64_t n = (int64_t)e->lanes.n;
  if (e->lanes.behind_peel) return true;
  if (x->kind != KVA_EXPR_SUM) return is_consecutive(e, x);
  if (x->constant % n) return false;
  for (uint32_t i = 0; i < x->n_terms; i++) {
    const kva_expr_term *t = &x->terms[i];
    if (t->coefficient % n && !(t->n_factors == 1 && is_consecutive(e, t->factors[0]))) return false;
  }
  return true;
}

static bool bound_constant(const kva_emit *e, const kva_expr *symbol, int64_t *out_v) {
  for (uint32_t i = e->bindings.len; i-- > 0;) {
    LLVMValueRef v = e->bindings.data[i].value;
    if (e->bindings.data[i].symbol != symbol) continue;
    if (!LLVMIsAConstantInt(v)) return false;
    *out_v = LLVMConstIntGetSExtValue(v);
    return true;
  }
  return false;
}

/* x is a multiple of *out_step, 0 where x is known, plus a constant. */
static int64_t constant_part(const kva_emit *e, const kva_expr *x, int64_t *out_step) {
  int64_t v, m;
  *out_step = x->kind == KVA_EXPR_SUM ? 0 : 1;
  if (x->kind == KVA_EXPR_MOD && kva_expr_is_const(x->b, &m)) *out_step = kva_gcd(kva_ll_expr_multiple(e, x->a), m);
  if (x->kind == KVA_EXPR_SYMBOL && bound_constant(e, x, &v)) {
    *out_step = 0;
    return v;
  }
  if (x->kind != KVA_EXPR_SUM) return 0;
  int64_t constant = x->constant;
  for (uint32_t i = 0; i < x->n_terms; i++) {
    const kva_expr_term *t = &x->terms[i];
    bool known = t->n_factors == 1 && bound_constant(e, t->factors[0], &v);
    if (known)
      constant += t->coefficient * v;
    else
      *out_step = kva_gcd(*out_step, t->coefficient * (t->n_factors == 1 ? kva_ll_expr_multiple(e, t->factors[0]) : 1));
  }
  return constant;
}

int64_t kva_ll_expr_multiple(const kva_emit *e, const kva_expr *x) {
  int64_t step, constant = constant_part(e, x, &step);
  return kva_gcd(step, constant);
}

bool kva_ll_expr_may_be_multiple(const kva_emit *e, const kva_expr *x, int64_t of) {
  int64_t step, constant = constant_part(e, x, &step);
  return constant % kva_gcd(step, of) == 0;
}

/* Converts any integer value to the i64 of index arithmetic. */
static LLVMValueRef as_i64(kva_emit *e, kva_kval v, LLVMValueRef value) {
  return kva_ll_convert(e, value, v->dtype, KVA_I64);
}

static LLVMValueRef first_lane(kva_emit *e, LLVMValueRef v) {
  return kva_ll_is_vector(v) ? LLVMBuildExtractElement(e->b, v, kva_ll_i64(e, 0), "") : v;
}

static LLVMValueRef symbol_scalar(kva_emit *e, const kva_expr *symbol) {
  kva_kval v = kva_ll_symbol_value(e, symbol);
  if (v) return first_lane(e, as_i64(e, v, kva_ll_use(e, v)));
  for (uint32_t i = e->bindings.len; i-- > 0;) {
    if (e->bindings.data[i].symbol == symbol) return e->bindings.data[i].value;
  }
  KVA_ASSERT(!"symbol without a value");
  return NULL;
}

static LLVMValueRef symbol_lanes(kva_emit *e, const kva_expr *symbol) {
  kva_kval v = kva_ll_symbol_value(e, symbol);
  if (v && e->varying[v->id]) return as_i64(e, v, kva_ll_use(e, v));
  LLVMValueRef base = kva_ll_splat(e, symbol_scalar(e, symbol), e->lanes.n);
  if (symbol != e->lanes.var) return base;
  return LLVMBuildNSWAdd(e->b, base, kva_ll_iota(e, LLVMInt64TypeInContext(e->ctx), e->lanes.n), "");
}

static bool never_negative(const kva_expr *x) {
  int64_t lo;
  return kva_expr_lower_bound(x, &lo) && lo >= 0;
}

/* floor(a / b), or a modulo b. Unsigned division if both operands are provably not negative; else truncation, corrected
 * if the remainder's sign differs from the divisor's. */
static LLVMValueRef floor_division(kva_emit *e, const kva_expr *x, LLVMValueRef a, LLVMValueRef b) {
  bool is_mod = x->kind == KVA_EXPR_MOD;
  if (never_negative(x->a) && never_negative(x->b)) {
    return is_mod ? LLVMBuildURem(e->b, a, b, "") : LLVMBuildUDiv(e->b, a, b, "");
  }
  LLVMTypeRef type = LLVMTypeOf(a);
  LLVMValueRef zero = LLVMConstNull(type), rest = LLVMBuildSRem(e->b, a, b, "");
  LLVMValueRef other_sign = LLVMBuildICmp(e->b, LLVMIntSLT, LLVMBuildXor(e->b, rest, b, ""), zero, "");
  LLVMValueRef off = LLVMBuildAnd(e->b, other_sign, LLVMBuildICmp(e->b, LLVMIntNE, rest, zero, ""), "");
  if (is_mod) return LLVMBuildAdd(e->b, rest, LLVMBuildSelect(e->b, off, b, zero, ""), "");
  return LLVMBuildAdd(e->b, LLVMBuildSDiv(e->b, a, b, ""), LLVMBuildSExt(e->b, off, type, ""), "");
}

static LLVMValueRef minmax(kva_emit *e, bool is_min, LLVMValueRef a, LLVMValueRef b) {
  LLVMValueRef args[] = {a, b};
  return kva_ll_intrinsic1(e, is_min ? "llvm.smin" : "llvm.smax", 2, args);
}

static LLVMValueRef compound(kva_emit *e, const kva_expr *x, LLVMValueRef a, LLVMValueRef b) {
  if (x->kind == KVA_EXPR_DIV || x->kind == KVA_EXPR_MOD) return floor_division(e, x, a, b);
  return minmax(e, x->kind == KVA_EXPR_MIN, a, b);
}

static LLVMValueRef add(kva_emit *e, LLVMValueRef a, LLVMValueRef b) {
  return a ? LLVMBuildNSWAdd(e->b, a, b, "") : b;
}

static LLVMValueRef scale(kva_emit *e, LLVMValueRef a, LLVMValueRef b) {
  return a ? LLVMBuildNSWMul(e->b, a, b, "") : b;
}

static LLVMValueRef coefficient_of(kva_emit *e, const kva_expr_term *t) {
  return t->coefficient == 1 ? NULL : kva_ll_i64(e, t->coefficient);
}

static LLVMValueRef scale_by_factors(kva_emit *e, LLVMValueRef product, const kva_expr_term *t) {
  for (uint32_t f = 0; f < t->n_factors; f++) product = scale(e, product, kva_ll_expr(e, t->factors[f]));
  return product;
}

/* Long sums of shape symbols, such as the offset behind hundreds of symbolic extents, are made once, at the kernel's
 * entry, and kept apart by sign, so that equal parts have equal code. LLVM's analysis of loops takes time that is cubic
 * in the terms of an index; it does not look through a freeze. */
static bool is_shape_term(const kva_emit *e, const kva_expr *x, const kva_expr_term *t) {
  enum { LONG = 8 };
  if (x->n_terms <= LONG || (t->coefficient != 1 && t->coefficient != -1)) return false;
  for (uint32_t f = 0; f < t->n_factors; f++) {
    const kva_expr *factor = t->factors[f];
    if (factor->kind != KVA_EXPR_SYMBOL || factor->extent || kva_ll_symbol_value(e, factor)) return false;
  }
  return true;
}

/* Before the entry's branch, if that is there already. */
static void go_to_entry(kva_emit *e) {
  LLVMBasicBlockRef entry = LLVMGetEntryBasicBlock(e->fn);
  LLVMValueRef branch = LLVMGetBasicBlockTerminator(entry);
  if (branch)
    LLVMPositionBuilderBefore(e->b, branch);
  else
    LLVMPositionBuilderAtEnd(e->b, entry);
}

/* The shape terms of x with this sign; NULL: none. */
static LLVMValueRef sum_of_shape(kva_emit *e, const kva_expr *x, int64_t sign) {
  LLVMValueRef sum = NULL;
  for (uint32_t i = 0; i < x->n_terms; i++)
    if (x->terms[i].coefficient == sign && is_shape_term(e, x, &x->terms[i]))
      sum = add(e, sum, scale_by_factors(e, NULL, &x->terms[i]));
  return sum ? LLVMBuildFreeze(e->b, sum, "") : NULL;
}

static kva_shape_sum shape_sum_of(kva_emit *e, const kva_expr *x) {
  for (uint32_t i = 0; i < e->shape_sums.len; i++)
    if (e->shape_sums.data[i].of == x) return e->shape_sums.data[i];
  LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
  go_to_entry(e);
  kva_shape_sum s = {.of = x, .plus = sum_of_shape(e, x, 1), .minus = sum_of_shape(e, x, -1)};
  LLVMPositionBuilderAtEnd(e->b, here);
  KVA_PUSH(e->scratch, &e->shape_sums, s);
  return s;
}

/* sum, which has the other uniform terms of x (NULL: none), and the shape terms; NULL: neither. */
static LLVMValueRef add_shape_terms(kva_emit *e, const kva_expr *x, LLVMValueRef sum) {
  bool any = false;
  for (uint32_t i = 0; i < x->n_terms; i++) any |= is_shape_term(e, x, &x->terms[i]);
  if (!any) return sum;
  kva_shape_sum s = shape_sum_of(e, x);
  if (s.plus) sum = add(e, sum, s.plus);
  return s.minus ? LLVMBuildNSWSub(e->b, sum ? sum : kva_ll_i64(e, 0), s.minus, "") : sum;
}

static LLVMValueRef add_term(kva_emit *e, LLVMValueRef sum, const kva_expr *x, const kva_expr_term *t) {
  if (is_shape_term(e, x, t)) return sum;
  return add(e, sum, scale_by_factors(e, coefficient_of(e, t), t));
}

static LLVMValueRef sum_scalar(kva_emit *e, const kva_expr *x) {
  LLVMValueRef sum = x->constant || !x->n_terms ? kva_ll_i64(e, x->constant) : NULL;
  for (uint32_t i = 0; i < x->n_terms; i++) sum = add_term(e, sum, x, &x->terms[i]);
  return add_shape_terms(e, x, sum);
}

LLVMValueRef kva_ll_expr(kva_emit *e, const kva_expr *x) {
  switch (x->kind) {
  case KVA_EXPR_SUM: return sum_scalar(e, x);
  case KVA_EXPR_SYMBOL: return symbol_scalar(e, x);
  case KVA_EXPR_OVERFLOW: KVA_ASSERT(!"overflowed index"); return NULL;
  default: return compound(e, x, kva_ll_expr(e, x->a), kva_ll_expr(e, x->b));
  }
}

/* Product of the factors that vary by lane, times the splat of the uniform ones. */
static LLVMValueRef product_lanes(kva_emit *e, const kva_expr_term *t) {
  LLVMValueRef uniform = coefficient_of(e, t), varying = NULL;
  for (uint32_t f = 0; f < t->n_factors; f++) {
    bool varies = kva_ll_expr_varying(e, t->factors[f]);
    if (varies)
      varying = scale(e, varying, kva_ll_expr_lanes(e, t->factors[f]));
    else
      uniform = scale(e, uniform, kva_ll_expr(e, t->factors[f]));
  }
  return uniform ? scale(e, varying, kva_ll_splat(e, uniform, e->lanes.n)) : varying;
}

LLVMValueRef kva_ll_expr_parts(kva_emit *e, const kva_expr *x, LLVMValueRef *out_uniform) {
  *out_uniform = NULL;
  if (x->kind != KVA_EXPR_SUM) return kva_ll_expr_lanes(e, x);
  LLVMValueRef uniform = x->constant ? kva_ll_i64(e, x->constant) : NULL, varying = NULL;
  for (uint32_t i = 0; i < x->n_terms; i++) {
    const kva_expr_term *t = &x->terms[i];
    if (term_varying(e, t))
      varying = add(e, varying, product_lanes(e, t));
    else
      uniform = add_term(e, uniform, x, t);
  }
  *out_uniform = add_shape_terms(e, x, uniform);
  return varying;
}

static LLVMValueRef sum_lanes(kva_emit *e, const kva_expr *x) {
  LLVMValueRef uniform, varying = kva_ll_expr_parts(e, x, &uniform);
  return uniform ? add(e, varying, kva_ll_splat(e, uniform, e->lanes.n)) : varying;
}

LLVMValueRef kva_ll_expr_lanes(kva_emit *e, const kva_expr *x) {
  if (!kva_ll_expr_varying(e, x)) return kva_ll_splat(e, kva_ll_expr(e, x), e->lanes.n);
  switch (x->kind) {
  case KVA_EXPR_SUM: return sum_lanes(e, x);
  case KVA_EXPR_SYMBOL: return symbol_lanes(e, x);
  case KVA_EXPR_OVERFLOW: KVA_ASSERT(!"overflowed index"); return NULL;
  default: return compound(e, x, kva_ll_expr_lanes(e, x->a), kva_ll_expr_lanes(e, x->b));
  }
}
