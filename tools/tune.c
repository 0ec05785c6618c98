/* Options of fine-tuning: text to kva_tune_options. */
#include "tools/tune.h"
#include "ops/optimizer.h"
#include "tools/driver/trained.h"

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
                       "--init: expected PATTERN=zeros, constant(x), normal(s), uniform(a,b) or he, found '%s'",
                       list->v[i]);
    inits[i].pattern = kva_arena_strndup(arena, list->v[i], (size_t)(equals - list->v[i]));
  }
  o->n_init = list->n;
  o->init = inits;
  return KVA_OK;
}

static kva_status choose_loss(const kva_tune_choice *c, double lr, kva_arena *arena, kva_diag *diag,
                              kva_loss_options *out) {
  const kva_op_info *optimizer = kva_optimizer_find(c->optimizer);
  if (!optimizer)
    return kva_error(diag, NULL, "unknown optimizer '%s'; known: %s", c->optimizer, kva_optimizer_list(arena));
  kva_train_spec *spec = kva_train_spec_create(arena);
  spec->optimizer = optimizer->name;
  spec->weight_decay = c->weight_decay;
  if (lr > 0) spec->lr = lr;
  *out = (kva_loss_options){c->loss, kva_dtype_from_name(c->labels, strlen(c->labels)), spec};
  return KVA_OK;
}

kva_status kva_cli_tune_options(const kva_tune_choice *c, double lr, kva_arena *arena, kva_diag *diag,
                                kva_pass_options *out) {
  kva_tune_options *o = KVA_NEW(arena, kva_tune_options);
  *o = (kva_tune_options){.train = {c->train.n, c->train.v},
                          .freeze = {c->freeze.n, c->freeze.v},
                          .lora = {c->lora.n, c->lora.v},
                          .lora_rank = c->rank,
                          .lora_alpha = c->alpha};
  KVA_TRY(read_inits(&c->init, arena, o, diag));
  out->tune = o;
  if (!c->loss) return KVA_OK;
  kva_loss_options *loss = KVA_NEW(arena, kva_loss_options);
  out->loss = loss;
  return choose_loss(c, lr, arena, diag, loss);
}

static kva_status tune(kva_module *m, const kva_tune_choice *c, const kva_tune_load *how, kva_diag *diag) {
  kva_pass_options passes = {.control = how->control};
  kva_arena *arena = kva_arena_create();
  kva_status status = kva_cli_tune_options(c, how->lr, arena, diag, &passes);
  if (!status && c->weights) status = kva_load_weights(m, c->weights, diag);
  if (!status) status = kva_fine_tune(m, &passes);
  kva_arena_destroy(arena);
  return status;
}

int kva_cli_load_tuned(const char *path, const kva_tune_load *how, const kva_tune_choice *c, kva_diag *diag,
                       kva_module **out_module) {
  int code = kva_cli_load_batch(path, how->defines, how->pins, how->free_batch, diag, out_module);
  if (code >= 0) return code;
  kva_status status = tune(*out_module, c, how, diag);
  if (status != KVA_OK) return kva_cli_fail(status, diag);
  if (!how->train || (*out_module)->train) return -1;
  fprintf(stderr, "%s: error: the model has no train block, so there is nothing to train it by; give --loss\n", path);
  return EXIT_NO;
}

void kva_cli_print_trained(const kva_module *m, const kva_tune_choice *c) {
  if (!c->train.n && !c->lora.n && !c->freeze.n) return;
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    if (s->kind != KVA_STATE_PARAM || s->frozen) continue;
    kva_text type = {0};
    kva_type_print(s->type, &type);
    printf("trains %s %s\n", s->name, type.data);
    kva_text_free(&type);
  }
}
