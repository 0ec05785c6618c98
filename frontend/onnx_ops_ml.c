/* Rules: ai.onnx.ml without trees (onnx_ops_tree.c), and TfIdfVectorizer: tables that are attributes become constants.
 */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* The constant of attribute `name` followed by one of these endings, a list or a tensor; NULL: none is given. */
static kva_value *list_attr(kva_onnx_call *k, const char *name, uint32_t n_endings, const char *const *endings) {
  for (uint32_t i = 0; i < n_endings; i++) {
    const kva_onnx_attr *a = kva_onnx_find_attr(k, kva_arena_printf(k->c->arena, "%s%s", name, endings[i]));
    if (!a) continue;
    switch (a->kind) {
    case KVA_ONNX_TENSOR: return kva_const_tensor(k->b, a->tensor);
    case KVA_ONNX_INTS: return kva_onnx_const_list(k->b, KVA_I64, 1, a->n, a->ints);
    case KVA_ONNX_FLOATS: return kva_onnx_const_list(k->b, KVA_F32, 1, a->n, a->floats);
    case KVA_ONNX_STRINGS: return kva_onnx_const_list(k->b, KVA_STRING, 1, a->n, a->strings);
    default: break;
    }
  }
  return NULL;
}

static const char *const list_endings[] = {"_tensor", "s_strings", "_strings", "_int64s", "_floats"};
static kva_value *list_of(kva_onnx_call *k, const char *name) {
  return list_attr(k, name, sizeof list_endings / sizeof *list_endings, list_endings);
}

/* A list of one element, or one for each of x's last axis, which has so many where it is a symbol. */
static kva_status per_feature(kva_onnx_call *k, kva_value **x, kva_value *list, const char *name) {
  const kva_type *t = list->type;
  uint32_t rank = (*x)->type->rank;
  if (t->rank == 1 && kva_expr_is(t->dims[0], 1)) return KVA_OK;
  if (t->rank == 1 && rank) *x = kva_onnx_with_extent(k, *x, rank - 1, t->dims[0], "the features of a list");
  if (t->rank == 1 && rank && t->dims[0] == (*x)->type->dims[rank - 1]) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "attribute '%s' has neither one element nor one for each feature", name);
}

/* ---- elementwise ------------------------------------------------------------------------------------------------- */

kva_status kva_onnx_binarizer(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *threshold = kva_scalar_like(k->b, x, kva_onnx_float(k, "threshold", 0));
  return kva_onnx_done(k, kva_cast(k->b, kva_build2(k->b, KVA_OP_less, threshold, x), x->type->dtype));
}

/* (x - offset) * scale in float. */
kva_status kva_onnx_scaler(kva_onnx_call *k) {
  kva_value *x = kva_cast(k->b, kva_onnx_in(k, 0), KVA_F32);
  kva_value *offset = list_attr(k, "offset", 1, (const char *const[]){""});
  kva_value *scale = list_attr(k, "scale", 1, (const char *const[]){""});
  if (offset) KVA_TRY(per_feature(k, &x, offset, "offset"));
  if (scale) KVA_TRY(per_feature(k, &x, scale, "scale"));
  if (offset) x = kva_sub(k->b, x, offset);
  return kva_onnx_done(k, scale ? kva_mul(k->b, x, scale) : x);
}

/* Rows over the largest magnitude, the sum of magnitudes, or the root of the sum of squares; rows of zeros stay. */
kva_status kva_onnx_normalizer(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_cast(b, kva_onnx_in(k, 0), KVA_F32), *norm = kva_build1(b, KVA_OP_abs, x);
  const char *kind = kva_onnx_string(k, "norm", "MAX");
  int64_t axis = (int64_t)x->type->rank - 1;
  if (axis < 0) return kva_onnx_fail(k, KVA_INVALID, "expected rank 1 or 2, found a scalar");
  if (!strcmp(kind, "MAX"))
    norm = kva_reduce(b, KVA_OP_reduce_max, norm, 1, &axis, true);
  else if (!strcmp(kind, "L1"))
    norm = kva_reduce(b, KVA_OP_reduce_sum, norm, 1, &axis, true);
  else if (!strcmp(kind, "L2"))
    norm = kva_onnx_norm(b, kva_reduce(b, KVA_OP_reduce_sum, kva_mul(b, x, x), 1, &axis, true), 2);
  else
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'norm' is '%s', expected MAX, L1 or L2", kind);
  kva_value *zero = kva_scalar_like(b, norm, 0), *one = kva_scalar_like(b, norm, 1);
  return kva_onnx_done(k, kva_div(b, x, kva_onnx_where(b, kva_build2(b, KVA_OP_equal, norm, zero), one, norm)));
}

kva_status kva_onnx_imputer(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *values = list_of(k, "imputed_value");
  bool real = kva_dtype_is_float(x->type->dtype);
  double replaced =
      real ? kva_onnx_float(k, "replaced_value_float", 0) : (double)kva_onnx_int(k, "replaced_value_int64", 0);
  if (!values || kva_dtype_is_float(values->type->dtype) != real)
    return kva_onnx_fail(k, KVA_INVALID, "expected imputed_value_%s", real ? "floats" : "int64s");
  KVA_TRY(per_feature(k, &x, values, "imputed_value"));
  kva_value *missing = replaced != replaced ? kva_build1(b, KVA_OP_is_nan, x)
                                            : kva_build2(b, KVA_OP_equal, x, kva_scalar_like(b, x, replaced));
  return kva_onnx_done(k, kva_onnx_where(b, missing, kva_cast(b, values, x->type->dtype), x));
}

/* ---- features ---------------------------------------------------------------------------------------------------- */

/* Columns of the last axis; of a vector as a row. */
kva_status kva_onnx_array_feature_extractor(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *columns = kva_onnx_in(k, 1);
  kva_dim n = kva_type_elements(k->b->m, columns->type);
  if (!x->type->rank) return kva_onnx_fail(k, KVA_INVALID, "input 0 is a scalar");
  if (x->type->rank == 1) x = kva_onnx_unsqueeze(k->b, x, 0, 1);
  return kva_onnx_done(k, kva_onnx_gather(k->b, x, kva_reshape(k->b, columns, 1, &n), x->type->rank - 1));
}

/* [N, C1], [N, C2], ... or vectors of N, side by side in float. */
kva_status kva_onnx_feature_vectorizer(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value **parts = KVA_NEW_ARRAY(k->c->arena, kva_value *, k->n->n_inputs);
  kva_ints dims = kva_onnx_ints(k, "inputdimensions");
  for (uint32_t i = 0; i < k->n->n_inputs; i++) {
    kva_value *x = kva_onnx_in(k, i);
    if (!x || x->type->rank < 1 || x->type->rank > 2)
      return kva_onnx_fail(k, KVA_INVALID, "input %u: expected rank 1 or 2", i);
    if (x->type->rank == 1) x = kva_onnx_unsqueeze(b, x, 1, 1);
    if (i < dims.n && dims.v[i] >= 0)
      x = kva_onnx_with_extent(k, x, 1, kva_expr_const(kva_onnx_exprs(k), dims.v[i]), "inputdimensions");
    if (i < dims.n && !kva_expr_is(kva_onnx_dim(x, 1), dims.v[i]))
      return kva_onnx_fail(k, KVA_INVALID, "input %u has not the %lld columns of inputdimensions", i,
                           (long long)dims.v[i]);
    parts[i] = kva_cast(b, x, KVA_F32);
  }
  return kva_onnx_done(k, kva_build(b, KVA_OP_concat, k->n->n_inputs, parts, &(kva_concat_attrs){.axis = 1}));
}

/* bool[..., K]: whether an element is key i; NaN is a key like any other. */
static kva_value *matches(kva_builder *b, kva_value *x, kva_value *keys) {
  kva_value *rows = kva_onnx_unsqueeze(b, x, x->type->rank, 1), *same = kva_build2(b, KVA_OP_equal, rows, keys);
  if (!kva_dtype_is_float(x->type->dtype)) return same;
  kva_value *nan =
      kva_build2(b, KVA_OP_logical_and, kva_build1(b, KVA_OP_is_nan, rows), kva_build1(b, KVA_OP_is_nan, keys));
  return kva_build2(b, KVA_OP_logical_or, same, nan);
}

/* values[i] where x is keys[i], for the first such i; else `other`. */
static kva_status look_up(kva_onnx_call *k, kva_value *x, kva_value *keys, kva_value *values, kva_value *other) {
  kva_builder *b = k->b;
  if (!keys || !values || keys->type->rank != 1 || values->type->rank != 1 ||
      keys->type->dims[0] != values->type->dims[0])
    return kva_onnx_fail(k, KVA_INVALID, "expected equally many keys and values");
  if (keys->type->dtype != x->type->dtype)
    return kva_onnx_fail(k, KVA_INVALID, "the keys are %s, the input is %s", kva_dtype_name(keys->type->dtype),
                         kva_dtype_name(x->type->dtype));
  kva_value *same = kva_cast(b, matches(b, x, keys), KVA_I32);
  int64_t axis = x->type->rank;
  kva_value *at = kva_build(b, KVA_OP_argmax, 1, &same, &(kva_argmax_attrs){.axis = axis, .keepdims = false});
  kva_value *found = kva_cast(b, kva_reduce(b, KVA_OP_reduce_max, same, 1, &axis, false), KVA_BOOL);
  other = kva_expand_like(b, kva_reshape(b, other, 0, NULL), kva_type_with_dtype(b->m, x->type, other->type->dtype));
  return kva_onnx_done(k, kva_onnx_where(b, found, kva_onnx_gather(b, values, at, 0), other));
}

kva_status kva_onnx_label_encoder(kva_onnx_call *k) {
  kva_value *keys = list_of(k, "keys"), *values = list_of(k, "values"), *other = NULL;
  const kva_onnx_attr *a = kva_onnx_find_attr(k, "default_tensor");
  const char *text = kva_onnx_string(k, "default_string", "_Unused");
  double real = kva_onnx_float(k, "default_float", -0.0);
  int64_t whole = kva_onnx_int(k, "default_int64", -1);
  kva_dtype t = values ? values->type->dtype : KVA_F32;
  if (a && a->kind == KVA_ONNX_TENSOR)
    other = kva_const_tensor(k->b, a->tensor);
  else if (t == KVA_STRING)
    other = kva_onnx_const_list(k->b, t, 0, 1, &text);
  else
    other = kva_const_scalar(k->b, t, kva_dtype_is_float(t) ? real : (double)whole);
  if (other->type->dtype != t) return kva_onnx_fail(k, KVA_INVALID, "values and default differ in type");
  return look_up(k, kva_onnx_in(k, 0), keys, values, other);
}

/* Strings to numbers, or numbers to strings. */
kva_status kva_onnx_category_mapper(kva_onnx_call *k) {
  kva_value *numbers = list_of(k, "cats"), *x = kva_onnx_in(k, 0);
  kva_value *ints = list_attr(k, "cats_int64s", 1, (const char *const[]){""});
  const char *text = kva_onnx_string(k, "default_string", "_Unused");
  int64_t whole = kva_onnx_int(k, "default_int64", -1);
  if (x->type->dtype == KVA_STRING) return look_up(k, x, numbers, ints, kva_const_scalar(k->b, KVA_I64, (double)whole));
  return look_up(k, x, ints, numbers, kva_onnx_const_list(k->b, KVA_STRING, 0, 1, &text));
}

kva_status kva_onnx_one_hot_encoder(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *cats = list_of(k, "cats");
  if (!cats) return kva_onnx_fail(k, KVA_INVALID, "expected cats_int64s or cats_strings");
  if (!kva_onnx_int(k, "zeros", 1))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "zeros = 0, an error on other categories, is not supported");
  if (cats->type->dtype != KVA_STRING) x = kva_cast(k->b, x, KVA_I64);
  return kva_onnx_done(k, kva_cast(k->b, matches(k->b, x, cats), KVA_F32));
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Softmax of what is not 0; zeros stay, and scores that are all 0 become 0.5, as in the standard's evaluator. */
static kva_value *softmax_of_others(kva_builder *b, kva_value *x, int64_t axis) {
  kva_value *largest = kva_reduce(b, KVA_OP_reduce_max, x, 1, &axis, true), *magnitude = kva_build1(b, KVA_OP_abs, x);
  kva_value *counts = kva_build2(b, KVA_OP_less, kva_scalar_like(b, x, 1e-7), magnitude);
  kva_value *e = kva_build1(b, KVA_OP_exp, kva_sub(b, x, largest));
  e = kva_onnx_where(b, counts, e, kva_mul(b, x, kva_build1(b, KVA_OP_exp, kva_neg(b, largest))));
  kva_value *sum = kva_reduce(b, KVA_OP_reduce_sum, e, 1, &axis, true);
  kva_value *none = kva_build2(b, KVA_OP_equal, sum, kva_scalar_like(b, sum, 0));
  kva_value *y = kva_div(b, e, kva_onnx_where(b, none, kva_scalar_like(b, sum, 1), sum));
  return kva_onnx_where(b, none, kva_scalar_like(b, y, 0.5), y);
}

/* Quantiles of the normal distribution, sqrt(2) erfinv(2 x - 1), by the approximation that ONNX Runtime and the
 * standard's evaluator have (Winitzki). */
static kva_value *probit(kva_builder *b, kva_value *x) {
  const double a = 0.147, pi = 3.14159265358979323846;
  kva_value *rest = kva_sub(b, kva_scalar_like(b, x, 1), x);
  kva_value *l = kva_build1(b, KVA_OP_log, kva_mul(b, kva_mul(b, x, rest), kva_scalar_like(b, x, 4)));
  kva_value *v = kva_add(b, kva_mul(b, l, kva_scalar_like(b, x, 0.5)), kva_scalar_like(b, x, 2 / (pi * a)));
  kva_value *root = kva_sub(b, kva_mul(b, v, v), kva_mul(b, l, kva_scalar_like(b, x, 1 / a)));
  kva_value *size = kva_build1(b, KVA_OP_sqrt, kva_sub(b, kva_build1(b, KVA_OP_sqrt, root), v));
  size = kva_mul(b, size, kva_scalar_like(b, x, 1.41421356237309504880));
  return kva_onnx_where(b, kva_build2(b, KVA_OP_less, x, rest), kva_neg(b, size), size);
}

kva_status kva_onnx_post_transform(kva_onnx_call *k, const char *name, kva_value **scores) {
  kva_builder *b = k->b;
  int64_t axis = (int64_t)(*scores)->type->rank - 1;
  if (!strcmp(name, "NONE")) return KVA_OK;
  if (!strcmp(name, "LOGISTIC"))
    *scores = kva_build1(b, KVA_OP_sigmoid, *scores);
  else if (!strcmp(name, "SOFTMAX"))
    *scores = kva_build(b, KVA_OP_softmax, 1, scores, &(kva_softmax_attrs){.axis = axis});
  else if (!strcmp(name, "SOFTMAX_ZERO"))
    *scores = softmax_of_others(b, *scores, axis);
  else if (!strcmp(name, "PROBIT"))
    *scores = probit(b, *scores);
  else
    return kva_onnx_fail(k, KVA_INVALID,
                         "post_transform '%s'; expected NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT", name);
  return KVA_OK;
}

kva_status kva_onnx_pair_scores(kva_onnx_call *k, bool probability, kva_value **scores) {
  kva_builder *b = k->b;
  const char *name = kva_onnx_string(k, "post_transform", "NONE");
  bool logistic = !strcmp(name, "LOGISTIC");
  kva_value *s = *scores, *other = kva_neg(b, s);
  if (!logistic && strcmp(name, "NONE"))
    return kva_onnx_fail(k, KVA_UNSUPPORTED,
                         "one score for two classes with post_transform '%s'; NONE and LOGISTIC are "
                         "supported",
                         name);
  if (probability && !logistic) other = kva_add(b, other, kva_scalar_like(b, s, 1));
  *scores = kva_onnx_concat(b, other, s, 1);
  if (logistic) *scores = kva_build1(b, KVA_OP_sigmoid, *scores);
  return kva_onnx_class_labels(k, *scores);
}

/* x[N, F] coefficients[rows, F]^T + intercepts[rows]. */
static kva_status linear(kva_onnx_call *k, int64_t rows, kva_value **out) {
  kva_builder *b = k->b;
  kva_value *x = kva_cast(b, kva_onnx_in(k, 0), KVA_F32);
  kva_value *w = list_attr(k, "coefficients", 1, (const char *const[]){""});
  kva_value *bias = list_attr(k, "intercepts", 1, (const char *const[]){""});
  if (x->type->rank == 1) x = kva_onnx_unsqueeze(b, x, 0, 1);
  int64_t length;
  if (x->type->rank != 2 || !w) return kva_onnx_fail(k, KVA_INVALID, "expected x of rank 1 or 2, and coefficients");
  if (kva_expr_is_const(w->type->dims[0], &length) && rows > 0)
    x = kva_onnx_with_extent(k, x, 1, kva_expr_const(kva_onnx_exprs(k), length / rows), "the features of coefficients");
  kva_dim dims[2] = {kva_expr_const(kva_onnx_exprs(k), rows), kva_onnx_dim(x, 1)};
  if (w->type->dims[0] != kva_expr_mul(kva_onnx_exprs(k), dims[0], dims[1]))
    return kva_onnx_fail(k, KVA_INVALID, "expected %lld coefficients for each feature", (long long)rows);
  *out = kva_matmul(b, x, kva_reshape(b, w, 2, dims), false, true);
  if (bias && bias->type->dims[0] != dims[0])
    return kva_onnx_fail(k, KVA_INVALID, "expected %lld intercepts", (long long)rows);
  if (bias) *out = kva_add(b, *out, bias);
  return KVA_OK;
}

kva_status kva_onnx_linear_regressor(kva_onnx_call *k) {
  kva_value *y = NULL;
  KVA_TRY(linear(k, kva_onnx_int(k, "targets", 1), &y));
  KVA_TRY(kva_onnx_post_transform(k, kva_onnx_string(k, "post_transform", "NONE"), &y));
  return kva_onnx_done(k, y);
}

kva_status kva_onnx_class_labels(kva_onnx_call *k, kva_value *scores) {
  kva_value *labels = list_of(k, "classlabels");
  if (!labels) labels = list_attr(k, "classlabels_ints", 1, (const char *const[]){""});
  if (!labels || labels->type->dims[0] != kva_onnx_dim(scores, 1))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "expected one label for each score");
  kva_argmax_attrs attrs = {.axis = 1, .keepdims = false};
  return kva_onnx_done(k, kva_onnx_gather(k->b, labels, kva_build(k->b, KVA_OP_argmax, 1, &scores, &attrs), 0));
}

/* One row of coefficients for each class, or one for two, whose probabilities it gives. */
kva_status kva_onnx_linear_classifier(kva_onnx_call *k) {
  kva_value *scores = NULL, *bias = list_attr(k, "intercepts", 1, (const char *const[]){""});
  int64_t rows = 0;
  if (!bias || !kva_expr_is_const(bias->type->dims[0], &rows) || rows < 1)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "expected an intercept for each class");
  (void)kva_onnx_int(k, "multi_class", 0); /* it has no effect on the result */
  KVA_TRY(linear(k, rows, &scores));
  const char *transform = kva_onnx_string(k, "post_transform", "NONE");
  if (rows == 1 && strcmp(transform, "LOGISTIC"))
    return kva_onnx_fail(k, KVA_UNSUPPORTED,
                         "one score for two classes with post_transform '%s'; LOGISTIC is supported", transform);
  if (rows == 1) {
    KVA_TRY(kva_onnx_pair_scores(k, true, &scores));
  } else {
    KVA_TRY(kva_onnx_class_labels(k, scores));
    KVA_TRY(kva_onnx_post_transform(k, transform, &scores));
  }
  kva_onnx_set_out(k, 1, scores);
  return KVA_OK;
}

/* ---- n-grams ----------------------------------------------------------------------------------------------------- */

typedef struct ngrams {
  kva_value *x, *pool; /* x[N, C] */
  int64_t least, most, skips, columns;
  kva_ints starts, places; /* in the pool, of n-grams by length; columns of the result */
} ngrams;

static kva_status read_ngrams(kva_onnx_call *k, ngrams *g) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  g->pool = list_of(k, "pool");
  g->least = kva_onnx_int(k, "min_gram_length", 1);
  g->most = kva_onnx_int(k, "max_gram_length", 1);
  g->skips = kva_onnx_int(k, "max_skip_count", 0);
  g->starts = kva_onnx_ints(k, "ngram_counts");
  g->places = kva_onnx_ints(k, "ngram_indexes");
  if (!g->pool || (g->pool->type->dtype == KVA_STRING) != (x->type->dtype == KVA_STRING))
    return kva_onnx_fail(k, KVA_INVALID, "expected a pool of the input's type");
  if (g->least < 1 || g->most < g->least || g->most > g->starts.n || g->skips < 0 || g->skips > 1024)
    return kva_onnx_fail(k, KVA_INVALID, "lengths %lld to %lld, %lld skips, %u ngram_counts", (long long)g->least,
                         (long long)g->most, (long long)g->skips, g->starts.n);
  for (uint32_t i = 0; i < g->places.n; i++) {
    if (g->places.v[i] < 0 || g->places.v[i] > 1 << 24)
      return kva_onnx_fail(k, KVA_INVALID, "ngram_indexes[%u] is %lld", i, (long long)g->places.v[i]);
    if (g->places.v[i] >= g->columns) g->columns = g->places.v[i] + 1;
  }
  if (x->type->rank < 1 || x->type->rank > 2) return kva_onnx_fail(k, KVA_INVALID, "expected rank 1 or 2");
  g->x = x->type->rank == 1 ? kva_onnx_unsqueeze(b, x, 0, 1) : x;
  if (x->type->dtype != KVA_STRING) g->x = kva_cast(b, g->x, KVA_I64);
  return KVA_OK;
}

/* float[N, G]: how often each of grams[G, n] stands in x with `step` from element to element. */
static kva_value *count_grams(kva_builder *b, kva_value *x, kva_value *grams, int64_t n, int64_t step, kva_dim length) {
  kva_expr_ctx *e = b->m->exprs;
  kva_value *all = NULL;
  kva_dim one = kva_expr_const(e, 1);
  for (int64_t j = 0; j < n; j++) {
    kva_value *word = kva_onnx_unsqueeze(b, kva_onnx_slice(b, x, 1, kva_expr_const(e, j * step), length), 2, 1);
    kva_value *wanted = kva_onnx_slice(b, grams, 1, kva_expr_const(e, j), one);
    kva_value *same = kva_build2(b, KVA_OP_equal, word, kva_reshape(b, wanted, 1, grams->type->dims));
    all = all ? kva_build2(b, KVA_OP_logical_and, all, same) : same;
  }
  return kva_reduce(b, KVA_OP_reduce_sum, kva_cast(b, all, KVA_F32), 1, &(int64_t){1}, false);
}

/* Counts of the *out_n n-grams of length n, [N, *out_n]. */
static kva_status count_length(kva_onnx_call *k, const ngrams *g, int64_t n, int64_t *out_n, kva_value **out) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = b->m->exprs;
  int64_t pool, first = g->starts.v[n - 1];
  (void)kva_expr_is_const(g->pool->type->dims[0], &pool);
  int64_t end = n < g->starts.n ? g->starts.v[n] : pool;
  *out_n = 0, *out = NULL;
  if (first < 0 || end < first || end > pool || (end - first) % n)
    return kva_onnx_fail(k, KVA_INVALID, "ngram_counts: %lld to %lld of %lld for length %lld", (long long)first,
                         (long long)end, (long long)pool, (long long)n);
  *out_n = (end - first) / n;
  kva_dim dims[2] = {kva_expr_const(e, *out_n), kva_expr_const(e, n)};
  kva_value *grams = kva_onnx_slice(b, g->pool, 0, kva_expr_const(e, first), kva_expr_const(e, end - first));
  grams = kva_reshape(b, grams, 2, dims);
  kva_dim shape[2] = {kva_onnx_dim(g->x, 0), dims[0]};
  *out = kva_zeros(b, kva_type_tensor(b->m, KVA_F32, 2, shape));
  for (int64_t step = 1; *out_n && step <= (n > 1 ? g->skips + 1 : 1); step++) {
    kva_dim windows = kva_expr_addi(e, kva_onnx_dim(g->x, 1), -(n - 1) * step), none = kva_expr_const(e, 0);
    if (kva_expr_provably_le(e, windows, none)) continue;
    windows = kva_expr_max(e, windows, none);
    *out = kva_add(b, *out, count_grams(b, g->x, grams, n, step, windows));
  }
  return KVA_OK;
}

/* Columns in the order of ngram_indexes; those that no n-gram has are zero. */
static kva_status place_columns(kva_onnx_call *k, const ngrams *g, int64_t first, int64_t n, kva_value *counts,
                                kva_value **out) {
  int64_t *from = KVA_NEW_ARRAY(k->c->arena, int64_t, g->columns + 1);
  for (int64_t i = 0; i < g->columns; i++) from[i] = n;
  for (int64_t i = 0; i < n; i++) {
    int64_t place = g->places.v[first + i];
    if (from[place] != n) return kva_onnx_fail(k, KVA_UNSUPPORTED, "two n-grams have column %lld", (long long)place);
    from[place] = i;
  }
  kva_dim shape[2] = {kva_onnx_dim(g->x, 0), kva_expr_const(kva_onnx_exprs(k), 1)};
  counts = kva_onnx_concat(k->b, counts, kva_zeros(k->b, kva_type_tensor(k->b->m, KVA_F32, 2, shape)), 1);
  *out = kva_onnx_gather(k->b, counts, kva_const_i64s(k->b, (uint32_t)g->columns, from), 1);
  return KVA_OK;
}

/* counts by `mode`, with weights of the n-grams from number `first` on. */
static kva_status weigh(kva_onnx_call *k, int64_t first, int64_t n, kva_value **counts) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = b->m->exprs;
  const char *mode = kva_onnx_string(k, "mode", "TF");
  kva_value *weights = list_attr(k, "weights", 1, (const char *const[]){""}), *zero = kva_scalar_like(b, *counts, 0);
  bool tf = !strcmp(mode, "TF"), idf = !strcmp(mode, "IDF");
  int64_t length;
  if (!tf && !idf && strcmp(mode, "TFIDF")) return kva_onnx_fail(k, KVA_INVALID, "attribute 'mode' is '%s'", mode);
  if (idf) *counts = kva_cast(b, kva_build2(b, KVA_OP_less, zero, *counts), KVA_F32);
  if (tf || !weights) return KVA_OK;
  if (!kva_expr_is_const(weights->type->dims[0], &length) || length < first + n)
    return kva_onnx_fail(k, KVA_INVALID, "fewer weights than n-grams");
  *counts = kva_mul(b, *counts, kva_onnx_slice(b, weights, 0, kva_expr_const(e, first), kva_expr_const(e, n)));
  return KVA_OK;
}

kva_status kva_onnx_tfidf_vectorizer(kva_onnx_call *k) {
  ngrams g = {0};
  KVA_TRY(read_ngrams(k, &g));
  kva_value *counts = NULL, *y = NULL;
  int64_t first = 0, n = 0;
  for (int64_t length = 1; length <= g.most; length++) {
    kva_value *more = NULL;
    int64_t grams = 0;
    KVA_TRY(count_length(k, &g, length, &grams, &more));
    if (length < g.least) first += grams;
    if (length < g.least) continue;
    counts = counts ? kva_onnx_concat(k->b, counts, more, 1) : more;
    n += grams;
  }
  if (first + n > g.places.n) return kva_onnx_fail(k, KVA_INVALID, "more n-grams than ngram_indexes");
  KVA_TRY(weigh(k, first, n, &counts));
  KVA_TRY(place_columns(k, &g, first, n, counts, &y));
  if (kva_onnx_in(k, 0)->type->rank == 1) y = kva_reshape(k->b, y, 1, &y->type->dims[1]);
  return kva_onnx_done(k, y);
}
