/* WordPiece (Schuster, Nakajima, ICASSP 2012; as in BERT): the longest token that the rest of the word begins with,
 * again and again; a word that cannot be cut so is unknown as a whole. */
#include "tools/tokenizer/internal.h"

static size_t characters(kva_bytes word) {
  size_t count = 0;
  for (size_t i = 0; i < word.size; i++) count += ((unsigned char)word.data[i] & 0xC0) != 0x80;
  return count;
}

/* The token that begins at `at`, the longest; -1: none. */
static int64_t longest(const kva_tokenizer *t, kva_bytes word, size_t at, char *room, size_t *out_end) {
  const kva_wordpiece *w = &t->wordpiece;
  size_t before = at ? w->prefix.size : 0, most = w->max_size - (before < w->max_size ? before : w->max_size);
  size_t end = word.size - at < most ? word.size : at + most;
  memcpy(room, w->prefix.data, before);
  memcpy(room + before, word.data + at, end - at);
  for (; end > at; end--) {
    if (end < word.size && ((unsigned char)word.data[end] & 0xC0) == 0x80) continue;
    int64_t id = kva_vocabulary_id(&t->vocabulary, room, before + end - at);
    if (id < 0) continue;
    *out_end = end;
    return id;
  }
  return -1;
}

void kva_wordpiece_encode(kva_tokenizer *t, kva_bytes word, kva_arena *scratch, kva_token_ids *ids) {
  int64_t begin = ids->n, id = 0;
  char *room = kva_arena_alloc(scratch, t->wordpiece.prefix.size + word.size + 1);
  bool known = characters(word) <= t->wordpiece.max_chars;
  for (size_t at = 0; known && at < word.size;) {
    id = longest(t, word, at, room, &at);
    known = id >= 0;
    if (known) kva_token_ids_add(ids, (uint32_t)id);
  }
  if (known) return;
  ids->n = begin;
  kva_token_ids_add(ids, (uint32_t)t->vocabulary.unknown);
}
