/* Running the next rows of sequences. A call of a program takes equally many rows of several sequences: their state is
 * gathered, as far as it does not lie in pages, and put back. */
#include "runtime/sequences_internal.h"

enum { FEW_ROWS = 8 }; /* that run faster one by one than in a program for any number */

/* Sequences that run together, and how many rows of each. A program for a fixed number may have more places: what runs
 * there reads no page, writes none, and has no results. */
typedef struct round {
  kva_append_item *const *members;
  int64_t n, rows, places;
  int program;
} round;

/* ---- inputs of a call -------------------------------------------------------------------------------------------- */

/* Memory of the call's own for an input; it only grows. */
static kva_status stage(kva_sequences *q, int32_t input, const kva_tensor *type) {
  int64_t bytes = kva_tensor_bytes(type);
  void *data = q->staged[input] ? q->inputs[input].data : NULL;
  if (bytes < 0 || (size_t)bytes + 1 > q->staged[input]) {
    void *larger = bytes < 0 ? NULL : realloc(data, (size_t)bytes + 1);
    if (!larger) return kva_session_fail(q->session, KVA_NO_MEMORY, "out of memory");
    data = larger, q->staged[input] = (size_t)bytes + 1;
  }
  q->inputs[input] = *type;
  q->inputs[input].data = data;
  return KVA_OK;
}

static kva_status gather_input(kva_sequences *q, int32_t input, const round *r) {
  kva_tensor type = r->members[0]->inputs[input];
  int axis = q->input_axes[input];
  if (axis == KVA_SHARED) {
    q->inputs[input] = type;
    return KVA_OK;
  }
  type.dims[0] = r->places;
  if (axis >= 0) type.dims[axis] = r->rows;
  KVA_TRY(stage(q, input, &type));
  for (int64_t i = 0; i < r->places; i++) {
    const kva_append_item *m = r->members[i < r->n ? i : 0];
    kva_rows_copy((kva_row_place){&q->inputs[input], i, 0}, (kva_row_place){&m->inputs[input], 0, m->done}, axis,
                  r->rows);
  }
  return KVA_OK;
}

static kva_status gather_positions(kva_sequences *q, const round *r) {
  int32_t input = q->own_inputs;
  KVA_TRY(stage(q, input, &(kva_tensor){.dtype = KVA_I64, .rank = 1, .dims = {r->places}}));
  int64_t *out = q->inputs[input].data;
  for (int64_t i = 0; i < r->places; i++) out[i] = i < r->n ? r->members[i]->s->rows : 0;
  return KVA_OK;
}

/* Pages that are not there are not read: any number will do. Rows of a place without a sequence go to no page. */
static kva_status gather_table(kva_sequences *q, int32_t pool, const round *r) {
  int32_t input = q->pools[pool].table;
  KVA_TRY(stage(q, input, &(kva_tensor){.dtype = KVA_I32, .rank = 2, .dims = {r->places, q->max_pages}}));
  int32_t *out = q->inputs[input].data;
  for (int64_t i = 0; i < r->n; i++)
    for (int64_t p = 0; p < q->max_pages; p++) {
      int32_t page = kva_pages_of(q, r->members[i]->s, pool)[p];
      *out++ = page == KVA_NO_PAGE ? 0 : page;
    }
  for (int64_t i = r->n * q->max_pages; i < r->places * q->max_pages; i++) *out++ = KVA_NO_PAGE;
  return KVA_OK;
}

static kva_status gather_pools(kva_sequences *q, const round *r) {
  for (int32_t i = 0; i + 1 < q->n_pools; i++) {
    KVA_TRY(gather_table(q, i, r));
    for (int32_t k = 0; k < q->pools[i].n_tensors; k++)
      q->inputs[q->pools[i].inputs[k]] = q->pools[i].tensors[k].tensor;
  }
  return KVA_OK;
}

/* Room for the states of so many sequences; it only grows. */
static kva_status carried_room(kva_sequences *q, int64_t places) {
  if (places <= q->carried_room) return KVA_OK;
  size_t bytes = (size_t)places * q->carried_bytes;
  char *larger = realloc(q->carried_rows, bytes + 1);
  if (!larger) return kva_session_fail(q->session, KVA_NO_MEMORY, "out of memory");
  q->carried_rows = larger, q->carried_room = 0;
  if (kva_sequences_on_device(q)) {
    kva_resident_free(q->session, &q->carried_block);
    kva_status status = kva_resident_allocate(q->session, (int64_t)bytes, &q->carried_block);
    if (status)
      return kva_session_fail(q->session, status, "no memory for the states of %lld sequences", (long long)places);
  }
  q->carried_room = places;
  return KVA_OK;
}

static void gather_state(kva_sequences *q, const kva_carried_state *c, const round *r) {
  const kva_buffer_desc *b = &q->desc->buffers[q->desc->inputs[c->input]];
  kva_tensor *t = &q->inputs[c->input];
  *t = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank, .dims = {r->places}};
  for (int32_t d = 1; d < b->rank; d++) t->dims[d] = b->dims[d].words->arg;
  size_t at = c->at * (size_t)r->places;
  char *out = q->carried_rows + at;
  t->data = kva_sequences_on_device(q) ? kva_block_at(&q->carried_block, (int64_t)at) : out;
  for (int64_t i = 0; i < r->n; i++)
    memcpy(out + (size_t)i * c->bytes, kva_sequence_state(q, r->members[i]->s) + c->at, c->bytes);
  memset(out + (size_t)r->n * c->bytes, 0, (size_t)(r->places - r->n) * c->bytes);
}

static kva_status gather_states(kva_sequences *q, const round *r) {
  KVA_TRY(carried_room(q, r->places));
  for (int32_t i = 0; i < q->n_carried; i++) gather_state(q, &q->carried[i], r);
  if (!kva_sequences_on_device(q)) return KVA_OK;
  return kva_resident_write(q->session, q->carried_block.data, q->carried_rows, (size_t)r->places * q->carried_bytes);
}

/* What a call made of the states: where the device has its own memory, they are copied back. */
static kva_status read_states(kva_sequences *q, const round *r) {
  if (!kva_sequences_on_device(q)) return KVA_OK;
  return kva_resident_read(q->session, q->carried_rows, q->carried_block.data, (size_t)r->places * q->carried_bytes);
}

static kva_status gather(kva_sequences *q, const round *r) {
  for (int32_t i = 0; i < q->own_inputs; i++) KVA_TRY(gather_input(q, i, r));
  KVA_TRY(gather_positions(q, r));
  KVA_TRY(gather_pools(q, r));
  return gather_states(q, r);
}

/* ---- after a call ------------------------------------------------------------------------------------------------ */

static void keep_state(const kva_sequences *q, const round *r, int64_t index) {
  kva_sequence *s = r->members[index]->s;
  s->now = (s->now + 1) % KVA_RECENT;
  s->recent_rows[s->now] = s->rows;
  for (int32_t i = 0; i < q->n_carried; i++) {
    const kva_carried_state *c = &q->carried[i];
    const char *in = q->carried_rows + c->at * (size_t)r->places + (size_t)index * c->bytes;
    memcpy(kva_sequence_state(q, s) + c->at, in, c->bytes);
  }
  if (s->rows % KVA_MARK_ROWS == 0)
    memcpy(kva_sequence_mark(q, s, s->rows / q->page_rows - 1), kva_sequence_state(q, s), q->carried_bytes);
}

/* Calls copy(the place in pages, the other place) for rows [first, first + n), page by page. */
typedef void (*copy_part)(kva_row_place page, kva_row_place other, int axis, int64_t n);
static void each_page(const kva_sequences *q, const kva_sequence *s, const kva_row_tensor *history, kva_row_place other,
                      int64_t first, int64_t n, copy_part copy) {
  const int32_t *pages = kva_pages_of(q, s, q->n_pools - 1);
  for (int64_t row = first, rows; row < first + n; row += rows, other.row += rows) {
    int64_t left = q->page_rows - row % q->page_rows;
    rows = first + n - row < left ? first + n - row : left;
    copy((kva_row_place){&history->tensor, pages[row / q->page_rows], row % q->page_rows}, other, history->axis, rows);
  }
}

static void copy_back(kva_row_place page, kva_row_place other, int axis, int64_t n) {
  kva_rows_copy(other, page, axis, n);
}

void kva_history_read(const kva_sequences *q, const kva_sequence *s, int32_t tensor, int64_t row, int64_t n,
                      kva_row_place to) {
  each_page(q, s, &kva_history(q)->tensors[tensor], to, row, n, copy_back);
}

static void keep_inputs(const kva_sequences *q, const kva_append_item *m, int64_t rows) {
  const kva_page_pool *pool = kva_history(q);
  for (int32_t i = 0; i + 1 < pool->n_tensors; i++) {
    kva_row_place from = {&m->inputs[pool->inputs[i]], 0, m->done};
    each_page(q, m->s, &pool->tensors[i], from, m->s->rows, rows, kva_rows_copy);
  }
}

/* The part of a call's results that is wanted: rows [done, done + rows) of the member's, of which the last `wanted`. */
static void give_output(const kva_sequences *q, const kva_append_item *m, int32_t output, int64_t index, int64_t rows) {
  const kva_tensor *from = &q->outputs[output];
  kva_tensor *to = &m->outputs[output];
  int axis = q->output_axes[output];
  void *data = to->data;
  *to = *from, to->data = data;
  if (axis != KVA_SHARED) to->dims[0] = 1;
  if (axis >= 0) to->dims[axis] = m->wanted;
  int64_t begin = m->rows - m->wanted, first = begin > m->done ? begin : m->done, n = m->done + rows - first;
  if (!data || n <= 0) return;
  if (axis == KVA_SHARED) {
    memcpy(data, from->data, (size_t)kva_tensor_bytes(from));
    return;
  }
  int64_t left_out = axis >= 0 ? rows - from->dims[axis] : 0; /* results of the last row alone */
  kva_row_place source = {from, index, first - m->done - left_out};
  kva_rows_copy((kva_row_place){to, 0, first - begin}, source, axis, n);
}

static void finish(kva_sequences *q, const round *r) {
  for (int64_t i = 0; i < r->n; i++) {
    kva_append_item *m = r->members[i];
    for (int32_t o = 0; m->wanted && o < q->own_outputs; o++) give_output(q, m, o, i, r->rows);
    keep_inputs(q, m, r->rows);
    m->s->rows += r->rows, m->done += r->rows;
    keep_state(q, r, i);
    kva_pages_drop(q, m->s);
  }
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

/* Results of at most the last row of a call of so many rows are wanted. */
static bool wants_last_row(const kva_append_item *m, int64_t rows) {
  return m->done + rows - (m->rows - m->wanted) <= 1;
}

/* Some programs leave places empty; others take one sequence, or any number. */
static void choose_program(const kva_sequences *q, round *r) {
  for (int i = 0; i < q->n_programs; i++) {
    const kva_sequence_program *p = &q->programs[i];
    bool fits = (!p->sequences || p->sequences >= r->n) && (!p->rows || p->rows == r->rows);
    if (!fits || (p->last && !wants_last_row(r->members[0], r->rows))) continue;
    r->places = p->sequences ? p->sequences : r->n;
    r->program = p->program;
    return;
  }
}

static kva_status run(kva_sequences *q, round *r) {
  choose_program(q, r);
  KVA_TRY(gather(q, r));
  memset(q->outputs, 0, (size_t)q->desc->n_outputs * sizeof *q->outputs);
  KVA_TRY(kva_session_run(q->session, r->program, q->inputs, q->outputs));
  KVA_TRY(read_states(q, r));
  finish(q, r);
  return KVA_OK;
}

/* Rows of the item's next call: none crosses a mark. */
static int64_t next_rows(const kva_append_item *m) {
  int64_t left = m->rows - m->done, to_mark = KVA_MARK_ROWS - m->s->rows % KVA_MARK_ROWS;
  if (left <= FEW_ROWS) return left > 0;
  return left < to_mark ? left : to_mark;
}

/* Sequences that a call takes at most, m among them. Which code computes a row of results does not depend on company:
 * a prompt whose last row counts has a program of its own. */
static int64_t most_members(const kva_sequences *q, const kva_append_item *m, int64_t rows) {
  if (q->alone || q->programs[q->n_programs - 1].sequences) return 1;
  if (rows > 1) return wants_last_row(m, rows) ? 1 : q->n_items;
  int64_t most = 1;
  for (int i = 0; i < q->n_programs; i++)
    if (q->programs[i].rows == 1 && q->programs[i].sequences > most) most = q->programs[i].sequences;
  return most;
}

/* The first item that has rows left, and those that have as many. */
static round next_round(kva_sequences *q) {
  round r = {.members = q->members};
  for (int64_t i = 0; i < q->n_items && (!r.n || r.n < most_members(q, r.members[0], r.rows)); i++) {
    kva_append_item *m = &q->items[i];
    int64_t rows = next_rows(m);
    if (!rows || (r.n && rows != r.rows)) continue;
    if (r.n && rows > 1 && wants_last_row(m, rows)) continue;
    q->members[r.n++] = m;
    r.rows = rows;
  }
  return r;
}

kva_status kva_items_run(kva_sequences *q) {
  for (round r; (r = next_round(q)).n;) KVA_TRY(run(q, &r));
  return KVA_OK;
}

/* ---- appending --------------------------------------------------------------------------------------------------- */

kva_status kva_items_room(kva_sequences *q, int64_t n) {
  q->n_items = 0;
  if (n <= q->room) return KVA_OK;
  kva_append_item *items = realloc(q->items, (size_t)n * sizeof *items);
  if (items) q->items = items;
  kva_append_item **members = realloc(q->members, (size_t)n * sizeof *members);
  if (members) q->members = members;
  if (!items || !members) return kva_session_fail(q->session, KVA_NO_MEMORY, "out of memory");
  q->room = n;
  return KVA_OK;
}

/* The number that a dimension of an input must be; -1: any. */
static int64_t expected_dim(const kva_buffer_desc *b, int axis, int32_t d, int64_t rows) {
  const kva_formula *f = &b->dims[d];
  if (d == axis) return rows;
  if (d == 0 && axis != KVA_SHARED) return 1;
  return f->n == 1 && f->words->op == KVA_FORMULA_CONST ? f->words->arg : -1;
}

/* Inputs of sequences are joined before a program sees them, so that only the caller's ones can be compared. */
static kva_status check_company(kva_sequences *q, const kva_sequence_rows *part, int32_t input) {
  const kva_tensor *t = &part->inputs[input];
  const char *name = q->desc->buffers[q->desc->inputs[input]].name;
  const kva_append_item *other = q->items;
  while (other < q->items + q->n_items && !other->rows) other++;
  if (q->alone || other == q->items + q->n_items) return KVA_OK;
  for (int32_t d = 1; d < t->rank; d++) {
    int64_t expected = other->inputs[input].dims[d];
    if (d != q->input_axes[input] && t->dims[d] != expected)
      return kva_session_fail(
          q->session, KVA_INVALID,
          "input '%s' of sequence %lld: dimension %d is %lld, that of another sequence %lld; append "
          "to them one after the other",
          name, (long long)part->sequence, (int)d, (long long)t->dims[d], (long long)expected);
  }
  return KVA_OK;
}

static kva_status check_input(kva_sequences *q, const kva_sequence_rows *part, int32_t input) {
  const kva_tensor *t = &part->inputs[input];
  const kva_buffer_desc *b = &q->desc->buffers[q->desc->inputs[input]];
  int axis = q->input_axes[input];
  bool ok = t->rank == b->rank && (int32_t)t->dtype == b->dtype && (axis == KVA_SHARED || t->dims[0] == 1) &&
            (axis < 0 || t->dims[axis] == part->rows);
  if (!ok)
    return kva_session_fail(q->session, KVA_INVALID,
                            "input '%s' of sequence %lld: expected %s of rank %d with first dimension 1 and %lld rows",
                            b->name, (long long)part->sequence, kva_dtype_name((kva_dtype)b->dtype), (int)b->rank,
                            (long long)part->rows);
  for (int32_t d = 0; d < t->rank; d++) {
    int64_t expected = expected_dim(b, axis, d, part->rows);
    if (t->dims[d] < 0 || (expected >= 0 && t->dims[d] != expected))
      return kva_session_fail(q->session, KVA_INVALID, "input '%s' of sequence %lld: dimension %d cannot be %lld",
                              b->name, (long long)part->sequence, (int)d, (long long)t->dims[d]);
  }
  return check_company(q, part, input);
}

static kva_status check_part(kva_sequences *q, const kva_sequence_rows *part) {
  const kva_sequence *s = kva_sequences_get(q, part->sequence);
  if (!s) return kva_session_fail(q->session, KVA_INVALID, "there is no sequence %lld", (long long)part->sequence);
  if (part->rows < 0 || part->wanted < 0 || part->wanted > part->rows)
    return kva_session_fail(q->session, KVA_INVALID, "sequence %lld: %lld new rows, results of %lld of them",
                            (long long)part->sequence, (long long)part->rows, (long long)part->wanted);
  if (part->rows > q->longest - s->rows)
    return kva_session_fail(
        q->session, KVA_INVALID, "sequence %lld has %lld rows and room for %lld; %lld more do not fit",
        (long long)part->sequence, (long long)s->rows, (long long)q->longest, (long long)part->rows);
  for (int32_t i = 0; i < q->own_inputs && part->rows; i++) KVA_TRY(check_input(q, part, i));
  return KVA_OK;
}

static bool is_item(const kva_sequences *q, const kva_sequence *s) {
  for (int64_t i = 0; i < q->n_items; i++)
    if (q->items[i].s == s) return true;
  return false;
}

static kva_status add_item(kva_sequences *q, const kva_sequence_rows *part) {
  KVA_TRY(check_part(q, part));
  kva_sequence *s = kva_sequences_get(q, part->sequence);
  if (is_item(q, s))
    return kva_session_fail(q->session, KVA_INVALID, "sequence %lld is named twice", (long long)part->sequence);
  q->items[q->n_items++] = (kva_append_item){s, part->inputs, part->outputs, part->rows, 0, part->wanted};
  return KVA_OK;
}

/* Pages are all there before anything runs. */
kva_status kva_sequences_append(kva_sequences *q, int64_t n, const kva_sequence_rows *parts) {
  KVA_TRY(kva_items_room(q, n));
  for (int64_t i = 0; i < n; i++) KVA_TRY(add_item(q, &parts[i]));
  KVA_TRY(kva_pages_reserve(q, q->n_items, q->items));
  return kva_items_run(q);
}
