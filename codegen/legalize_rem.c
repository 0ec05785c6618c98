/* Remainders of f32 for targets without fmod, in f64 arithmetic.
 *
 * r <- r - trunc(r/y) y for r = |x|, y = |y|. The quotient's 53 bits times the 24 of y, taken from r in one rounding,
 * leave an exact remainder: it is a multiple of y's last place and below 2^-52 of r. The largest quotient of two f32 is
 * 2^277, so six rounds end below y. A quotient that was rounded up leaves a small negative r, to which y is added. */
#include "codegen/legalize.h"

#include <math.h>

enum { ROUNDS = 6 };

static kva_kval remainder_f32(kva_mb *b, kva_kval x, kva_kval y) {
  kva_kval top = mb_abs(b, kva_mb_cast(b, KVA_K_CONVERT, x, KVA_F64));
  kva_kval by = mb_abs(b, kva_mb_cast(b, KVA_K_CONVERT, y, KVA_F64)), infinity = kva_mb_f64(b, (double)INFINITY);
  kva_kval r = top;
  for (int i = 0; i < ROUNDS; i++) r = mb_fma(b, mb_neg(b, mb_trunc(b, mb_div(b, r, by))), by, r);
  r = mb_select(b, mb_lt(b, r, kva_mb_f64(b, 0)), mb_add(b, r, by), r);
  kva_kval whole = mb_and(b, mb_eq(b, by, infinity), mb_lt(b, top, infinity));
  r = mb_select(b, whole, top, r);
  return kva_mb_copy_sign(b, kva_mb_cast(b, KVA_K_CONVERT, r, KVA_F32), x);
}

static void legalize(void *user, kva_kinstr *i) {
  if (i->op != KVA_K_rem || i->dtype != KVA_F32) return;
  kva_mb b = {user, i};
  kva_mb_become(i, remainder_f32(&b, i->args[0], i->args[1]));
}

void kva_legalize_rem(kva_kernel *k) {
  kva_k_each_instr(k, legalize, k);
}
