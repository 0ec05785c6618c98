/* Taking rows away. State becomes the latest saved state at or before the new end. From there the rows up to the new
 * end run again, for which history has their inputs; their results are equal, and so is what they write. The state
 * before the first row is zero, so there is always one. */
#include "runtime/sequences_internal.h"

typedef struct origin {
  int64_t rows;
  const char *state; /* NULL: zero */
} origin;

static origin find_origin(const kva_sequences *q, const kva_sequence *s, int64_t end) {
  origin o = {0};
  for (int i = 0; i < KVA_RECENT; i++) {
    int64_t rows = s->recent_rows[i];
    if (rows <= o.rows || rows > end || !kva_pages_present(q, s, rows)) continue;
    o = (origin){rows, s->recent + (size_t)i * q->carried_bytes};
  }
  for (int64_t rows = end / KVA_MARK_ROWS * KVA_MARK_ROWS; rows > o.rows; rows -= KVA_MARK_ROWS)
    if (kva_pages_present(q, s, rows)) return (origin){rows, kva_sequence_mark(q, s, rows / q->page_rows - 1)};
  return o;
}

/* The sequence as it was at the origin. Later states are kept no longer. */
static void return_to(kva_sequences *q, kva_sequence *s, origin o) {
  char *next = s->recent + (size_t)((s->now + 1) % KVA_RECENT) * q->carried_bytes;
  if (!o.state)
    memset(next, 0, q->carried_bytes);
  else if (o.state != next)
    memcpy(next, o.state, q->carried_bytes);
  s->now = (s->now + 1) % KVA_RECENT;
  s->rows = s->recent_rows[s->now] = o.rows;
  for (int i = 0; i < KVA_RECENT; i++)
    if (s->recent_rows[i] > o.rows) s->recent_rows[i] = -1;
}

/* ---- running rows again ------------------------------------------------------------------------------------------ */

static kva_status read_inputs(kva_sequences *q, const kva_sequence *s, int64_t first, int64_t n, kva_tensor *inputs) {
  const kva_page_pool *pool = kva_history(q);
  for (int32_t i = 0; i + 1 < pool->n_tensors; i++) {
    kva_tensor *t = &inputs[pool->inputs[i]];
    *t = pool->tensors[i].tensor;
    t->dims[0] = 1, t->dims[pool->tensors[i].axis] = n;
    t->data = malloc((size_t)kva_tensor_bytes(t) + 1);
    if (!t->data) return kva_session_fail(q->session, KVA_NO_MEMORY, "out of memory");
    kva_history_read(q, s, i, first, n, (kva_row_place){t, 0, 0});
  }
  return KVA_OK;
}

static kva_status check_inputs(kva_sequences *q) {
  for (int32_t i = 0; i < q->own_inputs; i++)
    if (!kva_history_has(q, i))
      return kva_session_fail(q->session, KVA_UNSUPPORTED,
                              "rows of a sequence cannot run again, which taking rows away needs here: input '%s' has "
                              "no rows, or rows whose size is not known when the model is compiled",
                              q->desc->buffers[q->desc->inputs[i]].name);
  return KVA_OK;
}

/* Pages of its own for the rows from the origin to `end`. */
static kva_status reserve(kva_sequences *q, kva_sequence *s, origin o, int64_t end) {
  int64_t rows = s->rows;
  s->rows = o.rows;
  kva_status status = kva_pages_reserve(q, 1, &(kva_append_item){.s = s, .rows = end - o.rows});
  s->rows = rows;
  return status;
}

static kva_status run_again(kva_sequences *q, kva_sequence *s, origin o, int64_t end, kva_tensor *inputs) {
  KVA_TRY(kva_items_room(q, 1));
  KVA_TRY(read_inputs(q, s, o.rows, end - o.rows, inputs));
  KVA_TRY(reserve(q, s, o, end));
  return_to(q, s, o);
  kva_pages_truncate(q, s, end);
  q->items[q->n_items++] = (kva_append_item){.s = s, .inputs = inputs, .rows = end - o.rows};
  return kva_items_run(q);
}

kva_status kva_sequences_roll_back(kva_sequences *q, int64_t sequence, int64_t rows) {
  kva_sequence *s = kva_sequences_get(q, sequence);
  if (!s || rows < 0 || rows > s->rows)
    return kva_session_fail(q->session, KVA_INVALID, "sequence %lld has not %lld rows to take away",
                            (long long)sequence, (long long)rows);
  if (!rows) return KVA_OK;
  int64_t end = s->rows - rows;
  origin o = find_origin(q, s, end);
  if (o.rows == end) {
    return_to(q, s, o);
    kva_pages_truncate(q, s, end);
    return KVA_OK;
  }
  KVA_TRY(check_inputs(q));
  kva_tensor *inputs = calloc((size_t)q->own_inputs, sizeof *inputs);
  if (!inputs) return kva_session_fail(q->session, KVA_NO_MEMORY, "out of memory");
  kva_status status = run_again(q, s, o, end, inputs);
  for (int32_t i = 0; i < q->own_inputs; i++) free(inputs[i].data);
  free(inputs);
  return status;
}
