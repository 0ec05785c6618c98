/* Fine-tuning: text to kva_tune_options. */
#include "tools/library/tune.h"
#include "ops/optimizer.h"

#include <stdlib.h>

/* Parses "zeros", "constant(x)", "normal(s)", "uniform(a,b)", "he". */
static bool parse_init(const char *text, kva_tune_init *out) {
  static const struct {
    const char *format;
    int n;
    kva_init_kind kind;
  } forms[] = {{"constant(%lf%n)%n", 1, KVA_INIT_CONSTANT},
               {"normal(%lf%n)%n", 1, KVA_INIT_NORMAL},
               {"uniform(%lf,%lf%n)%n", 2, KVA_INIT_UNIFORM}};
  out->he = !strcmp(text, "he");
  out->kind = out->he ? KVA_INIT_NORMAL : KVA_INIT_ZEROS;
  if (out->he || !strcmp(text, "zeros")) return true;
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    int end = 0, inner = 0;
    int n = forms[i].n == 1 ? sscanf(text, forms[i].format, &out->a, &inner, &end)
                            : sscanf(text, forms[i].format, &out->a, &out->b, &inner, &end);
    out->kind = forms[i].kind;
    if (n == forms[i].n && end && !text[end]) return true;
  }
  return false;
}

static kva_status read_inits(const kva_strings *list, kva_arena *arena, kva_tune_options *o, kva_diag *diag) {
  kva_tune_init *inits = KVA_NEW_ARRAY(arena, kva_tune_init, list->n + 1);
  for (uint32_t i = 0; i < list->n; i++) {
    const char *equals = strrchr(list->v[i], '=');
    if (!equals || equals == list->v[i] || !parse_init(equals + 1, &inits[i]))
      return kva_error(diag, NULL,
                       "init: expected PATTERN=zeros, constant(x), normal(s), uniform(a,b) or he, found '%s'",
                       list->v[i]);
    inits[i].pattern = kva_arena_strndup(arena, list->v[i], (size_t)(equals - list->v[i]));
  }
  o->n_init = list->n;
  o->init = inits;
  return KVA_OK;
}

static kva_train_spec *default_spec(const kva_op_info *optimizer, kva_arena *arena) {
  kva_train_spec *spec = kva_train_spec_create(arena);
  spec->optimizer = optimizer->name;
  for (uint32_t i = 0; i < kva_train_numbers.n_fields; i++) {
    const kva_attr_field *f = &kva_train_numbers.fields[i];
    if (f->kind == KVA_ATTR_FLOAT) *(double *)((char *)spec + f->offset) = kva_optimizer_default(optimizer, f);
  }
  return spec;
}

static kva_status choose_loss(const kva_tune_choice *c, double lr, kva_arena *arena, kva_diag *diag,
                              kva_loss_options *out) {
  const char *name = c->optimizer ? c->optimizer : "adamw", *labels = c->labels ? c->labels : "int64";
  const kva_op_info *optimizer = kva_optimizer_find(name);
  if (!optimizer) return kva_error(diag, NULL, "unknown optimizer '%s'; known: %s", name, kva_optimizer_list(arena));
  kva_train_spec *spec = default_spec(optimizer, arena);
  spec->weight_decay = c->weight_decay;
  spec->clip = c->clip;
  if (lr > 0) spec->lr = lr;
  *out = (kva_loss_options){c->loss, kva_dtype_from_name(labels, strlen(labels)), spec};
  return KVA_OK;
}

/* Options that nothing would read. */
static kva_status check_use(const kva_tune_choice *c, kva_diag *diag) {
  if (!c->loss && (c->labels || c->optimizer))
    return kva_error(diag, NULL, "labels and optimizer go with a loss that is given; a train block has its own");
  if (!c->lora.n && (c->rank || !isnan(c->alpha)))
    return kva_error(diag, NULL, "rank and alpha are those of low-rank updates, and none are asked for (lora)");
  return KVA_OK;
}

kva_status kva_tune_options_of(const kva_tune_choice *c, double lr, kva_arena *arena, kva_diag *diag,
                               kva_pass_options *out) {
  kva_tune_options *o = KVA_NEW(arena, kva_tune_options);
  KVA_TRY(check_use(c, diag));
  *o = (kva_tune_options){.train = {c->train.n, c->train.v},
                          .freeze = {c->freeze.n, c->freeze.v},
                          .lora = {c->lora.n, c->lora.v},
                          .lora_rank = c->rank ? c->rank : 8,
                          .lora_alpha = isnan(c->alpha) ? 16 : c->alpha};
  KVA_TRY(read_inits(&c->init, arena, o, diag));
  out->tune = o;
  if (!c->loss) return KVA_OK;
  kva_loss_options *loss = KVA_NEW(arena, kva_loss_options);
  out->loss = loss;
  return choose_loss(c, lr, arena, diag, loss);
}

kva_status kva_tune_module(kva_module *m, const kva_tune_choice *c, double lr, kva_pass_control *control,
                           kva_diag *diag) {
  kva_pass_options passes = {.control = control};
  kva_arena *arena = kva_arena_create();
  kva_status status = kva_tune_options_of(c, lr, arena, diag, &passes);
  if (!status) status = kva_fine_tune(m, &passes);
  kva_arena_destroy(arena);
  return status;
}

/* ---- kvasir.h ---------------------------------------------------------------------------------------------------- */

static kva_status copy_list(size_t n, const char *const *from, const char *what, kva_diag *diag, kva_strings *out) {
  const size_t most = sizeof out->v / sizeof *out->v;
  if (n > most) return kva_error(diag, NULL, "%s: at most %zu patterns, found %zu", what, most, n);
  if (n && !from) return kva_error(diag, NULL, "%s: %zu patterns are announced, and none given", what, n);
  for (size_t i = 0; i < n; i++) {
    if (!from[i]) return kva_error(diag, NULL, "%s: pattern %zu is a null pointer", what, i);
    out->v[out->n++] = from[i];
  }
  return KVA_OK;
}

/* Numbers in the ranges of the tool's options. */
static kva_status check_numbers(const kvasir_training *t, kva_diag *diag) {
  if (t->lora_rank < 0 || t->lora_rank > INT32_MAX)
    return kva_error(diag, NULL, "lora_rank must be positive, found %lld", (long long)t->lora_rank);
  if (!isfinite(t->lora_alpha) || !isfinite(t->weight_decay) || t->weight_decay < 0)
    return kva_error(diag, NULL, "lora_alpha %g, weight_decay %g: expected finite numbers, weight_decay from 0",
                     t->lora_alpha, t->weight_decay);
  if (!t->loss && t->weight_decay > 0) return kva_error(diag, NULL, "weight_decay goes with a loss, and there is none");
  return KVA_OK;
}

kva_status kva_tune_choice_of(const kvasir_training *t, kva_diag *diag, kva_tune_choice *out) {
  *out = (kva_tune_choice)KVA_TUNE_NOTHING;
  KVA_TRY(check_numbers(t, diag));
  KVA_TRY(copy_list(t->n_train, t->train, "train", diag, &out->train));
  KVA_TRY(copy_list(t->n_freeze, t->freeze, "freeze", diag, &out->freeze));
  KVA_TRY(copy_list(t->n_init, t->init, "init", diag, &out->init));
  KVA_TRY(copy_list(t->n_lora, t->lora, "lora", diag, &out->lora));
  out->loss = t->loss;
  out->weight_decay = t->weight_decay;
  out->labels = t->labels;
  out->optimizer = t->optimizer;
  out->rank = t->lora_rank;
  if (t->lora_alpha != 0) out->alpha = t->lora_alpha;
  return KVA_OK;
}
