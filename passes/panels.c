/* See panels.h. */
#include "passes/panels.h"

#include <string.h>

/* Runs of columns that a panel has together. */
static void copy(const kva_panels *p, char *to, const char *from, size_t size) {
  for (int64_t c = 0; c < p->columns; c += p->width) {
    size_t run = (size_t)(p->columns - c < p->width ? p->columns - c : p->width) * size;
    for (int64_t r = 0; r < p->rows; r++)
      memcpy(to + (size_t)kva_panels_place(p, r, c) * size, from + (size_t)(r * p->columns + c) * size, run);
  }
}

/* Rows r to r + SQUARE of a column, whose places are a panel's width apart. */
static inline void turn_column(const kva_panels *p, char *to, const char *from, size_t size, int64_t r, int64_t c,
                               int64_t rows) {
  size_t at = (size_t)kva_panels_place(p, r, c) * size, step = (size_t)p->width * size;
  from += (size_t)(c * p->rows + r) * size;
  for (int64_t i = 0; i < rows; i++, at += step, from += size) memcpy(to + at, from, size);
}

/* Square by square, so that cache lines of both sides are used whole. */
static inline void turn(const kva_panels *p, char *to, const char *from, size_t size) {
  enum { SQUARE = 16 };
  for (int64_t c0 = 0; c0 < p->columns; c0 += SQUARE)
    for (int64_t r = 0; r < p->rows; r += SQUARE)
      for (int64_t c = c0; c < p->columns && c < c0 + SQUARE; c++)
        turn_column(p, to, from, size, r, c, p->rows - r < SQUARE ? p->rows - r : SQUARE);
}

/* Copies of a size that the C compiler knows are single instructions. */
void kva_panels_fill(const kva_panels *p, void *to, const void *from, size_t size, bool transposed) {
  if (!transposed)
    copy(p, to, from, size);
  else if (size == 4)
    turn(p, to, from, 4);
  else if (size == 2)
    turn(p, to, from, 2);
  else
    turn(p, to, from, size);
}
