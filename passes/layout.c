/* Convolutions on a CPU with channels last.
 *
 * What: a convolution with constant filters, of floats or of bytes with sums in int32, gets them in panels
 * (kv.join_filters; of bytes in words, kv.unpack), and its result is transposed so that the channels of a position lie
 * side by side; who reads the result reads that through the inverse transposition. Element code, pools, concatenations,
 * pads, gathers, reductions, transpositions, shuffles of channels (layout_shuffle.c), resizing (layout_resize.c) and
 * norms over positions (layout_norm.c) after it work on the transposed tensor themselves, so that the inverse goes to
 * the edge of a region of such nodes. Convolutions there read it as they are: in their kernels both transpositions are
 * index arithmetic (codegen/kernels/cpu/contract/channels.c). Where a user allows it, those of 3 x 3 filters become
 * transforms of tiles and fewer products (layout_winograd.c). An image from outside of which each element has many
 * products is transposed by a kernel of its own. Batch normalisation becomes arithmetic, whose part without the image
 * is one number a channel. Before that, products of many rows and a constant matrix become convolutions of one tap
 * (layout_products.c), which are such from the start.
 *
 * Algorithm: two sweeps. The first unites convolutions and what can follow them to regions, and weighs what the
 * convolutions of each gain against the elements that transpositions at its edges move. The second rewrites, node by
 * node, what is in regions that gain. Requires: folding, which has made constants of filters; it is before pass splat,
 * which makes states of uniform ones. Breaks: a transposition and its inverse meet, and pass simplify would undo both:
 * it must not run again. Values are kept up to rounding. */
#include "passes/fuse_internal.h"
#include "passes/layout.h"

/* In elements moved, a store and a load: what a result of a convolution gains for each product, and of a
 * depthwise one for each tap. */
#define GAIN_OF_PRODUCT 0.01
#define GAIN_OF_TAP     0.1

/* Taps of a depthwise convolution that gain nothing. */
enum { MIN_TAPS = 6 };

/* Products of an element of an image for which it is worth a store and a load that their kernel reads it in order. */
enum { MIN_PRODUCTS = 256 };
/* Products that take as long as a store and a load. */
enum { PRODUCTS_OF_MOVE = 50 };

/* ---- regions ----------------------------------------------------------------------------------------------------- */

static kva_layout_region *root_of(kva_layout_region *r) {
  while (r->in) r = r->in;
  return r;
}

static kva_layout_region *region_of(const kva_layout *l, const kva_value *v) {
  kva_layout_region *r = v ? kva_map_get(l->regions, &v, sizeof v) : NULL;
  return r ? root_of(r) : NULL;
}

static kva_layout_region *united(kva_layout_region *a, kva_layout_region *b) {
  if (!a || a == b) return b;
  if (!b) return a;
  b->in = a;
  a->gain += b->gain;
  a->cost += b->cost;
  return a;
}

static void note(const kva_layout *l, const kva_value *v, kva_layout_region *r) {
  kva_map_set(l->regions, &v, sizeof v, r);
}

static bool is_one(void *user, const kva_expr *symbol, int64_t *out_v) {
  (void)user, (void)symbol;
  *out_v = 1;
  return true;
}

/* Elements; symbols count as 1. */
static double elements_of(const kva_layout *l, const kva_type *t) {
  int64_t n;
  return kva_expr_eval(kva_type_elements(l->m, t), is_one, NULL, &n) ? (double)n : 0;
}

/* ---- channels last and first ------------------------------------------------------------------------------------- */

static bool is_point(const kva_type *t) {
  for (uint32_t d = 2; d < t->rank; d++)
    if (!kva_expr_is(t->dims[d], 1)) return false;
  return true;
}

/* Where axis d is when channels are last. */
static uint32_t moved_axis(uint32_t rank, uint32_t d) {
  return d == 0 ? 0 : d == 1 ? rank - 1 : d - 1;
}

/* What a kernel makes, which then stores it so. */
static kva_value *transposed(kva_builder *b, kva_value *v) {
  int64_t perm[KVA_MAX_RANK];
  for (uint32_t d = 0; d < v->type->rank; d++) perm[moved_axis(v->type->rank, d)] = d;
  return kva_transpose(b, v, perm);
}

/* v with its axes moved; a reshape where that is the same. */
static kva_value *channels_last(kva_builder *b, kva_value *v) {
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < v->type->rank; d++) dims[moved_axis(v->type->rank, d)] = v->type->dims[d];
  return is_point(v->type) ? kva_reshape(b, v, v->type->rank, dims) : transposed(b, v);
}

static kva_value *channels_first(kva_builder *b, kva_value *v) {
  uint32_t rank = v->type->rank;
  int64_t perm[KVA_MAX_RANK];
  kva_dim dims[KVA_MAX_RANK];
  bool point = true;
  for (uint32_t d = 0; d < rank; d++) {
    perm[d] = moved_axis(rank, d);
    dims[d] = v->type->dims[perm[d]];
    point &= d < 2 || kva_expr_is(dims[d], 1);
  }
  return point ? kva_reshape(b, v, rank, dims) : kva_transpose(b, v, perm);
}

static kva_value *last_of(const kva_layout *l, const kva_value *v) {
  return v ? kva_map_get(l->last, &v, sizeof v) : NULL;
}

/* Users of v read what channels_first makes of `last`. b stands behind both. */
static void replace(kva_layout *l, kva_builder *b, kva_value *v, kva_value *last) {
  last->name = v->name;
  kva_value *first = channels_first(b, last);
  KVA_ASSERT(first->type == v->type);
  kva_value_replace_all_uses(v, first);
  kva_map_set(l->last, &first, sizeof first, last);
  if (region_of(l, v)) note(l, first, region_of(l, v));
}

/* ---- the way to a convolution ------------------------------------------------------------------------------------ */

static bool leads(const kva_layout *l, const kva_node *n) {
  return kva_map_get(l->leads, &n, sizeof n) != NULL;
}

static bool users_lead(const kva_layout *l, const kva_node *n) {
  for (uint32_t r = 0; r < n->n_results; r++)
    for (const kva_use *u = n->results[r].uses; u; u = u->next)
      if (leads(l, u->user)) return true;
  return false;
}

static void note_leading(kva_layout *l, const kva_graph *g) {
  l->leads = kva_map_create(l->scratch);
  for (const kva_node *n = g->last; n; n = n->prev)
    if (kva_layout_suits(l, n) || users_lead(l, n)) kva_map_set(l->leads, &n, sizeof n, (void *)(uintptr_t)n);
}

/* n makes a larger image of x that no convolution reads: less is moved before than after. */
static bool enlarges_for_others(const kva_layout *l, const kva_node *n, const kva_value *x) {
  return elements_of(l, n->results[0].type) > elements_of(l, x->type) && !users_lead(l, n);
}

/* ---- what follows the layout of its operands --------------------------------------------------------------------- */

typedef bool (*marked_fn)(const kva_layout *l, const kva_value *v);

static bool is_in_region(const kva_layout *l, const kva_value *v) {
  return region_of(l, v) != NULL;
}
static bool is_last(const kva_layout *l, const kva_value *v) {
  return last_of(l, v) != NULL;
}

/* Element code whose result has the shape of an operand with the layout. Dropout depends on where elements are. */
static bool elements_follow(const kva_layout *l, const kva_node *n, marked_fn marked) {
  if (!(n->op->traits & KVA_ELEMENTWISE) || n->n_results != 1) return false;
  if (n->op->traits & KVA_UPDATES || kva_is(n, KVA_OP_dropout)) return false;
  const kva_type *y = n->results[0].type;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (!v || !marked(l, v) || v->type->rank != y->rank) continue;
    bool same = true;
    for (uint32_t d = 0; d < y->rank; d++) same &= v->type->dims[d] == y->dims[d];
    if (same) return true;
  }
  return false;
}

/* An operand of element code, aligned to the result's rank, is moved as it is or by a reshape: it has no places, or is
 * one line. */
static bool broadcasts(const kva_value *v, uint32_t rank) {
  uint32_t places = 0, others = 0;
  for (uint32_t d = 0; d < v->type->rank; d++) {
    bool one = kva_expr_is(v->type->dims[d], 1);
    *(d + rank - v->type->rank >= 2 ? &places : &others) += !one;
  }
  return !places || places + others == 1;
}

/* A constant with other extents. */
static kva_value *reshaped(kva_layout *l, kva_builder *b, kva_value *v, uint32_t rank, const kva_dim *dims) {
  const kva_tensor_data *t = kva_constant_of(v);
  if (!t) return kva_reshape(b, v, rank, dims);
  kva_tensor_data *to = KVA_NEW(l->m->arena, kva_tensor_data);
  int64_t extents[KVA_MAX_RANK];
  for (uint32_t d = 0; d < rank; d++) kva_expr_is_const(dims[d], &extents[d]);
  *to = *t;
  to->rank = rank, to->dims = kva_arena_memdup(l->m->arena, extents, rank * sizeof *extents);
  return kva_const_tensor(b, to);
}

static kva_value *operand_last(kva_layout *l, kva_builder *b, kva_value *v, uint32_t rank) {
  kva_value *last = last_of(l, v);
  if (last || !v || v->type->rank == 0) return last ? last : v;
  uint32_t missing = rank - v->type->rank;
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < rank; d++) {
    kva_dim extent = d < missing ? kva_expr_const(l->m->exprs, 1) : v->type->dims[d - missing];
    dims[broadcasts(v, rank) ? moved_axis(rank, d) : d] = extent;
  }
  if (!broadcasts(v, rank)) return channels_last(b, kva_reshape(b, v, rank, dims));
  uint32_t ones = 0;
  while (ones + 1 < rank && kva_expr_is(dims[ones], 1)) ones++;
  return reshaped(l, b, v, rank - ones, dims + ones);
}

static kva_value *move_elements(kva_layout *l, kva_builder *b, kva_node *n) {
  kva_value *operands[3];
  KVA_ASSERT(n->n_operands <= 3);
  for (uint32_t i = 0; i < n->n_operands; i++)
    operands[i] = operand_last(l, b, kva_operand(n, i), n->results[0].type->rank);
  return kva_build(b, n->op->id, n->n_operands, operands, n->attrs);
}

/* Operators whose rows say how they are done with axes moved. */
static bool axes_follow(const kva_layout *l, const kva_node *n, marked_fn marked) {
  if (!n->op->permute || (kva_is(n, KVA_OP_gather) && enlarges_for_others(l, n, kva_operand(n, 0)))) return false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (v && v->type->rank == n->results[0].type->rank && marked(l, v)) return true;
  }
  return false;
}

static kva_value *move_axes(kva_layout *l, kva_builder *b, kva_node *n) {
  uint32_t rank = n->results[0].type->rank, moved[KVA_MAX_RANK];
  kva_value **operands = KVA_NEW_ARRAY(l->scratch, kva_value *, n->n_operands);
  for (uint32_t d = 0; d < rank; d++) moved[d] = moved_axis(rank, d);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = kva_operand(n, i);
    operands[i] = last_of(l, v) ? last_of(l, v) : v && v->type->rank == rank ? channels_last(b, v) : v;
  }
  return n->op->permute(b, n, operands, moved);
}

enum { BN_X, BN_SCALE, BN_BIAS, BN_MEAN, BN_VAR };

static bool is_batch_norm(const kva_layout *l, const kva_node *n, marked_fn marked) {
  return kva_is(n, KVA_OP_batch_norm) && marked(l, kva_operand(n, BN_X));
}

/* (x - mean) * slope + bias */
static kva_value *move_batch_norm(kva_layout *l, kva_builder *b, kva_node *n) {
  double eps = ((const kva_batch_norm_attrs *)n->attrs)->eps;
  kva_value *var = kva_operand(n, BN_VAR), *x = last_of(l, kva_operand(n, BN_X));
  kva_value *root = kva_build1(b, KVA_OP_sqrt, kva_add(b, var, kva_scalar_like(b, var, eps)));
  kva_value *slope = kva_div(b, kva_operand(n, BN_SCALE), root);
  return kva_add(b, kva_mul(b, kva_sub(b, x, kva_operand(n, BN_MEAN)), slope), kva_operand(n, BN_BIAS));
}

/* A pool: a window over one operand, which keeps images and channels where they are. */
static bool window_follows(const kva_layout *l, const kva_node *n, marked_fn marked) {
  if (kva_fuse_role(n) != ROLE_WINDOW || n->n_operands != 1) return false;
  for (uint32_t r = 1; r < n->n_results; r++)
    if (n->results[r].uses) return false;
  return n->results[0].type->rank == kva_operand_type(n, 0)->rank && marked(l, kva_operand(n, 0));
}

/* It stays, between both transpositions. */
static kva_value *move_window(kva_layout *l, kva_builder *b, kva_node *n) {
  (void)l;
  kva_value *x = kva_operand(n, 0);
  return transposed(b, kva_build_node(b, n->op->id, 1, &x, n->n_results, n->attrs)->results);
}

static bool shuffle_follows(const kva_layout *l, const kva_node *n, marked_fn marked) {
  const kva_value *x = kva_layout_shuffled(n);
  return x && marked(l, x);
}

static kva_value *move_shuffle(kva_layout *l, kva_builder *b, kva_node *n) {
  return kva_layout_shuffle(b, n, last_of(l, kva_layout_shuffled(n)));
}

static bool spread_follows(const kva_layout *l, const kva_node *n, marked_fn marked) {
  const kva_value *x = kva_layout_spread(n);
  return x && marked(l, x);
}

static kva_value *move_spread(kva_layout *l, kva_builder *b, kva_node *n) {
  return kva_layout_spread_last(b, n, last_of(l, kva_layout_spread(n)));
}

static bool resize_follows(const kva_layout *l, const kva_node *n, marked_fn marked) {
  const kva_value *x = kva_layout_resized(n);
  return x && marked(l, x) && !enlarges_for_others(l, n, x);
}

static kva_value *move_resize(kva_layout *l, kva_builder *b, kva_node *n) {
  return kva_layout_resize(b, n, last_of(l, kva_layout_resized(n)));
}

static bool norm_follows(const kva_layout *l, const kva_node *n, marked_fn marked) {
  const kva_value *x = kva_layout_normalized(n);
  return x && marked(l, x);
}

static kva_value *move_norm(kva_layout *l, kva_builder *b, kva_node *n) {
  return kva_layout_norm(b, n, last_of(l, kva_layout_normalized(n)));
}

/* The image of which a chain of nodes that ends with n is one step of a region; NULL: it ends none. */
static const kva_value *source_of_chain(const kva_node *n) {
  const kva_value *x = kva_layout_shuffled(n);
  if (!x) x = kva_layout_spread(n);
  if (!x) x = kva_layout_resized(n);
  return x ? x : kva_layout_normalized(n);
}

/* n is the first of three nodes that are one step: a reshape before what the last one undoes. */
static bool begins_chain(const kva_node *n) {
  const kva_use *second = n->n_results == 1 && kva_is(n, KVA_OP_reshape) ? n->results[0].uses : NULL;
  const kva_use *last = second && second->user->n_results ? second->user->results[0].uses : NULL;
  return last && source_of_chain(last->user) == kva_operand(n, 0);
}

typedef struct follower {
  bool (*follows)(const kva_layout *l, const kva_node *n, marked_fn marked);
  kva_value *(*move)(kva_layout *l, kva_builder *b, kva_node *n); /* its result with channels last */
} follower;

static const follower followers[] = {{elements_follow, move_elements}, {is_batch_norm, move_batch_norm},
                                     {axes_follow, move_axes},         {shuffle_follows, move_shuffle},
                                     {spread_follows, move_spread},    {resize_follows, move_resize},
                                     {norm_follows, move_norm},        {window_follows, move_window}};

/* NULL: n does not follow. */
static const follower *follower_of(const kva_layout *l, const kva_node *n, marked_fn marked) {
  for (size_t i = 0; i < sizeof followers / sizeof *followers; i++)
    if (followers[i].follows(l, n, marked)) return &followers[i];
  return NULL;
}

/* ---- the first sweep --------------------------------------------------------------------------------------------- */

static double products_of(const kva_layout *l, const kva_node *n) {
  const kva_type *w = kva_operand_type(n, 1);
  return elements_of(l, n->results[0].type) * elements_of(l, w) / (double)kva_type_extent(w, 0);
}

static bool is_transformed(const kva_layout *l, const kva_node *n) {
  return kva_layout_winograd_gain(l, n) > 0;
}

/* Lines of channels first are computed in whole vectors. */
static double depthwise_gain(const kva_layout *l, const kva_node *n) {
  const kva_type *y = n->results[0].type;
  int64_t columns = kva_type_extent(y, y->rank - 1), lanes = kva_layout_lanes(l);
  double taps = products_of(l, n) / elements_of(l, y) - MIN_TAPS;
  double computed = (double)((columns + lanes - 1) / lanes * lanes) / (double)columns;
  return elements_of(l, y) * computed * GAIN_OF_TAP * (taps > 1 ? taps : 1);
}

static double gain_of(const kva_layout *l, const kva_node *n) {
  if (kva_layout_is_depthwise(n)) return depthwise_gain(l, n);
  double saved = kva_layout_winograd_gain(l, n), wasted = kva_layout_padding(l, n);
  return products_of(l, n) * GAIN_OF_PRODUCT * (wasted < 1 ? 1 - wasted : 0) +
         (saved > 0 ? saved / PRODUCTS_OF_MOVE : 0);
}

/* The image of a convolution that another layout would slow down. */
static bool moves_image(const kva_layout *l, const kva_node *n) {
  if (kva_layout_is_depthwise(n) || kva_layout_needs_place(n)) return true;
  return is_transformed(l, n) || products_of(l, n) >= MIN_PRODUCTS * elements_of(l, kva_operand_type(n, 0));
}

/* n is not in the region of its operands. Reductions read them in any order, and transpositions compose. */
static void leave(const kva_layout *l, const kva_node *n) {
  if (n->op->traits & KVA_READS_ONCE || kva_is(n, KVA_OP_transpose)) return;
  if (begins_chain(n)) return;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    kva_layout_region *r = region_of(l, v);
    if (r && !is_point(v->type)) r->cost += elements_of(l, v->type);
  }
}

static void join(const kva_layout *l, const kva_node *n) {
  kva_layout_region *r = region_of(l, source_of_chain(n));
  if (r) {
    note(l, &n->results[0], r);
    return;
  }
  double cost = 0;
  uint32_t rank = n->results[0].type->rank;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    r = united(r, region_of(l, v));
    if (v && !region_of(l, v) && v->type->rank && !broadcasts(v, rank)) cost += elements_of(l, v->type);
  }
  r->cost += cost;
  note(l, &n->results[0], r);
}

/* A transposition of the model's own that makes channels of a last axis. */
static bool turns_last_axis(const kva_node *n) {
  uint32_t rank = n->n_results == 1 ? n->results[0].type->rank : 0;
  if (!kva_is(n, KVA_OP_transpose) || rank < 3) return false;
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  for (uint32_t d = 0; d < rank; d++)
    if (perm.n != rank || perm.v[d] != moved_axis(rank, d)) return false;
  return true;
}

/* Turned from [N, positions, C] to n's image, or one that n resizes, by way of [N, C, positions]; NULL: it is not. */
static kva_value *list_of_image(const kva_node *n) {
  const kva_value *list = kva_layout_resized_list(n);
  if (!list && kva_is(n, KVA_OP_reshape)) list = kva_operand(n, 0);
  if (!list || list->type->rank != 3 || !list->def || !turns_last_axis(list->def)) return NULL;
  return kva_fuse_has_prefix(n->results[0].type, list->type, 2) ? kva_operand(list->def, 0) : NULL;
}

/* n makes an image of what has its channels in the last axis. */
static bool makes_channels_first(const kva_node *n) {
  return n->n_results == 1 && n->results[0].type->rank >= 4 && (turns_last_axis(n) || list_of_image(n));
}

static void weigh(kva_layout *l, const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next) {
    if (makes_channels_first(n)) {
      note(l, &n->results[0], KVA_NEW(l->scratch, kva_layout_region));
    } else if (kva_layout_suits(l, n)) {
      kva_layout_region *r = region_of(l, kva_operand(n, 0));
      bool outside = !r;
      if (outside) r = KVA_NEW(l->scratch, kva_layout_region);
      r->gain += gain_of(l, n);
      if (outside && moves_image(l, n)) r->cost += elements_of(l, kva_operand_type(n, 0));
      note(l, &n->results[0], r);
    } else if (follower_of(l, n, is_in_region)) {
      join(l, n);
    } else {
      leave(l, n);
    }
  }
}

/* ---- the second sweep -------------------------------------------------------------------------------------------- */

static bool gains(const kva_layout *l, const kva_value *v) {
  const kva_layout_region *r = region_of(l, v);
  return r && r->gain > r->cost;
}

/* Operand 0 of n with channels last. */
static kva_value *image_last(kva_layout *l, kva_builder *b, const kva_node *n) {
  kva_value *x = kva_operand(n, 0), *last = last_of(l, x);
  if (!last) kva_map_set(l->last, &x, sizeof x, last = channels_last(b, x));
  return last;
}

/* An image from outside as n reads it. */
static kva_value *image_of(kva_layout *l, kva_builder *b, const kva_node *n) {
  kva_value *x = kva_operand(n, 0);
  int64_t missing = kva_layout_missing_channels(n);
  if (missing) return kva_pad_channels(b, x, missing);
  if (region_of(l, x) || (!last_of(l, x) && !moves_image(l, n))) return x;
  return channels_first(b, image_last(l, b, n));
}

static kva_value *move_conv(kva_layout *l, kva_builder *b, const kva_node *n) {
  if (is_transformed(l, n)) return kva_layout_winograd(l, b, n, image_last(l, b, n));
  kva_value *operands[] = {image_of(l, b, n), kva_layout_filters(l, b, n)};
  return transposed(b, kva_build(b, KVA_OP_conv, 2, operands, n->attrs));
}

/* A transposition after one of this pass: both become one, or none. */
static kva_value *compose(const kva_layout *l, kva_builder *b, const kva_node *n) {
  kva_value *last = last_of(l, kva_operand(n, 0));
  uint32_t rank = n->results[0].type->rank;
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  int64_t both[KVA_MAX_RANK];
  bool same = true;
  for (uint32_t d = 0; d < rank; d++) {
    both[d] = moved_axis(rank, (uint32_t)(perm.n ? perm.v[d] : rank - 1 - d));
    same &= both[d] == d;
  }
  return same ? last : kva_transpose(b, last, both);
}

/* The result of n, which makes an image, with channels last. */
static kva_value *made_last(kva_builder *b, const kva_node *n) {
  const kva_type *t = n->results[0].type;
  kva_dim dims[KVA_MAX_RANK];
  if (turns_last_axis(n)) return kva_operand(n, 0);
  if (kva_layout_resized_list(n)) return kva_layout_resize_list(b, n, list_of_image(n));
  for (uint32_t d = 0; d < t->rank; d++) dims[moved_axis(t->rank, d)] = t->dims[d];
  return kva_reshape(b, list_of_image(n), t->rank, dims);
}

static void rewrite(kva_layout *l, kva_graph *g, bool *changed) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    kva_builder b = kva_builder_before(l->m, n);
    const follower *f;
    if (!n->n_results) continue;
    if (makes_channels_first(n)) {
      const kva_value *v = &n->results[0];
      kva_map_set(l->last, &v, sizeof v, made_last(&b, n));
      continue;
    }
    if (kva_is(n, KVA_OP_conv) && gains(l, &n->results[0])) {
      replace(l, &b, &n->results[0], move_conv(l, &b, n));
    } else if (gains(l, &n->results[0]) && (f = follower_of(l, n, is_last))) {
      replace(l, &b, &n->results[0], f->move(l, &b, n));
    } else if (kva_is(n, KVA_OP_transpose) && is_last(l, kva_operand(n, 0)) && gains(l, kva_operand(n, 0))) {
      kva_value_replace_all_uses(&n->results[0], compose(l, &b, n));
    } else {
      continue;
    }
    *changed = true;
    kva_node_remove(n);
  }
}

kva_status kva_opt_layout(kva_module *m, const kva_pass_options *o, bool *changed) {
  if (kva_for_gpu(o) || o->compute) return KVA_OK;
  kva_arena *scratch = kva_arena_create();
  kva_layout l = {.m = m, .target = o->target, .scratch = scratch};
  l.packed = kva_map_create(scratch), l.transformed = kva_map_create(scratch);
  l.matrices = kva_map_create(scratch), l.readers = kva_map_create(scratch);
  kva_graphs graphs = kva_program_graphs(m, scratch);
  for (uint32_t i = 0; i < graphs.len; i++) kva_layout_count_readers(&l, graphs.data[i]);
  for (uint32_t i = 0; i < graphs.len; i++) {
    *changed |= kva_layout_products(&l, graphs.data[i]);
    *changed |= kva_layout_apart(&l, graphs.data[i]);
    l.regions = kva_map_create(scratch), l.last = kva_map_create(scratch);
    note_leading(&l, graphs.data[i]);
    weigh(&l, graphs.data[i]);
    rewrite(&l, graphs.data[i], changed);
  }
  kva_arena_destroy(scratch);
  return KVA_OK;
}
