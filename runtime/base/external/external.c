/* The table of external functions, and what they share. */
#include "runtime/base/external/external.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
  const char *name;
  kva_external_fn run;
} functions[] = {
#define FUNCTION(name) \
  { #name, kva_external_##name }
    FUNCTION(strings_in),   FUNCTION(strings_out),  FUNCTION(string_bytes),  FUNCTION(string_concat),
    FUNCTION(string_lower), FUNCTION(string_upper), FUNCTION(string_match),  FUNCTION(string_parts),
    FUNCTION(string_part),  FUNCTION(string_parse), FUNCTION(string_format), FUNCTION(image_size),
    FUNCTION(image_decode),
#undef FUNCTION
};

static kva_external_fn find(const char *name) {
  for (size_t i = 0; name && i < sizeof functions / sizeof *functions; i++)
    if (!strcmp(functions[i].name, name)) return functions[i].run;
  return NULL;
}

bool kva_external_exists(const char *name) {
  return find(name) != NULL;
}

kva_status kva_external_run(kva_external_call *c) {
  kva_external_fn f = find(c->name);
  c->error[0] = 0;
  return f ? f(c) : kva_external_fail(c, KVA_UNSUPPORTED, "this build has no function '%s'", c->name);
}

kva_status kva_external_fail(kva_external_call *c, kva_status status, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(c->error, sizeof c->error, fmt, args);
  va_end(args);
  return status;
}

kva_status kva_external_expect(kva_external_call *c, uint32_t n_args, const kva_dtype *types) {
  if (c->n_args != n_args)
    return kva_external_fail(c, KVA_INVALID, "expected %u arguments, found %u", n_args, c->n_args);
  for (uint32_t i = 0; i < n_args; i++)
    if (c->args[i].dtype != types[i] || c->args[i].n != c->args[n_args - 1].n)
      return kva_external_fail(c, KVA_INVALID, "argument %u: expected %lld of %s, found %lld of %s", i,
                               (long long)c->args[n_args - 1].n, kva_dtype_name(types[i]), (long long)c->args[i].n,
                               kva_dtype_name(c->args[i].dtype));
  return KVA_OK;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

/* A string's key has its final NUL, so that keys are texts; its number is its place in the map. */
struct kva_string_table {
  kva_map *map;
};

static int64_t add_key(kva_string_table *t, const char *key, size_t size) {
  uintptr_t found = (uintptr_t)kva_map_get(t->map, key, size);
  if (found) return (int64_t)found - 1;
  kva_map_set(t->map, key, size, (void *)((uintptr_t)kva_map_len(t->map) + 1));
  return (int64_t)kva_map_len(t->map) - 1;
}

int64_t kva_string_table_add(kva_string_table *t, const char *s, size_t n) {
  kva_text key = {0};
  if (!s[n]) return add_key(t, s, n + 1);
  kva_text_add_bytes(&key, s, n);
  kva_text_add_bytes(&key, "", 1);
  int64_t number = add_key(t, key.data, key.len);
  kva_text_free(&key);
  return number;
}

const char *kva_string_table_get(const kva_string_table *t, int64_t number) {
  size_t size;
  return number >= 0 && number < kva_map_len(t->map) ? kva_map_key_at(t->map, (uint32_t)number, &size) : NULL;
}

kva_string_table *kva_string_table_create(kva_arena *arena) {
  kva_string_table *t = KVA_NEW(arena, kva_string_table);
  t->map = kva_map_create(arena);
  (void)kva_string_table_add(t, "", 0);
  return t;
}

kva_status kva_external_text(kva_external_call *c, uint32_t a, int64_t i, const char **out) {
  *out = kva_string_table_get(c->strings, ((const int64_t *)c->args[a].data)[i]);
  return *out ? KVA_OK : kva_external_fail(c, KVA_INVALID, "element %lld is no string of this run", (long long)i);
}

void kva_external_set_text(kva_external_call *c, int64_t i, const char *s, size_t n) {
  ((int64_t *)c->args[c->n_args - 1].data)[i] = kva_string_table_add(c->strings, s, n);
}
