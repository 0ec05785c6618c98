/* Text files and folders of them, one document per file, in an order independent of the file system. */
#ifndef KVA_TOOLS_CORPUS_H
#define KVA_TOOLS_CORPUS_H

#include "runtime/base/base.h"

typedef struct kva_corpus_stats {
  int64_t files, bytes;                   /* files used; bytes of text */
  int64_t binary, duplicates, unreadable; /* skipped files */
} kva_corpus_stats;

typedef struct kva_corpus {
  uint32_t n;
  const char *const *paths; /* files and folders */
  int64_t limit;            /* bytes of text after which reading stops; 0: none */
  /* Called for every document; `share` is the fraction of work done. A status other than KVA_OK ends the reading. */
  kva_status (*each)(void *user, const char *path, const char *text, size_t size, double share, kva_diag *diag);
  void *user;
} kva_corpus;

/* Files of a folder are sorted by path; links and names that begin with a dot are skipped; .gz files are decompressed.
 * Also skipped: files with a NUL byte near the beginning, exact copies of earlier files, and unreadable files in
 * folders. An explicitly named path that cannot be read is an error. */
KVA_MUST_USE kva_status kva_corpus_read(const kva_corpus *c, kva_diag *diag, kva_corpus_stats *out_stats);

#endif
