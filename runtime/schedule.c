/* Learning rate schedules. All begin with a linear warm-up, which reaches `lr` at step `warmup`. */
#include "runtime/runtime.h"

#include <math.h>

double kva_schedule_at(const kva_schedule *s, int64_t step) {
  if (s->kind == KVA_SCHEDULE_CONSTANT) return s->lr;
  if (step < s->warmup) return s->lr * (double)(step < 0 ? 0 : step) / (double)s->warmup;
  if (s->kind == KVA_SCHEDULE_WARMUP) return s->lr;
  double last = s->lr * s->final_ratio;
  if (step >= s->total) return last;
  double progress = (double)(step - s->warmup) / (double)(s->total - s->warmup);
  double keep = s->kind == KVA_SCHEDULE_COSINE ? 0.5 * (1 + cos(M_PI * progress)) : 1 - progress;
  return last + (s->lr - last) * keep;
}
