/* See sequences.h. Inputs of the programs are the model's own, "position", then states; a state is an input that an
 * output replaces. */
#include "runtime/sequences.h"

#include "runtime/session.h"

#include <stdlib.h>

enum { NO_AXIS = -1 };

struct kva_sequences {
  kva_session *session;
  const kva_program *program; /* decode */
  int decode, step;
  int64_t n, capacity;
  int64_t *positions;
  int32_t own_inputs, own_outputs, n_states;
  kva_tensor *inputs, *outputs; /* of a call */
  kva_tensor *states;           /* by state */
  int *row_axes;                /* by state: the axis with the capacity, or NO_AXIS */
};

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static bool is_replaced(const kva_program *p, int32_t input) {
  for (int32_t i = 0; i < p->n_outputs; i++)
    if (p->outputs[i] == p->inputs[input]) return true;
  return false;
}

static kva_status find_programs(kva_sequences *q, kva_diag *diag) {
  q->decode = kva_session_program(q->session, "decode");
  q->step = kva_session_program(q->session, "step");
  if (q->decode < 0 || q->step < 0)
    return kva_error(diag, NULL, "the model was compiled without programs that continue sequences");
  const kva_program *p = q->program = kva_session_program_desc(q->session, q->decode);
  while (q->n_states < p->n_inputs && is_replaced(p, p->n_inputs - 1 - q->n_states)) q->n_states++;
  q->own_inputs = p->n_inputs - q->n_states - 1;
  q->own_outputs = p->n_outputs - q->n_states;
  return KVA_OK;
}

static kva_status add_state(kva_sequences *q, int32_t i, kva_diag *diag) {
  const kva_buffer_desc *b = &q->program->buffers[q->program->inputs[q->own_inputs + 1 + i]];
  kva_tensor *t = &q->states[i];
  *t = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank};
  q->row_axes[i] = NO_AXIS;
  for (int32_t d = 0; d < b->rank; d++) {
    const kva_formula_word *w = b->dims[d].words;
    bool constant = w->op == KVA_FORMULA_CONST;
    t->dims[d] = constant ? w->arg : d ? q->capacity : q->n;
    if (d == 0 && t->dims[0] != q->n)
      return kva_error(diag, NULL, "the model was compiled for %lld sequences, not for %lld", (long long)t->dims[0],
                       (long long)q->n);
    if (d && !constant) q->row_axes[i] = d;
  }
  if (kva_dtype_bits(t->dtype) < 8)
    return kva_error(diag, NULL, "state '%s' has elements of less than a byte", b->name);
  int64_t bytes = kva_tensor_bytes(t);
  t->data = bytes >= 0 ? calloc(1, (size_t)bytes + 1) : NULL;
  if (t->data) return KVA_OK;
  return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for state '%s' of %lld sequences with %lld rows", b->name,
                  (long long)q->n, (long long)q->capacity);
}

static kva_status create(kva_sequences *q, kva_diag *diag) {
  if (q->n < 1 || q->capacity < 1) return kva_error(diag, NULL, "expected at least one sequence and one row");
  KVA_TRY(find_programs(q, diag));
  q->positions = calloc((size_t)q->n, sizeof *q->positions);
  q->inputs = calloc((size_t)q->program->n_inputs, sizeof *q->inputs);
  q->outputs = calloc((size_t)q->program->n_outputs, sizeof *q->outputs);
  q->states = calloc((size_t)q->n_states + 1, sizeof *q->states);
  q->row_axes = calloc((size_t)q->n_states + 1, sizeof *q->row_axes);
  if (!q->positions || !q->inputs || !q->outputs || !q->states || !q->row_axes)
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  for (int32_t i = 0; i < q->n_states; i++) KVA_TRY(add_state(q, i, diag));
  return KVA_OK;
}

kva_status kva_sequences_create(kva_session *s, int64_t n, int64_t capacity, kva_diag *diag, kva_sequences **out) {
  *out = NULL;
  kva_sequences *q = calloc(1, sizeof *q);
  if (!q) return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  *q = (kva_sequences){.session = s, .n = n, .capacity = capacity};
  kva_status status = create(q, diag);
  if (status)
    kva_sequences_destroy(q);
  else
    *out = q;
  return status;
}

void kva_sequences_destroy(kva_sequences *q) {
  if (!q) return;
  for (int32_t i = 0; q->states && i < q->n_states; i++) free(q->states[i].data);
  free(q->states);
  free(q->row_axes);
  free(q->positions);
  free(q->inputs);
  free(q->outputs);
  free(q);
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

int64_t kva_sequences_length(const kva_sequences *q, int64_t i) {
  return q->positions[i];
}

const kva_program *kva_sequences_program(const kva_sequences *q) {
  return q->program;
}

int32_t kva_sequences_inputs(const kva_sequences *q) {
  return q->own_inputs;
}

int32_t kva_sequences_outputs(const kva_sequences *q) {
  return q->own_outputs;
}

/* The number of new rows: the second dimension of the first input that has rows there. */
static int64_t count_rows(const kva_sequences *q, const kva_tensor *inputs) {
  for (int32_t i = 0; i < q->own_inputs; i++) {
    const kva_buffer_desc *b = &q->program->buffers[q->program->inputs[i]];
    if (b->rank > 1 && inputs[i].rank > 1 && b->dims[1].words->op == KVA_FORMULA_SYMBOL) return inputs[i].dims[1];
  }
  return 0;
}

static kva_status check_room(const kva_sequences *q, int64_t rows) {
  if (rows < 1) return kva_session_fail(q->session, KVA_INVALID, "expected at least one new row");
  for (int64_t i = 0; i < q->n; i++)
    if (rows > q->capacity - q->positions[i])
      return kva_session_fail(q->session, KVA_INVALID,
                              "sequence %lld has %lld rows and room for %lld; %lld more do not fit", (long long)i,
                              (long long)q->positions[i], (long long)q->capacity, (long long)rows);
  return KVA_OK;
}

kva_status kva_sequences_append(kva_sequences *q, const kva_tensor *inputs, kva_tensor *outputs) {
  int64_t rows = count_rows(q, inputs);
  KVA_TRY(check_room(q, rows));
  memcpy(q->inputs, inputs, (size_t)q->own_inputs * sizeof *inputs);
  q->inputs[q->own_inputs] = (kva_tensor){.dtype = KVA_I64, .rank = 1, .dims = {q->n}, .data = q->positions};
  memcpy(q->inputs + q->own_inputs + 1, q->states, (size_t)q->n_states * sizeof *q->states);
  memset(q->outputs, 0, (size_t)q->program->n_outputs * sizeof *q->outputs);
  memcpy(q->outputs, outputs, (size_t)q->own_outputs * sizeof *outputs);
  KVA_TRY(kva_session_run(q->session, rows == 1 ? q->step : q->decode, q->inputs, q->outputs));
  memcpy(outputs, q->outputs, (size_t)q->own_outputs * sizeof *outputs);
  for (int64_t i = 0; i < q->n; i++) q->positions[i] += rows;
  return KVA_OK;
}

/* Bytes of the dims [first, n). */
static size_t block_bytes(const kva_tensor *t, int first, int n) {
  size_t bytes = (size_t)kva_dtype_bits(t->dtype) / 8;
  for (int d = first; d < n; d++) bytes *= (size_t)t->dims[d];
  return bytes;
}

static void copy_state(const kva_tensor *to, int64_t i, const kva_tensor *from, int64_t k, int row_axis, int64_t rows) {
  size_t to_bytes = block_bytes(to, 1, to->rank), from_bytes = block_bytes(from, 1, from->rank), blocks = 1;
  char *out = (char *)to->data + (size_t)i * to_bytes;
  const char *in = (const char *)from->data + (size_t)k * from_bytes;
  if (row_axis == NO_AXIS) {
    memcpy(out, in, to_bytes);
    return;
  }
  for (int d = 1; d < row_axis; d++) blocks *= (size_t)to->dims[d];
  size_t used = block_bytes(to, row_axis + 1, to->rank) * (size_t)rows;
  for (size_t b = 0; b < blocks; b++) memcpy(out + b * (to_bytes / blocks), in + b * (from_bytes / blocks), used);
}

kva_status kva_sequences_copy(kva_sequences *to, int64_t i, const kva_sequences *from, int64_t k) {
  int64_t rows = from->positions[k];
  if (to->session != from->session)
    return kva_session_fail(to->session, KVA_INVALID, "a sequence is copied within one session");
  if (rows > to->capacity)
    return kva_session_fail(to->session, KVA_INVALID, "a sequence of %lld rows does not fit into %lld", (long long)rows,
                            (long long)to->capacity);
  if (to == from && i == k) return KVA_OK;
  for (int32_t s = 0; s < to->n_states; s++) copy_state(&to->states[s], i, &from->states[s], k, to->row_axes[s], rows);
  to->positions[i] = rows;
  return KVA_OK;
}
