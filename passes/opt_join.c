/* Joins the gradients of an attention on a CPU: attention_grad_q and attention_grad_kv of the same operands become
 * attention_grad, which computes scores and their gradients once instead of twice.
 *
 * Its items are heads of keys, so there must be enough of them for the cores of usual machines. Shapes alone decide,
 * not the machine, and sums keep their order.
 *
 * Algorithm: one sweep. Requires: nothing. Breaks: nothing. */
#include "ops/attention.h"
#include "passes/passes_internal.h"

enum { WAITING = 5 }; /* at most one of so many cores waits, in the mean */

/* Heads of keys keep all cores busy. */
static bool has_items(const kva_type *k) {
  int64_t batch, heads;
  if (!kva_expr_is_const(k->dims[0], &batch) || !kva_expr_is_const(k->dims[1], &heads)) return false;
  int64_t items = batch * heads, rounds = (items + KVA_MAX_CORES - 1) / KVA_MAX_CORES, places = rounds * KVA_MAX_CORES;
  return items > 0 && WAITING * (places - items) <= places;
}

static bool has_same_operands(const kva_node *a, const kva_node *b) {
  for (uint32_t i = 0; i <= KVA_ATTENTION_DY; i++)
    if (kva_operand(a, i) != kva_operand(b, i)) return false;
  return true;
}

/* The other gradient of the attention whose attention_grad_q n is; NULL: there is none, or they are better apart. */
static kva_node *partner_of(const kva_pass_options *o, const kva_node *n) {
  if (!kva_is(n, KVA_OP_attention_grad_q)) return NULL;
  const kva_type *q = kva_operand_type(n, KVA_ATTENTION_Q), *k = kva_operand_type(n, KVA_ATTENTION_K);
  int64_t channels, lanes = kva_target_lanes(o->target, kva_k_compute_type(q->dtype));
  bool whole = kva_expr_is_const(q->dims[3], &channels) && channels % lanes == 0;
  if (!whole || kva_attention_grad_rows(q, k) < 0 || !has_items(k)) return NULL;
  for (const kva_use *u = kva_operand(n, KVA_ATTENTION_DY)->uses; u; u = u->next) {
    bool pair =
        kva_is(u->user, KVA_OP_attention_grad_kv) && u->user->graph == n->graph && has_same_operands(n, u->user);
    if (pair && kva_attrs_equal(n->op->attrs, n->attrs, u->user->attrs)) return u->user;
  }
  return NULL;
}

static void join(kva_module *m, kva_node *of_q, kva_node *of_kv) {
  kva_builder b = kva_builder_before(m, kva_comes_before(of_q, of_kv) ? of_q : of_kv);
  kva_value *operands[KVA_ATTENTION_DY + 1];
  for (uint32_t i = 0; i <= KVA_ATTENTION_DY; i++) operands[i] = kva_operand(of_q, i);
  kva_node *all = kva_build_node(&b, KVA_OP_attention_grad, KVA_ATTENTION_DY + 1, operands, 3, of_q->attrs);
  kva_value *from[] = {&of_q->results[0], &of_kv->results[0], &of_kv->results[1]};
  for (uint32_t i = 0; i < 3; i++) {
    all->results[i].name = from[i]->name;
    kva_value_replace_all_uses(from[i], &all->results[i]);
  }
  kva_node_remove(of_q);
  kva_node_remove(of_kv);
}

kva_status kva_opt_join(kva_module *m, const kva_pass_options *options, bool *changed) {
  if (!options->target || kva_for_gpu(options)) return KVA_OK;
  kva_arena *scratch = kva_arena_create();
  kva_graphs graphs = kva_program_graphs(m, scratch);
  for (uint32_t g = 0; g < graphs.len; g++)
    for (kva_node *n = graphs.data[g]->last, *of_kv; n;) {
      of_kv = partner_of(options, n);
      if (of_kv) join(m, n, of_kv);
      n = of_kv ? graphs.data[g]->last : n->prev;
      *changed |= of_kv != NULL;
    }
  kva_arena_destroy(scratch);
  return KVA_OK;
}
