/* `checkpoint` blocks: names of other programs for hyper-parameters and parameters. Every row is an assignment of one
 * call:
 *
 *   d = field("hidden_size")
 *   act = field <of = ["silu", "gelu"]> ("hidden_act")
 *   "attention.*.wq" = transposed <pairs = head> ("blk.*.attn_q.weight") */
#include "frontend/kv_elaborate.h"
#include "ir/names.h"

static const char *keep(kva_elab *e, const char *s) {
  return kva_arena_strdup(e->m->arena, s);
}

/* ---- compile-time values as JSON --------------------------------------------------------------------------------- */

static bool add_json(kva_text *out, const kva_el_value *v) {
  switch (v->kind) {
  case KVA_EL_INT: kva_text_add(out, "%lld", (long long)v->i); return true;
  case KVA_EL_FLOAT: kva_text_add_double(out, v->f); return true;
  case KVA_EL_BOOL: kva_text_add(out, v->i ? "true" : "false"); return true;
  case KVA_EL_STRING: kva_text_add_quoted(out, v->s); return true;
  case KVA_EL_LIST: break;
  default: return false;
  }
  kva_text_add(out, "[");
  for (uint32_t i = 0; i < v->n; i++) {
    if (i) kva_text_add(out, ",");
    if (!add_json(out, &v->items[i])) return false;
  }
  kva_text_add(out, "]");
  return true;
}

/* NULL: a value that JSON has no word for. */
static const char *json_of(kva_elab *e, const kva_el_value *v) {
  kva_text text = {0};
  const char *json = add_json(&text, v) ? keep(e, text.data) : NULL;
  kva_text_free(&text);
  return json;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static bool set_kind(kva_elab *e, const kva_ast_expr *x, kva_naming *row) {
  bool is_call = x->kind == KVA_AST_CALL && !*x->call->domain && x->call->has_operands;
  for (int k = 0; is_call && k < KVA_NAMING_COUNT; k++) {
    if (strcmp(x->call->name, kva_naming_word((kva_naming_kind)k))) continue;
    row->kind = (kva_naming_kind)k;
    return true;
  }
  kva_el_error(e, x->first, "expected field(...), missing(...), tensor(...), transposed(...) or row_norms(...)");
  return false;
}

static bool set_names(kva_elab *e, const kva_ast_expr *x, kva_naming *row) {
  const char **names = KVA_NEW_ARRAY(e->m->arena, const char *, x->items.len + 1);
  for (uint32_t i = 0; i < x->items.len; i++) {
    if (x->items.data[i]->kind != KVA_AST_STRING) {
      kva_el_error(e, x->items.data[i]->first, "expected a name in quotes");
      return false;
    }
    names[i] = keep(e, x->items.data[i]->text);
  }
  row->names = names;
  row->n_names = x->items.len;
  if (x->items.len == 1 || (x->items.len && row->kind == KVA_NAMING_FIELD)) return true;
  kva_el_error(e, x->first, "%s takes %s, found %u", x->call->name,
               row->kind == KVA_NAMING_FIELD ? "names of fields" : "one name of a tensor", x->items.len);
  return false;
}

static bool set_allowed(kva_elab *e, const kva_ast_attr *a, kva_naming *row) {
  kva_el_value list = kva_el_expr(e, a->value);
  if (list.kind == KVA_EL_ERROR) return false;
  row->allowed = KVA_NEW_ARRAY(e->m->arena, const char *, list.n + 1);
  for (uint32_t i = 0; list.kind == KVA_EL_LIST && i < list.n; i++) {
    row->allowed[row->n_allowed] = json_of(e, &list.items[i]);
    if (row->allowed[row->n_allowed]) row->n_allowed++;
  }
  if (list.kind == KVA_EL_LIST && list.n && row->n_allowed == list.n) return true;
  kva_el_error(e, a->value->first, "'of' expects a list of values that the field may have");
  return false;
}

static bool set_pairs(kva_elab *e, const kva_ast_attr *a, kva_naming *row) {
  if (!kva_el_as_int(e, a->value, kva_el_expr(e, a->value), "'pairs'", &row->pairs)) return false;
  if (row->pairs >= 0 && row->pairs % 2 == 0) return true;
  kva_el_error(e, a->value->first, "'pairs' is 0 or the size of a head, which must be even; found %lld",
               (long long)row->pairs);
  return false;
}

static bool set_attrs(kva_elab *e, const kva_ast_expr *x, kva_naming *row) {
  for (uint32_t i = 0; i < x->call->attrs.list.len; i++) {
    const kva_ast_attr *a = &x->call->attrs.list.data[i];
    bool field = row->kind == KVA_NAMING_FIELD, ok;
    bool paired = row->kind == KVA_NAMING_TENSOR || row->kind == KVA_NAMING_TRANSPOSED;
    if (a->value && field && !strcmp(a->name.text, "of"))
      ok = set_allowed(e, a, row);
    else if (a->value && paired && !strcmp(a->name.text, "pairs"))
      ok = set_pairs(e, a, row);
    else
      ok = (kva_el_error(e, a->name.token, "%s has no attribute '%s'", x->call->name, a->name.text), false);
    if (!ok) return false;
  }
  return true;
}

static uint32_t count_stars(const char *s) {
  uint32_t n = 0;
  for (; *s; s++) n += *s == '*';
  return n;
}

/* What the row is for exists: a hyper-parameter, or as many numbers as the tensor's name has. */
static bool check_own(kva_elab *e, const kva_ast_stmt *s, kva_naming *row, bool of_model) {
  uint32_t token = s->targets.data[0].token;
  if (row->kind >= KVA_NAMING_TENSOR) {
    uint32_t own = count_stars(row->own), other = count_stars(row->names[0]);
    if (own == other) return true;
    kva_el_error(e, token, "'%s' has %u of '*', '%s' has %u: each stands for one number in both", row->own, own,
                 row->names[0], other);
    return false;
  }
  const kva_el_value *v = kva_map_get_str(e->hyper, row->own);
  if (v) row->value = json_of(e, v);
  if (v || !of_model || !strcmp(row->own, "_")) return true;
  kva_el_error(e, token, "there is no hyper-parameter '%s'; '_' takes a field that is only checked", row->own);
  return false;
}

static void add_row(kva_elab *e, const kva_ast_stmt *s, kva_names *names, bool of_model) {
  if (s->kind != KVA_AST_ASSIGN || s->targets.len != 1 || s->label.text) {
    kva_el_error(e, s->first, "expected a row such as d = field(\"hidden_size\")");
    return;
  }
  kva_naming row = {.own = keep(e, s->targets.data[0].text), .loc = kva_el_loc(e, s->first)};
  if (!set_kind(e, s->value, &row) || !set_names(e, s->value, &row) || !set_attrs(e, s->value, &row)) return;
  if (!check_own(e, s, &row, of_model)) return;
  for (uint32_t i = 0; i < names->rows.len; i++) {
    if (strcmp(names->rows.data[i].own, row.own) || !strcmp(row.own, "_")) continue;
    kva_el_error(e, s->first, "there is a row for '%s' already", row.own);
  }
  KVA_PUSH(e->m->arena, &names->rows, row);
}

/* ---- the block --------------------------------------------------------------------------------------------------- */

static void add_patterns(kva_elab *e, const kva_ast_attr *a, kva_strs *out) {
  bool ok = a->value && a->value->kind == KVA_AST_LIST;
  for (uint32_t i = 0; ok && i < a->value->items.len; i++) {
    const kva_ast_expr *item = a->value->items.data[i];
    ok = item->kind == KVA_AST_STRING;
    if (ok) KVA_PUSH(e->m->arena, out, keep(e, item->text));
  }
  if (!ok) kva_el_error(e, a->name.token, "'%s' expects a list of names in quotes", a->name.text);
}

void kva_el_names(kva_elab *e, const kva_ast_graph *block, bool of_model) {
  kva_names *names = KVA_NEW(e->m->arena, kva_names);
  *names = (kva_names){.format = keep(e, block->name.text), .loc = kva_el_loc(e, block->first)};
  if (kva_names_find(e->m, names->format))
    kva_el_error(e, block->name.token, "there are two checkpoint blocks '%s'", names->format);
  for (uint32_t i = 0; i < block->attrs.list.len; i++) {
    const kva_ast_attr *a = &block->attrs.list.data[i];
    if (!strcmp(a->name.text, "ignored"))
      add_patterns(e, a, &names->ignored);
    else if (!strcmp(a->name.text, "buffers"))
      add_patterns(e, a, &names->buffers);
    else if (!strcmp(a->name.text, "prefix") && a->value && a->value->kind == KVA_AST_STRING)
      names->prefix = keep(e, a->value->text);
    else
      kva_el_error(
          e, a->name.token,
          "'%s' is no attribute of a checkpoint block: prefix = \"text\", ignored = [names], buffers = [names]",
          a->name.text);
  }
  for (uint32_t i = 0; i < block->body.len; i++) add_row(e, block->body.data[i], names, of_model);
  KVA_PUSH(e->m->arena, &e->m->names, names);
}
