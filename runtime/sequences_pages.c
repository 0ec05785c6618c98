/* Pages of sequences: which are free, who shares them. See sequences_internal.h. */
#include "runtime/sequences_internal.h"

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static size_t page_bytes(const kva_tensor *t) {
  size_t bytes = (size_t)kva_dtype_bits(t->dtype) / 8;
  for (int d = 1; d < t->rank; d++) bytes *= (size_t)t->dims[d];
  return bytes;
}

static char *page_at(const kva_tensor *t, int32_t page) {
  return (char *)t->data + (size_t)page * page_bytes(t);
}

/* Memory of pages that were never taken is not touched. */
static kva_status allocate_tensor(kva_tensor *t, int32_t n_pages, kva_diag *diag) {
  t->dims[0] = n_pages;
  int64_t bytes = kva_tensor_bytes(t);
  t->data = bytes >= 0 ? calloc(1, (size_t)bytes + 1) : NULL;
  if (t->data) return KVA_OK;
  return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for %d pages of sequences: choose fewer or shorter ones",
                  (int)n_pages);
}

kva_status kva_pages_create(kva_page_pool *pool, int32_t n_pages, kva_diag *diag) {
  for (int32_t i = 0; i < pool->n_tensors; i++) KVA_TRY(allocate_tensor(&pool->tensors[i].tensor, n_pages, diag));
  pool->free = calloc((size_t)n_pages, sizeof *pool->free);
  pool->uses = calloc((size_t)n_pages, sizeof *pool->uses);
  if (!pool->free || !pool->uses) return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  for (pool->n_free = 0; pool->n_free < n_pages; pool->n_free++) pool->free[pool->n_free] = n_pages - 1 - pool->n_free;
  return KVA_OK;
}

void kva_pages_free(kva_page_pool *pool) {
  for (int32_t i = 0; i < pool->n_tensors; i++) free(pool->tensors[i].tensor.data);
  free(pool->tensors);
  free(pool->inputs);
  free(pool->free);
  free(pool->uses);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

void kva_page_release(kva_page_pool *pool, int32_t *page) {
  if (*page == KVA_NO_PAGE) return;
  if (--pool->uses[*page] == 0) pool->free[pool->n_free++] = *page;
  *page = KVA_NO_PAGE;
}

static int32_t take(kva_page_pool *pool) {
  if (!pool->n_free) return KVA_NO_PAGE;
  int32_t page = pool->free[--pool->n_free];
  pool->uses[page] = 1;
  return page;
}

/* Nothing of a sequence that had the page before is left, neither to read nor to save. */
static void clear(const kva_page_pool *pool, int32_t page) {
  for (int32_t i = 0; i < pool->n_tensors; i++) {
    const kva_tensor *t = &pool->tensors[i].tensor;
    memset(page_at(t, page), 0, page_bytes(t));
  }
}

static void copy(const kva_page_pool *pool, int32_t to, int32_t from) {
  for (int32_t i = 0; i < pool->n_tensors; i++) {
    const kva_tensor *t = &pool->tensors[i].tensor;
    memcpy(page_at(t, to), page_at(t, from), page_bytes(t));
  }
}

/* The page may be written: it is there, and nobody else has it. */
static bool own(kva_page_pool *pool, int32_t *page) {
  if (*page != KVA_NO_PAGE && pool->uses[*page] == 1) return true;
  int32_t fresh = take(pool);
  if (fresh == KVA_NO_PAGE) return false;
  if (*page == KVA_NO_PAGE)
    clear(pool, fresh);
  else
    copy(pool, fresh, *page);
  kva_page_release(pool, page);
  *page = fresh;
  return true;
}

kva_status kva_pages_reserve(kva_sequences *q, kva_sequence *s, int64_t rows) {
  int64_t first = s->rows / q->page_rows, end = kva_pages_for(q, s->rows + rows);
  for (int32_t i = 0; i < q->n_pools; i++)
    for (int64_t p = first; p < end; p++)
      if (!own(&q->pools[i], kva_pages_of(q, s, i) + p))
        return kva_session_fail(q->session, KVA_NO_MEMORY,
                                "no page is free: all %d pages of %lld rows are in use by sequences", (int)q->n_pages,
                                (long long)q->page_rows);
  return KVA_OK;
}

void kva_pages_truncate(kva_sequences *q, kva_sequence *s, int64_t rows) {
  for (int32_t i = 0; i < q->n_pools; i++)
    for (int64_t p = kva_pages_for(q, rows); p < q->max_pages; p++)
      kva_page_release(&q->pools[i], kva_pages_of(q, s, i) + p);
}

/* Rolling back to a kept state finds its window whole, where the state is no older than two marks. */
void kva_pages_drop(kva_sequences *q, kva_sequence *s) {
  for (int32_t i = 0; i < q->n_pools; i++) {
    kva_page_pool *pool = &q->pools[i];
    int64_t kept = s->rows - pool->window - 2 * KVA_MARK_ROWS;
    int32_t *pages = kva_pages_of(q, s, i);
    if (!pool->window) continue;
    for (int64_t p = kept / q->page_rows; p-- > 0 && pages[p] != KVA_NO_PAGE;) kva_page_release(pool, &pages[p]);
  }
}

bool kva_pages_present(const kva_sequences *q, const kva_sequence *s, int64_t rows) {
  for (int32_t i = 0; i < q->n_pools; i++) {
    int64_t window = q->pools[i].window, first = window && window < rows ? rows - window : 0;
    for (int64_t p = first / q->page_rows; p * q->page_rows < rows; p++)
      if (kva_pages_of(q, s, i)[p] == KVA_NO_PAGE) return false;
  }
  return true;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Bytes of the dimensions [first, n). */
static size_t block_bytes(const kva_tensor *t, int first, int n) {
  size_t bytes = (size_t)kva_dtype_bits(t->dtype) / 8;
  for (int d = first; d < n; d++) bytes *= (size_t)t->dims[d];
  return bytes;
}

static char *index_at(kva_row_place p) {
  return (char *)p.tensor->data + (size_t)p.index * block_bytes(p.tensor, 1, p.tensor->rank);
}

void kva_rows_copy(kva_row_place to, kva_row_place from, int axis, int64_t n) {
  const kva_tensor *t = to.tensor, *f = from.tensor;
  if (axis == KVA_NO_AXIS) {
    memcpy(index_at(to), index_at(from), block_bytes(t, 1, t->rank));
    return;
  }
  size_t row = block_bytes(t, axis + 1, t->rank), blocks = 1;
  for (int d = 1; d < axis; d++) blocks *= (size_t)t->dims[d];
  for (size_t b = 0; b < blocks; b++) {
    size_t to_row = b * (size_t)t->dims[axis] + (size_t)to.row, from_row = b * (size_t)f->dims[axis] + (size_t)from.row;
    memcpy(index_at(to) + to_row * row, index_at(from) + from_row * row, row * (size_t)n);
  }
}
