/* The builder's arithmetic: constants, conversions, folding and neutral elements.
 *
 * x + 0 -> x holds for floats, too, up to the sign of zero for x = -0. x * 0 -> 0 does not (NaN, infinity). */
#include "ir/kernel_fold.h"
#include "ir/kernel_internal.h"

#include <math.h>

/* ---- constants --------------------------------------------------------------------------------------------------- */

static kva_kval constant(kva_kb *b, kva_dtype t, kva_kconst v) {
  kva_kinstr c = {.op = KVA_K_CONST, .dtype = t};
  if (kva_dtype_is_float(t)) c.imm.f = v.f;
  if (!kva_dtype_is_float(t)) c.imm.i = v.i;
  return kva_kb_pure(b, &c);
}

kva_kval kva_k_const_f(kva_kb *b, kva_dtype t, double v) {
  KVA_ASSERT(kva_dtype_is_float(t));
  return constant(b, t, (kva_kconst){.f = kva_round_f64(t, v)});
}

kva_kval kva_k_const_i(kva_kb *b, kva_dtype t, int64_t v) {
  KVA_ASSERT(kva_dtype_is_int(t) || t == KVA_BOOL);
  return constant(b, t, (kva_kconst){.i = t == KVA_BOOL ? v != 0 : kva_wrap_i64(t, v)});
}

kva_kval kva_k_const(kva_kb *b, kva_dtype t, double v) {
  return constant(b, t, kva_kfold_convert(KVA_F64, t, (kva_kconst){.f = v}));
}

static kva_kconst value_of(const kva_kinstr *c) {
  kva_kconst v = {.i = c->imm.i};
  if (kva_dtype_is_float(c->dtype)) v.f = c->imm.f;
  return v;
}

static bool is_value(const kva_kinstr *v, int64_t n) {
  if (!v || !kva_kb_is_const(v)) return false;
  return kva_dtype_is_float(v->dtype) ? v->imm.f == (double)n : v->imm.i == n;
}

/* ---- conversions ------------------------------------------------------------------------------------------------- */

static kva_kval convert_instr(kva_kb *b, kva_kop op, kva_kval x, kva_dtype to) {
  KVA_ASSERT(x->dtype != KVA_DTYPE_NONE && kva_k_compute_type(to) != KVA_DTYPE_NONE);
  kva_kinstr i = {.op = op, .dtype = to, .n_args = 1};
  i.args[0] = x;
  return kva_kb_pure(b, &i);
}

kva_kval kva_k_convert(kva_kb *b, kva_kval x, kva_dtype to) {
  x = kva_kb_resolve(x);
  if (x->dtype == to) return x;
  if (kva_kb_is_const(x)) return constant(b, to, kva_kfold_convert(x->dtype, to, value_of(x)));
  return convert_instr(b, KVA_K_CONVERT, x, to);
}

kva_kval kva_k_bitcast(kva_kb *b, kva_kval x, kva_dtype to) {
  x = kva_kb_resolve(x);
  KVA_ASSERT(kva_dtype_bits(x->dtype) == kva_dtype_bits(to));
  if (x->dtype == to) return x;
  if (kva_kb_is_const(x)) return constant(b, to, kva_kfold_bitcast(x->dtype, to, value_of(x)));
  return convert_instr(b, KVA_K_BITCAST, x, to);
}

static bool is_narrowed(const kva_kinstr *x, kva_dtype storage) {
  if (x->op == KVA_K_LOAD) return x->buf->dtype == storage;
  return x->op == KVA_K_NARROW && x->imm.i == storage;
}

kva_kval kva_k_narrow(kva_kb *b, kva_kval x, kva_dtype storage) {
  x = kva_kb_resolve(x);
  KVA_ASSERT(kva_dtype_is_float(storage) && x->dtype == kva_k_compute_type(storage));
  if (x->dtype == storage || is_narrowed(x, storage)) return x;
  if (kva_kb_is_const(x)) return constant(b, x->dtype, (kva_kconst){.f = kva_round_f64(storage, x->imm.f)});
  kva_kinstr i = {.op = KVA_K_NARROW, .dtype = x->dtype, .n_args = 1, .args = {x}, .imm.i = storage};
  return kva_kb_pure(b, &i);
}

/* ---- simplification ---------------------------------------------------------------------------------------------- */

static bool is_commutative(kva_kop op) {
  return op == KVA_K_add || op == KVA_K_mul || op == KVA_K_min || op == KVA_K_max || op == KVA_K_and ||
         op == KVA_K_or || op == KVA_K_xor || op == KVA_K_mulhi || op == KVA_K_eq || op == KVA_K_ne ||
         op == KVA_K_fma; /* in its first two */
}

/* Constants last, then deeper regions first, then older first. Ids alone do not suffice: when a reduction is built a
 * second time, what was hoisted out of the first is older than everything inside. */
static bool in_order(const kva_kinstr *x, const kva_kinstr *y) {
  if (kva_kb_is_const(x) != kva_kb_is_const(y)) return kva_kb_is_const(y);
  if (x->region->depth != y->region->depth) return x->region->depth > y->region->depth;
  return x->id <= y->id;
}

static kva_kval simplify_equal(kva_kb *b, kva_kop op, kva_kval x) {
  bool exact = !kva_dtype_is_float(x->dtype);
  switch (op) {
  case KVA_K_min:
  case KVA_K_max:
  case KVA_K_and:
  case KVA_K_or: return x;
  case KVA_K_sub:
  case KVA_K_xor: return exact ? kva_k_const_i(b, x->dtype, 0) : NULL;
  case KVA_K_eq:
  case KVA_K_le: return exact ? kva_k_const_i(b, KVA_BOOL, 1) : NULL;
  case KVA_K_ne: return exact ? kva_k_const_i(b, KVA_BOOL, 0) : NULL;
  case KVA_K_lt: return kva_k_const_i(b, KVA_BOOL, 0);
  default: return NULL;
  }
}

static bool is_all_ones(const kva_kinstr *v) {
  return is_value(v, v->dtype == KVA_BOOL ? 1 : kva_wrap_i64(v->dtype, -1));
}

/* y is a constant. */
static kva_kval simplify_neutral(kva_kop op, kva_kval x, kva_kval y) {
  bool exact = !kva_dtype_is_float(y->dtype), zero = is_value(y, 0), one = is_value(y, 1);
  switch (op) {
  case KVA_K_add:
  case KVA_K_sub:
  case KVA_K_xor:
  case KVA_K_shl:
  case KVA_K_shr: return zero ? x : NULL;
  case KVA_K_mul: return one ? x : zero && exact ? y : NULL;
  case KVA_K_div: return one ? x : zero && exact ? y : NULL;
  case KVA_K_pow: return one ? x : NULL;
  case KVA_K_and: return zero ? y : is_all_ones(y) ? x : NULL;
  case KVA_K_or: return zero ? x : is_all_ones(y) ? y : NULL;
  default: return NULL;
  }
}

static kva_kval simplify_unary(kva_kop op, kva_kval x) {
  bool is_integer = !kva_dtype_is_float(x->dtype);
  switch (op) {
  case KVA_K_neg:
  case KVA_K_not: return x->op == op ? x->args[0] : NULL;
  case KVA_K_abs: return x->op == op || kva_dtype_is_unsigned(x->dtype) ? x : NULL;
  case KVA_K_floor:
  case KVA_K_ceil:
  case KVA_K_round:
  case KVA_K_trunc: return is_integer ? x : NULL;
  default: return NULL;
  }
}

static bool is_positive_zero(kva_kval v) {
  if (!kva_kb_is_const(v)) return false;
  return kva_dtype_is_float(v->dtype) ? v->imm.f == 0 && !signbit(v->imm.f) : v->imm.i == 0;
}

static kva_kval simplify_select(kva_kval c, kva_kval x, kva_kval y) {
  bool gives_zero = x->op == KVA_K_LOAD && x->n_args && x->args[0] == c; /* where c is false */
  if (x == y || (gives_zero && is_positive_zero(y))) return x;
  if (!kva_kb_is_const(c)) return NULL;
  return c->imm.i ? x : y;
}

static kva_kval simplify(kva_kb *b, kva_kop op, const kva_kval *args) {
  kva_kval x = args[0], y = args[1];
  if (op == KVA_K_select) return simplify_select(x, y, args[2]);
  if (!y) return simplify_unary(op, x);
  if (args[2]) return NULL;
  if (x == y) return simplify_equal(b, op, x);
  return kva_kb_is_const(y) ? simplify_neutral(op, x, y) : NULL;
}

static kva_kval fold(kva_kb *b, kva_kop op, kva_dtype operand, uint32_t n, const kva_kval *args) {
  kva_kconst values[3] = {{0}}, out;
  for (uint32_t i = 0; i < n; i++) {
    if (!kva_kb_is_const(args[i])) return NULL;
    values[i] = value_of(args[i]);
  }
  return kva_kfold_arith(op, operand, values, &out) ? constant(b, kva_kop_result_type(op, operand), out) : NULL;
}

static void check_types(kva_kop op, uint32_t n, const kva_kval *args) {
  uint32_t first = op == KVA_K_select;
  for (uint32_t i = 0; i < n; i++) KVA_ASSERT(args[i]->dtype == (i < first ? KVA_BOOL : args[first]->dtype));
}

kva_kval kva_k_op(kva_kb *b, kva_kop op, kva_kval x, kva_kval y, kva_kval z) {
  uint32_t n = kva_kop_arity(op);
  kva_kval args[3] = {kva_kb_resolve(x), kva_kb_resolve(y), kva_kb_resolve(z)};
  KVA_ASSERT(n && (n > 1) == (y != NULL) && (n > 2) == (z != NULL));
  check_types(op, n, args);
  if (is_commutative(op) && !in_order(args[0], args[1])) {
    kva_kval swapped = args[0];
    args[0] = args[1];
    args[1] = swapped;
  }
  kva_dtype operand = args[op == KVA_K_select]->dtype;
  kva_kval folded = fold(b, op, operand, n, args);
  if (!folded) folded = simplify(b, op, args);
  if (folded) return folded;
  kva_kinstr i = {.op = op, .dtype = kva_kop_result_type(op, operand), .n_args = n};
  memcpy(i.args, args, sizeof args);
  return kva_kb_pure(b, &i);
}
