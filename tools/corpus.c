/* Finds, decompresses and filters texts. */
#include "tools/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#ifdef KVA_HAVE_ZLIB
#include <zlib.h>
#endif

enum { BINARY_PREFIX = 8192, MAX_FOLDERS = 64 };
static const size_t max_document = (size_t)1 << 30; /* limit: a compressed file may expand to any size */

typedef struct entry {
  const char *path;
  bool given; /* named by the user; else found in a folder */
} entry;

typedef struct reader {
  const kva_corpus *c;
  kva_diag *diag;
  kva_arena *arena;
  kva_map *seen; /* hash and size of documents */
  KVA_VEC(entry) files;
  kva_corpus_stats stats;
  int depth;
} reader;

/* ---- finding ----------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void find_files(reader *r, const char *path, bool given);

static void find_in_folder(reader *r, const char *path) {
  KVA_VEC(const char *) names = {0};
  DIR *folder = r->depth < MAX_FOLDERS ? opendir(path) : NULL;
  if (!folder) {
    r->stats.unreadable++;
    return;
  }
  for (struct dirent *e; (e = readdir(folder));)
    if (e->d_name[0] != '.') KVA_PUSH(r->arena, &names, kva_arena_strdup(r->arena, e->d_name));
  closedir(folder);
  if (names.len) qsort(names.data, names.len, sizeof *names.data, by_name);
  size_t n = strlen(path);
  r->depth++;
  for (uint32_t i = 0; i < names.len; i++)
    find_files(r, kva_arena_printf(r->arena, "%s%s%s", path, n && path[n - 1] == '/' ? "" : "/", names.data[i]), false);
  r->depth--;
}

static void find_files(reader *r, const char *path, bool given) {
  struct stat st;
  if (given ? stat(path, &st) : lstat(path, &st)) {
    entry missing = {path, given}; /* reading it reports the reason */
    KVA_PUSH(r->arena, &r->files, missing);
  } else if (S_ISDIR(st.st_mode)) {
    find_in_folder(r, path);
  } else if (S_ISREG(st.st_mode) || given) {
    entry file = {path, given};
    KVA_PUSH(r->arena, &r->files, file);
  }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool ends_in_gz(const char *path) {
  size_t n = strlen(path);
  return n > 3 && !strcmp(path + n - 3, ".gz");
}

static kva_status read_gz(const char *path, kva_diag *diag, kva_text *out) {
  kva_loc loc = {.file = path};
#ifdef KVA_HAVE_ZLIB
  gzFile file = gzopen(path, "rbe");
  if (!file) return kva_fail(diag, KVA_IO, &loc, "cannot open it: %s", strerror(errno));
  char block[1 << 14];
  int n;
  while ((n = gzread(file, block, sizeof block)) > 0 && out->len < max_document)
    kva_text_add_bytes(out, block, (size_t)n);
  bool plain = gzdirect(file), cut_off = gzclose_r(file) != Z_OK;
  if (n < 0 || plain || (cut_off && out->len < max_document))
    return kva_error(diag, &loc, "is no .gz file, or it is damaged");
  return out->len < max_document ? KVA_OK : kva_error(diag, &loc, "holds more than 1 GiB of text in one document");
#else
  (void)out;
  return kva_fail(diag, KVA_MISSING, &loc, "this Kvasir was built without zlib and cannot read .gz files");
#endif
}

static bool is_known(reader *r, const char *text, size_t size) {
  const uint64_t key[2] = {kva_hash(0, text, size), size};
  if (kva_map_get(r->seen, key, sizeof key)) return true;
  kva_map_set(r->seen, key, sizeof key, r);
  return false;
}

/* Truncates the text to the rest of the limit, between characters. */
static size_t cut(const reader *r, const char *text, size_t size) {
  if (!r->c->limit || r->stats.bytes + (int64_t)size <= r->c->limit) return size;
  size = (size_t)(r->c->limit - r->stats.bytes);
  while (size && ((unsigned char)text[size] & 0xC0) == 0x80) size--;
  return size;
}

static kva_status take_document(reader *r, const char *path, const char *text, size_t size, double share) {
  if (size && memchr(text, 0, size < BINARY_PREFIX ? size : BINARY_PREFIX)) {
    r->stats.binary++;
    return KVA_OK;
  }
  if (!size || is_known(r, text, size)) {
    r->stats.duplicates += size > 0;
    return KVA_OK;
  }
  size_t used = cut(r, text, size);
  if (used) KVA_TRY(r->c->each(r->c->user, path, text, used, share, r->diag));
  r->stats.files += used > 0;
  r->stats.bytes += (int64_t)used;
  return KVA_OK;
}

static kva_status read_file(reader *r, const entry *e, double share) {
  kva_diag *diag = e->given ? r->diag : NULL;
  kva_text text = {0};
  kva_file file = {0};
  bool gz = ends_in_gz(e->path);
  kva_status status = gz ? read_gz(e->path, diag, &text) : kva_file_map(e->path, diag, &file);
  if (status) {
    r->stats.unreadable++;
    if (!e->given) status = KVA_OK;
  } else {
    status = gz ? take_document(r, e->path, text.data, text.len, share)
                : take_document(r, e->path, file.data, file.size, share);
  }
  kva_text_free(&text);
  kva_file_unmap(&file);
  return status;
}

kva_status kva_corpus_read(const kva_corpus *c, kva_diag *diag, kva_corpus_stats *out_stats) {
  reader r = {.c = c, .diag = diag, .arena = kva_arena_create()};
  r.seen = kva_map_create(r.arena);
  for (uint32_t i = 0; i < c->n; i++) find_files(&r, c->paths[i], true);
  kva_status status = KVA_OK;
  for (uint32_t i = 0; !status && i < r.files.len; i++) {
    if (c->limit && r.stats.bytes >= c->limit) break;
    double files = (double)i / r.files.len, bytes = c->limit ? (double)r.stats.bytes / (double)c->limit : 0;
    status = read_file(&r, &r.files.data[i], files > bytes ? files : bytes);
  }
  *out_stats = r.stats;
  kva_arena_destroy(r.arena);
  return status;
}
