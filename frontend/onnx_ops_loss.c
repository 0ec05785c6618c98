/* Rules: the classification losses. Classes are axis 1. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

typedef struct loss {
  kva_value *log_prob, *target, *weight;
  bool has_ignored;
  int64_t ignored;
} loss;

/* The weight of each target's class; 0 for the ignored class. */
static kva_value *target_weights(kva_onnx_call *k, const loss *l, kva_value *class_index, kva_value *is_ignored) {
  kva_builder *b = k->b;
  kva_value *one = kva_scalar_like(b, l->log_prob, 1);
  kva_value *w = l->weight ? kva_onnx_gather(b, l->weight, class_index, 0) : kva_expand_like(b, one, l->target->type);
  return is_ignored ? kva_onnx_where(b, is_ignored, kva_scalar_like(b, l->log_prob, 0), w) : w;
}

static kva_status reduce_loss(kva_onnx_call *k, kva_value *losses, kva_value *weights, kva_value **out) {
  kva_builder *b = k->b;
  const char *mode = kva_onnx_string(k, "reduction", "mean");
  *out = losses;
  if (!strcmp(mode, "none")) return KVA_OK;
  *out = kva_reduce(b, KVA_OP_reduce_sum, losses, 0, NULL, false);
  if (!strcmp(mode, "sum")) return KVA_OK;
  if (strcmp(mode, "mean")) return kva_onnx_fail(k, KVA_INVALID, "attribute 'reduction': '%s'", mode);
  *out = kva_div(b, *out, kva_reduce(b, KVA_OP_reduce_sum, weights, 0, NULL, false));
  return KVA_OK;
}

/* -weight[target] * log_prob[target], then the reduction; the mean divides by the sum of the weights. */
static kva_status likelihood_loss(kva_onnx_call *k, const loss *l, kva_value **out) {
  kva_builder *b = k->b;
  kva_value *index = l->target, *is_ignored = NULL;
  if (l->log_prob->type->rank != index->type->rank + 1)
    return kva_onnx_fail(k, KVA_INVALID, "target of rank %u for scores of rank %u", index->type->rank,
                         l->log_prob->type->rank);
  if (l->has_ignored) {
    is_ignored = kva_build2(b, KVA_OP_equal, index, kva_scalar_like(b, index, (double)l->ignored));
    index = kva_onnx_where(b, is_ignored, kva_scalar_like(b, index, 0), index);
  }
  kva_value *in[] = {l->log_prob, kva_onnx_unsqueeze(b, index, 1, 1)};
  kva_value *picked = kva_build(b, KVA_OP_gather_elements, 2, in, &(kva_gather_elements_attrs){.axis = 1});
  kva_value *weights = target_weights(k, l, index, is_ignored);
  picked = kva_neg(b, kva_reshape_like(b, picked, l->target->type));
  return reduce_loss(k, kva_mul(b, picked, weights), weights, out);
}

/* The scores have a row for each target. */
static kva_value *read_scores(kva_onnx_call *k) {
  kva_value *scores = kva_onnx_in(k, 0);
  const kva_type *target = kva_onnx_in(k, 1)->type;
  kva_dim dims[KVA_MAX_RANK] = {NULL};
  for (uint32_t i = 0; i < target->rank && scores->type->rank == target->rank + 1; i++)
    if (kva_expr_is_const(target->dims[i], NULL)) dims[i ? i + 1 : 0] = target->dims[i];
  return kva_onnx_with_dims(k, scores, dims, "the scores of a loss");
}

/* One target for each row of the scores. */
static kva_value *read_target(kva_onnx_call *k, const kva_value *log_prob) {
  kva_value *target = kva_onnx_in(k, 1);
  kva_dim dims[KVA_MAX_RANK];
  if (!k->b->assumes || log_prob->type->rank != target->type->rank + 1) return target;
  for (uint32_t i = 0; i < target->type->rank; i++) {
    bool known = kva_expr_is_const(kva_onnx_dim(target, i), NULL);
    dims[i] = known ? kva_onnx_dim(target, i) : kva_onnx_dim(log_prob, i ? i + 1 : 0);
  }
  return kva_assume(k->b, target, dims, "the targets of a loss");
}

static loss read_loss(kva_onnx_call *k, kva_value *log_prob) {
  return (loss){.log_prob = log_prob,
                .target = read_target(k, log_prob),
                .weight = kva_onnx_in(k, 2),
                .has_ignored = kva_onnx_find_attr(k, "ignore_index") != NULL,
                .ignored = kva_onnx_int(k, "ignore_index", 0)};
}

kva_status kva_onnx_nll_loss(kva_onnx_call *k) {
  loss l = read_loss(k, read_scores(k));
  kva_value *y;
  KVA_TRY(likelihood_loss(k, &l, &y));
  return kva_onnx_done(k, y);
}

kva_status kva_onnx_softmax_cross_entropy(kva_onnx_call *k) {
  kva_value *scores = read_scores(k), *y;
  if (scores->type->rank < 2) return kva_onnx_fail(k, KVA_INVALID, "expected rank 2 or more");
  loss l = read_loss(k, kva_build(k->b, KVA_OP_log_softmax, 1, &scores, &(kva_log_softmax_attrs){.axis = 1}));
  kva_onnx_set_out(k, 1, l.log_prob);
  KVA_TRY(likelihood_loss(k, &l, &y));
  return kva_onnx_done(k, y);
}
