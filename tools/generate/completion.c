/* Text is held back while it may turn out to be the begin of a stop string or of a character. */
#include "tools/generate/completion.h"

#include "tools/tokenizer/unicode.h"

#include <stdlib.h>

static void give(kva_completion *c, size_t end) {
  if (c->on_text && end > c->given) c->on_text(c, c->text.data + c->given, end - c->given);
  c->given = end > c->given ? end : c->given;
}

/* The first byte of the first stop string in the text; SIZE_MAX: none. `from`: where text is new. */
static size_t find_stop(const kva_completion *c, size_t from) {
  size_t first = SIZE_MAX;
  for (size_t i = 0; i < c->n_stops; i++) {
    size_t n = strlen(c->stops[i]), begin = from > n ? from - n : 0;
    const char *found = memmem(c->text.data + begin, c->text.len - begin, c->stops[i], n);
    if (found && (size_t)(found - c->text.data) < first) first = (size_t)(found - c->text.data);
  }
  return first;
}

/* Bytes at the end of the text that a stop string may begin with. */
static size_t begun_stop(const kva_completion *c) {
  size_t most = 0;
  for (size_t i = 0; i < c->n_stops; i++) {
    size_t n = strlen(c->stops[i]);
    for (size_t k = n - 1 < c->text.len ? n - 1 : c->text.len; k > most; k--)
      if (!memcmp(c->text.data + c->text.len - k, c->stops[i], k)) most = k;
  }
  return most;
}

static size_t held_back(const kva_completion *c) {
  size_t stop = begun_stop(c), character = kva_utf8_pending(c->text.data, c->text.len);
  return stop > character ? stop : character;
}

void kva_completion_end(kva_completion *c, kva_finish finish) {
  give(c, c->text.len);
  c->finish = finish;
  if (c->on_end) c->on_end(c);
}

/* Why the text ends with its last token; NONE: it goes on. */
static kva_finish finish_of(kva_completion *c, size_t before) {
  size_t stop = c->text.len ? find_stop(c, before) : SIZE_MAX;
  if (stop != SIZE_MAX) c->text.len = stop;
  if (stop != SIZE_MAX) return KVA_FINISH_STOP;
  return c->tokens == c->max_tokens ? KVA_FINISH_LENGTH : KVA_FINISH_NONE;
}

bool kva_completion_take(kva_completion *c, const kva_tokenizer *tokenizer, uint32_t token) {
  size_t before = c->text.len;
  bool ends = kva_tokenizer_ends(tokenizer, token);
  c->tokens++;
  kva_token_ids_add(&c->drawn, token);
  if (!ends) kva_tokenizer_decode(tokenizer, token, &c->text);
  kva_finish finish = ends ? KVA_FINISH_STOP : finish_of(c, before);
  if (finish == KVA_FINISH_NONE)
    give(c, c->text.len - held_back(c));
  else
    kva_completion_end(c, finish);
  return finish == KVA_FINISH_NONE;
}

void kva_completion_clear(kva_completion *c) {
  kva_text_free(&c->text);
  free(c->drawn.data);
  c->drawn = (kva_token_ids){0};
}
