/* Language models whose graph keeps a cache: tokens, a mask, positions and the cache are inputs, and the cache is also
 * an output, as transformers' and ONNX Runtime's exporters write them. With kva_load_options.language such a graph is
 * read as a function of whole texts, from which decoding is derived as from any model:
 *
 *   - caches are empty: zeros of no rows
 *   - masks show every token, and positions count from 0
 *   - the logits of all rows are computed, in float
 *   - outputs are those that are no caches
 *
 * Inputs are known by their names and types. A graph without `input_ids` [B, T], or with it alone, stays as it is. */
#include "frontend/onnx_import.h"
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

static const char tokens_name[] = "input_ids";

static bool has_part(const char *name, const char *part) {
  return strstr(name, part) != NULL;
}

static bool is_cache(const char *name) {
  return has_part(name, "past") || has_part(name, "present");
}

const kva_type *kva_import_language_tokens(kva_import *im, const kva_pb_graph *g) {
  const kva_type *t = NULL;
  if (!im->options || !im->options->language || g->n_input < 2) return NULL;
  for (size_t i = 0; i < g->n_input; i++)
    if (!strcmp(kva_pb_str(g->input[i]->name), tokens_name) && kva_import_type(im, g->input[i], &t) != KVA_OK)
      return NULL;
  return t && t->rank == 2 ? t : NULL;
}

static kva_value *filled(kva_import *im, kva_dtype t, double v, uint32_t rank, const kva_dim *dims) {
  return kva_expand(&im->c.b, kva_const_scalar(&im->c.b, t, v), rank, dims);
}

/* Zeros of a cache [B, H, P, D] of no rows. */
static kva_value *empty_cache(kva_import *im, const kva_type *t, kva_dim batch) {
  kva_dim dims[KVA_MAX_RANK], none = kva_expr_const(im->m->exprs, 0);
  for (uint32_t i = 0; i < t->rank; i++) dims[i] = kva_expr_is_const(t->dims[i], NULL) ? t->dims[i] : none;
  dims[0] = batch;
  dims[2] = none;
  return filled(im, t->dtype, 0, t->rank, dims);
}

/* The value of an input in whole texts; NULL: it stays an input. */
static kva_value *of_whole_texts(kva_import *im, const char *name, const kva_type *t, const kva_type *tokens) {
  kva_builder *b = &im->c.b;
  bool integers = kva_dtype_is_int(t->dtype), rows = integers && t->rank == 2;
  if (rows && has_part(name, "attention_mask")) return filled(im, t->dtype, 1, 2, tokens->dims);
  if (rows && has_part(name, "position_ids")) return kva_onnx_iota(b, t->dtype, 2, tokens->dims, 1);
  if (is_cache(name) && kva_dtype_is_float(t->dtype) && t->rank == 4) return empty_cache(im, t, tokens->dims[0]);
  bool one = !t->rank || (t->rank == 1 && kva_expr_is(t->dims[0], 1));
  bool all_rows = integers && has_part(name, "logits_to_keep"), cached = has_part(name, "use_cache");
  return one && (all_rows || cached) ? filled(im, t->dtype, 0, t->rank, t->dims) : NULL;
}

kva_status kva_import_language_input(kva_import *im, const kva_pb_value_info *v, kva_value **out) {
  const char *name = kva_pb_str(v->name);
  const kva_pb_type *element = v->type;
  const kva_type *t = NULL;
  *out = NULL;
  if (!strcmp(name, tokens_name) || kva_import_kind(&element) != KVA_VALUE_TENSOR) return KVA_OK;
  KVA_TRY(kva_import_type(im, v, &t));
  *out = of_whole_texts(im, name, t, im->tokens);
  return im->c.b.failed ? KVA_INVALID : KVA_OK;
}

bool kva_import_language_output(const kva_pb_value_info *declared) {
  return !is_cache(kva_pb_str(declared->name));
}

kva_value *kva_import_language_logits(kva_import *im, kva_value *v) {
  bool narrow = v->type->kind == KVA_TYPE_TENSOR && kva_dtype_is_float(v->type->dtype) && v->type->dtype != KVA_F64;
  return narrow ? kva_cast(&im->c.b, v, KVA_F32) : v;
}
