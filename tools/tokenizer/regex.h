/* Regular expressions as tokenizers use them to cut text into words: the first alternative that leads to a match wins
 * (as in Oniguruma, PCRE and Python), over the characters of valid UTF-8.
 *
 * Supported: alternatives, groups (?:...) (?i:...), lookahead (?=...) (?!...), sets [...] and [^...] with ranges,
 * \p{L} \P{Lu} \s \S \d \D \w \W, the dot, escapes \r \n \t \x41 and of punctuation, and the greedy quantifiers
 * ? * + {n} {n,} {n,m}; possessive ones (++) on single characters; on groups only ? * +. Case is ignored for ASCII
 * letters and the two characters that fold to them. */
#ifndef KVA_TOOLS_TOKENIZER_REGEX_H
#define KVA_TOOLS_TOKENIZER_REGEX_H

#include "runtime/base/base.h"

typedef struct kva_regex kva_regex;
/* In `arena`; `loc` is for messages. Patterns that are not supported are KVA_UNSUPPORTED. */
KVA_MUST_USE kva_status kva_regex_compile(const char *pattern, size_t size, kva_arena *arena, const kva_loc *loc,
                                          kva_diag *diag, kva_regex **out_regex);
/* The first match at or after `at`; false: none, or the bound on steps was exceeded (kva_regex_exceeded). Uses memory
 * of the regex: one thread at a time. */
bool kva_regex_find(kva_regex *r, const char *text, size_t size, size_t at, size_t *out_begin, size_t *out_end);
bool kva_regex_exceeded(const kva_regex *r);
/* Frees what matching has allocated; the rest is the arena's. */
void kva_regex_release(kva_regex *r);

#endif
