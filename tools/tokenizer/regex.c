/* A compiler to a small instruction set and a backtracking matcher (R. Cox: Regular expression matching: the virtual
 * machine approach, 2009). A loop over single characters is one instruction, which gives back characters one by one, so
 * the stack stays small. The number of steps of a search is bounded, so hostile patterns terminate. */
#include "tools/tokenizer/regex.h"

#include "tools/tokenizer/unicode.h"

#include <stdlib.h>

typedef enum opcode {
  OP_LOOP,  /* min to max characters of set, as many as possible */
  OP_SPLIT, /* first pc + x, then pc + y */
  OP_JUMP,  /* pc + x */
  OP_LOOK,  /* the code up to OP_MATCH must match here (negative: must not); continues at pc + x */
  OP_MATCH,
} opcode;

typedef struct instruction {
  opcode op;
  bool negative, possessive;
  uint32_t min, max; /* LOOP */
  int32_t x, y;
  uint32_t set;
} instruction;

/* Characters: ranges, categories as bits, White_Space, word characters; each may be complemented. */
typedef struct set_item {
  enum { ITEM_RANGE, ITEM_CATEGORIES, ITEM_SPACE, ITEM_WORD } kind;
  bool negative;
  uint32_t low, high; /* CATEGORIES: low is the mask */
} set_item;

typedef struct set {
  KVA_VEC(set_item) items;
  bool negative;
  bool ascii[128];
} set;

/* A backtracking point. With `loop`, pos may shrink to `least`. */
typedef struct frame {
  uint32_t pc;
  bool loop;
  size_t pos, least;
} frame;

struct kva_regex {
  KVA_VEC(instruction) code;
  KVA_VEC(set) sets;
  frame *stack;
  size_t depth, capacity;
  uint64_t steps;
  bool exceeded;
};

static const uint32_t unlimited = UINT32_MAX;
enum { MAX_NESTING = 64, MAX_REPEAT = 1000 };
static const uint64_t steps_a_byte = 2000, steps_at_least = 1 << 20;

/* ---- sets -------------------------------------------------------------------------------------------------------- */

static bool in_item(const set_item *i, uint32_t c) {
  switch (i->kind) {
  case ITEM_RANGE: return (c >= i->low && c <= i->high) != i->negative;
  case ITEM_CATEGORIES: return (i->low >> kva_category_of(c) & 1) != i->negative;
  case ITEM_SPACE: return kva_is_space(c) != i->negative;
  case ITEM_WORD: return kva_is_word(c) != i->negative;
  }
  return false;
}

static bool search_set(const set *s, uint32_t c) {
  bool found = false;
  for (uint32_t i = 0; i < s->items.len && !found; i++) found = in_item(&s->items.data[i], c);
  return found != s->negative;
}

static bool in_set(const set *s, uint32_t c) {
  return c < 128 ? s->ascii[c] : search_set(s, c);
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

typedef struct compiler {
  const char *at, *end, *pattern;
  int pattern_size, depth;
  bool ignore_case;
  kva_regex *r;
  kva_arena *arena;
  kva_diag *diag;
  const kva_loc *loc;
} compiler;

static kva_status unsupported(const compiler *c, const char *what) {
  return kva_fail(c->diag, KVA_UNSUPPORTED, c->loc, "%s at position %d of the regular expression %.*s", what,
                  (int)(c->at - c->pattern), c->pattern_size, c->pattern);
}

static bool accept(compiler *c, const char *text) {
  size_t n = strlen(text);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n)) return false;
  c->at += n;
  return true;
}

static uint32_t emit(compiler *c, instruction i) {
  KVA_PUSH(c->arena, &c->r->code, i);
  return c->r->code.len - 1;
}

/* Inserts before instruction `at`. Jumps are relative, and none crosses `at` from before. */
static void insert(compiler *c, uint32_t at, instruction i) {
  emit(c, i);
  instruction *code = c->r->code.data;
  memmove(&code[at + 1], &code[at], (c->r->code.len - 1 - at) * sizeof *code);
  code[at] = i;
}

static void add_item(compiler *c, set *s, set_item item) {
  KVA_PUSH(c->arena, &s->items, item);
}

/* Adds a range and the other case of ASCII letters; U+017F folds to s and U+212A to k. */
static void add_range(compiler *c, set *s, uint32_t low, uint32_t high) {
  add_item(c, s, (set_item){ITEM_RANGE, false, low, high});
  for (uint32_t l = 'a'; c->ignore_case && l <= 'z'; l++) {
    uint32_t u = l - 'a' + 'A', odd = l == 's' ? 0x17F : l == 'k' ? 0x212A : l;
    bool has = (low <= l && l <= high) || (low <= u && u <= high) || (low <= odd && odd <= high);
    if (!has) continue;
    add_item(c, s, (set_item){ITEM_RANGE, false, l, l});
    add_item(c, s, (set_item){ITEM_RANGE, false, u, u});
    add_item(c, s, (set_item){ITEM_RANGE, false, odd, odd});
  }
}

/* Parses {L}, {Lu}, ... after \p. */
static kva_status category(compiler *c, set *s, bool negative) {
  const char *name = c->at + 1, *close = name;
  while (close < c->end && *close != '}') close++;
  size_t n = (size_t)(close - name);
  uint32_t mask = 0;
  for (int i = 0; i < KVA_CATEGORIES && c->at < c->end && *c->at == '{' && close < c->end; i++)
    if ((n == 1 || n == 2) && !memcmp(kva_category_names[i], name, n)) mask |= 1u << i;
  if (!mask) return unsupported(c, "this character property is not supported (general categories are, \\p{L})");
  add_item(c, s, (set_item){ITEM_CATEGORIES, negative, mask, 0});
  c->at = close + 1;
  return KVA_OK;
}

static bool hex_digits(compiler *c, uint32_t *out) {
  char digits[9] = {0}, *end;
  bool braces = accept(c, "{");
  for (int i = 0; i < (braces ? 8 : 2) && c->at < c->end && *c->at != '}'; i++) digits[i] = *c->at++;
  if (braces && !accept(c, "}")) return false;
  *out = (uint32_t)strtoul(digits, &end, 16);
  return *digits && !*end && *out < 0x110000;
}

/* Parses after the backslash. *out_single: the character it denotes, or a negative number for a set. */
static kva_status escape(compiler *c, set *s, int64_t *out_single) {
  static const char from[] = "rntfva", to[] = "\r\n\t\f\v\a";
  *out_single = -1;
  if (c->at == c->end) return unsupported(c, "an escape without a character is not supported");
  char k = *c->at++;
  bool upper = k >= 'A' && k <= 'Z';
  uint32_t hex;
  if (k == 'p' || k == 'P') return category(c, s, upper);
  if (k == 's' || k == 'S')
    add_item(c, s, (set_item){ITEM_SPACE, upper, 0, 0});
  else if (k == 'w' || k == 'W')
    add_item(c, s, (set_item){ITEM_WORD, upper, 0, 0});
  else if (k == 'd' || k == 'D')
    add_item(c, s, (set_item){ITEM_CATEGORIES, upper, 1u << KVA_CATEGORY_ND, 0});
  else if ((k == 'x' || k == 'u') && hex_digits(c, &hex))
    *out_single = hex;
  else if (k && strchr(from, k))
    *out_single = to[strchr(from, k) - from];
  else if ((unsigned char)k < 128 && kva_category_of((unsigned char)k) > KVA_CATEGORY_NO)
    *out_single = k;
  else
    return c->at--, unsupported(c, "this escape is not supported");
  return KVA_OK;
}

/* Parses one character or class, inside or outside brackets. */
static kva_status set_member(compiler *c, set *s, int64_t *out_single) {
  size_t n;
  if (accept(c, "\\")) return escape(c, s, out_single);
  *out_single = kva_utf8_get(c->at, &n);
  c->at += n;
  return KVA_OK;
}

static kva_status bracket(compiler *c, set *s) {
  s->negative = accept(c, "^");
  for (bool first = true; first || !accept(c, "]"); first = false) {
    int64_t low, high;
    if (c->at == c->end) return unsupported(c, "a set without ']' is not supported");
    if (*c->at == '[' || accept(c, "&&")) return unsupported(c, "sets inside of sets are not supported");
    KVA_TRY(set_member(c, s, &low));
    bool range = low >= 0 && c->end - c->at >= 2 && *c->at == '-' && c->at[1] != ']';
    high = low;
    if (range) {
      c->at++;
      KVA_TRY(set_member(c, s, &high));
      if (high < low) return unsupported(c, "a range that goes down is not supported");
    }
    if (low >= 0) add_range(c, s, (uint32_t)low, (uint32_t)high);
  }
  return KVA_OK;
}

static kva_status single(compiler *c, uint32_t *out_set) {
  set s = {0};
  int64_t one = -1;
  if (accept(c, "[")) {
    KVA_TRY(bracket(c, &s));
  } else if (accept(c, ".")) {
    add_range(c, &s, '\n', '\n');
    s.negative = true;
  } else {
    KVA_TRY(set_member(c, &s, &one));
    if (one >= 0) add_range(c, &s, (uint32_t)one, (uint32_t)one);
  }
  for (uint32_t i = 0; i < 128; i++) s.ascii[i] = search_set(&s, i);
  KVA_PUSH(c->arena, &c->r->sets, s);
  *out_set = c->r->sets.len - 1;
  return KVA_OK;
}

static bool number(compiler *c, uint32_t *out) {
  const char *begin = c->at;
  for (*out = 0; c->at < c->end && *c->at >= '0' && *c->at <= '9' && *out <= MAX_REPEAT; c->at++)
    *out = *out * 10 + (uint32_t)(*c->at - '0');
  return c->at > begin && *out <= MAX_REPEAT;
}

static kva_status counts(compiler *c, uint32_t *min, uint32_t *max) {
  bool ok = number(c, min);
  *max = *min;
  if (ok && accept(c, ",")) {
    *max = unlimited;
    ok = accept(c, "}") || (number(c, max) && accept(c, "}"));
  } else {
    ok = ok && accept(c, "}");
  }
  return ok && *min <= *max ? KVA_OK : unsupported(c, "this quantifier is not supported");
}

/* Parses a quantifier; min = max = 1 without one. */
static kva_status quantifier(compiler *c, uint32_t *min, uint32_t *max, bool *possessive) {
  *min = *max = 1;
  if (accept(c, "?"))
    *min = 0;
  else if (accept(c, "*"))
    *min = 0, *max = unlimited;
  else if (accept(c, "+"))
    *max = unlimited;
  else if (accept(c, "{"))
    KVA_TRY(counts(c, min, max));
  else
    return KVA_OK;
  if (c->at < c->end && *c->at == '?') return unsupported(c, "a lazy quantifier is not supported");
  *possessive = accept(c, "+");
  return KVA_OK;
}

static kva_status alternatives(compiler *c, bool *can_be_empty);

/* X? is SPLIT X; X+ is X SPLIT back; X* is SPLIT X JUMP back. */
static kva_status repeat_group(compiler *c, uint32_t begin, bool can_be_empty) {
  uint32_t min, max;
  bool possessive = false;
  KVA_TRY(quantifier(c, &min, &max, &possessive));
  if (min == 1 && max == 1) return KVA_OK;
  if (possessive || min > 1 || (max != 1 && max != unlimited) || (max == unlimited && can_be_empty))
    return unsupported(c, "this quantifier on a group is not supported");
  if (min == 0 && max == unlimited)
    emit(c, (instruction){.op = OP_JUMP, .x = (int32_t)begin - (int32_t)c->r->code.len - 1});
  int32_t length = (int32_t)(c->r->code.len - begin);
  if (min == 0)
    insert(c, begin, (instruction){.op = OP_SPLIT, .x = 1, .y = length + 1});
  else
    emit(c, (instruction){.op = OP_SPLIT, .x = -length, .y = 1});
  return KVA_OK;
}

static kva_status look(compiler *c, bool negative) {
  bool empty;
  uint32_t at = emit(c, (instruction){.op = OP_LOOK, .negative = negative});
  KVA_TRY(alternatives(c, &empty));
  emit(c, (instruction){.op = OP_MATCH});
  c->r->code.data[at].x = (int32_t)(c->r->code.len - at);
  return accept(c, ")") ? KVA_OK : unsupported(c, "a group without ')' is not supported");
}

static kva_status group(compiler *c, bool *can_be_empty) {
  bool outer = c->ignore_case, empty = false;
  if (++c->depth > MAX_NESTING) return unsupported(c, "so deep nesting is not supported");
  uint32_t begin = c->r->code.len;
  bool negative = accept(c, "?!");
  if (negative || accept(c, "?=")) {
    KVA_TRY(look(c, negative));
    c->depth--;
    return KVA_OK;
  }
  if (accept(c, "?i:"))
    c->ignore_case = true;
  else if (!accept(c, "?:") && c->at < c->end && *c->at == '?')
    return unsupported(c, "this kind of group is not supported");
  KVA_TRY(alternatives(c, &empty));
  if (!accept(c, ")")) return unsupported(c, "a group without ')' is not supported");
  c->ignore_case = outer;
  c->depth--;
  bool optional = c->at < c->end && (*c->at == '?' || *c->at == '*');
  *can_be_empty = *can_be_empty && (empty || optional);
  return repeat_group(c, begin, empty);
}

static kva_status sequence(compiler *c, bool *can_be_empty) {
  *can_be_empty = true;
  while (c->at < c->end && *c->at != '|' && *c->at != ')') {
    if (accept(c, "(")) {
      KVA_TRY(group(c, can_be_empty));
      continue;
    }
    if (strchr("^$*+?{", *c->at)) return unsupported(c, "this operator is not supported here");
    instruction i = {.op = OP_LOOP};
    KVA_TRY(single(c, &i.set));
    KVA_TRY(quantifier(c, &i.min, &i.max, &i.possessive));
    emit(c, i);
    *can_be_empty = *can_be_empty && i.min == 0;
  }
  return KVA_OK;
}

/* A|B is SPLIT A JUMP B. */
static kva_status alternatives(compiler *c, bool *can_be_empty) {
  uint32_t begin = c->r->code.len;
  KVA_TRY(sequence(c, can_be_empty));
  if (!accept(c, "|")) return KVA_OK;
  if (++c->depth > MAX_NESTING) return unsupported(c, "so many alternatives are not supported");
  insert(c, begin, (instruction){.op = OP_SPLIT, .x = 1});
  uint32_t jump = emit(c, (instruction){.op = OP_JUMP});
  c->r->code.data[begin].y = (int32_t)(jump + 1 - begin);
  bool empty;
  KVA_TRY(alternatives(c, &empty));
  *can_be_empty |= empty;
  c->r->code.data[jump].x = (int32_t)(c->r->code.len - jump);
  c->depth--;
  return KVA_OK;
}

kva_status kva_regex_compile(const char *pattern, size_t size, kva_arena *arena, const kva_loc *loc, kva_diag *diag,
                             kva_regex **out_regex) {
  compiler c = {.at = pattern,
                .end = pattern + size,
                .pattern = pattern,
                .pattern_size = (int)size,
                .arena = arena,
                .diag = diag,
                .loc = loc,
                .r = KVA_NEW(arena, kva_regex)};
  bool empty;
  KVA_TRY(alternatives(&c, &empty));
  if (c.at != c.end) return unsupported(&c, "a ')' without a group is not supported");
  if (empty) return unsupported(&c, "a match of nothing is not supported");
  emit(&c, (instruction){.op = OP_MATCH});
  *out_regex = c.r;
  return KVA_OK;
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

static bool push(kva_regex *r, frame f) {
  if (r->depth == r->capacity) {
    size_t capacity = r->capacity ? 2 * r->capacity : 64;
    frame *stack = realloc(r->stack, capacity * sizeof *stack);
    if (!stack) return false;
    r->stack = stack;
    r->capacity = capacity;
  }
  r->stack[r->depth++] = f;
  return true;
}

/* Resumes the topmost point above `base`; false: none is left. */
static bool go_back(kva_regex *r, size_t base, const char *text, uint32_t *pc, size_t *pos) {
  if (r->depth == base) return false;
  frame *f = &r->stack[r->depth - 1];
  *pc = f->pc;
  if (f->loop) do
      f->pos--;
    while (((unsigned char)text[f->pos] & 0xC0) == 0x80);
  *pos = f->pos;
  if (!f->loop || f->pos <= f->least) r->depth--;
  return true;
}

/* Executes OP_LOOP at pos: false if fewer than min characters match. */
static bool loop(kva_regex *r, const instruction *i, const char *text, size_t size, uint32_t pc, size_t *pos) {
  const set *s = &r->sets.data[i->set];
  size_t at = *pos, least = at, n = 0;
  for (uint32_t count = 0; count < i->max && at < size; count++) {
    if (!in_set(s, kva_utf8_get(text + at, &n))) break;
    at += n;
    r->steps++;
    if (count + 1 == i->min) least = at;
    if (count + 1 < i->min) least = SIZE_MAX;
  }
  if (i->min > 0 && (least == SIZE_MAX || at == *pos)) return false;
  *pos = at;
  if (at == least || i->possessive) return true;
  return push(r, (frame){.pc = pc + 1, .loop = true, .pos = at, .least = least});
}

/* Runs the code from pc at pos, including all alternatives, before it returns. */
static bool run(kva_regex *r, uint32_t pc, const char *text, size_t size, size_t pos, uint64_t most, size_t *out_end) {
  size_t base = r->depth;
  for (;;) {
    const instruction *i = &r->code.data[pc];
    bool ok = true;
    if (++r->steps > most) return r->exceeded = true, false;
    if (i->op == OP_MATCH) {
      r->depth = base;
      *out_end = pos;
      return true;
    }
    if (i->op == OP_LOOP) {
      ok = loop(r, i, text, size, pc, &pos);
      pc++;
    } else if (i->op == OP_LOOK) {
      size_t end;
      ok = run(r, pc + 1, text, size, pos, most, &end) != i->negative;
      pc += (uint32_t)i->x;
    } else {
      if (i->op == OP_SPLIT) ok = push(r, (frame){.pc = pc + (uint32_t)i->y, .pos = pos});
      pc += (uint32_t)i->x;
    }
    if (r->exceeded || (!ok && !go_back(r, base, text, &pc, &pos))) return false;
  }
}

bool kva_regex_find(kva_regex *r, const char *text, size_t size, size_t at, size_t *out_begin, size_t *out_end) {
  uint64_t most = steps_at_least + steps_a_byte * (size - at);
  r->steps = 0;
  for (size_t n; at < size; at += n) {
    r->depth = 0;
    *out_begin = at;
    if (run(r, 0, text, size, at, most, out_end)) return true;
    if (r->exceeded) return false;
    kva_utf8_get(text + at, &n);
  }
  return false;
}

bool kva_regex_exceeded(const kva_regex *r) {
  return r->exceeded;
}

void kva_regex_release(kva_regex *r) {
  free(r->stack);
  r->stack = NULL;
  r->depth = r->capacity = 0;
}
