/* Formats are rows: what stands before and after the text of each role. */
#include "tools/generate/chat.h"

#include "runtime/base/platform.h"
#include "tools/tokenizer/unicode.h"

#include <jansson.h>
#include <stdlib.h>
#include <time.h>

typedef struct turn {
  const char *before, *after;
} turn;

struct kva_chat {
  const char *name;
  /* The format is found by its template, which has all of `writes` and none of `never`, see behind; without a template,
   * where the tokenizer has these tokens. NULL: not at all. */
  const char *writes[3], *never[3];
  const char *token, *also;
  turn turns[KVA_ROLES];
  const char *open;   /* begins the assistant's answer */
  const char *system; /* where the first message is not the system's: this one stands before; NULL: none */
  const char *dates;  /* stands before the text of the first message of the system, see strftime; NULL: nothing */
  const char *end;    /* the tokenizer's eos_token, where the turns have it */
  unsigned trims;     /* bits of roles: no white space around their texts */
  bool system_inside; /* the system's text stands in the first turn of the user */
  bool system_last;   /* then: in the last one */
  bool one_text;      /* then: with the user's, is trimmed as one text */
  bool thinks;        /* answers lose what was thought before them */
  const char *stop;
};

enum { TRIM_SYSTEM = 1 << KVA_ROLE_SYSTEM, TRIM_USER = 1 << KVA_ROLE_USER, TRIM_ANSWER = 1 << KVA_ROLE_ASSISTANT };

/* clang-format off */
#define CHATML .turns = {{"<|im_start|>system\n", "<|im_end|>\n"}, {"<|im_start|>user\n", "<|im_end|>\n"}, \
                         {"<|im_start|>assistant\n", "<|im_end|>\n"}}, .open = "<|im_start|>assistant\n"
#define LLAMA3 .turns = {{"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"}, \
                         {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"}, \
                         {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"}}, \
               .open = "<|start_header_id|>assistant<|end_header_id|>\n\n", \
               .trims = TRIM_SYSTEM | TRIM_USER | TRIM_ANSWER
/* clang-format on */

/* The first that fits applies. */
static const kva_chat chats[] = {
    {.name = "qwen3",
     .writes = {"<|im_start|>", "'<think>\n\n</think>\n\n'}}{%-endif%}{%-endif%}", "enable_thinking is false"},
     CHATML,
     .thinks = true},
    {.name = "qwen2.5",
     .writes = {"<|im_start|>"},
     CHATML,
     .system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen2", .writes = {"<|im_start|>"}, CHATML, .system = "You are a helpful assistant."},
    {.name = "smollm2",
     .writes = {"<|im_start|>"},
     CHATML,
     .system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.name = "phi4",
     .writes = {"<|im_start|>", "<|im_sep|>"},
     .token = "<|im_start|>",
     .also = "<|im_sep|>",
     .turns = {{"<|im_start|>system<|im_sep|>", "<|im_end|>"},
               {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
               {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"}},
     .open = "<|im_start|>assistant<|im_sep|>"},
    {.name = "chatml",
     .writes = {"<|im_start|>"},
     .never = {"<|im_sep|>", "{{system_message}}", "<end_of_utterance>"},
     .token = "<|im_start|>",
     CHATML},
    {.name = "llama3.1",
     .writes = {"Cutting Knowledge Date: December 2023\n", "'Today Date: '+date_string+'\n\n'", "'26 Jul 2024'"},
     .never = {"strftime_now"},
     LLAMA3,
     .system = "",
     .dates = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"},
    {.name = "llama3.2",
     .writes = {"Cutting Knowledge Date: December 2023\n", "'Today Date: '+date_string+'\n\n'",
                "strftime_now('%d %b %Y')"},
     LLAMA3,
     .system = "",
     .dates = "Cutting Knowledge Date: December 2023\nToday Date: %d %b %Y\n\n"},
    {.name = "llama3",
     .writes = {"<|start_header_id|>"},
     .never = {"Cutting Knowledge Date"},
     .token = "<|start_header_id|>",
     LLAMA3},
    {.name = "gemma",
     .writes = {"<start_of_turn>"},
     .token = "<start_of_turn>",
     .turns = {{"", "\n\n"},
               {"<start_of_turn>user\n", "<end_of_turn>\n"},
               {"<start_of_turn>model\n", "<end_of_turn>\n"}},
     .open = "<start_of_turn>model\n",
     .trims = TRIM_USER | TRIM_ANSWER,
     .system_inside = true},
    {.name = "phi3",
     .writes = {"<|user|>", "<|end|>"},
     .token = "<|user|>",
     .also = "<|end|>",
     .turns = {{"<|system|>\n", "<|end|>\n"}, {"<|user|>\n", "<|end|>\n"}, {"<|assistant|>\n", "<|end|>\n"}},
     .open = "<|assistant|>\n"},
    {.name = "zephyr",
     .writes = {"'<|user|>\n'+message['content']+eos_token", "'<|assistant|>\n'+message['content']+eos_token"},
     .token = "<|user|>",
     .turns = {{"<|system|>\n", "</s>\n"}, {"<|user|>\n", "</s>\n"}, {"<|assistant|>\n", "</s>\n"}},
     .open = "<|assistant|>\n",
     .end = "</s>"},
    {.name = "llama2",
     .writes = {"<<SYS>>"},
     .turns = {{"<<SYS>>\n", "\n<</SYS>>\n\n"}, {"[INST] ", " [/INST]"}, {" ", " </s><s>"}},
     .open = "",
     .end = "</s>",
     .trims = TRIM_USER | TRIM_ANSWER,
     .system_inside = true,
     .one_text = true},
    {.name = "mistral-v1",
     .writes = {"' [INST] '+message['content']+' [/INST]'", "' '+message['content']+eos_token}}"},
     .turns = {{"", "\n\n"}, {" [INST] ", " [/INST]"}, {" ", "</s>"}},
     .open = "",
     .end = "</s>",
     .system_inside = true},
    {.name = "mistral-v3",
     .writes = {"'[INST] '+system_message", "'[INST] '+message['content']+'[/INST]'",
                "' '+message['content']|trim+eos_token}}"},
     .turns = {{"", "\n\n"}, {"[INST] ", "[/INST]"}, {" ", "</s>"}},
     .open = "",
     .end = "</s>",
     .trims = TRIM_ANSWER,
     .system_inside = true,
     .system_last = true},
    {.name = "mistral-nemo",
     .writes = {"'[INST]'+system_message", "'[INST]'+message['content']+'[/INST]'",
                "{{-message['content']+eos_token}}"},
     .never = {"'[INST] '"},
     .turns = {{"", "\n\n"}, {"[INST]", "[/INST]"}, {"", "</s>"}},
     .open = "",
     .end = "</s>",
     .system_inside = true,
     .system_last = true},
    {.name = "mistral",
     .writes = {"'[INST] '+message['content']+' [/INST]'", "' '+message['content']+eos_token}}"},
     .token = "[INST]",
     .turns = {{"", "\n\n"}, {"[INST] ", " [/INST]"}, {" ", "</s>"}},
     .open = "",
     .end = "</s>",
     .system_inside = true},
    {.name = "mistral-v0.2",
     .writes = {"'[INST] '+message['content']+' [/INST]'", "{{message['content']+eos_token}}"},
     .turns = {{"", "\n\n"}, {"[INST] ", " [/INST]"}, {"", "</s>"}},
     .open = "",
     .end = "</s>",
     .system_inside = true},
    {.name = "plain",
     .turns = {{"", "\n"}, {"User: ", "\n"}, {"Assistant: ", "\n"}},
     .open = "Assistant:",
     .stop = "\nUser:"},
};
enum { N_CHATS = sizeof chats / sizeof *chats };

const kva_chat *kva_chat_named(const char *name) {
  for (size_t i = 0; i < N_CHATS; i++)
    if (!strcmp(chats[i].name, name)) return &chats[i];
  return NULL;
}

const char *kva_chat_name(const kva_chat *chat) {
  return chat->name;
}

const char *kva_chat_stop(const kva_chat *chat) {
  return chat->stop;
}

kva_role kva_role_named(const char *name) {
  static const char *const names[KVA_ROLES] = {"system", "user", "assistant"};
  for (int i = 0; i < KVA_ROLES; i++)
    if (!strcmp(names[i], name)) return (kva_role)i;
  return strcmp(name, "developer") ? KVA_ROLES : KVA_ROLE_SYSTEM; /* another name of the same */
}

/* ---- which ------------------------------------------------------------------------------------------------------- */

/* What the tokenizer's files say. */
typedef struct source {
  char *text; /* the template; NULL: none */
  json_t *config;
} source;

/* Where a template goes on behind `sign`; NULL: it does not begin with it. Templates may have more white space, either
 * quotes, and ends of lines as two characters. */
static const char *behind(const char *text, const char *sign) {
  for (; *sign; sign++) {
    if (*sign == '\n' && text[0] == '\\' && text[1] == 'n') {
      text += 2;
      continue;
    }
    while (*text != *sign && *sign != '\n' && *text && strchr(" \t\r\n", *text)) text++;
    if (*text != *sign && !(*text == '"' && *sign == '\'')) return NULL;
    text++;
  }
  return text;
}

/* Behind the first place of a sign; NULL: there is none. */
static const char *find(const char *text, const char *sign) {
  const char *end = NULL;
  for (; *text && !end; text++) end = behind(text, sign);
  return end;
}

/* Whether a text goes on with words of its own, not with its end or an expression. */
static bool is_said(const char *rest) {
  return *rest && !strchr("'\"{", *rest);
}

/* The texts that a template itself gives to the system, and to the beginning of answers, are the format's. */
static bool says_as(const kva_chat *c, const char *text) {
  const char *before = c->turns[KVA_ROLE_SYSTEM].before, *at, *own;
  bool found = false;
  for (at = text; *before && (at = find(at, before));) {
    if (!is_said(at)) continue;
    own = c->system ? behind(at, c->system) : NULL;
    if (!own || !behind(own, c->turns[KVA_ROLE_SYSTEM].after)) return false;
    found = true;
  }
  for (at = text; *c->open && (at = find(at, c->open));)
    if (is_said(at)) return false;
  at = find(text, "system_message='"); /* Llama 2's stands in a branch that is never taken */
  if (at && is_said(at) && !find(text, "false==true")) return false;
  return found == (c->system && *c->system);
}

static bool trims_as(const kva_chat *c, const char *text) {
  return c->trims || (!find(text, "content']|trim") && !find(text, "content|trim") && !find(text, ".strip()"));
}

static bool ends_as(const kva_chat *c, const source *s) {
  const json_t *end = json_object_get(s->config, "eos_token"), *content = json_object_get(end, "content");
  const char *text = json_string_value(content ? content : end);
  return !c->end || !text || !strcmp(text, c->end);
}

static bool has_signs_of(const kva_chat *c, const char *text) {
  for (size_t i = 0; i < sizeof c->writes / sizeof *c->writes; i++)
    if (c->writes[i] && !find(text, c->writes[i])) return false;
  for (size_t i = 0; i < sizeof c->never / sizeof *c->never; i++)
    if (c->never[i] && find(text, c->never[i])) return false;
  return c->writes[0] && c->thinks == (find(text, "<think>") != NULL);
}

static bool is_template_of(const kva_chat *c, const source *s) {
  return has_signs_of(c, s->text) && says_as(c, s->text) && trims_as(c, s->text) && ends_as(c, s);
}

static bool has_tokens_of(const kva_chat *c, const kva_tokenizer *t) {
  return c->token && kva_tokenizer_find(t, c->token) >= 0 && (!c->also || kva_tokenizer_find(t, c->also) >= 0);
}

/* By the template, or if there is none by the tokens. */
static const kva_chat *recognise(const source *s, const kva_tokenizer *t) {
  for (size_t i = 0; i < N_CHATS; i++)
    if (s->text ? is_template_of(&chats[i], s) : has_tokens_of(&chats[i], t)) return &chats[i];
  return NULL;
}

/* A template in the configuration: a text, or several with names. */
static const char *template_in(const json_t *config) {
  const json_t *v = json_object_get(config, "chat_template");
  for (size_t i = 0; i < json_array_size(v); i++) {
    const json_t *item = json_array_get(v, i);
    const char *name = json_string_value(json_object_get(item, "name"));
    if (name && !strcmp(name, "default")) return json_string_value(json_object_get(item, "template"));
  }
  return json_string_value(v);
}

/* A file of its own goes before the configuration. `where` becomes the name of the file with the template. */
static source read_source(const char *tokenizer_path, kva_text *where) {
  const char *slash = strrchr(tokenizer_path, '/');
  int folder = slash ? (int)(slash + 1 - tokenizer_path) : 0;
  kva_text own = {0};
  kva_file file;
  kva_text_add(where, "%.*stokenizer_config.json", folder, tokenizer_path);
  kva_text_add(&own, "%.*schat_template.jinja", folder, tokenizer_path);
  source s = {.config = json_load_file(where->data, 0, NULL)};
  const char *text = template_in(s.config);
  if (kva_file_map(own.data, NULL, &file) == KVA_OK) {
    s.text = strndup(file.data, file.size);
    kva_file_unmap(&file);
    where->len = 0;
    kva_text_add(where, "%s", own.data);
  } else if (text)
    s.text = strdup(text);
  kva_text_free(&own);
  return s;
}

kva_status kva_chat_find(const char *tokenizer_path, const kva_tokenizer *t, kva_diag *diag,
                         const kva_chat **out_chat) {
  kva_text path = {0};
  source s = read_source(tokenizer_path, &path);
  *out_chat = recognise(&s, t);
  const kva_loc loc = {.file = path.data};
  kva_status status = KVA_OK;
  if (s.text && !*out_chat)
    status = kva_fail(diag, KVA_UNSUPPORTED, &loc, "the chat template is of no known format; choose one of " KVA_CHATS);
  json_decref(s.config);
  free(s.text);
  kva_text_free(&path);
  return status;
}

kva_status kva_chat_choose(const char *word, const char *tokenizer_path, const kva_tokenizer *t, kva_diag *diag,
                           const kva_chat **out_chat) {
  *out_chat = kva_chat_named(word);
  return *out_chat || !tokenizer_path ? KVA_OK : kva_chat_find(tokenizer_path, t, diag, out_chat);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void add(kva_text *out, const char *text) {
  kva_text_add_bytes(out, text, strlen(text));
}

/* The text, which is UTF-8, without white space at its ends. */
static void add_trimmed(kva_text *out, const char *text, bool at_begin) {
  size_t n = strlen(text), begin = at_begin ? n : 0, end = begin, size;
  for (size_t at = 0; at < n; at += size) {
    if (kva_is_space(kva_utf8_get(text + at, &size))) continue;
    if (begin == n) begin = at;
    end = at + size;
  }
  if (end > begin) kva_text_add_bytes(out, text + begin, end - begin);
}

/* What an answer says behind its thoughts. */
static const char *behind_thoughts(const char *text) {
  static const char mark[] = "</think>";
  const char *rest = text;
  for (const char *at = text; (at = strstr(at, mark));) rest = at += sizeof mark - 1;
  return rest == text ? text : rest + strspn(rest, "\n");
}

static void add_dates(const kva_chat *chat, kva_text *out) {
  char text[128];
  struct tm day;
  time_t now = time(NULL);
  if (localtime_r(&now, &day) && strftime(text, sizeof text, chat->dates, &day)) add(out, text);
}

static void add_turn(const kva_chat *chat, const kva_message *m, const kva_message *system, bool first, kva_text *out) {
  const turn *inside = &chat->turns[KVA_ROLE_SYSTEM];
  const char *text = chat->thinks && m->role == KVA_ROLE_ASSISTANT ? behind_thoughts(m->text) : m->text;
  add(out, chat->turns[m->role].before);
  if (first && m->role == KVA_ROLE_SYSTEM && chat->dates) add_dates(chat, out);
  if (system) {
    add(out, inside->before);
    add(out, system->text);
    add(out, inside->after);
  }
  if (chat->trims >> m->role & 1 && kva_utf8_valid(text, strlen(text)))
    add_trimmed(out, text, !system || !chat->one_text);
  else
    add(out, text);
  add(out, chat->turns[m->role].after);
}

const char *kva_chat_render(const kva_chat *chat, const kva_message *messages, size_t n, kva_text *out) {
  const kva_message *system = NULL, own = {KVA_ROLE_SYSTEM, chat->system};
  if (!n) return "expected at least one message";
  if (chat->system && messages[0].role != KVA_ROLE_SYSTEM) add_turn(chat, &own, NULL, true, out);
  for (size_t i = 0; i < n; i++) {
    const kva_message *m = &messages[i];
    if (m->role == KVA_ROLE_SYSTEM && chat->system_inside) {
      if (i) return "a system message must be the first one in this model's format";
      system = m;
      continue;
    }
    if (system && i == 1 && m->role != KVA_ROLE_USER) return "the system message must be followed by the user's";
    bool here = system && (!chat->system_last || i + 1 == n);
    add_turn(chat, m, here ? system : NULL, i == 0, out);
    if (here) system = NULL;
  }
  if (messages[n - 1].role != KVA_ROLE_USER) return "the last message must be the user's";
  add(out, chat->open);
  return NULL;
}
