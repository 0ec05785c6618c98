/* Mixtures: sources with weights, of which each row of a batch takes one.
 *
 * Rows are numbered through the whole run, evaluation apart. Of every BLOCK rows each source gets the same number,
 * which is its weight's share; a keyed permutation of the block says which. So a row's source, and the number of that
 * source's rows before it, follow from the row's number alone, and a resumed run goes on as if it had not stopped. A
 * source sees batches of one row: its row number j is its training step j + 1. */
#include "runtime/data.h"

#include "runtime/base/platform.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 4096, MAX_SOURCES = 64, MAX_INPUTS = 64 };

typedef struct mixture {
  int rank, world, n;
  kva_data_source sources[MAX_SOURCES];
  double weights[MAX_SOURCES];
  int64_t rows[MAX_SOURCES]; /* of a block */
} mixture;

static void destroy(void *self) {
  mixture *m = self;
  for (int i = 0; i < m->n; i++) m->sources[i].destroy(m->sources[i].self);
  free(m);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The source of row i; *out_row: how many of its rows come before. */
static int source_of(const mixture *m, uint64_t key, uint64_t i, int64_t *out_row) {
  uint64_t block = i / BLOCK;
  int64_t place = (int64_t)kva_permute(key, block, BLOCK, i % BLOCK);
  int k = 0;
  for (; place >= m->rows[k]; k++) place -= m->rows[k];
  *out_row = (int64_t)block * m->rows[k] + place;
  return k;
}

static kva_status fill_row(const mixture *m, uint64_t seed, uint64_t i, int64_t r, bool evaluation, int n,
                           const kva_tensor *tensors, kva_diag *diag) {
  kva_tensor row[MAX_INPUTS];
  int64_t number;
  uint64_t key = kva_hash(kva_hash(0, &seed, sizeof seed), evaluation ? "mixture e" : "mixture t", 9);
  const kva_data_source *source = &m->sources[source_of(m, key, i, &number)];
  for (int k = 0; k < n; k++) {
    int64_t bytes = kva_tensor_bytes(&tensors[k]) / tensors[k].dims[0];
    row[k] = tensors[k];
    row[k].dims[0] = 1;
    row[k].data = (char *)tensors[k].data + r * bytes;
  }
  return source->fill(source->self, seed, evaluation ? number : number + 1, evaluation, n, row, diag);
}

static kva_status check_rows(int k, const kva_tensor *t, const kva_tensor *first, kva_diag *diag) {
  if (t->rank < 1 || kva_dtype_bits(t->dtype) < 8)
    return kva_error(diag, NULL, "data: input %d has no rows of whole bytes, which a mixture needs", k);
  if (t->dims[0] == first->dims[0]) return KVA_OK;
  return kva_error(
      diag, NULL,
      "data: input %d has %lld rows, input 0 has %lld; a mixture needs the batch as the first dimension of "
      "all data inputs",
      k, (long long)t->dims[0], (long long)first->dims[0]);
}

static kva_status fill(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                       kva_diag *diag) {
  const mixture *m = self;
  if (n < 1 || n > MAX_INPUTS)
    return kva_error(diag, NULL, "data: a mixture fills 1 to %d inputs, found %d", MAX_INPUTS, n);
  for (int k = 0; k < n; k++) KVA_TRY(check_rows(k, &tensors[k], &tensors[0], diag));
  int64_t batch = tensors[0].dims[0];
  uint64_t batches = evaluation ? (uint64_t)step : (uint64_t)(step - 1) * (uint64_t)m->world + (uint64_t)m->rank;
  for (int64_t r = 0; r < batch; r++)
    KVA_TRY(fill_row(m, seed, batches * (uint64_t)batch + (uint64_t)r, r, evaluation, n, tensors, diag));
  return KVA_OK;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static int largest_remainder(const mixture *m, double total) {
  int best = 0;
  for (int i = 1; i < m->n; i++)
    if (BLOCK * m->weights[i] / total - (double)m->rows[i] > BLOCK * m->weights[best] / total - (double)m->rows[best])
      best = i;
  return best;
}

static kva_status share_block(mixture *m, kva_diag *diag) {
  double total = 0;
  int64_t given = 0;
  for (int i = 0; i < m->n; i++) total += m->weights[i];
  for (int i = 0; i < m->n; i++) given += m->rows[i] = (int64_t)floor(BLOCK * m->weights[i] / total);
  for (; given < BLOCK; given++) m->rows[largest_remainder(m, total)]++;
  for (int i = 0; i < m->n; i++)
    if (!m->rows[i])
      return kva_error(diag, NULL,
                       "data: weight %g of source %d is less than a row of %d; raise it, or leave the "
                       "source out",
                       m->weights[i], i + 1, BLOCK);
  return KVA_OK;
}

static uint64_t identity(const mixture *m) {
  uint64_t id = 0;
  for (int i = 0; i < m->n; i++) {
    id = kva_hash(id, &m->sources[i].id, sizeof m->sources[i].id);
    id = kva_hash(id, &m->rows[i], sizeof m->rows[i]);
  }
  return id;
}

static kva_status open_sources(mixture *m, int n, const kva_data_spec *specs, const kva_data_options *options,
                               kva_diag *diag) {
  kva_data_options alone = *options;
  alone.rank = alone.world = 0; /* rows are divided before they are given to sources */
  for (int i = 0; i < n; i++) {
    KVA_TRY(kva_data_open_spec(&specs[i], &alone, diag, &m->sources[i]));
    m->weights[m->n++] = specs[i].weight ? specs[i].weight : 1;
  }
  return share_block(m, diag);
}

kva_status kva_data_open_mixture(int n, const kva_data_spec *specs, const kva_data_options *options, kva_diag *diag,
                                 kva_data_source *out_source) {
  if (n > MAX_SOURCES) return kva_error(diag, NULL, "data: more than %d sources", MAX_SOURCES);
  mixture *m = calloc(1, sizeof *m);
  if (!m) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a mixture of data");
  m->rank = options->rank;
  m->world = options->world ? options->world : 1;
  kva_status status = open_sources(m, n, specs, options, diag);
  if (status) {
    destroy(m);
    return status;
  }
  *out_source = (kva_data_source){.name = "mixture", .id = identity(m), .fill = fill, .destroy = destroy, .self = m};
  return KVA_OK;
}
