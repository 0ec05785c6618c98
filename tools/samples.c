/* See samples.h. */
#include "tools/samples.h"

#include "runtime/report.h"
#include "tools/serve/decoder.h"
#include "tools/tokenizer/unicode.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { SAMPLE_TOKENS = 64 };

struct kva_samples {
  const kva_samples_options *o;
  kva_diag *diag;
  kva_session *trained;
  kva_tokenizer *tokenizer;
  kva_decoder *decoder;
  kva_token_ids prompt;
  FILE *file;
  bool begun;
};

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* A parameter that one of both has as a constant would keep its first value in the texts. */
static kva_status check_states(kva_session *from, kva_session *to, kva_diag *diag) {
  kva_tensor a, b;
  for (int i = 0; i < kva_session_state_count(from); i++) {
    const kva_state_desc *d = kva_session_state_desc(from, i, &a);
    if (d->role != KVA_ROLE_PARAMETER) continue;
    if (!kva_session_state(to, d->name, &b) || kva_tensor_bytes(&a) != kva_tensor_bytes(&b) || a.dtype != b.dtype)
      return kva_error(diag, NULL,
                       "--sample-every: parameter '%s' of the training is none of the model that continues texts; "
                       "samples are of .kv models that train as they are",
                       d->name);
  }
  return KVA_OK;
}

static kva_status make_decoder(kva_samples *s, kva_module *m) {
  kva_arena *arena = kva_arena_create();
  const kva_decoder_options options = {.slots = 1,
                                       .threads = (int)s->o->threads,
                                       .own_states = true,
                                       .target = {.opt_level = 2, .cache = kva_user_cache(arena, NULL)}};
  kva_status status = kva_decoder_create(m, s->tokenizer, &options, s->diag, &s->decoder);
  kva_arena_destroy(arena);
  return status == KVA_OK ? check_states(s->trained, kva_decoder_session(s->decoder), s->diag) : status;
}

static kva_status take_values(kva_samples *s) {
  kva_session *to = kva_decoder_session(s->decoder);
  kva_tensor a, b;
  for (int i = 0; i < kva_session_state_count(to); i++) {
    const kva_state_desc *d = kva_session_state_desc(to, i, &b);
    if (d->role != KVA_ROLE_PARAMETER) continue;
    if (!kva_session_state(s->trained, d->name, &a))
      return kva_error(s->diag, NULL, "--sample-every: the training has no values of '%s'", d->name);
    memcpy(b.data, a.data, (size_t)kva_tensor_bytes(&b));
  }
  return KVA_OK;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_status open_file(kva_samples *s) {
  const char *path = s->o->file;
  s->file = path ? fopen(path, "ae") : stdout;
  const kva_loc loc = {.file = path};
  return s->file ? KVA_OK : kva_error(s->diag, &loc, "cannot be written");
}

/* A pipe is not opened twice: its reader would see an end. */
kva_status kva_samples_begin(kva_samples *s, int64_t resumed) {
  struct stat st;
  bool begun = s->begun, rewrites = s->o->file && !fstat(fileno(s->file), &st) && S_ISREG(st.st_mode);
  s->begun = true;
  if (begun || !rewrites) return KVA_OK;
  fclose(s->file);
  s->file = NULL;
  KVA_TRY(kva_metrics_cut(s->o->file, resumed, false, s->diag));
  return open_file(s);
}

static kva_status read_prompt(kva_samples *s) {
  const char *text = s->o->prompt;
  int64_t replaced;
  KVA_TRY(kva_tokenizer_encode(s->tokenizer, text, strlen(text), s->diag, &s->prompt, &replaced));
  return s->prompt.n ? KVA_OK : kva_error(s->diag, NULL, "--sample-prompt: expected at least one token, found none");
}

kva_status kva_samples_create(kva_module *m, kva_session *trained, const kva_samples_options *options, kva_diag *diag,
                              kva_samples **out_samples) {
  *out_samples = NULL;
  kva_samples *s = calloc(1, sizeof *s);
  kva_status status = s ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  if (status == KVA_OK) {
    *s = (kva_samples){.o = options, .diag = diag, .trained = trained};
    if (options->tokenizer)
      status = kva_tokenizer_load(options->tokenizer, diag, &s->tokenizer);
    else
      s->tokenizer = kva_tokenizer_bytes();
  }
  if (status == KVA_OK) status = read_prompt(s);
  if (status != KVA_OK)
    kva_module_destroy(m);
  else
    status = make_decoder(s, m);
  if (status == KVA_OK) status = open_file(s);
  if (status == KVA_OK)
    *out_samples = s;
  else
    kva_samples_destroy(s);
  return status;
}

void kva_samples_destroy(kva_samples *s) {
  if (!s) return;
  if (s->file && s->file != stdout) fclose(s->file);
  free(s->prompt.data);
  kva_decoder_destroy(s->decoder);
  if (s->tokenizer) kva_tokenizer_destroy(s->tokenizer);
  free(s);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static kva_status write_line(kva_samples *s, int64_t step, const kva_completion *c) {
  kva_text text = {0};
  kva_utf8_add_valid(c->text.data, c->text.len, &text);
  json_t *o = json_pack("{s:I, s:s, s:s%}", "step", (json_int_t)step, "prompt", s->o->prompt, "sample",
                        text.len ? text.data : "", text.len);
  int failed = o ? json_dumpf(o, s->file, JSON_COMPACT) : -1;
  failed |= fputc('\n', s->file) < 0 || fflush(s->file);
  json_decref(o);
  kva_text_free(&text);
  const kva_loc loc = {.file = s->o->file ? s->o->file : "standard output"};
  return failed ? kva_fail(s->diag, KVA_IO, &loc, "a sample cannot be written to it") : KVA_OK;
}

kva_status kva_samples_write(kva_samples *s, int64_t step) {
  int64_t context = kva_decoder_context(s->decoder), room = s->prompt.n + SAMPLE_TOKENS;
  const kva_engine_options options = {.slots = 1, .capacity = room < context ? room : context, .prefixes = 1};
  kva_completion c = {.prompt = s->prompt.data,
                      .prompt_tokens = s->prompt.n,
                      .max_tokens = SAMPLE_TOKENS,
                      .sampling = {.temperature = 0.8, .top_p = 1, .repetition = 1, .seed = s->o->seed}};
  kva_engine *engine;
  if (s->prompt.n >= context)
    return kva_error(s->diag, NULL, "--sample-prompt has %lld tokens; the model has positions for %lld, text included",
                     (long long)s->prompt.n, (long long)context);
  KVA_TRY(take_values(s));
  KVA_TRY(kva_engine_create(kva_decoder_session(s->decoder), s->tokenizer, &options, s->diag, &engine));
  kva_engine_add(engine, &c);
  kva_status status = KVA_OK;
  while (status == KVA_OK && c.finish == KVA_FINISH_NONE) status = kva_engine_step(engine, s->diag);
  kva_engine_destroy(engine);
  if (status == KVA_OK) status = write_line(s, step, &c);
  kva_completion_clear(&c);
  return status;
}
