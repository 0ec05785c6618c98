/* Instead of the server, where libmicrohttpd was not found. */
#include "tools/serve/http/server.h"

kva_status kva_server_start(kva_service *service, kva_tokenizer *tokenizer, const kva_server_options *o, kva_diag *diag,
                            kva_server **out_server) {
  (void)service, (void)tokenizer, (void)o;
  *out_server = NULL;
  return kva_fail(diag, KVA_MISSING, NULL,
                  "this kvasir was built without libmicrohttpd: install libmicrohttpd-dev and build it again");
}

int kva_server_port(const kva_server *s) {
  (void)s;
  return 0;
}

void kva_server_stop(kva_server *s) {
  (void)s;
}

const char *kva_server_library(void) {
  return NULL;
}
