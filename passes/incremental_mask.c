/* Pass incremental: masks. A mask relates the rows of the chunk (queries) to all rows of a sequence (keys), those in
 * the cache included. What it is made of for each key is computed again for every chunk, from positions, or, where it
 * depends on the sequence (numbers of documents, padding), kept in a cache of its own. */
#include "passes/incremental.h"

static kva_value *over_rows(kva_chunks *p, const kva_value *v, uint32_t axis);

static kva_value *refuse(kva_chunks *p, const kva_value *v, const char *why) {
  if (v->def)
    kva_refuse_chunks(&p->c, v->def, "%s", why);
  else
    kva_fail(p->c.b->m->diag, KVA_UNSUPPORTED, NULL, "input '%s': no function over chunks of rows can be made: %s",
             v->name ? v->name : "", why);
  return NULL;
}

/* Attributes of n with the capacity as extent `axis` of its shape. */
static const void *resized(kva_chunks *p, const kva_node *n, uint32_t axis) {
  return kva_resized_shape(p->c.scratch, n, axis, p->c.capacity);
}

static kva_value *operand_over_rows(kva_chunks *p, const kva_node *n, uint32_t i, uint32_t axis) {
  const kva_value *x = kva_operand(n, i);
  int source = x ? kva_source_axis(n, i, axis) : KVA_SAME_FOR_ALL;
  if (source >= 0 && kva_is_time(&p->c, x, (uint32_t)source)) return over_rows(p, x, (uint32_t)source);
  if (source == KVA_SAME_FOR_ALL && (!x || p->values[x->id].form <= KVA_CHUNK_LIFTED))
    return x ? p->values[x->id].value : NULL;
  return refuse(p, &n->results[0], "this part of a mask cannot be made for the rows of a cache");
}

static kva_value *made_again(kva_chunks *p, const kva_node *n, uint32_t axis) {
  kva_value **operands = KVA_NEW_ARRAY(p->c.scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    operands[i] = operand_over_rows(p, n, i, axis);
    if (kva_operand(n, i) && !operands[i]) return NULL;
  }
  return kva_build_lifted(p, n, operands, resized(p, n, axis));
}

/* Numbers along keys. Those along the rows of the chunk depend on the position. */
static kva_value *numbers(kva_chunks *p, const kva_value *v, uint32_t axis) {
  const kva_iota_attrs *a = v->def->attrs;
  uint32_t along = (uint32_t)(a->axis < 0 ? a->axis + v->type->rank : a->axis);
  if (kva_is_time(&p->c, v, along) && along != axis) return refuse(p, v, "it numbers rows along two axes");
  return kva_build(p->c.b, KVA_OP_iota, 0, NULL, resized(p, v->def, axis));
}

/* Moved elements, and what has no axis of sequences, need no cache. */
static bool is_made_again(const kva_chunks *p, const kva_value *v) {
  return v->def && (v->def->op->traits & KVA_VIEW || kva_time_axes(p, v) > 1 || v->type->dims[0] != p->c.batch);
}

static kva_value *make_over_rows(kva_chunks *p, const kva_value *v, uint32_t axis) {
  if (v->def && kva_is(v->def, KVA_OP_iota)) return numbers(p, v, axis);
  if (is_made_again(p, v)) return made_again(p, v->def, axis);
  const kva_chunk_value *chunk = &p->values[v->id];
  if (chunk->form != KVA_CHUNK_PLAIN || !axis || v->type->dims[0] != p->c.batch)
    return refuse(p, v, "a mask relates every row to every row, and is not made of values for each row");
  return kva_all_rows(&p->c, kva_cached(&p->c, "mask", chunk->value, axis, 0), axis);
}

static kva_value *over_rows(kva_chunks *p, const kva_value *v, uint32_t axis) {
  for (uint32_t i = 0; i < p->over_rows.len; i++)
    if (p->over_rows.data[i].v == v && p->over_rows.data[i].axis == axis) return p->over_rows.data[i].made;
  kva_over_rows o = {v, axis, make_over_rows(p, v, axis)};
  if (o.made) KVA_PUSH(p->c.scratch, &p->over_rows, o);
  return o.made;
}

kva_value *kva_mask_over_all_rows(kva_incremental *c, const kva_node *n, uint32_t operand) {
  kva_chunks *p = (kva_chunks *)c;
  const kva_value *mask = kva_operand(n, operand);
  uint32_t rank = mask->type->rank;
  kva_value *v = p->values[mask->id].value;
  if (rank && kva_is_time(c, mask, rank - 1)) v = over_rows(p, mask, rank - 1);
  if (!v || v->type->rank == rank) return v;
  return kva_align_lifted(c, v, 4);
}
