/* Formats are rows: what stands before and after the text of each role. */
#include "tools/generate/chat.h"

#include <jansson.h>
#include <stdlib.h>

typedef struct turn {
  const char *before, *after;
} turn;

struct kva_chat {
  const char *name;
  const char *sign; /* in the template, or as a token: the format is this one; NULL: never found */
  const char *also; /* a second sign, NULL: none */
  turn turns[KVA_ROLES];
  const char *open;   /* begins the assistant's answer */
  bool system_inside; /* the system's text stands in the first turn of the user */
  const char *stop;
};

/* The first that fits applies. */
static const kva_chat chats[] = {
    {.name = "chatml",
     .sign = "<|im_start|>",
     .turns = {{"<|im_start|>system\n", "<|im_end|>\n"},
               {"<|im_start|>user\n", "<|im_end|>\n"},
               {"<|im_start|>assistant\n", "<|im_end|>\n"}},
     .open = "<|im_start|>assistant\n"},
    {.name = "llama3",
     .sign = "<|start_header_id|>",
     .turns = {{"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
               {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
               {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"}},
     .open = "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {.name = "gemma",
     .sign = "<start_of_turn>",
     .turns = {{"", "\n\n"},
               {"<start_of_turn>user\n", "<end_of_turn>\n"},
               {"<start_of_turn>model\n", "<end_of_turn>\n"}},
     .open = "<start_of_turn>model\n",
     .system_inside = true},
    {.name = "phi3",
     .sign = "<|user|>",
     .also = "<|end|>",
     .turns = {{"<|system|>\n", "<|end|>\n"}, {"<|user|>\n", "<|end|>\n"}, {"<|assistant|>\n", "<|end|>\n"}},
     .open = "<|assistant|>\n"},
    {.name = "zephyr",
     .sign = "<|user|>",
     .turns = {{"<|system|>\n", "</s>\n"}, {"<|user|>\n", "</s>\n"}, {"<|assistant|>\n", "</s>\n"}},
     .open = "<|assistant|>\n"},
    {.name = "llama2",
     .sign = "<<SYS>>",
     .turns = {{"<<SYS>>\n", "\n<</SYS>>\n\n"}, {"[INST] ", " [/INST]"}, {" ", " </s><s>"}},
     .open = "",
     .system_inside = true},
    {.name = "mistral",
     .sign = "[INST]",
     .turns = {{"", "\n\n"}, {"[INST] ", " [/INST]"}, {" ", "</s>"}},
     .open = "",
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

static bool shows(const char *text, const kva_tokenizer *t, const char *sign) {
  return text ? strstr(text, sign) != NULL : kva_tokenizer_find(t, sign) >= 0;
}

/* By the template, or if there is none by the tokens. */
static const kva_chat *recognise(const char *text, const kva_tokenizer *t) {
  for (size_t i = 0; i < N_CHATS; i++) {
    const kva_chat *c = &chats[i];
    if (c->sign && shows(text, t, c->sign) && (!c->also || shows(text, t, c->also))) return c;
  }
  return NULL;
}

kva_status kva_chat_find(const char *tokenizer_path, const kva_tokenizer *t, kva_diag *diag,
                         const kva_chat **out_chat) {
  const char *slash = strrchr(tokenizer_path, '/');
  kva_text path = {0};
  kva_text_add(&path, "%.*stokenizer_config.json", slash ? (int)(slash + 1 - tokenizer_path) : 0, tokenizer_path);
  json_t *config = json_load_file(path.data, 0, NULL);
  const char *text = json_string_value(json_object_get(config, "chat_template"));
  *out_chat = recognise(text, t);
  const kva_loc loc = {.file = path.data};
  kva_status status = KVA_OK;
  if (text && !*out_chat)
    status = kva_fail(diag, KVA_UNSUPPORTED, &loc, "the chat template is of no known format; choose one of " KVA_CHATS);
  json_decref(config);
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

static void add_turn(const kva_chat *chat, const kva_message *m, const kva_message *system, kva_text *out) {
  const turn *inside = &chat->turns[KVA_ROLE_SYSTEM];
  add(out, chat->turns[m->role].before);
  if (system) {
    add(out, inside->before);
    add(out, system->text);
    add(out, inside->after);
  }
  add(out, m->text);
  add(out, chat->turns[m->role].after);
}

const char *kva_chat_render(const kva_chat *chat, const kva_message *messages, size_t n, kva_text *out) {
  const kva_message *system = NULL;
  if (!n) return "expected at least one message";
  for (size_t i = 0; i < n; i++) {
    const kva_message *m = &messages[i];
    if (m->role == KVA_ROLE_SYSTEM && chat->system_inside) {
      if (i) return "a system message must be the first one in this model's format";
      system = m;
      continue;
    }
    if (system && m->role != KVA_ROLE_USER) return "the system message must be followed by the user's";
    add_turn(chat, m, system, out);
    system = NULL;
  }
  if (messages[n - 1].role != KVA_ROLE_USER) return "the last message must be the user's";
  add(out, chat->open);
  return NULL;
}
