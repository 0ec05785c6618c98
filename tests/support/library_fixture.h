/* Models, sessions and checks for tests of kvasir.h, none of which may print anything. */
#ifndef KVA_TESTS_SUPPORT_LIBRARY_FIXTURE_H
#define KVA_TESTS_SUPPORT_LIBRARY_FIXTURE_H

#include "tools/library/library.h"

#include <setjmp.h>
#include <cmocka.h>

enum { ROWS = 8 };

extern const char line_model[];  /* y = x @ w + b, with a train block */
extern const char twice_model[]; /* two inputs, two outputs, two symbols */
extern const kvasir_compile_options uncached;

/* Prints the messages of a failure, and destroys them. */
void print_failure(kvasir_status status, kvasir_messages *messages);

#define assert_ok(call_with_messages)             \
  do {                                            \
    kvasir_messages *messages = NULL;             \
    kvasir_status status_ = (call_with_messages); \
    print_failure(status_, messages);             \
    assert_int_equal(status_, KVASIR_OK);         \
  } while (0)

/* The call fails with this status, and its messages have this text. */
#define assert_fails(expected, text, call_with_messages)                                                      \
  do {                                                                                                        \
    kvasir_messages *messages = NULL;                                                                         \
    assert_int_equal((call_with_messages), (expected));                                                       \
    if (!strstr(kvasir_messages_text(messages), (text))) print_error("%s\n", kvasir_messages_text(messages)); \
    assert_non_null(strstr(kvasir_messages_text(messages), (text)));                                          \
    kvasir_messages_destroy(messages);                                                                        \
  } while (0)

kvasir_model *open_text(const char *text);
/* Compiled, on two threads, seed 7. */
kvasir_session *session_of(const char *text, bool training);
kvasir_tensor floats(int32_t rank, int64_t d0, int64_t d1, float *data);
/* ROWS rows of y = x @ W for line_model, for which the loss can become zero. */
void make_batch(unsigned seed, float *x, float *target);

/* Setup and teardown of a test: it fails if anything was printed, and shows it. */
int silence_begin(void **state);
int silence_end(void **state);
#define silent(test) cmocka_unit_test_setup_teardown(test, silence_begin, silence_end)

#endif
