/* Numbers are written with a point, whatever locale the program has chosen that the code runs in: printf and strtod go
 * by the locale of the thread. */
#ifndef KVA_BASE_NUMBERS_H
#define KVA_BASE_NUMBERS_H

#include <locale.h>

/* Gives the calling thread the locale of C, and returns the one that it had, for kva_numbers_leave. Pairs nest. */
locale_t kva_numbers_enter(void);
void kva_numbers_leave(locale_t before);

#endif
