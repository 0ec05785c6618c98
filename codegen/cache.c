/* Layout of an entry's file: head, the key's parts, the code. */
#include "codegen/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "KVCODE1", suffix[] = ".kvcode";

typedef struct head {
  char magic[8];
  uint64_t key_bytes[2], code_bytes, code_sum;
} head;

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The caller frees the result; NULL: no memory. */
static char *path_of(const kva_cache *c, const kva_cache_key *key) {
  uint64_t hash = kva_hash(kva_hash(0, key->parts[0].data, key->parts[0].size), key->parts[1].data, key->parts[1].size);
  char *path = NULL;
  return asprintf(&path, "%s/%016llx%s", c->folder, (unsigned long long)hash, suffix) < 0 ? NULL : path;
}

/* Also matches temporary names that killed processes left. */
static bool is_entry(const char *name) {
  return strspn(name, "0123456789abcdef") == 16 && !strncmp(name + 16, suffix, sizeof suffix - 1);
}

/* Nobody else may write to the folder. */
static bool is_own(const char *folder) {
  struct stat st;
  return !stat(folder, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH));
}

static bool make_folder(const char *folder) {
  return kva_folder_make(folder, 0700, NULL) == KVA_OK && is_own(folder);
}

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

static bool has_key(const kva_file *entry, const kva_cache_key *key) {
  const char *at = (const char *)entry->data + sizeof(head);
  return !memcmp(at, key->parts[0].data, key->parts[0].size) &&
         !memcmp(at + key->parts[0].size, key->parts[1].data, key->parts[1].size);
}

/* The entry is complete and has this key. */
static bool read_entry(const kva_file *entry, const kva_cache_key *key, kva_file_part *out_code) {
  head h;
  if (entry->size < sizeof h) return false;
  memcpy(&h, entry->data, sizeof h);
  size_t before = sizeof h + key->parts[0].size + key->parts[1].size;
  if (memcmp(h.magic, magic, sizeof magic) || h.key_bytes[0] != key->parts[0].size ||
      h.key_bytes[1] != key->parts[1].size || entry->size < before || h.code_bytes != entry->size - before ||
      !has_key(entry, key))
    return false;
  *out_code = (kva_file_part){(const char *)entry->data + before, h.code_bytes};
  return kva_hash(0, out_code->data, out_code->size) == h.code_sum;
}

bool kva_cache_find(const kva_cache *c, const kva_cache_key *key, kva_file *out_entry, kva_file_part *out_code) {
  char *path = is_own(c->folder) ? path_of(c, key) : NULL;
  bool found = path && kva_file_map(path, NULL, out_entry) == KVA_OK;
  if (found && !read_entry(out_entry, key, out_code)) {
    kva_file_unmap(out_entry);
    found = false;
  }
  if (found) (void)utimensat(AT_FDCWD, path, NULL, 0); /* marks it as recently used */
  free(path);
  return found;
}

/* ---- insertion and eviction -------------------------------------------------------------------------------------- */

typedef struct item {
  char name[64];
  struct timespec used;
  int64_t bytes;
} item;

static int by_use(const void *a, const void *b) {
  const struct timespec *x = &((const item *)a)->used, *y = &((const item *)b)->used;
  if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
  return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

typedef KVA_VEC(item) item_list;

static item_list list_entries(const kva_cache *c, kva_arena *arena) {
  item_list list = {0};
  DIR *dir = opendir(c->folder);
  for (const struct dirent *e; dir && (e = readdir(dir));) {
    item i;
    struct stat st;
    if (!is_entry(e->d_name) || strlen(e->d_name) >= sizeof i.name || fstatat(dirfd(dir), e->d_name, &st, 0)) continue;
    memcpy(i.name, e->d_name, strlen(e->d_name) + 1);
    i.used = st.st_mtim;
    i.bytes = st.st_size;
    KVA_PUSH(arena, &list, i);
  }
  if (dir) closedir(dir);
  return list;
}

static int64_t bytes_of(const item_list *list) {
  int64_t sum = 0;
  for (uint32_t i = 0; i < list->len; i++) sum += list->data[i].bytes;
  return sum;
}

static void evict(const kva_cache *c) {
  kva_arena *arena = kva_arena_create();
  item_list list = list_entries(c, arena);
  int64_t left = bytes_of(&list);
  if (list.len) qsort(list.data, list.len, sizeof *list.data, by_use);
  for (uint32_t i = 0; i < list.len && left > c->max_bytes; i++) {
    (void)unlink(kva_arena_printf(arena, "%s/%s", c->folder, list.data[i].name));
    left -= list.data[i].bytes;
  }
  kva_arena_destroy(arena);
}

void kva_cache_add(const kva_cache *c, const kva_cache_key *key, kva_file_part code) {
  char *path = make_folder(c->folder) ? path_of(c, key) : NULL;
  if (!path) return;
  head h = {.key_bytes = {key->parts[0].size, key->parts[1].size},
            .code_bytes = code.size,
            .code_sum = kva_hash(0, code.data, code.size)};
  memcpy(h.magic, magic, sizeof magic);
  const kva_file_part parts[] = {{&h, sizeof h}, key->parts[0], key->parts[1], code};
  if (kva_file_write_parts(path, 4, parts, NULL) == KVA_OK && c->max_bytes) evict(c);
  free(path);
}

kva_cache_usage kva_cache_measure(const kva_cache *c) {
  kva_arena *arena = kva_arena_create();
  item_list list = list_entries(c, arena);
  kva_cache_usage usage = {is_own(c->folder) || access(c->folder, F_OK), list.len, bytes_of(&list)};
  kva_arena_destroy(arena);
  return usage;
}
