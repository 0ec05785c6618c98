/* What the processes of a run decide together: whose message is shown, what failed, whether they do the same. */
#include "runtime/comm_internal.h"

#include <stdlib.h>

/* In pieces, so that no process needs memory to take part: one that left would have the others wait for it. */
kva_status kva_comm_broadcast_text(kva_comm *c, int root, kva_text *text) {
  if (!c) return KVA_OK;
  enum { PIECE = 4096 };
  char piece[PIECE];
  bool sends = kva_comm_rank(c) == root;
  int64_t n = (int64_t)text->len;
  KVA_TRY(kva_comm_broadcast(c, root, (int64_t)sizeof n, &n));
  if (!sends) kva_text_free(text);
  kva_text_add_bytes(text, "", 0);
  for (int64_t at = 0; at < n; at += PIECE) {
    int64_t bytes = n - at < PIECE ? n - at : PIECE;
    if (sends) memcpy(piece, text->data + at, (size_t)bytes);
    KVA_TRY(kva_comm_broadcast(c, root, bytes, piece));
    if (!sends) kva_text_add_bytes(text, piece, (size_t)bytes);
  }
  return text->cut ? KVA_NO_MEMORY : KVA_OK;
}

/* The first rank whose number fits the predicate; -1: none. */
static int first_rank(const kva_comm *c, const int64_t *numbers, bool (*fits)(int64_t number)) {
  for (int r = 0; r < kva_comm_size(c); r++)
    if (fits(numbers[r])) return r;
  return -1;
}

/* Every rank's number, in order, until the next call; NULL: a failure. Its memory is there from the start: a process
 * without any tells the others so. */
static const int64_t *gather(kva_comm *c, int64_t number) {
  int64_t bytes = (int64_t)sizeof number;
  kva_status status = kva_comm_all_gather(c, bytes, bytes * kva_comm_size(c), &number, c->numbers);
  return status == KVA_OK ? c->numbers : NULL;
}

static bool is_positive(int64_t n) {
  return n > 0;
}
static bool is_failure(int64_t status) {
  return status != KVA_OK && status != KVA_INTERRUPTED;
}

int kva_comm_share(kva_comm *c, kva_text *text) {
  if (!c) return -1;
  const int64_t *lengths = gather(c, (int64_t)text->len);
  int root = lengths ? first_rank(c, lengths, is_positive) : -1;
  if (root < 0) return -1;
  if (root == kva_comm_rank(c)) {
    kva_text named = {0};
    kva_text_add(&named, "%s: %s", kva_comm_name(c), kva_text_string(text));
    kva_text_free(text);
    *text = named;
  }
  return kva_comm_broadcast_text(c, root, text) == KVA_OK ? root : -1;
}

/* The errors of diag as they would be printed, without the last line's end. */
static void print_errors(const kva_diag *diag, kva_text *out) {
  char *data = NULL;
  size_t n = 0;
  FILE *f = diag ? open_memstream(&data, &n) : NULL;
  if (!f) return;
  kva_diag_print(diag, f);
  if (!fclose(f)) kva_text_add_bytes(out, data, n && data[n - 1] == '\n' ? n - 1 : n);
  free(data);
}

static kva_status take(kva_comm *c, int root, kva_status status, kva_diag *diag) {
  kva_text text = {0};
  int rank = kva_comm_rank(c);
  if (rank == root) print_errors(diag, &text);
  kva_status sent = kva_comm_broadcast_text(c, root, &text);
  if (sent == KVA_OK && rank != root && text.len) {
    kva_diag_clear(diag);
    (void)kva_fail(diag, status, NULL, "process %d of %d: %s", root, kva_comm_size(c), text.data);
  }
  kva_text_free(&text);
  return sent == KVA_OK || sent == KVA_NO_MEMORY ? status : sent; /* what is agreed holds without its text */
}

kva_status kva_comm_agree(kva_comm *c, kva_status status, kva_diag *diag) {
  if (!c) return status;
  const int64_t *all = gather(c, status);
  if (!all) return kva_fail(diag, KVA_IO, NULL, "%s", kva_comm_error(c));
  int root = first_rank(c, all, is_failure);
  if (root < 0) root = first_rank(c, all, is_positive);
  kva_status agreed = root < 0 ? KVA_OK : (kva_status)all[root];
  kva_comm_note_agreed(c, root >= 0);
  return root < 0 ? KVA_OK : take(c, root, agreed, diag);
}

/* The first line in which the texts differ. */
static kva_status compare_lines(const kva_comm *c, const char *own, const char *first, kva_diag *diag) {
  while (*own && *first) {
    int n = (int)strcspn(own, "\n"), n_first = (int)strcspn(first, "\n"), name = (int)strcspn(own, ":");
    if (n != n_first || memcmp(own, first, (size_t)n))
      return kva_error(diag, NULL, "%s does not do the same as process 0: %.*s, there %.*s", kva_comm_name(c), n, own,
                       n_first > name + 2 ? n_first - name - 2 : 0, first + name + 2);
    own += n + (own[n] == '\n');
    first += n_first + (first[n_first] == '\n');
  }
  return *own || *first ? kva_error(diag, NULL, "%s does not do the same as process 0", kva_comm_name(c)) : KVA_OK;
}

kva_status kva_comm_compare(kva_comm *c, const char *lines, kva_diag *diag) {
  if (!c) return KVA_OK;
  kva_text first = {0};
  kva_text_add(&first, "%s", lines);
  kva_status status = kva_comm_broadcast_text(c, 0, &first);
  if (status == KVA_OK) status = compare_lines(c, lines, first.data, diag);
  kva_text_free(&first);
  return kva_comm_agree(c, status, diag);
}
