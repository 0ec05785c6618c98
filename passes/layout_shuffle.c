/* Steps of a region that are a reshape which splits the channels, a transposition of their parts, and a reshape, for
 * layout.c: with channels last, the parts are the last axes. Shuffles of channels (Zhang et al., "ShuffleNet", CVPR
 * 2018) join all parts to channels again. DepthToSpace, which is sub-pixel convolution's last step (Shi et al., CVPR
 * 2016) and that of transposed convolutions whose windows lie apart (layout_apart.c), joins some of them to places. */
#include "passes/layout.h"

/* What makes v, if it is such a node and n alone reads it. */
static const kva_node *only_maker(const kva_value *v, kva_op_id op) {
  return v->def && kva_is(v->def, op) && v->uses && !v->uses->next ? v->def : NULL;
}

/* Axis 1 of `whole` is split, and no other. */
static bool splits_channels(const kva_type *whole, const kva_type *split) {
  if (whole->rank < 3 || split->rank <= whole->rank || split->dims[0] != whole->dims[0]) return false;
  for (uint32_t d = 2; d < whole->rank; d++)
    if (split->dims[split->rank - whole->rank + d] != whole->dims[d]) return false;
  return true;
}

/* The three nodes that end with n: [N, C, places] is split, moved and joined; x NULL: n ends none. */
typedef struct steps {
  kva_value *x;
  const kva_node *move;
  const kva_type *split;
  const int64_t *perm;
  uint32_t parts;
} steps;

static steps steps_of(const kva_node *n) {
  const kva_node *move = kva_is(n, KVA_OP_reshape) ? only_maker(kva_operand(n, 0), KVA_OP_transpose) : NULL;
  const kva_node *split = move ? only_maker(kva_operand(move, 0), KVA_OP_reshape) : NULL;
  steps s = {NULL};
  if (!split) return s;
  kva_value *x = kva_operand(split, 0);
  const kva_transpose_attrs *a = move->attrs;
  s.move = move, s.split = split->results[0].type, s.perm = a->perm.v;
  if (a->perm.n != s.split->rank || a->perm.v[0] != 0 || !splits_channels(x->type, s.split)) return s;
  s.x = x, s.parts = s.split->rank - x->type->rank + 1;
  return s;
}

kva_value *kva_layout_shuffled(const kva_node *n) {
  steps s = steps_of(n);
  if (!s.x || s.x->type != n->results[0].type) return NULL;
  for (uint32_t d = s.parts + 1; d < s.split->rank; d++)
    if (s.perm[d] != d) return NULL;
  return s.x;
}

/* ends[d]: the moved axis behind those that make axis d of the result. Channels are made of parts alone, and each place
 * of that place and parts. */
static bool joins_places(const kva_node *n, const steps *s, uint32_t *ends) {
  kva_expr_ctx *e = n->graph->module->exprs;
  const kva_type *to = n->results[0].type, *moved = kva_operand_type(n, 0);
  uint32_t at = 1;
  if (to->rank != s->x->type->rank || to->dims[0] != moved->dims[0]) return false;
  for (uint32_t d = 1; d < to->rank; d++) {
    kva_dim product = kva_expr_const(e, 1);
    uint32_t places = 0;
    while (at < moved->rank && product != to->dims[d]) {
      bool place = s->perm[at] > s->parts;
      if (place && s->perm[at] - s->parts + 1 != d) return false;
      places += place;
      product = kva_expr_mul(e, product, moved->dims[at++]);
    }
    if (product != to->dims[d] || places != (d > 1)) return false;
    ends[d] = at;
  }
  return at == moved->rank;
}

kva_value *kva_layout_spread(const kva_node *n) {
  uint32_t ends[KVA_MAX_RANK];
  steps s = steps_of(n);
  return s.x && s.x->type != n->results[0].type && joins_places(n, &s, ends) ? s.x : NULL;
}

/* x, with channels last, split into its parts; the axis there of each of the split's. */
static kva_value *split_last(kva_builder *b, const steps *s, kva_value *x, uint32_t *axes) {
  uint32_t places = x->type->rank - 1;
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < s->split->rank; d++) {
    axes[d] = d == 0 ? 0 : d <= s->parts ? places + d - 1 : d - s->parts;
    dims[axes[d]] = s->split->dims[d];
  }
  return kva_reshape(b, x, s->split->rank, dims);
}

kva_value *kva_layout_shuffle(kva_builder *b, const kva_node *n, kva_value *x) {
  steps s = steps_of(n);
  uint32_t axes[KVA_MAX_RANK], places = x->type->rank - 1;
  int64_t perm[KVA_MAX_RANK];
  kva_value *split = split_last(b, &s, x, axes);
  for (uint32_t d = 0; d < places; d++) perm[d] = d;
  for (uint32_t p = 1; p <= s.parts; p++) perm[places + p - 1] = axes[s.perm[p]];
  return kva_reshape(b, kva_transpose(b, split, perm), x->type->rank, x->type->dims);
}

kva_value *kva_layout_spread_last(kva_builder *b, const kva_node *n, kva_value *x) {
  steps s = steps_of(n);
  const kva_type *to = n->results[0].type;
  uint32_t axes[KVA_MAX_RANK], ends[KVA_MAX_RANK] = {1, 1}, at = 1, rank = to->rank;
  int64_t perm[KVA_MAX_RANK] = {0};
  kva_dim dims[KVA_MAX_RANK] = {to->dims[0]};
  KVA_ASSERT(joins_places(n, &s, ends));
  kva_value *split = split_last(b, &s, x, axes);
  for (uint32_t d = 2; d < rank; d++) {
    dims[d - 1] = to->dims[d];
    for (uint32_t i = ends[d - 1]; i < ends[d]; i++) perm[at++] = axes[s.perm[i]];
  }
  for (uint32_t i = 1; i < ends[1]; i++) perm[at++] = axes[s.perm[i]];
  dims[rank - 1] = to->dims[1];
  return kva_reshape(b, kva_transpose(b, split, perm), rank, dims);
}
