/* Whole tensors of states that each process has a slice or a part of. A checkpoint is one process's, so that a run goes
 * on with any mesh: rank 0 gathers what it writes, and gives what it read to the others, by one message a process. */
#include "runtime/comm.h"
#include "runtime/session.h"

#include <stdlib.h>

static int64_t width_of(const kva_state_desc *d) {
  return kva_dtype_bits((kva_dtype)d->dtype) / 8;
}

static int64_t whole_bytes(const kva_state_desc *d) {
  return kva_state_elements(d) * width_of(d);
}

/* ---- who has what ------------------------------------------------------------------------------------------------ */

int64_t kva_state_place(const kva_state_desc *d, int64_t slice, int64_t i, int64_t *out_run) {
  if (!d->slices) {
    *out_run = INT64_MAX;
    return i;
  }
  int64_t row = d->whole[d->split_axis] / d->slices;
  for (int32_t k = d->split_axis + 1; k < d->whole_rank; k++) row *= d->whole[k];
  *out_run = row - i % row;
  return (i / row * d->slices + slice) * row + i % row;
}

kva_state_share kva_state_share_of(const kva_state_desc *d, const kva_comm *c, int rank) {
  kva_comm_mesh place = c ? kva_comm_place(c, rank) : (kva_comm_mesh){0};
  int64_t n = kva_state_elements(d) / (d->slices ? d->slices : 1);
  kva_state_share share = {.slice = d->slices ? place.tensor : 0, .n = n};
  if (!d->parts) return share;
  share.first = place.data * d->dims[0];
  share.n = kva_part_filled(n, d->dims[0], place.data);
  return share;
}

/* Of the processes that have the same elements the first one sends them to rank 0. */
static bool gives(const kva_state_desc *d, const kva_comm *c, int rank) {
  kva_comm_mesh place = kva_comm_place(c, rank);
  return !place.sequence && (d->slices || !place.tensor) && (d->parts || !place.data);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

const kva_state_desc *kva_session_whole_state(kva_session *s, int i, kva_tensor *out_tensor) {
  const kva_state_desc *d = kva_session_state_desc(s, i, out_tensor);
  if (!kva_state_is_divided(d)) return d;
  out_tensor->rank = d->whole_rank;
  memcpy(out_tensor->dims, d->whole, sizeof out_tensor->dims);
  out_tensor->data = s->whole ? s->whole[i] : NULL;
  return d;
}

void kva_session_drop_whole(kva_session *s) {
  for (int32_t i = 0; s->whole && i < s->artifact->n_states; i++) free(s->whole[i]);
  free(s->whole);
  s->whole = NULL;
}

kva_status kva_session_hold_whole(kva_session *s, kva_diag *diag) {
  const kva_artifact *a = s->artifact;
  kva_session_drop_whole(s);
  s->whole = calloc((size_t)a->n_states + 1, sizeof *s->whole);
  bool failed = !s->whole;
  for (int32_t i = 0; !failed && i < a->n_states; i++) {
    if (!kva_state_is_divided(&a->states[i])) continue;
    s->whole[i] = malloc((size_t)whole_bytes(&a->states[i]) + 1);
    failed = !s->whole[i];
  }
  if (!failed) return KVA_OK;
  kva_session_drop_whole(s);
  return kva_fail(diag, KVA_NO_MEMORY, NULL,
                  "no memory for a checkpoint: process 0 needs room for all states that processes have parts of");
}

static bool has_parts(const kva_artifact *a) {
  for (int32_t i = 0; i < a->n_states; i++)
    if (kva_state_is_divided(&a->states[i])) return true;
  return false;
}

/* Elements of a share, one after the other in `own`, to their places in the whole, or back. */
static void place_share(const kva_state_desc *d, const kva_state_share *share, char *whole, char *own, bool gathers) {
  int64_t width = width_of(d), run;
  for (int64_t i = 0; i < share->n; i += run) {
    char *at = whole + kva_state_place(d, share->slice, share->first + i, &run) * width, *from = own + i * width;
    if (run > share->n - i) run = share->n - i;
    memcpy(gathers ? at : from, gathers ? from : at, (size_t)(run * width));
  }
}

/* What one process has of state i: from it to rank 0's whole tensor, or back. */
static kva_status move_share(kva_session *s, int32_t i, int rank, bool gathers) {
  kva_comm *c = s->options.comm;
  const kva_state_desc *d = &s->artifact->states[i];
  kva_state_share share = kva_state_share_of(d, c, rank);
  int64_t bytes = share.n * width_of(d);
  char *own = s->states[i].data;
  if (!bytes || (gathers && !gives(d, c, rank)) || (kva_comm_rank(c) && kva_comm_rank(c) != rank)) return KVA_OK;
  if (kva_comm_rank(c)) return gathers ? kva_comm_send(c, 0, bytes, own) : kva_comm_receive(c, 0, bytes, own);
  char *whole = s->whole[i], *passing = rank ? malloc((size_t)bytes) : own;
  if (!passing) return KVA_NO_MEMORY;
  kva_status status = rank && gathers ? kva_comm_receive(c, rank, bytes, passing) : KVA_OK;
  if (status == KVA_OK) place_share(d, &share, whole, passing, gathers);
  if (status == KVA_OK && rank && !gathers) status = kva_comm_send(c, rank, bytes, passing);
  if (rank) free(passing);
  return status;
}

static kva_status move_state(kva_session *s, int32_t i, bool gathers) {
  kva_status status = KVA_OK;
  for (int r = 0; status == KVA_OK && r < kva_comm_size(s->options.comm); r++) status = move_share(s, i, r, gathers);
  return status;
}

static kva_status move_all(kva_session *s, bool gathers) {
  kva_status status = kva_transfer_states(s);
  for (int32_t i = 0; status == KVA_OK && i < s->artifact->n_states; i++)
    if (kva_state_is_divided(&s->artifact->states[i])) status = move_state(s, i, gathers);
  return status;
}

static kva_status end(kva_session *s, kva_status status, kva_diag *diag) {
  return status == KVA_OK ? KVA_OK : kva_fail(diag, status, NULL, "%s", kva_comm_error(s->options.comm));
}

kva_status kva_session_gather_whole(kva_session *s, kva_diag *diag) {
  kva_comm *c = s->options.comm;
  if (!c || !has_parts(s->artifact)) return KVA_OK;
  KVA_TRY(kva_comm_agree(c, kva_comm_rank(c) ? KVA_OK : kva_session_hold_whole(s, diag), diag));
  return end(s, move_all(s, true), diag);
}

kva_status kva_session_scatter_whole(kva_session *s, kva_diag *diag) {
  kva_comm *c = s->options.comm;
  int64_t holds = s->whole != NULL;
  if (!c || !has_parts(s->artifact)) return KVA_OK;
  kva_status status = kva_comm_broadcast(c, 0, sizeof holds, &holds);
  if (status == KVA_OK && holds) status = move_all(s, false);
  kva_session_drop_whole(s);
  return end(s, status, diag);
}
