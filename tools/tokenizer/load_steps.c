/* Normalizers and pre-tokenizers of tokenizer.json as lists of steps. */
#include "tools/tokenizer/load.h"

/* GPT-2's pattern, which ByteLevel implies. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char punctuation[] = "[\\p{P}!-/:-@\\[-`{-~]";
enum { MAX_NESTED = 16 };

static kva_status add_step(const kva_loader *l, kva_text_steps *to, kva_text_step s) {
  KVA_PUSH(l->t->arena, to, s);
  return KVA_OK;
}

static kva_status compile(const kva_loader *l, const char *pattern, size_t size, kva_regex **out) {
  return kva_regex_compile(pattern, size, l->t->arena, &l->loc, l->diag, out);
}

static kva_status split_by(const kva_loader *l, const char *pattern, kva_split_behavior behavior, bool invert,
                           kva_text_steps *to) {
  kva_text_step s = {.kind = KVA_TEXT_SPLIT, .behavior = behavior, .invert = invert};
  KVA_TRY(compile(l, pattern, strlen(pattern), &s.regex));
  return add_step(l, to, s);
}

/* {"String": ...} or {"Regex": ...} */
static kva_status take_pattern(const kva_loader *l, const json_t *v, kva_text_step *out) {
  const json_t *p = json_object_get(v, "pattern"), *text = json_object_get(p, "String");
  const json_t *regex = json_object_get(p, "Regex");
  if (json_is_string(text) && json_string_length(text)) {
    out->from = kva_json_text(l, text);
    return KVA_OK;
  }
  if (text || !json_is_string(regex))
    return kva_json_wrong(l, "pattern", "{\"String\": ...} that is not empty, or {\"Regex\": ...}");
  return compile(l, json_string_value(regex), json_string_length(regex), &out->regex);
}

static kva_status take_behavior(const kva_loader *l, const json_t *v, kva_split_behavior *out) {
  static const char *const names[KVA_SPLIT_BEHAVIORS] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                         "Contiguous"};
  const json_t *m = json_object_get(v, "behavior");
  for (int i = 0; i < KVA_SPLIT_BEHAVIORS; i++) {
    if (!kva_json_is(m, names[i])) continue;
    *out = (kva_split_behavior)i;
    return KVA_OK;
  }
  return kva_json_wrong(l, "behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

/* ---- pre-tokenizers ---------------------------------------------------------------------------------------------- */

static kva_status byte_level(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  if (kva_json_flag(v, "add_prefix_space", true))
    KVA_TRY(add_step(l, to, (kva_text_step){.kind = KVA_TEXT_PREFIX, .to = {" ", 1}, .unless_there = true}));
  if (kva_json_flag(v, "use_regex", true)) KVA_TRY(split_by(l, gpt2_pattern, KVA_SPLIT_ISOLATED, false, to));
  return add_step(l, to, (kva_text_step){.kind = KVA_TEXT_BYTE_CHARS});
}

static kva_status split_step(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  kva_text_step s = {.kind = KVA_TEXT_SPLIT, .invert = kva_json_flag(v, "invert", false)};
  KVA_TRY(take_behavior(l, v, &s.behavior));
  KVA_TRY(take_pattern(l, v, &s));
  return add_step(l, to, s);
}

/* Replaces spaces by `replacement`, which also begins every word. */
static kva_status metaspace(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  kva_bytes mark = {NULL, 0};
  const json_t *scheme = json_object_get(v, "prepend_scheme");
  KVA_TRY(kva_json_bytes(l, v, "replacement", &mark));
  if (!mark.size) return kva_json_wrong(l, "Metaspace", "a replacement that is not empty");
  bool never = kva_json_is(scheme, "never") || (!scheme && !kva_json_flag(v, "add_prefix_space", true));
  kva_text_step prefix = {.kind = KVA_TEXT_PREFIX, .to = mark, .unless_there = true};
  prefix.only_first = kva_json_is(scheme, "first");
  KVA_TRY(add_step(l, to, (kva_text_step){.kind = KVA_TEXT_REPLACE, .from = {" ", 1}, .to = mark}));
  if (!never) KVA_TRY(add_step(l, to, prefix));
  if (!kva_json_flag(v, "split", true)) return KVA_OK;
  return add_step(l, to, (kva_text_step){.kind = KVA_TEXT_SPLIT, .from = mark, .behavior = KVA_SPLIT_MERGED_WITH_NEXT});
}

/* Joiners are of words here: the reference has this pattern in another library than those of files. */
static kva_status words(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  (void)v;
  return split_by(l, "[\\w\\x{200C}\\x{200D}]+|[^\\w\\s\\x{200C}\\x{200D}]+", KVA_SPLIT_REMOVED, true, to);
}

static kva_status at_spaces(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  (void)v;
  return split_by(l, "\\s+", KVA_SPLIT_REMOVED, false, to);
}

static kva_status digits(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  bool single = kva_json_flag(v, "individual_digits", false);
  return split_by(l, "\\p{N}", single ? KVA_SPLIT_ISOLATED : KVA_SPLIT_CONTIGUOUS, false, to);
}

static kva_status bert(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  KVA_TRY(at_spaces(l, v, to));
  return split_by(l, punctuation, KVA_SPLIT_ISOLATED, false, to);
}

static kva_status at_punctuation(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  kva_split_behavior behavior = KVA_SPLIT_ISOLATED;
  if (json_object_get(v, "behavior")) KVA_TRY(take_behavior(l, v, &behavior));
  return split_by(l, punctuation, behavior, false, to);
}

/* ---- normalizers ------------------------------------------------------------------------------------------------- */

static kva_status prepend(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  kva_text_step s = {.kind = KVA_TEXT_PREFIX};
  KVA_TRY(kva_json_bytes(l, v, "prepend", &s.to));
  return add_step(l, to, s);
}

static kva_status replacement(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  kva_text_step s = {.kind = KVA_TEXT_REPLACE};
  KVA_TRY(kva_json_bytes(l, v, "content", &s.to));
  KVA_TRY(take_pattern(l, v, &s));
  return add_step(l, to, s);
}

static kva_status strip(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  return add_step(l, to,
                  (kva_text_step){.kind = KVA_TEXT_STRIP,
                                  .strip_left = kva_json_flag(v, "strip_left", true),
                                  .strip_right = kva_json_flag(v, "strip_right", true)});
}

static kva_status map_by(const kva_loader *l, kva_char_map map, kva_text_steps *to) {
  return add_step(l, to, (kva_text_step){.kind = KVA_TEXT_MAP, .map = map});
}

static kva_status lower_case(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  (void)v;
  return map_by(l, kva_char_lower, to);
}

static kva_status without_marks(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  (void)v;
  return map_by(l, kva_char_without_marks, to);
}

static kva_status bert_text(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  bool lower = kva_json_flag(v, "lowercase", true), strip_accents = kva_json_flag(v, "strip_accents", lower);
  if (kva_json_flag(v, "clean_text", true)) KVA_TRY(map_by(l, kva_char_without_controls, to));
  if (kva_json_flag(v, "handle_chinese_chars", true)) KVA_TRY(map_by(l, kva_char_with_spaced_ideographs, to));
  if (strip_accents) {
    KVA_TRY(add_step(l, to, (kva_text_step){.kind = KVA_TEXT_NORMAL_FORM, .form = KVA_NFD}));
    KVA_TRY(map_by(l, kva_char_without_nonspacing, to));
  }
  return lower ? map_by(l, kva_char_lower, to) : KVA_OK;
}

static kva_status normal_form(const kva_loader *l, const json_t *v, kva_text_steps *to) {
  static const char *const names[KVA_NORMAL_FORMS] = {"NFC", "NFD", "NFKC", "NFKD"};
  kva_text_step s = {.kind = KVA_TEXT_NORMAL_FORM};
  while (!kva_json_is(json_object_get(v, "type"), names[s.form])) s.form++;
  return add_step(l, to, s);
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */

typedef struct step_type {
  const char *name;
  kva_status (*add)(const kva_loader *l, const json_t *v, kva_text_steps *to);
} step_type;

typedef struct step_types {
  const char *part, *list; /* names of such a step, and of the member of a sequence that holds the steps */
  uint32_t n;
  const step_type *types;
} step_types;

static const step_type pre_tokenizers[] = {
    {"ByteLevel", byte_level},      {"Split", split_step}, {"Metaspace", metaspace},   {"Whitespace", words},
    {"WhitespaceSplit", at_spaces}, {"Digits", digits},    {"BertPreTokenizer", bert}, {"Punctuation", at_punctuation}};
static const step_type normalizers[] = {
    {"NFC", normal_form},         {"NFD", normal_form},      {"NFKC", normal_form},
    {"NFKD", normal_form},        {"Prepend", prepend},      {"Strip", strip},
    {"Replace", replacement},     {"Lowercase", lower_case}, {"StripAccents", without_marks},
    {"BertNormalizer", bert_text}};

static kva_status take_steps(kva_loader *l, const step_types *known, const json_t *v, kva_text_steps *to) {
  const json_t *type = json_object_get(v, "type"), *list = json_object_get(v, known->list);
  if (!v || json_is_null(v)) return KVA_OK;
  if (kva_json_is(type, "Sequence") && json_is_array(list)) {
    if (++l->depth > MAX_NESTED) return kva_json_wrong(l, known->part, "no deeper nesting");
    for (size_t i = 0; i < json_array_size(list); i++) KVA_TRY(take_steps(l, known, json_array_get(list, i), to));
    l->depth--;
    return KVA_OK;
  }
  for (uint32_t i = 0; i < known->n; i++)
    if (kva_json_is(type, known->types[i].name)) return known->types[i].add(l, v, to);
  return kva_json_unsupported(l, known->part, type);
}

kva_status kva_json_normalizer(kva_loader *l, const json_t *v, kva_text_steps *to) {
  static const step_types known = {"normalizer", "normalizers", sizeof normalizers / sizeof *normalizers, normalizers};
  return take_steps(l, &known, v, to);
}

kva_status kva_json_pre_tokenizer(kva_loader *l, const json_t *v, kva_text_steps *to) {
  static const step_types known = {"pre-tokenizer", "pretokenizers", sizeof pre_tokenizers / sizeof *pre_tokenizers,
                                   pre_tokenizers};
  return take_steps(l, &known, v, to);
}
