/* The complete tokenizer: normaliser, added tokens, pre-tokenizer, model, in the reference's order. */
#include "tools/tokenizer/tokenizer.h"

#include "tools/tokenizer/internal.h"

#include <jansson.h>

enum { END_OF_BYTES = 256 };

kva_tokenizer *kva_tokenizer_bytes(void) {
  kva_arena *arena = kva_arena_create();
  kva_tokenizer *t = KVA_NEW(arena, kva_tokenizer);
  *t = (kva_tokenizer){.arena = arena, .bytes = true, .vocab = END_OF_BYTES + 1};
  return t;
}

void kva_tokenizer_destroy(kva_tokenizer *t) {
  if (!t) return;
  for (uint32_t i = 0; i < t->normalizer.len; i++)
    if (t->normalizer.data[i].regex) kva_regex_release(t->normalizer.data[i].regex);
  for (uint32_t i = 0; i < t->pre_tokenizer.len; i++)
    if (t->pre_tokenizer.data[i].regex) kva_regex_release(t->pre_tokenizer.data[i].regex);
  kva_arena_destroy(t->arena);
}

bool kva_tokenizer_is_bytes(const kva_tokenizer *t) {
  return t->bytes;
}

int64_t kva_tokenizer_vocab(const kva_tokenizer *t) {
  return t->vocab;
}

int64_t kva_tokenizer_find(const kva_tokenizer *t, const char *text) {
  return t->bytes ? -1 : (int64_t)(uintptr_t)kva_map_get(t->vocabulary.ids, text, strlen(text)) - 1;
}

/* Names of tokens that end documents, then of those that end the turns of a chat. */
static const char *const ends[] = {"<|endoftext|>",
                                   "<|end_of_text|>",
                                   "</s>",
                                   "<eos>",
                                   "[EOS]",
                                   "<|eod|>",
                                   "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
                                   "<|im_end|>",
                                   "<|eot_id|>",
                                   "<|eom_id|>",
                                   "<|eot|>",
                                   "<end_of_turn>",
                                   "<turn|>",
                                   "<|end|>",
                                   "<|return|>",
                                   "<|EOT|>",
                                   "<|END_OF_TURN_TOKEN|>"};
enum { N_ENDS = sizeof ends / sizeof *ends, FIRST_OF_TURNS = 7 };

int64_t kva_tokenizer_end(const kva_tokenizer *t) {
  if (t->bytes) return END_OF_BYTES;
  for (size_t i = 0; i < FIRST_OF_TURNS; i++) {
    int64_t id = kva_tokenizer_find(t, ends[i]);
    if (id >= 0) return id;
  }
  return -1;
}

bool kva_tokenizer_ends(const kva_tokenizer *t, int64_t id) {
  if (t->bytes) return id == END_OF_BYTES;
  for (size_t i = 0; i < N_ENDS; i++)
    if (kva_tokenizer_find(t, ends[i]) == id) return true;
  return false;
}

void kva_tokenizer_begin(const kva_tokenizer *t, kva_token_ids *ids) {
  for (uint32_t i = 0; i < t->begin.len; i++) kva_token_ids_add(ids, t->begin.data[i]);
}

void kva_tokenizer_libraries(kva_text_library out[KVA_TEXT_LIBRARIES]) {
  const char *const versions[] = {kva_regex_version(), kva_unicode_version(), jansson_version_str()};
  static const char *const names[] = {"pcre2", "utf8proc", "jansson"};
  for (int i = 0; i < KVA_TEXT_LIBRARIES; i++) {
    out[i].name = names[i];
    snprintf(out[i].version, sizeof out[i].version, "%s", versions[i]);
  }
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

/* `text` with invalid UTF-8 replaced by U+FFFD; `text` itself if it is valid. */
static kva_bytes valid_text(const char *text, size_t size, kva_arena *arena, int64_t *replaced) {
  if (kva_utf8_valid(text, size)) return (kva_bytes){text, size};
  kva_text out = {0};
  *replaced = kva_utf8_add_valid(text, size, &out);
  kva_bytes copy = {kva_arena_strndup(arena, out.data, out.len), out.len};
  kva_text_free(&out);
  return copy;
}

static kva_status encode(kva_tokenizer *t, kva_bytes text, kva_arena *arena, kva_diag *diag, kva_token_ids *ids) {
  kva_pieces pieces = {0};
  kva_piece all = {.text = text, .token = -1, .first = true};
  KVA_PUSH(arena, &pieces, all);
  kva_added_apply(&t->added, false, arena, &pieces);
  KVA_TRY(kva_text_apply(&t->normalizer, arena, &pieces, diag));
  kva_added_apply(&t->added, true, arena, &pieces);
  KVA_TRY(kva_text_apply(&t->pre_tokenizer, arena, &pieces, diag));
  for (uint32_t i = 0; i < pieces.len; i++) {
    const kva_piece *p = &pieces.data[i];
    if (p->token >= 0)
      kva_token_ids_add(ids, (uint32_t)p->token);
    else
      t->encode(t, p->text, arena, ids);
  }
  return KVA_OK;
}

kva_status kva_tokenizer_encode(kva_tokenizer *t, const char *text, size_t size, kva_diag *diag, kva_token_ids *ids,
                                int64_t *out_replaced) {
  *out_replaced = 0;
  for (size_t i = 0; t->bytes && i < size; i++) kva_token_ids_add(ids, (unsigned char)text[i]);
  if (t->bytes || !size) return KVA_OK;
  kva_arena *arena = kva_arena_create();
  kva_status status = encode(t, valid_text(text, size, arena, out_replaced), arena, diag, ids);
  kva_arena_destroy(arena);
  return status;
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

static void add_byte_chars(kva_bytes text, kva_text *out) {
  for (size_t at = 0, n; at < text.size; at += n) {
    int byte = kva_char_byte(kva_utf8_get(text.data + at, &n));
    char c = (char)byte;
    kva_text_add_bytes(out, byte < 0 ? text.data + at : &c, byte < 0 ? n : 1);
  }
}

static void add_spaces(kva_bytes text, kva_bytes mark, kva_text *out) {
  for (size_t at = 0; at < text.size;) {
    bool space = mark.size && text.size - at >= mark.size && !memcmp(text.data + at, mark.data, mark.size);
    kva_text_add_bytes(out, space ? " " : text.data + at, 1);
    at += space ? mark.size : 1;
  }
}

void kva_tokenizer_decode(const kva_tokenizer *t, uint32_t id, kva_text *out) {
  unsigned byte;
  char c = (char)id;
  if (t->bytes) {
    if (id < END_OF_BYTES) kva_text_add_bytes(out, &c, 1);
    if (id == END_OF_BYTES) kva_text_add(out, "<|end|>");
    return;
  }
  if (id >= t->vocab) return;
  const kva_token_text *token = &t->texts[id];
  size_t prefix = t->decode_prefix.size;
  bool joins = prefix && token->text.size > prefix && !memcmp(token->text.data, t->decode_prefix.data, prefix);
  if (t->decode_spaced && !joins && out->len) kva_text_add(out, " ");
  bool named = token->added && t->decode_byte_chars; /* as it stands in texts, not in characters of bytes */
  if (named || joins) {
    kva_text_add_bytes(out, token->text.data + (joins ? prefix : 0), token->text.size - (joins ? prefix : 0));
  } else if (t->decode_byte_chars) {
    add_byte_chars(token->text, out);
  } else if (t->decode_bytes && token->text.size == 6 && sscanf(token->text.data, "<0x%02X>", &byte) == 1) {
    c = (char)byte;
    kva_text_add_bytes(out, &c, 1);
  } else {
    add_spaces(token->text, t->decode_space, out);
  }
}
