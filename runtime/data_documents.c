/* Divides the documents of a token file between training and evaluation, by a hash of their tokens: the side of a
 * document depends on its content and on the share alone, neither on other documents nor on order, seed or machine; and
 * copies of a document are on one side. */
#include "runtime/data.h"

#include <math.h>
#include <stdlib.h>

/* Mixed word by word, since whole files are read; the last step spreads it over all bits (splitmix64). */
static uint64_t hash_token(uint64_t hash, uint32_t token) {
  hash = (hash ^ token) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

static uint64_t spread(uint64_t hash) {
  hash = (hash ^ hash >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  hash = (hash ^ hash >> 27) * UINT64_C(0x94d049bb133111eb);
  return hash ^ hash >> 31;
}

static kva_status add(kva_token_stream *s, int64_t begin, int64_t n, kva_diag *diag) {
  kva_token_run *last = s->n_runs ? &s->runs[s->n_runs - 1] : NULL;
  if (!last || last->begin + (s->n - last->at) != begin) {
    if ((s->n_runs & (s->n_runs - 1)) == 0) {
      kva_token_run *runs = realloc(s->runs, (size_t)(s->n_runs ? 2 * s->n_runs : 1) * sizeof *runs);
      if (!runs)
        return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a table of %lld documents", (long long)s->n_runs);
      s->runs = runs;
    }
    s->runs[s->n_runs++] = (kva_token_run){begin, s->n};
  }
  s->n += n;
  s->documents++;
  return KVA_OK;
}

kva_status kva_token_streams_make(const kva_token_file *f, double eval, kva_diag *diag, kva_token_stream out[2]) {
  uint64_t hash = 0, limit = (uint64_t)ldexp(eval, 64);
  int64_t begin = 0;
  for (int64_t i = 0; i < f->info.count; i++) {
    uint32_t token = kva_tokens_at(f, i);
    hash = hash_token(hash, token);
    if (token != f->info.end && i + 1 < f->info.count) continue;
    KVA_TRY(add(&out[spread(hash) < limit], begin, i + 1 - begin, diag));
    begin = i + 1;
    hash = 0;
  }
  return KVA_OK;
}

/* The last run that begins at or before the place. */
static const kva_token_run *find_run(const kva_token_stream *s, int64_t place) {
  int64_t low = 0, high = s->n_runs;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (s->runs[middle].at <= place)
      low = middle;
    else
      high = middle;
  }
  return &s->runs[low];
}

int64_t kva_token_stream_place(const kva_token_stream *s, int64_t place) {
  if (!s->runs) return place;
  const kva_token_run *run = find_run(s, place);
  return run->begin + (place - run->at);
}
