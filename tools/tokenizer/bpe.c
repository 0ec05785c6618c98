/* Byte pair encoding (Sennrich, Haddow, Birch, ACL 2016): repeatedly merges the adjacent pair of lowest rank, leftmost
 * first, until no pair has a rank. A heap keeps this near linear in the length of a word; candidates whose neighbours
 * have changed are detected when they are popped. */
#include "tools/tokenizer/internal.h"

#include <stdlib.h>

static const uint64_t free_slot = UINT64_MAX;

void kva_token_ids_add(kva_token_ids *ids, uint32_t id) {
  if (ids->n == ids->capacity) {
    ids->capacity = ids->capacity ? 2 * ids->capacity : 1024;
    ids->data = realloc(ids->data, (size_t)ids->capacity * sizeof *ids->data);
    KVA_ASSERT(ids->data);
  }
  ids->data[ids->n++] = id;
}

/* ---- the table of merges ----------------------------------------------------------------------------------------- */

void kva_bpe_reserve_merges(kva_bpe *b, uint32_t n) {
  uint64_t slots = 16;
  while (slots < 2 * (uint64_t)n) slots *= 2;
  b->mask = slots - 1;
  b->merges = KVA_NEW_ARRAY(b->arena, kva_merge, slots);
  for (uint64_t i = 0; i < slots; i++) b->merges[i].pair = free_slot;
}

/* The slot of the pair, or the free slot where it belongs. */
static kva_merge *slot_of(const kva_bpe *b, uint64_t pair) {
  uint64_t i = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15u >> 20 & b->mask;
  while (b->merges[i].pair != free_slot && b->merges[i].pair != pair) i = (i + 1) & b->mask;
  return &b->merges[i];
}

void kva_bpe_add_merge(kva_bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t id) {
  uint64_t pair = (uint64_t)left << 32 | right;
  *slot_of(b, pair) = (kva_merge){pair, rank, id};
}

/* ---- the heap ---------------------------------------------------------------------------------------------------- */

static bool before(const kva_candidate *a, const kva_candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void swap(kva_candidate *a, kva_candidate *b) {
  kva_candidate t = *a;
  *a = *b;
  *b = t;
}

static void push(kva_bpe *b, kva_candidate c) {
  KVA_PUSH(b->arena, &b->heap, c);
  kva_candidate *h = b->heap.data;
  for (uint32_t i = b->heap.len - 1; i > 0 && before(&h[i], &h[(i - 1) / 2]); i = (i - 1) / 2)
    swap(&h[i], &h[(i - 1) / 2]);
}

static kva_candidate pop(kva_bpe *b) {
  kva_candidate *h = b->heap.data, top = h[0];
  uint32_t n = --b->heap.len;
  h[0] = h[n];
  for (uint32_t i = 0, child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && before(&h[child + 1], &h[child])) child++;
    if (!before(&h[child], &h[i])) break;
    swap(&h[i], &h[child]);
  }
  return top;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

static void add_symbol(kva_bpe *b, uint32_t id) {
  int32_t n = (int32_t)b->symbols.len;
  kva_symbol s = {.id = id, .previous = n - 1, .next = n + 1};
  KVA_PUSH(b->arena, &b->symbols, s);
}

/* A character without a token becomes the tokens of its bytes, if all exist. */
static bool add_bytes(kva_bpe *b, const char *c, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (b->vocabulary->byte_ids[(unsigned char)c[i]] < 0) return false;
  for (size_t i = 0; i < size; i++) add_symbol(b, (uint32_t)b->vocabulary->byte_ids[(unsigned char)c[i]]);
  return true;
}

/* Each unknown character is one token, or a run of them is one. Like the reference, the token is added with the next
 * known character. */
static void first_symbols(kva_bpe *b, kva_bytes word) {
  bool pending = false;
  for (size_t at = 0, n; at < word.size; at += n) {
    kva_utf8_get(word.data + at, &n);
    int64_t id = kva_vocabulary_id(b->vocabulary, word.data + at, n);
    if (id >= 0) {
      if (pending) add_symbol(b, (uint32_t)b->vocabulary->unknown);
      pending = false;
      add_symbol(b, (uint32_t)id);
    } else if (!(b->vocabulary->byte_fallback && add_bytes(b, word.data + at, n)) && b->vocabulary->unknown >= 0) {
      if (pending && !b->vocabulary->fuse_unknown) add_symbol(b, (uint32_t)b->vocabulary->unknown);
      pending = true;
    }
  }
  if (pending) add_symbol(b, (uint32_t)b->vocabulary->unknown);
}

static void consider(kva_bpe *b, int32_t at) {
  const kva_symbol *s = b->symbols.data;
  if (at < 0 || s[at].next < 0) return;
  const kva_merge *m = slot_of(b, (uint64_t)s[at].id << 32 | s[s[at].next].id);
  if (m->pair != free_slot) push(b, (kva_candidate){m->rank, m->id, at});
}

static void merge(kva_bpe *b, int32_t at, uint32_t id) {
  kva_symbol *s = b->symbols.data, *left = &s[at], *right = &s[left->next];
  right->gone = true;
  left->id = id;
  left->next = right->next;
  if (left->next >= 0) s[left->next].previous = at;
  consider(b, left->previous);
  consider(b, at);
}

static void merge_all(kva_bpe *b) {
  int32_t n = (int32_t)b->symbols.len;
  if (n) b->symbols.data[n - 1].next = -1;
  for (int32_t i = 0; i + 1 < n; i++) consider(b, i);
  while (b->heap.len) {
    kva_candidate c = pop(b);
    const kva_symbol *s = b->symbols.data;
    if (s[c.at].gone || s[c.at].next < 0) continue;
    const kva_merge *m = slot_of(b, (uint64_t)s[c.at].id << 32 | s[s[c.at].next].id);
    if (m->pair != free_slot && m->id == c.id) merge(b, c.at, c.id);
  }
}

void kva_bpe_encode(kva_tokenizer *t, kva_bytes word, kva_arena *scratch, kva_token_ids *ids) {
  (void)scratch;
  kva_bpe *b = &t->bpe;
  int64_t whole = b->ignore_merges ? kva_vocabulary_id(b->vocabulary, word.data, word.size) : -1;
  if (whole >= 0) {
    kva_token_ids_add(ids, (uint32_t)whole);
    return;
  }
  b->symbols.len = b->heap.len = 0;
  first_symbols(b, word);
  merge_all(b);
  for (uint32_t i = 0; i < b->symbols.len; i++)
    if (!b->symbols.data[i].gone) kva_token_ids_add(ids, b->symbols.data[i].id);
}
