/* Functions that rows of ops.def name among their facts (ir/op_info.h). Each is in its operator's file or its
 * family's. */
#ifndef KVA_OPS_FACTS_H
#define KVA_OPS_FACTS_H

#include "ops/ops.h"

/* ---- how kernels read their operands (kva_op_info.role) ---------------------------------------------------------- */

kva_operand_role kva_matmul_role(const kva_node *n, uint32_t operand);
kva_operand_role kva_conv_image_role(const kva_node *n, uint32_t operand);
kva_operand_role kva_kv_shift_grads_role(const kva_node *n, uint32_t operand);
kva_operand_role kva_attention_role(const kva_node *n, uint32_t operand);

/* ---- dimensions that index rows (kva_op_info.row_dims) ----------------------------------------------------------- */

int kva_reduce_row_dims(const kva_node *n);
int kva_arg_row_dims(const kva_node *n);
int kva_partial_sum_row_dims(const kva_node *n);
int kva_softmax_row_dims(const kva_node *n);
int kva_log_softmax_row_dims(const kva_node *n);
int kva_rms_norm_row_dims(const kva_node *n);
int kva_layer_norm_row_dims(const kva_node *n);
int kva_cross_entropy_row_dims(const kva_node *n);

/* ---- operands that hold indices (kva_op_info.indexing) ----------------------------------------------------------- */

void kva_gather_indexing(const kva_node *n, kva_indexing *out);
void kva_gather_elements_indexing(const kva_node *n, kva_indexing *out);
void kva_gather_nd_indexing(const kva_node *n, kva_indexing *out);
void kva_gather_grad_indexing(const kva_node *n, kva_indexing *out);
void kva_scatter_elements_indexing(const kva_node *n, kva_indexing *out);
void kva_scatter_nd_indexing(const kva_node *n, kva_indexing *out);
void kva_cross_entropy_indexing(const kva_node *n, kva_indexing *out);

/* ---- panels of columns (kva_op_info.panel) ----------------------------------------------------------------------- */

int64_t kva_join_panels_panel(const kva_node *n);
int64_t kva_join_panels_word(const kva_node *n);
int64_t kva_join_filters_panel(const kva_node *n);
int64_t kva_panel_of_operand(const kva_node *n); /* that of operand 0 */

/* ---- factors of blocks (kva_op_info.factor_block) ---------------------------------------------------------------- */

int64_t kva_dequantize_factor_block(const kva_node *n, uint32_t axis);
kva_kval kva_dequantize_lower_factor(kva_lower *l, const kva_node *n, const kva_expr *const *idx);
kva_kval kva_dequantize_lower_rest(kva_lower *l, const kva_node *n, const kva_expr *const *idx);
bool kva_dequantize_has_zero(const kva_node *n);
kva_kval kva_dequantize_lower_code(kva_lower *l, const kva_node *n, const kva_expr *const *idx);
kva_kval kva_dequantize_lower_zero(kva_lower *l, const kva_node *n, const kva_expr *const *idx);

/* ---- work (kva_op_info.flops) ------------------------------------------------------------------------------------ */

double kva_matmul_flops(const kva_node *n, const kva_sizes *s);
double kva_conv_flops(const kva_node *n, const kva_sizes *s);
double kva_conv_input_grad_flops(const kva_node *n, const kva_sizes *s);
double kva_conv_weight_grad_flops(const kva_node *n, const kva_sizes *s);
double kva_attention_flops(const kva_node *n, const kva_sizes *s);
double kva_attention_cached_flops(const kva_node *n, const kva_sizes *s);
double kva_attention_grad_q_flops(const kva_node *n, const kva_sizes *s);
double kva_attention_grad_kv_flops(const kva_node *n, const kva_sizes *s);
double kva_attention_grad_flops(const kva_node *n, const kva_sizes *s);

/* ---- elements as expressions (kva_op_info.shape_values) ---------------------------------------------------------- */

bool kva_dims_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_add_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_sub_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_mul_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_div_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_mod_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_min_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_max_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_equal_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_less_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_less_equal_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_where_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_neg_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_cast_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_assume_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_reshape_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_expand_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_slice_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_transpose_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_concat_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_gather_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_reduce_sum_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_reduce_prod_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_reduce_min_shape_values(kva_shape_values *v, const kva_node *n);
bool kva_reduce_max_shape_values(kva_shape_values *v, const kva_node *n);

/* ---- operands that agree (kva_op_info.agrees) -------------------------------------------------------------------- */

/* Aligned from the right, as elementwise operators broadcast. */
int kva_agrees_aligned(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);
/* The same, where the others broadcast to operand 0. */
int kva_agrees_with_first(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);
int kva_attention_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);
int kva_batch_norm_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);
int kva_concat_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);
int kva_rope_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);
int kva_cross_entropy_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);
int kva_kv_shift_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);
int kva_matmul_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);

/* ---- with axes moved (kva_op_info.permute) ----------------------------------------------------------------------- */

kva_value *kva_reduce_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved);
kva_value *kva_slice_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved);
kva_value *kva_pad_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved);
kva_value *kva_concat_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved);
kva_value *kva_gather_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved);
kva_value *kva_dequantize_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved);

/* ---- axes that results step along (kva_op_info.source_axis) ------------------------------------------------------ */

int kva_broadcast_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_reduce_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_arg_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_scan_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_top_k_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_reshape_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_assume_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_transpose_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_slice_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_pad_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_concat_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_gather_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_matmul_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_softmax_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_log_softmax_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_rms_norm_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_layer_norm_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_cross_entropy_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_dropout_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_kv_shift_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_rope_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_dequantize_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_join_panels_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_join_filters_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
kva_kval kva_unpack_lower_bytes(kva_lower *l, const kva_node *n, const kva_expr *const *idx);
int kva_unpack_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_attention_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_images_source_axis(const kva_node *n, uint32_t operand,
                           uint32_t axis); /* operand 0 has an image for each of n's */
int kva_pool_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);
int kva_batch_norm_source_axis(const kva_node *n, uint32_t operand, uint32_t axis);

/* ---- chunks of rows (kva_op_info.incremental, lifted) ------------------------------------------------------------ */

kva_status kva_iota_incremental(kva_incremental *c, const kva_node *n);
kva_status kva_scan_incremental(kva_incremental *c, const kva_node *n);
kva_status kva_dropout_incremental(kva_incremental *c, const kva_node *n);
kva_status kva_slice_incremental(kva_incremental *c, const kva_node *n);
kva_status kva_expand_incremental(kva_incremental *c, const kva_node *n);
kva_status kva_pad_incremental(kva_incremental *c, const kva_node *n);
kva_status kva_kv_shift_incremental(kva_incremental *c, const kva_node *n);
kva_status kva_attention_incremental(kva_incremental *c, const kva_node *n);

kva_value *kva_reshape_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);
kva_value *kva_transpose_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);
kva_value *kva_slice_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);
kva_value *kva_expand_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);
kva_value *kva_concat_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);
kva_value *kva_gather_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);
kva_value *kva_matmul_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);
kva_value *kva_rope_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs);

/* ---- work divided among processes (kva_op_info.sums, kva_op_info.partition) -------------------------------------- */

bool kva_reduce_sum_sums(const kva_node *n, uint32_t operand, uint32_t axis);
bool kva_matmul_sums(const kva_node *n, uint32_t operand, uint32_t axis);
bool kva_reshape_partition(kva_partition *p, const kva_node *n);
bool kva_gather_partition(kva_partition *p, const kva_node *n);
bool kva_cross_entropy_partition(kva_partition *p, const kva_node *n);
bool kva_kv_shift_partition(kva_partition *p, const kva_node *n);
bool kva_attention_partition(kva_partition *p, const kva_node *n);
bool kva_all_reduce_partition(kva_partition *p, const kva_node *n);
bool kva_all_gather_partition(kva_partition *p, const kva_node *n);
bool kva_share_partition(kva_partition *p, const kva_node *n);

#endif
