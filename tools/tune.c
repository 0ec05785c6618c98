/* Loading models for fine-tuning. */
#include "tools/tune.h"

int kva_cli_take_train(const kva_verb *verb, kva_tune_choice *c, bool *out_train) {
  const kva_strings given = c->train;
  *out_train = given.n > 0;
  c->train.n = 0;
  for (uint32_t i = 0; i < given.n; i++)
    if (*given.v[i]) c->train.v[c->train.n++] = given.v[i]; /* a bare --train is "" */
  if (*out_train || !(c->freeze.n || c->init.n || c->lora.n || c->loss)) return -1;
  fprintf(stderr, "kvasir %s: --freeze, --init, --lora and --loss go with --train\nTry: kvasir %s --help\n", verb->name,
          verb->name);
  return EXIT_USAGE;
}

int kva_cli_check_tune(const kva_tune_choice *c) {
  kva_pass_options unused = {0};
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_tune_options_of(c, 0, arena, diag, &unused);
  kva_diag_print(diag, stderr);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return status == KVA_OK ? -1 : EXIT_USAGE;
}

int kva_cli_load_tuned(const char *path, const kva_tune_load *how, const kva_tune_choice *c, kva_diag *diag,
                       kva_module **out_module) {
  const kva_cli_source from = {.path = path,
                               .defines = how->defines,
                               .pins = how->pins,
                               .weights = c->weights,
                               .free_batch = how->free_batch,
                               .inference = how->train || how->inference,
                               .language = how->language,
                               .packed = !how->train};
  int code = kva_cli_load_from(&from, diag, out_module);
  if (code >= 0) return code;
  kva_status status = kva_tune_module(*out_module, c, how->lr, how->control, diag);
  if (status != KVA_OK) return kva_cli_fail(status, diag);
  if (!how->train || (*out_module)->train) return -1;
  fprintf(stderr, "%s: error: the model has no train block, so there is nothing to train it by; give --loss\n", path);
  return EXIT_NO;
}

void kva_cli_print_trained(const kva_module *m, const kva_tune_choice *c) {
  if (!c->train.n && !c->lora.n && !c->freeze.n && !c->loss) return;
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    if (s->kind != KVA_STATE_PARAM || s->frozen) continue;
    kva_text type = {0};
    kva_type_print(s->type, &type);
    printf("trains %s %s\n", s->name, type.data);
    kva_text_free(&type);
  }
}
