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
  expect("qwen2.5",
         "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
         "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n");
  expect("phi4",
         "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>A<|im_end|><|im_start|>assistant<|im_sep|>B"
         "<|im_end|><|im_start|>user<|im_sep|>C<|im_end|><|im_start|>assistant<|im_sep|>");
  expect("llama3.1",
         "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul "
         "2024\n\nS"
         "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>assistant"
         "<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>"
         "assistant<|end_header_id|>\n\n");
  expect("mistral-v0.2", "[INST] S\n\nA [/INST]B</s>[INST] C [/INST]");
  expect("mistral-v1", " [INST] S\n\nA [/INST] B</s> [INST] C [/INST]");
  expect("mistral-v3", "[INST] A[/INST] B</s>[INST] S\n\nC[/INST]");
  expect("mistral-nemo", "[INST]A[/INST]B</s>[INST]S\n\nC[/INST]");
  expect("plain", "S\nUser: A\nAssistant: B\nUser: C\nAssistant:");
  assert_null(kva_chat_named("other"));
}

static void expect_user(const char *format, const char *answer, const char *question, const char *expected) {
  const kva_message messages[] = {{KVA_ROLE_USER, question}, {KVA_ROLE_ASSISTANT, answer}, {KVA_ROLE_USER, "C"}};
  kva_text out = {0};
  assert_null(kva_chat_render(kva_chat_named(format), messages, 3, &out));
  assert_string_equal(out.data, expected);
  kva_text_free(&out);
}

/* Without a message of the system; white space, which some templates cut off; thoughts of earlier answers. */
static void texts_as_templates_change_them(void **state) {
  (void)state;
  expect_user("qwen2", " B\n", " A ",
              "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n A <|im_end|>\n"
              "<|im_start|>assistant\n B\n<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n");
  expect_user(
      "qwen3", "<think>\nmm\n</think>\n\nB", "A</think>",
      "<|im_start|>user\nA</think><|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
      "<|im_start|>assistant\n");
  expect_user("gemma", "\u3000B", " A\n b\n",
              "<start_of_turn>user\nA\n b<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC"
              "<end_of_turn>\n<start_of_turn>model\n");
  expect_user("llama2", " B ", "\n", "[INST]  [/INST] B </s><s>[INST] C [/INST]");
  expect_user("mistral-v3", " B ", " A ", "[INST]  A [/INST] B</s>[INST] C[/INST]");
  expect_user(
      "llama3.1", "B", "\xFF ",
      "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024"
      "\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\xFF <|eot_id|><|start_header_id|>assistant"
      "<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>"
      "assistant<|end_header_id|>\n\n");
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

/* The format of a folder with one file. */
static const char *of_file(const char *folder, const char *name, const char *text) {
  char path[96];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
  const kva_chat *chat;
  char tokenizer[96];
  snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", folder);
  kva_tokenizer *t = with_tokens("<|im_start|>", "y");
  kva_status status = kva_chat_find(tokenizer, t, NULL, &chat);
  assert_int_equal(status, chat ? KVA_OK : KVA_UNSUPPORTED);
  kva_tokenizer_destroy(t);
  unlink(path);
  return chat ? kva_chat_name(chat) : "none";
}

#define LOOP(before, middle, after)                                                                                  \
  "{% for message in messages %}{{'" before "' + message['role'] + '" middle "' + message['content'] + " after " }}" \
  "{% endfor %}"

/* A template says more than the tokens in it; a format that differs is none. */
static void formats_of_templates(void **state) {
  (void)state;
  static const char *const rows[][2] = {
      {"chatml", LOOP("<|im_start|>", "\\n", "'<|im_end|>\\n'") "{{ '<|im_start|>assistant\\n' }}"},
      {"qwen2", "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"},
      {"qwen2.5",
       "{{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}"},
      {"none", "{{ '<|im_start|>system\\nYou are a helpful assistant!<|im_end|>\\n' }}"},
      {"none", "{% set system_message = 'You are.' %}" LOOP("<|im_start|>", "\\n", "'<|im_end|>\\n'")},
      {"none", LOOP("<|im_start|>", "\\n", "'<|im_end|>\\n'") "{{ '<|im_start|>assistant\\n<think>\\n' }}"},
      {"none", LOOP("<|im_start|>", "\\n", "'<|im_end|>\\n'") "{{ '<|im_start|>assistant\\nSo: ' }}"},
      {"none", "<|im_start|>{{ message['content'] }}<end_of_utterance>"},
      {"none",
       "{% for message in messages %}{{ '<|im_start|>' + message['content'] | trim + '<|im_end|>\\n' }}{% endfor %}"},
      {"phi4", "{{ '<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>' }}"},
      {"llama3", "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim }}"},
      {"llama3.1",
       "{%- set date_string = \"26 Jul 2024\" %}{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n"
       "{{- \"Cutting Knowledge Date: December 2023\\n\" }}{{- \"Today Date: \" + date_string + \"\\n\\n\" }}"},
      {"none", "{{- \"<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: March 2023\\n\" }}"},
      {"zephyr",
       "{{ '<|user|>\n' + message['content'] + eos_token }}{{ '<|assistant|>\n'  + message['content'] + eos_token }}"},
      {"none", "{{ '<|user|>\n' + message['content'] }}{{ '<|assistant|>\n' + message['content'] + eos_token }}"},
      {"none", "[gMASK]<sop><|user|>\n{{ item['content'] }}<|assistant|>"},
      {"mistral-v1",
       "{{- \" [INST] \" + message[\"content\"] + \" [/INST]\" }}{{- \" \" + message[\"content\"] + eos_token}}"},
      {"mistral-v0.2", "{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token}}"},
      {"none", "{{ '[SYSTEM_PROMPT] ' }}{{ '[INST] ' + message['content'] + '[/INST]' }}"},
  };
  char folder[] = "/tmp/kvasir-chat-XXXXXX";
  assert_non_null(mkdtemp(folder));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    assert_string_equal(of_file(folder, "chat_template.jinja", rows[i][1]), rows[i][0]);
  const char *list = "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}, "
                     "{\"name\": \"default\", \"template\": \"{{'<start_of_turn>'}}\"}]}";
  assert_string_equal(of_file(folder, "tokenizer_config.json", list), "gemma");
  const char *ends =
      "{\"eos_token\": {\"content\": \"<|end|>\"}, \"chat_template\": \"{{ '<|user|>\\n' + message['content'] + "
      "eos_token }}{{ '<|assistant|>\\n' + message['content'] + eos_token }}\"}";
  assert_string_equal(of_file(folder, "tokenizer_config.json", ends), "none");
  rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_of_formats),        cmocka_unit_test(texts_as_templates_change_them),
      cmocka_unit_test(orders_that_are_refused), cmocka_unit_test(format_of_a_tokenizer),
      cmocka_unit_test(formats_of_templates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
