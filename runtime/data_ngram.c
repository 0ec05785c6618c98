/* Third token after a pair (Xu et al., arXiv 2411.19574, section 3.3): a row is a sequence of triples (x1, x2, x3).
 * (x1, x2) is one of `pairs` fixed pairs and x3 a fixed function of the pair. Only x3 is predictable, so only x3
 * counts.
 *
 * Philox computes pair i and its third token from the seed, so there is no table, and equal pairs have equal third
 * tokens. Training and evaluation share the pairs: the task is to memorise them. */
#include "runtime/data.h"

#include "runtime/base/platform.h"

enum { PAIRS = 1 };

static kva_status prepare(kva_generated_data *d, kva_diag *diag) {
  return d->args[PAIRS] >= 1 ? KVA_OK : kva_error(diag, NULL, "data 'ngram': 'pairs' must be at least 1, found 0");
}

static kva_status check_length(const kva_generated_data *d, int64_t length, kva_diag *diag) {
  (void)d;
  if (length >= 2) return KVA_OK;
  return kva_error(diag, NULL, "data 'ngram' needs sequences of at least 2 tokens, found %lld", (long long)length);
}

/* Uniform in 1 .. vocab-1, up to a bias of vocab / 2^32. */
static int32_t token_from(uint32_t word, int64_t vocab) {
  return 1 + (int32_t)((uint64_t)word * (uint64_t)(vocab - 1) >> 32);
}

static void draw(const kva_generated_data *d, uint64_t seed, kva_stream *s, int64_t length, int32_t *row,
                 int32_t *targets) {
  static const uint64_t pair_key = 1, third_key = 2;
  uint32_t pairs = (uint32_t)d->args[PAIRS];
  for (int64_t t = 0; t <= length; t++) {
    if (t % 3 == 0) {
      kva_philox pair = kva_philox4x32(kva_stream_below(s, pairs), pair_key, seed);
      row[t] = token_from(pair.v[0], d->vocab);
      if (t < length) row[t + 1] = token_from(pair.v[1], d->vocab);
    } else if (t % 3 == 2) {
      kva_philox third = kva_philox4x32((uint64_t)row[t - 2] << 32 | (uint64_t)row[t - 1], third_key, seed);
      row[t] = token_from(third.v[0], d->vocab);
      targets[t - 1] = row[t];
    }
  }
}

const kva_generator kva_generator_ngram = {
    .name = "ngram",
    .n_args = 2,
    .args = {{"all", 0}, {"pairs", 200}},
    .prepare = prepare,
    .check_length = check_length,
    .draw = draw,
};
