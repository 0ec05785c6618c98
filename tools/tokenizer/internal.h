/* Internals of a tokenizer. Text passes through a list of steps as pieces; the final pieces are words for the
 * model. */
#ifndef KVA_TOOLS_TOKENIZER_INTERNAL_H
#define KVA_TOOLS_TOKENIZER_INTERNAL_H

#include "tools/tokenizer/regex.h"
#include "tools/tokenizer/tokenizer.h"
#include "tools/tokenizer/unicode.h"

typedef struct kva_bytes {
  const char *data;
  size_t size;
} kva_bytes;

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* A part of the text, or a token found in it. */
typedef struct kva_piece {
  kva_bytes text;
  int64_t token; /* -1: text */
  bool first;    /* begins at the start of the whole text */
} kva_piece;
typedef KVA_VEC(kva_piece) kva_pieces;

typedef enum kva_text_kind {
  KVA_TEXT_PREFIX,  /* `to` before every piece */
  KVA_TEXT_REPLACE, /* matches by `to` */
  KVA_TEXT_NORMAL_FORM,
  KVA_TEXT_MAP,        /* character by character */
  KVA_TEXT_STRIP,      /* white space at the left and right end */
  KVA_TEXT_SPLIT,      /* into pieces at matches */
  KVA_TEXT_BYTE_CHARS, /* every byte by a printable character, as GPT-2 does */
} kva_text_kind;

typedef enum kva_split_behavior {
  KVA_SPLIT_REMOVED,
  KVA_SPLIT_ISOLATED,
  KVA_SPLIT_MERGED_WITH_PREVIOUS,
  KVA_SPLIT_MERGED_WITH_NEXT,
  KVA_SPLIT_CONTIGUOUS,
  KVA_SPLIT_BEHAVIORS
} kva_split_behavior;

typedef struct kva_text_step {
  kva_text_kind kind;
  kva_regex *regex; /* pattern to match; NULL: the text `from` */
  kva_bytes from, to;
  kva_split_behavior behavior;
  kva_normal_form form;
  kva_char_map map;
  bool invert;       /* SPLIT: exchanges matches and the text between them */
  bool unless_there; /* PREFIX: unless the piece already begins with it */
  bool only_first;   /* PREFIX: only at the start of the text */
  bool strip_left, strip_right;
} kva_text_step;
typedef KVA_VEC(kva_text_step) kva_text_steps;

/* A token that is searched in the text itself. */
typedef struct kva_added_token {
  kva_bytes content, pattern; /* pattern: text to search; normalised if `normalized` */
  uint32_t id;
  bool single_word, strip_left, strip_right, normalized, special;
} kva_added_token;
typedef KVA_VEC(kva_added_token) kva_added_tokens;

/* Pieces and texts are allocated in `arena`. KVA_UNSUPPORTED: a regular expression exceeded its step limit. */
KVA_MUST_USE kva_status kva_text_apply(const kva_text_steps *steps, kva_arena *arena, kva_pieces *pieces,
                                       kva_diag *diag);
/* Replaces occurrences of added tokens in the pieces. */
void kva_added_apply(const kva_added_tokens *added, bool normalized, kva_arena *arena, kva_pieces *pieces);
/* The byte that a character represents; -1: none. */
int kva_char_byte(uint32_t c);

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct kva_vocabulary {
  kva_map *ids;          /* text -> number + 1; added tokens, too */
  int64_t size;          /* numbers below it are the model's */
  int64_t unknown;       /* -1: none */
  int64_t byte_ids[256]; /* of <0x00> ...; -1: none */
  bool fuse_unknown, byte_fallback;
} kva_vocabulary;

/* The model's token with this text; -1: none. */
static inline int64_t kva_vocabulary_id(const kva_vocabulary *v, const char *text, size_t size) {
  int64_t id = (int64_t)(uintptr_t)kva_map_get(v->ids, text, size) - 1;
  return id < v->size ? id : -1;
}

typedef struct kva_merge {
  uint64_t pair; /* left << 32 | right; UINT64_MAX: free */
  uint32_t rank, id;
} kva_merge;

typedef struct kva_symbol {
  uint32_t id;
  int32_t previous, next; /* -1: none */
  bool gone;
} kva_symbol;

typedef struct kva_candidate {
  uint32_t rank, id;
  int32_t at;
} kva_candidate;

typedef struct kva_bpe {
  const kva_vocabulary *vocabulary;
  kva_merge *merges; /* hash table, open addressing */
  uint64_t mask;
  bool ignore_merges;
  KVA_VEC(kva_symbol) symbols; /* of the word in progress; memory is kept */
  KVA_VEC(kva_candidate) heap;
  kva_arena *arena;
} kva_bpe;

void kva_bpe_reserve_merges(kva_bpe *b, uint32_t n);
/* The last rank given for a pair applies. */
void kva_bpe_add_merge(kva_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

typedef struct kva_wordpiece {
  kva_bytes prefix; /* of pieces inside of a word */
  size_t max_chars; /* longer words are unknown */
  size_t max_size;  /* of a token */
} kva_wordpiece;

typedef struct kva_unigram {
  const double *scores; /* by number: logarithms of probabilities */
  double unknown_score;
  size_t max_size; /* of a piece */
} kva_unigram;

/* How a model encodes a word: appends its tokens. */
typedef void (*kva_encode_word)(kva_tokenizer *t, kva_bytes word, kva_arena *scratch, kva_token_ids *ids);
void kva_bpe_encode(kva_tokenizer *t, kva_bytes word, kva_arena *scratch, kva_token_ids *ids);
void kva_wordpiece_encode(kva_tokenizer *t, kva_bytes word, kva_arena *scratch, kva_token_ids *ids);
void kva_unigram_encode(kva_tokenizer *t, kva_bytes word, kva_arena *scratch, kva_token_ids *ids);

/* ---- the tokenizer ----------------------------------------------------------------------------------------------- */

typedef struct kva_token_text {
  kva_bytes text;
  bool added, special;
} kva_token_text;

struct kva_tokenizer {
  kva_arena *arena;
  bool bytes; /* byte tokenizer: the other fields are unused */
  int64_t vocab;
  kva_token_text *texts; /* by number */
  kva_added_tokens added;
  kva_text_steps normalizer, pre_tokenizer;
  kva_vocabulary vocabulary;
  kva_encode_word encode;
  kva_bpe bpe;
  kva_wordpiece wordpiece;
  kva_unigram unigram;
  KVA_VEC(uint32_t) begin; /* tokens that the post-processor puts before a text */
  bool decode_byte_chars, decode_bytes, decode_spaced;
  kva_bytes decode_space;  /* the text that represents a space */
  kva_bytes decode_prefix; /* of tokens that no space precedes; empty: none */
};

#endif
