/* The registry of data generators, and what they have in common: arguments, streams, filling of tensors.
 *
 * Tensors, by number asked for: tokens [B, T]; targets [B, T]: the next token where it counts, else -1 (argument
 * all = 1: the next token everywhere); first [B, T]: the same at the first position that counts, else -1. A row is
 * drawn T + 1 long and split, so that every position has a next token. Row r of step s is a function of (seed, s, r);
 * evaluation data come from counters that training never uses. */
#include "runtime/data.h"

#include "runtime/base/platform.h"

#include <stdlib.h>

static const kva_generator *const generators[] = {&kva_generator_induction, &kva_generator_ngram,
                                                  &kva_generator_random};
enum {
  N_GENERATORS = sizeof generators / sizeof *generators,
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

/* ---- filling -------------------------------------------------------------------------------------------------------
 */

static kva_status check_tensors(const char *name, int n, const kva_tensor *tensors, kva_diag *diag) {
  static const char *const names[MAX_TENSORS] = {"tokens", "targets", "first"};
  if (n < 1 || n > MAX_TENSORS)
    return kva_error(diag, NULL, "data '%s' gives tokens, targets and first; the program has %d data inputs", name, n);
  for (int i = 0; i < n; i++) {
    const kva_tensor *t = &tensors[i];
    if (t->dtype != KVA_I32 && t->dtype != KVA_I64)
      return kva_error(diag, NULL, "data '%s': input %d (%s) must be int32 or int64, found %s", name, i, names[i],
                       kva_dtype_name(t->dtype));
    if (t->rank != 2 || t->dims[0] != tensors[0].dims[0] || t->dims[1] != tensors[0].dims[1])
      return kva_error(diag, NULL, "data '%s': input %d (%s) must be a matrix [batch, length] like the tokens", name, i,
                       names[i]);
    if (t->dims[1] < 1 || t->dims[1] > INT32_MAX / 2)
      return kva_error(diag, NULL, "data '%s': a sequence cannot be %lld long", name, (long long)t->dims[1]);
  }
  return KVA_OK;
}

static kva_status reserve(kva_generated_data *d, int64_t length, kva_diag *diag) {
  if (length <= d->capacity) return KVA_OK;
  free(d->row);
  free(d->counted);
  d->capacity = 0;
  d->row = malloc(((size_t)length + 1) * sizeof *d->row);
  d->counted = malloc((size_t)length * sizeof *d->counted);
  if (!d->row || !d->counted) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a sequence");
  d->capacity = length;
  return KVA_OK;
}

static void put(const kva_tensor *t, int64_t i, int32_t v) {
  if (t->dtype == KVA_I32)
    ((int32_t *)t->data)[i] = v;
  else
    ((int64_t *)t->data)[i] = v;
}

static void put_row(const kva_generated_data *d, int64_t r, int n, const kva_tensor *tensors) {
  int64_t length = tensors[0].dims[1];
  bool all = d->args[ALL] != 0, seen = false;
  for (int64_t t = 0; t < length; t++) {
    int64_t at = r * length + t;
    bool first = d->counted[t] && !seen;
    seen |= d->counted[t];
    put(&tensors[0], at, d->row[t]);
    if (n > 1) put(&tensors[1], at, all || d->counted[t] ? d->row[t + 1] : -1);
    if (n > 2) put(&tensors[2], at, first ? d->row[t + 1] : -1);
  }
}

static kva_status fill(void *self, uint64_t seed, int64_t step, bool evaluation, int n, kva_tensor *tensors,
                       kva_diag *diag) {
  kva_generated_data *d = self;
  const kva_generator *g = d->generator;
  KVA_TRY(check_tensors(g->name, n, tensors, diag));
  int64_t length = tensors[0].dims[1];
  if (g->check_length) KVA_TRY(g->check_length(d, length, diag));
  KVA_TRY(reserve(d, length, diag));
  uint64_t key = kva_hash(kva_hash(0, &seed, sizeof seed), g->name, strlen(g->name));
  for (int64_t r = 0; r < tensors[0].dims[0]; r++) {
    kva_stream s = {.key = key, .high = (uint64_t)step << 1 | evaluation, .row = (uint64_t)r};
    g->draw(d, seed, &s, length, d->row, d->counted);
    put_row(d, r, n, tensors);
  }
  return KVA_OK;
}

static void destroy(void *self) {
  kva_generated_data *d = self;
  free(d->scratch);
  free(d->row);
  free(d->counted);
  free(d);
}

/* ---- creation ------------------------------------------------------------------------------------------------------
 */

static kva_status unknown_generator(const char *name, kva_diag *diag) {
  kva_text known = {0};
  for (int i = 0; i < N_GENERATORS; i++) kva_text_add(&known, "%s%s", i ? ", " : "", generators[i]->name);
  kva_status status = kva_error(diag, NULL, "no data generator is called '%s'; there are: %s", name, known.data);
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
      kva_error(diag, NULL, "data '%s' has no argument '%s'; it has: %s", g->name, arg->name, known.data);
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

kva_status kva_data_create(const char *name, int n_args, const kva_data_arg *args, int64_t vocab, kva_diag *diag,
                           kva_data_source *out_source) {
  *out_source = (kva_data_source){0};
  int i = 0;
  while (i < N_GENERATORS && strcmp(generators[i]->name, name)) i++;
  if (i == N_GENERATORS) return unknown_generator(name, diag);
  kva_generated_data *d = calloc(1, sizeof *d);
  if (!d) return KVA_NO_MEMORY;
  d->generator = generators[i];
  d->vocab = vocab;
  kva_status status = prepare(d, n_args, args, diag);
  if (status) {
    destroy(d);
    return status;
  }
  *out_source = (kva_data_source){.name = d->generator->name, .fill = fill, .destroy = destroy, .self = d};
  return KVA_OK;
}
