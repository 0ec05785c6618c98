/* Unigram language model (Kudo, ACL 2018): of all ways to cut a text into pieces the one with the largest sum of
 * scores, by dynamic programming over the ends of pieces. A character that is no piece costs more than any piece. */
#include "tools/tokenizer/internal.h"

#include <math.h>

typedef struct end {
  double score;  /* of the best way to here */
  size_t begin;  /* of its last piece */
  int64_t piece; /* -1: a character that is none */
} end;

static void offer(end *e, double score, size_t begin, int64_t piece) {
  if (score > e->score) *e = (end){score, begin, piece};
}

static void extend(const kva_tokenizer *t, kva_bytes text, size_t at, end *ends) {
  const kva_unigram *u = &t->unigram;
  size_t n, most = text.size - at < u->max_size ? text.size - at : u->max_size;
  bool single = false;
  kva_utf8_get(text.data + at, &n);
  for (size_t size = 1; size <= most; size++) {
    if (size < text.size - at && ((unsigned char)text.data[at + size] & 0xC0) == 0x80) continue;
    int64_t id = kva_vocabulary_id(&t->vocabulary, text.data + at, size);
    if (id < 0) continue;
    offer(&ends[at + size], ends[at].score + u->scores[id], at, id);
    single = single || size == n;
  }
  if (!single) offer(&ends[at + n], ends[at].score + u->unknown_score, at, -1);
}

/* A text without a piece: its bytes, if all are tokens, else the unknown token. */
static void add_unknown(const kva_tokenizer *t, kva_bytes text, kva_token_ids *ids) {
  const kva_vocabulary *v = &t->vocabulary;
  bool bytes = v->byte_fallback;
  for (size_t i = 0; bytes && i < text.size; i++) bytes = v->byte_ids[(unsigned char)text.data[i]] >= 0;
  for (size_t i = 0; bytes && i < text.size; i++)
    kva_token_ids_add(ids, (uint32_t)v->byte_ids[(unsigned char)text.data[i]]);
  if (!bytes) kva_token_ids_add(ids, (uint32_t)v->unknown);
}

static bool is_unknown(const kva_tokenizer *t, const end *e) {
  return e->piece < 0 || e->piece == t->vocabulary.unknown;
}

void kva_unigram_encode(kva_tokenizer *t, kva_bytes text, kva_arena *scratch, kva_token_ids *ids) {
  end *ends = KVA_NEW_ARRAY(scratch, end, text.size + 1);
  size_t *pieces = KVA_NEW_ARRAY(scratch, size_t, text.size + 1), n = 0; /* their ends, the last first */
  for (size_t i = 1; i <= text.size; i++) ends[i].score = -INFINITY;
  for (size_t at = 0, step; at < text.size; at += step) {
    extend(t, text, at, ends);
    kva_utf8_get(text.data + at, &step);
  }
  for (size_t at = text.size; at > 0; at = ends[at].begin) pieces[n++] = at;
  while (n > 0) { /* unknown characters side by side are one */
    size_t last = pieces[--n], begin = ends[last].begin;
    if (!is_unknown(t, &ends[last])) {
      kva_token_ids_add(ids, (uint32_t)ends[last].piece);
      continue;
    }
    while (n > 0 && is_unknown(t, &ends[pieces[n - 1]])) last = pieces[--n];
    add_unknown(t, (kva_bytes){text.data + begin, last - begin}, ids);
  }
}
