/* Induction heads: sequences in which a repeated token is followed by the token that followed it before (Xu et al., KV
 * Shifting Attention, arXiv 2411.19574, section 3.2 and appendix D).
 *
 * A row has a pool of `pool` distinct ids from 1 .. vocab-1. Each draw takes a token other than the last one from the
 * pool. A new token is appended and becomes the successor of its predecessor if that has none. A repeated token is
 * appended with its successor; its position counts, because the next token is predictable there. A token that was seen
 * but has no successor yet is drawn again (the paper's script emits id -1 there). Rows in which no position counts are
 * drawn again. Nothing is padded: a repeat at the very end does not count, since its target lies outside the row. */
#include "runtime/data.h"

#include <stdlib.h>

enum { POOL = 1, UNSEEN = 0, NO_SUCCESSOR = -1 };

/* Sections of the scratch memory. */
static int32_t *ids_of(const kva_generated_data *d) {
  return d->scratch; /* vocab entries: the identity between rows */
}
static int32_t *successors_of(const kva_generated_data *d) {
  return d->scratch + d->vocab; /* vocab entries: UNSEEN between rows */
}
static int32_t *swaps_of(const kva_generated_data *d) {
  return d->scratch + 2 * d->vocab; /* at most vocab entries */
}

static kva_status prepare(kva_generated_data *d, kva_diag *diag) {
  if (d->args[POOL] < 2 || d->args[POOL] > (double)(d->vocab - 1))
    return kva_error(diag, NULL,
                     "data 'induction': 'pool' must lie between 2 and %lld, the vocabulary without token 0; found %g",
                     (long long)d->vocab - 1, d->args[POOL]);
  d->scratch = calloc(3 * (size_t)d->vocab, sizeof *d->scratch);
  if (!d->scratch)
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a vocabulary of %lld", (long long)d->vocab);
  for (int32_t i = 0; i < d->vocab - 1; i++) ids_of(d)[i] = i + 1;
  return KVA_OK;
}

/* A row of length T repeats a token of its pool with probability of about 1 - exp(-T*T / 2 pool); these bounds keep the
 * number of redraws small. */
static kva_status check_length(const kva_generated_data *d, int64_t length, kva_diag *diag) {
  if (length < 3)
    return kva_error(diag, NULL, "data 'induction' needs sequences of at least 3 tokens, found %lld",
                     (long long)length);
  if (d->args[POOL] > (double)length * (double)length)
    return kva_error(diag, NULL,
                     "data 'induction': sequences of %lld tokens from a pool of %g hardly ever repeat one; take longer "
                     "sequences or a smaller 'pool'",
                     (long long)length, d->args[POOL]);
  return KVA_OK;
}

static void swap(int32_t *a, int32_t *b) {
  int32_t t = *a;
  *a = *b;
  *b = t;
}

/* The first steps of a Fisher-Yates shuffle: ids[0 .. n-1] become the pool. */
static void draw_pool(const kva_generated_data *d, kva_stream *s, int32_t n) {
  int32_t *ids = ids_of(d), *swaps = swaps_of(d);
  for (int32_t i = 0; i < n; i++) {
    swaps[i] = i + (int32_t)kva_stream_below(s, (uint32_t)(d->vocab - 1 - i));
    swap(&ids[i], &ids[swaps[i]]);
  }
}

static void clear_pool(const kva_generated_data *d, int32_t n) {
  int32_t *ids = ids_of(d);
  for (int32_t i = n - 1; i >= 0; i--) {
    successors_of(d)[ids[i]] = UNSEEN;
    swap(&ids[i], &ids[swaps_of(d)[i]]);
  }
}

/* Returns whether some position counts. Terminates: once two tokens are present, the first one has a successor and is
 * never the last. */
static bool draw_tokens(const int32_t *pool, int32_t n, int32_t *successors, kva_stream *s, int64_t length,
                        int32_t *row, int32_t *targets) {
  bool any = false;
  for (int64_t len = 0; len <= length;) {
    int32_t token = pool[kva_stream_below(s, (uint32_t)n)];
    int32_t last = len ? row[len - 1] : 0;
    if (token == last || successors[token] == NO_SUCCESSOR) continue;
    bool repeated = successors[token] != UNSEEN;
    row[len++] = token;
    if (repeated && len <= length) {
      targets[len - 1] = successors[token];
      row[len++] = successors[token];
      any = true;
    } else if (!repeated) {
      successors[token] = NO_SUCCESSOR;
      if (last && successors[last] == NO_SUCCESSOR) successors[last] = token;
    }
  }
  return any;
}

static void draw(const kva_generated_data *d, uint64_t seed, kva_stream *s, int64_t length, int32_t *row,
                 int32_t *targets) {
  (void)seed;
  int32_t n = (int32_t)d->args[POOL];
  for (bool any = false; !any;) {
    draw_pool(d, s, n);
    any = draw_tokens(ids_of(d), n, successors_of(d), s, length, row, targets);
    clear_pool(d, n);
  }
}

const kva_generator kva_generator_induction = {
    .name = "induction",
    .n_args = 2,
    .args = {{"all", 0}, {"pool", 48}},
    .prepare = prepare,
    .check_length = check_length,
    .draw = draw,
};
