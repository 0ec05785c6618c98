/* See text.h. Every stream is read after a token that ends documents, where there is one: then each of its tokens is
 * predicted, and the bytes of the text are all counted. */
#include "tools/eval/text.h"

#include "runtime/base/platform.h"
#include "runtime/tokens.h"
#include "tools/corpus.h"
#include "tools/eval/perplexity.h"

#include <math.h>
#include <stdlib.h>

typedef struct run {
  const kva_text_eval *e;
  kva_perplexity *windows;
  kva_text_score *score;
  int64_t end, read; /* the token that ends documents, or -1; tokens read */
  bool begins;       /* the next token is the first of a stream */
  bool unknown;      /* how many bytes of text the tokens are */
  double printed, started;
} run;

static bool full(const run *r) {
  return r->e->limit && r->read >= r->e->limit;
}

static void show(run *r, double share) {
  double now = kva_now();
  if (!r->e->progress || now - r->printed < 0.2) return;
  kva_perplexity_sum sum = kva_perplexity_so_far(r->windows);
  r->printed = now;
  if (!sum.tokens) return;
  fprintf(stderr, "\r\033[K%3.0f %%  %lld tokens  loss %.4f  %.0f tokens/s", 100 * share, (long long)sum.tokens,
          sum.nats / (double)sum.tokens, (double)sum.tokens / (now - r->started));
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* The windows' begin token is that of the tokenizer or file: they are made anew where it changes. */
static kva_status use_end(run *r, int64_t end, kva_diag *diag) {
  const kva_text_eval *e = r->e;
  r->end = end < e->vocabulary ? end : -1;
  const kva_perplexity_options o = {e->context, e->stride, e->windows, r->end};
  return kva_perplexity_create(e->scorer, &o, diag, &r->windows);
}

static kva_status begin_stream(run *r, kva_diag *diag) {
  r->begins = r->end < 0;
  return kva_perplexity_begin(r->windows, diag);
}

/* bytes: of the token as text. The first token of a stream that begins with nothing is not predicted. */
static kva_status add(run *r, uint32_t token, int64_t bytes, kva_diag *diag) {
  r->read++;
  r->unknown |= bytes < 0;
  if (!r->begins) r->score->bytes += bytes;
  r->begins = false;
  return kva_perplexity_add(r->windows, token, diag);
}

static kva_status finish(run *r, kva_status status, kva_diag *diag) {
  if (status == KVA_OK) status = kva_perplexity_finish(r->windows, diag);
  kva_perplexity_sum sum = r->windows ? kva_perplexity_so_far(r->windows) : (kva_perplexity_sum){0};
  r->score->tokens += sum.tokens;
  r->score->nats += sum.nats;
  kva_perplexity_destroy(r->windows);
  r->windows = NULL;
  return status;
}

/* ---- token files ------------------------------------------------------------------------------------------------- */

/* Bytes of each token behind another one; of the token that ends documents none. NULL: no memory. */
static int64_t *token_bytes(const kva_tokenizer *t, int64_t n, int64_t end) {
  int64_t *bytes = calloc((size_t)n, sizeof *bytes);
  for (int64_t i = 0; bytes && i < n; i++) {
    kva_text text = {0};
    kva_text_add(&text, "x");
    kva_tokenizer_decode(t, (uint32_t)i, &text);
    bytes[i] = i == end ? 0 : (int64_t)text.len - 1;
    kva_text_free(&text);
  }
  return bytes;
}

static kva_status add_tokens(run *r, const char *path, const kva_token_file *f, const int64_t *bytes, kva_diag *diag) {
  kva_loc loc = {.file = path};
  bool ends = true; /* the token before this one */
  KVA_TRY(begin_stream(r, diag));
  for (int64_t i = 0; i < f->info.count && !full(r); i++) {
    uint32_t token = kva_tokens_at(f, i);
    if (token >= f->info.vocab)
      return kva_error(diag, &loc, "token %lld is %u, outside of the vocabulary of %lld; the file is damaged",
                       (long long)i, token, (long long)f->info.vocab);
    r->score->documents += ends;
    ends = token == r->end;
    KVA_TRY(add(r, token, bytes ? bytes[token] : -1, diag));
    if (ends && r->e->apart) KVA_TRY(begin_stream(r, diag));
    show(r, (double)i / (double)f->info.count);
  }
  return KVA_OK;
}

static kva_status check_tokens(const run *r, const char *path, const kva_token_info *info, kva_diag *diag) {
  kva_loc loc = {.file = path};
  if (info->vocab > r->e->vocabulary)
    return kva_error(diag, &loc,
                     "the tokens are of a vocabulary of %lld, the model's has %lld; set the model's to that",
                     (long long)info->vocab, (long long)r->e->vocabulary);
  if (r->e->own_tokens && info->vocab != kva_tokenizer_vocab(r->e->tokenizer))
    return kva_error(diag, &loc, "the file has a vocabulary of %lld, the tokenizer %lld; give its own with --tokenizer",
                     (long long)info->vocab, (long long)kva_tokenizer_vocab(r->e->tokenizer));
  if (r->e->apart && info->end < 0)
    return kva_error(diag, &loc, "no token ends its documents, so they cannot be evaluated apart");
  return KVA_OK;
}

static kva_status eval_tokens(run *r, const char *path, kva_diag *diag) {
  kva_token_file f;
  KVA_TRY(kva_tokens_open(path, diag, &f));
  int64_t *bytes = NULL;
  kva_status status = check_tokens(r, path, &f.info, diag);
  if (f.info.vocab == kva_tokenizer_vocab(r->e->tokenizer))
    bytes = token_bytes(r->e->tokenizer, f.info.vocab, f.info.end);
  if (status == KVA_OK) status = use_end(r, f.info.end, diag);
  if (status == KVA_OK) status = add_tokens(r, path, &f, bytes, diag);
  free(bytes);
  kva_tokens_close(&f);
  return finish(r, status, diag);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

kva_status kva_eval_check_tokenizer(int64_t vocabulary, const kva_tokenizer *t, bool own, const char *path,
                                    kva_diag *diag) {
  int64_t known = kva_tokenizer_vocab(t);
  kva_loc loc = {.file = path};
  if (own && known > vocabulary)
    return kva_error(diag, &loc, "the model knows %lld tokens, the tokenizer has %lld", (long long)vocabulary,
                     (long long)known);
  if (!own && vocabulary != known && vocabulary != known - 1)
    return kva_error(diag, &loc,
                     "is text, and the model knows %lld tokens; those of bytes are 256 or, with the end of texts, 257: "
                     "give --tokenizer",
                     (long long)vocabulary);
  return KVA_OK;
}

static int64_t first_bytes(const run *r, uint32_t token) {
  kva_text text = {0};
  kva_tokenizer_decode(r->e->tokenizer, token, &text);
  int64_t n = (int64_t)text.len;
  kva_text_free(&text);
  return n;
}

static kva_status add_document(void *user, const char *path, const char *text, size_t size, double share,
                               kva_diag *diag) {
  run *r = user;
  kva_token_ids ids = {0};
  int64_t replaced;
  (void)path;
  if (full(r)) return KVA_OK;
  kva_status status = kva_tokenizer_encode(r->e->tokenizer, text, size, diag, &ids, &replaced);
  if (status == KVA_OK && r->e->apart) status = begin_stream(r, diag);
  if (status == KVA_OK && ids.n) r->score->bytes += (int64_t)size - (r->begins ? first_bytes(r, ids.data[0]) : 0);
  int64_t i = 0;
  for (; status == KVA_OK && i < ids.n && !full(r); i++) {
    status = add(r, ids.data[i], 0, diag);
    show(r, share);
  }
  r->unknown |= i < ids.n;
  if (status == KVA_OK && r->end >= 0 && !full(r)) status = add(r, (uint32_t)r->end, 0, diag);
  r->score->documents++;
  free(ids.data);
  return status;
}

static kva_status eval_corpus(run *r, const char *path, kva_diag *diag) {
  KVA_TRY(kva_eval_check_tokenizer(r->e->vocabulary, r->e->tokenizer, r->e->own_tokens, path, diag));
  const kva_corpus corpus = {.n = 1, .paths = &path, .each = add_document, .user = r};
  kva_corpus_stats stats;
  kva_status status = use_end(r, kva_tokenizer_end(r->e->tokenizer), diag);
  if (status == KVA_OK) status = begin_stream(r, diag);
  if (status == KVA_OK) status = kva_corpus_read(&corpus, diag, &stats);
  return finish(r, status, diag);
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static bool is_token_file(const char *path) {
  char begin[8] = {0};
  FILE *f = fopen(path, "rbe");
  bool is = f && fread(begin, 1, sizeof begin, f) == sizeof begin && !memcmp(begin, "KVATOKEN", sizeof begin);
  if (f) fclose(f);
  return is;
}

kva_status kva_eval_text(const kva_text_eval *e, uint32_t n, const char *const *paths, kva_diag *diag,
                         kva_text_score *out) {
  run r = {.e = e, .score = out, .started = kva_now()};
  kva_status status = KVA_OK;
  *out = (kva_text_score){0};
  for (uint32_t i = 0; status == KVA_OK && i < n && !full(&r); i++)
    status = is_token_file(paths[i]) ? eval_tokens(&r, paths[i], diag) : eval_corpus(&r, paths[i], diag);
  if (e->progress) fprintf(stderr, "\r\033[K");
  if (r.unknown) out->bytes = -1;
  if (status == KVA_OK && !out->tokens)
    return kva_error(diag, NULL, "there is nothing to predict in what was given: it has less than two tokens");
  return status;
}
