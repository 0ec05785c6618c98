/* Remainders of floats for targets without fmod, in f64 arithmetic.
 *
 * One round is r <- r - trunc(r/y) y, for r = |x|, y = |y|, with a single rounding (fma). Its result is exact. If the
 * rounded quotient q is at least 2^53, the result is the remainder of a rounded division, which is a float (Boldo and
 * Daumas, "Representable correcting terms for possibly underflowing floating point operations", 2003); if q is smaller,
 * it is a multiple of y's unit in the last place, below y. Multiples of the smallest float do not underflow. Each round
 * subtracts a whole multiple of y, so the remainder modulo y is unchanged and the quotient loses 53 bits. A q that was
 * rounded up leaves a small negative r; adding y at the end corrects it.
 *
 * The largest quotient of two f32 is 2^277: six rounds. Quotients of f64 reach 2^2098 and overflow. So r is first
 * reduced by y 2^1400, then by y 2^700, where these multiples of y are in range. Then no quotient exceeds 2^724, for
 * which 14 rounds suffice. */
#include "codegen/legalize.h"

#include <math.h>

enum { ROUNDS_F32 = 6, ROUNDS_F64 = 14 };

static kva_kval reduce(kva_mb *b, kva_kval r, kva_kval y, int rounds) {
  for (int i = 0; i < rounds; i++) r = mb_fma(b, mb_neg(b, mb_trunc(b, mb_div(b, r, y))), y, r);
  return r;
}

/* r reduced by `multiple` if y is below `limit`, else r. */
static kva_kval reduce_below(kva_mb *b, kva_kval r, kva_kval multiple, kva_kval y, double limit) {
  return mb_select(b, mb_lt(b, y, kva_mb_f64(b, limit)), reduce(b, r, multiple, ROUNDS_F64), r);
}

static kva_kval remainder_of(kva_mb *b, kva_kval x, kva_kval y) {
  bool wide = x->dtype == KVA_F64;
  kva_kval top = mb_abs(b, wide ? x : kva_mb_cast(b, KVA_K_CONVERT, x, KVA_F64)), r = top;
  kva_kval by = mb_abs(b, wide ? y : kva_mb_cast(b, KVA_K_CONVERT, y, KVA_F64)),
           infinity = kva_mb_f64(b, (double)INFINITY);
  if (wide) {
    kva_kval scale = kva_mb_f64(b, 0x1p700), by_700 = mb_mul(b, by, scale);
    r = reduce_below(b, r, mb_mul(b, by_700, scale), by, 0x1p-400);
    r = reduce_below(b, r, by_700, by, 0x1p300);
  }
  r = reduce(b, r, by, wide ? ROUNDS_F64 : ROUNDS_F32);
  r = mb_select(b, mb_lt(b, r, kva_mb_f64(b, 0)), mb_add(b, r, by), r);
  kva_kval whole = mb_and(b, mb_eq(b, by, infinity), mb_lt(b, top, infinity));
  r = mb_select(b, whole, top, r);
  return kva_mb_copy_sign(b, wide ? r : kva_mb_cast(b, KVA_K_CONVERT, r, KVA_F32), x);
}

static void legalize(void *user, kva_kinstr *i) {
  if (i->op != KVA_K_rem || (i->dtype != KVA_F32 && i->dtype != KVA_F64)) return;
  kva_mb b = {user, i};
  kva_mb_become(i, remainder_of(&b, i->args[0], i->args[1]));
}

void kva_legalize_rem(kva_kernel *k) {
  kva_k_each_instr(k, legalize, k);
}
