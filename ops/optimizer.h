/* Shared by optimiser updates: operands p, g and moments of one type, then scalars. Updates are elementwise, so a
 * parameter's step is one pass over memory. */
#ifndef KVA_OPS_OPTIMIZER_H
#define KVA_OPS_OPTIMIZER_H

#include "ops/build.h"

/* The row of an optimizer, or NULL; the names of all optimizers in table order (out_names has room for kva_ops.n), also
 * as "a, b, c". */
const kva_op_info *kva_optimizer_find(const char *name);
uint32_t kva_optimizer_names(const char **out_names);
const char *kva_optimizer_list(kva_arena *arena);
/* What a number of the train block is where nothing sets it: the optimizer's default, or else the block's. */
double kva_optimizer_default(const kva_op_info *op, const kva_attr_field *number);
/* The attributes of an optimizer's update: the spec's settings, with the given weight_decay. */
void *kva_optimizer_attrs(kva_arena *arena, const kva_op_info *op, const kva_train_spec *spec, double weight_decay);

/* The first n_tensors operands have the type of operand 0; operand n_tensors is a float scalar, the learning rate. Sets
 * the types of results 0 .. n_results-1. */
KVA_MUST_USE kva_status kva_optimizer_infer(kva_module *m, const kva_node *n, uint32_t n_tensors, uint32_t n_results,
                                            const kva_type **out_types);

/* Element idx of operand i in the compute type of operand 0. */
kva_kval kva_optimizer_operand(kva_lower *l, const kva_node *n, uint32_t i, const kva_expr *const *idx);
/* x * scale + y */
kva_kval kva_k_scaled(kva_lower *l, kva_kval x, double scale, kva_kval y);
/* g + weight_decay * p: weight decay as part of the gradient; g without one, whatever p is. */
double kva_decayed(double g, double weight_decay, double p);
kva_kval kva_decayed_gradient(kva_lower *l, const kva_node *n, double weight_decay, const kva_expr *const *idx);

#endif
