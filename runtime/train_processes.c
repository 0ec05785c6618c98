/* Training in several processes. Each group of the mesh takes an equal part of every batch. Between steps all states
 * are equal in all processes, but for those of which each has a part: gradients are sums in order of ranks
 * (passes/shard.c), and every process makes the same update, or that of its part. So a run with one micro-batch in each
 * of N processes has the bits of one process with N micro-batches. */
#include "runtime/train.h"

#include "runtime/comm.h"
#include "runtime/session.h"
#include "runtime/sum.h"

#include <inttypes.h>
#include <stdlib.h>

kva_status kva_train_part(int64_t batch, int64_t processes, kva_diag *diag, int64_t *out_rows) {
  *out_rows = batch / processes;
  if (batch % processes == 0) return KVA_OK;
  return kva_error(diag, NULL,
                   "a batch of %lld rows cannot be divided equally among %lld processes; expected a multiple of %lld",
                   (long long)batch, (long long)processes, (long long)processes);
}

kva_comm *kva_train_comm(const kva_trainer *t) {
  return t->s->options.comm;
}

kva_comm *kva_train_data_comm(const kva_trainer *t) {
  return kva_comm_data(t->s->options.comm);
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/* Dropout draws by the number of the micro-batch, counted over all processes in order of rows. */
static int64_t *pass_counter(const kva_trainer *t) {
  kva_tensor counter;
  if (!t->draws) return NULL; /* asking for a state moves all states of a device with its own memory */
  return kva_session_state(t->s, "train.pass", &counter) && counter.dtype == KVA_I64 ? counter.data : NULL;
}

int64_t kva_train_begin_passes(kva_trainer *t) {
  int64_t *counter = kva_train_comm(t) ? pass_counter(t) : NULL, first = counter ? *counter : 0;
  t->first_pass = first + kva_comm_rank(kva_train_data_comm(t)) * t->micro_batches;
  if (counter) *counter = t->first_pass;
  return first;
}

void kva_train_set_pass(const kva_trainer *t, int64_t k) {
  int64_t *counter = pass_counter(t);
  if (counter) *counter = t->first_pass + k;
}

void kva_train_end_passes(const kva_trainer *t, int64_t first, bool done) {
  int64_t *counter = kva_train_comm(t) ? pass_counter(t) : NULL;
  if (counter) *counter = first + (done ? kva_comm_size(kva_train_data_comm(t)) * t->micro_batches : 0);
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

kva_status kva_train_sum(const kva_trainer *t, int32_t n, double *values, kva_diag *diag) {
  kva_comm *c = kva_train_data_comm(t);
  kva_status status = c ? kva_comm_all_reduce(c, KVA_F64, n, values, values) : KVA_OK;
  return status == KVA_OK ? KVA_OK : kva_fail(diag, status, NULL, "%s", kva_comm_error(kva_train_comm(t)));
}

/* Whether the state is the same in all processes. */
static bool is_shared(const kva_trainer *t, int i) {
  kva_tensor state;
  const kva_state_desc *d = kva_session_state_desc(t->s, i, &state);
  return d->role != KVA_ROLE_CACHE && !kva_state_is_divided(d);
}

/* Sums of the states that are the same in all processes which have them, by stage and state; 0: the stage does not have
 * it. */
static kva_status sum_states(const kva_trainer *t, uint64_t *sums) {
  kva_comm *stages = kva_comm_stages(kva_train_comm(t));
  int64_t n = kva_session_state_count(t->s), bytes = n * (int64_t)sizeof *sums;
  uint64_t *own = sums + kva_comm_rank(stages) * n;
  for (int i = 0; i < n; i++) {
    kva_tensor state;
    const char *name = kva_session_state_desc(t->s, i, &state)->name;
    if (is_shared(t, i) && kva_session_holds(t->s, i)) own[i] = kva_sum_tensor(0, name, &state);
  }
  return stages ? kva_comm_all_gather(stages, bytes, bytes * kva_comm_size(stages), own, sums) : KVA_OK;
}

static void add_sums(const kva_trainer *t, const uint64_t *sums, kva_text *lines) {
  int n = kva_session_state_count(t->s), n_stages = kva_comm_size(kva_comm_stages(kva_train_comm(t)));
  for (int i = 0; i < n; i++) {
    const kva_state_desc *d = kva_session_state_desc(t->s, i, NULL);
    if (!is_shared(t, i)) continue;
    kva_text_add(lines, "sum of state '%s':", d->name);
    for (int k = 0; k < n_stages; k++)
      if (!d->stages || d->stages >> k & 1) kva_text_add(lines, " %016" PRIx64, sums[k * n + i]);
    kva_text_add(lines, "\n");
  }
}

/* A state that several stages have. */
static kva_status compare_stages(const kva_trainer *t, const uint64_t *sums, kva_diag *diag) {
  int n = kva_session_state_count(t->s), n_stages = kva_comm_size(kva_comm_stages(kva_train_comm(t)));
  for (int i = 0; i < n; i++) {
    const kva_state_desc *d = kva_session_state_desc(t->s, i, NULL);
    int first = -1;
    for (int k = 0; is_shared(t, i) && k < n_stages; k++) {
      if (d->stages && !(d->stages >> k & 1)) continue;
      if (first < 0) first = k;
      if (sums[k * n + i] != sums[first * n + i])
        return kva_error(diag, NULL, "state '%s' is not the same in stages %d and %d", d->name, first, k);
    }
  }
  return KVA_OK;
}

kva_status kva_trainer_compare(kva_trainer *t, kva_diag *diag) {
  kva_comm *c = kva_train_comm(t);
  kva_text lines = {0};
  if (!c) return KVA_OK;
  size_t n = (size_t)kva_session_state_count(t->s) * (size_t)kva_comm_size(kva_comm_stages(c));
  uint64_t *sums = calloc(n + 1, sizeof *sums);
  kva_status status = sums ? sum_states(t, sums) : KVA_NO_MEMORY;
  kva_text_add(&lines, "steps done: %lld\n", (long long)t->done);
  if (status == KVA_OK) add_sums(t, sums, &lines);
  if (status == KVA_OK && lines.cut) status = KVA_NO_MEMORY;
  if (status == KVA_OK) status = kva_comm_compare(c, lines.data, diag);
  if (status == KVA_OK) status = kva_comm_agree(c, compare_stages(t, sums, diag), diag);
  kva_text_free(&lines);
  free(sums);
  return status;
}
