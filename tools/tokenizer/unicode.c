/* What the tokenizers need of Unicode, in terms of utf8proc. */
#include "tools/tokenizer/unicode.h"

#include <stdlib.h>
#include <utf8proc.h>

static utf8proc_category_t category(uint32_t c) {
  return utf8proc_category((utf8proc_int32_t)c);
}

static bool is_mark(uint32_t c) {
  utf8proc_category_t k = category(c);
  return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
}

bool kva_is_space(uint32_t c) {
  utf8proc_category_t k = category(c);
  return (c >= 9 && c <= 13) || c == 0x85 || (k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP);
}

/* Circled and squared letters are Alphabetic although their category is So. */
static bool is_enclosed_letter(uint32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool kva_is_word(uint32_t c) {
  utf8proc_category_t k = category(c);
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC || c == 0x200C ||
         c == 0x200D || is_enclosed_letter(c);
}

/* ---- maps of characters ------------------------------------------------------------------------------------------ */

static size_t itself_unless(bool left_out, uint32_t c, uint32_t out[3]) {
  out[0] = c;
  return !left_out;
}

/* One character has a lower case of two. */
size_t kva_char_lower(uint32_t c, uint32_t out[3]) {
  bool dotted = c == 0x130;
  out[0] = dotted ? 'i' : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
  out[1] = 0x307;
  return dotted ? 2 : 1;
}

size_t kva_char_without_marks(uint32_t c, uint32_t out[3]) {
  return itself_unless(is_mark(c), c, out);
}

size_t kva_char_without_nonspacing(uint32_t c, uint32_t out[3]) {
  return itself_unless(category(c) == UTF8PROC_CATEGORY_MN, c, out);
}

size_t kva_char_without_controls(uint32_t c, uint32_t out[3]) {
  utf8proc_category_t k = category(c);
  bool blank = c == '\t' || c == '\n' || c == '\r';
  bool other = k >= UTF8PROC_CATEGORY_CC && k <= UTF8PROC_CATEGORY_CO;
  return itself_unless(!blank && (other || c == 0xFFFD), kva_is_space(c) ? ' ' : c, out);
}

/* The blocks of CJK ideographs that the reference surrounds by spaces. */
static bool is_ideograph(uint32_t c) {
  static const uint32_t blocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                                       {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
    if (c >= blocks[i][0] && c <= blocks[i][1]) return true;
  return false;
}

size_t kva_char_with_spaced_ideographs(uint32_t c, uint32_t out[3]) {
  if (!is_ideograph(c)) return itself_unless(false, c, out);
  out[0] = out[2] = ' ';
  out[1] = c;
  return 3;
}

typedef utf8proc_int32_t code_point;

/* Appends what the characters of a text become: code points. */
static void decompose(const char *text, size_t size, int options, kva_text *out) {
  enum { LONGEST = 18 }; /* U+FDFA */
  int boundary = 0;
  for (size_t at = 0, n; at < size; at += n) {
    code_point c = (code_point)kva_utf8_get(text + at, &n), parts[LONGEST];
    utf8proc_ssize_t k = utf8proc_decompose_char(c, parts, LONGEST, (utf8proc_option_t)options, &boundary);
    KVA_ASSERT(k >= 0 && k <= LONGEST);
    kva_text_add_bytes(out, (const char *)parts, (size_t)k * sizeof *parts);
  }
}

static utf8proc_propval_t class_of(code_point c) {
  return utf8proc_get_property(c)->combining_class;
}

/* By combining class; those of one stay in their order. */
static void sort_marks(code_point *c, size_t n, code_point *room) {
  enum { CLASSES = 256 };
  size_t starts[CLASSES + 1] = {0};
  for (size_t i = 0; i < n; i++) starts[class_of(c[i]) + 1]++;
  for (size_t k = 1; k < CLASSES; k++) starts[k] += starts[k - 1];
  for (size_t i = 0; i < n; i++) room[starts[class_of(c[i])]++] = c[i];
  memcpy(c, room, n * sizeof *c);
}

/* The canonical order of marks that follow each other. utf8proc_map exchanges neighbours, which takes the square of
 * their number: minutes for a text of nothing else. */
static void order(code_point *c, size_t n) {
  code_point *room = malloc((n + 1) * sizeof *room);
  KVA_ASSERT(room);
  for (size_t begin = 0, end; begin < n; begin = end) {
    for (end = begin + 1; class_of(c[begin]) && end < n && class_of(c[end]);) end++;
    if (end > begin + 1) sort_marks(c + begin, end - begin, room);
  }
  free(room);
}

static void add_form(const char *text, size_t size, int options, kva_text *out) {
  kva_text parts = {0};
  char bytes[4];
  decompose(text, size, options, &parts);
  code_point *c = (code_point *)(void *)parts.data;
  size_t n = parts.len / sizeof *c;
  order(c, n);
  n = (size_t)utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n, (utf8proc_option_t)(options | UTF8PROC_STABLE));
  for (size_t i = 0; i < n; i++) kva_text_add_bytes(out, bytes, kva_utf8_put((uint32_t)c[i], bytes));
  kva_text_free(&parts);
}

/* utf8proc composes a Hangul syllable with U+11A7, which is no final consonant, and so loses it. The character composes
 * with nothing: what is before and what is behind are texts of their own. */
void kva_normalize(const char *text, size_t size, kva_normal_form form, kva_text *out) {
  static const int options[KVA_NORMAL_FORMS] = {[KVA_NFC] = UTF8PROC_COMPOSE,
                                                [KVA_NFD] = UTF8PROC_DECOMPOSE,
                                                [KVA_NFKC] = UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                                [KVA_NFKD] = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
  static const char apart[] = "\xE1\x86\xA7";
  const char *found;
  while (size && (found = memmem(text, size, apart, 3))) {
    size_t before = (size_t)(found - text);
    if (before) add_form(text, before, options[form], out);
    kva_text_add_bytes(out, apart, 3);
    text += before + 3;
    size -= before + 3;
  }
  if (size) add_form(text, size, options[form], out);
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

size_t kva_utf8_put(uint32_t c, char out[4]) {
  return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

uint32_t kva_utf8_get(const char *s, size_t *out_size) {
  utf8proc_int32_t c = 0;
  utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, -1, &c);
  KVA_ASSERT(n > 0);
  *out_size = (size_t)n;
  return (uint32_t)c;
}

/* Length of the valid character at s, or minus the number of bytes that a decoder replaces by one U+FFFD (Unicode
 * standard, section 3.9, maximal subparts; table 3-7: the second byte's range excludes overlong forms, surrogates and
 * values above 0x10FFFF). n > 0. */
static int utf8_check(const char *s, size_t n) {
  const unsigned char *u = (const unsigned char *)s;
  if (u[0] < 0x80) return 1;
  if (u[0] < 0xC2 || u[0] > 0xF4) return -1;
  int size = u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
  unsigned char low = u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
  unsigned char high = u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < size; i++) {
    if ((size_t)i >= n || u[i] < low || u[i] > high) return -i;
    low = 0x80;
    high = 0xBF;
  }
  return size;
}

bool kva_utf8_valid(const char *s, size_t n) {
  for (size_t i = 0; i < n;) {
    int size = utf8_check(s + i, n - i);
    if (size < 0) return false;
    i += (size_t)size;
  }
  return true;
}

int64_t kva_utf8_add_valid(const char *s, size_t n, kva_text *out) {
  int64_t replaced = 0;
  for (size_t i = 0; i < n;) {
    int size = utf8_check(s + i, n - i);
    kva_text_add_bytes(out, size > 0 ? s + i : "\xEF\xBF\xBD", size > 0 ? (size_t)size : 3);
    replaced += size < 0;
    i += (size_t)abs(size);
  }
  return replaced;
}

size_t kva_utf8_pending(const char *s, size_t n) {
  for (size_t k = 1; k < 4 && k <= n; k++) {
    unsigned char c = (unsigned char)s[n - k];
    if ((c & 0xC0) == 0x80) continue;
    size_t size = c < 0xC2 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 1;
    return size > k && utf8_check(s + n - k, k) == -(int)k ? k : 0;
  }
  return 0;
}

const char *kva_unicode_version(void) {
  return utf8proc_version();
}
