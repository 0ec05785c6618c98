/* Which elements of a state each process of a mesh has: all, a slice, or a part of the state or of its slice. */
#include "runtime/comm.h"
#include "runtime/session.h"

void kva_state_whole(const kva_state_desc *d, kva_tensor *out_tensor) {
  bool divided = kva_state_is_divided(d);
  *out_tensor = (kva_tensor){.dtype = (kva_dtype)d->dtype, .rank = divided ? d->whole_rank : d->rank};
  memcpy(out_tensor->dims, divided ? d->whole : d->dims, sizeof out_tensor->dims);
}

/* Elements of a slice that lie together in the whole. */
static int64_t run_of(const kva_state_desc *d) {
  int64_t n = d->whole[d->split_axis] / d->slices;
  for (int32_t k = d->split_axis + 1; k < d->whole_rank; k++) n *= d->whole[k];
  return n;
}

int64_t kva_state_place(const kva_state_desc *d, int64_t slice, int64_t i, int64_t *out_run) {
  if (!d->slices) {
    *out_run = INT64_MAX;
    return i;
  }
  int64_t run = run_of(d);
  *out_run = run - i % run;
  return (i / run * d->slices + slice) * run + i % run;
}

int64_t kva_state_find(const kva_state_desc *d, int64_t place, int64_t *out_slice, int64_t *out_run) {
  *out_slice = 0;
  if (!d->slices) {
    *out_run = INT64_MAX;
    return place;
  }
  int64_t run = run_of(d), all = run * d->slices;
  *out_slice = place % all / run;
  *out_run = run - place % run;
  return place / all * run + place % run;
}

kva_state_share kva_state_share_at(const kva_state_desc *d, int64_t slice, int64_t part) {
  int64_t n = kva_state_elements(d) / (d->slices ? d->slices : 1);
  kva_state_share share = {.slice = d->slices ? slice : 0, .n = n};
  if (!d->parts) return share;
  share.first = part * d->dims[0];
  share.n = kva_part_filled(n, d->dims[0], part);
  return share;
}

kva_state_share kva_state_share_of(const kva_state_desc *d, const kva_comm *c, int rank) {
  kva_comm_mesh place = c ? kva_comm_place(c, rank) : (kva_comm_mesh){0};
  return kva_state_share_at(d, place.tensor, place.data);
}
