/* Fine-tuning: which parameters of a model train, and how. Names are matched by glob patterns (fnmatch: * ? [...]), a
 * pattern that matches nothing is an error that lists what there is. */
#ifndef KVA_PASSES_TUNE_H
#define KVA_PASSES_TUNE_H

#include "passes/passes.h"

typedef struct kva_patterns {
  uint32_t n;
  const char *const *v;
} kva_patterns;

/* New initial values for what matches. */
typedef struct kva_tune_init {
  const char *pattern;
  kva_init_kind kind; /* ZEROS, CONSTANT, NORMAL, UNIFORM */
  bool he;            /* NORMAL: a is sqrt(2 / (elements / first extent)), He's rule for filters [M, C, ...] */
  double a, b;
} kva_tune_init;

struct kva_tune_options {
  kva_patterns train;  /* given: what trains, all else is frozen */
  kva_patterns freeze; /* does not train, whatever `train` says */
  kva_patterns lora;   /* weights of matrix products that get low-rank updates; all else is frozen but for `train` */
  int64_t lora_rank;
  double lora_alpha;
  uint32_t n_init;
  const kva_tune_init *init;
};

/* What pass loss makes: function "loss" from function 0 for a model without a train block, its first output against a
 * further input. */
struct kva_loss_options {
  const char *name; /* "cross_entropy": integer input `labels`; a softmax at the end of the model is left out; classes
                       lie on the last axis, from rank 4 on on axis 1; metric accuracy. "mse": input `target` like the
                       output */
  kva_dtype labels; /* KVA_I64 or KVA_I32 */
  const kva_train_spec *spec; /* copied: the module's m->train */
};

/* Values for parameters from elsewhere: those of a saved training run. `find` gives the tensor of a name or NULL.
 * Parameters and named constants of that name get it (copied) as initial value, in their type: floats of 16 bits and
 * more are rounded to it, where it holds them. Low-rank updates beside them that the model itself lacks are merged:
 * W + scale * lora_a lora_b. *out_used: how many tensors were taken. */
typedef const kva_tensor_data *(*kva_find_weight)(void *user, const char *name);
KVA_MUST_USE kva_status kva_set_weights(kva_module *m, kva_find_weight find, void *user, int64_t *out_used);
/* `data`, floats, in the place of the state, which goes; kv.cast widens them to its type. Data are borrowed. */
KVA_MUST_USE kva_status kva_set_constant(kva_module *m, kva_state *state, const kva_tensor_data *data);
/* Parameters of floats with values that products alone read as second operand become constants: for a module whose
 * parameters nobody will set again. Passes then store them in the order of products. */
KVA_MUST_USE kva_status kva_set_constants(kva_module *m);

/* For kva_tune and kva_set_weights: the node that makes a named floating-point constant, or NULL for other nodes; a
 * uniform one may be an `expand` of its number. */
bool kva_is_named_constant(const kva_node *n);
#define KVA_LORA_A     ".lora_a"
#define KVA_LORA_B     ".lora_b"
#define KVA_LORA_SCALE ".lora_scale"

#endif
