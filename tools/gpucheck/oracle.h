/* Single elements of the named kernels' results, in double and straight from their definitions: for results too large
 * for the reference evaluator, on machines that do not have it. */
#ifndef KVA_TOOLS_GPUCHECK_ORACLE_H
#define KVA_TOOLS_GPUCHECK_ORACLE_H

#include "runtime/runtime.h"

/* What the model's text says of the operator's attributes. */
typedef struct gpu_form {
  bool transpose_a, transpose_b; /* products */
  bool causal, documents;        /* attention; documents: the input after v numbers them */
  int64_t window;                /* attention: keys that are visible; 0: all */
} gpu_form;

typedef struct gpu_element {
  double value;
  double scale; /* root of the sum of the squared terms that make up the value */
} gpu_element;

/* An element of output `output`, whose indices are `at`. */
typedef gpu_element (*gpu_oracle)(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);

gpu_element gpu_oracle_product(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_bias_relu(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_attention(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_attention_gradients(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_shift_rope(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_rms_norm(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_rms_norm_gradients(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_swiglu(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_softmax(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);
gpu_element gpu_oracle_negation(const gpu_form *form, const kva_tensor *in, int output, const int64_t *at);

#endif
