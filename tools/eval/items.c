/* Reads items: the format of its own and those of public test sets as their authors publish them. A format is a row. */
#include "tools/eval/items.h"

#include "runtime/base/platform.h"
#include "tools/corpus.h"

#include <ctype.h>
#include <csv.h>

/* ---- what formats share ------------------------------------------------------------------------------------------ */

kva_status kva_item_wrong(const kva_item_reader *r, const char *expected) {
  return kva_error(r->diag, &r->loc, "expected %s", expected);
}

kva_status kva_item_string(const kva_item_reader *r, const json_t *object, const char *key, const char **out) {
  const json_t *v = json_object_get(object, key);
  if (!json_is_string(v)) return kva_error(r->diag, &r->loc, "expected a string \"%s\"", key);
  *out = kva_arena_strdup(r->items->arena, json_string_value(v));
  return KVA_OK;
}

kva_status kva_item_integer(const kva_item_reader *r, const json_t *object, const char *key, int64_t below,
                            uint32_t *out) {
  const json_t *v = json_object_get(object, key);
  int64_t n = json_integer_value(v);
  if (!json_is_integer(v) || n < 0 || n >= below)
    return kva_error(r->diag, &r->loc, "expected a whole number \"%s\" from 0 to %lld", key, (long long)below - 1);
  *out = (uint32_t)n;
  return KVA_OK;
}

kva_item_text *kva_item_texts(const kva_item_reader *r, kva_item *item, uint32_t n) {
  kva_item_text *texts = KVA_NEW_ARRAY(r->items->arena, kva_item_text, n);
  item->n = n;
  item->texts = texts;
  return texts;
}

static kva_status add(kva_item_reader *r, const kva_item *item) {
  kva_item copy = *item;
  copy.loc = r->loc;
  for (uint32_t i = 0; i < item->n; i++)
    if (!*item->texts[i].continuation) return kva_item_wrong(r, "a continuation that is not empty");
  if (!copy.intro) copy.intro = "";
  copy.group = r->group;
  KVA_PUSH(r->items->arena, &r->items->list, copy);
  return KVA_OK;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static uint32_t lines_in(const char *text, size_t n) {
  uint32_t lines = 0;
  for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
  return lines;
}

static size_t blanks(const char *text, size_t size) {
  size_t n = 0;
  while (n < size && isspace((unsigned char)text[n])) n++;
  return n;
}

/* One object after the other: a line each, or over several lines. */
static kva_status read_objects(kva_item_reader *r, const char *text, size_t size) {
  kva_status status = KVA_OK;
  for (size_t at = blanks(text, size), n; status == KVA_OK && at < size; at += n) {
    json_error_t error;
    json_t *object = json_loadb(text + at, size - at, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &error);
    if (!object) {
      r->loc.line += error.line > 0 ? (uint32_t)error.line - 1 : 0;
      return kva_error(r->diag, &r->loc, "expected a JSON object: %s", error.text);
    }
    kva_item item = {0};
    status = json_is_object(object) ? r->format->take_object(r, object, &item) : kva_item_wrong(r, "a JSON object");
    if (status == KVA_OK) status = add(r, &item);
    json_decref(object);
    n = (size_t)error.position;
    n += blanks(text + at + n, size - at - n);
    r->loc.line += lines_in(text + at, n);
  }
  return status;
}

static kva_status read_lines(kva_item_reader *r, const char *text, size_t size) {
  for (const char *at = text, *end = text + size, *next; at < end; at = next, r->loc.line++) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    next = newline ? newline + 1 : end;
    kva_item item = {0};
    const char *line = kva_arena_strndup(r->items->arena, at, (size_t)((newline ? newline : end) - at));
    if (blanks(line, strlen(line)) == strlen(line)) continue;
    KVA_TRY(r->format->take_line(r, line, &item));
    KVA_TRY(add(r, &item));
  }
  return KVA_OK;
}

static void take_field(void *field, size_t n, void *user) {
  kva_item_reader *r = user;
  KVA_PUSH(r->items->arena, &r->record, kva_arena_strndup(r->items->arena, field, n));
}

static void take_record(int end, void *user) {
  kva_item_reader *r = user;
  kva_item item = {0};
  (void)end;
  r->loc.line++; /* a record; lines inside of quotes do not count */
  bool header = !r->header.len && r->format->has_header;
  if (r->status == KVA_OK && header) {
    r->header = r->record;
    r->record = (kva_fields){0};
  } else if (r->status == KVA_OK && r->record.len) {
    r->status = r->format->take_record(r, &item);
    if (r->status == KVA_OK) r->status = add(r, &item);
  }
  r->record.len = 0;
}

/* Spaces are part of a field. */
static int no_space(unsigned char c) {
  (void)c;
  return 0;
}

static kva_status read_records(kva_item_reader *r, const char *text, size_t size) {
  struct csv_parser parser;
  if (csv_init(&parser, CSV_STRICT_FINI)) return kva_fail(r->diag, KVA_NO_MEMORY, &r->loc, "out of memory");
  csv_set_space_func(&parser, no_space);
  r->loc.line = 0;
  r->header = (kva_fields){0};
  bool ok = csv_parse(&parser, text, size, take_field, take_record, r) == size &&
            !csv_fini(&parser, take_field, take_record, r);
  if (!ok && r->status == KVA_OK)
    r->status = kva_error(r->diag, &r->loc, "after record %u: %s", r->loc.line, csv_strerror(csv_error(&parser)));
  csv_free(&parser);
  return r->status;
}

const char *kva_item_field(const kva_item_reader *r, const char *name) {
  for (uint32_t i = 0; i < r->header.len && i < r->record.len; i++)
    if (!strcmp(r->header.data[i], name)) return r->record.data[i];
  return NULL;
}

/* The subject of "dir/high_school_physics_test.csv": files of examples and of items have the same. */
static const char *subject_of(const char *path, kva_arena *arena) {
  static const char *const endings[] = {"_test", "_dev", "_val"};
  const char *name = kva_file_name(path);
  size_t n = strcspn(name, ".");
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
    size_t k = strlen(endings[i]);
    if (n > k && !strncmp(name + n - k, endings[i], k)) n -= k;
  }
  char *subject = kva_arena_strndup(arena, name, n);
  for (size_t i = 0; i < n; i++)
    if (subject[i] == '_') subject[i] = ' ';
  return subject;
}

static kva_status read_file(void *user, const char *path, const char *text, size_t size, double share, kva_diag *diag) {
  kva_item_reader *r = user;
  (void)share;
  r->diag = diag;
  r->loc = (kva_loc){.file = kva_arena_strdup(r->items->arena, path), .line = 1};
  r->group = r->format->by_subject ? subject_of(path, r->items->arena) : "";
  size_t begin = blanks(text, size);
  bool object = begin < size && text[begin] == '{';
  r->loc.line += lines_in(text, object ? begin : 0);
  if (r->format->take_record) return read_records(r, text, size);
  if (r->format->take_line && !object) return read_lines(r, text, size);
  return read_objects(r, text + begin, size - begin);
}

kva_status kva_items_read(const char *task, const char *path, kva_diag *diag, kva_items *items) {
  kva_item_reader r = {.items = items, .diag = diag, .format = kva_item_format_named(task)};
  const kva_corpus corpus = {.n = 1, .paths = &path, .each = read_file, .user = &r};
  kva_corpus_stats stats;
  if (!r.format) return kva_error(diag, NULL, "no task is called '%s'; there are: %s", task, KVA_TASKS);
  KVA_TRY(kva_corpus_read(&corpus, diag, &stats));
  return items->list.len ? KVA_OK : kva_error(diag, &(kva_loc){.file = path}, "holds no items of task '%s'", task);
}

#define DIGITS(n) #n
#define TEXT(n)   DIGITS(n)

const char *kva_items_library(void) {
  return TEXT(CSV_MAJOR) "." TEXT(CSV_MINOR) "." TEXT(CSV_RELEASE);
}
