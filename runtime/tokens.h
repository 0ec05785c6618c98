/* Token files: `kvasir data` writes them from texts, and the data source "tokens" maps and reads them.
 *
 * A header of 64 bytes, all little endian, then `count` tokens of 2 or 4 bytes:
 *
 *    0  8 bytes   "KVATOKEN"
 *    8  uint32    version, 1
 *   12  uint32    type of the tokens: 4 uint16, 12 uint32 (codes of kva_dtype)
 *   16  uint64    size of the vocabulary: every token is less
 *   24  uint64    count
 *   32  uint64    kva_hash of the tokens, chained token by token from 0
 *   40  uint64    documents
 *   48  int64     the token that ends a document; -1: none
 *   56  8 bytes   0 */
#ifndef KVA_RUNTIME_TOKENS_H
#define KVA_RUNTIME_TOKENS_H

#include "runtime/base/base.h"

typedef struct kva_token_info {
  kva_dtype dtype; /* KVA_U16 or KVA_U32 */
  int64_t vocab, count, documents;
  int64_t end; /* the token that ends a document; -1: none */
  uint64_t hash;
} kva_token_info;

typedef struct kva_token_file {
  kva_token_info info;
  const void *tokens;
  kva_file file;
} kva_token_file;

/* Maps a file and checks its header and size, but not the tokens, which would read the whole file. */
KVA_MUST_USE kva_status kva_tokens_open(const char *path, kva_diag *diag, kva_token_file *out_file);
void kva_tokens_close(kva_token_file *file);
/* Reads the whole file and checks tokens against the vocabulary, hash and number of documents. `path` is for
 * messages. */
KVA_MUST_USE kva_status kva_tokens_verify(const char *path, const kva_token_file *file, kva_diag *diag);
static inline uint32_t kva_tokens_at(const kva_token_file *file, int64_t i) {
  return file->info.dtype == KVA_U16 ? ((const uint16_t *)file->tokens)[i] : ((const uint32_t *)file->tokens)[i];
}

/* Writes a file token by token into a temporary file, which finish syncs and renames. */
typedef struct kva_token_writer kva_token_writer;
/* end: the token that ends a document, or -1. */
KVA_MUST_USE kva_status kva_token_writer_create(const char *path, int64_t vocab, int64_t end, kva_diag *diag,
                                                kva_token_writer **out_writer);
/* Tokens must be less than the vocabulary size. */
KVA_MUST_USE kva_status kva_token_writer_add(kva_token_writer *w, int64_t n, const uint32_t *tokens, kva_diag *diag);
const kva_token_info *kva_token_writer_info(const kva_token_writer *w);
/* Destroys w in either case; *out_info may be NULL. */
KVA_MUST_USE kva_status kva_token_writer_finish(kva_token_writer *w, kva_diag *diag, kva_token_info *out_info);
/* Without a successful finish no file is left. */
void kva_token_writer_destroy(kva_token_writer *w);

#endif
