/* Rules: tree ensembles of ai.onnx.ml. The nodes of all trees are rows of constant tables. Every row of the input walks
 * down all trees at once: a step gathers, for each row and tree, feature, threshold and first child of the node that
 * was reached; the second child is the row after the first. Leaves lead to themselves, so the number of steps is the
 * depth of the deepest tree, and the result is a sum over trees of the leaves' rows in a table of weights. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

#include <math.h>

enum { MAX_DEPTH = 512, MAX_NODES = 1 << 24 };
typedef enum mode { LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF, MODES } mode;
typedef enum aggregate { AVERAGE, SUM, MIN, MAX } aggregate;

typedef struct forest {
  uint32_t n, trees;                     /* nodes, leaves included */
  int64_t *feature, *yes, *no, *missing; /* missing: a NaN takes the branch `yes` */
  uint32_t depth;                        /* the most branches on a way from a root to a leaf */
  double *split;
  mode *modes;
  int64_t *roots; /* [trees] */
  int64_t targets;
  double *weights; /* [n, targets] */
  double *sets;    /* [n, set]: what a node of mode MEMBER compares with; NaN: nothing */
  uint32_t set;
  double *base; /* [targets], or NULL */
  aggregate how;
} forest;

static bool create(kva_onnx_call *k, forest *f, uint64_t n, uint64_t trees, int64_t targets) {
  kva_arena *arena = k->c->arena;
  int64_t cells;
  if (n > MAX_NODES || trees > n || targets < 1 || !kva_mul_size((int64_t)n, targets, &cells) || cells > 1 << 28)
    return false;
  f->n = (uint32_t)n, f->trees = (uint32_t)trees, f->targets = targets;
  f->feature = KVA_NEW_ARRAY(arena, int64_t, n + 1);
  f->yes = KVA_NEW_ARRAY(arena, int64_t, n + 1);
  f->no = KVA_NEW_ARRAY(arena, int64_t, n + 1);
  f->missing = KVA_NEW_ARRAY(arena, int64_t, n + 1);
  f->split = KVA_NEW_ARRAY(arena, double, n + 1);
  f->modes = KVA_NEW_ARRAY(arena, mode, n + 1);
  f->roots = KVA_NEW_ARRAY(arena, int64_t, trees + 1);
  f->weights = KVA_NEW_ARRAY(arena, double, (size_t)cells + 1);
  return true;
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

/* Adds `node` to a level unless it is a leaf. A cycle or a node of two parents shows when more are reached than are. */
static kva_status reach(kva_onnx_call *k, const forest *f, int64_t node, uint32_t *reached, uint32_t *n,
                        int64_t *level) {
  if (f->modes[node] == LEAF) return KVA_OK;
  if (++*reached > f->n) return kva_onnx_fail(k, KVA_INVALID, "the nodes are no trees: one is reached twice");
  level[(*n)++] = node;
  return KVA_OK;
}

/* Depth and number of nodes that branch. */
static kva_status measure(kva_onnx_call *k, forest *f, uint32_t *branches) {
  int64_t *level = KVA_NEW_ARRAY(k->c->arena, int64_t, f->n + 1);
  int64_t *below = KVA_NEW_ARRAY(k->c->arena, int64_t, f->n + 1);
  uint32_t reached = 0, n = 0;
  for (uint32_t i = 0; i < f->trees; i++) KVA_TRY(reach(k, f, f->roots[i], &reached, &n, level));
  for (f->depth = 0; n; f->depth++) {
    uint32_t more = 0;
    for (uint32_t i = 0; i < n; i++) {
      KVA_TRY(reach(k, f, f->yes[level[i]], &reached, &more, below));
      KVA_TRY(reach(k, f, f->no[level[i]], &reached, &more, below));
    }
    int64_t *old = level;
    level = below, below = old, n = more;
    if (f->depth >= MAX_DEPTH) return kva_onnx_fail(k, KVA_UNSUPPORTED, "a tree is deeper than %d", MAX_DEPTH);
  }
  *branches = reached;
  return KVA_OK;
}

/* No comparison with a NaN holds, so a leaf takes the branch `no`, which leads to itself. */
static void copy_node(const forest *from, int64_t i, forest *to, uint32_t at) {
  bool leaf = from->modes[i] == LEAF;
  to->modes[at] = from->modes[i], to->feature[at] = from->feature[i], to->missing[at] = from->missing[i];
  to->split[at] = leaf ? NAN : from->split[i];
  to->yes[at] = from->yes[i], to->no[at] = leaf ? at : from->no[i];
  memcpy(to->weights + at * from->targets, from->weights + i * from->targets, (size_t)from->targets * sizeof(double));
  if (from->sets) memcpy(to->sets + (size_t)at * from->set, from->sets + i * from->set, from->set * sizeof(double));
}

/* The forest with both children of each node next to each other, `no` first: level by level from the roots. A leaf to
 * which several nodes lead appears once for each. */
static kva_status pair_children(kva_onnx_call *k, const forest *f, forest *out) {
  uint32_t branches = 0, n = f->trees;
  forest g = *f;
  KVA_TRY(measure(k, &g, &branches));
  if (!create(k, &g, f->trees + 2 * (uint64_t)branches, f->trees, f->targets))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "%u trees, %u branches", f->trees, branches);
  if (f->sets) g.sets = KVA_NEW_ARRAY(k->c->arena, double, (size_t)g.n * f->set);
  for (uint32_t i = 0; i < f->trees; i++) g.roots[i] = i, copy_node(f, f->roots[i], &g, i);
  for (uint32_t i = 0; i < g.n; i++) {
    if (g.modes[i] == LEAF) continue;
    copy_node(f, g.no[i], &g, n), copy_node(f, g.yes[i], &g, n + 1);
    g.no[i] = n, g.yes[i] = n + 1;
    n += 2;
  }
  *out = g;
  return KVA_OK;
}

static kva_value *row_of(kva_builder *b, kva_value *table, kva_value *at) {
  return kva_onnx_gather(b, table, at, 0);
}

/* Nodes and features fit 32 bits, of which a vector holds twice as many. */
static kva_value *ints(kva_builder *b, uint32_t n, const int64_t *v) {
  return kva_onnx_const_list(b, KVA_I32, 1, n, v);
}

static kva_value *floats(kva_builder *b, kva_dtype t, uint32_t rank, const int64_t *dims, const double *v) {
  int64_t n = 1;
  kva_dim shape[2];
  for (uint32_t i = 0; i < rank; i++) n *= dims[i], shape[i] = kva_expr_const(b->m->exprs, dims[i]);
  return kva_reshape(b, kva_onnx_const_list(b, t, 1, n, v), rank, shape);
}

/* The comparison of one mode, of x and the thresholds s of the nodes `at`. */
static kva_value *compare(kva_builder *b, const forest *f, mode m, kva_value *x, kva_value *s, kva_value *at) {
  switch (m) {
  case LEQ: return kva_build2(b, KVA_OP_less_equal, x, s);
  case LT: return kva_build2(b, KVA_OP_less, x, s);
  case GTE: return kva_build2(b, KVA_OP_less_equal, s, x);
  case GT: return kva_build2(b, KVA_OP_less, s, x);
  case EQ: return kva_build2(b, KVA_OP_equal, x, s);
  case NEQ: return kva_build1(b, KVA_OP_logical_not, kva_build2(b, KVA_OP_equal, x, s));
  default: break;
  }
  kva_value *sets = row_of(b, floats(b, x->type->dtype, 2, (int64_t[]){f->n, f->set}, f->sets), at);
  kva_value *same = kva_build2(b, KVA_OP_equal, kva_onnx_unsqueeze(b, x, 2, 1), sets);
  return kva_reduce(b, KVA_OP_reduce_max, same, 1, &(int64_t){2}, false);
}

/* Whether each branch `yes` is taken: that of the node's mode among those that occur. Leaves must not take it; but for
 * NEQ no mode does there, and one mode in all needs no table of where it is. */
static kva_value *decide(kva_builder *b, const forest *f, kva_value *x, kva_value *at) {
  kva_value *s = row_of(b, floats(b, x->type->dtype, 1, (int64_t[]){f->n}, f->split), at), *all = NULL;
  int64_t *has = KVA_NEW_ARRAY(b->m->arena, int64_t, f->n);
  bool any_missing = false;
  uint32_t leaves = 0;
  for (uint32_t i = 0; i < f->n; i++) leaves += f->modes[i] == LEAF;
  for (mode m = LEQ; m < LEAF; m++) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < f->n; i++) count += has[i] = f->modes[i] == m;
    if (!count) continue;
    kva_value *taken = compare(b, f, m, x, s, at);
    if (count + leaves == f->n && m != NEQ) {
      all = taken;
      break;
    }
    kva_value *here = kva_cast(b, row_of(b, ints(b, f->n, has), at), KVA_BOOL);
    taken = kva_build2(b, KVA_OP_logical_and, here, taken);
    all = all ? kva_build2(b, KVA_OP_logical_or, all, taken) : taken;
  }
  for (uint32_t i = 0; i < f->n; i++) any_missing |= f->missing[i] != 0;
  if (!any_missing) return all;
  kva_value *follows = kva_cast(b, row_of(b, ints(b, f->n, f->missing), at), KVA_BOOL);
  return kva_build2(b, KVA_OP_logical_or, all,
                    kva_build2(b, KVA_OP_logical_and, kva_build1(b, KVA_OP_is_nan, x), follows));
}

/* Feature and first child of each node, in one number where that fits: a gather is what a step costs. */
typedef struct links {
  kva_value *features, *children, *both; /* both: children << bits | features, or NULL */
  int64_t bits;
} links;

static links link_nodes(kva_builder *b, const forest *f) {
  links t = {0};
  int64_t most = 0, *both = KVA_NEW_ARRAY(b->m->arena, int64_t, f->n);
  for (uint32_t i = 0; i < f->n; i++) most = f->feature[i] > most ? f->feature[i] : most;
  while (most >> t.bits) t.bits++;
  if ((int64_t)f->n << t.bits > INT32_MAX)
    return (links){.features = ints(b, f->n, f->feature), .children = ints(b, f->n, f->no)};
  for (uint32_t i = 0; i < f->n; i++) both[i] = f->no[i] << t.bits | f->feature[i];
  t.both = ints(b, f->n, both);
  return t;
}

static void follow(kva_builder *b, const links *t, kva_value *at, kva_value **feature, kva_value **child) {
  if (!t->both) {
    *feature = row_of(b, t->features, at), *child = row_of(b, t->children, at);
    return;
  }
  kva_value *both = row_of(b, t->both, at);
  *feature = kva_build2(b, KVA_OP_bit_and, both, kva_scalar_like(b, both, (double)(((int64_t)1 << t->bits) - 1)));
  *child = kva_build(b, KVA_OP_bit_shift, 2, (kva_value *[]){both, kva_scalar_like(b, both, (double)t->bits)},
                     &(kva_bit_shift_attrs){.left = false});
}

/* int32[N, trees]: the leaves that rows of x[N, F] reach. All rows begin at the same nodes, so that the tables' rows of
 * the first step are constants. */
static kva_value *walk(kva_builder *b, const forest *f, kva_value *x) {
  const links t = link_nodes(b, f);
  kva_dim shape[2] = {x->type->dims[0], kva_expr_const(b->m->exprs, f->trees)};
  kva_value *at = kva_onnx_unsqueeze(b, ints(b, f->trees, f->roots), 0, 1);
  for (uint32_t i = 0; i < f->depth; i++) {
    kva_value *feature, *child;
    follow(b, &t, at, &feature, &child);
    kva_value *both[] = {x, kva_expand(b, feature, 2, shape)};
    kva_value *v = kva_build(b, KVA_OP_gather_elements, 2, both, &(kva_gather_elements_attrs){.axis = 1});
    at = kva_add(b, child, kva_cast(b, decide(b, f, v, at), KVA_I32));
  }
  return kva_expand(b, at, 2, shape);
}

/* Trees without a weight for a target take no part in its minimum or maximum. */
static kva_value *combine(kva_builder *b, const forest *f, kva_value *leaves, kva_dtype t) {
  static const kva_op_id ops[] = {KVA_OP_reduce_sum, KVA_OP_reduce_sum, KVA_OP_reduce_min, KVA_OP_reduce_max};
  kva_value *w = row_of(b, floats(b, t, 2, (int64_t[]){f->n, f->targets}, f->weights), leaves);
  kva_value *y = kva_reduce(b, ops[f->how], w, 1, &(int64_t){1}, false);
  if (f->how == AVERAGE) y = kva_div(b, y, kva_scalar_like(b, y, f->trees));
  if (f->how == MIN || f->how == MAX) {
    kva_value *none = kva_build2(b, KVA_OP_equal, y, kva_scalar_like(b, y, f->how == MIN ? INFINITY : -INFINITY));
    y = kva_onnx_where(b, none, kva_scalar_like(b, y, 0), y);
  }
  return f->base ? kva_add(b, y, floats(b, t, 1, &f->targets, f->base)) : y;
}

/* [N, targets] */
static kva_status evaluate(kva_onnx_call *k, const forest *f, kva_value **out) {
  kva_value *x = kva_onnx_in(k, 0);
  forest g = {0};
  int64_t most = 0;
  if (x->type->rank == 1) x = kva_onnx_unsqueeze(k->b, x, 0, 1);
  if (x->type->rank != 2) return kva_onnx_fail(k, KVA_INVALID, "expected rank 2, found %u", x->type->rank);
  x = kva_onnx_widen(k->b, x);
  for (uint32_t i = 0; i < f->n; i++) most = f->feature[i] > most ? f->feature[i] : most;
  kva_dim least = kva_expr_const(kva_onnx_exprs(k), most + 1), features = kva_onnx_dim(x, 1);
  int64_t known;
  if (kva_expr_is_const(features, &known) && most >= known)
    return kva_onnx_fail(k, KVA_INVALID, "feature %lld of %lld", (long long)most, (long long)known);
  if (!kva_expr_provably_le(kva_onnx_exprs(k), least, features) && !k->b->assumes)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "the number of features is symbolic; pin the symbol (--pin)");
  x = kva_onnx_with_extent(k, x, 1, kva_expr_max(kva_onnx_exprs(k), features, least), "the features of trees");
  KVA_TRY(pair_children(k, f, &g));
  *out = combine(k->b, &g, walk(k->b, &g, x), x->type->dtype);
  return KVA_OK;
}

/* ---- TreeEnsemble (5) -------------------------------------------------------------------------------------------- */

/* The numbers of a tensor. */
typedef struct numbers {
  int64_t n;
  bool real;
  double *v;
} numbers;

/* A tensor attribute of n elements, or of any number if n is negative; NULL: absent. */
static kva_status tensor_attr(kva_onnx_call *k, const char *name, int64_t n, const numbers **out) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, name);
  const kva_tensor_data *t = a && a->kind == KVA_ONNX_TENSOR ? a->tensor : NULL;
  *out = NULL;
  if (!a) return KVA_OK;
  if (!t || t->rank != 1 || t->dtype == KVA_STRING || (n >= 0 && t->dims[0] != n))
    return kva_onnx_fail(k, KVA_INVALID, "attribute '%s': expected a tensor of %lld numbers", name, (long long)n);
  numbers *v = KVA_NEW(k->c->arena, numbers);
  *v = (numbers){t->dims[0], kva_dtype_is_float(t->dtype), KVA_NEW_ARRAY(k->c->arena, double, t->dims[0] + 1)};
  for (int64_t i = 0; i < v->n; i++) v->v[i] = kva_load_f64(t->dtype, t->data, i);
  *out = v;
  return KVA_OK;
}

static kva_status ints_attr(kva_onnx_call *k, const char *name, uint32_t n, const int64_t **out) {
  kva_ints v = kva_onnx_ints(k, name);
  *out = v.v;
  if (v.n == n || !v.n) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "attribute '%s' has %u elements, expected %u", name, v.n, n);
}

/* Members of nodes' sets follow each other, with a NaN after each set, in order of the nodes. */
static kva_status read_sets(kva_onnx_call *k, forest *f, const numbers *values) {
  uint32_t length = 0;
  for (int64_t i = 0; values && i < values->n; i++) {
    length = isnan(values->v[i]) ? 0 : length + 1;
    f->set = length > f->set ? length : f->set;
  }
  f->set += !f->set;
  f->sets = KVA_NEW_ARRAY(k->c->arena, double, (size_t)f->n * f->set);
  for (size_t i = 0; i < (size_t)f->n * f->set; i++) f->sets[i] = NAN;
  int64_t at = 0;
  for (uint32_t i = 0; i < f->n; i++) {
    if (f->modes[i] != MEMBER) continue;
    for (uint32_t j = 0; values && at < values->n && !isnan(values->v[at]); at++)
      f->sets[i * f->set + j++] = values->v[at];
    if (!values || at++ >= values->n) return kva_onnx_fail(k, KVA_INVALID, "membership_values end before node %u", i);
  }
  return KVA_OK;
}

static kva_status read_nodes(kva_onnx_call *k, forest *f, uint32_t nodes, uint32_t leaves) {
  const numbers *modes, *splits, *members;
  const int64_t *feature, *yes, *no, *yes_leaf, *no_leaf, *missing;
  KVA_TRY(tensor_attr(k, "nodes_modes", nodes, &modes));
  KVA_TRY(tensor_attr(k, "nodes_splits", nodes, &splits));
  KVA_TRY(tensor_attr(k, "membership_values", -1, &members));
  KVA_TRY(ints_attr(k, "nodes_featureids", nodes, &feature));
  KVA_TRY(ints_attr(k, "nodes_truenodeids", nodes, &yes));
  KVA_TRY(ints_attr(k, "nodes_falsenodeids", nodes, &no));
  KVA_TRY(ints_attr(k, "nodes_trueleafs", nodes, &yes_leaf));
  KVA_TRY(ints_attr(k, "nodes_falseleafs", nodes, &no_leaf));
  KVA_TRY(ints_attr(k, "nodes_missing_value_tracks_true", nodes, &missing));
  (void)kva_onnx_find_attr(k, "nodes_hitrates");
  if (!modes || !splits || !splits->real || !feature || !yes || !no || !yes_leaf || !no_leaf ||
      (members && !members->real))
    return kva_onnx_fail(k, KVA_INVALID, "a table of the nodes is missing");
  for (uint32_t i = 0; i < nodes; i++) {
    int64_t at[2] = {yes[i] + (yes_leaf[i] ? nodes : 0), no[i] + (no_leaf[i] ? nodes : 0)};
    for (int j = 0; j < 2; j++)
      if (at[j] < 0 || at[j] >= (int64_t)nodes + leaves || (at[j] < nodes) == (j ? no_leaf[i] : yes_leaf[i]))
        return kva_onnx_fail(k, KVA_INVALID, "node %u leads to %lld, which does not exist", i, (long long)at[j]);
    if (!(modes->v[i] >= 0 && modes->v[i] < LEAF) || feature[i] < 0 || feature[i] > INT32_MAX)
      return kva_onnx_fail(k, KVA_INVALID, "node %u: mode %lld, feature %lld", i, (long long)modes->v[i],
                           (long long)feature[i]);
    f->feature[i] = feature[i], f->split[i] = splits->v[i], f->modes[i] = (mode)modes->v[i];
    f->yes[i] = at[0], f->no[i] = at[1], f->missing[i] = missing ? missing[i] != 0 : 0;
  }
  return read_sets(k, f, members);
}

static void make_leaf(forest *f, uint32_t i) {
  f->modes[i] = LEAF;
  f->yes[i] = f->no[i] = i;
}

/* A target without a weight does not change an extremum. */
static void clear_weights(forest *f) {
  double none = f->how == MIN ? INFINITY : f->how == MAX ? -INFINITY : 0;
  for (int64_t i = 0; i < f->n * f->targets; i++) f->weights[i] = none;
}

static kva_status add_weight(kva_onnx_call *k, forest *f, int64_t node, int64_t target, double w) {
  if (target < 0 || target >= f->targets)
    return kva_onnx_fail(k, KVA_INVALID, "target %lld of %lld", (long long)target, (long long)f->targets);
  double *at = &f->weights[node * f->targets + target];
  *at = isinf(*at) ? w : *at + w;
  return KVA_OK;
}

kva_status kva_onnx_tree_ensemble(kva_onnx_call *k) {
  static const char *const transforms[] = {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"};
  kva_ints features = kva_onnx_ints(k, "nodes_featureids"), targets = kva_onnx_ints(k, "leaf_targetids");
  kva_ints roots = kva_onnx_ints(k, "tree_roots");
  int64_t transform = kva_onnx_int(k, "post_transform", 0), how = kva_onnx_int(k, "aggregate_function", 1);
  const numbers *weights;
  forest f = {.how = (aggregate)how};
  if (how < AVERAGE || how > MAX || transform < 0 || transform > 4)
    return kva_onnx_fail(k, KVA_INVALID, "aggregate_function %lld, post_transform %lld", (long long)how,
                         (long long)transform);
  if (!create(k, &f, (uint64_t)features.n + targets.n, roots.n, kva_onnx_int(k, "n_targets", 1)) || !roots.n)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "%u nodes, %u leaves, %u trees", features.n, targets.n, roots.n);
  KVA_TRY(tensor_attr(k, "leaf_weights", targets.n, &weights));
  if (!weights || !weights->real) return kva_onnx_fail(k, KVA_INVALID, "leaf_weights are missing");
  KVA_TRY(read_nodes(k, &f, features.n, targets.n));
  clear_weights(&f);
  for (uint32_t i = 0; i < targets.n; i++) {
    make_leaf(&f, features.n + i);
    KVA_TRY(add_weight(k, &f, features.n + i, targets.v[i], weights->v[i]));
  }
  for (uint32_t i = 0; i < roots.n; i++) {
    if (roots.v[i] < 0 || roots.v[i] >= features.n) return kva_onnx_fail(k, KVA_INVALID, "tree_roots[%u]", i);
    f.roots[i] = roots.v[i];
  }
  kva_value *y = NULL;
  KVA_TRY(evaluate(k, &f, &y));
  KVA_TRY(kva_onnx_post_transform(k, transforms[transform], &y));
  return kva_onnx_done(k, y);
}

/* ---- TreeEnsembleRegressor, TreeEnsembleClassifier --------------------------------------------------------------- */

/* Numbers of nodes by (tree, node). */
typedef struct node_ids {
  const int64_t *trees, *nodes;
  kva_map *numbers;
} node_ids;

static int64_t find_node(const node_ids *ids, int64_t tree, int64_t node) {
  return (int64_t)(uintptr_t)kva_map_get(ids->numbers, (int64_t[]){tree, node}, 2 * sizeof node) - 1;
}

static kva_status mode_named(kva_onnx_call *k, const char *name, mode *out) {
  static const char *const names[] = {"BRANCH_LEQ", "BRANCH_LT",  "BRANCH_GTE", "BRANCH_GT",
                                      "BRANCH_EQ",  "BRANCH_NEQ", "",           "LEAF"};
  for (*out = LEQ; *out < MODES; ++*out)
    if (!strcmp(names[*out], name)) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "nodes_modes: '%s' is no mode", name);
}

static kva_status floats_attr(kva_onnx_call *k, const char *name, uint32_t n, const double **out) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, name);
  const numbers *w = NULL;
  KVA_TRY(tensor_attr(k, kva_arena_printf(k->c->arena, "%s_as_tensor", name), n, &w));
  *out = a && a->kind == KVA_ONNX_FLOATS ? a->floats : w && w->real ? w->v : NULL;
  if (!a || a->n == n) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "attribute '%s' has %u elements, expected %u", name, a->n, n);
}

/* Nodes of the tables, whose children are (tree, node); roots are nobody's child. */
static kva_status read_listed(kva_onnx_call *k, forest *f, node_ids *ids) {
  const kva_onnx_attr *modes = kva_onnx_find_attr(k, "nodes_modes");
  const int64_t *feature, *yes, *no, *missing;
  const double *split;
  bool *is_child = KVA_NEW_ARRAY(k->c->arena, bool, f->n + 1);
  KVA_TRY(ints_attr(k, "nodes_featureids", f->n, &feature));
  KVA_TRY(ints_attr(k, "nodes_truenodeids", f->n, &yes));
  KVA_TRY(ints_attr(k, "nodes_falsenodeids", f->n, &no));
  KVA_TRY(ints_attr(k, "nodes_missing_value_tracks_true", f->n, &missing));
  KVA_TRY(floats_attr(k, "nodes_values", f->n, &split));
  (void)kva_onnx_find_attr(k, "nodes_hitrates"), (void)kva_onnx_find_attr(k, "nodes_hitrates_as_tensor");
  if (!modes || modes->kind != KVA_ONNX_STRINGS || modes->n != f->n || !feature || !yes || !no || !split)
    return kva_onnx_fail(k, KVA_INVALID, "a table of the nodes is missing");
  for (uint32_t i = 0; i < f->n; i++) {
    KVA_TRY(mode_named(k, modes->strings[i], &f->modes[i]));
    if (f->modes[i] == LEAF) {
      make_leaf(f, i);
      continue;
    }
    f->feature[i] = feature[i], f->split[i] = split[i], f->missing[i] = missing ? missing[i] != 0 : 0;
    f->yes[i] = find_node(ids, ids->trees[i], yes[i]), f->no[i] = find_node(ids, ids->trees[i], no[i]);
    if (f->yes[i] < 0 || f->no[i] < 0)
      return kva_onnx_fail(k, KVA_INVALID, "node %u leads to a node that does not exist", i);
    if (feature[i] < 0 || feature[i] > INT32_MAX)
      return kva_onnx_fail(k, KVA_INVALID, "node %u: feature %lld", i, (long long)feature[i]);
    is_child[f->yes[i]] = is_child[f->no[i]] = true;
  }
  f->trees = 0;
  for (uint32_t i = 0; i < f->n; i++)
    if (!is_child[i]) f->roots[f->trees++] = i;
  return KVA_OK;
}

/* Weights of leaves: lists of tree, node, target and weight whose names begin with `kind` ("target"). */
static kva_status read_weights(kva_onnx_call *k, forest *f, const node_ids *ids, const char *kind) {
  kva_arena *arena = k->c->arena;
  kva_ints trees = kva_onnx_ints(k, kva_arena_printf(arena, "%s_treeids", kind));
  const int64_t *nodes, *targets;
  const double *weights;
  KVA_TRY(ints_attr(k, kva_arena_printf(arena, "%s_nodeids", kind), trees.n, &nodes));
  KVA_TRY(ints_attr(k, kva_arena_printf(arena, "%s_ids", kind), trees.n, &targets));
  KVA_TRY(floats_attr(k, kva_arena_printf(arena, "%s_weights", kind), trees.n, &weights));
  if (trees.n && (!nodes || !targets || !weights))
    return kva_onnx_fail(k, KVA_INVALID, "weights of leaves are missing");
  clear_weights(f);
  for (uint32_t i = 0; i < trees.n; i++) {
    int64_t at = find_node(ids, trees.v[i], nodes[i]);
    if (at < 0 || f->modes[at] != LEAF) return kva_onnx_fail(k, KVA_INVALID, "weight %u is of no leaf", i);
    KVA_TRY(add_weight(k, f, at, targets[i], weights[i]));
  }
  return KVA_OK;
}

static kva_status aggregate_named(kva_onnx_call *k, aggregate *out) {
  static const char *const names[] = {"AVERAGE", "SUM", "MIN", "MAX"};
  const char *name = kva_onnx_string(k, "aggregate_function", "SUM");
  for (*out = AVERAGE; *out <= MAX; ++*out)
    if (!strcmp(names[*out], name)) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "attribute 'aggregate_function' is '%s'", name);
}

static int64_t n_classes(kva_onnx_call *k) {
  const kva_onnx_attr *texts = kva_onnx_find_attr(k, "classlabels_strings");
  kva_ints listed = kva_onnx_ints(k, "classlabels_int64s");
  return listed.n ? listed.n : texts ? texts->n : 0;
}

/* Whether two classes have weights for one alone. *positive: whether none is negative, so that they make a probability.
 */
static kva_status read_classes(kva_onnx_call *k, int64_t classes, bool *single, bool *positive) {
  kva_ints ids = kva_onnx_ints(k, "class_ids");
  const double *weights;
  KVA_TRY(floats_attr(k, "class_weights", ids.n, &weights));
  *single = *positive = true;
  for (uint32_t i = 0; i < ids.n; i++) {
    *single &= ids.v[i] == ids.v[0];
    *positive &= !weights || weights[i] >= 0;
  }
  if (!*single || (classes == 2 && ids.n && ids.v[0] == 0)) return KVA_OK;
  return kva_onnx_fail(k, KVA_UNSUPPORTED, "weights of a single class, which is not the first of two");
}

kva_status kva_onnx_tree_nodes(kva_onnx_call *k) {
  bool classifier = k->arg != 0, single = false, positive = false;
  kva_ints trees = kva_onnx_ints(k, "nodes_treeids"), nodes = kva_onnx_ints(k, "nodes_nodeids");
  node_ids ids = {.trees = trees.v, .nodes = nodes.v, .numbers = kva_map_create(k->c->arena)};
  forest f = {0};
  const double *base;
  int64_t targets = classifier ? n_classes(k) : kva_onnx_int(k, "n_targets", 1);
  if (classifier) KVA_TRY(read_classes(k, targets, &single, &positive));
  if (single) targets = 1;
  if (trees.n != nodes.n || !trees.n || !create(k, &f, trees.n, trees.n, targets))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "%u nodes of %lld targets", trees.n, (long long)targets);
  for (uint32_t i = 0; i < trees.n; i++) {
    if (find_node(&ids, trees.v[i], nodes.v[i]) >= 0) return kva_onnx_fail(k, KVA_INVALID, "node %u appears twice", i);
    kva_map_set(ids.numbers, (int64_t[]){trees.v[i], nodes.v[i]}, 2 * sizeof(int64_t), (void *)(uintptr_t)(i + 1));
  }
  f.how = SUM;
  if (!classifier) KVA_TRY(aggregate_named(k, &f.how));
  KVA_TRY(read_listed(k, &f, &ids));
  KVA_TRY(read_weights(k, &f, &ids, classifier ? "class" : "target"));
  KVA_TRY(floats_attr(k, "base_values", (uint32_t)targets, &base));
  f.base = (double *)(uintptr_t)base;
  kva_value *y = NULL;
  KVA_TRY(evaluate(k, &f, &y));
  if (single) {
    KVA_TRY(kva_onnx_pair_scores(k, positive, &y));
  } else {
    if (classifier) KVA_TRY(kva_onnx_class_labels(k, y));
    KVA_TRY(kva_onnx_post_transform(k, kva_onnx_string(k, "post_transform", "NONE"), &y));
  }
  y = kva_cast(k->b, y, KVA_F32);
  kva_onnx_set_out(k, classifier, y);
  return KVA_OK;
}
