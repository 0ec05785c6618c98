/* Shuffles of channels (Zhang et al., "ShuffleNet", CVPR 2018), for layout.c: a reshape that splits the channels, a
 * transposition of their parts, and a reshape that joins them again. The three are one step of a region: with channels
 * last, the parts are the last axes. */
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

/* Axes 0 and from `parts` + 1 on stay. */
static bool moves_parts(const kva_transpose_attrs *a, uint32_t rank, uint32_t parts) {
  if (a->perm.n != rank) return false;
  for (uint32_t d = 0; d < rank; d++)
    if ((d == 0 || d > parts) && a->perm.v[d] != d) return false;
  return true;
}

static uint32_t parts_of(const kva_type *whole, const kva_type *split) {
  return split->rank - whole->rank + 1;
}

kva_value *kva_layout_shuffled(const kva_node *n) {
  if (!kva_is(n, KVA_OP_reshape)) return NULL;
  const kva_node *move = only_maker(kva_operand(n, 0), KVA_OP_transpose);
  const kva_node *split = move ? only_maker(kva_operand(move, 0), KVA_OP_reshape) : NULL;
  if (!split) return NULL;
  kva_value *x = kva_operand(split, 0);
  const kva_type *parts = split->results[0].type;
  if (x->type != n->results[0].type || !splits_channels(x->type, parts)) return NULL;
  return moves_parts(move->attrs, parts->rank, parts_of(x->type, parts)) ? x : NULL;
}

kva_value *kva_layout_shuffle(kva_builder *b, const kva_node *n, kva_value *x) {
  const kva_node *move = kva_operand(n, 0)->def;
  const kva_type *split = kva_operand_type(move, 0);
  uint32_t places = x->type->rank - 1, parts = parts_of(x->type, split);
  kva_dim dims[KVA_MAX_RANK];
  int64_t perm[KVA_MAX_RANK];
  for (uint32_t d = 0; d < places; d++) dims[d] = x->type->dims[d], perm[d] = d;
  for (uint32_t p = 0; p < parts; p++) {
    dims[places + p] = split->dims[1 + p];
    perm[places + p] = ((const kva_transpose_attrs *)move->attrs)->perm.v[1 + p] - 1 + places;
  }
  kva_value *moved = kva_transpose(b, kva_reshape(b, x, split->rank, dims), perm);
  return kva_reshape(b, moved, x->type->rank, x->type->dims);
}
