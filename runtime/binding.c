/* Binds shape symbols from the shapes of a call's inputs.
 *
 * A dimension that is a bare symbol sets that symbol. Dimensions with one unknown symbol left are then solved for it,
 * as linear functions (T + P with T known gives P), until nothing changes. Finally every dimension is checked against
 * its formula, so a wrong solution is an error. */
#include "runtime/formula.h"
#include "runtime/session.h"

enum { NONE = -1 };

static const kva_buffer_desc *input_buffer(const kva_program *p, int32_t i) {
  return &p->buffers[p->inputs[i]];
}

static bool is_bare_symbol(const kva_formula *f) {
  return f->n == 1 && f->words[0].op == KVA_FORMULA_SYMBOL;
}

static void add_dim(kva_text *text, int32_t d) {
  kva_text_add(text, "%s", d ? ", " : "[");
}

/* Element type, number of dimensions, or both. */
static kva_status wrong_type(kva_session *s, const kva_program *p, const kva_buffer_desc *b, const kva_tensor *t) {
  kva_text text = {0};
  kva_text_add(&text, "%s: input '%s' must be %s", p->name, b->name, kva_dtype_name((kva_dtype)b->dtype));
  for (int32_t d = 0; d < b->rank; d++) add_dim(&text, d), kva_formula_print(&b->dims[d], p->symbols, &text);
  kva_text_add(&text, "%s, found %s", b->rank ? "]" : " without dimensions", kva_dtype_name(t->dtype));
  for (int32_t d = 0; d < t->rank; d++) add_dim(&text, d), kva_text_add(&text, "%lld", (long long)t->dims[d]);
  kva_text_add(&text, "%s", t->rank ? "]" : " without dimensions");
  kva_status status = kva_session_fail(s, KVA_INVALID, "%s", kva_text_string(&text));
  kva_text_free(&text);
  return status;
}

static kva_status check_types(kva_session *s, const kva_program *p, const kva_tensor *inputs) {
  for (int32_t i = 0; i < p->n_inputs; i++) {
    const kva_buffer_desc *b = input_buffer(p, i);
    const kva_tensor *t = &inputs[i];
    if (t->rank < 0 || t->rank > KVA_ABI_MAX_RANK)
      return kva_session_fail(s, KVA_INVALID, "%s: input '%s' has %d dimensions", p->name, b->name, t->rank);
    if ((int32_t)t->dtype != b->dtype || t->rank != b->rank) return wrong_type(s, p, b, t);
    for (int32_t d = 0; d < t->rank; d++)
      if (t->dims[d] < 0)
        return kva_session_fail(s, KVA_INVALID, "%s: dimension %d of input '%s' is negative: %lld", p->name, d, b->name,
                                (long long)t->dims[d]);
  }
  return KVA_OK;
}

static void bind_bare_symbols(const kva_program *p, const kva_tensor *inputs, int64_t *symbols) {
  for (int32_t i = 0; i < p->n_inputs; i++) {
    const kva_buffer_desc *b = input_buffer(p, i);
    for (int32_t d = 0; d < b->rank; d++) {
      if (!is_bare_symbol(&b->dims[d])) continue;
      int64_t *value = &symbols[b->dims[d].words[0].arg];
      if (*value == KVA_UNBOUND) *value = inputs[i].dims[d];
    }
  }
}

/* The only unbound symbol of f; NONE if there are none or several. */
static int64_t single_unknown(const kva_formula *f, const int64_t *symbols) {
  int64_t unknown = NONE;
  for (int64_t i = 0; i < f->n; i++) {
    const kva_formula_word *w = &f->words[i];
    if (w->op != KVA_FORMULA_SYMBOL || symbols[w->arg] != KVA_UNBOUND || w->arg == unknown) continue;
    if (unknown != NONE) return NONE;
    unknown = w->arg;
  }
  return unknown;
}

/* Solves f = value for the symbol `unknown`, assuming that f is linear in it. */
static bool solve(const kva_formula *f, int64_t value, int64_t unknown, int64_t *symbols) {
  int64_t at0, at1, slope, rest;
  symbols[unknown] = 0;
  bool ok = kva_formula_eval(f, symbols, &at0);
  symbols[unknown] = 1;
  ok = ok && kva_formula_eval(f, symbols, &at1);
  symbols[unknown] = KVA_UNBOUND;
  if (!ok || __builtin_sub_overflow(at1, at0, &slope) || __builtin_sub_overflow(value, at0, &rest)) return false;
  if (slope == 0 || rest == INT64_MIN || rest % slope != 0 || rest / slope < 0) return false;
  symbols[unknown] = rest / slope;
  return true;
}

static void solve_rest(const kva_program *p, const kva_tensor *inputs, int64_t *symbols) {
  for (bool progress = true; progress;) {
    progress = false;
    for (int32_t i = 0; i < p->n_inputs; i++) {
      const kva_buffer_desc *b = input_buffer(p, i);
      for (int32_t d = 0; d < b->rank; d++) {
        int64_t unknown = single_unknown(&b->dims[d], symbols);
        progress |= unknown != NONE && solve(&b->dims[d], inputs[i].dims[d], unknown, symbols);
      }
    }
  }
}

/* Symbols that steps bind are exempt. */
static kva_status check_all_bound(kva_session *s, const kva_program_state *sp, const int64_t *symbols) {
  const kva_program *p = sp->desc;
  for (int32_t i = 0; i < p->n_symbols; i++)
    if (symbols[i] == KVA_UNBOUND && !sp->symbol_segments[i])
      return kva_session_fail(s, KVA_INVALID,
                              "%s: the shapes of the inputs do not determine symbol '%s'; pin it when compiling",
                              p->name, p->symbols[i]);
  return KVA_OK;
}

/* " (symbol 'T' is 64 by dimension 1 of input 'tokens')" for the first symbol in f that another dim set. */
static void explain_symbol(const kva_program *p, const kva_formula *f, const int64_t *symbols, kva_text *text) {
  for (int64_t w = 0; w < f->n; w++) {
    if (f->words[w].op != KVA_FORMULA_SYMBOL) continue;
    int64_t symbol = f->words[w].arg;
    for (int32_t i = 0; i < p->n_inputs; i++)
      for (int32_t d = 0; d < input_buffer(p, i)->rank; d++) {
        const kva_formula *dim = &input_buffer(p, i)->dims[d];
        if (dim == f || !is_bare_symbol(dim) || dim->words[0].arg != symbol) continue;
        kva_text_add(text, " (symbol '%s' is %lld by dimension %d of input '%s')", p->symbols[symbol],
                     (long long)symbols[symbol], d, input_buffer(p, i)->name);
        return;
      }
  }
}

static kva_status contradiction(kva_session *s, const kva_program *p, int32_t input, int32_t dim, int64_t found,
                                const int64_t *symbols) {
  const kva_buffer_desc *b = input_buffer(p, input);
  const kva_formula *f = &b->dims[dim];
  int64_t expected;
  kva_text text = {0};
  kva_text_add(&text, "%s: dimension %d of input '%s' must be ", p->name, dim, b->name);
  kva_formula_print(f, p->symbols, &text);
  bool constant = f->n == 1 && f->words[0].op == KVA_FORMULA_CONST;
  if (!constant && kva_formula_eval(f, symbols, &expected)) kva_text_add(&text, " = %lld", (long long)expected);
  kva_text_add(&text, ", found %lld", (long long)found);
  explain_symbol(p, f, symbols, &text);
  kva_status status = kva_session_fail(s, KVA_INVALID, "%s", kva_text_string(&text));
  kva_text_free(&text);
  return status;
}

static kva_status check_dims(kva_session *s, const kva_program *p, const kva_tensor *inputs, const int64_t *symbols) {
  for (int32_t i = 0; i < p->n_inputs; i++) {
    const kva_buffer_desc *b = input_buffer(p, i);
    for (int32_t d = 0; d < b->rank; d++) {
      int64_t expected;
      if (!kva_formula_eval(&b->dims[d], symbols, &expected) || expected != inputs[i].dims[d])
        return contradiction(s, p, i, d, inputs[i].dims[d], symbols);
    }
  }
  return KVA_OK;
}

kva_status kva_bind_symbols(kva_session *s, const kva_program_state *sp, const kva_tensor *inputs,
                            int64_t *out_symbols) {
  const kva_program *p = sp->desc;
  KVA_TRY(check_types(s, p, inputs));
  for (int32_t i = 0; i < p->n_symbols; i++) out_symbols[i] = KVA_UNBOUND;
  bind_bare_symbols(p, inputs, out_symbols);
  solve_rest(p, inputs, out_symbols);
  KVA_TRY(check_all_bound(s, sp, out_symbols));
  return check_dims(s, p, inputs, out_symbols);
}
