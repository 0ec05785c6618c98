/* Large uniform constants are filled once.
 *
 * What: an `expand` of one number that a product reads whole (weights of the ONNX light models, zero padding of the
 * batch) becomes a frozen buffer of the session, which is filled when the session is made, instead of a tensor that
 * every run fills again. Algorithm: one sweep; equal ones share a state by name, and its read. Requires: folding, which
 * has made constants of the small ones. Breaks: nothing. Why not a constant: it would put megabytes of one number into
 * the artefact. Expansions that only element code reads stay: fused, they are an immediate. */
#include "passes/passes_internal.h"

enum { MIN_ELEMENTS = 4096 };

static bool feeds_product(const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next)
    if (u->user->op->traits & KVA_TILE || kva_stays_packed(u->user)) return true;
  return false;
}

static bool is_large_splat(kva_module *m, const kva_node *n, double *out_x) {
  int64_t elements;
  if (!kva_is(n, KVA_OP_expand) || !kva_splat_value(kva_operand(n, 0), out_x)) return false;
  if (!kva_expr_is_const(kva_type_elements(m, n->results[0].type), &elements)) return false;
  return elements >= MIN_ELEMENTS && feeds_product(&n->results[0]);
}

/* The state that holds x everywhere: "constant.float[64, 64].0.5". */
static kva_state *splat_state(kva_module *m, const kva_node *n, double x) {
  KVA_ASSERT(kva_is(n, KVA_OP_expand));
  kva_text name = {0};
  kva_text_add(&name, "constant.");
  kva_type_print(n->results[0].type, &name);
  kva_text_add(&name, ".%.17g", x);
  kva_state *s = kva_module_find_state(m, name.data);
  if (!s) {
    s = kva_state_create(m, kva_arena_strdup(m->arena, name.data), n->results[0].type, KVA_STATE_BUFFER);
    s->init = KVA_INIT_CONSTANT;
    s->init_a = x;
    s->frozen = true;
    s->loc = n->loc;
  }
  kva_text_free(&name);
  return s;
}

/* The state's read, once in a graph: plans rely on that. A later expansion stands after the first one, and so after its
 * read. */
static kva_value *read_of(kva_module *m, kva_map *reads, kva_node *n, kva_state *s) {
  kva_value *read = kva_map_get(reads, &s, sizeof s);
  if (read) return read;
  kva_builder b = kva_builder_before(m, n);
  read = kva_read_state(&b, s);
  kva_map_set(reads, &s, sizeof s, read);
  return read;
}

static void replace_splats(kva_module *m, kva_graph *g, kva_map *reads, bool *changed) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    double x;
    if (!is_large_splat(m, n, &x)) continue;
    kva_value_replace_all_uses(&n->results[0], read_of(m, reads, n, splat_state(m, n, x)));
    kva_node_remove(n);
    *changed = true;
  }
}

kva_status kva_opt_splat(kva_module *m, const kva_pass_options *o, bool *changed) {
  (void)o;
  for (uint32_t f = 0; f < m->functions.len; f++) {
    kva_arena *scratch = kva_arena_create();
    replace_splats(m, m->functions.data[f]->graph, kva_map_create(scratch), changed);
    kva_arena_destroy(scratch);
  }
  return KVA_OK;
}
