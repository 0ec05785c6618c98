/* Characters: encoding, and categories by binary search in a table of ranges. */
#include "tools/tokenizer/unicode.h"

/* First character of a range << 5 | category; the ranges cover all code points. */
static const uint32_t ranges[] = {
#include "tools/tokenizer/unicode_ranges.inc"
};
enum { N_RANGES = sizeof ranges / sizeof *ranges };

const char kva_category_names[KVA_CATEGORIES][3] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                                    "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                                    "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

kva_category kva_category_of(uint32_t c) {
  uint32_t low = 0, high = N_RANGES;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (ranges[middle] >> 5 <= c)
      low = middle;
    else
      high = middle;
  }
  return (kva_category)(ranges[low] & 31);
}

bool kva_is_space(uint32_t c) {
  if (c < 128) return c == ' ' || (c >= 9 && c <= 13);
  kva_category k = kva_category_of(c);
  return c == 0x85 || k == KVA_CATEGORY_ZS || k == KVA_CATEGORY_ZL || k == KVA_CATEGORY_ZP;
}

/* Circled and squared letters are Alphabetic although their category is So. */
static bool is_enclosed_letter(uint32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool kva_is_word(uint32_t c) {
  kva_category k = kva_category_of(c);
  return k <= KVA_CATEGORY_NL || k == KVA_CATEGORY_PC || c == 0x200C || c == 0x200D || is_enclosed_letter(c);
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

size_t kva_utf8_put(uint32_t c, char out[4]) {
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
  out[0] = (char)(lead[n] | c);
  return n;
}

uint32_t kva_utf8_get(const char *s, size_t *out_size) {
  const unsigned char *u = (const unsigned char *)s;
  size_t n = u[0] < 0x80 ? 1 : u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
  uint32_t c = n == 1 ? u[0] : u[0] & (0x7Fu >> n);
  for (size_t i = 1; i < n; i++) c = c << 6 | (u[i] & 0x3F);
  *out_size = n;
  return c;
}

/* Table 3-7 of the standard: the second byte's range excludes overlong forms, surrogates and values above 0x10FFFF. */
int kva_utf8_check(const char *s, size_t n) {
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
    int size = kva_utf8_check(s + i, n - i);
    if (size < 0) return false;
    i += (size_t)size;
  }
  return true;
}
