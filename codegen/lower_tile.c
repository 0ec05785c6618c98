/* Epilogues: the rest of a group, computed from each element that a whole-kernel operator hands to `store`. The fusion
 * pass adds only nodes that read its result element by element. Here the element's index determines every output's
 * index, through elementwise nodes, transpositions and reshapes; each read is checked to be of that element. */
#include "codegen/lower_internal.h"
#include "ops/ids.h"

/* The results of the tile that v depends on, as bits. */
static uint32_t depends_on(const kva_lowering *w, const kva_value *v) {
  KVA_ASSERT(w->tile);
  const kva_node *n = v->def;
  if (!n) return 0;
  if (n == w->tile) return 1u << v->index;
  if (!w->group || v->graph != w->group) return 0;
  uint32_t bits = 0;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (n->operands[i].value) bits |= depends_on(w, n->operands[i].value);
  }
  return bits;
}

static uint32_t dependent_operand(const kva_lowering *w, const kva_node *n) {
  uint32_t i = 0;
  while (!n->operands[i].value || !depends_on(w, n->operands[i].value)) i++;
  return i;
}

static void transposed(const kva_node *n, const kva_expr *const *in, const kva_expr **out) {
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  uint32_t rank = n->results[0].type->rank;
  for (uint32_t d = 0; d < rank; d++) out[d] = in[perm.n ? (uint32_t)perm.v[d] : rank - 1 - d];
}

static void reshaped(kva_lowering *w, const kva_type *from, const kva_type *to, const kva_expr *const *in,
                     const kva_expr **out) {
  kva_expr_ctx *c = w->l.kb->exprs;
  const kva_expr *linear = kva_expr_const(c, 0);
  for (uint32_t d = 0; d < from->rank; d++) linear = kva_expr_add(c, kva_expr_mul(c, linear, from->dims[d]), in[d]);
  for (uint32_t d = to->rank; d-- > 0;) {
    out[d] = d ? kva_expr_mod(c, linear, to->dims[d]) : linear;
    linear = kva_expr_div(c, linear, to->dims[d]);
  }
  w->bound.reshaped = true;
}

/* Equal extents, apart from leading ones of extent 1. */
static bool aligned(kva_lowering *w, const kva_type *from, const kva_type *to, const kva_expr *const *in,
                    const kva_expr **out) {
  if (to->rank < from->rank) return false;
  uint32_t extra = to->rank - from->rank;
  for (uint32_t d = 0; d < to->rank; d++) {
    if (d < extra ? !kva_expr_is(to->dims[d], 1) : to->dims[d] != from->dims[d - extra]) return false;
    out[d] = d < extra ? kva_expr_const(w->l.kb->exprs, 0) : in[d - extra];
  }
  return true;
}

/* Maps the bound element's index to the index of v; false: v does not follow it element by element. */
static bool forward(kva_lowering *w, const kva_value *v, const kva_expr **out) {
  KVA_ASSERT(v->def && w->bound.value);
  const kva_node *n = v->def;
  if (n == w->tile) {
    for (uint32_t d = 0; d < v->type->rank; d++) out[d] = w->bound.idx[d];
    return true;
  }
  const kva_value *from = n->operands[dependent_operand(w, n)].value;
  const kva_expr *in[KVA_MAX_RANK];
  if (!forward(w, from, in)) return false;
  if (kva_is(n, KVA_OP_transpose)) {
    transposed(n, in, out);
    return true;
  }
  if (kva_is(n, KVA_OP_reshape)) {
    reshaped(w, from->type, v->type, in, out);
    return true;
  }
  return aligned(w, from->type, v->type, in, out);
}

kva_kval kva_lowering_bound(kva_lowering *w, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  KVA_ASSERT(result < n->n_results);
  bool same = w->bound.value && result == w->bound.result;
  for (uint32_t d = 0; same && !w->bound.reshaped && d < n->results[result].type->rank; d++) {
    same = idx[d] == w->bound.idx[d] || kva_expr_is(n->results[result].type->dims[d], 1);
  }
  if (same) return w->bound.value;
  kva_dtype type = kva_k_compute_type(n->results[result].type->dtype);
  return kva_lowering_fail(w, n, type, "a node fused behind it reads more than the element at hand");
}

static void store_output(kva_lowering *w, const kva_node *n, const kva_lowering_output *o) {
  const kva_expr *idx[KVA_MAX_RANK];
  w->bound.reshaped = false;
  if (!forward(w, o->value, idx)) {
    kva_lowering_fail(w, n, KVA_F32, "result %u of the group does not follow it element by element", o->value->index);
    return;
  }
  kva_lowering_write(w, o, idx, kva_lowering_value(w, o->value, idx));
}

void kva_lowering_store(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx, kva_kval v) {
  kva_lowering *w = (kva_lowering *)(void *)l;
  KVA_ASSERT(n == w->tile);
  KVA_ASSERT(result < n->n_results && v->dtype == kva_k_compute_type(n->results[result].type->dtype));
  w->bound = (kva_bound){result, idx, v, false};
  w->memo = kva_map_create(w->arena);
  for (uint32_t i = 0; i < w->n_outputs; i++) {
    uint32_t bits = depends_on(w, w->outputs[i].value);
    if (bits == 1u << result)
      store_output(w, n, &w->outputs[i]);
    else if (!bits || (bits & (bits - 1))) {
      kva_lowering_fail(w, n, KVA_F32, "output %u of its group depends on %s of its results", i,
                        bits ? "several" : "none");
    }
  }
  w->bound.value = NULL;
  w->memo = kva_map_create(w->arena);
}
