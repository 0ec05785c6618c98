/* Parses the text that names a data source, and defines the order in which rows of files are read.
 *
 * Order: rows are numbered, and the last ones are reserved for evaluation. An epoch reads every training row once, in
 * an order given by a keyed bijection of the row numbers. So batch `step` is known without the batches before it and
 * without a table. The bijection is a balanced Feistel network over the smallest even number of bits that holds n, with
 * Philox as round function. Numbers outside [0, n) go through it again until they fall inside (cycle walking: Black and
 * Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002), fewer than four times on average. */
#include "runtime/data.h"

#include "runtime/base/numbers.h"
#include "runtime/base/platform.h"

#include <math.h>
#include <stdlib.h>

enum { ROUNDS = 6 };
static const double default_eval = 0.05;

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

static kva_status take_length(const char *value, kva_diag *diag, int64_t *out) {
  char *end;
  double v = strtod(value, &end);
  if (!*value || *end || !(v >= 1 && v <= INT32_MAX) || v != floor(v))
    return kva_error(diag, NULL, "data: length must be a whole number above 0, found '%s'", value);
  *out = (int64_t)v;
  return KVA_OK;
}

static kva_status take_eval(const char *value, kva_diag *diag, double *out) {
  char *end;
  *out = strtod(value, &end);
  if (!*value || *end || !(*out >= 0 && *out < 1))
    return kva_error(diag, NULL, "data: eval is the share of the rows for evaluation, 0 to less than 1, found '%s'",
                     value);
  return KVA_OK;
}

static kva_status take_split(const char *value, kva_diag *diag, kva_data_split *out) {
  *out = !strcmp(value, "documents") ? KVA_SPLIT_DOCUMENTS : !strcmp(value, "end") ? KVA_SPLIT_END : KVA_SPLIT_CHOSEN;
  if (*out) return KVA_OK;
  return kva_error(diag, NULL, "data: split must be documents or end, found '%s'", value);
}

static kva_status take_weight(const char *value, kva_diag *diag, double *out) {
  char *end;
  *out = strtod(value, &end);
  if (!*value || *end || !(*out > 0 && *out <= 1e9))
    return kva_error(diag, NULL, "data: weight must be above 0 and at most 1e9, found '%s'", value);
  return KVA_OK;
}

static kva_status take_item(kva_data_spec *spec, char *item, kva_diag *diag) {
  char *equals = strchr(item, '=');
  if (equals) *equals = 0;
  const char *name = equals ? item : NULL, *value = equals ? equals + 1 : item;
  if (name && !strcmp(name, "length")) return take_length(value, diag, &spec->length);
  if (name && !strcmp(name, "eval")) return take_eval(value, diag, &spec->eval);
  if (name && !strcmp(name, "weight")) return take_weight(value, diag, &spec->weight);
  if (name && !strcmp(name, "split")) {
    if (!strcmp(spec->kind, "tokens")) return take_split(value, diag, &spec->split);
    return kva_error(diag, NULL, "data '%s' has no documents; split= is for tokens", spec->kind);
  }
  if (!*value || (name && !*name)) return kva_error(diag, NULL, "data '%s': an item is empty", spec->kind);
  if (spec->n_items == KVA_DATA_MAX_ITEMS)
    return kva_error(diag, NULL, "data '%s': more than %d items", spec->kind, KVA_DATA_MAX_ITEMS);
  spec->items[spec->n_items++] = (kva_data_item){name, value};
  return KVA_OK;
}

static kva_status parse_source(char *text, kva_arena *arena, kva_diag *diag, kva_data_spec *out_spec) {
  *out_spec = (kva_data_spec){.eval = -1};
  size_t n = strcspn(text, ":");
  out_spec->kind = kva_arena_strndup(arena, text, n);
  char *item = text[n] ? text + n + 1 : NULL;
  while (item) {
    char *comma = strchr(item, ',');
    if (comma) *comma++ = 0;
    KVA_TRY(take_item(out_spec, item, diag));
    item = comma;
  }
  return KVA_OK;
}

kva_status kva_data_parse(const char *text, kva_arena *arena, kva_diag *diag, int *out_n, kva_data_spec **out_specs) {
  int n = 1;
  for (const char *at = text; (at = strchr(at, ';')); at++) n++;
  kva_data_spec *specs = *out_specs = KVA_NEW_ARRAY(arena, kva_data_spec, n);
  *out_n = n;
  char *source = kva_arena_strdup(arena, text);
  for (int i = 0; i < n; i++) {
    char *next = strchr(source, ';');
    if (next) *next++ = 0;
    KVA_TRY(parse_source(source, arena, diag, &specs[i]));
    source = next;
  }
  if (n == 1 && specs->weight)
    return kva_error(diag, NULL, "data '%s': weight=%g is for a mixture of several sources", specs->kind,
                     specs->weight);
  return KVA_OK;
}

int64_t kva_data_length(const char *text) {
  kva_arena *arena = kva_arena_create();
  kva_data_spec *specs;
  int n = 0;
  int64_t length = 0;
  locale_t before = kva_numbers_enter();
  if (kva_data_parse(text, arena, NULL, &n, &specs) != KVA_OK) n = 0;
  kva_numbers_leave(before);
  for (int i = 0; i < n && !length; i++) length = specs[i].length;
  kva_arena_destroy(arena);
  return length;
}

/* ---- order of rows ----------------------------------------------------------------------------------------------- */

uint64_t kva_permute(uint64_t key, uint64_t epoch, uint64_t n, uint64_t i) {
  int half = 1;
  while (half < 32 && n > 1 && (n - 1) >> (2 * half)) half++;
  uint64_t mask = ((uint64_t)1 << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
      uint64_t mixed = left ^ (kva_philox4x32(round << 32 | right, epoch, key).v[0] & mask);
      left = right;
      right = mixed;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

kva_data_order kva_data_order_of(const kva_data_spec *spec, const kva_data_options *options) {
  return (kva_data_order){.eval = spec->eval < 0 ? default_eval : spec->eval,
                          .rank = options->rank,
                          .world = options->world ? options->world : 1};
}

/* With two rows or more, training gets at least one, and so does evaluation unless eval is 0. */
static int64_t eval_rows(const kva_data_order *order, int64_t rows) {
  int64_t n = (int64_t)floor((double)rows * order->eval);
  if (order->eval > 0 && n == 0 && rows > 1) n = 1;
  return n < rows ? n : rows - (rows > 0);
}

int64_t kva_data_row_of(const kva_data_order *order, int64_t rows, uint64_t seed, int64_t step, bool evaluation,
                        int64_t batch, int64_t r) {
  if (rows <= 0) return -1;
  uint64_t key = kva_hash(kva_hash(0, &seed, sizeof seed), evaluation ? "e" : "t", 1);
  uint64_t batches = (uint64_t)(step - 1) * (uint64_t)order->world + (uint64_t)order->rank;
  uint64_t index = (evaluation ? (uint64_t)step : batches) * (uint64_t)batch + (uint64_t)r;
  uint64_t epoch = evaluation ? 0 : index / (uint64_t)rows;
  return (int64_t)kva_permute(key, epoch, (uint64_t)rows, index % (uint64_t)rows);
}

int64_t kva_data_row(const kva_data_order *order, int64_t rows, uint64_t seed, int64_t step, bool evaluation,
                     int64_t batch, int64_t r) {
  int64_t n_eval = eval_rows(order, rows);
  int64_t row = kva_data_row_of(order, evaluation ? n_eval : rows - n_eval, seed, step, evaluation, batch, r);
  return evaluation && row >= 0 ? rows - n_eval + row : row;
}

kva_status kva_data_no_rows(const char *what, const kva_data_order *order, int64_t rows, bool evaluation,
                            kva_diag *diag) {
  if (!evaluation || !rows) return kva_error(diag, NULL, "%s: there is nothing to train on", what);
  return kva_error(diag, NULL,
                   "%s: nothing is left for evaluation (%lld rows or windows, eval=%g); give eval=X, or no evaluation",
                   what, (long long)rows, order->eval);
}
