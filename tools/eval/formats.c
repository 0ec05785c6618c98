/* The formats of items. Prompts follow what is usual for each test set; docs/evaluation.md shows them. */
#include "runtime/exe/options.h"
#include "tools/eval/items.h"

enum { MAX_CHOICES = 64 };

#define JOIN(r, ...) kva_arena_printf((r)->items->arena, __VA_ARGS__)

/* ---- items: the format of its own -------------------------------------------------------------------------------- */

/* The last word is the target, with the space before it. */
static kva_status last_word(const kva_item_reader *r, const char *text, kva_item *item) {
  size_t end = strlen(text);
  while (end && strchr(" \t\r\n", text[end - 1])) end--;
  size_t begin = end;
  while (begin && !strchr(" \t\n", text[begin - 1])) begin--;
  if (begin < 2) return kva_item_wrong(r, "a text of at least two words");
  kva_item_text *t = kva_item_texts(r, item, 1);
  t->context = kva_arena_strndup(r->items->arena, text, begin - 1);
  t->continuation = kva_arena_strndup(r->items->arena, text + begin - 1, end - begin + 1);
  item->kind = KVA_ITEM_TARGET;
  return KVA_OK;
}

/* The strings of a list, or the one that stands for a list of one. */
static kva_status strings(const kva_item_reader *r, const json_t *v, const char *key, uint32_t *out_n,
                          const char *out[MAX_CHOICES]) {
  size_t n = json_is_array(v) ? json_array_size(v) : 1;
  if (n < 1 || n > MAX_CHOICES) return kva_error(r->diag, &r->loc, "expected 1 to %d \"%s\"", MAX_CHOICES, key);
  for (size_t i = 0; i < n; i++) {
    const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
    if (!json_is_string(s)) return kva_error(r->diag, &r->loc, "expected strings as \"%s\"", key);
    out[i] = kva_arena_strdup(r->items->arena, json_string_value(s));
  }
  *out_n = (uint32_t)n;
  return KVA_OK;
}

/* Contexts times continuations, one of them alone: their number is the other's. */
static kva_status pair(const kva_item_reader *r, const json_t *contexts, const char *context_key,
                       const json_t *continuations, const char *key, kva_item *item) {
  const char *a[MAX_CHOICES], *b[MAX_CHOICES];
  uint32_t na, nb;
  KVA_TRY(strings(r, contexts, context_key, &na, a));
  KVA_TRY(strings(r, continuations, key, &nb, b));
  uint32_t n = na > nb ? na : nb;
  kva_item_text *t = kva_item_texts(r, item, n);
  for (uint32_t i = 0; i < n; i++) t[i] = (kva_item_text){a[na > 1 ? i : 0], b[nb > 1 ? i : 0]};
  return KVA_OK;
}

/* What an item may have, by the first key that it has of these. */
static const char *const forms[][4] = {{"text"},
                                       {"write", "context", "stop"},
                                       {"contexts", "target", "answer"},
                                       {"choices", "context", "answer"},
                                       {"target", "context"}};
#define FORMS "text, or context and one of choices (with answer), target and write, or contexts, target and answer"

static kva_status check_keys(const kva_item_reader *r, const json_t *object) {
  size_t form = 0, n = sizeof forms / sizeof *forms;
  while (form < n && !json_object_get(object, forms[form][0])) form++;
  if (form == n) return kva_item_wrong(r, FORMS);
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)object, key, value) {
    size_t i = 0;
    while (i < 4 && forms[form][i] && strcmp(forms[form][i], key) != 0) i++;
    if (i == 4 || !forms[form][i])
      return kva_error(r->diag, &r->loc, "unknown \"%s\" beside \"%s\"; an item has " FORMS, key, forms[form][0]);
  }
  return KVA_OK;
}

static kva_status take_written(const kva_item_reader *r, const json_t *object, kva_item *item) {
  KVA_TRY(pair(r, json_object_get(object, "context"), "context", json_object_get(object, "write"), "write", item));
  item->kind = KVA_ITEM_ANSWER;
  item->stop = "\n";
  return json_object_get(object, "stop") ? kva_item_string(r, object, "stop", &item->stop) : KVA_OK;
}

static kva_status take_item(const kva_item_reader *r, const json_t *object, kva_item *item) {
  const json_t *context = json_object_get(object, "context"), *contexts = json_object_get(object, "contexts");
  const json_t *choices = json_object_get(object, "choices"), *target = json_object_get(object, "target");
  KVA_TRY(check_keys(r, object));
  if (json_object_get(object, "text")) {
    const char *text;
    KVA_TRY(kva_item_string(r, object, "text", &text));
    return last_word(r, text, item);
  }
  if (json_object_get(object, "write")) return take_written(r, object, item);
  if (contexts)
    KVA_TRY(pair(r, contexts, "contexts", target, "target", item));
  else
    KVA_TRY(pair(r, context, "context", choices ? choices : target, choices ? "choices" : "target", item));
  if (!contexts && !choices) {
    item->kind = KVA_ITEM_TARGET;
    return item->n == 1 ? KVA_OK : kva_item_wrong(r, "one target");
  }
  return kva_item_integer(r, object, "answer", item->n, &item->right);
}

/* ---- public test sets -------------------------------------------------------------------------------------------- */

static kva_status take_lambada(const kva_item_reader *r, const json_t *object, kva_item *item) {
  const char *text;
  KVA_TRY(kva_item_string(r, object, "text", &text));
  return last_word(r, text, item);
}

/* The sentence with each option in the place of "_": what follows it is scored. */
static kva_status take_winogrande(const kva_item_reader *r, const json_t *object, kva_item *item) {
  const char *sentence, *option[2], *answer;
  KVA_TRY(kva_item_string(r, object, "sentence", &sentence));
  KVA_TRY(kva_item_string(r, object, "option1", &option[0]));
  KVA_TRY(kva_item_string(r, object, "option2", &option[1]));
  KVA_TRY(kva_item_string(r, object, "answer", &answer));
  const char *gap = strchr(sentence, '_');
  if (!gap) return kva_item_wrong(r, "a \"sentence\" with _ for the option");
  if (strcmp(answer, "1") != 0 && strcmp(answer, "2") != 0) return kva_item_wrong(r, "the \"answer\" \"1\" or \"2\"");
  kva_item_text *t = kva_item_texts(r, item, 2);
  for (int i = 0; i < 2; i++)
    t[i] = (kva_item_text){JOIN(r, "%.*s%s", (int)(gap - sentence), sentence, option[i]), gap + 1};
  item->right = *answer == '2';
  return KVA_OK;
}

/* Texts from WikiHow: without marks as [title] and [step], and the double spaces that these leave. */
static const char *without_marks(const kva_item_reader *r, const char *text) {
  char *out = kva_arena_strdup(r->items->arena, text), *to = out;
  for (const char *at = text; *at;) {
    const char *close = *at == '[' ? strchr(at, ']') : NULL;
    if (close) {
      at = close + 1;
      continue;
    }
    if (*at != ' ' || to == out || to[-1] != ' ') *to++ = *at;
    at++;
  }
  *to = 0;
  return out;
}

static kva_status take_hellaswag(const kva_item_reader *r, const json_t *object, kva_item *item) {
  const char *activity, *context, *endings[MAX_CHOICES];
  uint32_t n;
  KVA_TRY(kva_item_string(r, object, "activity_label", &activity));
  KVA_TRY(kva_item_string(r, object, "ctx", &context));
  KVA_TRY(strings(r, json_object_get(object, "endings"), "endings", &n, endings));
  const char *before = without_marks(r, JOIN(r, "%s: %s", activity, context));
  kva_item_text *t = kva_item_texts(r, item, n);
  for (uint32_t i = 0; i < n; i++) t[i] = (kva_item_text){before, without_marks(r, JOIN(r, " %s", endings[i]))};
  return kva_item_integer(r, object, "label", n, &item->right);
}

static kva_status take_arc(const kva_item_reader *r, const json_t *object, kva_item *item) {
  const json_t *question = json_object_get(object, "question"), *choices = json_object_get(question, "choices");
  const char *stem, *key;
  KVA_TRY(kva_item_string(r, question, "stem", &stem));
  KVA_TRY(kva_item_string(r, object, "answerKey", &key));
  uint32_t n = (uint32_t)json_array_size(choices);
  if (n < 1 || n > MAX_CHOICES) return kva_item_wrong(r, "a list \"choices\" in the \"question\"");
  const char *context = JOIN(r, "Question: %s\nAnswer:", stem);
  kva_item_text *t = kva_item_texts(r, item, n);
  item->right = n;
  for (uint32_t i = 0; i < n; i++) {
    const char *text, *label;
    KVA_TRY(kva_item_string(r, json_array_get(choices, i), "text", &text));
    KVA_TRY(kva_item_string(r, json_array_get(choices, i), "label", &label));
    t[i] = (kva_item_text){context, JOIN(r, " %s", text)};
    if (!strcmp(label, key)) item->right = i;
  }
  return item->right < n ? KVA_OK : kva_item_wrong(r, "an \"answerKey\" that is the label of a choice");
}

/* A question with four answers of which the letter is asked for. f: question, the answers, the right letter. */
static kva_status letters(const kva_item_reader *r, const char *const f[6], const char *question, const char *answer,
                          const char *space, kva_item *item) {
  static const char *const names[] = {"A", "B", "C", "D"};
  const char *right = f[5];
  while (*right == ' ') right++;
  if (*right < 'A' || *right > 'D' || right[1 + strspn(right + 1, " \r")])
    return kva_item_wrong(r, "a letter A to D as the answer, the last field");
  const char *context = JOIN(r, "%s%s\nA. %s\nB. %s\nC. %s\nD. %s\n%s", question, f[0], f[1], f[2], f[3], f[4], answer);
  kva_item_text *t = kva_item_texts(r, item, 4);
  for (int i = 0; i < 4; i++) t[i] = (kva_item_text){context, JOIN(r, "%s%s", space, names[i])};
  item->right = (uint32_t)(*right - 'A');
  return KVA_OK;
}

static kva_status take_mmlu(const kva_item_reader *r, kva_item *item) {
  if (r->record.len != 6) return kva_item_wrong(r, "six fields: question, A, B, C, D, answer");
  item->intro = JOIN(r, "The following are multiple choice questions (with answers) about %s.\n\n", r->group);
  return letters(r, r->record.data, "", "Answer:", " ", item);
}

static kva_status take_cmmlu(const kva_item_reader *r, kva_item *item) {
  static const char *const names[6] = {"Question", "A", "B", "C", "D", "Answer"};
  const char *fields[6];
  for (int i = 0; i < 6; i++)
    if (!(fields[i] = kva_item_field(r, names[i])))
      return kva_item_wrong(r, "the fields Question, A, B, C, D and Answer, named by the first record");
  item->intro = "以下是单项选择题，请直接给出正确答案的选项。\n\n";
  return letters(r, fields, "题目：", "答案是：", "", item);
}

static kva_status take_math(const kva_item_reader *r, const json_t *object, kva_item *item) {
  const char *problem, *solution;
  KVA_TRY(kva_item_string(r, object, "problem", &problem));
  KVA_TRY(kva_item_string(r, object, "solution", &solution));
  const char *answer = kva_boxed(solution, r->items->arena);
  if (!answer) return kva_item_wrong(r, "a \"solution\" with its answer in \\boxed{}");
  kva_item_text *t = kva_item_texts(r, item, 1);
  *t = (kva_item_text){JOIN(r, "Problem: %s\nAnswer:", problem), JOIN(r, " %s", answer)};
  item->kind = KVA_ITEM_ANSWER;
  item->stop = "\n";
  item->mathematics = true;
  return KVA_OK;
}

/* In order of KVA_TASKS. */
static const kva_item_format formats[] = {
    {.take_object = take_item},
    {.take_object = take_lambada, .take_line = last_word},
    {.take_object = take_winogrande},
    {.take_object = take_hellaswag},
    {.take_object = take_arc},
    {.take_record = take_mmlu, .by_subject = true},
    {.take_record = take_cmmlu, .has_header = true, .by_subject = true},
    {.take_object = take_math},
};

const kva_item_format *kva_item_format_named(const char *name) {
  int i = kva_word_index(KVA_TASKS, name);
  return i < 0 ? NULL : &formats[i];
}
