/* The HTTP interface of a service, in the forms of OpenAI's. */
#ifndef KVA_TOOLS_SERVE_HTTP_SERVER_H
#define KVA_TOOLS_SERVE_HTTP_SERVER_H

#include "tools/generate/chat.h"
#include "tools/serve/service.h"

typedef struct kva_server_options {
  const char *host;            /* a numeric address */
  int64_t port;                /* 0: any that is free */
  const char *model, *api_key; /* name of the model; key that clients must send, NULL: none */
  const kva_chat *chat;        /* NULL: no chats */
  int64_t context, max_tokens; /* of a text with its prompt; that a request may ask for */
  int64_t max_body, max_texts, connections;
  int64_t tokens; /* prompts have numbers below it */
} kva_server_options;

typedef struct kva_server kva_server;

/* Listens. Borrows everything. */
KVA_MUST_USE kva_status kva_server_start(kva_service *service, kva_tokenizer *tokenizer, const kva_server_options *o,
                                         kva_diag *diag, kva_server **out_server);
int kva_server_port(const kva_server *s);
/* Takes no new connections; requests that run end by themselves. */
void kva_server_stop(kva_server *s);
/* Version of libmicrohttpd. Static storage. */
const char *kva_server_library(void);

#endif
