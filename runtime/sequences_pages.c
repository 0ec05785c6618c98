/* Pages of sequences: which are free, who shares them. See sequences_internal.h. */
#include "runtime/sequences_internal.h"
#include "runtime/base/platform.h"

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static size_t page_bytes(const kva_tensor *t) {
  size_t bytes = (size_t)kva_dtype_bits(t->dtype) / 8;
  for (int d = 1; d < t->rank; d++) bytes *= (size_t)t->dims[d];
  return bytes;
}

size_t kva_page_bytes(const kva_page_pool *pool, int32_t tensor) {
  return page_bytes(&pool->tensors[tensor].tensor);
}

static char *page_at(const kva_page_pool *pool, int32_t tensor, int32_t page) {
  const kva_tensor *t = &pool->tensors[tensor].tensor;
  return (char *)t->data + (size_t)page * page_bytes(t);
}

static kva_status no_memory(int32_t n_pages, kva_diag *diag) {
  return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for %d pages of sequences: choose fewer or shorter ones",
                  (int)n_pages);
}

/* Memory of pages that were never taken is not touched. A head's rows lie apart, a few of the system's pages in each
 * page: huge ones make reading faster. The first stay small, so that short texts take little memory. */
static kva_status allocate_tensor(kva_tensor *t, int32_t n_pages, kva_diag *diag) {
  enum { SMALL = 2 << 20 };
  int64_t bytes = kva_tensor_bytes(t);
  t->data = bytes >= 0 ? calloc(1, (size_t)bytes + 1) : NULL;
  if (t->data && bytes > SMALL) kva_pages_enlarge((char *)t->data + SMALL, (size_t)bytes - SMALL);
  return t->data ? KVA_OK : no_memory(n_pages, diag);
}

/* The place of each tensor in the block of a device; then a page of zeros. */
static bool place_on_device(kva_page_pool *pool, int64_t *offsets, int64_t *out_bytes, size_t *out_largest) {
  int64_t end = 0, size;
  *out_largest = 0;
  for (int32_t i = 0; i < pool->n_tensors; i++) {
    int64_t bytes = kva_tensor_bytes(&pool->tensors[i].tensor);
    offsets[i] = end;
    if (bytes < 0 || !kva_align_size(bytes, &size) || !kva_add_size(end, size, &end)) return false;
    if (kva_page_bytes(pool, i) > *out_largest) *out_largest = kva_page_bytes(pool, i);
  }
  offsets[pool->n_tensors] = end;
  return kva_add_size(end, (int64_t)*out_largest, out_bytes);
}

static kva_status clear_zeros(kva_page_pool *pool, size_t bytes) {
  char *zeros = calloc(1, bytes + 1);
  kva_status status = zeros ? kva_resident_write(pool->session, pool->zeros, zeros, bytes) : KVA_NO_MEMORY;
  free(zeros);
  return status;
}

static kva_status allocate_on_device(kva_page_pool *pool, int32_t n_pages, kva_diag *diag) {
  size_t largest = 0;
  int64_t bytes = 0, *offsets = calloc((size_t)pool->n_tensors + 1, sizeof *offsets);
  kva_status status = offsets && place_on_device(pool, offsets, &bytes, &largest) ? KVA_OK : KVA_NO_MEMORY;
  if (status == KVA_OK) status = kva_resident_allocate(pool->session, bytes, &pool->block);
  for (int32_t i = 0; status == KVA_OK && i < pool->n_tensors; i++)
    pool->tensors[i].tensor.data = kva_block_at(&pool->block, offsets[i]);
  if (status == KVA_OK) {
    pool->zeros = kva_block_at(&pool->block, offsets[pool->n_tensors]);
    status = clear_zeros(pool, largest);
  }
  free(offsets);
  return status == KVA_OK ? KVA_OK : no_memory(n_pages, diag);
}

kva_status kva_pages_create(kva_sequences *q, kva_page_pool *pool, int32_t n_pages, kva_diag *diag) {
  if (pool->table != KVA_NO_TABLE && kva_sequences_on_device(q)) pool->session = q->session;
  for (int32_t i = 0; i < pool->n_tensors; i++) pool->tensors[i].tensor.dims[0] = n_pages;
  if (pool->session) KVA_TRY(allocate_on_device(pool, n_pages, diag));
  for (int32_t i = 0; i < pool->n_tensors && !pool->session; i++)
    KVA_TRY(allocate_tensor(&pool->tensors[i].tensor, n_pages, diag));
  pool->free = calloc((size_t)n_pages, sizeof *pool->free);
  pool->uses = calloc((size_t)n_pages, sizeof *pool->uses);
  if (!pool->free || !pool->uses) return kva_fail(diag, KVA_NO_MEMORY, NULL, "out of memory");
  for (pool->n_free = 0; pool->n_free < n_pages; pool->n_free++) pool->free[pool->n_free] = n_pages - 1 - pool->n_free;
  return KVA_OK;
}

void kva_pages_free(kva_page_pool *pool) {
  for (int32_t i = 0; i < pool->n_tensors && !pool->session; i++) free(pool->tensors[i].tensor.data);
  if (pool->session) kva_resident_free(pool->session, &pool->block);
  free(pool->tensors);
  free(pool->inputs);
  free(pool->free);
  free(pool->uses);
}

kva_status kva_page_read(const kva_page_pool *pool, int32_t tensor, int32_t page, void *to) {
  size_t bytes = kva_page_bytes(pool, tensor);
  if (pool->session) return kva_resident_read(pool->session, to, page_at(pool, tensor, page), bytes);
  memcpy(to, page_at(pool, tensor, page), bytes);
  return KVA_OK;
}

kva_status kva_page_write(const kva_page_pool *pool, int32_t tensor, int32_t page, const void *from) {
  size_t bytes = kva_page_bytes(pool, tensor);
  if (pool->session) return kva_resident_write(pool->session, page_at(pool, tensor, page), from, bytes);
  memcpy(page_at(pool, tensor, page), from, bytes);
  return KVA_OK;
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

void kva_page_release(kva_page_pool *pool, int32_t *page) {
  if (*page == KVA_NO_PAGE) return;
  if (--pool->uses[*page] == 0) pool->free[pool->n_free++] = *page;
  *page = KVA_NO_PAGE;
}

static int32_t take(kva_page_pool *pool) {
  KVA_ASSERT(pool->n_free);
  int32_t page = pool->free[--pool->n_free];
  pool->uses[page] = 1;
  return page;
}

/* Fills a page with zeros, or with what another has. */
static kva_status fill(const kva_page_pool *pool, int32_t page, int32_t from) {
  for (int32_t i = 0; i < pool->n_tensors; i++) {
    size_t bytes = kva_page_bytes(pool, i);
    char *to = page_at(pool, i, page), *source = from == KVA_NO_PAGE ? pool->zeros : page_at(pool, i, from);
    if (pool->session)
      KVA_TRY(kva_resident_copy(pool->session, to, source, bytes));
    else if (source)
      memcpy(to, source, bytes);
    else
      memset(to, 0, bytes);
  }
  return KVA_OK;
}

/* The page may be written: it is there, and nobody else has it. Nothing of a sequence that had a new page before is
 * left, neither to read nor to save. */
static kva_status own(kva_page_pool *pool, int32_t *page) {
  if (*page != KVA_NO_PAGE && pool->uses[*page] == 1) return KVA_OK;
  int32_t fresh = take(pool);
  kva_status status = fill(pool, fresh, *page);
  kva_page_release(pool, status == KVA_OK ? page : &fresh);
  if (status == KVA_OK) *page = fresh;
  return status;
}

static kva_status no_page(kva_sequences *q) {
  return kva_session_fail(q->session, KVA_NO_MEMORY,
                          "no page is free: all %d pages of %lld rows are in use by sequences", (int)q->n_pages,
                          (long long)q->page_rows);
}

/* Pages [first, end) of a sequence, which its new rows lie in. */
typedef struct span {
  int64_t first, end;
} span;
static span span_of(const kva_sequences *q, const kva_append_item *m) {
  int64_t first = m->s->rows / q->page_rows;
  return (span){first, m->rows ? kva_pages_for(q, m->s->rows + m->rows) : first};
}

/* Those of the first n items that write page p of a sequence and have it in common with others. */
static int32_t writers(const kva_sequences *q, int32_t pool, int64_t n, const kva_append_item *items, int64_t p,
                       int32_t page) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    span pages = span_of(q, &items[i]);
    count += p >= pages.first && p < pages.end && kva_pages_of(q, items[i].s, pool)[p] == page;
  }
  return count;
}

/* Pages that the items take: where others have a page, too, all of them but the last one copy it. */
static int64_t count_missing(const kva_sequences *q, int32_t pool, int64_t n, const kva_append_item *items) {
  int64_t missing = 0;
  for (int64_t i = 0; i < n; i++) {
    span pages = span_of(q, &items[i]);
    for (int64_t p = pages.first; p < pages.end; p++) {
      int32_t page = kva_pages_of(q, items[i].s, pool)[p];
      missing += page == KVA_NO_PAGE || q->pools[pool].uses[page] - writers(q, pool, i, items, p, page) > 1;
    }
  }
  return missing;
}

kva_status kva_pages_reserve(kva_sequences *q, int64_t n, const kva_append_item *items) {
  for (int32_t i = 0; i < q->n_pools; i++)
    if (count_missing(q, i, n, items) > q->pools[i].n_free) return no_page(q);
  for (int64_t k = 0; k < n; k++) {
    span pages = span_of(q, &items[k]);
    for (int32_t i = 0; i < q->n_pools; i++)
      for (int64_t p = pages.first; p < pages.end; p++) KVA_TRY(own(&q->pools[i], kva_pages_of(q, items[k].s, i) + p));
  }
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
