/* External functions: what compiled code leaves to libraries because it is no arithmetic (texts, image files). A
 * program calls them by name (operator kv.external); the reference evaluator and the runtime run the same function.
 * Deployed runtimes do not have them.
 *
 * Inside of a program a string is a number, its place in a table of the strings that the run has met, so equal strings
 * have equal numbers, and kernels move and compare them like other int64. At inputs and outputs a tensor of strings
 * has one `const char *`, NUL-terminated UTF-8, for each element. */
#ifndef KVA_BASE_EXTERNAL_H
#define KVA_BASE_EXTERNAL_H

#include "runtime/base/dtype.h"
#include "runtime/base/memory.h"

typedef struct kva_string_table kva_string_table;
/* A table of "" alone, whose number is 0, as that of elements which are filled in. It lives as long as the arena. */
kva_string_table *kva_string_table_create(kva_arena *arena);
/* The number of s[n], which the table copies. */
int64_t kva_string_table_add(kva_string_table *t, const char *s, size_t n);
/* The string of this number, valid as long as the table; NULL: there is none. */
const char *kva_string_table_get(const kva_string_table *t, int64_t number);

/* One argument: n elements in memory that the caller owns. */
typedef struct kva_external_tensor {
  kva_dtype dtype;
  int64_t n;
  void *data;
} kva_external_tensor;

/* A call; args[n_args - 1] is the result. `text` and `number` are constants, see the functions. */
typedef struct kva_external_call {
  const char *name, *text;
  int64_t number;
  kva_string_table *strings;
  uint32_t n_args;
  const kva_external_tensor *args;
  char error[256]; /* the reason of a failure */
} kva_external_call;

/* The functions; s: numbers of strings, elementwise where not said otherwise.
 *
 *   strings_in(string) -> s, strings_out(s) -> string   an input's and an output's elements
 *   string_bytes(uint8[m]) -> s[n]         n NUL-terminated strings, one after the other
 *   string_concat(s, s) -> s
 *   string_lower(s) -> s, string_upper(s) -> s          code point by code point
 *   string_match(s) -> bool                all of the string matches the regular expression `text`
 *   string_parts(s) -> int64               parts of a split at `text`, or at white space if it is empty; at most
 *                                          `number` splits, if that is not negative
 *   string_part(s, int64) -> s             part i of it, "" behind the last
 *   string_parse(s) -> double or int64     a decimal number
 *   string_format(number) -> s             the shortest text that reads back as the number
 *   image_size(uint8[n]) -> int64[2]       height and width of an image file
 *   image_decode(uint8[n]) -> uint8[height, width, channels]   its pixels; text: RGB, BGR or Grayscale */
bool kva_external_exists(const char *name);
/* The formats that image_size and image_decode read in this build, "BMP, PNM, PNG". */
const char *kva_image_formats(void);
/* KVA_INVALID: a value that the function does not take; KVA_UNSUPPORTED: no such function in this build. */
KVA_MUST_USE kva_status kva_external_run(kva_external_call *c);

#endif
