/* The data source "tokens": windows of T + 1 tokens of mapped token files, shuffled.
 *
 * Documents follow each other in a file, each with its end token. Windows ignore these boundaries: the end token tells
 * the model. Window w of a file begins at token w * T, so every token but the first of a file is a target once per
 * epoch. No window crosses files. */
#include "runtime/data.h"

#include "runtime/tokens.h"

#include <stdlib.h>

typedef struct token_data {
  kva_data_order order;
  int64_t length; /* of sequences; 0: any */
  int n_files;
  kva_token_file *files;
  char **paths; /* for messages */
} token_data;

static void destroy(void *self) {
  token_data *d = self;
  for (int i = 0; d->files && i < d->n_files; i++) kva_tokens_close(&d->files[i]);
  for (int i = 0; d->paths && i < d->n_files; i++) free(d->paths[i]);
  free(d->files);
  free(d->paths);
  free(d);
}

static int64_t windows_of(const kva_token_file *f, int64_t length) {
  return f->info.count ? (f->info.count - 1) / length : 0;
}

/* The file that contains global window *w; *w becomes the window's number within that file. */
static int find_file(const token_data *d, int64_t length, int64_t *w) {
  int i = 0;
  for (; i + 1 < d->n_files && *w >= windows_of(&d->files[i], length); i++) *w -= windows_of(&d->files[i], length);
  return i;
}

static kva_status put_window(const token_data *d, int64_t window, int64_t r, int n, const kva_tensor *tensors,
                             kva_diag *diag) {
  int64_t length = tensors[0].dims[1];
  int file = find_file(d, length, &window);
  const kva_token_file *f = &d->files[file];
  int64_t begin = window * length;
  for (int64_t t = 0; t <= length; t++) {
    uint32_t token = kva_tokens_at(f, begin + t);
    if (token >= f->info.vocab) {
      kva_loc loc = {.file = d->paths[file]};
      return kva_error(diag, &loc, "token %lld is %u, outside of the vocabulary of %lld; the file is damaged",
                       (long long)(begin + t), token, (long long)f->info.vocab);
    }
    if (t < length) kva_data_put(&tensors[0], r * length + t, token);
    if (t > 0 && n > 1) kva_data_put(&tensors[1], r * length + t - 1, token);
  }
  return KVA_OK;
}

static kva_status fill(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                       kva_diag *diag) {
  static const char *const names[] = {"tokens", "targets"};
  const token_data *d = self;
  KVA_TRY(kva_data_check_sequences("tokens", 2, names, d->length, n, tensors, diag));
  int64_t batch = tensors[0].dims[0], windows = 0;
  for (int i = 0; i < d->n_files; i++) windows += windows_of(&d->files[i], tensors[0].dims[1]);
  for (int64_t r = 0; r < batch; r++) {
    int64_t window = kva_data_row(&d->order, windows, seed, step, evaluation, batch, r);
    if (window < 0) return kva_data_no_rows("data 'tokens'", &d->order, windows, evaluation, diag);
    KVA_TRY(put_window(d, window, r, n, tensors, diag));
  }
  return KVA_OK;
}

static kva_status open_file(token_data *d, const kva_data_item *item, int64_t vocab, kva_diag *diag) {
  if (item->name)
    return kva_error(diag, NULL, "data 'tokens' has no argument '%s'; it takes files, length=T and eval=X", item->name);
  d->paths[d->n_files] = strdup(item->value);
  if (!d->paths[d->n_files]) return KVA_NO_MEMORY;
  kva_token_file *f = &d->files[d->n_files++];
  KVA_TRY(kva_tokens_open(item->value, diag, f));
  if (f->info.vocab <= vocab) return KVA_OK;
  kva_loc loc = {.file = item->value};
  return kva_error(diag, &loc, "the tokens are of a vocabulary of %lld, the model's has %lld; set the model's to that",
                   (long long)f->info.vocab, (long long)vocab);
}

static kva_status open_files(token_data *d, const kva_data_spec *spec, const kva_data_options *o, kva_diag *diag) {
  if (!spec->n_items)
    return kva_error(diag, NULL, "data 'tokens' needs a file: tokens:FILE (`kvasir data` makes them)");
  if (o->vocab < 1)
    return kva_error(diag, NULL, "data 'tokens' needs a model whose first output ends in [..., vocabulary]");
  d->files = calloc((size_t)spec->n_items, sizeof *d->files);
  d->paths = calloc((size_t)spec->n_items, sizeof *d->paths);
  if (!d->files || !d->paths) return KVA_NO_MEMORY;
  for (int i = 0; i < spec->n_items; i++) KVA_TRY(open_file(d, &spec->items[i], o->vocab, diag));
  return KVA_OK;
}

static uint64_t identity(const token_data *d) {
  uint64_t id = kva_hash(0, &d->order.eval, sizeof d->order.eval);
  for (int i = 0; i < d->n_files; i++) {
    id = kva_hash(id, &d->files[i].info.count, sizeof d->files[i].info.count);
    id = kva_hash(id, &d->files[i].info.hash, sizeof d->files[i].info.hash);
  }
  return id;
}

kva_status kva_data_open_tokens(const kva_data_spec *spec, const kva_data_options *options, kva_diag *diag,
                                kva_data_source *out_source) {
  token_data *d = calloc(1, sizeof *d);
  if (!d) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a data source of tokens");
  d->order = kva_data_order_of(spec, options);
  d->length = spec->length;
  kva_status status = open_files(d, spec, options, diag);
  if (status) {
    destroy(d);
    return status;
  }
  *out_source = (kva_data_source){.id = identity(d), .fill = fill, .destroy = destroy, .self = d};
  return KVA_OK;
}
