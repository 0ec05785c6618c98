/* The compiler as a library, from the installed tree. */
#include <kvasir.h>

#include <stdio.h>

int main(void) {
  return puts(kvasir_version()) < 0;
}
