/* States in parts: what `--mesh data=N,zero=Z` keeps once in a mesh, not once in every process (Rajbhandari et al.,
 * arXiv 1910.02054).
 *
 * What: pass train asks which parameters training holds in parts, and makes moments and sums of gradients parts of
 * them. With zero=3 parameters are parts themselves: here every read of such a state becomes a read of the part and
 * kv.all_gather, whose gradient is kv.reduce_scatter, so differentiation does the rest. A part is a vector of equally
 * many elements in every process, whatever the shape, and all optimizers work on elements.
 * Requires: that no training program is made yet. Small parameters have no parts: their messages would cost more than
 * their memory. Parameters whose initial value is made of another's stay whole, and those that a branch or a loop
 * reads, since not all processes may come to it; what training keeps for them is in parts. */
#include "ops/exchange.h"
#include "passes/passes_internal.h"

enum { SMALL = 1024 }; /* elements */

static bool makes_another(const kva_module *m, const kva_state *s) {
  for (uint32_t i = 0; i < m->states.len; i++)
    if (m->states.data[i]->of == s && m->states.data[i]->kind != KVA_STATE_MOMENT &&
        m->states.data[i]->init != KVA_INIT_ZEROS)
      return true;
  return false;
}

bool kva_in_parts(kva_module *m, const kva_state *s, const kva_pass_options *o) {
  int64_t n;
  if (o->mesh.data <= 1 || !o->mesh.zero || s->kind != KVA_STATE_PARAM || s->frozen) return false;
  if (s->whole) return true;
  return kva_dtype_bits(s->type->dtype) >= 8 && kva_expr_is_const(kva_type_elements(m, s->type), &n) && n >= SMALL;
}

void kva_make_part(kva_module *m, kva_state *s, const kva_type *whole, int64_t parts) {
  s->type = kva_part_type(m, whole, parts);
  s->whole = whole;
  s->parts = parts;
  KVA_ASSERT(s->type);
}

kva_value *kva_own_part(kva_builder *b, kva_value *whole, const kva_mesh *mesh) {
  kva_own_part_attrs attrs = {.parts = mesh->data, .stride = kva_mesh_group(mesh)};
  return kva_build(b, KVA_OP_own_part, 1, &whole, &attrs);
}

kva_value *kva_all_gather(kva_builder *b, kva_value *part, const kva_type *whole, const kva_mesh *mesh) {
  kva_all_gather_attrs attrs = {
      .parts = mesh->data, .stride = kva_mesh_group(mesh), .shape = {whole->rank, whole->dims}};
  return kva_build(b, KVA_OP_all_gather, 1, &part, &attrs);
}

/* By state id: whether a branch or a loop reads it. */
static const bool *find_inner_reads(const kva_module *m, const kva_graphs *graphs) {
  bool *inner = KVA_NEW_ARRAY(m->arena, bool, m->states.len + 1);
  for (uint32_t i = 0; i < graphs->len; i++)
    for (const kva_node *n = graphs->data[i]->first; n && graphs->data[i]->owner; n = n->next)
      if (kva_state_read_by(n)) inner[kva_state_read_by(n)->id] = true;
  return inner;
}

static bool gather_read(kva_module *m, kva_node *read, kva_state *s, const kva_mesh *mesh) {
  kva_builder b = kva_builder_before(m, read);
  b.loc = read->loc;
  kva_value *part = kva_read_state(&b, s);
  kva_value *all = kva_all_gather(&b, part, s->whole, mesh);
  if (b.failed) return false;
  kva_value_replace_all_uses(&read->results[0], all);
  kva_node_remove(read);
  return true;
}

kva_status kva_shard_parameters(kva_module *m, const kva_pass_options *o) {
  if (o->mesh.data <= 1 || o->mesh.zero < 3) return KVA_OK;
  kva_graphs graphs = kva_program_graphs(m, m->arena);
  const bool *inner = find_inner_reads(m, &graphs);
  for (uint32_t i = 0; i < m->states.len; i++) {
    kva_state *s = m->states.data[i];
    bool alone = !s->of && !makes_another(m, s);
    if (alone && !inner[i] && kva_in_parts(m, s, o)) kva_make_part(m, s, s->type, o->mesh.data);
  }
  for (uint32_t i = 0; i < graphs.len; i++)
    for (kva_node *n = graphs.data[i]->first, *next; n; n = next) {
      next = n->next;
      if (kva_state_read_by(n) && kva_state_read_by(n)->whole && !gather_read(m, n, kva_state_read_by(n), &o->mesh))
        return KVA_INVALID;
    }
  return KVA_OK;
}
