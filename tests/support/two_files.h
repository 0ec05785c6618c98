/* A folder of the test's own with room for two files. */
#ifndef KVA_TESTS_SUPPORT_TWO_FILES_H
#define KVA_TESTS_SUPPORT_TWO_FILES_H

/* The files' paths, between set-up and tear-down of a group of tests; who writes them is free. */
extern char path_a[64], path_b[64];

int make_two_files(void **state);
/* Fails if the test left more than these behind. */
int remove_two_files(void **state);

#endif
