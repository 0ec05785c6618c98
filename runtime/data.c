/* The registry of data sources, and what generators share: arguments, streams, filling of tensors.
 *
 * Up to three tensors, in this order. tokens [B, T]. targets [B, T]: the expected token at positions that count towards
 * the loss, in most tasks the next token, else -1; with argument all = 1 the next token everywhere. first [B, T]: the
 * target of the first position that counts, else -1.
 * A row is drawn T + 1 long and split, so that every position has a next token. Row r of step s is a function of (seed,
 * s, r). Evaluation uses counters that training never uses. */
#include "runtime/data.h"

#include "runtime/base/numbers.h"
#include "runtime/base/platform.h"

#include <stdlib.h>

static const kva_generator *const generators[] = {&kva_generator_induction, &kva_generator_ngram, &kva_generator_hop,
                                                  &kva_generator_igsm, &kva_generator_random};
static const struct {
  const char *name, *items;
  kva_data_opener open;
} file_kinds[] = {{"tokens", "FILE", kva_data_open_tokens},
                  {"npy", "INPUT=FILE", kva_data_open_tensors},
                  {"safetensors", "FILE", kva_data_open_tensors}};
enum {
  N_GENERATORS = sizeof generators / sizeof *generators,
  N_FILE_KINDS = sizeof file_kinds / sizeof *file_kinds,
  MAX_TENSORS = 3,
  ALL = 0 /* every generator's args[0] */
};

static uint32_t next_word(kva_stream *s) {
  if (s->drawn % 4 == 0) {
    kva_philox r = kva_philox4x32(s->row << 32 | s->drawn / 4, s->high, s->key);
    memcpy(s->block, r.v, sizeof s->block);
  }
  return s->block[s->drawn++ % 4];
}

/* D. Lemire: Fast random integer generation in an interval. ACM TOMACS 2019. */
uint32_t kva_stream_below(kva_stream *s, uint32_t n) {
  uint64_t product = (uint64_t)next_word(s) * n;
  if ((uint32_t)product < n)
    for (uint32_t reject = -n % n; (uint32_t)product < reject;) product = (uint64_t)next_word(s) * n;
  return (uint32_t)(product >> 32);
}

/* ---- filling tensors --------------------------------------------------------------------------------------------- */

kva_status kva_data_check_sequences(const char *source, int n_names, const char *const *names, int64_t length, int n,
                                    const kva_tensor *tensors, kva_diag *diag) {
  if (n < 1 || n > n_names)
    return kva_error(diag, NULL, "data '%s' gives %s, %s%s; the program has %d data inputs", source, names[0], names[1],
                     n_names > 2 ? " and first" : "", n);
  for (int i = 0; i < n; i++) {
    const kva_tensor *t = &tensors[i];
    if (t->dtype != KVA_I32 && t->dtype != KVA_I64)
      return kva_error(diag, NULL, "data '%s': input %d (%s) must be int32 or int64, found %s", source, i, names[i],
                       kva_dtype_name(t->dtype));
    if (t->rank != 2 || t->dims[0] != tensors[0].dims[0] || t->dims[1] != tensors[0].dims[1])
      return kva_error(diag, NULL, "data '%s': input %d (%s) must be a matrix [batch, length] like the tokens", source,
                       i, names[i]);
    if (t->dims[1] < 1 || t->dims[1] > INT32_MAX / 2)
      return kva_error(diag, NULL, "data '%s': a sequence cannot be %lld long", source, (long long)t->dims[1]);
    if (length && t->dims[1] != length)
      return kva_error(diag, NULL, "data '%s': length=%lld is given, but the program takes sequences of %lld", source,
                       (long long)length, (long long)t->dims[1]);
  }
  return KVA_OK;
}

static kva_status reserve(kva_generated_data *d, int64_t length, kva_diag *diag) {
  if (length <= d->capacity) return KVA_OK;
  free(d->row);
  free(d->targets);
  d->capacity = 0;
  d->row = malloc(((size_t)length + 1) * sizeof *d->row);
  d->targets = malloc((size_t)length * sizeof *d->targets);
  if (!d->row || !d->targets) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a sequence");
  d->capacity = length;
  return KVA_OK;
}

static void put_row(const kva_generated_data *d, int64_t r, int n, const kva_tensor *tensors) {
  int64_t length = tensors[0].dims[1];
  bool all = d->args[ALL] != 0, seen = false;
  for (int64_t t = 0; t < length; t++) {
    int64_t at = r * length + t;
    bool first = d->targets[t] >= 0 && !seen;
    seen |= first;
    kva_data_put(&tensors[0], at, d->row[t]);
    if (n > 1) kva_data_put(&tensors[1], at, all ? d->row[t + 1] : d->targets[t]);
    if (n > 2) kva_data_put(&tensors[2], at, first ? d->targets[t] : -1);
  }
}

static kva_status fill(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                       kva_diag *diag) {
  kva_generated_data *d = self;
  const kva_generator *g = d->generator;
  static const char *const names[MAX_TENSORS] = {"tokens", "targets", "first"};
  KVA_TRY(kva_data_check_sequences(g->name, MAX_TENSORS, names, d->length, n, tensors, diag));
  int64_t length = tensors[0].dims[1];
  if (g->check_length) KVA_TRY(g->check_length(d, length, diag));
  KVA_TRY(reserve(d, length, diag));
  uint64_t key = kva_hash(kva_hash(0, &seed, sizeof seed), g->name, strlen(g->name));
  int64_t rows = tensors[0].dims[0], all = evaluation ? rows : rows * d->world;
  for (int64_t r = 0; r < rows; r++) {
    int64_t row = evaluation ? r : rows * d->rank + r;
    kva_stream s = {.key = key, .high = (uint64_t)step << 1 | evaluation, .row = (uint64_t)row, .rows = (uint64_t)all};
    for (int64_t t = 0; t < length; t++) d->targets[t] = -1;
    g->draw(d, seed, &s, length, d->row, d->targets);
    put_row(d, r, n, tensors);
  }
  return KVA_OK;
}

static void destroy(void *self) {
  kva_generated_data *d = self;
  free(d->scratch);
  free(d->row);
  free(d->targets);
  free(d);
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_status unknown_source(const char *name, kva_diag *diag) {
  kva_text known = {0};
  for (int i = 0; i < N_GENERATORS; i++) kva_text_add(&known, "%s%s", i ? ", " : "", generators[i]->name);
  for (int i = 0; i < N_FILE_KINDS; i++) kva_text_add(&known, ", %s:%s", file_kinds[i].name, file_kinds[i].items);
  kva_status status =
      kva_error(diag, NULL, "no data source is called '%s'; there are: %s", name, kva_text_string(&known));
  kva_text_free(&known);
  return status;
}

static kva_status set_arg(kva_generated_data *d, const kva_data_arg *arg, kva_diag *diag) {
  const kva_generator *g = d->generator;
  for (int i = 0; i < g->n_args; i++) {
    if (strcmp(g->args[i].name, arg->name)) continue;
    if (!(arg->value >= 0 && arg->value <= INT32_MAX) || arg->value != (double)(int64_t)arg->value)
      return kva_error(diag, NULL, "argument '%s' of data '%s' must be a whole number, found %g", arg->name, g->name,
                       arg->value);
    d->args[i] = arg->value;
    return KVA_OK;
  }
  kva_text known = {0};
  for (int i = 0; i < g->n_args; i++)
    kva_text_add(&known, "%s%s (default %g)", i ? ", " : "", g->args[i].name, g->args[i].value);
  kva_status status =
      kva_error(diag, NULL, "data '%s' has no argument '%s'; it has: %s", g->name, arg->name, kva_text_string(&known));
  kva_text_free(&known);
  return status;
}

static kva_status prepare(kva_generated_data *d, int n_args, const kva_data_arg *args, kva_diag *diag) {
  const kva_generator *g = d->generator;
  for (int i = 0; i < g->n_args; i++) d->args[i] = g->args[i].value;
  for (int i = 0; i < n_args; i++) KVA_TRY(set_arg(d, &args[i], diag));
  if (d->vocab < 2 || d->vocab > INT32_MAX)
    return kva_error(diag, NULL, "data '%s' needs a vocabulary of at least 2 tokens, found %lld", g->name,
                     (long long)d->vocab);
  return g->prepare ? g->prepare(d, diag) : KVA_OK;
}

static const kva_generator *find_generator(const char *name) {
  for (int i = 0; i < N_GENERATORS; i++)
    if (!strcmp(generators[i]->name, name)) return generators[i];
  return NULL;
}

static uint64_t identity(const kva_generated_data *d) {
  uint64_t id = kva_hash(0, d->generator->name, strlen(d->generator->name));
  id = kva_hash(id, &d->vocab, sizeof d->vocab);
  return kva_hash(id, d->args, sizeof d->args);
}

kva_status kva_data_create(const char *name, int n_args, const kva_data_arg *args, int64_t vocab, kva_diag *diag,
                           kva_data_source *out_source) {
  *out_source = (kva_data_source){0};
  const kva_generator *generator = find_generator(name);
  if (!generator) return unknown_source(name, diag);
  kva_generated_data *d = calloc(1, sizeof *d);
  if (!d) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a data source");
  d->generator = generator;
  d->vocab = vocab;
  d->world = 1;
  kva_status status = prepare(d, n_args, args, diag);
  if (status) {
    destroy(d);
    return status;
  }
  *out_source =
      (kva_data_source){.name = d->generator->name, .id = identity(d), .fill = fill, .destroy = destroy, .self = d};
  return KVA_OK;
}

static kva_status number_args(const kva_data_spec *spec, kva_diag *diag, kva_data_arg *args) {
  for (int i = 0; i < spec->n_items; i++) {
    const kva_data_item *item = &spec->items[i];
    char *end;
    args[i] = (kva_data_arg){item->name, strtod(item->value, &end)};
    if (!item->name || *end)
      return kva_error(diag, NULL, "data '%s': expected NAME=NUMBER, found '%s%s%s'", spec->kind,
                       item->name ? item->name : "", item->name ? "=" : "", item->value);
  }
  return KVA_OK;
}

static kva_status open_generator(const kva_data_spec *spec, const kva_data_options *o, kva_diag *diag,
                                 kva_data_source *out_source) {
  kva_data_arg args[KVA_DATA_MAX_ITEMS];
  if (!find_generator(spec->kind)) return unknown_source(spec->kind, diag);
  if (!o->vocab)
    return kva_error(diag, NULL, "data '%s' needs a model whose first output ends in [..., vocabulary]", spec->kind);
  KVA_TRY(number_args(spec, diag, args));
  if (spec->eval >= 0)
    return kva_error(diag, NULL, "data '%s' is made as it is needed, for evaluation too; leave out eval=%g", spec->kind,
                     spec->eval);
  KVA_TRY(kva_data_create(spec->kind, spec->n_items, args, o->vocab, diag, out_source));
  kva_generated_data *d = out_source->self;
  d->length = spec->length;
  d->rank = o->rank;
  d->world = o->world ? o->world : 1;
  return KVA_OK;
}

bool kva_data_reads_files(const char *kind) {
  for (int i = 0; i < N_FILE_KINDS; i++)
    if (!strcmp(file_kinds[i].name, kind)) return true;
  return false;
}

kva_status kva_data_open_spec(const kva_data_spec *spec, const kva_data_options *o, kva_diag *diag,
                              kva_data_source *out_source) {
  for (int i = 0; i < N_FILE_KINDS; i++) {
    if (strcmp(file_kinds[i].name, spec->kind)) continue;
    KVA_TRY(file_kinds[i].open(spec, o, diag, out_source));
    out_source->name = file_kinds[i].name;
    return KVA_OK;
  }
  return open_generator(spec, o, diag, out_source);
}

static kva_status check_rank(const kva_data_options *o, kva_diag *diag) {
  int world = o->world ? o->world : 1;
  if (o->rank >= 0 && o->rank < world) return KVA_OK;
  return kva_error(diag, NULL, "data: rank %d is not one of %d", o->rank, world);
}

static kva_status open_text(const char *text, const kva_data_options *options, kva_diag *diag,
                            kva_data_source *out_source) {
  kva_arena *arena = kva_arena_create();
  kva_data_spec *specs;
  int n;
  kva_status status = kva_data_parse(text, arena, diag, &n, &specs);
  if (!status) status = check_rank(options, diag);
  if (!status && n > 1) status = kva_data_open_mixture(n, specs, options, diag, out_source);
  if (!status && n == 1) status = kva_data_open_spec(specs, options, diag, out_source);
  kva_arena_destroy(arena);
  return status;
}

kva_status kva_data_open(const char *text, const kva_data_options *options, kva_diag *diag,
                         kva_data_source *out_source) {
  *out_source = (kva_data_source){0};
  locale_t before = kva_numbers_enter();
  kva_status status = open_text(text, options, diag, out_source);
  kva_numbers_leave(before);
  return status;
}
