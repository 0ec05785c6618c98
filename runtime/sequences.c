/* Creation of sequences. Inputs of the programs are the model's own, "position", then tables of pages and states in any
 * order; a state is an input that an output replaces. A table is called pages_R or pages_R_W: of pages of R rows, of
 * which those further back than W rows are not read. The first dimension of a cache is the number of its pages, one
 * symbol for all caches of a table: the k-th such symbol belongs to the k-th table. */
#include "runtime/sequences_internal.h"

#include <stdio.h>

enum { DEFAULT_PAGE_ROWS = 64 };

/* ---- what the programs take -------------------------------------------------------------------------------------- */

static const kva_buffer_desc *input_desc(const kva_program *p, int32_t input) {
  return &p->buffers[p->inputs[input]];
}

static bool is_replaced(const kva_program *p, int32_t input) {
  for (int32_t i = 0; i < p->n_outputs; i++)
    if (p->outputs[i] == p->inputs[input]) return true;
  return false;
}

static bool is_symbol(const kva_formula *f) {
  return f->n == 1 && f->words->op == KVA_FORMULA_SYMBOL;
}
static bool same_size(const kva_formula *a, const kva_formula *b) {
  return a->n == 1 && b->n == 1 && a->words->op == b->words->op && a->words->arg == b->words->arg;
}

/* The model's input along whose second dimension are rows. */
static int32_t find_rows_input(const kva_program *p, int32_t own_inputs) {
  for (int32_t i = 0; i < own_inputs; i++) {
    const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
    if (b->rank > 1 && is_symbol(&b->dims[1])) return i;
  }
  return -1;
}

static kva_status not_for_sequences(kva_diag *diag) {
  return kva_error(diag, NULL, "the model was compiled without programs that continue sequences");
}

static kva_status find_inputs(kva_sequences *q, kva_diag *diag) {
  int decode = kva_session_program(q->session, "decode");
  if (decode < 0) return not_for_sequences(diag);
  const kva_program *p = q->desc = kva_session_program_desc(q->session, decode);
  int32_t position = p->n_inputs - 1, states = 0;
  for (; position >= 0 && strcmp(input_desc(p, position)->name, "position"); position--)
    states += is_replaced(p, position);
  q->own_inputs = position, q->own_outputs = p->n_outputs - states;
  q->rows_input = position < 0 ? -1 : find_rows_input(p, position);
  return q->rows_input < 0 ? not_for_sequences(diag) : KVA_OK;
}

/* A size of a program: the constant, or 0. */
static int64_t fixed_size(const kva_formula *f) {
  return f->n == 1 && f->words->op == KVA_FORMULA_CONST ? f->words->arg : 0;
}

/* Those for a known number of rows come first. */
static kva_status find_programs(kva_sequences *q, kva_diag *diag) {
  static const char *const names[] = {"step", "steps", "prefill", "decode"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    int program = kva_session_program(q->session, names[i]);
    if (program < 0) continue;
    const kva_buffer_desc *b = input_desc(kva_session_program_desc(q->session, program), q->rows_input);
    q->programs[q->n_programs++] = (kva_sequence_program){program, fixed_size(&b->dims[0]), fixed_size(&b->dims[1]),
                                                          strcmp(names[i], "prefill") == 0};
  }
  int64_t only = q->programs[q->n_programs - 1].sequences;
  if (only < 2) return KVA_OK;
  return kva_error(diag, NULL,
                   "the model was compiled for %lld sequences at once; its number of sequences must be free, or 1",
                   (long long)only);
}

/* The axis of rows, KVA_NO_AXIS or KVA_SHARED. */
static kva_status find_axis(kva_sequences *q, const kva_buffer_desc *b, kva_diag *diag, int *out_axis) {
  const kva_buffer_desc *rows = input_desc(q->desc, q->rows_input);
  bool of_sequences = b->rank > 0 && same_size(&b->dims[0], &rows->dims[0]);
  *out_axis = KVA_NO_AXIS;
  for (int32_t d = 0; d < b->rank; d++)
    if (same_size(&b->dims[d], &rows->dims[1])) *out_axis = d;
  if (of_sequences) return KVA_OK;
  if (*out_axis == KVA_NO_AXIS) {
    q->alone = true, *out_axis = KVA_SHARED;
    return KVA_OK;
  }
  return kva_fail(diag, KVA_UNSUPPORTED, NULL, "'%s' has rows, but its first dimension does not count sequences",
                  b->name);
}

static kva_status find_axes(kva_sequences *q, kva_diag *diag) {
  for (int32_t i = 0; i < q->own_inputs; i++) KVA_TRY(find_axis(q, input_desc(q->desc, i), diag, &q->input_axes[i]));
  for (int32_t i = 0; i < q->own_outputs; i++)
    KVA_TRY(find_axis(q, &q->desc->buffers[q->desc->outputs[i]], diag, &q->output_axes[i]));
  return KVA_OK;
}

/* ---- caches and states ------------------------------------------------------------------------------------------- */

/* Type and constant dimensions of a buffer; others are 1. */
static kva_tensor tensor_of(const kva_buffer_desc *b) {
  kva_tensor t = {.dtype = (kva_dtype)b->dtype, .rank = b->rank};
  for (int32_t d = 0; d < b->rank; d++) {
    int64_t n = fixed_size(&b->dims[d]);
    t.dims[d] = n ? n : 1;
  }
  return t;
}

/* State is marked where a page ends. */
static kva_status add_table(kva_sequences *q, int32_t input, kva_diag *diag) {
  const char *name = input_desc(q->desc, input)->name;
  long long rows = 0, window = 0;
  int end = 0, n = sscanf(name, "pages_%9lld%n_%9lld%n", &rows, &end, &window, &end);
  if (n < 1 || name[end] || rows < 1 || KVA_MARK_ROWS % rows || window < 0)
    return kva_error(diag, NULL,
                     "input '%s' is no table of pages: expected pages_R or pages_R_W, with R rows that divide %d", name,
                     KVA_MARK_ROWS);
  if (q->n_pools && q->page_rows != rows)
    return kva_error(diag, NULL, "input '%s' has pages of %lld rows, a table before it of %lld", name, rows,
                     (long long)q->page_rows);
  q->page_rows = rows;
  q->pools[q->n_pools++] = (kva_page_pool){.window = window, .table = input, .symbol = -1};
  return KVA_OK;
}

/* The pool whose pages a symbol counts: the first one without a symbol gets a new one. */
static kva_page_pool *pool_of(kva_sequences *q, int64_t symbol) {
  for (int32_t i = 0; i < q->n_pools; i++) {
    if (q->pools[i].symbol < 0) q->pools[i].symbol = symbol;
    if (q->pools[i].symbol == symbol) return &q->pools[i];
  }
  return NULL;
}

static kva_status add_to_pool(kva_page_pool *pool, int32_t input, kva_tensor t, int axis) {
  kva_row_tensor *tensors = realloc(pool->tensors, ((size_t)pool->n_tensors + 1) * sizeof *tensors);
  if (tensors) pool->tensors = tensors;
  int32_t *inputs = realloc(pool->inputs, ((size_t)pool->n_tensors + 1) * sizeof *inputs);
  if (inputs) pool->inputs = inputs;
  if (!tensors || !inputs) return KVA_NO_MEMORY;
  tensors[pool->n_tensors] = (kva_row_tensor){t, axis};
  inputs[pool->n_tensors++] = input;
  return KVA_OK;
}

static kva_status add_state(kva_sequences *q, int32_t input, kva_diag *diag) {
  const kva_buffer_desc *b = input_desc(q->desc, input), *rows = input_desc(q->desc, q->rows_input);
  if (kva_dtype_bits((kva_dtype)b->dtype) < 8)
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "state '%s' has elements of less than a byte", b->name);
  kva_tensor t = tensor_of(b);
  if (b->rank && same_size(&b->dims[0], &rows->dims[0])) {
    size_t bytes = (size_t)kva_tensor_bytes(&t);
    q->carried[q->n_carried++] = (kva_carried_state){input, bytes, q->carried_bytes};
    q->carried_bytes += (bytes + 63) / 64 * 64;
    return KVA_OK;
  }
  kva_page_pool *pool = b->rank && is_symbol(&b->dims[0]) ? pool_of(q, b->dims[0].words->arg) : NULL;
  if (!pool) return kva_error(diag, NULL, "state '%s' belongs to no table of pages", b->name);
  return add_to_pool(pool, input, t, KVA_NO_AXIS);
}

bool kva_history_has(const kva_sequences *q, int32_t input) {
  const kva_buffer_desc *b = input_desc(q->desc, input);
  for (int32_t d = 1; d < b->rank; d++)
    if (d != q->input_axes[input] && !fixed_size(&b->dims[d])) return false;
  return q->input_axes[input] >= 0;
}

/* What rolling back needs: inputs, and states at some rows. */
static kva_status add_history(kva_sequences *q) {
  kva_page_pool *pool = &q->pools[q->n_pools++];
  *pool = (kva_page_pool){.table = KVA_NO_TABLE, .symbol = -1};
  for (int32_t i = 0; i < q->own_inputs; i++) {
    if (!kva_history_has(q, i)) continue;
    kva_tensor t = tensor_of(input_desc(q->desc, i));
    t.dims[q->input_axes[i]] = q->page_rows;
    KVA_TRY(add_to_pool(pool, i, t, q->input_axes[i]));
  }
  kva_tensor marks = {.dtype = KVA_U8, .rank = 2, .dims = {1, (int64_t)q->carried_bytes}};
  return add_to_pool(pool, -1, marks, KVA_NO_AXIS);
}

static kva_status find_states(kva_sequences *q, kva_diag *diag) {
  q->page_rows = DEFAULT_PAGE_ROWS;
  for (int32_t i = q->own_inputs + 1; i < q->desc->n_inputs; i++)
    if (!is_replaced(q->desc, i)) KVA_TRY(add_table(q, i, diag));
  for (int32_t i = q->own_inputs + 1; i < q->desc->n_inputs; i++)
    if (is_replaced(q->desc, i)) KVA_TRY(add_state(q, i, diag));
  return add_history(q);
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_status out_of_memory(kva_diag *diag) {
  return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
}

static kva_status allocate(kva_sequences *q, kva_diag *diag) {
  size_t inputs = (size_t)q->desc->n_inputs, outputs = (size_t)q->desc->n_outputs;
  q->input_axes = calloc(inputs, sizeof *q->input_axes);
  q->output_axes = calloc(outputs, sizeof *q->output_axes);
  q->inputs = calloc(inputs, sizeof *q->inputs);
  q->staged = calloc(inputs, sizeof *q->staged);
  q->outputs = calloc(outputs, sizeof *q->outputs);
  q->pools = calloc(inputs + 1, sizeof *q->pools);
  q->carried = calloc(inputs, sizeof *q->carried);
  bool ok = q->input_axes && q->output_axes && q->inputs && q->staged && q->outputs && q->pools && q->carried;
  return ok ? KVA_OK : out_of_memory(diag);
}

static kva_status count_pages(kva_sequences *q, const kva_sequences_options *o, kva_diag *diag) {
  int64_t n = o->sequences ? o->sequences : 1, pages;
  q->longest = o->longest;
  q->max_pages = o->longest / q->page_rows + (o->longest % q->page_rows != 0);
  if (__builtin_mul_overflow(q->max_pages, n, &pages) || pages > INT32_MAX / 2)
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for %lld sequences of %lld rows", (long long)n,
                    (long long)o->longest);
  q->n_pages = (int32_t)pages;
  return KVA_OK;
}

static kva_status create(kva_sequences *q, const kva_sequences_options *o, kva_diag *diag) {
  if (o->longest < 1 || o->sequences < 0)
    return kva_error(diag, NULL, "expected room for at least one row in a sequence");
  KVA_TRY(find_inputs(q, diag));
  KVA_TRY(find_programs(q, diag));
  KVA_TRY(allocate(q, diag));
  KVA_TRY(find_axes(q, diag));
  kva_status status = find_states(q, diag);
  if (status == KVA_NO_MEMORY) return out_of_memory(diag);
  KVA_TRY(status);
  KVA_TRY(count_pages(q, o, diag));
  for (int32_t i = 0; i < q->n_pools; i++) KVA_TRY(kva_pages_create(q, &q->pools[i], q->n_pages, diag));
  return KVA_OK;
}

kva_status kva_sequences_create(kva_session *s, const kva_sequences_options *options, kva_diag *diag,
                                kva_sequences **out) {
  *out = NULL;
  kva_sequences *q = calloc(1, sizeof *q);
  if (!q) return out_of_memory(diag);
  q->session = s;
  kva_status status = create(q, options, diag);
  if (status)
    kva_sequences_destroy(q);
  else
    *out = q;
  return status;
}

static void free_sequence(kva_sequence *s) {
  if (!s) return;
  free(s->pages);
  free(s->recent);
  free(s);
}

void kva_sequences_destroy(kva_sequences *q) {
  if (!q) return;
  for (int64_t i = 0; i < q->n_sequences; i++) free_sequence(q->sequences[i]);
  for (int32_t i = 0; i < q->n_pools; i++) kva_pages_free(&q->pools[i]);
  for (int32_t i = 0; q->staged && i < q->desc->n_inputs; i++)
    if (q->staged[i]) free(q->inputs[i].data);
  kva_resident_free(q->session, &q->carried_block);
  free(q->carried_rows);
  free(q->sequences);
  free(q->pools);
  free(q->carried);
  free(q->input_axes);
  free(q->output_axes);
  free(q->inputs);
  free(q->staged);
  free(q->outputs);
  free(q->items);
  free(q->members);
  free(q);
}

/* ---- facts ------------------------------------------------------------------------------------------------------- */

const kva_program *kva_sequences_program(const kva_sequences *q) {
  return q->desc;
}

int32_t kva_sequences_inputs(const kva_sequences *q) {
  return q->own_inputs;
}

int32_t kva_sequences_outputs(const kva_sequences *q) {
  return q->own_outputs;
}

kva_sequence *kva_sequences_get(const kva_sequences *q, int64_t sequence) {
  return sequence >= 0 && sequence < q->n_sequences ? q->sequences[sequence] : NULL;
}

int64_t kva_sequences_length(const kva_sequences *q, int64_t sequence) {
  const kva_sequence *s = kva_sequences_get(q, sequence);
  return s ? s->rows : -1;
}

int64_t kva_sequences_free_rows(const kva_sequences *q) {
  int32_t pages = q->n_pages;
  for (int32_t i = 0; i < q->n_pools; i++)
    if (q->pools[i].n_free < pages) pages = q->pools[i].n_free;
  return pages * q->page_rows;
}

char *kva_sequence_mark(const kva_sequences *q, const kva_sequence *s, int64_t page) {
  const kva_page_pool *pool = kva_history(q);
  const kva_tensor *marks = &pool->tensors[pool->n_tensors - 1].tensor;
  return (char *)marks->data + (size_t)kva_pages_of(q, s, q->n_pools - 1)[page] * q->carried_bytes;
}

/* ---- sequences that come and go ---------------------------------------------------------------------------------- */

static kva_sequence *new_sequence(const kva_sequences *q) {
  size_t pages = (size_t)q->n_pools * (size_t)q->max_pages;
  kva_sequence *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->pages = malloc(pages * sizeof *s->pages);
  s->recent = calloc(KVA_RECENT, q->carried_bytes + 1);
  if (!s->pages || !s->recent) {
    free_sequence(s);
    return NULL;
  }
  for (size_t i = 0; i < pages; i++) s->pages[i] = KVA_NO_PAGE;
  for (int i = 1; i < KVA_RECENT; i++) s->recent_rows[i] = -1;
  return s;
}

static kva_status give_number(kva_sequences *q, int64_t *out) {
  for (*out = 0; *out < q->n_sequences && q->sequences[*out];) ++*out;
  if (*out < q->n_sequences) return KVA_OK;
  kva_sequence **list = realloc(q->sequences, ((size_t)q->n_sequences + 1) * sizeof *list);
  if (!list) return kva_session_fail(q->session, KVA_NO_MEMORY, "out of memory");
  q->sequences = list;
  list[q->n_sequences++] = NULL;
  return KVA_OK;
}

kva_status kva_sequences_add(kva_sequences *q, int64_t *out) {
  KVA_TRY(give_number(q, out));
  q->sequences[*out] = new_sequence(q);
  return q->sequences[*out] ? KVA_OK : kva_session_fail(q->session, KVA_NO_MEMORY, "out of memory");
}

kva_status kva_sequences_fork(kva_sequences *q, int64_t sequence, int64_t *out) {
  if (!kva_sequences_get(q, sequence))
    return kva_session_fail(q->session, KVA_INVALID, "there is no sequence %lld", (long long)sequence);
  KVA_TRY(kva_sequences_add(q, out));
  const kva_sequence *from = q->sequences[sequence];
  kva_sequence *s = q->sequences[*out];
  s->rows = from->rows, s->now = from->now;
  memcpy(s->recent_rows, from->recent_rows, sizeof s->recent_rows);
  memcpy(s->recent, from->recent, KVA_RECENT * q->carried_bytes);
  memcpy(s->pages, from->pages, (size_t)q->n_pools * (size_t)q->max_pages * sizeof *s->pages);
  for (int32_t i = 0; i < q->n_pools; i++)
    for (int64_t p = 0; p < q->max_pages; p++)
      if (kva_pages_of(q, s, i)[p] != KVA_NO_PAGE) q->pools[i].uses[kva_pages_of(q, s, i)[p]]++;
  return KVA_OK;
}

void kva_sequences_remove(kva_sequences *q, int64_t sequence) {
  kva_sequence *s = kva_sequences_get(q, sequence);
  if (!s) return;
  kva_pages_truncate(q, s, 0);
  free_sequence(s);
  q->sequences[sequence] = NULL;
}
