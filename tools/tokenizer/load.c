/* Loads tokenizer.json of Hugging Face's `tokenizers` (format version 1.0), interpreted according to that package's
 * documentation and behaviour. Parts that only concern special tokens around a text (post_processor) or batches
 * (truncation, padding) are irrelevant here. Any other unknown part is an error that names it. */
#include "tools/tokenizer/internal.h"
#include "tools/tokenizer/json.h"
#include "tools/tokenizer/unicode.h"

#include <math.h>

/* GPT-2's pattern, which ByteLevel implies. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
enum { MAX_ID = 1 << 24, MAX_NESTED = 16 };

typedef struct loader {
  kva_tokenizer *t;
  const char *path;
  kva_diag *diag;
  int depth;
} loader;

static kva_loc loc_of(const loader *l, const kva_json *v) {
  return (kva_loc){.file = l->path, .line = v ? v->line : 0};
}

static kva_status wrong(const loader *l, const kva_json *v, const char *what) {
  kva_loc loc = loc_of(l, v);
  return kva_error(l->diag, &loc, "expected %s", what);
}

static kva_status unsupported(const loader *l, const kva_json *v, const char *part, const kva_json *type) {
  kva_loc loc = loc_of(l, v);
  const char *name = type && type->kind == KVA_JSON_STRING ? type->string : "of this form";
  return kva_fail(l->diag, KVA_UNSUPPORTED, &loc, "the %s %s is not supported", part, name);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

static bool is_null(const kva_json *v) {
  return !v || v->kind == KVA_JSON_NULL;
}

static bool get_bool(const kva_json *v, const char *key, bool otherwise) {
  const kva_json *m = kva_json_get(v, key);
  return m && m->kind == KVA_JSON_BOOL ? m->number != 0 : otherwise;
}

static kva_status get_bytes(const loader *l, const kva_json *v, const char *key, kva_bytes *out) {
  const kva_json *m = kva_json_get(v, key);
  kva_loc loc = loc_of(l, m ? m : v);
  if (!m || m->kind != KVA_JSON_STRING) return kva_error(l->diag, &loc, "expected a string \"%s\"", key);
  *out = (kva_bytes){m->string, m->size};
  return KVA_OK;
}

static kva_status take_id(const loader *l, const kva_json *v, uint32_t *out) {
  if (is_null(v) || v->kind != KVA_JSON_NUMBER || v->number < 0 || v->number >= MAX_ID || v->number != floor(v->number))
    return wrong(l, v, "the number of a token, less than 2^24");
  *out = (uint32_t)v->number;
  return KVA_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void add_step(const loader *l, kva_text_steps *to, kva_text_step s) {
  KVA_PUSH(l->t->arena, to, s);
}

static kva_status compile(const loader *l, const kva_json *v, kva_bytes pattern, kva_regex **out) {
  kva_loc loc = loc_of(l, v);
  if (!kva_utf8_valid(pattern.data, pattern.size)) return wrong(l, v, "UTF-8");
  return kva_regex_compile(pattern.data, pattern.size, l->t->arena, &loc, l->diag, out);
}

static kva_status split_by(const loader *l, const kva_json *v, const char *pattern, kva_split_behavior behavior,
                           bool invert, kva_text_steps *to) {
  kva_text_step s = {.kind = KVA_TEXT_SPLIT, .behavior = behavior, .invert = invert};
  KVA_TRY(compile(l, v, (kva_bytes){pattern, strlen(pattern)}, &s.regex));
  add_step(l, to, s);
  return KVA_OK;
}

/* {"String": ...} or {"Regex": ...} */
static kva_status take_pattern(const loader *l, const kva_json *v, kva_text_step *out) {
  const kva_json *p = kva_json_get(v, "pattern"), *text = kva_json_get(p, "String"), *regex = kva_json_get(p, "Regex");
  const kva_json *m = text ? text : regex;
  if (!m || m->kind != KVA_JSON_STRING) return wrong(l, v, "a pattern {\"String\": ...} or {\"Regex\": ...}");
  if (regex) return compile(l, m, (kva_bytes){m->string, m->size}, &out->regex);
  if (!m->size) return wrong(l, v, "a pattern that is not empty");
  out->from = (kva_bytes){m->string, m->size};
  return KVA_OK;
}

static kva_status byte_level(const loader *l, const kva_json *v, kva_text_steps *to) {
  if (get_bool(v, "add_prefix_space", true))
    add_step(l, to, (kva_text_step){.kind = KVA_TEXT_PREFIX, .to = {" ", 1}, .unless_there = true});
  if (get_bool(v, "use_regex", true)) KVA_TRY(split_by(l, v, gpt2_pattern, KVA_SPLIT_ISOLATED, false, to));
  add_step(l, to, (kva_text_step){.kind = KVA_TEXT_BYTE_CHARS});
  return KVA_OK;
}

static kva_status take_behavior(const loader *l, const kva_json *v, kva_split_behavior *out) {
  static const char *const names[KVA_SPLIT_BEHAVIORS] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                         "Contiguous"};
  const kva_json *m = kva_json_get(v, "behavior");
  for (int i = 0; i < KVA_SPLIT_BEHAVIORS; i++) {
    if (!kva_json_is(m, names[i])) continue;
    *out = (kva_split_behavior)i;
    return KVA_OK;
  }
  return wrong(l, v, "a behavior: Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static kva_status split_step(const loader *l, const kva_json *v, kva_text_steps *to) {
  kva_text_step s = {.kind = KVA_TEXT_SPLIT, .invert = get_bool(v, "invert", false)};
  KVA_TRY(take_pattern(l, v, &s));
  KVA_TRY(take_behavior(l, v, &s.behavior));
  add_step(l, to, s);
  return KVA_OK;
}

/* Replaces spaces by `replacement`, which also begins every word. */
static kva_status metaspace(const loader *l, const kva_json *v, kva_text_steps *to) {
  kva_bytes mark = {NULL, 0};
  const kva_json *scheme = kva_json_get(v, "prepend_scheme");
  KVA_TRY(get_bytes(l, v, "replacement", &mark));
  if (!mark.size) return wrong(l, v, "a replacement that is not empty");
  bool never = kva_json_is(scheme, "never") || (!scheme && !get_bool(v, "add_prefix_space", true));
  add_step(l, to, (kva_text_step){.kind = KVA_TEXT_REPLACE, .from = {" ", 1}, .to = mark});
  if (!never)
    add_step(
        l, to,
        (kva_text_step){
            .kind = KVA_TEXT_PREFIX, .to = mark, .unless_there = true, .only_first = kva_json_is(scheme, "first")});
  if (get_bool(v, "split", true))
    add_step(l, to, (kva_text_step){.kind = KVA_TEXT_SPLIT, .from = mark, .behavior = KVA_SPLIT_MERGED_WITH_NEXT});
  return KVA_OK;
}

static kva_status pre_tokenizer(loader *l, const kva_json *v, kva_text_steps *to) {
  const kva_json *type = kva_json_get(v, "type"), *list = kva_json_get(v, "pretokenizers");
  if (is_null(v)) return KVA_OK;
  if (kva_json_is(type, "Sequence") && list && list->kind == KVA_JSON_ARRAY) {
    if (++l->depth > MAX_NESTED) return wrong(l, v, "no deeper nesting");
    for (uint32_t i = 0; i < list->size; i++) KVA_TRY(pre_tokenizer(l, &list->items[i], to));
    l->depth--;
    return KVA_OK;
  }
  if (kva_json_is(type, "ByteLevel")) return byte_level(l, v, to);
  if (kva_json_is(type, "Split")) return split_step(l, v, to);
  if (kva_json_is(type, "Metaspace")) return metaspace(l, v, to);
  if (kva_json_is(type, "Whitespace")) return split_by(l, v, "\\w+|[^\\w\\s]+", KVA_SPLIT_REMOVED, true, to);
  if (kva_json_is(type, "WhitespaceSplit")) return split_by(l, v, "\\s+", KVA_SPLIT_REMOVED, false, to);
  if (kva_json_is(type, "Digits"))
    return split_by(l, v, "\\p{N}", get_bool(v, "individual_digits", false) ? KVA_SPLIT_ISOLATED : KVA_SPLIT_CONTIGUOUS,
                    false, to);
  return unsupported(l, v, "pre-tokenizer", type);
}

static kva_status normalizer(loader *l, const kva_json *v, kva_text_steps *to) {
  const kva_json *type = kva_json_get(v, "type"), *list = kva_json_get(v, "normalizers");
  kva_text_step s = {.kind = KVA_TEXT_REPLACE};
  if (is_null(v)) return KVA_OK;
  if (kva_json_is(type, "Sequence") && list && list->kind == KVA_JSON_ARRAY) {
    if (++l->depth > MAX_NESTED) return wrong(l, v, "no deeper nesting");
    for (uint32_t i = 0; i < list->size; i++) KVA_TRY(normalizer(l, &list->items[i], to));
    l->depth--;
    return KVA_OK;
  }
  if (kva_json_is(type, "NFC") || kva_json_is(type, "NFD")) {
    s.kind = type->string[2] == 'C' ? KVA_TEXT_NFC : KVA_TEXT_NFD;
  } else if (kva_json_is(type, "Prepend")) {
    s.kind = KVA_TEXT_PREFIX;
    KVA_TRY(get_bytes(l, v, "prepend", &s.to));
  } else if (kva_json_is(type, "Replace")) {
    KVA_TRY(take_pattern(l, v, &s));
    KVA_TRY(get_bytes(l, v, "content", &s.to));
  } else if (kva_json_is(type, "Strip")) {
    s = (kva_text_step){.kind = KVA_TEXT_STRIP,
                        .strip_left = get_bool(v, "strip_left", true),
                        .strip_right = get_bool(v, "strip_right", true)};
  } else {
    return unsupported(l, v, "normalizer", type);
  }
  add_step(l, to, s);
  return KVA_OK;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void set_id(const loader *l, kva_bytes text, uint32_t id) {
  kva_map_set(l->t->bpe.ids, text.data, text.size, (void *)((uintptr_t)id + 1));
  if (l->t->vocab <= id) l->t->vocab = (int64_t)id + 1;
}

static kva_status take_vocabulary(const loader *l, const kva_json *model) {
  const kva_json *vocab = kva_json_get(model, "vocab");
  if (!vocab || vocab->kind != KVA_JSON_OBJECT) return wrong(l, model, "a vocabulary: an object \"vocab\"");
  for (uint32_t i = 0; i < vocab->size; i++) {
    uint32_t id = 0;
    KVA_TRY(take_id(l, &vocab->items[i], &id));
    set_id(l, (kva_bytes){vocab->items[i].key, vocab->items[i].key_size}, id);
  }
  return KVA_OK;
}

/* "a b" or ["a", "b"] */
static bool merge_parts(const kva_json *m, kva_bytes *left, kva_bytes *right) {
  if (m->kind == KVA_JSON_ARRAY) {
    if (m->size != 2 || m->items[0].kind != KVA_JSON_STRING || m->items[1].kind != KVA_JSON_STRING) return false;
    *left = (kva_bytes){m->items[0].string, m->items[0].size};
    *right = (kva_bytes){m->items[1].string, m->items[1].size};
    return true;
  }
  const char *space = m->kind == KVA_JSON_STRING ? memchr(m->string, ' ', m->size) : NULL;
  if (!space) return false;
  *left = (kva_bytes){m->string, (size_t)(space - m->string)};
  *right = (kva_bytes){space + 1, m->size - left->size - 1};
  return !memchr(right->data, ' ', right->size);
}

static kva_status take_merge(const loader *l, const kva_json *m, uint32_t rank, kva_arena *scratch) {
  kva_bytes a, b;
  kva_loc loc = loc_of(l, m);
  if (!merge_parts(m, &a, &b)) return wrong(l, m, "a merge of two tokens, \"a b\" or [\"a\", \"b\"]");
  char *both = kva_arena_alloc(scratch, a.size + b.size + 1);
  memcpy(both, a.data, a.size);
  memcpy(both + a.size, b.data, b.size);
  kva_bpe *bpe = &l->t->bpe;
  int64_t left = kva_bpe_id(bpe, a.data, a.size), right = kva_bpe_id(bpe, b.data, b.size);
  int64_t id = kva_bpe_id(bpe, both, a.size + b.size);
  if (left < 0 || right < 0 || id < 0)
    return kva_error(l->diag, &loc, "merge %u: '%.*s' is not in the vocabulary", rank,
                     (int)(left < 0    ? a.size
                           : right < 0 ? b.size
                                       : a.size + b.size),
                     left < 0    ? a.data
                     : right < 0 ? b.data
                                 : both);
  kva_bpe_add_merge(bpe, (uint32_t)left, (uint32_t)right, rank, (uint32_t)id);
  return KVA_OK;
}

static kva_status take_merges(const loader *l, const kva_json *model) {
  const kva_json *merges = kva_json_get(model, "merges");
  if (!merges || merges->kind != KVA_JSON_ARRAY) return wrong(l, model, "a list \"merges\"");
  kva_bpe_reserve_merges(&l->t->bpe, merges->size);
  kva_arena *scratch = kva_arena_create();
  kva_status status = KVA_OK;
  for (uint32_t i = 0; !status && i < merges->size; i++) status = take_merge(l, &merges->items[i], i, scratch);
  kva_arena_destroy(scratch);
  return status;
}

static kva_status take_options(const loader *l, const kva_json *model) {
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  kva_bpe *b = &l->t->bpe;
  const kva_json *dropout = kva_json_get(model, "dropout"), *unknown = kva_json_get(model, "unk_token");
  if (!is_null(dropout) && dropout->number != 0) return wrong(l, dropout, "no dropout: it makes tokens random");
  for (int i = 0; i < 2; i++) {
    const kva_json *v = kva_json_get(model, affixes[i]);
    if (!is_null(v) && v->size) return unsupported(l, v, affixes[i], v);
  }
  b->fuse_unknown = get_bool(model, "fuse_unk", false);
  b->byte_fallback = get_bool(model, "byte_fallback", false);
  b->ignore_merges = get_bool(model, "ignore_merges", false);
  b->unknown = -1;
  if (!is_null(unknown) && unknown->kind == KVA_JSON_STRING) {
    b->unknown = kva_bpe_id(b, unknown->string, unknown->size);
    if (b->unknown < 0) return wrong(l, unknown, "an unk_token of the vocabulary");
  }
  for (int i = 0; i < 256; i++) {
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
    b->byte_ids[i] = kva_bpe_id(b, name, 6);
  }
  return KVA_OK;
}

static kva_status take_model(const loader *l, const kva_json *root) {
  const kva_json *model = kva_json_get(root, "model"), *type = kva_json_get(model, "type");
  if (!model || model->kind != KVA_JSON_OBJECT) return wrong(l, root, "a tokenizer.json with an object \"model\"");
  if (type && !kva_json_is(type, "BPE")) return unsupported(l, model, "model", type);
  l->t->bpe.ids = kva_map_create(l->t->arena);
  l->t->bpe.arena = l->t->arena;
  KVA_TRY(take_vocabulary(l, model));
  KVA_TRY(take_options(l, model));
  return take_merges(l, model);
}

/* ---- added tokens, decoding -------------------------------------------------------------------------------------- */

/* The normalised form of a token that is searched after the normaliser. */
static kva_status normalized_pattern(const loader *l, kva_added_token *a) {
  kva_pieces pieces = {0};
  kva_piece all = {.text = a->content, .token = -1, .first = true};
  KVA_PUSH(l->t->arena, &pieces, all);
  KVA_TRY(kva_text_apply(&l->t->normalizer, l->t->arena, &pieces, l->diag));
  a->pattern = pieces.len ? pieces.data[0].text : (kva_bytes){"", 0};
  return KVA_OK;
}

static kva_status take_added(const loader *l, const kva_json *v) {
  kva_added_token a = {.single_word = get_bool(v, "single_word", false),
                       .strip_left = get_bool(v, "lstrip", false),
                       .strip_right = get_bool(v, "rstrip", false),
                       .special = get_bool(v, "special", false)};
  a.normalized = get_bool(v, "normalized", !a.special);
  KVA_TRY(get_bytes(l, v, "content", &a.content));
  KVA_TRY(take_id(l, kva_json_get(v, "id"), &a.id));
  int64_t known = kva_bpe_id(&l->t->bpe, a.content.data, a.content.size);
  if (known >= 0) a.id = (uint32_t)known;
  a.pattern = a.content;
  if (a.normalized) KVA_TRY(normalized_pattern(l, &a));
  set_id(l, a.content, a.id);
  KVA_PUSH(l->t->arena, &l->t->added, a);
  return KVA_OK;
}

static kva_status take_all_added(const loader *l, const kva_json *root) {
  const kva_json *list = kva_json_get(root, "added_tokens");
  if (is_null(list)) return KVA_OK;
  if (list->kind != KVA_JSON_ARRAY) return wrong(l, list, "a list \"added_tokens\"");
  for (uint32_t i = 0; i < list->size; i++) KVA_TRY(take_added(l, &list->items[i]));
  return KVA_OK;
}

/* Decoding is for display only, so unknown decoders are not an error. */
static void take_decoder(const loader *l, const kva_json *v) {
  const kva_json *type = kva_json_get(v, "type"), *list = kva_json_get(v, "decoders");
  kva_tokenizer *t = l->t;
  if (is_null(v)) t->decode_spaced = true;
  for (uint32_t i = 0; list && list->kind == KVA_JSON_ARRAY && i < list->size; i++)
    if (!kva_json_get(&list->items[i], "decoders")) take_decoder(l, &list->items[i]);
  const kva_json *mark = kva_json_get(v, "replacement"), *pattern = kva_json_get(kva_json_get(v, "pattern"), "String");
  if (kva_json_is(type, "ByteLevel")) t->decode_byte_chars = true;
  if (kva_json_is(type, "ByteFallback")) t->decode_bytes = true;
  if (kva_json_is(type, "Replace") && kva_json_is(kva_json_get(v, "content"), " ")) mark = pattern;
  if (mark && mark->kind == KVA_JSON_STRING) t->decode_space = (kva_bytes){mark->string, mark->size};
}

static void list_texts(kva_tokenizer *t) {
  t->texts = KVA_NEW_ARRAY(t->arena, kva_token_text, t->vocab);
  for (uint32_t i = 0; i < kva_map_len(t->bpe.ids); i++) {
    kva_bytes text;
    text.data = kva_map_key_at(t->bpe.ids, i, &text.size);
    t->texts[(uintptr_t)kva_map_value_at(t->bpe.ids, i) - 1].text = text;
  }
  for (uint32_t i = 0; i < t->added.len; i++) t->texts[t->added.data[i].id].added = true;
}

static kva_status load(loader *l, const char *text, size_t size) {
  const kva_json *root;
  kva_tokenizer *t = l->t;
  KVA_TRY(kva_json_parse(l->path, text, size, t->arena, l->diag, &root));
  KVA_TRY(take_model(l, root));
  KVA_TRY(normalizer(l, kva_json_get(root, "normalizer"), &t->normalizer));
  KVA_TRY(pre_tokenizer(l, kva_json_get(root, "pre_tokenizer"), &t->pre_tokenizer));
  KVA_TRY(take_all_added(l, root));
  if (t->vocab == 0) return wrong(l, root, "a vocabulary that is not empty");
  take_decoder(l, kva_json_get(root, "decoder"));
  list_texts(t);
  return KVA_OK;
}

kva_status kva_tokenizer_parse(const char *path, const char *json, size_t size, kva_diag *diag,
                               kva_tokenizer **out_tokenizer) {
  *out_tokenizer = NULL;
  kva_arena *arena = kva_arena_create();
  kva_tokenizer *t = KVA_NEW(arena, kva_tokenizer);
  t->arena = arena;
  loader l = {.t = t, .path = path, .diag = diag};
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
