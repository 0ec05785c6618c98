/* What the importer and the pass that makes training steps share about batch normalisation. */
#ifndef KVA_OPS_BATCH_NORM_H
#define KVA_OPS_BATCH_NORM_H

#include "ops/build.h"

/* Operands. */
enum { KVA_NORM_X, KVA_NORM_SCALE, KVA_NORM_BIAS, KVA_NORM_MEAN, KVA_NORM_VAR };

/* Mean and variance (biased: the mean of squared differences) of x[N, C, ...] over all axes but the channel's, [C]. */
void kva_batch_statistics(kva_builder *b, kva_value *x, kva_value **out_mean, kva_value **out_var);
/* What running statistics become: momentum * running + (1 - momentum) * current (ONNX BatchNormalization 14). */
kva_value *kva_running_statistic(kva_builder *b, kva_value *running, kva_value *current, double momentum);

#endif
