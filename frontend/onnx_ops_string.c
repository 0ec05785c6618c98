/* Rules: strings. What libraries do is kv.external; choosing, comparing and counting is ordinary arithmetic on the
 * numbers of strings (onnx_strings.h). */
#include "frontend/onnx_strings.h"
#include "ops/ids.h"

static kva_status need_strings(kva_onnx_call *k, uint32_t i) {
  if (kva_onnx_in(k, i)->type->dtype == KVA_STRING) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "input %u: expected strings, found %s", i,
                       kva_dtype_name(kva_onnx_in(k, i)->type->dtype));
}

/* x expanded to t, its extents taken to be those of t where they are not 1. */
static kva_value *expand_to(kva_builder *b, kva_value *x, const kva_type *t) {
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  for (uint32_t i = 0; i < rank; i++)
    dims[i] = kva_expr_is_const(x->type->dims[i], NULL) ? x->type->dims[i] : t->dims[t->rank - rank + i];
  if (b->assumes) x = kva_assume(b, x, dims, "strings that broadcast");
  return kva_expand(b, x, t->rank, t->dims);
}

/* x and y expanded to their common shape: that of the sum of zeros of their shapes. */
static void broadcast(kva_builder *b, kva_value **x, kva_value **y) {
  kva_value *zeros[2] = {kva_zeros(b, kva_type_with_dtype(b->m, (*x)->type, KVA_I64)),
                         kva_zeros(b, kva_type_with_dtype(b->m, (*y)->type, KVA_I64))};
  const kva_type *t = kva_add(b, zeros[0], zeros[1])->type;
  if (b->failed) return;
  *x = expand_to(b, *x, t);
  *y = expand_to(b, *y, t);
}

kva_status kva_onnx_string_concat(kva_onnx_call *k) {
  kva_value *in[2] = {kva_onnx_in(k, 0), kva_onnx_in(k, 1)};
  for (uint32_t i = 0; i < 2; i++) KVA_TRY(need_strings(k, i));
  broadcast(k->b, &in[0], &in[1]);
  return kva_onnx_done(k, kva_strings_call(k->b, "string_concat", NULL, 0, KVA_STRING, 2, in));
}

kva_status kva_onnx_regex_full_match(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  const char *pattern = kva_onnx_string(k, "pattern", NULL);
  KVA_TRY(need_strings(k, 0));
  if (!pattern) return kva_onnx_fail(k, KVA_INVALID, "attribute 'pattern' is missing");
  pattern = kva_arena_strdup(k->b->m->arena, pattern);
  return kva_onnx_done(k, kva_strings_call(k->b, "string_match", pattern, 0, KVA_BOOL, 1, &x));
}

/* Parts of every string, padded with "" to the largest number of them, which data decides. */
kva_status kva_onnx_string_split(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *zero = kva_const_i64s(b, 1, &(int64_t){0});
  KVA_TRY(need_strings(k, 0));
  const char *delimiter = kva_arena_strdup(b->m->arena, kva_onnx_string(k, "delimiter", ""));
  int64_t limit = kva_onnx_int(k, "maxsplit", -1), axis = 0;
  if (x->type->rank >= KVA_MAX_RANK || limit > INT32_MAX)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "rank %u, maxsplit %lld", x->type->rank, (long long)limit);
  kva_value *counts = kva_strings_call(b, "string_parts", delimiter, limit, KVA_I64, 1, &x);
  kva_dim n = kva_type_elements(b->m, x->type);
  kva_value *all = kva_onnx_concat(b, kva_reshape(b, counts, 1, &n), zero, 0);
  const kva_dims *most = kva_onnx_bind_elements(k->c, kva_reduce(b, KVA_OP_reduce_max, all, 1, &axis, false), "parts");
  if (!most) return KVA_INVALID;
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  for (uint32_t i = 0; i < rank; i++) dims[i] = kva_onnx_dim(x, i);
  dims[rank] = most->v[0];
  kva_value *in[2] = {kva_expand(b, kva_onnx_unsqueeze(b, x, rank, 1), rank + 1, dims),
                      kva_onnx_iota(b, KVA_I64, rank + 1, dims, rank)};
  kva_onnx_set_out(k, 0, kva_strings_call(b, "string_part", delimiter, limit, KVA_STRING, 2, in));
  kva_onnx_set_out(k, 1, counts);
  return KVA_OK;
}

/* ---- normalising ------------------------------------------------------------------------------------------------- */

/* bool[n]: which of x[n] are among the strings of attribute `stopwords`. */
static kva_value *is_stopword(kva_onnx_call *k, kva_value *x, bool by_case) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, "stopwords");
  kva_builder *b = k->b;
  kva_value *stops = kva_onnx_const_list(b, KVA_STRING, 1, a->n, a->strings);
  if (!by_case) x = kva_strings_call(b, "string_lower", NULL, 0, KVA_STRING, 1, &x);
  if (!by_case) stops = kva_strings_call(b, "string_lower", NULL, 0, KVA_STRING, 1, &stops);
  kva_value *same = kva_build2(b, KVA_OP_equal, kva_onnx_unsqueeze(b, x, 1, 1), stops);
  int64_t axis = 1;
  return kva_reduce(b, KVA_OP_reduce_max, same, 1, &axis, false);
}

/* x[n] without stopwords; a single "" if nothing is left: it is one more candidate, which the others displace. */
static kva_value *without_stopwords(kva_onnx_call *k, kva_value *x, bool by_case) {
  kva_builder *b = k->b;
  int64_t axis = 0;
  kva_value *keep = kva_build1(b, KVA_OP_logical_not, is_stopword(k, x, by_case));
  kva_value *none = kva_build1(b, KVA_OP_logical_not, kva_reduce(b, KVA_OP_reduce_max, keep, 1, &axis, true));
  kva_value *empty = kva_onnx_const_list(b, KVA_STRING, 1, 1, (const char *const[]){""});
  return kva_onnx_select(b, kva_onnx_concat(b, x, empty, 0), kva_onnx_concat(b, keep, none, 0), 0, "words");
}

/* [C] or [1, C]. */
kva_status kva_onnx_string_normalizer(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  const char *action = kva_onnx_string(k, "case_change_action", "NONE");
  bool by_case = kva_onnx_int(k, "is_case_sensitive", 0) != 0, none = !strcmp(action, "NONE");
  const kva_onnx_attr *stops = kva_onnx_find_attr(k, "stopwords");
  uint32_t rank = x->type->rank;
  (void)kva_onnx_find_attr(k, "locale"); /* cases are those of Unicode */
  KVA_TRY(need_strings(k, 0));
  if (rank < 1 || rank > 2 || (rank == 2 && !kva_expr_is(kva_onnx_dim(x, 0), 1)))
    return kva_onnx_fail(k, KVA_INVALID, "expected strings of shape [C] or [1, C]");
  if (!none && strcmp(action, "LOWER") && strcmp(action, "UPPER"))
    return kva_onnx_fail(k, KVA_INVALID, "case_change_action is '%s', expected LOWER, UPPER or NONE", action);
  if (stops && stops->kind != KVA_ONNX_STRINGS) return kva_onnx_fail(k, KVA_INVALID, "stopwords are no strings");
  kva_dim n = kva_onnx_dim(x, rank - 1);
  x = kva_reshape(b, x, 1, &n);
  if (stops && stops->n) x = without_stopwords(k, x, by_case);
  if (!none) x = kva_strings_call(b, *action == 'L' ? "string_lower" : "string_upper", NULL, 0, KVA_STRING, 1, &x);
  return kva_onnx_done(k, rank == 2 ? kva_onnx_unsqueeze(b, x, 0, 1) : x);
}
