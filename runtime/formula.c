/* Evaluation, checking and printing of size formulas. */
#include "runtime/formula.h"

static bool is_leaf(int64_t op) {
  return op == KVA_FORMULA_CONST || op == KVA_FORMULA_SYMBOL;
}

bool kva_formula_is_valid(const kva_formula *f, int32_t n_symbols) {
  if (f->n <= 0 || !f->words) return false;
  int depth = 0;
  for (int64_t i = 0; i < f->n; i++) {
    const kva_formula_word *w = &f->words[i];
    if (w->op < KVA_FORMULA_CONST || w->op > KVA_FORMULA_MAX) return false;
    if (w->op == KVA_FORMULA_SYMBOL && (w->arg < 0 || w->arg >= n_symbols)) return false;
    depth += is_leaf(w->op) ? 1 : -1;
    if (depth < 1 || depth > KVA_FORMULA_DEPTH) return false;
  }
  return depth == 1;
}

static int64_t floor_div(int64_t a, int64_t b) {
  int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

static bool apply(int64_t op, int64_t a, int64_t b, int64_t *out) {
  switch (op) {
  case KVA_FORMULA_ADD: return !__builtin_add_overflow(a, b, out);
  case KVA_FORMULA_MUL: return !__builtin_mul_overflow(a, b, out);
  case KVA_FORMULA_MIN: *out = a < b ? a : b; return true;
  case KVA_FORMULA_MAX: *out = a > b ? a : b; return true;
  default: break;
  }
  if (b == 0 || (a == INT64_MIN && b == -1)) return false;
  *out = op == KVA_FORMULA_DIV ? floor_div(a, b) : a - floor_div(a, b) * b;
  return true;
}

bool kva_formula_eval(const kva_formula *f, const int64_t *symbols, int64_t *out_value) {
  int64_t stack[KVA_FORMULA_DEPTH];
  int top = 0;
  for (int64_t i = 0; i < f->n; i++) {
    const kva_formula_word *w = &f->words[i];
    if (is_leaf(w->op)) {
      stack[top++] = w->op == KVA_FORMULA_CONST ? w->arg : symbols[w->arg];
      continue;
    }
    top--;
    if (!apply(w->op, stack[top - 1], stack[top], &stack[top - 1])) return false;
  }
  *out_value = stack[0];
  return true;
}

/* The first word of the operand whose last word is `end`. */
static int64_t operand_begin(const kva_formula_word *words, int64_t end) {
  int64_t missing = 1, i = end + 1;
  while (missing) missing += is_leaf(words[--i].op) ? -1 : 1;
  return i;
}

static void print_operand(const kva_formula_word *words, int64_t end, bool inner, const char *const *symbols,
                          kva_text *text) {
  static const char *const infix[] = {[KVA_FORMULA_ADD] = " + ", [KVA_FORMULA_MUL] = "*",  [KVA_FORMULA_DIV] = " / ",
                                      [KVA_FORMULA_MOD] = " % ", [KVA_FORMULA_MIN] = ", ", [KVA_FORMULA_MAX] = ", "};
  const kva_formula_word *w = &words[end];
  if (w->op == KVA_FORMULA_CONST) {
    kva_text_add(text, "%lld", (long long)w->arg);
    return;
  }
  if (w->op == KVA_FORMULA_SYMBOL) {
    kva_text_add(text, "%s", symbols[w->arg]);
    return;
  }
  bool call = w->op == KVA_FORMULA_MIN || w->op == KVA_FORMULA_MAX;
  if (call) kva_text_add(text, w->op == KVA_FORMULA_MIN ? "min" : "max");
  if (call || inner) kva_text_add(text, "(");
  print_operand(words, operand_begin(words, end - 1) - 1, !call, symbols, text);
  kva_text_add(text, "%s", infix[w->op]);
  print_operand(words, end - 1, !call, symbols, text);
  if (call || inner) kva_text_add(text, ")");
}

void kva_formula_print(const kva_formula *f, const char *const *symbols, kva_text *text) {
  print_operand(f->words, f->n - 1, false, symbols, text);
}
