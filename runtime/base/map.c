/* The hash map: entries in insertion order, and an open-addressed table of their indices. */
#include "runtime/base/memory.h"

typedef struct entry {
  uint64_t hash;
  const void *key;
  size_t key_size;
  void *value;
} entry;

struct kva_map {
  kva_arena *arena;
  KVA_VEC(entry) entries;
  uint32_t *slots;     /* entry index + 1; 0: free */
  uint32_t slot_count; /* a power of two, at least twice the number of entries */
};

uint64_t kva_hash(uint64_t seed, const void *data, size_t size) {
  const unsigned char *p = data;
  uint64_t h = seed ^ 0xcbf29ce484222325u;
  for (size_t i = 0; i < size; i++) h = (h ^ p[i]) * 0x100000001b3u;
  return h;
}

kva_map *kva_map_create(kva_arena *arena) {
  kva_map *map = KVA_NEW(arena, kva_map);
  map->arena = arena;
  return map;
}

static bool entry_is(const entry *e, uint64_t hash, const void *key, size_t key_size) {
  return e->hash == hash && e->key_size == key_size && (!key_size || !memcmp(e->key, key, key_size));
}

/* The slot that holds the key, or the free slot where it belongs. The table is never full. */
static uint32_t *find_slot(const kva_map *map, uint64_t hash, const void *key, size_t key_size) {
  uint32_t mask = map->slot_count - 1;
  for (uint32_t i = (uint32_t)(hash ^ hash >> 32) & mask;; i = (i + 1) & mask) {
    uint32_t number = map->slots[i];
    if (!number || entry_is(&map->entries.data[number - 1], hash, key, key_size)) return &map->slots[i];
  }
}

static void grow_slots(kva_map *map) {
  map->slot_count = map->slot_count ? 2 * map->slot_count : 8;
  map->slots = KVA_NEW_ARRAY(map->arena, uint32_t, map->slot_count);
  for (uint32_t i = 0; i < map->entries.len; i++) {
    const entry *e = &map->entries.data[i];
    *find_slot(map, e->hash, e->key, e->key_size) = i + 1;
  }
}

void *kva_map_get(const kva_map *map, const void *key, size_t key_size) {
  if (!map->slot_count) return NULL;
  uint32_t number = *find_slot(map, kva_hash(0, key, key_size), key, key_size);
  return number ? map->entries.data[number - 1].value : NULL;
}

void kva_map_set(kva_map *map, const void *key, size_t key_size, void *value) {
  if (2 * (map->entries.len + 1) > map->slot_count) grow_slots(map);
  uint64_t hash = kva_hash(0, key, key_size);
  uint32_t *slot = find_slot(map, hash, key, key_size);
  if (*slot) {
    map->entries.data[*slot - 1].value = value;
    return;
  }
  entry e = {.hash = hash, .key = kva_arena_strndup(map->arena, key, key_size), .key_size = key_size, .value = value};
  KVA_PUSH(map->arena, &map->entries, e);
  *slot = map->entries.len;
}

void *kva_map_get_str(const kva_map *map, const char *key) {
  return kva_map_get(map, key, strlen(key));
}

void kva_map_set_str(kva_map *map, const char *key, void *value) {
  kva_map_set(map, key, strlen(key), value);
}

uint32_t kva_map_len(const kva_map *map) {
  return map->entries.len;
}

const void *kva_map_key_at(const kva_map *map, uint32_t i, size_t *out_size) {
  KVA_ASSERT(i < map->entries.len);
  if (out_size) *out_size = map->entries.data[i].key_size;
  return map->entries.data[i].key;
}

void *kva_map_value_at(const kva_map *map, uint32_t i) {
  KVA_ASSERT(i < map->entries.len);
  return map->entries.data[i].value;
}
