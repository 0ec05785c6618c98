/* Canonical normal forms: NFD decomposes characters and sorts marks by combining class, NFC recomposes them (Unicode
 * standard annex 15; Hangul by arithmetic, standard section 3.12). */
#include "tools/tokenizer/internal.h"
#include "tools/tokenizer/unicode.h"

#include "tools/tokenizer/unicode_normal.inc"

enum {
  N_CLASSES = sizeof classes / sizeof *classes,
  N_DECOMPOSITIONS = sizeof decompositions / sizeof *decompositions / 3,
  N_COMPOSITIONS = sizeof compositions / sizeof *compositions / 3,
  S_BASE = 0xAC00,
  L_BASE = 0x1100,
  V_BASE = 0x1161,
  T_BASE = 0x11A7,
  L_COUNT = 19,
  V_COUNT = 21,
  T_COUNT = 28,
  S_COUNT = L_COUNT * V_COUNT * T_COUNT
};

typedef struct mark {
  uint32_t c, class;
} mark;
typedef KVA_VEC(mark) marks;

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static uint32_t class_of(uint32_t c) {
  uint32_t low = 0, high = N_CLASSES;
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    if (classes[middle] >> 8 <= c)
      low = middle;
    else
      high = middle;
  }
  return classes[low] & 255;
}

/* The row of a sorted table of triples that begins with a (and b, if both is set). */
static const uint32_t *find_row(const uint32_t *table, uint32_t n, uint32_t a, uint32_t b, bool both) {
  uint32_t low = 0, high = n;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    const uint32_t *row = &table[3 * middle];
    if (row[0] == a && (!both || row[1] == b)) return row;
    if (row[0] < a || (row[0] == a && both && row[1] < b))
      low = middle + 1;
    else
      high = middle;
  }
  return NULL;
}

/* ---- decomposition ----------------------------------------------------------------------------------------------- */

static void add(marks *out, kva_arena *arena, uint32_t c) {
  mark m = {c, class_of(c)};
  KVA_PUSH(arena, out, m);
}

/* Only the first part can decompose further. */
static void decompose(marks *out, kva_arena *arena, uint32_t c) {
  if (c >= S_BASE && c < S_BASE + S_COUNT) {
    uint32_t s = c - S_BASE;
    add(out, arena, L_BASE + s / (V_COUNT * T_COUNT));
    add(out, arena, V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT);
    if (s % T_COUNT) add(out, arena, T_BASE + s % T_COUNT);
    return;
  }
  const uint32_t *row = find_row(decompositions, N_DECOMPOSITIONS, c, 0, false);
  if (!row) {
    add(out, arena, c);
    return;
  }
  decompose(out, arena, row[1]);
  if (row[2]) decompose(out, arena, row[2]);
}

/* Sorts marks after a starter by class; stable. */
static void sort_marks(marks *m) {
  for (uint32_t i = 1; i < m->len; i++) {
    mark moved = m->data[i];
    uint32_t to = i;
    while (moved.class && to > 0 && m->data[to - 1].class > moved.class) {
      m->data[to] = m->data[to - 1];
      to--;
    }
    m->data[to] = moved;
  }
}

/* ---- composition ------------------------------------------------------------------------------------------------- */

/* The composed character; 0: the two do not compose. */
static uint32_t composed(uint32_t a, uint32_t b) {
  if (a >= L_BASE && a < L_BASE + L_COUNT && b >= V_BASE && b < V_BASE + V_COUNT)
    return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
  bool is_lv = a >= S_BASE && a < S_BASE + S_COUNT && (a - S_BASE) % T_COUNT == 0;
  if (is_lv && b > T_BASE && b < T_BASE + T_COUNT) return a + (b - T_BASE);
  const uint32_t *row = find_row(compositions, N_COMPOSITIONS, a, b, true);
  return row ? row[2] : 0;
}

/* A mark composes with the last starter unless it is blocked by a starter or a mark of its class or higher in
 * between. */
static void compose(marks *m) {
  uint32_t n = 0, starter = UINT32_MAX;
  for (uint32_t i = 0; i < m->len; i++) {
    mark next = m->data[i];
    bool open = starter != UINT32_MAX && (n == starter + 1 || m->data[n - 1].class < next.class);
    uint32_t c = open ? composed(m->data[starter].c, next.c) : 0;
    if (c) {
      m->data[starter].c = c;
      continue;
    }
    if (next.class == 0) starter = n;
    m->data[n++] = next;
  }
  m->len = n;
}

kva_bytes kva_normal_form(kva_bytes text, bool composes, kva_arena *arena) {
  marks m = {0};
  bool ascii = true;
  for (size_t i = 0; i < text.size; i++) ascii = ascii && (unsigned char)text.data[i] < 128;
  if (ascii) return text;
  for (size_t at = 0, n; at < text.size; at += n) decompose(&m, arena, kva_utf8_get(text.data + at, &n));
  sort_marks(&m);
  if (composes) compose(&m);
  char *data = kva_arena_alloc(arena, 4 * (size_t)m.len + 1);
  size_t size = 0;
  for (uint32_t i = 0; i < m.len; i++) size += kva_utf8_put(m.data[i].c, data + size);
  return (kva_bytes){data, size};
}
