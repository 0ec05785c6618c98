/* A recursive descent parser with bounded depth. Every read is checked against the end of the text. */
#include "tools/tokenizer/json.h"

#include "tools/tokenizer/unicode.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_DEPTH = 64 };

typedef struct parser {
  const char *at, *end, *path;
  uint32_t line;
  int depth;
  kva_arena *arena;
  kva_diag *diag;
} parser;

static kva_status malformed(const parser *p, const char *expected) {
  kva_loc loc = {.file = p->path, .line = p->line};
  if (p->at == p->end) return kva_error(p->diag, &loc, "malformed JSON: expected %s, found the end", expected);
  unsigned char c = (unsigned char)*p->at;
  return c > ' ' && c < 127 ? kva_error(p->diag, &loc, "malformed JSON: expected %s, found '%c'", expected, c)
                            : kva_error(p->diag, &loc, "malformed JSON: expected %s, found byte 0x%02x", expected, c);
}

static void skip_blanks(parser *p) {
  for (; p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'); p->at++)
    p->line += *p->at == '\n';
}

static bool accept(parser *p, char c) {
  skip_blanks(p);
  if (p->at == p->end || *p->at != c) return false;
  p->at++;
  return true;
}

/* ---- scalars ----------------------------------------------------------------------------------------------------- */

static bool hex4(parser *p, uint32_t *out) {
  *out = 0;
  if (p->end - p->at < 4) return false;
  for (int i = 0; i < 4; i++, p->at++) {
    char c = *p->at;
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return false;
    *out = *out << 4 | (uint32_t)digit;
  }
  return true;
}

/* The part of an escape after "\u". Characters beyond the basic plane are two surrogates. */
static kva_status unicode_escape(parser *p, kva_text *out) {
  uint32_t c, low = 0;
  if (!hex4(p, &c)) return malformed(p, "four hexadecimal digits after \\u");
  if (c >= 0xD800 && c < 0xDC00) {
    bool pair = p->end - p->at >= 2 && p->at[0] == '\\' && p->at[1] == 'u';
    if (pair) p->at += 2;
    if (!pair || !hex4(p, &low) || low < 0xDC00 || low > 0xDFFF)
      return malformed(p, "the second half of a surrogate pair");
    c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
  } else if (c >= 0xDC00 && c < 0xE000) {
    return malformed(p, "the first half of a surrogate pair");
  }
  char bytes[4];
  kva_text_add_bytes(out, bytes, kva_utf8_put(c, bytes));
  return KVA_OK;
}

static kva_status escape(parser *p, kva_text *out) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  if (p->at == p->end) return malformed(p, "an escape");
  char c = *p->at;
  const char *known = c ? strchr(from, c) : NULL;
  if (!known && c != 'u') return malformed(p, "one of the escapes \" \\ / b f n r t u");
  p->at++;
  if (!known) return unicode_escape(p, out);
  kva_text_add_bytes(out, &to[known - from], 1);
  return KVA_OK;
}

static kva_status string_bytes(parser *p, kva_text *out) {
  for (;;) {
    const char *plain = p->at;
    while (p->at < p->end && *p->at != '"' && *p->at != '\\' && (unsigned char)*p->at >= ' ') p->at++;
    if (!kva_utf8_valid(plain, (size_t)(p->at - plain))) return malformed(p, "UTF-8 in a string before this");
    kva_text_add_bytes(out, plain, (size_t)(p->at - plain));
    if (p->at == p->end || (unsigned char)*p->at < ' ') return malformed(p, "the end of a string");
    if (*p->at++ == '"') return KVA_OK;
    KVA_TRY(escape(p, out));
  }
}

static kva_status string(parser *p, const char **out, uint32_t *out_size) {
  if (!accept(p, '"')) return malformed(p, "a string");
  kva_text text = {0};
  kva_text_add_bytes(&text, "", 0);
  kva_status status = string_bytes(p, &text);
  if (!status) {
    *out = kva_arena_strndup(p->arena, text.data ? text.data : "", text.len);
    *out_size = (uint32_t)text.len;
  }
  kva_text_free(&text);
  return status;
}

static size_t digits(parser *p) {
  const char *begin = p->at;
  while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
  return (size_t)(p->at - begin);
}

static kva_status number(parser *p, double *out) {
  const char *begin = p->at;
  if (p->at < p->end && *p->at == '-') p->at++;
  bool zero = p->at < p->end && *p->at == '0';
  size_t whole = digits(p);
  if (!whole || (zero && whole > 1)) return malformed(p, "a value");
  if (p->at < p->end && *p->at == '.' && (p->at++, !digits(p))) return malformed(p, "digits after the point");
  if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
    p->at++;
    if (p->at < p->end && (*p->at == '+' || *p->at == '-')) p->at++;
    if (!digits(p)) return malformed(p, "digits of an exponent");
  }
  char *copy = kva_arena_strndup(p->arena, begin, (size_t)(p->at - begin));
  *out = strtod(copy, NULL);
  return isfinite(*out) ? KVA_OK : malformed(p, "a number that is not too large before this");
}

static bool accept_word(parser *p, const char *word) {
  size_t n = strlen(word);
  if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n)) return false;
  p->at += n;
  return true;
}

/* ---- trees ------------------------------------------------------------------------------------------------------- */

static kva_status value(parser *p, kva_json *out);

static kva_status items(parser *p, kva_json *out, char close) {
  KVA_VEC(kva_json) list = {0};
  bool more = !accept(p, close);
  while (more) {
    kva_json item = {0};
    if (out->kind == KVA_JSON_OBJECT) {
      KVA_TRY(string(p, &item.key, &item.key_size));
      if (!accept(p, ':')) return malformed(p, "':' after a key");
    }
    KVA_TRY(value(p, &item));
    KVA_PUSH(p->arena, &list, item);
    more = accept(p, ',');
    if (!more && !accept(p, close)) return malformed(p, close == '}' ? "',' or '}'" : "',' or ']'");
  }
  out->items = list.data;
  out->size = list.len;
  return KVA_OK;
}

static kva_status value(parser *p, kva_json *out) {
  skip_blanks(p);
  out->line = p->line;
  if (p->at == p->end) return malformed(p, "a value");
  if (*p->at == '"') {
    out->kind = KVA_JSON_STRING;
    return string(p, &out->string, &out->size);
  }
  if (*p->at == '{' || *p->at == '[') {
    bool object = *p->at++ == '{';
    out->kind = object ? KVA_JSON_OBJECT : KVA_JSON_ARRAY;
    if (++p->depth > MAX_DEPTH) return malformed(p, "no more than 64 levels of nesting");
    KVA_TRY(items(p, out, object ? '}' : ']'));
    p->depth--;
    return KVA_OK;
  }
  bool yes = accept_word(p, "true");
  if (yes || accept_word(p, "false")) {
    out->kind = KVA_JSON_BOOL;
    out->number = yes;
    return KVA_OK;
  }
  if (accept_word(p, "null")) return KVA_OK;
  out->kind = KVA_JSON_NUMBER;
  return number(p, &out->number);
}

kva_status kva_json_parse(const char *path, const char *text, size_t size, kva_arena *arena, kva_diag *diag,
                          const kva_json **out_root) {
  parser p = {.at = text, .end = text + size, .path = path, .line = 1, .arena = arena, .diag = diag};
  kva_json *root = KVA_NEW(arena, kva_json);
  KVA_TRY(value(&p, root));
  skip_blanks(&p);
  if (p.at != p.end) return malformed(&p, "the end after the value");
  *out_root = root;
  return KVA_OK;
}

const kva_json *kva_json_get(const kva_json *v, const char *key) {
  size_t n = strlen(key);
  for (uint32_t i = 0; v && v->kind == KVA_JSON_OBJECT && i < v->size; i++)
    if (v->items[i].key_size == n && !memcmp(v->items[i].key, key, n)) return &v->items[i];
  return NULL;
}
