/* Saving and loading sequences. A file has a tensor for every tensor of pages, with the pages that the sequence has in
 * their order, the last of which its rows end in; and its state. Metadata: format, model, rows, sum. */
#include "runtime/safetensors.h"
#include "runtime/sequences_internal.h"
#include "runtime/sum.h"

#include <inttypes.h>
#include <stdio.h>

static const char format[] = "sequence 1", state_name[] = "sequence.state";
enum { FORMAT, MODEL, ROWS, SUM, N_METADATA };
static const char *const keys[N_METADATA] = {"kvasir.format", "kvasir.model", "kvasir.rows", "kvasir.sum"};

typedef struct values {
  char text[N_METADATA][40];
} values;

/* ---- the model --------------------------------------------------------------------------------------------------- */

static uint64_t sum_buffer(uint64_t sum, const kva_buffer_desc *b) {
  bool constant = b->kind == KVA_BUFFER_CONST && b->bytes.n == 1 && b->bytes.words->op == KVA_FORMULA_CONST;
  return constant ? kva_sum_bytes(sum, b->data, (size_t)b->bytes.words->arg) : sum;
}

/* Of all that results depend on: parameters, constants, names of inputs and states. */
static uint64_t model_sum(kva_sequences *q) {
  uint64_t sum = q->fingerprint;
  const kva_program *p = q->desc;
  if (sum) return sum;
  for (int i = 0; i < kva_session_state_count(q->session); i++) {
    kva_tensor t;
    const kva_state_desc *d = kva_session_state_desc(q->session, i, &t);
    if (d->role != KVA_ROLE_CACHE && t.data) sum = kva_sum_tensor(sum, d->name, &t);
  }
  for (int32_t i = 0; i < p->n_buffers; i++) sum = sum_buffer(sum, &p->buffers[i]);
  for (int32_t i = 0; i < p->n_inputs; i++) sum = kva_sum_text(sum, p->buffers[p->inputs[i]].name);
  return q->fingerprint = sum ? sum : 1;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static const char *tensor_name(const kva_sequences *q, int32_t pool, int32_t tensor) {
  int32_t input = q->pools[pool].inputs[tensor];
  return input < 0 ? "sequence.marks" : q->desc->buffers[q->desc->inputs[input]].name;
}

static int64_t count_tensors(const kva_sequences *q) {
  int64_t n = 1;
  for (int32_t i = 0; i < q->n_pools; i++) n += q->pools[i].n_tensors;
  return n;
}

static int64_t first_page(const kva_sequences *q, const kva_sequence *s, int32_t pool) {
  int64_t p = kva_pages_for(q, s->rows);
  while (p > 0 && kva_pages_of(q, s, pool)[p - 1] != KVA_NO_PAGE) p--;
  return p;
}

/* The state as it lies in a sequence. */
static kva_tensor state_tensor(const kva_sequences *q, const kva_sequence *s) {
  return (kva_tensor){
      .dtype = KVA_U8, .rank = 1, .dims = {(int64_t)q->carried_bytes}, .data = kva_sequence_state(q, s)};
}

/* Pages `first` to the last one, copied to memory of their own. */
static kva_status copy_pages(const kva_sequences *q, const kva_sequence *s, int32_t pool, int32_t tensor,
                             kva_tensor *out) {
  int64_t first = first_page(q, s, pool);
  size_t bytes = kva_page_bytes(&q->pools[pool], tensor);
  *out = q->pools[pool].tensors[tensor].tensor;
  out->dims[0] = kva_pages_for(q, s->rows) - first;
  out->data = malloc((size_t)kva_tensor_bytes(out) + 1);
  if (!out->data) return KVA_NO_MEMORY;
  for (int64_t p = 0; p < out->dims[0]; p++)
    KVA_TRY(kva_page_read(&q->pools[pool], tensor, kva_pages_of(q, s, pool)[first + p],
                          (char *)out->data + (size_t)p * bytes));
  return KVA_OK;
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b) {
  return strcmp(((const kva_named_tensor *)a)->name, ((const kva_named_tensor *)b)->name);
}

static kva_status write_tensors(const char *path, values *v, int64_t n, kva_named_tensor *tensors, kva_diag *diag) {
  kva_metadata metadata[N_METADATA];
  uint64_t sum = 0;
  qsort(tensors, (size_t)n, sizeof *tensors, by_name);
  for (int i = 0; i < SUM; i++) sum = kva_sum_text(sum, v->text[i]);
  for (int64_t i = 0; i < n; i++) sum = kva_sum_tensor(sum, tensors[i].name, &tensors[i].tensor);
  snprintf(v->text[SUM], sizeof v->text[SUM], "%016" PRIx64, sum);
  for (int i = 0; i < N_METADATA; i++) metadata[i] = (kva_metadata){keys[i], v->text[i]};
  return kva_safetensors_write(path, n, tensors, N_METADATA, metadata, diag);
}

static kva_status save(kva_sequences *q, const kva_sequence *s, const char *path, int64_t n, kva_named_tensor *tensors,
                       kva_diag *diag) {
  int64_t at = 0;
  for (int32_t i = 0; i < q->n_pools; i++)
    for (int32_t k = 0; k < q->pools[i].n_tensors; k++, at++) {
      tensors[at].name = tensor_name(q, i, k);
      kva_status status = copy_pages(q, s, i, k, &tensors[at].tensor);
      if (status == KVA_NO_MEMORY) return kva_fail(diag, status, NULL, "no memory to save a sequence");
      if (status) return kva_fail(diag, status, NULL, "%s", kva_session_error(q->session));
    }
  tensors[at] = (kva_named_tensor){state_name, state_tensor(q, s)};
  values v = {0};
  snprintf(v.text[FORMAT], sizeof v.text[FORMAT], "%s", format);
  snprintf(v.text[MODEL], sizeof v.text[MODEL], "%016" PRIx64, model_sum(q));
  snprintf(v.text[ROWS], sizeof v.text[ROWS], "%lld", (long long)s->rows);
  return write_tensors(path, &v, n, tensors, diag);
}

kva_status kva_sequences_save(kva_sequences *q, int64_t sequence, const char *path, kva_diag *diag) {
  const kva_sequence *s = kva_sequences_get(q, sequence);
  if (!s) return kva_error(diag, NULL, "there is no sequence %lld", (long long)sequence);
  int64_t n = count_tensors(q);
  kva_named_tensor *tensors = calloc((size_t)n, sizeof *tensors);
  if (!tensors) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory to save a sequence");
  kva_status status = save(q, s, path, n, tensors, diag);
  for (int64_t i = 0; i < n; i++)
    if (tensors[i].tensor.data != kva_sequence_state(q, s)) free(tensors[i].tensor.data);
  free(tensors);
  return status;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static uint64_t sum_file(const kva_safetensors *f) {
  uint64_t sum = 0;
  for (int i = 0; i < SUM; i++) sum = kva_sum_text(sum, kva_safetensors_metadata(f, keys[i]));
  for (int64_t i = 0; i < kva_safetensors_count(f); i++) {
    kva_tensor t;
    const char *name = kva_safetensors_at(f, i, &t);
    sum = kva_sum_tensor(sum, name, &t);
  }
  return sum;
}

static kva_status damaged(const kva_loc *loc, kva_diag *diag, const char *why) {
  return kva_fail(diag, KVA_DAMAGED, loc, "is no saved sequence, or a damaged one: %s", why);
}

static kva_status check_metadata(kva_sequences *q, const kva_safetensors *f, const kva_loc *loc, kva_diag *diag) {
  for (int i = 0; i < N_METADATA; i++)
    if (!kva_safetensors_metadata(f, keys[i])) return damaged(loc, diag, keys[i]);
  if (strcmp(kva_safetensors_metadata(f, keys[FORMAT]), format)) return damaged(loc, diag, keys[FORMAT]);
  if (strtoull(kva_safetensors_metadata(f, keys[SUM]), NULL, 16) != sum_file(f)) return damaged(loc, diag, "its sum");
  if (strtoull(kva_safetensors_metadata(f, keys[MODEL]), NULL, 16) != model_sum(q))
    return kva_error(diag, loc, "is a sequence of another model, or of other parameters");
  return KVA_OK;
}

static bool is_of_type(const kva_tensor *t, const kva_tensor *type) {
  if (t->dtype != type->dtype || t->rank != type->rank) return false;
  for (int32_t d = 1; d < t->rank; d++)
    if (t->dims[d] != type->dims[d]) return false;
  return true;
}

/* Puts the pages of a file in place; those before them were dropped. false: they do not fit. */
static bool read_pages(kva_sequences *q, kva_sequence *s, const kva_safetensors *f, int32_t pool, int32_t tensor) {
  const kva_tensor *to = &q->pools[pool].tensors[tensor].tensor;
  kva_tensor t;
  int64_t end = kva_pages_for(q, s->rows);
  int32_t *pages = kva_pages_of(q, s, pool);
  if (!kva_safetensors_find(f, tensor_name(q, pool, tensor), &t) || !is_of_type(&t, to) || t.dims[0] > end)
    return false;
  for (int64_t p = 0; p < end - t.dims[0]; p++) kva_page_release(&q->pools[pool], &pages[p]);
  for (int64_t p = end - t.dims[0]; p < end; p++) {
    if (pages[p] == KVA_NO_PAGE) return false;
    size_t at = (size_t)(p - (end - t.dims[0])) * kva_page_bytes(&q->pools[pool], tensor);
    if (kva_page_write(&q->pools[pool], tensor, pages[p], (const char *)t.data + at)) return false;
  }
  return true;
}

/* One model may be compiled with caches of several types (kva_pass_options.caches). */
static kva_status check_types(const kva_sequences *q, const kva_safetensors *f, const kva_loc *loc, kva_diag *diag) {
  kva_tensor t;
  for (int32_t i = 0; i < q->n_pools; i++)
    for (int32_t k = 0; k < q->pools[i].n_tensors; k++) {
      kva_dtype own = q->pools[i].tensors[k].tensor.dtype;
      if (!kva_safetensors_find(f, tensor_name(q, i, k), &t) || t.dtype == own) continue;
      return kva_error(diag, loc, "is a sequence whose cache '%s' is %s; the model is compiled with caches of %s",
                       tensor_name(q, i, k), kva_dtype_name(t.dtype), kva_dtype_name(own));
    }
  return KVA_OK;
}

static kva_status read_tensors(kva_sequences *q, kva_sequence *s, const kva_safetensors *f, const kva_loc *loc,
                               kva_diag *diag) {
  kva_tensor state, own = state_tensor(q, s);
  for (int32_t i = 0; i < q->n_pools; i++)
    for (int32_t k = 0; k < q->pools[i].n_tensors; k++)
      if (!read_pages(q, s, f, i, k)) return damaged(loc, diag, tensor_name(q, i, k));
  if (!kva_safetensors_find(f, state_name, &state) || !is_of_type(&state, &own) || state.dims[0] != own.dims[0])
    return damaged(loc, diag, state_name);
  memcpy(own.data, state.data, q->carried_bytes);
  return kva_pages_present(q, s, s->rows) ? KVA_OK : damaged(loc, diag, "rows that are read are missing");
}

static kva_status fill(kva_sequences *q, kva_sequence *s, const kva_safetensors *f, const kva_loc *loc,
                       kva_diag *diag) {
  int64_t rows = strtoll(kva_safetensors_metadata(f, keys[ROWS]), NULL, 10);
  if (rows < 0 || rows > q->longest)
    return kva_error(diag, loc, "is a sequence of %lld rows; there is room for %lld", (long long)rows,
                     (long long)q->longest);
  if (kva_pages_reserve(q, 1, &(kva_append_item){.s = s, .rows = rows}))
    return kva_fail(diag, KVA_NO_MEMORY, loc, "%s", kva_session_error(q->session));
  s->rows = s->recent_rows[s->now] = rows;
  return read_tensors(q, s, f, loc, diag);
}

static kva_status load(kva_sequences *q, const kva_safetensors *f, const kva_loc *loc, kva_diag *diag,
                       int64_t *out_sequence) {
  KVA_TRY(check_metadata(q, f, loc, diag));
  KVA_TRY(check_types(q, f, loc, diag));
  KVA_TRY(kva_sequences_add(q, out_sequence));
  kva_status status = fill(q, kva_sequences_get(q, *out_sequence), f, loc, diag);
  if (status) kva_sequences_remove(q, *out_sequence);
  return status;
}

kva_status kva_sequences_load(kva_sequences *q, const char *path, kva_diag *diag, int64_t *out_sequence) {
  kva_safetensors *f;
  const kva_loc loc = {.file = path};
  KVA_TRY(kva_safetensors_open(path, diag, &f));
  kva_status status = load(q, f, &loc, diag, out_sequence);
  kva_safetensors_close(f);
  return status;
}
