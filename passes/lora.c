/* Low-rank updates (Hu et al., LoRA, arXiv 2106.09685).
 *
 * What: the product y = x W of a matched weight W [K, N] becomes
 *
 *   y = x W + s ((x A) B)      A [K, r], B [r, N], s = alpha / r
 *
 * with W frozen, A and B trained. Whatever else reads W, as an embedding that the logits share, reads W + s A B. Where
 * the product reads W transposed, y = x W^T + s ((x B^T) A^T), so that the update of W is s A B either way and merging
 * needs no direction. The factor next to x starts normal with deviation 1 / sqrt(its inputs), the other zero: the model
 * begins as it was. The number s is a frozen state, so that a saved file says all that merging needs. Algorithm: a
 * sweep over every function for the products, which get reads of W of their own, and one for the reads that were there
 * before; functions share the states by name. Requires: weights that the product reads directly or through one
 * transposition, as imported. Breaks: nothing. */
#include "passes/passes_internal.h"
#include "passes/tune.h"

#include <fnmatch.h>
#include <math.h>

static bool is_matched(const kva_tune_options *o, const char *name) {
  for (uint32_t i = 0; i < o->lora.n; i++)
    if (!fnmatch(o->lora.v[i], name, 0)) return true;
  return false;
}

/* The matrix parameter that v is, or the transpose of. */
static kva_state *weight_of(const kva_value *v, bool *transposed) {
  kva_node *n = v->def;
  if (n && kva_is(n, KVA_OP_transpose) && v->type->rank == 2) {
    kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
    if (!perm.n || perm.v[0] == 1) *transposed = !*transposed;
    n = kva_operand(n, 0)->def;
  }
  kva_state *s = n ? kva_state_read_by(n) : NULL;
  return s && s->kind == KVA_STATE_PARAM && s->type->rank == 2 && kva_dtype_is_float(s->type->dtype) ? s : NULL;
}

static kva_state *factor(kva_module *m, const kva_state *w, const char *suffix, const kva_type *type) {
  const char *name = kva_arena_printf(m->arena, "%s%s", w->name, suffix);
  kva_state *s = kva_module_find_state(m, name);
  if (s) return s;
  s = kva_state_create(m, name, type, KVA_STATE_PARAM);
  s->loc = w->loc;
  s->init = KVA_INIT_ZEROS;
  s->decay = w->decay;
  return s;
}

static void start_normal(kva_state *s, uint32_t input_axis) {
  int64_t inputs = 1;
  kva_expr_is_const(s->type->dims[input_axis], &inputs);
  s->init = KVA_INIT_NORMAL;
  s->init_a = 1 / sqrt((double)(inputs > 0 ? inputs : 1));
}

/* The update s (x A) B of the product n, built after n. */
static kva_value *update_of(kva_builder *b, const kva_node *n, kva_state *w, bool transposed,
                            const kva_tune_options *o) {
  kva_module *m = b->m;
  kva_dim r = kva_expr_const(m->exprs, o->lora_rank);
  kva_dtype t = w->type->dtype;
  kva_state *sa = factor(m, w, KVA_LORA_A, kva_type_tensor(m, t, 2, (kva_dim[]){w->type->dims[0], r}));
  kva_state *sb = factor(m, w, KVA_LORA_B, kva_type_tensor(m, t, 2, (kva_dim[]){r, w->type->dims[1]}));
  kva_state *scale = factor(m, w, KVA_LORA_SCALE, kva_type_scalar(m, t));
  start_normal(transposed ? sb : sa, transposed);
  scale->frozen = true;
  scale->init = KVA_INIT_CONSTANT;
  scale->init_a = o->lora_alpha / (double)o->lora_rank;
  bool transpose_x = ((const kva_matmul_attrs *)n->attrs)->transpose_a;
  kva_value *inner = kva_matmul(b, kva_operand(n, 0), kva_read_state(b, transposed ? sb : sa), transpose_x, transposed);
  kva_value *update = kva_matmul(b, inner, kva_read_state(b, transposed ? sa : sb), false, transposed);
  return kva_mul(b, update, kva_read_state(b, scale));
}

/* The product reads w, or its transpose, by a node of its own. */
static void read_again(kva_module *m, kva_node *n, kva_state *w) {
  kva_builder b = kva_builder_before(m, n);
  b.loc = n->loc;
  const kva_node *now = kva_operand(n, 1)->def;
  kva_value *v = kva_read_state(&b, w);
  kva_node_set_operand(n, 1, kva_is(now, KVA_OP_transpose) ? kva_build(&b, KVA_OP_transpose, 1, &v, now->attrs) : v);
}

static bool rewrite(kva_module *m, kva_node *n, const kva_tune_options *o) {
  bool transposed = ((const kva_matmul_attrs *)n->attrs)->transpose_b;
  kva_state *w = weight_of(kva_operand(n, 1), &transposed);
  if (!w || !is_matched(o, w->name)) return false;
  read_again(m, n, w);
  kva_builder b = kva_builder_before(m, n->next);
  b.loc = n->loc;
  kva_value *update = update_of(&b, n, w, transposed, o);
  kva_value *sum = kva_add(&b, update, update);
  kva_value_replace_all_uses(&n->results[0], sum);
  kva_node_set_operand(sum->def, 0, &n->results[0]);
  return true;
}

/* What still reads an updated weight by the node n reads the sum W + s A B. */
static void update_read(kva_module *m, kva_node *n) {
  kva_state *w = ((const kva_state_read_attrs *)n->attrs)->state;
  kva_state *sa = kva_module_find_state(m, kva_arena_printf(m->arena, "%s" KVA_LORA_A, w->name));
  if (!sa || !n->results[0].uses) return;
  kva_state *sb = kva_module_find_state(m, kva_arena_printf(m->arena, "%s" KVA_LORA_B, w->name));
  kva_state *scale = kva_module_find_state(m, kva_arena_printf(m->arena, "%s" KVA_LORA_SCALE, w->name));
  kva_builder b = kva_builder_before(m, n->next);
  b.loc = n->loc;
  kva_value *update = kva_matmul(&b, kva_read_state(&b, sa), kva_read_state(&b, sb), false, false);
  kva_value *sum = kva_add(&b, kva_read_state(&b, w), kva_mul(&b, update, kva_read_state(&b, scale)));
  kva_value_replace_all_uses(&n->results[0], sum);
}

static kva_status check_options(kva_module *m, const kva_tune_options *o) {
  if (o->lora_rank < 1)
    return kva_error(m->diag, NULL, "--lora: the rank must be at least 1, found %lld", (long long)o->lora_rank);
  for (uint32_t i = 0; i < m->states.len; i++)
    if (kva_module_find_state(m, kva_arena_printf(m->arena, "%s" KVA_LORA_A, m->states.data[i]->name)))
      return kva_error(m->diag, NULL, "parameter '%s' has a low-rank update already", m->states.data[i]->name);
  return KVA_OK;
}

kva_status kva_add_lora(kva_module *m, const kva_pass_options *options, bool *changed) {
  const kva_tune_options *o = options->tune;
  if (!o || !o->lora.n) return kva_error(m->diag, NULL, "pass 'lora' needs names of weights: --lora PATTERN");
  KVA_TRY(check_options(m, o));
  uint32_t rewritten = 0, first_new = m->next_node_id;
  for (uint32_t f = 0; f < m->functions.len; f++)
    for (kva_node *n = m->functions.data[f]->graph->first, *next; n; n = next) {
      next = n->next;
      if (kva_is(n, KVA_OP_matmul)) rewritten += rewrite(m, n, o);
    }
  for (uint32_t f = 0; f < m->functions.len; f++)
    for (kva_node *n = m->functions.data[f]->graph->first; n; n = n->next)
      if (n->id < first_new && kva_is(n, KVA_OP_state_read)) update_read(m, n);
  *changed = rewritten > 0;
  if (rewritten) return KVA_OK;
  return kva_error(m->diag, NULL, "--lora: what it matches is the second operand of no matrix product");
}
