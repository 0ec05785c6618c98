/* Freezing, training and initialising by name: see tune.h.
 *
 * Constants become parameters before anything is folded, so that a name means the tensor of the file; what is not
 * trained stays constant (or frozen) and costs no gradient: differentiation follows trained states only. */
#include "passes/tune.h"
#include "passes/passes_internal.h"
#include "ops/batch_norm.h"

#include <fnmatch.h>
#include <math.h>

enum { MAX_LISTED = 12 };

static bool matches(kva_patterns p, const char *name) {
  for (uint32_t i = 0; i < p.n; i++)
    if (!fnmatch(p.v[i], name, 0)) return true;
  return false;
}

static const kva_tune_init *init_for(const kva_tune_options *o, const char *name) {
  for (uint32_t i = o->n_init; i-- > 0;) /* the last one wins */
    if (!fnmatch(o->init[i].pattern, name, 0)) return &o->init[i];
  return NULL;
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

bool kva_is_named_constant(const kva_node *n) {
  if (n->n_results != 1 || !n->results[0].name) return false;
  const kva_type *t = n->results[0].type;
  if (t->kind != KVA_TYPE_TENSOR || t->rank == 0 || !kva_dtype_is_float(t->dtype) || !kva_type_is_static(t))
    return false;
  double x;
  return kva_is(n, KVA_OP_constant) || (kva_is(n, KVA_OP_expand) && kva_splat_value(kva_operand(n, 0), &x));
}

static void become_parameter(kva_module *m, kva_node *n) {
  KVA_ASSERT(kva_is_named_constant(n));
  kva_value *v = &n->results[0];
  kva_state *s = kva_state_create(m, v->name, v->type, KVA_STATE_PARAM);
  s->loc = n->loc;
  s->frozen = true;
  s->data = kva_constant_of(v);
  s->init = s->data ? KVA_INIT_DATA : KVA_INIT_CONSTANT;
  if (!s->data) kva_splat_value(kva_operand(n, 0), &s->init_a);
  kva_builder b = kva_builder_before(m, n);
  kva_value *read = kva_read_state(&b, s);
  read->name = v->name;
  kva_value_replace_all_uses(v, read);
  kva_node_remove(n);
}

/* Whether v is read as running statistics of batch normalisation alone, which are measured, not trained. */
static bool is_statistic(const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next) {
    bool converted = kva_is(u->user, KVA_OP_cast) && is_statistic(&u->user->results[0]);
    if (!converted && !(kva_is(u->user, KVA_OP_batch_norm) && u->index >= KVA_NORM_MEAN)) return false;
  }
  return v->uses != NULL;
}

/* ... and training moves them. */
static bool is_moved(const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next) {
    if (kva_is(u->user, KVA_OP_cast) ? is_moved(&u->user->results[0])
                                     : ((const kva_batch_norm_attrs *)u->user->attrs)->training)
      return true;
  }
  return false;
}

/* all: tensors of the file train, not what a node fills with a number, as initial states of networks. */
static bool wants(const kva_tune_options *o, bool all, const kva_node *n) {
  const char *name = n->results[0].name;
  bool trains = all ? kva_is(n, KVA_OP_constant) : matches(o->train, name);
  return (trains && !matches(o->freeze, name)) || matches(o->lora, name) || init_for(o, name);
}

static void take_constants(kva_module *m, const kva_tune_options *o, bool all) {
  for (kva_node *n = m->functions.data[0]->graph->first, *next; n; n = next) {
    next = n->next;
    if (!kva_is_named_constant(n)) continue;
    const kva_value *v = &n->results[0];
    bool wanted = is_statistic(v) ? is_moved(v) || init_for(o, v->name) : wants(o, all, n);
    if (wanted && !kva_module_find_state(m, v->name)) become_parameter(m, n);
  }
}

/* Batch normalisation whose statistics are frozen by name is inference in training, too. */
static void freeze_norms(kva_module *m, const kva_tune_options *o) {
  for (kva_node *n = m->functions.data[0]->graph->first; n; n = n->next) {
    if (!kva_is(n, KVA_OP_batch_norm)) continue;
    for (uint32_t i = KVA_NORM_MEAN; i <= KVA_NORM_VAR; i++) {
      const char *name = kva_operand(n, i)->name;
      if (name && matches(o->freeze, name)) ((kva_batch_norm_attrs *)n->attrs)->training = false;
    }
  }
}

static void freeze_statistics(kva_module *m) {
  for (kva_node *n = m->functions.data[0]->graph->first; n; n = n->next) {
    kva_state *s = kva_state_read_by(n);
    if (s && is_statistic(&n->results[0])) s->frozen = true;
  }
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static uint32_t common_prefix(const char *a, const char *b) {
  uint32_t n = 0;
  while (a[n] && a[n] == b[n]) n++;
  return n;
}

typedef struct listing {
  const char *pattern;
  bool found;
  const char *near[MAX_LISTED]; /* names that begin most alike, best first */
  uint32_t n, left_out;
} listing;

static void look_at(listing *l, const char *name) {
  l->found |= !fnmatch(l->pattern, name, 0);
  uint32_t at = l->n, likeness = common_prefix(l->pattern, name);
  while (at > 0 && common_prefix(l->pattern, l->near[at - 1]) < likeness) at--;
  if (l->n == MAX_LISTED) l->left_out++;
  if (at == MAX_LISTED) return;
  if (l->n < MAX_LISTED) l->n++;
  memmove(&l->near[at + 1], &l->near[at], (l->n - 1 - at) * sizeof *l->near);
  l->near[at] = name;
}

/* Some parameter or constant has a name that the pattern matches. */
static kva_status check_pattern(kva_module *m, const char *option, const char *pattern) {
  listing l = {.pattern = pattern};
  for (uint32_t i = 0; i < m->states.len; i++)
    if (m->states.data[i]->kind == KVA_STATE_PARAM) look_at(&l, m->states.data[i]->name);
  for (const kva_node *n = m->functions.data[0]->graph->first; n; n = n->next)
    if (kva_is_named_constant(n)) look_at(&l, n->results[0].name);
  if (l.found) return KVA_OK;
  kva_text names = {0};
  for (uint32_t i = 0; i < l.n; i++) kva_text_add(&names, "%s%s", i ? ", " : "", l.near[i]);
  if (l.left_out) kva_text_add(&names, " and %u more", l.left_out);
  kva_status status = kva_error(m->diag, NULL, "%s: no parameter's name matches '%s'; there are: %s", option, pattern,
                                l.n ? names.data : "none");
  kva_text_free(&names);
  return status;
}

static kva_status check_patterns(kva_module *m, const kva_tune_options *o) {
  for (uint32_t i = 0; i < o->train.n; i++) KVA_TRY(check_pattern(m, "--train", o->train.v[i]));
  for (uint32_t i = 0; i < o->freeze.n; i++) KVA_TRY(check_pattern(m, "--freeze", o->freeze.v[i]));
  for (uint32_t i = 0; i < o->lora.n; i++) KVA_TRY(check_pattern(m, "--lora", o->lora.v[i]));
  for (uint32_t i = 0; i < o->n_init; i++) KVA_TRY(check_pattern(m, "--init", o->init[i].pattern));
  return KVA_OK;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static double he_deviation(kva_module *m, const kva_type *t) {
  int64_t elements = 1, outputs = 1;
  if (!kva_expr_is_const(kva_type_elements(m, t), &elements) || t->rank == 0) return 0;
  kva_expr_is_const(t->dims[0], &outputs);
  return elements > 0 ? sqrt(2 * (double)outputs / (double)elements) : 0;
}

static void initialise(kva_module *m, kva_state *s, const kva_tune_init *init) {
  s->init = init->kind;
  s->init_a = init->he ? he_deviation(m, s->type) : init->a;
  s->init_b = init->b;
  s->data = NULL;
  s->of = NULL;
}

static bool has_parameters(const kva_module *m) {
  for (uint32_t i = 0; i < m->states.len; i++)
    if (m->states.data[i]->kind == KVA_STATE_PARAM) return true;
  return false;
}

/* A loss without a choice is for all parameters, which tensors of an ONNX graph become by being chosen. */
static bool is_for_all(const kva_module *m, const kva_pass_options *options) {
  return options->loss && !options->tune->train.n && !options->tune->lora.n && !has_parameters(m);
}

kva_status kva_tune(kva_module *m, const kva_pass_options *options, bool *changed) {
  if (!options->tune)
    return kva_error(m->diag, NULL, "pass 'tune' needs names: --train, --freeze, --init or --lora PATTERN");
  const kva_tune_options *o = options->tune;
  KVA_TRY(check_patterns(m, o));
  freeze_norms(m, o);
  bool all = is_for_all(m, options), selects = o->train.n || o->lora.n;
  take_constants(m, o, all);
  for (uint32_t i = 0; i < m->states.len; i++) {
    kva_state *s = m->states.data[i];
    if (s->kind != KVA_STATE_PARAM) continue;
    if (all) s->frozen = false;
    if (selects) s->frozen = !matches(o->train, s->name);
    if (matches(o->freeze, s->name)) s->frozen = true;
    const kva_tune_init *init = init_for(o, s->name);
    if (init) initialise(m, s, init);
  }
  freeze_statistics(m);
  *changed = true;
  return KVA_OK;
}
