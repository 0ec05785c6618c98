/* Quantised weights: codes of 8 or 4 bits in blocks along the depth of the product that reads them, with a scale for
 * each block, and a zero point unless the codes are symmetric. What a file of weights says of them:
 * docs/quantization.md.
 */
#ifndef KVA_PASSES_QUANTIZE_H
#define KVA_PASSES_QUANTIZE_H

#include "passes/passes.h"

typedef struct kva_quantization {
  int bits;       /* 8, 4 */
  int64_t block;  /* elements that share a scale: a power of two */
  bool symmetric; /* no zero points */
} kva_quantization;

/* Names of the tensors beside that of the codes. */
#define KVA_QUANTIZED_SCALE ".scale"
#define KVA_QUANTIZED_ZERO  ".zero"

/* Who reads a matrix; 0: others, too, or nobody, or it is no matrix of floats. */
typedef enum kva_readers {
  KVA_READ_BY_PRODUCTS = 1, /* as their second operand, in one orientation */
  KVA_READ_BY_ROWS = 2,     /* lookups of rows */
} kva_readers;

/* The readers of v, the value of a parameter, which may be in blocks of codes if there are some. *out_axis: along which
 * axis, the depth of the products or the row. */
kva_readers kva_readers_of(const kva_value *v, uint32_t *out_axis);
/* The same of all reads of a state. */
kva_readers kva_readers_of_state(const kva_module *m, const kva_state *s, uint32_t *out_axis);

typedef struct kva_quantized {
  kva_tensor_data codes, scale, zero; /* zero.data NULL: symmetric */
} kva_quantized;
/* Quantises matrix w in blocks along `axis`; memory of the arena. Scales are those of the least squared error among a
 * few. An element that is not finite is KVA_INVALID, reported with `name`. */
KVA_MUST_USE kva_status kva_quantize_matrix(const kva_quantization *how, const kva_tensor_data *w, uint32_t axis,
                                            const char *name, kva_arena *arena, kva_diag *diag, kva_quantized *out);

/* The matrix of type `type` as nodes: constants and their kv.dequantize. Codes are int8, uint8, or bytes (uint8, one
 * axis) that hold two codes of 4 bits each; data are borrowed. NULL, reported: the tensors do not fit. */
kva_value *kva_build_quantized(kva_builder *b, const char *name, const kva_type *type, uint32_t axis,
                               const kva_tensor_data *codes, const kva_tensor_data *scale, const kva_tensor_data *zero);

#endif
