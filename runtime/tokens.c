/* Token files: header, mapping, writing. Tokens are stored in the machine's byte order, which is little endian on every
 * supported target (asserted below). */
#include "runtime/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are little endian");

typedef struct header {
  char magic[8];
  uint32_t version, dtype;
  uint64_t vocab, count, hash, documents;
  int64_t end;
  uint64_t reserved;
} header;
_Static_assert(sizeof(header) == 64, "the format");

static const char magic[8] = {'K', 'V', 'A', 'T', 'O', 'K', 'E', 'N'};
enum { VERSION = 1 };
/* A larger vocabulary indicates a damaged file. */
static const uint64_t max_vocab = INT32_MAX;

static int64_t token_bytes(kva_dtype t) {
  return kva_dtype_bits(t) / 8;
}

/* A file's hash is chained over its tokens as uint32, whatever type they are stored in. */
static uint64_t hash_token(uint64_t hash, uint32_t token) {
  return kva_hash(hash, &token, sizeof token);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static kva_status check_header(const header *h, size_t size, const kva_loc *loc, kva_diag *diag) {
  if (h->version != VERSION)
    return kva_fail(diag, KVA_UNSUPPORTED, loc, "token file of version %u; known is %d", h->version, VERSION);
  if (h->dtype != KVA_U16 && h->dtype != KVA_U32)
    return kva_error(diag, loc, "tokens of type %u; expected %d (uint16) or %d (uint32)", h->dtype, KVA_U16, KVA_U32);
  if (h->vocab < 1 || h->vocab > max_vocab || (h->dtype == KVA_U16 && h->vocab > UINT16_MAX + 1))
    return kva_error(diag, loc, "a vocabulary of %llu is out of range for these tokens", (unsigned long long)h->vocab);
  if (h->end < -1 || h->end >= (int64_t)h->vocab)
    return kva_error(diag, loc, "the token %lld that ends documents is outside of the vocabulary of %llu",
                     (long long)h->end, (unsigned long long)h->vocab);
  uint64_t bytes = (uint64_t)token_bytes((kva_dtype)h->dtype), found = (size - sizeof *h) / bytes;
  if (h->count != found || (size - sizeof *h) % bytes)
    return kva_error(diag, loc, "the header says %llu tokens, the file has %llu and %llu bytes; it is damaged",
                     (unsigned long long)h->count, (unsigned long long)found,
                     (unsigned long long)((size - sizeof *h) % bytes));
  return KVA_OK;
}

static kva_status take_header(const char *path, const kva_file *file, kva_diag *diag, kva_token_info *out) {
  kva_loc loc = {.file = path};
  header h;
  if (file->size < sizeof h || memcmp(file->data, magic, sizeof magic))
    return kva_error(diag, &loc, "is no token file: it does not begin with KVATOKEN; `kvasir data` makes them");
  memcpy(&h, file->data, sizeof h);
  KVA_TRY(check_header(&h, file->size, &loc, diag));
  *out = (kva_token_info){.dtype = (kva_dtype)h.dtype,
                          .vocab = (int64_t)h.vocab,
                          .count = (int64_t)h.count,
                          .documents = (int64_t)h.documents,
                          .end = h.end,
                          .hash = h.hash};
  return KVA_OK;
}

kva_status kva_tokens_open(const char *path, kva_diag *diag, kva_token_file *out_file) {
  *out_file = (kva_token_file){0};
  kva_token_file f = {0};
  KVA_TRY(kva_file_map(path, diag, &f.file));
  kva_status status = take_header(path, &f.file, diag, &f.info);
  if (status) {
    kva_file_unmap(&f.file);
    return status;
  }
  f.tokens = (const char *)f.file.data + sizeof(header);
  *out_file = f;
  return KVA_OK;
}

void kva_tokens_close(kva_token_file *file) {
  kva_file_unmap(&file->file);
  *file = (kva_token_file){0};
}

kva_status kva_tokens_verify(const char *path, const kva_token_file *file, kva_diag *diag) {
  kva_loc loc = {.file = path};
  const kva_token_info *info = &file->info;
  uint64_t hash = 0;
  int64_t documents = 0;
  for (int64_t i = 0; i < info->count; i++) {
    uint32_t token = kva_tokens_at(file, i);
    if (token >= info->vocab)
      return kva_error(diag, &loc, "token %lld is %u, outside of the vocabulary of %lld; the file is damaged",
                       (long long)i, token, (long long)info->vocab);
    hash = hash_token(hash, token);
    documents += token == info->end;
  }
  if (hash != info->hash)
    return kva_error(diag, &loc, "the tokens have hash %016llx, the header says %016llx; the file is damaged",
                     (unsigned long long)hash, (unsigned long long)info->hash);
  if (info->end >= 0 && documents != info->documents)
    return kva_error(diag, &loc, "%lld documents end in the file, the header says %lld", (long long)documents,
                     (long long)info->documents);
  return KVA_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

struct kva_token_writer {
  kva_token_info info;
  char *path, *temporary; /* NULL: the file was not created */
  FILE *file;
};

static kva_status io_error(const kva_token_writer *w, const char *doing, kva_diag *diag) {
  kva_loc loc = {.file = w->path};
  return kva_fail(diag, KVA_IO, &loc, "cannot %s: %s", doing, strerror(errno));
}

static kva_status write_header(kva_token_writer *w, kva_diag *diag) {
  header h = {.version = VERSION,
              .dtype = (uint32_t)w->info.dtype,
              .vocab = (uint64_t)w->info.vocab,
              .count = (uint64_t)w->info.count,
              .hash = w->info.hash,
              .documents = (uint64_t)w->info.documents,
              .end = w->info.end};
  memcpy(h.magic, magic, sizeof magic);
  bool ok = !fseek(w->file, 0, SEEK_SET) && fwrite(&h, sizeof h, 1, w->file) == 1;
  return ok ? KVA_OK : io_error(w, "write it", diag);
}

static kva_status open_temporary(kva_token_writer *w, kva_diag *diag) {
  w->temporary = kva_file_temporary(w->path);
  if (!w->temporary) return io_error(w, "make a temporary file for it", diag);
  int fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  w->file = fd < 0 ? NULL : fdopen(fd, "w");
  if (w->file) return KVA_OK;
  kva_status status = io_error(w, "open it for writing", diag);
  if (fd >= 0) close(fd);
  free(w->temporary);
  w->temporary = NULL;
  return status;
}

kva_status kva_token_writer_create(const char *path, int64_t vocab, int64_t end, kva_diag *diag,
                                   kva_token_writer **out_writer) {
  *out_writer = NULL;
  kva_token_writer *w = calloc(1, sizeof *w);
  if (!w) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the writer of a token file");
  w->info = (kva_token_info){.dtype = vocab > UINT16_MAX + 1 ? KVA_U32 : KVA_U16, .vocab = vocab, .end = end};
  w->path = strdup(path);
  kva_status status = w->path ? open_temporary(w, diag) : KVA_NO_MEMORY;
  if (!status) status = write_header(w, diag);
  if (status) {
    kva_token_writer_destroy(w);
    return status;
  }
  *out_writer = w;
  return KVA_OK;
}

kva_status kva_token_writer_add(kva_token_writer *w, int64_t n, const uint32_t *tokens, kva_diag *diag) {
  size_t bytes = (size_t)token_bytes(w->info.dtype);
  for (int64_t i = 0; i < n; i++) {
    KVA_ASSERT(tokens[i] < w->info.vocab);
    w->info.hash = hash_token(w->info.hash, tokens[i]);
    w->info.documents += tokens[i] == w->info.end;
    if (fwrite(&tokens[i], bytes, 1, w->file) != 1) return io_error(w, "write it", diag);
  }
  w->info.count += n;
  return KVA_OK;
}

const kva_token_info *kva_token_writer_info(const kva_token_writer *w) {
  return &w->info;
}

static kva_status finish(kva_token_writer *w, kva_diag *diag) {
  KVA_TRY(write_header(w, diag));
  bool ok = !fflush(w->file) && !fsync(fileno(w->file));
  ok = !fclose(w->file) && ok;
  w->file = NULL;
  if (!ok) return io_error(w, "write it", diag);
  kva_status status = kva_file_place(w->temporary, w->path, diag);
  free(w->temporary);
  w->temporary = NULL;
  return status;
}

kva_status kva_token_writer_finish(kva_token_writer *w, kva_diag *diag, kva_token_info *out_info) {
  kva_status status = finish(w, diag);
  if (out_info) *out_info = w->info;
  kva_token_writer_destroy(w);
  return status;
}

void kva_token_writer_destroy(kva_token_writer *w) {
  if (!w) return;
  if (w->file) fclose(w->file);
  if (w->temporary) unlink(w->temporary);
  free(w->temporary);
  free(w->path);
  free(w);
}
