/* The pattern engine: compiles text to patterns, matches patterns, builds nodes from matches.
 *
 * Matching is a backtracking search with an agenda: a list of (pattern, value) goals that must all hold. A goal with
 * several options (commutative operands, alternatives) tries each together with the rest of the agenda, so a later
 * failure revises an earlier choice. Goals live on the C stack; bindings are undone by restoring a mark. */
#include "passes/match.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* Relative. Models store constants such as sqrt(2/pi) in their own precision: numbers that differ by a few units in the
 * last place of float, or of a narrower type, are equal. 1.4142 is not sqrt(2): that would change results beyond
 * rounding. */
#define NUMBER_TOLERANCE 1e-6

typedef enum pattern_kind { PATTERN_VALUE, PATTERN_NUMBER, PATTERN_LITERAL, PATTERN_NODE, PATTERN_ANY_OF } pattern_kind;
typedef enum cast_kind { NO_CAST, CAST_WIDEN, CAST_NARROW } cast_kind;

typedef struct pattern_attr {
  const kva_attr_field *field;
  bool is_literal, trailing; /* literal: a number in the text; else the number in `slot` */
  uint32_t slot;
  double literal;
} pattern_attr;

typedef struct pattern {
  pattern_kind kind;
  uint32_t slot;         /* VALUE, NUMBER */
  double literal;        /* LITERAL */
  const kva_op_info *op; /* NODE */
  cast_kind cast;
  KVA_VEC(struct pattern *) args; /* NODE: operands, ANY_OF: alternatives */
  KVA_VEC(pattern_attr) attrs;
} pattern;

typedef struct rule {
  const kva_rule_text *text;
  pattern *from, *to;
  const char *names[KVA_MATCH_SLOTS];
  struct rule *next; /* next rule with the same root operator, in text order */
} rule;

struct kva_rules {
  rule *by_op[KVA_OP_COUNT];
};

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

typedef struct reader {
  kva_arena *arena;
  const char *at;
  rule *rule;
} reader;

static void skip_space(reader *r) {
  while (isspace((unsigned char)*r->at)) r->at++;
}

static bool accept(reader *r, const char *text) {
  skip_space(r);
  size_t n = strlen(text);
  if (strncmp(r->at, text, n) != 0) return false;
  r->at += n;
  return true;
}

static size_t word_length(const reader *r) {
  size_t n = 0;
  while (isalnum((unsigned char)r->at[n]) || r->at[n] == '_') n++;
  return n;
}

static uint32_t read_slot(reader *r) {
  size_t n = word_length(r);
  KVA_ASSERT(n > 0);
  const char *name = kva_arena_strndup(r->arena, r->at, n);
  r->at += n;
  uint32_t i = 0;
  while (i < KVA_MATCH_SLOTS && r->rule->names[i] && strcmp(r->rule->names[i], name)) i++;
  KVA_ASSERT(i < KVA_MATCH_SLOTS);
  r->rule->names[i] = name;
  return i;
}

static double read_number(reader *r) {
  char *end;
  double v = strtod(r->at, &end);
  KVA_ASSERT(end != r->at);
  r->at = end;
  return v;
}

static void read_attrs(reader *r, pattern *p) {
  if (*r->at != '[') return;
  r->at++;
  while (!accept(r, "]")) {
    pattern_attr a = {0};
    size_t n = word_length(r);
    KVA_ASSERT(p->op->attrs);
    a.field = kva_attrs_find(p->op->attrs, r->at, n);
    KVA_ASSERT(a.field);
    r->at += n;
    KVA_ASSERT(accept(r, "="));
    a.is_literal = !accept(r, "#");
    if (a.is_literal)
      a.literal = read_number(r);
    else
      a.slot = read_slot(r);
    a.trailing = !a.is_literal && accept(r, "..");
    KVA_PUSH(r->arena, &p->attrs, a);
  }
}

static void read_op(reader *r, pattern *p) {
  size_t n = word_length(r);
  if (n == 5 && !strncmp(r->at, "widen", n)) p->cast = CAST_WIDEN;
  if (n == 6 && !strncmp(r->at, "narrow", n)) p->cast = CAST_NARROW;
  p->op = p->cast ? KVA_OP(cast) : kva_op_set_find(&kva_ops, r->at, n);
  KVA_ASSERT(p->op);
  r->at += n;
}

static pattern *read_pattern(reader *r) {
  pattern *p = KVA_NEW(r->arena, pattern);
  if (accept(r, "?")) {
    p->kind = PATTERN_VALUE;
    p->slot = read_slot(r);
  } else if (accept(r, "#")) {
    p->kind = PATTERN_NUMBER;
    p->slot = read_slot(r);
  } else if (accept(r, "{")) {
    p->kind = PATTERN_ANY_OF;
    while (!accept(r, "}")) KVA_PUSH(r->arena, &p->args, read_pattern(r));
  } else if (accept(r, "(")) {
    p->kind = PATTERN_NODE;
    read_op(r, p);
    read_attrs(r, p);
    while (!accept(r, ")")) KVA_PUSH(r->arena, &p->args, read_pattern(r));
  } else {
    p->kind = PATTERN_LITERAL;
    p->literal = read_number(r);
  }
  return p;
}

static pattern *read_all(kva_arena *arena, rule *owner, const char *text) {
  reader r = {arena, text, owner};
  pattern *p = read_pattern(&r);
  skip_space(&r);
  KVA_ASSERT(!*r.at);
  return p;
}

/* Registers the rule under every operator that its root can match. */
static void add_rule(kva_arena *arena, kva_rules *rules, const rule *model, const pattern *root) {
  if (root->kind == PATTERN_ANY_OF) {
    for (uint32_t i = 0; i < root->args.len; i++) add_rule(arena, rules, model, root->args.data[i]);
    return;
  }
  KVA_ASSERT(root->kind == PATTERN_NODE);
  rule *copy = kva_arena_memdup(arena, model, sizeof *model);
  rule **end = &rules->by_op[root->op->id];
  while (*end) end = &(*end)->next;
  *end = copy;
}

kva_rules *kva_rules_compile(kva_arena *arena, uint32_t n, const kva_rule_text *texts) {
  kva_rules *rules = KVA_NEW(arena, kva_rules);
  for (uint32_t i = 0; i < n; i++) {
    rule *r = KVA_NEW(arena, rule);
    r->text = &texts[i];
    r->from = read_all(arena, r, texts[i].from);
    r->to = read_all(arena, r, texts[i].to);
    add_rule(arena, rules, r, r->from);
  }
  return rules;
}

/* ---- matching ---------------------------------------------------------------------------------------------------- */

typedef struct goal {
  const pattern *pattern;
  kva_value *value;
  const struct goal *next;
} goal;

static bool solve(kva_match *m, const goal *g);

static bool solve_rest(kva_match *m, const goal *g) {
  return !g->next || solve(m, g->next);
}

static double tolerance_of(kva_dtype t) {
  if (t == KVA_F16) return 1e-3;
  return t == KVA_BF16 ? 8e-3 : NUMBER_TOLERANCE;
}

bool kva_number_of(const kva_value *v, double *out_x) {
  while (v->def && (kva_is(v->def, KVA_OP_expand) || kva_is(v->def, KVA_OP_reshape))) v = kva_operand(v->def, 0);
  return kva_splat_value(v, out_x);
}

static bool is_literal(const kva_value *v, double want) {
  double x;
  return kva_number_of(v, &x) && fabs(x - want) <= tolerance_of(v->type->dtype) * fabs(want);
}

static bool bind_number(kva_match *m, uint32_t slot, double x) {
  KVA_ASSERT(slot < KVA_MATCH_SLOTS);
  if (m->bound[slot]) return m->numbers[slot] == x;
  m->bound[slot] = true;
  m->numbers[slot] = x;
  return true;
}

static bool bind_value(kva_match *m, uint32_t slot, kva_value *v) {
  KVA_ASSERT(slot < KVA_MATCH_SLOTS && v);
  if (m->bound[slot]) return m->values[slot] == v;
  m->bound[slot] = true;
  m->values[slot] = v;
  return true;
}

/* INTS as the number that a pattern names: a single axis, or the first of the axes up to the last. */
static bool axes_number(kva_ints axes, uint32_t rank, bool trailing, double *out_x) {
  bool has[KVA_MAX_RANK] = {false};
  int64_t first = rank;
  for (uint32_t i = 0; i < axes.n; i++) {
    int64_t axis = axes.v[i] < 0 ? axes.v[i] + rank : axes.v[i];
    has[axis] = true;
    if (axis < first) first = axis;
  }
  for (int64_t k = first; trailing && k < rank; k++)
    if (!has[k]) return false;
  *out_x = (double)first;
  return trailing ? axes.n > 0 : axes.n == 1;
}

static bool attr_number(const kva_node *n, const kva_attr_field *f, bool trailing, double *out_x) {
  const char *at = (const char *)n->attrs + f->offset;
  uint32_t rank = n->n_operands ? kva_operand_type(n, 0)->rank : 0;
  switch (f->kind) {
  case KVA_ATTR_INT: *out_x = (double)*(const int64_t *)at; break;
  case KVA_ATTR_FLOAT: *out_x = *(const double *)at; break;
  case KVA_ATTR_BOOL: *out_x = *(const bool *)at; break;
  case KVA_ATTR_INTS: return axes_number(*(const kva_ints *)at, rank, trailing, out_x);
  default: return false;
  }
  if (*out_x < 0 && !strcmp(f->name, "axis")) *out_x += rank;
  return true;
}

static const pattern_attr *mentioned(const pattern *p, const kva_attr_field *f) {
  for (uint32_t i = 0; i < p->attrs.len; i++)
    if (p->attrs.data[i].field == f) return &p->attrs.data[i];
  return NULL;
}

static bool has_default(const kva_node *n, const kva_attr_field *f) {
  double x, expected = f->default_value;
  if (f->kind == KVA_ATTR_INTS || !attr_number(n, f, false, &x)) return true;
  if (expected < 0 && !strcmp(f->name, "axis")) expected += kva_operand_type(n, 0)->rank;
  return x == expected;
}

static bool match_attrs(kva_match *m, const pattern *p, const kva_node *n) {
  for (uint32_t i = 0; p->op->attrs && i < p->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &p->op->attrs->fields[i];
    const pattern_attr *a = mentioned(p, f);
    double x;
    if (!a) {
      if (!has_default(n, f)) return false;
      continue;
    }
    if (!attr_number(n, f, a->trailing, &x)) return false;
    if (a->is_literal ? x != a->literal : !bind_number(m, a->slot, x)) return false;
  }
  return true;
}

static bool cast_fits(cast_kind kind, const kva_node *n) {
  kva_dtype from = kva_operand_type(n, 0)->dtype, to = n->results[0].type->dtype;
  if (kind == NO_CAST) return true;
  if (!kva_dtype_is_float(from) || !kva_dtype_is_float(to)) return false;
  int grows = kva_dtype_bits(to) - kva_dtype_bits(from);
  return kind == CAST_WIDEN ? grows > 0 : grows < 0;
}

static bool solve_operands(kva_match *m, const goal *g, const kva_node *n, uint32_t count, bool swapped) {
  goal goals[8];
  for (uint32_t i = 0; i < count; i++) {
    kva_value *v = kva_operand(n, swapped ? 1 - i : i);
    goals[i] = (goal){g->pattern->args.data[i], v, i + 1 < count ? &goals[i + 1] : g->next};
  }
  return count ? solve(m, goals) : solve_rest(m, g);
}

static uint32_t present_operands(const kva_node *n) {
  uint32_t count = n->n_operands;
  while (count && !kva_operand(n, count - 1)) count--;
  return count;
}

static bool solve_node(kva_match *m, const goal *g) {
  const pattern *p = g->pattern;
  kva_node *n = g->value->def;
  if (!n || n->op != p->op || g->value->index != 0 || m->n_nodes == KVA_MATCH_NODES) return false;
  uint32_t count = present_operands(n);
  KVA_ASSERT(p->args.len <= 8);
  if (count != p->args.len || (p->cast && !cast_fits(p->cast, n))) return false;
  for (uint32_t i = 0; i < count; i++)
    if (!kva_operand(n, i)) return false;
  kva_match saved = *m;
  m->nodes[m->n_nodes++] = n;
  if ((p->cast || match_attrs(m, p, n)) && solve_operands(m, g, n, count, false)) return true;
  *m = saved;
  if (!(n->op->traits & KVA_COMMUTATIVE) || count != 2) return false;
  m->nodes[m->n_nodes++] = n;
  if (match_attrs(m, p, n) && solve_operands(m, g, n, count, true)) return true;
  *m = saved;
  return false;
}

static bool solve_any(kva_match *m, const goal *g) {
  for (uint32_t i = 0; i < g->pattern->args.len; i++)
    if (solve(m, &(goal){g->pattern->args.data[i], g->value, g->next})) return true;
  return false;
}

/* Whether all goals of the agenda hold. On success m has the bindings, else it is unchanged. */
static bool solve(kva_match *m, const goal *g) {
  const pattern *p = g->pattern;
  double x;
  if (p->kind == PATTERN_NODE) return solve_node(m, g);
  if (p->kind == PATTERN_ANY_OF) return solve_any(m, g);
  if (p->kind == PATTERN_LITERAL) return is_literal(g->value, p->literal) && solve_rest(m, g);
  bool was_bound = m->bound[p->slot];
  bool fits = p->kind == PATTERN_VALUE ? bind_value(m, p->slot, g->value)
                                       : kva_number_of(g->value, &x) && bind_number(m, p->slot, x);
  if (fits && solve_rest(m, g)) return true;
  m->bound[p->slot] = was_bound;
  return false;
}

static bool is_inside(const kva_match *m, const kva_node *n) {
  for (uint32_t i = 0; i < m->n_nodes; i++)
    if (m->nodes[i] == n) return true;
  return false;
}

static bool is_exclusive(const kva_match *m) {
  for (uint32_t i = 0; i < m->n_nodes; i++) {
    kva_node *n = m->nodes[i];
    if (n == m->root || n->op->traits & KVA_CHEAP) continue;
    for (uint32_t r = 0; r < n->n_results; r++)
      for (const kva_use *u = n->results[r].uses; u; u = u->next)
        if (!is_inside(m, u->user)) return false;
  }
  return true;
}

/* ---- building ---------------------------------------------------------------------------------------------------- */

static void set_attr(kva_builder *b, char *attrs, const kva_attr_field *f, double x, uint32_t rank) {
  void *at = attrs + f->offset;
  switch (f->kind) {
  case KVA_ATTR_INT: *(int64_t *)at = (int64_t)x; break;
  case KVA_ATTR_FLOAT: *(double *)at = x; break;
  case KVA_ATTR_BOOL: *(bool *)at = x != 0; break;
  default: {
    KVA_ASSERT(f->kind == KVA_ATTR_INTS);
    int64_t *axes = KVA_NEW_ARRAY(b->m->arena, int64_t, rank);
    kva_ints list = {0, axes};
    for (int64_t k = (int64_t)x; k < rank; k++) axes[list.n++] = k;
    *(kva_ints *)at = list;
  }
  }
}

static kva_value *build(kva_builder *b, const kva_match *m, const pattern *p) {
  if (p->kind == PATTERN_LITERAL) return kva_const_scalar(b, m->root->results[0].type->dtype, p->literal);
  if (p->kind == PATTERN_VALUE) return m->values[p->slot];
  KVA_ASSERT(p->kind == PATTERN_NODE && p->args.len <= 8);
  kva_value *operands[8];
  for (uint32_t i = 0; i < p->args.len; i++) operands[i] = build(b, m, p->args.data[i]);
  char *attrs = p->op->attrs ? kva_attrs_default(b->m->arena, p->op->attrs) : NULL;
  for (uint32_t i = 0; i < p->attrs.len; i++) {
    const pattern_attr *a = &p->attrs.data[i];
    uint32_t last = a->trailing ? operands[0]->type->rank : (uint32_t)m->numbers[a->slot] + 1;
    set_attr(b, attrs, a->field, a->is_literal ? a->literal : m->numbers[a->slot], last);
  }
  return kva_build(b, (kva_op_id)p->op->id, p->args.len, operands, attrs);
}

kva_attempt kva_attempt_begin(kva_builder *b) {
  kva_attempt attempt = {b->before->prev, b->m->diag};
  b->m->diag = kva_diag_create();
  return attempt;
}

kva_value *kva_attempt_end(kva_builder *b, kva_attempt attempt, kva_value *v) {
  bool fits = v && !b->failed && v->type == b->before->results[0].type;
  kva_diag_destroy(b->m->diag);
  b->m->diag = attempt.shown;
  b->failed = false;
  for (kva_node *n = b->before->prev, *prev; !fits && n != attempt.last; n = prev) {
    prev = n->prev;
    kva_node_remove(n);
  }
  return fits ? v : NULL;
}

kva_value *kva_rules_apply(const kva_rules *rules, kva_builder *b, const char **out_rule) {
  kva_node *root = b->before;
  for (const rule *r = rules->by_op[root->op->id]; r; r = r->next) {
    kva_match m = {.names = r->names, .root = root};
    if (!solve(&m, &(goal){r->from, &root->results[0], NULL}) || !is_exclusive(&m)) continue;
    if (r->text->condition && !r->text->condition(&m)) continue;
    kva_attempt attempt = kva_attempt_begin(b);
    kva_value *v = kva_attempt_end(b, attempt, build(b, &m, r->to));
    if (!v) continue;
    if (out_rule) *out_rule = r->text->name;
    return v;
  }
  return NULL;
}

static uint32_t slot_named(const kva_match *m, const char *name) {
  uint32_t i = 0;
  while (i < KVA_MATCH_SLOTS && m->names[i] && strcmp(m->names[i], name)) i++;
  KVA_ASSERT(i < KVA_MATCH_SLOTS && m->bound[i]);
  return i;
}

kva_value *kva_match_value(const kva_match *m, const char *name) {
  return m->values[slot_named(m, name)];
}
double kva_match_number(const kva_match *m, const char *name) {
  return m->numbers[slot_named(m, name)];
}
