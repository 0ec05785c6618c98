/* See decoder.h. */
#include "tools/serve/decoder.h"

#include "tools/driver/language.h"

#include <stdlib.h>

struct kva_decoder {
  kvasir_program *program;
  kvasir_session *session;
  int64_t context;
};

static kva_status check(kva_decoder *d, kva_module *m, const kva_tokenizer *tokenizer, kva_diag *diag) {
  kva_language language;
  KVA_TRY(kva_language_of(m, "kvasir", diag, &language));
  d->context = language.context;
  return kva_engine_check_tokens(tokenizer, language.vocabulary, diag);
}

static kva_status compile(kva_decoder *d, kva_module *m, const kva_decoder_options *o, kva_diag *diag) {
  const kva_compile_options co = {
      .decode = true,
      .decode_only = true,
      .target = o->target,
      .passes = {.control = o->control,
                 .sequences = o->slots < KVA_ENGINE_TOGETHER ? o->slots : KVA_ENGINE_TOGETHER,
                 .caches = o->caches}};
  const kva_session_options so = {.threads = o->threads, .seed = o->seed, .borrow_states = !o->own_states};
  KVA_TRY(kva_program_compile(m, &co, o->device, diag, &d->program));
  return kva_program_session(d->program, &so, diag, &d->session);
}

kva_status kva_decoder_create(kva_module *m, const kva_tokenizer *tokenizer, const kva_decoder_options *options,
                              kva_diag *diag, kva_decoder **out_decoder) {
  *out_decoder = NULL;
  kva_decoder *d = calloc(1, sizeof *d);
  kva_status status = d ? check(d, m, tokenizer, diag) : kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  if (status != KVA_OK)
    kva_module_destroy(m);
  else
    status = compile(d, m, options, diag);
  if (status == KVA_OK)
    *out_decoder = d;
  else
    kva_decoder_destroy(d);
  return status;
}

void kva_decoder_destroy(kva_decoder *d) {
  if (!d) return;
  kvasir_session_destroy(d->session);
  kvasir_program_destroy(d->program);
  free(d);
}

int64_t kva_decoder_context(const kva_decoder *d) {
  return d->context;
}

kva_session *kva_decoder_session(const kva_decoder *d) {
  return d->session->s;
}
