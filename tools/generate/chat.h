/* Chats as texts for a model that was tuned on them: the common formats by name. */
#ifndef KVA_TOOLS_GENERATE_CHAT_H
#define KVA_TOOLS_GENERATE_CHAT_H

#include "tools/tokenizer/tokenizer.h"

typedef struct kva_chat kva_chat;

typedef enum kva_role { KVA_ROLE_SYSTEM, KVA_ROLE_USER, KVA_ROLE_ASSISTANT, KVA_ROLES } kva_role;

typedef struct kva_message {
  kva_role role;
  const char *text;
} kva_message;

#define KVA_CHATS                                                                                            \
  "chatml|llama3|gemma|phi3|zephyr|llama2|mistral|plain|qwen2|qwen2.5|qwen3|smollm2|phi4|llama3.1|llama3.2|" \
  "mistral-v0.2|mistral-v1|mistral-v3|mistral-nemo"
/* A format of KVA_CHATS; NULL: no such format. */
const kva_chat *kva_chat_named(const char *name);
/* The format of a tokenizer.json: by the chat template beside it (chat_template.jinja, or in tokenizer_config.json),
 * else by the names of special tokens. *out_chat is NULL where neither tells; KVA_UNSUPPORTED: there is a template, of
 * no known format. */
KVA_MUST_USE kva_status kva_chat_find(const char *tokenizer_path, const kva_tokenizer *t, kva_diag *diag,
                                      const kva_chat **out_chat);
/* For words of options: that of the name, or for "auto" that of the tokenizer (path NULL: bytes have none). */
#define KVA_CHAT_WORDS "auto|" KVA_CHATS
KVA_MUST_USE kva_status kva_chat_choose(const char *word, const char *tokenizer_path, const kva_tokenizer *t,
                                        kva_diag *diag, const kva_chat **out_chat);
const char *kva_chat_name(const kva_chat *chat);
kva_role kva_role_named(const char *name); /* KVA_ROLES: no such role */

/* Appends the messages and the beginning of the assistant's answer. NULL, or what is wrong with the order of messages.
 * Tokens that the tokenizer puts before every text are not part of it. */
const char *kva_chat_render(const kva_chat *chat, const kva_message *messages, size_t n, kva_text *out);
/* What ends the assistant's turn; NULL: only its tokens do. */
const char *kva_chat_stop(const kva_chat *chat);

#endif
