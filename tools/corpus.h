/* Texts below files and folders, one document a file, in an order that does not depend on the file system. */
#ifndef KVA_TOOLS_CORPUS_H
#define KVA_TOOLS_CORPUS_H

#include "runtime/base/base.h"

typedef struct kva_corpus_stats {
  int64_t files, bytes;                   /* that were used; bytes of text */
  int64_t binary, duplicates, unreadable; /* left out */
} kva_corpus_stats;

typedef struct kva_corpus {
  uint32_t n;
  const char *const *paths; /* files and folders */
  int64_t limit;            /* bytes of text, after which reading stops; 0: none */
  /* Called for every document; `share` of the work is done. Another status than KVA_OK ends the reading. */
  kva_status (*each)(void *user, const char *path, const char *text, size_t size, double share, kva_diag *diag);
  void *user;
} kva_corpus;

/* Files of a folder are sorted by path, links and names that begin with a dot left out; files that end in .gz are
 * decompressed. Left out are files with a NUL byte near the beginning, exact copies of earlier ones, and those of a
 * folder that cannot be read; a path that is given itself and cannot be read is an error. */
KVA_MUST_USE kva_status kva_corpus_read(const kva_corpus *c, kva_diag *diag, kva_corpus_stats *out_stats);

#endif
