/* Loads tokenizer.json of Hugging Face's `tokenizers` (format version 1.0), interpreted according to that package's
 * documentation and behaviour. Of a post-processor the tokens before a text are taken; what concerns batches
 * (truncation, padding) is irrelevant here. Any other unknown part is an error that names it. */
#include "tools/tokenizer/load.h"

/* ---- shared ------------------------------------------------------------------------------------------------------ */

kva_status kva_json_wrong(const kva_loader *l, const char *part, const char *what) {
  return kva_error(l->diag, &l->loc, "%s: expected %s", part, what);
}

kva_status kva_json_unsupported(const kva_loader *l, const char *part, const json_t *type) {
  const char *name = json_is_string(type) ? json_string_value(type) : "of this form";
  return kva_fail(l->diag, KVA_UNSUPPORTED, &l->loc, "the %s %s is not supported", part, name);
}

bool kva_json_is(const json_t *v, const char *string) {
  return json_is_string(v) && !strcmp(json_string_value(v), string);
}

bool kva_json_flag(const json_t *v, const char *key, bool otherwise) {
  const json_t *m = json_object_get(v, key);
  return json_is_boolean(m) ? json_is_true(m) : otherwise;
}

kva_bytes kva_json_text(const kva_loader *l, const json_t *string) {
  size_t size = json_string_length(string);
  return (kva_bytes){kva_arena_strndup(l->t->arena, json_string_value(string), size), size};
}

kva_status kva_json_bytes(const kva_loader *l, const json_t *v, const char *key, kva_bytes *out) {
  const json_t *m = json_object_get(v, key);
  if (!json_is_string(m)) return kva_error(l->diag, &l->loc, "expected a string \"%s\"", key);
  *out = kva_json_text(l, m);
  return KVA_OK;
}

/* ---- decoding, tokens around a text ------------------------------------------------------------------------------ */

/* Decoding is for display only, so unknown decoders are not an error. */
static void take_decoder(const kva_loader *l, const json_t *v) {
  const json_t *type = json_object_get(v, "type"), *list = json_object_get(v, "decoders");
  kva_tokenizer *t = l->t;
  if (!v || json_is_null(v)) t->decode_spaced = true;
  for (size_t i = 0; i < json_array_size(list); i++)
    if (!json_object_get(json_array_get(list, i), "decoders")) take_decoder(l, json_array_get(list, i));
  const json_t *mark = json_object_get(v, "replacement");
  if (kva_json_is(type, "ByteLevel")) t->decode_byte_chars = true;
  if (kva_json_is(type, "ByteFallback")) t->decode_bytes = true;
  if (kva_json_is(type, "Replace") && kva_json_is(json_object_get(v, "content"), " "))
    mark = json_object_get(json_object_get(v, "pattern"), "String");
  if (json_is_string(mark)) t->decode_space = kva_json_text(l, mark);
  if (!kva_json_is(type, "WordPiece")) return;
  const json_t *prefix = json_object_get(v, "prefix");
  t->decode_spaced = true;
  if (json_is_string(prefix)) t->decode_prefix = kva_json_text(l, prefix);
}

static void add_begin(const kva_loader *l, const json_t *name) {
  int64_t id = json_is_string(name) ? kva_tokenizer_find(l->t, json_string_value(name)) : -1;
  if (id >= 0) KVA_PUSH(l->t->arena, &l->t->begin, (uint32_t)id);
}

/* Tokens that stand before the first sequence: of a template, or BERT's [CLS]. */
static void take_post_processor(const kva_loader *l, const json_t *v) {
  const json_t *list = json_object_get(v, "processors"), *single = json_object_get(v, "single");
  for (size_t i = 0; i < json_array_size(list); i++)
    if (!json_object_get(json_array_get(list, i), "processors")) take_post_processor(l, json_array_get(list, i));
  add_begin(l, json_array_get(json_object_get(v, "cls"), 0));
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *item = json_array_get(single, i);
    if (json_object_get(item, "Sequence")) break;
    add_begin(l, json_object_get(json_object_get(item, "SpecialToken"), "id"));
  }
}

static void list_texts(kva_tokenizer *t) {
  t->texts = KVA_NEW_ARRAY(t->arena, kva_token_text, t->vocab);
  for (uint32_t i = 0; i < kva_map_len(t->vocabulary.ids); i++) {
    kva_bytes text;
    text.data = kva_map_key_at(t->vocabulary.ids, i, &text.size);
    t->texts[(uintptr_t)kva_map_value_at(t->vocabulary.ids, i) - 1].text = text;
  }
  for (uint32_t i = 0; i < t->added.len; i++) {
    t->texts[t->added.data[i].id].added = true;
    t->texts[t->added.data[i].id].special = t->added.data[i].special;
  }
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static kva_status take_all(kva_loader *l, const json_t *root) {
  kva_tokenizer *t = l->t;
  KVA_TRY(kva_json_model(l, root));
  KVA_TRY(kva_json_normalizer(l, json_object_get(root, "normalizer"), &t->normalizer));
  KVA_TRY(kva_json_pre_tokenizer(l, json_object_get(root, "pre_tokenizer"), &t->pre_tokenizer));
  KVA_TRY(kva_json_added(l, root));
  if (t->vocab == 0) return kva_json_wrong(l, "model", "a vocabulary that is not empty");
  take_decoder(l, json_object_get(root, "decoder"));
  take_post_processor(l, json_object_get(root, "post_processor"));
  list_texts(t);
  return KVA_OK;
}

static kva_status load(kva_loader *l, const char *text, size_t size) {
  json_error_t error;
  json_t *root = json_loadb(text, size, JSON_ALLOW_NUL, &error);
  if (!root) {
    kva_loc loc = {.file = l->loc.file, .line = error.line > 0 ? (uint32_t)error.line : 0};
    return kva_error(l->diag, &loc, "malformed JSON: %s", error.text);
  }
  kva_status status = take_all(l, root);
  json_decref(root);
  return status;
}

kva_status kva_tokenizer_parse(const char *path, const char *json, size_t size, kva_diag *diag,
                               kva_tokenizer **out_tokenizer) {
  *out_tokenizer = NULL;
  kva_arena *arena = kva_arena_create();
  kva_tokenizer *t = KVA_NEW(arena, kva_tokenizer);
  t->arena = arena;
  kva_loader l = {.t = t, .loc = {.file = path}, .diag = diag};
  kva_status status = load(&l, json, size);
  if (status) {
    kva_tokenizer_destroy(t);
    return status;
  }
  *out_tokenizer = t;
  return KVA_OK;
}

kva_status kva_tokenizer_load(const char *path, kva_diag *diag, kva_tokenizer **out_tokenizer) {
  *out_tokenizer = NULL;
  kva_file file;
  KVA_TRY(kva_file_map(path, diag, &file));
  kva_status status = kva_tokenizer_parse(path, file.data, file.size, diag, out_tokenizer);
  kva_file_unmap(&file);
  return status;
}
