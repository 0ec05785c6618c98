/* Formats of items: what their rows share. */
#ifndef KVA_TOOLS_EVAL_ITEMS_H
#define KVA_TOOLS_EVAL_ITEMS_H

#include "tools/eval/task.h"

#include <jansson.h>

typedef KVA_VEC(const char *) kva_fields;

typedef struct kva_item_reader {
  kva_items *items;
  kva_diag *diag;
  const struct kva_item_format *format;
  kva_loc loc; /* of the item; line: of a CSV file, the record */
  const char *group;
  kva_fields header, record; /* of a CSV file */
  kva_status status;         /* of its records so far */
} kva_item_reader;

/* One of the functions; with two, files that begin with '{' are objects. They fill in *item but for what the reader
 * knows. Strings lie in the items' arena. */
typedef struct kva_item_format {
  kva_status (*take_object)(const kva_item_reader *r, const json_t *object, kva_item *item);
  kva_status (*take_line)(const kva_item_reader *r, const char *line, kva_item *item);
  kva_status (*take_record)(const kva_item_reader *r, kva_item *item);
  bool has_header; /* the first record names fields */
  bool by_subject; /* the file's name is one */
} kva_item_format;

/* By a word of KVA_TASKS; NULL: it is none of them. */
const kva_item_format *kva_item_format_named(const char *name);

/* Reports what was expected at the item. */
kva_status kva_item_wrong(const kva_item_reader *r, const char *expected);
KVA_MUST_USE kva_status kva_item_string(const kva_item_reader *r, const json_t *object, const char *key,
                                        const char **out);
KVA_MUST_USE kva_status kva_item_integer(const kva_item_reader *r, const json_t *object, const char *key, int64_t below,
                                         uint32_t *out);
/* n empty texts for an item. */
kva_item_text *kva_item_texts(const kva_item_reader *r, kva_item *item, uint32_t n);
/* The field of that name in a record below a header; NULL: none. */
const char *kva_item_field(const kva_item_reader *r, const char *name);

/* Version of libcsv, which reads CSV files. */
const char *kva_items_library(void);

#endif
