/* The generating executable: continues texts with the model, the tokenizer and the format of chats inside of it. */
#include "runtime/exe/exe.h"
#include "runtime/exe/streams.h"
#include "tools/generate/texts.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct program {
  const char *name;
  const kva_artifact *artifact;
  const char *const *info;
  kva_texts_options texts;
  const char *weights;
  kva_arena *arena;
  kva_diag *diag;
} program;

static void describe(const program *p, kva_text *out) {
  const char *description = kva_info_get(p->info, "description"), *chat = kva_info_get(p->info, "generate.chat");
  if (description) kva_text_add(out, "%s\n\n", description);
  kva_text_add(out, "Model %s, compiled for %s. Tokens are %s.", p->artifact->model ? p->artifact->model : "unnamed",
               p->artifact->target ? p->artifact->target : "unknown",
               kva_info_get(p->info, "generate.tokenizer") ? "those of the tokenizer inside" : "bytes");
  if (chat) kva_text_add(out, " --chat auto is %s.", chat);
  kva_text_add(out, "\nWithout a prompt, all of standard input is the prompt, less a newline at its end. One text is "
                    "printed as it comes, after\nthe prompt. Ctrl-C ends the texts where they are, with exit code "
                    "4.\n");
}

/* All of standard input is the prompt. */
static kva_status read_prompt(program *p) {
  kva_text text = {0};
  char part[4096];
  ssize_t n;
  while ((n = read(STDIN_FILENO, part, sizeof part)) > 0) kva_text_add_bytes(&text, part, (size_t)n);
  kva_status status =
      n < 0 ? kva_fail(p->diag, KVA_IO, NULL, "cannot read standard input: %s", strerror(errno)) : KVA_OK;
  if (text.cut) status = kva_fail(p->diag, KVA_NO_MEMORY, NULL, "out of memory");
  if (text.len && text.data[text.len - 1] == '\n') text.len--;
  char *prompt = kva_arena_strndup(p->arena, text.len ? text.data : "", text.len);
  if (status == KVA_OK && strlen(prompt) != text.len)
    status = kva_error(p->diag, NULL, "expected a text on standard input, found a zero byte");
  p->texts.prompt = prompt;
  kva_text_free(&text);
  return status;
}

static kva_status load_tokenizer(const program *p, kva_tokenizer **out) {
  const char *json = kva_info_get(p->info, "generate.tokenizer");
  if (json) return kva_tokenizer_parse("the tokenizer inside", json, strlen(json), p->diag, out);
  *out = kva_tokenizer_bytes();
  return KVA_OK;
}

static int64_t context_of(const program *p) {
  const char *context = kva_info_get(p->info, "generate.context");
  return context ? strtoll(context, NULL, 10) : INT64_MAX;
}

static kva_status continue_texts(const program *p, kva_tokenizer *tokenizer) {
  const kva_session_options options = {
      .threads = (int)p->texts.threads, .seed = (uint64_t)p->texts.seed, .weights = p->weights, .borrow_states = true};
  const char *chat = kva_info_get(p->info, "generate.chat");
  kva_texts *texts;
  kva_session *s = NULL;
  KVA_TRY(kva_texts_create(&p->texts, tokenizer, chat ? kva_chat_named(chat) : NULL, p->diag, &texts));
  kva_status status = kva_session_create(p->artifact, &options, p->diag, &s);
  if (status == KVA_OK) status = kva_texts_run(texts, s, context_of(p));
  kva_texts_destroy(texts);
  kva_session_destroy(s);
  return status;
}

static kva_status run(program *p) {
  kva_tokenizer *tokenizer = NULL;
  if (!p->texts.prompt && !p->texts.prompts) KVA_TRY(read_prompt(p));
  kva_status status = load_tokenizer(p, &tokenizer);
  if (status == KVA_OK) status = continue_texts(p, tokenizer);
  kva_tokenizer_destroy(tokenizer);
  return status;
}

static int parse(program *p, int argc, char **argv) {
  const kva_option options[] = {
      KVA_TEXTS_OPTIONS(&p->texts),
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &p->weights, "of a model whose weights are not inside"}};
  kva_text text = {0};
  const char *prompt = NULL, *wrong;
  describe(p, &text);
  const kva_usage usage = {p->name, "[PROMPT] [options]", "continues texts with the model inside", text.data};
  int n,
      code = kva_options_parse(&usage, argc - 1, argv + 1, options, sizeof options / sizeof *options, &prompt, 1, &n);
  if (text.cut) code = kva_exit_code(p->name, KVA_NO_MEMORY, NULL);
  kva_text_free(&text);
  if (code >= 0) return code;
  wrong = n && p->texts.prompt ? "the prompt is given twice" : NULL;
  if (n) p->texts.prompt = prompt;
  if (!wrong) wrong = kva_texts_misused(&p->texts);
  if (!wrong) return -1;
  fprintf(stderr, "%s: %s\n", p->name, wrong);
  return EXIT_USAGE;
}

int kva_generate_main(int argc, char **argv, const kva_artifact *artifact, const char *const *info) {
  program p = {.name = kva_exe_name(argc, argv), .artifact = artifact, .info = info, .texts = KVA_TEXTS_DEFAULTS};
  kva_streams_open();
  p.arena = kva_arena_create();
  int code = parse(&p, argc, argv);
  if (code < 0) {
    p.diag = kva_diag_create();
    if (!p.weights) p.weights = kva_exe_beside(kva_info_get(info, "weights"), p.arena);
    kva_status status = run(&p);
    code = kva_exit_code(p.name, status, p.diag);
    kva_diag_destroy(p.diag);
  }
  kva_arena_destroy(p.arena);
  return kva_streams_close(p.name, code);
}
