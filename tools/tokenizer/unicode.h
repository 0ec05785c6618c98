/* UTF-8 and general categories of characters. */
#ifndef KVA_TOOLS_TOKENIZER_UNICODE_H
#define KVA_TOOLS_TOKENIZER_UNICODE_H

#include "runtime/base/base.h"

/* General categories of the Unicode standard, in the order of its table 4-4. */
typedef enum kva_category {
  KVA_CATEGORY_LU,
  KVA_CATEGORY_LL,
  KVA_CATEGORY_LT,
  KVA_CATEGORY_LM,
  KVA_CATEGORY_LO, /* letters */
  KVA_CATEGORY_MN,
  KVA_CATEGORY_MC,
  KVA_CATEGORY_ME, /* marks */
  KVA_CATEGORY_ND,
  KVA_CATEGORY_NL,
  KVA_CATEGORY_NO, /* numbers */
  KVA_CATEGORY_PC,
  KVA_CATEGORY_PD,
  KVA_CATEGORY_PS,
  KVA_CATEGORY_PE,
  KVA_CATEGORY_PI,
  KVA_CATEGORY_PF,
  KVA_CATEGORY_PO,
  KVA_CATEGORY_SM,
  KVA_CATEGORY_SC,
  KVA_CATEGORY_SK,
  KVA_CATEGORY_SO, /* symbols */
  KVA_CATEGORY_ZS,
  KVA_CATEGORY_ZL,
  KVA_CATEGORY_ZP, /* separators */
  KVA_CATEGORY_CC,
  KVA_CATEGORY_CF,
  KVA_CATEGORY_CS,
  KVA_CATEGORY_CO,
  KVA_CATEGORY_CN,
  KVA_CATEGORIES
} kva_category;
/* Two letters each, "Lu". */
extern const char kva_category_names[KVA_CATEGORIES][3];
kva_category kva_category_of(uint32_t c);
/* The property White_Space. */
bool kva_is_space(uint32_t c);
/* A word character, \w: Alphabetic, marks, decimal digits, connectors, joiners (Unicode TS 18, annex C). */
bool kva_is_word(uint32_t c);

/* Writes c (below 0x110000); returns the number of bytes. */
size_t kva_utf8_put(uint32_t c, char out[4]);
/* The character at s, of valid UTF-8; *out_size: its bytes. */
uint32_t kva_utf8_get(const char *s, size_t *out_size);
/* Length of the valid character at s, or minus the number of bytes that a decoder replaces by one U+FFFD (Unicode
 * standard, section 3.9, maximal subparts). n > 0. */
int kva_utf8_check(const char *s, size_t n);
bool kva_utf8_valid(const char *s, size_t n);

#endif
