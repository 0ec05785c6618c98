/* The model of tokenizer.json with its vocabulary, and added tokens. */
#include "tools/tokenizer/load.h"

#include <math.h>

enum { MAX_ID = 1 << 24, MAX_PIECE = 1024 };

static void set_id(const kva_loader *l, kva_bytes text, uint32_t id) {
  kva_map_set(l->t->vocabulary.ids, text.data, text.size, (void *)((uintptr_t)id + 1));
  if (l->t->vocab <= id) l->t->vocab = (int64_t)id + 1;
}

static kva_status take_id(const kva_loader *l, const json_t *v, const char *part, uint32_t *out) {
  json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
  if (id < 0 || id >= MAX_ID) return kva_json_wrong(l, part, "the number of a token, less than 2^24");
  *out = (uint32_t)id;
  return KVA_OK;
}

/* ---- vocabularies ------------------------------------------------------------------------------------------------ */

static kva_status take_vocabulary(const kva_loader *l, json_t *model) {
  json_t *vocab = json_object_get(model, "vocab");
  if (!json_is_object(vocab)) return kva_json_wrong(l, "model", "a vocabulary: an object \"vocab\"");
  for (void *i = json_object_iter(vocab); i; i = json_object_iter_next(vocab, i)) {
    const char *key = json_object_iter_key(i);
    uint32_t id = 0;
    KVA_TRY(take_id(l, json_object_iter_value(i), "vocabulary", &id));
    set_id(l, (kva_bytes){key, strlen(key)}, id);
  }
  l->t->vocabulary.size = l->t->vocab;
  return KVA_OK;
}

static void find_bytes(kva_vocabulary *v) {
  for (int i = 0; i < 256; i++) {
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", (unsigned)i);
    v->byte_ids[i] = kva_vocabulary_id(v, name, 6);
  }
}

/* The member unk_token; *out stays without one. */
static kva_status take_unknown(const kva_loader *l, const json_t *model, int64_t *out) {
  const json_t *unknown = json_object_get(model, "unk_token");
  if (!json_is_string(unknown)) return KVA_OK;
  *out = kva_vocabulary_id(&l->t->vocabulary, json_string_value(unknown), json_string_length(unknown));
  return *out < 0 ? kva_json_wrong(l, "model", "an unk_token of the vocabulary") : KVA_OK;
}

/* ---- BPE --------------------------------------------------------------------------------------------------------- */

static kva_bytes bytes_of(const json_t *string) {
  return (kva_bytes){json_string_value(string), json_string_length(string)};
}

/* "a b" or ["a", "b"] */
static bool merge_parts(const json_t *m, kva_bytes *left, kva_bytes *right) {
  if (json_is_array(m)) {
    const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
    *left = bytes_of(a);
    *right = bytes_of(b);
    return json_array_size(m) == 2 && json_is_string(a) && json_is_string(b);
  }
  kva_bytes all = bytes_of(m);
  const char *space = all.data ? memchr(all.data, ' ', all.size) : NULL;
  if (!space) return false;
  *left = (kva_bytes){all.data, (size_t)(space - all.data)};
  *right = (kva_bytes){space + 1, all.size - left->size - 1};
  return !memchr(right->data, ' ', right->size);
}

static kva_status take_merge(const kva_loader *l, const json_t *m, uint32_t rank, kva_arena *scratch) {
  kva_bytes part[3];
  if (!merge_parts(m, &part[0], &part[1]))
    return kva_json_wrong(l, "list of merges", "a merge of two tokens, \"a b\" or [\"a\", \"b\"]");
  char *both = kva_arena_alloc(scratch, part[0].size + part[1].size + 1);
  memcpy(both, part[0].data, part[0].size);
  memcpy(both + part[0].size, part[1].data, part[1].size);
  part[2] = (kva_bytes){both, part[0].size + part[1].size};
  int64_t ids[3];
  for (int i = 0; i < 3; i++) {
    ids[i] = kva_vocabulary_id(&l->t->vocabulary, part[i].data, part[i].size);
    if (ids[i] < 0)
      return kva_error(l->diag, &l->loc, "merge %u: '%.*s' is not in the vocabulary", rank, (int)part[i].size,
                       part[i].data);
  }
  kva_bpe_add_merge(&l->t->bpe, (uint32_t)ids[0], (uint32_t)ids[1], rank, (uint32_t)ids[2]);
  return KVA_OK;
}

static kva_status take_merges(const kva_loader *l, const json_t *model) {
  const json_t *merges = json_object_get(model, "merges");
  if (!json_is_array(merges)) return kva_json_wrong(l, "model", "a list \"merges\"");
  uint32_t n = (uint32_t)json_array_size(merges);
  kva_bpe_reserve_merges(&l->t->bpe, n);
  kva_arena *scratch = kva_arena_create();
  kva_status status = KVA_OK;
  for (uint32_t i = 0; !status && i < n; i++) status = take_merge(l, json_array_get(merges, i), i, scratch);
  kva_arena_destroy(scratch);
  return status;
}

static kva_status load_bpe(const kva_loader *l, json_t *model) {
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  kva_tokenizer *t = l->t;
  if (json_number_value(json_object_get(model, "dropout")) != 0)
    return kva_json_wrong(l, "model", "no dropout: it makes tokens random");
  for (int i = 0; i < 2; i++) {
    const json_t *v = json_object_get(model, affixes[i]);
    if (json_string_length(v)) return kva_json_unsupported(l, affixes[i], v);
  }
  KVA_TRY(take_vocabulary(l, model));
  KVA_TRY(take_unknown(l, model, &t->vocabulary.unknown));
  find_bytes(&t->vocabulary);
  t->vocabulary.fuse_unknown = kva_json_flag(model, "fuse_unk", false);
  t->vocabulary.byte_fallback = kva_json_flag(model, "byte_fallback", false);
  t->bpe.ignore_merges = kva_json_flag(model, "ignore_merges", false);
  t->bpe.vocabulary = &t->vocabulary;
  t->bpe.arena = t->arena;
  t->encode = kva_bpe_encode;
  return take_merges(l, model);
}

/* ---- WordPiece --------------------------------------------------------------------------------------------------- */

static kva_status load_wordpiece(const kva_loader *l, json_t *model) {
  kva_tokenizer *t = l->t;
  const json_t *most = json_object_get(model, "max_input_chars_per_word");
  json_int_t max_chars = json_is_integer(most) ? json_integer_value(most) : 100;
  KVA_TRY(take_vocabulary(l, model));
  KVA_TRY(take_unknown(l, model, &t->vocabulary.unknown));
  if (t->vocabulary.unknown < 0) return kva_json_wrong(l, "model", "an unk_token of the vocabulary");
  KVA_TRY(kva_json_bytes(l, model, "continuing_subword_prefix", &t->wordpiece.prefix));
  if (max_chars < 1) return kva_json_wrong(l, "model", "max_input_chars_per_word of at least 1");
  t->wordpiece.max_chars = (size_t)max_chars;
  for (uint32_t i = 0; i < kva_map_len(t->vocabulary.ids); i++) {
    size_t size = 0;
    kva_map_key_at(t->vocabulary.ids, i, &size);
    if (t->wordpiece.max_size < size) t->wordpiece.max_size = size;
  }
  t->encode = kva_wordpiece_encode;
  return KVA_OK;
}

/* ---- Unigram ----------------------------------------------------------------------------------------------------- */

static kva_status take_piece(const kva_loader *l, const json_t *row, uint32_t id, double *scores) {
  kva_unigram *u = &l->t->unigram;
  const json_t *piece = json_array_get(row, 0), *score = json_array_get(row, 1);
  if (!json_is_string(piece) || !json_is_number(score) || fabs(json_number_value(score)) > 1e9)
    return kva_json_wrong(l, "vocabulary", "[piece, score]");
  if (json_string_length(piece) > MAX_PIECE) return kva_json_wrong(l, "vocabulary", "pieces of at most 1024 bytes");
  set_id(l, bytes_of(piece), id);
  scores[id] = json_number_value(score);
  u->unknown_score = fmin(u->unknown_score, scores[id]);
  if (u->max_size < json_string_length(piece)) u->max_size = json_string_length(piece);
  return KVA_OK;
}

static kva_status load_unigram(const kva_loader *l, json_t *model) {
  enum { UNKNOWN_PENALTY = 10 };
  kva_tokenizer *t = l->t;
  const json_t *vocab = json_object_get(model, "vocab");
  size_t n = json_array_size(vocab);
  if (!n || n >= MAX_ID) return kva_json_wrong(l, "model", "a vocabulary: a list \"vocab\" of [piece, score]");
  double *scores = KVA_NEW_ARRAY(t->arena, double, n);
  t->unigram.unknown_score = INFINITY;
  for (uint32_t i = 0; i < n; i++) KVA_TRY(take_piece(l, json_array_get(vocab, i), i, scores));
  t->unigram.scores = scores;
  t->unigram.unknown_score -= UNKNOWN_PENALTY;
  t->vocabulary.size = t->vocab;
  uint32_t unknown = 0;
  KVA_TRY(take_id(l, json_object_get(model, "unk_id"), "unk_id of the model", &unknown));
  if (unknown >= n) return kva_json_wrong(l, "model", "an unk_id of the vocabulary");
  t->vocabulary.unknown = unknown;
  t->vocabulary.byte_fallback = kva_json_flag(model, "byte_fallback", false);
  find_bytes(&t->vocabulary);
  t->encode = kva_unigram_encode;
  return KVA_OK;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

kva_status kva_json_model(const kva_loader *l, const json_t *root) {
  json_t *model = json_object_get(root, "model");
  const json_t *type = json_object_get(model, "type");
  if (!json_is_object(model)) return kva_json_wrong(l, "file", "a tokenizer.json with an object \"model\"");
  l->t->vocabulary.ids = kva_map_create(l->t->arena);
  l->t->vocabulary.unknown = -1;
  if (!type || kva_json_is(type, "BPE")) return load_bpe(l, model);
  if (kva_json_is(type, "WordPiece")) return load_wordpiece(l, model);
  if (kva_json_is(type, "Unigram")) return load_unigram(l, model);
  return kva_json_unsupported(l, "model", type);
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

/* The normalised form of a token that is searched after the normaliser. */
static kva_status normalized_pattern(const kva_loader *l, kva_added_token *a) {
  kva_pieces pieces = {0};
  kva_piece all = {.text = a->content, .token = -1, .first = true};
  KVA_PUSH(l->t->arena, &pieces, all);
  KVA_TRY(kva_text_apply(&l->t->normalizer, l->t->arena, &pieces, l->diag));
  a->pattern = pieces.len ? pieces.data[0].text : (kva_bytes){"", 0};
  return KVA_OK;
}

static kva_status take_added(const kva_loader *l, const json_t *v) {
  kva_added_token a = {.single_word = kva_json_flag(v, "single_word", false),
                       .strip_left = kva_json_flag(v, "lstrip", false),
                       .strip_right = kva_json_flag(v, "rstrip", false),
                       .special = kva_json_flag(v, "special", false)};
  a.normalized = kva_json_flag(v, "normalized", !a.special);
  KVA_TRY(kva_json_bytes(l, v, "content", &a.content));
  KVA_TRY(take_id(l, json_object_get(v, "id"), "added token", &a.id));
  int64_t known = kva_vocabulary_id(&l->t->vocabulary, a.content.data, a.content.size);
  if (known >= 0) a.id = (uint32_t)known;
  a.pattern = a.content;
  if (a.normalized && a.content.size) KVA_TRY(normalized_pattern(l, &a));
  set_id(l, a.content, a.id);
  KVA_PUSH(l->t->arena, &l->t->added, a);
  return KVA_OK;
}

kva_status kva_json_added(const kva_loader *l, const json_t *root) {
  const json_t *list = json_object_get(root, "added_tokens");
  if (!list || json_is_null(list)) return KVA_OK;
  if (!json_is_array(list)) return kva_json_wrong(l, "file", "a list \"added_tokens\"");
  for (size_t i = 0; i < json_array_size(list); i++) KVA_TRY(take_added(l, json_array_get(list, i)));
  return KVA_OK;
}
