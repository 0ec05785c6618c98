/* UTF-8 and properties of characters, from utf8proc. */
#ifndef KVA_TOOLS_TOKENIZER_UNICODE_H
#define KVA_TOOLS_TOKENIZER_UNICODE_H

#include "runtime/base/base.h"

/* The property White_Space. */
bool kva_is_space(uint32_t c);
/* A word character, \w: Alphabetic, marks, decimal digits, connectors, joiners (Unicode TS 18, annex C). */
bool kva_is_word(uint32_t c);

/* What a character becomes: at most three, written to out; their number. */
typedef size_t (*kva_char_map)(uint32_t c, uint32_t out[3]);
size_t kva_char_lower(uint32_t c, uint32_t out[3]);
size_t kva_char_without_marks(uint32_t c, uint32_t out[3]);          /* categories M */
size_t kva_char_without_nonspacing(uint32_t c, uint32_t out[3]);     /* category Mn */
size_t kva_char_without_controls(uint32_t c, uint32_t out[3]);       /* as BERT: C but Cn; white space is ' ' */
size_t kva_char_with_spaced_ideographs(uint32_t c, uint32_t out[3]); /* as BERT */

/* Normal forms of the Unicode standard, annex 15. */
typedef enum kva_normal_form { KVA_NFC, KVA_NFD, KVA_NFKC, KVA_NFKD, KVA_NORMAL_FORMS } kva_normal_form;
/* Appends the form of valid UTF-8. */
void kva_normalize(const char *text, size_t size, kva_normal_form form, kva_text *out);

/* Writes c (below 0x110000); returns the number of bytes. */
size_t kva_utf8_put(uint32_t c, char out[4]);
/* The character at s, of valid UTF-8; *out_size: its bytes. */
uint32_t kva_utf8_get(const char *s, size_t *out_size);
bool kva_utf8_valid(const char *s, size_t n);
/* Appends s, with U+FFFD for what is not UTF-8; the number of these. */
int64_t kva_utf8_add_valid(const char *s, size_t n, kva_text *out);
/* Bytes at the end of s that may begin a character: a decoder waits for the rest. */
size_t kva_utf8_pending(const char *s, size_t n);
/* Version of utf8proc. Static storage. */
const char *kva_unicode_version(void);

#endif
