#include "tests/support/part.h"

#include <stdio.h>
#include <stdlib.h>

bool in_part(uint64_t index) {
  const char *text = getenv("KVASIR_PART");
  if (!text) return true;
  unsigned part, parts;
  char rest;
  if (sscanf(text, "%u/%u%c", &part, &parts, &rest) != 2 || part < 1 || part > parts) {
    fprintf(stderr, "KVASIR_PART is '%s', not PART/PARTS\n", text);
    exit(1);
  }
  return index % parts == part - 1;
}
