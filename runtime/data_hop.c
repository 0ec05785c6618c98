/* Chained induction (Sanford, Hsu, Telgarsky: Transformers, Parallel Computation, and Logarithmic Depth, 2024; figure 9
 * of Xu et al., arXiv 2411.19574).
 *
 * A row begins with the number k of hops, as the token letters + 1 + k. Letters follow, uniform in 1 .. letters, none
 * equal to its left neighbour. A hop from a position leads to the one after the latest earlier occurrence of its
 * letter. The target of a position is the letter that k hops lead to, or 0 where there is no such occurrence on the
 * way. Row r of a batch has k = r modulo hops + 1, so that every batch of that many rows has every k. A smaller batch
 * goes on where the one before it ended. */
#include "runtime/data.h"

enum { HOPS = 1, LETTERS = 2 };

static kva_status prepare(kva_generated_data *d, kva_diag *diag) {
  double needed = d->args[LETTERS] + d->args[HOPS] + 2;
  if (d->args[LETTERS] < 2) return kva_error(diag, NULL, "data 'hop': 'letters' must be at least 2");
  if (needed <= (double)d->vocab) return KVA_OK;
  return kva_error(diag, NULL, "data 'hop': %g letters and 0 to %g hops need a vocabulary of %g, found %lld",
                   d->args[LETTERS], d->args[HOPS], needed, (long long)d->vocab);
}

/* -1: the letter has not occurred before. A hop leads to an earlier position, because neighbours differ. */
static int64_t hop(const int32_t *row, int64_t from) {
  for (int64_t t = from - 1; t >= 1; t--)
    if (row[t] == row[from]) return t + 1;
  return -1;
}

static int32_t hops_of(const kva_generated_data *d, const kva_stream *s) {
  uint64_t kinds = (uint64_t)d->args[HOPS] + 1;
  uint64_t before = s->rows < kinds ? kva_stream_step(s) * s->rows : 0;
  return (int32_t)((before + s->row) % kinds);
}

static void draw(const kva_generated_data *d, uint64_t seed, kva_stream *s, int64_t length, int32_t *row,
                 int32_t *targets) {
  (void)seed;
  int32_t letters = (int32_t)d->args[LETTERS], hops = hops_of(d, s);
  row[0] = letters + 1 + hops;
  for (int64_t t = 1; t <= length; t++) {
    bool follows = t > 1;
    row[t] = 1 + (int32_t)kva_stream_below(s, (uint32_t)(letters - follows));
    row[t] += follows && row[t] >= row[t - 1];
  }
  for (int64_t t = 1; t < length; t++) {
    int64_t at = t;
    for (int32_t k = 0; k < hops && at >= 0; k++) at = hop(row, at);
    targets[t] = at >= 0 ? row[at] : 0;
  }
}

const kva_generator kva_generator_hop = {
    .name = "hop",
    .n_args = 3,
    .args = {{"all", 0}, {"hops", 4}, {"letters", 4}},
    .prepare = prepare,
    .draw = draw,
};
