/* Independent uniform tokens from 0 .. vocab-1, for benchmarks and tests. The best reachable loss is ln(vocab). */
#include "runtime/data.h"

static void draw(const kva_generated_data *d, uint64_t seed, kva_stream *s, int64_t length, int32_t *row,
                 int32_t *targets) {
  (void)seed;
  for (int64_t t = 0; t <= length; t++) row[t] = (int32_t)kva_stream_below(s, (uint32_t)d->vocab);
  for (int64_t t = 0; t < length; t++) targets[t] = row[t + 1];
}

const kva_generator kva_generator_random = {
    .name = "random",
    .n_args = 1,
    .args = {{"all", 0}},
    .draw = draw,
};
