/* Rules: support vector machines of ai.onnx.ml.
 *
 *   K[n, v] = kernel(x[n], support vector v)
 *   regression      y = K coefficients + rho
 *   classification  score of classes i < j = K (coefficients of both against each other) + rho, a vote for i or j; the
 *                   label has most votes
 *   probabilities   of i against j by a sigmoid of the score (prob_a, prob_b), of all classes by coupling these: Wu,
 * Lin and Weng, JMLR 5 (2004), section 4, with the iteration and its stop as libsvm has them
 *
 * Without support vectors the coefficients are those of linear functions. */
#include "frontend/onnx_region.h"
#include "ops/ids.h"

#include <math.h>

/* Tables have pairs * vectors, or with probabilities pairs * classes^2 elements. */
enum { MAX_CLASSES = 256, MAX_COUPLED = 48, MAX_CELLS = 1 << 27, MIN_ITERATIONS = 100 };

typedef struct list {
  uint32_t n;
  const double *v;
} list;

typedef struct machine {
  const char *kernel;
  double gamma, offset, degree;
  int64_t classes, vectors, pairs; /* vectors: 0 if functions are linear */
  list coefficients, supports, rho, prob_a, prob_b;
  kva_ints vectors_of; /* classes */
  kva_value *x;        /* [N, F] */
} machine;

static kva_status read_floats(kva_onnx_call *k, const char *name, list *out) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, name);
  *out = (list){0};
  if (!a) return KVA_OK;
  if (a->kind != KVA_ONNX_FLOATS) return kva_onnx_fail(k, KVA_INVALID, "attribute '%s': expected floats", name);
  *out = (list){a->n, a->floats};
  return KVA_OK;
}

static kva_status read_kernel(kva_onnx_call *k, machine *s) {
  list params;
  KVA_TRY(read_floats(k, "kernel_params", &params));
  s->kernel = kva_onnx_string(k, "kernel_type", "LINEAR");
  if (params.n && params.n != 3)
    return kva_onnx_fail(k, KVA_INVALID, "kernel_params: expected gamma, coef0 and degree, found %u numbers", params.n);
  if (params.n) s->gamma = params.v[0], s->offset = params.v[1], s->degree = params.v[2];
  if (!s->vectors) s->kernel = "LINEAR";
  bool poly = !strcmp(s->kernel, "POLY");
  if (poly && s->degree != floor(s->degree))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "a degree of %g; whole ones are supported", s->degree);
  if (poly || !strcmp(s->kernel, "LINEAR") || !strcmp(s->kernel, "RBF") || !strcmp(s->kernel, "SIGMOID")) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "kernel_type '%s'; expected LINEAR, POLY, RBF or SIGMOID", s->kernel);
}

/* Input and tables; `functions` is the number of linear functions if there are no support vectors. */
static kva_status read_machine(kva_onnx_call *k, int64_t functions, machine *s) {
  KVA_TRY(read_floats(k, "coefficients", &s->coefficients));
  KVA_TRY(read_floats(k, "support_vectors", &s->supports));
  KVA_TRY(read_floats(k, "rho", &s->rho));
  KVA_TRY(read_kernel(k, s));
  uint32_t n = s->vectors ? s->supports.n : s->coefficients.n;
  int64_t rows = s->vectors ? s->vectors : functions;
  if (!n || rows < 1 || n % rows || !s->rho.n)
    return kva_onnx_fail(k, KVA_INVALID, "%u coefficients, %u numbers of %lld support vectors, %u of rho",
                         s->coefficients.n, s->supports.n, (long long)s->vectors, s->rho.n);
  s->x = kva_onnx_widen(k->b, kva_onnx_in(k, 0));
  if (s->x->type->rank == 1) s->x = kva_onnx_unsqueeze(k->b, s->x, 0, 1);
  if (s->x->type->rank != 2) return kva_onnx_fail(k, KVA_INVALID, "expected rank 2, found %u", s->x->type->rank);
  kva_dim features = kva_expr_const(kva_onnx_exprs(k), n / rows);
  s->x = kva_onnx_with_extent(k, s->x, 1, features, "the features of support vectors");
  if (kva_onnx_dim(s->x, 1) == features) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "expected %lld features", (long long)(n / rows));
}

/* A constant of x's type. */
static kva_value *table(kva_builder *b, const machine *s, int64_t rows, int64_t columns, const double *v) {
  kva_dim shape[2] = {kva_expr_const(b->m->exprs, rows), kva_expr_const(b->m->exprs, columns)};
  return kva_reshape(b, kva_onnx_const_list(b, s->x->type->dtype, 1, rows * columns, v), 2, shape);
}

/* [N, vectors] */
static kva_value *kernels(kva_builder *b, const machine *s) {
  int64_t features = s->supports.n / s->vectors;
  kva_value *v = table(b, s, s->vectors, features, s->supports.v), *x = s->x;
  if (!strcmp(s->kernel, "RBF")) {
    kva_value *d = kva_sub(b, kva_onnx_unsqueeze(b, x, 1, 1), v);
    d = kva_reduce(b, KVA_OP_reduce_sum, kva_mul(b, d, d), 1, &(int64_t){2}, false);
    return kva_build1(b, KVA_OP_exp, kva_mul(b, d, kva_scalar_like(b, d, -s->gamma)));
  }
  x = kva_matmul(b, x, v, false, true);
  if (!strcmp(s->kernel, "LINEAR")) return x;
  x = kva_add(b, kva_mul(b, x, kva_scalar_like(b, x, s->gamma)), kva_scalar_like(b, x, s->offset));
  if (!strcmp(s->kernel, "SIGMOID")) return kva_build1(b, KVA_OP_tanh, x);
  return kva_build2(b, KVA_OP_pow, x, kva_scalar_like(b, x, s->degree));
}

/* ---- SVMRegressor ------------------------------------------------------------------------------------------------ */

kva_status kva_onnx_svm_regressor(kva_onnx_call *k) {
  kva_builder *b = k->b;
  machine s = {.vectors = kva_onnx_int(k, "n_supports", 0)};
  const char *transform = kva_onnx_string(k, "post_transform", "NONE");
  if (s.vectors < 0 || kva_onnx_int(k, "n_targets", 1) > 1)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "n_supports %lld, n_targets %lld; one target is supported",
                         (long long)s.vectors, (long long)kva_onnx_int(k, "n_targets", 1));
  if (strcmp(transform, "NONE"))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "post_transform '%s'; NONE is supported", transform);
  KVA_TRY(read_machine(k, 1, &s));
  if (s.vectors && s.coefficients.n != s.vectors)
    return kva_onnx_fail(k, KVA_INVALID, "%u coefficients for %lld support vectors", s.coefficients.n,
                         (long long)s.vectors);
  kva_value *rows = s.vectors ? kernels(b, &s) : s.x;
  kva_value *y = kva_matmul(b, rows, table(b, &s, 1, s.coefficients.n, s.coefficients.v), false, true);
  y = kva_add(b, y, kva_scalar_like(b, y, s.rho.v[0]));
  if (!kva_onnx_int(k, "one_class", 0)) return kva_onnx_done(k, y);
  kva_value *inside = kva_build2(b, KVA_OP_less, kva_scalar_like(b, y, 0), y);
  return kva_onnx_done(k, kva_onnx_where(b, inside, kva_scalar_like(b, y, 1), kva_scalar_like(b, y, -1)));
}

/* ---- SVMClassifier: scores --------------------------------------------------------------------------------------- */

static double *zeros(kva_onnx_call *k, int64_t n) {
  double *v = KVA_NEW_ARRAY(k->c->arena, double, n + 1);
  for (int64_t i = 0; i < n; i++) v[i] = 0;
  return v;
}

/* [N, pairs], in the order (0, 1), (0, 2), ..., (1, 2), ... */
static kva_value *pair_scores(kva_onnx_call *k, const machine *s) {
  double *w = zeros(k, s->pairs * s->vectors), *row = w;
  int64_t from_i = 0;
  for (int64_t i = 0; i < s->classes; from_i += s->vectors_of.v[i++]) {
    int64_t from_j = from_i + s->vectors_of.v[i];
    for (int64_t j = i + 1; j < s->classes; from_j += s->vectors_of.v[j++], row += s->vectors) {
      const double *of_i = s->coefficients.v + (j - 1) * s->vectors, *of_j = s->coefficients.v + i * s->vectors;
      for (int64_t v = from_i; v < from_i + s->vectors_of.v[i]; v++) row[v] = of_i[v];
      for (int64_t v = from_j; v < from_j + s->vectors_of.v[j]; v++) row[v] = of_j[v];
    }
  }
  kva_value *y = kva_matmul(k->b, kernels(k->b, s), table(k->b, s, s->pairs, s->vectors, w), false, true);
  return kva_add(k->b, y, table(k->b, s, 1, s->pairs, s->rho.v));
}

/* [N, rows of `first`]: for each pair its part p goes where the row of `first` says, 1 - p where that of `second` does.
 */
static kva_value *spread(kva_builder *b, const machine *s, kva_value *p, int64_t n, const double *first,
                         const double *second) {
  kva_value *rest = kva_sub(b, kva_scalar_like(b, p, 1), p);
  return kva_add(b, kva_matmul(b, p, table(b, s, s->pairs, n, first), false, false),
                 kva_matmul(b, rest, table(b, s, s->pairs, n, second), false, false));
}

/* [N, classes] */
static kva_value *votes_of(kva_onnx_call *k, const machine *s, kva_value *scores) {
  double *first = zeros(k, s->pairs * s->classes), *second = zeros(k, s->pairs * s->classes);
  int64_t pair = 0;
  for (int64_t i = 0; i < s->classes; i++)
    for (int64_t j = i + 1; j < s->classes; j++, pair++)
      first[pair * s->classes + i] = second[pair * s->classes + j] = 1;
  kva_value *wins = kva_build2(k->b, KVA_OP_less, kva_scalar_like(k->b, scores, 0), scores);
  return spread(k->b, s, kva_cast(k->b, wins, s->x->type->dtype), s->classes, first, second);
}

/* ---- SVMClassifier: probabilities -------------------------------------------------------------------------------- */

/* The matrix of the quadratic form p^T Q p that the probabilities of the classes minimise, [N, classes, classes]:
 * Q[t, t] = the sum of r[j, t]^2, Q[t, j] = -r[j, t] r[t, j], with r[i, j] the probability of i against j. */
static kva_value *coupling(kva_onnx_call *k, const machine *s, kva_value *scores) {
  kva_builder *b = k->b;
  int64_t c = s->classes, pair = 0;
  double *first = zeros(k, s->pairs * c * c), *second = zeros(k, s->pairs * c * c), *unit = zeros(k, c * c);
  for (int64_t i = 0; i < c; i++) {
    unit[i * c + i] = 1;
    for (int64_t j = i + 1; j < c; j++, pair++) first[pair * c * c + i * c + j] = second[pair * c * c + j * c + i] = 1;
  }
  kva_value *p =
      kva_add(b, kva_mul(b, scores, table(b, s, 1, s->pairs, s->prob_a.v)), table(b, s, 1, s->pairs, s->prob_b.v));
  p = kva_build1(b, KVA_OP_sigmoid, kva_build1(b, KVA_OP_neg, p));
  p = kva_build2(b, KVA_OP_max, p, kva_scalar_like(b, p, 1e-7));
  p = kva_build2(b, KVA_OP_min, p, kva_scalar_like(b, p, 1 - 1e-7));
  kva_dim extent = kva_expr_const(b->m->exprs, c), shape[3] = {kva_onnx_dim(s->x, 0), extent, extent};
  kva_value *r = kva_reshape(b, spread(b, s, p, c * c, first, second), 3, shape);
  kva_value *other = kva_transpose(b, r, (int64_t[]){0, 2, 1});
  kva_value *squares = kva_reduce(b, KVA_OP_reduce_sum, kva_mul(b, other, other), 1, &(int64_t){2}, true);
  return kva_sub(b, kva_mul(b, squares, table(b, s, c, c, unit)), kva_mul(b, r, other));
}

/* Row t of Q, [N, classes], and its elements of the diagonal, [N, 1]. */
typedef struct row {
  kva_value *q, *diagonal;
} row;

static kva_value *column(kva_builder *b, kva_value *x, int64_t t) {
  return kva_onnx_slice(b, x, 1, kva_expr_const(b->m->exprs, t), kva_expr_const(b->m->exprs, 1));
}

static row *rows_of(kva_onnx_call *k, const machine *s, kva_value *q) {
  row *rows = KVA_NEW_ARRAY(k->c->arena, row, s->classes);
  kva_dim shape[2] = {kva_onnx_dim(q, 0), kva_onnx_dim(q, 2)};
  for (int64_t t = 0; t < s->classes && !k->b->failed; t++) {
    rows[t].q = kva_reshape(k->b, column(k->b, q, t), 2, shape);
    rows[t].diagonal = column(k->b, rows[t].q, t);
  }
  return rows;
}

/* What an iteration changes: probabilities p[N, classes], qp = Q p, and pqp = p^T Q p, [N, 1]. */
typedef struct estimate {
  kva_value *p, *qp, *pqp;
} estimate;

/* Moves the probability of class t to its optimum and scales all to the sum 1. */
static void improve(kva_onnx_call *k, const machine *s, const row *r, int64_t t, estimate *e) {
  kva_builder *b = k->b;
  double *unit = zeros(k, s->classes);
  unit[t] = 1;
  kva_value *at = column(b, e->qp, t), *d = kva_div(b, kva_sub(b, e->pqp, at), r->diagonal);
  kva_value *sum = kva_add(b, d, kva_scalar_like(b, d, 1));
  kva_value *more = kva_add(b, kva_mul(b, d, r->diagonal), kva_mul(b, at, kva_scalar_like(b, at, 2)));
  e->p = kva_div(b, kva_add(b, e->p, kva_mul(b, d, table(b, s, 1, s->classes, unit))), sum);
  e->pqp = kva_div(b, kva_add(b, e->pqp, kva_mul(b, d, more)), kva_mul(b, sum, sum));
  e->qp = kva_div(b, kva_add(b, e->qp, kva_mul(b, d, r->q)), sum);
}

/* (i, p) -> (whether a row is not done, p). Rows that are done stay. */
static void coupling_body(kva_onnx_call *k, const machine *s, kva_value *q, const row *rows, const kva_type *type,
                          const kva_region *body) {
  kva_builder *b = k->b;
  (void)kva_graph_add_input(body->graph, kva_type_scalar(b->m, KVA_I64), NULL);
  kva_value *p = kva_graph_add_input(body->graph, type, NULL);
  estimate e = {.p = p};
  e.qp = kva_reduce(b, KVA_OP_reduce_sum, kva_mul(b, q, kva_onnx_unsqueeze(b, p, 1, 1)), 1, &(int64_t){2}, false);
  e.pqp = kva_reduce(b, KVA_OP_reduce_sum, kva_mul(b, p, e.qp), 1, &(int64_t){1}, true);
  kva_value *error = kva_build1(b, KVA_OP_abs, kva_sub(b, e.qp, e.pqp));
  error = kva_reduce(b, KVA_OP_reduce_max, error, 1, &(int64_t){1}, true);
  kva_value *done = kva_build2(b, KVA_OP_less, error, kva_scalar_like(b, error, 0.005 / (double)s->classes));
  for (int64_t t = 0; t < s->classes && !b->failed; t++) improve(k, s, &rows[t], t, &e);
  if (b->failed) return;
  kva_value *open = kva_build1(b, KVA_OP_logical_not, done);
  kva_value *out[2] = {kva_reduce(b, KVA_OP_reduce_max, open, 0, NULL, false), kva_onnx_where(b, done, p, e.p)};
  kva_region_close(k, body, 2, out);
}

/* [N, classes] */
static kva_status probabilities(kva_onnx_call *k, const machine *s, kva_value *scores, kva_value **out) {
  kva_builder *b = k->b;
  kva_value *q = coupling(k, s, scores);
  if (b->failed) return KVA_INVALID;
  const row *rows = rows_of(k, s, q);
  if (b->failed) return KVA_INVALID;
  kva_value *p = kva_expand_like(b, kva_const_scalar(b, s->x->type->dtype, 1 / (double)s->classes), rows[0].q->type);
  int64_t most = s->classes > MIN_ITERATIONS ? s->classes : MIN_ITERATIONS;
  kva_value *operands[3] = {kva_const_scalar(b, KVA_I64, (double)most), kva_const_scalar(b, KVA_BOOL, 1), p};
  kva_region body = kva_region_open(k);
  coupling_body(k, s, q, rows, p->type, &body);
  if (b->failed) return kva_region_discard(k, &body), KVA_INVALID;
  kva_loop_attrs *attrs = kva_attrs_default(b->m->arena, KVA_OP(loop)->attrs);
  attrs->carried = 1;
  kva_node *n = kva_region_node(k, KVA_OP_loop, 1, &body, 3, operands, 1, attrs);
  KVA_TRY(kva_region_infer(k, n));
  *out = kva_result(n, 0);
  return KVA_OK;
}

/* ---- SVMClassifier ----------------------------------------------------------------------------------------------- */

static kva_status count_classes(kva_onnx_call *k, machine *s) {
  const kva_onnx_attr *ints = kva_onnx_find_attr(k, "classlabels_ints");
  const kva_onnx_attr *strings = kva_onnx_find_attr(k, "classlabels_strings");
  s->classes = ints ? ints->n : strings ? strings->n : 0;
  s->vectors_of = kva_onnx_ints(k, "vectors_per_class");
  s->pairs = s->classes * (s->classes - 1) / 2;
  if (s->classes < 2 || s->classes > MAX_CLASSES)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "%lld class labels; 2 to %d are supported", (long long)s->classes,
                         MAX_CLASSES);
  for (uint32_t i = 0; i < s->vectors_of.n; i++) {
    if (s->vectors_of.v[i] < 0 || s->vectors_of.v[i] > INT32_MAX)
      return kva_onnx_fail(k, KVA_INVALID, "vectors_per_class[%u] is %lld", i, (long long)s->vectors_of.v[i]);
    s->vectors += s->vectors_of.v[i];
  }
  return KVA_OK;
}

static kva_status check_pairs(kva_onnx_call *k, const machine *s) {
  int64_t n = (s->classes - 1) * s->vectors;
  if (s->vectors_of.n != s->classes || s->coefficients.n != n || s->rho.n != s->pairs)
    return kva_onnx_fail(
        k, KVA_INVALID,
        "%lld classes: %u vectors_per_class, %u coefficients (expected %lld), %u of rho (expected %lld)",
        (long long)s->classes, s->vectors_of.n, s->coefficients.n, (long long)n, s->rho.n, (long long)s->pairs);
  if (s->pairs * s->vectors > MAX_CELLS || (s->prob_a.n && s->classes > MAX_COUPLED))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "%lld classes with %lld support vectors; with probabilities at most %d",
                         (long long)s->classes, (long long)s->vectors, MAX_COUPLED);
  if (s->prob_a.n == s->prob_b.n && (!s->prob_a.n || s->prob_a.n == s->pairs)) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "%u of prob_a and %u of prob_b for %lld pairs of classes", s->prob_a.n,
                       s->prob_b.n, (long long)s->pairs);
}

static bool all_positive(const machine *s) {
  for (uint32_t i = 0; i < s->coefficients.n; i++)
    if (s->coefficients.v[i] < 0) return false;
  return true;
}

/* The standard says nothing of these cases of two classes without probabilities, and its reference implementation and
 * ONNX Runtime 1.32 give different labels or scores. No exporter is known to write them. */
static kva_status check_disputed(kva_onnx_call *k, const machine *s, const char *transform) {
  if (s->classes != 2 || s->rho.n != 1 || (s->vectors && s->prob_a.n)) return KVA_OK;
  bool usual = !strcmp(transform, "NONE") || !strcmp(transform, "LOGISTIC");
  const char *what = NULL;
  if (!s->vectors)
    what = "linear functions without support vectors";
  else if (all_positive(s))
    what = "coefficients that are all positive";
  else if (!usual)
    what = kva_arena_printf(k->c->arena, "post_transform %s and no probabilities", transform);
  if (!what) return KVA_OK;
  return kva_onnx_fail(k, KVA_UNSUPPORTED, "two classes with %s, whose meaning is not defined", what);
}

/* Scores of classes, of pairs, or of two classes as -s, s. */
static kva_status classify(kva_onnx_call *k, const machine *s, kva_value **out) {
  kva_builder *b = k->b;
  if (!s->vectors) {
    int64_t features = s->coefficients.n / s->classes;
    *out = kva_matmul(b, s->x, table(b, s, s->classes, features, s->coefficients.v), false, true);
    *out = kva_add(b, *out, kva_scalar_like(b, *out, s->rho.v[0]));
    return kva_onnx_class_labels(k, *out);
  }
  KVA_TRY(check_pairs(k, s));
  *out = pair_scores(k, s);
  if (b->failed) return KVA_INVALID;
  KVA_TRY(kva_onnx_class_labels(k, votes_of(k, s, *out)));
  if (s->prob_a.n) return probabilities(k, s, *out, out);
  if (s->classes == 2) *out = kva_onnx_concat(b, kva_build1(b, KVA_OP_neg, *out), *out, 1);
  return KVA_OK;
}

kva_status kva_onnx_svm_classifier(kva_onnx_call *k) {
  machine s = {0};
  kva_value *scores = NULL;
  KVA_TRY(count_classes(k, &s));
  KVA_TRY(read_machine(k, s.classes, &s));
  KVA_TRY(read_floats(k, "prob_a", &s.prob_a));
  KVA_TRY(read_floats(k, "prob_b", &s.prob_b));
  const char *transform = kva_onnx_string(k, "post_transform", "NONE");
  KVA_TRY(check_disputed(k, &s, transform));
  KVA_TRY(classify(k, &s, &scores));
  KVA_TRY(kva_onnx_post_transform(k, transform, &scores));
  kva_onnx_set_out(k, 1, scores);
  return KVA_OK;
}
