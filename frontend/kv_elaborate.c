/* From a text to a module: classifies the items of the file and elaborates them.
 *
 *   a `model`            becomes the function "main", its `train` block the function "loss" and the train spec
 *   the first graph      of a file without a model becomes "main" (ONNX text), or keeps its name (a dump)
 *   other graphs         are functions of the module if they end with a return (a dump), else ONNX functions, which are
 *                        inlined at their calls
 *   def                  is inlined at its calls
 *   checkpoint           is a table of the module */
#include "frontend/kv_elaborate.h"
#include "frontend/onnx_strings.h"

typedef struct file_items {
  const kva_ast_graph *model, *train;
  KVA_VEC(const kva_ast_graph *) names;
  KVA_VEC(const kva_ast_graph *) graphs; /* functions of the module, the main one first */
} file_items;

static bool ends_with_return(const kva_ast_graph *g) {
  return g->body.len && g->body.data[g->body.len - 1]->kind == KVA_AST_RETURN;
}

static const char *header_text(const kva_ast_header *h, const char *key) {
  for (uint32_t i = 0; i < h->entries.len; i++) {
    const kva_ast_header_entry *entry = &h->entries.data[i];
    if (!strcmp(entry->key.text, key) && entry->value && entry->value->kind == KVA_AST_STRING)
      return entry->value->text;
  }
  return "";
}

static void add_function(kva_elab *e, const kva_ast_graph *g, const char *key) {
  if (kva_map_get_str(e->functions, key)) {
    kva_el_error(e, g->name.token, "there are two functions called '%s'", g->name.text);
  }
  kva_map_set_str(e->functions, key, (void *)g);
}

static void add_onnx_function(kva_elab *e, const kva_ast_graph *g) {
  const char *domain = header_text(&g->header, "domain"), *overload = header_text(&g->header, "overload");
  const char *key = kva_arena_printf(e->scratch, "%s:%s", strcmp(domain, "ai.onnx") ? domain : "", g->name.text);
  if (*overload) key = kva_arena_printf(e->scratch, "%s:%s", key, overload);
  add_function(e, g, key);
}

static void add_only(kva_elab *e, const kva_ast_graph *g, const kva_ast_graph **slot, const char *what) {
  if (*slot)
    kva_el_error(e, g->first, "a file has one %s; this is the second", what);
  else
    *slot = g;
}

static void add_graph(kva_elab *e, file_items *items, const kva_ast_graph *g) {
  switch (g->kind) {
  case KVA_AST_MODEL: add_only(e, g, &items->model, "model"); break;
  case KVA_AST_TRAIN: add_only(e, g, &items->train, "train block"); break;
  case KVA_AST_NAMES: KVA_PUSH(e->scratch, &items->names, g); break;
  case KVA_AST_DEF: add_function(e, g, g->name.text); break;
  default:
    if (!items->graphs.len || ends_with_return(g))
      KVA_PUSH(e->scratch, &items->graphs, g);
    else
      add_onnx_function(e, g);
  }
}

static void elaborate_graph(kva_elab *e, const kva_ast_graph *g, const char *name) {
  if (kva_module_find_function(e->m, name)) {
    kva_el_error(e, g->name.token, "there are two functions called '%s'", name);
  }
  e->frame = NULL;
  kva_el_push_frame(e, true)->opset = kva_el_opset(&g->header, KVA_ONNX_NEWEST_OPSET);
  kva_el_function(e, name, g);
}

static void elaborate_model(kva_elab *e, const file_items *items) {
  e->m->name = kva_arena_strdup(e->m->arena, items->model->name.text);
  elaborate_graph(e, items->model, "main");
  if (!items->train || kva_diag_errors(e->m->diag) != e->errors_before) return;
  if (strcmp(items->train->name.text ? items->train->name.text : "", items->model->name.text)) {
    kva_el_error(e, items->train->name.token, "this trains '%s', but the model is '%s'",
                 items->train->name.text ? items->train->name.text : "", items->model->name.text);
    return;
  }
  kva_el_train(e, items->train, items->model);
}

static void elaborate_graphs(kva_elab *e, const file_items *items) {
  const kva_ast_graph *first = items->graphs.data[0];
  bool is_dump = ends_with_return(first);
  if (!is_dump) e->m->name = kva_arena_strdup(e->m->arena, first->name.text);
  for (uint32_t i = 0; i < items->graphs.len; i++) {
    const kva_ast_graph *g = items->graphs.data[i];
    elaborate_graph(e, g, i || is_dump ? g->name.text : "main");
  }
  if (items->train) kva_el_train(e, items->train, NULL);
}

static void check_mixture(kva_elab *e, const file_items *items) {
  if (!items->model && !items->graphs.len) {
    kva_el_error(e, 0, "there is no model in this file: expected `model name <...> (...) => (...) { ... }` or a graph");
  } else if (items->model && items->graphs.len) {
    kva_el_error(e, items->graphs.data[0]->name.token,
                 "a file with a model has no other graph; a function is written `def %s (...) { ... }`",
                 items->graphs.data[0]->name.text);
  }
}

static void elaborate_items(kva_elab *e) {
  file_items items = {0};
  for (uint32_t i = 0; i < e->ast->items.len; i++) {
    const kva_ast_item *item = &e->ast->items.data[i];
    if (item->graph) add_graph(e, &items, item->graph);
    if (item->module) e->m->name = kva_arena_strdup(e->m->arena, item->module->text);
  }
  check_mixture(e, &items);
  kva_el_hyper_parameters(e, items.model, items.model ? items.train : NULL);
  kva_el_states(e);
  for (uint32_t i = 0; i < items.names.len; i++) kva_el_names(e, items.names.data[i], items.model != NULL);
  if (kva_diag_errors(e->m->diag) != e->errors_before) return;
  if (items.model)
    elaborate_model(e, &items);
  else
    elaborate_graphs(e, &items);
  kva_el_check_pins(e);
}

/* Names that occur more than once: all that are read, and some others. */
static const kva_map *names_read(const kva_tokens *t, kva_arena *arena) {
  kva_map *found = kva_map_create(arena), *read = kva_map_create(arena);
  for (uint32_t i = 0; i < t->token.len; i++) {
    const char *name = t->token.data[i].text;
    if (name) kva_map_set_str(kva_map_get_str(found, name) ? read : found, name, found);
  }
  return read;
}

/* Returns KVA_UNSUPPORTED if all errors are about unsupported constructs. */
static kva_status elaborate(kva_module *m, const kva_ast *ast, const kva_load_options *options, kva_arena *scratch) {
  kva_elab e = {.scratch = scratch, .m = m, .options = options, .ast = ast, .errors_before = kva_diag_errors(m->diag)};
  e.onnx = (kva_onnx_ctx){.b = {.m = m}, .diag = m->diag, .arena = scratch, .opset = KVA_ONNX_NEWEST_OPSET};
  e.onnx.contents = kva_map_create(scratch);
  if (options && options->inference) e.onnx.read = names_read(&ast->tokens, scratch);
  e.hyper = kva_map_create(scratch);
  e.symbols = kva_map_create(scratch);
  e.functions = kva_map_create(scratch);
  e.no_decay = kva_map_create(scratch);
  e.states = kva_map_create(scratch);
  elaborate_items(&e);
  size_t errors = kva_diag_errors(m->diag) - e.errors_before;
  if (errors) return errors == e.unsupported ? KVA_UNSUPPORTED : KVA_INVALID;
  for (uint32_t i = 0; i < m->functions.len; i++) KVA_TRY(kva_strings_lower(m, m->functions.data[i]));
  return kva_module_verify(m);
}

kva_status kva_load_text(const char *text, const char *file, const kva_load_options *options, kva_diag *diag,
                         kva_module **out_module) {
  *out_module = NULL;
  kva_module *m = kva_module_create(diag);
  kva_arena *scratch = kva_arena_create();
  const char *name = kva_arena_strdup(m->arena, file), *source = kva_arena_strdup(m->arena, text);
  kva_ast ast;
  kva_status status = KVA_INVALID;
  if (kva_parse_text(scratch, diag, name, source, &ast)) status = elaborate(m, &ast, options, scratch);
  kva_arena_destroy(scratch);
  if (status == KVA_OK)
    *out_module = m;
  else
    kva_module_destroy(m);
  return status;
}
