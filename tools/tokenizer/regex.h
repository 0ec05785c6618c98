/* Regular expressions as tokenizers use them to cut text into words, matched by PCRE2. The reference matches with
 * Oniguruma: what the two read differently is written for PCRE2 in the way that Oniguruma reads it, or refused. */
#ifndef KVA_TOOLS_TOKENIZER_REGEX_H
#define KVA_TOOLS_TOKENIZER_REGEX_H

#include "runtime/base/base.h"

typedef struct kva_regex kva_regex;
/* kva_regex_release frees it; `loc` is for messages. KVA_UNSUPPORTED: the pattern is not one of these, or can match
 * nothing. */
KVA_MUST_USE kva_status kva_regex_compile(const char *pattern, size_t size, kva_arena *arena, const kva_loc *loc,
                                          kva_diag *diag, kva_regex **out_regex);
void kva_regex_release(kva_regex *r);
/* The first match at or after `at`, in valid UTF-8; false: none, or a bound on steps was exceeded
 * (kva_regex_exceeded). Uses memory of the regex: one thread at a time. */
bool kva_regex_find(kva_regex *r, const char *text, size_t size, size_t at, size_t *out_begin, size_t *out_end);
/* Whether a search since the last call exceeded it. */
bool kva_regex_exceeded(kva_regex *r);
/* Version of PCRE2. Static storage. */
const char *kva_regex_version(void);

#endif
