/* Products of codes, quantised integers of 8 bits that stand for code - zero: from sums of products of bytes of one
 * sign by bytes of the other, which are what machines have (dot4 of the kernel IR). Zero points are taken off
 * afterwards,
 *
 *   sum (x - p)(y - q) = sum x y - p sum y - q sum (x - p),
 *
 * and a code of the other sign is one with another zero point. Exact modulo 2^32. */
#ifndef KVA_OPS_CODES_H
#define KVA_OPS_CODES_H

#include "ops/build.h"

typedef struct kva_codes {
  kva_value *codes;
  kva_value *zero; /* of the codes' type; NULL: 0 */
} kva_codes;

enum { KVA_CODES_PER_WORD = 4 }; /* whose products with those of another word are summed by one dot4 */

bool kva_is_byte(const kva_value *x);
/* The payload of a constant, through reshapes, which keep the order; NULL: v is none. */
const kva_tensor_data *kva_reshaped_constant(const kva_value *v);
/* Bytes of one sign, and of the other. */
static inline bool kva_are_of_both_signs(kva_dtype a, kva_dtype b) {
  return (a == KVA_U8 && b == KVA_I8) || (a == KVA_I8 && b == KVA_U8);
}
/* The product of matrices, of rank 2 or more, in int32. x.zero broadcasts to a column of the result, [.., M, 1], y.zero
 * to a row, [.., N]. */
kva_value *kva_matmul_codes(kva_builder *b, kva_codes x, kva_codes y, const kva_matmul_attrs *attrs);
/* The convolution in int32. x.zero is a scalar, w.zero a scalar or one for each channel of the result. Around x are
 * codes that stand for 0. */
kva_value *kva_conv_codes(kva_builder *b, kva_codes x, kva_codes w, const kva_conv_attrs *attrs);

#endif
