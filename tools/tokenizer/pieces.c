/* Steps over pieces of text. Each creates a new list, which shares unchanged texts with the old one. */
#include "tools/tokenizer/internal.h"

static kva_bytes part(kva_bytes text, size_t begin, size_t end) {
  return (kva_bytes){text.data + begin, end - begin};
}

static bool begins_with(kva_bytes text, kva_bytes prefix) {
  return text.size >= prefix.size && !memcmp(text.data, prefix.data, prefix.size);
}

static void add_piece(kva_pieces *out, kva_arena *arena, kva_bytes text, bool first) {
  kva_piece piece = {.text = text, .token = -1, .first = first};
  if (text.size) KVA_PUSH(arena, out, piece);
}

/* ---- matches ----------------------------------------------------------------------------------------------------- */

static bool find_text(kva_bytes text, kva_bytes from, size_t at, size_t *begin, size_t *end) {
  const char *found = from.size ? memmem(text.data + at, text.size - at, from.data, from.size) : NULL;
  if (!found) return false;
  *begin = (size_t)(found - text.data);
  *end = *begin + from.size;
  return true;
}

static bool find_match(const kva_text_step *s, kva_bytes text, size_t at, size_t *begin, size_t *end) {
  return s->regex ? kva_regex_find(s->regex, text.data, text.size, at, begin, end)
                  : find_text(text, s->from, at, begin, end);
}

typedef struct span {
  size_t begin, end;
  bool match;
} span;
typedef KVA_VEC(span) spans;

/* Matches and the text between them. */
static spans find_spans(const kva_text_step *s, kva_bytes text, kva_arena *arena) {
  spans out = {0};
  size_t at = 0, begin, end;
  while (at < text.size && find_match(s, text, at, &begin, &end)) {
    span gap = {at, begin, s->invert}, match = {begin, end, !s->invert};
    if (begin > at) KVA_PUSH(arena, &out, gap);
    KVA_PUSH(arena, &out, match);
    at = end;
  }
  span rest = {at, text.size, s->invert};
  if (at < text.size) KVA_PUSH(arena, &out, rest);
  return out;
}

/* ---- splitting --------------------------------------------------------------------------------------------------- */

/* Whether span i belongs to the same piece as span i - 1. */
static bool joins(kva_split_behavior behavior, const span *s, uint32_t i) {
  if (behavior == KVA_SPLIT_CONTIGUOUS) return s[i].match == s[i - 1].match;
  if (behavior == KVA_SPLIT_MERGED_WITH_PREVIOUS) return s[i].match && !s[i - 1].match;
  return behavior == KVA_SPLIT_MERGED_WITH_NEXT && s[i - 1].match && !s[i].match;
}

static void split(const kva_text_step *s, const kva_piece *in, kva_arena *arena, kva_pieces *out) {
  spans found = find_spans(s, in->text, arena);
  for (uint32_t i = 0, next; i < found.len; i = next) {
    for (next = i + 1; next < found.len && joins(s->behavior, found.data, next);) next++;
    bool removed = s->behavior == KVA_SPLIT_REMOVED && found.data[i].match;
    size_t begin = found.data[i].begin;
    if (!removed) add_piece(out, arena, part(in->text, begin, found.data[next - 1].end), in->first && begin == 0);
  }
}

/* ---- changes of text --------------------------------------------------------------------------------------------- */

static kva_bytes joined(kva_arena *arena, kva_bytes a, kva_bytes b) {
  char *data = kva_arena_alloc(arena, a.size + b.size + 1);
  memcpy(data, a.data, a.size);
  memcpy(data + a.size, b.data, b.size);
  return (kva_bytes){data, a.size + b.size};
}

static kva_bytes prefixed(const kva_text_step *s, const kva_piece *in, kva_arena *arena) {
  bool leave = (s->unless_there && begins_with(in->text, s->to)) || (s->only_first && !in->first);
  return leave ? in->text : joined(arena, s->to, in->text);
}

/* A copy in the arena; the text is freed. */
static kva_bytes taken(kva_text *text, kva_arena *arena) {
  kva_bytes copy = {kva_arena_strndup(arena, text->data ? text->data : "", text->len), text->len};
  kva_text_free(text);
  return copy;
}

static kva_bytes replaced(const kva_text_step *s, kva_bytes text, kva_arena *arena) {
  kva_text out = {0};
  size_t at = 0, begin, end;
  while (at < text.size && find_match(s, text, at, &begin, &end)) {
    kva_text_add_bytes(&out, text.data + at, begin - at);
    kva_text_add_bytes(&out, s->to.data, s->to.size);
    at = end;
  }
  if (at == 0) return text;
  kva_text_add_bytes(&out, text.data + at, text.size - at);
  return taken(&out, arena);
}

static kva_bytes normalized(const kva_text_step *s, kva_bytes text, kva_arena *arena) {
  kva_text out = {0};
  kva_normalize(text.data, text.size, s->form, &out);
  return taken(&out, arena);
}

static kva_bytes mapped(const kva_text_step *s, kva_bytes text, kva_arena *arena) {
  kva_text out = {0};
  uint32_t to[3];
  char bytes[4];
  for (size_t at = 0, n; at < text.size; at += n) {
    size_t count = s->map(kva_utf8_get(text.data + at, &n), to);
    for (size_t i = 0; i < count; i++) kva_text_add_bytes(&out, bytes, kva_utf8_put(to[i], bytes));
  }
  return taken(&out, arena);
}

static size_t spaces_at_begin(kva_bytes text) {
  size_t at = 0, n;
  while (at < text.size && kva_is_space(kva_utf8_get(text.data + at, &n))) at += n;
  return at;
}

/* The start of the trailing white space. */
static size_t spaces_at_end(kva_bytes text) {
  size_t end = text.size, n;
  while (end > 0) {
    size_t at = end - 1;
    while (((unsigned char)text.data[at] & 0xC0) == 0x80) at--;
    if (!kva_is_space(kva_utf8_get(text.data + at, &n))) break;
    end = at;
  }
  return end;
}

static kva_bytes stripped(const kva_text_step *s, kva_bytes text) {
  if (s->strip_right) text.size = spaces_at_end(text);
  return s->strip_left ? part(text, spaces_at_begin(text), text.size) : text;
}

/* GPT-2's map: printable Latin-1 characters represent themselves; U+0100 and up represent the other 68 bytes. */
static bool is_printable(unsigned c) {
  return (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || c >= 0xAE;
}

static uint32_t byte_char(unsigned char byte) {
  if (is_printable(byte)) return byte;
  uint32_t before = 0;
  for (unsigned c = 0; c < byte; c++) before += !is_printable(c);
  return 256 + before;
}

int kva_char_byte(uint32_t c) {
  if (c < 256) return is_printable(c) ? (int)c : -1;
  for (unsigned byte = 0; byte < 256; byte++)
    if (byte_char((unsigned char)byte) == c) return (int)byte;
  return -1;
}

static kva_bytes byte_chars(kva_bytes text, kva_arena *arena) {
  char *data = kva_arena_alloc(arena, 2 * text.size + 1);
  size_t n = 0;
  for (size_t i = 0; i < text.size; i++) {
    unsigned char byte = (unsigned char)text.data[i];
    n += kva_utf8_put(byte > ' ' && byte < 127 ? byte : byte_char(byte), data + n);
  }
  return (kva_bytes){data, n};
}

/* ---- all steps --------------------------------------------------------------------------------------------------- */

static void apply_step(const kva_text_step *s, const kva_piece *in, kva_arena *arena, kva_pieces *out) {
  switch (s->kind) {
  case KVA_TEXT_PREFIX: add_piece(out, arena, prefixed(s, in, arena), in->first); break;
  case KVA_TEXT_REPLACE: add_piece(out, arena, replaced(s, in->text, arena), in->first); break;
  case KVA_TEXT_NORMAL_FORM: add_piece(out, arena, normalized(s, in->text, arena), in->first); break;
  case KVA_TEXT_MAP: add_piece(out, arena, mapped(s, in->text, arena), in->first); break;
  case KVA_TEXT_STRIP: add_piece(out, arena, stripped(s, in->text), in->first); break;
  case KVA_TEXT_SPLIT: split(s, in, arena, out); break;
  case KVA_TEXT_BYTE_CHARS: add_piece(out, arena, byte_chars(in->text, arena), in->first); break;
  }
}

kva_status kva_text_apply(const kva_text_steps *steps, kva_arena *arena, kva_pieces *pieces, kva_diag *diag) {
  for (uint32_t k = 0; k < steps->len; k++) {
    const kva_text_step *s = &steps->data[k];
    kva_pieces out = {0};
    for (uint32_t i = 0; i < pieces->len; i++) {
      if (pieces->data[i].token < 0)
        apply_step(s, &pieces->data[i], arena, &out);
      else
        KVA_PUSH(arena, &out, pieces->data[i]);
    }
    *pieces = out;
    if (s->regex && kva_regex_exceeded(s->regex))
      return kva_fail(diag, KVA_UNSUPPORTED, NULL,
                      "the tokenizer's regular expression takes too many steps on this text");
  }
  return KVA_OK;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

/* The longest added token at the start of text. */
static const kva_added_token *added_at(const kva_added_tokens *added, bool normalized, kva_bytes text) {
  const kva_added_token *best = NULL;
  for (uint32_t i = 0; i < added->len; i++) {
    const kva_added_token *t = &added->data[i];
    bool fits = t->normalized == normalized && t->pattern.size && begins_with(text, t->pattern);
    if (fits && (!best || t->pattern.size > best->pattern.size)) best = t;
  }
  return best;
}

static bool word_ends(kva_bytes text, size_t at) {
  size_t n;
  if (at == 0) return false;
  do at--;
  while (((unsigned char)text.data[at] & 0xC0) == 0x80);
  return kva_is_word(kva_utf8_get(text.data + at, &n));
}

static bool word_begins(kva_bytes text, size_t at) {
  size_t n;
  return at < text.size && kva_is_word(kva_utf8_get(text.data + at, &n));
}

/* The set of first bytes of all patterns, which excludes most positions. */
static void first_bytes(const kva_added_tokens *added, bool normalized, bool out[256]) {
  for (uint32_t i = 0; i < added->len; i++) {
    const kva_added_token *t = &added->data[i];
    if (t->normalized == normalized && t->pattern.size) out[(unsigned char)t->pattern.data[0]] = true;
  }
}

static void split_added(const kva_added_tokens *added, bool normalized, const bool first[256], const kva_piece *in,
                        kva_arena *arena, kva_pieces *out) {
  kva_bytes text = in->text;
  size_t done = 0;
  for (size_t at = 0; at < text.size;) {
    const kva_added_token *t =
        first[(unsigned char)text.data[at]] ? added_at(added, normalized, part(text, at, text.size)) : NULL;
    if (!t) {
      at++;
      continue;
    }
    size_t begin = at, end = at + t->pattern.size;
    at = end;
    if (t->single_word && (word_ends(text, begin) || word_begins(text, end))) continue;
    if (t->strip_left) begin = spaces_at_end(part(text, 0, begin));
    if (begin < done) begin = done;
    if (t->strip_right) end += spaces_at_begin(part(text, end, text.size));
    add_piece(out, arena, part(text, done, begin), in->first && done == 0);
    kva_piece token = {.token = t->id};
    KVA_PUSH(arena, out, token);
    done = end;
    if (at < done) at = done;
  }
  add_piece(out, arena, part(text, done, text.size), in->first && done == 0);
}

void kva_added_apply(const kva_added_tokens *added, bool normalized, kva_arena *arena, kva_pieces *pieces) {
  bool first[256] = {false};
  kva_pieces out = {0};
  first_bytes(added, normalized, first);
  for (uint32_t i = 0; i < pieces->len; i++) {
    if (pieces->data[i].token < 0)
      split_added(added, normalized, first, &pieces->data[i], arena, &out);
    else
      KVA_PUSH(arena, &out, pieces->data[i]);
  }
  *pieces = out;
}
