/* The locale of C for a thread. */
#include "runtime/base/numbers.h"

#include <pthread.h>

static locale_t of_c;

static void create(void) {
  of_c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Without memory for a locale uselocale(0) changes nothing. */
locale_t kva_numbers_enter(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, create);
  return uselocale(of_c);
}

void kva_numbers_leave(locale_t before) {
  (void)uselocale(before);
}
