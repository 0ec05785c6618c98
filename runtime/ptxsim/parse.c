/* Parses modules: version, target, variables, kernel headers. Stops at the first error. */
#include "runtime/ptxsim/parse.h"

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

void kva_ptx_advance(ptx_parser *p) {
  p->token = kva_ptx_lex(&p->lexer);
}

bool kva_ptx_is(const ptx_parser *p, const char *word) {
  const ptx_token *t = &p->token;
  return (t->kind == PTX_TOKEN_WORD || t->kind == PTX_TOKEN_PUNCT) && strlen(word) == t->n &&
         !memcmp(t->text, word, t->n);
}
/* Whether tokens remain. A bad token is never skipped: it ends every skipping loop. */
static bool more(const ptx_parser *p) {
  return p->token.kind != PTX_TOKEN_END && p->token.kind != PTX_TOKEN_BAD;
}
bool kva_ptx_accept(ptx_parser *p, const char *word) {
  bool is = kva_ptx_is(p, word);
  if (is) kva_ptx_advance(p);
  return is;
}

kva_status kva_ptx_unexpected(ptx_parser *p, const char *wanted) {
  const ptx_token *t = &p->token;
  if (t->kind == PTX_TOKEN_BAD) return PTX_PARSE_ERROR(p, "%s", t->text);
  if (t->kind == PTX_TOKEN_END) return PTX_PARSE_ERROR(p, "the text ends where %s is expected", wanted);
  int n = t->kind == PTX_TOKEN_WORD || t->kind == PTX_TOKEN_PUNCT ? (int)(t->n < 60 ? t->n : 60) : 0;
  if (!n) return PTX_PARSE_ERROR(p, "found a constant where %s is expected", wanted);
  return PTX_PARSE_ERROR(p, "found '%.*s' where %s is expected", n, t->text, wanted);
}
kva_status kva_ptx_expect(ptx_parser *p, const char *word) {
  if (kva_ptx_accept(p, word)) return KVA_OK;
  char wanted[48];
  snprintf(wanted, sizeof wanted, "'%s'", word);
  return kva_ptx_unexpected(p, wanted);
}

kva_status kva_ptx_parse_uint(ptx_parser *p, uint64_t max, const char *what, uint64_t *out) {
  if (p->token.kind != PTX_TOKEN_INT) return kva_ptx_unexpected(p, what);
  if (p->token.bits > max)
    return PTX_PARSE_ERROR(p, "%s is %llu; at most %llu is supported", what, (unsigned long long)p->token.bits,
                           (unsigned long long)max);
  *out = p->token.bits;
  kva_ptx_advance(p);
  return KVA_OK;
}

/* .loc, .file and similar directives have no semicolon. */
void kva_ptx_skip_line(ptx_parser *p) {
  uint32_t line = p->token.line;
  while (more(p) && p->token.line == line) kva_ptx_advance(p);
}

static kva_status skip_to(ptx_parser *p, const char *word) {
  while (!kva_ptx_accept(p, word)) {
    if (p->token.kind == PTX_TOKEN_END || p->token.kind == PTX_TOKEN_BAD) return kva_ptx_expect(p, word);
    kva_ptx_advance(p);
  }
  return KVA_OK;
}
static void skip_braces(ptx_parser *p) {
  int depth = 0;
  do {
    depth += kva_ptx_is(p, "{") - kva_ptx_is(p, "}");
    kva_ptx_advance(p);
  } while (depth > 0 && more(p));
}

/* ---- symbols ----------------------------------------------------------------------------------------------------- */

ptx_symbol *kva_ptx_find_symbol(const ptx_parser *p, const char *name, size_t n) {
  for (const ptx_scope *s = p->scope; s; s = s->parent) {
    ptx_symbol *found = s->symbols ? kva_map_get(s->symbols, name, n) : NULL;
    if (found) return found;
  }
  return NULL;
}

kva_status kva_ptx_declare(ptx_parser *p, const ptx_token *name, ptx_symbol **out_symbol) {
  if (!p->scope->symbols) p->scope->symbols = kva_map_create(p->arena);
  if (kva_map_get(p->scope->symbols, name->text, name->n))
    return kva_ptx_error_at(p->module, p->diag, KVA_INVALID, name->line, name->column, "'%.*s' is declared twice",
                            (int)(name->n < 100 ? name->n : 100), name->text);
  *out_symbol = KVA_NEW(p->arena, ptx_symbol);
  (*out_symbol)->slot = PTX_NONE;
  kva_map_set(p->scope->symbols, name->text, name->n, *out_symbol);
  return KVA_OK;
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

typedef struct declaration {
  ptx_space space;
  ptx_type type;
  uint64_t align, vector;
  bool external;
} declaration;

static kva_status parse_align(ptx_parser *p, uint64_t *align) {
  *align = 0;
  KVA_TRY(kva_ptx_parse_uint(p, 1024, "an alignment", align));
  if (*align && !(*align & (*align - 1))) return KVA_OK;
  return PTX_PARSE_ERROR(p, "the alignment before here is not a power of two");
}

static kva_status parse_type(ptx_parser *p, ptx_type *type) {
  const ptx_token *t = &p->token;
  *type = t->kind == PTX_TOKEN_WORD && t->text[0] == '.' ? kva_ptx_type_from_name(t->text + 1, t->n - 1) : PTX_NOTYPE;
  if (*type == PTX_NOTYPE) return kva_ptx_unexpected(p, "a type");
  kva_ptx_advance(p);
  return KVA_OK;
}

static kva_status parse_declaration(ptx_parser *p, declaration *d) {
  d->vector = 1;
  for (;;) {
    if (kva_ptx_accept(p, ".align"))
      KVA_TRY(parse_align(p, &d->align));
    else if (kva_ptx_accept(p, ".v2"))
      d->vector = 2;
    else if (kva_ptx_accept(p, ".v4"))
      d->vector = 4;
    else if (kva_ptx_accept(p, ".attribute"))
      KVA_TRY(skip_to(p, ")"));
    else
      break;
  }
  KVA_TRY(parse_type(p, &d->type));
  if (kva_ptx_type_bits(d->type) < 8) return PTX_PARSE_ERROR(p, "a variable cannot be a predicate");
  uint64_t size = (uint64_t)kva_ptx_type_bits(d->type) / 8 * d->vector;
  if (d->align < size) d->align = d->align ? d->align : size;
  return KVA_OK;
}

/* Array extents such as [4][8]: the number of elements; 0 with *open for []. */
static kva_status parse_extents(ptx_parser *p, uint64_t *count, bool *open) {
  *count = 1;
  *open = false;
  while (kva_ptx_accept(p, "[")) {
    uint64_t n = 0;
    if (kva_ptx_is(p, "]"))
      *open = true;
    else
      KVA_TRY(kva_ptx_parse_uint(p, PTX_MAX_VARIABLE, "an array size", &n));
    KVA_TRY(kva_ptx_expect(p, "]"));
    if (!*open && (__builtin_mul_overflow(*count, n, count) || *count > PTX_MAX_VARIABLE))
      return PTX_PARSE_ERROR(p, "the array is larger than %d bytes", PTX_MAX_VARIABLE);
  }
  return KVA_OK;
}

static uint64_t align_up(uint64_t v, uint64_t align) {
  return (v + align - 1) & ~(align - 1);
}

static kva_status initial_value(ptx_parser *p, const declaration *d, uint64_t *bits) {
  bool negative = kva_ptx_accept(p, "-");
  const ptx_token *t = &p->token;
  if (t->kind == PTX_TOKEN_WORD) {
    bool generic = kva_ptx_accept(p, "generic") && kva_ptx_accept(p, "(");
    ptx_symbol *s = p->token.kind == PTX_TOKEN_WORD ? kva_ptx_find_symbol(p, p->token.text, p->token.n) : NULL;
    if (!s || s->kind != PTX_SYMBOL_VARIABLE || (s->space != PTX_GLOBAL && s->space != PTX_CONST))
      return kva_ptx_unexpected(p, "a constant or a global variable");
    *bits = s->address;
    kva_ptx_advance(p);
    return generic ? kva_ptx_expect(p, ")") : KVA_OK;
  }
  if (t->kind != PTX_TOKEN_INT && t->kind != PTX_TOKEN_F32 && t->kind != PTX_TOKEN_F64)
    return kva_ptx_unexpected(p, "a constant");
  *bits = t->bits;
  if (t->kind == PTX_TOKEN_F64 && d->type == PTX_F32) {
    double v;
    memcpy(&v, bits, sizeof v);
    float f = (float)v;
    uint32_t narrow;
    memcpy(&narrow, &f, sizeof narrow);
    *bits = narrow;
  }
  if (negative) *bits = t->kind == PTX_TOKEN_INT ? 0 - *bits : *bits ^ 1ull << (kva_ptx_type_bits(d->type) - 1);
  kva_ptx_advance(p);
  return KVA_OK;
}

/* Values in nested braces, stored in order; the rest stays zero. */
static kva_status parse_initializer(ptx_parser *p, const declaration *d, unsigned char *data, uint64_t size) {
  uint64_t width = (uint64_t)kva_ptx_type_bits(d->type) / 8, at = 0;
  uint32_t depth = 0;
  do {
    if (kva_ptx_accept(p, "{")) {
      depth++;
      continue;
    }
    if (depth && kva_ptx_accept(p, "}")) {
      depth--;
    } else {
      uint64_t bits;
      KVA_TRY(initial_value(p, d, &bits));
      if (at + width > size) return PTX_PARSE_ERROR(p, "more initial values than elements");
      memcpy(data + at, &bits, width);
      at += width;
    }
    if (depth && !kva_ptx_is(p, "}")) KVA_TRY(kva_ptx_expect(p, ","));
  } while (depth);
  return KVA_OK;
}

static kva_status place_variable(ptx_parser *p, const ptx_token *name, const declaration *d, ptx_symbol *s) {
  kva_ptx_kernel *k = p->builder.kernel;
  if (d->space == PTX_GLOBAL || d->space == PTX_CONST) {
    p->variable_bytes += s->size;
    if (p->variable_bytes > PTX_MAX_VARIABLE)
      return PTX_PARSE_ERROR(p, "the variables take more than %d bytes", PTX_MAX_VARIABLE);
    unsigned char *data = kva_arena_alloc(p->arena, s->size + s->align);
    data = (unsigned char *)align_up((uintptr_t)data, s->align);
    s->address = (uintptr_t)data;
    ptx_variable v = {kva_arena_strndup(p->arena, name->text, name->n), data, s->size, d->space == PTX_GLOBAL};
    KVA_PUSH(p->arena, &p->module->variables, v);
    return kva_ptx_accept(p, "=") ? parse_initializer(p, d, data, s->size) : KVA_OK;
  }
  if (s->relocate || !k) return KVA_OK;
  uint32_t *used = d->space == PTX_SHARED ? &k->shared_bytes : &k->local_bytes;
  uint64_t limit = d->space == PTX_SHARED ? PTX_MAX_SHARED : PTX_MAX_LOCAL;
  s->address = align_up(*used, s->align);
  s->placed = k;
  if (s->address + s->size > limit)
    return PTX_PARSE_ERROR(p, "%s memory of the kernel exceeds %llu bytes", d->space == PTX_SHARED ? "shared" : "local",
                           (unsigned long long)limit);
  *used = (uint32_t)(s->address + s->size);
  return KVA_OK;
}

static kva_status parse_variable(ptx_parser *p, const declaration *d) {
  ptx_token name = p->token;
  if (name.kind != PTX_TOKEN_WORD || name.text[0] == '.') return kva_ptx_unexpected(p, "the name of a variable");
  kva_ptx_advance(p);
  uint64_t count;
  bool open;
  KVA_TRY(parse_extents(p, &count, &open));
  ptx_symbol *s;
  KVA_TRY(kva_ptx_declare(p, &name, &s));
  *s = (ptx_symbol){.kind = PTX_SYMBOL_VARIABLE, .type = d->type, .slot = PTX_NONE, .space = d->space};
  s->align = d->align;
  s->size = open ? 0 : count * d->vector * (uint64_t)kva_ptx_type_bits(d->type) / 8;
  s->relocate = d->space == PTX_SHARED && (open || d->external);
  if (s->size > PTX_MAX_VARIABLE) return PTX_PARSE_ERROR(p, "the array is larger than %d bytes", PTX_MAX_VARIABLE);
  if (open && d->space != PTX_SHARED) return PTX_PARSE_ERROR(p, "only .extern .shared arrays may have no size");
  return place_variable(p, &name, d, s);
}

kva_status kva_ptx_parse_variables(ptx_parser *p, bool external) {
  declaration d = {.external = external};
  d.space = kva_ptx_is(p, ".shared")  ? PTX_SHARED
            : kva_ptx_is(p, ".local") ? PTX_LOCAL
            : kva_ptx_is(p, ".const") ? PTX_CONST
                                      : PTX_GLOBAL;
  kva_ptx_advance(p);
  KVA_TRY(parse_declaration(p, &d));
  do {
    KVA_TRY(parse_variable(p, &d));
  } while (kva_ptx_accept(p, ","));
  return kva_ptx_expect(p, ";");
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static kva_status parse_param(ptx_parser *p, kva_ptx_param *out) {
  KVA_TRY(kva_ptx_expect(p, ".param"));
  declaration d = {.space = PTX_PARAM};
  KVA_TRY(parse_declaration(p, &d));
  if (kva_ptx_accept(p, ".ptr")) {
    while (kva_ptx_accept(p, ".global") || kva_ptx_accept(p, ".shared") || kva_ptx_accept(p, ".const") ||
           kva_ptx_accept(p, ".local")) {
    }
    uint64_t align;
    if (kva_ptx_accept(p, ".align")) KVA_TRY(parse_align(p, &align));
  }
  ptx_token name = p->token;
  if (name.kind != PTX_TOKEN_WORD) return kva_ptx_unexpected(p, "the name of a parameter");
  kva_ptx_advance(p);
  uint64_t count;
  bool open;
  KVA_TRY(parse_extents(p, &count, &open));
  uint64_t width = (uint64_t)kva_ptx_type_bits(d.type) / 8, size = count * width * d.vector;
  if (open || size == 0 || size > PTX_MAX_PARAMS)
    return PTX_PARSE_ERROR(p, "parameters take 1 to %d bytes", PTX_MAX_PARAMS);
  kva_ptx_kernel *k = p->builder.kernel;
  uint64_t offset = align_up(k->param_bytes, d.align);
  if (offset + size > PTX_MAX_PARAMS) return PTX_PARSE_ERROR(p, "parameters take 1 to %d bytes", PTX_MAX_PARAMS);
  k->param_bytes = (uint32_t)(offset + size);
  ptx_symbol *s;
  KVA_TRY(kva_ptx_declare(p, &name, &s));
  *s = (ptx_symbol){.kind = PTX_SYMBOL_VARIABLE, .type = d.type, .slot = PTX_NONE, .space = PTX_PARAM};
  s->address = offset;
  s->size = size;
  *out = (kva_ptx_param){kva_arena_strndup(p->arena, name.text, name.n), (uint32_t)size, (uint32_t)d.align,
                         (uint32_t)offset, size == 8 && (d.type == PTX_U64 || d.type == PTX_B64)};
  return KVA_OK;
}

static kva_status parse_params(ptx_parser *p) {
  KVA_VEC(kva_ptx_param) params = {0};
  if (kva_ptx_accept(p, "(") && !kva_ptx_accept(p, ")")) {
    do {
      kva_ptx_param param;
      KVA_TRY(parse_param(p, &param));
      KVA_PUSH(p->arena, &params, param);
    } while (kva_ptx_accept(p, ","));
    KVA_TRY(kva_ptx_expect(p, ")"));
  }
  p->builder.kernel->info.params = params.data;
  p->builder.kernel->info.n_params = params.len;
  return KVA_OK;
}

static kva_status parse_extent3(ptx_parser *p, const char *what, uint32_t out[3]) {
  for (int i = 0; i < 3; i++) out[i] = 1;
  int i = 0;
  do {
    uint64_t v = 0;
    KVA_TRY(kva_ptx_parse_uint(p, 1024, what, &v));
    if (i == 3) return PTX_PARSE_ERROR(p, "more than three extents");
    out[i++] = (uint32_t)v;
  } while (kva_ptx_accept(p, ","));
  return KVA_OK;
}

static kva_status parse_max_cluster(ptx_parser *p, kva_ptx_kernel_info *info) {
  uint64_t v = 0;
  KVA_TRY(kva_ptx_parse_uint(p, 1024, "a number of CTAs", &v));
  info->max_cluster = (uint32_t)v;
  return KVA_OK;
}

static kva_status parse_kernel_directives(ptx_parser *p) {
  static const char threads[] = "a number of threads";
  kva_ptx_kernel_info *info = &p->builder.kernel->info;
  uint64_t ignored;
  while (!kva_ptx_is(p, "{")) {
    if (kva_ptx_accept(p, ".maxntid"))
      KVA_TRY(parse_extent3(p, threads, info->max_threads));
    else if (kva_ptx_accept(p, ".reqntid"))
      KVA_TRY(parse_extent3(p, threads, info->required_threads));
    else if (kva_ptx_accept(p, ".reqnctapercluster"))
      KVA_TRY(parse_extent3(p, "a number of CTAs", info->cluster));
    else if (kva_ptx_accept(p, ".maxclusterrank"))
      KVA_TRY(parse_max_cluster(p, info));
    else if (kva_ptx_accept(p, ".explicitcluster"))
      continue; /* every launch has the kernel's own cluster, or names one */
    else if (kva_ptx_accept(p, ".minnctapersm") || kva_ptx_accept(p, ".maxnctapersm") || kva_ptx_accept(p, ".maxnreg"))
      KVA_TRY(kva_ptx_parse_uint(p, UINT32_MAX, "a number", &ignored));
    else if (kva_ptx_accept(p, ".pragma"))
      KVA_TRY(skip_to(p, ";"));
    else
      return kva_ptx_unexpected(p, "the body of the kernel");
  }
  return KVA_OK;
}

static kva_status parse_kernel(ptx_parser *p) {
  kva_ptx_kernel *k = KVA_NEW(p->arena, kva_ptx_kernel);
  k->module = p->module;
  k->info.line = p->token.line;
  if (p->token.kind != PTX_TOKEN_WORD) return kva_ptx_unexpected(p, "the name of the kernel");
  k->info.name = kva_arena_strndup(p->arena, p->token.text, p->token.n);
  if (kva_ptx_module_get_kernel(p->module, k->info.name)) return PTX_PARSE_ERROR(p, "two kernels '%s'", k->info.name);
  kva_ptx_advance(p);
  ptx_scope scope = {.parent = p->scope};
  p->scope = &scope;
  p->builder = (ptx_builder){.module = p->module, .kernel = k, .diag = p->diag, .arena = p->arena};
  kva_status status = parse_params(p);
  if (status == KVA_OK) status = parse_kernel_directives(p);
  if (status == KVA_OK) status = kva_ptx_parse_body(p);
  p->scope = scope.parent;
  p->builder.kernel = NULL;
  if (status == KVA_OK) KVA_PUSH(p->arena, &p->module->kernels, k);
  return status;
}

/* Skips a function; calls are unsupported. */
static void skip_function(ptx_parser *p) {
  while (more(p) && !kva_ptx_is(p, ";") && !kva_ptx_is(p, "{")) kva_ptx_advance(p);
  if (!kva_ptx_accept(p, ";")) skip_braces(p);
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

static kva_status parse_version(ptx_parser *p) {
  KVA_TRY(kva_ptx_expect(p, ".version"));
  if (p->token.kind != PTX_TOKEN_F64) return kva_ptx_unexpected(p, "a version such as 8.3");
  double v;
  memcpy(&v, &p->token.bits, sizeof v);
  if (!(v >= 3.2 && v < 10))
    return kva_ptx_error_at(p->module, p->diag, KVA_UNSUPPORTED, p->token.line, p->token.column,
                            "PTX version %g; 3.2 to 9.9 are supported", v);
  kva_ptx_advance(p);
  return KVA_OK;
}

static kva_status parse_target(ptx_parser *p) {
  KVA_TRY(kva_ptx_expect(p, ".target"));
  const ptx_token *t = &p->token;
  if (t->kind != PTX_TOKEN_WORD || t->n < 5 || memcmp(t->text, "sm_", 3))
    return kva_ptx_unexpected(p, "a target such as sm_90");
  int sm = 0;
  for (size_t i = 3; i < t->n && i < 7 && t->text[i] >= '0' && t->text[i] <= '9'; i++)
    sm = sm * 10 + (t->text[i] - '0');
  if (sm < 50)
    return kva_ptx_error_at(p->module, p->diag, KVA_UNSUPPORTED, t->line, t->column,
                            "target sm_%d; sm_50 and later are supported", sm);
  kva_ptx_advance(p);
  while (kva_ptx_accept(p, ",")) kva_ptx_advance(p); /* debug, texmode_... */
  return KVA_OK;
}

static kva_status parse_address_size(ptx_parser *p) {
  uint64_t bits = 0;
  KVA_TRY(kva_ptx_parse_uint(p, 64, "an address size", &bits));
  return bits == 64 ? KVA_OK : PTX_PARSE_ERROR(p, "the address size before here is not 64");
}

static kva_status parse_item(ptx_parser *p) {
  bool external = false;
  for (;;) {
    if (kva_ptx_accept(p, ".extern"))
      external = true;
    else if (!kva_ptx_accept(p, ".visible") && !kva_ptx_accept(p, ".weak") && !kva_ptx_accept(p, ".common"))
      break;
  }
  if (kva_ptx_accept(p, ".entry")) return parse_kernel(p);
  if (kva_ptx_is(p, ".global") || kva_ptx_is(p, ".const") || kva_ptx_is(p, ".shared"))
    return kva_ptx_parse_variables(p, external);
  if (kva_ptx_accept(p, ".address_size")) return parse_address_size(p);
  if (kva_ptx_is(p, ".func"))
    skip_function(p);
  else if (kva_ptx_is(p, ".file"))
    kva_ptx_skip_line(p);
  else if (kva_ptx_is(p, ".section")) {
    while (more(p) && !kva_ptx_is(p, "{")) kva_ptx_advance(p);
    skip_braces(p);
  } else if (kva_ptx_is(p, ".pragma"))
    return skip_to(p, ";");
  else
    return kva_ptx_unexpected(p, ".entry or a variable");
  return KVA_OK;
}

static kva_status parse_module(ptx_parser *p) {
  kva_ptx_advance(p);
  KVA_TRY(parse_version(p));
  KVA_TRY(parse_target(p));
  while (p->token.kind != PTX_TOKEN_END) KVA_TRY(parse_item(p));
  return KVA_OK;
}

kva_status kva_ptx_module_create(const char *text, size_t size, const char *name, kva_diag *diag,
                                 kva_ptx_module **out_module) {
  *out_module = NULL;
  if (size > PTX_MAX_TEXT)
    return kva_fail(diag, KVA_UNSUPPORTED, NULL, "%s: more than %d bytes of PTX", name, PTX_MAX_TEXT);
  kva_arena *arena = kva_arena_create();
  kva_ptx_module *m = KVA_NEW(arena, kva_ptx_module);
  m->arena = arena;
  m->name = kva_arena_strdup(arena, name);
  m->text = kva_arena_strndup(arena, text, size);
  ptx_scope scope = {0};
  ptx_parser p = {.module = m, .arena = arena, .diag = diag, .scope = &scope};
  kva_ptx_lex_start(&p.lexer, m->text, size);
  kva_status status = parse_module(&p);
  if (status == KVA_OK)
    *out_module = m;
  else
    kva_ptx_module_destroy(m);
  return status;
}

void kva_ptx_module_destroy(kva_ptx_module *module) {
  if (module) kva_arena_destroy(module->arena);
}

const kva_ptx_kernel *kva_ptx_module_get_kernel(const kva_ptx_module *module, const char *name) {
  for (uint32_t i = 0; i < module->kernels.len; i++)
    if (!strcmp(module->kernels.data[i]->info.name, name)) return module->kernels.data[i];
  return NULL;
}
uint32_t kva_ptx_module_n_kernels(const kva_ptx_module *module) {
  return module->kernels.len;
}
const kva_ptx_kernel *kva_ptx_module_kernel_at(const kva_ptx_module *module, uint32_t i) {
  return i < module->kernels.len ? module->kernels.data[i] : NULL;
}
void *kva_ptx_module_get_global(const kva_ptx_module *module, const char *name, size_t *out_size) {
  for (uint32_t i = 0; i < module->variables.len; i++) {
    const ptx_variable *v = &module->variables.data[i];
    if (strcmp(v->name, name)) continue;
    if (out_size) *out_size = v->size;
    return v->data;
  }
  return NULL;
}
const kva_ptx_kernel_info *kva_ptx_kernel_get_info(const kva_ptx_kernel *kernel) {
  return &kernel->info;
}
