#include "tests/support/random_internal.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

const eval_size random_graph_sizes[] = {{"B", 3}, {"T", 7}, {NULL, 0}};

/* ---- drawing ----------------------------------------------------------------------------------------------------- */

static uint32_t draw_bytes(gen *g, uint32_t n) {
  uint64_t v = 0;
  for (uint32_t room = n; room > 1; room = (room + 255) / 256)
    v = v << 8 | (g->draws < g->o->n_bytes ? g->o->bytes[g->draws++] : 0);
  return (uint32_t)(v % n);
}

uint32_t random_draw(gen *g, uint32_t n) {
  if (n == 0) return 0;
  return g->o->bytes ? draw_bytes(g, n) : kva_philox4x32(g->draws++, 0, g->o->seed).v[0] % n;
}

static bool has_bytes(const gen *g) {
  return !g->o->bytes || g->draws < g->o->n_bytes;
}

static bool find_size(void *user, const kva_expr *symbol, int64_t *out_v) {
  for (const eval_size *s = user; s->name; s++) {
    if (!symbol->name || strcmp(symbol->name, s->name)) continue;
    *out_v = s->size;
    return true;
  }
  return false;
}

int64_t random_extent(const gen *g, kva_dim d) {
  const eval_size *sizes = g->o->sizes ? g->o->sizes : random_graph_sizes;
  bool compound = d->kind != KVA_EXPR_SYMBOL && !kva_expr_is_const(d, NULL);
  int64_t v;
  if (compound && !g->o->wide) return -1; /* such values are not used any more */
  return kva_expr_eval(d, find_size, (void *)(uintptr_t)sizes, &v) ? v : -1;
}

static bool at_least_one(void *user, const kva_expr *symbol, int64_t *out_v) {
  if (!find_size(user, symbol, out_v)) return false;
  if (*out_v == 0) *out_v = 1;
  return true;
}

/* A graph runs with a second choice of sizes as well: what has no elements with the first is not to have millions then.
 */
int64_t random_elements(const gen *g, const kva_type *t) {
  const eval_size *sizes = g->o->sizes ? g->o->sizes : random_graph_sizes;
  int64_t n = 1, others = 1, other;
  for (uint32_t d = 0; d < t->rank; d++) {
    int64_t e = random_extent(g, t->dims[d]);
    if (e < 0 || e > MAX_ELEMENTS) return MAX_ELEMENTS + 1;
    if (!kva_expr_eval(t->dims[d], at_least_one, (void *)(uintptr_t)sizes, &other) || other > MAX_ELEMENTS)
      return MAX_ELEMENTS + 1;
    n *= e;
    others *= other;
    if (others > MAX_ELEMENTS) return MAX_ELEMENTS + 1;
  }
  return n;
}

static kva_dim draw_dim(gen *g) {
  static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 19}, more[] = {0, 6, 8, 12};
  uint32_t k = random_draw(g, g->o->states || g->o->parameters ? 7 : 10);
  if (g->o->wide && random_draw(g, 4) == 0) k = 10 + random_draw(g, g->o->states ? 4 : 5);
  if (k == 14) return kva_expr_symbol(g->m->exprs, "N");
  if (k >= 10) return kva_expr_const(g->m->exprs, more[k - 10]);
  if (k >= 7) return kva_expr_symbol(g->m->exprs, k == 7 ? "B" : "T");
  return kva_expr_const(g->m->exprs, sizes[k]);
}

item random_pick(gen *g) {
  /* Late values more often: graphs get deep. */
  uint32_t n = g->items.len, k = random_draw(g, n);
  if (random_draw(g, 2)) k = n - 1 - random_draw(g, n < 3 ? n : 3);
  return g->items.data[k];
}

item random_pick_rank(gen *g, uint32_t least) {
  for (int i = 0; i < 8; i++) {
    item x = random_pick(g);
    if (x.v->type->rank >= least) return x;
  }
  return (item){0};
}

bool random_broadcasts(const kva_type *a, const kva_type *b) {
  uint32_t n = a->rank < b->rank ? a->rank : b->rank;
  for (uint32_t k = 1; k <= n; k++) {
    kva_dim x = a->dims[a->rank - k], y = b->dims[b->rank - k];
    if (x != y && !kva_expr_is(x, 1) && !kva_expr_is(y, 1)) return false;
  }
  return true;
}

item random_pick_compatible(gen *g, const kva_type *t) {
  for (int i = 0; i < 12; i++) {
    item x = random_pick(g);
    if (random_broadcasts(x.v->type, t)) return x;
  }
  return (item){kva_const_scalar(&g->b, t->dtype, (double)random_draw(g, 5) / 2 - 1), 1};
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

void random_add_item(gen *g, kva_value *v, double bound) {
  if (random_elements(g, v->type) > MAX_ELEMENTS || v->type->dtype != g->o->dtype) return;
  if (bound > 30) {
    v = kva_build1(&g->b, KVA_OP_tanh, v);
    bound = 1;
  }
  item i = {v, bound};
  KVA_PUSH(g->scratch, &g->items, i);
}

static void add_unary(gen *g) {
  static const kva_op_id ops[] = {KVA_OP_neg,      KVA_OP_abs,  KVA_OP_relu, KVA_OP_tanh,
                                  KVA_OP_sigmoid,  KVA_OP_silu, KVA_OP_gelu, KVA_OP_erf,
                                  KVA_OP_softplus, KVA_OP_sin,  KVA_OP_cos,  KVA_OP_stop_gradient};
  uint32_t k = random_draw(g, g->o->parameters ? 11 : 12);
  item x = random_pick(g);
  random_add_item(g, kva_build1(&g->b, ops[k], x.v), x.bound + 1);
}

static void add_binary(gen *g) {
  static const kva_op_id ops[] = {KVA_OP_add, KVA_OP_sub, KVA_OP_mul, KVA_OP_max, KVA_OP_min};
  item x = random_pick(g), y = random_pick_compatible(g, x.v->type);
  kva_op_id op = ops[random_draw(g, g->o->parameters ? 3 : 5)];
  if (random_draw(g, 2)) {
    item swap = x;
    x = y;
    y = swap;
  }
  random_add_item(g, kva_build2(&g->b, op, x.v, y.v), op == KVA_OP_mul ? x.bound * y.bound : x.bound + y.bound);
}

/* x / (2 + |y|) */
static void add_quotient(gen *g) {
  item x = random_pick(g), y = random_pick_compatible(g, x.v->type);
  kva_value *d = kva_add(&g->b, kva_build1(&g->b, KVA_OP_abs, y.v), kva_const_scalar(&g->b, g->o->dtype, 2));
  random_add_item(g, random_draw(g, 2) ? kva_div(&g->b, x.v, d) : kva_build1(&g->b, KVA_OP_sqrt, d), x.bound + y.bound);
}

static void add_where(gen *g) {
  item x = random_pick(g), y = random_pick_compatible(g, x.v->type);
  kva_value *c = g->bools.data[random_draw(g, g->bools.len)];
  if (!random_broadcasts(c->type, x.v->type) || !random_broadcasts(c->type, y.v->type)) return;
  random_add_item(g, kva_build3(&g->b, KVA_OP_where, c, x.v, y.v), x.bound + y.bound);
}

static void add_reduction(gen *g) {
  static const kva_op_id ops[] = {KVA_OP_reduce_sum, KVA_OP_reduce_mean, KVA_OP_reduce_max, KVA_OP_reduce_min,
                                  KVA_OP_reduce_prod};
  item x = random_pick_rank(g, 1);
  if (!x.v) return;
  uint32_t rank = x.v->type->rank, n = 0, last = random_draw(g, 2), k = random_draw(g, g->o->parameters ? 2 : 5);
  int64_t axes[KVA_MAX_RANK];
  for (uint32_t d = 0; d < rank; d++)
    if (last ? d + 1 + random_draw(g, 2) >= rank : random_draw(g, 2))
      axes[n++] = random_draw(g, 2) ? (int64_t)d : (int64_t)d - rank;
  if (!n) return;
  if (k == 4) x.v = kva_build1(&g->b, KVA_OP_sigmoid, x.v), x.bound = 1;
  double bound = k == 0 ? x.bound * (double)random_elements(g, x.v->type) : x.bound;
  random_add_item(g, kva_reduce(&g->b, ops[k], x.v, n, axes, random_draw(g, 2)), bound);
}

static void add_row(gen *g) {
  item x = random_pick_rank(g, 1);
  if (!x.v) return;
  int64_t rank = x.v->type->rank, axis = random_draw(g, 3) ? -1 : (int64_t)random_draw(g, (uint32_t)rank);
  uint32_t kind = random_draw(g, g->o->dtype == KVA_F64 ? 4 : 2);
  kva_softmax_attrs soft = {.axis = axis};
  if (kind == 0) random_add_item(g, kva_build(&g->b, KVA_OP_softmax, 1, &x.v, &soft), 1);
  if (kind == 1) random_add_item(g, kva_build(&g->b, KVA_OP_log_softmax, 1, &x.v, &soft), 2 * x.bound + 6);
  if (kind < 2) return;
  item w = random_pick(g);
  if (w.v->type->rank > rank || !random_broadcasts(w.v->type, x.v->type))
    w = (item){kva_const_scalar(&g->b, g->o->dtype, 0.75), 1};
  for (uint32_t d = 1; d <= w.v->type->rank; d++)
    if (w.v->type->dims[w.v->type->rank - d] != x.v->type->dims[rank - d] &&
        !kva_expr_is(w.v->type->dims[w.v->type->rank - d], 1))
      return;
  /* A large eps keeps rows of nearly equal elements from magnifying rounding. */
  kva_rms_norm_attrs norm = {.axis = axis, .eps = 0.01};
  kva_value *operands[] = {x.v, w.v};
  random_add_item(g, kva_build(&g->b, kind == 2 ? KVA_OP_rms_norm : KVA_OP_layer_norm, 2, operands, &norm),
                  8 * w.bound);
}

static void add_reshape(gen *g) {
  item x = random_pick_rank(g, 1);
  if (!x.v) return;
  const kva_type *t = x.v->type;
  kva_dim dims[KVA_MAX_RANK];
  uint32_t n = 0, at = random_draw(g, t->rank), kind = random_draw(g, 3);
  for (uint32_t d = 0; d < t->rank; d++) {
    int64_t size;
    if (kind == 0 && d == at && n) {
      /* Compound extents are fine in the middle of a graph: a further reshape splits them again. */
      if (!kva_expr_is_const(t->dims[d], NULL) || !kva_expr_is_const(dims[n - 1], NULL)) return;
      dims[n - 1] = kva_expr_mul(g->m->exprs, dims[n - 1], t->dims[d]);
    } else if (kind == 1 && d == at && t->rank < 4 && kva_expr_is_const(t->dims[d], &size) && size % 2 == 0) {
      dims[n++] = kva_expr_const(g->m->exprs, size / 2);
      dims[n++] = kva_expr_const(g->m->exprs, 2);
    } else if (kind == 2 && d == at && t->rank < 4) {
      dims[n++] = kva_expr_const(g->m->exprs, 1);
      dims[n++] = t->dims[d];
    } else {
      dims[n++] = t->dims[d];
    }
  }
  random_add_item(g, kva_reshape(&g->b, x.v, n, dims), x.bound);
}

static void add_transpose(gen *g) {
  item x = random_pick_rank(g, 2);
  if (!x.v) return;
  int64_t perm[KVA_MAX_RANK];
  uint32_t rank = x.v->type->rank;
  for (uint32_t d = 0; d < rank; d++) perm[d] = d;
  for (uint32_t d = rank - 1; d > 0; d--) {
    uint32_t k = random_draw(g, d + 1);
    int64_t swap = perm[d];
    perm[d] = perm[k];
    perm[k] = swap;
  }
  random_add_item(g, kva_transpose(&g->b, x.v, perm), x.bound);
}

static void add_slice(gen *g) {
  item x = random_pick_rank(g, 1);
  if (!x.v) return;
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK], size;
  const kva_type *t = x.v->type;
  for (uint32_t d = 0; d < t->rank; d++) {
    starts[d] = kva_expr_const(g->m->exprs, 0);
    shape[d] = t->dims[d];
    steps[d] = 1;
    if (!kva_expr_is_const(t->dims[d], &size) || size < 1 || random_draw(g, 2)) continue;
    int64_t step = 1 + random_draw(g, 2), start = random_draw(g, (uint32_t)size), count = 1 + (size - 1 - start) / step;
    bool back = random_draw(g, 3) == 0;
    starts[d] = kva_expr_const(g->m->exprs, back ? start + (count - 1) * step : start);
    shape[d] = kva_expr_const(g->m->exprs, count);
    steps[d] = back ? -step : step;
  }
  kva_slice_attrs a = {.starts = {t->rank, starts}, .shape = {t->rank, shape}, .steps = {t->rank, steps}};
  random_add_item(g, kva_build(&g->b, KVA_OP_slice, 1, &x.v, &a), x.bound);
}

static void add_expand(gen *g) {
  item x = random_pick(g), like = random_pick_compatible(g, x.v->type);
  if (like.v->type->rank < x.v->type->rank) return;
  for (uint32_t k = 1; k <= x.v->type->rank; k++) {
    kva_dim a = x.v->type->dims[x.v->type->rank - k], b = like.v->type->dims[like.v->type->rank - k];
    if (a != b && !kva_expr_is(a, 1)) return;
  }
  random_add_item(g, kva_expand_like(&g->b, x.v, like.v->type), x.bound);
}

/* Pads one axis and crops it again elsewhere, so that the shape stays: a shift. */
static void add_pad(gen *g) {
  static const char *const modes[] = {NULL, "edge", "wrap", "reflect"};
  item x = random_pick_rank(g, 1);
  if (!x.v) return;
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  uint32_t at = random_draw(g, x.v->type->rank);
  if (random_extent(g, x.v->type->dims[at]) < 2) return;
  for (uint32_t d = 0; d < x.v->type->rank; d++) {
    int64_t amount = d == at ? 1 : 0;
    before[d] = kva_expr_const(g->m->exprs, amount);
    after[d] = kva_expr_const(g->m->exprs, -amount);
  }
  kva_pad_attrs a = {
      .before = {x.v->type->rank, before}, .after = {x.v->type->rank, after}, .mode = modes[random_draw(g, 4)]};
  random_add_item(g, kva_build(&g->b, KVA_OP_pad, 1, &x.v, &a), x.bound);
}

static void add_concat(gen *g) {
  item x = random_pick_rank(g, 1), y = random_pick(g);
  if (!x.v) return;
  if (y.v->type != x.v->type) y.v = kva_neg(&g->b, x.v), y.bound = x.bound;
  uint32_t axis = random_draw(g, x.v->type->rank);
  if (!kva_expr_is_const(x.v->type->dims[axis], NULL)) return;
  kva_concat_attrs a = {.axis = axis};
  random_add_item(g, kva_build(&g->b, KVA_OP_concat, 2, (kva_value *[]){x.v, y.v}, &a), x.bound + y.bound);
}

static void add_gather(gen *g) {
  item x = random_pick_rank(g, 1);
  if (!x.v || x.v->type->rank > 3) return;
  kva_gather_attrs a = {.axis = random_draw(g, x.v->type->rank)};
  if (random_extent(g, x.v->type->dims[a.axis]) < EVAL_INTEGERS) return;
  random_add_item(g, kva_build(&g->b, KVA_OP_gather, 2, (kva_value *[]){x.v, g->index}, &a), x.bound);
}

static void add_matmul(gen *g) {
  item x = random_pick_rank(g, 2), y = random_pick_rank(g, 2);
  if (!x.v || !y.v) return;
  const kva_type *a = x.v->type;
  bool other = random_draw(g, 2);
  uint32_t rank = y.v->type->rank;
  if (rank == 2 && y.v->type->dims[rank - 2] == a->dims[a->rank - 1]) {
    random_add_item(g, kva_matmul(&g->b, x.v, y.v, false, false),
                    x.bound * y.bound * (double)random_extent(g, a->dims[a->rank - 1]));
  } else {
    random_add_item(g, kva_matmul(&g->b, x.v, x.v, !other, other),
                    x.bound * x.bound * (double)random_extent(g, a->dims[a->rank - (other ? 1 : 2)]));
  }
}

static void add_cumsum(gen *g) {
  item x = random_pick_rank(g, 1);
  if (!x.v) return;
  kva_cumsum_attrs a = {
      .axis = random_draw(g, x.v->type->rank), .exclusive = random_draw(g, 2), .reverse = random_draw(g, 2)};
  random_add_item(g, kva_build(&g->b, KVA_OP_cumsum, 1, &x.v, &a),
                  x.bound * (double)random_extent(g, x.v->type->dims[a.axis]));
}

static kva_value *rank4(gen *g, kva_value *v) {
  kva_dim dims[4];
  for (uint32_t d = 0; d < 4; d++)
    dims[d] = d + v->type->rank < 4 ? kva_expr_const(g->m->exprs, 1) : v->type->dims[d + v->type->rank - 4];
  return kva_reshape(&g->b, v, 4, dims);
}

static void add_shift(gen *g) {
  static const char *const boundaries[] = {NULL, "keep", "edge"};
  item x = random_pick_rank(g, 2);
  if (!x.v || x.v->type->rank > 4) return;
  x.v = rank4(g, x.v);
  kva_kv_shift_attrs a = {.time_axis = 1 + random_draw(g, 2), .boundary = boundaries[random_draw(g, 3)]};
  kva_dim heads = x.v->type->dims[a.time_axis == 1 ? 2 : 1], two[2] = {heads, kva_expr_const(g->m->exprs, 2)};
  kva_value *w = kva_expand(&g->b, kva_const_scalar(&g->b, g->o->dtype, 0.625), 2, two);
  if (random_draw(g, 2))
    w = kva_mul(
        &g->b, w,
        kva_build(&g->b, KVA_OP_iota, 0, NULL, &(kva_iota_attrs){.shape = {2, two}, .axis = 1, .dtype = g->o->dtype}));
  kva_node *n = kva_build_node(&g->b, KVA_OP_kv_shift, 2, (kva_value *[]){x.v, w}, 2, &a);
  random_add_item(g, &n->results[0], 2 * x.bound);
  if (random_draw(g, 3) == 0) random_add_item(g, &n->results[1], x.bound);
}

static void add_attention(gen *g) {
  item x = random_pick_rank(g, 2);
  if (!x.v || x.v->type->rank > 4 || !kva_expr_is_const(x.v->type->dims[x.v->type->rank - 1], NULL)) return;
  x.v = rank4(g, x.v);
  kva_attention_attrs a = {.causal = random_draw(g, 2), .window = random_draw(g, 3) ? 0 : 2};
  kva_value *operands[] = {x.v, random_draw(g, 2) ? kva_build1(&g->b, KVA_OP_sin, x.v) : x.v,
                           kva_build1(&g->b, KVA_OP_tanh, x.v)};
  random_add_item(g, kva_build(&g->b, KVA_OP_attention, 3, operands, &a), 1);
}

static void add_loss(gen *g) {
  item x = random_pick_rank(g, 1);
  if (!x.v || g->o->dtype != KVA_F64 || random_extent(g, x.v->type->dims[x.v->type->rank - 1]) < EVAL_INTEGERS) return;
  kva_value *zero = kva_const_scalar(&g->b, KVA_I64, random_draw(g, EVAL_INTEGERS));
  kva_value *targets = kva_expand(&g->b, zero, x.v->type->rank - 1, x.v->type->dims);
  kva_cross_entropy_attrs a = {.ignore_index = -1};
  kva_node *n = kva_build_node(&g->b, KVA_OP_cross_entropy, 2, (kva_value *[]){x.v, targets}, 2, &a);
  random_add_item(g, &n->results[random_draw(g, 2)], 2 * x.bound + 6);
}

static kva_value *read_state(gen *g, kva_state *s) {
  return kva_build(&g->b, KVA_OP_state_read, 0, NULL, &(kva_state_read_attrs){.state = s});
}

/* Writes something of the state's type: a value at hand, or another state, as it is or computed from. */
static void add_state_access(gen *g) {
  if (!g->n_states) return;
  kva_state *s = g->states[random_draw(g, g->n_states)];
  if (g->o->parameters || random_draw(g, 3) == 0) {
    random_add_item(g, read_state(g, s), 8);
    return;
  }
  kva_value *v = NULL;
  for (int i = 0; i < 6 && (!v || v->type != s->type); i++) v = random_pick(g).v;
  if (v->type != s->type || random_draw(g, 2)) {
    kva_value *x = read_state(g, g->states[random_draw(g, g->n_states)]),
              *y = read_state(g, g->states[random_draw(g, g->n_states)]);
    if (random_draw(g, 2) && random_broadcasts(x->type, y->type))
      x = kva_build1(&g->b, KVA_OP_tanh, kva_add(&g->b, x, y));
    v = x->type == s->type ? x : kva_build1(&g->b, KVA_OP_cos, read_state(g, s));
  }
  kva_build_node(&g->b, KVA_OP_state_write, 1, &v, 0, &(kva_state_write_attrs){.state = s});
}

/* ---- control flow and sizes that depend on data ------------------------------------------------------------------ */

static void add_any(gen *g);

static kva_value *mean_of(kva_builder *b, kva_value *v) {
  int64_t axes[KVA_MAX_RANK];
  for (uint32_t d = 0; d < v->type->rank; d++) axes[d] = d;
  return kva_reduce(b, KVA_OP_reduce_mean, v, v->type->rank, axes, false);
}

/* Compares with a number that no mean is by itself, as that of a norm is 0: differences shall not cross it. */
static kva_value *is_low(kva_builder *b, kva_value *v) {
  return kva_build2(b, KVA_OP_less, v, kva_scalar_like(b, v, 0.1234));
}

/* Fills a sub-graph with a few nodes over inputs like x and y. */
static gen open_inner(gen *g, kva_node *owner, item x, item y) {
  gen inner = {.o = g->o,
               .m = g->m,
               .f = g->f,
               .scratch = g->scratch,
               .exact = {.arena = g->scratch},
               .draws = g->draws,
               .base_rank = g->base_rank};
  memcpy(inner.base, g->base, sizeof g->base);
  inner.b = (kva_builder){.m = g->m, .graph = kva_graph_create(g->m, owner)};
  inner.depth = g->depth + 1;
  if (kva_is(owner, KVA_OP_loop)) kva_graph_add_input(inner.b.graph, kva_type_scalar(g->m, KVA_I64), "i");
  random_add_item(&inner, kva_graph_add_input(inner.b.graph, x.v->type, "x"), x.bound);
  random_add_item(&inner, kva_graph_add_input(inner.b.graph, y.v->type, "y"), y.bound);
  inner.index = kva_const_i64s(&inner.b, 4, (int64_t[]){2, 0, 1, 0});
  KVA_PUSH(g->scratch, &inner.bools, is_low(&inner.b, inner.items.data[0].v));
  for (uint32_t i = 1 + random_draw(&inner, 4); i-- > 0;) add_any(&inner);
  g->draws = inner.draws;
  return inner;
}

static kva_value *last_like(const gen *g, const kva_type *t) {
  for (uint32_t i = g->items.len; i-- > 0;)
    if (g->items.data[i].v->type == t) return g->items.data[i].v;
  return NULL;
}

static void infer(gen *g, kva_node *n) {
  const kva_type **types = KVA_NEW_ARRAY(g->scratch, const kva_type *, n->n_results);
  g->b.failed |= n->op->infer(g->m, n, types) != KVA_OK;
  for (uint32_t r = 0; r < n->n_results; r++) n->results[r].type = g->b.failed ? n->operands[2].value->type : types[r];
}

/* All elements of v in one branch, the first half of them in the other. */
static kva_value *flat_part(kva_builder *b, kva_value *v, int which) {
  kva_dim n, zero = kva_expr_const(b->m->exprs, 0), half;
  n = kva_type_elements(b->m, v->type);
  half = kva_expr_ceildiv(b->m->exprs, n, kva_expr_const(b->m->exprs, 2));
  v = kva_reshape(b, v, 1, &n);
  kva_slice_attrs a = {.starts = {1, &zero}, .shape = {1, &half}};
  return which ? kva_build(b, KVA_OP_slice, 1, &v, &a) : v;
}

/* Branches of one type, or of different extents. */
static void add_branch(gen *g) {
  if (!g->o->control || g->depth > 1) return;
  item x = random_pick(g), y = random_pick(g);
  kva_value *c = is_low(&g->b, mean_of(&g->b, random_pick(g).v));
  bool differ = random_draw(g, 2) && random_elements(g, x.v->type) > 1;
  kva_if_attrs *attrs = kva_attrs_default(g->m->arena, KVA_OP(if)->attrs);
  kva_dim *symbol = KVA_NEW(g->m->arena, kva_dim);
  if (differ) *symbol = kva_expr_new_symbol(g->m->exprs, "M"), attrs->binds = (kva_dims){1, symbol};
  kva_node *n = kva_node_create(g->b.graph, NULL, KVA_OP(if), 3, (kva_value *[]){c, x.v, y.v}, 1, attrs, g->b.loc);
  for (int i = 0; i < 2; i++) {
    gen inner = open_inner(g, n, x, y);
    kva_value *v = kva_build1(&inner.b, KVA_OP_sin, last_like(&inner, x.v->type));
    if (differ) v = flat_part(&inner.b, v, i);
    kva_build_node(&inner.b, KVA_OP_return, 1, &v, 0, NULL);
    g->b.failed |= inner.b.failed;
  }
  infer(g, n);
  kva_value *y1 = &n->results[0];
  int64_t axis = 0, count = random_elements(g, x.v->type);
  if (differ)
    random_add_item(g, kva_reduce(&g->b, KVA_OP_reduce_sum, y1, 1, &axis, false), (double)count);
  else
    random_add_item(g, y1, 1);
}

/* The count is known before, or a value, or the loop ends by what it carries. */
static void add_loop(gen *g) {
  enum { KNOWN, COUNTED, UNTIL };
  if (!g->o->control || g->depth > 1) return;
  uint32_t how = random_draw(g, 3);
  int64_t trips = 1 + random_draw(g, 3);
  item x = random_pick(g), y = random_pick(g);
  if (x.v->type->rank == KVA_MAX_RANK) return;
  kva_loop_attrs *a = kva_attrs_default(g->m->arena, KVA_OP(loop)->attrs);
  kva_dim *symbol = KVA_NEW(g->m->arena, kva_dim);
  a->carried = 1;
  if (how == KNOWN)
    a->trips = kva_expr_const(g->m->exprs, trips);
  else
    *symbol = kva_expr_new_symbol(g->m->exprs, "S"), a->binds = (kva_dims){1, symbol};
  kva_value *count = kva_const_scalar(&g->b, KVA_I64, (double)trips);
  if (how == COUNTED) { /* trips or one more, which folding does not see */
    kva_value *more = kva_cast(&g->b, is_low(&g->b, mean_of(&g->b, x.v)), KVA_I64);
    count = kva_add(&g->b, count, more);
  }
  kva_value *operands[] = {count, how == UNTIL ? kva_const_scalar(&g->b, KVA_BOOL, 1) : NULL, x.v, y.v};
  kva_node *n = kva_node_create(g->b.graph, NULL, KVA_OP(loop), 4, operands, 2, a, g->b.loc);
  gen inner = open_inner(g, n, x, y);
  kva_value *next = kva_build1(&inner.b, KVA_OP_sin, last_like(&inner, x.v->type));
  kva_value *outputs[] = {is_low(&inner.b, mean_of(&inner.b, next)), next, inner.items.data[0].v};
  kva_build_node(&inner.b, KVA_OP_return, 3, outputs, 0, NULL);
  g->b.failed |= inner.b.failed;
  infer(g, n);
  random_add_item(g, &n->results[0], x.bound + 1);
  random_add_item(g, kva_reduce(&g->b, KVA_OP_reduce_sum, &n->results[1], 1, (int64_t[]){0}, false), 4 * (x.bound + 1));
}

/* The sum of the low elements, gathered by their places. */
static void add_sized(gen *g) {
  if (!g->o->control) return;
  item x = random_pick(g);
  kva_builder *b = &g->b;
  int64_t count = random_elements(g, x.v->type), axis = 0;
  kva_dim n = kva_type_elements(g->m, x.v->type), *symbol = KVA_NEW(g->m->arena, kva_dim);
  kva_value *flat = kva_reshape(b, x.v, 1, &n), *flag = is_low(b, flat), *ones = kva_cast(b, flag, KVA_I64);
  kva_value *place = kva_build(b, KVA_OP_cumsum, 1, &ones, &(kva_cumsum_attrs){.exclusive = true});
  kva_value *sum = kva_reduce(b, KVA_OP_reduce_sum, ones, 1, &axis, false);
  *symbol = kva_expr_new_symbol(g->m->exprs, "K");
  kva_bind_attrs bind = {.symbol = {1, symbol}, .bound = random_draw(g, 2) ? n : NULL};
  kva_build_node(b, KVA_OP_bind, 1, &sum, 0, &bind);
  kva_dim more = kva_expr_addi(g->m->exprs, *symbol, 1), zero = kva_expr_const(g->m->exprs, 0);
  kva_value *in[] = {kva_zeros(b, kva_type_tensor(g->m, KVA_I64, 1, &more)),
                     kva_build3(b, KVA_OP_where, flag, place, kva_dim_scalar(b, KVA_I64, *symbol)),
                     kva_build(b, KVA_OP_iota, 0, NULL, &(kva_iota_attrs){.shape = {1, &n}, .dtype = KVA_I64})};
  kva_value *places = kva_build(b, KVA_OP_scatter_elements, 3, in, &(kva_scatter_elements_attrs){.axis = 0});
  places = kva_build(b, KVA_OP_slice, 1, &places, &(kva_slice_attrs){.starts = {1, &zero}, .shape = {1, symbol}});
  kva_value *found = kva_build(b, KVA_OP_gather, 2, (kva_value *[]){flat, places}, &(kva_gather_attrs){.axis = 0});
  random_add_item(g, kva_reduce(b, KVA_OP_reduce_sum, found, 1, &axis, false), x.bound * (double)count);
}

/* ---- functions --------------------------------------------------------------------------------------------------- */

typedef struct choice {
  void (*add)(gen *g);
  uint32_t weight;
} choice;

static const choice choices[] = {
    {add_unary, 6},        {add_binary, 8},    {add_quotient, 2}, {add_where, 2},  {add_reduction, 5}, {add_row, 4},
    {add_reshape, 4},      {add_transpose, 4}, {add_slice, 3},    {add_expand, 2}, {add_pad, 3},       {add_concat, 2},
    {add_gather, 2},       {add_matmul, 4},    {add_cumsum, 1},   {add_shift, 2},  {add_attention, 1}, {add_loss, 2},
    {add_state_access, 4}, {add_branch, 4},    {add_loop, 4},     {add_sized, 2}};

enum { CONTROL_CHOICES = 3 }; /* the last ones */

static void add_any(gen *g) {
  if (g->o->wide && random_draw(g, 2)) {
    random_add_wide(g);
    return;
  }
  size_t n = sizeof choices / sizeof *choices - (g->o->control ? 0 : CONTROL_CHOICES);
  uint32_t total = 0, i = 0;
  for (size_t k = 0; k < n; k++) total += choices[k].weight;
  for (uint32_t at = random_draw(g, total); at >= choices[i].weight; i++) at -= choices[i].weight;
  choices[i].add(g);
}

static void add_inputs(gen *g) {
  uint32_t n = 2 + random_draw(g, 3);
  for (uint32_t i = 0; i < n; i++) {
    kva_dim dims[4];
    uint32_t skip = i ? random_draw(g, g->base_rank + 1) : 0, rank = g->base_rank - skip;
    for (uint32_t d = 0; d < rank; d++)
      dims[d] = i && random_draw(g, 4) == 0 ? kva_expr_const(g->m->exprs, 1) : g->base[d + skip];
    const kva_type *t = kva_type_tensor(g->m, g->o->dtype, rank, dims);
    kva_value *x = kva_graph_add_input(g->f->graph, t, kva_arena_printf(g->m->arena, "x%u", i));
    random_add_item(g, x, 1);
    kva_value *zero = kva_const_scalar(&g->b, g->o->dtype, 0);
    kva_value *c = kva_build2(&g->b, KVA_OP_less, x, zero);
    KVA_PUSH(g->scratch, &g->bools, c);
  }
  kva_dim four = kva_expr_const(g->m->exprs, 4);
  g->index = kva_graph_add_input(g->f->graph, kva_type_tensor(g->m, KVA_I64, 1, &four), "index");
}

static void add_states(gen *g) {
  g->n_states = MAX_STATES;
  for (uint32_t i = 0; i < MAX_STATES; i++) {
    const kva_type *t = kva_type_tensor(g->m, g->o->dtype, g->base_rank, g->base);
    if (i == 2 && random_draw(g, 2)) t = kva_type_tensor(g->m, g->o->dtype, 1, g->base + g->base_rank - 1);
    kva_state_kind kind = g->o->parameters ? KVA_STATE_PARAM : KVA_STATE_BUFFER;
    g->states[i] = kva_state_create(g->m, kva_arena_printf(g->m->arena, "s%u", i), t, kind);
    random_add_item(g, read_state(g, g->states[i]), 1);
  }
}

/* Values that nothing uses, and some others. */
static void add_return(gen *g) {
  KVA_VEC(kva_value *) outputs = {0};
  for (uint32_t i = 0; i < g->items.len; i++) {
    kva_value *v = g->items.data[i].v;
    if (outputs.len < 24 && (!v->uses || random_draw(g, 8) == 0)) KVA_PUSH(g->scratch, &outputs, v);
  }
  for (uint32_t i = 0; i < g->others.len; i++)
    if (outputs.len < 32 && !g->others.data[i]->uses) KVA_PUSH(g->scratch, &outputs, g->others.data[i]);
  kva_build_node(&g->b, KVA_OP_return, outputs.len, outputs.data, 0, NULL);
}

/* The mean of all values that nothing uses. */
static void add_scalar_loss(gen *g) {
  kva_value *total = kva_const_scalar(&g->b, g->o->dtype, 0);
  for (uint32_t i = 0; i < g->items.len; i++) {
    kva_value *v = g->items.data[i].v;
    if (v->uses) continue;
    int64_t axes[KVA_MAX_RANK];
    for (uint32_t d = 0; d < v->type->rank; d++) axes[d] = d;
    total = kva_add(&g->b, total, kva_reduce(&g->b, KVA_OP_reduce_mean, v, v->type->rank, axes, false));
  }
  kva_build_node(&g->b, KVA_OP_return, 1, &total, 0, NULL);
  kva_train_spec *spec = KVA_NEW(g->m->arena, kva_train_spec);
  *spec = (kva_train_spec){.optimizer = g->o->optimizer,
                           .schedule = "constant",
                           .data = "random",
                           .lr = 1,
                           .beta1 = 0.9,
                           .beta2 = 0.99,
                           .momentum = 0.9,
                           .eps = 0.01,
                           .weight_decay = 0.1 * (g->o->clip > 0),
                           .clip = g->o->clip};
  spec->data_args = kva_map_create(g->m->arena);
  g->m->train = spec;
}

kva_module *random_graph(const random_graph_options *options, kva_diag *diag) {
  gen g = {.o = options, .m = kva_module_create(diag), .scratch = kva_arena_create()};
  g.exact.arena = g.scratch;
  g.m->name = "random";
  g.f = kva_function_create(g.m, options->parameters ? "loss" : "main");
  g.b = (kva_builder){.m = g.m, .graph = g.f->graph};
  g.base_rank = 1 + random_draw(&g, 4);
  for (uint32_t d = 0; d < g.base_rank; d++) g.base[d] = draw_dim(&g);
  while (random_elements(&g, kva_type_tensor(g.m, options->dtype, g.base_rank, g.base)) > MAX_ELEMENTS / 2)
    g.base_rank--;
  add_inputs(&g);
  if (options->wide) random_add_wide_inputs(&g);
  if (options->states || options->parameters) add_states(&g);
  for (uint32_t i = 0; i < options->nodes && has_bytes(&g); i++) add_any(&g);
  if (options->parameters)
    add_scalar_loss(&g);
  else
    add_return(&g);
  if (g.b.failed || kva_module_verify(g.m)) {
    kva_text text = {0};
    kva_module_print(g.m, &text);
    fprintf(stderr, "%s\n", text.data);
    kva_diag_print(diag, stderr);
    fail_msg("random graph %llu does not build", (unsigned long long)options->seed);
  }
  uint32_t n = kva_graph_output_count(g.f->graph);
  const char **names = KVA_NEW_ARRAY(g.m->arena, const char *, n + 1);
  for (uint32_t i = 0; i < n; i++) names[i] = kva_arena_printf(g.m->arena, "y%u", i);
  g.f->output_names = names;
  kva_arena_destroy(g.scratch);
  return g.m;
}
