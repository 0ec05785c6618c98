/* Writes an `ar` archive (System V / GNU format) with one object: magic, the symbol table that linkers search, the
 * member. Times, owners and modes are fixed, so equal objects give equal archives. */
#include "tools/driver/build.h"

enum { HEADER = 60, MAGIC = 8 };

static void add_header(kva_text *out, const char *name, size_t size) {
  kva_text_add(out, "%-16s%-12d%-6d%-6d%-8s%-10zu`\n", name, 0, 0, 0, "644", size);
}

static void add_big_endian(kva_text *out, uint32_t v) {
  const char bytes[4] = {(char)(v >> 24), (char)(v >> 16), (char)(v >> 8), (char)v};
  kva_text_add_bytes(out, bytes, 4);
}

void kva_archive(const char *member, const char *object, size_t size, uint32_t n_symbols, const char *const *symbols,
                 kva_text *out) {
  size_t names = 0;
  for (uint32_t i = 0; i < n_symbols; i++) names += strlen(symbols[i]) + 1;
  size_t table = 4 + 4 * (size_t)n_symbols + names, padded = table + table % 2;
  kva_text_add_bytes(out, "!<arch>\n", MAGIC);
  add_header(out, "/", padded);
  add_big_endian(out, n_symbols);
  for (uint32_t i = 0; i < n_symbols; i++) add_big_endian(out, (uint32_t)(MAGIC + HEADER + padded));
  for (uint32_t i = 0; i < n_symbols; i++) kva_text_add_bytes(out, symbols[i], strlen(symbols[i]) + 1);
  if (table % 2) kva_text_add_bytes(out, "", 1);
  char name[17];
  snprintf(name, sizeof name, "%.13s/", member);
  add_header(out, name, size);
  kva_text_add_bytes(out, object, size);
  if (size % 2) kva_text_add_bytes(out, "\n", 1);
}
