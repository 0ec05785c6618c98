/* Formats of chats: what each makes of messages, and which one a tokenizer has. */
#include "tools/generate/chat.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static const kva_message talk[] = {
    {KVA_ROLE_SYSTEM, "S"}, {KVA_ROLE_USER, "A"}, {KVA_ROLE_ASSISTANT, "B"}, {KVA_ROLE_USER, "C"}};

static void expect(const char *format, const char *expected) {
  kva_text out = {0};
  const kva_chat *chat = kva_chat_named(format);
  assert_non_null(chat);
  assert_null(kva_chat_render(chat, talk, 4, &out));
  assert_string_equal(out.data, expected);
  kva_text_free(&out);
}

/* As the templates of the models' authors give them, without the token that begins every text. */
static void texts_of_formats(void **state) {
  (void)state;
  expect("chatml",
         "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
         "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n");
  expect("llama3",
         "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA"
         "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user"
         "<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  expect("gemma",
         "<start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC"
         "<end_of_turn>\n<start_of_turn>model\n");
  expect("phi3",
         "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n");
  expect("zephyr", "<|system|>\nS</s>\n<|user|>\nA</s>\n<|assistant|>\nB</s>\n<|user|>\nC</s>\n<|assistant|>\n");
  expect("llama2", "[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]");
  expect("mistral", "[INST] S\n\nA [/INST] B</s>[INST] C [/INST]");
  expect("plain", "S\nUser: A\nAssistant: B\nUser: C\nAssistant:");
  assert_null(kva_chat_named("other"));
}

static void refuse(const char *format, const kva_message *messages, size_t n, const char *says) {
  kva_text out = {0};
  const char *wrong = kva_chat_render(kva_chat_named(format), messages, n, &out);
  assert_non_null(wrong);
  assert_non_null(strstr(wrong, says));
  kva_text_free(&out);
}

static void orders_that_are_refused(void **state) {
  (void)state;
  const kva_message late[] = {{KVA_ROLE_USER, "A"}, {KVA_ROLE_SYSTEM, "S"}, {KVA_ROLE_USER, "B"}};
  const kva_message alone[] = {{KVA_ROLE_SYSTEM, "S"}, {KVA_ROLE_ASSISTANT, "A"}, {KVA_ROLE_USER, "B"}};
  refuse("chatml", talk, 0, "at least one");
  refuse("chatml", talk, 3, "the last message");
  refuse("gemma", late, 3, "must be the first");
  refuse("llama2", alone, 3, "followed by the user's");
}

/* ---- which format ------------------------------------------------------------------------------------------------ */

static kva_tokenizer *with_tokens(const char *a, const char *b) {
  kva_text json = {0};
  kva_tokenizer *t;
  kva_text_add(
      &json,
      "{\"model\": {\"vocab\": {\"x\": 0}, \"merges\": []}, \"added_tokens\": [{\"id\": 1, \"content\": \"%s\"}, "
      "{\"id\": 2, \"content\": \"%s\"}]}",
      a, b);
  assert_int_equal(kva_tokenizer_parse("t", json.data, json.len, NULL, &t), KVA_OK);
  kva_text_free(&json);
  return t;
}

static const char *found(const char *path, const char *a, const char *b, kva_status expected) {
  const kva_chat *chat;
  kva_tokenizer *t = with_tokens(a, b);
  assert_int_equal(kva_chat_find(path, t, NULL, &chat), expected);
  kva_tokenizer_destroy(t);
  return chat ? kva_chat_name(chat) : "none";
}

static void format_of_a_tokenizer(void **state) {
  (void)state;
  char folder[] = "/tmp/kvasir-chat-XXXXXX", path[64], config[64];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  snprintf(config, sizeof config, "%s/tokenizer_config.json", folder);
  assert_string_equal(found(path, "<|im_start|>", "y", KVA_OK), "chatml");
  assert_string_equal(found(path, "<|user|>", "<|end|>", KVA_OK), "phi3");
  assert_string_equal(found(path, "<|user|>", "y", KVA_OK), "zephyr");
  assert_string_equal(found(path, "y", "z", KVA_OK), "none");
  FILE *f = fopen(config, "w");
  fputs("{\"chat_template\": \"{{ '[INST] <<SYS>>' }}\"}", f);
  fclose(f);
  assert_string_equal(found(path, "<|im_start|>", "y", KVA_OK), "llama2");
  f = fopen(config, "w");
  fputs("{\"chat_template\": \"{{ messages }}\"}", f);
  fclose(f);
  assert_string_equal(found(path, "<|im_start|>", "y", KVA_UNSUPPORTED), "none");
  unlink(config);
  rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_of_formats),
      cmocka_unit_test(orders_that_are_refused),
      cmocka_unit_test(format_of_a_tokenizer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
