/* Configurations: fields become hyper-parameters. Every field of the file must be known: read by a row, ignored by
 * name, or switched off (null, false, empty). */
#include "tools/checkpoint/checkpoint.h"

#include <stdlib.h>

bool kva_name_matches(const char *pattern, const char *name) {
  for (; *pattern; pattern++) {
    if (*pattern != '*') {
      if (*pattern != *name++) return false;
      continue;
    }
    for (;; name++) {
      if (kva_name_matches(pattern + 1, name)) return true;
      if (!*name || *name == '.') return false;
    }
  }
  return !*name;
}

/* ---- leaves ------------------------------------------------------------------------------------------------------ */

/* Calls `visit` for every value that is no object, with its path, until that returns false. */
typedef bool (*leaf_visitor)(void *user, const char *path, json_t *value);

static bool walk(const json_t *object, const char *prefix, kva_arena *arena, leaf_visitor visit, void *user) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    const char *path = *prefix ? kva_arena_printf(arena, "%s.%s", prefix, key) : key;
    bool inside = json_is_object(value) && json_object_size(value) > 0;
    if (!(inside ? walk(value, path, arena, visit, user) : visit(user, path, value))) return false;
  }
  return true;
}

typedef struct search {
  const char *pattern;
  json_t *found;
} search;

static bool is_length(const char *pattern) {
  size_t n = strlen(pattern);
  return n > 2 && !strcmp(pattern + n - 2, ".#");
}

/* The row's name for a leaf, without the ".#" of a length. */
static bool names_leaf(const char *pattern, const char *path) {
  if (!is_length(pattern)) return kva_name_matches(pattern, path);
  size_t n = strlen(pattern) - 2;
  return strlen(path) == n && !strncmp(pattern, path, n);
}

static bool find_leaf(void *user, const char *path, json_t *value) {
  search *s = user;
  if (json_is_null(value) || !names_leaf(s->pattern, path)) return true;
  s->found = is_length(s->pattern) ? json_integer((json_int_t)json_array_size(value)) : json_incref(value);
  return false;
}

/* The value of a field: `path` is a key, or keys with dots between; '*' is any text without dots; "key.#" is the number
 * of items of a list. NULL: there is none, or null. The caller decrefs it. */
static json_t *config_get(const json_t *config, const char *path) {
  kva_arena *arena = kva_arena_create();
  search s = {.pattern = path};
  walk(config, "", arena, find_leaf, &s);
  kva_arena_destroy(arena);
  return s.found;
}

/* ---- fields that nothing reads ----------------------------------------------------------------------------------- */

typedef struct unread {
  const kva_foreign *f;
  const kva_names *names;
  kva_text list;
} unread;

static bool is_off(const json_t *v) {
  return json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v)) ||
         (json_is_array(v) && !json_array_size(v)) || json_is_object(v);
}

static bool is_read(const kva_names *names, const char *path) {
  for (uint32_t i = 0; i < names->ignored.len; i++)
    if (kva_name_matches(names->ignored.data[i], path)) return true;
  for (uint32_t i = 0; i < names->rows.len; i++) {
    const kva_naming *row = &names->rows.data[i];
    for (uint32_t k = 0; row->kind == KVA_NAMING_FIELD && k < row->n_names; k++)
      if (names_leaf(row->names[k], path)) return true;
  }
  return false;
}

static bool note_unread(void *user, const char *path, json_t *value) {
  unread *u = user;
  if (is_off(value) || is_read(u->names, path)) return true;
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
  kva_text_add(&u->list, "%s%.80s = %.40s", u->list.len ? ", " : "", path, text ? text : "?");
  free(text);
  return true;
}

static kva_status check_all_read(const kva_foreign *f, const kva_names *names, kva_arena *arena, kva_diag *diag) {
  unread u = {f, names, {0}};
  walk(f->config, "", arena, note_unread, &u);
  kva_status status = KVA_OK;
  if (u.list.len)
    status = kva_fail(diag, KVA_UNSUPPORTED, &(kva_loc){.file = f->path},
                      "its configuration has fields that %s does not know: %s; what does not change results belongs to "
                      "`ignored` of its block `checkpoint %s`",
                      names->loc.file ? names->loc.file : "the model", u.list.data, names->format);
  kva_text_free(&u.list);
  return status;
}

/* ---- fields of hyper-parameters ---------------------------------------------------------------------------------- */

static json_t *field_of(const kva_foreign *f, const kva_naming *row, const char **out_name) {
  for (uint32_t i = 0; i < row->n_names; i++) {
    json_t *v = config_get(f->config, row->names[i]);
    *out_name = row->names[i];
    if (v) return v;
  }
  return NULL;
}

static kva_status check_agreement(const kva_foreign *f, const kva_naming *row, const char *name, const json_t *v,
                                  kva_diag *diag) {
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < row->n_names; i++) {
    json_t *other = config_get(f->config, row->names[i]);
    if (other && !json_equal(v, other))
      status = kva_error(diag, &(kva_loc){.file = f->path},
                         "fields '%s' and '%s' differ, and both are '%s' of the model", name, row->names[i], row->own);
    json_decref(other);
  }
  return status;
}

/* A list is allowed if all its items are. */
static bool is_allowed(const kva_naming *row, const json_t *v) {
  if (!row->n_allowed) return true;
  for (size_t i = 0; i < json_array_size(v); i++)
    if (!is_allowed(row, json_array_get(v, i))) return false;
  if (json_is_array(v)) return true;
  char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
  bool found = false;
  for (uint32_t i = 0; text && i < row->n_allowed; i++) found |= !strcmp(row->allowed[i], text);
  free(text);
  return found;
}

static kva_status refuse_value(const kva_foreign *f, const kva_naming *row, const char *name, const json_t *v,
                               kva_diag *diag) {
  kva_text list = {0};
  for (uint32_t i = 0; i < row->n_allowed; i++) kva_text_add(&list, "%s%s", i ? ", " : "", row->allowed[i]);
  char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
  kva_status status =
      kva_fail(diag, KVA_UNSUPPORTED, &(kva_loc){.file = f->path}, "field '%s' is %.80s; %s takes: %s", name,
               text ? text : "?", row->loc.file ? row->loc.file : "the model", list.data ? list.data : "any value");
  free(text);
  kva_text_free(&list);
  return status;
}

/* As -D takes it; NULL: no hyper-parameter has such a value. */
static const char *text_of(const json_t *v, kva_arena *arena) {
  switch (json_typeof(v)) {
  case JSON_STRING: return kva_arena_strdup(arena, json_string_value(v));
  case JSON_INTEGER: return kva_arena_printf(arena, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
  case JSON_REAL: return kva_arena_printf(arena, "%.17g", json_real_value(v));
  case JSON_TRUE: return "true";
  case JSON_FALSE: return "false";
  case JSON_ARRAY: break;
  default: return NULL;
  }
  const char *list = "[";
  for (size_t i = 0; i < json_array_size(v); i++) {
    const json_t *item = json_array_get(v, i);
    if (!json_is_integer(item)) return NULL;
    list = kva_arena_printf(arena, "%s%s%" JSON_INTEGER_FORMAT, list, i ? "," : "", json_integer_value(item));
  }
  return kva_arena_printf(arena, "%s]", list);
}

static kva_status define(const kva_foreign *f, const kva_naming *row, kva_arena *arena, kva_diag *diag,
                         kva_define *out) {
  const char *name;
  json_t *v = field_of(f, row, &name);
  if (!v) return KVA_OK;
  kva_status status = is_allowed(row, v) ? check_agreement(f, row, name, v, diag) : refuse_value(f, row, name, v, diag);
  if (strcmp(row->own, "_")) *out = (kva_define){row->own, text_of(v, arena)};
  if (status == KVA_OK && out->name && !out->value)
    status =
        kva_error(diag, &(kva_loc){.file = f->path}, "field '%s' is no number, bool, string or list of integers", name);
  json_decref(v);
  return status;
}

kva_status kva_foreign_defines(const kva_foreign *f, const kva_names *names, kva_arena *arena, kva_diag *diag,
                               uint32_t *out_n, const kva_define **out_defines) {
  kva_define *defines = KVA_NEW_ARRAY(arena, kva_define, names->rows.len + 1);
  kva_status status = KVA_OK;
  *out_n = 0;
  for (uint32_t i = 0; i < names->rows.len; i++) {
    const kva_naming *row = &names->rows.data[i];
    kva_define d = {0};
    kva_status own = row->kind == KVA_NAMING_FIELD ? define(f, row, arena, diag, &d) : KVA_OK;
    if (own != KVA_OK) status = own;
    if (row->kind == KVA_NAMING_MISSING)
      d = (kva_define){row->own, kva_foreign_find(f, row->names[0]) ? "false" : "true"};
    if (d.name && d.value) defines[(*out_n)++] = d;
  }
  *out_defines = defines;
  kva_status all = check_all_read(f, names, arena, diag);
  return status == KVA_OK ? all : status;
}

bool kva_foreign_suits(const kva_foreign *f, const kva_names *names) {
  const kva_naming *row = names->rows.len ? &names->rows.data[0] : NULL;
  if (!row || row->kind != KVA_NAMING_FIELD || !row->n_allowed) return false;
  const char *name;
  json_t *v = field_of(f, row, &name);
  bool suits = v && is_allowed(row, v);
  json_decref(v);
  return suits;
}
