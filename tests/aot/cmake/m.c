/* A library of the project that happens to be called m. */
int of_m(void);

int of_m(void) {
  return 42;
}
