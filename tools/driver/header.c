/* The C header of a compiled model: typed structs for the inputs and outputs of every program, with sizes from the
 * artefact's formulas. It includes the text of runtime/context.h, so that deploying a model needs no other file. */
#include "tools/driver/build.h"

#include "context_text.h" /* generated: static const char context_text[] */
#include "runtime/formula.h"

#include <ctype.h>

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Words that are not names somewhere in C up to C23 or in C++ up to C++23, and macros that a header of the standard
 * library, or the compiler of a GNU system, defines for all. */
static bool is_keyword(kva_arena *arena, const char *s) {
  static const char words[] =
      " "
      "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t "
      "char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr "
      "constinit continue decltype default delete do double dynamic_cast else enum explicit export extern "
      "false float for friend goto if inline int linux long mutable namespace new noexcept not not_eq NULL "
      "nullptr operator or or_eq private protected public register reinterpret_cast requires restrict "
      "return short signed sizeof static static_assert static_cast struct switch template this thread_local "
      "throw true try typedef typeid typename typeof typeof_unqual union unix unsigned using virtual void "
      "volatile wchar_t while xor xor_eq ";
  if (s[0] == '_' && isupper((unsigned char)s[1])) return true; /* _Bool, _Atomic: reserved for such words */
  return strstr(words, kva_arena_printf(arena, " %s ", s)) != NULL;
}

const char *kva_c_identifier(kva_arena *arena, const char *text) {
  bool digit = isdigit((unsigned char)text[0]) || !text[0];
  char *s = kva_arena_printf(arena, "%s%s", digit ? "x" : "", text);
  for (char *c = s; *c; c++)
    if (!isalnum((unsigned char)*c)) *c = '_';
  return is_keyword(arena, s) ? kva_arena_printf(arena, "%s_", s) : s;
}

/* Distinct identifiers for a list of names. */
static const char **identifiers(kva_arena *arena, int32_t n, const char *const *names) {
  const char **out = KVA_NEW_ARRAY(arena, const char *, n + 1);
  kva_map *taken = kva_map_create(arena);
  for (int32_t i = 0; i < n; i++) {
    out[i] = kva_c_identifier(arena, names[i] ? names[i] : "x");
    for (int k = 2; kva_map_get_str(taken, out[i]); k++)
      out[i] = kva_arena_printf(arena, "%s_%d", kva_c_identifier(arena, names[i] ? names[i] : "x"), k);
    kva_map_set_str(taken, out[i], taken);
  }
  return out;
}

static bool binds_symbols(const kva_program *p) {
  for (int32_t i = 0; i < p->n_steps; i++) {
    const kva_step_desc *s = &p->steps[i];
    if (s->kind == KVA_STEP_BIND || (s->kind == KVA_STEP_BRANCH && ((const kva_branch_desc *)s->desc)->n_binds) ||
        (s->kind == KVA_STEP_LOOP && ((const kva_loop_desc *)s->desc)->symbol >= 0))
      return true;
  }
  return false;
}

const kva_object_function *kva_c_functions(kva_arena *arena, const kva_artifact *a, const char *prefix) {
  int32_t n = kva_artifact_programs(a);
  kva_object_function *out = KVA_NEW_ARRAY(arena, kva_object_function, n + 1);
  for (int32_t i = 0; i < n; i++) {
    const char *name = strcmp(a->programs[i].name, "main") ? a->programs[i].name : "forward";
    out[i] = (kva_object_function){.name = kva_c_identifier(arena, kva_arena_printf(arena, "%s_%s", prefix, name)),
                                   .program = i,
                                   .binds = binds_symbols(&a->programs[i])};
  }
  return out;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

typedef struct writer {
  kva_arena *arena;
  const kva_artifact *a;
  const char *prefix;
  const char **symbols; /* "dims->B" */
  kva_text *out;
} writer;

static const char *c_type(kva_dtype t) {
  static const char *const types[KVA_DTYPE_COUNT] = {
      [KVA_F32] = "float",     [KVA_F64] = "double",   [KVA_I8] = "int8_t",    [KVA_I16] = "int16_t",
      [KVA_I32] = "int32_t",   [KVA_I64] = "int64_t",  [KVA_U16] = "uint16_t", [KVA_F16] = "uint16_t",
      [KVA_BF16] = "uint16_t", [KVA_U32] = "uint32_t", [KVA_U64] = "uint64_t", [KVA_C64] = "float",
      [KVA_C128] = "double"};
  return types[t] ? types[t] : "uint8_t";
}

/* As kva_formula_eval: quotients are rounded down, remainders have the divisor's sign. */
static void add_formula(writer *w, const kva_formula *f, const char *const *symbols) {
  static const char *const begin[] = {
      [KVA_FORMULA_ADD] = "(",        [KVA_FORMULA_MUL] = "(",        [KVA_FORMULA_DIV] = "kva_div(",
      [KVA_FORMULA_MOD] = "kva_mod(", [KVA_FORMULA_MIN] = "kva_min(", [KVA_FORMULA_MAX] = "kva_max("};
  const char *stack[KVA_FORMULA_DEPTH];
  int top = 0;
  for (int64_t i = 0; i < f->n; i++) {
    const kva_formula_word *word = &f->words[i];
    if (word->op == KVA_FORMULA_CONST) {
      stack[top++] = kva_arena_printf(w->arena, "%lld", (long long)word->arg);
    } else if (word->op == KVA_FORMULA_SYMBOL) {
      stack[top++] = symbols[word->arg];
    } else {
      const char *between = word->op == KVA_FORMULA_ADD ? " + " : word->op == KVA_FORMULA_MUL ? "*" : ", ";
      top--;
      stack[top - 1] = kva_arena_printf(w->arena, "%s%s%s%s)", begin[word->op], stack[top - 1], between, stack[top]);
    }
  }
  kva_text_add(w->out, "%s", stack[0]);
}

static void add_members(writer *w, const kva_program *p, int32_t n, const int32_t *numbers, const char **names,
                        bool input) {
  for (int32_t i = 0; i < n; i++) {
    const kva_buffer_desc *b = &p->buffers[numbers[i]];
    kva_text shape = {0};
    for (int32_t d = 0; d < b->rank; d++) {
      if (d) kva_text_add(&shape, ", ");
      kva_formula_print(&b->dims[d], p->symbols, &shape);
    }
    kva_text_add(w->out, "  %s%s *%s; /* %s[%s] */\n", input ? "const " : "", c_type((kva_dtype)b->dtype), names[i],
                 kva_dtype_name((kva_dtype)b->dtype), shape.data ? shape.data : "");
    kva_text_free(&shape);
  }
  if (n == 0) kva_text_add(w->out, "  void *none;\n");
}

static void add_sizes(writer *w, const kva_program *p, const char *function, int32_t n, const int32_t *numbers,
                      const char **names) {
  for (int32_t i = 0; i < n; i++) {
    kva_text_add(w->out, "static inline int64_t %s_%s_bytes(const %s_dims *dims) {\n  (void)dims;\n  return ", function,
                 names[i], w->prefix);
    add_formula(w, &p->buffers[numbers[i]].bytes, w->symbols);
    kva_text_add(w->out, ";\n}\n");
  }
}

/* Names of inputs, then outputs, all distinct: they are parts of functions' names. */
static const char **buffer_names(writer *w, const kva_program *p) {
  int32_t n = p->n_inputs + p->n_outputs;
  const char **names = KVA_NEW_ARRAY(w->arena, const char *, n + 1);
  for (int32_t i = 0; i < n; i++)
    names[i] = p->buffers[i < p->n_inputs ? p->inputs[i] : p->outputs[i - p->n_inputs]].name;
  return identifiers(w->arena, n, names);
}

static void add_program(writer *w, const kva_program *p, const kva_object_function *f) {
  const char *function = f->name;
  const char **inputs = buffer_names(w, p), **outputs = inputs + p->n_inputs;
  kva_text_add(w->out, "/* ---- program %s ---- */\n\ntypedef struct %s_in {\n", p->name, function);
  add_members(w, p, p->n_inputs, p->inputs, inputs, true);
  kva_text_add(w->out,
               "} %s_in;\n\n/* A null pointer becomes memory of the context, valid until the program's next run. */\n"
               "typedef struct %s_out {\n",
               function, function);
  add_members(w, p, p->n_outputs, p->outputs, outputs, false);
  kva_text_add(w->out, "} %s_out;\n\n/* Bytes of each. */\n", function);
  add_sizes(w, p, function, p->n_inputs, p->inputs, inputs);
  add_sizes(w, p, function, p->n_outputs, p->outputs, outputs);
  kva_text_add(w->out,
               "\n/* Runs it; 0 or a status, see %s_error. Allocates only when dims differ from the last call's. */\n"
               "int %s(%s_context *context, const %s_in *in, %s_out *out, const %s_dims *dims);\n"
               "/* Bytes of temporaries for these shapes: see kva_context_options.arena. */\n"
               "int64_t %s_arena(const %s_dims *dims);\n\n",
               w->prefix, function, w->prefix, function, function, w->prefix, function, w->prefix);
  if (f->binds)
    kva_text_add(w->out,
                 "/* Shapes of the last run, with the sizes that it found: members of dims that a run ignores. */\n"
                 "void %s_dims(const %s_context *context, %s_dims *dims);\n\n",
                 function, w->prefix, w->prefix);
}

/* All programs have the same symbols. */
static void add_symbols(writer *w) {
  const kva_program *p = &w->a->programs[0];
  const char **names = identifiers(w->arena, p->n_symbols, p->symbols);
  w->symbols = KVA_NEW_ARRAY(w->arena, const char *, p->n_symbols + 1);
  kva_text_add(w->out, "/* Shape symbols. */\ntypedef struct %s_dims {\n", w->prefix);
  for (int32_t i = 0; i < p->n_symbols; i++) {
    kva_text_add(w->out, "  int64_t %s;\n", names[i]);
    w->symbols[i] = kva_arena_printf(w->arena, "dims->%s", names[i]);
  }
  if (p->n_symbols == 0) kva_text_add(w->out, "  int64_t none; /* all shapes are fixed */\n");
  kva_text_add(w->out, "} %s_dims;\n\n", w->prefix);
}

/* The author's text must not end the comment, nor look like another one in it. */
static void add_character(writer *w, char before, char c) {
  bool mark = (before == '*' && c == '/') || (before == '/' && c == '*');
  kva_text_add(w->out, mark ? " %c" : "%c", c);
}

static void add_name(writer *w, const char *name) {
  for (const char *s = name; *s; s++) add_character(w, s > name ? s[-1] : 0, iscntrl((unsigned char)*s) ? ' ' : *s);
}

static void add_comment(writer *w, const char *text) {
  for (const char *s = text; *s; s++) {
    if (s == text || s[-1] == '\n') kva_text_add(w->out, " *%s", *s == '\n' ? "" : " ");
    add_character(w, s > text ? s[-1] : 0, *s);
  }
  kva_text_add(w->out, "\n *\n");
}

/* Functions of sizes, for all headers of a program; without a quotient there is no size, and a run says so. */
static const char arithmetic_text[] =
    "#ifndef KVA_MODEL_ARITHMETIC\n#define KVA_MODEL_ARITHMETIC\n"
    "static inline int64_t kva_min(int64_t a, int64_t b) {\n  return a < b ? a : b;\n}\n"
    "static inline int64_t kva_max(int64_t a, int64_t b) {\n  return a > b ? a : b;\n}\n"
    "static inline int64_t kva_div(int64_t a, int64_t b) {\n"
    "  return b ? a / b - (a % b != 0 && (a < 0) != (b < 0)) : 0;\n}\n"
    "static inline int64_t kva_mod(int64_t a, int64_t b) {\n  return a - kva_div(a, b) * b;\n}\n#endif\n\n";

static void add_head(writer *w, const char *description) {
  const char *p = w->prefix;
  kva_text_add(w->out, "/* Model ");
  add_name(w, w->a->model ? w->a->model : p);
  kva_text_add(w->out, ", compiled by kvasir %s for %s.\n *\n", KVA_VERSION, w->a->target);
  if (description) add_comment(w, description);
  kva_text_add(
      w->out,
      " * Generated. Create a context, fill in the structs, run; tensors are dense and row-major. A context is\n"
      " * used by one thread at a time, different contexts and models are independent. */\n"
      "#ifndef KVA_MODEL_%s_H\n#define KVA_MODEL_%s_H\n\n%s\n"
      "%s"
      "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n",
      p, p, context_text, arithmetic_text);
  add_symbols(w);
  kva_text_add(w->out,
               "typedef kva_context %s_context;\n"
               "int %s_create(const kva_context_options *options, %s_context **out_context, char *message,\n"
               "    size_t message_size);\n"
               "void %s_destroy(%s_context *context);\n"
               "const char *%s_error(const %s_context *context);\n"
               "const struct kva_artifact *%s_artifact(void); /* the tables, for kvasir/runtime/runtime.h */\n\n",
               p, p, p, p, p, p, p, p);
}

void kva_c_header(const kva_artifact *a, const char *prefix, const char *description, kva_text *out) {
  kva_arena *arena = kva_arena_create();
  writer w = {.arena = arena, .a = a, .prefix = prefix, .out = out};
  const kva_object_function *functions = kva_c_functions(arena, a, prefix);
  add_head(&w, description);
  for (int32_t i = 0; i < kva_artifact_programs(a); i++) add_program(&w, &a->programs[i], &functions[i]);
  kva_text_add(out, "#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
  kva_arena_destroy(arena);
}
