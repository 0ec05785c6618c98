/* Attributes of every operator that has some, once: KVA_ATTRS_<op>(X) with X(KIND, field, default). The structs
 * kva_<op>_attrs follow from it, and ops.c makes the field tables. Meanings: head of ops/<op>.c. */
#ifndef KVA_OPS_ATTRS_H
#define KVA_OPS_ATTRS_H

#include "ir/attr.h"

#define KVA_ATTRS_constant(X)    X(TENSOR, value, 0)
#define KVA_ATTRS_state_read(X)  X(STATE, state, 0)
#define KVA_ATTRS_state_write(X) X(STATE, state, 0)
#define KVA_ATTRS_kernel(X)      X(STR, name, 0)
/* binds: symbols that the node gives a value to; meaning: head of the operator's file */
#define KVA_ATTRS_if(X)   X(SYMBOLS, binds, 0)
#define KVA_ATTRS_loop(X) X(INT, carried, 0) X(DIM, trips, 0) X(SYMBOLS, binds, 0)
#define KVA_ATTRS_bind(X) X(SYMBOLS, symbol, 0) X(DIM, bound, 0)
#define KVA_ATTRS_dims(X) X(DIMS, values, 0) X(BOOL, scalar, 0)
#define KVA_ATTRS_iota(X) X(DIMS, shape, 0) X(INT, axis, 0) X(DTYPE, dtype, KVA_I64)

#define KVA_ATTRS_gelu(X)      X(BOOL, tanh, 0)
#define KVA_ATTRS_is_inf(X)    X(BOOL, detect_negative, 1) X(BOOL, detect_positive, 1)
#define KVA_ATTRS_cast(X)      X(DTYPE, to, KVA_F32) X(BOOL, saturate, 1)
#define KVA_ATTRS_bitcast(X)   X(DTYPE, to, KVA_F32)
#define KVA_ATTRS_dropout(X)   X(FLOAT, ratio, 0.5)
#define KVA_ATTRS_mod(X)       X(BOOL, fmod, 0)
#define KVA_ATTRS_bit_shift(X) X(BOOL, left, 1)

#define KVA_REDUCE_ATTRS(X)      X(INTS, axes, 0) X(BOOL, keepdims, 1)
#define KVA_ATTRS_reduce_sum(X)  KVA_REDUCE_ATTRS(X)
#define KVA_ATTRS_reduce_mean(X) KVA_REDUCE_ATTRS(X)
#define KVA_ATTRS_reduce_max(X)  KVA_REDUCE_ATTRS(X)
#define KVA_ATTRS_reduce_min(X)  KVA_REDUCE_ATTRS(X)
#define KVA_ATTRS_reduce_prod(X) KVA_REDUCE_ATTRS(X)
#define KVA_ATTRS_partial_sum(X) X(INT, leading, 1) X(INT, rows, 1) X(INT, blocks, 1)
#define KVA_ARG_ATTRS(X)         X(INT, axis, 0) X(BOOL, keepdims, 1) X(BOOL, select_last, 0)
#define KVA_ATTRS_argmax(X)      KVA_ARG_ATTRS(X)
#define KVA_ATTRS_argmin(X)      KVA_ARG_ATTRS(X)
#define KVA_SCAN_ATTRS(X)        X(INT, axis, 0) X(BOOL, exclusive, 0) X(BOOL, reverse, 0)
#define KVA_ATTRS_cumsum(X)      KVA_SCAN_ATTRS(X)
#define KVA_ATTRS_cumprod(X)     KVA_SCAN_ATTRS(X)

#define KVA_ATTRS_reshape(X)   X(DIMS, shape, 0)
#define KVA_ATTRS_transpose(X) X(INTS, perm, 0)
/* result[i] = x[starts + steps * i], shape given; in bounds by construction */
#define KVA_ATTRS_slice(X)  X(DIMS, starts, 0) X(DIMS, shape, 0) X(INTS, steps, 0)
#define KVA_ATTRS_expand(X) X(DIMS, shape, 0)
/* mode: "constant" (operand 1 or zero), "edge", "reflect", "wrap"; negative amounts crop */
#define KVA_ATTRS_pad(X)             X(DIMS, before, 0) X(DIMS, after, 0) X(STR, mode, 0)
#define KVA_ATTRS_concat(X)          X(INT, axis, 0)
#define KVA_ATTRS_gather(X)          X(INT, axis, 0)
#define KVA_ATTRS_gather_grad(X)     X(INT, axis, 0) X(DIM, extent, 0)
#define KVA_ATTRS_sort_indices(X)    X(DIM, extent, 0) X(INT, owners, 64)
#define KVA_ATTRS_gather_elements(X) X(INT, axis, 0)
#define KVA_ATTRS_gather_nd(X)       X(INT, batch_dims, 0)
/* reduction: NULL (last one wins), "add", "mul", "max", "min" */
#define KVA_ATTRS_scatter_elements(X) X(INT, axis, 0) X(STR, reduction, 0)
#define KVA_ATTRS_scatter_nd(X)       X(STR, reduction, 0)

/* Operands are [..., M, K] and [..., K, N], or with the flag [..., K, M] / [..., N, K]. to: type of the result, the
 * operands' or a wider float; absent: the operands'. */
#define KVA_ATTRS_matmul(X) X(BOOL, transpose_a, 0) X(BOOL, transpose_b, 0) X(DTYPE, to, 0)
/* One entry per spatial axis; pads: all begins, then all ends (ONNX). */
#define KVA_CONV_ATTRS(X)             X(INTS, strides, 0) X(INTS, pads, 0) X(INTS, dilations, 0) X(INT, group, 1)
#define KVA_ATTRS_conv(X)             KVA_CONV_ATTRS(X)
#define KVA_ATTRS_conv_input_grad(X)  KVA_CONV_ATTRS(X) X(DIMS, spatial, 0)
#define KVA_ATTRS_conv_weight_grad(X) KVA_CONV_ATTRS(X) X(INTS, kernel, 0) X(DTYPE, to, 0) /* to: as in matmul */
#define KVA_POOL_ATTRS(X) \
  X(INTS, kernel, 0) X(INTS, strides, 0) X(INTS, pads, 0) X(INTS, dilations, 0) X(BOOL, ceil_mode, 0)
#define KVA_ATTRS_max_pool(X)      KVA_POOL_ATTRS(X) X(BOOL, column_major, 0)
#define KVA_ATTRS_max_pool_grad(X) KVA_POOL_ATTRS(X) X(DIMS, spatial, 0)
#define KVA_ATTRS_avg_pool(X)      KVA_POOL_ATTRS(X) X(BOOL, count_include_pad, 0)
#define KVA_ATTRS_avg_pool_grad(X) KVA_POOL_ATTRS(X) X(BOOL, count_include_pad, 0) X(DIMS, spatial, 0)

#define KVA_ATTRS_softmax(X)     X(INT, axis, -1)
#define KVA_ATTRS_log_softmax(X) X(INT, axis, -1)
/* Normalises over the axes from `axis` to the last. */
#define KVA_ATTRS_rms_norm(X)      X(INT, axis, -1) X(FLOAT, eps, 1e-5)
#define KVA_ATTRS_layer_norm(X)    X(INT, axis, -1) X(FLOAT, eps, 1e-5)
#define KVA_ATTRS_batch_norm(X)    X(FLOAT, eps, 1e-5)
#define KVA_ATTRS_cross_entropy(X) X(INT, ignore_index, -1)

/* boundary: "zero" (default), "keep" (row 0 unmixed), "edge" (row 0 repeated). time_axis 1: [B,T,H,D], 2: [B,H,T,D]. */
#define KVA_SHIFT_ATTRS(X)                X(INT, time_axis, 2) X(STR, boundary, 0)
#define KVA_ATTRS_kv_shift(X)             KVA_SHIFT_ATTRS(X)
#define KVA_ATTRS_kv_shift_input_grad(X)  KVA_SHIFT_ATTRS(X)
#define KVA_ATTRS_kv_shift_weight_grad(X) KVA_SHIFT_ATTRS(X) X(DIMS, weight_shape, 0)
#define KVA_ATTRS_kv_shift_grads(X)       X(INT, time_axis, 2)
#define KVA_ATTRS_rope(X)                 X(BOOL, interleaved, 0)
/* scale 0: 1/sqrt(D). window 0: none, else a query sees keys t-window < s <= t. softcap 0: off. offset: position of
 * query 0 among the keys (causal, window, alibi); absent: 0. */
#define KVA_ATTENTION_ATTRS(X) \
  X(BOOL, causal, 0) X(FLOAT, scale, 0) X(FLOAT, softcap, 0) X(INT, window, 0) X(DIM, offset, 0)
#define KVA_ATTRS_attention(X)         KVA_ATTENTION_ATTRS(X)
#define KVA_ATTRS_attention_grad_q(X)  KVA_ATTENTION_ATTRS(X)
#define KVA_ATTRS_attention_grad_kv(X) KVA_ATTENTION_ATTRS(X)

#define KVA_ATTRS_random_uniform(X) X(DIMS, shape, 0) X(DTYPE, dtype, KVA_F32) X(INT, stream, 0)
#define KVA_ATTRS_random_normal(X)  X(DIMS, shape, 0) X(DTYPE, dtype, KVA_F32) X(INT, stream, 0)
#define KVA_ATTRS_sgd(X)            X(FLOAT, weight_decay, 0)
#define KVA_ATTRS_momentum(X)       X(FLOAT, momentum, 0.9) X(BOOL, nesterov, 0) X(FLOAT, weight_decay, 0)
#define KVA_ATTRS_adagrad(X)        X(FLOAT, eps, 1e-10) X(FLOAT, weight_decay, 0)
#define KVA_ATTRS_adamw(X)          X(FLOAT, beta1, 0.9) X(FLOAT, beta2, 0.999) X(FLOAT, eps, 1e-8) X(FLOAT, weight_decay, 0)

#define KVA_ATTR_FIELD(KIND, name, def) KVA_ATTR_CTYPE_##KIND name;
#define KVA_ATTR_STRUCT_ATTRS(op)   \
  typedef struct kva_##op##_attrs { \
    KVA_ATTRS_##op(KVA_ATTR_FIELD)  \
  } kva_##op##_attrs;
#define KVA_ATTR_STRUCT_PLAIN(op)
/* What code that a family shares reads: the attributes of each of its operators begin with the family's. */
typedef struct kva_reduce_attrs {
  KVA_REDUCE_ATTRS(KVA_ATTR_FIELD)
} kva_reduce_attrs;
typedef struct kva_arg_attrs {
  KVA_ARG_ATTRS(KVA_ATTR_FIELD)
} kva_arg_attrs;
typedef struct kva_scan_attrs {
  KVA_SCAN_ATTRS(KVA_ATTR_FIELD)
} kva_scan_attrs;
#define OP(name, min_in, max_in, n_out, traits, ATTR, ...) KVA_ATTR_STRUCT_##ATTR(name)
#include "ops/ops.def"
#undef OP

#endif
