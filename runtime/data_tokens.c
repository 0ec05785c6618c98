/* The data source "tokens": windows of T + 1 tokens of mapped token files, shuffled.
 *
 * Documents follow each other in a file, each with its end token. Windows ignore these boundaries: the end token tells
 * the model. A file has a stream of tokens for training and one for evaluation: its documents of either side one after
 * the other, or one stream for both, whose last windows are for evaluation. Window w of a stream begins at its token w
 * * T, so every token but the first is a target once per epoch. No window crosses files. */
#include "runtime/data.h"

#include <stdlib.h>

typedef struct token_input {
  kva_token_file file;
  char *path;                  /* for messages */
  kva_token_stream streams[2]; /* for training, for evaluation; the same where `documents` is false */
} token_input;

typedef struct token_data {
  kva_data_order order;
  bool documents; /* divided by documents */
  int64_t length; /* of sequences; 0: any */
  int n_files;
  token_input *files;
} token_data;

static void destroy(void *self) {
  token_data *d = self;
  for (int i = 0; d->files && i < d->n_files; i++) {
    kva_tokens_close(&d->files[i].file);
    free(d->files[i].streams[0].runs);
    free(d->files[i].streams[1].runs);
    free(d->files[i].path);
  }
  free(d->files);
  free(d);
}

static int64_t windows_of(const token_input *f, bool evaluation, int64_t length) {
  const kva_token_stream *s = &f->streams[evaluation];
  return s->n ? (s->n - 1) / length : 0;
}

/* The file that contains global window *w; *w becomes the window's number within that file. */
static const token_input *find_file(const token_data *d, bool evaluation, int64_t length, int64_t *w) {
  int i = 0;
  for (; i + 1 < d->n_files; i++) {
    int64_t n = windows_of(&d->files[i], evaluation, length);
    if (*w < n) break;
    *w -= n;
  }
  return &d->files[i];
}

static kva_status put_window(const token_data *d, bool evaluation, int64_t window, int64_t r, int n,
                             const kva_tensor *tensors, kva_diag *diag) {
  int64_t length = tensors[0].dims[1];
  const token_input *f = find_file(d, evaluation, length, &window);
  for (int64_t t = 0; t <= length; t++) {
    int64_t place = kva_token_stream_place(&f->streams[evaluation], window * length + t);
    uint32_t token = kva_tokens_at(&f->file, place);
    if (token >= f->file.info.vocab) {
      kva_loc loc = {.file = f->path};
      return kva_error(diag, &loc, "token %lld is %u, outside of the vocabulary of %lld; the file is damaged",
                       (long long)place, token, (long long)f->file.info.vocab);
    }
    if (t < length) kva_data_put(&tensors[0], r * length + t, token);
    if (t > 0 && n > 1) kva_data_put(&tensors[1], r * length + t - 1, token);
  }
  return KVA_OK;
}

static int64_t all_windows_of(const token_data *d, bool evaluation, int64_t length) {
  int64_t n = 0;
  for (int i = 0; i < d->n_files; i++) n += windows_of(&d->files[i], evaluation, length);
  return n;
}

static kva_status too_short(const token_data *d, int64_t length, kva_diag *diag) {
  int64_t longest = 0;
  for (int i = 0; i < d->n_files; i++)
    if (d->files[i].file.info.count > longest) longest = d->files[i].file.info.count;
  return kva_error(diag, NULL,
                   "data 'tokens': there is nothing to train on: sequences of %lld need %lld tokens, the longest file "
                   "has %lld; give a smaller length=T",
                   (long long)length, (long long)length + 1, (long long)longest);
}

static kva_status no_windows(const token_data *d, int64_t length, bool evaluation, kva_diag *diag) {
  int64_t training = all_windows_of(d, false, length);
  if (!d->documents && !training) return too_short(d, length, diag);
  if (!d->documents || !d->order.eval) return kva_data_no_rows("data 'tokens'", &d->order, training, evaluation, diag);
  return kva_error(
      diag, NULL,
      "data 'tokens': the documents for %s have no window of %lld tokens; give another eval=X, or split=end",
      evaluation ? "evaluation" : "training", (long long)length);
}

static kva_status fill(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                       kva_diag *diag) {
  static const char *const names[] = {"tokens", "targets"};
  const token_data *d = self;
  KVA_TRY(kva_data_check_sequences("tokens", 2, names, d->length, n, tensors, diag));
  int64_t batch = tensors[0].dims[0], windows = all_windows_of(d, evaluation, tensors[0].dims[1]);
  for (int64_t r = 0; r < batch; r++) {
    int64_t (*row)(const kva_data_order *, int64_t, uint64_t, int64_t, bool, int64_t, int64_t) =
        d->documents ? kva_data_row_of : kva_data_row;
    int64_t window = row(&d->order, windows, seed, step, evaluation, batch, r);
    if (window < 0) return no_windows(d, tensors[0].dims[1], evaluation, diag);
    KVA_TRY(put_window(d, evaluation, window, r, n, tensors, diag));
  }
  return KVA_OK;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_status open_file(token_data *d, const kva_data_item *item, int64_t vocab, kva_diag *diag) {
  if (item->name)
    return kva_error(diag, NULL,
                     "data 'tokens' has no argument '%s'; it takes files, length=T, eval=X and split=documents or end",
                     item->name);
  token_input *f = &d->files[d->n_files];
  f->path = strdup(item->value);
  if (!f->path) return KVA_NO_MEMORY;
  d->n_files++;
  KVA_TRY(kva_tokens_open(item->value, diag, &f->file));
  f->streams[0].n = f->streams[1].n = f->file.info.count;
  if (f->file.info.vocab <= vocab) return KVA_OK;
  kva_loc loc = {.file = item->value};
  return kva_error(diag, &loc, "the tokens are of a vocabulary of %lld, the model's has %lld; set the model's to that",
                   (long long)f->file.info.vocab, (long long)vocab);
}

static kva_status open_files(token_data *d, const kva_data_spec *spec, const kva_data_options *o, kva_diag *diag) {
  if (!spec->n_items)
    return kva_error(diag, NULL, "data 'tokens' needs a file: tokens:FILE (`kvasir data` makes them)");
  if (o->vocab < 1)
    return kva_error(diag, NULL, "data 'tokens' needs a model whose first output ends in [..., vocabulary]");
  d->files = calloc((size_t)spec->n_items, sizeof *d->files);
  if (!d->files) return KVA_NO_MEMORY;
  for (int i = 0; i < spec->n_items; i++) KVA_TRY(open_file(d, &spec->items[i], o->vocab, diag));
  return KVA_OK;
}

/* Without a choice: by documents if all files have their ends marked and evaluation can expect one of them at least. */
static bool by_documents(const token_data *d, kva_data_split split) {
  int64_t documents = 0;
  if (split != KVA_SPLIT_CHOSEN) return split == KVA_SPLIT_DOCUMENTS;
  for (int i = 0; i < d->n_files; i++) {
    if (d->files[i].file.info.end < 0) return false;
    documents += d->files[i].file.info.documents;
  }
  return d->order.eval > 0 && (double)documents * d->order.eval >= 1;
}

/* One stream for both sides. */
static void join(token_data *d) {
  d->documents = false;
  for (int i = 0; i < 2 * d->n_files; i++) {
    kva_token_stream *s = &d->files[i / 2].streams[i % 2];
    free(s->runs);
    *s = (kva_token_stream){.n = d->files[i / 2].file.info.count};
  }
}

static kva_status divide(token_data *d, kva_data_split split, kva_diag *diag) {
  int64_t documents[2] = {0};
  if (!by_documents(d, split)) return KVA_OK;
  d->documents = true;
  for (int i = 0; i < d->n_files; i++) {
    token_input *f = &d->files[i];
    kva_token_stream streams[2] = {{0}};
    kva_status status = kva_token_streams_make(&f->file, d->order.eval, diag, streams);
    memcpy(f->streams, streams, sizeof streams);
    KVA_TRY(status);
    for (int k = 0; k < 2; k++) documents[k] += streams[k].documents;
  }
  if (split == KVA_SPLIT_CHOSEN && (!documents[0] || !documents[1])) join(d);
  return KVA_OK;
}

static uint64_t identity(const token_data *d) {
  uint64_t id = kva_hash(0, &d->order.eval, sizeof d->order.eval);
  for (int i = 0; i < d->n_files; i++) {
    const kva_token_info *info = &d->files[i].file.info;
    id = kva_hash(id, &info->count, sizeof info->count);
    id = kva_hash(id, &info->hash, sizeof info->hash);
  }
  return d->documents ? kva_hash(id, "documents", 9) : id;
}

kva_status kva_data_open_tokens(const kva_data_spec *spec, const kva_data_options *options, kva_diag *diag,
                                kva_data_source *out_source) {
  token_data *d = calloc(1, sizeof *d);
  if (!d) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a data source of tokens");
  d->order = kva_data_order_of(spec, options);
  d->length = spec->length;
  kva_status status = open_files(d, spec, options, diag);
  if (!status) status = divide(d, spec->split, diag);
  if (status) {
    destroy(d);
    return status;
  }
  *out_source = (kva_data_source){.id = identity(d), .fill = fill, .destroy = destroy, .self = d};
  return KVA_OK;
}
