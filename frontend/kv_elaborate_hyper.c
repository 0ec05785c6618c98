/* Hyper-parameters and pins, which the command line may change. A value comes from -D name=value, else from the preset,
 * else from the default, which may use earlier hyper-parameters. It has the kind of its annotation, else of its
 * default. */
#include "frontend/kv_elaborate.h"

#include <errno.h>
#include <stdlib.h>

typedef struct hyper {
  kva_elab *e;
  const kva_ast_graph *graphs[2]; /* model and train block; NULL: none */
  const kva_ast_preset *preset;
} hyper;

static const char *define_of(const kva_elab *e, const char *name) {
  const char *value = NULL;
  for (uint32_t i = 0; e->options && i < e->options->n_defines; i++) {
    if (!strcmp(e->options->defines[i].name, name)) value = e->options->defines[i].value; /* the last definition wins */
  }
  return value;
}

/* ---- values from the command line -------------------------------------------------------------------------------- */

static bool parse_int(const char *s, int64_t *out) {
  char *end;
  errno = 0;
  *out = strtoll(s, &end, 10);
  return end != s && !*end && !errno;
}

static bool parse_float(const char *s, double *out) {
  char *end;
  *out = strtod(s, &end);
  return end != s && !*end;
}

static bool parse_bool(const char *s, bool *out) {
  *out = !strcmp(s, "true") || !strcmp(s, "1");
  return *out || !strcmp(s, "false") || !strcmp(s, "0");
}

/* "[1, 2]": integers. */
static bool parse_list(kva_elab *e, const char *s, kva_el_value *out) {
  KVA_VEC(kva_el_value) items = {0};
  if (*s++ != '[') return false;
  while (*s == ' ') s++;
  while (*s != ']') {
    char *end;
    errno = 0;
    int64_t v = strtoll(s, &end, 10);
    if (end == s || errno) return false;
    KVA_PUSH(e->m->arena, &items, kva_el_int(e, v));
    s = end + strspn(end, " ");
    if (*s != ',' && *s != ']') return false;
    s += *s == ',';
  }
  *out = (kva_el_value){.kind = KVA_EL_LIST, .n = items.len, .items = items.data};
  return !s[1];
}

static bool parse_as(kva_elab *e, kva_el_kind kind, const char *s, kva_el_value *out) {
  int64_t i;
  double f;
  bool b;
  switch (kind) {
  case KVA_EL_INT: return parse_int(s, &i) && (*out = kva_el_int(e, i), true);
  case KVA_EL_FLOAT: return parse_float(s, &f) && (*out = kva_el_float(f), true);
  case KVA_EL_BOOL: return parse_bool(s, &b) && (*out = kva_el_bool(b), true);
  case KVA_EL_LIST: return parse_list(e, s, out);
  default: *out = (kva_el_value){.kind = KVA_EL_STRING, .s = kva_arena_strdup(e->m->arena, s)}; return true;
  }
}

/* Without a default the text determines the kind. */
static kva_el_value guess(kva_elab *e, const char *s) {
  kva_el_value v;
  for (kva_el_kind kind = KVA_EL_INT; kind < KVA_EL_STRING; kind++) {
    if ((kind != KVA_EL_BOOL || strlen(s) > 1) && parse_as(e, kind, s, &v)) return v;
  }
  parse_as(e, KVA_EL_STRING, s, &v);
  return v;
}

/* ---- one hyper-parameter ----------------------------------------------------------------------------------------- */

static const kva_ast_attr *preset_attr(const hyper *h, const char *name) {
  for (uint32_t i = 0; h->preset && i < h->preset->attrs.list.len; i++) {
    const kva_ast_attr *a = &h->preset->attrs.list.data[i];
    if (!strcmp(a->name.text, name)) return a;
  }
  return NULL;
}

static bool is_hyper_value(const kva_el_value *v) {
  for (uint32_t i = 0; v->kind == KVA_EL_LIST && i < v->n; i++)
    if (v->items[i].kind != KVA_EL_INT) return false;
  return v->kind == KVA_EL_INT || v->kind == KVA_EL_FLOAT || v->kind == KVA_EL_BOOL || v->kind == KVA_EL_STRING ||
         v->kind == KVA_EL_LIST;
}

static kva_el_value default_value(kva_elab *e, const kva_ast_attr *a) {
  if (!a->value) return (kva_el_value){.kind = KVA_EL_NOTHING};
  kva_el_value v = kva_el_expr(e, a->value);
  if (v.kind == KVA_EL_ERROR || is_hyper_value(&v)) return v;
  return kva_el_error(e, a->value->first,
                      "a hyper-parameter is an integer, a float, a bool, a string or a list of integers, not %s",
                      kva_el_kind_name(&v));
}

/* The words of `head: int = d / heads`. */
static const char *const annotations[] = {[KVA_EL_INT] = "int",
                                          [KVA_EL_FLOAT] = "float",
                                          [KVA_EL_BOOL] = "bool",
                                          [KVA_EL_STRING] = "string",
                                          [KVA_EL_LIST] = "list"};
enum { N_ANNOTATIONS = sizeof annotations / sizeof *annotations };

/* Of values: what the annotation says, else the kind of the default. */
static kva_el_kind kind_of(const kva_ast_attr *a, kva_el_kind otherwise) {
  for (int kind = 0; a->type && kind < N_ANNOTATIONS; kind++)
    if (annotations[kind] && !strcmp(annotations[kind], a->type)) return (kva_el_kind)kind;
  return otherwise;
}

static const char *kind_name(kva_el_kind kind) {
  return kva_el_kind_name(&(kva_el_value){.kind = kind});
}

static kva_el_value from_preset(kva_elab *e, const kva_ast_attr *a, const char *name, kva_el_kind kind) {
  kva_el_value v = default_value(e, a);
  if (v.kind == kind || v.kind == KVA_EL_ERROR || kind == KVA_EL_NOTHING) return v;
  if (v.kind == KVA_EL_INT && kind == KVA_EL_FLOAT) return kva_el_float(v.f);
  return kva_el_error(e, a->name.token, "the hyper-parameter '%s' is %s; the preset makes it %s", name, kind_name(kind),
                      kind_name(v.kind));
}

static kva_el_value check_annotation(kva_elab *e, const kva_ast_attr *a, kva_el_value v) {
  if (!a->type || v.kind == KVA_EL_ERROR || !strcmp(annotations[v.kind], a->type)) return v;
  if (v.kind == KVA_EL_INT && !strcmp(a->type, "float")) return kva_el_float(v.f);
  if (v.kind != KVA_EL_FLOAT) {
    return kva_el_error(e, a->name.token, "the hyper-parameter '%s' must be of type %s, found %s", a->name.text,
                        a->type, kind_name(v.kind));
  }
  return kva_el_error(e, a->name.token, "the hyper-parameter '%s' must be of type %s, found %.10g", a->name.text,
                      a->type, v.f);
}

static kva_el_value chosen_value(const hyper *h, const kva_ast_attr *a) {
  kva_elab *e = h->e;
  const char *name = a->name.text, *given = define_of(e, name);
  const kva_ast_attr *preset = preset_attr(h, name);
  kva_el_value v = default_value(e, a), defined;
  if (v.kind == KVA_EL_ERROR) return v;
  kva_el_kind kind = kind_of(a, v.kind);
  if (!given && preset) return from_preset(e, preset, name, kind);
  if (!given && v.kind == KVA_EL_NOTHING) {
    return kva_el_error(e, a->name.token, "the hyper-parameter '%s' has no default: give it with -D %s=...", name,
                        name);
  }
  if (!given) return v;
  if (kind == KVA_EL_NOTHING) return guess(e, given);
  if (parse_as(e, kind, given, &defined)) return defined;
  return kva_el_error(e, a->name.token, "the hyper-parameter '%s' is %s; '-D %s=%s' is not", name, kind_name(kind),
                      name, given);
}

static kva_el_value hyper_value(const hyper *h, const kva_ast_attr *a) {
  return check_annotation(h->e, a, chosen_value(h, a));
}

/* ---- the list of hyper-parameters -------------------------------------------------------------------------------- */

static bool is_known(const hyper *h, const char *name) {
  for (int g = 0; g < 2; g++) {
    for (uint32_t i = 0; h->graphs[g] && i < h->graphs[g]->attrs.list.len; i++) {
      if (!strcmp(h->graphs[g]->attrs.list.data[i].name.text, name)) return true;
    }
  }
  return false;
}

static const char *known_names(const hyper *h) {
  kva_arena *a = h->e->scratch;
  const char *list = "";
  for (int g = 0; g < 2; g++) {
    for (uint32_t i = 0; h->graphs[g] && i < h->graphs[g]->attrs.list.len; i++) {
      list = kva_arena_printf(a, "%s%s%s", list, *list ? ", " : "", h->graphs[g]->attrs.list.data[i].name.text);
    }
  }
  return *list ? list : "none";
}

static const char *preset_names(const kva_elab *e) {
  const char *list = "";
  for (uint32_t i = 0; i < e->ast->items.len; i++) {
    const kva_ast_preset *p = e->ast->items.data[i].preset;
    if (p) list = kva_arena_printf(e->scratch, "%s%s%s", list, *list ? ", " : "", p->name.text);
  }
  return list;
}

static const kva_ast_preset *find_preset(const kva_elab *e, const char *name) {
  for (uint32_t i = 0; i < e->ast->items.len; i++) {
    const kva_ast_preset *p = e->ast->items.data[i].preset;
    if (p && !strcmp(p->name.text, name)) return p;
  }
  return NULL;
}

static void choose_preset(hyper *h) {
  kva_elab *e = h->e;
  const char *name = is_known(h, "preset") ? NULL : define_of(e, "preset");
  if (!name) return;
  const char *known = preset_names(e);
  h->preset = find_preset(e, name);
  if (!h->preset && *known) {
    kva_error(e->m->diag, &(kva_loc){.file = e->ast->tokens.file}, "there is no preset '%s'; the presets are %s", name,
              known);
  }
}

static void check_presets(const hyper *h) {
  kva_elab *e = h->e;
  kva_map *seen = kva_map_create(e->scratch);
  for (uint32_t i = 0; i < e->ast->items.len; i++) {
    const kva_ast_preset *p = e->ast->items.data[i].preset;
    if (!p) continue;
    if (kva_map_get_str(seen, p->name.text))
      kva_el_error(e, p->name.token, "there are two presets called '%s'", p->name.text);
    kva_map_set_str(seen, p->name.text, e);
    for (uint32_t k = 0; k < p->attrs.list.len; k++) {
      const kva_ast_name *name = &p->attrs.list.data[k].name;
      if (is_known(h, name->text)) continue;
      kva_el_error(e, name->token, "there is no hyper-parameter '%s'; the hyper-parameters are: %s", name->text,
                   known_names(h));
    }
  }
}

static void check_defines(const hyper *h) {
  kva_elab *e = h->e;
  for (uint32_t i = 0; e->options && i < e->options->n_defines; i++) {
    const char *name = e->options->defines[i].name;
    if (is_known(h, name) || (!strcmp(name, "preset") && *preset_names(e))) continue;
    kva_error(e->m->diag, &(kva_loc){.file = e->ast->tokens.file},
              "there is no hyper-parameter '%s'; the hyper-parameters are: %s", name, known_names(h));
  }
}

void kva_el_hyper_parameters(kva_elab *e, const kva_ast_graph *model, const kva_ast_graph *train) {
  hyper h = {.e = e, .graphs = {model, train}};
  check_defines(&h);
  check_presets(&h);
  choose_preset(&h);
  for (int g = 0; g < 2; g++) {
    for (uint32_t i = 0; h.graphs[g] && i < h.graphs[g]->attrs.list.len; i++) {
      const kva_ast_attr *a = &h.graphs[g]->attrs.list.data[i];
      if (kva_map_get_str(e->hyper, a->name.text)) {
        kva_el_error(e, a->name.token, "there are two hyper-parameters called '%s'", a->name.text);
        continue;
      }
      kva_el_value v = hyper_value(&h, a);
      kva_map_set_str(e->hyper, a->name.text, kva_arena_memdup(e->scratch, &v, sizeof v));
    }
  }
}

/* ---- pins -------------------------------------------------------------------------------------------------------- */

static const char *symbol_names(const kva_elab *e) {
  const char *list = "";
  for (uint32_t i = 0; i < kva_map_len(e->symbols); i++) {
    size_t n;
    const char *name = kva_map_key_at(e->symbols, i, &n);
    list = kva_arena_printf(e->scratch, "%s%s%.*s", list, *list ? ", " : "", (int)n, name);
  }
  return *list ? list : "none";
}

void kva_el_check_pins(kva_elab *e) {
  for (uint32_t i = 0; e->options && i < e->options->n_pins; i++) {
    const kva_define *pin = &e->options->pins[i];
    int64_t v;
    kva_loc loc = {.file = e->ast->tokens.file};
    if (!parse_int(pin->value, &v) || v < 0) {
      kva_error(e->m->diag, &loc, "the pin %s=%s is not an extent", pin->name, pin->value);
    } else if (!kva_map_get_str(e->symbols, pin->name)) {
      kva_error(e->m->diag, &loc, "there is no shape symbol '%s' to pin; the symbols are: %s", pin->name,
                symbol_names(e));
    }
  }
}
