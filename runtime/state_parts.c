/* Whole tensors of states that each process has a part of. A checkpoint is one process's, so that a run goes on with
 * any mesh: rank 0 gathers what it writes, and gives what it read to the others, by one message a part. */
#include "runtime/comm.h"
#include "runtime/session.h"

#include <stdlib.h>

static int64_t whole_bytes(const kva_state_desc *d) {
  return kva_state_elements(d) * (kva_dtype_bits((kva_dtype)d->dtype) / 8);
}

const kva_state_desc *kva_session_whole_state(kva_session *s, int i, kva_tensor *out_tensor) {
  const kva_state_desc *d = kva_session_state_desc(s, i, out_tensor);
  if (!d->parts) return d;
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
    if (!a->states[i].parts) continue;
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
    if (a->states[i].parts) return true;
  return false;
}

/* One part of state i: from its process to rank 0's whole tensor, or back. */
static kva_status move_part(kva_session *s, int32_t i, int rank, bool gathers) {
  kva_comm *c = s->options.comm;
  const kva_state_desc *d = &s->artifact->states[i];
  int64_t n = kva_part_filled(whole_bytes(d), d->bytes, rank);
  char *part = s->states[i].data;
  if (!n || (kva_comm_rank(c) && kva_comm_rank(c) != rank)) return KVA_OK;
  if (kva_comm_rank(c)) return gathers ? kva_comm_send(c, 0, n, part) : kva_comm_receive(c, 0, n, part);
  char *whole = (char *)s->whole[i] + rank * d->bytes;
  if (rank) return gathers ? kva_comm_receive(c, rank, n, whole) : kva_comm_send(c, rank, n, whole);
  memcpy(gathers ? whole : part, gathers ? part : whole, (size_t)n);
  return KVA_OK;
}

static kva_status move_all(kva_session *s, bool gathers) {
  kva_status status = kva_transfer_states(s);
  for (int32_t i = 0; status == KVA_OK && i < s->artifact->n_states; i++)
    for (int r = 0; status == KVA_OK && s->artifact->states[i].parts && r < kva_comm_size(s->options.comm); r++)
      status = move_part(s, i, r, gathers);
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
