/* Writes GGUF files (version 3): metadata and tensors that the block `gguf` has rows for. */
#include "tools/checkpoint/checkpoint.h"

#include <stdlib.h>

enum { ALIGNMENT = 32, U32 = 4, F32 = 6, BOOL = 7, STRING = 8 };

typedef struct writer {
  const kva_module *m;
  const kva_names *names;
  const kva_packing *packing; /* of matrices */
  kva_diag *diag;
  kva_arena *scratch;
  const char *family;          /* stands for '*' in keys */
  kva_text pairs, infos, data; /* the parts of the file */
  uint64_t n_pairs, n_infos;
} writer;

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void add_number(kva_text *out, uint64_t v, int bytes) {
  char b[8];
  for (int i = 0; i < bytes; i++) b[i] = (char)(v >> 8 * i);
  kva_text_add_bytes(out, b, (size_t)bytes);
}

static void add_string(kva_text *out, const char *s) {
  add_number(out, strlen(s), 8);
  kva_text_add_bytes(out, s, strlen(s));
}

static void pad(kva_text *out, size_t before) {
  static const char zeros[ALIGNMENT];
  size_t over = (before + out->len) % ALIGNMENT;
  if (over) kva_text_add_bytes(out, zeros, ALIGNMENT - over);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

static void add_key(writer *w, const char *key, int type) {
  add_string(&w->pairs, key);
  add_number(&w->pairs, (uint64_t)type, 4);
  w->n_pairs++;
}

static void add_string_pair(writer *w, const char *key, const char *value) {
  add_key(w, key, STRING);
  add_string(&w->pairs, value);
}

static kva_status add_value(writer *w, const char *key, const json_t *v) {
  if (json_is_string(v)) {
    add_string_pair(w, key, json_string_value(v));
  } else if (json_is_boolean(v)) {
    add_key(w, key, BOOL);
    add_number(&w->pairs, json_is_true(v), 1);
  } else if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= UINT32_MAX) {
    add_key(w, key, U32);
    add_number(&w->pairs, (uint64_t)json_integer_value(v), 4);
  } else if (json_is_real(v)) {
    float single = (float)json_real_value(v);
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    add_key(w, key, F32);
    add_number(&w->pairs, bits, 4);
  } else {
    return kva_fail(w->diag, KVA_UNSUPPORTED, NULL, "metadata '%s': a value that is no string, bool, or number", key);
  }
  return KVA_OK;
}

static const char *key_of(const writer *w, const char *name) {
  const char *star = strchr(name, '*');
  return star ? kva_arena_printf(w->scratch, "%.*s%s%s", (int)(star - name), name, w->family, star + 1) : name;
}

/* All names of a row: files that have several say the same in all. */
static kva_status add_field(writer *w, const kva_naming *row) {
  json_error_t ignored;
  json_t *v = row->value ? json_loads(row->value, JSON_DECODE_ANY, &ignored) : NULL;
  kva_status status = KVA_OK;
  for (uint32_t i = 0; v && i < row->n_names && status == KVA_OK; i++)
    if (!strstr(row->names[i], ".#")) status = add_value(w, key_of(w, row->names[i]), v);
  json_decref(v);
  return status;
}

/* The value of the first row, for '*'. */
static kva_status find_family(writer *w) {
  const kva_naming *row = w->names->rows.len ? &w->names->rows.data[0] : NULL;
  json_error_t ignored;
  json_t *v =
      row && row->kind == KVA_NAMING_FIELD && row->value ? json_loads(row->value, JSON_DECODE_ANY, &ignored) : NULL;
  const char *name = json_string_value(v);
  bool allowed = name != NULL && !row->n_allowed;
  for (uint32_t i = 0; name && i < row->n_allowed; i++) allowed |= !strcmp(row->allowed[i], row->value);
  w->family = name ? kva_arena_strdup(w->scratch, name) : "";
  json_decref(v);
  if (allowed) return KVA_OK;
  return kva_fail(w->diag, KVA_UNSUPPORTED, &w->names->loc, "models '%s' have no names in GGUF", w->family);
}

static kva_status add_metadata(writer *w) {
  KVA_TRY(find_family(w));
  for (uint32_t i = 0; i < w->names->rows.len; i++)
    if (w->names->rows.data[i].kind == KVA_NAMING_FIELD) KVA_TRY(add_field(w, &w->names->rows.data[i]));
  add_string_pair(w, "tokenizer.ggml.model", "none");
  add_key(w, "general.quantization_version", U32);
  add_number(&w->pairs, 2, 4);
  return KVA_OK;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Vectors stay floats, and so do rows that are no whole blocks. */
static const kva_packing *packing_for(const writer *w, uint32_t rank, int64_t columns) {
  return rank > 1 && columns % w->packing->elements == 0 ? w->packing : kva_packing_of_dtype(KVA_F32);
}

static kva_status add_rows(writer *w, const kva_naming *row, const kva_tensor_data *values, const kva_packing *packing,
                           int64_t rows, int64_t columns) {
  size_t bytes = (size_t)(columns / packing->elements * packing->bytes);
  float *numbers = malloc((size_t)(columns + 1) * sizeof *numbers);
  unsigned char *blocks = malloc(bytes + 1);
  for (int64_t r = 0; numbers && blocks && r < rows; r++) {
    kva_foreign_rows(row, values, r, 1, numbers);
    packing->encode(numbers, columns / packing->elements, blocks);
    kva_text_add_bytes(&w->data, (const char *)blocks, bytes);
  }
  bool ok = numbers && blocks;
  free(numbers);
  free(blocks);
  return ok ? KVA_OK
            : kva_fail(w->diag, KVA_NO_MEMORY, NULL, "no memory for a row of %lld numbers", (long long)columns);
}

static kva_status add_tensor(writer *w, const kva_state *s) {
  const kva_naming *row;
  const char *name = kva_names_tensor(w->names, s->name, w->scratch, &row);
  if (!name) return kva_error(w->diag, &w->names->loc, "no row is for parameter '%s'", s->name);
  if (row->kind == KVA_NAMING_ROW_NORMS) return KVA_OK;
  if (!s->data || s->init != KVA_INIT_DATA)
    return kva_error(w->diag, NULL, "parameter '%s' has no value: give --weights", s->name);
  uint32_t rank = s->data->rank;
  if (rank < 1 || rank > 2)
    return kva_fail(w->diag, KVA_UNSUPPORTED, NULL, "parameter '%s' is neither a vector nor a matrix", s->name);
  bool transposed = row->kind == KVA_NAMING_TRANSPOSED;
  int64_t rows = rank == 2 ? s->data->dims[transposed] : 1, columns = s->data->dims[rank == 2 && !transposed];
  const kva_packing *packing = packing_for(w, rank, columns);
  add_string(&w->infos, name);
  add_number(&w->infos, rank, 4);
  add_number(&w->infos, (uint64_t)columns, 8);
  if (rank == 2) add_number(&w->infos, (uint64_t)rows, 8);
  add_number(&w->infos, (uint64_t)packing->ggml, 4);
  add_number(&w->infos, w->data.len, 8);
  w->n_infos++;
  if (rank == 1 && row->pairs) rows = columns, columns = 1;
  KVA_TRY(add_rows(w, row, s->data, packing, rows, columns));
  pad(&w->data, 0);
  return KVA_OK;
}

static kva_status write(writer *w, const char *path) {
  KVA_TRY(add_metadata(w));
  for (uint32_t i = 0; i < w->m->states.len; i++)
    if (w->m->states.data[i]->kind == KVA_STATE_PARAM) KVA_TRY(add_tensor(w, w->m->states.data[i]));
  kva_text head = {0};
  add_number(&head, 0x46554747, 4);
  add_number(&head, 3, 4);
  add_number(&head, w->n_infos, 8);
  add_number(&head, w->n_pairs, 8);
  pad(&w->infos, head.len + w->pairs.len);
  const kva_file_part parts[] = {
      {head.data, head.len}, {w->pairs.data, w->pairs.len}, {w->infos.data, w->infos.len}, {w->data.data, w->data.len}};
  kva_status status = w->data.cut ? kva_fail(w->diag, KVA_NO_MEMORY, NULL, "no memory for the tensors")
                                  : kva_file_write_parts(path, 4, parts, w->diag);
  kva_text_free(&head);
  return status;
}

/* ---- what the file will be read as ------------------------------------------------------------------------------- */

/* Metadata and names of tensors, as a reader of the file has them, but for the rounding of numbers. */
static kva_status describe(writer *w, kva_foreign *f) {
  json_error_t ignored;
  KVA_TRY(find_family(w));
  f->config = json_object();
  for (uint32_t i = 0; i < w->names->rows.len; i++) {
    const kva_naming *row = &w->names->rows.data[i];
    for (uint32_t k = 0; row->kind == KVA_NAMING_FIELD && row->value && k < row->n_names; k++)
      if (!strstr(row->names[k], ".#"))
        json_object_set_new(f->config, key_of(w, row->names[k]), json_loads(row->value, JSON_DECODE_ANY, &ignored));
  }
  for (uint32_t i = 0; i < w->m->states.len; i++) {
    const kva_naming *row;
    const kva_state *s = w->m->states.data[i];
    const char *name = s->kind == KVA_STATE_PARAM ? kva_names_tensor(w->names, s->name, f->arena, &row) : NULL;
    if (name && row->kind != KVA_NAMING_ROW_NORMS) KVA_PUSH(f->arena, &f->tensors, (kva_foreign_tensor){.name = name});
  }
  return kva_foreign_index(f, w->diag);
}

static kva_status read_as_another(const writer *w) {
  kva_text places = {0};
  for (uint32_t i = 0; i < w->names->rows.len; i++) {
    const kva_naming *row = &w->names->rows.data[i];
    bool place = row->kind == KVA_NAMING_MISSING || (row->kind == KVA_NAMING_FIELD && strcmp(row->own, "_") != 0);
    if (place) kva_text_add(&places, "%s%s", places.len ? ", " : "", row->own);
  }
  kva_status status =
      kva_fail(w->diag, KVA_UNSUPPORTED, &w->names->loc,
               "the file would be read as another model: GGUF has places for %s, and another hyper-parameter of this "
               "model is not what follows from these",
               kva_text_string(&places));
  kva_text_free(&places);
  return status;
}

static kva_status compare_read(writer *w, const kva_foreign *f) {
  kva_load_options options = {0};
  kva_module *again = NULL;
  KVA_TRY(kva_foreign_defines(f, w->names, f->arena, w->diag, &options.n_defines, &options.defines));
  KVA_TRY(kva_load_model(w->names->loc.file, &options, w->diag, &again));
  const kva_function *own = kva_module_find_function(w->m, "main"), *other = kva_module_find_function(again, "main");
  bool same = own && other && kva_graph_hash(own->graph) == kva_graph_hash(other->graph);
  kva_module_destroy(again);
  return same ? KVA_OK : read_as_another(w);
}

kva_status kva_gguf_check(const kva_module *m, kva_diag *diag) {
  writer w = {.m = m, .diag = diag, .names = kva_names_find(m, "gguf")};
  if (!w.names) return kva_error(diag, NULL, "'%s' has no names for GGUF: a block `checkpoint gguf { ... }`", m->name);
  kva_foreign *f = kva_foreign_create(m->name, "gguf");
  w.scratch = f->arena;
  kva_status status = describe(&w, f);
  if (status == KVA_OK) status = compare_read(&w, f);
  kva_foreign_close(f);
  return status;
}

kva_status kva_gguf_write(const kva_module *m, const kva_packing *packing, const char *path, kva_diag *diag) {
  writer w = {.m = m, .packing = packing, .diag = diag, .names = kva_names_find(m, "gguf")};
  KVA_ASSERT(w.names);
  w.scratch = kva_arena_create();
  kva_status status = write(&w, path);
  kva_text_free(&w.pairs);
  kva_text_free(&w.infos);
  kva_text_free(&w.data);
  kva_arena_destroy(w.scratch);
  return status;
}
