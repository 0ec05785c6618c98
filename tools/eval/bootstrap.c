/* Error bars by resampling (B. Efron: Bootstrap methods, another look at the jackknife. Ann. Statist. 1979). */
#include "runtime/base/platform.h"
#include "tools/eval/task.h"

#include <math.h>

/* Uniform in [0, n) for n below 2^31, from 64 bits: the bias is below 2^-33. */
static int64_t below(int64_t n, uint64_t draw, uint64_t resample, uint64_t seed) {
  kva_philox r = kva_philox4x32(draw, resample, seed);
  return (int64_t)(((unsigned __int128)((uint64_t)r.v[0] << 32 | r.v[1]) * (uint64_t)n) >> 64);
}

static double mean_of(int64_t n, const double *values) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += values[i];
  return n ? sum / (double)n : 0;
}

static double resampled(int64_t n, const double *values, int64_t resample, uint64_t seed) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += values[below(n, (uint64_t)i, (uint64_t)resample, seed)];
  return sum / (double)n;
}

struct kva_measured kva_bootstrap(int64_t n, const double *values, int64_t resamples, uint64_t seed) {
  struct kva_measured m = {.n = n, .mean = mean_of(n, values)};
  double sum = 0, squares = 0;
  for (int64_t r = 0; n && r < resamples; r++) {
    double d = resampled(n, values, r, seed) - m.mean; /* about the mean, so that squares do not cancel */
    sum += d;
    squares += d * d;
  }
  if (n && resamples > 1) m.error = sqrt(fmax(0, squares - sum * sum / (double)resamples) / (double)(resamples - 1));
  return m;
}
